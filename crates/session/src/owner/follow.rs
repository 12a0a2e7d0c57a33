//! What a standby knows of the owner that feeds it, and how far its own cell is.
//!
//! Decides; the frames of the feed are taken apart in [`super::feed`], which passes on what concerns log, ends and
//! cell.

use super::{
    OwnerEffect, StandbyError,
    checkpointer::Name,
    ends::Ends,
    feed::standby_error,
    log::{Checkmark, Log},
    open::is_chain,
    recall::Recall,
    sides::Chore,
};
use crate::{
    cell::{CellError, CellId, Seed},
    invariant::{BrokenInvariant, holds},
    replay::ReplayCursor,
};
use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Acknowledged, Channel, CheckpointMeta, Code, Credit, Frame, Keep, Replayed, Stored, Truncate},
    id::{Generation, Port},
    limits::{CHECKPOINT_WINDOW, CHECKPOINTS_SIZE_MAX, FEED_WINDOW, REPLAYED_EVERY},
    log::Cursor,
};

/// Entries are acknowledged after this many bytes.
const ACK_EVERY: u64 = FEED_WINDOW / 16;
/// As above, for parts of a checkpoint.
const STORED_EVERY: u64 = CHECKPOINT_WINDOW / 4;

/// A cell that a checkpoint in flight will replace.
#[derive(Clone, Copy, Debug)]
struct Former {
    cell: CellId,
    /// Whether it is started or restored. It may still be starting when the checkpoint is announced.
    standing: bool,
}

/// A place in the log.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Point {
    pub(super) offset: u64,
    pub(super) last_ns: i64,
}

impl Point {
    /// Reads the log from there on.
    pub(super) fn cursor(self) -> Cursor {
        Cursor { last_ns: self.last_ns }
    }
}

/// What a cell was restored from, in a feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restored {
    /// The last checkpoint.
    pub(super) last: Name,
    /// The full one on which merged deltas build.
    pub(super) full: Name,
}

/// What a backup does that holds what it is fed, and is fed pages instead of log where these are fewer bytes; or a warm standby, once it is
/// to take the session over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holding {
    /// It is neither.
    Nothing,
    /// It holds log and pages.
    Holds,
    /// It replays what it held, since the session was handed over. More log may follow, if that comes to nothing, and no more pages.
    HandedOver,
    /// It replays what it held, since the session's group was claimed. What it is still fed is of no use.
    Claimed,
}

impl Holding {
    fn is_some(self) -> bool {
        self != Self::Nothing
    }

    fn is_replayed(self) -> bool {
        matches!(self, Self::HandedOver | Self::Claimed)
    }
}

/// An owner's state while it is fed. Outlives the phase `Following`: a takeover asks for promises, restores and replays
/// with it, and it ends when the session belongs to this owner.
#[derive(Debug)]
pub(super) struct Follow {
    /// The cell's seed if the session starts here.
    own_seed: Seed,
    /// Whether it replays what it is fed at once.
    hot: bool,
    /// Whether it is a backup that holds what it is fed.
    holding: Holding,
    /// The channel of the feeding owner; none once this owner takes over.
    channel: Option<Channel>,
    /// Whether the cell is started or restored and can run.
    standing: bool,
    /// The log position at which the cell was started or restored.
    base: Point,
    /// The checkpoint that the cell was restored from, and the full one of the ends since which it knows all changes.
    restored: Option<Restored>,
    /// A checkpoint in flight: its description, and how many of its bytes are here.
    arriving: Option<(CheckpointMeta, u64)>,
    /// The present cell while a full checkpoint arrives that will replace it.
    former: Option<Former>,
    /// Whether a handler runs.
    busy: bool,
    /// A checkpoint that an end holds covers the log before this offset, with the running digest there: an end that
    /// lacks this part does not need it.
    covered: Checkmark,
    /// Whether a log has been chosen: what follows is replayed to its end.
    chosen: bool,
    /// Outputs that the ends have received, by port; ports ascend.
    received: Vec<(Port, u64)>,
    /// Entries and bytes received and not acknowledged.
    unacknowledged: (u64, u64),
    /// Entries replayed and not reported.
    replayed: u64,
    /// Entries received and not replayed, and how many of these the owner before has fed: no other one is told of them.
    unreplayed: u64,
    of_others: u64,
    /// Bytes of checkpoints received and not acknowledged.
    stored: u64,
    /// Whether the feeding owner has handed the session over, and this owner has not begun to take it over.
    handed_over: bool,
    /// Whether this edge has claimed the session's group, and this owner has not begun to take it over.
    promoted: bool,
    /// Whether all that was fed is replayed.
    caught_up: bool,
    /// Whether a recorder feeds it instead of an owner.
    recorder: bool,
    /// The recorder's answer, until what it gave has been checked.
    recalled: Option<Box<Recall>>,
    /// The expected running digest at the end of the ends' log, and at the end of what the recorder gave.
    owed: Vec<Checkmark>,
    /// The replay, before the phase `Replaying`, which takes it over.
    replay: Option<ReplayCursor>,
}

