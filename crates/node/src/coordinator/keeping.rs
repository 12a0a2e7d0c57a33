//! The embedded store on its own thread. It answers requests in batches, after everything durable of them is on disk.
//!
//! The new file is written beside the old one and renamed over it, so that there is always a complete one.
//!
//! ```text
//! HTTP server ──jobs (256)──▶ thread "store": expire leases, apply a batch ─▶ write, fsync, rename, fsync
//!             ◀──answers────────────────────────────────────────────────────────┘ only then
//!             ◀──News (64 a watcher)──────────────────────────────────────────────┘
//! ```
//!
//! The whole store is written each time. It is small (a few entries an edge and a session that has
//! a witness or a standby), and a log with compaction would be more to get wrong. A batch shares
//! one write: about a millisecond on a disk that syncs honestly.

use super::error::StoreError;
use bytes::Bytes;
use marram_shard::coordinator::{
    Changes, Store, StoreChange, StoreFigures, StoreRefusal, StoreReply, StoreRequest,
};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Requests that are answered with one write of the file.
const BATCH: usize = 256;
/// Watches at a time; more are refused.
pub const WATCHES_MAX: usize = 256;
/// Messages that may wait for a watcher. A watcher that is slower loses its watch, and must list everything again.
const NEWS_MAX: usize = 64;
/// How long the thread waits if no lease expires before.
const IDLE: Duration = Duration::from_secs(3_600);

/// What a watcher receives.
#[derive(Debug)]
pub(super) enum News {
    /// What changed.
    Changes(Vec<StoreChange>),
    /// The store no longer has the changes that the watch begins with; the oldest revision that it has.
    Forgotten(u64),
}

/// An answer, and the store's revision at that time; `None` if the file could not be written.
/// The HTTP layer answers 503 then, and the client tries again.
pub(super) type Kept = Option<(u64, Result<StoreReply, StoreRefusal>)>;

/// A watch is a job too, so that it starts at a revision between two requests.
enum Job {
    Ask(StoreRequest, oneshot::Sender<Kept>),
    Watch(String, u64, mpsc::Sender<News>),
}

struct Watcher {
    prefix: String,
    /// The revision up to which it has the changes.
    since: u64,
    news: mpsc::Sender<News>,
}

/// A handle to the store's thread, for the HTTP server.
#[derive(Clone, Debug)]
pub(super) struct StoreHandle {
    jobs: SyncSender<Job>,
    figures: Arc<Mutex<StoreFigures>>,
}

impl StoreHandle {
    /// Reads the file, if there is one, and starts the thread.
    ///
    /// # Errors
    /// If the file is damaged, of another version, or cannot be written. It is written at once, so
    /// that a directory that cannot be written is an error of the start and not of the first
    /// request.
    pub(super) fn start(file: PathBuf) -> Result<Self, StoreError> {
        let began = Instant::now();
        let mut store = match fs::read(&file) {
            Ok(bytes) => Store::restore(&Bytes::from(bytes), 0)
                .map_err(|damage| StoreError::Damaged(file.clone(), damage))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Store::new(),
            Err(error) => return Err(StoreError::Unreadable(file, error)),
        };
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| StoreError::Random(error.into()))?;
        store.skip_revisions(u64::from_le_bytes(random));
        save(&mut store, &file).map_err(|error| StoreError::Unwritable(file.clone(), error))?;
        let figures = Arc::new(Mutex::new(store.figures()));
        let (jobs, receiver) = sync_channel(BATCH);
        let mut keeper = Keeper {
            store,
            file,
            began,
            figures: Arc::clone(&figures),
            watchers: Vec::new(),
            reported: false,
        };
        thread::Builder::new()
            .name("store".into())
            .spawn(move || keeper.run(&receiver))
            .map_err(StoreError::Thread)?;
        Ok(Self { jobs, figures })
    }

    /// Sends a request to the store and waits for its answer.
    /// `None` if the queue is full, too: the caller must not assume that nothing was done.
    pub(super) async fn ask(&self, request: StoreRequest) -> Kept {
        let (sender, answer) = oneshot::channel();
        self.jobs.try_send(Job::Ask(request, sender)).ok()?;
        answer.await.ok().flatten()
    }

    /// Changes under a prefix, after a revision.
    pub(super) fn watch(&self, prefix: String, since: u64) -> Option<mpsc::Receiver<News>> {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        self.jobs.try_send(Job::Watch(prefix, since, sender)).ok().map(|()| news)
    }

    /// Counts of what the store holds.
    pub(super) fn figures(&self) -> StoreFigures {
        *self.figures.lock().expect("no holder panics")
    }
}

struct Keeper {
    store: Store,
    file: PathBuf,
    began: Instant,
    figures: Arc<Mutex<StoreFigures>>,
    watchers: Vec<Watcher>,
    /// Whether the log already says that the file cannot be written.
    /// A line each time would fill the log: a client asks again every second.
    reported: bool,
}

