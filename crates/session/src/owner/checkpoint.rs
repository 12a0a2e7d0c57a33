//! Checkpoints of the cell, from the copy to the truncation of what they cover (docs/protocol.md, "Checkpoints" and
//! "Truncation"). What is decided is in [`super::checkpointer`].

use super::{
    Now, Owner, OwnerEffect, OwnerPhase,
    checkpointer::{Awaited, Step, Stored},
    end_state::EndState,
    page_feed::PagesKind,
};
use crate::{
    cell::{CellId, CheckpointBase},
    trace,
};
use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointBegin, CheckpointMeta, Code, LogOnly},
    limits::{RETAINED_MAX, STREAM_CUT, charge},
};

/// After a checkpoint that could not be made, one is tried again so much later, in nanoseconds, if one is due then.
const RETRY_NS: u64 = 1_000_000_000;

impl Owner {
    /// Takes a checkpoint if one is due and no handler runs: a copy in the middle of an entry would be at no position
    /// of the log. Nor while another edge is about to take the session over: the ends would delete log that it still needs.
    pub(super) fn checkpoint_if_due(&mut self, out: &mut Vec<OwnerEffect>) {
        let awaited = self.awaited();
        let due = self.checkpointer.is_due(&self.about, &self.ends, &self.log, awaited);
        if due
            && !self.replicas.has_handed_over()
            && !self.runner.is_busy()
            && self.about.keeps()
            && let Some(cell) = self.cell
        {
            match self.checkpointer.step(&self.about, &self.ends, awaited) {
                Step::Wait => {}
                Step::NoRoom { size, room } => return self.no_room(size, room, out),
                Step::Prepare(base) => out.push(OwnerEffect::Prepare(cell, base)),
                Step::Copy => self.copy(cell, awaited, out),
            }
        }
        self.seal_if_settled(out);
    }

    /// The checkpoint that is awaited. Where the executor knows none that a backup's pages build on, the one that a shared cell keeps for itself
    /// becomes that.
    fn awaited(&self) -> Awaited {
        let target_ns = self.about.policy.recovery_target_ns;
        let is_own = || self.keep.as_ref().is_some_and(|keep| keep.is_due(target_ns, &self.log));
        match self.replicas.awaited() {
            Awaited::Nothing if is_own() => {
                if self.checkpointer.apart_base.is_some() {
                    Awaited::Own
                } else {
                    Awaited::Pages
                }
            }
            awaited => awaited,
        }
    }

    /// The replays of the shard's sessions would take longer than its budget: this session takes a checkpoint now, or
    /// as soon as its handler has ended.
    pub fn require_checkpoint(&mut self, out: &mut Vec<OwnerEffect>) {
        self.checkpointer.require();
        if self.phase() == OwnerPhase::Running {
            self.checkpoint_if_due(out);
        }
    }

    /// How much of the session's uncovered handler time counts for the shard's replay budget, in nanoseconds: what is
    /// above its own share, if a checkpoint could be begun now (I43 of docs/protocol.md).
    #[must_use]
    pub fn replay_above_share_ns(&self) -> u64 {
        let may_take = self.about.keeps_checkpoints()
            && self.phase() == OwnerPhase::Running
            && !self.replicas.has_handed_over();
        if may_take { self.checkpointer.above_share_ns(&self.about, &self.ends) } else { 0 }
    }

    /// How long a recovery would replay what no checkpoint covers, in nanoseconds. 0 without protection, and for a
    /// standby: the loss of this edge does not make its session replay.
    #[must_use]
    pub fn uncovered_replay_ns(&self) -> u64 {
        let replays = self.about.keeps_checkpoints() && self.follow.is_none();
        if replays { self.checkpointer.uncovered_ns() } else { 0 }
    }

    /// Whether a checkpoint was begun, and is neither held nor given up.
    #[must_use]
    pub fn is_checkpoint_under_way(&self) -> bool {
        self.checkpointer.is_under_way()
    }

    /// Copies the cell at the end of the log.
    fn copy(&mut self, cell: CellId, awaited: Awaited, out: &mut Vec<OwnerEffect>) {
        self.totals.budget_checkpoints += u64::from(self.checkpointer.is_required());
        let builds_on_fed = self.checkpointer.builds_on_fed();
        let is_apart = self.checkpointer.is_apart_due(&self.about, awaited);
        let (number, base) = self.checkpointer.take(&self.about, &self.ends, &self.log, &self.state, awaited);
        if base == CheckpointBase::Full
            && !builds_on_fed
            && let Some(reason) = self.checkpointer.merges(&self.about, &self.ends)
        {
            out.push(OwnerEffect::MergesDeltas(reason));
        }
        if !is_apart {
            self.replicas.copied(number);
        }
        if awaited == Awaited::Pages {
            let kind = if base == CheckpointBase::Backup { PagesKind::Changed } else { PagesKind::Whole };
            self.replicas.pages_copied(number, kind, self.epochs.last());
        } else if !matches!(awaited, Awaited::Nothing | Awaited::Own)
            && (is_apart || base == CheckpointBase::Image)
        {
            // A backup that holds gets it too, since the next pages build on it.
            self.replicas.pages_copied(number, PagesKind::Shared, self.epochs.last());
            let keep = self.keep_frame();
            self.replicas.start_waiting(Some(number), &keep, out);
            self.runner.logs_time = self.about.is_shared_cell();
        }
        if let Some(keep) = self.keep.as_mut().filter(|_| !base.is_previous()) {
            keep.copied(number, self.log.end());
        }
        // A replay that starts here, also that of a keeper which begins here, needs nothing of what was read before.
        self.log.forget_reads();
        out.push(OwnerEffect::Copy(cell, base));
    }

