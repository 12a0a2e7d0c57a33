//! Checkpoints of the cell: a checkpoint is sent to an end in small parts. Once an end holds it, the ends delete what it
//! covers.
//!
//! A checkpoint contains every output that its end has not acknowledged **[M]**: a replay does not produce again what was
//! produced before the position of the checkpoint. The cell is copied at the position, but the checkpoint is sealed only when
//! the outputs in flight are acknowledged: an end never needs an acknowledged output again, and a stream always has about a
//! megabyte in flight.

use super::{Holder, Owner, OwnerEffect, OwnerPhase};
use crate::bug;
use crate::cell::{CellId, CheckpointBase};
use crate::invariant::{BrokenInvariant, holds};
use crate::trace;
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointBegin, CheckpointMeta, CheckpointPart, Code, LogOnly, Truncate},
    header::Header,
    id::{Generation, Port, SessionId},
    limits::{
        CHECKPOINT_AFTER_BYTES, CHECKPOINT_SIZE_MAX, CHECKPOINT_WINDOW, COVER_LOG, COVER_READS, DELTAS_MAX,
        LOG_SIZE_MAX, PART_SIZE,
    },
};

/// Identifies a checkpoint: its generation and its number.
type Name = (Generation, u32);

/// How much of a checkpoint one holder has been sent and has stored.
#[derive(Debug)]
struct Progress {
    index: usize,
    sent: u64,
    stored: u64,
    complete: bool,
}

/// A checkpoint in flight.
#[derive(Debug)]
struct Sending {
    meta: CheckpointMeta,
    bytes: Bytes,
    holders: Vec<Progress>,
}

/// State of a checkpoint that is being taken.
#[derive(Debug)]
struct Taken {
    number: u32,
    log_offset: u64,
    tag: [u8; 8],
    /// Messages consumed, by port.
    took: Vec<u64>,
    /// Charges consumed and not covered, by port, at the time of the copy.
    uncovered: Vec<u64>,
    full: bool,
    /// Until it is sealed.
    waits: Option<Waits>,
}

/// A copied cell that is not sealed yet.
#[derive(Debug)]
struct Waits {
    /// Without outputs: they are added when it is sealed.
    header: Box<Header>,
    /// By port, how many outputs the end will have acknowledged once all outputs in flight have arrived.
    settled: Vec<u64>,
}

/// What a checkpoint that an end holds covers. The ends may delete it.
#[derive(Debug)]
struct Covered {
    log_offset: u64,
    tag: [u8; 8],
    /// Messages consumed, by port.
    took: Vec<u64>,
}

/// The checkpoints of one owner.
#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// Never reset, so that a late answer does not match a checkpoint of another generation.
    numbers: u32,
    taken: Option<Taken>,
    sending: Option<Sending>,
    /// What the executor copied or restored last. It is the base of the next delta.
    copied: Option<Name>,
    /// The newest checkpoint that every holder has.
    held: Option<Name>,
    covered: Option<Covered>,
    deltas: usize,
    full_size: u64,
    delta_size: u64,
    /// Size of the last delta, 0 after a full checkpoint: the estimate for the next delta.
    last_delta_size: u64,
    /// Time spent in handlers since the last copy, in nanoseconds.
    spent_ns: u64,
    /// Whether the next checkpoint must be full and is due at once.
    full_requested: bool,
    /// Whether a copy was made since the cell was started or restored.
    has_begun: bool,
}

impl Checkpointer {
    pub(super) fn spent(&mut self, cost_ns: u64) {
        self.spent_ns = self.spent_ns.saturating_add(cost_ns);
    }

    /// Makes the next checkpoint due at once, and full.
    pub(super) fn request_full(&mut self) {
        self.full_requested = true;
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.sending.as_ref().map_or(0, |sending| sending.bytes.len() as u64)
    }

    /// A new generation: checkpoints in flight to an end are lost.
    pub(super) fn abandon(&mut self) {
        self.taken = None;
        self.sending = None;
    }

