//! The agent's loop: waits for sockets, feeds `Agent::step`, does what it says. Decides nothing about sessions.

use super::{
    Options,
    locals::Local,
    reach::{Begun, Reach, Reacher},
    reports::Reports,
};
use crate::net::{Happened, Limiter, Socket, Stop, Table, Wire, random, token};
use anyhow::Context;
use bytes::BytesMut;
use marram_session::agent::{Agent, Config, ConnectionId, In, Out, Target, WireId};
use marram_wire::id::HostId;
use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream, UnixStream},
};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{info, warn};

/// Local connections at a time; more wait in the listeners' queues.
const LOCALS_MAX: usize = 32_768;
/// Inputs taken before what they led to is written.
const BATCH: usize = 256;
const EVENTS: usize = 1024;
/// A poll that returns so much later than it should is no accident of scheduling: the process was stopped, or starved.
const STALL: Duration = Duration::from_millis(20);
/// Connections that the agent asked for have it, those that were accepted do not.
const ASKED: u64 = 1 << 63;

const LISTENER: u64 = 1;
const WIRE: u64 = 2;
const ACCEPTED: u64 = 3;
const CONNECTED: u64 = 4;

/// An agent with its sockets.
pub(crate) struct Shell {
    poll: Poll,
    agent: Agent,
    outs: Vec<Out>,
    inputs: VecDeque<In>,
    reacher: Reacher,
    listeners: Vec<(TcpListener, String)>,
    /// Whether a listener may have more connections than were taken.
    accepting: Vec<bool>,
    table: Table<Target>,
    locals: BTreeMap<ConnectionId, Local>,
    ready: VecDeque<ConnectionId>,
    dirty: Vec<ConnectionId>,
    connect_deadlines: VecDeque<(Instant, ConnectionId)>,
    connect_timeout: Duration,
    reports: Reports,
    accept_errors: Limiter,
    next_local: u64,
    buffer: BytesMut,
    started: Instant,
    now: Instant,
    /// Time in which this process could not run, which the agent's clock leaves out: an edge is not silent because we
    /// were asleep.
    stalled: Duration,
    wake_at: Option<u64>,
    stop: UnixStream,
    stops: usize,
    drain_limit: Duration,
    drain_deadline: Option<Instant>,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn local_token(connection: ConnectionId) -> Token {
    let kind = if connection.0 & ASKED != 0 { CONNECTED } else { ACCEPTED };
    token::token(kind, connection.0 & !ASKED)
}

impl Shell {
    /// Binds the listeners and makes everything ready.
    pub(super) fn new(options: &Options, stop: Stop, reach: Reach) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), token::WAKER)?);
        let mut stop = UnixStream::from_std(stop.receiver);
        poll.registry().register(&mut stop, token::BOSS, Interest::READABLE)?;
        let mut listeners = Vec::new();
        for (address, app) in &options.listen {
            let mut listener = TcpListener::bind(*address).with_context(|| {
                format!("cannot listen on {address} for {app}: choose another address or stop what uses it")
            })?;
            let token = token::token(LISTENER, listeners.len() as u64);
            poll.registry().register(&mut listener, token, Interest::READABLE)?;
            info!(address = %listener.local_addr()?, %app, "listening for clients");
            listeners.push((listener, app.clone()));
        }
        let now = Instant::now();
        let reacher = Reacher::new(reach, &options.servers, waker)?;
        let edges = reacher.edges();
        let host = options.host.map_or_else(|| random().map(HostId), Ok)?;
        let config = config(options, host, u16::try_from(edges.len().max(1))?);
        Ok(Self {
            agent: Agent::new(config, random()?),
            outs: Vec::new(),
            inputs: VecDeque::new(),
            accepting: vec![false; listeners.len()],
            listeners,
            table: Table::new(options.patience.dial, false),
            locals: BTreeMap::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            connect_deadlines: VecDeque::new(),
            connect_timeout: options.patience.connect,
            reports: Reports::new(edges, now),
            accept_errors: Limiter::new(now),
            next_local: 0,
            buffer: BytesMut::new(),
            started: now,
            now,
            stalled: Duration::ZERO,
            wake_at: Some(0),
            stop,
            stops: 0,
            drain_limit: options.patience.drain,
            drain_deadline: None,
            poll,
            reacher,
        })
    }

    /// Runs until the wish to stop is fulfilled.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_over() {
            let timeout = self.timeout();
            let due = timeout.map(|timeout| Instant::now() + timeout);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled.context("cannot wait for sockets")?,
            }
            self.now = Instant::now();
            if let Some(late) =
                due.and_then(|due| self.now.checked_duration_since(due)).filter(|late| *late > STALL)
            {
                self.stalled += late;
            }
            for event in &events {
                self.on_event(event);
            }
            self.expire();
            self.accept();
            self.work();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let empty = self.locals.is_empty() && self.reports.sessions() == 0;
        self.stops > 1 || self.drain_deadline.is_some_and(|deadline| empty || self.now >= deadline)
    }

    fn now_ns(&self) -> u64 {
        nanos(self.now.duration_since(self.started).saturating_sub(self.stalled))
    }

    fn timeout(&self) -> Option<Duration> {
        let listeners_wait = self.accepting.contains(&true) && self.locals.len() < LOCALS_MAX;
        if self.table.is_busy() || !self.ready.is_empty() || !self.inputs.is_empty() || listeners_wait {
            return Some(Duration::ZERO);
        }
        let wake = self.wake_at.map(|at| self.started + self.stalled + Duration::from_nanos(at));
        let connect = self.connect_deadlines.front().map(|(deadline, _)| *deadline);
        let next = [wake, connect, self.table.deadline(), self.drain_deadline].into_iter().flatten().min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn on_event(&mut self, event: &mio::event::Event) {
        match (event.token(), token::split(event.token())) {
            (token::WAKER, _) => self.begun(),
            (token::BOSS, _) => self.stopping(),
            (_, (LISTENER, number)) => {
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                self.accepting.get_mut(index).into_iter().for_each(|accepting| *accepting = true);
            }
            (_, (WIRE, number)) => self.table.on_event(number, event),
            (_, (CONNECTED, number)) => self.local_event(ConnectionId(number | ASKED), event),
            (_, (_, number)) => self.local_event(ConnectionId(number), event),
        }
    }

    fn local_event(&mut self, connection: ConnectionId, event: &mio::event::Event) {
        let Some(local) = self.locals.get_mut(&connection) else { return };
        if local.connecting {
            match local.socket.connected() {
                Ok(false) => return,
                Ok(true) => {
                    local.connecting = false;
                    self.inputs.push_back(In::Connected { connection });
                }
                Err(error) => {
                    self.locals.remove(&connection);
                    let reason = format!("cannot connect to the server: {error}");
                    return self.inputs.push_back(In::ConnectFailed { connection, reason });
                }
            }
        }
        let closed = event.is_read_closed() || event.is_error();
        local.ready(event.is_readable() || closed, closed);
        if local.wants_read() {
            self.ready.push_back(connection);
        }
        if event.is_writable() {
            self.dirty.push(connection);
        }
    }

    fn stopping(&mut self) {
        let wishes = Stop::take(&mut self.stop);
        if wishes > 0 && self.stops == 0 {
            info!("stopping: taking no new connections, waiting for {} sessions", self.reports.sessions());
            self.drain_deadline = Some(self.now + self.drain_limit);
            self.listeners.clear();
            self.accepting.clear();
            self.inputs.push_back(In::Drain);
        }
        self.stops += wishes;
    }

    /// Takes connections from listeners that have some, while there is room.
    fn accept(&mut self) {
        for index in 0..self.listeners.len() {
            while self.accepting[index] && self.locals.len() < LOCALS_MAX {
                match self.listeners[index].0.accept() {
                    Ok((stream, _)) => self.accepted(stream, index),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.accepting[index] = false,
                    Err(error) => {
                        // Out of descriptors, say: the connection stays in the queue and is tried again with the next.
                        self.accepting[index] = false;
                        if let Some(swallowed) = self.accept_errors.pass(self.now) {
                            warn!(%error, swallowed, "cannot take a client's connection");
                        }
                    }
                }
            }
        }
    }

    fn accepted(&mut self, stream: TcpStream, index: usize) {
        let connection = ConnectionId(self.next_local);
        self.next_local += 1;
        let app = self.listeners[index].1.clone();
        let inserted = Socket::tcp(stream).and_then(|socket| self.insert_local(connection, socket, false));
        if inserted.is_ok() {
            self.inputs.push_back(In::Accepted { connection, app });
        }
    }

    fn insert_local(
        &mut self,
        connection: ConnectionId,
        mut socket: Socket,
        connecting: bool,
    ) -> io::Result<()> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut socket, local_token(connection), interests)?;
        self.locals.insert(connection, Local::new(connection, socket, connecting));
        Ok(())
    }

    /// Gives up what takes too long.
    fn expire(&mut self) {
        self.table.expire(self.now);
        let now = self.now;
        while let Some((_, connection)) =
            self.connect_deadlines.pop_front_if(|(deadline, _)| *deadline <= now)
        {
            if self.locals.get(&connection).is_some_and(|local| local.connecting) {
                self.locals.remove(&connection);
                let reason = "the server did not answer in time".to_string();
                self.inputs.push_back(In::ConnectFailed { connection, reason });
            }
        }
    }

    /// Takes what there is, in batches: step, perform, then write it all at once.
    fn work(&mut self) {
        for _ in 0..BATCH {
            let Some(input) = self.next_input() else { break };
            self.step(input);
        }
        // After what has arrived, so that an edge is not taken for silent whose word was only not read yet.
        if self.wake_at.is_some_and(|at| at <= self.now_ns()) {
            self.wake_at = None;
            self.step(In::Wake);
        }
        // Writing to local sockets gives credit back, which then leaves with the rest.
        self.flush_locals();
        while let Some(input) = self.inputs.pop_front() {
            self.step(input);
        }
        self.table.flush();
    }

    fn next_input(&mut self) -> Option<In> {
        if let Some(input) = self.inputs.pop_front() {
            return Some(input);
        }
        if let Some((id, happened)) = self.table.next_happened() {
            return Some(self.happened(WireId(id), happened));
        }
        while let Some(connection) = self.ready.pop_front() {
            let Some(local) = self.locals.get_mut(&connection).filter(|local| local.wants_read()) else {
                continue;
            };
            let input = local.read(&mut self.buffer);
            if local.wants_read() {
                self.ready.push_back(connection);
            }
            if matches!(input, Some(In::Broken { .. })) {
                self.locals.remove(&connection);
            }
            if input.is_some() {
                return input;
            }
        }
        None
    }

    fn happened(&mut self, wire: WireId, happened: Happened<Target>) -> In {
        match happened {
            Happened::Up(target) => In::WireUp { wire, target },
            Happened::Frame(frame) => In::Frame { wire, frame },
            Happened::Down { error, stood: true, .. } => In::WireDown { wire, reason: error.to_string() },
            Happened::Down { error, stood: false, meta: target } => {
                In::DialFailed { target, reason: error.to_string() }
            }
        }
    }

    fn flush_locals(&mut self) {
        for connection in std::mem::take(&mut self.dirty) {
            let Some(local) = self.locals.get_mut(&connection) else { continue };
            match local.flush() {
                Ok(0) => {}
                Ok(bytes) => self.inputs.push_back(In::Written { connection, bytes }),
                Err(_) => {
                    self.locals.remove(&connection);
                    self.inputs.push_back(In::Broken { connection });
                    continue;
                }
            }
            if local.is_over() {
                self.locals.remove(&connection);
            }
        }
    }

    fn step(&mut self, input: In) {
        let mut outs = std::mem::take(&mut self.outs);
        self.agent.step(self.now_ns(), input, &mut outs);
        for out in outs.drain(..) {
            self.perform(out);
        }
        self.outs = outs;
    }

    fn perform(&mut self, out: Out) {
        match out {
            Out::Send { wire, frame } => self.table.send(wire.0, frame),
            Out::Write { connection, bytes } => self.with_local(connection, |local| local.push(bytes)),
            Out::Shutdown { connection } => self.with_local(connection, Local::shutdown),
            Out::Reading { connection, on } => {
                if let Some(local) = self.locals.get_mut(&connection) {
                    local.set_reading(on);
                    if local.wants_read() {
                        self.ready.push_back(connection);
                    }
                }
            }
            Out::Close { connection, reset: false } => self.with_local(connection, Local::close),
            Out::Close { connection, reset: true } => {
                if let Some(local) = self.locals.remove(&connection) {
                    // It is closed either way; at worst the peer is told of an end where there was a failure.
                    let _ = local.socket.reset_on_close();
                }
            }
            Out::Dial { target } => self.dial(target),
            Out::CloseWire { wire, .. } => {
                self.table.close(wire.0);
            }
            Out::Connect { connection, server } => self.connect(connection, &server),
            Out::WakeAt { now_ns } => self.wake_at = Some(now_ns),
            Out::Report(report) => self.reports.write(&report, self.now),
        }
    }

    /// Changes a local connection, and has it written to at the end of the batch.
    fn with_local(&mut self, connection: ConnectionId, change: impl FnOnce(&mut Local)) {
        if let Some(local) = self.locals.get_mut(&connection) {
            change(local);
            if self.dirty.last() != Some(&connection) {
                self.dirty.push(connection);
            }
        }
    }

    fn dial(&mut self, target: Target) {
        match self.reacher.wire(target) {
            Ok(None) => {}
            Ok(Some(wire)) => self.dialled(target, Ok(wire)),
            Err(error) => self.dialled(target, Err(error)),
        }
    }

    fn dialled(&mut self, target: Target, wire: anyhow::Result<Wire>) {
        let inserted = wire.and_then(|wire| {
            let token = |id| token::token(WIRE, id);
            Ok(self.table.insert(self.poll.registry(), token, wire, target, self.now)?)
        });
        if let Err(error) = inserted {
            self.inputs.push_back(In::DialFailed { target, reason: format!("{error:#}") });
        }
    }

    fn connect(&mut self, connection: ConnectionId, server: &str) {
        match self.reacher.server(connection, server) {
            Ok(None) => {}
            Ok(Some(socket)) => self.connecting(connection, Ok(socket)),
            Err(error) => self.connecting(connection, Err(error)),
        }
    }

    fn connecting(&mut self, connection: ConnectionId, socket: anyhow::Result<Socket>) {
        let inserted = socket.and_then(|socket| Ok(self.insert_local(connection, socket, true)?));
        match inserted {
            Ok(()) => self.connect_deadlines.push_back((self.now + self.connect_timeout, connection)),
            Err(error) => {
                let reason = format!("cannot connect to the server: {error:#}");
                self.inputs.push_back(In::ConnectFailed { connection, reason });
            }
        }
    }

    /// Takes what waited for names.
    fn begun(&mut self) {
        while let Some(begun) = self.reacher.next_begun() {
            match begun {
                Begun::Wire(target, wire) => self.dialled(target, wire.map(|wire| *wire)),
                Begun::Server(connection, socket) => self.connecting(connection, socket),
            }
        }
    }
}

fn config(options: &Options, host: HostId, edges: u16) -> Config {
    let patience = &options.patience;
    Config {
        host,
        servers: options.servers.iter().map(|(name, _)| name.clone()).collect(),
        edges,
        heartbeat_interval_ns: nanos(patience.heartbeat_interval),
        heartbeat_timeout_ns: nanos(patience.heartbeat_timeout),
        patience_ns: nanos(patience.no_edge),
        backoff_min_ns: nanos(patience.backoff_min),
        backoff_max_ns: nanos(patience.backoff_max),
        linger_ns: nanos(patience.linger),
        connect_timeout_ns: nanos(patience.connect),
    }
}