    /// The cell's memory is so large that a copy of it would take long: its copies are prepared while it runs.
    pub fn large(&mut self, cell: CellId) {
        if self.cell == Some(cell) {
            self.checkpointer.set_large();
        }
    }

    /// The answer to [`OwnerEffect::Prepare`]. The checkpoint is taken at once, if no handler runs.
    pub fn prepared(&mut self, cell: CellId, out: &mut Vec<OwnerEffect>) {
        if self.cell != Some(cell) || !self.checkpointer.prepared() {
            return trace!(self.context(), "ignores a preparation that was given up");
        }
        if self.may_copy() {
            self.checkpoint_if_due(out);
        }
    }

    /// Seals the copy once the outputs in flight have arrived, or once too much has happened meanwhile.
    pub(super) fn seal_if_settled(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(cell) = self.cell else { return };
        match self.checkpointer.settle(&self.about, &self.ends, &self.log) {
            Ok(None) => {}
            Ok(Some(header)) => {
                out.push(OwnerEffect::Checkpoint(cell, header, self.about.seal().clone()));
            }
            Err(bug) => self.end_for_bug(bug, out),
        }
    }

    /// The answer to [`OwnerEffect::Checkpoint`].
    pub fn checkpointed(
        &mut self,
        now: Now,
        cell: CellId,
        number: u32,
        result: Result<Bytes, String>,
        out: &mut Vec<OwnerEffect>,
    ) {
        // The answer of an earlier generation has another number, since numbers are never reused.
        let due = self.cell == Some(cell) && self.checkpointer.is_taking(number);
        if !due || !self.may_copy() {
            return trace!(self.context(), "ignores checkpoint {number}, which was given up");
        }
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(reason) => return self.no_checkpoint(now, reason, out),
        };
        if let Err(reason) = self.checkpointer.fits(&self.about, &self.ends, bytes.len() as u64) {
            self.no_checkpoint(now, reason, out);
            let goes_on = self.cell.is_some();
            if goes_on && self.checkpointer.is_fed() {
                // Another kind of checkpoint may fit. If none does, its ends may stop reading before one is due.
                self.checkpointer.require();
                self.checkpoint_if_due(out);
            }
            return;
        }
        if let Some((meta, taken)) = self.checkpointer.sealed_apart(&self.about, bytes.len() as u64) {
            let has_waited = self.awaits_keeper_or_group();
            self.keep.iter_mut().for_each(|keep| keep.sealed(&meta, &bytes));
            if !taken.is_own {
                self.feed_apart(now, &meta, &taken.took, &bytes, out);
            }
            self.begin_rebuild(out);
            self.checkpoint_if_due(out);
            if has_waited {
                self.pump(now, out);
            }
            return;
        }
        let Some((meta, took, holders)) = self.checkpointer.sealed(&self.about, &self.ends, &bytes) else {
            return;
        };
        self.replicas.feed_checkpoint((self.about.context(), now.mono_ns), &meta, &bytes, &took, out);
        for index in holders {
            let Some(channel) = self.ends[index].channel else { continue };
            let port = self.ends[index].port;
            // The log that the checkpoint covers is sent first **[M]**.
            self.send_log(index, out);
            out.push(OwnerEffect::Send(port, CheckpointBegin { channel, meta: meta.clone() }.into()));
        }
        // In small parts, so that outputs and increments go between them.
        self.checkpointer.send_parts(&self.ends, out);
    }

    /// Sends keepers a checkpoint that the ends do not get.
    fn feed_apart(
        &mut self,
        now: Now,
        meta: &CheckpointMeta,
        took: &[u64],
        bytes: &Bytes,
        out: &mut Vec<OwnerEffect>,
    ) {
        // A keeper that takes over here has no log before this: each end needs it up to here.
        (0..self.ends.len()).for_each(|index| self.send_log(index, out));
        self.totals.epoch_page_bytes += self.replicas.pages_sealed(meta.number, meta.size);
        self.replicas.feed_checkpoint((self.about.context(), now.mono_ns), meta, bytes, took, out);
    }

    /// Sends an end what it lacks of the log, if it is linked.
    pub(super) fn send_log(&mut self, index: usize, out: &mut Vec<OwnerEffect>) {
        let Some(channel) = self.ends[index].channel.filter(|_| self.about.keeps_log()) else { return };
        if let Some(increment) = self.ends.increment(index, &self.log, self.about.seal()) {
            let log = LogOnly { channel, entries: increment.entries, tag: increment.tag };
            out.push(OwnerEffect::Send(self.ends[index].port, log.into()));
        }
    }

    /// The checkpoint failed, such as for lack of memory on this edge. A later one is tried when it is due again: the
    /// session continues while there is room for its log.
    fn no_checkpoint(&mut self, now: Now, reason: String, out: &mut Vec<OwnerEffect>) {
        self.checkpointer.look_ns = Some(now.mono_ns.saturating_add(RETRY_NS));
        self.checkpointer.give_up();
        if let Some(keep) = self.keep.as_mut().filter(|keep| keep.is_copied()) {
            if self.runner.rebuild.is_some() {
                keep.lose_copy();
            } else {
                keep.give_up(self.log.end());
            }
            self.truncate_kept();
        }
        self.replicas.feed_no_checkpoint(self.about.context(), out);
        out.push(OwnerEffect::NoCheckpoint(reason.clone()));
        if self.runner.rebuild.is_some() {
            return self.begin_rebuild(out);
        }
        self.end_if_exhausted(&reason, out);
    }

    /// No further checkpoint fits beside those that an end keeps. The session continues as in [`Self::no_checkpoint`].
    fn no_room(&mut self, size: u64, room: u64, out: &mut Vec<OwnerEffect>) {
        if let Some(reason) = self.checkpointer.refuse(size, room) {
            out.push(OwnerEffect::NoCheckpoint(reason));
        }
        let reason = alloc::format!("an end has room for {room} bytes, and limits.checkpoints sets it");
        if self.checkpointer.is_fed() {
            // Its ends may stop reading before this owner knows, and no checkpoint will ever make room.
            let why = alloc::format!("the session was taken over, and no checkpoint can be taken: {reason}");
            return self.terminate(Code::Guest, why, out);
        }
        self.end_if_exhausted(&reason, out);
    }

    /// Enough time has passed since a checkpoint that could not be made, or since a takeover: takes one, if one is due. Nothing else may happen to
    /// the session, since ends whose agents' memory is full read nothing before there is one.
    pub(super) fn look_for_checkpoint(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let is_time = self.checkpointer.look_ns.take_if(|look_ns| *look_ns <= now.mono_ns).is_some();
        if is_time && self.may_copy() {
            self.checkpoint_if_due(out);
        }
    }

    /// Ends a session of which no checkpoint can be taken, once the log is full or an end can keep no further message, however
    /// much memory its agent has: it could do nothing more, and its peers would wait for ever. An end that has told a smaller allowance
    /// may have stopped reading long before. It waits for memory, which other sessions give back: no session ends because its agent's is
    /// full (I44).
    fn end_if_exhausted(&mut self, reason: &str, out: &mut Vec<OwnerEffect>) {
        let is_full = |side: &EndState| side.uncovered + charge(STREAM_CUT) > RETAINED_MAX;
        let is_kept_full = self.ends.iter().any(is_full);
        if self.log.is_full() || is_kept_full {
            let what = if is_kept_full { "an end can keep no further message" } else { "the log is full" };
            let why = alloc::format!("{what}, and no checkpoint can be taken: {reason}");
            self.terminate(Code::Guest, why, out);
        }
    }

    /// An end has stored parts, or a whole checkpoint: `bytes` more, in sealed form. Without further parts in flight an
    /// end would never answer, so each answer sends the next ones.
    pub(super) fn stored(
        &mut self,
        index: usize,
        bytes: u64,
        complete: Option<u32>,
        out: &mut Vec<OwnerEffect>,
    ) {
        match self.checkpointer.stored(index, bytes, complete) {
            None => self.terminate(Code::Protocol, "an end stored more than it was sent".into(), out),
            Some(Stored::GivenUp) => {
                trace!(self.context(), "ignores {bytes} stored bytes of a checkpoint that was given up");
            }
            Some(Stored::Partly) => self.checkpointer.send_parts(&self.ends, out),
            Some(Stored::Held) => {
                self.covered(out);
                self.checkpoint_if_due(out);
            }
        }
    }

    /// The cell lives in a new generation: sends what the holders lack of the checkpoint that was on its way, or counts it if
    /// all of them have it.
    pub(super) fn continue_checkpoint(&mut self, is_held: bool, out: &mut Vec<OwnerEffect>) {
        if self.phase() != OwnerPhase::Running {
            return;
        }
        if is_held {
            self.covered(out);
            self.checkpoint_if_due(out);
        } else {
            self.checkpointer.send_parts(&self.ends, out);
        }
    }

    /// An end holds a checkpoint: the ends, the keepers and this owner delete what it covers.
    fn covered(&mut self, out: &mut Vec<OwnerEffect>) {
        let held = match self.checkpointer.hold(&mut self.ends) {
            Ok(held) => held,
            Err(bug) => return self.end_for_bug(bug, out),
        };
        self.totals.checkpoints += 1;
        self.totals.checkpoint_bytes += held.size;
        // This owner needs the log only from there on too: an end that lacks older log is told to skip it
        // (`make_room`).
        self.log.truncate(held.log_offset);
        self.checkpointer.tell_covered(&mut self.ends, out);
        self.replicas.feed_covered(held.log_offset, held.tag, &self.ends, out);
    }
}
