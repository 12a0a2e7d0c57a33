//! An agent that runs in this program: one thread, from the start of a client or a server until its last connection has ended.

use crate::{Connection, Event, Settings};
use marram_agent::{AgentOptions, BACKLOG_MAX, Backlog, ConnectHandle, ConnectionKind, Program, Routing};
use marram_session::agent::AgentReport;
use marram_transport::{StopSignal, Stopper};
use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The agent's thread. It is stopped when nothing needs it any more.
#[derive(Debug)]
pub(crate) struct Running {
    connect_handle: ConnectHandle,
    edges: Arc<Edges>,
    /// For its counters.
    routing: Routing,
    // Dropping it requests a stop.
    stopper: Stopper,
    stopping: AtomicBool,
    /// Returns whether all sessions had ended.
    thread: Mutex<Option<JoinHandle<Result<bool, String>>>>,
}

/// Which edges answer.
#[derive(Debug, Default)]
struct Edges {
    up: Mutex<BTreeSet<(u16, u8)>>,
    changed: Condvar,
}

impl Edges {
    fn heard(&self, report: &AgentReport) {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        match report {
            AgentReport::EdgeUp { target, .. } => up.insert((target.edge, target.shard)),
            AgentReport::EdgeDown { target, .. } => up.remove(&(target.edge, target.shard)),
            _ => return,
        };
        self.changed.notify_all();
    }
}

impl Running {
    /// Starts it; `servers` are the servers that this program is.
    fn start(
        settings: Settings,
        servers: &[(&str, ConnectionKind)],
    ) -> io::Result<(Arc<Self>, Arc<Backlog>)> {
        let Settings { edges: addresses, security, timeouts, observer } = settings;
        let edges = Arc::new(Edges::default());
        let heard = Arc::clone(&edges);
        let mut program = Program::new(move |address, report| {
            heard.heard(report);
            if let (Some(observer), Some(event)) = (&observer, Event::of(address, report)) {
                observer(event);
            }
        });
        let accepted = program.serve(servers, BACKLOG_MAX);
        let routing = Routing::default();
        let options = AgentOptions {
            routing: routing.clone(),
            edges: addresses,
            servers: Vec::new(),
            security,
            timeouts,
        };
        let (stop, stopper) = StopSignal::pair()?;
        let (mut agent, connect_handle) = marram_agent::embed(&options, stop, program)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("{error:#}")))?;
        let thread = thread::Builder::new().name("marram".into()).spawn(move || match agent.run() {
            Ok(()) => Ok(agent.is_done()),
            Err(error) => Err(format!("{error:#}")),
        })?;
        Ok((
            Arc::new(Self {
                connect_handle,
                edges,
                routing,
                stopper,
                stopping: AtomicBool::new(false),
                thread: Mutex::new(Some(thread)),
            }),
            accepted,
        ))
    }

    fn wait_ready(&self, time: Duration) -> io::Result<()> {
        let deadline = Instant::now() + time;
        let mut up = self.edges.up.lock().unwrap_or_else(PoisonError::into_inner);
        while up.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let words = "no edge answers: check the addresses and the token, and that an edge runs";
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
            up = self.edges.changed.wait_timeout(up, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Only the first call requests a stop: a second request would not wait for sessions.
    fn stop(&self) {
        if !self.stopping.swap(true, Ordering::Relaxed) {
            self.stopper.stop();
        }
    }

    /// Waits until all written bytes are delivered, the sessions are over and the thread has ended. A second caller waits as
    /// long.
    fn close(&self) -> io::Result<()> {
        self.stop();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(true))) => Ok(()),
            Some(Ok(Ok(false))) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "sessions did not end within `timeouts.drain`"))
            }
            Some(Ok(Err(reason))) => Err(io::Error::other(reason)),
            Some(Err(_)) => Err(io::Error::other("the agent in this program has panicked")),
        }
    }
}

/// A client: opens connections, each to a new cell.
///
/// Clones share one client. It runs, on its own thread, while there is a clone or a connection.
#[derive(Clone, Debug)]
pub struct Client(Arc<Running>);

impl Client {
    /// Starts a client. It dials its edges at once; [`Self::wait_ready`] waits until one answers.
    ///
    /// # Errors
    /// If the settings are invalid, with what to change, or if the process has no file descriptor or thread left.
    pub fn start(settings: Settings) -> io::Result<Self> {
        Running::start(settings, &[]).map(|(running, _)| Self(running))
    }

