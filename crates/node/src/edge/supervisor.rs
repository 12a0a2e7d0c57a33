//! The supervisor's loop: accepts connections and passes them to shards, carries messages between control and shards, and
//! restarts shards that die. Runs no cell and reads no frame: it stays responsive whatever guests do.
//!
//! ```text
//! Waker:     operators' questions, witnesses' answers, fetched images, the gate's sockets
//! SHARD n:   messages of shard n; the end of its socket is its death
//! LISTENER:  connections ─▶ GUEST: their preambles ─▶ verdict ─▶ descriptor to shard n
//! CONTROL:   stop requests
//! ```
//!
//! Everything is non-blocking except starting a process and waiting for one that was killed. What
//! to tell which shard is decided by the pure `Control`; here are the sockets, the processes and
//! the deadlines of questions.

use super::{
    AdminChannel, EdgeOptions, Fetch,
    admin_channel::Question,
    drain::{ANSWER_TIME, Drain, FIRST_TAG, Own},
    error::SupervisorError,
    fetcher::Fetcher,
    gate::Gate,
    pending::{Introduced, Outcome, PendingConnections, Rejected},
    processes::Process,
    recordings,
    setup::{FromProcess, ToProcess},
    witness::{Coordinating, Witnesses},
};
use crate::logging::{self, Receiver};
use marram_sandbox::set_latency_sensitive;
use marram_shard::{
    api::NoteLevel,
    control::{self, Control, ControlRequest},
};
use marram_transport::{
    LogLimiter, NotUnderstood, Preamble, PreambleAnswer, PreambleVerdict, StopSignal, WireAcceptor,
    cannot_listen, cannot_wait, random, token,
};
use marram_wire::id::HostId;
use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream, UnixStream},
};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, mpsc::SyncSender},
    thread,
    time::{Duration, Instant},
};
use tracing::{debug, error, info, warn};

const EVENTS: usize = 1024;
const LISTENER: u64 = 1;
const SHARD: u64 = 2;
const GUEST: u64 = 3;
/// How long after a failure it is tried again to accept connections.
const AGAIN: Duration = Duration::from_millis(100);
/// Most connections that are accepted before other events have their turn.
const ACCEPTS: usize = 64;

/// The state of the supervisor's thread.
pub(super) struct Supervisor {
    poll: Poll,
    control: Control,
    outs: Vec<control::ControlOutput>,
    messages: Vec<(FromProcess, Option<OwnedFd>)>,
    acceptor: WireAcceptor,
    listeners: Vec<TcpListener>,
    pending: PendingConnections,
    processes: Vec<Process>,
    admin: AdminChannel,
    fetcher: Fetcher,
    witnesses: Witnesses,
    /// By tag. An entry leaves with the answer, which the control gives at the latest when the
    /// question is overdue.
    replies: BTreeMap<u64, SyncSender<control::ControlAnswer>>,
    /// Deadlines of questions, in no order: each has a patience of its own.
    overdue: VecDeque<(Instant, u64)>,
    next_tag: u64,
    gate: Option<Gate>,
    rejections: LogLimiter,
    accept_errors: LogLimiter,
    /// When it is tried again to accept connections, which has failed.
    accept_again: Option<Instant>,
    /// Rate limiters for lines of control and shards: errors, warnings, news.
    notes: [LogLimiter; 3],
    stop: UnixStream,
    /// Stop requests so far: the first drains, the second ends at once.
    stops: usize,
    drain_limit: Duration,
    drain: Option<Drain>,
    /// When the last poll returned.
    now: Instant,
}

/// How many shards an edge has.
#[must_use]
pub fn shards(options: &EdgeOptions) -> u8 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if options.shards > 0 { options.shards } else { u8::try_from(cores).unwrap_or(u8::MAX) }
}

/// How long an edge must have been connected before sessions are rebalanced onto it, in milliseconds: a connection that breaks now and then
/// moves none.
const SETTLE_MS: u32 = 5_000;

/// How long sessions may move when the edge stops: what has not moved by then has the other half of the time to be opened elsewhere.
fn hand_over_ms(drain: Duration) -> u32 {
    u32::try_from(drain.as_millis() / 2).unwrap_or(u32::MAX)
}

