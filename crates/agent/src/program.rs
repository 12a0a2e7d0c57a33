//! The program that an agent runs in, where it is no process of its own: connections that the program asks for and is given.
//!
//! Each is one end of a socket pair, whose other end is a local connection like any other. How it ended, which a pair of sockets
//! cannot say, goes beside it.

use crate::net::Socket;
use anyhow::ensure;
use marram_session::agent::{AgentReport, ConnectionFailure};
use marram_wire::frame::Code;
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

/// Connections that the program has asked for and the agent has not yet seen; more are refused.
pub const ASKED_MAX: usize = 1024;
/// Sessions that the program was told of as their server and that it has not yet accepted; more are refused.
pub const BACKLOG_MAX: usize = 1024;

/// How the program speaks in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConnectionKind {
    /// In a stream, which is cut into messages anywhere, and which messages of the other side follow each other in.
    #[default]
    Stream,
    /// In messages, empty ones too: none is cut, merged or lost. To the cell this is a stream whose cuts are the messages.
    Messages,
    /// In datagrams: each is one message, and one for which there is no place is dropped before it has a number. The cell is told.
    Datagrams,
}

impl ConnectionKind {
    /// Whether what it says comes in messages, none of which is cut.
    #[must_use]
    pub fn keeps_messages(self) -> bool {
        self != Self::Stream
    }
}

/// One side's half of a connection.
#[derive(Debug)]
pub struct StreamHalf {
    /// Its bytes; messages as [`crate::messages`] says.
    pub stream: UnixStream,
    /// What else is to be known of it; both halves have the same.
    pub close_state: Arc<CloseState>,
}

/// How far a connection has come, as its agent says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ConnectionState {
    /// More may come. If the stream ends now, the agent is gone.
    #[default]
    Open,
    /// What comes still is all there is.
    Ended,
    /// It failed.
    Failed(ConnectionFailure),
}

/// What the two halves of a connection know and tell each other beside its bytes.
#[derive(Debug, Default)]
pub struct CloseState {
    kind: ConnectionKind,
    server: Option<Arc<str>>,
    state: Mutex<ConnectionState>,
    aborted: AtomicBool,
}

impl CloseState {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        // It is replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the program speaks.
    #[must_use]
    pub fn kind(&self) -> ConnectionKind {
        self.kind
    }

    /// As which server the program was given it, if it did not ask for it.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// How far the connection has come.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.lock().clone()
    }

    /// The program's: what its closing the stream means is that it failed.
    pub fn abort(&self) {
        self.aborted.store(true, Relaxed);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }

    /// Said before the stream is told.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        if *state == ConnectionState::Open {
            *state = ConnectionState::Ended;
        }
    }

    /// Said before the stream is told.
    pub(super) fn fail(&self, failure: ConnectionFailure) {
        *self.lock() = ConnectionState::Failed(failure);
    }
}

/// Both halves of a connection, the agent's, which does not block, first.
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
    /// As the agent's loop takes it.
    pub(super) fn into_socket(self) -> (Socket, Arc<CloseState>) {
        (Socket::Unix(mio::net::UnixStream::from_std(self.stream)), self.close_state)
    }
}

/// Connections of sessions that have the program as their server, and that it has not yet taken.
#[derive(Debug)]
pub struct Backlog {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    halves: VecDeque<StreamHalf>,
    /// No more will come.
    over: bool,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a new connection to the program; the agent's half of it.
    fn hand(&self, kind: ConnectionKind, server: Arc<str>) -> anyhow::Result<StreamHalf> {
        let (ours, theirs) = pair(kind, Some(server))?;
        let mut waiting = self.lock();
        ensure!(waiting.halves.len() < self.max, "too many connections wait for the program to accept them");
        waiting.halves.push_back(theirs);
        self.changed.notify_one();
        Ok(ours)
    }

    /// Waits for the next one, until `deadline` where there is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] at the deadline, [`io::ErrorKind::NotConnected`] when the agent has stopped.
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

/// The agent's side of a [`Backlog`], which ends with it, for the sessions of one server.
#[derive(Debug)]
pub(super) struct Handing {
    backlog: Arc<Backlog>,
    name: Arc<str>,
    pub(super) kind: ConnectionKind,
}

impl Handing {
    /// Hands a new connection to the program; the agent's half of it.
    pub(super) fn hand(&self) -> anyhow::Result<StreamHalf> {
        self.backlog.hand(self.kind, Arc::clone(&self.name))
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        self.backlog.end();
    }
}

/// A connection that the program wants.
pub(super) struct ConnectRequest {
    pub(super) app: String,
    pub(super) half: StreamHalf,
}

/// Told of every report, with an edge's address.
type Observe = Box<dyn FnMut(&str, &AgentReport) + Send>;

/// What an agent's loop knows of the program that it runs in.
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
    /// A program that is told of every report, with the address of the edge that it is about, if it is about one. It must not
    /// block: the agent waits.
    pub fn new(observe: impl FnMut(&str, &AgentReport) + Send + 'static) -> Self {
        let (connect_handle, asks) = sync_channel(ASKED_MAX);
        Self { asks, connect_handle, servers: BTreeMap::new(), observe: Box::new(observe) }
    }

    /// Is the servers of these names: sessions that have one of them as their server come out of what is returned. Of those that
    /// nobody has taken there are at most `max`; more are refused.
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

/// Asks the agent for connections.
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
    /// A connection to a new cell of `app`. What is written to it waits until an edge has taken the session; its stream blocks.
    ///
    /// # Errors
    /// If the agent is gone, if it has more to do than it can, or if the process has no descriptor left.
    pub fn connect(&self, app: &str, kind: ConnectionKind) -> io::Result<StreamHalf> {
        let (half, theirs) = pair(kind, None)?;
        self.sender.try_send(ConnectRequest { app: app.to_owned(), half }).map_err(|error| match error {
            TrySendError::Full(_) => {
                io::Error::new(io::ErrorKind::WouldBlock, "too many connections wait for the agent")
            }
            TrySendError::Disconnected(_) => io::Error::new(io::ErrorKind::NotConnected, STOPPED),
        })?;
        self.waker.wake()?;
        Ok(theirs)
    }
}

/// Why there is no connection any more, or none to be had.
pub const STOPPED: &str = "the agent in this program has stopped";

/// Turns a connection down that came too late.
pub(super) fn turn_down(ask: &ConnectRequest) {
    ask.half.close_state.fail(ConnectionFailure {
        session: None,
        code: Code::NoEdge,
        reason: STOPPED.to_owned(),
    });
}
