//! The embedded store: keys with revisions, leases, and a bounded history of changes for watches. The caller passes the time; the
//! shell stores the bytes.

use super::{
    DURABLE_LEASE_S, HISTORY_BYTES_MAX, HISTORY_MAX, KEY_BYTES_MAX, KEYS_MAX, LEASE_S_MAX, LEASES_MAX, Lease,
    STORE_BYTES_MAX, StoreEntry, StoreRefusal, StoreReply, StoreRequest, VALUE_BYTES_MAX, contents::STORE,
};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};
use bytes::Bytes;
use marram_session::invariant;

/// How far a start may skip revisions: there is room for millions of starts.
const SKIP: u64 = 1 << 40;

/// A key that was put or removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreChange {
    /// The key.
    pub key: String,
    /// Its new value; none if it was removed.
    pub value: Option<Bytes>,
    /// The revision of the change.
    pub revision: u64,
    /// How often the key was written since it was last absent; 0 if it was removed.
    pub version: u64,
}

/// What has changed since a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changes {
    /// All of them, in order.
    All(Vec<StoreChange>),
    /// The store does not keep changes that old, or never had that revision: list again.
    Forgotten,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) value: Bytes,
    pub(super) revision: u64,
    pub(super) version: u64,
    pub(super) lease: Option<Lease>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Term {
    pub(super) ttl_s: u32,
    pub(super) until_ns: u64,
    pub(super) keys: BTreeSet<String>,
}

/// The size of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreFigures {
    /// Keys.
    pub keys: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
    /// Leases.
    pub leases: usize,
    /// The newest revision.
    pub revision: u64,
}

/// The store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Store {
    /// The revision of the newest change or lease.
    pub(super) revision: u64,
    /// No revision above this one may be given out until the floor is raised on disk.
    pub(super) floor: u64,
    pub(super) slots: BTreeMap<String, Slot>,
    pub(super) leases: BTreeMap<Lease, Term>,
    pub(super) bytes: usize,
    pub(super) deadlines: BTreeSet<(u64, Lease)>,
    pub(super) history: VecDeque<StoreChange>,
    /// Bytes of their keys and values.
    pub(super) history_bytes: usize,
    /// `history` holds every change from this revision on.
    pub(super) remembered: u64,
    /// Whether a change must be on disk before any answer is sent.
    pub(super) unsaved: bool,
}

