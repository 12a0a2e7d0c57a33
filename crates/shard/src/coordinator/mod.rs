//! The coordinator: what edges know of each other, and the few decisions that the ends of a session cannot take
//! (docs/protocol-keepers.md, "Coordinator").
//!
//! It has two parts. The store has revisions, leases and watches: [`Store`] is an embedded one, and etcd works as well.
//! [`CoordinatorClient`] is an edge's side of it. Both are pure: the shell transports [`StoreRequest`] and [`StoreReply`] and
//! passes the time. No message waits for either.

mod api;
mod asks;
mod client;
pub mod contents;
mod invariants;
mod leftovers;
mod memory;
mod placements;
mod policies;
mod slots;
mod snapshot;
mod store;

pub use api::{Ask, AskAnswer, CoordinatorInput, CoordinatorOutput, StandsBy, StoreEdge};
pub use asks::{ASKS_MAX, REPORTS_MAX};
pub use client::{
    BACKOFF_MAX_NS, BACKOFF_MIN_NS, CoordinatorClient, CoordinatorConfig, CoordinatorMetrics,
    CoordinatorState, LISTING_NS,
};
pub use leftovers::{LEFTOVERS_AFTER_NS, LEFTOVERS_MAX};
pub use memory::{REMEMBER_NS, Remembers, TOLD_MAX};
pub use placements::{Parts, Placements};
pub use policies::DomainPolicies;
pub use slots::{SLOTS, SlotHeld, SlotName, SlotRecord};
pub use snapshot::Damage;
pub use store::{Changes, Store, StoreChange, StoreFigures};

use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use core::fmt;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Keys in an embedded store.
pub const KEYS_MAX: usize = 65_536;
/// Bytes of keys and values in an embedded store.
pub const STORE_BYTES_MAX: usize = 32 << 20;
/// Leases in an embedded store.
pub const LEASES_MAX: usize = 4_096;
/// Changes that an embedded store keeps for watches. A watch that is further behind must list again.
pub const HISTORY_MAX: usize = 4_096;
/// Bytes of keys and values in these changes.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;
/// Longest lease, in seconds.
pub const LEASE_S_MAX: u32 = 30 * 24 * 3_600;
/// Keys under a lease of at least so many seconds survive a restart of an embedded store; others must be registered again.
pub const DURABLE_LEASE_S: u32 = 3_600;

const _: () = assert!(DURABLE_LEASE_S < LEASE_S_MAX, "there are leases that survive a restart");

/// A lease. Keys under a lease are removed when it expires; keep-alives renew it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lease(pub u64);

/// A request to a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreRequest {
    /// Read one key.
    Get {
        /// The key.
        key: String,
    },
    /// Read all keys with a prefix.
    Range {
        /// The prefix.
        prefix: String,
    },
    /// Put or remove one key.
    Write {
        /// The key.
        key: String,
        /// Write only if the key has this revision; 0 if it must not exist.
        expect: Option<u64>,
        /// The new value; none removes the key.
        value: Option<Bytes>,
        /// The lease that the key expires with.
        lease: Option<Lease>,
    },
    /// Put or remove one key as a decision: the store's own record ([`contents::STORE`]) is written again with it, so that its
    /// version counts the decisions.
    Decide {
        /// The key.
        key: String,
        /// Write only if the key has this revision; 0 if it must not exist.
        expect: u64,
        /// The new value; none removes the key.
        value: Option<Bytes>,
        /// Write only if the store's record has this value,
        store: Bytes,
        /// and at least this version: the store was not put back since the asker saw it.
        least: u64,
    },
    /// Create a lease.
    Grant {
        /// How long it lasts without a keep-alive, in seconds.
        ttl_s: u32,
    },
    /// Renew a lease for its full time.
    KeepAlive {
        /// The lease.
        lease: Lease,
    },
    /// End a lease and remove its keys.
    Revoke {
        /// The lease.
        lease: Lease,
    },
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreEntry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// The revision of the write that put it there. Revisions grow over the whole store and are never reused.
    pub revision: u64,
    /// How often the key was written since it was last absent.
    pub version: u64,
}

/// What a store answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreReply {
    /// To [`StoreRequest::Get`] and [`StoreRequest::Range`].
    Entries {
        /// The revision of the whole store.
        revision: u64,
        /// In the order of their keys.
        entries: Vec<StoreEntry>,
    },
    /// The write is done.
    Written {
        /// The new revision of the key.
        revision: u64,
    },
    /// The key does not have the expected revision.
    Conflict {
        /// The current entry, if there is one.
        entry: Option<StoreEntry>,
    },
    /// The decision is written.
    Decided {
        /// The revision of the whole store.
        revision: u64,
        /// The version of the store's record.
        decisions: u64,
    },
    /// The decision is not written: the key does not have the expected revision, or the store's record another value, or a lower
    /// version.
    Undecided {
        /// The store's record, if there is one.
        store: Option<StoreEntry>,
        /// The current entry of the key, if there is one.
        entry: Option<StoreEntry>,
    },
    /// The lease is created.
    Granted {
        /// Its id.
        lease: Lease,
        /// How long it lasts, in seconds; may differ from what was asked for.
        ttl_s: u32,
    },
    /// The lease is renewed.
    Kept,
    /// The lease does not exist any more. The answer to any request that names it.
    NoLease,
}

/// Why a store refuses a request. A retry of the same request fails again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreRefusal {
    /// The key is empty or longer than [`KEY_BYTES_MAX`].
    Key,
    /// The value is larger than [`VALUE_BYTES_MAX`].
    Value,
    /// There are [`KEYS_MAX`] keys, or they hold [`STORE_BYTES_MAX`].
    Full,
    /// There are [`LEASES_MAX`] leases.
    Leases,
    /// The lease would last for no time, or longer than [`LEASE_S_MAX`].
    Ttl,
}

impl fmt::Display for StoreRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => write!(f, "a key has 1 to {KEY_BYTES_MAX} bytes"),
            Self::Value => write!(f, "a value has at most {VALUE_BYTES_MAX} bytes"),
            Self::Full => write!(
                f,
                "the store is full ({KEYS_MAX} keys, {STORE_BYTES_MAX} bytes); use etcd for a domain of this size"
            ),
            Self::Leases => write!(f, "the store has {LEASES_MAX} leases already; use etcd"),
            Self::Ttl => write!(f, "a lease lasts 1 to {LEASE_S_MAX} seconds"),
        }
    }
}

/// Why there is no answer from a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreFailure {
    /// It is unreachable, slow, or has no majority: a retry may succeed. A write may have been done or not.
    Unreachable(String),
    /// It refused, with a reason that says what to do.
    Refused(String),
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}
