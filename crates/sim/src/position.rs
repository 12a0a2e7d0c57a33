//! Where a shard is.

use std::fmt;

/// One shard of one edge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ShardPosition {
    pub(crate) edge: usize,
    pub(crate) shard: usize,
}

impl fmt::Display for ShardPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{}.{}", self.edge, self.shard)
    }
}
