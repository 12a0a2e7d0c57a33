//! An app's cache on one shard: which objects of its origin it has, how long each is fresh, which reads wait for which fetch, and
//! what it evicts when it is full.
//!
//! Pure: the caller passes the time and the origin's answers; the cache fetches nothing. In an edge, the waiters are cells.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{limits::CACHED_SIZE_MAX, log::Found, record};

/// Limit of the fetches of one cache in flight. A read that would start one more finds [`Found::Away`] and may be retried.
pub const FETCHES_MAX: usize = 64;
/// After a fetch of an object fails, the cache does not ask the origin for this object again for so long, in nanoseconds.
pub const RETRY_NS: u64 = 1_000_000_000;
/// The charge of an entry, in addition to its key and bytes. Negative entries are kept too, and have a cost.
pub const ENTRY_CHARGE: u64 = 256;

record! {
    /// The cache section of an app's manifest, resolved.
    CachePolicy {
        /// Where objects come from: a URL that ends in `/`. Keys are paths below it.
        origin: String,
        /// How long an object is fresh if its answer does not say, in milliseconds.
        ttl_ms: u64,
        /// The upper limit of an object's freshness, in milliseconds.
        ttl_max_ms: u64,
        /// How long the cache remembers that an object does not exist, in milliseconds.
        negative_ttl_ms: u64,
        /// How long a stale object may be served while the origin cannot be reached, in milliseconds.
        stale_ms: u64,
        /// How long a fetch may take, in milliseconds.
        timeout_ms: u64,
        /// Bytes that the cache may hold on an edge, over all of its shards.
        bytes_max: u64,
    }
}

impl CachePolicy {
    /// The largest object that a cache of this size accepts.
    #[must_use]
    pub fn object_max(bytes_max: u64) -> usize {
        usize::try_from(bytes_max).map_or(CACHED_SIZE_MAX, |max| max.min(CACHED_SIZE_MAX))
    }
}

/// The validators of an object, for conditional requests to the origin.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Validators {
    /// `ETag`.
    pub tag: Option<String>,
    /// `Last-Modified`.
    pub modified: Option<String>,
}

/// How long an answer is fresh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// The answer does not say.
    Unsaid,
    /// For this time, in milliseconds.
    For(u64),
    /// It serves the reads that wait for it, and is not stored.
    Once,
}

/// What an origin answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OriginAnswer {
    /// The object.
    Object(Bytes, Validators, Freshness),
    /// The object has not changed.
    Unchanged(Freshness),
    /// The object does not exist.
    Nothing(Freshness),
    /// The origin could not be reached in time.
    Away,
    /// The answer cannot be used.
    Refused,
}

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheRead {
    /// The cache has an answer.
    Found(Found),
    /// The read waits, and the caller must fetch the object from the origin, with a conditional request if there are validators.
    Fetch(Validators),
    /// The read waits for a fetch that is in flight.
    Wait,
}

/// Counted over the cache's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheTotals {
    /// Reads that found a fresh entry.
    pub hits: u64,
    /// Reads that did not, including reads that joined a fetch in flight.
    pub misses: u64,
    /// Fetches from the origin.
    pub fetches: u64,
    /// Answers that an object has not changed.
    pub unchanged: u64,
    /// Fetches that failed: the origin could not be reached, or its answer could not be used.
    pub failures: u64,
    /// Reads that got a stale object because of that.
    pub stale: u64,
    /// Entries that were evicted because the cache was full.
    pub evictions: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    found: Found,
    validators: Validators,
    /// Until when it is fresh.
    until_ns: u64,
    /// The origin is not asked for it again before this time, fresh or not.
    retry_ns: u64,
    /// The number of the read that used it last.
    used: u64,
}

impl Entry {
    /// Whether it can be served stale.
    fn is_of_use(&self, stale_ns: u64, now_ns: u64) -> bool {
        matches!(self.found, Found::Object(_) | Found::Nothing)
            && now_ns < self.until_ns.saturating_add(stale_ns)
    }
}

#[derive(Debug)]
struct Fetching<W> {
    waiters: Vec<W>,
    /// The entry at the start of the fetch. The cache may have evicted it since.
    had: Option<Entry>,
}

/// The cache.
#[derive(Debug)]
pub struct Cache<W> {
    policy: CachePolicy,
    bytes_max: u64,
    entries: BTreeMap<Bytes, Entry>,
    /// The least recently used entry is first.
    order: BTreeMap<u64, Bytes>,
    reads: u64,
    bytes: u64,
    fetching: BTreeMap<Bytes, Fetching<W>>,
    totals: CacheTotals,
}

fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

impl<W: PartialEq> Cache<W> {
    /// An empty cache of one of `shards` shards.
    #[must_use]
    pub fn new(policy: CachePolicy, shards: u64) -> Self {
        let bytes_max = policy.bytes_max / shards.max(1);
        Self {
            policy,
            bytes_max,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            reads: 0,
            bytes: 0,
            fetching: BTreeMap::new(),
            totals: CacheTotals::default(),
        }
    }

    /// The policy that it was made with.
    #[must_use]
    pub fn policy(&self) -> &CachePolicy {
        &self.policy
    }

    /// The largest object that it accepts.
    #[must_use]
    pub fn object_max(&self) -> usize {
        CachePolicy::object_max(self.bytes_max.saturating_sub(ENTRY_CHARGE))
    }

    /// Its counters.
    #[must_use]
    pub fn totals(&self) -> CacheTotals {
        self.totals
    }

    /// The charged bytes that it holds, and its number of entries.
    #[must_use]
    pub fn size(&self) -> (u64, usize) {
        (self.bytes, self.entries.len())
    }

    /// Reads an object. After [`CacheRead::Fetch`] and [`CacheRead::Wait`] the result comes from [`Self::fetched`].
    pub fn read(&mut self, now_ns: u64, key: &Bytes, waiter: W) -> CacheRead {
        if let Some(entry) = self.use_entry(key)
            && now_ns < entry.until_ns
        {
            self.totals.hits += 1;
            return CacheRead::Found(entry.found);
        }
        self.totals.misses += 1;
        if let Some(fetching) = self.fetching.get_mut(key) {
            fetching.waiters.push(waiter);
            return CacheRead::Wait;
        }
        let had = self.entries.get(key).cloned();
        let early = had.as_ref().is_some_and(|entry| now_ns < entry.retry_ns);
        if early || self.fetching.len() >= FETCHES_MAX {
            return CacheRead::Found(self.make_do(now_ns, had));
        }
        let validators = had.as_ref().map(|entry| entry.validators.clone()).unwrap_or_default();
        self.fetching.insert(key.clone(), Fetching { waiters: alloc::vec![waiter], had });
        self.totals.fetches += 1;
        CacheRead::Fetch(validators)
    }

    /// The origin has answered, or did not in time. Returns what all waiting reads find, and their waiters.
    pub fn fetched(&mut self, now_ns: u64, key: &Bytes, answer: OriginAnswer) -> (Found, Vec<W>) {
        let Some(Fetching { waiters, had }) = self.fetching.remove(key) else {
            return (Found::Away, Vec::new());
        };
        let negative = ns(self.policy.negative_ttl_ms);
        let (found, validators, lasts_ns) = match answer {
            OriginAnswer::Object(bytes, ..) if bytes.len() > self.object_max() => {
                self.totals.failures += 1;
                (Found::Refused, Validators::default(), Some(negative))
            }
            OriginAnswer::Object(bytes, validators, freshness) => {
                (Found::Object(bytes), validators, self.lasts_ns(freshness, self.policy.ttl_ms))
            }
            OriginAnswer::Unchanged(freshness) => match had {
                Some(Entry { found: found @ Found::Object(_), validators, .. }) => {
                    self.totals.unchanged += 1;
                    (found, validators, self.lasts_ns(freshness, self.policy.ttl_ms))
                }
                // The request was not conditional.
                _ => {
                    self.totals.failures += 1;
                    (Found::Refused, Validators::default(), Some(negative))
                }
            },
            OriginAnswer::Nothing(freshness) => {
                let lasts_ns = self.lasts_ns(freshness, self.policy.negative_ttl_ms);
                (Found::Nothing, Validators::default(), lasts_ns.map(|lasts_ns| lasts_ns.min(negative)))
            }
            OriginAnswer::Refused => {
                self.totals.failures += 1;
                (Found::Refused, Validators::default(), Some(negative))
            }
            OriginAnswer::Away => {
                self.totals.failures += 1;
                return (self.go_without(now_ns, key, had), waiters);
            }
        };
        self.remove(key);
        if let Some(lasts_ns) = lasts_ns {
            let until_ns = now_ns.saturating_add(lasts_ns);
            self.insert(key, Entry { found: found.clone(), validators, until_ns, retry_ns: 0, used: 0 });
        }
        (found, waiters)
    }

