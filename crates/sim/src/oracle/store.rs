//! The oracle of the coordinator. It keeps a simple copy of what the store should hold and compares every reply with it: of
//! the clients that write on the same revision at most one wins, no revision is used twice, leases last exactly as long as they
//! should, watches see every change, and keys without a short lease survive a restart.
//!
//! The store is not replicated, so the model is easy: a map, applied in the order in which requests
//! reached the real one. It is told each request and reply at the same time (`applied`), and so
//! checks linearisability by construction: the order is known.
//!
//! ```text
//! World -- request --> real Store -- reply --> StoreJudge::applied(request, reply) -> Err: a violation
//!                      '- changes for a watch -> StoreJudge::told
//! ```

use bytes::Bytes;
use marram_shard::coordinator::{
    Changes, DURABLE_LEASE_S, Lease, StoreChange, StoreEntry, StoreRefusal, StoreReply, StoreRequest,
    contents::{Claimed, PREFIX, STORE, Witnessed, decode},
};
use std::collections::{BTreeMap, BTreeSet};

/// The expected state of a key.
#[derive(Clone, Debug)]
struct Slot {
    value: Bytes,
    revision: u64,
    version: u64,
    lease: Option<Lease>,
}

/// The expected state of the store. A copy of it goes with a copy of the store's file.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreJudge {
    keys: BTreeMap<String, Slot>,
    /// Duration in seconds, and expiry time. The time is virtual, in nanoseconds.
    leases: BTreeMap<Lease, (u32, u64)>,
    /// The highest number used so far, as a revision or a lease. Revisions and leases are taken
    /// from one counter, in the real store as well.
    highest: u64,
    /// Keys and revisions on which a write succeeded. Kept over restarts: a restarted store that
    /// accepts the same revision twice has forgotten a write that was confirmed.
    won: BTreeSet<(String, u64)>,
    /// Every change since the beginning: key and value; `None` if it was removed.
    changes: Vec<(String, Option<Bytes>)>,
    /// Number of changes when the store last started.
    begun: usize,
    /// Number of changes when a revision was the newest. Lets a watch that begins at a revision be
    /// compared from the right place. Cleared by a restart, as the store forgets too.
    places: BTreeMap<u64, usize>,
    /// All holders of each key about generations. In the order of their writes. I34: of the claims
    /// that start from one holder at most one wins.
    pub(crate) holders: BTreeMap<String, Vec<Claimed>>,
    /// The last holder of each key that was removed.
    pub(crate) removed: BTreeMap<String, Claimed>,
}

impl StoreJudge {
    /// Of a store without a file. Whatever a watch asks for is from before.
    pub(crate) fn gone() -> Self {
        let mut judge = Self::default();
        judge.begin();
        judge
    }

    /// The only way in which a key changes; all changes are therefore in `changes`.
    fn put(&mut self, key: &str, slot: Option<Slot>) {
        self.changes.push((key.to_owned(), slot.as_ref().map(|slot| slot.value.clone())));
        match slot {
            Some(slot) => drop(self.keys.insert(key.to_owned(), slot)),
            None => drop(self.keys.remove(key)),
        }
    }

    /// A lease ends, by time or on request: its keys go with it.
    fn end(&mut self, lease: Lease) {
        self.leases.remove(&lease);
        let under = |(key, slot): (&String, &Slot)| (slot.lease == Some(lease)).then(|| key.clone());
        for key in self.keys.iter().filter_map(under).collect::<Vec<_>>() {
            self.put(&key, None);
        }
    }

