//! Slots: of several edges that take one, exactly one gets it, and the others learn where its cell is. A record is never overwritten.

use super::{losses::refused, *};
use marram_shard::coordinator::{SLOTS, SlotHeld, SlotName, SlotRecord};

fn slot() -> SlotName {
    SlotName::of(&held(1), 0)
}

/// What an edge would write, with a number of the attempt.
fn record(edge: usize, attempt: u8) -> SlotRecord {
    let edge = u8::try_from(edge).unwrap();
    SlotRecord { incarnation: [16 * attempt + edge; 16], group: [128 + 16 * attempt + edge; 16] }
}

fn claim(edge: usize) -> Claimed {
    let generation = Generation { count: 1, opener: edge as u64 };
    Claimed { generation, primary: format!("edge-{edge}"), backup: Some("edge-9".into()) }
}

fn takes(record: &SlotRecord) -> Ask {
    Ask::Slot { name: slot(), take: Some(record.clone()), from: None }
}

fn looks() -> Ask {
    Ask::Slot { name: slot(), take: None, from: None }
}

fn group_of(record: &SlotRecord) -> Subject {
    Subject::of_slot_group(record.group)
}

impl World {
    /// An edge claims the group of its record, as it does before it takes a slot.
    fn claims_group(&mut self, edge: usize, record: &SlotRecord, backup: bool) -> Claimed {
        let to = if backup { claim(edge) } else { Claimed { backup: None, ..claim(edge) } };
        let ask = Ask::Claim { subject: group_of(record), from: None, to: Some(to.clone()) };
        // The primary of a slot's group learns in which store.
        assert!(matches!(self.asked(edge, ask), AskAnswer::WonIn(_)));
        to
    }

    /// The slot's record, as the store has it.
    fn stored_slot(&mut self) -> Option<SlotRecord> {
        let request = StoreRequest::Get { key: slot().key() };
        let Ok(StoreReply::Entries { entries, .. }) = self.store.apply(self.now, request) else { panic!() };
        entries.first().map(|entry| decode(&entry.value).unwrap())
    }

    fn has_group(&mut self, edge: usize, record: &SlotRecord) -> bool {
        let holder = self.asked(edge, Ask::Holder { subject: group_of(record) });
        matches!(holder, AskAnswer::Holder(Some(_)))
    }

    /// Runs until a decision of this edge is on its way to the store.
    fn until_it_decides(&mut self, edge: usize) {
        let sent = |world: &Self| {
            let mut letters = world.letters.iter().filter(|letter| letter.edge == edge);
            letters.any(|letter| matches!(letter.request, Some(StoreRequest::Decide { .. })))
        };
        while !sent(self) {
            self.tick();
        }
    }
}

#[test]
fn the_first_edge_takes_the_slot_and_others_learn_where_its_cell_is() {
    let mut world = World::new(2, 1);
    world.run(3);
    assert_eq!(world.asked(1, looks()), AskAnswer::Slot(None));
    let (mine, yours) = (record(0, 0), record(1, 0));
    let holder = world.claims_group(0, &mine, true);
    let before = world.edges[0].disk.clone().unwrap().decisions;
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won);
    assert_eq!(world.edges[0].disk.clone().unwrap().decisions, before + 1, "it is a decision (I50)");
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won, "asked again");
    let there = AskAnswer::Slot(Some(SlotHeld { record: mine.clone(), holder: Some(holder.clone()) }));
    assert_eq!(world.asked(1, looks()), there);
    assert_eq!(world.asked(1, takes(&yours)), there);
    // Where it is follows its group's claim.
    let next =
        Claimed { generation: Generation { count: 2, opener: 9 }, primary: "edge-9".into(), backup: None };
    let ask = Ask::Claim { subject: group_of(&mine), from: Some(holder), to: Some(next.clone()) };
    assert!(world.asked(1, ask).is_won());
    let there = AskAnswer::Slot(Some(SlotHeld { record: mine.clone(), holder: Some(next.clone()) }));
    assert_eq!(world.asked(0, looks()), there);
    // A group without a record is told as such, and the slot is not free.
    let ask = Ask::Claim { subject: group_of(&mine), from: Some(next), to: None };
    assert!(world.asked(1, ask).is_won());
    let there = AskAnswer::Slot(Some(SlotHeld { record: mine, holder: None }));
    assert_eq!((world.asked(1, looks()), world.asked(1, takes(&yours))), (there.clone(), there));
    // Another version of the app has a slot of its own.
    let other = SlotName::of(&held(2), 0);
    assert_eq!(world.asked(1, Ask::Slot { name: other, take: Some(yours), from: None }), AskAnswer::Won);
}

