//! A standby: an owner that has no promises, and is fed with what the cell of another owner consumes.
//!
//! It keeps the cell *warm* (the newest checkpoint is restored, log and messages are in memory) or *hot* (it replays
//! continuously). What it has is a prefix of the history of one generation. So its state is that of an owner with a live cell
//! and broken wires: it opens a generation and asks for promises as the owner of the fed one. An end that gave its last promise
//! to exactly that generation sends what the standby lacks and no more. If any end has promised another generation, the
//! standby's state may differ from the chosen one, and it restarts from what the ends keep.
//!
//! An owner that a recorder helps works in the same way: it is fed at once with what the recorder kept. A recorder is not
//! trusted: what it gave must lead to the running digest of the ends before any of it runs.

#[cfg(test)]
mod tests;

use super::{Now, Owner, OwnerEffect, OwnerPhase, OwnerPolicy, end_state::Message};
use crate::{
    bug,
    cell::{CellError, CellId, Seed},
    replay::ReplayCursor,
    trace,
};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    frame::{
        Acknowledged, CheckpointMeta, Code, Credit, Fed, Frame, Keep, Reject, Replayed, Stored, Truncate,
    },
    header::Header,
    id::{Generation, SessionId},
    limits::{CHECKPOINT_WINDOW, FEED_WINDOW, LOG_SIZE_MAX, REPLAYED_EVERY, RETAINED_MAX, charge},
    log::{Cursor, Event},
    seal::{Digest, LOG_OFFSET_MAX, SessionKeys},
};

use super::recall::Recall;

/// Entries are acknowledged after this many bytes.
const ACK_EVERY: u64 = FEED_WINDOW / 16;
/// As above, for parts of a checkpoint.
const STORED_EVERY: u64 = CHECKPOINT_WINDOW / 4;

/// What a standby knows of the owner that feeds it.
#[derive(Debug)]
pub(super) struct Follow {
    /// The cell's seed if the session starts here.
    pub(super) own_seed: Seed,
    pub(super) hot: bool,
    /// The channel of the feeding owner; none once this owner takes over.
    pub(super) channel: Option<marram_wire::frame::Channel>,
    /// Whether the cell is started or restored and can run.
    pub(super) standing: bool,
    /// The log position at which the cell was started or restored.
    pub(super) base: Point,
    /// A checkpoint in flight: its description, and how many of its bytes are here.
    pub(super) arriving: Option<(CheckpointMeta, u64)>,
    /// The present cell while a full checkpoint arrives that will replace it.
    pub(super) former: Option<Former>,
    /// Whether a handler runs.
    pub(super) busy: bool,
    /// A checkpoint that an end holds covers the log before this offset: an end that lacks this part does not need it.
    pub(super) covered: u64,
    /// The running digest at that offset.
    pub(super) covered_tag: [u8; 8],
    /// Whether a log has been chosen: what follows is replayed to its end.
    pub(super) chosen: bool,
    /// Outputs that the ends have received, by port.
    pub(super) received: Vec<u64>,
    /// Entries and bytes received and not acknowledged.
    pub(super) unacknowledged: (u64, u64),
    /// Entries replayed and not reported.
    pub(super) replayed: u64,
    pub(super) stored: u64,
    /// Whether a recorder feeds it instead of an owner.
    pub(super) recorder: bool,
    /// The recorder's answer, until what it gave has been checked.
    pub(super) recalled: Option<Box<Recall>>,
    /// The expected running digest at the end of the ends' log, and at the end of what the recorder gave.
    pub(super) owed: Vec<(u64, [u8; 8])>,
}

/// A cell that a checkpoint in flight will replace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Former {
    pub(super) cell: CellId,
    /// Whether it is started or restored. It may still be starting when the checkpoint is announced.
    pub(super) standing: bool,
}

/// A place in the log.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Point {
    pub(super) offset: u64,
    pub(super) last_ns: i64,
}

/// Why an owner cannot be a standby, or no longer. The session loses nothing: a standby does not own it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StandbyError(pub Code, pub String);

