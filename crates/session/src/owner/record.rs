//! Recording: an owner that has its session asks the ends for what they keep, as a recovery would, and goes on meanwhile.
//!
//! The position is where the owner stands when it asks, between two handlers. Its log up to there it has itself; checkpoints
//! and consumed messages are at the ends. An end answers in order with what else passes on its channel, so what it shows was
//! cut at the owner's word: no `Truncate` said later can be missing from one answer and not from the other, and no message
//! consumed before the word was sent after the answer.
//!
//! Where a handler was stopped, the ends are asked first and told of it then: afterwards they may go elsewhere.

use super::{Now, Owner, OwnerEffect, OwnerPhase, end_state::Message, open::is_chain, run::Running};
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

/// How long the ends may take to show what they keep.
pub const RECORD_NS: u64 = 30_000_000_000;
/// As above, when a handler was stopped and they wait to be told.
pub const RECORD_STOPPED_NS: u64 = 5_000_000_000;

/// Who wants a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordRequest {
    /// Names the question; none if nobody asked and a handler was stopped.
    pub tag: Option<u64>,
    /// Whether what was said is to be left out.
    pub redact: bool,
}

/// A recording under way.
#[derive(Debug)]
pub(super) struct Record {
    request: RecordRequest,
    until_ns: u64,
    /// What the ends' answers are put to; none until the handler that runs has come to its end.
    gathered: Option<Box<Gathered>>,
    /// What the ends are to be told of when it is made.
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
    /// Questions that it has not begun to answer. It answers each, also one that nobody waits for any more.
    due: u32,
    /// Of the answer that arrives: the checkpoints that are not whole, last one first, and how many messages are still to come.
    checkpoints: Vec<CheckpointMeta>,
    messages: u64,
    /// Whether its checkpoint was begun.
    begun: bool,
    arriving: BytesMut,
    charge: u64,
    /// What has arrived, unless it is not wanted any more.
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
    /// Makes a recording of the session, soon; answered by [`OwnerEffect::Recorded`].
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

    /// Whether a recording is under way.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.record.is_some()
    }

    /// Asks the ends, if a recording waits for that and no handler runs.
    pub(super) fn ask_if_between(&mut self, out: &mut Vec<OwnerEffect>) {
        let waits = self.record.as_ref().is_some_and(|record| record.gathered.is_none());
        if waits && self.running.is_none() {
            self.ask_to_show(None, out);
        }
    }

    fn ask_to_show(&mut self, stop: Option<recording::RecordedStop>, out: &mut Vec<OwnerEffect>) {
        let Some(record) = &mut self.record else { return };
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

    /// A handler was stopped: what it was given is recorded, if sessions of the app are, before the ends are told.
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
        // It is read by itself.
        let reads = Known::default().write(running.reads);
        cursor.put(&Entry { event: running.event, now_ns: Some(running.now_ns), reads }, &mut entry);
        let stop = recording::RecordedStop { entry: entry.freeze(), killed, reason: reason.clone() };
        // Nothing is left of the cell, and a next owner begins with what the ends keep.
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        self.live = None;
        self.checkpointer.abandon();
        self.phase = OwnerPhase::Recording;
        self.record = Some(Record {
            request: RecordRequest { tag: None, redact: false },
            until_ns: now.mono_ns.saturating_add(RECORD_STOPPED_NS),
            gathered: None,
            stopped: Some(Stopped { input, reason }),
        });
        self.ask_to_show(Some(stop), out);
    }

    /// When a recording under way comes to nothing.
    pub(super) fn record_until_ns(&self) -> Option<u64> {
        self.record.as_ref().map(|record| record.until_ns)
    }

    /// Gives up a recording that takes too long.
    pub(super) fn end_record_if_late(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.record_until_ns().is_some_and(|until_ns| until_ns <= now.mono_ns) {
            let stopped = self.give_up_record("the session's ends took too long to show what they keep", out);
            self.fail_if_stopped(stopped, out);
        }
    }

    /// A recording comes to nothing: what the ends still show of it is dropped.
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
        // What belongs to an earlier question is not what is waited for.
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
        self.terminate(Code::Protocol, "an end shows what it was not asked for".into(), out);
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
