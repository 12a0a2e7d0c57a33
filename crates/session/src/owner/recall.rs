//! Recovery with a recorder's data. A recorder is not trusted. It announces how much it has before it sends it, and
//! this must be exactly the messages that its log consumes, from the position of its checkpoint on. All of it must lead
//! to the digests that the ends and the witness know. Otherwise all of it is discarded, and the ends are asked for
//! everything that they keep.
//!
//! A message that the log does not consume would look like one that an end sent and no owner has handled yet: a
//! recorder could insert messages of its own, or make an end omit its messages.

use super::{
    Owner, OwnerEffect,
    about::About,
    end_state::Message,
    ends::Ends,
    feed::{StandbyError, push, standby_error},
    follow::Point,
    log::{Checkmark, Log, Position},
};
use crate::replay::Consumed;
use alloc::vec::Vec;
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointMeta, Code, Frame, KeptInput, LogPart, Recalled},
    id::Generation,
    limits::{CHECKPOINTS_SIZE_MAX, LOG_SIZE_MAX},
    log::Event,
    seal::{LOG_OFFSET_MAX, SessionKeys},
};

/// A recorder's answer, until the data is verified against it.
#[derive(Debug)]
pub(super) struct Recall {
    said: Recalled,
    /// The number of checkpoints that were begun, and the bytes of all of them that are here.
    begun: usize,
    given: u64,
}

impl Recall {
    /// Bytes of the checkpoints that were begun.
    fn begun_size(&self) -> u64 {
        self.said.checkpoints.iter().take(self.begun).map(|meta| meta.size).sum()
    }

    /// A frame from the recorder. A recorder only sends what it kept. It does not decide the generation, what ends have
    /// received or what they may delete.
    pub(super) fn take(
        &mut self,
        frame: Frame,
        keys: &SessionKeys,
        log: &mut Log,
        ends: &mut Ends,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), StandbyError> {
        match frame {
            Frame::LogPart(part) => self.take_log(&part, keys, log),
            Frame::KeptInput(input) => self.take_input(input, ends),
            Frame::CheckpointBegin(begin) => self.begin_checkpoint(&begin.meta),
            Frame::CheckpointPart(part) => {
                self.take_part(part.bytes.len() as u64)?;
                out.push(OwnerEffect::Part(part.bytes));
                Ok(())
            }
            _ => standby_error(Code::Protocol, "a recorder sent a frame that only an owner may send"),
        }
    }

    fn take_log(&self, part: &LogPart, keys: &SessionKeys, log: &mut Log) -> Result<(), StandbyError> {
        // A recorder chooses the offset; a sum that is too large is refused.
        let end = part.offset.saturating_add(part.bytes.len() as u64);
        if part.offset != log.end() || end > self.said.log_end {
            return standby_error(
                Code::Protocol,
                "a recorder's log has a gap, or is longer than it announced",
            );
        }
        let mut bytes = part.bytes.to_vec();
        keys.seal(part.generation).log(part.offset, &mut bytes);
        log.append_unverified(&bytes);
        Ok(())
    }

    fn take_input(&self, input: KeptInput, ends: &mut Ends) -> Result<(), StandbyError> {
        // A recorder sends all messages of one end before those of the other.
        let mut sides = ends.iter_mut().zip(&self.said.sent_end);
        let Some((side, _)) = sides.find(|(side, end)| side.fed_end() < **end) else {
            return standby_error(Code::Protocol, "a recorder sent more messages than it announced");
        };
        push(side, Message { close: input.close, payload: input.payload })
    }

    fn begin_checkpoint(&mut self, meta: &CheckpointMeta) -> Result<(), StandbyError> {
        if self.said.checkpoints.get(self.begun) != Some(meta) || self.given != self.begun_size() {
            return standby_error(Code::Protocol, "a recorder sent a checkpoint that it did not announce");
        }
        self.begun += 1;
        Ok(())
    }

    fn take_part(&mut self, size: u64) -> Result<(), StandbyError> {
        if self.given.saturating_add(size) > self.begun_size() {
            return standby_error(Code::Protocol, "a recorder sent more of a checkpoint than it announced");
        }
        self.given += size;
        Ok(())
    }

    /// Whether the log and messages that the recorder announced are here. Checkpoints may still be in flight.
    pub(super) fn is_whole(&self, log: &Log, ends: &Ends) -> bool {
        let mut messages = ends.iter().zip(&self.said.sent_end);
        log.end() == self.said.log_end && messages.all(|(side, end)| side.fed_end() == *end)
    }

    /// Whether a part of the checkpoints that the recorder announced is still missing.
    pub(super) fn lacks_checkpoints(&self) -> bool {
        let announced = self.said.checkpoints.iter().map(|meta| meta.size);
        self.given < announced.fold(0, u64::saturating_add)
    }

    /// Whether every end continues exactly where the recorder's messages end. An end that begins elsewhere did not send
    /// all of them, or was made to delete some that they lack.
    pub(super) fn is_continued_by(&self, ends: &Ends) -> bool {
        let starts = ends.iter().map(|side| side.promised.as_ref().map(|promised| promised.sent_start));
        starts.eq(self.said.sent_end.iter().map(|end| Some(*end)))
    }

