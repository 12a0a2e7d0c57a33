//! Plays a recording: the inputs of a session's cell, in order, on any machine that has the image.
//!
//! Pure, as an owner is: it returns the handler to run and takes its result. Knows no edge, no end and no keys.

mod cursor;
mod gathered;
mod peers;

pub(crate) use cursor::{
    Consumed, Handler, LogReplayError, ReplayCursor, Step, follow, opens, port_handlers,
};
pub(crate) use gathered::newest;
pub use gathered::{AssembleError, Gathered, OwnKept, Shown};

use crate::{
    cell::{CellId, CellImage, CellInput, CellOutput, CellStop, Ran, Run, RunOutcome, Seed},
    schedule::{Tasks, Timers},
};
use alloc::{string::String, vec::Vec};
use core::fmt;
use marram_wire::{
    header::{Lock, Task},
    id::Port,
    log::{Cursor, Event},
    recording::Recording,
};
use peers::Peers;

/// The initial state of the cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayStart {
    /// The image, with this seed.
    Seed(Seed),
    /// The recording's checkpoints.
    Checkpoints,
}

/// A handler to run, and its place in the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Next {
    /// The entry, counted from 0.
    pub entry: u64,
    /// The handler.
    pub run: Run,
    /// Whether it is the handler that was stopped when the recording was made.
    pub stopped: bool,
}

/// The result of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepResult {
    /// The handler finished; its entry has more handlers.
    Handler,
    /// The handler finished, and so did its entry.
    Entry,
    /// The handler was stopped as in the recording, for this reason. The recording ends here.
    Stopped(String),
}

/// Why a recording cannot be played, or not any further.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlayError {
    /// It does not contain the payloads.
    Redacted,
    /// It contains neither a checkpoint nor the session's start.
    Empty,
    /// Its parts do not fit together.
    Inconsistent,
    /// A handler behaved differently than in the session.
    Diverged {
        /// The entry, counted from 0.
        entry: u64,
        /// The difference, for people.
        how: String,
    },
}

impl fmt::Display for PlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redacted => f.write_str(
                "the record file is redacted: it contains no messages; record the session without --redact to run it",
            ),
            Self::Empty => f.write_str("the recording has neither a beginning nor a checkpoint: nothing had happened yet"),
            Self::Inconsistent => f.write_str("the recording's log, messages and checkpoint do not fit together"),
            Self::Diverged { entry, how } => {
                write!(f, "the replay diverged from the session at entry {entry}: {how}")
            }
        }
    }
}

impl core::error::Error for PlayError {}

/// A player, which replays a recording through a cell.
#[derive(Debug)]
pub struct Player {
    cell: CellId,
    image: CellImage,
    beginning: ReplayStart,
    cursor: ReplayCursor,
    /// The stopped handler, which runs after the log.
    stop: Option<ReplayCursor>,
    stopping: bool,
    peers: Peers,
    timers: Timers,
    tasks: Tasks,
    entry: u64,
}

impl Player {
    /// Starts at the beginning of the recording, for a cell with this id.
    ///
    /// # Errors
    /// If it is redacted or empty.
    pub fn new(recording: &Recording, cell: CellId) -> Result<Self, PlayError> {
        if recording.about.redacted {
            return Err(PlayError::Redacted);
        }
        let header = recording.header.as_ref();
        let cursor = Cursor { last_ns: header.map_or(0, |header| header.last_ns) };
        let mut end = cursor;
        let mut rest = recording.log.clone();
        let mut seed = None;
        let mut read = |cursor: &mut Cursor, from: &mut bytes::Bytes| {
            let entry = cursor.take(from).map_err(|_| PlayError::Inconsistent)?;
            if let Event::Start { seed: drawn, .. } = entry.event {
                seed = Some(Seed(drawn));
            }
            Ok(())
        };
        while !rest.is_empty() {
            read(&mut end, &mut rest)?;
        }
        let stop = recording.stop.as_ref().map(|stop| stop.entry.clone());
        if let Some(mut entry) = stop.clone() {
            read(&mut end.clone(), &mut entry)?;
        }
        let beginning = match (header, seed) {
            (Some(_), _) => ReplayStart::Checkpoints,
            (None, Some(seed)) => ReplayStart::Seed(seed),
            (None, None) => return Err(PlayError::Empty),
        };
        Ok(Self {
            cell,
            image: recording.about.image,
            beginning,
            cursor: ReplayCursor::new(recording.log.clone(), cursor),
            stop: stop.map(|entry| ReplayCursor::new(entry, end)),
            stopping: false,
            peers: Peers::new(recording),
            timers: header
                .map_or_else(Timers::default, |header| Timers::restore(header.timers_set, &header.timers)),
            tasks: header.map_or_else(Tasks::default, |header| Tasks::restore(&header.tasks, &header.locks)),
            entry: 0,
        })
    }

