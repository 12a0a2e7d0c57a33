//! A shard process: one loop around `Shard::handle`, with the wires that the supervisor passes to it and the cells that it
//! runs. There is one busy thread in each address space.
//!
//! ```text
//! poll ─▶ events ─▶ timeouts, resolved names, answers of helper threads
//!   ▲                     │
//!   │     ┌───────────────▼───────────────────────────────────┐
//!   │     │ take_inputs (16) ─▶ handle ─▶ outputs queued      │ until 100 us of handlers, 500 us in all, or
//!   │     │ give_turns  (16) ─▶ handlers ─▶ Ran ─▶ handle     │ nothing is left; behind each 16 `settle`
//!   │     └───────────────┬───────────────────────────────────┘
//!   │                     ▼
//!   └── flush the supervisor's socket ◀─ free memory, prewarm if idle ◀─ flush wires
//! ```
//!
//! The numbers bound three waits: of an arrived frame for a poll, of a ready handler behind a flood
//! of frames, and of a finished output for its write. Nothing on this thread waits for a peer or a
//! disk; the worker's and sealer's queues have locks, held for a push or pop.

use super::{
    error::ShardError,
    executor::Executor,
    setup::{FromProcess, Setup, ToProcess},
    standing::Standing,
    supervisor,
};
use crate::logging;
use marram_agent::{DialFailed, DialInto, Dialing, EdgeTransport, EndpointDialer, edge_transport};
use marram_sandbox::set_latency_sensitive;
use marram_shard::{
    api::{
        Counted, Counter, FromShard, NoteLevel, Now, OWN_EDGE, ShardInput, ShardOutput, ShardWireId, Target,
        ToShard,
    },
    shard::Shard,
};
use marram_transport::{
    IdleTasks, IpcChannel, LogLimiter, Socket, Wire, WireAcceptor, WireError, WireEvent, WireTable,
    cannot_wait, random, token, wait_finely,
};
use marram_wire::{frame::Frame, id::HostId, seal::DomainSecret};
use mio::{
    Events, Interest, Poll, Waker,
    net::{TcpStream, UnixStream},
};
use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime},
};
use tracing::{debug, warn};

const EVENTS: usize = 1024;
const WIRE: u64 = 1;
/// Most inputs before handlers have their turns, and most turns before inputs are taken again: a peer that floods the wires
/// cannot keep handlers from running for long.
const INPUTS_BETWEEN_TURNS: usize = 16;
/// See [`INPUTS_BETWEEN_TURNS`].
const TURNS_BETWEEN_INPUTS: usize = 16;
/// After inputs and short handlers have taken this long, the loop polls for events.
const LOOK_AFTER: Duration = Duration::from_micros(500);
/// After handlers have run this long, output is flushed before the next one runs.
const FLUSH_AFTER: Duration = Duration::from_micros(100);
/// Wires with an unfinished handshake; further ones are closed.
const HANDSHAKES_MAX: usize = 1024;

/// The peer of a wire.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// It connected from this address; `None`: it comes from this edge itself, its gate or another shard.
    Accepted(Option<SocketAddr>),
    /// This shard dialled it.
    Dialled(Target),
}

/// The state of a shard process.
struct Process {
    poll: Poll,
    channel: IpcChannel,
    shard: Shard,
    executor: Executor,
    acceptor: WireAcceptor,
    /// Dials edges that this one is a standby of.
    dialer: Option<EndpointDialer>,
    table: WireTable<Origin>,
    inputs: VecDeque<ShardInput>,
    outs: Vec<ShardOutput>,
    started: Instant,
    /// When the last poll returned: the time of all steps until the next one.
    at: Instant,
    /// The same for the pure shard, with the machine's clock for what cells see.
    now: Now,
    /// How long handlers have run since the last flush.
    spent: Duration,
    /// The longest time between the end of a poll and the beginning of the next one: how long an event may have waited.
    pause_max: Duration,
    /// Whether a handler that may take long waits until the loop has polled.
    looks: bool,
    /// On the shard's clock, `Now::mono_ns`.
    wake_at: Option<u64>,
    /// Whether a confirmation is to be written: outputs of another edge wait for it, and it waits for no handler.
    is_awaited: bool,
    idle_tasks: IdleTasks,
    /// For lines that a peer can cause.
    failures: LogLimiter,
}

