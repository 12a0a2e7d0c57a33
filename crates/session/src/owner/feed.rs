//! A standby: an owner that has no promises, and is fed with what the cell of another owner consumes.
//!
//! It keeps the cell *warm* (the newest checkpoint is restored, log and messages are in memory) or *hot* (it replays
//! continuously). What it has is a prefix of the history of one generation. So its state is that of an owner with a
//! live cell and broken wires: it opens a generation and asks for promises as the owner of the fed one. An end that
//! gave its last promise to exactly that generation sends what the standby lacks and no more. If any end has promised
//! another generation, the standby's state may differ from the chosen one, and it restarts from what the ends keep.
//!
//! An owner that a recorder helps works in the same way: it is fed at once with what the recorder kept. A recorder is
//! not trusted: what it gave must lead to the running digest of the ends before any of it runs.

use super::{
    Now, Owner, OwnerEffect, OwnerPhase, OwnerPolicy,
    end_state::{EndState, Message},
    follow::{Follow, Point},
    log::{Log, Position},
    phase::{Phase, replay_of},
    protection::Protection,
};
use crate::{
    cell::{CellError, Seed},
    trace,
};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Fed, Frame, Keep, Reject},
    header::Header,
    id::Generation,
    limits::{LOG_SIZE_MAX, RETAINED_MAX, charge},
    log::{Cursor, Event},
    seal::{Digest, LOG_OFFSET_MAX, SessionKeys},
};

