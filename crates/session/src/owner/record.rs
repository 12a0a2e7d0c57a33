//! Recording: an active owner asks the ends for what they keep, as a recovery would, and continues meanwhile.
//!
//! The position of the recording is the owner's position when it asks, between two handlers. The owner has the log up to there;
//! checkpoints and consumed messages are at the ends. An end answers in order with the other frames of its channel, so its
//! answer shows its state when the question arrived: a `Truncate` that is sent later cannot affect one answer and not the
//! other, and a message consumed before the question was not sent after the answer.
//!
//! If a handler was stopped, the ends are asked first and informed of the stop afterwards: then they may move to another edge.

use super::{Now, Owner, OwnerEffect, OwnerPhase, end_state::Message, open::is_chain, run::Running};
use crate::bug;
use crate::cell::{CellStop, SealedCheckpoint};
use crate::replay::{Gathered, Shown};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    frame::{CheckpointMeta, Code, Fetch, Kept, KeptInput},
    id::Port,
    limits::{INPUT_WINDOW, RETAINED_MAX, charge},
    log::{Entry, Event, Known},
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

/// A recording in progress.
#[derive(Debug)]
pub(super) struct Record {
    request: RecordRequest,
    until_ns: u64,
    /// Collects the ends' answers; none until the running handler has finished.
    gathered: Option<Box<Gathered>>,
    /// The stopped handler, which is reported to the ends when the recording is complete.
    stopped: Option<Stopped>,
}

/// A handler that was stopped.
#[derive(Debug)]
pub(super) struct Stopped {
    pub(super) input: u8,
    pub(super) reason: String,
}

/// What an end shows.
#[derive(Debug, Default)]
pub(super) struct Showing {
    /// Questions that the end has not begun to answer. It answers each of them, also those that were cancelled.
    due: u32,
    /// Of the arriving answer: the incomplete checkpoints in reverse order, and how many messages are still missing.
    checkpoints: Vec<CheckpointMeta>,
    messages: u64,
    /// Whether the checkpoint that arrives was begun.
    begun: bool,
    arriving: BytesMut,
    charge: u64,
    /// What has arrived, unless the question was cancelled.
    shown: Option<Shown>,
}

impl Showing {
    fn is_complete(&self) -> bool {
        self.due == 0 && self.checkpoints.is_empty() && self.messages == 0
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let size = |shown: &Shown| shown.checkpoints.iter().map(|it| it.meta.size).sum::<u64>() + self.charge;
        self.arriving.len() as u64 + self.shown.as_ref().map_or(0, size)
    }
}

impl Owner {
    /// Records the session at the next position between two handlers; answered by [`OwnerEffect::Recorded`].
    pub fn record(&mut self, now: Now, request: RecordRequest, out: &mut Vec<OwnerEffect>) {
        let refusal = if !self.policy.keep {
            "the app is deployed with protect = \"none\": nothing of its sessions is kept that could be recorded"
        } else if self.record.is_some() {
            "the session is being recorded already; try again when that is done"
        } else if self.phase != OwnerPhase::Running || self.incomplete() {
            "the session is being recovered, is ending, or lacks an end; try again when it runs (`marram ps`)"
        } else if self.is_ahead_of_ends() {
            "the session was taken over just now, and its first checkpoint is on its way; try again in a moment"
        } else {
            let until_ns = now.mono_ns.saturating_add(RECORD_NS);
            self.record = Some(Record { request, until_ns, gathered: None, stopped: None });
            return self.ask_if_between(out);
        };
        out.push(OwnerEffect::Recorded(request, Err(refusal.to_string())));
    }

