//! The program that an agent is embedded in: connections that the program opens and accepts.
//!
//! Each is one end of a socket pair; the other end is a normal local connection. How it ended, which a socket pair cannot
//! express, is shared beside it.
//!
//! ```text
//! the program's threads                          the agent's thread
//! ConnectHandle::connect ──queue, Waker──────▶   accepted like a local client
//! Backlog::take          ◀─lock, condition────   a session with the server that the program is
//!        └──── StreamHalf ═══ socket pair ═══ StreamHalf ────┘
//!                    └────── CloseState (shared) ────┘
//! ```
//!
//! The loop never waits for the program: both queues have a limit, and what does not fit is
//! refused. The program may block as long as it likes; its sockets then fill and stop its sessions
//! only.

use marram_session::agent::{AgentReport, ConnectionFailure};
use marram_transport::Socket;
use marram_wire::{frame::Code, key::CellKey};
use mio::Waker;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    os::unix::net::UnixStream,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::Instant,
};

/// Connections that the program has opened and the agent has not yet seen; more are refused.
pub const ASKED_MAX: usize = 1024;
/// Sessions for which the program is the server and that it has not yet accepted; more are refused.
pub const BACKLOG_MAX: usize = 1024;

/// How the program sends and receives in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConnectionKind {
    /// As a stream: it is cut into messages at any position, and received messages are concatenated.
    #[default]
    Stream,
    /// As messages, also empty ones: none is cut, merged or lost. To the cell this is a stream that is cut at the message
    /// boundaries.
    Messages,
    /// As datagrams: each is one message; one without room is dropped before it gets a number. The cell knows that it is
    /// datagrams.
    Datagrams,
}

impl ConnectionKind {
    /// Whether message boundaries are kept.
    #[must_use]
    pub fn keeps_messages(self) -> bool {
        self != Self::Stream
    }
}

/// One half of a connection.
#[derive(Debug)]
pub struct StreamHalf {
    /// Its bytes; messages are encoded as in [`crate::messages`].
    pub stream: UnixStream,
    /// Further state of the connection, shared by both halves.
    pub close_state: Arc<CloseState>,
}

/// The state of a connection, as its agent reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ConnectionState {
    /// More bytes may come. If the stream ends in this state, the agent is gone.
    #[default]
    Open,
    /// Only the bytes that are already in the stream will come.
    Ended,
    /// It failed.
    Failed(ConnectionFailure),
}

/// State that the two halves of a connection share beside its bytes.
///
/// The agent sets `state` before it closes its half, the program sets `aborted` before it closes
/// its own. So each side finds the reason when it reads the end of the stream.
#[derive(Debug, Default)]
pub struct CloseState {
    kind: ConnectionKind,
    /// See [`Self::server`].
    server: Option<Arc<str>>,
    state: Mutex<ConnectionState>,
    aborted: AtomicBool,
}

impl CloseState {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        // The value is only replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the program sends and receives.
    #[must_use]
    pub fn kind(&self) -> ConnectionKind {
        self.kind
    }

    /// The server name under which the program received it; none if the program opened it.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.lock().clone()
    }

    /// Called by the program: the following close of the stream is a failure.
    pub fn abort(&self) {
        self.aborted.store(true, Relaxed);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }

    /// Called before the stream is closed.
    /// A failure that was set before stays.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        if *state == ConnectionState::Open {
            *state = ConnectionState::Ended;
        }
    }

    /// Called before the stream is closed.
    pub(super) fn fail(&self, failure: ConnectionFailure) {
        *self.lock() = ConnectionState::Failed(failure);
    }
}

/// Both halves of a connection, the agent's half first, which does not block.
/// The program's half blocks.
pub(super) fn pair(kind: ConnectionKind, server: Option<Arc<str>>) -> io::Result<(StreamHalf, StreamHalf)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let close_state = Arc::new(CloseState { kind, server, ..CloseState::default() });
    Ok((
        StreamHalf { stream: ours, close_state: Arc::clone(&close_state) },
        StreamHalf { stream: theirs, close_state },
    ))
}

impl StreamHalf {
    /// The form that the agent's loop uses.
    pub(super) fn into_socket(self) -> (Socket, Arc<CloseState>) {
        (Socket::Unix(mio::net::UnixStream::from_std(self.stream)), self.close_state)
    }
}

/// Why a connection cannot be handed to the program. The program accepts more, or the session's client tries again.
#[derive(Debug)]
pub enum HandingError {
    /// As many connections as the program allows wait to be accepted.
    Full,
    /// The operating system made no pair of sockets.
    Io(io::Error),
}

