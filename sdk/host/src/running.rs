//! An agent that runs in this program: one thread, from the start of a client or a server until its last connection has ended.

use crate::{Event, Settings};
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
    pub(crate) connect_handle: ConnectHandle,
    edges: Arc<Edges>,
    /// For its counters.
    pub(crate) routing: Routing,
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
    pub(crate) fn start(
        settings: Settings,
        servers: &[(&str, ConnectionKind)],
    ) -> io::Result<(Arc<Self>, Arc<Backlog>)> {
        let Settings { edges: addresses, security, timeouts, memory, observer } = settings;
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
            learn: true,
            spread: true,
            servers: Vec::new(),
            security,
            timeouts,
            limits: marram_agent::AgentLimits { memory_max: memory, ..marram_agent::AgentLimits::default() },
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

    /// Waits until an edge answers.
    pub(crate) fn wait_ready(&self, time: Duration) -> io::Result<()> {
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
    pub(crate) fn stop(&self) {
        if !self.stopping.swap(true, Ordering::Relaxed) {
            self.stopper.stop();
        }
    }

    /// Waits until all written bytes are delivered, the sessions are over and the thread has ended. A second caller waits as
    /// long.
    pub(crate) fn close(&self) -> io::Result<()> {
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