    /// The cell was restored from these checkpoints. `agreed` if every holder has exactly these.
    pub(super) fn restored(&mut self, chain: &[CheckpointMeta], agreed: bool) {
        self.copied = chain.last().map(|checkpoint| (checkpoint.generation, checkpoint.number));
        self.held = self.copied.filter(|_| agreed);
        self.covered = None;
        self.deltas = chain.len().saturating_sub(1);
        self.full_size = chain.first().map_or(0, |checkpoint| checkpoint.size);
        self.delta_size = chain.iter().skip(1).map(|checkpoint| checkpoint.size).sum();
        self.last_delta_size = chain.iter().skip(1).last().map_or(0, |checkpoint| checkpoint.size);
        self.spent_ns = 0;
        self.has_begun = false;
    }

    /// I19 and I28 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I19", self.deltas <= DELTAS_MAX);
        holds!("I28", self.sending.is_none() || self.taken.is_some());
        for holder in self.sending.iter().flat_map(|sending| &sending.holders) {
            let size = self.sending.as_ref().map_or(0, |sending| sending.bytes.len() as u64);
            holds!("I28", holder.stored <= holder.sent && holder.sent <= size);
            holds!("I28", holder.sent - holder.stored <= CHECKPOINT_WINDOW + PART_SIZE as u64);
        }
        Ok(())
    }

    /// Whether the next checkpoint can be a delta. A recovery fetches the deltas too. So the deltas, with the size of the last
    /// one as the estimate for the next one, may take up to two thirds of the size of the full one, or 1 MiB if that is more.
    /// A limit of the whole size would save a fifth of the traffic, but make recoveries an eighth more expensive.
    fn delta_fits(&self) -> bool {
        self.copied.is_some()
            && self.copied == self.held
            && self.deltas < DELTAS_MAX
            && self.delta_size + self.last_delta_size <= (self.full_size / 3 * 2).max(1 << 20)
    }
}

impl Owner {
    fn holders(&self) -> Vec<usize> {
        let wanted = |port: Port| match self.policy.holder {
            Holder::Client => port == Port::CLIENT,
            Holder::Server => port == Port::SERVER,
            Holder::Both => true,
        };
        (0..self.sides.len()).filter(|index| wanted(self.sides[*index].port)).collect()
    }

    /// Whether a delta on the last of these would find its base at every holder.
    pub(super) fn holders_agree(&self, chain: &[CheckpointMeta]) -> bool {
        self.holders().iter().all(|index| {
            self.sides[*index].promised.as_ref().is_some_and(|promised| promised.checkpoints == chain)
        })
    }

    /// Takes a checkpoint when a replay of what none covers would take too long, or an end has to keep too much.
    pub(super) fn checkpoint_if_due(&mut self, out: &mut Vec<OwnerEffect>) {
        let uncovered = self.sides.iter().map(|side| side.uncovered).max().unwrap_or(0);
        let wanted = self.checkpointer.full_requested || self.awaits_base();
        let due = wanted || self.is_much(uncovered, self.log.bytes.len() as u64);
        let busy = self.checkpointer.taken.is_some()
            || self.checkpointer.sending.is_some()
            || self.running.is_some();
        if due && !busy && self.policy.keep {
            self.checkpoint(out);
        }
        self.seal_if_settled(out);
    }

    /// Whether the work of the cell since the last copy would take too long to replay, or messages of this charge, or a log of
    /// this size, are more than ends should keep.
    fn is_much(&self, charge: u64, log_size: u64) -> bool {
        let read_size = self.log.known.size();
        self.checkpointer.spent_ns > self.replay_ns_max()
            || charge >= CHECKPOINT_AFTER_BYTES
            // A rough measure: at a recovery the log is there before what was read is counted.
            || log_size.saturating_sub(read_size) >= COVER_LOG
            || read_size >= COVER_READS
    }

    fn replay_ns_max(&self) -> u64 {
        let target_ns = self.policy.recovery_target_ns;
        if self.checkpointer.has_begun {
            target_ns
        } else {
            target_ns - head_start_ns(self.session, target_ns)
        }
    }

