//! The agent's loop: waits for sockets, calls `Agent::step`, and carries out its outputs. Decides nothing about sessions.
//!
//! ```text
//! wait ─▶ on_event (mark what may be ready) ─▶ accept ─▶ work ─▶ deferred log lines if idle ─▶ wait
//!
//! work:  up to BATCH inputs, and frames beside them, one a turn from each source: Agent::step ─▶ outputs are queued
//!        timeouts ─▶ Wake
//!        flush local sockets ─▶ Written inputs ─▶ step      (returns credit)
//!        flush wires                                       (one write for all frames of the batch)
//! ```
//!
//! Outputs are only queued during a batch: many messages then cost one system call a socket. The
//! batch is short enough that a message does not wait for long for its write.

mod arrivals;
mod browsers;

use super::{
    AgentError, AgentOptions,
    datagrams::{DATAGRAM_LISTENER, Datagrams, SERVER},
    dialled::{DialInto, Dialing, WireInput},
    edges::EdgeAddress,
    local::Local,
    locals::{ACCEPTED, CONNECTED, Locals},
    program::{ConnectHandle, ConnectionKind, Program},
    reports::Reports,
    routing::Routing,
    transport::{EdgeTransport, EndpointDialer, ServerError, ServerLink},
    trim::Trim,
    undecided::Undecided,
    websocket::WebSockets,
};
use marram_session::agent::{
    Agent, AgentConfig, AgentInput, AgentOutput, AgentReport, AgentServer, ConnectionId, Target,
};
use marram_transport::{
    Clock, IdleTasks, LogLimiter, StopRequests, StopSignal, WireTable, free_elsewhere, give_back, nanos,
    random, token,
};
use marram_wire::peer::Origin;
use mio::{
    Events, Interest, Poll, Waker,
    net::{TcpListener, UnixStream},
};
use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::info;

/// Inputs that are read before their outputs are written: what they hold is bounded.
const BATCH: usize = 256;
/// Inputs that are handled before their outputs are written, with frames. Many frames for one connection are one write then, and one
/// grant of credit: a cell that many clients share sends each message to all of them.
const BATCH_WITH_FRAMES: usize = 4_096;
/// Events of one poll; further ones come with the next.
const EVENTS: usize = 1024;
/// Sources of inputs: local connections, wires, browsers, datagrams.
const SOURCES: usize = 4;

const LISTENER: u64 = 1;
const WIRE: u64 = 2;
const _: () = {
    let kinds = [LISTENER, WIRE, ACCEPTED, CONNECTED, DATAGRAM_LISTENER, SERVER];
    let mut at = 0;
    while at < kinds.len() {
        assert!(kinds[at] == at as u64 + 1, "each kind of token is its own");
        at += 1;
    }
};

/// An agent with its sockets.
pub struct Shell {
    poll: Poll,
    agent: Agent,
    /// Empty between steps; kept for its capacity.
    outs: Vec<AgentOutput>,
    /// Inputs that the shell itself has found. They come before those of the sources, which can
    /// wait in their sockets.
    inputs: VecDeque<AgentInput>,
    dialer: EndpointDialer,
    /// With their indices in [`Routing::listeners`].
    listeners: Vec<(TcpListener, usize)>,
    /// The addresses of those that are closed for now, with the same indices.
    closed: Vec<(SocketAddr, usize)>,
    /// Whether a listener may have further connections to accept.
    accepting: Vec<bool>,
    /// When it is tried again to accept connections, or to listen, which has failed.
    again: Option<Instant>,
    table: WireTable<Target>,
    locals: Locals,
    datagrams: Datagrams,
    websockets: WebSockets,
    undecided: Undecided,
    routing: Routing,
    /// The source that is asked first for the next input.
    turn: usize,
    reports: Reports,
    accept_errors: LogLimiter,
    refusals: LogLimiter,
    clock: Clock,
    idle_tasks: IdleTasks,
    trim: Trim,
    /// Nanoseconds of the state machine's time; it names one instant at a time.
    wake_at: Option<u64>,
    stop: UnixStream,
    /// Stop requests so far: the first begins the drain, the second ends the loop at once.
    stops: usize,
    drain_limit: Duration,
    /// None before the first stop request.
    drain_deadline: Option<Instant>,
    /// The program that the agent is embedded in, if it has no own process.
    program: Option<Program>,
    /// Whether that program may have opened connections.
    asked: bool,
    waker: Arc<Waker>,
}

