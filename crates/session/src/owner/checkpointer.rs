//! Covering: a checkpoint travels to an end in small pieces; once it is held there, ends forget what it covers.
//!
//! A checkpoint holds every output that its end has not acknowledged **[M]**: no replay brings back what was produced before
//! its position. The cell is copied at the position, but sealed only when the outputs that were on their way are acknowledged:
//! an end that has acknowledged one will never need it again, and in a stream a megabyte is on its way at any time.

use super::{Holder, Owner, OwnerEffect, OwnerPhase};
use crate::cell::{CellId, CheckpointBase};
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

/// Names a checkpoint.
type Name = (Generation, u32);

/// How far one holder is.
#[derive(Debug)]
struct Progress {
    index: usize,
    sent: u64,
    stored: u64,
    complete: bool,
}

/// A checkpoint on its way.
#[derive(Debug)]
struct Sending {
    meta: CheckpointMeta,
    bytes: Bytes,
    holders: Vec<Progress>,
}

/// Where a checkpoint that is being taken stands.
#[derive(Debug)]
struct Taken {
    number: u32,
    log_offset: u64,
    tag: [u8; 8],
    /// Messages consumed, by port.
    took: Vec<u64>,
    /// Charges consumed and not covered, by port, at that time.
    uncovered: Vec<u64>,
    full: bool,
    /// Until it is sealed.
    waits: Option<Waits>,
}

/// A copied cell that waits to be sealed.
#[derive(Debug)]
struct Waits {
    /// Outputs are still to be put in.
    header: Box<Header>,
    /// By port, how many outputs the end will have acknowledged when all that was on its way has arrived.
    settled: Vec<u64>,
}

/// What a checkpoint that an end holds covers: the ends may forget it.
#[derive(Debug)]
struct Covered {
    log_offset: u64,
    tag: [u8; 8],
    /// Messages consumed, by port.
    took: Vec<u64>,
}

/// Checkpoints of one owner.
#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// Never start over, so that a late answer is not taken for that of another generation.
    numbers: u32,
    taken: Option<Taken>,
    sending: Option<Sending>,
    /// What the executor copied or restored last: the next delta builds on it.
    copied: Option<Name>,
    /// The newest checkpoint that every holder has.
    held: Option<Name>,
    covered: Option<Covered>,
    deltas: usize,
    full_size: u64,
    delta_size: u64,
    /// That of the last one, 0 on a full one: the next one's, as far as can be told before it is made.
    last_delta_size: u64,
    /// What handlers cost since the last one, in nanoseconds.
    spent_ns: u64,
    /// Whether a full one is wanted soon, whatever it costs.
    full_requested: bool,
    /// Whether one was copied since the cell was started or restored.
    has_begun: bool,
}

impl Checkpointer {
    pub(super) fn spent(&mut self, cost_ns: u64) {
        self.spent_ns = self.spent_ns.saturating_add(cost_ns);
    }

    /// Whatever there is, the next one is to come soon and to stand alone.
    pub(super) fn request_full(&mut self) {
        self.full_requested = true;
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.sending.as_ref().map_or(0, |sending| sending.bytes.len() as u64)
    }

    /// A new generation: what was on its way to an end is gone.
    pub(super) fn abandon(&mut self) {
        self.taken = None;
        self.sending = None;
    }

    /// The cell is as these checkpoints left it; `agreed` if every holder has just these.
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

    /// Whether the next checkpoint can be a delta. Whoever recovers fetches the deltas too: as far as the size of the last one
    /// tells that of the next, they are to be no more than two thirds of the full one, unless all of it is small. A larger share
    /// would save traffic at the expense of recoveries: at the whole, a fifth of the one for an eighth of the other.
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

    /// Takes a checkpoint when replaying what none covers would take too long, or an end keeps too much.
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

    /// Whether what the cell did since the last copy took too long to be done again, or messages of this charge, or a log
    /// of this size, are more than ends should keep.
    fn is_much(&self, charge: u64, log_size: u64) -> bool {
        let read_size = self.log.known.size();
        self.checkpointer.spent_ns > self.replay_ns_max()
            || charge >= CHECKPOINT_AFTER_BYTES
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
        // A replay from here on has nothing of what was read before.
        self.log.known.forget();
        out.push(OwnerEffect::Copy(
            cell,
            if full { CheckpointBase::Image } else { CheckpointBase::Previous },
        ));
    }

