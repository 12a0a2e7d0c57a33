//! What an end receives from its owner, after the promise.

use super::{ACK_COUNT, End, EndEffect, EndPhase, SessionClock, Violation, keep::Log};
use crate::credit::MessageCredit;
use alloc::vec::Vec;
use bytes::Bytes;
use marram_wire::{
    frame::{Chosen, Finished, Frame, Increment, Output, ProtectNow, Protected, Stored},
    limits::{MESSAGE_SIZE_MAX, charge},
    seal::LOG_OFFSET_MAX,
};

/// To free so many bytes may take the kernel a millisecond or longer.
const FREES_SLOWLY: usize = 16 << 20;
/// Parts of a checkpoint are acknowledged after this many bytes.
const STORED_EVERY: u64 = marram_wire::limits::CHECKPOINT_WINDOW / 4;

impl End {
    /// Takes a frame from the owner of the generation that this end has promised. The caller ensures that it is from no other
    /// ([`Self::promised`] is the generation that the frame's channel is bound to).
    ///
    /// # Errors
    /// If the owner violates the protocol.
    pub fn receive(&mut self, now_ns: u64, frame: Frame, out: &mut Vec<EndEffect>) -> Result<(), Violation> {
        match (frame, self.phase) {
            (Frame::LogPart(part), EndPhase::Promised) => check(
                self.log.hold(part.offset, part.bytes),
                "a part of the chosen log does not continue the log",
            ),
            (Frame::Chosen(chosen), EndPhase::Promised) => self.chosen(now_ns, chosen, out),
            (Frame::Output(output), EndPhase::Owned) => self.output(output, out),
            (Frame::LogOnly(log), EndPhase::Owned) => {
                self.increment(&Increment { entries: log.entries, tag: log.tag })
            }
            (Frame::Credit(credit), EndPhase::Owned) => {
                let is_counted = self.credit.grant(credit.bytes);
                check(is_counted, "the owner grants more credit than can be counted")?;
                self.pump(out);
                Ok(())
            }
            (Frame::CheckpointBegin(begin), EndPhase::Owned) => {
                let own = begin.meta.generation == self.promised;
                check(
                    own && self.checkpoints.begin(begin.meta),
                    "a checkpoint does not follow what this end has",
                )
            }
            (Frame::CheckpointPart(part), EndPhase::Owned) => self.checkpoint_part(&part.bytes, out),
            (Frame::Truncate(truncate), phase @ (EndPhase::Promised | EndPhase::Owned)) => {
                // Before a chosen log, to make room for it: only log that this end has may be covered.
                let has = phase == EndPhase::Owned || truncate.log_offset <= self.log.end();
                check(has, "a checkpoint covers more than this end has of the log")?;
                check(
                    truncate.log_offset < LOG_OFFSET_MAX,
                    "a checkpoint covers more than the maximum log offset",
                )?;
                check(truncate.sent <= self.sent.sent_end(), "a checkpoint covers more than was sent")?;
                self.log.truncate(truncate.log_offset, truncate.tag);
                self.sent.truncate(truncate.sent);
                Ok(())
            }
            (Frame::RunsAhead(runs), EndPhase::Owned) => {
                self.runs_ahead = runs.is_so;
                Ok(())
            }
            (Frame::ProtectNow(protect), EndPhase::Owned) => self.protect(&protect, out),
            (Frame::Unprotect(_), EndPhase::Owned) => {
                check(self.protected, "a session that does not move is not kept any more")?;
                self.protected = false;
                self.sent.forget_sent();
                self.log.truncate(self.log.end(), self.log.tag());
                Ok(())
            }
            (Frame::Fetch(_), EndPhase::Owned) => {
                self.show(out);
                Ok(())
            }
            (Frame::Standby(standby), EndPhase::Owned) => {
                let named = !standby.edge.is_empty();
                self.standby = named.then_some((standby.edge, standby.shard));
                Ok(())
            }
            (Frame::Failed(failed), _) => {
                self.failed = Some(failed.failure);
                self.drift();
                Ok(())
            }
            (Frame::Finish(_), EndPhase::Owned) => {
                check(self.complete(), "the session finishes before its ends are closed")?;
                self.finishing = true;
                out.push(EndEffect::Send(Finished { channel: self.channel }.into()));
                Ok(())
            }
            _ => Err(Violation("a frame is not allowed in this phase")),
        }
    }

