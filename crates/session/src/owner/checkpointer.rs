//! The checkpoints of one owner: the one that is being taken, what the holders have of it, and what the last one
//! covers.
//!
//! A checkpoint contains every output that its end has not acknowledged **[M]**: a replay does not produce again what
//! was produced before the position of the checkpoint. The cell is copied at the position, but the checkpoint is sealed
//! only when the outputs in flight are acknowledged: an end never needs an acknowledged output again, and a stream
//! always has about a megabyte in flight.
//!
//! Decides and counts; knows neither the executor nor the keepers, to which the owner passes its decisions on.

use super::{
    OwnerEffect, OwnerPolicy,
    about::About,
    checkpoint_header::header_of,
    end_state::EndState,
    ends::Ends,
    log::Log,
    room::{holders, holders_are_linked, room},
    state::CellState,
    uncovered::Uncovered,
};
use crate::{
    bug,
    bug::Bug,
    cell::CheckpointBase,
    invariant::{BrokenInvariant, holds},
};
use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointKind, CheckpointMeta, CheckpointPart, Truncate},
    header::{Header, Many},
    id::Generation,
    limits::{CHECKPOINT_WINDOW, COVER_LOG, COVER_READS, DELTAS_MAX, LOG_SIZE_MAX, PART_SIZE},
};

/// Deltas on a small full checkpoint may have as many bytes as this together, or as 4 full ones, if that is more.
const DELTAS_SIZE_MIN: u64 = 64 << 10;
/// They may have 1 MiB at most, unless that is less than two thirds of the full one.
const DELTAS_SIZE_SMALL: u64 = 1 << 20;
/// A delta of so many bytes is worth it, however small the full checkpoint is.
const DELTA_SIZE_MIN: u64 = 512;
/// After so many full checkpoints in a row a delta is tried again: it may have become smaller.
const FULLS_IN_ROW: u32 = 8;

/// Identifies a checkpoint: its generation and its number.
pub(super) type Name = (Generation, u32);

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
pub(super) struct Sending {
    meta: CheckpointMeta,
    bytes: Bytes,
    holders: Vec<Progress>,
}

/// State of a checkpoint that is being taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) number: u32,
    pub(super) log_offset: u64,
    tag: [u8; 8],
    /// Messages consumed, by port.
    pub(super) took: Vec<u64>,
    /// Charges consumed and not covered, by port, at the time of the copy.
    uncovered: Vec<u64>,
    pub(super) kind: CheckpointKind,
    /// Whether no keeper gets it.
    pub(super) is_own: bool,
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
pub(super) struct Covered {
    pub(super) log_offset: u64,
    tag: [u8; 8],
    /// Messages consumed, by port.
    took: Vec<u64>,
}

/// What the holders said of a checkpoint in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stored {
    /// No checkpoint is in flight to this end: it was given up.
    GivenUp,
    /// More of it is in flight, or was not sent yet.
    Partly,
    /// Every holder has all of it.
    Held,
}

/// A checkpoint that every holder has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// Of the checkpoint, sealed.
    pub(super) size: u64,
    /// The log before this is covered.
    pub(super) log_offset: u64,
    /// Tag of the running digest there.
    pub(super) tag: [u8; 8],
}

/// How far the executor has come with a large cell that it copies while the cell runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Preparation {
    #[default]
    None,
    /// It was asked to prepare a copy on this base.
    Asked(CheckpointBase),
    /// Such a copy now takes a short time.
    Ready(CheckpointBase),
}

/// The checkpoint with which keepers begin that have none yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    /// No keeper waits for one.
    Nothing,
    /// Each of them replays what follows, or holds it: a full one for them alone is enough.
    Apart,
    /// None waits for its first one, and a backup gets pages next: a delta on what it has.
    Pages,
    /// None waits, and a shared cell keeps one for itself: a full one, beside the pages of a backup.
    Own,
    /// One of them keeps checkpoints as ends do: a full one of the ends' list.
    Full,
}