impl Follow {
    /// Of an owner with these ends, and with this seed of its own.
    pub(super) fn new(own_seed: Seed, ends: &Ends) -> Self {
        Self {
            own_seed,
            hot: false,
            holding: Holding::Nothing,
            channel: None,
            standing: false,
            base: Point::default(),
            restored: None,
            arriving: None,
            former: None,
            busy: false,
            covered: (0, [0; 8]),
            chosen: false,
            received: ends.iter().map(|side| (side.port, 0)).collect(),
            unacknowledged: (0, 0),
            replayed: 0,
            unreplayed: 0,
            of_others: 0,
            stored: 0,
            handed_over: false,
            promoted: false,
            caught_up: false,
            recorder: false,
            recalled: None,
            owed: Vec::new(),
            replay: None,
        }
    }

    /// An owner feeds it, over this channel of its wire.
    pub(super) fn fed_by_owner(&mut self, keep: &Keep) {
        self.hot = keep.hot;
        if !keep.hot && keep.group.is_some() {
            self.holding = Holding::Holds;
        }
        self.channel = Some(keep.channel);
    }

    /// Another owner goes on where this copy is, and feeds it over this channel from now on. False if something of the former feed is still
    /// on its way, or this edge was to go on by itself.
    pub(super) fn continues(&mut self, keep: &Keep) -> bool {
        let is_alike = self.hot == keep.hot && !self.recorder && keep.group.is_some();
        if !is_alike
            || self.arriving.is_some()
            || self.holding.is_replayed()
            || self.handed_over
            || self.promoted
        {
            return false;
        }
        self.channel = Some(keep.channel);
        (self.unacknowledged, self.stored, self.replayed) = ((0, 0), 0, 0);
        self.of_others = self.unreplayed;
        true
    }

    /// It is a backup from now on.
    pub(super) fn becomes_backup(&mut self) {
        if !self.hot && self.holding == Holding::Nothing {
            self.holding = Holding::Holds;
        }
    }

    /// Whether what it is still fed is of no use: it goes on from what it has.
    pub(super) fn is_closed(&self) -> bool {
        self.holding == Holding::Claimed
    }

    /// A recorder feeds it what it announced. `end` is where that must lead.
    pub(super) fn fed_by_recorder(&mut self, recall: Recall, end: Checkmark) {
        self.recorder = true;
        self.owed.push(end);
        self.recalled = Some(Box::new(recall));
    }

    /// Whether a recorder feeds it, or did.
    pub(super) fn is_fed_by_recorder(&self) -> bool {
        self.recorder
    }

    pub(super) fn recall(&self) -> Option<&Recall> {
        self.recalled.as_deref()
    }

    pub(super) fn recall_mut(&mut self) -> Option<&mut Recall> {
        self.recalled.as_deref_mut()
    }

    /// Takes the recorder's answer with the digests to which its data must lead.
    pub(super) fn take_recall(&mut self) -> Option<(Box<Recall>, Vec<Checkmark>)> {
        let owed = core::mem::take(&mut self.owed);
        self.recalled.take().map(|recall| (recall, owed))
    }

    pub(super) fn channel(&self) -> Option<Channel> {
        self.channel
    }

    /// The takeover begins: the feeding owner is not answered any more.
    pub(super) fn detach(&mut self) {
        self.channel = None;
    }

    pub(super) fn base(&self) -> Point {
        self.base
    }

