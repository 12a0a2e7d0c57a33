//! How long an edge's answers to heartbeats take, and from that, which silence is not normal.
//!
//! An accrual detector (N. Hayashibara and others, *The phi accrual failure detector*, SRDS 2004) suspects by the distribution of
//! earlier arrivals. Delays of processes are not normally distributed: most answers take a fraction of a millisecond, and some
//! wait for a processor. So what is kept here is the maximum of a recent period and not a mean with a variance.

/// An edge is suspected if its answer takes this many times the longest recent one.
const TIMES_LONGEST: u64 = 4;
/// The shortest patience, as a part of the configured timeout (in eighths): what takes less is normal on any machine.
const FLOOR_EIGHTHS: u64 = 3;
/// Before this many answers, the configured timeout alone counts.
const ANSWERS_MIN: u8 = 8;
/// The maximum counts for this many timeouts at least, and for twice as long at most.
const PERIOD: u64 = 150;

/// The delays of recent answers on one wire.
#[derive(Debug, Default)]
pub(super) struct Answers {
    count: u8,
    since_ns: u64,
    /// The maximum since then, and in the period before.
    longest_ns: [u64; 2],
}

impl Answers {
    /// An answer has come after this delay.
    pub(super) fn note(&mut self, now_ns: u64, delay_ns: u64, timeout_ns: u64) {
        let period_ns = timeout_ns.saturating_mul(PERIOD);
        if now_ns.saturating_sub(self.since_ns) >= period_ns {
            self.since_ns = now_ns;
            self.longest_ns = [0, self.longest_ns[0]];
        }
        self.longest_ns[0] = self.longest_ns[0].max(delay_ns);
        self.count = self.count.saturating_add(1);
    }

    /// How long an answer may take before its edge is suspected; none if there were too few answers to know.
    pub(super) fn patience_ns(&self, timeout_ns: u64) -> Option<u64> {
        let longest_ns = self.longest_ns[0].max(self.longest_ns[1]);
        let floor_ns = timeout_ns / 8 * FLOOR_EIGHTHS;
        (self.count >= ANSWERS_MIN).then(|| longest_ns.saturating_mul(TIMES_LONGEST).max(floor_ns))
    }
}