/// What to do about a checkpoint that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The executor must prepare the copy first, because the cell is large.
    Prepare(CheckpointBase),
    /// Wait: for the preparation, or for a holder to be linked.
    Wait,
    /// No further checkpoint fits beside those that a holder keeps.
    NoRoom {
        /// The least size of the next checkpoint, as far as is known, in bytes.
        size: u64,
        /// Bytes that the holder still takes.
        room: u64,
    },
    /// Copy the cell at the next boundary.
    Copy,
}

/// The checkpoints of one owner.
#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// Never reset, so that a late answer does not match a checkpoint of another generation.
    numbers: u32,
    pub(super) taken: Option<Taken>,
    pub(super) sending: Option<Sending>,
    /// One for keepers alone, until it is sealed.
    pub(super) apart: Option<Taken>,
    /// The last one of these that was copied, unless it is lost: the base of a backup's next pages.
    pub(super) apart_base: Option<Name>,
    /// Whether the cell is so large that its copies are prepared.
    is_large: bool,
    preparation: Preparation,
    /// What the executor copied or restored last. It is the base of the next delta.
    pub(super) copied: Option<Name>,
    /// The newest checkpoint that every holder has.
    pub(super) held: Option<Name>,
    /// The full one that the executor copied or restored last: it knows all pages that changed since.
    pub(super) copied_full: Option<Name>,
    /// The full one with which the list of every holder begins. It is the base of a merged delta.
    pub(super) held_full: Option<Name>,
    pub(super) covered: Option<Covered>,
    /// Deltas after the last full checkpoint, their size and that of the full one, in sealed bytes.
    deltas: usize,
    pub(super) full_size: u64,
    pub(super) delta_size: u64,
    /// Size of the last delta, 0 if there was none: the estimate for the next delta.
    pub(super) last_delta_size: u64,
    /// Full checkpoints since then.
    fulls: u32,
    /// Size of a merged delta that did not fit, 0 if there is none: the estimate for the next one.
    pub(super) merged_size: u64,
    /// Whether it was reported that deltas are merged because no full checkpoint fits. Reported once until one is held.
    pub(super) is_merging: bool,
    /// Whether it was reported that no checkpoint fits. Reported once until one does.
    pub(super) is_refused: bool,
    pub(super) uncovered: Uncovered,
    /// Whether the next checkpoint must be full and is due at once.
    pub(super) full_requested: bool,
    /// Whether the next one for the ends builds on what they have, though another owner made that. It is due soon (`look_ns`).
    pub(super) builds_on_fed: bool,
    /// Whether the session came from another owner, and no checkpoint of this one is held: how much the ends keep is not known.
    pub(super) is_fed: bool,
    /// Whether the session leaves for a standby that would have too much to replay without another one, until the cell is copied.
    pub(super) leaves: bool,
    /// When to look again whether one is due: some time after one that could not be made, or after a takeover.
    pub(super) look_ns: Option<u64>,
}

impl Checkpointer {
    /// A handler took this long: a replay takes as long again.
    pub(super) fn spent(&mut self, cost_ns: u64) {
        self.uncovered.spent(cost_ns);
    }

    /// The shard's replay budget requires a checkpoint.
    pub(super) fn require(&mut self) {
        self.uncovered.require();
    }

    /// Whether the shard's replay budget requires a checkpoint, which is not begun yet.
    pub(super) fn is_required(&self) -> bool {
        self.uncovered.is_required()
    }

    /// How long a replay of what no checkpoint covers takes.
    pub(super) fn uncovered_ns(&self) -> u64 {
        self.uncovered.ns()
    }

    /// How much of the uncovered time counts for the shard's replay budget: nothing if the budget has required a
    /// checkpoint already, or cannot have one now. A large cell has its own target only, since a copy of it takes
    /// longer than the replay.
    pub(super) fn above_share_ns(&self, about: &About, ends: &Ends) -> u64 {
        let ns = self.uncovered.above_share_ns(about.session, about.policy.recovery_target_ns);
        // Called after each handler, and nearly always 0.
        let counts = ns > 0
            && !self.is_large
            && !self.is_under_way()
            && !self.uncovered.is_required()
            && holders_are_linked(&about.policy, ends);
        if counts { ns } else { 0 }
    }

    /// Whether a checkpoint was begun, and is neither held nor given up.
    pub(super) fn is_under_way(&self) -> bool {
        self.taken.is_some() || self.sending.is_some() || self.apart.is_some()
    }