    fn checkpoint(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(cell) = self.cell else { return };
        if !self.holders().iter().all(|index| self.sides[*index].channel.is_some()) {
            return;
        }
        let full = !self.checkpointer.delta_fits() || self.checkpointer.full_requested || self.awaits_base();
        self.checkpointer.full_requested = false;
        self.checkpointer.numbers += 1;
        let number = self.checkpointer.numbers;
        self.start_waiting_streams(number, out);
        let (base_generation, base_number) =
            self.checkpointer.copied.filter(|_| !full).unwrap_or((Generation::NONE, 0));
        let (timers_set, timers) = self.timers.to_header();
        let (tasks, locks) = self.tasks.to_header();
        let header = Header {
            session: self.session,
            image: self.image,
            generation: self.generation,
            number,
            base_generation,
            base_number,
            log_offset: self.log.end(),
            head: self.digest.0,
            last_ns: self.log.cursor.last_ns,
            timers_set,
            timers,
            ports: self.sides.iter().map(super::EndState::to_header).collect(),
            tasks,
            locks,
            paused: self.pauses.to_header(),
        };
        self.checkpointer.taken = Some(Taken {
            number,
            log_offset: self.log.end(),
            tag: self.digest.tag(),
            took: self.sides.iter().map(|side| side.took).collect(),
            uncovered: self.sides.iter().map(|side| side.uncovered).collect(),
            full,
            waits: Some(Waits {
                header: Box::new(header),
                settled: self.sides.iter().map(super::EndState::settled).collect(),
            }),
        });
        self.checkpointer.copied = Some((self.generation, number));
        self.checkpointer.spent_ns = 0;
        self.checkpointer.has_begun = true;
        // A replay that starts here needs nothing of what was read before.
        self.log.known.forget();
        out.push(OwnerEffect::Copy(
            cell,
            if full { CheckpointBase::Image } else { CheckpointBase::Previous },
        ));
    }

    /// Seals the copy once the outputs in flight have arrived, or once too much has happened meanwhile.
    pub(super) fn seal_if_settled(&mut self, out: &mut Vec<OwnerEffect>) {
        let (Some(cell), Some(taken)) = (self.cell, &self.checkpointer.taken) else { return };
        let Some(waits) = &taken.waits else { return };
        let mut settled = self.sides.iter().zip(&waits.settled);
        let charges = self.sides.iter().zip(&taken.uncovered);
        let charges: Option<Vec<u64>> =
            charges.map(|(side, then)| side.uncovered.checked_sub(*then)).collect();
        let Some(charges) = charges else {
            let bug = bug!("messages stay uncovered while a checkpoint is taken", taken.uncovered);
            return self.end_for_bug(bug, out);
        };
        let charge = charges.into_iter().max().unwrap_or(0);
        let late = self.log_is_full() || self.is_much(charge, self.log.end() - taken.log_offset);
        if !late && settled.any(|(side, count)| side.acknowledged() < *count) {
            return;
        }
        let Some(Waits { mut header, .. }) =
            self.checkpointer.taken.as_mut().and_then(|taken| taken.waits.take())
        else {
            let bug = bug!("a copy is sealed once", self.session);
            return self.end_for_bug(bug, out);
        };
        for (side, port) in self.sides.iter().zip(&mut header.ports) {
            port.outbox = side.unacknowledged(port.produced);
        }
        out.push(OwnerEffect::Checkpoint(cell, header, self.seal.clone()));
    }

    /// The answer to [`OwnerEffect::Checkpoint`].
    pub fn checkpointed(
        &mut self,
        cell: CellId,
        number: u32,
        result: Result<Bytes, String>,
        out: &mut Vec<OwnerEffect>,
    ) -> Option<String> {
        let due = self.cell == Some(cell)
            && self.checkpointer.taken.as_ref().is_some_and(|taken| taken.number == number);
        if !due || self.phase != OwnerPhase::Running {
            trace!(self.context(), "ignores checkpoint {number}, which was given up");
            return None;
        }
        let bytes = match result {
            Ok(bytes) if bytes.len() as u64 <= CHECKPOINT_SIZE_MAX => bytes,
            Ok(bytes) => {
                let reason = alloc::format!("a checkpoint of {} bytes is larger than the limit", bytes.len());
                return Some(self.no_checkpoint(reason, out));
            }
            Err(reason) => return Some(self.no_checkpoint(reason, out)),
        };
        let taken = self.checkpointer.taken.as_ref()?;
        let meta = CheckpointMeta {
            generation: self.generation,
            number,
            full: taken.full,
            log_offset: taken.log_offset,
            size: bytes.len() as u64,
        };
        let took = taken.took.clone();
        self.feed_checkpoint(&meta, &bytes, &took, out);
        let holders = self.holders();
        for index in &holders {
            let Some(channel) = self.sides[*index].channel else { continue };
            // The log that the checkpoint covers is sent first **[M]**.
            if let Some(increment) = self.increment(*index) {
                let log = LogOnly { channel, entries: increment.entries, tag: increment.tag };
                out.push(OwnerEffect::Send(self.sides[*index].port, log.into()));
            }
            let begin = CheckpointBegin { channel, meta: meta.clone() };
            out.push(OwnerEffect::Send(self.sides[*index].port, begin.into()));
        }
        let start = |index| Progress { index, sent: 0, stored: 0, complete: false };
        self.checkpointer.sending =
            Some(Sending { meta, bytes, holders: holders.into_iter().map(start).collect() });
        self.send_parts(out);
        None
    }

