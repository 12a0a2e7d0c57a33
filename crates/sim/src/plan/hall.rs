//! One cell that many clients share, with a backup. They come, go, stall and vanish.

use super::{
    Absence, Fault, FaultKind, FaultTarget, Load, MS, Moment, On, PAST_BACKUP, Plan, S, Script, Service, US,
    Visit, When, elastic, script,
};
use crate::random::Random;
use marram_shard::api::{App, BackupForm, CheckpointHolder, EpochSettings, Protect};

/// Of a hundred seeds.
const PERCENT: u64 = 7;
/// Most have a few clients, and as many of a hundred this many.
const CROWD: u64 = 50;
const CROWDED_PERCENT: u64 = 2;
/// So many have a standby: each message is an epoch.
const STANDBY_PERCENT: u64 = 20;
/// So many connect to servers.
const SERVERS_PERCENT: u64 = 60;
/// So many have one cell for each key.
const KEYS_PERCENT: u64 = 75;

pub(super) fn draw(seed: u64) -> bool {
    Random::new(seed, 201).percent(PERCENT)
}

/// The clients are at more than one agent.
pub(super) fn agents((clients, servers): (usize, usize)) -> (usize, usize) {
    (clients + 1, servers)
}

/// All clients are the hall's.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 200);
    let random = &mut random;
    let (few, first) = (random.between(2, 12), random.index(plan.clients));
    let is_crowded = Random::new(plan.seed, 202).percent(CROWDED_PERCENT);
    let count = if is_crowded { CROWD } else { few };
    let visit = |nth: u64| Visit {
        at_ns: random.magnitude(MS, S),
        // Each agent has some.
        agent: usize::try_from(nth).map_or(first, |nth| (first + nth) % plan.clients),
        service: Service::Hall,
        key: None,
        script: guest(random),
    };
    plan.visits = (0..count).map(visit).collect();
    // The first fault comes while clients talk, and strikes an agent that has one by then: that of the first one. What they say while
    // the hall begins comes all at once, and many have no more to say.
    let said: u64 = plan.visits.iter().map(|visit| visit.script.chunks.len() as u64).sum();
    let skips = (said / 6).max(1);
    plan.first.when.skip %= skips;
    plan.first.when.delay_ns %= 10 * US;
    let first = plan.visits.iter().min_by_key(|visit| visit.at_ns).map_or(0, |visit| visit.agent);
    plan.first.kind = plan.first.kind.on(first);
    let like = &plan.apps[Service::Alone as usize];
    let standby = standby(plan.seed);
    let settings = |(_, form): (_, BackupForm)| {
        like.epoch.as_ref().map(|epoch| EpochSettings { every_us: 0, form, ..epoch.clone() })
    };
    let app = App {
        name: Service::Hall.name().into(),
        image: Service::Hall.image(false),
        protect: standby.map_or(Protect::Epoch, |(protect, _)| protect),
        epoch: standby.map_or(like.epoch.clone(), settings),
        keep: CheckpointHolder::Client,
        shared: true,
        // Its edge asks the coordinator before clients go on, and so many requests are lost that this can take half a minute.
        linger_ms: if plan.short_linger { like.linger_ms } else { 60_000 },
        ..like.clone()
    };
    plan.apps.push(app);
    divide(plan);
    move_it(plan);
    move_its_backup(plan);
    if !move_past_its_backup(plan) {
        lose_copies(plan, skips);
        elastic::strike_halls(plan);
    }
    (plan.poison, plan.recorder, plan.datagrams) = (None, None, [false; 2]);
    plan.hall_connects = connects(plan.seed);
    // A shard that is full refuses further clients, as its operator wishes.
    plan.shard_memory_max = 0;
}

/// Many halls connect to a server while their first clients talk, and some of them to another one.
fn connects(seed: u64) -> [Option<u64>; 2] {
    let mut random = Random::new(seed, 209);
    if !random.percent(SERVERS_PERCENT) {
        return [None; 2];
    }
    let first = random.between(1, 8);
    let second = random.percent(30).then(|| first + random.between(1, 10));
    [Some(first), second]
}

/// What a server does to which a hall has connected. Most stay for longer than clients.
pub(super) fn served(random: &mut Random) -> Script {
    let mut script = script(random, Load::Usual);
    if random.percent(70) {
        script.close_after_ns += random.magnitude(100 * MS, 5 * S);
    }
    script
}

