//! One attempt to own the session: what the ends send of their logs and checkpoints, until a log is chosen.

use super::{OwnerEffect, end_state::EndState, ends::Ends};
use crate::{
    cell::{CellError, CellImage},
    invariant::{BrokenInvariant, holds},
};
use alloc::{boxed::Box, vec::Vec};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    frame::{CheckpointMeta, LogPart},
    header::Header,
    seal::Seal,
};

/// What arrived from one end. The end's promise announced how much it will be, and bounds it.
#[derive(Debug, Default)]
struct Arrival {
    /// The end's log, decrypted, from its promise's `log_start`.
    log: BytesMut,
    /// Checkpoints that arrived completely.
    checkpoints: usize,
    /// Bytes that arrived of the next one.
    size: u64,
    /// Parts that arrived before the source of the restore was known.
    parts: Vec<Bytes>,
}

impl Arrival {
    /// The checkpoint of those that the end announced which is arriving.
    fn arriving<'a>(&self, side: &'a EndState) -> Option<&'a CheckpointMeta> {
        side.announced().get(self.checkpoints)
    }

    /// Whether everything that the promise announced has arrived. An end that goes on with a live cell sends no
    /// checkpoints.
    fn is_complete(&self, side: &EndState) -> bool {
        side.promised.as_ref().is_some_and(|promised| {
            let has_log = self.log.len() as u64 == promised.log_end - promised.log_start;
            let has_checkpoints = self.checkpoints == promised.checkpoints.len() || promised.live;
            side.next == promised.sent_end && has_checkpoints && has_log
        })
    }
}

/// What arrived from the ends in this attempt, in the order of the sides.
#[derive(Debug)]
pub(super) struct Opening {
    arrivals: Vec<Arrival>,
    /// Index of the side that provides the executor's checkpoints.
    source: Option<usize>,
    /// The executor's answer to [`OwnerEffect::Restore`], if it came before the ends' log was complete.
    early: Option<Result<Box<Header>, CellError>>,
}

impl Opening {
    /// Of a session with so many ends.
    pub(super) fn new(count: usize) -> Self {
        let arrivals = (0..count).map(|_| Arrival::default()).collect();
        Self { arrivals, source: None, early: None }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let size = |it: &Arrival| it.parts.iter().map(Bytes::len).sum::<usize>() + it.log.len();
        self.arrivals.iter().map(size).sum::<usize>() as u64
    }

    /// The side whose checkpoints the executor gets, once every end has promised.
    pub(super) fn source(&self) -> Option<usize> {
        self.source
    }

    /// Whether every end has promised, and has sent all that its promise announced.
    pub(super) fn is_complete(&self, ends: &Ends) -> bool {
        let waits_for_none = ends.decide_nothing();
        waits_for_none || ends.iter().zip(&self.arrivals).all(|(side, arrival)| arrival.is_complete(side))
    }

    /// The log that arrived from an end.
    pub(super) fn log(&self, index: usize) -> &BytesMut {
        &self.arrivals[index].log
    }

    /// A part of an end's log, encrypted with `seal`. False if it does not follow what is here, or was not announced.
    pub(super) fn take_log(&mut self, index: usize, part: &LogPart, seal: &Seal, side: &EndState) -> bool {
        let log = &mut self.arrivals[index].log;
        let Some(promised) = &side.promised else { return false };
        // An end chooses the offset; a sum that is too large is refused.
        let end = part.offset.saturating_add(part.bytes.len() as u64);
        if part.offset != promised.log_start + log.len() as u64 || end > promised.log_end {
            return false;
        }
        let at = log.len();
        log.extend_from_slice(&part.bytes);
        seal.log(part.offset, &mut log[at..]);
        true
    }

    /// An end begins to send a checkpoint. False if it is not the next one that it announced.
    pub(super) fn begin_checkpoint(&self, index: usize, meta: &CheckpointMeta, side: &EndState) -> bool {
        let arrival = &self.arrivals[index];
        arrival.arriving(side) == Some(meta) && arrival.size == 0 && meta.size > 0
    }

    /// A part of the checkpoint that an end sends: passed on if the end is the source, and kept while the source is not
    /// known. Returns whether the checkpoint is whole now; none if the end sends more than it announced.
    pub(super) fn take_part(
        &mut self,
        index: usize,
        bytes: Bytes,
        ends: &Ends,
        out: &mut Vec<OwnerEffect>,
    ) -> Option<bool> {
        let arrival = &mut self.arrivals[index];
        let size = arrival.arriving(&ends[index]).map_or(0, |meta| meta.size);
        arrival.size += bytes.len() as u64;
        if size == 0 || arrival.size > size {
            return None;
        }
        let whole = arrival.size == size;
        if whole {
            arrival.size = 0;
            arrival.checkpoints += 1;
        }
        if self.source == Some(index) {
            out.push(OwnerEffect::Part(bytes));
        } else if !ends.have_all_promised() {
            // The check of the promise bounds the size.
            arrival.parts.push(bytes);
        }
        Some(whole)
    }

    /// Every end has promised, so the source of the checkpoints is known. The executor gets their parts as they arrive,
    /// so that they are decrypted soon after the last part is here. They have no effect before a log is chosen. False
    /// if what the ends keep does not fit together.
    pub(super) fn gather(&mut self, image: CellImage, ends: &Ends, out: &mut Vec<OwnerEffect>) -> bool {
        self.source = ends.best_holder();
        let base = self.source.and_then(|at| ends[at].announced().last()).map_or(0, |c| c.log_offset);
        let log = ends.longest().and_then(|best| ends[best].promised.as_ref());
        if log.is_none_or(|log| log.log_start > base || base > log.log_end) {
            return false;
        }
        if let Some(source) = self.source {
            out.push(OwnerEffect::Restore(image, ends[source].announced().to_vec()));
        }
        for (index, arrival) in self.arrivals.iter_mut().enumerate() {
            let parts = core::mem::take(&mut arrival.parts);
            if self.source == Some(index) {
                out.extend(parts.into_iter().map(OwnerEffect::Part));
            }
        }
        true
    }

    /// The executor has restored the cell from the source's checkpoints before the last end's log was here.
    pub(super) fn restored(&mut self, result: Result<Box<Header>, CellError>) {
        self.early = Some(result);
    }

    /// The executor's answer, if it came before a log was chosen.
    pub(super) fn take_early(&mut self) -> Option<Result<Box<Header>, CellError>> {
        self.early.take()
    }

    /// I29 of docs/protocol.md: of an end arrives no more than it announced, and an executor answers only what it was
    /// asked.
    pub(super) fn invariants(&self, ends: &Ends) -> Result<(), BrokenInvariant> {
        holds!("I29", self.arrivals.len() == ends.len());
        holds!("I29", self.early.is_none() || self.source.is_some());
        for (side, arrival) in ends.iter().zip(&self.arrivals) {
            let announced = side.promised.as_ref().map_or(0, |it| it.log_end - it.log_start);
            holds!("I29", arrival.log.len() as u64 <= announced);
            holds!("I29", arrival.checkpoints <= side.announced().len());
            holds!("I29", self.source.is_none() || arrival.parts.is_empty());
        }
        Ok(())
    }
}
