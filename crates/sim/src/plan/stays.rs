//! Edges that stay after all: an operator cancels some of the drains, most of them while sessions move.

use super::{FaultKind, MS, Plan, US};
use crate::random::Random;

/// Of a hundred drains.
const PERCENT: u64 = 50;

/// Drains that are cancelled are followed by no restart.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 293);
    let random = &mut random;
    let moves = plan.moves.iter_mut().map(|fault| &mut fault.kind);
    let faults = plan.faults.iter_mut().map(|fault| &mut fault.kind);
    for kind in [&mut plan.first.kind].into_iter().chain(moves).chain(faults) {
        if let FaultKind::Drain { for_ns, cancel_ns, .. } = kind
            && random.percent(PERCENT)
        {
            let is_soon = random.percent(85);
            *cancel_ns = Some(if is_soon {
                random.magnitude(10 * US, 20 * MS)
            } else {
                random.magnitude(MS, *for_ns)
            });
        }
    }
}