    /// The checkpoint failed: the session continues while there is room for its log.
    fn no_checkpoint(&mut self, reason: String, out: &mut Vec<OwnerEffect>) -> String {
        self.checkpointer.taken = None;
        self.feed_no_checkpoint(out);
        if self.log_is_full() {
            let why = alloc::format!("the log is full, and no checkpoint can be taken: {reason}");
            self.terminate(Code::Guest, why, out);
        }
        reason
    }

    /// Sends parts within the window.
    fn send_parts(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(sending) = &mut self.checkpointer.sending else { return };
        for progress in &mut sending.holders {
            let side = &self.sides[progress.index];
            let Some(channel) = side.channel else { continue };
            while progress.sent < sending.meta.size && progress.sent - progress.stored < CHECKPOINT_WINDOW {
                let at = usize::try_from(progress.sent).unwrap_or(usize::MAX);
                let bytes = sending.bytes.slice(at..sending.bytes.len().min(at + PART_SIZE));
                progress.sent += bytes.len() as u64;
                out.push(OwnerEffect::Send(side.port, CheckpointPart { channel, bytes }.into()));
            }
        }
    }

    /// An end has stored parts, or a whole checkpoint.
    pub(super) fn stored(
        &mut self,
        index: usize,
        bytes: u64,
        complete: Option<u32>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let sending = self.checkpointer.sending.as_mut();
        let progress = sending.and_then(|sending| {
            let progress = sending.holders.iter_mut().find(|progress| progress.index == index)?;
            Some((&sending.meta, progress))
        });
        let Some((meta, progress)) = progress else {
            return trace!(self.context(), "ignores {bytes} stored bytes of a checkpoint that was given up");
        };
        // An end counts them; a sum that is too large is refused below.
        progress.stored = progress.stored.saturating_add(bytes);
        if progress.stored > progress.sent {
            return self.terminate(Code::Protocol, "an end stored more than it was sent".into(), out);
        }
        progress.complete |= complete == Some(meta.number) && progress.stored == meta.size;
        let sending = self.checkpointer.sending.as_ref();
        if sending.is_some_and(|sending| sending.holders.iter().all(|progress| progress.complete)) {
            self.covered(out);
            self.checkpoint_if_due(out);
        } else {
            self.send_parts(out);
        }
    }

    /// An end holds a checkpoint: only now may the ends delete what it covers (docs/protocol.md, "Truncation").
    fn covered(&mut self, out: &mut Vec<OwnerEffect>) {
        let (Some(sending), Some(taken)) = (self.checkpointer.sending.take(), self.checkpointer.taken.take())
        else {
            let bug = bug!("I28: a checkpoint is sent while it is taken", self.session);
            return self.end_for_bug(bug, out);
        };
        self.totals.checkpoints += 1;
        self.totals.checkpoint_bytes += sending.meta.size;
        self.checkpointer.held = Some((sending.meta.generation, sending.meta.number));
        if sending.meta.full {
            (self.checkpointer.deltas, self.checkpointer.full_size) = (0, sending.meta.size);
            (self.checkpointer.delta_size, self.checkpointer.last_delta_size) = (0, 0);
        } else {
            self.checkpointer.deltas += 1;
            self.checkpointer.delta_size += sending.meta.size;
            self.checkpointer.last_delta_size = sending.meta.size;
        }
        self.log.truncate(taken.log_offset);
        for (side, uncovered) in self.sides.iter_mut().zip(&taken.uncovered) {
            let Some(rest) = side.uncovered.checked_sub(*uncovered) else {
                let bug = bug!("a checkpoint covers what was uncovered", side.uncovered, uncovered);
                return self.end_for_bug(bug, out);
            };
            side.uncovered = rest;
        }
        let Taken { log_offset, tag, took, .. } = taken;
        self.checkpointer.covered = Some(Covered { log_offset, tag, took });
        self.tell_covered(out);
        self.feed_covered(log_offset, tag, out);
    }