/// What the control needs of the options. There may be peers to ask for images, and a coordinator.
fn control_config(
    options: &EdgeOptions,
    shards: u8,
    (peers, coordinator): (bool, bool),
) -> control::ControlConfig {
    control::ControlConfig {
        edge: options.name.clone(),
        shards,
        sessions_max: options.limits.sessions_max,
        recoveries_max: options.limits.recoveries_max,
        replay_ns_max: u64::try_from(options.limits.replay.as_nanos()).unwrap_or(u64::MAX),
        memory_max: options.limits.memory,
        grants: options.limits.grants.clone(),
        peers,
        coordinator,
        record_stops: options.stops.is_some(),
        checkpoints_max: options.limits.checkpoints_max,
        dials: options.standby.clone(),
        learns: options.standby_learns,
        addresses: options.addresses.clone(),
        hand_over_ms: hand_over_ms(options.limits.drain),
        settle_ms: SETTLE_MS,
        move_bytes_per_s: options.limits.move_bytes_per_s,
        heartbeat_ms: [options.timeouts.heartbeat_interval, options.timeouts.heartbeat_timeout]
            .map(|time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX)),
        sabotage: options.sabotage,
        policies: options.policies.clone(),
        whole: options.whole,
    }
}

impl Supervisor {
    /// Binds all sockets and prepares the shards.
    ///
    /// # Errors
    /// If an address cannot be bound, a directory cannot be written, or a certificate cannot be
    /// used. A shard that cannot be started is no error: it is tried again.
    pub(super) fn new(
        options: &EdgeOptions,
        admin: AdminChannel,
        (fetch, coordinating): (Option<Fetch>, Option<Coordinating>),
        stop: StopSignal,
    ) -> Result<Self, SupervisorError> {
        if options.secret.len() < 16 {
            return Err(SupervisorError::ShortSecret);
        }
        recordings::prepare(&options.recordings)
            .map_err(|error| SupervisorError::Recordings(options.recordings.clone(), error))?;
        let security = WireAcceptor::complete(&options.security)?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), token::WAKER)?;
        admin.waker.set(waker).map_err(|_| SupervisorError::ChannelTaken)?;
        let mut stop = UnixStream::from_std(stop.receiver);
        poll.registry().register(&mut stop, token::CONTROL, Interest::READABLE)?;
        let now = Instant::now();
        let shards = shards(options);
        let token = |shard: u8| token::token(SHARD, shard.into());
        let lines = logging::kept().map(Receiver::start).transpose().map_err(SupervisorError::LogLines)?;
        let lines = lines.map(Arc::new);
        let fetcher = Fetcher::new(fetch, Arc::clone(&admin.waker));
        let witnesses = Witnesses::new(coordinating, Arc::clone(&admin.waker));
        let known = (fetcher.has_peers(), witnesses.are_there());
        let control = Control::new(control_config(options, shards, known));
        let mut supervisor = Self {
            control,
            outs: Vec::new(),
            messages: Vec::new(),
            acceptor: WireAcceptor::new(&security)?,
            listeners: listen(options, &poll)?,
            pending: PendingConnections::new(options.limits.handshake, options.limits.half_open_max),
            processes: (0..shards)
                .map(|shard| Process::new((options, &security), (shard, token(shard)), lines.as_ref(), now))
                .collect(),
            gate: None,
            admin,
            fetcher,
            witnesses,
            replies: BTreeMap::new(),
            overdue: VecDeque::new(),
            next_tag: FIRST_TAG,
            rejections: LogLimiter::new(now),
            accept_errors: LogLimiter::new(now),
            accept_again: None,
            notes: [(); 3].map(|()| LogLimiter::new(now)),
            stop,
            stops: 0,
            drain_limit: options.limits.drain,
            drain: None,
            now,
            poll,
        };
        match options.open_roles() {
            Some((true, what)) => warn!("{what}"),
            Some((false, what)) => info!("{what}"),
            None => {}
        }
        // Shards first, so that the gate finds them.
        supervisor.start_processes();
        supervisor.gate = Gate::start(options, supervisor.admin.waker.clone())?;
        Ok(supervisor)
    }

    /// Runs until a requested stop is complete, or a stop is requested for the second time.
    ///
    /// On return all shards are gone. Sessions that were left continue elsewhere.
    pub(super) fn run(&mut self) -> Result<(), SupervisorError> {
        set_latency_sensitive();
        if let Some(gate) = &self.gate {
            self.step(control::ControlInput::Gate { host: gate.host });
        }
        // Questions may have come before there was a poll to wake.
        self.woken();
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_over() {
            self.start_processes();
            self.processes.iter_mut().for_each(Process::flush);
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled.map_err(cannot_wait)?,
            }
            self.now = Instant::now();
            for event in &events {
                self.on_event(event.token());
            }
            self.expire();
        }
        self.processes.iter_mut().try_for_each(Process::end).map_err(SupervisorError::EndShard)
    }

    fn is_over(&self) -> bool {
        self.stops > 1 || self.drain.as_ref().is_some_and(|drain| drain.is_over(self.now))
    }

    fn timeout(&self) -> Option<Duration> {
        let due = self.processes.iter().filter_map(Process::due).min();
        let overdue = self.overdue.iter().map(|(deadline, _)| *deadline).min();
        let drain = self.drain.as_ref().and_then(Drain::due);
        let next =
            [due, overdue, self.pending.deadline(), drain, self.accept_again].into_iter().flatten().min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn on_event(&mut self, token: Token) {
        let (kind, number) = token::split(token);
        let index = usize::try_from(number).expect("64-bit machines only");
        match (token, kind) {
            (token::WAKER, _) => self.woken(),
            (token::CONTROL, _) => self.stopping(),
            (_, LISTENER) => self.accept(index),
            (_, SHARD) => self.read_process(index),
            _ => {
                let outcome = self.pending.read(self.poll.registry(), number);
                self.settle(outcome);
            }
        }
    }

    fn start_processes(&mut self) {
        for index in 0..self.processes.len() {
            if self.processes[index].start_if_due(self.poll.registry(), self.now) {
                self.step(control::ControlInput::ShardUp { shard: shard_number(index) });
            }
        }
    }

    /// The messages of a dead shard are handled before its death is, in the order in which they
    /// were sent.
    fn read_process(&mut self, index: usize) {
        let Some(process) = self.processes.get_mut(index) else { return };
        let mut messages = std::mem::take(&mut self.messages);
        let alive = process.read(&mut messages, self.now);
        let shard = shard_number(index);
        for (message, descriptor) in messages.drain(..) {
            match message {
                FromProcess::Control(message) => {
                    self.step(control::ControlInput::FromShard { shard, message: *message });
                }
                FromProcess::Wire { shard } => self.join(shard, descriptor),
            }
        }
        self.messages = messages;
        if !alive {
            self.step(control::ControlInput::ShardDown { shard });
        }
    }

    /// Passes a wire of one shard on to another one. If that is not up, the wire breaks, and the first one dials again.
    fn join(&mut self, shard: u8, descriptor: Option<OwnedFd>) {
        // Each wire has an id of its own, as if its agent were new.
        let own = random().map(HostId);
        let (Some(process), Some(descriptor), Ok(own)) =
            (self.processes.get_mut(usize::from(shard)), descriptor, own)
        else {
            return;
        };
        process.send(&ToProcess::Wire { tls: false, own: Some(own) }, Some(descriptor));
    }

    /// Stops after `ACCEPTS`: a flood of connections must not delay the messages of shards.
    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            match self.listeners[index].accept() {
                Ok((stream, peer)) => self.enter(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if let Some(suppressed) = self.accept_errors.pass(self.now) {
                        warn!(%error, suppressed, "cannot accept a connection");
                    }
                    // The poll has reported the connection, and would not again until another one comes.
                    self.accept_again.get_or_insert(self.now + AGAIN);
                    return;
                }
            }
        }
        // The poll reports an event once; this makes it report again.
        let token = token::token(LISTENER, index as u64);
        let again = self.poll.registry().reregister(&mut self.listeners[index], token, Interest::READABLE);
        if let Err(error) = again
            && let Some(suppressed) = self.accept_errors.pass(self.now)
        {
            warn!(%error, suppressed, "a listener cannot be watched");
        }
    }

    fn enter(&mut self, stream: TcpStream, peer: SocketAddr) {
        let token = |id| token::token(GUEST, id);
        match self.pending.enter(self.poll.registry(), token, stream, peer, self.now) {
            Ok(None) => {}
            Ok(Some(evicted)) => self.settle(Outcome::Rejected(evicted, Rejected::TooMany)),
            Err(error) => debug!(%peer, %error, "a connection cannot be watched"),
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Waiting => {}
            Outcome::Rejected(peer, why) => self.rejected(peer, rejection(why)),
            Outcome::Introduced(Introduced { stream, peer, preamble: Ok(preamble) }) => {
                self.judge(stream, peer, preamble);
            }
            Outcome::Introduced(Introduced { mut stream, peer, preamble: Err(why) }) => {
                // A failed write does not matter: the connection closes now.
                let _ = stream.write(&PreambleAnswer::new(PreambleVerdict::Version).encode());
                self.rejected(peer, rejection(Rejected::NotUnderstood(why)));
            }
        }
    }

    fn rejected(&mut self, peer: SocketAddr, why: &str) {
        if let Some(suppressed) = self.rejections.pass(self.now) {
            warn!(%peer, why, suppressed, "connection refused");
        }
    }

    /// Answers, and passes the connection to its shard. The agent may send more as soon as it has
    /// the answer, so nothing may be read here from now on.
    fn judge(&mut self, mut stream: TcpStream, peer: SocketAddr, preamble: Preamble) {
        let local = |address: io::Result<SocketAddr>| {
            address.is_ok_and(|address| address.ip().to_canonical().is_loopback())
        };
        let loopback = local(stream.local_addr()) && local(stream.peer_addr());
        let index = usize::from(preamble.shard) % self.processes.len();
        let verdict = match self.acceptor.judge(preamble, loopback) {
            PreambleVerdict::Welcome if !self.processes[index].has_room() => PreambleVerdict::Busy,
            verdict => verdict,
        };
        let answer = PreambleAnswer::new(verdict);
        // Eight bytes into an empty socket buffer: a partial write is not possible.
        let sent = stream.write(&answer.encode());
        if verdict != PreambleVerdict::Welcome {
            return self.rejected(peer, &format!("{answer}"));
        }
        if sent.is_ok() {
            let wire = ToProcess::Wire { tls: preamble.tls, own: None };
            self.processes[index].send(&wire, Some(OwnedFd::from(stream)));
        }
    }

    /// Handles events of other threads: operators' questions, fetched images, sockets of the gate to pass on.
    fn woken(&mut self) {
        while let Ok(Question { request, patience, reply }) = self.admin.questions.try_recv() {
            match request {
                // The requester gets the answer before the process ends.
                ControlRequest::Drain => self.begin_drain(ANSWER_TIME),
                ControlRequest::CancelDrain if self.stops > 0 => {
                    let why = "a signal has told the edge to stop, and that cannot be cancelled";
                    let _ = reply.try_send(control::ControlAnswer::Refused(why.into()));
                    continue;
                }
                ControlRequest::CancelDrain => self.cancel_drain(),
                _ => {}
            }
            let tag = self.next_tag;
            self.next_tag += 1;
            self.replies.insert(tag, reply);
            self.overdue.push_back((self.now + patience, tag));
            self.step(control::ControlInput::Request { tag, request });
        }
        while let Some(answer) = self.witnesses.take() {
            self.step(answer);
        }
        while let Some((version, result)) = self.fetcher.take() {
            let result = result.map_err(|failure| failure.to_string());
            self.step(control::ControlInput::Fetched { version, result });
        }
        while let Some((host, (shard, socket))) =
            self.gate.as_ref().and_then(|gate| Some((gate.host, gate.sockets.try_recv().ok()?)))
        {
            let index = usize::from(shard) % self.processes.len();
            if self.processes[index].has_room() {
                let wire = ToProcess::Wire { tls: false, own: Some(host) };
                self.processes[index].send(&wire, Some(OwnedFd::from(socket)));
            }
        }
    }

    fn stopping(&mut self) {
        let signals = StopSignal::take(&mut self.stop, self.stops).stops;
        if signals > 0 && self.stops == 0 {
            self.begin_drain(Duration::ZERO);
            self.step(control::ControlInput::Request {
                tag: Own::Drain as u64,
                request: ControlRequest::Drain,
            });
            self.gate.iter().for_each(Gate::stop);
        }
        self.stops += signals;
    }

    /// For a drain that an operator asked for, the loop goes on for `at_least`, so that the answer
    /// can be sent.
    fn begin_drain(&mut self, at_least: Duration) {
        if self.drain.is_some() {
            return;
        }
        self.drain = Some(Drain::begin(self.now, at_least, self.drain_limit));
        self.ask_sessions(Own::Begun);
        // Its agent goes on: this drain may be cancelled.
        self.gate.iter().for_each(|gate| gate.accept(false));
    }

    /// The edge goes on, if an operator let it drain. The control answers, also if it does not drain.
    fn cancel_drain(&mut self) {
        if self.drain.take().is_some() {
            info!("the drain was cancelled: sessions that are still here stay, and new ones are accepted");
            self.gate.iter().for_each(|gate| gate.accept(true));
        }
    }

    /// The answer goes to `Drain::answered`, not to an operator.
    fn ask_sessions(&mut self, own: Own) {
        let tag = own as u64;
        self.overdue.push_back((self.now + ANSWER_TIME, tag));
        self.step(control::ControlInput::Request { tag, request: ControlRequest::Sessions });
    }

    fn expire(&mut self) {
        if self.accept_again.take_if(|at| *at <= self.now).is_some() {
            (0..self.listeners.len()).for_each(|index| self.accept(index));
        }
        while let Some(peer) = self.pending.expire(self.now) {
            self.rejected(peer, rejection(Rejected::Slow));
        }
        let now = self.now;
        while let Some(position) = self.overdue.iter().position(|(deadline, _)| *deadline <= now) {
            if let Some((_, tag)) = self.overdue.remove(position) {
                self.step(control::ControlInput::Overdue { tag });
            }
        }
        if self.drain.as_mut().is_some_and(|drain| drain.gives_up(now)) {
            self.ask_sessions(Own::Left);
        }
    }

    fn step(&mut self, input: control::ControlInput) {
        let mut outs = std::mem::take(&mut self.outs);
        self.control.step(input, &mut outs);
        for out in outs.drain(..) {
            self.perform(out);
        }
        self.outs = outs;
    }

    fn perform(&mut self, out: control::ControlOutput) {
        match out {
            control::ControlOutput::ToShard { shard, message } => {
                if let Some(process) = self.processes.get_mut(usize::from(shard)) {
                    process.send(&ToProcess::Control(Box::new(message)), None);
                }
            }
            control::ControlOutput::Answer { tag, answer } => {
                self.overdue.retain(|(_, other)| *other != tag);
                if let Some(drain) = self.drain.as_mut().filter(|_| tag < FIRST_TAG) {
                    drain.answered(tag, &answer);
                } else if let Some(reply) = self.replies.remove(&tag) {
                    // The requester may have stopped waiting.
                    let _ = reply.try_send(answer);
                }
            }
            control::ControlOutput::Fetch(version) => self.fetcher.start(version),
            control::ControlOutput::AskWitness { shard, seek } => self.witnesses.ask(shard, seek),
            control::ControlOutput::AskClaim { shard, claim } => self.witnesses.claim(shard, claim),
            control::ControlOutput::AskSlot { shard, query } => self.witnesses.slot(shard, query),
            control::ControlOutput::TellWitness(saw) => self.witnesses.tell(saw),
            control::ControlOutput::StoreSeen(seen) => self.witnesses.tell_store_seen(seen),
            control::ControlOutput::Log(level, text) => self.log(level, &text),
            // `self.drain` is set before the control gets the request.
            control::ControlOutput::Drained => self.drain.iter_mut().for_each(Drain::drained),
        }
    }
}