    /// Bytes of the last full checkpoint and of the changes since; none before the first one.
    pub(super) fn state_bytes(&self) -> Option<u64> {
        (self.full_size > 0).then(|| self.full_size + self.delta_size)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.sending.as_ref().map_or(0, |sending| sending.bytes.len() as u64)
    }

    /// A new generation is opened, perhaps with the cell that lives. Then a checkpoint on its way to the ends may be continued
    /// ([`Self::resume`]); any other one is lost.
    pub(super) fn interrupt(&mut self, has_live_cell: bool) {
        // A keeper that would have begun with it is lost.
        self.drop_apart();
        if !has_live_cell || self.sending.is_none() {
            self.abandon();
        }
    }

    /// The cell lives, and its ends have promised. Continues the checkpoint that was on its way where every holder has all or a
    /// part of it; otherwise it is lost. True if every holder has all of it.
    pub(super) fn resume(&mut self, ends: &mut Ends) -> bool {
        let Some(sending) = &mut self.sending else { return false };
        let (meta, mut is_known) = (&sending.meta, true);
        for holder in &mut sending.holders {
            let promised = ends[holder.index].promised.as_ref();
            let is_whole = promised.is_some_and(|it| it.checkpoints.last() == Some(meta));
            let partial = promised.and_then(|it| it.partial.as_ref()).filter(|partial| partial.meta == *meta);
            let has =
                if is_whole { Some(meta.size) } else { partial.map(|partial| partial.bytes.min(meta.size)) };
            is_known &= has.is_some();
            let has = has.unwrap_or(0);
            (holder.sent, holder.stored, holder.complete) = (has, has, is_whole);
        }
        if !is_known {
            self.abandon();
            return false;
        }
        // What the end said that it keeps; the rest is added when the checkpoint is held.
        let whole: Vec<usize> =
            sending.holders.iter().filter(|holder| holder.complete).map(|holder| holder.index).collect();
        for index in whole.iter().copied() {
            let kept = &mut ends[index].checkpoint_bytes;
            *kept = kept.saturating_sub(sending.meta.size);
        }
        whole.len() == sending.holders.len()
    }

    /// Checkpoints in flight to an end are lost.
    pub(super) fn abandon(&mut self) {
        // With it, a checkpoint that the shard's budget required: the session counts for the budget again.
        self.uncovered.abandoned();
        self.taken = None;
        self.sending = None;
        self.drop_apart();
        self.preparation = Preparation::None;
    }

    /// There is another cell, of which nothing is known yet.
    pub(super) fn change_cell(&mut self) {
        self.is_large = false;
        self.preparation = Preparation::None;
        self.apart_base = None;
    }

    /// The cell is so large that a copy of it takes long.
    pub(super) fn set_large(&mut self) {
        self.is_large = true;
    }

    /// The copy that the executor was asked to prepare takes a short time now. False if it was not asked.
    pub(super) fn prepared(&mut self) -> bool {
        let Preparation::Asked(base) = self.preparation else { return false };
        self.preparation = Preparation::Ready(base);
        true
    }

    /// What to do about a checkpoint that is due. `awaited` as for [`Self::take`]. A preparation is begun by this call.
    pub(super) fn step(&mut self, about: &About, ends: &Ends, awaited: Awaited) -> Step {
        if !about.has_backup() && !holders_are_linked(&about.policy, ends) {
            return Step::Wait;
        }
        let room = room(&about.policy, ends);
        let Some(base) = self.next_base(about, ends, awaited, room) else {
            let size = if self.has_delta_base() { self.last_delta_size } else { self.full_size };
            return Step::NoRoom { size, room };
        };
        if !self.is_large {
            return Step::Copy;
        }
        match self.preparation {
            Preparation::Ready(ready) if ready == base => Step::Copy,
            Preparation::Asked(asked) if asked == base => Step::Wait,
            // None, or one on another base: a keeper came meanwhile, and needs a full checkpoint.
            _ => {
                self.preparation = Preparation::Asked(base);
                Step::Prepare(base)
            }
        }
    }