/// In nearly all halls an operator moves the cell, or its edge stops, while its clients talk. In most of these nothing else happens before, and
/// in half of them something does at the hand-over.
fn move_it(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 205);
    let random = &mut random;
    if !random.percent(90) {
        return;
    }
    let others = plan.shards.len() as u64 - 1;
    let to = |by, cancel_ns| FaultKind::Move {
        place: FaultTarget::Owner,
        by,
        cancel_ns,
        replaces: false,
        backup: false,
    };
    for _ in 0..random.between(3, 6) {
        let delay_ns = if random.percent(30) { 0 } else { random.magnitude(MS, 3 * S) };
        let when = On { moment: Moment::Message, skip: random.below(40), delay_ns };
        let cancel_ns = random.percent(2).then(|| random.magnitude(10 * US, 20 * MS));
        if random.percent(25) {
            let kind = FaultKind::Drain {
                place: FaultTarget::Owner,
                for_ns: random.between(S, 3 * S),
                cancel_ns: None,
            };
            plan.moves.push(Fault { when, kind });
        } else {
            // One of the other edges is its backup.
            plan.moves.extend((1..=others).map(|by| Fault { when, kind: to(by, cancel_ns) }));
        }
    }
    if random.percent(75) {
        plan.faults.clear();
        plan.first.kind = to(others, None);
        if let Some(coordinator) = &mut plan.witness {
            coordinator.away.clear();
            coordinator.losses = None;
        }
    }
    if random.percent(50) {
        let delay_ns = if random.percent(60) { 0 } else { random.magnitude(US, 10 * MS) };
        let when = On { moment: Moment::HandedOver, skip: random.below(2), delay_ns };
        plan.moves.push(Fault { when, kind: disturbance(random, plan.agents()) });
    }
}

/// In most halls that have a third edge, an operator moves the backup, too, and in most of these something happens as soon as the next
/// one is told of the cells' group, or is about to be named.
fn move_its_backup(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 250);
    let random = &mut random;
    if plan.shards.len() < 3 || !random.percent(95) {
        return;
    }
    let kind = |random: &mut Random| FaultKind::Move {
        place: FaultTarget::Owner,
        by: random.between(1, 2),
        cancel_ns: random.percent(2).then(|| random.magnitude(10 * US, 10 * MS)),
        replaces: random.percent(20),
        backup: true,
    };
    // A cell that has just moved has no backup.
    if random.percent(75) {
        plan.moves.clear();
        if matches!(plan.first.kind, FaultKind::Move { .. }) {
            plan.first.kind = kind(random);
        }
    }
    for _ in 0..random.between(4, 8) {
        let delay_ns = random.magnitude(100 * US, 2 * S);
        let when = On { moment: Moment::Message, skip: random.below(40), delay_ns };
        plan.moves.push(Fault { when, kind: kind(random) });
    }
    if !random.percent(80) {
        return;
    }
    let moment =
        random.pick(&[Moment::NextGroup, Moment::NextGroup, Moment::NextBackup, Moment::BackupMoved]);
    let delay_ns = if random.percent(40) { 0 } else { random.magnitude(US, 10 * MS) };
    let when = On { moment, skip: random.below(3), delay_ns };
    let kind = match disturbance(random, plan.agents()) {
        FaultKind::CrashEdge { for_ns, loud, place: FaultTarget::Standby } if random.percent(50) => {
            FaultKind::CrashEdge { for_ns, loud, place: FaultTarget::MoveTarget }
        }
        FaultKind::FreezeEdge { for_ns, place: FaultTarget::Standby } if random.percent(50) => {
            FaultKind::FreezeEdge { for_ns, place: FaultTarget::MoveTarget }
        }
        other => other,
    };
    plan.moves.push(Fault { when, kind });
}

