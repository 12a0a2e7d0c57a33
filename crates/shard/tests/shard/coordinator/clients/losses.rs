//! A store that comes back without its file, or with an older copy: no edge that knows better asks it for a decision (I50).

use super::*;
use marram_shard::coordinator::{Remembers, contents::EdgeStoreSeen};

fn group(name: &str) -> Subject {
    Subject::Group(name.into())
}

fn claim(count: u64, edge: usize) -> Claimed {
    let generation = Generation { count, opener: edge as u64 };
    Claimed { generation, primary: format!("edge-{edge}"), backup: Some("edge-9".into()) }
}

impl World {
    /// An edge claims a group, whatever another one has.
    fn claims(&mut self, edge: usize, name: &str) -> AskAnswer {
        self.asked(edge, Ask::Claim { subject: group(name), from: None, to: Some(claim(1, edge)) })
    }

    /// The store dies and comes back with this.
    pub(super) fn comes_back_with(&mut self, store: Store) {
        self.there = false;
        self.run(5);
        self.store = store;
        self.there = true;
        self.run(10);
    }

    /// An edge tells another one what it remembers.
    fn tells(&mut self, from: usize, to: usize) {
        let mark = self.edges[from].disk.clone().expect("it remembers");
        let seen = EdgeStoreSeen { edge: format!("edge-{from}"), mark };
        self.ask(to, u64::MAX - 1, Ask::StoreSeen(seen));
    }

    /// The edge starts again, with its disk or without.
    pub(super) fn starts_again(&mut self, edge: usize, keeps_disk: bool) {
        if !keeps_disk {
            self.edges[edge].disk = None;
        }
        let name = format!("edge-{edge}");
        let config = CoordinatorConfig {
            salt: 99,
            identity: [0xee; 16],
            remembered: self.edges[edge].disk.clone(),
            ..config(&name)
        };
        self.edges[edge].client = CoordinatorClient::new(config, self.now);
        (self.edges[edge].watch, self.letters) = (None, Vec::new());
        self.step(edge, CoordinatorInput::Here(registration(100 + edge as u64)));
        self.run(2 * u64::from(LEASE_S));
    }

    fn doubts(&self, edge: usize) -> Vec<Remembers> {
        self.edges[edge].client.doubts().collect()
    }

    pub(super) fn accepts(&mut self, edge: usize, identity: u8) {
        let lost = self.doubts(edge).into_iter().map(|doubt| doubt.mark).collect();
        assert_eq!(self.asked(edge, Ask::Accept { identity: [identity; 16], lost }), AskAnswer::Done);
        self.run(3);
    }
}

pub(super) fn refused(answer: &AskAnswer, who: &str) -> bool {
    matches!(answer, AskAnswer::Refused(why) if why.contains(who) && why.contains("marram coordinator accept"))
}

#[test]
fn every_decision_is_counted_and_remembered_before_it_is_answered() {
    let mut world = World::new(2, 1);
    world.run(3);
    for name in ["a", "b", "c"] {
        let before = world.edges[0].disk.clone().expect("it remembers the store").decisions;
        assert_eq!(world.claims(0, name), AskAnswer::Won);
        let after = world.edges[0].disk.clone().unwrap();
        assert_eq!(after.decisions, before + 1);
        assert_eq!(Some(after), world.edges[0].client.store_mark());
    }
    world.run(2);
    assert_eq!(world.edges[1].disk, world.edges[0].disk, "others follow");
    // A group without cells is removed, which is a decision as well.
    let (subject, from) = (group("a"), Some(claim(1, 0)));
    assert_eq!(world.asked(1, Ask::Claim { subject, from, to: None }), AskAnswer::Won);
    let holder = world.asked(0, Ask::Holder { subject: group("a") });
    assert_eq!(holder, AskAnswer::Holder(None));
}

#[test]
fn an_edge_asks_a_store_that_was_put_back_for_nothing_until_this_is_accepted() {
    let mut world = World::new(3, 2);
    world.run(3);
    assert_eq!(world.claims(0, "a"), AskAnswer::Won);
    let copy = Store::restore(&world.store.snapshot(), 0).unwrap();
    assert_eq!(world.claims(1, "b"), AskAnswer::Won);
    world.run(2);
    world.comes_back_with(copy);
    for edge in 0..3 {
        // What edge 1 won is not there any more: another edge could win it.
        assert!(refused(&world.claims(edge, "b"), "this edge remembers"));
        let told = world.edges[edge].log.iter().filter(|line| line.contains("has lost decisions")).count();
        assert_eq!(told, 1, "once");
        assert_eq!(*world.edges[edge].client.state(), CoordinatorState::There, "all else goes on");
    }
    world.starts_again(0, true);
    assert!(refused(&world.claims(0, "b"), "this edge remembers"), "its disk remembers");
    world.accepts(2, 7);
    for edge in 0..3 {
        assert_eq!(world.doubts(edge), [], "edge {edge}");
        assert_eq!(world.claims(edge, &format!("new-{edge}")), AskAnswer::Won);
    }
}

#[test]
fn a_record_is_verified_without_a_decision_and_only_where_one_could_be_taken() {
    let mut world = World::new(2, 9);
    world.run(3);
    let verify = |world: &mut World, known: Claimed| {
        let (from, to) = (Some(known.clone()), Some(known));
        world.asked(0, Ask::Claim { subject: group("a"), from, to })
    };
    assert_eq!(verify(&mut world, claim(1, 0)), AskAnswer::Lost(None));
    assert_eq!(world.claims(0, "a"), AskAnswer::Won);
    let mark = world.edges[0].client.store_mark();
    assert_eq!(verify(&mut world, claim(1, 0)), AskAnswer::Won);
    assert_eq!(world.edges[0].client.store_mark(), mark);
    assert_eq!(verify(&mut world, claim(2, 0)), AskAnswer::Lost(Some(claim(1, 0))));
    // The store has the record, but has lost a decision behind it.
    let copy = Store::restore(&world.store.snapshot(), 0).unwrap();
    assert_eq!(world.claims(1, "b"), AskAnswer::Won);
    world.run(2);
    world.comes_back_with(copy);
    assert!(refused(&verify(&mut world, claim(1, 0)), "this edge remembers"));
}