    /// What the next checkpoint builds on. None if the holders have no room for it, as far as its size can be estimated.
    ///
    /// Where a full one may not fit, deltas go on while they could be merged after one more. Then they are merged, again and
    /// again. What may not fit is tried only where nothing surely fits.
    fn next_base(&self, about: &About, ends: &Ends, awaited: Awaited, room: u64) -> Option<CheckpointBase> {
        if self.is_apart_due(about, awaited) {
            // Where the ends keep no checkpoints there is none of theirs to name.
            return Some(match awaited {
                Awaited::Pages if self.apart_base.is_some() => CheckpointBase::Backup,
                Awaited::Own => CheckpointBase::Apart,
                _ if about.keeps_checkpoints() => CheckpointBase::Apart,
                _ => CheckpointBase::Image,
            });
        }
        let awaited = self.awaits_full(awaited);
        let can_delta = self.has_delta_base() && self.last_delta_size <= room;
        if self.builds_on_fed && !awaited && self.can_merge() && self.merged_size <= room {
            return Some(CheckpointBase::Full);
        }
        if self.full_size_max() <= room {
            let wanted = self.full_requested || awaited || !can_delta || !self.is_delta_cheap(ends);
            return Some(if wanted { CheckpointBase::Image } else { CheckpointBase::Previous });
        }
        let can_merge = self.can_merge() && self.merged_size <= room;
        let merged_size_max = self.delta_size.saturating_add(self.last_delta_size);
        let after_one_more = merged_size_max.saturating_add(self.last_delta_size.saturating_mul(2));
        if can_delta && after_one_more <= room {
            Some(CheckpointBase::Previous)
        } else if can_merge && merged_size_max <= room {
            Some(CheckpointBase::Full)
        } else if can_delta {
            Some(CheckpointBase::Previous)
        } else if can_merge {
            Some(CheckpointBase::Full)
        } else {
            (self.full_size <= room).then_some(CheckpointBase::Image)
        }
    }

    /// A full checkpoint may be as large as the last one and all deltas on it together, and one more.
    fn full_size_max(&self) -> u64 {
        self.full_size.saturating_add(self.delta_size).saturating_add(self.last_delta_size)
    }

    /// Whether the next checkpoint can be a merged delta, and it is not the same as a delta. It needs no more than the full one: deltas that were
    /// given up, or that not every holder has, do not matter.
    pub(super) fn can_merge(&self) -> bool {
        let is_known = self.copied.is_some() && self.copied_full.is_some();
        is_known && self.copied_full == self.held_full && (self.deltas > 0 || !self.has_base())
    }

    /// Whether a keeper's request for a full checkpoint, or the owner's own, can be met beside what the holders keep.
    fn has_room_for_full(&self, about: &About, ends: &Ends) -> bool {
        self.full_size_max() <= room(&about.policy, ends)
    }

    /// The cell was restored from these checkpoints, which an end has promised. A delta can follow only if every holder
    /// has exactly these.
    pub(super) fn restored(&mut self, chain: &[CheckpointMeta], policy: &OwnerPolicy, ends: &Ends) {
        let has = |side: &EndState| side.promised.as_ref().is_some_and(|it| it.checkpoints == chain);
        let agreed = !chain.is_empty() && holders(policy, ends).iter().all(|index| has(&ends[*index]));
        self.copied = chain.last().map(name_of);
        self.held = self.copied.filter(|_| agreed);
        self.copied_full = chain.first().map(name_of);
        let begins = |side: &EndState| {
            side.promised.as_ref().is_some_and(|it| it.checkpoints.first() == chain.first())
        };
        let begin_alike = holders(policy, ends).iter().all(|index| begins(&ends[*index]));
        self.held_full = self.copied_full.filter(|_| begin_alike);
        (self.merged_size, self.fulls) = (0, 0);
        (self.builds_on_fed, self.is_fed) = (false, false);
        self.covered = None;
        self.deltas = chain.len().saturating_sub(1);
        self.full_size = chain.first().map_or(0, |checkpoint| checkpoint.size);
        self.delta_size = chain.iter().skip(1).map(|checkpoint| checkpoint.size).sum();
        let last = chain.last().filter(|last| last.kind == CheckpointKind::Delta);
        self.last_delta_size = last.map_or(0, |checkpoint| checkpoint.size);
        self.uncovered = Uncovered::restored(chain.last().map_or(0, |checkpoint| checkpoint.size));
    }

