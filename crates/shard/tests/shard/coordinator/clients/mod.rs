//! Clients of several edges and one store. Requests and answers between them are lost or delayed, or stop for a while; the store
//! restarts.

mod losses;
mod policies;
mod returns;
mod slots;
mod standbys;

use bytes::Bytes;
use marram_shard::api::AppVersion;
use marram_shard::coordinator::{
    Ask, AskAnswer, BACKOFF_MAX_NS, Changes, CoordinatorClient, CoordinatorConfig, CoordinatorInput,
    CoordinatorOutput, CoordinatorState, LISTING_NS, Lease, Placements, STORE_BYTES_MAX, StandsBy, Store,
    StoreFailure, StoreReply, StoreRequest, VALUE_BYTES_MAX,
    contents::{
        Claimed, NAME_BYTES_MAX, PART_SESSIONS_MAX, PARTS, Registration, Stands, Subject, Witnessed, decode,
        edge_key,
    },
};
use marram_wire::frame::StoreMark;
use marram_wire::id::{Generation, ImageHash, SessionId};
use marram_wire::seeded::Seeded;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
const LEASE_S: u32 = 6;
/// How long a request may be in flight before the shell times out.
const PATIENCE: u64 = 2 * SECOND;

fn registration(life: u64) -> Registration {
    Registration {
        life,
        addresses: vec!["127.0.0.1:7400".into()],
        admin: Some("http://127.0.0.1:7401".into()),
        host: None,
        shards: 2,
        sessions: 0,
        draining: false,
        has_store: false,
    }
}

fn held(image: u8) -> AppVersion {
    AppVersion { app: format!("app-{image}"), image: ImageHash([image; 32]) }
}

struct Edge {
    client: CoordinatorClient,
    /// Its watch: number, prefix, since when.
    watch: Option<(u64, String, u64)>,
    /// Dead edges do nothing.
    alive: bool,
    /// What it remembers of its store.
    disk: Option<StoreMark>,
    answers: BTreeMap<u64, AskAnswer>,
    log: Vec<String>,
}

fn config(edge: &str) -> CoordinatorConfig {
    CoordinatorConfig { edge: edge.into(), lease_s: LEASE_S, ..CoordinatorConfig::default() }
}

/// A message in flight: to the store or back, due at a time.
struct Letter {
    due: u64,
    edge: usize,
    tag: u64,
    request: Option<StoreRequest>,
    result: Option<Result<StoreReply, StoreFailure>>,
}

struct World {
    now: u64,
    store: Store,
    /// Whether the store answers.
    there: bool,
    /// Percentage of requests and answers that are lost.
    loss: u64,
    edges: Vec<Edge>,
    letters: Vec<Letter>,
    dice: Seeded,
}

impl World {
    fn new(edges: usize, seed: u64) -> Self {
        let edge = |index: usize| Edge {
            client: CoordinatorClient::new(
                CoordinatorConfig {
                    salt: seed + index as u64,
                    identity: [u8::try_from(index).unwrap(); 16],
                    ..config(&format!("edge-{index}"))
                },
                0,
            ),
            watch: None,
            alive: true,
            disk: None,
            answers: BTreeMap::new(),
            log: Vec::new(),
        };
        let mut world = Self {
            now: 0,
            store: Store::new(),
            there: true,
            loss: 0,
            edges: (0..edges).map(edge).collect(),
            letters: Vec::new(),
            dice: Seeded::new(seed),
        };
        for index in 0..edges {
            world.step(index, CoordinatorInput::Here(registration(index as u64)));
            world.step(index, CoordinatorInput::Holds(vec![held(u8::try_from(index).unwrap())]));
        }
        world
    }

    fn step(&mut self, index: usize, input: CoordinatorInput) {
        let mut outs = Vec::new();
        if self.edges[index].alive {
            self.edges[index].client.step(self.now, input, &mut outs);
        }
        for out in outs {
            match out {
                CoordinatorOutput::Send { tag, request } => {
                    let lost = self.dice.percent(self.loss);
                    let due = self.now + if lost { PATIENCE } else { self.dice.below(SECOND / 10) };
                    let (request, result) =
                        if lost { (None, Some(silence())) } else { (Some(request), None) };
                    self.letters.push(Letter { due, edge: index, tag, request, result });
                }
                CoordinatorOutput::Watch { watch, prefix, since } => {
                    self.edges[index].watch = Some((watch, prefix, since))
                }
                CoordinatorOutput::Asked { tag, answer } => {
                    drop(self.edges[index].answers.insert(tag, answer))
                }
                CoordinatorOutput::Remember(mark) => self.edges[index].disk = Some(mark),
                CoordinatorOutput::Log(_, text) => self.edges[index].log.push(text),
                CoordinatorOutput::Changed | CoordinatorOutput::WakeAt { .. } | CoordinatorOutput::Left => {}
            }
        }
    }