    /// Has the copy sealed once the outputs that were on their way have arrived, or too much has happened meanwhile.
    pub(super) fn seal_if_settled(&mut self, out: &mut Vec<OwnerEffect>) {
        let (Some(cell), Some(taken)) = (self.cell, &self.checkpointer.taken) else { return };
        let Some(waits) = &taken.waits else { return };
        let mut settled = self.sides.iter().zip(&waits.settled);
        let charges = self.sides.iter().zip(&taken.uncovered);
        let charge = charges.map(|(side, then)| side.uncovered.saturating_sub(*then)).max().unwrap_or(0);
        let late = self.log_is_full() || self.is_much(charge, self.log.end() - taken.log_offset);
        if !late && settled.any(|(side, count)| side.acknowledged() < *count) {
            return;
        }
        let Some(Waits { mut header, .. }) =
            self.checkpointer.taken.as_mut().and_then(|taken| taken.waits.take())
        else {
            return;
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
            // The log that it covers goes first **[M]**.
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

    /// No checkpoint came of it: the session runs on while there is room for its log.
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
                let bytes = sending.bytes.slice(at..sending.bytes.len().min(at.saturating_add(PART_SIZE)));
                progress.sent += bytes.len() as u64;
                out.push(OwnerEffect::Send(side.port, CheckpointPart { channel, bytes }.into()));
            }
        }
    }

    /// An end has stored parts, or all of a checkpoint.
    pub(super) fn stored(
        &mut self,
        index: usize,
        bytes: u64,
        complete: Option<u32>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let Some(sending) = &mut self.checkpointer.sending else { return };
        let Some(progress) = sending.holders.iter_mut().find(|progress| progress.index == index) else {
            return;
        };
        progress.stored = progress.stored.saturating_add(bytes);
        if progress.stored > progress.sent {
            return self.terminate(Code::Protocol, "an end stored more than it was sent".into(), out);
        }
        progress.complete |= complete == Some(sending.meta.number) && progress.stored == sending.meta.size;
        if sending.holders.iter().all(|progress| progress.complete) {
            self.covered(out);
            self.checkpoint_if_due(out);
        } else {
            self.send_parts(out);
        }
    }

    /// A checkpoint is held by an end: only now may ends forget what it covers (docs/protocol.md, "Truncation").
    fn covered(&mut self, out: &mut Vec<OwnerEffect>) {
        let (Some(sending), Some(taken)) = (self.checkpointer.sending.take(), self.checkpointer.taken.take())
        else {
            return;
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
            side.uncovered = side.uncovered.saturating_sub(*uncovered);
        }
        let Taken { log_offset, tag, took, .. } = taken;
        self.checkpointer.covered = Some(Covered { log_offset, tag, took });
        self.tell_covered(out);
        self.feed_covered(log_offset, tag, out);
    }

    /// The cell stands where a checkpoint that an end holds left it.
    pub(super) fn restored_from(&mut self, tag: [u8; 8]) {
        let took = self.sides.iter().map(|side| side.took).collect();
        self.checkpointer.covered = Some(Covered { log_offset: self.log.floor, tag, took });
    }

    /// A checkpoint that an end holds covers the log before this offset, as the former owner told this one. How many messages of
    /// each end that is, it did not.
    pub(super) fn covered_before(&mut self, log_offset: u64, tag: [u8; 8]) {
        let took = self.sides.iter().map(|_| 0).collect();
        self.checkpointer.covered = Some(Covered { log_offset, tag, took });
    }

    /// Whether no end holds a checkpoint that leads to where this owner's log begins: its cell is one that stood by, and had
    /// been given a checkpoint that the ends were still to be given.
    pub(super) fn is_ahead_of_ends(&self) -> bool {
        self.log.floor > self.checkpointer.covered.as_ref().map_or(0, |covered| covered.log_offset)
    }

    /// An end that was away while the log was cut may have too much in front for what it lacks of the chosen log to fit: it
    /// forgets what is covered first. All that is kept of the log fits behind that.
    pub(super) fn make_room(&self, out: &mut Vec<OwnerEffect>) {
        let Some(covered) = &self.checkpointer.covered else { return };
        for (side, sent) in self.sides.iter().zip(&covered.took) {
            let Some((channel, promised)) = side.channel.zip(side.promised.as_ref()) else { continue };
            // One that the cell lives for promises only from there on, and may have more.
            let start = if promised.live { 0 } else { promised.log_start };
            let Covered { log_offset, tag, .. } = *covered;
            let end = self.log.end();
            let fits = promised.log_end >= end || end.saturating_sub(start) <= LOG_SIZE_MAX;
            // Else what it is given begins behind what it has, which it forgets then.
            if !fits && (start..=promised.log_end).contains(&log_offset) {
                let truncate = Truncate { channel, log_offset, tag, sent: *sent };
                out.push(OwnerEffect::Send(side.port, truncate.into()));
            }
        }
    }

    /// Lets the ends forget what is covered; after a recovery once more, for an end that was away meanwhile.
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

/// How much earlier the first checkpoint of a session is due than the target says: none to six eighths of the target. Sessions that
/// began together, or were recovered together, and do the same work would else all be checkpointed at once, again and again, and
/// everything else would wait meanwhile.
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
