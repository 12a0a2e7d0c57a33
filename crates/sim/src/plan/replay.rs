//! Replay budgets of shards. In some seeds they are so small, and the sessions' own targets so far away, that nearly all checkpoints
//! are taken for the budget.

use super::{Load, MS, Plan, US};
use crate::random::Random;
use marram_session::owner::REPLAY_SHARE_MIN_NS;

/// In a quarter of the seeds a small budget; in the others the one of a real edge, or none.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 48);
    // Tens of thousands of messages would be as many checkpoints.
    if plan.load == Load::Drizzle || !random.percent(25) {
        plan.replay_ns_max = random.pick(&[0, 5 * MS]);
        return;
    }
    plan.replay_ns_max = random.magnitude(US, 2 * MS);
    plan.cost_ns = random.between(REPLAY_SHARE_MIN_NS / 8, REPLAY_SHARE_MIN_NS);
    plan.apps.iter_mut().for_each(|app| app.recovery_target_ns = 50 * MS);
}