    /// The cell's image.
    #[must_use]
    pub fn image(&self) -> CellImage {
        self.image
    }

    /// The initial state of the cell.
    #[must_use]
    pub fn beginning(&self) -> ReplayStart {
        self.beginning
    }

    /// How many entries the cell has consumed.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entry
    }

    /// The timers that are set: stage, token, and when each is due in session time, in nanoseconds.
    #[must_use]
    pub fn timers(&self) -> Vec<(u8, u64, i64)> {
        self.timers.to_header().1.0.iter().map(|timer| (timer.stage, timer.token, timer.due_ns)).collect()
    }

    /// The run queue of tasks, in order, and the locks that are held.
    #[must_use]
    pub fn tasks(&self) -> (Vec<Task>, Vec<Lock>) {
        let (tasks, locks) = self.tasks.to_header();
        (tasks.0, locks.0)
    }

    /// The next handler; none at the end of the recording. Run it and pass its result to [`Self::ran`] before the next call.
    ///
    /// # Errors
    /// If the parts of the recording do not fit together.
    pub fn next_handler(&mut self) -> Result<Option<Next>, PlayError> {
        loop {
            let (peers, timers, tasks) = (&mut self.peers, &mut self.timers, &mut self.tasks);
            let step = self.cursor.next_step(|event| inputs_of(event, peers, timers, tasks));
            match step.map_err(|_| PlayError::Inconsistent)? {
                Step::Run(Handler { input, now_ns, reads }) => {
                    let run = Run { cell: self.cell, input, now_ns, logged: Some(reads) };
                    return Ok(Some(Next { entry: self.entry, run, stopped: self.stopping }));
                }
                // A handler that was stopped is the first of its entry, or follows another one.
                Step::Entry if self.stopping => return Err(PlayError::Inconsistent),
                Step::Entry => {
                    self.entry += 1;
                    continue;
                }
                Step::End => {}
            }
            let Some(stop) = self.stop.take() else { return Ok(None) };
            self.cursor = stop;
            self.stopping = true;
        }
    }

    /// Takes the result of the handler.
    ///
    /// # Errors
    /// If the result differs from the session.
    pub fn ran(&mut self, ran: &Ran) -> Result<StepResult, PlayError> {
        let entry = self.entry;
        let diverged = |how: String| Err(PlayError::Diverged { entry, how });
        match (&ran.outcome, self.stopping) {
            (RunOutcome::Idle, _) => {}
            (RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)), true) => {
                return Ok(StepResult::Stopped(reason.clone()));
            }
            (RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)), false) => {
                return diverged(alloc::format!("the handler was stopped: {reason}"));
            }
        }
        let now_ns = self.cursor.now_ns();
        let whole = match self.cursor.ran(ran.clock_read, &ran.reads) {
            Ok(whole) => whole,
            Err(LogReplayError::Clock) => return diverged("the handler read the clock".into()),
            Err(LogReplayError::Reads) => {
                return diverged("the handler read something else from the cache".into());
            }
            Err(_) => return Err(PlayError::Inconsistent),
        };
        for change in &ran.timers {
            self.timers.change(now_ns, *change);
        }
        if let Err(why) = self.tasks.change(&ran.tasks) {
            return diverged(why);
        }
        for output in &ran.outputs {
            match output {
                CellOutput::Close { port } => self.peers.close_output(*port),
                CellOutput::Connect { port, .. } => self.peers.connect(*port),
                CellOutput::Message { .. } | CellOutput::Pause { .. } | CellOutput::Resume { .. } => {}
            }
        }
        if !whole {
            return Ok(StepResult::Handler);
        }
        if self.stopping {
            return diverged("the handler that was stopped in the session completed".into());
        }
        self.peers.entry_ended();
        self.entry += 1;
        Ok(StepResult::Entry)
    }

    /// Whether a peer still receives; output to a peer that does not was dropped.
    #[must_use]
    pub fn hears(&self, port: Port) -> bool {
        self.peers.hears(port)
    }
}

/// The handlers that an event runs, in reverse order; none if what it consumes does not exist.
fn inputs_of(
    event: Event,
    peers: &mut Peers,
    timers: &mut Timers,
    tasks: &mut Tasks,
) -> Option<Vec<CellInput>> {
    Some(match event {
        Event::Message(port) => alloc::vec![peers.take(port)?],
        Event::Timer => alloc::vec![timers.fire()?],
        Event::Task => alloc::vec![tasks.next()?],
        Event::Start { peers: said, .. } => opens(peers.at_the_start(), &said),
        Event::Port(event) => peers.port_event(&event)?,
    })
}
