//! The keepers of this shard's sessions: recorders and standby edges. Which one keeps which session, and what is asked
//! of them (docs/protocol-keepers.md).
//!
//! Keepers dial, as agents do, and prove that they belong to this domain. One recorder keeps every protected session.
//! The standby of a session is found on a consistent hash ring over the connected edges (Pico's chords), so that the
//! sessions of a dead edge spread over all others. A chosen keeper stays as long as it is connected. Sessions move
//! because an edge joins only if their policy says so (`rebalance`).

use super::{
    SHARD, Shard,
    report::note,
    state::{placing::Placed, wires::Role},
};
use crate::api::{self, FromShard, NoteLevel, Now, Protect, ShardOutput, ShardWireId};
use alloc::vec::Vec;
use marram_session::{
    owner::{Feed, KeeperId, OwnerPhase},
    trace,
};
use marram_wire::{
    frame::{Backup, Channel, Code, Frame, KeepOn, Keeper, Sender},
    id::SessionId,
    seal::{self, KeeperKey},
};

impl Shard {
    /// A wire declares that it leads to a keeper.
    pub(super) fn keeper(&mut self, now: Now, id: ShardWireId, keeper: Keeper, out: &mut Vec<ShardOutput>) {
        let Some(wire) = self.wires.get(id) else { return };
        // Both are needed, the right and the secret: a credential alone could be of a lower trust than the edges.
        let rights = &wire.verified.rights;
        match keeper.role {
            0 if !rights.recorder => {
                return self.refuse_role(id, "be a recorder", "roles = [\"recorder\"]", out);
            }
            1 if !rights.edge => {
                return self.refuse_role(id, "stand by as an edge", "roles = [\"edge\"]", out);
            }
            0 | 1 => {}
            _ => return self.goodbye(id, "this edge does not know the keeper's role: update the edge", out),
        }
        if !wire.is_unbound() || !wire.servers.is_empty() {
            return self.goodbye(id, "a wire that carries sessions cannot become a keeper's", out);
        }
        let key = KeeperKey::derive(&self.secret);
        if !seal::same(&keeper.proof, &key.proof(&wire.challenge, &keeper.name)) {
            let reason = "the keeper's proof does not match this edge's domain secret: does it have the edges' `secret_file`?";
            return self.goodbye(id, reason, out);
        }
        // Names are the ring's keys: an edge that stood by for itself would lose both at once. Another shard of this edge is not on the
        // ring. Its wire has no address.
        let has_own_name = keeper.name == self.config.edge;
        let own =
            has_own_name && wire.address.is_none() && keeper.role == 1 && keeper.shard != self.config.shard;
        if (has_own_name && !own) || wire.role.is_some() {
            return self.goodbye(id, "the keeper introduced itself twice, or has this edge's own name", out);
        }
        let Keeper { name, role, shard, shards, .. } = keeper;
        let (level, text) = if role == 0 {
            (NoteLevel::Info, alloc::format!("the recorder `{name}` is connected"))
        } else if own {
            (NoteLevel::Debug, alloc::format!("shard {shard} of this edge can take sessions over"))
        } else {
            (NoteLevel::Info, alloc::format!("the edge `{name}` (shard {shard}) can stand by"))
        };
        // A count of 0 is a peer's mistake, and would divide by zero.
        let role = Role { name, recorder: role == 0, shard, shards: shards.max(1), own };
        let is_other_edge = !role.recorder && !own;
        self.wires.introduced(id, role);
        if is_other_edge {
            self.tell_store_seen(id, out);
        }
        note(level, None, text, out);
        self.keepers_changed(now, out);
    }

    /// A keeper came or went, or what apps need has changed: every session checks its replicas.
    pub(super) fn keepers_changed(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let others = self.wires.standbys().map(|role| role.name.clone());
        self.keepers.rebuild(others.chain([self.config.edge.clone()]));
        self.joins_changed(now, out);
        self.aim_all(now, out);
        // Rare, and every session may be concerned.
        for id in self.sessions.ids() {
            self.place(now, id, out);
        }
    }