    /// Whether a recording is in progress.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.record.is_some()
    }

    /// Asks the ends if a recording waits for this and no handler runs.
    pub(super) fn ask_if_between(&mut self, out: &mut Vec<OwnerEffect>) {
        let waits = self.record.as_ref().is_some_and(|record| record.gathered.is_none());
        if waits && self.running.is_none() {
            self.ask_to_show(None, out);
        }
    }

    fn ask_to_show(&mut self, stop: Option<recording::RecordedStop>, out: &mut Vec<OwnerEffect>) {
        let Some(record) = &mut self.record else {
            return self.end_for_bug(bug!("ends are asked to show only for a recording", self.session), out);
        };
        record.gathered = Some(Box::new(Gathered {
            session: self.session,
            image: self.image,
            app: self.policy.app.clone(),
            generation: self.generation,
            keys: self.keys.clone(),
            cell: self.cell,
            log_floor: self.log.floor,
            log: Bytes::copy_from_slice(&self.log.bytes),
            tag: self.digest.tag(),
            ends: Vec::new(),
            stop,
        }));
        out.extend(self.cell.map(OwnerEffect::Hash));
        for side in &mut self.sides {
            let Some(channel) = side.channel else { continue };
            let (port, took) = (side.port, side.took);
            side.showing.due += 1;
            side.showing.shown =
                Some(Shown { port, took, sent_start: 0, messages: Vec::new(), checkpoints: Vec::new() });
            out.push(OwnerEffect::Send(side.port, Fetch { channel }.into()));
        }
    }

    /// A handler was stopped: its input is recorded before the ends are informed, if the app's sessions are to be recorded.
    pub(super) fn stopped(&mut self, now: Now, running: Running, stop: CellStop, out: &mut Vec<OwnerEffect>) {
        let (killed, reason) = match stop {
            CellStop::Trap(reason) => (false, reason),
            CellStop::Kill(reason) => (true, reason),
        };
        let input = match running.event {
            Event::Message(port) => u8::from(port != Port::CLIENT),
            Event::Timer => 2,
            Event::Start { .. } => 3,
            Event::Task => 5,
        };
        self.give_up_record("the cell was stopped meanwhile", out);
        let able = self.phase == OwnerPhase::Running && !self.incomplete() && !self.is_ahead_of_ends();
        if !self.policy.record_stops || !self.policy.keep || !able {
            return self.failed(input, reason, out);
        }
        let mut entry = BytesMut::new();
        let mut cursor = self.log.cursor;
        // The entry is read on its own, without earlier entries.
        let reads = Known::default().write(running.reads);
        cursor.put(&Entry { event: running.event, now_ns: Some(running.now_ns), reads }, &mut entry);
        let stop = recording::RecordedStop { entry: entry.freeze(), killed, reason: reason.clone() };
        // The cell is gone, and the next owner begins with what the ends keep.
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        self.live = None;
        self.checkpointer.abandon();
        self.enter(OwnerPhase::Recording, "a handler was stopped");
        self.record = Some(Record {
            request: RecordRequest { tag: None, redact: false },
            until_ns: now.mono_ns.saturating_add(RECORD_STOPPED_NS),
            gathered: None,
            stopped: Some(Stopped { input, reason }),
        });
        self.ask_to_show(Some(stop), out);
    }

    /// The timeout of the recording in progress, in monotonic nanoseconds.
    pub(super) fn record_until_ns(&self) -> Option<u64> {
        self.record.as_ref().map(|record| record.until_ns)
    }

    /// Cancels a recording that takes too long.
    pub(super) fn end_record_if_late(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.record_until_ns().is_some_and(|until_ns| until_ns <= now.mono_ns) {
            let stopped = self.give_up_record("the session's ends took too long to show what they keep", out);
            self.fail_if_stopped(stopped, out);
        }
    }

    /// A recording fails: the rest of the ends' answers is dropped.
    pub(super) fn give_up_record(&mut self, reason: &str, out: &mut Vec<OwnerEffect>) -> Option<Stopped> {
        let record = self.record.take()?;
        for side in &mut self.sides {
            side.showing.shown = None;
            side.showing.arriving.clear();
        }
        out.push(OwnerEffect::Recorded(record.request, Err(reason.to_string())));
        record.stopped
    }

    pub(super) fn fail_if_stopped(&mut self, stopped: Option<Stopped>, out: &mut Vec<OwnerEffect>) {
        if let Some(Stopped { input, reason }) = stopped {
            self.failed(input, reason, out);
        }
    }

    /// An end begins to show what it keeps.
    pub(super) fn kept(&mut self, index: usize, kept: Kept, out: &mut Vec<OwnerEffect>) {
        let showing = &mut self.sides[index].showing;
        let messages = kept.sent_end.checked_sub(kept.sent_start);
        let sound = messages.is_some_and(|count| count <= recording::MESSAGES_MAX)
            && is_chain(&kept.checkpoints)
            && kept.checkpoints.iter().all(|meta| meta.size > 0);
        let waits = showing.due > 0 && showing.checkpoints.is_empty() && showing.messages == 0;
        if !sound || !waits {
            return self.out_of_turn(out);
        }
        showing.due -= 1;
        showing.charge = 0;
        showing.messages = messages.unwrap_or(0);
        showing.checkpoints = kept.checkpoints;
        showing.checkpoints.reverse();
        if let Some(shown) = &mut showing.shown {
            shown.sent_start = kept.sent_start;
        }
        self.recorded_if_whole(out);
    }

    pub(super) fn kept_checkpoint(
        &mut self,
        index: usize,
        meta: &CheckpointMeta,
        out: &mut Vec<OwnerEffect>,
    ) {
        let showing = &mut self.sides[index].showing;
        if showing.checkpoints.last() != Some(meta) || showing.begun {
            return self.out_of_turn(out);
        }
        showing.begun = true;
    }

    pub(super) fn kept_part(&mut self, index: usize, bytes: &Bytes, out: &mut Vec<OwnerEffect>) {
        let showing = &mut self.sides[index].showing;
        showing.arriving.extend_from_slice(bytes);
        let size = showing.checkpoints.last().filter(|_| showing.begun).map(|meta| meta.size);
        let Some(missing) = size.and_then(|size| size.checked_sub(showing.arriving.len() as u64)) else {
            return self.out_of_turn(out);
        };
        if missing > 0 {
            return;
        }
        showing.begun = false;
        let bytes = core::mem::take(&mut showing.arriving).freeze();
        let meta = showing.checkpoints.pop();
        // What belongs to an earlier question is ignored.
        if let Some(shown) = showing.shown.as_mut().filter(|_| showing.due == 0) {
            shown.checkpoints.extend(meta.map(|meta| SealedCheckpoint { meta, bytes }));
        }
        self.recorded_if_whole(out);
    }

    pub(super) fn kept_input(&mut self, index: usize, input: KeptInput, out: &mut Vec<OwnerEffect>) {
        let showing = &mut self.sides[index].showing;
        showing.charge += charge(input.payload.len());
        let bound = RETAINED_MAX + INPUT_WINDOW + charge(0);
        if showing.messages == 0 || !showing.checkpoints.is_empty() || showing.charge > bound {
            return self.out_of_turn(out);
        }
        showing.messages -= 1;
        if let Some(shown) = showing.shown.as_mut().filter(|_| showing.due == 0) {
            shown.messages.push(Message { close: input.close, payload: input.payload });
        }
        self.recorded_if_whole(out);
    }

    fn out_of_turn(&mut self, out: &mut Vec<OwnerEffect>) {
        self.terminate(Code::Protocol, "an end sent recording data that was not requested".into(), out);
    }

    fn recorded_if_whole(&mut self, out: &mut Vec<OwnerEffect>) {
        let whole = self.sides.iter().all(|side| side.showing.is_complete());
        let gathered = self.record.as_mut().filter(|_| whole).and_then(|record| record.gathered.take());
        let (Some(mut gathered), Some(record)) = (gathered, self.record.take_if(|_| whole)) else { return };
        gathered.ends = self.sides.iter_mut().filter_map(|side| side.showing.shown.take()).collect();
        out.push(OwnerEffect::Recorded(record.request, Ok(gathered)));
        self.fail_if_stopped(record.stopped, out);
    }
}
