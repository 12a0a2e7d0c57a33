//! The directory of a recorder: a file for each session, written by a thread of its own. No session waits for it: data that does
//! not fit the queue or the disk is skipped, and the recorder continues in memory.
//!
//! ```text
//! SESSION.kept     the session's file: begun at a base, then appended to
//! SESSION.new      a new one that will replace it; removed at the start
//! SESSION.refused  could not be read; left for the operator
//! ```
//!
//! ```text
//! Begin(frames)   a new file with all that is needed, written beside and renamed over the old one
//! Append(frame)   one more record
//! Remove          the session is forgotten
//! ```
//!
//! Nothing is synced: a machine that fails may lose what its kernel has not written, or leave an
//! incomplete record at the end, which is cut off when the file is read. A file is valid or it is
//! gone: after a failed or skipped write no record is appended until a new file begins, or the log
//! in it would have a gap.

use super::file::{self, KeptFileError};
use bytes::BytesMut;
use marram_session::recorder::{FileOperation, UnfitFrame};
use marram_transport::LogLimiter;
use marram_wire::{frame::Frame, id::SessionId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};
use tracing::{error, info, warn};

/// Bytes that may wait to be written; an operation is queued while fewer wait, so it may exceed this.
///
/// It bounds the memory that a slow disk costs.
pub const QUEUE_MAX: u64 = 64 << 20;
/// Most files that are open at a time.
const OPEN_MAX: usize = 256;
/// Bytes of one file that are buffered before they are written.
const GATHER: usize = 1 << 20;

/// Only the recorder's user can read the directory and its files.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Extension of a session's file.
const KEPT: &str = "kept";
/// Extension of a file that is being written and will replace another.
const NEW: &str = "new";
/// Extension of a file that could not be read.
const REFUSED: &str = "refused";

/// Metrics of the disk.
#[derive(Debug, Default)]
pub(super) struct DiskMetrics {
    /// Bytes written.
    pub(super) written: AtomicU64,
    /// Operations that were skipped because too many bytes waited.
    pub(super) skipped: AtomicU64,
    /// Writes that failed.
    pub(super) failed: AtomicU64,
    /// Bytes that wait.
    pub(super) waiting: AtomicU64,
}

#[derive(Default)]
struct State {
    /// In order, each with its estimated size. Operations of one session must not overtake each
    /// other.
    waiting: VecDeque<(SessionId, FileOperation, u64)>,
    /// Of the queue and of the batch that is being written.
    bytes: u64,
    /// The thread has taken a batch and not finished it.
    busy: bool,
    /// No more operations will come.
    closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Signals that an operation was queued, that the queue is closed, or that everything is written.
    changed: Condvar,
}

impl Queue {
    /// A panic while the lock is held leaves a queue that is still consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop's side of the thread.
pub(super) struct Disk {
    queue: Arc<Queue>,
    figures: Arc<DiskMetrics>,
    /// Sessions with skipped data: their files hold an older state until a new file is begun.
    behind: BTreeSet<SessionId>,
    limiter: LogLimiter,
}

/// The estimated size of a frame, in bytes.
fn size(frame: &Frame) -> u64 {
    let payload = match frame {
        Frame::Fed(fed) => fed.entry.len() + fed.payload.len(),
        Frame::CheckpointPart(part) => part.bytes.len(),
        Frame::LogPart(part) => part.bytes.len(),
        Frame::KeptInput(input) => input.payload.len(),
        _ => 64,
    };
    payload as u64 + 128
}

impl Disk {
    /// Starts the thread. The directory exists: [`load`] has read it.
    pub(super) fn start(directory: &Path, now: Instant) -> io::Result<Self> {
        let (queue, figures) = (Arc::new(Queue::default()), Arc::new(DiskMetrics::default()));
        let writer = Writer {
            directory: directory.into(),
            open: BTreeMap::new(),
            broken: BTreeSet::new(),
            figures: Arc::clone(&figures),
            limiter: LogLimiter::new(now),
        };
        let of_thread = Arc::clone(&queue);
        thread::Builder::new().name("disk".into()).spawn(move || writer.run(&of_thread))?;
        Ok(Self { queue, figures, behind: BTreeSet::new(), limiter: LogLimiter::new(now) })
    }

    pub(super) fn figures(&self) -> &DiskMetrics {
        &self.figures
    }