/// Runs a shard that talks to the supervisor over standard input, until the supervisor is gone.
///
/// # Errors
/// If it cannot start, or a system call fails; the supervisor then starts another.
pub(super) fn run() -> Result<(), ShardError> {
    // The supervisor decides when to stop: a signal to the whole process group must not end cells before. And a shard must not
    // outlive the supervisor, since its wires would belong to no edge.
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(io::Error::from)?;
    // Helper threads allocate what the one busy thread frees.
    crate::memory::use_single_arena();
    set_latency_sensitive();
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true).map_err(ShardError::NoSupervisor)?;
    let mut channel = IpcChannel::new(UnixStream::from_std(socket));
    let mut poll = Poll::new()?;
    poll.registry().register(channel.socket(), token::CONTROL, Interest::READABLE | Interest::WRITABLE)?;
    let Some(setup) = wait_for_setup(&mut poll, &mut channel)? else { return Ok(()) };
    Process::new(poll, channel, &setup)?.run()
}

/// Returns `None` if the supervisor is gone already.
/// Blocks, and handles nothing else: without the secret there is no shard.
fn wait_for_setup(poll: &mut Poll, channel: &mut IpcChannel) -> Result<Option<Setup>, ShardError> {
    let mut events = Events::with_capacity(8);
    loop {
        let open = channel.read()?;
        if let Some((body, lines)) = channel.next_message() {
            return match ToProcess::decode(body)? {
                ToProcess::Setup(setup) => {
                    lines.into_iter().for_each(|lines| logging::send_to(lines.into(), setup.shard));
                    Ok(Some(*setup))
                }
                other => Err(ShardError::TooEarly(format!("{other:?}"))),
            };
        }
        if !open {
            return Ok(None);
        }
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
    }
}

impl Process {
    fn new(poll: Poll, channel: IpcChannel, setup: &Setup) -> Result<Self, ShardError> {
        let waker = Arc::new(Waker::new(poll.registry(), token::WAKER)?);
        let transport = match &setup.standby[..] {
            [] if setup.standby_learns => Some(EdgeTransport::learning(&setup.standby_security())),
            [] => None,
            names => Some(edge_transport(&setup.standby_security(), names)),
        };
        let transport = transport.transpose().map_err(ShardError::Standby)?;
        let dialer = transport.map(|transport| EndpointDialer::new(transport, &[], Arc::clone(&waker)));
        let dialer = dialer.transpose()?;
        let at = Instant::now();
        Ok(Self {
            shard: Shard::new(DomainSecret::from_material(&setup.secret), random()?),
            executor: Executor::start(setup, waker)?,
            acceptor: WireAcceptor::new(&setup.security())?,
            dialer,
            table: WireTable::new(setup.handshake(), true),
            inputs: VecDeque::new(),
            outs: Vec::new(),
            started: at,
            at,
            now: Now { mono_ns: 0, unix_ns: 0 },
            spent: Duration::ZERO,
            pause_max: Duration::ZERO,
            looks: false,
            wake_at: None,
            is_awaited: false,
            idle_tasks: IdleTasks::default(),
            failures: LogLimiter::new(at),
            poll,
            channel,
        })
    }