    /// Whether the recorder's data matches its announcement, and leads from the cell's position to each digest that is
    /// `owed`: to those of the ends, of the witness and of the recorder itself. Only then does the log belong to its
    /// digest.
    pub(super) fn holds(
        &self,
        about: &About,
        base: Point,
        mut owed: Vec<Checkmark>,
        log: &mut Log,
        ends: &Ends,
    ) -> bool {
        if !self.consumes_what_was_said(base, log, ends) {
            return false;
        }
        owed.extend(ends.held_behind(base.offset, about.keeps_log()));
        owed.sort_unstable();
        let from = Position { offset: base.offset, digest: log.digest(), cursor: base.cursor() };
        // The ends' log may end before the checkpoint that an end holds: then the ends are asked for everything.
        let leads_there = owed.last().is_some_and(|(offset, _)| *offset == log.end());
        let followed = log.follow_through(&about.keys, ends, from, Consumed::default(), &owed);
        let Some(end) = followed.ok().filter(|_| leads_there) else { return false };
        log.prove(end);
        true
    }

    /// Whether the recorder's log, from the cell's position on, consumes exactly the messages that the recorder gave.
    fn consumes_what_was_said(&self, base: Point, log: &Log, ends: &Ends) -> bool {
        let said = &self.said;
        let size = said.log_end.checked_sub(base.offset).and_then(|size| usize::try_from(size).ok());
        let Some(log) = size.and_then(|size| log.since(base.offset).get(..size)) else { return false };
        let (mut cursor, mut rest) = (base.cursor(), Bytes::copy_from_slice(log));
        let mut took = ends.took();
        while !rest.is_empty() {
            let Ok(entry) = cursor.take(&mut rest) else { return false };
            if let Event::Message(port) = entry.event {
                let at = ends.index(port);
                let Some(took) = at.and_then(|at| took.get_mut(at)) else { return false };
                *took += 1;
            }
        }
        took == said.sent_end
    }
}

impl Owner {
    /// Lets this owner, which has not asked any end yet, use what a recorder says that it keeps. `promised` is the last
    /// promise of the end that asks for the recovery: what was kept of another generation is useless, whichever is
    /// correct.
    ///
    /// # Errors
    /// If the answer is invalid.
    pub fn recalled(
        self,
        recalled: Recalled,
        promised: Generation,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<Self, StandbyError> {
        if recalled.generation != promised {
            return standby_error(
                Code::Superseded,
                "the recorder's generation is not the one that the end has promised",
            );
        }
        let mut owner = self.following(recalled.generation)?;
        if !makes_sense(&recalled, owner.ends.len()) {
            return standby_error(Code::Protocol, "a recorder's answer is inconsistent");
        }
        let start = Position { offset: recalled.log_start, ..owner.log.end_position() };
        owner.log = Log::at(start);
        for (side, start) in owner.ends.iter_mut().zip(&recalled.sent_start) {
            side.took = *start;
        }
        if !recalled.checkpoints.is_empty() {
            out.push(OwnerEffect::Restore(owner.about.image, recalled.checkpoints.clone()));
        }
        if let Some(follow) = &mut owner.follow {
            let end = (recalled.log_end, recalled.tag);
            follow.fed_by_recorder(Recall { said: recalled, begun: 0, given: 0 }, end);
        }
        Ok(owner)
    }

    /// Whether the log and messages that a recorder announced are here. Checkpoints may still be in flight.
    #[must_use]
    pub fn recalled_whole(&self) -> bool {
        let recall = self.follow.as_ref().and_then(|follow| follow.recall());
        recall.is_some_and(|recall| recall.is_whole(&self.log, &self.ends))
    }

    /// Whether a part of the checkpoints that a recorder announced is still missing.
    #[must_use]
    pub fn recalled_lacks(&self) -> bool {
        self.follow.as_ref().and_then(|follow| follow.recall()).is_some_and(Recall::lacks_checkpoints)
    }
}

/// Whether a recorder can keep this much of a session with this many ends.
fn makes_sense(said: &Recalled, ports: usize) -> bool {
    let size = said.log_end.checked_sub(said.log_start);
    let base = said.checkpoints.last().map_or(0, |meta| meta.log_offset);
    let mut counts = said.sent_start.iter().zip(&said.sent_end);
    let from_the_start = said.log_start == 0 && said.sent_start.iter().all(|start| *start == 0);
    size.is_some_and(|size| size <= LOG_SIZE_MAX)
        && said.log_end < LOG_OFFSET_MAX
        && (said.log_start..=said.log_end).contains(&base)
        && said.sent_start.len() == ports
        && said.sent_end.len() == ports
        && counts.all(|(start, end)| start <= end)
        && super::open::is_chain(&said.checkpoints, CHECKPOINTS_SIZE_MAX)
        && said.checkpoints.is_sorted_by_key(|meta| meta.log_offset)
        && said.checkpoints.iter().all(|meta| meta.size > 0 && meta.generation <= said.generation)
        && (!said.checkpoints.is_empty() || from_the_start)
}