#[test]
fn of_several_edges_that_take_a_slot_one_gets_it_even_if_messages_are_lost() {
    let (mut unknown, mut lost) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(5, seed);
        world.run(3);
        let records: Vec<SlotRecord> = (0..5).map(|edge| record(edge, 0)).collect();
        let holders: Vec<Claimed> =
            (0..5).map(|edge| world.claims_group(edge, &records[edge], true)).collect();
        world.loss = 10;
        let mut answers: Vec<Option<AskAnswer>> = vec![None; 5];
        let mut first = None;
        for _ in 0..3_000 {
            for (edge, answered) in answers.iter_mut().enumerate() {
                let is_open = matches!(answered, None | Some(AskAnswer::Away(_)));
                unknown += u32::from(matches!(answered, Some(AskAnswer::Away(_))));
                if !is_open {
                    continue;
                }
                *answered = world.answer(edge, 7);
                // The question may still be on its way: then there are two of it.
                if answered.is_none() && world.dice.percent(10) {
                    world.ask(edge, 7, takes(&records[edge]));
                }
            }
            if world.dice.percent(2) {
                world.restart();
            }
            let there = world.stored_slot();
            assert!(first.is_none() || there == first, "seed {seed}: a record was overwritten");
            first = there;
            if answers.iter().all(|answer| matches!(answer, Some(AskAnswer::Won | AskAnswer::Slot(_)))) {
                break;
            }
            world.tick();
        }
        let won: Vec<usize> = (0..5).filter(|edge| answers[*edge] == Some(AskAnswer::Won)).collect();
        let [won] = won[..] else { panic!("seed {seed}: {answers:?}") };
        assert_eq!(first, Some(records[won].clone()), "seed {seed}");
        let there = SlotHeld { record: records[won].clone(), holder: Some(holders[won].clone()) };
        for answer in answers.iter().filter(|answer| **answer != Some(AskAnswer::Won)) {
            assert_eq!(*answer, Some(AskAnswer::Slot(Some(there.clone()))), "seed {seed}");
            lost += 1;
        }
    }
    assert!(unknown > 20 && lost == 4 * 40, "{unknown} {lost}");
}

#[test]
fn a_question_whose_answer_is_lost_finds_what_it_has_written() {
    let mut world = World::new(2, 4);
    world.run(3);
    let mine = record(0, 0);
    world.claims_group(0, &mine, true);
    world.ask(0, 1, takes(&mine));
    world.until_it_decides(0);
    // The store takes the decision, and its answer does not arrive.
    while world.stored_slot().is_none() {
        world.tick();
    }
    world.letters.retain_mut(|letter| {
        if letter.edge == 0 && letter.result.is_some() {
            letter.result = Some(silence());
        }
        true
    });
    let first = (0..50).find_map(|_| {
        world.tick();
        world.answer(0, 1)
    });
    assert!(matches!(first, Some(AskAnswer::Away(_))), "{first:?}");
    world.run(10);
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won);
}

