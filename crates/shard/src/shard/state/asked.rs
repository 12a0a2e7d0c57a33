//! A claim on a group that was asked for, until it is known whether it was written.

const MS: u64 = 1_000_000;
/// First and longest wait before a claim is asked for again that the coordinator has not answered.
const AGAIN_NS: (u64, u64) = (100 * MS, 2_000 * MS);

/// A claim that was asked for, to this record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AskedClaim<T> {
    tag: u64,
    pub(crate) to: T,
    /// When to ask again; none while the question is on its way.
    again_ns: Option<u64>,
    wait_ns: u64,
}

impl<T> AskedClaim<T> {
    /// One that is on its way.
    pub(crate) fn new(tag: u64, to: T) -> Self {
        Self { tag, to, again_ns: None, wait_ns: AGAIN_NS.0 }
    }

    /// Whether an answer with this tag is its answer.
    pub(crate) fn has_tag(&self, tag: u64) -> bool {
        self.tag == tag
    }

    /// When to ask for it again, unless it is on its way.
    pub(crate) fn again_ns(&self) -> Option<u64> {
        self.again_ns
    }

    /// Whether to ask for it again now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.again_ns.is_some_and(|again_ns| again_ns <= now_ns)
    }

    /// It is on its way again.
    pub(crate) fn ask_again(&mut self, tag: u64) {
        (self.again_ns, self.tag) = (None, tag);
    }

    /// It is not known whether it was written.
    pub(crate) fn unanswered(&mut self, now_ns: u64) {
        self.again_ns = Some(now_ns.saturating_add(self.wait_ns));
        self.wait_ns = (self.wait_ns * 2).min(AGAIN_NS.1);
    }
}
