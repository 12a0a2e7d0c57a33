//! The coordinator comes back while its clients wait before their next attempt.

use super::{Ask, AskAnswer, Claimed, CoordinatorState, Generation, PATIENCE, SECOND, Subject, World};

const FIRST: Claimed =
    Claimed { generation: Generation { count: 1, opener: 1 }, primary: String::new(), backup: None };

fn claim(group: &str) -> Ask {
    Ask::Claim { subject: Subject::Group(group.into()), from: None, to: Some(FIRST) }
}

#[test]
fn a_claim_does_not_wait_for_the_next_attempt_of_the_client() {
    for after in 0..50 {
        let mut world = World::new(1, after);
        world.run(2);
        world.there = false;
        world.run(60);
        world.ask(0, 1, claim("a"));
        world.ask(0, 2, claim("b"));
        assert!(matches!(world.answer(0, 2), Some(AskAnswer::Away(_))), "one is asked, and no other");
        world.run(PATIENCE / SECOND + 1);
        assert!(matches!(world.answer(0, 1), Some(AskAnswer::Away(_))), "it is not there");
        (0..after).for_each(|_| world.tick());
        world.there = true;
        assert!(matches!(world.edges[0].client.state(), CoordinatorState::Away { .. }));
        world.ask(0, 3, claim("a"));
        world.run(1);
        assert_eq!(world.answer(0, 3), Some(AskAnswer::Won), "{after}");
        // What the client asks itself goes on behind it, if it waits for no answer.
        world.run(PATIENCE / SECOND + 2);
        assert_eq!(*world.edges[0].client.state(), CoordinatorState::There, "{after}");
    }
}

#[test]
fn a_store_that_lost_a_decision_while_it_was_away_takes_no_claim() {
    let mut world = World::new(1, 1);
    world.run(2);
    let before = world.store.snapshot();
    assert_eq!(world.asked(0, claim("a")), AskAnswer::Won);
    world.there = false;
    world.run(60);
    world.store = marram_shard::coordinator::Store::restore(&before, world.now).unwrap();
    world.there = true;
    world.ask(0, 3, claim("a"));
    world.run(10);
    let answer = world.answer(0, 3);
    assert!(matches!(answer, Some(AskAnswer::Away(_) | AskAnswer::Refused(_))), "{answer:?}");
}