#[test]
fn while_the_store_is_away_no_slot_is_taken() {
    let mut world = World::new(1, 5);
    world.run(3);
    let mine = record(0, 0);
    world.claims_group(0, &mine, true);
    world.there = false;
    world.run(10);
    for (tag, ask) in [(1, looks()), (2, takes(&mine))] {
        world.ask(0, tag, ask);
        assert!(matches!(world.answer(0, tag), Some(AskAnswer::Away(_))), "at once");
    }
    world.there = true;
    world.run(10);
    assert_eq!(world.asked(0, looks()), AskAnswer::Slot(None));
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won);
}

#[test]
fn a_store_that_was_put_back_gives_no_slot_away_again() {
    let mut world = World::new(2, 2);
    world.run(3);
    let (mine, yours) = (record(0, 0), record(1, 0));
    world.claims_group(0, &mine, true);
    world.claims_group(1, &yours, true);
    let copy = Store::restore(&world.store.snapshot(), 0).unwrap();
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won);
    world.run(2);
    world.comes_back_with(copy);
    for (edge, record) in [(0, &mine), (1, &yours)] {
        assert!(refused(&world.asked(edge, takes(record)), "this edge remembers"), "edge {edge}");
        assert_eq!(world.stored_slot(), None);
    }
    world.accepts(1, 7);
    assert_eq!(world.asked(1, takes(&yours)), AskAnswer::Won, "an operator has accepted the loss");
}

#[test]
fn a_store_that_is_put_back_while_a_slot_is_being_taken_does_not_give_it() {
    let mut world = World::new(1, 3);
    world.run(3);
    let (first, second) = (record(0, 0), record(0, 1));
    let copy = Store::restore(&world.store.snapshot(), 0).unwrap();
    world.claims_group(0, &first, true);
    world.claims_group(0, &second, true);
    world.ask(0, 1, takes(&first));
    world.until_it_decides(0);
    world.store = copy;
    world.run(30);
    assert!(refused(&world.answer(0, 1).unwrap(), "this edge remembers"));
    assert_eq!(world.stored_slot(), None);
}

#[test]
fn a_record_that_exists_is_never_overwritten() {
    let mut world = World::new(3, 6);
    world.run(3);
    let mine = record(0, 0);
    let holder = world.claims_group(0, &mine, true);
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won);
    let there = AskAnswer::Slot(Some(SlotHeld { record: mine.clone(), holder: Some(holder) }));
    for attempt in 1..6 {
        for edge in 0..3 {
            let take = record(edge, attempt);
            assert_eq!(world.asked(edge, takes(&take)), there);
            // Nor one of the same group, or of the same incarnation.
            let same_group = SlotRecord { incarnation: take.incarnation, ..mine.clone() };
            let same_incarnation = SlotRecord { group: take.group, ..mine.clone() };
            assert_eq!(world.asked(edge, takes(&same_group)), there);
            assert_eq!(world.asked(edge, takes(&same_incarnation)), there);
        }
        world.restart();
        assert_eq!(world.stored_slot(), Some(mine.clone()), "it has no lease");
        world.run(4 * u64::from(LEASE_S));
    }
}

#[test]
fn a_record_of_another_version_is_neither_read_nor_overwritten() {
    let mut world = World::new(1, 8);
    world.run(3);
    let value = Bytes::from_static(&[7; 33]);
    let request =
        StoreRequest::Write { key: slot().key(), expect: None, value: Some(value.clone()), lease: None };
    world.store.apply(world.now, request).unwrap();
    for ask in [looks(), takes(&record(0, 0))] {
        let answer = world.asked(0, ask);
        assert!(matches!(&answer, AskAnswer::Refused(why) if why.contains("another version")), "{answer:?}");
    }
    let request = StoreRequest::Range { prefix: SLOTS.into() };
    let Ok(StoreReply::Entries { entries, .. }) = world.store.apply(world.now, request) else { panic!() };
    assert_eq!(entries.iter().map(|entry| entry.value.clone()).collect::<Vec<_>>(), [value]);
}

