//! A recorder that lies, and an edge that dies again and again while much is said and no checkpoint is taken: each recovery begins with what
//! the recorder returns, from the first message on, and ends have sent messages that no edge has handled.
//!
//! ```text
//! ends      | messages on their way x            | ask            | go on where the recorder's messages end?
//! owner     |----- feeds ----> x dies   another one | recalls <-- a lie
//! recorder  |  log, messages
//! ```

use super::{
    Fault, FaultKind, FaultTarget, Load, MS, Moment, On, Plan, Service, Site, UNLIMITED, US, Visit, When,
    talk,
};
use crate::random::Random;

/// Of a hundred seeds that can have it.
const PERCENT: u64 = 3;
/// Messages of the client, and moments between two deaths.
const MESSAGES: u64 = 120;
const BETWEEN: u64 = 60;

pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 260);
    let random = &mut random;
    let is_usual = plan.load == Load::Usual && !plan.short_linger && !plan.has_epochs();
    let has_room = plan.memory_max == UNLIMITED && plan.shard_memory_max == 0;
    if !is_usual || !has_room || plan.learning.is_some() || !random.percent(PERCENT) {
        return;
    }
    plan.recorder = Some(Site { crashes: Vec::new(), freezes: Vec::new(), lies: true });
    (plan.poison, plan.server_down, plan.ballast, plan.open_ns) = (None, 0, 0, 0);
    (plan.datagrams, plan.recoveries_max) = ([false; 2], 0);
    // So little that no checkpoint is due.
    plan.cost_ns = 100;
    plan.apps.iter_mut().for_each(|app| app.recovery_target_ns = 5 * MS);
    let pace_ns = random.between(200 * US, 2 * MS);
    plan.visits = vec![Visit {
        at_ns: random.between(100 * MS, 300 * MS),
        agent: 0,
        service: Service::Paired,
        key: None,
        script: talk::script(random, MESSAGES, pace_ns),
    }];
    // Several messages are always on their way to an edge, which has the recorder beside it.
    let agents = plan.agents();
    for delay_ns in plan.delay_ns[..agents].iter_mut().flatten() {
        *delay_ns = random.between(2 * MS, 5 * MS);
    }
    plan.delay_ns.last_mut().into_iter().flatten().for_each(|delay_ns| *delay_ns = 20 * US);
    plan.skew.iter_mut().flatten().flatten().for_each(|factor| *factor = 1);
    let dies = |random: &mut Random| FaultKind::CrashEdge {
        place: FaultTarget::Owner,
        loud: true,
        for_ns: random.between(50 * MS, 300 * MS),
    };
    let when = On { moment: Moment::Message, skip: random.between(10, 40), delay_ns: 0 };
    plan.first = Fault { when, kind: dies(random) };
    plan.moves.clear();
    plan.faults.clear();
    for nth in 1..5 {
        let when = On { skip: nth * BETWEEN + random.below(BETWEEN), ..when };
        plan.faults.push(Fault { when: When::On(when), kind: dies(random) });
    }
}