impl Supervisor {
    /// Logs a line. Guests and agents can cause many, so each level is rate-limited, except lines for programs.
    /// The limiters are those of levels, not of shards: one shard that has much to say hides the
    /// lines of others.
    fn log(&mut self, level: NoteLevel, text: &str) {
        let limiter = self.notes.get_mut(level as usize);
        let Some(suppressed) = limiter.map_or(Some(None), |limiter| limiter.pass(self.now)) else { return };
        match level {
            NoteLevel::Error => error!(suppressed, "{text}"),
            NoteLevel::Warning => warn!(suppressed, "{text}"),
            NoteLevel::Info => info!(suppressed, "{text}"),
            NoteLevel::Debug => debug!("{text}"),
        }
    }
}

/// Whether a supervisor logs [`NoteLevel::Debug`]; its shards have its levels.
pub(super) fn logs_debug() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

fn shard_number(index: usize) -> u8 {
    u8::try_from(index).expect("shards are counted in a byte")
}

fn listen(options: &EdgeOptions, poll: &Poll) -> Result<Vec<TcpListener>, SupervisorError> {
    let mut listeners = Vec::new();
    for address in &options.listen {
        let mut listener =
            TcpListener::bind(*address).map_err(|error| cannot_listen(address, "for agents", error))?;
        let token = token::token(LISTENER, listeners.len() as u64);
        poll.registry().register(&mut listener, token, Interest::READABLE)?;
        info!(address = %listener.local_addr()?, "listening for agents");
        listeners.push(listener);
    }
    Ok(listeners)
}

fn rejection(why: Rejected) -> &'static str {
    match why {
        Rejected::NotUnderstood(NotUnderstood::Garbage) => {
            "it is not an agent's: another program connects to this port"
        }
        Rejected::NotUnderstood(NotUnderstood::Version { .. }) => {
            "its agent and this edge have no wire version in common: upgrade the older of the two"
        }
        Rejected::Gone => "it closed before its first bytes were complete",
        Rejected::Slow => "its first bytes did not arrive in time",
        Rejected::TooMany => "too many connections have not sent their first bytes; it was the oldest",
    }
}
