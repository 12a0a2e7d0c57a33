//! Ports that open slowly. A session's first entry has several handlers, and the output of the first handler must not leave
//! before the last handler has ended: in some seeds time passes between them, and faults occur in it.
//!
//! This is about I15: an entry is logged when all of its handlers have ended, and no output of it
//! may leave before. The first entry of a session opens two ports, and in a chain those between the
//! stages too, so it has several handlers.

use super::{Fault, FaultKind, FaultTarget, MS, Moment, On, US, When};
use crate::random::Random;

/// How long the handler takes that opens the server's port, in nanoseconds; 0 if it is as fast as the others.
pub(super) fn slowness_ns(seed: u64) -> u64 {
    let mut random = Random::new(seed, 40);
    if random.percent(10) { random.magnitude(20 * MS, 400 * MS) } else { 0 }
}

/// In half of the seeds with a slow opening, first the wire of a client breaks during an opening, and then, when the client
/// has reconnected, its edge crashes.
pub(super) fn faults(seed: u64, clients: usize, slowness_ns: u64) -> Option<(Fault<On>, Fault<When>)> {
    let mut random = Random::new(seed, 41);
    if slowness_ns == 0 || random.percent(50) {
        return None;
    }
    let agent = random.index(clients);
    let moment = Moment::Chosen;
    let cut = On { moment, skip: random.below(2), delay_ns: random.below(slowness_ns / 4) };
    // Both ends got the chosen log once, most often before the wire broke; now they get it once more.
    let skip = u64::from(random.percent(20));
    let back = When::On(On { moment, skip, delay_ns: random.magnitude(100 * US, 50 * MS) });
    let for_ns = random.magnitude(MS, 1_500 * MS);
    let crash = FaultKind::CrashEdge { place: FaultTarget::Here, loud: random.percent(70), for_ns };
    Some((
        Fault { when: cut, kind: FaultKind::CutWires { agent, place: FaultTarget::Here } },
        Fault { when: back, kind: crash },
    ))
}