/// What a standby knows, where only one that stands by can be.
fn known(follow: &mut Option<Box<Follow>>, session: SessionId) -> Option<&mut Follow> {
    if follow.is_none() {
        bug!("only a standby is fed", session);
    }
    follow.as_deref_mut()
}

pub(super) fn standby_error<T>(code: Code, reason: &str) -> Result<T, StandbyError> {
    Err(StandbyError(code, reason.to_string()))
}

impl Owner {
    /// A standby, from the position in `keep` on. `seed` is used if the session starts here.
    ///
    /// # Errors
    /// If `keep` is invalid.
    pub fn standby(
        keys: SessionKeys,
        policy: OwnerPolicy,
        keep: &Keep,
        seed: Seed,
    ) -> Result<Self, StandbyError> {
        let owner = Self::new(keep.session, keep.image, keys, policy, &keep.hosts, seed);
        let mut owner = owner.following(keep.generation)?;
        // Each message that was consumed has an entry of at least a byte.
        let consumed = keep.took.iter().all(|took| *took <= keep.log_offset);
        if keep.took.len() != owner.sides.len() || keep.log_offset >= LOG_OFFSET_MAX || !consumed {
            return standby_error(Code::Protocol, "a feed begins at an invalid log offset");
        }
        owner.log.floor = keep.log_offset;
        owner.log.cursor = Cursor { last_ns: keep.last_ns };
        owner.digest = if keep.log_offset == 0 { Digest::start(keep.session) } else { Digest(keep.head) };
        for (side, took) in owner.sides.iter_mut().zip(&keep.took) {
            side.took = *took;
        }
        if let Some(follow) = &mut owner.follow {
            follow.hot = keep.hot;
            follow.channel = Some(keep.channel);
        }
        Ok(owner)
    }

    pub(super) fn following(mut self, generation: Generation) -> Result<Self, StandbyError> {
        let ports = 1 + usize::from(self.policy.server.is_some());
        if self.sides.len() != ports || !self.policy.keep {
            return standby_error(Code::Protocol, "the app is deployed differently here and at the owner");
        }
        self.generation = generation;
        self.seal = self.keys.seal(generation);
        self.enter(OwnerPhase::Following, "it is fed");
        self.follow = Some(Box::new(Follow {
            own_seed: self.seed,
            hot: false,
            channel: None,
            standing: false,
            base: Point::default(),
            arriving: None,
            former: None,
            busy: false,
            covered: 0,
            covered_tag: [0; 8],
            chosen: false,
            received: alloc::vec![0; ports],
            unacknowledged: (0, 0),
            replayed: 0,
            stored: 0,
            recorder: false,
            recalled: None,
            owed: Vec::new(),
        }));
        Ok(self)
    }

    /// A frame from the owner or recorder that feeds this one.
    pub fn fed(&mut self, now: Now, frame: Frame, out: &mut Vec<OwnerEffect>) {
        if self.follow.is_none() {
            return trace!(
                self.context(),
                "ignores {} of a feed: it does not stand by any more",
                frame.name()
            );
        }
        if let Err(why) = self.take_fed(now, frame, out) {
            self.fail_standby(why, out);
        }
    }

    fn take_fed(&mut self, now: Now, frame: Frame, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        if self.follow.as_ref().is_some_and(|follow| follow.recorder) {
            return self.take_recalled(frame, out);
        }
        match frame {
            Frame::Fed(fed) => self.fed_entry(now, fed, out),
            Frame::Base(base) => self.fed_base(base.meta, out),
            Frame::CheckpointPart(part) => self.fed_part(part.bytes, out),
            Frame::Truncate(truncate) => {
                self.fed_truncate(&truncate);
                Ok(())
            }
            Frame::Acknowledged(acknowledged) => {
                self.fed_received(&acknowledged);
                Ok(())
            }
            Frame::Renewed(renewed) => {
                if renewed.generation <= self.generation {
                    return standby_error(
                        Code::Protocol,
                        "an owner renewed its generation with one that is not newer",
                    );
                }
                self.generation = renewed.generation;
                self.seal = self.keys.seal(renewed.generation);
                Ok(())
            }
            _ => standby_error(Code::Protocol, "a frame is not allowed in a feed"),
        }
    }