    /// Advances time by a tenth of a second.
    fn tick(&mut self) {
        self.now += SECOND / 10;
        self.store.expire(self.now);
        let now = self.now;
        let due: Vec<Letter> = self.letters.extract_if(.., |letter| letter.due <= now).collect();
        for letter in due {
            match (letter.request, letter.result) {
                (Some(request), _) if self.there => {
                    let result = self.store.apply(self.now, request);
                    let result = result.map_err(|refused| StoreFailure::Refused(format!("{refused}")));
                    let lost = self.dice.percent(self.loss);
                    let due = self.now + if lost { PATIENCE } else { self.dice.below(SECOND / 10) };
                    let result = Some(if lost { silence() } else { result });
                    self.letters.push(Letter { due, request: None, result, ..letter });
                }
                (Some(_), _) => {
                    let due = self.now + PATIENCE;
                    self.letters.push(Letter { due, request: None, result: Some(silence()), ..letter });
                }
                (None, Some(result)) => {
                    self.step(letter.edge, CoordinatorInput::Answered { tag: letter.tag, result })
                }
                (None, None) => unreachable!("a letter is one or the other"),
            }
        }
        for index in 0..self.edges.len() {
            self.step(index, CoordinatorInput::Wake);
            if self.there
                && let Some((watch, prefix, since)) = self.edges[index].watch.clone()
            {
                match self.store.changes(&prefix, since) {
                    Changes::All(changes) => {
                        self.edges[index].watch = Some((watch, prefix, self.store.revision()));
                        if !changes.is_empty() {
                            self.step(index, CoordinatorInput::Watched { watch, changes });
                        }
                    }
                    Changes::Forgotten => {
                        self.edges[index].watch = None;
                        self.step(index, CoordinatorInput::WatchEnded { watch, why: "forgotten".into() });
                    }
                }
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * 10).for_each(|_| self.tick());
    }

    fn restart(&mut self) {
        self.store = Store::restore(&self.store.snapshot(), self.now).unwrap();
    }

    fn names(&self, index: usize) -> Vec<String> {
        self.edges[index].client.edges().map(|(name, ..)| name.to_owned()).collect()
    }

    fn answer(&mut self, index: usize, tag: u64) -> Option<AskAnswer> {
        self.edges[index].answers.remove(&tag)
    }

    fn ask(&mut self, index: usize, tag: u64, ask: Ask) {
        self.step(index, CoordinatorInput::Ask { tag, ask });
    }

    /// Asks, and retries until it is answered.
    fn asked(&mut self, index: usize, ask: Ask) -> AskAnswer {
        self.ask(index, u64::MAX, ask);
        (0..100)
            .find_map(|_| {
                self.tick();
                self.answer(index, u64::MAX)
            })
            .expect("every question is answered")
    }
}

fn silence() -> Result<StoreReply, StoreFailure> {
    Err(StoreFailure::Unreachable("no answer".into()))
}

#[test]
fn edges_know_one_another_and_a_dead_one_vanishes_with_its_lease() {
    let mut world = World::new(4, 1);
    world.run(2);
    for index in 0..4 {
        assert_eq!(world.names(index), ["edge-0", "edge-1", "edge-2", "edge-3"]);
        assert_eq!(*world.edges[index].client.state(), CoordinatorState::There);
    }
    let holders = |world: &World, image: u8| -> Vec<String> {
        let holders = world.edges[0].client.holders(ImageHash([image; 32]));
        holders.map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(holders(&world, 2), ["edge-2"]);
    assert!(holders(&world, 0).is_empty(), "itself is no one to ask");
    world.step(3, CoordinatorInput::Holds(vec![held(3), held(2)]));
    world.run(1);
    assert_eq!(holders(&world, 2), ["edge-2", "edge-3"]);
    world.edges[2].alive = false;
    world.run(u64::from(LEASE_S) - 3);
    assert_eq!(world.names(0).len(), 4, "its lease lasts");
    world.run(4);
    assert_eq!(world.names(0), ["edge-0", "edge-1", "edge-3"]);
    assert_eq!(holders(&world, 2), ["edge-3"]);
    // An edge that leaves in order is removed at once.
    world.step(3, CoordinatorInput::Leave);
    world.run(1);
    assert_eq!(world.names(0), ["edge-0", "edge-1"]);
}

#[test]
fn while_it_is_unreachable_requests_fail_at_once_and_afterwards_all_is_as_before() {
    let mut world = World::new(3, 2);
    world.run(2);
    world.there = false;
    world.run(2 * u64::from(LEASE_S));
    let CoordinatorState::Away { since_ns, .. } = world.edges[0].client.state().clone() else {
        panic!("it is away")
    };
    assert!(since_ns > 2 * SECOND && since_ns < 8 * SECOND, "{since_ns}");
    assert!(!world.edges[0].client.cannot().is_empty());
    assert_eq!(world.names(0).len(), 3, "what was known is not forgotten");
    let told: Vec<&String> =
        world.edges[0].log.iter().filter(|line| line.contains("coordinator is unreachable")).collect();
    assert_eq!(told.len(), 1, "once: {told:?}");
    world.ask(0, 7, Ask::Holder { subject: Subject::Group("g".into()) });
    assert!(matches!(world.answer(0, 7), Some(AskAnswer::Away(_))), "no one waits");
    // While the store is away, the number of retries matches the longest backoff.
    let before = world.edges[0].client.figures().requests;
    world.run(60);
    let asked = world.edges[0].client.figures().requests - before;
    assert!((5..=60).contains(&asked), "{asked} times in a minute, waits up to {BACKOFF_MAX_NS}");
    world.there = true;
    world.restart();
    world.run(10);
    for index in 0..3 {
        assert_eq!(*world.edges[index].client.state(), CoordinatorState::There);
        assert_eq!(world.names(index).len(), 3);
        assert_eq!(world.edges[index].client.figures().leases_lost, 1, "all of them registered again");
    }
}

#[test]
fn an_answer_that_is_lost_behind_one_that_came_costs_no_lease() {
    let mut client = CoordinatorClient::new(CoordinatorConfig { lease_s: 2, salt: 3, ..config("edge") }, 0);
    let (mut now, mut out) = (0, Vec::new());
    client.step(now, CoordinatorInput::Here(registration(1)), &mut out);
    let mut asked = |now: &mut u64, result| {
        let sent = out.drain(..).find_map(|out| match out {
            CoordinatorOutput::Send { tag, .. } => Some(tag),
            _ => None,
        });
        client.step(*now, CoordinatorInput::Answered { tag: sent.expect("it asks"), result }, &mut out);
        let wait = out.iter().find_map(|out| match out {
            CoordinatorOutput::WakeAt { mono_ns } => Some(*mono_ns - *now),
            _ => None,
        });
        if let Some(wait) = wait {
            *now += wait;
            client.step(*now, CoordinatorInput::Wake, &mut out);
        }
        wait
    };
    // The store was away for long: retries come every few seconds.
    let waits: Vec<u64> = (0..8).filter_map(|_| asked(&mut now, silence())).collect();
    assert!(waits.is_sorted_by_key(|wait| wait / (SECOND / 4)) && waits[7] > 3 * SECOND, "{waits:?}");
    let granted = StoreReply::Granted { lease: Lease(1), ttl_s: 2 };
    assert_eq!(asked(&mut now, Ok(granted)), None, "what is to be registered follows at once");
    // Most of a two-second lease remains.
    assert!(asked(&mut now, silence()).is_some_and(|wait| wait < SECOND / 4));
}

#[test]
fn of_several_claims_of_one_generation_exactly_one_wins_even_if_messages_are_lost() {
    let (mut unknown, mut rounds_won) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(5, seed);
        world.loss = 10;
        let subject = Subject::Group("db".into());
        let mut from: Option<Claimed> = None;
        for round in 1..12u64 {
            world.run(1);
            if world.dice.percent(20) {
                world.restart();
            }
            let claim = |index: usize| Claimed {
                generation: Generation { count: round, opener: index as u64 },
                primary: format!("edge-{index}"),
                backup: None,
            };
            let mut answers: Vec<Option<AskAnswer>> = vec![None; 5];
            // An edge without a definite answer retries, as a primary or backup would.
            for _ in 0..3_000 {
                for (index, answered) in answers.iter_mut().enumerate() {
                    match answered {
                        Some(AskAnswer::Away(_)) => {
                            unknown += 1;
                            *answered = None;
                        }
                        Some(_) => continue,
                        None => {}
                    }
                    let ask =
                        Ask::Claim { subject: subject.clone(), from: from.clone(), to: Some(claim(index)) };
                    let tag = round * 10 + index as u64;
                    if world.edges[index].answers.contains_key(&tag) {
                        *answered = world.answer(index, tag);
                    } else if world.dice.percent(10) {
                        world.ask(index, tag, ask);
                    }
                }
                if answers.iter().all(|answer| matches!(answer, Some(AskAnswer::Won | AskAnswer::Lost(_)))) {
                    break;
                }
                world.tick();
            }
            let won: Vec<usize> = (0..5).filter(|index| answers[*index] == Some(AskAnswer::Won)).collect();
            assert_eq!(won.len(), 1, "seed {seed}, round {round}: {answers:?}");
            let holder = claim(won[0]);
            for answer in answers.iter().filter(|answer| **answer != Some(AskAnswer::Won)) {
                assert_eq!(*answer, Some(AskAnswer::Lost(Some(holder.clone()))));
            }
            rounds_won += 1;
            from = Some(holder);
        }
    }
    assert!(unknown > 50 && rounds_won == 40 * 11, "{unknown} {rounds_won}");
}

#[test]
fn a_witness_keeps_the_newest_report_even_if_older_ones_arrive_late() {
    let mut world = World::new(3, 9);
    world.run(2);
    let session = SessionId([4; 16]);
    let seen = |count: u64, log_end: u64| Witnessed {
        generation: Generation { count, opener: 1 },
        log_end,
        tag: [u8::try_from(log_end).unwrap(); 8],
    };
    let witnessed = |world: &mut World| world.asked(0, Ask::Witnessed { session });
    assert_eq!(witnessed(&mut world), AskAnswer::Witnessed(None));
    for (edge, count, log_end) in [(1, 1, 5), (1, 1, 9), (2, 2, 7), (1, 1, 30)] {
        world.ask(edge, 1, Ask::Witness { session, seen: seen(count, log_end) });
        world.run(1);
    }
    assert_eq!(
        witnessed(&mut world),
        AskAnswer::Witnessed(Some(seen(2, 7))),
        "an older owner's word comes late"
    );
    // Reports made while the store is away are written when it is back.
    world.there = false;
    world.run(15);
    world.ask(2, 1, Ask::Witness { session, seen: seen(2, 8) });
    world.ask(2, 1, Ask::Witness { session, seen: seen(2, 12) });
    assert_eq!(world.edges[2].client.reports().0, 1, "only the newest");
    world.there = true;
    world.restart();
    world.run(10);
    assert_eq!(witnessed(&mut world), AskAnswer::Witnessed(Some(seen(2, 12))), "and outlives restarts");
}

fn stands(count: u64, standby: &str) -> Stands {
    Stands { generation: Generation { count, opener: 1 }, standby: standby.into(), hot: true }
}

fn session(number: u32) -> SessionId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_le_bytes());
    SessionId(id)
}

