//! The caches of a shard's apps: cells' reads are looked up here, and missing objects are fetched.
//!
//! Everything is on the shard's thread except the fetches (`origin.rs`). What is kept, for how
//! long, and which cells wait is decided by the pure `Cache` of each app; the number of fetches at
//! a time is its limit too. Objects are not part of a session's state: what a cell read is in its
//! log.

use super::origin::{FetchRequest, Fetched, Origins};
use bytes::Bytes;
use marram_session::cell::CellId;
use marram_shard::{
    api::{Counter, Label},
    cache::{Cache, CachePolicy, CacheRead},
};
use marram_transport::LogLimiter;
use marram_wire::log::Found;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::warn;

/// The cache of one app.
/// It outlives its app's deployment, because sessions that began under it still read.
struct AppCache {
    cache: Cache<CellId>,
    /// The number of this cache: an answer to a request of an earlier one is dropped.
    life: u64,
    /// Whether the app is no longer deployed. Its remaining sessions still read; after them the cache has no readers.
    retired: bool,
}

/// The caches of all apps.
pub(super) struct Caches {
    apps: BTreeMap<String, AppCache>,
    /// Started with the first cache.
    origins: Option<Origins>,
    waker: Arc<mio::Waker>,
    /// The number of shards: each has an equal share of an app's limit on the edge.
    shards: u64,
    /// Caches made so far: the number of the next one.
    lives: u64,
    started: Instant,
    log_limiter: LogLimiter,
}

impl Caches {
    /// Whether any app has a cache.
    pub(super) fn are_there(&self) -> bool {
        !self.apps.is_empty()
    }