    /// Queues an operation, if there is room.
    ///
    /// Never blocks. `Begin` resets a session that is behind: its file is then complete again.
    pub(super) fn store(&mut self, now: Instant, session: SessionId, store: FileOperation) {
        let store = match store {
            FileOperation::Append(_) if self.behind.contains(&session) => return,
            FileOperation::Remove => {
                self.behind.remove(&session);
                FileOperation::Remove
            }
            other if self.queue.lock().bytes < QUEUE_MAX => {
                self.behind.remove(&session);
                other
            }
            other => {
                self.behind.insert(session);
                self.figures.skipped.fetch_add(1, Ordering::Relaxed);
                if let Some(suppressed) = self.limiter.pass(now) {
                    warn!(%session, suppressed, "the disk is slow: a session is kept in memory alone until its next \
                        checkpoint");
                }
                // The file has an older state, which remains valid, unless the new file has another history: then it must go.
                match other {
                    FileOperation::Begin(_) => FileOperation::Remove,
                    _ => return,
                }
            }
        };
        let bytes = match &store {
            FileOperation::Begin(frames) => frames.iter().map(size).sum(),
            FileOperation::Append(frame) => size(frame),
            FileOperation::Remove => 0,
        };
        let mut state = self.queue.lock();
        state.bytes += bytes;
        self.figures.waiting.store(state.bytes, Ordering::Relaxed);
        state.waiting.push_back((session, store, bytes));
        drop(state);
        self.queue.changed.notify_all();
    }

