//! An owner that renews its standby in vain. It takes many faults in one order, which random ones do not reach:
//!
//! 1. The owner's outputs are lost, but it consumes on and feeds its standby. Then its ends lose their wires to it.
//! 2. The ends reach only a third edge. It opens a generation, chooses a log, and sends outputs: another history than the one
//!    that the first owner and its standby have. Then it crashes.
//! 3. The first owner is reached again. It asks the ends for a generation with its cell alive and renews its standby. The ends
//!    promise. The owner crashes before it learns that its cell cannot live on.
//! 4. The standby is reached. It asks as the owner of a generation that both ends promised last, and in which no log was chosen.
//!
//! If that were enough, the standby would go on with a cell of the first history, while an end has
//! outputs of the second one (I13). The rule that prevents it: a live cell counts only if each end
//! received the log that was chosen in its generation.

use super::{Fault, FaultKind, MS, Moment, On, Plan, Service, US, Visit, talk};
use crate::random::Random;

/// The number of edges that this needs. The owner's, its standby's, and a third that is neither;
/// one shard each.
pub(super) const EDGES: usize = 3;

/// Times of the scenario, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// How long the owner's outputs are lost until its ends lose their wires: shorter than agents wait for a silent edge.
    pub silent_ns: u64,
    /// How long the third edge lives after it sent the chosen log.
    pub held_ns: u64,
    /// How long no edge has the session after that.
    pub lost_ns: u64,
    /// Whether the third edge's connections are closed when it crashes.
    pub loud: bool,
}

/// The steps, in order. The first one is the first fault of its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenewalStep {
    /// The owner's outputs are lost; its standby and the third edge are unreachable for one another.
    Mute,
    /// The ends lose the owner.
    Part,
    /// The third edge crashes.
    ThirdDies,
    /// The owner is reached again.
    Return,
    /// It crashes, and its standby is reached.
    OwnerDies,
    /// Everything is reached again.
    Over,
}

/// In one of 64 seeds.
pub(super) fn draw(seed: u64) -> Option<Renewal> {
    let mut random = Random::new(seed, 42);
    // Drawn over wide ranges: each step must also meet the machines in the middle of the step
    // before.
    (random.below(64) == 0).then(|| Renewal {
        silent_ns: random.between(20 * MS, 350 * MS),
        held_ns: random.magnitude(10 * US, 4 * MS),
        lost_ns: random.magnitude(MS, 300 * MS),
        loud: random.percent(50),
    })
}

impl Renewal {
    /// Makes room for the scenario in a seed's plan: one session that says enough, and no other fault.
    pub(super) fn prepare(self, plan: &mut Plan) {
        let mut random = Random::new(plan.seed, 43);
        let random = &mut random;
        let count = random.between(30, 80);
        let pace_ns = random.magnitude(MS, 20 * MS);
        let script = talk::script(random, count, pace_ns);
        plan.visits = vec![Visit {
            at_ns: random.magnitude(MS, 300 * MS),
            agent: 0,
            service: Service::Paired,
            key: None,
            script,
        }];
        let when = On { moment: Moment::Message, skip: random.between(2, 30), delay_ns: 0 };
        plan.first = Fault { when, kind: FaultKind::RenewInVain(RenewalStep::Mute) };
        plan.faults.clear();
        (plan.poison, plan.server_down, plan.recorder) = (None, 0, None);
        plan.renewal = Some(self);
    }
}
