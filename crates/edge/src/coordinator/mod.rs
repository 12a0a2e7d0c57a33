//! The coordinator: what edges know of one another, and the few decisions that the ends of a session cannot take
//! (docs/protocol-keepers.md, "Coordinator").
//!
//! A small store with revisions, leases and watches, which [`Store`] is and which etcd is as well; and [`CoordinatorClient`], an edge's
//! side of it. Both are pure: the shell carries [`StoreRequest`] and [`StoreReply`] and says what time it is. Nothing on the path of a
//! message waits for either.

mod asks;
mod client;
pub mod contents;
mod placements;
mod snapshot;
mod store;

pub use asks::{ASKS_MAX, Ask, AskAnswer, REPORTS_MAX, StandsBy};
pub use client::{
    BACKOFF_MAX_NS, BACKOFF_MIN_NS, CoordinatorClient, CoordinatorConfig, CoordinatorInput,
    CoordinatorMetrics, CoordinatorOutput, CoordinatorState, LISTING_NS,
};
pub use placements::{Parts, Placements};
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
/// Changes that an embedded store remembers for those who watch. Who is further behind lists anew.
pub const HISTORY_MAX: usize = 4_096;
/// Bytes of keys and values that are remembered so.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;
/// Longest lease, in seconds.
pub const LEASE_S_MAX: u32 = 30 * 24 * 3_600;
/// What is under a lease of so many seconds or more survives a restart of an embedded store; the rest is registered anew.
pub const DURABLE_LEASE_S: u32 = 3_600;

const _: () = assert!(DURABLE_LEASE_S < LEASE_S_MAX, "there are leases that survive a restart");

/// A lease: keys that are under one vanish with it, unless it is kept alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lease(pub u64);

/// What is asked of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreRequest {
    /// One key.
    Get {
        /// Which.
        key: String,
    },
    /// All keys that begin so.
    Range {
        /// With what.
        prefix: String,
    },
    /// Puts or removes one key.
    Write {
        /// Which.
        key: String,
        /// Only if the key is of this revision; 0 if there must be none.
        expect: Option<u64>,
        /// The new value; none removes the key.
        value: Option<Bytes>,
        /// It vanishes with this lease.
        lease: Option<Lease>,
    },
    /// A new lease.
    Grant {
        /// How long it lasts without being kept alive, in seconds.
        ttl_s: u32,
    },
    /// The lease begins anew.
    KeepAlive {
        /// Which.
        lease: Lease,
    },
    /// Ends a lease, and what is under it.
    Revoke {
        /// Which.
        lease: Lease,
    },
}

/// A key and what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreEntry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// Of the write that put it there: grows over the whole store, and is never used twice.
    pub revision: u64,
}

/// What a store answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreReply {
    /// To [`StoreRequest::Get`] and [`StoreRequest::Range`].
    Entries {
        /// Of the whole store.
        revision: u64,
        /// In the order of their keys.
        entries: Vec<StoreEntry>,
    },
    /// The write is done.
    Written {
        /// Its revision.
        revision: u64,
    },
    /// The key is not of the revision that was expected.
    Conflict {
        /// What is there.
        entry: Option<StoreEntry>,
    },
    /// A lease.
    Granted {
        /// Its name.
        lease: Lease,
        /// How long it lasts, in seconds; may differ from what was asked for.
        ttl_s: u32,
    },
    /// The lease lasts again.
    Kept,
    /// The lease has ended, in answer to anything that names one.
    NoLease,
}

/// Why a store does not do what is asked. The same request will fail again.
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
    /// It is away, slow, or has no majority: the same may succeed later. Whether a write was done is not known.
    Unreachable(String),
    /// It says no, and to whom to turn.
    Refused(String),
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}