    fn run(&mut self) -> Result<(), ShardError> {
        let mut events = Events::with_capacity(EVENTS);
        // Messages may have arrived together with the setup, and the poll does not report them again.
        let mut open = self.read_passage()?;
        while open {
            let timeout = wait_finely(&self.poll, self.timeout());
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled.map_err(cannot_wait)?,
            }
            self.read_clocks();
            for event in &events {
                match (event.token(), token::split(event.token())) {
                    (token::WAKER, _) => {}
                    (token::CONTROL, _) => open = self.read_passage()?,
                    (_, (_, number)) => self.table.on_event(number, event),
                }
            }
            self.table.expire(self.at);
            self.take_resolved();
            self.executor.take_answers(&mut self.inputs);
            let worked = self.work();
            self.executor.tend(self.at);
            self.executor.reclaim_memory();
            self.executor.copy_pieces(&mut self.inputs);
            let is_quiet =
                !worked && events.is_empty() && !self.executor.is_freeing() && !self.executor.is_copying();
            if self.idle_tasks.is_now(self.executor.is_prewarming(), is_quiet, self.at) && !self.is_busy() {
                self.executor.prewarm_one();
            }
            self.channel.flush()?;
            self.pause_max = self.pause_max.max(self.at.elapsed());
        }
        Ok(())
    }

    /// Unlike an agent's clock (`Clock` in `marram-transport`), this one goes on while the process
    /// cannot run: no time decides who owns a session. The machine's clock may be set back: session
    /// time never decreases (I22).
    fn read_clocks(&mut self) {
        self.at = Instant::now();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.now = Now {
            mono_ns: u64::try_from(self.at.duration_since(self.started).as_nanos()).unwrap_or(u64::MAX),
            unix_ns: i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX),
        };
    }

    /// Whether something can be done without another event.
    fn is_busy(&self) -> bool {
        self.table.is_busy() || !self.inputs.is_empty() || self.executor.is_busy()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.is_busy() || self.executor.is_freeing() || self.executor.is_copying() {
            return Some(Duration::ZERO);
        }
        let wake = self.wake_at.map(|at| self.started + Duration::from_nanos(at));
        let next = [wake, self.table.deadline()].into_iter().flatten().min();
        let next = next.map(|at| at.saturating_duration_since(Instant::now()));
        [next, self.idle_tasks.timeout()].into_iter().flatten().min()
    }

    /// Takes inputs, first those of earlier steps and of arrived data, so that the run queue knows every ready handler; then
    /// gives turns to handlers. Returns after some time of that, to poll again. The result is whether there was work.
    fn work(&mut self) -> bool {
        let mut worked = false;
        loop {
            let taken = self.take_inputs();
            if std::mem::take(&mut self.is_awaited) {
                self.table.flush();
            }
            if taken + self.give_turns() == 0 {
                break;
            }
            worked = true;
            if self.spent >= FLUSH_AFTER || self.looks || self.at.elapsed() >= LOOK_AFTER {
                break;
            }
        }
        self.spent = Duration::ZERO;
        // Only after reading what has arrived, so that unread data counts as activity.
        worked |= self.end_turn();
        self.looks &= self.executor.is_busy();
        worked
    }

    /// Passes on what was done until now: the epochs that are due end with it, and then all is written. Whether something was due.
    fn end_turn(&mut self) -> bool {
        let is_due = self.wake_at.take_if(|at| *at <= self.now.mono_ns).is_some();
        if is_due {
            self.handle(ShardInput::Wake);
            self.settle();
        }
        self.is_awaited = false;
        self.table.flush();
        is_due
    }

    /// Takes some inputs; returns how many.
    fn take_inputs(&mut self) -> usize {
        let mut taken = 0;
        while taken < INPUTS_BETWEEN_TURNS
            && let Some(input) = self.next_input()
        {
            self.handle(input);
            taken += 1;
        }
        if taken > 0 {
            self.settle();
        }
        taken
    }

    /// Gives some turns; returns how many.
    fn give_turns(&mut self) -> usize {
        let given = self.run_handlers();
        if given > 0 {
            self.settle();
        }
        given
    }

    fn run_handlers(&mut self) -> usize {
        for given in 0..TURNS_BETWEEN_INPUTS {
            if self.executor.next_may_be_long() {
                // Ready output does not wait for a long turn.
                self.end_turn();
                // Nor does data that arrived during other turns; but only before every other long turn: before each, a flood
                // would be processed twice as often as handlers run.
                self.looks = !self.looks && self.at.elapsed() >= FLUSH_AFTER;
                if self.looks {
                    return given;
                }
            }
            let Some((ran, spent)) = self.executor.next_turn() else { return given };
            if let Some(ran) = ran {
                // Before the shard handles it, and may take a checkpoint.
                if let Some(large) = self.executor.notice_size(ran.cell) {
                    self.handle(large);
                }
                self.handle(ShardInput::Ran(ran));
            }
            self.spent += spent;
            if self.spent >= FLUSH_AFTER {
                return given + 1;
            }
        }
        TURNS_BETWEEN_INPUTS
    }

    /// Inputs that this loop made come first; a standby cell is advanced only here, so that the
    /// step for it follows at once.
    fn next_input(&mut self) -> Option<ShardInput> {
        if let Some(input) = self.inputs.pop_front().or_else(|| self.executor.next_advanced()) {
            return Some(input);
        }
        loop {
            let (id, happened) = self.table.next_happened()?;
            let wire = ShardWireId(id);
            match happened {
                WireEvent::Up(Origin::Accepted(peer), Some(verified)) => {
                    let address = peer.map(|peer| peer.to_string());
                    return Some(ShardInput::WireUp { wire, verified, address });
                }
                // Only a wire that this side dialled comes up without verified facts.
                WireEvent::Up(Origin::Accepted(peer), None) => {
                    debug_assert!(false, "nothing was verified of the agent at {peer:?}");
                    self.table.close(id);
                }
                WireEvent::Up(Origin::Dialled(target), _) => {
                    return Some(ShardInput::Dialled { wire, target });
                }
                WireEvent::Frame(frame) => return Some(ShardInput::Frame { wire, frame }),
                WireEvent::Down { error, stood: false, meta: Origin::Dialled(target) } => {
                    return Some(ShardInput::DialFailed { target, reason: error.to_string() });
                }
                WireEvent::Down { stood: true, meta: Origin::Dialled(_), .. } => {
                    return Some(ShardInput::WireDown { wire });
                }
                WireEvent::Down { error, stood, meta: Origin::Accepted(peer) } => {
                    self.log_end(&error, stood, peer);
                    if stood {
                        return Some(ShardInput::WireDown { wire });
                    }
                }
            }
        }
    }

    /// The end of a wire that stood is normal: agents come and go. All else is for the operator.
    fn log_end(&mut self, error: &WireError, stood: bool, peer: Option<SocketAddr>) {
        let peer = peer.map_or_else(|| "own gate".to_string(), |peer| peer.to_string());
        match error {
            WireError::Closed | WireError::Io(_) if stood => debug!(%peer, %error, "wire closed"),
            _ => {
                if let Some(suppressed) = self.failures.pass(self.at) {
                    let what = if stood { "wire failed" } else { "wire refused" };
                    warn!(%peer, %error, suppressed, "{what}");
                }
            }
        }
    }

    /// Takes the supervisor's messages; false when it is gone.
    ///
    /// The executor must know an app before the shard does: the step for the same message may start
    /// a cell.
    fn read_passage(&mut self) -> Result<bool, ShardError> {
        let open = self.channel.read()?;
        while let Some((body, descriptor)) = self.channel.next_message() {
            match (ToProcess::decode(body)?, descriptor) {
                (ToProcess::Control(message), _) => {
                    let message = *message;
                    match &message {
                        // Also sent again to a shard that was restarted.
                        ToShard::Deploy(app) => {
                            self.executor.cache(&app.name, app.cache.as_ref());
                            self.executor.deployed(&app.name, Some(app.image));
                        }
                        ToShard::Know(app) => {
                            self.executor.cache_unless_known(&app.name, app.cache.as_ref());
                            self.executor.prepare(app.image);
                        }
                        ToShard::Undeploy(app) => self.executor.deployed(&app.name, None),
                        _ => {}
                    }
                    self.inputs.push_back(ShardInput::Control(message));
                }
                (ToProcess::Wire { tls, own }, Some(descriptor)) => self.take_wire(descriptor, tls, own),
                (ToProcess::Wire { .. }, None) => {
                    if let Some(suppressed) = self.failures.pass(self.at) {
                        warn!(
                            suppressed,
                            "a connection was lost on the way from the supervisor: is this process out of descriptors?"
                        );
                    }
                }
                (ToProcess::Setup(_), _) => return Err(ShardError::SetUpTwice),
            }
        }
        Ok(open)
    }

    /// The descriptor is closed if the wire cannot be taken: the agent sees its connection end.
    fn take_wire(&mut self, descriptor: OwnedFd, tls: bool, own: Option<HostId>) {
        let (peer, wire) = if own.is_some() {
            (None, Ok(Wire::trusted(Socket::Unix(UnixStream::from_std(descriptor.into())), own)))
        } else {
            let stream = TcpStream::from_std(descriptor.into());
            let peer = stream.peer_addr().ok();
            let socket = Socket::tcp(stream).map_err(WireError::from);
            (peer, socket.and_then(|socket| self.acceptor.accept(socket, tls)))
        };
        if self.table.handshakes() >= HANDSHAKES_MAX {
            return self.log_end(&WireError::TooMany, false, peer);
        }
        let inserted = wire.and_then(|wire| {
            let token = |id| token::token(WIRE, id);
            let origin = Origin::Accepted(peer);
            self.table.insert(self.poll.registry(), token, wire, origin, self.at).map_err(WireError::from)
        });
        if let Err(error) = inserted {
            self.log_end(&error, false, peer);
        }
    }

    fn dial(&mut self, target: Target) {
        if target.edge == OWN_EDGE {
            return self.dial_shard(target);
        }
        let Some(dialer) = &self.dialer else { return };
        let into = dialled_wires(&mut self.table, &self.poll, self.at);
        self.inputs.extend(dialer.dial(target, into).err().map(dial_failed));
    }

    /// A wire to another shard of this edge is a socket pair, of which the supervisor passes one end on.
    fn dial_shard(&mut self, target: Target) {
        let pair = std::os::unix::net::UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            let wire = Wire::trusted(Socket::Unix(UnixStream::from_std(ours)), None);
            let (token, origin) = (|id| token::token(WIRE, id), Origin::Dialled(target));
            self.table.insert(self.poll.registry(), token, wire, origin, self.at)?;
            Ok(OwnedFd::from(theirs))
        });
        match pair {
            Ok(theirs) => self.channel.send(&FromProcess::wire(target.shard), Some(theirs)),
            Err(error) => {
                self.inputs.push_back(ShardInput::DialFailed { target, reason: error.to_string() });
            }
        }
    }

    /// Takes wires that waited until the peer's name was resolved.
    fn take_resolved(&mut self) {
        let Some(dialer) = &self.dialer else { return };
        while let Some(Dialing::Failed(failed)) =
            dialer.next_dialed(dialled_wires(&mut self.table, &self.poll, self.at))
        {
            self.inputs.push_back(dial_failed(failed));
        }
    }

    fn handle(&mut self, input: ShardInput) {
        self.with_shard(|shard, now, outs| shard.handle(now, input, outs));
    }

    /// Behind all that was handled together: what is due is looked for once, since each look takes as long as an input does.
    fn settle(&mut self) {
        self.with_shard(|shard, now, outs| shard.settle(now, outs));
    }

    fn with_shard(&mut self, call: impl FnOnce(&mut Shard, Now, &mut Vec<ShardOutput>)) {
        let mut outs = std::mem::take(&mut self.outs);
        call(&mut self.shard, self.now, &mut outs);
        for out in outs.drain(..) {
            self.perform(out);
        }
        self.outs = outs;
    }

    /// Effects on the executor may answer at once by pushing inputs, which are taken in later
    /// steps.
    fn perform(&mut self, out: ShardOutput) {
        match out {
            ShardOutput::Send { wire, frame } => {
                self.is_awaited |= matches!(frame, Frame::Confirmed(_));
                self.table.send(wire.0, frame);
            }
            ShardOutput::Run(run) => self.executor.run(run),
            ShardOutput::CloseWire { wire } => {
                // The table does not report a close that was asked for; the shard counts on hearing
                // of each end.
                if self.table.close(wire.0).is_some() {
                    self.inputs.push_back(ShardInput::WireDown { wire });
                }
            }
            ShardOutput::Dial { target } => self.dial(target),
            ShardOutput::Learn { edge, address } => {
                self.dialer.iter_mut().for_each(|dialer| dialer.learn(edge, &address));
            }
            ShardOutput::Forget { edge } => self.dialer.iter_mut().for_each(|dialer| dialer.forget(edge)),
            ShardOutput::Start { cell, image, seed, app, session, place } => {
                self.executor.scheduling(cell, (app, session), place);
                self.executor.start_cell(cell, image, seed, &mut self.inputs);
            }
            ShardOutput::Restore { cell, session, image, keys, checkpoints, stands_by, app, place } => {
                self.executor.scheduling(cell, (app, Some(session)), place);
                if stands_by {
                    self.executor.stand_by(cell, Standing::new(session, image, keys.clone()));
                }
                self.executor.restore(cell, session, image, keys, checkpoints);
            }
            ShardOutput::Advance { cell, meta } => self.executor.advance(cell, meta, &mut self.inputs),
            ShardOutput::Copy { cell, base } => {
                // Ready output does not wait for the pause.
                self.table.flush();
                self.executor.copy(cell, base);
            }
            ShardOutput::Prepare { cell, base } => self.executor.prepare_copy(cell, base),
            ShardOutput::Checkpoint { cell, header, seal } => {
                self.executor.checkpoint(cell, header, seal, &mut self.inputs);
            }
            ShardOutput::Hash { cell } => self.executor.hash(cell),
            ShardOutput::Record { request, gathered, edge, unix_ns } => {
                self.executor.record(request, gathered, (edge, unix_ns), &mut self.inputs);
            }
            ShardOutput::Part { cell, bytes } => self.executor.part(cell, bytes, &mut self.inputs),
            ShardOutput::Remove { cell } => self.executor.remove(cell),
            ShardOutput::WakeAt { mono_ns } => self.wake_at = Some(mono_ns),
            ShardOutput::Control(FromShard::Counted(mut counted)) => {
                // The pure shard knows its own counters only. In several messages, since labels can
                // make them many.
                counted.counters.extend(self.executor.counters());
                let pause_us = usize::try_from(self.pause_max.as_micros()).unwrap_or(usize::MAX);
                counted.counters.push(Counter::gauge("pause_us_max", pause_us));
                for message in Counted::messages(counted.tag, counted.counters) {
                    self.channel.send(&FromProcess::control(&message), None);
                }
            }
            // Each session that ends has such a line: it is not worth a message if it is not logged.
            ShardOutput::Control(FromShard::Note(note))
                if note.level == NoteLevel::Debug && !supervisor::logs_debug() => {}
            ShardOutput::Control(FromShard::Note(mut note)) => {
                let session = note.session.filter(|_| note.guest);
                if let Some(words) = session.and_then(|session| self.executor.last_errors(session)) {
                    // Only for operators: the end got the reason without what the cell
                    // printed.
                    note.text += &format!("; it printed: {words}");
                }
                self.channel.send(&FromProcess::control(&FromShard::Note(note)), None);
            }
            ShardOutput::Control(message) => {
                self.channel.send(&FromProcess::control(&message), None);
            }
        }
    }
}

/// Where wires to other edges go.
fn dialled_wires<'a>(table: &'a mut WireTable<Origin>, poll: &'a Poll, now: Instant) -> DialInto<'a, Origin> {
    DialInto { table, registry: poll.registry(), kind: WIRE, meta: Origin::Dialled, now }
}

fn dial_failed(DialFailed { target, reason }: DialFailed) -> ShardInput {
    ShardInput::DialFailed { target, reason }
}
