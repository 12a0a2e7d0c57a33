//! How far a shard is whose edge stops.

/// It hands its sessions over to other edges, asks agents to look after the rest, and is done when no session is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Drain {
    /// The edge does not stop.
    #[default]
    No,
    /// Sessions move to other edges, until none moves any more or the time is over.
    HandsOver {
        /// Control's number of this drain.
        tag: u64,
        /// When agents are asked, whatever still moves.
        until_ns: u64,
    },
    /// Agents were asked to have the rest opened elsewhere.
    Leaves {
        /// As above.
        tag: u64,
    },
    /// Control was told that no session is left.
    Done,
}

impl Drain {
    /// Whether the edge stops: the shard begins nothing new.
    pub(crate) fn has_begun(self) -> bool {
        self != Self::No
    }

    /// Whether sessions that can move are handed over now.
    pub(crate) fn hands_over(self) -> bool {
        matches!(self, Self::HandsOver { .. })
    }

    /// When it has to go on, whatever happens.
    pub(crate) fn due_ns(self) -> Option<u64> {
        if let Self::HandsOver { until_ns, .. } = self { Some(until_ns) } else { None }
    }
}
