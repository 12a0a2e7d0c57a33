//! The recorder's loop: waits for wires, calls `Recorder::step` and performs its outputs. Decides nothing about sessions.
//!
//! The order of a turn is that of an agent's loop: read, step, write. Files are written by another
//! thread, to which operations are only queued; no answer to an edge depends on them.

use super::{
    RecorderOptions,
    asking::{Question, Questions, RecorderMetric},
    disk::{self, Disk},
    error::RecorderError,
};
use marram_agent::{DialInto, Dialing, EdgeReports, EdgeTransport, EndpointDialer, WireInput};
use marram_session::{
    agent::Target,
    dialer,
    recorder::{Recorder, RecorderConfig, RecorderInput, RecorderOutput, RecorderReport, RecorderRow},
};
use marram_transport::{Clock, LogLimiter, StopSignal, WireTable, nanos, random, token};
use mio::{Events, Interest, Poll, Waker, net::UnixStream};
use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tracing::{debug, info, warn};

/// Most inputs that are taken before the outputs are written.
const BATCH: usize = 256;
const EVENTS: usize = 256;
const WIRE: u64 = 1;

/// A recorder with its wires.
pub(super) struct Shell {
    poll: Poll,
    recorder: Recorder,
    outs: Vec<RecorderOutput>,
    inputs: VecDeque<RecorderInput>,
    dialer: EndpointDialer,
    table: WireTable<Target>,
    disk: Option<Disk>,
    /// Files that could not be read at the start.
    refused_files: u64,
    questions: Questions,
    edges: EdgeReports,
    refusals: LogLimiter,
    recalls: LogLimiter,
    clock: Clock,
    wake_at: Option<u64>,
    stop: UnixStream,
    drain: Duration,
}

fn config(options: &RecorderOptions, edges: usize) -> RecorderConfig {
    let timeouts = &options.timeouts;
    RecorderConfig {
        name: options.name.clone(),
        key: options.key.clone(),
        dialer: dialer::DialerConfig {
            edges: u16::try_from(edges).expect("the list of edges is bounded"),
            heartbeat_interval_ns: nanos(timeouts.heartbeat_interval),
            heartbeat_timeout_ns: nanos(timeouts.heartbeat_timeout),
            backoff_min_ns: nanos(timeouts.backoff_min),
            backoff_max_ns: nanos(timeouts.backoff_max),
        },
        linger_ns: nanos(options.linger),
        memory: options.memory,
        sessions: options.sessions,
        store: options.directory.is_some(),
    }
}

