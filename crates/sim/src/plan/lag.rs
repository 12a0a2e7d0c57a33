//! A hot standby that lags: its edge is frozen while the owner consumes more entries than a standby may be behind. The owner must
//! drop it, and the session must not notice.
//!
//! `REPLAY_LAG_MAX` is the number of entries that an owner allows a hot standby to be behind. Few
//! random seeds send as many messages while a standby stands still, so this scenario makes one that
//! does.

use super::{Chunk, Fault, FaultKind, FaultTarget, MS, Moment, On, Plan, S, Script, Service, US, Visit};
use crate::random::Random;
use marram_wire::limits::REPLAY_LAG_MAX;

/// In one of 80 seeds.
pub(super) fn draw(seed: u64) -> bool {
    Random::new(seed, 46).below(80) == 0
}

/// One session with more messages than a standby may be behind, and a freeze of its standby among the first of them: its only
/// fault, since the owner must live to see the lag.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 47);
    let random = &mut random;
    let before = random.between(50, 150);
    // Some of the messages are read together and become one.
    let count = REPLAY_LAG_MAX + REPLAY_LAG_MAX / 4 + before + random.below(400);
    let script = Script {
        chunks: (0..count).map(|_| Chunk { after_ns: random.below(60 * US), size: 1 }).collect(),
        close_after_ns: random.magnitude(US, 300 * MS),
        resets: false,
        slowness_ns: 20 * US,
        stall_ns: 0,
    };
    plan.visits = vec![Visit {
        at_ns: random.between(30 * MS, 300 * MS),
        agent: 0,
        service: Service::Paired,
        key: None,
        script,
    }];
    let kind = FaultKind::FreezeEdge { place: FaultTarget::Standby, for_ns: random.between(2 * S, 4 * S) };
    let when = On { moment: Moment::Message, skip: before, delay_ns: 0 };
    plan.first = Fault { when, kind };
    plan.faults.clear();
    plan.handler_ns = plan.handler_ns.min(20 * US);
    // So many datagrams would not all have room.
    (plan.poison, plan.recorder, plan.datagrams) = (None, None, [false; 2]);
}