#[test]
fn an_edge_that_remembers_nothing_is_told_by_one_that_does() {
    let mut world = World::new(2, 3);
    world.run(3);
    assert_eq!(world.claims(0, "a"), AskAnswer::Won);
    world.run(2);
    world.comes_back_with(Store::new());
    world.starts_again(1, false);
    assert_eq!(world.doubts(1), [], "it knows no better");
    world.tells(0, 1);
    assert!(refused(&world.claims(1, "a"), "edge edge-0 remembers"));
    // It goes on remembering, although the other one is gone.
    world.edges[0].alive = false;
    world.run(20);
    assert!(refused(&world.claims(1, "a"), "edge edge-0 remembers"));
    world.accepts(1, 8);
    assert_eq!(world.claims(1, "a"), AskAnswer::Won);
    // The loss that was accepted is not doubted again when the other edge comes back.
    world.edges[0].alive = true;
    world.starts_again(0, true);
    world.tells(0, 1);
    world.tells(1, 0);
    assert_eq!((world.claims(0, "c"), world.claims(1, "d")), (AskAnswer::Won, AskAnswer::Won));
}

#[test]
fn an_edge_that_lags_behind_another_one_reads_again_and_goes_on() {
    let mut world = World::new(2, 4);
    world.run(3);
    // This edge's watch is silent.
    world.edges[1].watch = None;
    for name in ["a", "b"] {
        assert_eq!(world.claims(0, name), AskAnswer::Won);
    }
    let seen = |world: &World| world.edges[1].client.store_mark().unwrap().decisions;
    let before = seen(&world);
    world.tells(0, 1);
    assert_eq!(world.claims(1, "c"), AskAnswer::Won, "the claim waits for the read");
    assert_eq!(seen(&world), before + 3);
    assert_eq!(world.doubts(1), []);
}

#[test]
fn a_store_that_is_put_back_while_a_decision_is_on_its_way_does_not_take_it() {
    let mut world = World::new(1, 5);
    world.run(3);
    let copy = Store::restore(&world.store.snapshot(), 0).unwrap();
    assert_eq!(world.claims(0, "a"), AskAnswer::Won);
    world.ask(0, 1, Ask::Claim { subject: group("b"), from: None, to: Some(claim(1, 0)) });
    let sent = |world: &World| {
        let mut letters = world.letters.iter();
        letters.any(|letter| matches!(letter.request, Some(StoreRequest::Decide { .. })))
    };
    while !sent(&world) {
        world.tick();
    }
    world.store = copy;
    world.run(30);
    assert!(refused(&world.answer(0, 1).unwrap(), "this edge remembers"));
}

#[test]
fn two_stores_are_noticed_by_edges_that_talk() {
    let (mut one, mut other) = (World::new(1, 6), World::new(1, 7));
    other.edges[0].client =
        CoordinatorClient::new(CoordinatorConfig { identity: [5; 16], ..config("edge-0") }, 0);
    other.step(0, CoordinatorInput::Here(registration(4)));
    one.run(3);
    other.run(3);
    let mark = other.edges[0].disk.clone().unwrap();
    one.ask(0, 1, Ask::StoreSeen(EdgeStoreSeen { edge: "far".into(), mark }));
    assert!(refused(&one.claims(0, "a"), "edge far remembers"));
}

#[test]
fn accepted_losses_are_bounded_and_the_newest_ones_stay() {
    let mut world = World::new(1, 8);
    world.run(3);
    for round in 0..20 {
        assert_eq!(world.claims(0, &format!("g{round}")), AskAnswer::Won);
        world.run(2);
        world.comes_back_with(Store::new());
        assert!(refused(&world.claims(0, "x"), "this edge remembers"), "round {round}");
        world.accepts(0, 100 + round);
    }
    assert_eq!(world.claims(0, "last"), AskAnswer::Won);
}

#[test]
fn an_edge_that_starts_again_removes_the_groups_that_it_had_alone() {
    for keeps_disk in [true, false] {
        let mut world = World::new(2, 7);
        world.run(3);
        let names: [String; 3] = ["a", "b", "c"].map(|digit| digit.repeat(32));
        for (name, edge, backup) in
            [(&names[0], 0, None), (&names[1], 0, Some("edge-1")), (&names[2], 1, None)]
        {
            let to = Some(Claimed { backup: backup.map(Into::into), ..claim(1, edge) });
            let ask = Ask::Claim { subject: group(name), from: None, to };
            assert_eq!(world.asked(edge, ask), AskAnswer::Won);
        }
        world.starts_again(0, keeps_disk);
        let is_there = |world: &mut World, name: &str| {
            let holder = world.asked(1, Ask::Holder { subject: group(name) });
            matches!(holder, AskAnswer::Holder(Some(_)))
        };
        assert_eq!(is_there(&mut world, &names[0]), !keeps_disk);
        assert!(is_there(&mut world, &names[1]), "its backup may have to go on");
        assert!(is_there(&mut world, &names[2]), "another edge's");
        assert_eq!(world.edges[0].client.figures().groups_removed, u64::from(keeps_disk));
    }
}