    /// Whether the cell can run.
    pub(super) fn is_standing(&self) -> bool {
        self.standing
    }

    /// The feeding owner has handed the session over: a cell that is warm replays what it holds. False if it waits for a checkpoint, and is no
    /// backup: its owner must not count on it.
    pub(super) fn hand_over(&mut self) -> bool {
        self.handed_over = self.hot || self.holding.is_some() || self.arriving.is_none();
        if self.handed_over && !self.hot && !self.holding.is_replayed() {
            self.holding = Holding::HandedOver;
        }
        self.handed_over
    }

    /// This edge has claimed the session's group. A cell that is warm does not wait for pages that have not arrived.
    pub(super) fn promote(&mut self, cell: &mut Option<CellId>, out: &mut Vec<OwnerEffect>) {
        self.promoted = true;
        if self.holding.is_some() {
            self.holding = Holding::Claimed;
            self.feed_lost(cell, out);
        }
    }

    /// All that was fed is replayed: whether the session was handed over, or claimed. True once.
    pub(super) fn takes_over(&mut self) -> bool {
        self.caught_up = true;
        let is_claimed = core::mem::take(&mut self.promoted);
        is_claimed || self.channel.is_some() && core::mem::take(&mut self.handed_over)
    }

    /// Whether all that was fed is replayed.
    pub(super) fn is_caught_up(&self) -> bool {
        self.caught_up && !self.busy
    }

    /// Whether more log may follow what is here.
    pub(super) fn waits_for_more(&self) -> bool {
        !self.chosen
    }

    pub(super) fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Up to which offset a checkpoint of an end covers the log, with the digest there.
    pub(super) fn covered(&self) -> Checkmark {
        self.covered
    }

    /// A log is chosen. Of a recorder's data is `recorder_owes` where it must lead, since the ends have that.
    pub(super) fn choose(&mut self, recorder_owes: Checkmark) {
        self.chosen = true;
        if self.recalled.is_some() {
            self.owed.push(recorder_owes);
        }
    }

    /// An entry is here, which costs so many bytes of the feed's window. Returns what acknowledges it, if that is due.
    pub(super) fn entry_taken(&mut self, cost: u64) -> Option<Frame> {
        self.caught_up = false;
        self.unreplayed += 1;
        self.unacknowledged.0 += 1;
        self.unacknowledged.1 += cost;
        let channel = self.channel.filter(|_| self.unacknowledged.1 >= ACK_EVERY)?;
        let (received, bytes) = core::mem::take(&mut self.unacknowledged);
        Some(Credit { channel, received, bytes }.into())
    }

    /// An entry has run through the cell. Every few entries this is reported to the feeding owner: entries that were
    /// only received would have to be replayed before this owner could take over.
    pub(super) fn entry_replayed(&mut self) -> Option<Frame> {
        self.unreplayed = self.unreplayed.saturating_sub(1);
        if self.of_others > 0 {
            self.of_others -= 1;
            return None;
        }
        self.replayed += 1;
        let channel = self.channel.filter(|_| self.hot && self.replayed >= REPLAYED_EVERY)?;
        let entries = core::mem::take(&mut self.replayed);
        Some(Replayed { channel, entries }.into())
    }

    /// Whether the replay can go on: the cell can run, no handler runs, and it is hot or a log is chosen.
    pub(super) fn can_replay(&self) -> bool {
        self.standing && !self.busy && (self.hot || self.holding.is_replayed() || self.chosen)
    }

    /// Whether the chosen log can be replayed to its end.
    pub(super) fn can_finish(&self) -> bool {
        self.chosen && self.standing
    }

    /// The replay before the phase `Replaying`, if it has begun.
    pub(super) fn replay(&mut self) -> Option<&mut ReplayCursor> {
        self.replay.as_mut()
    }

    /// Begins the replay where the cell was started or restored, unless it has begun.
    pub(super) fn begin_replay(&mut self, log: &Log) {
        if self.replay.is_none() {
            let entries = Bytes::copy_from_slice(log.since(self.base.offset));
            self.replay = Some(ReplayCursor::new(entries, self.base.cursor()));
        }
    }

