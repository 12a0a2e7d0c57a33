//! Stands by for the sessions of other edges, and of other shards of this one: greets the shards that it dialled, is fed by owners there, and takes over
//! what they lose (docs/protocol-keepers.md, "Standby").

use super::{
    SHARD, Session, Shard,
    hello::SESSIONS_MAX_REACHED,
    images, policy,
    report::note,
    roles,
    state::peers::{Peer, Peers},
};
use crate::api::{App, AppVersion, NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{string::ToString, vec::Vec};
use marram_session::{
    agent::Target,
    cell::Seed,
    dialer::DialerAction,
    learned::NotAsTold,
    owner::{Owner, OwnerPhase, StandbyError},
    trace,
};
use marram_wire::{
    frame::{
        Code, Frame, Goodbye, Greet, GroupId, Keep, KeepOn, Keeper, Ping, Pong, Reject, Sender, Welcome,
    },
    id::SessionId,
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    seal::{KeeperKey, SessionKeys},
};

/// What an edge needs to stand by for a session.
fn version_of(keep: &Keep) -> AppVersion {
    AppVersion { app: keep.app.clone(), image: keep.image }
}

/// A wire to a peer is up: greets it, or closes it if this shard dials none.
pub(super) fn dialled(
    peers: &mut Option<Peers>,
    now: Now,
    wire: ShardWireId,
    target: Target,
    out: &mut Vec<ShardOutput>,
) {
    let Some(peers) = peers else { return out.push(ShardOutput::CloseWire { wire }) };
    peers.up(now.mono_ns, wire, target);
    let greet =
        Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers: Vec::new() };
    out.push(ShardOutput::Send { wire, frame: greet.into() });
}

impl Shard {
    pub(super) fn dial_failed(
        &mut self,
        now: Now,
        (target, reason): (Target, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        self.cannot_stand_by(target, (reason, false), out);
        let Some(peers) = &mut self.peers else { return };
        // The wire broke, and the edge does not answer.
        for session in peers.failed(now.mono_ns, target, &mut self.random) {
            self.take_over(now, session, out);
        }
    }

    /// Tells operators why this shard does not stand by for an edge, which may lack a backup for that.
    fn cannot_stand_by(
        &mut self,
        target: Target,
        (reason, was_reached): (&str, bool),
        out: &mut Vec<ShardOutput>,
    ) {
        let is_news = self.peers.as_mut().is_some_and(|peers| peers.refused(target, reason));
        let address = self.config.dials.get(usize::from(target.edge));
        // Edges that were learned may have gone for good, and other shards of this edge are started again.
        if let Some(address) = address.filter(|_| is_news) {
            let text = alloc::format!("does not stand by for the edge at `{address}`: {reason}");
            note(if was_reached { NoteLevel::Warning } else { NoteLevel::Info }, None, text, out);
        }
    }

    pub(super) fn peer_down(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        let Some(peers) = &mut self.peers else { return };
        let Some(peer) = peers.down(now.mono_ns, wire, &mut self.random) else { return };
        self.backups.lost(now.mono_ns, wire);
        self.teller_gone(now, wire, Some(peer.name()).filter(|name| !name.is_empty()));
        for id in peer.sessions() {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            // Its owner may have moved to another wire, or this shard owns it by now.
            if session.feeder.is_none_or(|(at, _)| at != wire) {
                continue;
            }
            session.feeder = None;
            session.feed_lost_ns = Some(now.mono_ns);
            // What was arriving stays incomplete.
            self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
            if self.was_to_move_here(id) {
                self.drop_standby(now, id, out);
            }
            if self.sessions.is_following(id)
                && let Some(peers) = &mut self.peers
            {
                // Perhaps only the connection broke. If the edge can be dialled, its owner is alive and feeds again.
                peers.orphan(peer.target, id);
            }
        }
        if peer.name().is_empty()
            && let Some(peers) = &mut self.peers
        {
            // It was connected and has not answered: a shard of this edge that has died is found so.
            for session in peers.take_orphans(peer.target) {
                self.take_over(now, session, out);
            }
        }
        self.peers_due(now, out);
    }

    /// Whether a session was fed here only to move here, and has not: its backup, which is another edge, may know more of it.
    fn was_to_move_here(&self, id: SessionId) -> bool {
        let is_fed = |session: &Session| session.is_following() && session.owner.has_backup();
        self.sessions.get(id).is_some_and(is_fed) && !self.is_in_group(id)
    }

    /// Opens a generation of a session without an owner, if both of its ends can be reached.
    pub(super) fn take_over(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id) else { return };
        // If the standby has too little state, the ends must find another edge.
        let able = session.owner.standing_by().is_some_and(|(_, able)| able);
        // A shared cell whose group is claimed here is nowhere else.
        let stops = self.drain.has_begun()
            && !(session.owner.is_shared_cell() && self.groups.of_session(id).is_some());
        if !session.is_following() || stops || !able {
            return;
        }
        // A backup claims first, and only if an end asks.
        if session.owner.has_backup() && self.groups.of_session(id).is_none() {
            return;
        }
        // Then it replays what its ends may have received: before that they would refuse it, and the session would be lost.
        if self.groups.of_session(id).is_some() && !session.owner.is_caught_up() {
            return;
        }
        // Whether a shared cell that has not begun is to begin here, its slot says.
        if session.owner.is_shared_cell() && session.owner.log_bytes().0 == 0 {
            return;
        }
        // The ends answer `Superseded` if they have promised a newer generation since.
        let count = session.owner.generation().count;
        let Some(ends) = roles::known_ends(&self.wires, session) else { return };
        self.attempt(now, id, count, &ends, out);
    }