impl Store {
    /// An empty store, which must be saved before its first answer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets revisions go on from a random place, before the first request. A store that lost its file, or was put back, must not give
    /// out a revision or a lease again that edges have of its former life.
    pub fn skip_revisions(&mut self, random: u64) {
        self.revision += random % SKIP;
        self.remembered = self.revision;
        self.unsaved = true;
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Its size and newest revision.
    #[must_use]
    pub fn figures(&self) -> StoreFigures {
        let (keys, leases) = (self.slots.len(), self.leases.len());
        StoreFigures { keys, bytes: self.bytes, leases, revision: self.revision }
    }

    /// Whether [`Store::snapshot`] must be on disk before the last answers are sent.
    #[must_use]
    pub fn must_be_saved(&self) -> bool {
        self.unsaved || self.revision >= self.floor
    }

    /// The last [`Store::snapshot`] was not written to disk.
    pub fn not_saved(&mut self) {
        self.unsaved = true;
    }

    /// When the next lease expires, in monotonic nanoseconds.
    #[must_use]
    pub fn next_expiry_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|(until_ns, _)| *until_ns)
    }

    /// Ends the leases that have expired.
    pub fn expire(&mut self, now_ns: u64) {
        while let Some((until_ns, lease)) = self.deadlines.first().copied()
            && until_ns <= now_ns
        {
            self.end(lease);
        }
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// If it would exceed a limit; nothing changes then.
    pub fn apply(&mut self, now_ns: u64, request: StoreRequest) -> Result<StoreReply, StoreRefusal> {
        self.expire(now_ns);
        let reply = self.answer(now_ns, request);
        invariant::after_step(|| self.check());
        reply
    }

    /// The answer to a request, once leases that are over have ended.
    fn answer(&mut self, now_ns: u64, request: StoreRequest) -> Result<StoreReply, StoreRefusal> {
        match request {
            StoreRequest::Get { key } => {
                let entries = self.entry(&key).into_iter().collect();
                Ok(StoreReply::Entries { revision: self.revision, entries })
            }
            StoreRequest::Range { prefix } => {
                let begins = |(key, _): &(&String, &Slot)| key.starts_with(&prefix);
                let slots = self.slots.range::<String, _>(&prefix..).take_while(begins);
                let entries = slots.map(|(key, slot)| entry(key, slot)).collect();
                Ok(StoreReply::Entries { revision: self.revision, entries })
            }
            StoreRequest::Write { key, expect, value, lease } => self.write(key, expect, value, lease),
            StoreRequest::Decide { key, expect, value, store, least } => {
                self.decide(key, expect, value, (store, least))
            }
            StoreRequest::Grant { ttl_s } => self.grant(now_ns, ttl_s),
            StoreRequest::KeepAlive { lease } => {
                let Some(term) = self.leases.get_mut(&lease) else { return Ok(StoreReply::NoLease) };
                self.deadlines.remove(&(term.until_ns, lease));
                term.until_ns = until(now_ns, term.ttl_s);
                self.deadlines.insert((term.until_ns, lease));
                Ok(StoreReply::Kept)
            }
            StoreRequest::Revoke { lease } => {
                let known = self.leases.contains_key(&lease);
                self.end(lease);
                Ok(if known { StoreReply::Kept } else { StoreReply::NoLease })
            }
        }
    }

    /// The changes under a prefix in revisions above `since`.
    #[must_use]
    pub fn changes(&self, prefix: &str, since: u64) -> Changes {
        if since < self.remembered || since > self.revision {
            return Changes::Forgotten;
        }
        let first = self.history.partition_point(|change| change.revision <= since);
        let under = |change: &&StoreChange| change.key.starts_with(prefix);
        Changes::All(self.history.range(first..).filter(under).cloned().collect())
    }

    fn entry(&self, key: &str) -> Option<StoreEntry> {
        self.slots.get_key_value(key).map(|(key, slot)| entry(key, slot))
    }

    fn write(
        &mut self,
        key: String,
        expect: Option<u64>,
        value: Option<Bytes>,
        lease: Option<Lease>,
    ) -> Result<StoreReply, StoreRefusal> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(StoreRefusal::Key);
        }
        if value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
            return Err(StoreRefusal::Value);
        }
        let there = self.slots.get(&key);
        if expect.is_some_and(|expect| expect != there.map_or(0, |slot| slot.revision)) {
            return Ok(StoreReply::Conflict { entry: self.entry(&key) });
        }
        if lease.is_some_and(|lease| !self.leases.contains_key(&lease)) {
            return Ok(StoreReply::NoLease);
        }
        let before = there.map_or(0, |slot| key.len() + slot.value.len());
        let after = value.as_ref().map_or(0, |value| key.len() + value.len());
        let grows = there.is_none() && value.is_some();
        if (grows && self.slots.len() >= KEYS_MAX)
            || (after > before && self.bytes - before + after > STORE_BYTES_MAX)
        {
            return Err(StoreRefusal::Full);
        }
        if value.is_none() && there.is_none() {
            return Ok(StoreReply::Written { revision: self.revision });
        }
        self.put(key, value, lease);
        Ok(StoreReply::Written { revision: self.revision })
    }

    /// Both writes, or none.
    fn decide(
        &mut self,
        key: String,
        expect: u64,
        value: Option<Bytes>,
        (store, least): (Bytes, u64),
    ) -> Result<StoreReply, StoreRefusal> {
        let record = self.entry(STORE);
        if record.as_ref().is_none_or(|record| record.value != store || record.version < least) {
            return Ok(StoreReply::Undecided { store: record, entry: self.entry(&key) });
        }
        let decisions = record.as_ref().map_or(0, |record| record.version) + 1;
        Ok(match self.write(key, Some(expect), value, None)? {
            StoreReply::Conflict { entry } => StoreReply::Undecided { store: record, entry },
            _ => {
                self.put(STORE.into(), Some(store), None);
                StoreReply::Decided { revision: self.revision, decisions }
            }
        })
    }

    /// Puts or removes a key, after all checks.
    fn put(&mut self, key: String, value: Option<Bytes>, lease: Option<Lease>) {
        self.revision += 1;
        let revision = self.revision;
        let old = self.slots.remove(&key);
        let was = old.as_ref().and_then(|slot| slot.lease);
        let version = if value.is_some() { old.as_ref().map_or(0, |slot| slot.version) + 1 } else { 0 };
        if let Some(term) = was.and_then(|lease| self.leases.get_mut(&lease)) {
            term.keys.remove(&key);
        }
        self.unsaved |=
            (old.is_some() && self.is_durable(was)) || (value.is_some() && self.is_durable(lease));
        self.bytes -= old.map_or(0, |slot| key.len() + slot.value.len());
        if let Some(value) = &value {
            self.bytes += key.len() + value.len();
            if let Some(term) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
                term.keys.insert(key.clone());
            }
            self.slots.insert(key.clone(), Slot { value: value.clone(), revision, version, lease });
        }
        self.remember(StoreChange { key, value, revision, version });
    }

    /// Adds a change to the history, and drops the oldest ones above the limit.
    fn remember(&mut self, change: StoreChange) {
        let size = |change: &StoreChange| change.key.len() + change.value.as_ref().map_or(0, Bytes::len);
        self.history_bytes += size(&change);
        self.history.push_back(change);
        while self.history.len() > HISTORY_MAX || self.history_bytes > HISTORY_BYTES_MAX {
            let Some(oldest) = self.history.pop_front() else { return };
            self.history_bytes -= size(&oldest);
            self.remembered = oldest.revision;
        }
    }

    /// Whether keys under this lease survive a restart.
    fn is_durable(&self, lease: Option<Lease>) -> bool {
        let term = lease.and_then(|lease| self.leases.get(&lease));
        lease.is_none() || term.is_some_and(|term| term.ttl_s >= DURABLE_LEASE_S)
    }

    fn grant(&mut self, now_ns: u64, ttl_s: u32) -> Result<StoreReply, StoreRefusal> {
        if ttl_s == 0 || ttl_s > LEASE_S_MAX {
            return Err(StoreRefusal::Ttl);
        }
        if self.leases.len() >= LEASES_MAX {
            return Err(StoreRefusal::Leases);
        }
        // Leases are named by revisions, so a lease of the store's earlier life is never mistaken for a new one.
        self.revision += 1;
        let lease = Lease(self.revision);
        self.lend(lease, now_ns, ttl_s);
        self.unsaved |= ttl_s >= DURABLE_LEASE_S;
        Ok(StoreReply::Granted { lease, ttl_s })
    }

    pub(super) fn lend(&mut self, lease: Lease, now_ns: u64, ttl_s: u32) {
        let until_ns = until(now_ns, ttl_s);
        self.deadlines.insert((until_ns, lease));
        self.leases.insert(lease, Term { ttl_s, until_ns, keys: BTreeSet::new() });
    }

    fn end(&mut self, lease: Lease) {
        let Some(term) = self.leases.get_mut(&lease) else { return };
        let keys = core::mem::take(&mut term.keys);
        self.deadlines.remove(&(term.until_ns, lease));
        keys.into_iter().for_each(|key| self.put(key, None, None));
        self.leases.remove(&lease);
    }
}

fn until(now_ns: u64, ttl_s: u32) -> u64 {
    now_ns.saturating_add(u64::from(ttl_s) * 1_000_000_000)
}

fn entry(key: &str, slot: &Slot) -> StoreEntry {
    StoreEntry { key: key.into(), value: slot.value.clone(), revision: slot.revision, version: slot.version }
}