    /// The replay, for the phase `Replaying`.
    pub(super) fn take_replay(&mut self) -> Option<ReplayCursor> {
        self.replay.take()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.replay.as_ref().map_or(0, ReplayCursor::held_bytes)
    }

    /// The feed announces a checkpoint: a full one, which will replace the cell, or a delta on the cell's state. False
    /// if it does not follow what is here.
    pub(super) fn begin_checkpoint(
        &mut self,
        meta: &CheckpointMeta,
        cell: &mut Option<CellId>,
        log: &Log,
    ) -> bool {
        // A hot cell needs one checkpoint to begin with, and no other.
        let fits = meta.size > 0
            && is_chain(core::slice::from_ref(meta), CHECKPOINTS_SIZE_MAX) == meta.is_full()
            && self.arriving.is_none()
            && (meta.is_full() || self.standing)
            && !(self.hot && self.standing)
            && !self.holding.is_replayed();
        let is_ahead = meta.log_offset > log.end();
        if !fits || meta.log_offset < log.floor() || is_ahead && !self.may_skip_log() {
            return false;
        }
        if meta.is_full() {
            self.former = cell.take().map(|cell| Former { cell, standing: self.standing });
        }
        self.arriving = Some((meta.clone(), 0));
        true
    }

    /// Whether pages arrive that stand for log which is not here.
    pub(super) fn skips_log(&self, log: &Log) -> bool {
        self.arriving.as_ref().is_some_and(|(meta, _)| meta.log_offset > log.end())
    }

    /// Whether a checkpoint may be of a later place than the log that was fed.
    pub(super) fn may_skip_log(&self) -> bool {
        self.holding.is_some()
    }

    /// A part of the checkpoint is here. Returns what acknowledges it, if that is due. The last part is acknowledged
    /// when the cell is restored: then this owner could take over at once.
    pub(super) fn take_part(&mut self, size: u64) -> Result<Option<Frame>, StandbyError> {
        let Some((meta, got)) = &mut self.arriving else {
            return standby_error(Code::Protocol, "a part does not belong to a checkpoint");
        };
        *got += size;
        self.stored += size;
        if *got > meta.size {
            return standby_error(Code::Protocol, "a checkpoint is larger than announced");
        }
        let more = *got < meta.size;
        let Some(channel) = self.channel.filter(|_| more && self.stored >= STORED_EVERY) else {
            return Ok(None);
        };
        let bytes = core::mem::take(&mut self.stored);
        Ok(Some(Stored { channel, bytes, complete: None }.into()))
    }

    /// The ends have deleted what a checkpoint covers, which they hold. Only then may this owner: returns the offset up
    /// to which it may. A replay that goes on needs no base any more.
    pub(super) fn truncate(&mut self, truncate: &Truncate, replays: bool, log: &Log) -> Option<u64> {
        if truncate.log_offset > self.covered.0 {
            self.covered = (truncate.log_offset, truncate.tag);
        }
        let base = if replays || self.replay.is_some() { u64::MAX } else { self.base.offset };
        (self.standing && truncate.log_offset <= log.end()).then(|| truncate.log_offset.min(base))
    }

    /// The ends have received these outputs, by port.
    pub(super) fn take_received(&mut self, acknowledged: &Acknowledged, ends: &mut Ends) {
        let has_ports = ends.ports.is_some();
        for told in &acknowledged.received.0 {
            ends.changed(told.port);
            let at = self.received.binary_search_by_key(&told.port, |(port, _)| *port);
            match at {
                Ok(at) => self.received[at].1 = told.count,
                Err(at) if has_ports => self.received.insert(at, (told.port, told.count)),
                Err(_) => {}
            }
        }
    }

    /// The client at this port has left: the next one with that number has received nothing.
    pub(super) fn port_left(&mut self, port: Port) {
        self.received.retain(|(at, _)| *at != port);
    }

    /// Drops outputs that the ends have received, of those ends at which something has changed.
    pub(super) fn drop_received(&self, ends: &mut Ends) {
        for index in ends.visit(Chore::Drop) {
            let at = self.received.binary_search_by_key(&ends[index].port, |(port, _)| *port);
            let received = at.map_or(0, |at| self.received[at].1);
            if ends[index].acknowledged() < received {
                let side = &mut ends[index];
                while side.acknowledged() < received && side.was_received_elsewhere() {}
            }
        }
    }

