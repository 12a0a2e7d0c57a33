//! Recording: an active owner asks the ends for what they keep, as a recovery would, and continues meanwhile.
//!
//! The position of the recording is the owner's position when it asks, between two handlers. The owner has the log up
//! to there; checkpoints and consumed messages are at the ends, whose answers are collected in [`super::recordings`].
//!
//! If a handler was stopped, the ends are asked first and informed of the stop afterwards: then they may move to
//! another edge.
//!
//! The owner of a shared cell asks no end: what it keeps to rebuild the cell is what a recording needs.

use super::{Now, Owner, OwnerEffect, OwnerPhase, phase::Phase, recordings::Stopped, runner::Running};
use crate::{bug, cell::CellStop, replay::Gathered};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Frame},
    id::Port,
    log::Event,
    recording,
};

/// How long the ends may take to show what they keep, in nanoseconds.
pub const RECORD_NS: u64 = 30_000_000_000;
/// As above, if a handler was stopped and the ends are not informed yet.
pub const RECORD_STOPPED_NS: u64 = 5_000_000_000;

/// A request for a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordRequest {
    /// Identifies the request; none if a stopped handler caused it.
    pub tag: Option<u64>,
    /// Whether the payloads are left out.
    pub redact: bool,
}

impl Owner {
    /// Records the session at the next position between two handlers; answered by [`OwnerEffect::Recorded`].
    pub fn record(&mut self, now: Now, request: RecordRequest, out: &mut Vec<OwnerEffect>) {
        match self.recording_refusal() {
            Some(refusal) => out.push(OwnerEffect::Recorded(request, Err(refusal.to_string()))),
            None => {
                self.recordings.begin(request, now.mono_ns.saturating_add(RECORD_NS));
                self.ask_if_between(out);
            }
        }
    }

