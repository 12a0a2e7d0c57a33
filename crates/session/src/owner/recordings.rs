//! A recording in progress: what the ends were asked to show, and how much of their answers is here.
//!
//! An end answers in order with the other frames of its channel, so its answer shows its state when the question
//! arrived: a `Truncate` that is sent later cannot affect one answer and not the other, and a message consumed before
//! the question was not sent after the answer.

use super::{OwnerEffect, RecordRequest, end_state::Message, ends::Ends, open::is_chain};
use crate::{
    cell::SealedCheckpoint,
    invariant::{BrokenInvariant, holds},
    replay::{Gathered, Shown},
};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    frame::{CheckpointMeta, Fetch, Frame, Kept, KeptInput},
    limits::{INPUTS_MAX, RETAINED_MAX, charge},
    recording,
};

/// A handler that was stopped.
#[derive(Clone, Debug)]
pub(super) struct Stopped {
    /// The kind of its input, as ends remember it.
    pub(super) input: u8,
    pub(super) reason: String,
}

/// A recording in progress.
#[derive(Debug)]
struct Record {
    request: RecordRequest,
    /// When it is given up, in monotonic nanoseconds.
    until_ns: u64,
    /// Collects the ends' answers; none until the running handler has finished.
    gathered: Option<Box<Gathered>>,
}

/// What an end shows.
#[derive(Debug, Default)]
struct Showing {
    /// Questions that the end has not begun to answer. It answers each of them, also those that were cancelled.
    due: u32,
    /// Of the arriving answer: the incomplete checkpoints in reverse order, and how many messages are still missing.
    checkpoints: Vec<CheckpointMeta>,
    messages: u64,
    /// Whether the checkpoint that arrives was begun.
    begun: bool,
    /// Bytes of it that are here. Counted also for a cancelled question, since the end sends the rest.
    arrived: u64,
    /// These bytes, unless the question was cancelled.
    arriving: BytesMut,
    charge: u64,
    /// Bytes of checkpoints that the end can show.
    size_max: u64,
    /// What has arrived, unless the question was cancelled.
    shown: Option<Shown>,
}

impl Showing {
    fn is_complete(&self) -> bool {
        self.due == 0 && self.checkpoints.is_empty() && self.messages == 0
    }

    fn held_bytes(&self) -> u64 {
        let size = |shown: &Shown| shown.checkpoints.iter().map(|it| it.meta.size).sum::<u64>() + self.charge;
        self.arriving.len() as u64 + self.shown.as_ref().map_or(0, size)
    }

    /// The end begins to show what it keeps. False if it was not asked, or still shows what it kept before.
    fn begin(&mut self, kept: Kept) -> bool {
        let messages = kept.sent_end.checked_sub(kept.sent_start);
        let sound = messages.is_some_and(|count| count <= recording::MESSAGES_MAX)
            && is_chain(&kept.checkpoints, self.size_max)
            && kept.checkpoints.iter().all(|meta| meta.size > 0);
        let waits = self.due > 0 && self.checkpoints.is_empty() && self.messages == 0;
        if !sound || !waits {
            return false;
        }
        self.due -= 1;
        self.charge = 0;
        self.messages = messages.unwrap_or(0);
        self.checkpoints = kept.checkpoints;
        self.checkpoints.reverse();
        if let Some(shown) = &mut self.shown {
            shown.sent_start = kept.sent_start;
        }
        true
    }

    fn begin_checkpoint(&mut self, meta: &CheckpointMeta) -> bool {
        let is_next = self.checkpoints.last() == Some(meta) && !self.begun;
        self.begun |= is_next;
        is_next
    }

    fn take_part(&mut self, bytes: &Bytes) -> bool {
        let size = self.checkpoints.last().filter(|_| self.begun).map_or(0, |meta| meta.size);
        if self.arrived + bytes.len() as u64 > size {
            return false;
        }
        self.arrived += bytes.len() as u64;
        // What belongs to an earlier question is ignored.
        let is_wanted = self.shown.is_some() && self.due == 0;
        if is_wanted {
            self.arriving.extend_from_slice(bytes);
        }
        if self.arrived < size {
            return true;
        }
        (self.begun, self.arrived) = (false, 0);
        let bytes = core::mem::take(&mut self.arriving).freeze();
        let meta = self.checkpoints.pop();
        if let Some(shown) = self.shown.as_mut().filter(|_| is_wanted) {
            shown.checkpoints.extend(meta.map(|meta| SealedCheckpoint { meta, bytes }));
        }
        true
    }