impl fmt::Display for HandingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("too many connections wait for the program to accept them"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for HandingError {}

/// Connections of sessions for which the program is the server and that it has not yet accepted.
#[derive(Debug)]
pub struct Backlog {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    halves: VecDeque<StreamHalf>,
    /// Whether no more will come.
    over: bool,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code panics while it holds the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a new connection for the program; returns the agent's half.
    ///
    /// # Errors
    /// If the program accepts too slowly, or no descriptor is left; the session is refused as by a
    /// server that is down.
    fn hand(&self, kind: ConnectionKind, server: Arc<str>) -> Result<StreamHalf, HandingError> {
        let (ours, theirs) = pair(kind, Some(server)).map_err(HandingError::Io)?;
        let mut waiting = self.lock();
        if waiting.halves.len() >= self.max {
            return Err(HandingError::Full);
        }
        waiting.halves.push_back(theirs);
        self.changed.notify_one();
        Ok(ours)
    }

    /// Waits for the next one, until `deadline` if there is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] at the deadline, [`io::ErrorKind::NotConnected`] when the agent has stopped.
    ///
    /// Several threads may wait; each connection goes to one of them.
    pub fn take(&self, deadline: Option<Instant>) -> io::Result<StreamHalf> {
        let mut waiting = self.lock();
        loop {
            if let Some(half) = waiting.halves.pop_front() {
                return Ok(half);
            }
            if waiting.over {
                return Err(io::Error::new(io::ErrorKind::NotConnected, STOPPED));
            }
            let Some(deadline) = deadline else {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            waiting = self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }
}

/// The agent's side of a [`Backlog`], for the sessions of one server. The backlog ends when it is dropped.
#[derive(Debug)]
pub(super) struct Handing {
    backlog: Arc<Backlog>,
    name: Arc<str>,
    pub(super) kind: ConnectionKind,
}

impl Handing {
    /// Queues a new connection for the program; returns the agent's half.
    pub(super) fn hand(&self) -> Result<StreamHalf, HandingError> {
        self.backlog.hand(self.kind, Arc::clone(&self.name))
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        self.backlog.end();
    }
}

/// A connection that the program opens.
pub(super) struct ConnectRequest {
    pub(super) app: String,
    pub(super) key: Option<CellKey>,
    pub(super) half: StreamHalf,
}

/// Called with every report and the address of its edge.
type Observe = Box<dyn FnMut(&str, &AgentReport) + Send>;

/// What an agent's loop needs of the program that it is embedded in.
pub struct Program {
    pub(super) asks: Receiver<ConnectRequest>,
    connect_handle: SyncSender<ConnectRequest>,
    pub(super) servers: BTreeMap<String, Handing>,
    pub(super) observe: Observe,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("servers", &self.servers.keys()).finish_non_exhaustive()
    }
}

impl Program {
    /// A program. `observe` is called with every report and the address of the edge that it is about, if any. It must not block:
    /// the agent waits.
    pub fn new(observe: impl FnMut(&str, &AgentReport) + Send + 'static) -> Self {
        let (connect_handle, asks) = sync_channel(ASKED_MAX);
        Self { asks, connect_handle, servers: BTreeMap::new(), observe: Box::new(observe) }
    }

    /// Makes the program the server with these names: sessions with one of these servers arrive in the returned backlog. At most
    /// `max` may wait there; more are refused.
    pub fn serve(&mut self, servers: &[(&str, ConnectionKind)], max: usize) -> Arc<Backlog> {
        let backlog = Arc::new(Backlog { waiting: Mutex::default(), changed: Condvar::new(), max });
        for &(name, kind) in servers {
            let handing = Handing { backlog: Arc::clone(&backlog), name: name.into(), kind };
            self.servers.insert(name.to_owned(), handing);
        }
        backlog
    }

    pub(super) fn connect_handle(&self, waker: Arc<Waker>) -> ConnectHandle {
        ConnectHandle { sender: self.connect_handle.clone(), waker }
    }
}

/// Opens connections through the agent.
#[derive(Clone)]
pub struct ConnectHandle {
    sender: SyncSender<ConnectRequest>,
    waker: Arc<Waker>,
}

impl fmt::Debug for ConnectHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectHandle")
    }
}

impl ConnectHandle {
    /// A connection to a new cell of `app`. Bytes that are written wait until an edge has taken the session; the stream blocks.
    ///
    /// # Errors
    /// If the agent is gone, if its queue is full, or if the process has no file descriptor left.
    ///
    /// Returns before an edge is asked. Whether the session could begin shows in the stream's end
    /// and [`CloseState::state`].
    pub fn connect(&self, app: &str, kind: ConnectionKind) -> io::Result<StreamHalf> {
        self.connect_to(app, None, kind)
    }

    /// The same, to the cell of this key, of an app that has one shared cell for each key.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_to(
        &self,
        app: &str,
        key: Option<CellKey>,
        kind: ConnectionKind,
    ) -> io::Result<StreamHalf> {
        let (half, theirs) = pair(kind, None)?;
        let request = ConnectRequest { app: app.to_owned(), key, half };
        self.sender.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => {
                io::Error::new(io::ErrorKind::WouldBlock, "too many connections wait for the agent")
            }
            TrySendError::Disconnected(_) => io::Error::new(io::ErrorKind::NotConnected, STOPPED),
        })?;
        self.waker.wake()?;
        Ok(theirs)
    }
}

/// The reason when a connection ended or cannot be opened because the agent has stopped.
pub const STOPPED: &str = "the agent in this program has stopped";

/// Refuses a connection that was requested too late.
pub(super) fn turn_down(ask: &ConnectRequest) {
    ask.half.close_state.fail(ConnectionFailure {
        session: None,
        code: Code::NoEdge,
        reason: STOPPED.to_owned(),
    });
}
