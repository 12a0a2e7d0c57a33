//! Moves: an operator sends sessions to another edge or shard while they run, and faults strike at the steps of it.
//!
//! ```text
//! Message (n-th) -> Move -> Keep ---- base, log ----> HandOver -> Promise -> Promised -> Chosen
//!                           |Fed                      |HandedOver    faults at these moments
//! ```
//! They begin with a message, as the first fault does, and do not wait for that one: many moves meet no fault, others are under
//! way when it comes.

use super::{Absence, Fault, FaultKind, FaultTarget, Load, MS, Moment, On, Plan, S, Service, US, script};
use crate::random::Random;
use marram_shard::api::WitnessMode;

/// To another edge, or to another shard of the same one. Some edges have one shard: that is refused.
fn how_far(random: &mut Random) -> u64 {
    if random.percent(30) { 0 } else { random.between(1, 2) }
}

/// In a third of all seeds.
pub(super) fn draw(seed: u64, agents: usize) -> Vec<Fault<On>> {
    let mut random = Random::new(seed, 63);
    let random = &mut random;
    if !random.percent(34) {
        return Vec::new();
    }
    let mut moves = Vec::new();
    for _ in 0..random.between(1, 4) {
        let place = if random.percent(85) { FaultTarget::Here } else { FaultTarget::Owner };
        let cancel_ns = random.percent(15).then(|| random.magnitude(10 * US, 20 * MS));
        let kind = FaultKind::Move { place, by: how_far(random), cancel_ns, replaces: false, backup: false };
        moves.push(Fault { when: on(random, Moment::Message, 12), kind });
    }
    for _ in 0..random.below(3) {
        let moment = random.pick(&[Moment::MoveFed, Moment::HandedOver]);
        let kind = fault(random, agents);
        moves.push(Fault { when: on(random, moment, 2), kind });
    }
    replace(seed, &mut moves);
    moves
}

/// In some seeds with moves, sessions are moved to another edge while they move.
fn replace(seed: u64, moves: &mut Vec<Fault<On>>) {
    let mut random = Random::new(seed, 69);
    let random = &mut random;
    if !random.percent(40) {
        return;
    }
    for _ in 0..random.between(1, 3) {
        let place = FaultTarget::Here;
        let kind =
            FaultKind::Move { place, by: how_far(random), cancel_ns: None, replaces: true, backup: false };
        moves.push(Fault { when: on(random, Moment::MoveFed, 3), kind });
    }
}

/// In some seeds with moves every edge has two shards.
pub(super) fn divide(plan: &mut Plan) {
    if !plan.moves.is_empty() && Random::new(plan.seed, 73).percent(40) {
        plan.shards.fill(2);
    }
}

/// In some seeds with moves most sessions are unprotected: they are protected while they move. In some of these clients send so much that
/// ends are told meanwhile to forget what the next edge has.
pub(super) fn expose(plan: &mut Plan) {
    if plan.moves.is_empty() || !Random::new(plan.seed, 67).percent(30) {
        return;
    }
    for visit in plan.visits.iter_mut().filter(|visit| visit.service == Service::Paired) {
        visit.service = Service::Bare;
    }
    let mut random = Random::new(plan.seed, 77);
    if random.percent(50) {
        // So much does not have room in datagrams.
        (plan.ballast, plan.move_bytes_per_s, plan.datagrams) = (300_000, 2 << 20, [false; 2]);
        for visit in plan.visits.iter_mut().filter(|visit| visit.service == Service::Bare) {
            visit.script = script(&mut random, Load::Bulky);
            // Outputs in flight delay the seal of a copy.
            visit.script.slowness_ns = random.magnitude(20 * US, 20 * MS);
            visit.script.chunks.iter_mut().for_each(|chunk| chunk.after_ns = random.below(2 * MS));
        }
    }
}

/// In most seeds with moves and a strict witness, and in some without moves, most sessions have the witness and move more often. In half of
/// them it goes away meanwhile.
pub(super) fn witness(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 75);
    let random = &mut random;
    let is_strict = plan.witness.as_ref().is_some_and(|witness| witness.how == WitnessMode::Strict);
    let percent = if plan.moves.is_empty() { 40 } else { 85 };
    if !is_strict || !random.percent(percent) {
        return;
    }
    for visit in plan.visits.iter_mut().filter(|visit| visit.service == Service::Paired) {
        visit.service = Service::Alone;
    }
    for _ in 0..random.between(1, 4) {
        let place = FaultTarget::Owner;
        let kind =
            FaultKind::Move { place, by: how_far(random), cancel_ns: None, replaces: false, backup: false };
        // Edges need some time to find their coordinator.
        let when = On { delay_ns: random.magnitude(MS, 200 * MS), ..on(random, Moment::Message, 20) };
        plan.moves.push(Fault { when, kind });
    }
    let count = if random.percent(50) { random.between(1, 3) } else { 0 };
    for _ in 0..count {
        let moment = random.pick(&[Moment::Message, Moment::MoveFed, Moment::HandedOver, Moment::Promise]);
        let absence = random.pick(&[Absence::Frozen, Absence::Cut, Absence::Dead]);
        let kind = FaultKind::CoordinatorAway { absence, for_ns: random.magnitude(MS, S) };
        plan.moves.push(Fault { when: on(random, moment, 4), kind });
    }
}

fn on(random: &mut Random, moment: Moment, skip_max: u64) -> On {
    let delay_ns = if random.percent(50) { 0 } else { random.magnitude(US, 5 * MS) };
    On { moment, skip: random.below(skip_max), delay_ns }
}

/// A fault of the edge that moves a session, of the edge to which it moves, or between an end and one of them.
fn fault(random: &mut Random, agents: usize) -> FaultKind {
    let place = random.pick(&[FaultTarget::Here, FaultTarget::MoveTarget]);
    let for_ns = random.magnitude(MS, 1_500 * MS);
    let agent = random.index(agents);
    match random.below(100) {
        0..25 => FaultKind::CrashEdge { place, loud: random.percent(70), for_ns },
        25..35 => FaultKind::CrashShard { place },
        35..60 => FaultKind::FreezeEdge { place, for_ns },
        60..75 => FaultKind::Drain { place, for_ns: for_ns + S, cancel_ns: None },
        75..85 => FaultKind::CutWires { agent, place },
        85..93 => FaultKind::Silence { agent, place, up: true, down: random.percent(50), for_ns },
        // A second move of sessions that are being moved.
        _ => FaultKind::Move { place, by: how_far(random), cancel_ns: None, replaces: false, backup: false },
    }
}
