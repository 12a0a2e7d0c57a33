//! What a program says in a scenario of its own: short messages, one after the other.

use super::{Chunk, MS, Script, US};
use crate::random::Random;

/// So many messages, each at most so long after the one before.
pub(super) fn script(random: &mut Random, count: u64, pace_ns: u64) -> Script {
    let chunk = |random: &mut Random| Chunk { after_ns: random.below(pace_ns), size: random.index(500) + 1 };
    Script {
        chunks: (0..count).map(|_| chunk(random)).collect(),
        close_after_ns: random.magnitude(US, 300 * MS),
        resets: false,
        slowness_ns: random.magnitude(US, 50 * US),
        stall_ns: 0,
    }
}
