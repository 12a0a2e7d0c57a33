//! The coordinator of a seed: whether it is a witness, when it is away, what it loses, and which claims edges make.

use super::{MS, S, US};
use crate::random::Random;
use marram_shard::api::WitnessMode;

/// The coordinator as a witness: how its reply counts, and when it is away. Times in nanoseconds.
///
/// Witnesses protect sessions without a server only, so `how` has an effect on [`Service::Alone`](super::Service::Alone).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Whether recoveries wait for it.
    pub how: WitnessMode,
    /// When it is away, for how long, and in which way.
    pub away: Vec<(u64, u64, Absence)>,
    /// At which time which edge claims a generation of which group. Of each: the time, the index of
    /// the edge (modulo their number), the number of the group.
    pub claims: Vec<(u64, usize, u8)>,
    /// When its store is copied, and when it dies, for how long, and comes back without its file or with the copy. Only where no
    /// session has a witness: what a lost witness costs is documented, and no defect.
    pub losses: Option<Losses>,
}

/// The store loses what it decided. Times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Losses {
    /// When an operator copies its file.
    pub copied_ns: u64,
    /// When it dies and loses something, for how long, and what.
    pub lost: Vec<(u64, u64, StoreLoss)>,
}

/// What a store comes back with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreLoss {
    /// Without its file.
    Gone,
    /// With an older copy of its file.
    PutBack,
}

/// In most seeds with a coordinator.
fn losses(seed: u64) -> Option<Losses> {
    let mut random = Random::new(seed, 171);
    random.percent(80).then(|| {
        let copied_ns = random.magnitude(100 * MS, S);
        let count = random.between(1, 2);
        let kinds = [StoreLoss::Gone, StoreLoss::PutBack, StoreLoss::PutBack];
        let mut lost =
            || (copied_ns + random.magnitude(MS, 2 * S), random.magnitude(MS, S), random.pick(&kinds));
        Losses { copied_ns, lost: (0..count).map(|_| lost()).collect() }
    })
}

/// In which way a coordinator is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absence {
    /// Its process is frozen, and later handles the requests that arrived meanwhile.
    Frozen,
    /// Nothing reaches it.
    Cut,
    /// Its process died; another one starts from its snapshot.
    Dead,
}

/// Edges claim the same groups, often several edges at once. A claim is a compare-and-swap at the
/// coordinator, so what matters is that several are made at nearly the same time (I34).
fn claims(random: &mut Random) -> Vec<(u64, usize, u8)> {
    let mut at_ns = 100 * MS;
    let count = random.below(12);
    let mut claim = || {
        at_ns += if random.percent(60) { random.magnitude(US, 10 * MS) } else { random.below(400 * MS) };
        (at_ns, random.index(3), u8::from(random.percent(30)))
    };
    (0..count).map(|_| claim()).collect()
}

/// In half of all seeds there is a witness; in half of these it is sometimes away.
pub(super) fn witness(seed: u64) -> Option<Memory> {
    let mut random = Random::new(seed, 15);
    let random = &mut random;
    random.percent(50).then(|| {
        let count = if random.percent(50) { random.between(1, 3) } else { 0 };
        let how = random.pick(&[WitnessMode::Strict, WitnessMode::Lenient]);
        let kinds = [Absence::Frozen, Absence::Cut, Absence::Dead];
        let mut away = || (random.magnitude(MS, 2 * S), random.magnitude(MS, S), random.pick(&kinds));
        let away = (0..count).map(|_| away()).collect();
        Memory { how, away, claims: claims(random), losses: losses(seed) }
    })
}