impl Keeper {
    fn run(&mut self, jobs: &Receiver<Job>) {
        loop {
            let first = match jobs.recv_timeout(self.wait()) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // One time for the batch, so leases expire between batches and not within one.
            let now_ns = self.now_ns();
            self.store.expire(now_ns);
            let mut answers = Vec::new();
            for job in first.into_iter().chain(jobs.try_iter().take(BATCH - 1)) {
                match job {
                    Job::Ask(request, reply) => {
                        let answer = self.store.apply(now_ns, request);
                        answers.push((reply, (self.store.revision(), answer)));
                    }
                    Job::Watch(prefix, since, news) => self.watch(Watcher { prefix, since, news }),
                }
            }
            let saved = self.save();
            *self.figures.lock().expect("no holder panics") = self.store.figures();
            for (reply, answer) in answers {
                // The requester may have stopped waiting.
                let _ = reply.send(saved.then_some(answer));
            }
            if saved {
                self.tell();
            }
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wait(&self) -> Duration {
        let until = |at: u64| Duration::from_nanos(at.saturating_sub(self.now_ns()));
        self.store.next_expiry_ns().map_or(IDLE, until).min(IDLE)
    }

    /// Returns whether the answers of the batch may leave. If not, the store keeps its state in
    /// memory and writes it with the next batch: an applied request whose answer was not sent is
    /// like one of which the answer was lost.
    fn save(&mut self) -> bool {
        if !self.store.must_be_saved() {
            return true;
        }
        match save(&mut self.store, &self.file) {
            Ok(()) => {
                if std::mem::take(&mut self.reported) {
                    tracing::info!("the coordinator's store can be written again");
                }
                true
            }
            Err(error) => {
                self.store.not_saved();
                if !std::mem::replace(&mut self.reported, true) {
                    let file = self.file.display();
                    tracing::error!(%file, %error, "the coordinator's store cannot be written: it answers no request until it can");
                }
                false
            }
        }
    }

    fn watch(&mut self, watcher: Watcher) {
        self.watchers.retain(|watcher| !watcher.news.is_closed());
        // A watcher that is dropped here sees its watch end.
        if self.watchers.len() < WATCHES_MAX {
            self.watchers.push(watcher);
        }
    }

    /// After the file is written: a watcher must not see what a crash could undo.
    fn tell(&mut self) {
        let store = &self.store;
        self.watchers.retain_mut(|watcher| {
            let news = match store.changes(&watcher.prefix, watcher.since) {
                Changes::All(changes) if changes.is_empty() => {
                    watcher.since = store.revision();
                    return !watcher.news.is_closed();
                }
                Changes::All(changes) => News::Changes(changes),
                Changes::Forgotten => News::Forgotten(store.revision()),
            };
            let goes_on = matches!(news, News::Changes(_));
            watcher.since = store.revision();
            watcher.news.try_send(news).is_ok() && goes_on
        });
    }
}

/// Writes the store beside the file, and renames it over the file.
///
/// The file is synced before the rename, the directory after it: without the first the new name
/// could lead to an empty file after a power failure, without the second the old one could come
/// back.
fn save(store: &mut Store, file: &Path) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let beside = file.with_extension("new");
    let mut new = File::create(&beside)?;
    new.write_all(&store.snapshot())?;
    new.sync_data()?;
    fs::rename(&beside, file)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn put(key: &str) -> StoreRequest {
        StoreRequest::Write {
            key: key.into(),
            expect: None,
            value: Some(Bytes::from_static(b"v")),
            lease: None,
        }
    }

    fn place(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("marram-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn what_was_answered_is_there_after_a_restart_with_larger_revisions() {
        let directory = place("restart");
        let file = directory.join("deep/store");
        let keeping = StoreHandle::start(file.clone()).unwrap();
        let since = keeping.figures().revision;
        let (before, _) = block_on(keeping.ask(put("a"))).unwrap();
        let mut news = keeping.watch("".into(), since).unwrap();
        assert!(matches!(block_on(news.recv()), Some(News::Changes(changes)) if changes.len() == 1));
        // Not shut down in order: as after a kill, only the file counts.
        let again = StoreHandle::start(file.clone()).unwrap();
        let (after, there) = block_on(again.ask(StoreRequest::Get { key: "a".into() })).unwrap();
        assert!(after > before);
        assert!(matches!(there, Ok(StoreReply::Entries { entries, .. }) if entries.len() == 1));
        let mut news = again.watch("".into(), before).unwrap();
        assert!(matches!(block_on(news.recv()), Some(News::Forgotten(_))), "it lists again");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let why = StoreHandle::start(file).unwrap_err().to_string();
        assert!(why.contains("truncated or was altered"), "{why}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn while_the_file_cannot_be_written_there_are_no_answers_and_no_events() {
        let directory = place("disk");
        let file = directory.join("store");
        let keeping = StoreHandle::start(file.clone()).unwrap();
        let mut news = keeping.watch("".into(), keeping.figures().revision).unwrap();
        // A directory is in the place of the new file.
        fs::create_dir(directory.join("store.new")).unwrap();
        assert!(block_on(keeping.ask(put("a"))).is_none());
        assert!(
            block_on(keeping.ask(StoreRequest::Get { key: "a".into() })).is_none(),
            "it might be taken back"
        );
        assert!(news.try_recv().is_err());
        fs::remove_dir(directory.join("store.new")).unwrap();
        assert!(block_on(keeping.ask(put("b"))).is_some());
        assert!(matches!(block_on(news.recv()), Some(News::Changes(changes)) if changes.len() == 2));
        fs::remove_dir_all(directory).unwrap();
    }
}