    /// The cell is in the state of a checkpoint that an end holds.
    pub(super) fn restored_from(&mut self, tag: [u8; 8]) {
        let took = self.sides.iter().map(|side| side.took).collect();
        self.checkpointer.covered = Some(Covered { log_offset: self.log.floor, tag, took });
    }

    /// A checkpoint that an end holds covers the log before this offset. The former owner sent the offset, but not how many
    /// messages of each end the checkpoint covers.
    pub(super) fn covered_before(&mut self, log_offset: u64, tag: [u8; 8]) {
        let took = self.sides.iter().map(|_| 0).collect();
        self.checkpointer.covered = Some(Covered { log_offset, tag, took });
    }

    /// Whether no end holds a checkpoint that leads to where this owner's log begins. Then its cell was a standby, and the
    /// standby was sent a checkpoint that the ends did not have yet.
    pub(super) fn is_ahead_of_ends(&self) -> bool {
        self.log.floor > self.checkpointer.covered.as_ref().map_or(0, |covered| covered.log_offset)
    }

    /// An end that was disconnected while the log was cut may keep so much old log that the missing part of the chosen log does
    /// not fit: it deletes what is covered first. All of the log that the owner keeps fits after that.
    pub(super) fn make_room(&self, out: &mut Vec<OwnerEffect>) {
        let Some(covered) = &self.checkpointer.covered else { return };
        for (side, sent) in self.sides.iter().zip(&covered.took) {
            let Some((channel, promised)) = side.channel.zip(side.promised.as_ref()) else { continue };
            // With a live cell, an end promises only what follows the cell's position, and may have more.
            let start = if promised.live { 0 } else { promised.log_start };
            let Covered { log_offset, tag, .. } = *covered;
            let end = self.log.end();
            let fits = promised.log_end >= end || end - start <= LOG_SIZE_MAX;
            // Otherwise the log that it is sent begins after the end of its own log, which it then deletes.
            if !fits && (start..=promised.log_end).contains(&log_offset) {
                let truncate = Truncate { channel, log_offset, tag, sent: *sent };
                out.push(OwnerEffect::Send(side.port, truncate.into()));
            }
        }
    }

    /// Lets the ends delete what is covered. Repeated after a recovery, for an end that was disconnected meanwhile.
    pub(super) fn tell_covered(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(covered) = &self.checkpointer.covered else { return };
        for (side, sent) in self.sides.iter_mut().zip(&covered.took) {
            let Some(channel) = side.channel else { continue };
            let Covered { log_offset, tag, .. } = *covered;
            if side.known < log_offset {
                (side.known, side.known_tag) = (log_offset, tag);
            }
            out.push(OwnerEffect::Send(side.port, Truncate { channel, log_offset, tag, sent: *sent }.into()));
        }
    }
}

/// How much earlier than the target the first checkpoint of a session is due: 0 to 6 eighths of the target. Otherwise sessions
/// that began or were recovered together, and that do the same work, would all be checkpointed at the same time, repeatedly,
/// and delay everything else.
fn head_start_ns(session: SessionId, target_ns: u64) -> u64 {
    target_ns / 8 * u64::from(session.0[15] % 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_checkpoints_of_sessions_that_begin_together_are_spread_over_the_target() {
        let due_ns = |last: u8| {
            let mut id = [0; 16];
            id[15] = last;
            80_000 - head_start_ns(SessionId(id), 80_000)
        };
        let all: alloc::collections::BTreeSet<u64> = (0..=u8::MAX).map(due_ns).collect();
        assert_eq!(all, (2..=8).map(|eighths| eighths * 10_000).collect());
    }
}
