//! The stages of one cell, seen from outside: an input goes in, and they run turn by turn until all are quiet.
//!
//! This module does not know what passes between stages; `host::hosts` does.
//!
//! States of a cell, by `underway` and `paused`:
//!
//! ```text
//! quiet (None, false) --begin--> (Some, false) --resume--> quiet          all stages are quiet
//!                                     ^   |--resume--> (Some, false)     slice over between two handlers
//!                                     |   '--resume--> (Some, true) --resume--> any of these
//! ```
//! A failure leaves the state undefined: the caller removes the cell.

use super::bug;
use super::live::{Live, Task, TaskOutcome, TaskSignal, task};
use crate::chain::Image;
use crate::host::{Blamed, Print, Window};
use crate::limits::REASON_BYTES_MAX;
use crate::watch::Watch;
use bytes::Bytes;
use marram_session::cell::{CellId, CellStop, Ran, Run, Seed};
use marram_wire::id::ImageHash;
use marram_wire::log::{Found, Read};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

/// The stages of one cell.
pub(super) struct Stages {
    /// Declared before `live`: dropping a handler in progress releases the instances first.
    task: Task,
    live: Rc<RefCell<Live>>,
    signal: Rc<TaskSignal>,
    /// Where handlers ask for what they read from the cache.
    window: Window,
    image: Arc<Image>,
    /// The cell whose input they have not finished.
    underway: Option<CellId>,
    /// Whether a stage is in the middle of a handler.
    paused: bool,
}

/// Why the cell ends, and what it had used until then. `spent_ns` is charged to the tenant although
/// the input had no effect.
pub(super) struct Failure {
    pub(super) stop: CellStop,
    pub(super) spent_ns: u64,
    pub(super) reads: Vec<Read>,
}

impl Stages {
    pub(super) fn new(image: Arc<Image>, live: Live) -> Self {
        let window = live.store.data().window().clone();
        let (live, signal) = (Rc::new(RefCell::new(live)), Rc::new(TaskSignal::default()));
        let task = task(Rc::clone(&live), Rc::clone(&signal));
        Self { task, live, signal, window, image, underway: None, paused: false }
    }

    /// Whether no stage has anything to do.
    pub(super) fn are_quiet(&self) -> bool {
        self.underway.is_none()
    }

    /// The key that a handler has just asked for and waits for.
    pub(super) fn wanted(&self) -> Option<Bytes> {
        self.window.wanted()
    }

    /// Brings what a handler waits for; [`Self::resume`] continues it.
    pub(super) fn found(&self, found: Found) {
        self.window.put(found);
    }

    /// The image that it was started from.
    pub(super) fn image(&self) -> ImageHash {
        self.image.hash()
    }

    /// The instances. Not borrowed while the stages are quiet.
    pub(super) fn live(&self) -> &RefCell<Live> {
        &self.live
    }

    /// Assigns the stages to another session, before their first input. Panics if a handler is in
    /// progress; a cell in a warm pool has none.
    pub(super) fn reseed(&self, seed: Seed) {
        self.live.borrow_mut().reseed(seed);
    }

    /// Takes an input from outside; [`Self::resume`] runs it. `run.now_ns` is what all handlers of
    /// this input observe as the time, in nanoseconds of session time.
    pub(super) fn begin(&mut self, run: Run) {
        self.underway = Some(run.cell);
        self.live.borrow_mut().store.data_mut().accept(run.input, run.now_ns, run.logged);
    }

    /// Runs handlers until all stages are quiet, or the slice is used up: then the result is `None`.
    ///
    /// `Ok(Some)` has the effects of the whole input. Until then they are kept in the cell and
    /// nothing of them may leave: an input takes effect as a whole or not at all.
    pub(super) fn resume(&mut self, watch: &Watch) -> Result<Option<Ran>, Failure> {
        watch.begin(self.paused);
        if !self.paused {
            self.signal.go();
        }
        // The task never completes; its signal says how far it came. A panic in an import is a bug in this program that a guest
        // found. It ends that guest and not the process, else the message that caused it would stop one edge after another.
        let resume = || self.task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(resume)) {
            let (at, spent_ns, reads) = self.live.try_borrow_mut().map_or((0, 0, Vec::new()), |mut live| {
                let hosts = live.store.data_mut();
                (hosts.at(), hosts.spent_ns(), hosts.take_reads())
            });
            return Err(Failure { stop: self.blame((at, CellStop::Kill(bug(&*panic)))), spent_ns, reads });
        }
        let outcome = self.signal.take_outcome();
        self.paused = outcome.is_none();
        match outcome {
            None | Some(TaskOutcome::ThroughSlice) => Ok(None),
            Some(TaskOutcome::ToRest) => {
                let cell = self.underway.take();
                Ok(cell.map(|cell| self.live.borrow_mut().store.data_mut().take_made(cell)))
            }
            Some(TaskOutcome::ToItsEnd(blamed)) => {
                let mut live = self.live.borrow_mut();
                let hosts = live.store.data_mut();
                let (spent_ns, reads) = (hosts.spent_ns(), hosts.take_reads());
                Err(Failure { stop: self.blame(blamed), spent_ns, reads })
            }
        }
    }

    /// Adds the name of the stage to the reason, if there are several stages.
    fn blame(&self, (at, stop): Blamed) -> CellStop {
        if self.image.stages.len() == 1 {
            return stop;
        }
        let name = self.image.stages.get(at).map_or("", |stage| &stage.name);
        let blame = |why: String| {
            let mut text = format!("stage {at} ({name}): {why}");
            text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
            text
        };
        match stop {
            CellStop::Trap(why) => CellStop::Trap(blame(why)),
            CellStop::Kill(why) => CellStop::Kill(blame(why)),
        }
    }

    /// What the stages printed since the last call.
    pub(super) fn take_prints(&mut self) -> Vec<Print> {
        self.live.borrow_mut().take_prints()
    }

    /// Ends all handlers and returns the instances. `None` only if something else still holds the
    /// instances, which nothing does.
    pub(super) fn into_live(self) -> Option<Live> {
        // Dropping a handler in progress releases the instances.
        drop(self.task);
        Rc::into_inner(self.live).map(RefCell::into_inner)
    }
}

impl Live {
    /// What the stages printed since the last call.
    pub(super) fn take_prints(&mut self) -> Vec<Print> {
        let mut prints = Vec::new();
        self.store.data_mut().stages().for_each(|host| prints.append(&mut host.prints));
        prints
    }
}