impl Shell {
    /// Binds the listeners and creates the loop's state.
    ///
    /// # Errors
    /// If an address cannot be bound, or the operating system has no descriptor, thread or random
    /// bytes left.
    pub(super) fn new(
        options: &AgentOptions,
        stop: StopSignal,
        transport: EdgeTransport,
        mut program: Option<Program>,
    ) -> Result<Self, AgentError> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), token::WAKER)?);
        let mut stop = UnixStream::from_std(stop.receiver);
        poll.registry().register(&mut stop, token::CONTROL, Interest::READABLE)?;
        let listeners = arrivals::listen(&poll, &options.routing)?;
        let now = Instant::now();
        let mut dialer = EndpointDialer::new(transport, &options.servers, Arc::clone(&waker))?;
        let own = program.as_mut().map(|program| std::mem::take(&mut program.servers)).unwrap_or_default();
        let own_servers: Vec<AgentServer> =
            own.iter().map(|(name, own)| own_server(name, own.kind)).collect();
        dialer.add(own);
        let edges = dialer.edges();
        let mut config = config(options, edges);
        config.servers.extend(own_servers);
        Ok(Self {
            agent: Agent::new(config, random()?),
            outs: Vec::new(),
            inputs: VecDeque::new(),
            accepting: vec![false; listeners.len()],
            again: None,
            closed: Vec::new(),
            listeners,
            table: WireTable::new(options.timeouts.dial, false),
            locals: Locals::new(options.timeouts.connect, options.timeouts.peer_unreachable, now),
            datagrams: Datagrams::bind(poll.registry(), &options.routing)?,
            websockets: WebSockets::new(options.timeouts.first_bytes, options.timeouts.peer_unreachable, now),
            undecided: Undecided::new(options.timeouts.first_bytes),
            routing: options.routing.clone(),
            turn: 0,
            reports: Reports::new(edges, now),
            accept_errors: LogLimiter::new(now),
            refusals: LogLimiter::new(now),
            clock: Clock::new(now),
            idle_tasks: IdleTasks::default(),
            trim: Trim::new(now),
            wake_at: Some(0),
            stop,
            stops: 0,
            drain_limit: options.timeouts.drain,
            drain_deadline: None,
            poll,
            dialer,
            program,
            asked: false,
            waker,
        })
    }

    /// The handle with which the embedding program opens connections, if there is one.
    pub(super) fn connect_handle(&self) -> Option<ConnectHandle> {
        self.program.as_ref().map(|program| program.connect_handle(Arc::clone(&self.waker)))
    }

    /// Runs until it has stopped.
    ///
    /// # Errors
    /// If waiting for sockets fails. Sessions then end as if the process had died.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_over() {
            let timeout = self.timeout();
            let waited = self.clock.wait(&mut self.poll, &mut events, timeout);
            // A signal, or an error; with an error the queued log lines are the last ones.
            if !waited.inspect_err(|_| self.reports.write(self.clock.now()))? {
                continue;
            }
            for event in &events {
                self.on_event(event);
            }
            self.accept();
            let is_quiet = !self.work() && events.is_empty();
            let waits = self.reports.wait() || self.must_trim();
            if self.idle_tasks.is_now(waits, is_quiet, self.clock.now()) {
                self.reports.write(self.clock.now());
                self.give_memory_back();
            }
        }
        self.reports.write(self.clock.now());
        Ok(())
    }

    /// Whether much memory was freed. Where the agent is embedded, the program's own memory is not touched.
    fn must_trim(&self) -> bool {
        self.program.is_none() && self.trim.is_due(self.agent.memory().kept, self.clock.now())
    }

    fn give_memory_back(&mut self) {
        if self.must_trim() {
            give_back();
            self.trim.done(self.agent.memory().kept, self.clock.now());
        }
    }

    /// Whether nothing was left to wait for at the end.
    ///
    /// False after [`Self::run`] if the end of the drain, or a second stop request, cut something
    /// off.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.locals.is_empty()
            && self.datagrams.is_empty()
            && self.websockets.is_empty()
            && self.reports.sessions() == 0
    }

    fn is_over(&self) -> bool {
        let empty = self.is_done();
        self.stops > 1 || self.drain_deadline.is_some_and(|deadline| empty || self.clock.now() >= deadline)
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// None if nothing is due: then only an event ends the wait. Zero while something can be done
    /// without an event.
    fn timeout(&self) -> Option<Duration> {
        let busy = self.table.is_busy()
            || self.locals.is_busy()
            || self.datagrams.is_busy()
            || self.websockets.is_busy();
        if busy || !self.inputs.is_empty() || self.can_accept() {
            return Some(Duration::ZERO);
        }
        let wake = self.wake_at.map(|at| self.clock.at(at));
        let silence = self.datagrams.due_ns().map(|at| self.clock.at(at));
        let locals = [self.locals.deadline(), self.locals.search_due()].into_iter().flatten().min();
        let browsers = self.websockets.deadline();
        let next = [
            wake,
            silence,
            locals,
            browsers,
            self.undecided.deadline(),
            self.table.deadline(),
            self.drain_deadline,
            self.again,
        ]
        .into_iter()
        .flatten()
        .min();
        let next = next.map(|at| at.saturating_duration_since(Instant::now()));
        [next, self.idle_tasks.timeout()].into_iter().flatten().min()
    }

    fn on_event(&mut self, event: &mio::event::Event) {
        match (event.token(), token::split(event.token())) {
            (token::WAKER, _) => {
                self.asked = self.program.is_some();
                self.take_dialed();
            }
            (token::CONTROL, _) => self.stopping(),
            (_, (LISTENER, number)) => {
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                self.accepting.get_mut(index).into_iter().for_each(|accepting| *accepting = true);
            }
            (_, (WIRE, number)) => self.table.on_event(number, event),
            (_, (kind @ (DATAGRAM_LISTENER | SERVER), number)) => {
                self.datagrams.on_event(kind, number, event)
            }
            (_, (ACCEPTED, number)) if WebSockets::is_ours(number) => self.websockets.on_event(number, event),
            (_, (kind, number)) => self.inputs.extend(self.locals.on_event(kind, number, event)),
        }
    }

    fn stopping(&mut self) {
        let StopRequests { stops: signals, accepts } = StopSignal::take(&mut self.stop, self.stops);
        if signals == 0 && self.stops == 0 {
            accepts.into_iter().for_each(|accepts| self.set_accepts(accepts));
        }
        if signals > 0 && self.stops == 0 {
            let (sessions, limit) = (self.reports.sessions(), self.drain_limit);
            let s = if sessions == 1 { "" } else { "s" };
            info!(
                "stopping: accepting no new connections, waiting for {sessions} session{s}, {limit:?} at most \
                 (`timeouts.drain`)"
            );
            self.drain_deadline = Some(self.clock.now() + self.drain_limit);
            // Accepts what the program opened before the stop.
            self.asked = true;
            self.accept_asked();
            self.listeners.clear();
            self.accepting.clear();
            (self.again, self.closed) = (None, Vec::new());
            self.inputs.push_back(AgentInput::Drain);
        }
        self.stops += signals;
    }

    /// Ends everything that has timed out.
    fn expire(&mut self) {
        self.table.expire(self.clock.now());
        while let Some(input) = self.locals.expire(self.clock.now()) {
            self.inputs.push_back(input);
        }
        self.locals.search_vanished(self.clock.now(), &mut self.inputs);
        while let Some(connection) = self.undecided.overdue(self.clock.now()) {
            self.ask(connection, true);
        }
        self.websockets.expire(self.clock.now(), &mut self.inputs);
        let now_ns = self.now_ns();
        while let Some(input) = self.datagrams.expire(now_ns) {
            self.inputs.push_back(input);
        }
    }

    /// Handles available inputs in batches: step, carry out, then write everything at once. Returns whether there were any.
    fn work(&mut self) -> bool {
        let (mut worked, mut left) = (false, BATCH);
        for _ in 0..BATCH_WITH_FRAMES {
            if left == 0 {
                break;
            }
            let Some(input) = self.next_input() else { break };
            left -= usize::from(!matches!(input, AgentInput::Frame { .. }));
            self.heard(input);
            worked = true;
        }
        // After the arrived frames are read, so that unread frames count as activity.
        self.expire();
        if self.wake_at.is_some_and(|at| at <= self.now_ns()) {
            self.wake_at = None;
            self.step(AgentInput::Wake);
            worked = true;
        }
        // Writing to local sockets returns credit, which is then sent with the rest.
        self.locals.flush(&mut self.inputs);
        self.datagrams.flush(self.now_ns(), &mut self.inputs);
        self.websockets.flush(self.clock.now(), &mut self.inputs);
        while let Some(input) = self.inputs.pop_front() {
            self.heard(input);
        }
        self.routing.note_dropped(self.agent.datagrams_dropped());
        let memory = self.agent.memory();
        self.routing.note_memory(memory);
        self.trim.note(memory.kept);
        self.table.flush();
        worked
    }

    fn next_input(&mut self) -> Option<AgentInput> {
        if let Some(input) = self.inputs.pop_front() {
            return Some(input);
        }
        // The source that gave the last input is asked last next time: no source waits until the others are empty, and none gets
        // extra turns because others are empty.
        for step in 0..SOURCES {
            let source = (self.turn + step) % SOURCES;
            let input = match source {
                0 => {
                    let agent = &self.agent;
                    self.locals.next_input(|connection| agent.may_read(connection))
                }
                1 => self.next_from_wires(),
                2 => self.next_from_browsers(),
                _ => self.next_datagram(),
            };
            if input.is_some() {
                self.turn = source + 1;
                return input;
            }
        }
        None
    }

    fn next_from_wires(&mut self) -> Option<AgentInput> {
        WireInput::next(&mut self.table).map(AgentInput::from)
    }

    /// Not recursive: no output makes an input at once; what fails is queued in `inputs`.
    fn step(&mut self, input: AgentInput) {
        let mut outs = std::mem::take(&mut self.outs);
        self.agent.step(self.now_ns(), input, &mut outs);
        for out in outs.drain(..) {
            self.perform(out);
        }
        self.outs = outs;
    }

    /// A connection belongs to one of three tables, which the guards ask for; ids of different
    /// tables never overlap. An output for a connection that has ended meanwhile finds nothing and
    /// has no effect.
    fn perform(&mut self, out: AgentOutput) {
        match out {
            AgentOutput::Send { wire, frame } => self.table.send(wire.0, frame),
            AgentOutput::Write { connection, .. }
            | AgentOutput::Shutdown { connection }
            | AgentOutput::Close { connection, .. }
                if self.datagrams.has(connection) =>
            {
                self.tell_datagrams(connection, out);
            }
            AgentOutput::Write { connection, .. }
            | AgentOutput::Shutdown { connection }
            | AgentOutput::Close { connection, .. }
            | AgentOutput::Reading { connection, .. }
                if self.websockets.has(connection) =>
            {
                self.tell_browser(connection, out);
            }
            AgentOutput::Write { connection, bytes } => {
                self.locals.change(connection, |local| local.push(bytes))
            }
            AgentOutput::Shutdown { connection } => self.locals.change(connection, Local::shutdown),
            AgentOutput::Reading { connection, on } => self.locals.set_reading(connection, on),
            AgentOutput::Close { connection, failure: None } => self.locals.change(connection, Local::close),
            AgentOutput::Close { connection, failure: Some(failure) } => {
                self.locals.reset(connection, failure)
            }
            AgentOutput::Free { bytes } => free_elsewhere(bytes),
            AgentOutput::Dial { target } => self.dial(target),
            AgentOutput::Learn { edge, address } => {
                self.reports.learned(edge, Some(&address), self.clock.now());
                self.dialer.learn(edge, &address);
            }
            AgentOutput::Forget { edge } => {
                self.reports.learned(edge, None, self.clock.now());
                self.dialer.forget(edge);
            }
            AgentOutput::CloseWire { wire, .. } => {
                self.table.close(wire.0);
            }
            AgentOutput::Connect { connection, server, origin } => {
                self.connect(connection, &server, origin.as_ref())
            }
            AgentOutput::WakeAt { now_ns } => self.wake_at = Some(now_ns),
            AgentOutput::Report(report) => self.report(report),
        }
    }

    /// Carries out an output for a conversation in datagrams.
    fn tell_datagrams(&mut self, connection: ConnectionId, out: AgentOutput) {
        match out {
            AgentOutput::Write { bytes, .. } => self.datagrams.push(connection, bytes),
            AgentOutput::Shutdown { .. } => self.datagrams.retire(self.now_ns(), connection),
            AgentOutput::Close { failure: None, .. } => self.datagrams.close(connection),
            _ => self.datagrams.remove(connection),
        }
    }

    /// Nothing happens now if the name must be resolved: `take_dialed` goes on.
    fn dial(&mut self, target: Target) {
        let into = wires(&mut self.table, &self.poll, self.clock.now());
        let failed = self.dialer.dial(target, into).err();
        self.inputs.extend(failed.map(AgentInput::from));
    }

    fn connect(&mut self, connection: ConnectionId, server: &str, origin: Option<&Origin>) {
        match self.dialer.server(connection, server, origin) {
            Ok(None) => {}
            Ok(Some(begun)) => self.connecting(connection, Ok(begun)),
            Err(error) => self.connecting(connection, Err(error)),
        }
    }

    fn connecting(&mut self, connection: ConnectionId, begun: Result<ServerLink, ServerError>) {
        let registry = self.poll.registry();
        let begun = begun.and_then(|begun| match begun {
            ServerLink::Stream(socket, head) => {
                self.locals.connect(registry, connection, socket, None, self.clock.now())?;
                if let Some(head) = head {
                    self.locals.change(connection, |local| local.push_head(head));
                }
                Ok(None)
            }
            ServerLink::Program(half) => {
                let (socket, close_state) = half.into_socket();
                self.locals.connect(registry, connection, socket, Some(close_state), self.clock.now())?;
                Ok(None)
            }
            ServerLink::Datagrams(socket) => {
                Ok(Some(self.datagrams.connected(registry, connection, socket)?))
            }
        });
        self.inputs.extend(begun.unwrap_or_else(|error| {
            let reason = format!("cannot connect to the server: {error}");
            Some(AgentInput::ConnectFailed { connection, reason })
        }));
    }

    /// The embedding program hears of each report at once and unlimited; the log later and limited.
    fn report(&mut self, report: AgentReport) {
        if let Some(program) = &mut self.program {
            let edge = match &report {
                AgentReport::EdgeUp { target, .. }
                | AgentReport::OtherDomain { target, .. }
                | AgentReport::EdgeDown { target, .. }
                | AgentReport::Owned { target, .. }
                | AgentReport::Waiting { target, .. } => self.reports.name(*target),
                _ => "",
            };
            (program.observe)(edge, &report);
        }
        self.reports.add(report);
    }

    /// Starts connections that waited for name resolution.
    fn take_dialed(&mut self) {
        loop {
            let into = wires(&mut self.table, &self.poll, self.clock.now());
            let Some(begun) = self.dialer.next_dialed(into) else { return };
            match begun {
                Dialing::Failed(failed) => self.inputs.push_back(failed.into()),
                Dialing::Server(connection, begun) => self.connecting(connection, begun),
            }
        }
    }
}