    /// Why the session cannot be recorded now.
    fn recording_refusal(&self) -> Option<&'static str> {
        let shared = self.about.is_shared_cell();
        if !self.about.policy.keeps.anything() {
            Some(
                "the app is deployed with protect = \"none\": nothing of its sessions is kept that could be recorded",
            )
        } else if self.about.has_backup() && !shared {
            Some(
                "the app is deployed with protect = \"epoch\": the log of its sessions is kept only until their backup has it, so there \
                 is none to record",
            )
        } else if self.recordings.is_recording() {
            Some("the session is being recorded already; try again when that is done")
        } else if self.phase() != OwnerPhase::Running || self.incomplete() {
            Some(
                "the session is being recovered, is ending, or lacks an end; try again when it runs (`marram ps`)",
            )
        } else if shared && self.runner.rebuild.is_some() {
            Some("a client's input has stopped the cell, which is rebuilt; try again in a moment")
        } else if shared && !self.keep.as_ref().is_some_and(|keep| keep.has_base())
            || !shared && self.checkpointer.is_ahead_of_ends(&self.log)
        {
            Some(
                "the session was taken over just now, and its first checkpoint is on its way; try again in a moment",
            )
        } else {
            None
        }
    }

    /// Whether a recording is in progress.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.recordings.is_recording()
    }

    /// Asks the ends if a recording waits for this and no handler runs.
    pub(super) fn ask_if_between(&mut self, out: &mut Vec<OwnerEffect>) {
        let waits = self.recordings.awaits_position();
        if waits && !self.runner.is_busy() {
            self.ask_to_show(None, out);
        }
    }

    fn ask_to_show(&mut self, stop: Option<recording::RecordedStop>, out: &mut Vec<OwnerEffect>) {
        let gathered = self.gathered(stop);
        if gathered.own.is_none() && self.about.is_shared_cell() {
            self.recordings.give_up("the cell could not be copied meanwhile", out);
            return;
        }
        if !self.recordings.ask(gathered, &self.ends, out) {
            return self
                .end_for_bug(bug!("ends are asked to show only for a recording", self.about.session), out);
        }
        if self.about.is_shared_cell() {
            self.recorded_if_whole(out);
        }
    }

    /// What is here of a recording at this position.
    fn gathered(&self, stop: Option<recording::RecordedStop>) -> Gathered {
        Gathered {
            session: self.about.session,
            image: self.about.image,
            app: self.about.policy.app.clone(),
            generation: self.about.generation(),
            keys: self.about.keys.clone(),
            cell: self.cell,
            log_floor: self.log.floor(),
            log: Bytes::copy_from_slice(self.log.since(self.log.floor())),
            tag: self.log.tag(),
            ends: Vec::new(),
            own: self.keep.as_ref().and_then(|keep| keep.show()),
            stop,
        }
    }

    /// The recording is done if all that was asked for is here. Returns whether it is.
    fn recorded_if_whole(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        let Some((request, gathered)) = self.recordings.take_whole() else { return false };
        out.push(OwnerEffect::Recorded(request, Ok(gathered)));
        true
    }

    /// A handler was stopped: its input is recorded before the ends are informed, if the app's sessions are to be
    /// recorded.
    pub(super) fn stopped(&mut self, now: Now, running: Running, stop: CellStop, out: &mut Vec<OwnerEffect>) {
        let (killed, reason) = match stop {
            CellStop::Trap(reason) => (false, reason),
            CellStop::Kill(reason) => (true, reason),
        };
        if self.about.is_shared_cell() {
            self.recordings.give_up("a client's input has stopped the cell meanwhile; try again", out);
            self.record_stop_of_cell(&running, killed, &reason, out);
            return self.handler_stopped(&running, reason, out);
        }
        // Kinds 0 and 1 are messages of the client and the server. 4 is a handler that was stopped in replay.
        let input = match running.event {
            Event::Message(port) => u8::from(port != Port::CLIENT),
            Event::Timer => 2,
            Event::Start { .. } => 3,
            Event::Task => 5,
            Event::Port(_) => 6,
        };
        self.recordings.give_up("the cell was stopped meanwhile", out);
        let able = self.phase() == OwnerPhase::Running
            && !self.incomplete()
            && !self.checkpointer.is_ahead_of_ends(&self.log);
        if !self.about.policy.record_stops || !self.about.keeps_checkpoints() || !able {
            return self.failed(input, reason, out);
        }
        let entry = self.log.entry_apart(running.event, running.now_ns, running.reads);
        let stop = recording::RecordedStop { entry, killed, reason: reason.clone() };
        // The cell is gone, and the next owner begins with what the ends keep.
        self.remove_cell(out);
        self.live = None;
        self.checkpointer.abandon();
        self.enter(Phase::Recording(Stopped { input, reason }), "a handler was stopped");
        let request = RecordRequest { tag: None, redact: false };
        self.recordings.begin(request, now.mono_ns.saturating_add(RECORD_STOPPED_NS));
        self.ask_to_show(Some(stop), out);
    }

    /// The recording of a stopped handler is over: the ends are informed. False if no handler was stopped.
    pub(super) fn fail_if_stopped(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        let Phase::Recording(Stopped { input, reason }) = &self.phase else { return false };
        let (input, reason) = (*input, reason.clone());
        self.failed(input, reason, out);
        true
    }

    /// An end shows what it keeps.
    pub(super) fn shown(&mut self, index: usize, frame: Frame, out: &mut Vec<OwnerEffect>) {
        if !self.recordings.take(index, frame) {
            let reason: String = "an end sent recording data that was not requested".into();
            return self.terminate(Code::Protocol, reason, out);
        }
        if self.recorded_if_whole(out) {
            self.fail_if_stopped(out);
        }
    }

    /// A handler of a shared cell was stopped: what is kept here is recorded at once, if that is wanted and the cell can be rebuilt.
    fn record_stop_of_cell(&self, running: &Running, killed: bool, reason: &str, out: &mut Vec<OwnerEffect>) {
        if !self.about.policy.record_stops || self.phase() != OwnerPhase::Running {
            return;
        }
        let entry = self.log.entry_apart(running.event.clone(), running.now_ns, running.reads.clone());
        let stop = recording::RecordedStop { entry, killed, reason: reason.to_string() };
        let mut gathered = Gathered { cell: None, ..self.gathered(Some(stop)) };
        let Some(own) = &mut gathered.own else { return };
        if let (Event::Message(port), Some(message)) = (&running.event, &running.message) {
            own.messages.push((*port, message.clone()));
        }
        let request = RecordRequest { tag: None, redact: false };
        out.push(OwnerEffect::Recorded(request, Ok(Box::new(gathered))));
    }
}
