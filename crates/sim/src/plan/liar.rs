//! An agent that lies: it has a credential, holds an end of its sessions, and says what it likes about them.
//!
//! The seed has two agents of the liar's kind, so that some sessions have an end at it and some do
//! not. The latter must not be affected at all; the former may end early, but what their honest
//! ends received must still be one history (I14).

use super::{FaultKind, MS, Plan, S};
use crate::random::Random;

/// A lying agent. Percentages are drawn small or large, so that some sessions get far in spite of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Liar {
    /// Whether it serves, instead of being a clients' agent.
    pub serves: bool,
    /// Percentage of its frames with a lie.
    pub frames_percent: u64,
    /// Percentage of its answers to an edge that asks for its promise, with a lie about what it keeps.
    pub answers_percent: u64,
    /// When its process dies, in nanoseconds. The next one is honest. Until then its sessions may hang.
    pub until_ns: u64,
}

impl Liar {
    /// Index of its agent.
    #[must_use]
    pub fn agent(&self, clients: usize) -> usize {
        if self.serves { clients } else { 0 }
    }

    /// There are other agents of its kind, so that other sessions depend on none of its ends.
    ///
    /// `clients` and `servers` are the numbers that were drawn; the result replaces them.
    pub(super) fn agents(self, (clients, servers): (usize, usize)) -> (usize, usize) {
        (clients.max(2), if self.serves { 2 } else { servers })
    }

    /// No other fault may end a session, so that the codes of sessions show which of them the lies reached.
    pub(super) fn prepare(self, plan: &mut Plan) {
        // A reset by a program would be one more cause. Datagrams would get lost legally when a
        // session hangs.
        let agents = plan.clients;
        for (index, visit) in plan.visits.iter_mut().enumerate() {
            visit.agent = index % agents;
            visit.script.resets = false;
        }
        plan.faults.retain(|fault| !fault.is_lethal() && !matches!(fault.kind, FaultKind::Kill { .. }));
        (plan.poison, plan.server_down, plan.datagrams) = (None, 0, [false; 2]);
        plan.liar = Some(self);
    }
}

/// In one of 16 seeds.
pub(super) fn draw(seed: u64) -> Option<Liar> {
    let mut random = Random::new(seed, 44);
    (random.below(16) == 0).then(|| Liar {
        serves: random.percent(40),
        frames_percent: if random.percent(70) { random.magnitude(1, 20) } else { 0 },
        answers_percent: if random.percent(80) { random.between(10, 70) } else { 0 },
        until_ns: random.magnitude(400 * MS, 4 * S),
    })
}