    fn take_input(&mut self, input: KeptInput) -> bool {
        self.charge += charge(input.payload.len());
        let bound = RETAINED_MAX + INPUTS_MAX + charge(0);
        if self.messages == 0 || !self.checkpoints.is_empty() || self.charge > bound {
            return false;
        }
        self.messages -= 1;
        if let Some(shown) = self.shown.as_mut().filter(|_| self.due == 0) {
            shown.messages.push(Message { close: input.close, payload: input.payload });
        }
        true
    }
}

/// The recordings of one owner, at most one at a time. An end's answer to a recording that was given up still arrives,
/// so what the ends show outlives the recording; it does not outlive the generation.
#[derive(Debug)]
pub(super) struct Recordings {
    current: Option<Record>,
    /// By the index of the side.
    showings: Vec<Showing>,
}

impl Recordings {
    /// Of a session with so many ends.
    pub(super) fn new(count: usize) -> Self {
        Self { current: None, showings: (0..count).map(|_| Showing::default()).collect() }
    }

    /// Another generation: on its channels the ends were asked for nothing.
    pub(super) fn renew(&mut self) {
        self.showings.iter_mut().for_each(|showing| *showing = Showing::default());
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.showings.iter().map(Showing::held_bytes).sum()
    }

    /// Whether a recording is in progress.
    pub(super) fn is_recording(&self) -> bool {
        self.current.is_some()
    }

    /// Begins a recording, which takes its position later. There is none in progress.
    pub(super) fn begin(&mut self, request: RecordRequest, until_ns: u64) {
        self.current = Some(Record { request, until_ns, gathered: None });
    }

    /// Whether a recording has not taken its position yet: it waits until no handler runs.
    pub(super) fn awaits_position(&self) -> bool {
        self.current.as_ref().is_some_and(|record| record.gathered.is_none())
    }

    /// The recording has the position and the log of `gathered`: asks the ends for the rest. False if none is in
    /// progress.
    pub(super) fn ask(&mut self, gathered: Gathered, ends: &Ends, out: &mut Vec<OwnerEffect>) -> bool {
        let Some(record) = &mut self.current else { return false };
        out.extend(gathered.cell.map(OwnerEffect::Hash));
        record.gathered = Some(Box::new(gathered));
        for (side, showing) in ends.iter().zip(&mut self.showings) {
            let Some(channel) = side.channel else { continue };
            let (port, took) = (side.port, side.took);
            showing.due += 1;
            showing.size_max = side.checkpoints_max;
            showing.shown =
                Some(Shown { port, took, sent_start: 0, messages: Vec::new(), checkpoints: Vec::new() });
            out.push(OwnerEffect::Send(side.port, Fetch { channel }.into()));
        }
        true
    }

    /// The timeout of the recording in progress, in monotonic nanoseconds.
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.current.as_ref().map(|record| record.until_ns)
    }

    /// The recording fails: the rest of the ends' answers is dropped. False if none is in progress.
    pub(super) fn give_up(&mut self, reason: &str, out: &mut Vec<OwnerEffect>) -> bool {
        let Some(record) = self.current.take() else { return false };
        for showing in &mut self.showings {
            showing.shown = None;
            showing.arriving.clear();
        }
        out.push(OwnerEffect::Recorded(record.request, Err(reason.to_string())));
        true
    }

    /// A frame with which an end shows what it keeps. False if nothing of it was requested.
    pub(super) fn take(&mut self, index: usize, frame: Frame) -> bool {
        let showing = &mut self.showings[index];
        match frame {
            Frame::Kept(kept) => showing.begin(kept),
            Frame::CheckpointBegin(begin) => showing.begin_checkpoint(&begin.meta),
            Frame::CheckpointPart(part) => showing.take_part(&part.bytes),
            Frame::KeptInput(input) => showing.take_input(input),
            _ => false,
        }
    }

    /// The recording, once the answers of all ends are complete.
    pub(super) fn take_whole(&mut self) -> Option<(RecordRequest, Box<Gathered>)> {
        if !self.showings.iter().all(Showing::is_complete) || self.awaits_position() {
            return None;
        }
        let record = self.current.take()?;
        let mut gathered = record.gathered?;
        gathered.ends = self.showings.iter_mut().filter_map(|showing| showing.shown.take()).collect();
        Some((record.request, gathered))
    }

    /// I42 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        let is_asked = !self.awaits_position() && self.current.is_some();
        for showing in &self.showings {
            holds!("I42", is_asked || showing.shown.is_none());
            let size = showing.checkpoints.last().map_or(0, |meta| meta.size);
            holds!("I42", showing.arrived <= size && showing.arriving.len() as u64 <= showing.arrived);
            holds!("I42", !showing.begun || !showing.checkpoints.is_empty());
        }
        Ok(())
    }
}