    fn fed_entry(&mut self, now: Now, fed: Fed, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        let offset = self.log.end();
        if (self.log.bytes.len() + fed.entry.len()) as u64 > LOG_SIZE_MAX
            || offset + fed.entry.len() as u64 >= LOG_OFFSET_MAX
        {
            return standby_error(Code::Busy, "the log exceeds the limit without a checkpoint");
        }
        let mut entry = fed.entry.to_vec();
        self.seal.log(offset, &mut entry);
        let entry = Bytes::from(entry);
        let mut rest = entry.clone();
        let read = self.log.cursor.take(&mut rest);
        let Some(read) = read.ok().filter(|_| rest.is_empty()) else {
            return standby_error(Code::Protocol, "an entry cannot be decoded");
        };
        let cost = charge(fed.payload.len()) + entry.len() as u64;
        let message = match read.event {
            Event::Message(port) => {
                let message = Message { close: fed.close, payload: fed.payload };
                let index = self.index(port);
                push(&mut self.sides[index], message.clone())?;
                Some(message)
            }
            Event::Start { seed, .. } => {
                if offset != 0 {
                    return standby_error(Code::Protocol, "a session starts in the middle of its log");
                }
                self.seed = Seed(seed);
                out.push(OwnerEffect::Start(self.image, self.seed));
                None
            }
            _ => None,
        };
        let said = message.as_ref().map(|message| (message.close, &message.payload[..]));
        self.digest.absorb(&self.keys, &entry, said);
        if self.digest.tag() != fed.tag {
            return standby_error(Code::Tampered, "the fed data does not match its digest");
        }
        self.log.bytes.extend_from_slice(&entry);
        if let Some(course) = &mut self.replay {
            course.extend(entry);
        }
        let Some(follow) = known(&mut self.follow, self.session) else { return Ok(()) };
        follow.unacknowledged.0 += 1;
        follow.unacknowledged.1 += cost;
        if let Some(channel) = follow.channel
            && follow.unacknowledged.1 >= ACK_EVERY
        {
            let (received, bytes) = core::mem::take(&mut follow.unacknowledged);
            out.push(OwnerEffect::ToFeeder(Credit { channel, received, bytes }.into()));
        }
        self.follow_on(now, out);
        Ok(())
    }

    /// An entry has run through the cell. Every few entries this is reported to the feeding owner: entries that were only
    /// received would have to be replayed before this owner could take over.
    pub(super) fn entry_replayed(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = &mut self.follow else { return };
        follow.replayed += 1;
        if let Some(channel) = follow.channel.filter(|_| follow.hot && follow.replayed >= REPLAYED_EVERY) {
            let entries = core::mem::take(&mut follow.replayed);
            out.push(OwnerEffect::ToFeeder(Replayed { channel, entries }.into()));
        }
    }

    /// Continues the replay, if the cell can run, is hot and no handler runs.
    pub(super) fn follow_on(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = known(&mut self.follow, self.session) else { return };
        if !follow.standing || follow.busy || !(follow.hot || follow.chosen) {
            return;
        }
        if self.replay.is_none() {
            let log = Bytes::copy_from_slice(self.log.since(follow.base.offset));
            self.replay = Some(ReplayCursor::new(log, Cursor { last_ns: follow.base.last_ns }));
        }
        self.replay_next(now, out);
    }