/// In many halls that have a third edge, the cells move past their backup. In most of these nothing else happens before but that their backup
/// moves, and the edge to which they move dies or sleeps as soon as it is told to claim them, or when it has done so.
/// Returns whether nothing else is to happen before.
fn move_past_its_backup(plan: &mut Plan) -> bool {
    let mut random = Random::new(plan.seed, 251);
    let random = &mut random;
    if plan.shards.len() < 3 || !random.percent(85) {
        return false;
    }
    let kind = |random: &mut Random| FaultKind::Move {
        place: FaultTarget::Owner,
        by: PAST_BACKUP,
        cancel_ns: random.percent(1).then(|| random.magnitude(10 * US, 20 * MS)),
        replaces: false,
        backup: false,
    };
    let is_first = random.percent(80);
    if is_first {
        // In some of them its backup may move before, or behind that.
        let keeps = random.percent(40);
        plan.moves.retain(|fault| keeps && matches!(fault.kind, FaultKind::Move { backup: true, .. }));
        plan.faults.clear();
        plan.first.kind = kind(random);
        if let Some(coordinator) = &mut plan.witness {
            coordinator.away.clear();
            coordinator.losses = None;
        }
        // Clients stay for as long as a move takes.
        let chunks = plan.visits.iter_mut().flat_map(|visit| &mut visit.script.chunks);
        chunks.for_each(|chunk| chunk.after_ns += random.below(40 * MS));
    }
    let more = if is_first { random.between(6, 10) } else { random.between(1, 2) };
    for _ in 0..more {
        let delay_ns = random.magnitude(100 * US, 200 * MS);
        let when = On { moment: Moment::Message, skip: random.below(40), delay_ns };
        plan.moves.push(Fault { when, kind: kind(random) });
    }
    // Most die as soon as they have told the backup, and before that has confirmed anything.
    let strikes = [
        random.pick(&[
            (Moment::KeptOn, FaultTarget::Here, true),
            (Moment::KeptOn, FaultTarget::Here, false),
            (Moment::KeptOn, FaultTarget::Here, false),
            (Moment::HandedOver, FaultTarget::MoveTarget, false),
        ]),
        (Moment::KeptOn, FaultTarget::Here, false),
    ];
    for (moment, place, is_at_once) in strikes {
        let strike = strikes_next(random, (moment, place), is_at_once);
        plan.moves.push(strike);
    }
    is_first
}

/// The edge to which cells move past their backup dies or sleeps.
fn strikes_next(random: &mut Random, (moment, place): (Moment, FaultTarget), is_at_once: bool) -> Fault<On> {
    let delay_ns = if is_at_once { 0 } else { random.magnitude(100 * US, 20 * MS) };
    let skip = if is_at_once { 0 } else { random.below(2) };
    let for_ns = if random.percent(60) { random.between(700 * MS, 2 * S) } else { random.magnitude(MS, S) };
    let kind = match is_at_once || random.percent(80) {
        true => FaultKind::CrashEdge { place, loud: random.percent(70), for_ns },
        false => FaultKind::FreezeEdge { place, for_ns },
    };
    Fault { when: On { moment, skip, delay_ns }, kind }
}

/// What happens at a hand-over, mostly for longer than a backup has to take the cell.
fn disturbance(random: &mut Random, agents: usize) -> FaultKind {
    let for_ns = if random.percent(60) { random.between(700 * MS, 2 * S) } else { random.magnitude(MS, S) };
    let place = random.pick(&[FaultTarget::Here, FaultTarget::Standby, FaultTarget::Standby]);
    match random.below(100) {
        0..30 => FaultKind::CrashEdge { place, loud: random.percent(70), for_ns },
        30..65 => FaultKind::FreezeEdge { place, for_ns },
        65..75 => FaultKind::Drain { place, for_ns: for_ns + S, cancel_ns: None },
        75..90 => {
            let absence = random.pick(&[Absence::Frozen, Absence::Cut, Absence::Dead]);
            FaultKind::CoordinatorAway { absence, for_ns }
        }
        _ => FaultKind::CutWires { agent: random.index(agents), place },
    }
}

/// In most halls each client asks for one of a few cells, most of which are in one slot. The clients of some come one after the other,
/// so that cells are over and begin again; those of others talk
/// for longer, so that there are several cells when a fault comes.
fn divide(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 206);
    let random = &mut random;
    if !random.percent(KEYS_PERCENT) {
        return;
    }
    let keys = random.pick(&[2, 2, 3]);
    if let Some(app) = plan.apps.last_mut() {
        app.slots = random.pick(&[1, 1, 1, 1, 1, 2, 64]);
    }
    let is_late = random.percent(12);
    for (nth, visit) in (0..).zip(&mut plan.visits) {
        visit.key = Some(nth % keys);
        match is_late {
            true if random.percent(40) => visit.at_ns += random.magnitude(100 * MS, 4 * S),
            true => {}
            false => {
                visit.script.chunks.iter_mut().for_each(|chunk| chunk.after_ns += random.below(100 * MS))
            }
        }
    }
}