    pub(super) fn new(shards: u64, waker: Arc<mio::Waker>) -> Self {
        let (started, log_limiter) = (Instant::now(), LogLimiter::new(Instant::now()));
        Self { apps: BTreeMap::new(), origins: None, waker, shards, lives: 0, started, log_limiter }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sets the cache of a deployed app, or removes it. If the policy is another one than before, the contents are dropped, and
    /// waiting cells get no object in time.
    ///
    /// The caller must pass the result on to the cells, which would wait forever.
    pub(super) fn configure(&mut self, app: &str, policy: Option<&CachePolicy>) -> Vec<(CellId, Found)> {
        if let Some(entry) = self.apps.get_mut(app) {
            entry.retired = false;
        }
        let same = self.apps.get(app).map(|entry| entry.cache.policy()) == policy;
        if same {
            return Vec::new();
        }
        let before = self.apps.remove(app);
        if let Some(policy) = policy {
            self.lives += 1;
            let cache = Cache::new(policy.clone(), self.shards);
            self.apps.insert(app.to_owned(), AppCache { cache, life: self.lives, retired: false });
        }
        let waiters = before.map_or_else(Vec::new, |entry| entry.cache.into_waiters());
        waiters.into_iter().map(|cell| (cell, Found::Away)).collect()
    }

    /// Marks an app as not deployed here, also if it was only known before it was deployed.
    pub(super) fn retire(&mut self, app: &str) {
        if let Some(entry) = self.apps.get_mut(app) {
            entry.retired = true;
        }
    }

    /// Empties the caches of apps that are not deployed and that no cell runs.
    pub(super) fn sweep(&mut self, runs: impl Fn(&str) -> bool) {
        for (app, entry) in &mut self.apps {
            if entry.retired && entry.cache.size().1 > 0 && !runs(app) {
                entry.cache.empty();
            }
        }
    }

    /// Whether an app has a cache.
    pub(super) fn has(&self, app: &str) -> bool {
        self.apps.contains_key(app)
    }

    /// A cell's read: the result, or `None` if the cell has to wait for [`Self::next_found`].
    pub(super) fn read(&mut self, app: &str, key: &Bytes, cell: CellId) -> Option<Found> {
        let now_ns = self.now_ns();
        let Some(entry) = self.apps.get_mut(app) else {
            self.complain(
                app,
                key,
                "the app is deployed here without [cache]; add it to its manifest and deploy again",
            );
            return Some(Found::Refused);
        };
        let validators = match entry.cache.read(now_ns, key, cell) {
            CacheRead::Found(found) => return Some(found),
            CacheRead::Wait => return None,
            CacheRead::Fetch(validators) => validators,
        };
        let policy = entry.cache.policy();
        let fetch = FetchRequest {
            app: app.to_owned(),
            life: entry.life,
            key: key.clone(),
            origin: policy.origin.clone(),
            validators,
            bytes_max: entry.cache.object_max(),
            timeout: Duration::from_millis(policy.timeout_ms),
        };
        if self.origins.is_none() {
            match Origins::start(Arc::clone(&self.waker)) {
                Ok(origins) => self.origins = Some(origins),
                Err(error) => {
                    let (found, _) =
                        entry.cache.fetched(now_ns, key, marram_shard::cache::OriginAnswer::Away);
                    self.complain(app, key, &format!("cannot start a thread to fetch it: {error}"));
                    return Some(found);
                }
            }
        }
        if let Some(origins) = &self.origins {
            origins.fetch(fetch);
        }
        None
    }

    /// The next results from origins, for cells that wait.
    pub(super) fn next_found(&mut self) -> Option<Vec<(CellId, Found)>> {
        let Fetched { fetch, answer, why } = self.origins.as_ref()?.next()?;
        if let Some(why) = why {
            self.complain(&fetch.app, &fetch.key, &format!("{}: {why}", fetch.origin));
        }
        let now_ns = self.now_ns();
        let entry = self.apps.get_mut(&fetch.app).filter(|entry| entry.life == fetch.life);
        // A cell that left meanwhile is not among the waiters; one whose cache was replaced has
        // been answered.
        let (found, waiters) = match entry {
            Some(entry) => entry.cache.fetched(now_ns, &fetch.key, answer),
            None => (Found::Away, Vec::new()),
        };
        Some(waiters.into_iter().map(|cell| (cell, found.clone())).collect())
    }

    /// Forgets a cell that has ended.
    pub(super) fn leave(&mut self, app: &str, cell: CellId) {
        if let Some(entry) = self.apps.get_mut(app) {
            entry.cache.leave(&cell);
        }
    }

    /// Limited over all apps: a cell can cause a line with each read.
    fn complain(&mut self, app: &str, key: &Bytes, why: &str) {
        if let Some(suppressed) = self.log_limiter.pass(Instant::now()) {
            let key = String::from_utf8_lossy(key);
            warn!(app, %key, suppressed, "an object for the cache cannot be fetched: {why}");
        }
    }

    /// Adds each cache's metrics, by app.
    pub(super) fn count(&self, out: &mut Vec<Counter>) {
        for (app, entry) in &self.apps {
            let (totals, (bytes, entries)) = (entry.cache.totals(), entry.cache.size());
            out.extend(
                [
                    Counter::count("cache_hits_total", totals.hits),
                    Counter::count("cache_misses_total", totals.misses),
                    Counter::count("cache_fetches_total", totals.fetches),
                    Counter::count("cache_unchanged_total", totals.unchanged),
                    Counter::count("cache_failures_total", totals.failures),
                    Counter::count("cache_stale_total", totals.stale),
                    Counter::count("cache_evictions_total", totals.evictions),
                    Counter::gauge("cache_bytes", usize::try_from(bytes).unwrap_or(usize::MAX)),
                    Counter::gauge("cache_entries", entries),
                ]
                .map(|counter| counter.of(Label::app(app))),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use marram_shard::cache::{Freshness, OriginAnswer, Validators};

    fn held(caches: &Caches) -> usize {
        caches.apps["a"].cache.size().1
    }

    #[test]
    fn what_is_held_for_an_app_goes_when_it_is_deployed_no_more_and_its_last_cell_has_ended() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let mut caches = Caches::new(1, waker);
        let policy = CachePolicy {
            origin: "http://o/".into(),
            ttl_ms: 60_000,
            ttl_max_ms: 60_000,
            negative_ttl_ms: 1_000,
            stale_ms: 0,
            timeout_ms: 1_000,
            bytes_max: 1 << 20,
        };
        caches.configure("a", Some(&policy));
        let key = Bytes::from_static(b"k");
        let cache = &mut caches.apps.get_mut("a").unwrap().cache;
        cache.read(0, &key, CellId(1));
        let object = OriginAnswer::Object(Bytes::from_static(b"x"), Validators::default(), Freshness::Unsaid);
        cache.fetched(0, &key, object);
        let runs = |runs: bool| move |app: &str| runs && app == "a";
        caches.sweep(runs(false));
        assert_eq!(held(&caches), 1, "new sessions will read it");
        caches.retire("a");
        caches.sweep(runs(true));
        assert_eq!(held(&caches), 1, "old sessions read it");
        caches.configure("a", Some(&policy));
        caches.sweep(runs(false));
        assert_eq!(held(&caches), 1, "it is deployed again");
        caches.retire("a");
        caches.sweep(runs(false));
        assert_eq!(held(&caches), 0);
        assert!(caches.has("a"), "a session may come yet");
    }
}
