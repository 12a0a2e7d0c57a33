//! An embedded store as bytes that outlive its process.
//!
//! ```text
//! +--------------+---------+-------+----------+--------+--------+--------------------+
//! | "MARRAMCO" 8 | version | floor | leases   | keys   | digest of all before: 16  |
//! +--------------+---------+-------+----------+--------+---------------------------+
//! lease := id | seconds      key := key | value | revision | version | lease or none
//! ```
//!
//! It contains only what survives a restart. The floor is above every revision that may have been given out: a store that
//! restarts continues from there.

use super::{DURABLE_LEASE_S, KEYS_MAX, LEASES_MAX, Lease, STORE_BYTES_MAX, Store, store::Slot};
use alloc::string::String;
use bytes::{BufMut, Bytes, BytesMut};
use core::fmt;
use marram_wire::codec::{self, Field};

const MAGIC: &[u8; 8] = b"MARRAMCO";
const VERSION: u8 = 2;
/// The version before, without versions of keys. It can be read, so that an edge can be upgraded.
const VERSION_WITHOUT_COUNTS: u8 = 1;
const DIGEST: usize = 16;
/// Revisions that may be given out before a snapshot is taken only to raise the floor.
const GAP: u64 = 1 << 20;
/// The upper limit of a snapshot's size.
const SIZE_MAX: usize = 2 * STORE_BYTES_MAX + KEYS_MAX * 32 + LEASES_MAX * 16;

/// Why bytes are not a valid snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// The magic is wrong.
    Magic,
    /// Another version of Marram wrote them.
    Version(u8),
    /// They are truncated or corrupt.
    Altered,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("it is not a coordinator's store"),
            Self::Version(version) => write!(
                f,
                "it has version {version}, and this program supports {VERSION}; start the version that wrote it"
            ),
            Self::Altered => f.write_str("it is truncated or was altered; restore a copy"),
        }
    }
}

impl Store {
    /// Encodes everything that survives a restart. The store then counts as saved: write the bytes to disk before any answer is
    /// sent.
    #[must_use]
    pub fn snapshot(&mut self) -> Bytes {
        self.floor = self.revision + GAP;
        self.unsaved = false;
        let mut out = BytesMut::new();
        out.put_slice(MAGIC);
        out.put_u8(VERSION);
        self.floor.put(&mut out);
        let lasts = |lease: &Lease| self.leases.get(lease).is_some_and(|term| term.ttl_s >= DURABLE_LEASE_S);
        let leases = || self.leases.iter().filter(|(_, term)| term.ttl_s >= DURABLE_LEASE_S);
        (leases().count() as u64).put(&mut out);
        for (lease, term) in leases() {
            lease.0.put(&mut out);
            term.ttl_s.put(&mut out);
        }
        let slots = || self.slots.iter().filter(|(_, slot)| slot.lease.as_ref().is_none_or(lasts));
        (slots().count() as u64).put(&mut out);
        for (key, slot) in slots() {
            key.put(&mut out);
            slot.value.put(&mut out);
            slot.revision.put(&mut out);
            slot.version.put(&mut out);
            slot.lease.map(|lease| lease.0).put(&mut out);
        }
        let digest = blake3::hash(&out);
        out.put_slice(&digest.as_bytes()[..DIGEST]);
        out.freeze()
    }

    /// Reads a snapshot. Leases restart with their full time. Older changes are forgotten: watches must list again.
    ///
    /// # Errors
    /// If the bytes are not exactly a snapshot of this version or the one before.
    pub fn restore(bytes: &Bytes, now_ns: u64) -> Result<Self, Damage> {
        if !bytes.starts_with(MAGIC) {
            return Err(Damage::Magic);
        }
        let version = *bytes.get(MAGIC.len()).ok_or(Damage::Altered)?;
        if version != VERSION && version != VERSION_WITHOUT_COUNTS {
            return Err(Damage::Version(version));
        }
        let end = bytes.len().checked_sub(DIGEST).filter(|end| *end > MAGIC.len() && *end <= SIZE_MAX);
        let end = end.ok_or(Damage::Altered)?;
        if blake3::hash(&bytes[..end]).as_bytes()[..DIGEST] != bytes[end..] {
            return Err(Damage::Altered);
        }
        let mut body = bytes.slice(MAGIC.len() + 1..end);
        let store = Self::take(&mut body, version, now_ns).map_err(|_| Damage::Altered)?;
        if body.is_empty() { Ok(store) } else { Err(Damage::Altered) }
    }

    fn take(from: &mut Bytes, version: u8, now_ns: u64) -> Result<Self, codec::Error> {
        let floor = u64::take(from)?;
        // The floor itself was never given out, and must not be until it is raised.
        let mut store = Self { revision: floor, floor, remembered: floor, ..Self::default() };
        for _ in 0..u64::take(from)? {
            let lease = Lease(u64::take(from)?);
            store.lend(lease, now_ns, u32::take(from)?);
        }
        for _ in 0..u64::take(from)? {
            let key = String::take(from)?;
            let value = <Bytes as Field>::take(from)?;
            let revision = u64::take(from)?;
            let version = if version == VERSION_WITHOUT_COUNTS { 1 } else { u64::take(from)? };
            let lease = <Option<u64> as Field>::take(from)?.map(Lease);
            store.bytes += key.len() + value.len();
            if let Some(term) = lease.and_then(|lease| store.leases.get_mut(&lease)) {
                term.keys.insert(key.clone());
            }
            store.slots.insert(key, Slot { value: Bytes::copy_from_slice(&value), revision, version, lease });
        }
        Ok(store)
    }
}
