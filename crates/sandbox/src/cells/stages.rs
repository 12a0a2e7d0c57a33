//! The stages of one cell from without: an input goes in, and they run, turn by turn, until all are quiet.
//!
//! Refuses to know what passes between them; `host::hosts` does.

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
    /// Before `live`: a handler that is under way lets go of the instances first.
    task: Task,
    live: Rc<RefCell<Live>>,
    signal: Rc<TaskSignal>,
    /// Where handlers ask for what they read from the cache.
    window: Window,
    image: Arc<Image>,
    /// Whose input they are not done with.
    underway: Option<CellId>,
    /// Whether one is in the middle of a handler.
    paused: bool,
}

/// Why the cell ends, and what it had cost until then.
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

    /// The key of what a handler has just asked for, and waits for.
    pub(super) fn wanted(&self) -> Option<Bytes> {
        self.window.wanted()
    }

    /// Brings what a handler waits for; [`Self::resume`] lets it go on.
    pub(super) fn found(&self, found: Found) {
        self.window.put(found);
    }

    /// What it was started from.
    pub(super) fn image(&self) -> ImageHash {
        self.image.hash()
    }

    /// The instances. Nobody has them while the stages are quiet.
    pub(super) fn live(&self) -> &RefCell<Live> {
        &self.live
    }

    /// Makes them another session's, before their first input.
    pub(super) fn reseed(&self, seed: Seed) {
        self.live.borrow_mut().reseed(seed);
    }

    /// Takes an input from outside; [`Self::resume`] runs it.
    pub(super) fn begin(&mut self, run: Run) {
        self.underway = Some(run.cell);
        self.live.borrow_mut().store.data_mut().accept(run.input, run.now_ns, run.logged);
    }

    /// Runs handlers until all stages are quiet, or a slice is used up: then there is no answer yet.
    pub(super) fn resume(&mut self, watch: &Watch) -> Result<Option<Ran>, Failure> {
        watch.begin(self.paused);
        if !self.paused {
            self.signal.go();
        }
        // The task never ends; how far it came is on the desk. A panic in an import is our bug, found by one guest: it ends
        // that guest and not the process, or the message that found it would take one edge after another.
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

    /// Says which stage it was, where there are several.
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

    /// What the stages printed since this was last asked.
    pub(super) fn take_prints(&mut self) -> Vec<Print> {
        self.live.borrow_mut().take_prints()
    }

    /// Ends all handlers; what is left of the stages.
    pub(super) fn into_live(self) -> Option<Live> {
        // A handler that was under way lets go of the instances.
        drop(self.task);
        Rc::into_inner(self.live).map(RefCell::into_inner)
    }
}

impl Live {
    /// What the stages printed since this was last asked.
    pub(super) fn take_prints(&mut self) -> Vec<Print> {
        let mut prints = Vec::new();
        self.store.data_mut().stages().for_each(|host| prints.append(&mut host.prints));
        prints
    }
}