    /// A waiter does not wait any more.
    pub fn leave(&mut self, waiter: &W) {
        for fetching in self.fetching.values_mut() {
            fetching.waiters.retain(|other| other != waiter);
        }
    }

    /// Drops all entries: the next read of each causes a fetch.
    pub fn empty(&mut self) {
        self.entries = BTreeMap::new();
        self.order = BTreeMap::new();
        self.bytes = 0;
    }

    /// All waiters, when the cache is removed.
    #[must_use]
    pub fn into_waiters(self) -> Vec<W> {
        self.fetching.into_values().flat_map(|fetching| fetching.waiters).collect()
    }

    /// How long an answer is stored; none if it is not.
    fn lasts_ns(&self, freshness: Freshness, unsaid_ms: u64) -> Option<u64> {
        match freshness {
            Freshness::Unsaid => Some(ns(unsaid_ms.min(self.policy.ttl_max_ms))),
            Freshness::For(ms) => Some(ns(ms.min(self.policy.ttl_max_ms))),
            Freshness::Once => None,
        }
    }

    /// The origin cannot be reached: returns the previous entry if it may be served stale, and delays the next fetch.
    fn go_without(&mut self, now_ns: u64, key: &Bytes, had: Option<Entry>) -> Found {
        let found = self.make_do(now_ns, had.clone());
        let unknown = Entry {
            found: Found::Away,
            validators: Validators::default(),
            until_ns: 0,
            retry_ns: 0,
            used: 0,
        };
        let entry =
            had.filter(|entry| matches!(entry.found, Found::Object(_) | Found::Nothing)).unwrap_or(unknown);
        self.remove(key);
        self.insert(key, Entry { retry_ns: now_ns.saturating_add(RETRY_NS), ..entry });
        found
    }

    fn make_do(&mut self, now_ns: u64, had: Option<Entry>) -> Found {
        match had.filter(|entry| entry.is_of_use(ns(self.policy.stale_ms), now_ns)) {
            Some(entry) => {
                self.totals.stale += 1;
                entry.found
            }
            None => Found::Away,
        }
    }

    fn charge(key: &Bytes, entry: &Entry) -> u64 {
        (key.len() + entry.found.size()) as u64 + ENTRY_CHARGE
    }

    /// Looks up an entry and counts this as a read.
    fn use_entry(&mut self, key: &Bytes) -> Option<Entry> {
        let entry = self.entries.get_mut(key)?;
        self.reads += 1;
        self.order.remove(&entry.used);
        entry.used = self.reads;
        self.order.insert(self.reads, key.clone());
        Some(entry.clone())
    }

    fn insert(&mut self, key: &Bytes, entry: Entry) {
        let charge = Self::charge(key, &entry);
        if charge > self.bytes_max {
            return;
        }
        while self.bytes + charge > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.remove(&oldest);
            self.totals.evictions += 1;
        }
        self.reads += 1;
        self.bytes += charge;
        self.order.insert(self.reads, key.clone());
        self.entries.insert(key.clone(), Entry { used: self.reads, ..entry });
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= Self::charge(key, &entry);
        }
    }
}

/// The freshness that an answer's `Cache-Control` and `Age` give for a shared cache.
#[must_use]
pub fn freshness<'a>(control: impl Iterator<Item = &'a str>, age: Option<&str>) -> Freshness {
    let (mut own, mut shared) = (None, None);
    for directive in control.flat_map(|line| line.split(',')) {
        let directive = directive.trim().to_ascii_lowercase();
        let (name, value) = directive.split_once('=').unwrap_or((&directive, ""));
        let seconds = || value.trim_matches('"').parse::<u64>().ok();
        match name.trim() {
            "no-store" | "private" => return Freshness::Once,
            "no-cache" => own = Some(0),
            "max-age" if own.is_none() => own = seconds(),
            "s-maxage" => shared = seconds(),
            _ => {}
        }
    }
    let said = if own == Some(0) { own } else { shared.or(own) };
    let old = age.and_then(|age| age.trim().parse::<u64>().ok()).unwrap_or(0);
    said.map_or(Freshness::Unsaid, |seconds| {
        Freshness::For(seconds.saturating_sub(old).saturating_mul(1_000))
    })
}

#[cfg(test)]
mod tests;