/// Where dialled wires go.
fn wires<'a>(table: &'a mut WireTable<Target>, poll: &'a Poll, now: Instant) -> DialInto<'a, Target> {
    DialInto { table, registry: poll.registry(), kind: WIRE, meta: |target| target, now }
}

fn server(server: &super::ServerSettings) -> AgentServer {
    AgentServer { name: server.name.clone(), datagrams: server.datagrams, messages: false }
}

/// A server that is the embedding program.
/// Messages are kept apart for datagrams too: both are one input each.
fn own_server(name: &str, kind: ConnectionKind) -> AgentServer {
    AgentServer {
        name: name.to_owned(),
        datagrams: kind == ConnectionKind::Datagrams,
        messages: kind.keeps_messages(),
    }
}

fn config(options: &AgentOptions, edges: &[EdgeAddress]) -> AgentConfig {
    let timeouts = &options.timeouts;
    AgentConfig {
        servers: options.servers.iter().map(server).collect(),
        // The own shards of an edge are one edge without an address.
        edges: u16::try_from(edges.len().max(1)).expect("the list of edges is bounded"),
        addresses: edges.iter().map(|edge| edge.name.clone()).collect(),
        learn: options.learn,
        spread: options.spread,
        heartbeat_interval_ns: nanos(timeouts.heartbeat_interval),
        heartbeat_timeout_ns: nanos(timeouts.heartbeat_timeout),
        edge_wait_ns: nanos(timeouts.edge_wait),
        backoff_min_ns: nanos(timeouts.backoff_min),
        backoff_max_ns: nanos(timeouts.backoff_max),
        linger_ns: nanos(timeouts.linger),
        failback_delay_ns: nanos(timeouts.failback_delay),
        connect_timeout_ns: nanos(timeouts.connect),
        checkpoints_max: options.limits.checkpoints_max,
        memory_max: options.limits.memory_max,
    }
}