    /// Whether every holder has what the executor copied last.
    fn has_base(&self) -> bool {
        self.copied.is_some() && self.copied == self.held
    }

    /// Whether the next checkpoint can be a delta on that.
    pub(super) fn has_delta_base(&self) -> bool {
        self.has_base() && self.deltas < DELTAS_MAX
    }

    /// Whether a delta costs less than a full checkpoint, with the size of the last one as the estimate for the next one.
    ///
    /// A delta that is hardly smaller saves nothing, and a recovery fetches and applies it too: the full checkpoint of a small cell is
    /// often one page. Deltas may take up to two thirds of the size of a full one together; a limit of the whole size
    /// would save a fifth of the traffic, but make recoveries an eighth more expensive. On a small one more may follow.
    fn is_delta_cheap(&self, ends: &Ends) -> bool {
        let is_smaller = self.last_delta_size <= (self.full_size / 4 * 3).max(DELTA_SIZE_MIN)
            || self.fulls >= FULLS_IN_ROW;
        let small = (4 * self.full_size).clamp(DELTAS_SIZE_MIN, DELTAS_SIZE_SMALL).min(ends.allowance());
        is_smaller && self.delta_size + self.last_delta_size <= (self.full_size / 3 * 2).max(small)
    }

    /// Whether a checkpoint must be taken: a replay of what none covers would take too long, for this session or for the
    /// shard's budget, an end has to keep too much, or a keeper waits for one to begin with. Only one is taken at a
    /// time.
    pub(super) fn is_due(&self, about: &About, ends: &Ends, log: &Log, awaited: Awaited) -> bool {
        let is_apart_due = self.is_apart_due(about, awaited);
        // The ends of a session that is protected only while it moves, or that has a backup, keep none.
        if is_apart_due || !about.keeps_checkpoints() {
            return is_apart_due;
        }
        let is_wanted = self.full_requested || self.awaits_full(awaited);
        let wanted = is_wanted && self.has_room_for_full(about, ends);
        let is_first = self.builds_on_fed && self.look_ns.is_none();
        let wanted = wanted || is_first || self.leaves || self.uncovered.is_required();
        let uncovered = ends.iter().map(|side| (side.uncovered, side.allowance()));
        let is_due = wanted || self.is_much(about, uncovered, log.size(), ends, log);
        is_due && !self.is_under_way()
    }

    /// Whether the work of the cell since the last copy would take too long to replay, or messages of these charges,
    /// each with what its end may keep, or a log of this size, are more than ends should keep.
    fn is_much(
        &self,
        about: &About,
        mut uncovered: impl Iterator<Item = (u64, u64)>,
        log_size: u64,
        ends: &Ends,
        log: &Log,
    ) -> bool {
        let (read_size, allowance) = (log.read_size(), ends.allowance());
        self.uncovered.is_much(about.session, about.policy.recovery_target_ns)
            || uncovered.any(|(charge, allowance)| charge >= allowance)
            // A rough measure: at a recovery the log is there before what was read is counted.
            || log_size.saturating_sub(read_size) >= COVER_LOG.min(allowance)
            || read_size >= COVER_READS.min(allowance)
    }