impl Shell {
    /// Reads what is on disk and prepares the loop.
    pub(super) fn new(
        options: &RecorderOptions,
        questions: Questions,
        stop: StopSignal,
        transport: EdgeTransport,
    ) -> Result<Self, RecorderError> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), token::WAKER)?);
        let mut stop = UnixStream::from_std(stop.receiver);
        poll.registry().register(&mut stop, token::CONTROL, Interest::READABLE)?;
        let dialer = EndpointDialer::new(transport, &[], Arc::clone(&waker))?;
        // Set only once, since there is one loop.
        let _ = questions.waker.set(waker);
        let now = Instant::now();
        let edges = EdgeReports::new(dialer.edges(), now);
        let mut recorder = Recorder::new(config(options, dialer.edges().len()), 0, random()?);
        let (mut disk, mut refused_files) = (None, 0);
        if let Some(directory) = &options.directory {
            refused_files = disk::load(directory, |session, frames| recorder.restore(0, session, frames))
                .map_err(|error| RecorderError::Directory(directory.clone(), error))?;
            disk = Some(Disk::start(directory, now)?);
        }
        Ok(Self {
            recorder,
            outs: Vec::new(),
            inputs: VecDeque::new(),
            dialer,
            // It always reads: an edge that waits for this recorder to read may itself not read.
            table: WireTable::new(options.timeouts.dial, false),
            disk,
            refused_files,
            questions,
            edges,
            refusals: LogLimiter::new(now),
            recalls: LogLimiter::new(now),
            clock: Clock::new(now),
            wake_at: Some(0),
            stop,
            drain: options.timeouts.drain,
            poll,
        })
    }

    /// Runs until a stop is requested.
    pub(super) fn run(mut self) -> Result<(), RecorderError> {
        let mut events = Events::with_capacity(EVENTS);
        let mut stops = 0;
        info!(edges = self.dialer.edges().len(), "recording");
        while stops == 0 {
            let timeout = self.timeout();
            if !self.clock.wait(&mut self.poll, &mut events, timeout)? {
                continue;
            }
            for event in &events {
                match (event.token(), token::split(event.token())) {
                    (token::WAKER, _) => self.begun(),
                    (token::CONTROL, _) => stops += StopSignal::take(&mut self.stop, stops).stops,
                    (_, (WIRE, number)) => self.table.on_event(number, event),
                    _ => {}
                }
            }
            self.table.expire(self.clock.now());
            self.work();
        }
        self.end();
        Ok(())
    }

    /// Edges hear it first, so that they do not feed a recorder which no longer listens.
    fn end(mut self) {
        info!(sessions = self.recorder.session_count(), "stopping");
        self.step(RecorderInput::Stop);
        self.table.flush();
        if let Some(disk) = self.disk.take()
            && !disk.finish(self.drain)
        {
            warn!("not all of what was kept is on disk: `timeouts.drain` is over");
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.table.is_busy() || !self.inputs.is_empty() {
            return Some(Duration::ZERO);
        }
        let wake = self.wake_at.map(|at| self.clock.at(at));
        let next = [wake, self.table.deadline()].into_iter().flatten().min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Takes inputs in batches: steps, performs the outputs, then writes all of them at once.
    fn work(&mut self) {
        for _ in 0..BATCH {
            let Some(input) = self.next_input() else { break };
            self.step(input);
        }
        // Only after reading what has arrived, so that unread data counts as activity.
        if self.wake_at.is_some_and(|at| at <= self.clock.now_ns()) {
            self.wake_at = None;
            self.step(RecorderInput::Wake);
        }
        self.table.flush();
        while let Ok(question) = self.questions.asked.try_recv() {
            self.answer(&question);
        }
    }

    fn next_input(&mut self) -> Option<RecorderInput> {
        if let Some(input) = self.inputs.pop_front() {
            return Some(input);
        }
        WireInput::next(&mut self.table).map(RecorderInput::from)
    }

    fn step(&mut self, input: RecorderInput) {
        let mut outs = std::mem::take(&mut self.outs);
        self.recorder.step(self.clock.now_ns(), input, &mut outs);
        for out in outs.drain(..) {
            match out {
                RecorderOutput::Send { wire, frame } => self.table.send(wire.0, frame),
                RecorderOutput::Dial { target } => self.dial(target),
                RecorderOutput::CloseWire { wire, .. } => {
                    self.table.close(wire.0);
                }
                RecorderOutput::Store { session, store } => {
                    if let Some(disk) = &mut self.disk {
                        disk.store(self.clock.now(), session, store);
                    }
                }
                RecorderOutput::WakeAt { now_ns } => self.wake_at = Some(now_ns),
                RecorderOutput::Report(report) => self.report(&report),
            }
        }
        self.outs = outs;
    }

    fn dial(&mut self, target: Target) {
        let into = wires(&mut self.table, &self.poll, self.clock.now());
        let failed = self.dialer.dial(target, into).err();
        self.inputs.extend(failed.map(RecorderInput::from));
    }

    /// Takes wires that waited until the edge's name was resolved.
    fn begun(&mut self) {
        let now = self.clock.now();
        while let Some(Dialing::Failed(failed)) =
            self.dialer.next_dialed(wires(&mut self.table, &self.poll, now))
        {
            self.inputs.push_back(failed.into());
        }
    }

    /// Logs a report. Each one is a line at debug level, for programs; the lines for people are other ones, which are
    /// rate-limited.
    fn report(&mut self, report: &RecorderReport) {
        let now = self.clock.now();
        match report {
            RecorderReport::EdgeUp { target, name } => {
                debug!(
                    event = "edge_up",
                    edge = self.edges.name(*target),
                    shard = target.shard,
                    name,
                    "report"
                );
                self.edges.up(*target, name, now);
            }
            RecorderReport::EdgeDown { target, reason, suspected } => {
                let edge = self.edges.name(*target);
                debug!(event = "edge_down", edge, shard = target.shard, reason, suspected, "report");
                self.edges.down(*target, reason, *suspected, now);
            }
            RecorderReport::Kept { session, app, generation, target } => {
                let (edge, shard) = (self.edges.name(*target), target.shard);
                debug!(event = "recorded", %session, app, %generation, edge, shard, "report");
            }
            RecorderReport::Refused { session, code, reason } => {
                debug!(event = "refused", %session, ?code, reason, "report");
                if let Some(suppressed) = self.refusals.pass(now) {
                    warn!(%session, ?code, %reason, suppressed, "a session is not kept");
                }
            }
            RecorderReport::Recalled { session, target, bytes } => {
                let (edge, shard) = (self.edges.name(*target), target.shard);
                debug!(event = "recalled", %session, edge, shard, bytes, "report");
                if let (Some(bytes), Some(suppressed)) = (bytes, self.recalls.pass(now)) {
                    info!(%session, edge, shard, bytes, suppressed, "a session was recalled");
                }
            }
            RecorderReport::Forgotten { session, lingered } => {
                debug!(event = "forgotten", %session, lingered, "report");
            }
        }
    }

    fn answer(&self, question: &Question) {
        // The requester may have stopped waiting.
        match question {
            Question::Figures(reply) => drop(reply.try_send(self.figures())),
            Question::Sessions(reply) => {
                let name = |row: &RecorderRow| row.target.map(|target| self.edges.name(target).to_owned());
                let rows = self.recorder.sessions().map(|row| {
                    let name = name(&row);
                    (row, name)
                });
                drop(reply.try_send(rows.collect()));
            }
        }
    }

    fn figures(&self) -> Vec<RecorderMetric> {
        let gauge = |name, value| RecorderMetric { name, value, gauge: true };
        let count = |name, value| RecorderMetric { name, value, gauge: false };
        let counts = self.recorder.counts();
        let mut figures = vec![
            gauge("sessions", self.recorder.session_count() as u64),
            gauge("sessions_without_feed", self.recorder.without_feed_count() as u64),
            gauge("kept_bytes", self.recorder.kept_bytes()),
            gauge("wires", self.recorder.wire_count() as u64),
            count("inputs_total", counts.fed),
            count("input_bytes_total", counts.fed_bytes),
            count("checkpoints_total", counts.checkpoints),
            count("recalls_total", counts.recalled),
            count("recalls_unknown_total", counts.unknown),
            count("refused_total", counts.refused),
        ];
        if let Some(disk) = &self.disk {
            let disk = disk.figures();
            figures.extend([
                gauge("disk_waiting_bytes", disk.waiting.load(Ordering::Relaxed)),
                count("disk_bytes_total", disk.written.load(Ordering::Relaxed)),
                count("disk_skipped_total", disk.skipped.load(Ordering::Relaxed)),
                count("disk_failed_total", disk.failed.load(Ordering::Relaxed)),
                count("disk_files_refused_total", self.refused_files),
            ]);
        }
        figures
    }
}

/// Where dialled wires go.
fn wires<'a>(table: &'a mut WireTable<Target>, poll: &'a Poll, now: Instant) -> DialInto<'a, Target> {
    DialInto { table, registry: poll.registry(), kind: WIRE, meta: |target| target, now }
}