    /// The cell that a checkpoint in flight will replace has started, or failed to. None if `cell` is not that one. A
    /// takeover before the checkpoint is complete continues with it.
    pub(super) fn former_started(
        &mut self,
        cell: CellId,
        result: &Result<(), CellError>,
    ) -> Option<Result<(), StandbyError>> {
        let former = self.former.as_mut().filter(|former| former.cell == cell)?;
        former.standing |= result.is_ok();
        Some(result.clone().map_err(|error| StandbyError(error.code, error.reason)))
    }

    /// The cell was restored here, with this header.
    pub(super) fn restored_at(&mut self, base: Point, last: Name, on: Name) {
        self.base = base;
        let is_full = self.arriving.as_ref().is_none_or(|(meta, _)| meta.is_full());
        let full = if !is_full {
            self.restored.map(|before| before.full)
        } else if on.0 == Generation::NONE {
            Some(last)
        } else {
            // One that is none of the ends' list names the full one of that list.
            Some(on)
        };
        self.restored = full.map(|full| Restored { last, full });
    }

    /// What the cell was restored from, if an owner fed it.
    pub(super) fn restored(&self) -> Option<Restored> {
        self.restored.filter(|_| !self.recorder)
    }

    /// The cell can run: the one that it replaces is removed, and its checkpoint acknowledged.
    pub(super) fn stand(&mut self, out: &mut Vec<OwnerEffect>) {
        self.standing = true;
        out.extend(self.former.take().map(|former| OwnerEffect::Remove(former.cell)));
        if let Some(((meta, _), channel)) = self.arriving.take().zip(self.channel) {
            let (bytes, complete) = (core::mem::take(&mut self.stored), Some(meta.number));
            out.push(OwnerEffect::ToFeeder(Stored { channel, bytes, complete }.into()));
        }
    }

    /// The feed is lost. An incomplete checkpoint is dropped: the cell is as it was before.
    pub(super) fn feed_lost(&mut self, cell: &mut Option<CellId>, out: &mut Vec<OwnerEffect>) {
        self.channel = None;
        if let Some((meta, _)) = self.arriving.take_if(|(meta, got)| *got < meta.size) {
            if meta.is_full() {
                out.extend(cell.take().map(OwnerEffect::Remove));
                let former = self.former.take();
                *cell = former.map(|former| former.cell);
                self.standing = former.is_some_and(|former| former.standing);
            }
            self.standing &= cell.is_some();
        }
        // A complete one: the cell is about to be restored from it.
        self.standing &= self.arriving.is_none();
    }

    /// Whether a cell can run here, or will without further frames from the feed.
    pub(super) fn can_take_over(&self, has_cell: bool, log: &Log, ends: &Ends) -> bool {
        let has_log = log.end() > 0;
        let started = log.floor() == 0 && has_log && has_cell;
        let arrived = self.arriving.as_ref().is_some_and(|(meta, got)| *got == meta.size);
        // A recorder that was fed nothing yet has nothing to start with.
        let recalled = self.recalled.as_ref().is_some_and(|recall| recall.is_whole(log, ends)) && has_log;
        self.standing || recalled || arrived || (started && self.arriving.is_none())
    }

    /// What was fed is useless: removes the cell that waits to be replaced, and returns the seed of this owner.
    pub(super) fn forget(self, out: &mut Vec<OwnerEffect>) -> Seed {
        out.extend(self.former.map(|former| OwnerEffect::Remove(former.cell)));
        self.own_seed
    }

    /// I38 of docs/protocol.md.
    pub(super) fn invariants(&self, ends: &Ends, log: &Log) -> Result<(), BrokenInvariant> {
        let has_all = self.received.iter().map(|(port, _)| *port).eq(ends.all().map(|side| side.port));
        holds!("I38", ends.ports.is_some() || has_all);
        holds!("I38", self.base.offset <= log.end());
        holds!("I38", self.arriving.as_ref().is_none_or(|(meta, got)| *got <= meta.size));
        holds!("I38", self.former.is_none() || self.arriving.is_some());
        holds!("I38", self.recorder || (self.recalled.is_none() && self.owed.is_empty()));
        Ok(())
    }
}