    /// Waits until everything is written, up to `patience`. False if something was not written.
    pub(super) fn finish(self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.queue.lock();
        state.closed = true;
        self.queue.changed.notify_all();
        while state.busy || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.queue.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// An open file.
struct Open {
    file: File,
    /// The offset at which `gathered` will be written.
    end: u64,
    /// Records that are not written yet: at most about `GATHER` bytes, and none after a batch.
    gathered: BytesMut,
}

impl Open {
    fn flush(&mut self, figures: &DiskMetrics) -> io::Result<()> {
        self.file.write_all(&self.gathered)?;
        self.end += self.gathered.len() as u64;
        figures.written.fetch_add(self.gathered.len() as u64, Ordering::Relaxed);
        self.gathered.clear();
        Ok(())
    }

    fn push(&mut self, session: SessionId, frame: &Frame, figures: &DiskMetrics) -> io::Result<()> {
        let offset = self.end + self.gathered.len() as u64;
        if offset + size(frame) > file::SIZE_MAX {
            return Err(io::Error::other("the file would be larger than is ever read"));
        }
        file::put_frame(session, offset, frame, &mut self.gathered);
        if self.gathered.len() >= GATHER { self.flush(figures) } else { Ok(()) }
    }
}

/// The thread's state.
struct Writer {
    directory: PathBuf,
    /// Open files; when there are `OPEN_MAX`, all are closed, and those in use are opened again.
    open: BTreeMap<SessionId, Open>,
    /// Sessions with a file that could not be written: it is gone until a new one is begun.
    broken: BTreeSet<SessionId>,
    figures: Arc<DiskMetrics>,
    limiter: LogLimiter,
}

impl Writer {
    /// The lock is not held while files are written.
    fn run(mut self, queue: &Queue) {
        loop {
            let mut state = queue.lock();
            while state.waiting.is_empty() {
                state.busy = false;
                queue.changed.notify_all();
                if state.closed {
                    return;
                }
                state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.busy = true;
            let batch = std::mem::take(&mut state.waiting);
            drop(state);
            for (session, store, bytes) in batch {
                if let Err(error) = self.write(session, store) {
                    self.give_up(session, &error);
                }
                let mut state = queue.lock();
                state.bytes -= bytes;
                self.figures.waiting.store(state.bytes, Ordering::Relaxed);
            }
            self.flush();
        }
    }

    fn write(&mut self, session: SessionId, store: FileOperation) -> io::Result<()> {
        match store {
            FileOperation::Begin(frames) => self.begin(session, &frames),
            FileOperation::Append(frame) => self.append(session, &frame),
            FileOperation::Remove => {
                self.open.remove(&session);
                self.broken.remove(&session);
                match fs::remove_file(path(&self.directory, session, KEPT)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Writes a new file beside the old one and renames it over it.
    /// The rename is what makes it valid: before it, the old file stands, and a crash leaves a
    /// `.new` file.
    fn begin(&mut self, session: SessionId, frames: &[Frame]) -> io::Result<()> {
        self.open.remove(&session);
        self.broken.remove(&session);
        let new = path(&self.directory, session, NEW);
        let mut open = Open { file: create(&new)?, end: 0, gathered: BytesMut::new() };
        file::put_head(session, &mut open.gathered);
        for frame in frames {
            open.push(session, frame, &self.figures)?;
        }
        open.flush(&self.figures)?;
        fs::rename(new, path(&self.directory, session, KEPT))?;
        self.insert(session, open);
        Ok(())
    }

    fn append(&mut self, session: SessionId, frame: &Frame) -> io::Result<()> {
        if self.broken.contains(&session) {
            return Ok(());
        }
        // It was closed to make room for others. Its end is the size, as each batch ends with
        // complete records.
        if !self.open.contains_key(&session) {
            let file = File::options().append(true).open(path(&self.directory, session, KEPT))?;
            let end = file.metadata()?.len();
            self.insert(session, Open { file, end, gathered: BytesMut::new() });
        }
        match self.open.get_mut(&session) {
            Some(open) => open.push(session, frame, &self.figures),
            None => Ok(()),
        }
    }

    fn insert(&mut self, session: SessionId, open: Open) {
        if self.open.len() >= OPEN_MAX {
            self.flush();
            self.open.clear();
        }
        self.open.insert(session, open);
    }

    fn flush(&mut self) {
        let mut failed = Vec::new();
        for (session, open) in self.open.iter_mut().filter(|(_, open)| !open.gathered.is_empty()) {
            if let Err(error) = open.flush(&self.figures) {
                failed.push((*session, error));
            }
        }
        for (session, error) in failed {
            self.give_up(session, &error);
        }
    }

    /// Removes a file that cannot be written: another record must not follow a part of one.
    fn give_up(&mut self, session: SessionId, error: &io::Error) {
        self.open.remove(&session);
        self.broken.insert(session);
        self.figures.failed.fetch_add(1, Ordering::Relaxed);
        // If removing fails as well, the file is read when the recorder starts again, and holds an older state.
        let _ = fs::remove_file(path(&self.directory, session, NEW));
        let _ = fs::remove_file(path(&self.directory, session, KEPT));
        if let Some(suppressed) = self.limiter.pass(Instant::now()) {
            let directory = self.directory.display();
            error!(%session, %directory, %error, suppressed, "a session cannot be written: it is kept in memory \
                alone until its next checkpoint");
        }
    }
}

/// The content is sealed, but shows which peers sent how much and when: only the recorder's user may read it.
fn create(path: &Path) -> io::Result<File> {
    // A file of a recorder that died may have another mode.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    File::options().write(true).create_new(true).mode(FILE_MODE).open(path)
}

fn path(directory: &Path, session: SessionId, ending: &str) -> PathBuf {
    directory.join(format!("{session}.{ending}"))
}

/// Reads every file, the oldest first, and passes it to `restore`, which says whether it is useful.
///
/// # Errors
/// If the directory cannot be used at all. A file that is refused is put aside and logged; returns how many were.
pub(super) fn load(
    directory: &Path,
    mut restore: impl FnMut(SessionId, Vec<Frame>) -> Result<bool, UnfitFrame>,
) -> io::Result<u64> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    restrict(directory, DIRECTORY_MODE)?;
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.extension().and_then(|ending| ending.to_str()) {
            // The writer died before the rename.
            Some(NEW) => fs::remove_file(&path)?,
            Some(REFUSED) => restrict(&path, FILE_MODE)?,
            Some(KEPT) => {
                restrict(&path, FILE_MODE)?;
                let when =
                    fs::metadata(&path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                files.push((when, path));
            }
            _ => {}
        }
    }
    files.sort_unstable();
    let (mut restored, mut refused) = (0, 0);
    for (_, path) in files {
        let done = read(&path, &mut restore);
        match done {
            Ok(true) => restored += 1,
            Ok(false) => fs::remove_file(&path)?,
            Err(why) => {
                refused += 1;
                error!(file = %path.display(), "a session's file is refused and renamed: {why}");
                fs::rename(&path, path.with_extension(REFUSED))?;
            }
        }
    }
    if restored + refused > 0 {
        info!(event = "restored", sessions = restored, refused, "sessions read back from disk");
    }
    Ok(refused)
}

/// Removes other users' access, which an older recorder or another program may have granted.
fn restrict(path: &Path, mode: u32) -> io::Result<()> {
    if fs::metadata(path)?.permissions().mode() & 0o777 & !mode == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Why a session's file is put aside.
enum RefusedFile {
    Io(io::Error),
    /// It has so many bytes.
    TooLong(u64),
    Content(KeptFileError),
    /// It contains this session.
    OtherName(SessionId),
}

impl From<io::Error> for RefusedFile {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<KeptFileError> for RefusedFile {
    fn from(error: KeptFileError) -> Self {
        Self::Content(error)
    }
}

impl fmt::Display for RefusedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::TooLong(size) => {
                write!(f, "it has {size} bytes, and at most {} are read", file::SIZE_MAX)
            }
            Self::Content(error) => write!(f, "{error}"),
            Self::OtherName(session) => write!(f, "it contains session {session}, which is not its name"),
        }
    }
}

fn read(
    path: &Path,
    restore: &mut impl FnMut(SessionId, Vec<Frame>) -> Result<bool, UnfitFrame>,
) -> Result<bool, RefusedFile> {
    let size = fs::metadata(path)?.len();
    if size > file::SIZE_MAX {
        return Err(RefusedFile::TooLong(size));
    }
    // Created and never written: the machine stopped.
    if size == 0 {
        return Ok(false);
    }
    let content = file::decode(&fs::read(path)?)?;
    // A file that was copied to another name must not become another session's.
    let named = path.file_stem().is_some_and(|stem| stem.to_str() == Some(&content.session.to_string()));
    if !named {
        return Err(RefusedFile::OtherName(content.session));
    }
    let (offsets, frames): (Vec<u64>, Vec<Frame>) = content.frames.into_iter().unzip();
    let of_use = restore(content.session, frames).map_err(|UnfitFrame { index, reason }| {
        let offset = offsets.get(index).copied().unwrap_or(content.end);
        KeptFileError { offset, what: reason.to_owned() }
    })?;
    if of_use && content.end < size {
        File::options().write(true).open(path)?.set_len(content.end)?;
        warn!(file = %path.display(), from = size, to = content.end, "the end of a session's file was incomplete, \
            and is removed");
    }
    Ok(of_use)
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::frame::{CheckpointPart, Ping};

    /// A directory of its own, removed on drop.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("marram-kept-{}-{name}", std::process::id())))
        }

        /// The sessions that a recorder reads at its start, and how many files it refuses.
        fn load(&self) -> (Vec<(SessionId, Vec<Frame>)>, u64) {
            let mut loaded = Vec::new();
            let refused = load(&self.0, |session, frames| {
                loaded.push((session, frames));
                Ok(true)
            });
            (loaded, refused.expect("it can be used"))
        }

        fn files(&self) -> Vec<String> {
            let names = fs::read_dir(&self.0).expect("it is there");
            let mut names: Vec<_> = names
                .map(|entry| entry.expect("it can be read").file_name().into_string().expect("ours"))
                .collect();
            names.sort_unstable();
            names
        }

        fn start(&self) -> Disk {
            fs::create_dir_all(&self.0).expect("there is room");
            Disk::start(&self.0, Instant::now()).expect("there are threads")
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn ping(stamp: u64) -> Frame {
        Ping { stamp }.into()
    }

    #[test]
    fn what_is_stored_is_read_back_and_what_is_removed_is_gone() {
        let place = TempDir::new("stored");
        let mut disk = place.start();
        let now = Instant::now();
        for number in 0..3 {
            disk.store(now, session(number), FileOperation::Begin(vec![ping(1), ping(2)]));
            disk.store(now, session(number), FileOperation::Append(ping(3)));
        }
        disk.store(now, session(1), FileOperation::Begin(vec![ping(9)]));
        disk.store(now, session(1), FileOperation::Append(ping(10)));
        disk.store(now, session(2), FileOperation::Remove);
        assert!(disk.finish(LONG));
        // A process that continues files which another one began.
        let mut disk = place.start();
        disk.store(now, session(0), FileOperation::Append(ping(4)));
        assert!(disk.finish(LONG));
        let (mut loaded, refused) = place.load();
        loaded.sort_unstable_by_key(|(session, _)| *session);
        let expected =
            [(session(0), vec![ping(1), ping(2), ping(3), ping(4)]), (session(1), vec![ping(9), ping(10)])];
        assert_eq!((&loaded[..], refused), (&expected[..], 0));
    }

    #[test]
    fn files_and_their_directory_are_the_recorders_alone() {
        let place = TempDir::new("modes");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(place.load().1, 0);
        assert_eq!(mode(&place.0), 0o700, "made so");
        let kept = path(&place.0, session(0), KEPT);
        // The file replaces what a killed recorder left.
        fs::write(path(&place.0, session(0), NEW), b"half").expect("there is room");
        fs::set_permissions(path(&place.0, session(0), NEW), Permissions::from_mode(0o644)).expect("ours");
        let mut disk = place.start();
        disk.store(Instant::now(), session(0), FileOperation::Begin(vec![ping(1)]));
        disk.store(Instant::now(), session(0), FileOperation::Append(ping(2)));
        assert!(disk.finish(LONG));
        assert_eq!(mode(&kept), 0o600);
        // Modes that another recorder set.
        fs::set_permissions(&kept, Permissions::from_mode(0o644)).expect("ours");
        fs::set_permissions(&place.0, Permissions::from_mode(0o755)).expect("ours");
        assert_eq!(place.load(), (vec![(session(0), vec![ping(1), ping(2)])], 0));
        assert_eq!((mode(&place.0), mode(&kept)), (0o700, 0o600));
    }

    #[test]
    fn a_torn_end_is_cut_and_damage_put_aside() {
        let place = TempDir::new("torn");
        let mut disk = place.start();
        let now = Instant::now();
        for number in 0..3 {
            disk.store(now, session(number), FileOperation::Begin(vec![ping(1), ping(2), ping(3)]));
        }
        assert!(disk.finish(LONG));
        let torn = path(&place.0, session(0), KEPT);
        let bytes = fs::read(&torn).expect("written");
        fs::write(&torn, &bytes[..bytes.len() - 1]).expect("there is room");
        let damaged = path(&place.0, session(1), KEPT);
        let mut bytes = fs::read(&damaged).expect("written");
        bytes[file::HEAD + 17] ^= 1;
        fs::write(&damaged, &bytes).expect("there is room");
        fs::write(place.0.join("half.new"), b"begun").expect("there is room");
        fs::write(path(&place.0, session(9), KEPT), b"").expect("there is room");
        for _ in 0..2 {
            let (loaded, refused) = place.load();
            let count = loaded.iter().map(|(_, frames)| frames.len()).sum::<usize>();
            assert_eq!((loaded.len(), count), (2, 5));
            let names = [0, 1, 2]
                .map(|number| format!("{}.{}", session(number), if number == 1 { REFUSED } else { KEPT }));
            assert_eq!(place.files(), names);
            if refused == 0 {
                return;
            }
        }
        panic!("what was put aside is read again");
    }

    #[test]
    fn a_disk_that_fails_or_is_slow_stops_no_session() {
        let place = TempDir::new("failing");
        let mut disk = place.start();
        let now = Instant::now();
        disk.store(now, session(0), FileOperation::Begin(vec![ping(1)]));
        // A directory in the place of the file prevents writing.
        fs::create_dir(path(&place.0, session(1), NEW)).expect("there is room");
        disk.store(now, session(1), FileOperation::Begin(vec![ping(1)]));
        disk.store(now, session(1), FileOperation::Append(ping(2)));
        disk.store(now, session(0), FileOperation::Append(ping(2)));
        let figures = Arc::clone(&disk.figures);
        assert!(disk.finish(LONG));
        assert_eq!(figures.failed.load(Ordering::Relaxed), 1);
        fs::remove_dir(path(&place.0, session(1), NEW)).expect("it is empty");
        assert_eq!(place.load(), (vec![(session(0), vec![ping(1), ping(2)])], 0));

        // A queue without a thread that takes from it.
        let queue = Arc::new(Queue::default());
        let (behind, limiter) = (BTreeSet::new(), LogLimiter::new(now));
        let mut disk = Disk { queue: Arc::clone(&queue), figures: Arc::default(), behind, limiter };
        let part = |size: usize| Frame::from(CheckpointPart { channel: 1, bytes: vec![0; size].into() });
        let whole = usize::try_from(QUEUE_MAX).expect("it fits");
        disk.store(now, session(0), FileOperation::Begin(vec![part(whole)]));
        for number in 0..100 {
            disk.store(now, session(0), FileOperation::Append(ping(number)));
            disk.store(now, session(1), FileOperation::Begin(vec![ping(number)]));
        }
        let waiting: Vec<_> =
            queue.lock().waiting.drain(..).map(|(session, store, _)| (session, store)).collect();
        assert!(matches!(waiting[0], (_, FileOperation::Begin(_))));
        // The first session's file stays as it is; that of the other is removed, since it would get another history.
        assert!(
            waiting[1..].iter().all(|waiting| *waiting == (session(1), FileOperation::Remove)),
            "{waiting:?}"
        );
        // There is room again: the first session must not append after data that was skipped.
        queue.lock().bytes = 0;
        disk.store(now, session(0), FileOperation::Append(ping(1)));
        assert!(queue.lock().waiting.is_empty());
        disk.store(now, session(0), FileOperation::Begin(vec![ping(1)]));
        disk.store(now, session(0), FileOperation::Append(ping(2)));
        assert_eq!(queue.lock().waiting.len(), 2);
        assert!(!disk.finish(Duration::ZERO));
    }
}