    fn fed_base(&mut self, meta: CheckpointMeta, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        let Some(follow) = known(&mut self.follow, self.session) else { return Ok(()) };
        // A hot cell needs one checkpoint to begin with, and no other.
        let fits = meta.size > 0
            && super::open::is_chain(core::slice::from_ref(&meta)) == meta.full
            && follow.arriving.is_none()
            && (meta.full || follow.standing)
            && !(follow.hot && follow.standing);
        if !fits || meta.log_offset > self.log.end() || meta.log_offset < self.log.floor {
            return standby_error(Code::Protocol, "a checkpoint does not follow what is kept here");
        }
        if meta.full {
            follow.former = self.cell.take().map(|cell| Former { cell, standing: follow.standing });
            out.push(OwnerEffect::Restore(self.image, alloc::vec![meta.clone()]));
        } else if let Some(cell) = self.cell {
            out.push(OwnerEffect::Advance(cell, meta.clone()));
        }
        follow.arriving = Some((meta, 0));
        Ok(())
    }

    fn fed_part(&mut self, bytes: Bytes, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        let Some(follow) = known(&mut self.follow, self.session) else { return Ok(()) };
        let Some((meta, got)) = &mut follow.arriving else {
            return standby_error(Code::Protocol, "a part does not belong to a checkpoint");
        };
        *got += bytes.len() as u64;
        follow.stored += bytes.len() as u64;
        if *got > meta.size {
            return standby_error(Code::Protocol, "a checkpoint is larger than announced");
        }
        // The last part is acknowledged when the cell is restored: then this owner could take over at once.
        let more = *got < meta.size;
        out.push(OwnerEffect::Part(bytes));
        if let Some(channel) = follow.channel.filter(|_| more && follow.stored >= STORED_EVERY) {
            let bytes = core::mem::take(&mut follow.stored);
            out.push(OwnerEffect::ToFeeder(Stored { channel, bytes, complete: None }.into()));
        }
        Ok(())
    }

    /// The ends have deleted what a checkpoint covers, which they hold. Only then may this owner.
    fn fed_truncate(&mut self, truncate: &Truncate) {
        let base = self.follow.as_ref().map_or(0, |follow| match &self.replay {
            // A continuous replay needs no base any more.
            Some(_) => u64::MAX,
            None => follow.base.offset,
        });
        if let Some(follow) = &mut self.follow
            && truncate.log_offset > follow.covered
        {
            (follow.covered, follow.covered_tag) = (truncate.log_offset, truncate.tag);
        }
        let standing = self.follow.as_ref().is_some_and(|follow| follow.standing);
        if standing && truncate.log_offset <= self.log.end() {
            self.log.truncate(truncate.log_offset.min(base));
        }
    }

    fn fed_received(&mut self, acknowledged: &Acknowledged) {
        if let Some(follow) = &mut self.follow
            && acknowledged.received.len() == follow.received.len()
        {
            follow.received.clone_from(&acknowledged.received);
        }
        self.drop_received();
    }

    /// Drops outputs that the ends have received.
    pub(super) fn drop_received(&mut self) {
        let Some(follow) = &self.follow else { return };
        for (side, received) in self.sides.iter_mut().zip(&follow.received) {
            while side.acknowledged() < *received && !side.outbox.is_empty() {
                side.sent = 1;
                side.acknowledge(1);
            }
        }
    }

    /// Whether the cell's input comes from a feed, or did before the takeover.
    pub(super) fn is_following(&self) -> bool {
        self.follow.is_some()
    }

    /// Whether more log may follow what is here.
    pub(super) fn waits_for_more(&self) -> bool {
        self.follow.as_ref().is_some_and(|follow| !follow.chosen)
    }

    pub(super) fn mark_busy(&mut self) {
        if let Some(follow) = &mut self.follow {
            follow.busy = true;
        }
    }

    pub(super) fn mark_idle(&mut self) {
        if let Some(follow) = &mut self.follow {
            follow.busy = false;
        }
    }

    /// The cell behaved differently here than at the feeding owner.
    pub(super) fn cannot_follow(&mut self, reason: &str, out: &mut Vec<OwnerEffect>) {
        self.fail_standby(StandbyError(Code::Guest, reason.to_string()), out);
    }