#[test]
fn an_edge_that_starts_again_removes_slots_groups_that_it_had_alone() {
    for is_taken in [true, false] {
        let mut world = World::new(2, 7);
        world.run(3);
        let (alone, backed, other) = (record(0, 0), record(0, 1), record(1, 0));
        for (edge, record, backup) in [(0, &alone, false), (0, &backed, true), (1, &other, false)] {
            world.claims_group(edge, record, backup);
        }
        if is_taken {
            assert_eq!(world.asked(0, takes(&alone)), AskAnswer::Won);
        }
        world.starts_again(0, true);
        assert_eq!((world.has_group(1, &alone), world.stored_slot()), (false, None), "the cell is lost");
        assert!(world.has_group(1, &backed), "its backup may have to go on");
        assert!(world.has_group(1, &other), "another edge's");
        assert_eq!(world.edges[0].client.figures().groups_removed, 1);
    }
}

#[test]
fn a_record_is_replaced_or_removed_by_a_question_that_names_it() {
    let mut world = World::new(2, 9);
    world.run(3);
    let (old, new, other) = (record(0, 0), record(0, 1), record(1, 0));
    let holder = world.claims_group(0, &old, false);
    assert_eq!(world.asked(0, takes(&old)), AskAnswer::Won);
    let there = AskAnswer::Slot(Some(SlotHeld { record: old.clone(), holder: Some(holder) }));
    let replaces = |from: &SlotRecord, take: Option<&SlotRecord>| Ask::Slot {
        name: slot(),
        take: take.cloned(),
        from: Some(from.clone()),
    };
    assert_eq!(world.asked(1, replaces(&other, Some(&new))), there);
    assert_eq!(world.asked(1, replaces(&other, None)), there);
    let before = world.edges[0].disk.clone().unwrap().decisions;
    for _ in 0..2 {
        assert_eq!(world.asked(0, replaces(&old, Some(&new))), AskAnswer::Won);
        assert_eq!(world.stored_slot(), Some(new.clone()));
    }
    assert_eq!(world.edges[0].disk.clone().unwrap().decisions, before + 1, "it is a decision (I50)");
    assert_eq!(
        world.asked(1, replaces(&old, None)),
        AskAnswer::Slot(Some(SlotHeld { record: new.clone(), holder: None }))
    );
    for _ in 0..2 {
        assert_eq!(world.asked(0, replaces(&new, None)), AskAnswer::Won);
        assert_eq!(world.stored_slot(), None);
    }
    assert_eq!(world.edges[0].disk.clone().unwrap().decisions, before + 2);
    // One that the store has lost meanwhile may be taken.
    assert_eq!(world.asked(0, replaces(&old, Some(&new))), AskAnswer::Won);
}

#[test]
fn beside_another_edge_of_its_name_an_edge_does_not_learn_that_a_cell_was_its_own() {
    let mut world = World::new(2, 11);
    world.run(3);
    let mine = record(0, 0);
    let holder = world.claims_group(0, &mine, false);
    assert_eq!(world.asked(0, takes(&mine)), AskAnswer::Won);
    let there = AskAnswer::Slot(Some(SlotHeld { record: mine, holder: Some(holder) }));
    // Another life of the same name, and the first one lives.
    let edge = &mut world.edges[1];
    (edge.client, edge.watch) = (CoordinatorClient::new(config("edge-0"), world.now), None);
    world.step(1, CoordinatorInput::Here(registration(77)));
    world.run(5);
    assert_eq!(world.asked(1, looks()), there, "it has not met the other one");
    world.step(0, CoordinatorInput::Here(Registration { sessions: 1, ..registration(0) }));
    world.run(5);
    for edge in 0..2 {
        let answer = world.asked(edge, looks());
        assert!(
            matches!(&answer, AskAnswer::Refused(why) if why.contains("two edges")),
            "edge {edge}: {answer:?}"
        );
    }
}
