//! Recovery with a recorder's data. A recorder is not trusted. It announces how much it has before it sends it, and this must
//! be exactly the messages that its log consumes, from the position of its checkpoint on. All of it must lead to the digests
//! that the ends and the witness know. Otherwise all of it is discarded, and the ends are asked for everything that they keep.
//!
//! A message that the log does not consume would look like one that an end sent and no owner has handled yet: a recorder could
//! insert messages of its own, or make an end omit its messages.

use super::{
    Owner, OwnerEffect, StandbyError,
    end_state::Message,
    follow::{push, standby_error},
};
use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointMeta, Code, Frame, KeptInput, LogPart, Recalled},
    id::Generation,
    limits::LOG_SIZE_MAX,
    log::{Cursor, Event},
    seal::LOG_OFFSET_MAX,
};

/// A recorder's answer, until the data is verified against it.
#[derive(Debug)]
pub(super) struct Recall {
    pub(super) said: Recalled,
    /// The number of checkpoints that were begun, and the bytes of all of them that are here.
    begun: usize,
    given: u64,
}

impl Recall {
    /// Bytes of the checkpoints that were begun.
    fn begun_size(&self) -> u64 {
        self.said.checkpoints.iter().take(self.begun).map(|meta| meta.size).sum()
    }
}

