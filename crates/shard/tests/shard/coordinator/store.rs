//! The store behaves like a map, a list of leases and a counter, and a follower of its changes sees the same.

use bytes::Bytes;
use marram_shard::coordinator::{
    Changes, Damage, KEYS_MAX, LEASES_MAX, Lease, Store, StoreEntry, StoreRefusal, StoreReply, StoreRequest,
    VALUE_BYTES_MAX,
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
        StoreReply::Entries { entries, .. } => entries,
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
            })
            .collect();
        assert_eq!(seen, entries(store, now, self.prefix));
    }
}

#[test]
fn the_store_does_as_its_model_and_followers_see_the_same() {
    let (mut conflicts, mut lost, mut expired, mut restarts, mut listed) = (0u32, 0u32, 0usize, 0u32, 0u32);
    for seed in 0..60 {
        let mut dice = Seeded::new(seed);
        let (mut store, mut model) = (Store::new(), Model::default());
        let follower = |prefix| Follower { prefix, since: 0, keys: BTreeMap::new(), listed: 0 };
        let mut followers = [follower("a/"), follower("")];
        let (mut now, mut newest, mut leases) = (0, 0, vec![Lease(9_999_999)]);
        for _ in 0..600 {
            now += dice.below(SECOND);
            let before = model.keys.len();
            model.expire(now);
            expired += before - model.keys.len();
            let key = format!("{}/{}", ["a", "b"][usize::try_from(dice.below(2)).unwrap()], dice.below(6));
            let lease = leases[usize::try_from(dice.below(leases.len() as u64)).unwrap()];
            match dice.below(10) {
                0 => {
                    let ttl_s = if dice.percent(30) { LONG_S } else { SHORT_S };
                    let request = StoreRequest::Grant { ttl_s: u32::try_from(ttl_s).unwrap() };
                    let StoreReply::Granted { lease, .. } = store.apply(now, request).unwrap() else {
                        panic!()
                    };
                    assert!(model.leases.insert(lease, (ttl_s, now)).is_none(), "no lease is named twice");
                    leases.push(lease);
                    newest = store.revision();
                }
                1 | 2 => {
                    let reply = store.apply(now, StoreRequest::KeepAlive { lease }).unwrap();
                    let known = model.leases.get_mut(&lease).map(|(_, since)| *since = now);
                    assert_eq!(reply, if known.is_some() { StoreReply::Kept } else { StoreReply::NoLease });
                }
                3 if dice.percent(20) => {
                    store.apply(now, StoreRequest::Revoke { lease }).unwrap();
                    model.leases.remove(&lease);
                    model.expire(now);
                }
                4 if dice.percent(10) => {
                    restarts += 1;
                    store = Store::restore(&store.snapshot(), now).unwrap();
                    assert!(store.revision() > newest && store.must_be_saved());
                    let lasts = |(ttl_s, since): &mut (u64, u64)| {
                        *since = now;
                        *ttl_s == LONG_S
                    };
                    model.leases.retain(|_, term| lasts(term));
                    model.expire(now);
                }
                5 => followers.iter_mut().for_each(|follower| follower.look(&mut store, now)),
                _ => {
                    let there = model.keys.get(&key).map(|(_, revision, _)| *revision);
                    let expect = match dice.below(4) {
                        0 => Some(there.unwrap_or(0)),
                        1 => Some(dice.below(newest + 1)),
                        _ => None,
                    };
                    let value = dice.percent(80).then(|| format!("{}", dice.below(1_000)));
                    let lease = dice.percent(50).then_some(lease);
                    let reply = store.apply(now, write(&key, expect, value.as_deref(), lease)).unwrap();
                    if expect.is_some_and(|expect| expect != there.unwrap_or(0)) {
                        conflicts += 1;
                        assert_eq!(reply, StoreReply::Conflict { entry: model.under(&key).pop() });
                    } else if lease.is_some_and(|lease| !model.leases.contains_key(&lease)) {
                        lost += 1;
                        assert_eq!(reply, StoreReply::NoLease);
                    } else {
                        let StoreReply::Written { revision } = reply else { panic!("{reply:?}") };
                        match value {
                            Some(value) => {
                                assert!(revision > newest, "revisions grow");
                                newest = revision;
                                model.keys.insert(key, (value, revision, lease));
                            }
                            None => drop(model.keys.remove(&key)),
                        }
                    }
                }
            }
            for prefix in ["", "a/", "b/3"] {
                assert_eq!(entries(&mut store, now, prefix), model.under(prefix), "seed {seed}");
            }
        }
        listed += followers.iter().map(|follower| follower.listed).sum::<u32>();
    }
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
    other[8] = 2;
    assert_eq!(Store::restore(&other.into(), 0), Err(Damage::Version(2)));
}
