//! Outputs do not wait for the backup, which is far away. A client's agent loses its owner and asks it again, and the owner dies as soon as
//! its ends have heard which log it has chosen: if they follow a generation that the backup does not know yet, no edge can go on.
//!
//! ```text
//! client's end   x lost | asks | promises | follows the owner's next generation?
//! owner                          Renewed --------------------------------------> to the backup
//!                                                     | dies
//! ```

use super::{Fault, FaultKind, FaultTarget, Load, MS, Moment, On, Plan, S, US, When, epochs};
use crate::random::Random;

/// Of a hundred seeds in which outputs do not wait.
const PERCENT: u64 = 25;

/// Agents are near all edges, and these are far from each other.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 221);
    let random = &mut random;
    let is_usual = plan.load == Load::Usual && !plan.short_linger;
    if !plan.runs_ahead() || !is_usual || !random.percent(PERCENT) {
        return;
    }
    let pace_ns = random.between(500 * US, 2 * MS);
    epochs::talk(plan, random, 900, pace_ns);
    let (agents, edges) = (plan.agents(), plan.shards.len());
    for delay_ns in plan.delay_ns[..agents].iter_mut().flatten() {
        *delay_ns = random.magnitude(10 * US, 300 * US);
    }
    for delay_ns in plan.delay_ns[agents..agents + edges].iter_mut().flatten() {
        *delay_ns = random.between(10 * MS, 20 * MS);
    }
    plan.skew.iter_mut().flatten().flatten().for_each(|factor| *factor = 1);
    plan.datagrams = [false; 2];
    plan.moves.clear();
    let when = On { moment: Moment::Message, skip: random.between(200, 900), delay_ns: 0 };
    plan.first = Fault { when, kind: FaultKind::CutWires { agent: 0, place: FaultTarget::Owner } };
    let chosen =
        On { moment: Moment::Chosen, skip: random.below(2), delay_ns: random.between(400 * US, 8 * MS) };
    let for_ns = random.between(S, 2 * S);
    // Its connections are closed: what is on its way to the backup does not arrive.
    let kind = FaultKind::CrashEdge { place: FaultTarget::Here, loud: true, for_ns };
    plan.faults = vec![Fault { when: When::On(chosen), kind }];
    if let Some(coordinator) = &mut plan.witness {
        coordinator.away.clear();
        coordinator.losses = None;
    }
}