    /// Begins a checkpoint at the end of the log: its number, and the base on which the executor copies. `awaited` if a
    /// keeper begins with it, which has none before. Only after [`Step::Copy`].
    pub(super) fn take(
        &mut self,
        about: &About,
        ends: &Ends,
        log: &Log,
        state: &CellState,
        awaited: Awaited,
    ) -> (u32, CheckpointBase) {
        let room = room(&about.policy, ends);
        let next = self.next_base(about, ends, awaited, room).unwrap_or(CheckpointBase::Image);
        let is_apart = self.is_apart_due(about, awaited);
        let kind = match next {
            CheckpointBase::Image | CheckpointBase::Apart => CheckpointKind::Full,
            CheckpointBase::Previous | CheckpointBase::Backup => CheckpointKind::Delta,
            CheckpointBase::Full => CheckpointKind::Merged,
        };
        if !is_apart {
            self.full_requested &= kind != CheckpointKind::Full;
            (self.builds_on_fed, self.leaves) = (false, false);
            self.is_refused = false;
        }
        self.preparation = Preparation::None;
        self.numbers += 1;
        let number = self.numbers;
        let base = match kind {
            // It names the one of the ends that it knows all changes since.
            CheckpointKind::Full => self.held_full.filter(|_| is_apart),
            CheckpointKind::Delta if is_apart => self.apart_base,
            CheckpointKind::Delta => self.copied,
            CheckpointKind::Merged => self.held_full,
        };
        let base = base.unwrap_or((Generation::NONE, 0));
        let header = header_of((about.generation(), number), base, about, ends, log, state);
        let taken = Taken {
            number,
            log_offset: log.end(),
            tag: log.tag(),
            took: ends.took(),
            uncovered: ends.iter().map(|side| side.uncovered).collect(),
            kind,
            is_own: awaited == Awaited::Own,
            waits: Some(Waits {
                header: Box::new(header),
                settled: ends.iter().map(EndState::settled).collect(),
            }),
        };
        if is_apart {
            let is_own = taken.is_own;
            self.apart = Some(taken);
            if !is_own {
                self.apart_base = Some((about.generation(), number));
            }
            if about.has_backup() && !is_own {
                self.uncovered.copied();
            }
        } else {
            self.taken = Some(taken);
            self.copied = Some((about.generation(), number));
            if kind == CheckpointKind::Full {
                self.copied_full = self.copied;
            }
            self.uncovered.copied();
        }
        (number, next)
    }

    /// The header with which the copy is sealed now: the outputs in flight have arrived, or too much has happened
    /// meanwhile. None if it waits, or there is no copy.
    pub(super) fn settle(
        &mut self,
        about: &About,
        ends: &Ends,
        log: &Log,
    ) -> Result<Option<Box<Header>>, Bug> {
        // One apart does not wait: a keeper would.
        let is_due = self.apart.is_some() || self.is_settled(about, ends, log)?;
        let taken = self.apart.as_mut().or(self.taken.as_mut()).filter(|_| is_due);
        let Some(Waits { mut header, .. }) = taken.and_then(|taken| taken.waits.take()) else {
            return Ok(None);
        };
        let clients = header.clients.0.iter_mut().map(|client| &mut client.state);
        for port in header.ports.iter_mut().chain(clients) {
            // A client that has left since needs none of it.
            let side = ends.at(port.port);
            port.outbox = side.map_or(Many::default(), |side| side.unacknowledged(port.produced));
        }
        Ok(Some(header))
    }

    /// Whether the outputs that were in flight at the copy have arrived, or too much has happened since.
    fn is_settled(&self, about: &About, ends: &Ends, log: &Log) -> Result<bool, Bug> {
        let Some(taken) = &self.taken else { return Ok(false) };
        let Some(waits) = &taken.waits else { return Ok(false) };
        let mut settled = ends.iter().zip(&waits.settled);
        let charges = ends.iter().zip(&taken.uncovered);
        let charges: Option<Vec<u64>> =
            charges.map(|(side, then)| side.uncovered.checked_sub(*then)).collect();
        let Some(charges) = charges else {
            return Err(bug!("messages stay uncovered while a checkpoint is taken", taken.uncovered));
        };
        let charges = charges.into_iter().zip(ends.iter().map(EndState::allowance));
        let late = log.is_full() || self.is_much(about, charges, log.end() - taken.log_offset, ends, log);
        Ok(late || settled.all(|(side, count)| side.acknowledged() >= *count))
    }

    /// Whether the checkpoint that is being taken has this number.
    pub(super) fn is_taking(&self, number: u32) -> bool {
        self.apart.iter().chain(&self.taken).any(|taken| taken.number == number)
    }

    /// No checkpoint could be made of the copy.
    pub(super) fn give_up(&mut self) {
        if !self.drop_apart() {
            self.taken = None;
        }
    }

