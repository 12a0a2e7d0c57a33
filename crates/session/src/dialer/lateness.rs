//! How late the own process runs.

/// The maximum recent delay of this process behind its own deadlines. If it waits for a processor, other processes on the
/// machine wait as well, and their frames may be unread. So other processes get twice this delay as additional time, for both
/// directions (Dadgar, Phillips, Currey: Lifeguard, 2018, section IV.A).
#[derive(Debug, Default)]
pub(super) struct Lateness {
    late_ns: u64,
    until_ns: u64,
}

impl Lateness {
    /// The process runs now, and should have run at `due_ns`.
    pub(super) fn note(&mut self, now_ns: u64, due_ns: u64, counts_ns: u64) {
        let late_ns = now_ns.saturating_sub(due_ns);
        if late_ns >= self.late_ns || self.until_ns <= now_ns {
            *self = Self { late_ns, until_ns: now_ns.saturating_add(counts_ns) };
        }
    }

    pub(super) fn grace_ns(&self) -> u64 {
        self.late_ns.saturating_mul(2)
    }
}
