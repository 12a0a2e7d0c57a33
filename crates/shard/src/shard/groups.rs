//! Replication groups: sessions whose outputs wait for a backup (docs/protocol-epochs.md). Which one a session is in, when an epoch
//! ends, which claims are asked for, and who may open a session's generation.

use super::{
    SHARD, Shard,
    hello::{Refusal, refuse},
    report::note,
    shared,
    state::{
        backups::{AskedFor, wire_of},
        groups::{Group, GroupKind, Target},
        sessions::Session,
    },
};
use crate::{
    api::{ClaimAnswer, FromShard, GroupClaim, NoteLevel, Now, ShardOutput, ShardWireId},
    coordinator::contents::{Claimed, group_name},
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_session::{
    owner::{EpochRelease, Feed, KeeperId, OwnerPhase},
    trace,
};
use marram_wire::{
    frame::{AskHandOver, Backup, Code, Confirmed, Epoch, Frame, Goodbye, GroupId, HandGroup, Reject},
    id::SessionId,
};

/// A backup may take so many heartbeat timeouts to confirm an epoch. Then it counts as lost.
const CONFIRM_TIMEOUTS: u64 = 2;
/// The highest count of a claim that is believed: more follow than any group will have.
const CLAIMS_MAX: u64 = u64::MAX / 2;

impl Shard {
    /// The backup of a session's group, if the group's claim names it, for inspection.
    #[must_use]
    pub fn backup_of(&self, session: SessionId) -> Option<&str> {
        self.groups.get(self.groups.of_session(session)?)?.claimed_backup()
    }

    /// Whether this shard backs the group of a session, and has claimed it without an answer yet; for inspection.
    #[must_use]
    pub fn is_claiming(&self, session: SessionId) -> bool {
        self.backups.is_claiming(session)
    }

    /// Whether it is the primary of the group with this name, as the store has it, and that has sessions; for inspection.
    #[must_use]
    pub fn leads_sessions_of(&self, name: &str) -> bool {
        let is_it = |group: &GroupId| group_name(*group) == name;
        let group = self.groups.names().into_iter().find(is_it).and_then(|name| self.groups.get(name));
        group.is_some_and(|group| group.members().next().is_some())
    }

    pub(super) fn confirm_ns(&self) -> u64 {
        u64::from(self.config.heartbeat_timeout_ms) * 1_000_000 * CONFIRM_TIMEOUTS
    }

    /// When something of the groups is due.
    pub(super) fn groups_due_ns(&self) -> Option<u64> {
        let groups = [self.groups.due_ns(self.confirm_ns()), self.backups.due_ns(), self.slots.due_ns()];
        groups.into_iter().chain([self.sessions.over_due_ns()]).flatten().min()
    }

    /// Puts a session into a group, and feeds it to the group's target.
    pub(super) fn place_in_group(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        // A shared cell is in its slot's group, or in none any more.
        if self.groups.of_session(id).is_none() && !self.is_shared_cell(id) {
            self.join_a_group(now, id, false, out);
        }
        let Some(session) = self.sessions.get(id) else { return };
        let group = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        let target = group.and_then(|group| group.target.clone());
        let elsewhere = |at: ShardWireId| target.as_ref().is_none_or(|target| target.wire != at);
        let left = session.placing.backup().filter(|placed| elsewhere(placed.at.0)).map(|placed| placed.id);
        if let Some(keeper) = left {
            self.remove_replica(now, id, keeper, out);
        }
        let Some(session) = self.sessions.get(id) else { return };
        let lacks = session.placing.backup().is_none() && !session.placing.rests(now.mono_ns);
        let role = target.filter(|_| lacks).and_then(|target| {
            let role = self.wires.get(target.wire)?.role.clone()?;
            Some((target.wire, role))
        });
        if let Some((wire, role)) = role {
            let form = self.sessions.get(id).map(|session| session.owner.policy().form);
            let feed = Feed::of_backup(form.unwrap_or_default());
            self.place_backup(now, id, (wire, role, feed), out);
        }
        if let Some(name) = self.groups.of_session(id) {
            self.place_at_next(now, id, name, out);
        }
    }

    /// A group for a session that is in none: with the backup that the ring gives it.
    ///
    /// A session that has released something elsewhere needs a `new` group. A backup may have claimed an older one, and its former
    /// primary not know that yet: what joins then goes when the claim is lost. A session that begins can begin again. Until its next
    /// backup has a copy of it, it is one that has lost its backup: outputs wait for that, but no longer than for any backup.
    fn join_a_group(&mut self, now: Now, id: SessionId, new: bool, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id) else { return };
        let Some(kind) = self.group_kind_of(session) else { return };
        // Those that are copied together have one backup.
        let key = if kind.pace.whole { SessionId::default() } else { id };
        let target = self.target_for((key, &kind), None, |_| true);
        let name = match self.groups.find(&kind, target.as_ref(), kind.groups()).filter(|_| !new) {
            Some(name) => name,
            None => {
                let name = self.random.bytes();
                self.groups.begin(name, (kind, target, new), now.mono_ns);
                name
            }
        };
        self.groups.join(name, id, now.mono_ns);
        self.tell_group(now, id, name, out);
    }

    pub(super) fn tell_group(&mut self, now: Now, id: SessionId, name: GroupId, out: &mut Vec<ShardOutput>) {
        let release = self.groups.get(name).map_or(EpochRelease::Held, |group| group.told());
        self.with_owner(now, id, out, |owner, effects| owner.join_group(now, name, release, effects));
    }

    /// The first edge on the ring after this key that is connected, and may be chosen; one that the group's policy names comes before. For
    /// the cells of a slot, `cell_of` is its app, and its number: then
    /// it is fed to that shard which the app's clients ask.
    pub(super) fn target_for(
        &self,
        (key, kind): (SessionId, &GroupKind),
        cell_of: Option<(&str, u32)>,
        may: impl Fn(&str) -> bool,
    ) -> Option<Target> {
        let preferred = kind.targets().iter().map(String::as_str).filter(|edge| *edge != self.config.edge);
        let ring = self.keepers.edges_for(key, &self.config.edge);
        let mut wires = preferred.chain(ring).filter(|edge| may(edge)).filter_map(|edge| {
            let any = self.wires.of_standby(edge, None, key)?;
            let (wire, role) = match cell_of {
                None => any,
                Some((app, slot)) => {
                    self.wires.of_standby(edge, Some(shared::home(app, slot, any.1.shards)), key)?
                }
            };
            Some(Target { wire, edge: role.name })
        });
        wires.next()
    }

    /// Everything that is due of the groups of this shard.
    pub(super) fn groups_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let confirm_ns = self.confirm_ns();
        self.slots_due(now, out);
        // Whether the record of a group stays, its slot says.
        self.groups.look_again(self.slots.take_changed());
        for name in self.groups.take_due(now.mono_ns) {
            let Some(group) = self.groups.looked_at(name) else { continue };
            group.stays = group.is_slot && self.slots.keeps(name);
            let may_aim = group.avoids_no_more(now.mono_ns);
            if group.unconfirmed_since_ns().is_some_and(|since_ns| since_ns + confirm_ns <= now.mono_ns) {
                self.lose_backup(now, name, "it does not confirm", out);
            } else if may_aim {
                self.aim(now, name, out);
            }
            if self.groups.get(name).is_some_and(|group| group.is_over()) {
                let former = self.groups.get_mut(name).map(Group::take_former).unwrap_or_default();
                self.tell_former_backup(former, Code::Finished, out);
                self.slot_gone(now, name);
                self.groups.end(name);
                self.refuse_former(now, name, out);
                continue;
            }
            self.end_unused_cells(now, name, out);
            self.switch_if_ready(now, name, out);
            self.retell_group(now, name, out);
            self.changes_due(now, name, out);
            self.slot_change_due(now, name, out);
            if self.groups.get(name).is_some_and(Group::asks_kept_backup) {
                self.end_epoch(now, name, true, out);
            }
            self.claim_group(now, name, out);
            self.groups.rest(name, confirm_ns);
        }
        self.snapshots_due(now, out);
        self.claim_backups(now, out);
    }

    /// Ends the epochs that are due. The shell asks for this when it has passed on all that came together, before it writes: what would
    /// leave in one write needs one confirmation.
    pub(super) fn epochs_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for name in self.groups.ending(now.mono_ns) {
            self.epoch_ends(now, name, out);
        }
    }

    /// Something of a session is in no epoch of its group.
    pub(super) fn epoch_due(&mut self, id: SessionId) {
        let name = self.groups.of_session(id);
        if let Some(group) = name.and_then(|name| self.groups.get_mut(name)) {
            group.due(id);
        }
    }

    /// An epoch of a group ends, also if nothing is in it if it `must`.
    pub(super) fn end_epoch(&mut self, now: Now, name: GroupId, must: bool, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(wire) = group.target.as_ref().map(|target| target.wire) else { return };
        let (number, due) = group.end_epoch(now.mono_ns);
        let mut in_it = Vec::new();
        for id in due {
            let mut has_some = false;
            self.with_owner(now, id, out, |owner, effects| has_some = owner.end_epoch(number, effects));
            in_it.extend(has_some.then_some(id));
        }
        if in_it.is_empty() && !must {
            return;
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.epoch_sent(now.mono_ns, in_it);
        }
        self.counters.epochs += 1;
        out.push(ShardOutput::Send { wire, frame: Epoch { group: name, number }.into() });
    }

    /// The members of a group whose target has all of them go over to its confirmations, so that it may become the backup.
    fn switch_if_ready(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.looked_at(name) else { return };
        if !group.looks(now.mono_ns) {
            return;
        }
        let members: Vec<SessionId> = group.members().collect();
        let sessions = &self.sessions;
        let waits = |id: &SessionId| {
            sessions.get(*id).is_some_and(|session| {
                match session.owner.phase() {
                    // It goes on soon, and need not wait for the whole of its state to be copied.
                    OwnerPhase::Following
                    | OwnerPhase::Promising
                    | OwnerPhase::Restoring
                    | OwnerPhase::Replaying => true,
                    _ => session.owner.may_copy() && !session.placing.has_ready_backup(&session.owner),
                }
            })
        };
        if members.iter().any(waits) {
            return;
        }
        if let Some(group) = self.groups.get_mut(name) {
            trace!(SHARD, "group {}: all that is released will be at its next backup", name[0]);
            group.switch();
        }
        self.retell_group(now, name, out);
        self.end_epoch(now, name, true, out);
    }

    /// Tells the members of a group which outputs may leave, if that has changed.
    pub(super) fn retell_group(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        if !self.groups.get(name).is_some_and(|group| group.retells(now.mono_ns)) {
            return;
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(release) = group.retell(now.mono_ns) else { return };
        trace!(SHARD, "group {}: outputs are {release:?} from now on", name[0]);
        let members: Vec<SessionId> = group.members().collect();
        if release == EpochRelease::Alone {
            let text =
                format!("{} sessions run without a backup: they are lost if this edge dies", members.len());
            note(NoteLevel::Warning, None, text, out);
        }
        for id in members {
            self.with_owner(now, id, out, |owner, effects| owner.release_as(now, release, effects));
        }
    }

    /// A backup has kept an epoch, and all before.
    pub(super) fn epoch_confirmed(
        &mut self,
        now: Now,
        wire: ShardWireId,
        confirmed: &Confirmed,
        out: &mut Vec<ShardOutput>,
    ) {
        let Confirmed { group: name, number } = *confirmed;
        let confirmed = self.groups.get_mut(name).and_then(|group| group.confirm(wire, number));
        let Some(confirmed) = confirmed else {
            self.counters.stale_frames += 1;
            return trace!(SHARD, "ignores that wire {} confirms epoch {number} of another group", wire.0);
        };
        for ended_ns in confirmed.ended_ns {
            self.counters.confirmations.add(now.mono_ns.saturating_sub(ended_ns));
        }
        for id in confirmed.members {
            self.with_owner(now, id, out, |owner, effects| owner.epoch_confirmed(now, number, effects));
        }
    }

    /// Asks for the claim that a group needs, if it needs one.
    fn claim_group(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let (groups, random) = (&mut self.groups, &mut self.random);
        let Some(claim) = groups.next_claim(now.mono_ns, name, &self.config.edge, || random.number()) else {
            return;
        };
        let target = groups.get(name).and_then(|group| group.target.as_ref());
        let named = claim.to.as_ref().filter(|to| to.backup.is_some()).map(|to| to.generation);
        if let (Some(generation), Some(target)) = (named, target) {
            // Before the store has it: with the claim the target is the backup, whether or not it has heard of it.
            let announced = Backup { group: name, generation };
            out.push(ShardOutput::Send { wire: target.wire, frame: announced.into() });
        }
        out.push(ShardOutput::Control(FromShard::Claim(claim)));
    }

    /// Asks for the claims that groups need which this shard backs.
    fn claim_backups(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let (groups, random) = (&mut self.groups, &mut self.random);
        let claims = self.backups.claims(now.mono_ns, &self.config.edge, || (groups.tag(), random.number()));
        for (group, tag, from, to) in claims {
            let to = Some(to);
            out.push(ShardOutput::Control(FromShard::Claim(GroupClaim {
                tag,
                group,
                of_slot: self.backups.get(group).is_some_and(|group| group.is_slot),
                from,
                to,
            })));
        }
    }

    /// The answer to a claim.
    pub(super) fn claim_answered(&mut self, now: Now, answer: ClaimAnswer, out: &mut Vec<ShardOutput>) {
        let tag = answer.tag;
        if let Some(name) = self.groups.of_tag(tag) {
            return self.own_claim_answered(now, name, answer, out);
        }
        let Some((name, claimed)) = self.backups.of_tag(tag) else {
            return trace!(SHARD, "ignores the answer to a claim that is over");
        };
        match answer {
            ClaimAnswer { away: Some(why), .. } => {
                let primary =
                    self.backups.get(name).map_or_else(Default::default, |group| group.primary.clone());
                let text = format!(
                    "its sessions wait: `{primary}` is away, and the coordinator does not decide: {why}"
                );
                note(NoteLevel::Warning, None, text, out);
                self.backups.unanswered(now.mono_ns, name);
                self.cells_not_claimed(now, name, &why, out);
            }
            ClaimAnswer { won: true, .. } => self.promote(now, name, claimed, out),
            ClaimAnswer { holder: None, .. } if !self.backups.is_heir(name) => self.backups.forgotten(name),
            ClaimAnswer { holder: Some(holder), .. } if self.follows_heir(now, name, &holder, None, out) => {}
            ClaimAnswer { holder: Some(holder), .. }
                if self.backups.may_claim_from(now.mono_ns, name, &holder) => {}
            ClaimAnswer { .. } => {
                // Its primary runs alone, or has another backup: what is here is of the past.
                for id in self.backups.end(name) {
                    self.drop_standby(now, id, out);
                }
            }
        }
    }

    fn own_claim_answered(
        &mut self,
        now: Now,
        name: GroupId,
        answer: ClaimAnswer,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(group) = self.groups.get_mut(name) else { return };
        match answer {
            ClaimAnswer { tag, away: Some(why), .. } => {
                group.unanswered(now.mono_ns, tag);
                if group.release(now.mono_ns) == EpochRelease::Held {
                    let count = group.member_count();
                    let text = format!(
                        "{count} sessions hold their outputs: the coordinator does not decide: {why}"
                    );
                    note(NoteLevel::Warning, None, text, out);
                }
                self.cells_stay(now, name, &why, out);
            }
            ClaimAnswer { tag, won: true, store, .. } => {
                let was_removed = group.was_removed(tag, store);
                group.won(tag, store);
                if was_removed {
                    return self.replaced_meanwhile(now, name, out);
                }
                if group.is_missing() {
                    return;
                }
                self.without_backup(now, name, out);
                self.group_claimed(name, out);
                self.cells_move_on(now, name, out);
            }
            ClaimAnswer { tag, holder: None, .. } => {
                group.forgotten(tag);
                // Then its slot may be lost too.
                self.slots.again(name, self.random.bytes());
            }
            ClaimAnswer { tag, holder: Some(holder), .. }
                if group.put_back(tag, &holder, &self.config.edge) =>
            {
                self.slots.again(name, self.random.bytes());
            }
            ClaimAnswer { tag, holder: Some(holder), .. } if group.was_resigned(tag, &holder) => {
                trace!(SHARD, "group {}: its backup was started again, and has resigned", name[0]);
            }
            ClaimAnswer { holder: Some(holder), .. } => {
                let contested = group.contested();
                self.backups.was_claimed_since(name);
                let reason = format!("`{}` has claimed the session's group", holder.primary);
                // It may be that one's backup.
                let former = group.take_former();
                self.tell_former_backup(former, Code::HandedOn, out);
                self.slot_gone(now, name);
                for id in self.groups.end(name) {
                    self.taken_by(id, &holder.primary);
                    self.with_owner(now, id, out, |owner, effects| {
                        owner.step_down(Code::Superseded, reason.clone(), effects);
                    });
                }
                if let Some((wire, number)) = contested {
                    self.confirm_epoch(wire, name, number, out);
                }
            }
        }
    }

    /// Chooses a target for a group that has none, and feeds it.
    pub(super) fn aim(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let may = |group: &&Group| group.may_aim() && !self.slots.is_leaving(name);
        let Some(group) = self.groups.get(name).filter(may) else { return };
        let member = group.members().next().and_then(|id| self.sessions.get(id));
        let cell_of = member.filter(|_| group.is_slot);
        let cell_of = cell_of.map(|session| (session.app(), self.slot_number(session)));
        let may = |edge: &str| group.may_aim_at(edge, now.mono_ns);
        let target = self.target_for((SessionId(name), group.kind()), cell_of, may);
        let Some(target) = target else { return };
        trace!(SHARD, "group {}: feeds `{}`, to be its backup", name[0], target.edge);
        if let Some(group) = self.groups.get_mut(name) {
            group.aim(target);
            for id in group.members().collect::<Vec<_>>() {
                self.sessions.get_mut(id).into_iter().for_each(|session| session.placing.rests_no_more());
                self.place(now, id, out);
            }
        }
    }

    /// Edges have come or gone.
    pub(super) fn aim_all(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for name in self.groups.names() {
            self.aim(now, name, out);
        }
    }

    /// A session is over here.
    pub(super) fn leave_groups(&mut self, now: Now, id: SessionId) {
        self.groups_idle.extend(self.groups.of_session(id));
        self.groups.await_no_more(id);
        self.groups.leave(id, now.mono_ns);
        self.backups.leave(id);
    }

    fn confirm_epoch(&self, wire: ShardWireId, group: GroupId, number: u64, out: &mut Vec<ShardOutput>) {
        let is_connected = self.peers.as_ref().is_some_and(|peers| peers.has(wire));
        if is_connected && self.backups.may_confirm(group, wire) {
            out.push(ShardOutput::Send { wire, frame: Confirmed { group, number }.into() });
        }
    }

    /// The edge at the other end of a peer's wire.
    pub(super) fn peer_name(&self, wire: ShardWireId) -> Option<String> {
        let peer = self.peers.as_ref()?.get(wire)?;
        Some(peer.name().to_string())
    }

    /// A primary's frame about one of its groups, of which this shard is the backup or becomes it.
    pub(super) fn group_frame(
        &mut self,
        now: Now,
        wire: ShardWireId,
        frame: &Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        if let Frame::Backup(Backup { generation, .. }) | Frame::HandGroup(HandGroup { generation, .. }) =
            frame
            && generation.count > CLAIMS_MAX
        {
            let reason = "a group was not claimed so often".to_string();
            out.push(ShardOutput::Send { wire, frame: Goodbye { reason }.into() });
            out.push(ShardOutput::CloseWire { wire });
            return self.peer_down(now, wire, out);
        }
        match *frame {
            Frame::Epoch(Epoch { group, number }) => {
                // Once the group is known to be the other edge's, what it has ended meanwhile is confirmed.
                match self.groups.get_mut(group) {
                    Some(own) => own.contest(wire, number),
                    None => self.confirm_epoch(wire, group, number, out),
                }
            }
            Frame::Backup(Backup { group, generation }) => {
                let primary = self.peer_name(wire);
                let backup = Some(self.config.edge.clone());
                let Some(primary) = primary else { return };
                let claim = Claimed { generation, primary, backup };
                self.follows_heir(now, group, &claim, Some(wire), out);
                for id in self.backups.announced(group, wire, claim) {
                    self.refuse_standby(now, id, "this edge has resigned from the group's claim", out);
                }
                self.drop_former_cells(now, (group, wire), out);
            }
            Frame::HandGroup(ref hand) => self.group_handed(now, wire, hand, out),
            _ => {}
        }
    }

    /// An end asks for a session that this shard backs, or backed.
    ///
    /// # Errors
    /// What the end is told, unless a generation may be opened now.
    pub(super) fn may_open_backed(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), Refusal> {
        let own = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        if own.is_some_and(|group| group.is_in_doubt()) {
            return refuse(
                Code::Waiting,
                "whose the session is, is being decided: its edge has lost its backup, and claims its group",
            );
        }
        let is_backed = |session: &&Session| session.is_following() && session.owner.has_backup();
        let Some(session) = self.sessions.get(id).filter(is_backed) else {
            return Ok(());
        };
        if self.groups.of_session(id).is_some() {
            return self.may_open_own(id);
        }
        let (feeder, channel) = (wire_of(session.feeder), session.feeder.map(|(_, channel)| channel));
        match self.backups.asked(now.mono_ns, id) {
            None => refuse(
                Code::Waiting,
                "the session is about to move to this edge, and is at its owner until then",
            ),
            Some(AskedFor::Primary { wire, now: is_now }) => {
                if let Some(channel) = channel.filter(|_| is_now && feeder == Some(wire)) {
                    out.push(ShardOutput::Send { wire, frame: AskHandOver { channel }.into() });
                }
                refuse(Code::Waiting, "this edge is the session's backup, and asks its owner to hand it over")
            }
            Some(AskedFor::Claim) => refuse(
                Code::Waiting,
                "this edge is the session's backup, and claims its group at the coordinator",
            ),
            Some(AskedFor::Unclaimed) => {
                // A claim may name it that was not heard of here. Then it has all that has left, and perhaps has not replayed that.
                self.take_as_own(now, id, out);
                self.with_owner(now, id, out, |owner, effects| owner.promote(now, effects));
                self.may_open_own(id)
            }
        }
    }

    /// An end asks for a session that was fed here, and is this edge's own now.
    fn may_open_own(&self, id: SessionId) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get(id) else { return Ok(()) };
        let (_, is_able) = session.owner.standing_by().unwrap_or_default();
        if session.is_following() && (session.owner.is_caught_up() || !is_able) {
            return Ok(());
        }
        refuse(Code::Waiting, "the session is being replayed: its end is asked when that is done")
    }

    /// A session that this shard was fed is in a group of its own from now on: its owner has handed it over, or never was allowed to
    /// release anything.
    pub(super) fn take_as_own(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id) else { return };
        // A shared cell goes by its group's claim alone.
        if !session.owner.has_backup()
            || session.owner.is_shared_cell()
            || self.groups.of_session(id).is_some()
        {
            return;
        }
        let (feeder, is_backup) = (session.feeder, self.backups.has(id));
        if let Some((wire, _)) = feeder
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.former_owner = self.peers.as_ref().and_then(|peers| Some(peers.get(wire)?.target));
        }
        // An owner that another edge backs runs nothing until its ends have promised this one.
        if let Some((wire, channel)) = feeder.filter(|_| is_backup) {
            // Before anything more of it can be confirmed.
            let reason = "the session is opened here".to_string();
            out.push(ShardOutput::Send {
                wire,
                frame: Reject { channel, code: Code::Superseded, reason }.into(),
            });
            // What its former owner still says there does not count any more.
            if let Some(session) = self.sessions.get_mut(id) {
                (session.feeder, session.feed_lost_ns) = (None, Some(now.mono_ns));
            }
            self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
        }
        self.backups.leave(id);
        self.join_a_group(now, id, true, out);
    }

    /// An end asks for a session that was handed over to its backup, which has no copy of it that could be confirmed any more. It goes on
    /// here as one that has lost its backup: the others of its group have theirs, and its outputs must not wait for a full copy, however
    /// long that takes.
    pub(super) fn take_back(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id).filter(|session| session.owner.was_handed_over()) else {
            return;
        };
        if session.is_following() || self.groups.of_session(id).is_none() {
            return;
        }
        let text = "goes on here, though it was handed over to its backup".to_string();
        note(NoteLevel::Info, Some(id), text, out);
        self.groups.leave(id, now.mono_ns);
        self.join_a_group(now, id, true, out);
    }

    /// A backup asks for a session, since an end reaches only that one.
    pub(super) fn hand_over_to_backup(
        &mut self,
        now: Now,
        id: SessionId,
        keeper: KeeperId,
        out: &mut Vec<ShardOutput>,
    ) {
        let backup = self.sessions.get(id).and_then(|session| session.placing.backup());
        if backup.is_none_or(|placed| placed.id != keeper) {
            return;
        }
        self.give_up_change(now, id, "an end reaches only the backup, which takes the session over", out);
        self.with_owner(now, id, out, |owner, effects| {
            owner.hand_over(now, keeper, effects);
        });
    }

    /// Whether a session of an app with epochs may be opened here, that is not here: only if it begins.
    pub(super) fn refuse_unbacked(&self, id: SessionId, fresh: bool) -> Result<(), Refusal> {
        if fresh || self.sessions.has(id) {
            return Ok(());
        }
        refuse(
            Code::Waiting,
            "this edge is neither the session's owner nor its backup, and the app has protect = \"epoch\": ends keep too little \
             to continue it here",
        )
    }
}
