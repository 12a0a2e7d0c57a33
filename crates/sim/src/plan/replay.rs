//! Replay budgets of shards. In some seeds handlers take so long that sessions which share a shard share its budget, too.

use super::{Load, MS, Plan};
use crate::random::Random;
use marram_session::owner::REPLAY_SHARE_MIN_NS;

/// In a third of the seeds the budget is used up as soon as a shard has two busy sessions. In the others it is that of a
/// real edge, or there is none.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 48);
    // Tens of thousands of messages would be as many checkpoints.
    if plan.load == Load::Drizzle || !random.percent(33) {
        plan.replay_ns_max = random.pick(&[0, 5 * MS]);
        return;
    }
    plan.cost_ns = random.between(REPLAY_SHARE_MIN_NS / 4, 2 * REPLAY_SHARE_MIN_NS);
    plan.replay_ns_max = random.between(4 * REPLAY_SHARE_MIN_NS, 8 * REPLAY_SHARE_MIN_NS);
    for app in &mut plan.apps {
        // Shorter than the budget, or longer; a session whose target is longer counts in proportion.
        app.recovery_target_ns = random.between(plan.replay_ns_max / 2, 2 * plan.replay_ns_max);
    }
}
