//! Seeds in which outputs wait for a backup, and claims decide which edge goes on.

use super::{Fault, FaultKind, FaultTarget, MS, Memory, Moment, On, Plan, S};
use crate::random::Random;
use marram_shard::api::{EpochForm, EpochPace, WitnessMode};

/// In a quarter of all seeds.
pub(super) fn draw(seed: u64) -> Option<EpochPace> {
    let mut random = Random::new(seed, 190);
    random.percent(25).then(|| EpochPace {
        every_us: random.pick(&[0, 500, 1_000, 10_000]),
        alone_after_ms: random.pick(&[0, 20, 200, 1_000]),
        form: random.pick(&[EpochForm::Log, EpochForm::Auto, EpochForm::Pages]),
    })
}

/// In a fifth of these seeds a primary first sleeps for so long that its backup claims its sessions meanwhile, and wakes.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 192);
    if !plan.has_epochs() || !random.percent(20) {
        return;
    }
    let when = On { moment: Moment::Message, skip: random.below(8), delay_ns: random.below(MS) };
    let for_ns = random.between(700 * MS, 1_500 * MS);
    plan.first = Fault { when, kind: FaultKind::FreezeEdge { place: FaultTarget::Owner, for_ns } };
    if let Some(coordinator) = &mut plan.witness {
        coordinator.away.clear();
        coordinator.losses = None;
    }
}

/// The coordinator of a seed that would have none. In a quarter of them it is sometimes away.
pub(super) fn coordinator(seed: u64) -> Memory {
    let mut random = Random::new(seed, 191);
    let count = if random.percent(25) { random.between(1, 2) } else { 0 };
    let kinds = [super::Absence::Frozen, super::Absence::Cut, super::Absence::Dead];
    let mut away = || (random.magnitude(MS, 2 * S), random.magnitude(MS, S), random.pick(&kinds));
    let away = (0..count).map(|_| away()).collect();
    Memory { how: WitnessMode::Lenient, away, claims: Vec::new(), losses: None }
}