/// The standby of some halls, and what it gets, as manifests have it.
fn standby(seed: u64) -> Option<(Protect, BackupForm)> {
    let mut random = Random::new(seed, 204);
    let kinds = [(Protect::Warm, BackupForm::Auto), (Protect::Hot, BackupForm::Log)];
    random.percent(STANDBY_PERCENT).then(|| random.pick(&kinds))
}

/// In some of these seeds the power of all edges fails at once. In others the hall's edge sleeps while all others are started again, its
/// backup among them.
fn lose_copies(plan: &mut Plan, skips: u64) {
    let mut random = Random::new(plan.seed, 203);
    let (drawn, skip) = (random.below(100), random.below(skips));
    let when = On { moment: Moment::Message, skip, delay_ns: 0 };
    let first = match drawn {
        0..15 => {
            let for_ns = random.magnitude(10 * MS, 1_500 * MS);
            FaultKind::CrashEdge { place: FaultTarget::Owner, loud: true, for_ns }
        }
        15..30 => {
            let for_ns = random.between(700 * MS, 2_500 * MS);
            FaultKind::FreezeEdge { place: FaultTarget::Owner, for_ns }
        }
        _ => return,
    };
    let others = (1..plan.shards.len()).map(|places| {
        let for_ns = random.magnitude(10 * MS, 1_500 * MS);
        let kind = FaultKind::CrashEdge { place: FaultTarget::Behind(places), loud: true, for_ns };
        Fault { when: When::After(random.below(MS)), kind }
    });
    let others: Vec<_> = others.collect();
    plan.first = Fault { when, kind: first };
    plan.faults.splice(0..0, others);
}

/// What one of them does. More of them than elsewhere reset their connections, and some read nothing for a while.
pub(super) fn guest(random: &mut Random) -> Script {
    let stall_ns = if random.percent(10) { random.magnitude(MS, S) } else { 0 };
    let resets = random.percent(10);
    Script { resets, stall_ns, ..script(random, Load::Usual) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::HALLS_FROM;
    use std::collections::BTreeSet;

    #[test]
    fn some_seeds_have_a_hall_and_no_saved_one() {
        let count = (0..10_000).filter(|seed| Plan::of(*seed).has_hall()).count();
        assert!((400..800).contains(&count), "{count}");
        let saved = include_str!("../../seeds.txt").lines();
        for seed in saved.filter_map(|line| line.split_whitespace().next()?.parse().ok()) {
            assert!(seed >= HALLS_FROM || !draw(seed), "{seed} was saved for what it was without a hall");
        }
    }

    #[test]
    fn a_hall_has_clients_at_all_agents_and_a_backup() {
        let (mut counts, mut protections, mut keyed) = (BTreeSet::new(), BTreeSet::new(), 0);
        for seed in 0..300 {
            let plan = Plan::of(HALLS_FROM + seed);
            assert!(plan.visits.iter().all(|visit| visit.service == Service::Hall));
            let agents: BTreeSet<_> = plan.visits.iter().map(|visit| visit.agent).collect();
            assert_eq!(agents.len(), plan.clients.min(plan.visits.len()));
            assert!(
                plan.clients >= 2 && plan.has_epochs() && plan.connects_edges() && plan.witness.is_some()
            );
            let hall = plan.apps.last().unwrap();
            assert!(hall.shared && hall.epoch.is_some() && hall.server.is_none());
            assert_eq!((&hall.name[..], hall.image), ("hall", Service::Hall.image(false)));
            let is_standby = hall.protect != Protect::Epoch;
            assert!(!is_standby || hall.epoch.as_ref().is_some_and(|epoch| epoch.every_us == 0));
            assert!(plan.visits.iter().all(|visit| visit.key.is_some() == (hall.slots > 0)));
            keyed += u32::from(hall.slots > 0);
            protections.insert(hall.protect.written());
            // Clients of further keys come late.
            counts.extend((plan.decided_late_ns == 0).then_some(plan.visits.len()));
        }
        assert_eq!(counts, (2..=12).chain([50]).collect());
        assert_eq!(protections, BTreeSet::from(["epoch", "standby"]));
        assert!((190..260).contains(&keyed), "{keyed}");
    }
}
