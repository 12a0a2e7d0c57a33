//! Elastic chords: an edge goes away while clients talk and comes back, and what belongs there moves to it.
//!
//! ```text
//! clients   talk . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
//! an edge   . . . . . | away |  settles  | sessions move onto it: faults here |
//! ```
//! In half of these seeds nothing else moves a session. Then each move must go forward on the session's ring: so none goes back and forth.
//! In some halls an edge dies and comes back, too, and slots move to it.

use super::{
    Absence, Fault, FaultKind, FaultTarget, Load, MS, Moment, On, PAST_BACKUP, Plan, S, Service, US, Visit,
    When, talk,
};
use crate::random::Random;
use marram_shard::api::ReplicationPolicy;

/// Of a hundred seeds with epochs.
const PERCENT: u64 = 25;
/// Of a hundred halls with a third edge that do not move past their backup first.
const HALLS_PERCENT: u64 = 30;

/// What such a seed draws.
pub(crate) struct Elastic {
    /// How many sessions move in a second.
    pub(crate) per_s: u32,
    settle_ms: u32,
    /// Whether operators and edges that stop move sessions too.
    pub(crate) has_others: bool,
    of_hall: bool,
}

impl Plan {
    /// What is drawn of sessions that move to edges which join, if they do.
    pub(crate) fn elastic(&self) -> Option<Elastic> {
        let of_hall = self.has_hall();
        let mut random = Random::new(self.seed, 210);
        let is_drawn = random.percent(if of_hall { HALLS_PERCENT } else { PERCENT });
        let elastic = Elastic {
            per_s: random.pick(&[3, 20, 1_000]),
            settle_ms: random.pick(&[0, 20, 60]),
            has_others: random.percent(50) || of_hall,
            of_hall,
        };
        let is_moved_first = || matches!(self.first.kind, FaultKind::Move { by: PAST_BACKUP, .. });
        let fits = match of_hall {
            // A slot moves past its backup. Where that is what happens first, nothing else does.
            true => self.shards.len() > 2 && !is_moved_first(),
            false => self.has_epochs() && self.load == Load::Usual && !self.short_linger,
        };
        (is_drawn && fits).then_some(elastic)
    }

    /// How long an edge must be connected before sessions move onto it.
    pub(crate) fn settle_ms(&self) -> u32 {
        self.elastic().map_or(5_000, |elastic| elastic.settle_ms)
    }
}

impl Elastic {
    /// All sessions move, or those of some clients. A shared cell is no client's.
    pub(super) fn policies(&self, seed: u64) -> Vec<ReplicationPolicy> {
        let is_some = Random::new(seed, 211).percent(20) && !self.of_hall;
        vec![ReplicationPolicy {
            name: "elastic".into(),
            client: is_some.then(|| "10.0.0.0/31".parse().expect("it is a prefix")),
            rebalance: self.per_s,
            ..ReplicationPolicy::default()
        }]
    }
}

/// Several clients talk for longer than the edge is away.
pub(super) fn prepare(plan: &mut Plan) {
    let Some(elastic) = plan.elastic() else { return };
    let mut random = Random::new(plan.seed, 212);
    let random = &mut random;
    let count = random.between(3, 6);
    let visit = |random: &mut Random| Visit {
        at_ns: random.between(100 * MS, 300 * MS),
        agent: random.index(plan.clients),
        service: Service::Paired,
        key: None,
        script: talk::script(random, 160, 60 * MS),
    };
    plan.visits = (0..count).map(|_| visit(random)).collect();
    (plan.poison, plan.server_down, plan.recorder) = (None, 0, None);
    let crash = |random: &mut Random, place| {
        let (loud, for_ns) = (random.percent(70), random.between(50 * MS, 400 * MS));
        FaultKind::CrashEdge { place, loud, for_ns }
    };
    let when = On { moment: Moment::Message, skip: random.between(5, 40), delay_ns: 0 };
    plan.first = Fault { when, kind: crash(random, FaultTarget::Owner) };
    plan.faults.clear();
    if random.percent(50) {
        // Another one may have no sessions then: it is late.
        let edge = FaultTarget::Edge(random.index(plan.shards.len()));
        let when = When::After(random.between(500 * MS, 2 * S));
        plan.faults.push(Fault { when, kind: crash(random, edge) });
    }
    plan.moves.clear();
    for _ in 0..random.below(3) {
        let moment = random.pick(&[Moment::MoveFed, Moment::HandedOver]);
        let delay_ns = if random.percent(50) { 0 } else { random.magnitude(US, 5 * MS) };
        let when = On { moment, skip: random.below(3), delay_ns };
        plan.moves.push(Fault { when, kind: disturbance(random, plan.agents(), elastic.has_others) });
    }
    if elastic.has_others {
        for _ in 0..random.between(1, 4) {
            let when =
                On { moment: Moment::Message, skip: random.between(20, 200), delay_ns: random.below(MS) };
            let (place, by) = (FaultTarget::Owner, random.between(1, 2));
            let cancel_ns = random.percent(20).then(|| random.magnitude(10 * US, 20 * MS));
            let kind = FaultKind::Move { place, by, cancel_ns, replaces: random.percent(30), backup: false };
            plan.moves.push(Fault { when, kind });
        }
    }
    if let Some(coordinator) = &mut plan.witness {
        coordinator.away.clear();
        coordinator.losses = None;
    }
}

/// One of the edges behind that of a hall dies, once or more often, and comes back while clients talk. In some of these seeds something happens
/// as soon as slots move to it.
pub(super) fn strike_halls(plan: &mut Plan) {
    if plan.elastic().is_none() {
        return;
    }
    let mut random = Random::new(plan.seed, 213);
    let random = &mut random;
    for _ in 0..random.between(1, 3) {
        let place = FaultTarget::Behind(1 + random.index(plan.shards.len() - 1));
        let (loud, for_ns) = (random.percent(70), random.between(50 * MS, 400 * MS));
        let when = On { moment: Moment::Message, skip: random.below(30), delay_ns: 0 };
        plan.moves.push(Fault { when, kind: FaultKind::CrashEdge { place, loud, for_ns } });
    }
    if random.percent(30) {
        let delay_ns = if random.percent(50) { 0 } else { random.magnitude(US, 5 * MS) };
        let when = On { moment: Moment::HandedOver, skip: random.below(2), delay_ns };
        plan.moves.push(Fault { when, kind: disturbance(random, plan.agents(), true) });
    }
}

/// What happens while a session moves onto the edge.
fn disturbance(random: &mut Random, agents: usize, has_others: bool) -> FaultKind {
    let place = random.pick(&[FaultTarget::Here, FaultTarget::MoveTarget]);
    let for_ns = random.magnitude(MS, 800 * MS);
    let agent = random.index(agents);
    match random.below(100) {
        0..20 => FaultKind::CrashEdge { place, loud: random.percent(70), for_ns },
        20..30 => FaultKind::CrashShard { place },
        30..50 => FaultKind::FreezeEdge { place, for_ns },
        50..65 => FaultKind::CutWires { agent, place },
        65..75 => FaultKind::Silence { agent, place, up: true, down: random.percent(50), for_ns },
        75..85 if has_others => FaultKind::Drain { place, for_ns: for_ns + S, cancel_ns: None },
        _ => {
            let absence = random.pick(&[Absence::Frozen, Absence::Cut, Absence::Dead]);
            FaultKind::CoordinatorAway { absence, for_ns }
        }
    }
}