/// Why an owner cannot be a standby, or no longer. The session loses nothing: a standby does not own it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StandbyError(pub Code, pub String);

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
        let moves_unprotected = keep.moves && !policy.keeps.anything() && !policy.shared;
        let mut owner = Self::new(keep.session, keep.image, keys, policy, &keep.hosts, seed);
        if moves_unprotected {
            // It ends once the session belongs to this owner.
            owner.about.protection = Protection::Ending;
        }
        let mut owner = owner.following(keep.generation)?;
        // Each message that was consumed has an entry of at least a byte.
        let consumed = keep.took.iter().all(|took| *took <= keep.log_offset);
        if keep.took.len() != owner.ends.len() || keep.log_offset >= LOG_OFFSET_MAX || !consumed {
            return standby_error(Code::Protocol, "a feed begins at an invalid log offset");
        }
        let digest = if keep.log_offset == 0 { Digest::start(keep.session) } else { Digest(keep.head) };
        let cursor = Cursor { last_ns: keep.last_ns };
        owner.log = Log::at(Position { offset: keep.log_offset, digest, cursor });
        for (side, took) in owner.ends.iter_mut().zip(&keep.took) {
            side.took = *took;
        }
        owner.epochs.fed_by = keep.group;
        owner.came_from(keep.origin.clone());
        owner.has_key(keep.key.0.as_deref().cloned());
        if let Some(follow) = &mut owner.follow {
            follow.fed_by_owner(keep);
        }
        Ok(owner)
    }

    /// An owner that is fed with what that of this generation consumed.
    pub(super) fn following(mut self, generation: Generation) -> Result<Self, StandbyError> {
        // Those of a shared cell come with its log.
        let is_shared = self.about.is_shared_cell();
        let ports = if is_shared { 0 } else { 1 + usize::from(self.about.policy.server.is_some()) };
        if self.ends.len() != ports || !self.about.keeps() {
            return standby_error(Code::Protocol, "the app is deployed differently here and at the owner");
        }
        self.about.renew(generation);
        self.enter(Phase::Following, "it is fed");
        self.follow = Some(Box::new(Follow::new(self.state.seed, &self.ends)));
        Ok(self)
    }

    /// Another owner, which has claimed the group of this copy, goes on from exactly here **\[M\]**, and feeds it from now on. False if it
    /// does not: its copy is another one then.
    pub fn fed_on(&mut self, now: Now, keep: &Keep) -> bool {
        let is_here = self.log.end() == keep.log_offset
            && self.log.digest().0 == keep.head
            && self.log.last_ns() == keep.last_ns
            && self.about.image == keep.image
            && keep.generation > self.about.generation();
        let is_following = self.phase() == OwnerPhase::Following;
        let follow = self.follow.as_mut().filter(|_| is_here && is_following);
        let continues = follow.is_some_and(|follow| follow.continues(keep));
        if continues {
            self.about.renew(keep.generation);
            self.epochs.fed_by = keep.group;
            // Its time may be behind what the owner before has said of it.
            self.runner.forget_carried_clock();
            self.learn_clock(now);
        }
        continues
    }

    /// A frame from the owner or recorder that feeds this one.
    pub fn fed(&mut self, now: Now, frame: Frame, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = &mut self.follow else {
            return trace!(
                self.context(),
                "ignores {} of a feed: it does not stand by any more",
                frame.name()
            );
        };
        if follow.is_closed() {
            return trace!(self.context(), "ignores {} of a feed: it goes on by itself", frame.name());
        }
        let is_recorder = follow.is_fed_by_recorder();
        let taken = match follow.recall_mut() {
            Some(recall) => recall.take(frame, &self.about.keys, &mut self.log, &mut self.ends, out),
            None if is_recorder => {
                standby_error(Code::Protocol, "a recorder sent more after its data was verified")
            }
            None => self.take_fed(now, frame, out),
        };
        if let Err(why) = taken {
            self.fail_standby(why, out);
        } else {
            self.learn_clock(now);
        }
    }

    /// The backup of a shared cell learns the time from the log, or from pages that stand for it: no end of its own tells it.
    fn learn_clock(&mut self, now: Now) {
        if self.about.is_shared_cell() && self.log.end() > 0 {
            self.runner.carry_clock(now, self.log.last_ns());
        }
    }

    /// A frame from an owner, in the order in which that one consumed, was acknowledged and truncated.
    fn take_fed(&mut self, now: Now, frame: Frame, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        let Some(follow) = &mut self.follow else { return Ok(()) };
        match frame {
            Frame::Fed(fed) => return self.fed_entry(now, fed, out),
            Frame::Base(base) => {
                let meta = base.meta;
                if !follow.begin_checkpoint(&meta, &mut self.cell, &self.log) {
                    return standby_error(Code::Protocol, "a checkpoint does not follow what is kept here");
                }
                if meta.is_full() {
                    out.push(OwnerEffect::Restore(self.about.image, alloc::vec![meta]));
                } else if let Some(cell) = self.cell {
                    out.push(OwnerEffect::Advance(cell, meta));
                }
            }
            Frame::CheckpointPart(part) => {
                let stored = follow.take_part(part.bytes.len() as u64)?;
                out.push(OwnerEffect::Part(part.bytes));
                out.extend(stored.map(OwnerEffect::ToFeeder));
            }
            // What ends have deleted is of no use to a recovery, unless this cell still has to replay it.
            Frame::Truncate(truncate) => {
                let replays = matches!(self.phase, Phase::Replaying(_));
                if let Some(offset) = follow.truncate(&truncate, replays, &self.log) {
                    self.log.truncate(offset);
                }
            }
            Frame::Acknowledged(acknowledged) => {
                follow.take_received(&acknowledged, &mut self.ends);
                follow.drop_received(&mut self.ends);
            }
            Frame::Renewed(renewed) => {
                if renewed.generation <= self.about.generation() {
                    return standby_error(
                        Code::Protocol,
                        "an owner renewed its generation with one that is not newer",
                    );
                }
                self.about.renew(renewed.generation);
            }
            Frame::HandOver(hand_over) => {
                if !follow.hand_over() {
                    return standby_error(
                        Code::Protocol,
                        "a session is handed over to a standby before its checkpoint is here",
                    );
                }
                self.runner.carry_clock(now, hand_over.session_ns);
                self.follow_on(now, out);
            }
            Frame::JoinGroup(join) => {
                self.epochs.fed_by = Some(join.group);
                follow.becomes_backup();
            }
            _ => return standby_error(Code::Protocol, "a frame is not allowed in a feed"),
        }
        Ok(())
    }

    /// An entry, and the message that it consumed. The owner sends both at once, so that the standby needs nothing from
    /// the ends.
    fn fed_entry(&mut self, now: Now, fed: Fed, out: &mut Vec<OwnerEffect>) -> Result<(), StandbyError> {
        if self.follow.as_ref().is_some_and(|follow| follow.skips_log(&self.log)) {
            return standby_error(Code::Protocol, "an entry comes before the pages that lead to it");
        }
        let (offset, size) = (self.log.end(), fed.entry.len() as u64);
        // Its owner takes a checkpoint before that, and truncates. A standby that is not told so gives up.
        if self.log.size() + size > LOG_SIZE_MAX || offset + size >= LOG_OFFSET_MAX {
            return standby_error(Code::Busy, "the log exceeds the limit without a checkpoint");
        }
        let mut entry = fed.entry.to_vec();
        self.about.seal().log(offset, &mut entry);
        let entry = Bytes::from(entry);
        let Some(event) = self.log.read_next(&entry) else {
            return standby_error(Code::Protocol, "an entry cannot be decoded");
        };
        let cost = charge(fed.payload.len()) + entry.len() as u64;
        let message = match event {
            Event::Message(port) if self.ends.ports.is_some() => {
                let message = Message { close: fed.close, payload: fed.payload };
                let list = self.ends.ports.as_mut();
                if !list.is_some_and(|list| list.tape.push(offset, port, message.clone())) {
                    return standby_error(Code::Busy, "the messages exceed the limit without a checkpoint");
                }
                Some(message)
            }
            Event::Message(port) => {
                let Some(index) = self.ends.index(port) else {
                    return standby_error(Code::Protocol, "an entry is of a port that does not exist");
                };
                let message = Message { close: fed.close, payload: fed.payload };
                push(&mut self.ends[index], message.clone())?;
                Some(message)
            }
            Event::Start { seed, .. } => {
                if offset != 0 {
                    return standby_error(Code::Protocol, "a session starts in the middle of its log");
                }
                self.state.seed = Seed(seed);
                out.push(OwnerEffect::Start(self.about.image, self.state.seed));
                None
            }
            Event::Port(_) if self.ends.ports.is_some() => None,
            Event::Port(_) => {
                let why = "an entry is of a client of a shared cell, which this edge cannot keep";
                return standby_error(Code::Protocol, why);
            }
            Event::Timer | Event::Task => None,
        };
        // A standby with another history than its owner could not take over.
        if !self.log.take_read(&self.about.keys, &entry, message.as_ref(), fed.tag) {
            return standby_error(Code::Tampered, "the fed data does not match its digest");
        }
        if let Some(cursor) = replay_of(&mut self.phase, &mut self.follow) {
            cursor.extend(entry);
        }
        let acknowledges = self.follow.as_mut().and_then(|follow| follow.entry_taken(cost));
        out.extend(acknowledges.map(OwnerEffect::ToFeeder));
        self.follow_on(now, out);
        Ok(())
    }

    /// Continues the replay, if the cell can run, is hot and no handler runs.
    pub(super) fn follow_on(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = self.follow.as_mut().filter(|follow| follow.can_replay()) else { return };
        if !matches!(self.phase, Phase::Replaying(_)) {
            follow.begin_replay(&self.log);
        }
        self.replay_next(now, out);
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
        if let Err(why) = fits {
            return self.fail_standby(why, out);
        }
        self.learn_clock(now);
        if let Some(follow) = &mut self.follow {
            follow.stand(out);
        }
        self.begin_replay(now, out);
    }

    /// Takes the state of a checkpoint of the feed. It may be older than the log here: then the cell replays from
    /// there.
    fn restore_at(&mut self, mut header: Header) -> Result<(), StandbyError> {
        let may_skip = self.follow.as_ref().is_some_and(|follow| follow.may_skip_log());
        let skips = header.log_offset > self.log.end();
        let place = header.log_offset >= self.log.floor() && (!skips || may_skip);
        if header.session != self.about.session || !place {
            return standby_error(Code::Tampered, "a checkpoint is of another session or position");
        }
        if !self.ends.are_in(&header) {
            return standby_error(Code::Tampered, "a checkpoint has other ports than the session");
        }
        if !self.ends.restore_clients(&mut header) {
            return standby_error(Code::Tampered, "a checkpoint has ports in another order");
        }
        let recalled = self.follow.as_ref().is_some_and(|follow| follow.recall().is_some());
        let base = Point { offset: header.log_offset, last_ns: header.last_ns };
        let (last, on) = ((header.generation, header.number), (header.base_generation, header.base_number));
        self.state.restore(&header);
        if skips {
            // Pages stand for log that was not fed, and for the messages in it.
            let (offset, digest) = (header.log_offset, Digest(header.head));
            self.log = Log::at(Position { offset, digest, cursor: base.cursor() });
        }
        for (side, state) in self.ends.iter_mut().zip(header.ports) {
            if skips {
                side.skip_to(state.took);
            }
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
            self.log.verify_from(Digest(header.head), base.cursor());
        }
        if let Some(follow) = &mut self.follow {
            follow.restored_at(base, last, on);
            follow.drop_received(&mut self.ends);
        }
        Ok(())
    }

    /// This owner cannot be a standby any more. The session loses nothing: before a takeover, its owner is told; in
    /// one, the ends are asked for everything.
    pub(super) fn fail_standby(
        &mut self,
        StandbyError(code, reason): StandbyError,
        out: &mut Vec<OwnerEffect>,
    ) {
        trace!(self.context(), "cannot stand by: {code:?}: {reason}");
        if self.phase() != OwnerPhase::Following {
            return self.restart_from_ends(&reason, out);
        }
        if let Some(follow) = self.follow.take() {
            out.extend(follow.channel().map(|channel| {
                OwnerEffect::ToFeeder(Reject { channel, code, reason: reason.clone() }.into())
            }));
            follow.forget(out);
        }
        self.remove_cell(out);
        out.push(OwnerEffect::Done(code, reason));
    }
}

/// Keeps a message that was fed, which the end that sent it may have deleted.
pub(super) fn push(side: &mut EndState, message: Message) -> Result<(), StandbyError> {
    if side.inputs_charge + charge(message.payload.len()) > 2 * RETAINED_MAX {
        return standby_error(Code::Busy, "the messages exceed the limit without a checkpoint");
    }
    side.inputs_charge += charge(message.payload.len());
    side.inputs.push_back(message);
    Ok(())
}