    /// The session moves. If its app has no protection, this end keeps its messages and the log from here on, and acknowledges outputs; what
    /// it sent before is at the owner, or on its way there. The answer says that all log is here that was sent before.
    fn protect(&mut self, protect: &ProtectNow, out: &mut Vec<EndEffect>) -> Result<(), Violation> {
        check(protect.log_offset < LOG_OFFSET_MAX, "a log begins behind the maximum log offset")?;
        if !self.keeps() {
            self.protected = true;
            self.log = Log::starting(protect.log_offset, protect.tag);
            self.unacknowledged = 0;
        }
        let (channel, sent_start, received) = (self.channel, self.sent.start(), self.received);
        out.push(EndEffect::Send(Protected { channel, sent_start, received }.into()));
        Ok(())
    }

    fn chosen(&mut self, now_ns: u64, chosen: Chosen, out: &mut Vec<EndEffect>) -> Result<(), Violation> {
        let fits = self.log.choose(self.promised, chosen.log_offset, chosen.log, chosen.tag);
        check(fits, "the chosen log does not continue what this end has")?;
        self.enter(EndPhase::Owned, "the owner has chosen a log");
        self.begun = true;
        self.chosen = self.promised;
        self.received = self.agreed;
        self.agreed_least = None;
        self.was_behind |= self.received < self.delivered;
        self.runs_ahead = chosen.runs_ahead.0 == Some(true);
        self.clock = Some(SessionClock { session_ns: chosen.session_ns, told_ns: now_ns });
        self.credit = MessageCredit::of(chosen.credit);
        self.pump(out);
        Ok(())
    }

    fn increment(&mut self, increment: &Increment) -> Result<(), Violation> {
        let fits = self.log.append(self.promised, &increment.entries, increment.tag);
        check(fits, "the log exceeds what this end keeps")
    }

    fn output(&mut self, output: Output, out: &mut Vec<EndEffect>) -> Result<(), Violation> {
        // An owner that was behind may close later than the one before.
        let is_again = self.received < self.delivered;
        check(!self.output_closed || self.was_behind, "an output arrived after the close")?;
        if let Some(increment) = &output.increment {
            self.increment(increment)?;
        }
        let cost = charge(output.payload.len());
        check(self.outputs.is_left(), "an output came that the owner had no credit for")?;
        check(output.payload.len() <= MESSAGE_SIZE_MAX, "an output is larger than a message can be")?;
        self.outputs.spend(cost);
        self.received += 1;
        self.unacknowledged += 1;
        self.delivered = self.delivered.max(self.received);
        if output.close && !self.output_closed {
            self.output_closed = true;
            self.taken += cost;
            out.push(EndEffect::DeliverClose);
        } else if is_again || self.output_closed {
            // The program has it, or was told that there is no more.
            self.taken += cost;
        } else {
            self.backlog += cost;
            out.push(EndEffect::Deliver(output.payload));
        }
        if self.unacknowledged >= ACK_COUNT || self.is_grant_due() || self.complete() {
            self.acknowledge(out);
        }
        Ok(())
    }

    fn checkpoint_part(&mut self, bytes: &Bytes, out: &mut Vec<EndEffect>) -> Result<(), Violation> {
        let whole =
            self.checkpoints.part(bytes).ok_or(Violation("a part does not belong to a checkpoint"))?;
        let mut complete = None;
        if whole {
            let covered = self.checkpoints.arriving().map_or(0, |meta| meta.log_offset);
            check(covered <= self.log.end(), "a checkpoint arrived before the log that it covers")?;
            complete = self.checkpoints.arriving().map(|meta| meta.number);
            out.extend(slow_to_free(self.checkpoints.complete()).map(EndEffect::Free));
        }
        self.stored += bytes.len() as u64;
        if whole || self.stored >= STORED_EVERY {
            let bytes = core::mem::take(&mut self.stored);
            out.push(EndEffect::Send(Stored { channel: self.channel, bytes, complete }.into()));
        }
        Ok(())
    }
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation(otherwise)) }
}

/// Those of these buffers that the shell should free, because that may take long.
pub(super) fn slow_to_free(buffers: impl Iterator<Item = Bytes>) -> impl Iterator<Item = Bytes> {
    buffers.filter(|bytes| bytes.len() >= FREES_SLOWLY)
}
