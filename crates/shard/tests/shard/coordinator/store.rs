//! The store behaves like a map, a list of leases and a counter, and a follower of its changes sees the same.

use bytes::Bytes;
use marram_shard::coordinator::{
    Changes, Damage, KEYS_MAX, LEASES_MAX, Lease, Store, StoreEntry, StoreRefusal, StoreReply, StoreRequest,
    VALUE_BYTES_MAX, contents::STORE,
};
use marram_wire::seeded::Seeded;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
const SHORT_S: u64 = 5;
const LONG_S: u64 = 7_200;

fn write(key: &str, expect: Option<u64>, value: Option<&str>, lease: Option<Lease>) -> StoreRequest {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    StoreRequest::Write { key: key.into(), expect, value, lease }
}

fn put(key: &str, value: &str) -> StoreRequest {
    write(key, None, Some(value), None)
}

fn entries(store: &mut Store, now: u64, prefix: &str) -> Vec<StoreEntry> {
    match store.apply(now, StoreRequest::Range { prefix: prefix.into() }).unwrap() {
        // Versions have a test of their own.
        StoreReply::Entries { entries, .. } => {
            entries.into_iter().map(|entry| StoreEntry { version: 0, ..entry }).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// The expected content of the store: value, revision, lease; and how long each lease lasts, from when.
#[derive(Default)]
struct Model {
    keys: BTreeMap<String, (String, u64, Option<Lease>)>,
    leases: BTreeMap<Lease, (u64, u64)>,
}

impl Model {
    fn expire(&mut self, now: u64) {
        self.leases.retain(|_, (ttl_s, since)| now < *since + *ttl_s * SECOND);
        let leases = &self.leases;
        self.keys.retain(|_, (_, _, lease)| lease.is_none_or(|lease| leases.contains_key(&lease)));
    }

    fn under(&self, prefix: &str) -> Vec<StoreEntry> {
        let under = self.keys.iter().filter(|(key, _)| key.starts_with(prefix));
        under
            .map(|(key, (value, revision, _))| StoreEntry {
                key: key.clone(),
                value: Bytes::copy_from_slice(value.as_bytes()),
                revision: *revision,
                version: 0,
            })
            .collect()
    }
}

/// Watches one prefix and looks for changes now and then.
struct Follower {
    prefix: &'static str,
    since: u64,
    keys: BTreeMap<String, (Bytes, u64)>,
    listed: u32,
}

impl Follower {
    fn look(&mut self, store: &mut Store, now: u64) {
        store.expire(now);
        match store.changes(self.prefix, self.since) {
            Changes::All(changes) => {
                for change in changes {
                    assert!(change.revision > self.since, "in order");
                    self.since = change.revision;
                    match change.value {
                        Some(value) => drop(self.keys.insert(change.key, (value, change.revision))),
                        None => assert!(self.keys.remove(&change.key).is_some(), "what was there goes"),
                    }
                }
            }
            Changes::Forgotten => {
                self.listed += 1;
                let listed = entries(store, now, self.prefix).into_iter();
                self.keys = listed.map(|entry| (entry.key, (entry.value, entry.revision))).collect();
            }
        }
        self.since = store.revision();
        let seen: Vec<StoreEntry> = self
            .keys
            .iter()
            .map(|(key, (value, revision))| StoreEntry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
                version: 0,
            })
            .collect();
        assert_eq!(seen, entries(store, now, self.prefix));
    }
}

/// How often each of the rarer cases occurred.
#[derive(Default)]
struct Occurrences {
    conflicts: u32,
    lost: u32,
    expired: usize,
    restarts: u32,
    listed: u32,
}

/// A store and its model. Both get the same requests, and must agree on the replies.
struct Pair {
    store: Store,
    model: Model,
    now: u64,
    /// The highest revision so far.
    newest: u64,
    /// All leases, and one that was never granted.
    leases: Vec<Lease>,
}

impl Pair {
    fn new() -> Self {
        let (store, model) = (Store::new(), Model::default());
        Self { store, model, now: 0, newest: 0, leases: vec![Lease(9_999_999)] }
    }

    fn grant(&mut self, dice: &mut Seeded) {
        let ttl_s = if dice.percent(30) { LONG_S } else { SHORT_S };
        let request = StoreRequest::Grant { ttl_s: u32::try_from(ttl_s).unwrap() };
        let StoreReply::Granted { lease, .. } = self.store.apply(self.now, request).unwrap() else {
            panic!()
        };
        assert!(self.model.leases.insert(lease, (ttl_s, self.now)).is_none(), "no lease is named twice");
        self.leases.push(lease);
        self.newest = self.store.revision();
    }

    fn keep_alive(&mut self, lease: Lease) {
        let reply = self.store.apply(self.now, StoreRequest::KeepAlive { lease }).unwrap();
        let known = self.model.leases.get_mut(&lease).map(|(_, since)| *since = self.now);
        assert_eq!(reply, if known.is_some() { StoreReply::Kept } else { StoreReply::NoLease });
    }

    fn revoke(&mut self, lease: Lease) {
        self.store.apply(self.now, StoreRequest::Revoke { lease }).unwrap();
        self.model.leases.remove(&lease);
        self.model.expire(self.now);
    }

    /// Only long leases last, and begin again.
    fn restart(&mut self) {
        self.store = Store::restore(&self.store.snapshot(), self.now).unwrap();
        assert!(self.store.revision() > self.newest && self.store.must_be_saved());
        let lasts = |(ttl_s, since): &mut (u64, u64)| {
            *since = self.now;
            *ttl_s == LONG_S
        };
        self.model.leases.retain(|_, term| lasts(term));
        self.model.expire(self.now);
    }

    fn write(&mut self, dice: &mut Seeded, key: String, lease: Lease, often: &mut Occurrences) {
        let there = self.model.keys.get(&key).map(|(_, revision, _)| *revision);
        let expect = match dice.below(4) {
            0 => Some(there.unwrap_or(0)),
            1 => Some(dice.below(self.newest + 1)),
            _ => None,
        };
        let value = dice.percent(80).then(|| format!("{}", dice.below(1_000)));
        let lease = dice.percent(50).then_some(lease);
        let reply = self.store.apply(self.now, write(&key, expect, value.as_deref(), lease)).unwrap();
        if expect.is_some_and(|expect| expect != there.unwrap_or(0)) {
            often.conflicts += 1;
            let StoreReply::Conflict { entry } = reply else { panic!("{reply:?}") };
            let entry = entry.map(|entry| StoreEntry { version: 0, ..entry });
            assert_eq!(entry, self.model.under(&key).pop());
            return;
        }
        if lease.is_some_and(|lease| !self.model.leases.contains_key(&lease)) {
            often.lost += 1;
            assert_eq!(reply, StoreReply::NoLease);
            return;
        }
        let StoreReply::Written { revision } = reply else { panic!("{reply:?}") };
        match value {
            Some(value) => {
                assert!(revision > self.newest, "revisions grow");
                self.newest = revision;
                self.model.keys.insert(key, (value, revision, lease));
            }
            None => drop(self.model.keys.remove(&key)),
        }
    }
}

#[test]
fn the_store_does_as_its_model_and_followers_see_the_same() {
    let mut often = Occurrences::default();
    for seed in 0..60 {
        let mut dice = Seeded::new(seed);
        let mut pair = Pair::new();
        let follower = |prefix| Follower { prefix, since: 0, keys: BTreeMap::new(), listed: 0 };
        let mut followers = [follower("a/"), follower("")];
        for _ in 0..600 {
            pair.now += dice.below(SECOND);
            let before = pair.model.keys.len();
            pair.model.expire(pair.now);
            often.expired += before - pair.model.keys.len();
            let key = format!("{}/{}", ["a", "b"][usize::try_from(dice.below(2)).unwrap()], dice.below(6));
            let lease = pair.leases[usize::try_from(dice.below(pair.leases.len() as u64)).unwrap()];
            match dice.below(10) {
                0 => pair.grant(&mut dice),
                1 | 2 => pair.keep_alive(lease),
                3 if dice.percent(20) => pair.revoke(lease),
                4 if dice.percent(10) => {
                    often.restarts += 1;
                    pair.restart();
                }
                5 => followers.iter_mut().for_each(|follower| follower.look(&mut pair.store, pair.now)),
                _ => pair.write(&mut dice, key, lease, &mut often),
            }
            for prefix in ["", "a/", "b/3"] {
                let found = entries(&mut pair.store, pair.now, prefix);
                assert_eq!(found, pair.model.under(prefix), "seed {seed}");
            }
        }
        often.listed += followers.iter().map(|follower| follower.listed).sum::<u32>();
    }
    let Occurrences { conflicts, lost, expired, restarts, listed } = often;
    let often = [conflicts, lost, u32::try_from(expired).unwrap(), restarts, listed];
    assert!(often.iter().all(|times| *times > 50), "{often:?}");
}

#[test]
fn a_watcher_that_is_too_far_behind_or_ahead_gets_an_error() {
    let mut store = Store::new();
    for number in 0..10_000 {
        store.apply(0, put("k", &format!("{number}"))).unwrap();
    }
    let newest = store.revision();
    assert_eq!(store.changes("k", 0), Changes::Forgotten);
    assert!(matches!(store.changes("k", newest - 4_000), Changes::All(changes) if changes.len() == 4_000));
    assert_eq!(store.changes("k", newest), Changes::All(Vec::new()));
    assert_eq!(store.changes("k", newest + 1), Changes::Forgotten, "of another store");
}

#[test]
fn every_limit_refuses_and_changes_nothing() {
    let mut store = Store::new();
    store.apply(0, put("k", "v")).unwrap();
    let big = "v".repeat(VALUE_BYTES_MAX + 1);
    let long = "k".repeat(257);
    for (request, refused) in [
        (put("", "v"), StoreRefusal::Key),
        (put(&long, "v"), StoreRefusal::Key),
        (put("k", &big), StoreRefusal::Value),
        (StoreRequest::Grant { ttl_s: 0 }, StoreRefusal::Ttl),
        (StoreRequest::Grant { ttl_s: u32::MAX }, StoreRefusal::Ttl),
    ] {
        let before = store.clone();
        assert_eq!(store.apply(0, request), Err(refused));
        assert_eq!(store, before);
    }
    for _ in 0..LEASES_MAX {
        store.apply(0, StoreRequest::Grant { ttl_s: 10 }).unwrap();
    }
    assert_eq!(store.apply(0, StoreRequest::Grant { ttl_s: 10 }), Err(StoreRefusal::Leases));
    for number in 1..KEYS_MAX {
        store.apply(0, put(&format!("{number}"), "")).unwrap();
    }
    assert_eq!(store.apply(0, put("one more", "")), Err(StoreRefusal::Full));
    assert!(
        matches!(store.apply(0, put("k", "other")), Ok(StoreReply::Written { .. })),
        "what is there may change"
    );
    // The limit of bytes, long before the number of keys.
    let mut store = Store::new();
    let full =
        (0..).find(|n| store.apply(0, put(&format!("{n}"), &big[1..])) == Err(StoreRefusal::Full)).unwrap();
    assert!((500..513).contains(&full), "{full}");
    assert!(
        matches!(store.apply(0, put("0", "small")), Ok(StoreReply::Written { .. })),
        "shrinking is no harm"
    );
}

#[test]
fn only_what_lasts_has_to_be_saved_before_an_answer() {
    let mut store = Store::new();
    assert!(store.must_be_saved(), "before its first revision is given out");
    drop(store.snapshot());
    let StoreReply::Granted { lease, .. } = store.apply(0, StoreRequest::Grant { ttl_s: 10 }).unwrap() else {
        panic!()
    };
    store.apply(0, write("k", None, Some("v"), Some(lease))).unwrap();
    store.apply(0, StoreRequest::KeepAlive { lease }).unwrap();
    assert!(!store.must_be_saved());
    store.apply(0, put("k", "v")).unwrap();
    assert!(store.must_be_saved());
    drop(store.snapshot());
    store.apply(0, write("k", None, Some("v"), Some(lease))).unwrap();
    assert!(store.must_be_saved(), "what lasted does not any more");
}

#[test]
fn a_damaged_snapshot_is_refused_wherever_the_damage_is() {
    let mut store = Store::new();
    store.apply(0, put("key", "value")).unwrap();
    store.apply(0, StoreRequest::Grant { ttl_s: 7_200 }).unwrap();
    let bytes = store.snapshot();
    let restored = Store::restore(&bytes, 0).unwrap();
    assert_eq!(restored.figures().keys, 1);
    for at in 0..bytes.len() {
        let mut altered = bytes.to_vec();
        altered[at] ^= 1;
        assert!(Store::restore(&altered.into(), 0).is_err(), "byte {at}");
        assert!(Store::restore(&bytes.slice(..at), 0).is_err(), "cut at {at}");
    }
    let mut other = bytes.to_vec();
    other[8] = 3;
    assert_eq!(Store::restore(&other.into(), 0), Err(Damage::Version(3)));
}

/// A key with its version.
fn at(store: &mut Store, key: &str) -> Option<StoreEntry> {
    match store.apply(0, StoreRequest::Get { key: key.into() }).unwrap() {
        StoreReply::Entries { mut entries, .. } => entries.pop(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_version_counts_the_writes_since_a_key_was_absent_and_outlives_a_restart() {
    let mut store = Store::new();
    let version = |store: &mut Store| at(store, "k").map(|entry| entry.version);
    for count in 1..4 {
        store.apply(0, put("k", "v")).unwrap();
        assert_eq!(version(&mut store), Some(count));
    }
    let mut store = Store::restore(&store.snapshot(), 0).unwrap();
    assert_eq!(version(&mut store), Some(3));
    store.apply(0, write("k", None, None, None)).unwrap();
    store.apply(0, put("k", "v")).unwrap();
    assert_eq!(version(&mut store), Some(1));
    let Changes::All(changes) = store.changes("k", store.revision() - 2) else { panic!() };
    assert_eq!(changes.iter().map(|change| change.version).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_decision_is_written_with_its_count_or_not_at_all() {
    let mut store = Store::new();
    let decide = |expect, value: Option<&str>, record: &str, least| StoreRequest::Decide {
        key: "k".into(),
        expect,
        value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
        store: Bytes::copy_from_slice(record.as_bytes()),
        least,
    };
    let undecided = |store: &mut Store, request| {
        let (record, entry) = (at(store, STORE), at(store, "k"));
        let before = store.revision();
        let reply = store.apply(0, request).unwrap();
        reply == StoreReply::Undecided { store: record, entry } && store.revision() == before
    };
    assert!(undecided(&mut store, decide(0, Some("v"), "one", 0)), "there is no record");
    store.apply(0, put(STORE, "one")).unwrap();
    assert!(undecided(&mut store, decide(0, Some("v"), "two", 0)));
    assert!(undecided(&mut store, decide(0, Some("v"), "one", 2)), "it has one write");
    assert!(undecided(&mut store, decide(9, Some("v"), "one", 1)));
    drop(store.snapshot());
    let reply = store.apply(0, decide(0, Some("v"), "one", 1)).unwrap();
    assert!(matches!(reply, StoreReply::Decided { decisions: 2, .. }), "{reply:?}");
    assert!(store.must_be_saved());
    let mut store = Store::restore(&store.snapshot(), 0).unwrap();
    let entry = at(&mut store, "k").unwrap();
    assert_eq!((&entry.value[..], at(&mut store, STORE).unwrap().version), (&b"v"[..], 2));
    let reply = store.apply(0, decide(entry.revision, None, "one", 2)).unwrap();
    assert!(matches!(reply, StoreReply::Decided { decisions: 3, .. }), "{reply:?}");
    assert_eq!(at(&mut store, "k"), None);
    // A value that is refused is not counted.
    let big = "x".repeat(VALUE_BYTES_MAX + 1);
    assert_eq!(store.apply(0, decide(0, Some(&big), "one", 3)), Err(StoreRefusal::Value));
    assert_eq!(at(&mut store, STORE).unwrap().version, 3);
}