    /// A connection to a new cell of `app`, or to the cell that its clients share. Returns at once: written bytes wait until an
    /// edge has taken the session; if none does within [`crate::Timeouts::edge_wait`], reads return the reason.
    ///
    /// # Errors
    /// If the client was closed, if the agent's queue is full, or if the process has no file descriptor left.
    pub fn connect(&self, app: &str) -> io::Result<Connection> {
        self.connect_as(app, ConnectionKind::Stream)
    }

    /// As [`Self::connect`], with this kind of connection: messages or datagrams.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_as(&self, app: &str, kind: ConnectionKind) -> io::Result<Connection> {
        Ok(Connection::new(self.0.connect_handle.connect(app, kind)?, &self.0))
    }

    /// Datagrams that were sent on its connections and dropped because there was no room. The counter is updated with a short
    /// delay.
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.0.routing.datagrams_dropped()
    }

    /// Waits until an edge answers.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if none does in this time.
    pub fn wait_ready(&self, time: Duration) -> io::Result<()> {
        self.0.wait_ready(time)
    }

    /// Stops it: refuses new connections, and returns when all sessions are over. A program that ends without this call may lose
    /// its last writes.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if some were not over within [`crate::Timeouts::drain`]; otherwise if the agent failed because
    /// of the operating system.
    pub fn close(self) -> io::Result<()> {
        self.0.close()
    }
}

/// A server: accepts a connection for each session of an app that names it. Several threads may accept.
#[derive(Debug)]
pub struct Server {
    running: Arc<Running>,
    accepted: Arc<Backlog>,
}

impl Server {
    /// Starts one under the name that manifests use. Its connections are streams.
    ///
    /// # Errors
    /// If the settings are invalid, with what to change, or if the process has no file descriptor or thread left.
    pub fn start(settings: Settings, name: &str) -> io::Result<Self> {
        Self::start_as(settings, &[(name, ConnectionKind::Stream)])
    }

    /// Starts several servers in one, by the names that manifests use, each with its own kind: each connection has a kind
    /// ([`Connection::kind`]) and a server name ([`Connection::server`]). Their clients may use other kinds.
    ///
    /// # Errors
    /// As [`Self::start`]; if there is no name, or one name has two kinds.
    pub fn start_as(settings: Settings, servers: &[(&str, ConnectionKind)]) -> io::Result<Self> {
        let wrong = |words: String| Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        if servers.is_empty() || servers.iter().any(|(name, _)| name.is_empty()) {
            return wrong("a server needs a name: the manifest's `server`".to_owned());
        }
        let mut names = BTreeSet::new();
        if let Some((name, _)) = servers.iter().find(|(name, _)| !names.insert(name)) {
            return wrong(format!("`{name}` is named twice: a server has one kind"));
        }
        let (running, accepted) = Running::start(settings, servers)?;
        Ok(Self { running, accepted })
    }

    /// As [`Client::datagrams_dropped`].
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.running.routing.datagrams_dropped()
    }

    /// Waits for the next session's connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] after [`Self::stop`], or if the agent failed because of the operating system.
    pub fn accept(&self) -> io::Result<Connection> {
        Ok(Connection::new(self.accepted.take(None)?, &self.running))
    }

    /// Waits at most this long; `None` if no session came.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn accept_timeout(&self, time: Duration) -> io::Result<Option<Connection>> {
        match self.accepted.take(Some(Instant::now() + time)) {
            Ok(half) => Ok(Some(Connection::new(half, &self.running))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One connection after the other, until the agent has stopped.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Waits until an edge answers.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if none does in this time.
    pub fn wait_ready(&self, time: Duration) -> io::Result<()> {
        self.running.wait_ready(time)
    }

    /// Refuses new sessions from now on; existing ones continue. A blocked [`Self::accept`] in another thread fails once they are
    /// over, or [`crate::Timeouts::drain`] has passed.
    pub fn stop(&self) {
        self.running.stop();
    }

    /// As [`Client::close`].
    ///
    /// # Errors
    /// As [`Client::close`].
    pub fn close(self) -> io::Result<()> {
        self.running.close()
    }
}

/// The iterator of [`Server::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a Server);

impl Iterator for Incoming<'_> {
    type Item = Connection;
    fn next(&mut self) -> Option<Connection> {
        self.0.accept().ok()
    }
}