    /// Runs due work: connects, sends heartbeats, suspects silent peers.
    pub(super) fn peers_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let Some(peers) = &mut self.peers else { return };
        let mut acts = peers.due(now.mono_ns);
        for act in acts.drain(..) {
            match act {
                DialerAction::Dial(target) => {
                    let edge = target.edge;
                    let address = self.peers.as_mut().and_then(|peers| peers.moved(edge));
                    out.extend(address.map(|address| ShardOutput::Learn { edge, address }));
                    out.push(ShardOutput::Dial { target });
                }
                DialerAction::Ping(wire) => {
                    out.push(ShardOutput::Send {
                        wire: ShardWireId(wire),
                        frame: Ping { stamp: now.mono_ns }.into(),
                    });
                }
                DialerAction::Suspect { wire, .. } => self.suspect_peer(now, ShardWireId(wire), out),
                DialerAction::Close { wire, .. } => {
                    out.push(ShardOutput::CloseWire { wire: ShardWireId(wire) });
                    // What the shell still reports of this wire finds nothing.
                    self.peer_down(now, ShardWireId(wire), out);
                }
            }
        }
        if let Some(peers) = &mut self.peers {
            peers.did(acts);
        }
    }

    /// A peer is silent. Its wire stays: it may only be slow, and then its sessions have two owners for a moment, of
    /// which the ends believe the newer one (I3 of docs/protocol.md).
    fn suspect_peer(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        self.backups.suspect(now.mono_ns, wire);
        let Some(peer) = self.peers.as_ref().and_then(|peers| peers.get(wire)) else { return };
        let sessions: Vec<SessionId> = peer.sessions().collect();
        if !sessions.is_empty() {
            let (name, count) = (peer.name(), sessions.len());
            let text = alloc::format!("no frame from the edge `{name}`: taking over {count} of its sessions");
            note(NoteLevel::Info, None, text, out);
        }
        for session in sessions {
            self.take_over(now, session, out);
        }
    }

    /// A frame on a wire that this shard dialled.
    pub(super) fn peer_frame(
        &mut self,
        now: Now,
        wire: ShardWireId,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(peers) = &mut self.peers else { return };
        peers.heard(now.mono_ns, wire, frame.answers());
        self.backups.heard(wire);
        match frame {
            Frame::Welcome(welcome) => self.peer_welcome(now, wire, &welcome, out),
            Frame::Ping(ping) => {
                out.push(ShardOutput::Send { wire, frame: Pong { stamp: ping.stamp, load: 0 }.into() });
            }
            Frame::Pong(pong) => {
                peers.accepted(wire);
                self.backups.arrived(wire, pong.stamp);
            }
            // The owner's edge drains: it ends the feeds of the sessions that leave it.
            Frame::Drain(_) => {}
            Frame::Edges(edges) => self.peer_told(now, wire, &edges.edges, out),
            Frame::StoreSeen(seen) => self.store_seen_on(wire, seen, out),
            Frame::Goodbye(goodbye) => {
                if let Some(target) = peers.get(wire).map(|peer| peer.target) {
                    self.cannot_stand_by(target, (&goodbye.reason, true), out);
                }
                out.push(ShardOutput::CloseWire { wire });
                self.peer_down(now, wire, out);
            }
            Frame::AskMove(asked) => self.asked_about_move(wire, &asked.keep, out),
            Frame::Epoch(_) | Frame::Backup(_) | Frame::HandGroup(_) => {
                self.group_frame(now, wire, &frame, out)
            }
            Frame::Keep(keep) => {
                let channel = keep.channel;
                if let Err(StandbyError(code, reason)) = self.stand_by(now, wire, &keep, out) {
                    out.push(ShardOutput::Send { wire, frame: Reject { channel, code, reason }.into() });
                }
            }
            Frame::KeepOn(KeepOn { keep }) => {
                let channel = keep.channel;
                if let Err(StandbyError(code, reason)) = self.keep_on(now, wire, &keep) {
                    out.push(ShardOutput::Send { wire, frame: Reject { channel, code, reason }.into() });
                }
            }
            other => {
                let name = other.name();
                let Some(at) = other.channel(Sender::Edge).map(|channel| (wire, channel)) else {
                    return trace!(SHARD, "ignores {name} on wire {}: no owner sends it", wire.0);
                };
                let Some(id) = peers.fed_on(at) else {
                    return trace!(
                        SHARD,
                        "ignores {name} on wire {}: channel {} feeds nothing", wire.0, at.1
                    );
                };
                let is_over = matches!(other, Frame::Ended(_));
                if is_over {
                    peers.end_feed(at);
                }
                match self.sessions.is_fed(id, at) {
                    true if is_over => self.feed_ended(now, id, &other, out),
                    true => {
                        if matches!(other, Frame::HandOver(_)) {
                            self.cell_handed_over(id);
                        }
                        if let Frame::JoinGroup(join) = &other {
                            self.backs(now, (wire, join.group), id, out);
                        }
                        self.with_owner(now, id, out, |owner, effects| owner.fed(now, other, effects));
                    }
                    false => trace!(SHARD, "ignores {name} of {id}: it is not fed here on wire {}", wire.0),
                }
            }
        }
    }

    /// The owner ends the standby here, or the session is over.
    fn feed_ended(&mut self, now: Now, id: SessionId, ended: &Frame, out: &mut Vec<ShardOutput>) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.feeder = None;
        }
        let is_handed_on = matches!(ended, Frame::Ended(it) if it.code == Code::HandedOn);
        // If its group is being claimed, it is needed unless the claim is lost; if that is won, it is the only one.
        let is_needed = self.backups.is_claiming(id) || self.groups.of_session(id).is_some();
        if is_handed_on && self.primary_left(now, id) || is_needed {
            self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
        } else {
            self.drop_replaced(now, id, out);
            self.drop_standby(now, id, out);
        }
    }

    fn peer_welcome(&mut self, now: Now, wire: ShardWireId, welcome: &Welcome, out: &mut Vec<ShardOutput>) {
        let own = self.peers.as_ref().and_then(|peers| peers.get(wire)).is_some_and(Peer::is_own);
        if welcome.edge == self.config.edge && !own {
            // The list of peers also contains this edge.
            let reason = "an edge does not stand by for itself".to_string();
            out.push(ShardOutput::Send { wire, frame: Goodbye { reason }.into() });
            return out.push(ShardOutput::CloseWire { wire });
        }
        let Some(peers) = &mut self.peers else { return };
        if let Err(NotAsTold { reason, .. }) = peers.answered(now.mono_ns, wire, welcome) {
            out.push(ShardOutput::Send { wire, frame: Goodbye { reason }.into() });
            return out.push(ShardOutput::CloseWire { wire });
        }
        // Also tells how many shards to dial there.
        let unneeded = peers.welcomed(now.mono_ns, wire, welcome);
        let keeper = Keeper {
            proof: KeeperKey::derive(&self.secret).proof(&welcome.challenge, &self.config.edge),
            name: self.config.edge.clone(),
            role: 1,
            shard: self.config.shard,
            shards: self.config.shards,
        };
        out.push(ShardOutput::Send { wire, frame: keeper.into() });
        // Perhaps the former wire broke before they arrived.
        out.extend(unneeded.into_iter().map(|frame| ShardOutput::Send { wire, frame: frame.into() }));
        if !own {
            self.tell_itself(wire, out);
            self.tell_store_seen(wire, out);
        }
    }

    /// An owner asks this shard to stand by for a session.
    fn stand_by(
        &mut self,
        now: Now,
        wire: ShardWireId,
        keep: &Keep,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), StandbyError> {
        let (id, at) = (keep.session, (wire, keep.channel));
        if keep.group.is_some_and(|group| self.backups.is_refused(group, wire)) {
            // Its owner does not know that yet, and feeds this edge under the same claim.
            let reason = "this edge does not go on as the backup of the session's group".to_string();
            return Err(StandbyError(Code::Waiting, reason));
        }
        if self.sessions.get(id).is_some_and(|session| !session.owner.yields_to(keep)) {
            // If its primary is gone, a claim decides whose it is.
            self.backups.asked(now.mono_ns, id);
            let reason = "this edge has more of the session, or has it from another owner".to_string();
            return Err(StandbyError(Code::Superseded, reason));
        }
        let app = match self.may_stand_by(wire, keep) {
            Ok(app) => app.clone(),
            Err(StandbyError(Code::UnknownImage, _)) => {
                let apps = (&mut self.apps, &self.config);
                let reason = images::want(apps, now, version_of(keep), out);
                return Err(StandbyError(Code::UnknownImage, reason));
            }
            Err(why) => return Err(why),
        };
        // The feed restarts, or a newer owner's replaces it.
        match self.sessions.get(id).map(|session| session.owner.phase()) {
            Some(OwnerPhase::Following) => self.drop_standby(now, id, out),
            // This edge took over too early, or once owned the session: no end accepts an older generation again.
            Some(OwnerPhase::Detached) => {
                self.peer_name(wire).into_iter().for_each(|edge| self.taken_by(id, &edge));
                self.with_owner(now, id, out, |owner, effects| {
                    owner.step_down(Code::Superseded, "the session is owned elsewhere".to_string(), effects);
                });
            }
            _ => {}
        }
        let keys = SessionKeys::derive(&self.secret, id);
        let seed = Seed(self.random.bytes());
        let owner = Owner::standby(keys, policy(&app, &self.config), keep, seed)?;
        let mut session = Session::new(now, owner, self.tenants.place(&app));
        // Not counted for its tenant: it was, where its owner is.
        session.feeder = Some(at);
        session.assigned = keep.moves;
        self.sessions.insert(id, session);
        if let Some(peers) = &mut self.peers {
            peers.feed(at, id);
        }
        if let Some(group) = keep.group {
            self.backs(now, (wire, group), id, out);
        }
        Ok(())
    }

    /// The next owner of a session asks this shard, which has a copy from the owner before, to go on with that.
    fn keep_on(&mut self, now: Now, wire: ShardWireId, keep: &Keep) -> Result<(), StandbyError> {
        let Some(group) = keep.group else {
            let reason = "a backup is one of a group".to_string();
            return Err(StandbyError(Code::Protocol, reason));
        };
        let kept = self.keep_on_in(now, (wire, group), keep);
        match &kept {
            Ok(()) => self.backups.continued(group, keep.session),
            Err(_) => self.backups.not_continued(now.mono_ns, group, wire),
        }
        kept
    }

    fn keep_on_in(
        &mut self,
        now: Now,
        (wire, group): (ShardWireId, GroupId),
        keep: &Keep,
    ) -> Result<(), StandbyError> {
        let (id, at) = (keep.session, (wire, keep.channel));
        self.may_stand_by(wire, keep)?;
        if !self.backups.may_continue(group, wire, id) {
            let reason =
                "this edge claims the session's group, or does not know that the owner has claimed it";
            return Err(StandbyError(Code::Waiting, reason.to_string()));
        }
        let session = self.sessions.get_mut(id);
        let Some(session) = session.and_then(|session| session.owner.fed_on(now, keep).then_some(session))
        else {
            let reason = "the copy that is here is not the one that the owner goes on from".to_string();
            return Err(StandbyError(Code::Waiting, reason));
        };
        let former = session.feeder.replace(at);
        session.feed_lost_ns = None;
        if let Some(peers) = &mut self.peers {
            former.into_iter().for_each(|former| peers.end_feed(former));
            peers.feed(at, id);
        }
        self.sessions.rearm(now.mono_ns, id);
        Ok(())
    }

    /// The app of a session, if this shard may stand by for it, or take it over if it is to move here.
    pub(super) fn may_stand_by(&self, wire: ShardWireId, keep: &Keep) -> Result<&App, StandbyError> {
        let error = |code, reason: &str| Err(StandbyError(code, reason.to_string()));
        let (id, at) = (keep.session, (wire, keep.channel));
        if self.peers.as_ref().is_some_and(|peers| peers.fed_on(at).is_some()) {
            return error(Code::Protocol, "the feed's channel is in use");
        }
        if self.drain.has_begun() {
            return error(Code::Busy, "the edge is shutting down");
        }
        if self.recalls.is_asked(id) {
            // An end waits for this shard. What the recorder sends is for that recovery, and no part of a feed.
            return error(Code::Superseded, "the session is being recovered here");
        }
        let mut replaces = false;
        if let Some(session) = self.sessions.get(id) {
            // Of two owners that ask, the one of the newer generation is right: no end promises an older one again
            // (I1).
            let newer = keep.generation > session.owner.generation();
            // The same owner may restart its feed.
            let without_feed = session.feeder.is_none_or(|(feeder, _)| feeder == wire);
            match session.owner.phase() {
                OwnerPhase::Following if newer || without_feed => replaces = true,
                OwnerPhase::Detached if newer => replaces = true,
                _ => return error(Code::Superseded, "the session is owned here"),
            }
        }
        if !replaces && self.sessions.are_at(self.config.sessions_max) {
            return error(Code::Busy, SESSIONS_MAX_REACHED);
        }
        let Some(app) = self.apps.of_image(&keep.app, keep.image) else {
            return Err(StandbyError(Code::UnknownImage, images::missing(&self.config, &version_of(keep))));
        };
        if app.shares_protected_cells() && keep.key.0.is_some() != app.has_keys() {
            return error(Code::Protocol, "the app has keys here or at the owner, and not at both");
        }
        if keep.moves {
            let server = app.server.as_deref();
            self.can_be_moved_here(keep, server).map_err(|reason| StandbyError(Code::Waiting, reason))?;
        }
        Ok(app)
    }

    /// Forgets a session that this shard stood by for. A session that it owns, or is about to own, stays.
    pub(super) fn drop_standby(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let (feeder, is_backup) = (session.feeder.take(), session.owner.has_backup());
        // An attempt to own it may be under way: then the feed was of no use any more.
        if session.is_following() {
            // Its owner must not take what is confirmed from now on for a confirmation of this session.
            if let Some((wire, channel)) = feeder.filter(|_| is_backup) {
                let reason = "the session is not kept here any more".to_string();
                let frame = Reject { channel, code: Code::Superseded, reason }.into();
                out.push(ShardOutput::Send { wire, frame });
            }
            self.with_owner(now, id, out, |owner, effects| {
                owner.step_down(Code::Superseded, "it is no longer kept here".to_string(), effects);
            });
        }
    }

    /// Drops all sessions that this shard stands by for.
    pub(super) fn drop_standbys(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for id in self.sessions.ids() {
            if !self.sessions.is_following(id) {
                continue;
            }
            // One of a group that is claimed here is nowhere else: its ends may still come before the edge stops. If its primary has handed it
            // over, the claim may be written already.
            if self.groups.of_session(id).is_some() || self.backups.was_handed_over(id) {
                continue;
            }
            self.refuse_standby(now, id, "the edge is shutting down", out);
        }
    }

    /// Drops a session that this shard stands by for, and tells its owner why it needs another edge.
    pub(super) fn refuse_standby(&mut self, now: Now, id: SessionId, why: &str, out: &mut Vec<ShardOutput>) {
        let feeder = self.sessions.get_mut(id).and_then(|session| session.feeder.take());
        if let Some((wire, channel)) = feeder {
            let frame = Reject { channel, code: Code::Busy, reason: why.to_string() }.into();
            out.push(ShardOutput::Send { wire, frame });
        }
        self.drop_standby(now, id, out);
    }
}