impl Owner {
    /// Lets this owner, which has not asked any end yet, use what a recorder says that it keeps. `promised` is the last promise
    /// of the end that asks for the recovery: what was kept of another generation is useless, whichever is correct.
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
        if !makes_sense(&recalled, owner.sides.len()) {
            return standby_error(Code::Protocol, "a recorder's answer is inconsistent");
        }
        owner.log.floor = recalled.log_start;
        for (side, start) in owner.sides.iter_mut().zip(&recalled.sent_start) {
            side.took = *start;
        }
        if !recalled.checkpoints.is_empty() {
            out.push(OwnerEffect::Restore(owner.image, recalled.checkpoints.clone()));
        }
        if let Some(follow) = &mut owner.follow {
            follow.recorder = true;
            follow.owed.push((recalled.log_end, recalled.tag));
            follow.recalled = Some(Box::new(Recall { said: recalled, begun: 0, given: 0 }));
        }
        Ok(owner)
    }

    /// A frame from the recorder. A recorder only sends what it kept. It does not decide the generation, what ends have
    /// received or what they may delete.
    pub(super) fn take_recalled(
        &mut self,
        frame: Frame,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), StandbyError> {
        match frame {
            Frame::LogPart(part) => self.recalled_log(&part),
            Frame::KeptInput(input) => self.recalled_input(input),
            Frame::CheckpointBegin(begin) => self.recalled_checkpoint(&begin.meta),
            Frame::CheckpointPart(part) => self.recalled_part(part.bytes, out),
            _ => standby_error(Code::Protocol, "a recorder sent a frame that only an owner may send"),
        }
    }

    fn recall(&mut self) -> Option<&mut Recall> {
        self.follow.as_mut().and_then(|follow| follow.recalled.as_deref_mut())
    }

    fn recalled_log(&mut self, part: &LogPart) -> Result<(), StandbyError> {
        // A recorder chooses the offset; a sum that is too large is refused below.
        let end = part.offset.saturating_add(part.bytes.len() as u64);
        let announced = self.recall().is_some_and(|recall| end <= recall.said.log_end);
        if part.offset != self.log.end() || !announced {
            return standby_error(
                Code::Protocol,
                "a recorder's log has a gap, or is longer than it announced",
            );
        }
        let mut bytes = part.bytes.to_vec();
        self.keys.seal(part.generation).log(part.offset, &mut bytes);
        self.log.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    fn recalled_input(&mut self, input: KeptInput) -> Result<(), StandbyError> {
        let recall = self.follow.as_ref().and_then(|follow| follow.recalled.as_ref());
        let ends = recall.map_or(&[][..], |recall| &recall.said.sent_end);
        let open = self.sides.iter_mut().zip(ends).find(|(side, end)| side.fed_end() < **end);
        let Some((side, _)) = open else {
            return standby_error(Code::Protocol, "a recorder sent more messages than it announced");
        };
        push(side, Message { close: input.close, payload: input.payload })
    }

    fn recalled_checkpoint(&mut self, meta: &CheckpointMeta) -> Result<(), StandbyError> {
        let next = self.recall().filter(|recall| {
            recall.said.checkpoints.get(recall.begun) == Some(meta) && recall.given == recall.begun_size()
        });
        let Some(recall) = next else {
            return standby_error(Code::Protocol, "a recorder sent a checkpoint that it did not announce");
        };
        recall.begun += 1;
        Ok(())
    }

    fn recalled_part(&mut self, bytes: Bytes, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        let size = bytes.len() as u64;
        let fits = self.recall().filter(|recall| recall.given.saturating_add(size) <= recall.begun_size());
        let Some(recall) = fits else {
            return standby_error(Code::Protocol, "a recorder sent more of a checkpoint than it announced");
        };
        recall.given += size;
        out.push(OwnerEffect::Part(bytes));
        Ok(())
    }

    /// Whether the log and messages that a recorder announced are here. Checkpoints may still be in flight.
    #[must_use]
    pub fn recalled_whole(&self) -> bool {
        let recall = self.follow.as_ref().and_then(|follow| follow.recalled.as_ref());
        recall.is_some_and(|recall| {
            let messages = self.sides.iter().zip(&recall.said.sent_end);
            self.log.end() == recall.said.log_end
                && messages.into_iter().all(|(side, end)| side.fed_end() == *end)
        })
    }

    /// Whether a part of the checkpoints that a recorder announced is still missing.
    #[must_use]
    pub fn recalled_lacks(&self) -> bool {
        let recall = self.follow.as_ref().and_then(|follow| follow.recalled.as_ref());
        recall.is_some_and(|recall| {
            let announced = recall.said.checkpoints.iter().map(|meta| meta.size);
            recall.given < announced.fold(0, u64::saturating_add)
        })
    }

    /// Whether every end continues exactly where the recorder's messages end. An end that begins elsewhere did not send all of
    /// them, or was made to delete some that they lack.
    pub(super) fn ends_go_on_from(&self, recall: &Recall) -> bool {
        let starts = self.sides.iter().map(|side| side.promised.as_ref().map(|promised| promised.sent_start));
        starts.eq(recall.said.sent_end.iter().map(|end| Some(*end)))
    }

    /// Whether the recorder's data matches its announcement, and leads to each expected digest.
    pub(super) fn recalled_holds(&mut self) -> bool {
        let Some(follow) = &mut self.follow else { return false };
        let mut owed = core::mem::take(&mut follow.owed);
        let Some(recall) = follow.recalled.take() else { return false };
        let base = follow.base;
        if !self.consumes_what_was_said(&recall.said, (base.offset, Cursor { last_ns: base.last_ns })) {
            return false;
        }
        owed.extend(self.seen_behind(base.offset));
        owed.extend(self.held_behind(base.offset));
        owed.sort_unstable();
        let from = (base.offset, self.digest, Cursor { last_ns: base.last_ns });
        // The ends' log may end before the checkpoint that an end holds: then the ends are asked for everything.
        let leads_there = owed.last().is_some_and(|(offset, _)| *offset == self.log.end());
        let Ok((digest, cursor)) = self.follow_through(from, [0; 2], &owed) else { return false };
        if !leads_there {
            return false;
        }
        (self.digest, self.log.cursor) = (digest, cursor);
        true
    }

    /// Whether the recorder's log, from the cell's position on, consumes exactly the messages that the recorder gave.
    fn consumes_what_was_said(&self, said: &Recalled, (base, mut cursor): (u64, Cursor)) -> bool {
        let size = said.log_end.checked_sub(base).and_then(|size| usize::try_from(size).ok());
        let Some(log) = size.and_then(|size| self.log.since(base).get(..size)) else { return false };
        let mut rest = Bytes::copy_from_slice(log);
        let mut took: Vec<u64> = self.sides.iter().map(|side| side.took).collect();
        while !rest.is_empty() {
            let Ok(entry) = cursor.take(&mut rest) else { return false };
            if let Event::Message(port) = entry.event {
                let at = self.sides.iter().position(|side| side.port == port);
                let Some(took) = at.and_then(|at| took.get_mut(at)) else { return false };
                *took += 1;
            }
        }
        took == said.sent_end
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
        && super::open::is_chain(&said.checkpoints)
        && said.checkpoints.is_sorted_by_key(|meta| meta.log_offset)
        && said.checkpoints.iter().all(|meta| meta.size > 0 && meta.generation <= said.generation)
        && (!said.checkpoints.is_empty() || from_the_start)
}