    /// The copy was sealed, to so many bytes. Describes the checkpoint, with the messages that it consumed by port, and
    /// names the sides that get it.
    pub(super) fn sealed(
        &mut self,
        about: &About,
        ends: &Ends,
        bytes: &Bytes,
    ) -> Option<(CheckpointMeta, Vec<u64>, Vec<usize>)> {
        let taken = self.taken.as_ref()?;
        let meta = CheckpointMeta {
            generation: about.generation(),
            number: taken.number,
            kind: taken.kind,
            log_offset: taken.log_offset,
            size: bytes.len() as u64,
        };
        let holders = holders(&about.policy, ends);
        let start = |index: &usize| Progress { index: *index, sent: 0, stored: 0, complete: false };
        self.sending = Some(Sending {
            meta: meta.clone(),
            bytes: bytes.clone(),
            holders: holders.iter().map(start).collect(),
        });
        Some((meta, taken.took.clone(), holders))
    }

    /// Sends parts within the window.
    pub(super) fn send_parts(&mut self, ends: &Ends, out: &mut Vec<OwnerEffect>) {
        let Some(sending) = &mut self.sending else { return };
        for progress in &mut sending.holders {
            let side = &ends[progress.index];
            let Some(channel) = side.channel else { continue };
            while progress.sent < sending.meta.size && progress.sent - progress.stored < CHECKPOINT_WINDOW {
                let at = usize::try_from(progress.sent).unwrap_or(usize::MAX);
                let bytes = sending.bytes.slice(at..sending.bytes.len().min(at + PART_SIZE));
                progress.sent += bytes.len() as u64;
                out.push(OwnerEffect::Send(side.port, CheckpointPart { channel, bytes }.into()));
            }
        }
    }

    /// An end has stored parts, or a whole checkpoint. None if it was sent less than that.
    pub(super) fn stored(&mut self, index: usize, bytes: u64, complete: Option<u32>) -> Option<Stored> {
        let Some(sending) = &mut self.sending else { return Some(Stored::GivenUp) };
        let Some(progress) = sending.holders.iter_mut().find(|progress| progress.index == index) else {
            return Some(Stored::GivenUp);
        };
        // An end counts them; a sum that is too large is refused.
        progress.stored = progress.stored.saturating_add(bytes);
        if progress.stored > progress.sent {
            return None;
        }
        progress.complete |= complete == Some(sending.meta.number) && progress.stored == sending.meta.size;
        let held = sending.holders.iter().all(|progress| progress.complete);
        Some(if held { Stored::Held } else { Stored::Partly })
    }

    /// Every holder has the checkpoint: only now may the ends delete what it covers (docs/protocol.md, "Truncation").
    pub(super) fn hold(&mut self, ends: &mut Ends) -> Result<Held, Bug> {
        let (Some(sending), Some(taken)) = (self.sending.take(), self.taken.take()) else {
            return Err(bug!("I28: a checkpoint is sent while it is taken", self.held));
        };
        let size = sending.meta.size;
        for holder in &sending.holders {
            let kept = match sending.meta.kind {
                CheckpointKind::Full => 0,
                CheckpointKind::Delta => ends[holder.index].checkpoint_bytes,
                CheckpointKind::Merged => self.full_size,
            };
            ends[holder.index].checkpoint_bytes = kept.saturating_add(size);
        }
        self.held = Some((sending.meta.generation, sending.meta.number));
        self.is_fed = false;
        self.uncovered.held(size);
        self.merged_size = 0;
        match sending.meta.kind {
            CheckpointKind::Full => {
                self.held_full = self.held;
                (self.deltas, self.full_size, self.delta_size) = (0, size, 0);
                self.fulls += 1;
                self.is_merging = false;
            }
            CheckpointKind::Delta => {
                self.fulls = 0;
                self.deltas += 1;
                self.delta_size += size;
                self.last_delta_size = size;
            }
            // The last delta stays the estimate for the next one.
            CheckpointKind::Merged => (self.deltas, self.delta_size) = (1, size),
        }
        for (side, uncovered) in ends.iter_mut().zip(&taken.uncovered) {
            let Some(rest) = side.uncovered.checked_sub(*uncovered) else {
                return Err(bug!("a checkpoint covers what was uncovered", side.uncovered, uncovered));
            };
            side.uncovered = rest;
        }
        let Taken { log_offset, tag, took, .. } = taken;
        self.covered = Some(Covered { log_offset, tag, took });
        Ok(Held { size, log_offset, tag })
    }