    pub(super) fn keeper_down(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        self.plans.drop_wire(wire);
        self.backup_wire_lost(now, wire, out);
        // Each session is told on its own: a replica less may change what its owner may release or forget.
        for (session, keeper) in self.keepers.drop_wire(wire) {
            match keeper {
                Some(keeper) => self.unplace(now, session, keeper, out),
                None => self.recall_over(now, session, out),
            }
        }
        self.keepers_changed(now, out);
    }

    /// A keeper is not needed any more.
    pub(super) fn remove_replica(
        &mut self,
        now: Now,
        id: SessionId,
        keeper: KeeperId,
        out: &mut Vec<ShardOutput>,
    ) {
        // The owner is informed before the shard forgets it.
        self.with_owner(now, id, out, |owner, effects| owner.remove_replica(keeper, effects));
        self.unplace(now, id, keeper, out);
    }

    fn unplace(&mut self, now: Now, id: SessionId, keeper: KeeperId, out: &mut Vec<ShardOutput>) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.placing.remove(keeper);
        }
        self.with_owner(now, id, out, |owner, effects| {
            owner.remove_replica(keeper, effects);
            // Its cell may have waited for that one.
            owner.tick(now, effects);
        });
        self.move_lost(now, id, (keeper, false, "the connection to that edge broke"), out);
    }

    /// Adds the missing replicas of a session, and removes those that it does not need.
    pub(super) fn place(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id) else { return };
        // A session that begins is fed from its first entry on; one that recovers once its log is chosen.
        let owner = &session.owner;
        if !owner.policy().keeps.anything() || !session.may_be_placed() {
            return;
        }
        if owner.has_backup() {
            self.place_in_group(now, id, out);
            return self.tell_standby(now, id, out);
        }
        let protect = self.apps.protect(owner);
        for keeper in session.placing.unwanted(protect) {
            self.remove_replica(now, id, keeper, out);
        }
        let Some(session) = self.sessions.get(id) else { return };
        // A keeper that refuses must not be asked for each message of the session.
        if session.placing.rests(now.mono_ns) {
            return self.tell_standby(now, id, out);
        }
        // A keeper that is connected stays, even if the ring would choose another one now.
        let recorder = if session.placing.has_recorder() { None } else { self.wires.of_recorder() };
        let stands = matches!(protect, Protect::Warm | Protect::Hot) && !session.placing.has_standby();
        let name = self.keepers.standby_of(id, &self.config.edge).filter(|_| stands);
        // The edge to which it moves has a feed already, and is about to be its owner.
        let name = name.filter(|name| session.placing.at_edge(name).is_none());
        let standby = name.and_then(|name| self.wires.of_standby(name, None, id));
        let feed = if protect == Protect::Hot { Feed::Replayed } else { Feed::Kept };
        for ((wire, role), feed) in
            recorder.map(|it| (it, Feed::Kept)).into_iter().chain(standby.map(|it| (it, feed)))
        {
            self.place_at(now, id, (wire, role, feed), out);
        }
        self.tell_standby(now, id, out);
    }

    /// Makes a keeper keep a session. None if its wire is gone.
    pub(super) fn place_at(
        &mut self,
        now: Now,
        id: SessionId,
        (wire, role, feed): (ShardWireId, Role, Feed),
        out: &mut Vec<ShardOutput>,
    ) -> Option<KeeperId> {
        let (keeper, channel) = self.add_placed(id, (wire, role, feed), false)?;
        self.with_owner(now, id, out, |owner, effects| owner.add_replica(keeper, channel, feed, effects));
        Some(keeper)
    }

    /// Makes an edge the backup of a session: one that keeps it, or that goes on with the copy which it has from the owner before.
    pub(super) fn place_backup(
        &mut self,
        now: Now,
        id: SessionId,
        (wire, role, feed): (ShardWireId, Role, Feed),
        out: &mut Vec<ShardOutput>,
    ) {
        let group = self.groups.of_session(id).and_then(|name| self.groups.get_mut(name));
        if !group.is_some_and(|group| group.continues(id)) {
            self.place_at(now, id, (wire, role, feed), out);
        } else if let Some((keeper, channel)) = self.add_placed(id, (wire, role, feed), false) {
            self.with_owner(now, id, out, |owner, effects| {
                owner.add_continued_backup(keeper, channel, feed, effects);
            });
        }
    }

    /// Makes an edge keep a session beside its backup, to be the next one. None if its wire is gone.
    pub(super) fn place_next(
        &mut self,
        now: Now,
        id: SessionId,
        (wire, role, feed): (ShardWireId, Role, Feed),
        out: &mut Vec<ShardOutput>,
    ) -> Option<KeeperId> {
        let (keeper, channel) = self.add_placed(id, (wire, role, feed), true)?;
        self.with_owner(now, id, out, |owner, effects| owner.add_next_backup(keeper, channel, feed, effects));
        Some(keeper)
    }

    /// An edge or recorder keeps a session from now on, as this shard knows; its owner is to be told.
    pub(super) fn add_placed(
        &mut self,
        id: SessionId,
        (wire, role, feed): (ShardWireId, Role, Feed),
        is_next: bool,
    ) -> Option<(KeeperId, Channel)> {
        let session = self.sessions.get_mut(id)?;
        // The channel is the keeper's only name for the feed: it is new on its wire.
        let channel = self.wires.open(wire)?;
        let keeper = self.keepers.place((wire, channel), id);
        session.placing.add(Placed { id: keeper, at: (wire, channel), role, feed, is_next, stood_by: None });
        Some((keeper, channel))
    }

    /// A log has been chosen, or the session continues: add missing keepers.
    pub(super) fn place_if_chosen(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let runs = matches!(session.owner.phase(), OwnerPhase::Running | OwnerPhase::Confirming);
        let is_kept = session.owner.policy().keeps.anything();
        // Once for each generation; after that keepers that come and go start a search.
        if runs && session.placing.begin_search() {
            if is_kept {
                self.place(now, id, out);
            }
            if self.drain.hands_over() {
                self.move_out(now, id);
            }
        }
    }

    /// Reports to control which edge could take a session over, when that has changed.
    pub(super) fn list_standby(&mut self, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        // Control lists it at the coordinator, if there is one.
        if let Some(at) = session.placing.relist(&session.owner) {
            out.push(ShardOutput::Control(FromShard::Placed(api::Placed { session: id, at })));
        }
    }

    /// Tells the ends which edge stands by, once it could take over.
    pub(super) fn tell_standby(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id) else { return };
        let standby = session.placing.standby(&session.owner);
        self.with_owner(now, id, out, |owner, effects| {
            owner.tell_standby(standby.as_ref().map(|(name, shard)| (&name[..], *shard)), effects);
        });
    }

    /// Sends an owner's frame to one of its keepers.
    pub(super) fn send_keeper(
        &mut self,
        id: SessionId,
        keeper: KeeperId,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(at) = self.sessions.get(id).and_then(|session| session.placing.at(keeper)) else { return };
        match &frame {
            Frame::Ended(_) => self.keepers.close(at),
            Frame::CheckpointPart(part) => {
                let bytes = part.bytes.len() as u64;
                self.counters.keeper_bytes += bytes;
                let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
                let moves = moving.is_some_and(|moving| moving.keeper() == Some(keeper));
                self.counters.move_bytes += if moves { bytes } else { 0 };
            }
            Frame::Fed(fed) => {
                let bytes = (fed.entry.len() + fed.payload.len()) as u64;
                let placed = self.sessions.get(id).and_then(|session| session.placing.backup());
                let is_backup = placed.is_some_and(|placed| placed.id == keeper);
                self.counters.keeper_bytes += bytes;
                self.counters.epoch_log_bytes += if is_backup { bytes } else { 0 };
            }
            _ => {}
        }
        let group = match &frame {
            Frame::Keep(keep) => keep.group,
            Frame::KeepOn(KeepOn { keep }) => keep.group,
            Frame::JoinGroup(join) => Some(join.group),
            _ => None,
        };
        out.push(ShardOutput::Send { wire: at.0, frame });
        // A backup that has no session of a group forgets what it was told of its claim.
        let generation = group.and_then(|name| self.groups.get(name)?.announced());
        if let Some((group, generation)) = group.zip(generation) {
            out.push(ShardOutput::Send { wire: at.0, frame: Backup { group, generation }.into() });
        }
    }

    /// A keeper does not keep a session any more: it is asked again later, or another keeper is chosen.
    pub(super) fn keeper_lost(
        &mut self,
        now: Now,
        id: SessionId,
        (keeper, code, reason): (KeeperId, Code, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        // The keeper may have ended the channel itself.
        let at = session.placing.at(keeper);
        at.into_iter().for_each(|at| self.keepers.close(at));
        let was_backup = session.placing.backup().is_some_and(|placed| placed.id == keeper);
        let Some(name) = session.placing.lose(now.mono_ns, keeper, code) else { return };
        let may_be_taken = was_backup && code == Code::Superseded;
        self.move_lost(now, id, (keeper, may_be_taken, reason), out);
        let is_refused = code != Code::Superseded || self.is_cell_handed_over(id);
        // It was asked to: operators are told once for all cells.
        let goes_on = was_backup && code == Code::Waiting && self.is_cell_handed_over(id);
        if let Some((wire, _)) = at.filter(|_| was_backup && is_refused) {
            self.backup_refused(now, id, (wire, goes_on, reason), out);
        }
        // The former owner's backup has the session, and its ends do not ask it while they wait for this edge.
        if was_backup
            && code == Code::Superseded
            && self.sessions.get(id).is_some_and(|it| it.owner.is_beginning())
        {
            let reason =
                alloc::format!("`{name}` has more of the session, and this edge would begin it again");
            self.with_owner(now, id, out, |owner, effects| {
                owner.step_down(Code::Waiting, reason, effects);
            });
        }
        self.counters.keepers_lost += 1;
        // Such a conflict is ordinary: the session has just moved.
        if code != Code::Superseded && !goes_on {
            let text = alloc::format!("`{name}` no longer keeps the session: {reason}");
            note(NoteLevel::Info, Some(id), text, out);
        }
    }

    /// A frame on a keeper's wire.
    pub(super) fn keeper_frame(
        &mut self,
        now: Now,
        wire: ShardWireId,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        if let Frame::Confirmed(confirmed) = &frame {
            return self.epoch_confirmed(now, wire, confirmed, out);
        }
        if let Frame::ForgetCopy(forget) = &frame {
            return self.forget_copy(now, (wire, forget), out);
        }
        let Some(channel) = frame.channel(Sender::End) else {
            return self.goodbye(wire, "keepers must not send such frames", out);
        };
        let (at, name) = ((wire, channel), frame.name());
        match self.keepers.of_channel(at) {
            Some((id, Some(keeper))) if matches!(frame, Frame::AskHandOver(_)) => {
                self.hand_over_to_backup(now, id, keeper, out);
            }
            Some((id, Some(keeper))) => {
                let stored = matches!(&frame, Frame::Stored(stored) if stored.complete.is_some());
                self.with_owner(now, id, out, |owner, effects| {
                    owner.from_keeper(now, keeper, frame, effects)
                });
                // One that was dropped for what it said is asked again later and later.
                if stored && self.keepers.of_channel(at).is_some() {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.placing.stored();
                    }
                    self.move_on(now, id, out);
                    self.tell_standby(now, id, out);
                }
            }
            // The answer to a recall, of a session that this shard may not have yet.
            Some((id, None)) => self.recall_frame(now, id, at, frame, out),
            None if self.plans.has(at) => self.plan_answered(now, at, &frame, out),
            None => {
                self.counters.stale_frames += 1;
                trace!(SHARD, "ignores {name} on wire {}: channel {channel} keeps nothing", wire.0);
            }
        }
    }
}
