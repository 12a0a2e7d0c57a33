//! The replication policies of a whole domain: one key, which every edge's client reads with those of the other edges.

use crate::policies::ReplicationPolicy;
use alloc::vec::Vec;

/// Policies that an operator has set for all edges of the domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainPolicies {
    /// The revision of the key.
    pub revision: u64,
    /// In the order in which they are tried.
    pub policies: Vec<ReplicationPolicy>,
}