    /// Advances the time. Leases that end at the same time end in the order of their numbers, as in
    /// the real store, so that the changes are in one order.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        let mut over: Vec<_> = self.leases.iter().map(|(lease, (_, until_ns))| (*until_ns, *lease)).collect();
        over.retain(|(until_ns, _)| *until_ns <= now_ns);
        over.sort_unstable();
        over.into_iter().for_each(|(_, lease)| self.end(lease));
    }

    /// The store restarts from its snapshot: keys with a short lease are gone, and watchers list again.
    pub(crate) fn restarted(&mut self, now_ns: u64) {
        self.leases.retain(|_, (ttl_s, _)| *ttl_s >= DURABLE_LEASE_S);
        self.leases.values_mut().for_each(|(ttl_s, until_ns)| *until_ns = now_ns + s(*ttl_s));
        let leases = &self.leases;
        self.keys.retain(|_, slot| slot.lease.is_none_or(|lease| leases.contains_key(&lease)));
        self.begin();
        self.places.clear();
    }

    /// What a watch asks for from before is refused, also if nothing was ever written: so something is before.
    fn begin(&mut self) {
        self.changes.push((String::new(), None));
        self.begun = self.changes.len();
    }

    /// A request was applied with this reply.
    ///
    /// # Errors
    /// What is wrong, with the request and the reply. The model may differ from the store from then
    /// on, so the world stops.
    pub(crate) fn applied(
        &mut self,
        now_ns: u64,
        request: &StoreRequest,
        reply: &Result<StoreReply, StoreRefusal>,
    ) -> Result<(), String> {
        self.expire(now_ns);
        let wrong = |what: &str| Err(format!("the store answers {request:?} with {reply:?}: {what}"));
        let Ok(reply) = reply else { return wrong("nothing here is beyond a limit") };
        match (request, reply) {
            (
                StoreRequest::Get { .. } | StoreRequest::Range { .. },
                StoreReply::Entries { revision, entries },
            ) => {
                if !self.holds(request, entries) {
                    return wrong("something else is there");
                }
                self.places.insert(*revision, self.changes.len());
                Ok(())
            }
            (StoreRequest::Write { key, expect, value, lease }, StoreReply::Written { revision }) => {
                if let Some(what) = self.write_fault(key, *expect, *lease) {
                    return wrong(what);
                }
                if value.is_none() && self.revision(key) == 0 {
                    return Ok(());
                }
                self.new_number(*revision)?;
                self.judge_progress(key, value.as_ref())?;
                self.write(key, value.as_ref(), *revision, *lease);
                Ok(())
            }
            (StoreRequest::Decide { .. }, _) => {
                self.decided(request, reply).map_or(Ok(()), |what| wrong(&what))
            }
            (StoreRequest::Write { key, expect: Some(expect), .. }, StoreReply::Conflict { entry }) => {
                if self.is_conflict(key, *expect, entry.as_ref()) {
                    Ok(())
                } else {
                    wrong("there is no such conflict")
                }
            }
            (StoreRequest::Grant { .. }, StoreReply::Granted { lease, ttl_s }) => {
                self.new_number(lease.0)?;
                self.leases.insert(*lease, (*ttl_s, now_ns + s(*ttl_s)));
                Ok(())
            }
            (StoreRequest::KeepAlive { lease }, StoreReply::Kept) => match self.leases.get_mut(lease) {
                Some((ttl_s, until_ns)) => {
                    *until_ns = now_ns + s(*ttl_s);
                    Ok(())
                }
                None => wrong("the lease is over"),
            },
            (StoreRequest::Revoke { lease }, StoreReply::Kept) if self.leases.contains_key(lease) => {
                self.end(*lease);
                Ok(())
            }
            (StoreRequest::KeepAlive { lease } | StoreRequest::Revoke { lease }, StoreReply::NoLease)
            | (StoreRequest::Write { lease: Some(lease), .. }, StoreReply::NoLease)
                if !self.leases.contains_key(lease) =>
            {
                Ok(())
            }
            _ => wrong("that is no answer to it"),
        }
    }

    /// A decision was asked for and answered. Returns what is wrong.
    fn decided(&mut self, request: &StoreRequest, reply: &StoreReply) -> Option<String> {
        let StoreRequest::Decide { key, expect, value, store, least } = request else { return None };
        let is_here = |slot: &&Slot| slot.value == *store && slot.version >= *least;
        let record = self.keys.get(STORE).filter(is_here).map(|slot| slot.version);
        match reply {
            StoreReply::Decided { revision, decisions } => {
                if record.map(|version| version + 1) != Some(*decisions) {
                    return Some("its record is another one".into());
                }
                if let Some(what) = self.write_fault(key, Some(*expect), None) {
                    return Some(what.into());
                }
                let judged = self.judge_progress(key, value.as_ref());
                // Both are written before anything else is, in this order.
                if value.is_some() || self.revision(key) > 0 {
                    if let Err(what) = self.new_number(revision - 1) {
                        return Some(what);
                    }
                    self.write(key, value.as_ref(), revision - 1, None);
                }
                let numbered = self.new_number(*revision);
                self.write(STORE, Some(store), *revision, None);
                judged.and(numbered).err()
            }
            StoreReply::Undecided { store: said, entry } => {
                let is_as_said = |key: &str, said: Option<&StoreEntry>| {
                    let there = self.keys.get(key).map(|slot| (&slot.value, slot.revision, slot.version));
                    said.map(|entry| (&entry.value, entry.revision, entry.version)) == there
                };
                if !is_as_said(STORE, said.as_ref()) || !is_as_said(key, entry.as_ref()) {
                    return Some("something else is there".into());
                }
                let was_free = self.revision(key) == *expect && record.is_some();
                was_free.then(|| "nothing was in its way".into())
            }
            _ => Some("that is no answer to it".into()),
        }
    }

    fn write(&mut self, key: &str, value: Option<&Bytes>, revision: u64, lease: Option<Lease>) {
        let version = self.keys.get(key).map_or(0, |slot| slot.version) + 1;
        self.put(key, value.map(|value| Slot { value: value.clone(), revision, version, lease }));
    }

    /// Whether these are the entries that a request for one key or a range asks for.
    fn holds(&self, request: &StoreRequest, entries: &[StoreEntry]) -> bool {
        let asked = |key: &String| match request {
            StoreRequest::Get { key: one } => key == one,
            StoreRequest::Range { prefix } => key.starts_with(prefix),
            _ => false,
        };
        let there = self.keys.iter().filter(|(key, _)| asked(key));
        let there = there.map(|(key, slot)| (key, &slot.value, slot.revision, slot.version));
        entries.iter().map(|entry| (&entry.key, &entry.value, entry.revision, entry.version)).eq(there)
    }

    /// The revision of a key; 0 if there is no such key.
    fn revision(&self, key: &str) -> u64 {
        self.keys.get(key).map_or(0, |slot| slot.revision)
    }

    /// Why a write must not have succeeded. Notes which revision it replaced.
    fn write_fault(&mut self, key: &str, expect: Option<u64>, lease: Option<Lease>) -> Option<&'static str> {
        if expect.is_some_and(|expect| expect != self.revision(key)) {
            return Some("it wrote upon a revision that is not there");
        }
        if expect.is_some_and(|expect| expect > 0 && !self.won.insert((key.to_owned(), expect))) {
            return Some("two wrote upon one revision");
        }
        let is_over = lease.is_some_and(|lease| !self.leases.contains_key(&lease));
        is_over.then_some("its lease is over")
    }

    /// Whether a write that expects a revision conflicts with what is there, and `entry` is that.
    fn is_conflict(&self, key: &str, expect: u64, entry: Option<&StoreEntry>) -> bool {
        let there = self.keys.get(key).map(|slot| (&slot.value, slot.revision));
        self.revision(key) != expect && entry.map(|entry| (&entry.value, entry.revision)) == there
    }

    /// Numbers only grow, so that a client can compare revisions without knowing what they belong
    /// to.
    fn new_number(&mut self, number: u64) -> Result<(), String> {
        if number <= self.highest {
            return Err(format!("the store gives out {number} after {}", self.highest));
        }
        self.highest = number;
        Ok(())
    }

    /// Checks that generations, and what clients were seen to have, only grow.
    fn judge_progress(&mut self, key: &str, value: Option<&Bytes>) -> Result<(), String> {
        let Some((kind, _)) = key.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/')) else {
            return Ok(());
        };
        let before = self.keys.get(key).map(|slot| &slot.value);
        match (kind, value) {
            ("generations", Some(value)) => {
                let to: Claimed = decode(value).map_err(|error| error.to_string())?;
                let holders = self.holders.entry(key.to_owned()).or_default();
                if holders.last().is_some_and(|last| last.generation >= to.generation) {
                    return Err(format!("{key}: {to:?} is written after {:?}", holders.last()));
                }
                holders.push(to);
            }
            ("generations", None) => {
                if let Some(last) = self.holders.remove(key).and_then(|holders| holders.last().cloned()) {
                    self.removed.insert(key.to_owned(), last);
                }
            }
            ("witness", Some(value)) => {
                let read = |value: &Bytes| decode::<Witnessed>(value).map_err(|error| error.to_string());
                let newer = read(value)?;
                let older = before.map(read).transpose()?;
                if older.as_ref().is_some_and(|older| {
                    (older.generation, older.log_end) > (newer.generation, newer.log_end)
                }) {
                    return Err(format!("{key}: {newer:?} is written over {older:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Number of changes when this revision was listed. A revision that this store has not listed
    /// is from before its restart: the watch must be told to list again.
    pub(crate) fn place(&self, revision: u64) -> usize {
        // A revision of a store before this one.
        self.places.get(&revision).copied().unwrap_or(0)
    }

    /// Checks what a watch at `place` reports; returns its new place.
    ///
    /// # Errors
    /// If changes are missing, invented or out of order, or if the store claims to know less than
    /// it does.
    pub(crate) fn told(&self, prefix: &str, place: usize, said: &Changes) -> Result<usize, String> {
        let Changes::All(said) = said else {
            let may = place < self.begun;
            return if may { Ok(place) } else { Err(format!("the store forgot changes under {prefix}")) };
        };
        if place < self.begun {
            return Err(format!("a store that began again knows what was before: {said:?}"));
        }
        let real = self.changes[place..].iter().filter(|(key, _)| key.starts_with(prefix));
        let equal = real.eq(said
            .iter()
            .map(|StoreChange { key, value, .. }| (key.clone(), value.clone()))
            .collect::<Vec<_>>()
            .iter());
        if !equal {
            let real = &self.changes[place..];
            return Err(format!("a watch of {prefix} is told {said:?}, and {real:?} happened"));
        }
        Ok(self.changes.len())
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<&Bytes> {
        self.keys.get(key).map(|slot| &slot.value)
    }
}

fn s(seconds: u32) -> u64 {
    u64::from(seconds) * crate::plan::S
}