    /// The cell that a checkpoint in flight will replace has started, or failed to. True if `cell` is that one. A takeover
    /// before the checkpoint is complete continues with it.
    pub(super) fn former_started(
        &mut self,
        cell: CellId,
        result: &Result<(), CellError>,
        out: &mut Vec<OwnerEffect>,
    ) -> bool {
        let Some(follow) = &mut self.follow else { return false };
        let Some(former) = follow.former.as_mut().filter(|former| former.cell == cell) else { return false };
        match result {
            Ok(()) => former.standing = true,
            Err(error) => self.fail_standby(StandbyError(error.code, error.reason.clone()), out),
        }
        true
    }

    /// The cell was started, or restored with this header.
    pub(super) fn stands(
        &mut self,
        now: Now,
        result: Result<Option<Box<Header>>, CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let fits = result
            .map_err(|error| StandbyError(error.code, error.reason))
            .and_then(|header| header.map_or(Ok(()), |header| self.restore_at(*header)));
        match fits {
            Ok(()) => {
                if let Some(follow) = &mut self.follow {
                    follow.standing = true;
                    out.extend(follow.former.take().map(|former| OwnerEffect::Remove(former.cell)));
                    if let Some(((meta, _), channel)) = follow.arriving.take().zip(follow.channel) {
                        let (bytes, complete) = (core::mem::take(&mut follow.stored), Some(meta.number));
                        out.push(OwnerEffect::ToFeeder(Stored { channel, bytes, complete }.into()));
                    }
                }
                self.begin_replay(now, out);
            }
            Err(why) => self.fail_standby(why, out),
        }
    }

    fn restore_at(&mut self, header: Header) -> Result<(), StandbyError> {
        let place = (self.log.floor..=self.log.end()).contains(&header.log_offset);
        if header.session != self.session || header.ports.len() != self.sides.len() || !place {
            return standby_error(Code::Tampered, "a checkpoint is of another session or position");
        }
        let recalled = self.follow.as_ref().is_some_and(|follow| follow.recalled.is_some());
        self.timers = super::Timers::restore(header.timers_set, &header.timers);
        self.tasks = super::Tasks::restore(&header.tasks, &header.locks);
        self.pauses = super::Pauses::restore(&header.paused);
        for (side, state) in self.sides.iter_mut().zip(header.ports) {
            // A recorder drops exactly the messages that a checkpoint covers.
            if recalled && side.took != state.took {
                return standby_error(
                    Code::Tampered,
                    "a recorder's messages do not begin at the position of its checkpoint",
                );
            }
            if !side.skip(state.took) {
                return standby_error(Code::Tampered, "a checkpoint consumed messages that do not exist");
            }
            side.restore(state);
        }
        if recalled {
            self.digest = Digest(header.head);
        }
        if let Some(follow) = &mut self.follow {
            follow.base = Point { offset: header.log_offset, last_ns: header.last_ns };
        }
        self.drop_received();
        Ok(())
    }

    /// This owner cannot be a standby any more.
    fn fail_standby(&mut self, StandbyError(code, reason): StandbyError, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "cannot stand by: {code:?}: {reason}");
        if matches!(self.phase, OwnerPhase::Following) {
            let channel = self.follow.as_ref().and_then(|follow| follow.channel);
            out.extend(channel.map(|channel| {
                OwnerEffect::ToFeeder(Reject { channel, code, reason: reason.clone() }.into())
            }));
            let former = self.follow.take().and_then(|follow| follow.former);
            out.extend(former.map(|former| OwnerEffect::Remove(former.cell)));
            out.extend(self.cell.take().map(OwnerEffect::Remove));
            return out.push(OwnerEffect::Done(code, reason));
        }
        self.restart_from_ends(out);
    }
}

pub(super) fn push(side: &mut super::EndState, message: Message) -> Result<(), StandbyError> {
    if side.inputs_charge + charge(message.payload.len()) > 2 * RETAINED_MAX {
        return standby_error(Code::Busy, "the messages exceed the limit without a checkpoint");
    }
    side.inputs_charge += charge(message.payload.len());
    side.inputs.push_back(message);
    Ok(())
}
