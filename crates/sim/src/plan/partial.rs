//! Wires that break while a large checkpoint is on its way. An owner whose cell lives continues the checkpoint behind what
//! each end has of it.
//!
//! ```text
//! owner: checkpoint ── part, part, part ──▶ end        the wire breaks, and comes back
//! owner: Promise, live ──▶ end: Promised, partial ──▶ owner: the other parts
//! ```

use super::{Fault, FaultKind, FaultTarget, MS, Moment, On, Plan, US, When};
use crate::random::Random;
use marram_wire::limits::CHECKPOINTS_SIZE;

/// In eight of 100 seeds some checkpoints are larger than the window, so that their parts travel for more than a round trip,
/// and wires of agents break in that time.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 56);
    if !random.percent(8) || plan.checkpoints_max < CHECKPOINTS_SIZE {
        return;
    }
    plan.ballast = usize::try_from(random.between(200_000, 900_000)).unwrap_or(0);
    for nth in 0..5 {
        let agent = random.index(plan.agents());
        let delay_ns = random.magnitude(10 * US, 10 * MS);
        let when = On { moment: Moment::Checkpoint, skip: nth + random.below(2), delay_ns };
        let kind = FaultKind::CutWires { agent, place: FaultTarget::Here };
        plan.faults.push(Fault { when: When::On(when), kind });
    }
}