    /// The cell is in the state of a checkpoint that an end holds; the log begins there, with this digest.
    pub(super) fn restored_from(&mut self, log: &Log, ends: &Ends) {
        let (log_offset, tag, took) = (log.floor(), log.tag(), ends.took());
        self.covered = Some(Covered { log_offset, tag, took });
    }

    /// A checkpoint that an end holds covers the log before this offset. The former owner sent the offset, but not how
    /// many messages of each end the checkpoint covers.
    pub(super) fn covered_before(&mut self, log_offset: u64, tag: [u8; 8], ends: &Ends) {
        let took = ends.iter().map(|_| 0).collect();
        self.covered = Some(Covered { log_offset, tag, took });
    }

    /// An end that was disconnected while the log was cut may keep so much old log that the missing part of the chosen
    /// log does not fit: it deletes what is covered first. All of the log that the owner keeps fits after that.
    pub(super) fn make_room(&self, ends: &Ends, log: &Log, out: &mut Vec<OwnerEffect>) {
        let Some(covered) = &self.covered else { return };
        for (side, sent) in ends.iter().zip(&covered.took) {
            let Some((channel, promised)) = side.channel.zip(side.promised.as_ref()) else { continue };
            // With a live cell, an end promises only what follows the cell's position, and may have more.
            let start = if promised.live { 0 } else { promised.log_start };
            let Covered { log_offset, tag, .. } = *covered;
            let end = log.end();
            let fits = promised.log_end >= end || end - start <= LOG_SIZE_MAX;
            // Otherwise the log that it is sent begins after the end of its own log, which it then deletes.
            if !fits && (start..=promised.log_end).contains(&log_offset) {
                let truncate = Truncate { channel, log_offset, tag, sent: *sent };
                out.push(OwnerEffect::Send(side.port, truncate.into()));
            }
        }
    }

    /// Lets the ends delete what is covered. Repeated after a recovery, for an end that was disconnected meanwhile.
    pub(super) fn tell_covered(&self, ends: &mut Ends, out: &mut Vec<OwnerEffect>) {
        let Some(covered) = &self.covered else { return };
        for (side, sent) in ends.iter_mut().zip(&covered.took) {
            let Some(channel) = side.channel else { continue };
            let Covered { log_offset, tag, .. } = *covered;
            if side.known < log_offset {
                (side.known, side.known_tag) = (log_offset, tag);
            }
            out.push(OwnerEffect::Send(side.port, Truncate { channel, log_offset, tag, sent: *sent }.into()));
        }
    }

    /// I19 and I28 of docs/protocol.md.
    pub(super) fn invariants(&self, about: &About, log: &Log) -> Result<(), BrokenInvariant> {
        holds!("I19", self.deltas <= DELTAS_MAX);
        holds!("I28", self.sending.is_none() || self.taken.is_some());
        for holder in self.sending.iter().flat_map(|sending| &sending.holders) {
            let size = self.sending.as_ref().map_or(0, |sending| sending.bytes.len() as u64);
            holds!("I28", holder.stored <= holder.sent && holder.sent <= size);
            holds!("I28", holder.sent - holder.stored <= CHECKPOINT_WINDOW + PART_SIZE as u64);
        }
        for taken in self.taken.iter().chain(&self.apart) {
            holds!("I28", taken.log_offset <= log.end());
            // Without protection of its own, the session moves: the one edge that gets the copy has what follows it.
            holds!("I28", log.floor() <= taken.log_offset || about.is_protected_for_now());
        }
        // A checkpoint is sent only when it is sealed; one apart is copied only when the other one is.
        let is_open = self.taken.as_ref().is_some_and(|taken| taken.waits.is_some());
        holds!("I28", !is_open || (self.sending.is_none() && self.apart.is_none()));
        Ok(())
    }
}

pub(super) fn name_of(checkpoint: &CheckpointMeta) -> Name {
    (checkpoint.generation, checkpoint.number)
}
