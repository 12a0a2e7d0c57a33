//! Each rule separately, and random histories against a model with linear search.

use super::*;
use alloc::{format, vec};
use marram_wire::seeded::Seeded;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

fn policy(bytes_max: u64) -> CachePolicy {
    CachePolicy {
        origin: "http://origin/".into(),
        ttl_ms: 10_000,
        ttl_max_ms: 60_000,
        negative_ttl_ms: 2_000,
        stale_ms: 30_000,
        timeout_ms: 1_000,
        bytes_max,
    }
}

fn cache(bytes_max: u64) -> Cache<u32> {
    Cache::new(policy(bytes_max), 1)
}

fn key(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn object(size: usize) -> Found {
    Found::Object(Bytes::from(vec![7; size]))
}

fn answer(size: usize, freshness: Freshness) -> OriginAnswer {
    OriginAnswer::Object(Bytes::from(vec![7; size]), tagged("v1"), freshness)
}

fn tagged(tag: &str) -> Validators {
    Validators { tag: Some(tag.into()), modified: None }
}

/// Fetches an object for one reader.
fn fill(cache: &mut Cache<u32>, now_ns: u64, name: &str, answer: OriginAnswer) -> Found {
    assert!(matches!(cache.read(now_ns, &key(name), 1), CacheRead::Fetch(_)), "{name}");
    let (found, waiters) = cache.fetched(now_ns, &key(name), answer);
    assert_eq!(waiters, [1]);
    found
}

fn hit(cache: &mut Cache<u32>, now_ns: u64, name: &str) -> bool {
    match cache.read(now_ns, &key(name), 9) {
        CacheRead::Found(_) => true,
        _ => {
            cache.fetched(
                now_ns,
                &key(name),
                OriginAnswer::Object(Bytes::new(), Validators::default(), Freshness::Once),
            );
            false
        }
    }
}

#[test]
fn many_waiting_reads_cause_one_fetch_and_all_get_its_answer() {
    let mut cache = cache(1 << 20);
    assert_eq!(cache.read(0, &key("a"), 1), CacheRead::Fetch(Validators::default()));
    for waiter in 2..100 {
        assert_eq!(cache.read(0, &key("a"), waiter), CacheRead::Wait);
    }
    cache.leave(&50);
    let (found, waiters) = cache.fetched(0, &key("a"), answer(5, Freshness::Unsaid));
    assert_eq!(found, object(5));
    assert_eq!(waiters, (1..100).filter(|waiter| *waiter != 50).collect::<Vec<_>>());
    assert_eq!(cache.read(10 * S - 1, &key("a"), 1), CacheRead::Found(object(5)));
    assert_eq!((cache.totals().fetches, cache.totals().misses, cache.totals().hits), (1, 99, 1));
}

#[test]
fn an_object_is_good_for_as_long_as_its_answer_and_the_policy_say() {
    for (freshness, good_ms) in [
        (Freshness::Unsaid, 10_000),
        (Freshness::For(3_000), 3_000),
        (Freshness::For(3_600_000), 60_000),
        (Freshness::For(0), 0),
    ] {
        let mut cache = cache(1 << 20);
        fill(&mut cache, 0, "a", answer(1, freshness));
        if good_ms > 0 {
            assert!(hit(&mut cache, good_ms * MS - 1, "a"), "{freshness:?}");
        }
        // The origin gets a conditional request; an unchanged object is fresh again.
        assert_eq!(cache.read(good_ms * MS, &key("a"), 1), CacheRead::Fetch(tagged("v1")), "{freshness:?}");
        let (found, _) = cache.fetched(good_ms * MS, &key("a"), OriginAnswer::Unchanged(Freshness::For(5)));
        assert_eq!(found, object(1));
        assert!(hit(&mut cache, good_ms * MS + 4 * MS, "a"));
        assert_eq!(cache.read(good_ms * MS + 5 * MS, &key("a"), 1), CacheRead::Fetch(tagged("v1")));
    }
    let mut cache = cache(1 << 20);
    assert_eq!(fill(&mut cache, 0, "a", answer(1, Freshness::Once)), object(1));
    assert_eq!((hit(&mut cache, 0, "a"), cache.size()), (false, (0, 0)));
}

#[test]
fn a_missing_object_is_cached_for_a_while() {
    for freshness in [Freshness::Unsaid, Freshness::For(2_000), Freshness::For(9_000_000)] {
        let mut cache = cache(1 << 20);
        assert_eq!(fill(&mut cache, 0, "a", OriginAnswer::Nothing(freshness)), Found::Nothing);
        assert_eq!(cache.read(2 * S - 1, &key("a"), 1), CacheRead::Found(Found::Nothing));
        assert_eq!(cache.read(2 * S, &key("a"), 1), CacheRead::Fetch(Validators::default()));
    }
    let mut cache = cache(1 << 20);
    assert_eq!(fill(&mut cache, 0, "a", OriginAnswer::Refused), Found::Refused);
    assert_eq!(cache.read(2 * S - 1, &key("a"), 1), CacheRead::Found(Found::Refused));
    // An answer "unchanged" to a request that was not conditional.
    assert_eq!(fill(&mut cache, 2 * S, "a", OriginAnswer::Unchanged(Freshness::Unsaid)), Found::Refused);
}

#[test]
fn while_the_origin_is_unreachable_an_old_object_is_served_for_a_while_without_a_wait() {
    let mut cache = cache(1 << 20);
    assert_eq!(fill(&mut cache, 0, "new", OriginAnswer::Away), Found::Away);
    assert_eq!(cache.read(RETRY_NS - 1, &key("new"), 1), CacheRead::Found(Found::Away));
    assert!(matches!(cache.read(RETRY_NS, &key("new"), 1), CacheRead::Fetch(_)));
    fill(&mut cache, 0, "a", answer(3, Freshness::For(1_000)));
    for at_ns in [S, 2 * S, 30 * S] {
        assert_eq!(cache.read(at_ns, &key("a"), 1), CacheRead::Fetch(tagged("v1")));
        assert_eq!(cache.fetched(at_ns, &key("a"), OriginAnswer::Away), (object(3), vec![1]));
        assert_eq!(cache.read(at_ns + RETRY_NS - 1, &key("a"), 1), CacheRead::Found(object(3)));
    }
    assert_eq!(cache.read(31 * S, &key("a"), 1), CacheRead::Fetch(tagged("v1")));
    assert_eq!(cache.fetched(31 * S, &key("a"), OriginAnswer::Away), (Found::Away, vec![1]));
    // The object is still stored, in case it has not changed.
    assert_eq!(cache.read(40 * S, &key("a"), 1), CacheRead::Fetch(tagged("v1")));
    assert_eq!(cache.fetched(40 * S, &key("a"), OriginAnswer::Unchanged(Freshness::Unsaid)).0, object(3));
    assert_eq!(cache.totals().stale, 6);
}

#[test]
fn what_was_read_longest_ago_goes_first_and_what_is_too_large_is_refused() {
    let charge = |size: u64| size + 1 + ENTRY_CHARGE;
    let mut cache = cache(3 * charge(1_000));
    for name in ["a", "b", "c"] {
        fill(&mut cache, 0, name, answer(1_000, Freshness::Unsaid));
    }
    assert!(hit(&mut cache, 0, "a"));
    fill(&mut cache, 0, "d", answer(1_000, Freshness::Unsaid));
    assert_eq!(["a", "c", "d", "b"].map(|name| hit(&mut cache, 0, name)), [true, true, true, false]);
    assert_eq!((cache.size(), cache.totals().evictions), ((3 * charge(1_000), 3), 1));
    let large = cache.object_max() + 1;
    assert_eq!(fill(&mut cache, 0, "e", answer(large, Freshness::Unsaid)), Found::Refused);
    assert_eq!(Cache::<u32>::new(policy(1 << 30), 4).object_max(), CACHED_SIZE_MAX);
    assert_eq!(
        Cache::<u32>::new(policy(4_000), 4).object_max(),
        1_000 - usize::try_from(ENTRY_CHARGE).unwrap()
    );
}

#[test]
fn one_that_went_while_the_origin_was_asked_is_there_again() {
    let mut cache = cache(1_300);
    fill(&mut cache, 0, "a", answer(1_000, Freshness::For(0)));
    assert_eq!(cache.read(0, &key("a"), 1), CacheRead::Fetch(tagged("v1")));
    fill(&mut cache, 0, "b", answer(1_000, Freshness::Unsaid));
    assert_eq!(
        cache.fetched(0, &key("a"), OriginAnswer::Unchanged(Freshness::Unsaid)),
        (object(1_000), vec![1])
    );
    assert!(hit(&mut cache, 0, "a") && !hit(&mut cache, 0, "b"));
}

#[test]
fn fetches_are_bounded_and_waiting_reads_can_be_cancelled() {
    let mut cache = cache(1 << 20);
    for n in 0..u32::try_from(FETCHES_MAX).unwrap() {
        assert!(matches!(cache.read(0, &key(&format!("{n}")), n), CacheRead::Fetch(_)));
    }
    assert_eq!(cache.read(0, &key("more"), 0), CacheRead::Found(Found::Away));
    assert_eq!(cache.read(0, &key("0"), 100), CacheRead::Wait);
    assert_eq!(cache.into_waiters().len(), FETCHES_MAX + 1);
}

#[test]
fn what_answers_say_of_how_long_they_are_good() {
    for (lines, age, said) in [
        (&[][..], None, Freshness::Unsaid),
        (&["max-age=60"], None, Freshness::For(60_000)),
        (&["Public, Max-Age=\"60\""], Some("10"), Freshness::For(50_000)),
        (&["max-age=60"], Some("61"), Freshness::For(0)),
        (&["max-age=60", "s-maxage=5"], None, Freshness::For(5_000)),
        (&["max-age=60, no-cache, s-maxage=5"], None, Freshness::For(0)),
        (&["no-store, max-age=60"], None, Freshness::Once),
        (&["private"], None, Freshness::Once),
        (&["max-age=-1"], None, Freshness::Unsaid),
        (&["max-age=99999999999999999999"], None, Freshness::Unsaid),
        (&["max-age=18446744073709551615"], Some("x"), Freshness::For(u64::MAX)),
        (&["=,;,=="], None, Freshness::Unsaid),
    ] {
        assert_eq!(freshness(lines.iter().copied(), age), said, "{lines:?} {age:?}");
    }
}

/// Key, result, whether it has a tag, until when it is fresh, and when it may be fetched again.
type Kept = (u8, Found, bool, u64, u64);
/// The part of an entry that matters when the origin has answered.
type Had = (Found, bool, u64);

/// The same rules with lists: entries in the order in which they were used.
struct Model {
    policy: CachePolicy,
    entries: Vec<Kept>,
    /// Key, waiters, and the previous entry.
    fetching: Vec<(u8, Vec<u32>, Option<Had>)>,
}

impl Model {
    fn charge((_, found, ..): &Kept) -> u64 {
        found.size() as u64 + 1 + ENTRY_CHARGE
    }

    fn old(&self, now_ns: u64, had: Option<&Had>) -> Found {
        match had {
            Some((found, _, until_ns))
                if !matches!(found, Found::Away | Found::Refused)
                    && now_ns < until_ns + self.policy.stale_ms * MS =>
            {
                found.clone()
            }
            _ => Found::Away,
        }
    }

    fn read(&mut self, now_ns: u64, key: u8, waiter: u32) -> CacheRead {
        let at = self.entries.iter().position(|entry| entry.0 == key);
        let entry = at.map(|at| self.entries.remove(at));
        self.entries.extend(entry.clone());
        let had = entry.as_ref().map(|entry| (entry.1.clone(), entry.2, entry.3));
        if let Some((_, found, _, until_ns, _)) = &entry
            && now_ns < *until_ns
        {
            return CacheRead::Found(found.clone());
        }
        if let Some(fetching) = self.fetching.iter_mut().find(|fetching| fetching.0 == key) {
            fetching.1.push(waiter);
            return CacheRead::Wait;
        }
        if entry.as_ref().is_some_and(|entry| now_ns < entry.4) {
            return CacheRead::Found(self.old(now_ns, had.as_ref()));
        }
        let tag = had.as_ref().is_some_and(|had| had.1);
        self.fetching.push((key, vec![waiter], had));
        CacheRead::Fetch(if tag { tagged("v1") } else { Validators::default() })
    }

    fn fetched(&mut self, now_ns: u64, key: u8, answer: &OriginAnswer) -> (Found, Vec<u32>) {
        let at = self.fetching.iter().position(|fetching| fetching.0 == key).unwrap();
        let (_, waiters, had) = self.fetching.remove(at);
        self.entries.retain(|entry| entry.0 != key);
        let negative = self.policy.negative_ttl_ms;
        let lasts = |freshness: Freshness, unsaid: u64| match freshness {
            Freshness::Unsaid => Some(unsaid),
            Freshness::For(ms) => Some(ms),
            Freshness::Once => None,
        };
        let (ttl, max) = (self.policy.ttl_ms, self.policy.ttl_max_ms);
        let (found, tag, ms, retry_ns) = match (answer, had) {
            (OriginAnswer::Object(bytes, _, freshness), _) => {
                (Found::Object(bytes.clone()), true, lasts(*freshness, ttl).map(|ms| ms.min(max)), 0)
            }
            (OriginAnswer::Unchanged(freshness), Some((found @ Found::Object(_), tag, _))) => {
                (found, tag, lasts(*freshness, ttl).map(|ms| ms.min(max)), 0)
            }
            (OriginAnswer::Nothing(freshness), _) => {
                (Found::Nothing, false, lasts(*freshness, negative).map(|ms| ms.min(negative)), 0)
            }
            (OriginAnswer::Unchanged(_) | OriginAnswer::Refused, _) => {
                (Found::Refused, false, Some(negative), 0)
            }
            (OriginAnswer::Away, had) => {
                let found = self.old(now_ns, had.as_ref());
                let kept = had.filter(|had| matches!(had.0, Found::Object(_) | Found::Nothing));
                let (kept, tag, until_ns) = kept.unwrap_or((Found::Away, false, 0));
                self.put((key, kept, tag, until_ns, now_ns + RETRY_NS));
                return (found, waiters);
            }
        };
        if let Some(ms) = ms {
            self.put((key, found.clone(), tag, now_ns + ms * MS, retry_ns));
        }
        (found, waiters)
    }

    fn put(&mut self, entry: Kept) {
        self.entries.push(entry);
        while self.entries.iter().map(Self::charge).sum::<u64>() > self.policy.bytes_max {
            self.entries.remove(0);
        }
    }
}

#[test]
fn histories_go_as_in_the_model() {
    let mut numbers = Seeded::new(0);
    let mut below = move |limit: u64| numbers.below(limit);
    let mut evictions = 0;
    for _ in 0..300 {
        let policy = policy(1_500 + below(6_000));
        let mut cache = Cache::<u32>::new(policy.clone(), 1);
        let mut model = Model { policy, entries: Vec::new(), fetching: Vec::new() };
        let mut now_ns = 0;
        for waiter in 0..400 {
            now_ns += [0, 1, 10 * MS, S, 7 * S][usize::try_from(below(5)).unwrap()];
            let name = u8::try_from(below(9)).unwrap();
            let bytes = Bytes::copy_from_slice(&[name]);
            if below(2) == 0 && model.fetching.iter().any(|fetching| fetching.0 == name) {
                let freshness = match below(4) {
                    0 => Freshness::Unsaid,
                    1 => Freshness::Once,
                    _ => Freshness::For(below(100_000)),
                };
                let answer = match below(8) {
                    0 => OriginAnswer::Away,
                    1 => OriginAnswer::Refused,
                    2 => OriginAnswer::Nothing(freshness),
                    3 | 4 => OriginAnswer::Unchanged(freshness),
                    _ => answer(usize::try_from(below(1_200)).unwrap(), freshness),
                };
                let expected = model.fetched(now_ns, name, &answer);
                assert_eq!(cache.fetched(now_ns, &bytes, answer), expected);
            } else {
                assert_eq!(cache.read(now_ns, &bytes, waiter), model.read(now_ns, name, waiter));
            }
            let size: u64 = model.entries.iter().map(Model::charge).sum();
            assert_eq!(cache.size(), (size, model.entries.len()));
        }
        evictions += cache.totals().evictions;
    }
    assert!(evictions > 1_000, "{evictions}");
}

#[test]
fn one_that_is_emptied_holds_nothing_and_goes_on() {
    let mut cache = cache(1 << 20);
    fill(&mut cache, 0, "a", answer(5, Freshness::Unsaid));
    assert_eq!(cache.read(0, &key("b"), 1), CacheRead::Fetch(Validators::default()));
    cache.empty();
    assert_eq!(cache.size(), (0, 0));
    assert_eq!(cache.fetched(0, &key("b"), answer(6, Freshness::Unsaid)), (object(6), vec![1]));
    assert_eq!((cache.size().1, hit(&mut cache, 1, "b"), hit(&mut cache, 1, "a")), (1, true, false));
}