/// The list of an edge's standbys, and the version that its client has.
#[derive(Default)]
struct Lists(Placements, u64);

impl Lists {
    fn place(&mut self, session: SessionId, at: Option<Stands>) {
        self.0.placed(0, session, at);
    }

    fn tell(&mut self, world: &mut World, edge: usize) {
        let (version, parts) = self.0.since(self.1);
        self.1 = version;
        world.step(edge, CoordinatorInput::Listed(parts));
    }
}

impl World {
    fn standby(&mut self, asker: usize, session: SessionId) -> Option<(String, u64, String)> {
        match self.asked(asker, Ask::Standby { session }) {
            AskAnswer::Standby(found) => {
                found.map(|StandsBy { owner, at }| (owner, at.generation.count, at.standby))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_store_that_is_full_is_not_away() {
    let mut world = World::new(1, 6);
    world.run(2);
    let mut filled = 0;
    while world.store.apply(world.now, fill(filled)).is_ok() {
        filled += 1;
    }
    let mut lists = Lists::default();
    lists.place(session(1), Some(stands(1, "edge-1")));
    lists.tell(&mut world, 0);
    world.run(5);
    assert_eq!(*world.edges[0].client.state(), CoordinatorState::There);
    assert_eq!(world.edges[0].client.figures().parts_refused, 1, "it is not tried for ever");
}

fn fill(number: u32) -> StoreRequest {
    StoreRequest::Write {
        key: format!("/other/{number}"),
        expect: None,
        value: Some(Bytes::new()),
        lease: None,
    }
}

/// A client whose store answers at once, until it sends nothing more; with `hold`, its request is returned instead.
fn answered(
    client: &mut CoordinatorClient,
    store: &mut Store,
    now: u64,
    input: CoordinatorInput,
    hold: bool,
) -> Vec<(u64, StoreRequest)> {
    let (mut held, mut inputs) = (Vec::new(), vec![input]);
    while let Some(input) = inputs.pop() {
        let mut out = Vec::new();
        client.step(now, input, &mut out);
        for out in out {
            if let CoordinatorOutput::Send { tag, request } = out {
                if hold {
                    held.push((tag, request));
                } else {
                    let result = Ok(store.apply(now, request).unwrap());
                    inputs.push(CoordinatorInput::Answered { tag, result });
                }
            }
        }
    }
    held
}

#[test]
fn a_registration_that_comes_late_does_not_replace_a_newer_one() {
    let with = |sessions| Registration { sessions, ..registration(1) };
    let mut client = CoordinatorClient::new(CoordinatorConfig { lease_s: 60, ..config("edge-0") }, 0);
    let mut store = Store::new();
    answered(&mut client, &mut store, 0, CoordinatorInput::Here(with(0)), false);
    let stored = |store: &mut Store| match store
        .apply(SECOND, StoreRequest::Get { key: edge_key("edge-0") })
        .unwrap()
    {
        StoreReply::Entries { entries, .. } => decode::<Registration>(&entries[0].value).unwrap().sessions,
        other => panic!("{other:?}"),
    };
    assert_eq!(stored(&mut store), 0);
    // This request is delayed beyond the timeout.
    let held = answered(&mut client, &mut store, SECOND, CoordinatorInput::Here(with(1)), true);
    let [(tag, late)] = &held[..] else { panic!("{held:?}") };
    let given_up = CoordinatorInput::Answered { tag: *tag, result: silence() };
    assert!(answered(&mut client, &mut store, SECOND, given_up, true).is_empty(), "it waits a while");
    // Meanwhile the edge has as many sessions as before, and writes this: the late request may still arrive.
    answered(&mut client, &mut store, 10 * SECOND, CoordinatorInput::Here(with(0)), false);
    let reply = store.apply(11 * SECOND, late.clone()).unwrap();
    assert!(matches!(reply, StoreReply::Conflict { .. }), "{reply:?}");
    assert_eq!(stored(&mut store), 0);
    // And if the late request arrives before the next write, that write expects its revision.
    let held = answered(&mut client, &mut store, 12 * SECOND, CoordinatorInput::Here(with(2)), true);
    let [(tag, late)] = &held[..] else { panic!("{held:?}") };
    answered(
        &mut client,
        &mut store,
        12 * SECOND,
        CoordinatorInput::Answered { tag: *tag, result: silence() },
        true,
    );
    store.apply(13 * SECOND, late.clone()).unwrap();
    assert_eq!(stored(&mut store), 2);
    answered(&mut client, &mut store, 20 * SECOND, CoordinatorInput::Here(with(3)), false);
    assert_eq!(stored(&mut store), 3);
    assert_eq!(client.state(), &CoordinatorState::There);
}

#[test]
fn two_edges_of_one_name_are_logged() {
    let mut world = World::new(2, 8);
    world.edges[1].client = CoordinatorClient::new(CoordinatorConfig { salt: 1, ..config("edge-0") }, 0);
    world.step(1, CoordinatorInput::Here(registration(77)));
    world.run(20);
    let told =
        |index: usize| world.edges[index].log.iter().filter(|line| line.contains("another edge")).count();
    assert!(told(0) == 1 || told(1) == 1, "{} {}", told(0), told(1));
}

#[test]
fn through_losses_stops_and_restarts_all_edges_find_all_edges_again() {
    for seed in 0..40 {
        let mut world = World::new(4, seed);
        for _ in 0..30 {
            world.loss = world.dice.below(40);
            world.there = world.dice.percent(70);
            if world.dice.percent(20) {
                world.restart();
            }
            let seconds = world.dice.below(8);
            world.run(seconds);
        }
        (world.loss, world.there) = (0, true);
        world.run(20);
        for index in 0..4 {
            assert_eq!(*world.edges[index].client.state(), CoordinatorState::There, "seed {seed}");
            assert_eq!(world.names(index).len(), 4, "seed {seed}");
        }
    }
}
