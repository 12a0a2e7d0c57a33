//! Wires that this shard dials to stand by for its peers' sessions: greeting, heartbeats, feeds.

use super::{Shard, policy};
use crate::api::{NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use marram_session::{
    agent::Target,
    cell::Seed,
    dialer::{self, Dialer, DialerAction},
    owner::{Owner, OwnerPhase, StandbyError},
};
use marram_wire::{
    frame::{Channel, Code, Frame, Goodbye, Greet, Keep, Keeper, Ping, Pong, Reject, Welcome},
    id::SessionId,
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    seal::{KeeperKey, SessionKeys},
};

const MS: u64 = 1_000_000;
/// First and longest wait before a peer is dialled again.
const BACKOFF_NS: (u64, u64) = (10 * MS, 2_000 * MS);
/// How long a session is kept after its owner's wire came back, until its feed restarts.
pub(super) const FED_AGAIN_NS: u64 = 2_000 * MS;

/// A wire that this shard dialled.
#[derive(Debug)]
struct Peer {
    target: Target,
    name: Option<String>,
    channels: BTreeMap<Channel, SessionId>,
}

/// The peers.
#[derive(Debug)]
pub(super) struct Peers {
    dialer: Dialer,
    wires: BTreeMap<ShardWireId, Peer>,
    /// Sessions of broken wires, by target. The next connection shows whether their owner is alive.
    orphans: BTreeMap<Target, BTreeSet<SessionId>>,
    acts: Vec<DialerAction>,
}

impl Peers {
    /// Whether a wire was dialled here.
    pub(super) fn has(&self, wire: ShardWireId) -> bool {
        self.wires.contains_key(&wire)
    }

    /// All wires that were dialled here.
    pub(super) fn wires(&self) -> impl Iterator<Item = ShardWireId> {
        self.wires.keys().copied()
    }

    /// The session that the owner at the other side feeds on a channel.
    pub(super) fn fed_on(&self, wire: ShardWireId, channel: Channel) -> Option<SessionId> {
        self.wires.get(&wire)?.channels.get(&channel).copied()
    }

    pub(super) fn wake_ns(&self) -> Option<u64> {
        self.dialer.wake_ns()
    }
}

impl Shard {
    /// The list of peers to dial is known.
    pub(super) fn begin_peers(&mut self, now: Now) {
        let config = &self.config;
        if config.dials == 0 || self.peers.is_some() {
            return;
        }
        let dialer = dialer::DialerConfig {
            edges: u16::try_from(config.dials).unwrap_or(u16::MAX),
            heartbeat_interval_ns: u64::from(config.heartbeat_interval_ms) * MS,
            heartbeat_timeout_ns: u64::from(config.heartbeat_timeout_ms) * MS,
            backoff_min_ns: BACKOFF_NS.0,
            backoff_max_ns: BACKOFF_NS.1,
        };
        self.peers = Some(Peers {
            dialer: Dialer::new(dialer, now.mono_ns),
            wires: BTreeMap::new(),
            orphans: BTreeMap::new(),
            acts: Vec::new(),
        });
    }

    pub(super) fn dialled(
        &mut self,
        now: Now,
        wire: ShardWireId,
        target: Target,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(peers) = &mut self.peers else { return out.push(ShardOutput::CloseWire { wire }) };
        peers.dialer.up(now.mono_ns, wire.0, target);
        peers.wires.insert(wire, Peer { target, name: None, channels: BTreeMap::new() });
        let greet =
            Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers: Vec::new() };
        out.push(ShardOutput::Send { wire, frame: greet.into() });
    }

    pub(super) fn dial_failed(&mut self, now: Now, target: Target, out: &mut Vec<ShardOutput>) {
        let Some(peers) = &mut self.peers else { return };
        peers.dialer.failed(now.mono_ns, target, &mut self.random);
        // The wire broke, and the edge does not answer.
        for session in peers.orphans.remove(&target).unwrap_or_default() {
            self.take_over(now, session, out);
        }
    }

    pub(super) fn peer_down(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        let Some(peers) = &mut self.peers else { return };
        peers.dialer.down(now.mono_ns, wire.0, &mut self.random);
        let Some(peer) = peers.wires.remove(&wire) else { return };
        for (_, id) in peer.channels {
            let follows = self
                .sessions
                .get(&id)
                .is_some_and(|session| session.feeder.is_some_and(|(at, _)| at == wire));
            if !follows {
                continue;
            }
            self.lose_feeder(now, id, out);
            let stands =
                self.sessions.get(&id).is_some_and(|session| session.owner.phase() == OwnerPhase::Following);
            if stands && let Some(peers) = &mut self.peers {
                peers.orphans.entry(peer.target).or_default().insert(id);
            }
        }
        self.peers_due(now, out);
    }

    /// The session has no feed any more.
    fn lose_feeder(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.feeder = None;
            session.feed_lost_ns = Some(now.mono_ns);
        }
        self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
    }

    /// Opens a generation of a session without an owner, if both of its ends can be reached.
    pub(super) fn take_over(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(&id) else { return };
        // If the standby has too little state, the ends must find another edge.
        let able = session.owner.standing_by().is_some_and(|(_, able)| able);
        if session.owner.phase() != OwnerPhase::Following || self.draining || !able {
            return;
        }
        let count = session.owner.generation().count;
        let Some(ends) = self.known_ends(id) else { return };
        self.attempt(now, id, count, &ends, out);
    }

    /// Runs due work: connects, sends heartbeats, suspects silent peers.
    pub(super) fn peers_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let Some(peers) = &mut self.peers else { return };
        if peers.dialer.wake_ns().is_none_or(|wake_ns| wake_ns > now.mono_ns) {
            return;
        }
        let mut acts = core::mem::take(&mut peers.acts);
        peers.dialer.due(now.mono_ns, &mut acts);
        for act in acts.drain(..) {
            match act {
                DialerAction::Dial(target) => out.push(ShardOutput::Dial { target }),
                DialerAction::Ping(wire) => {
                    out.push(ShardOutput::Send {
                        wire: ShardWireId(wire),
                        frame: Ping { stamp: now.mono_ns }.into(),
                    });
                }
                DialerAction::Suspect { wire, .. } => self.suspect_peer(now, ShardWireId(wire), out),
                DialerAction::Close { wire, .. } => {
                    out.push(ShardOutput::CloseWire { wire: ShardWireId(wire) });
                    self.peer_down(now, ShardWireId(wire), out);
                }
            }
        }
        if let Some(peers) = &mut self.peers {
            peers.acts = acts;
        }
    }

    fn suspect_peer(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        let peer = self.peers.as_ref().and_then(|peers| peers.wires.get(&wire));
        let Some(peer) = peer else { return };
        let sessions: Vec<SessionId> = peer.channels.values().copied().collect();
        let name = peer.name.clone().unwrap_or_default();
        let count = sessions.len();
        if count > 0 {
            let text = alloc::format!("no frame from the edge `{name}`: taking over {count} of its sessions");
            self.note(NoteLevel::Info, None, text, out);
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
        peers.dialer.heard(now.mono_ns, wire.0);
        match frame {
            Frame::Welcome(welcome) => self.peer_welcome(now, wire, welcome, out),
            Frame::Ping(ping) => {
                out.push(ShardOutput::Send { wire, frame: Pong { stamp: ping.stamp }.into() })
            }
            Frame::Pong(_) | Frame::Drain(_) => {}
            Frame::Goodbye(_) => {
                out.push(ShardOutput::CloseWire { wire });
                self.peer_down(now, wire, out);
            }
            Frame::Keep(keep) => self.stand_by(now, wire, &keep, out),
            other => {
                let channel = other.channel(marram_wire::frame::Sender::Edge);
                let peer = peers.wires.get_mut(&wire);
                let Some((channel, peer)) = channel.zip(peer) else { return };
                let Some(id) = peer.channels.get(&channel).copied() else { return };
                if matches!(other, Frame::Ended(_)) {
                    peer.channels.remove(&channel);
                    return self.dismissed(now, id, (wire, channel), out);
                }
                let fed = self.sessions.get(&id).is_some_and(|it| it.feeder == Some((wire, channel)));
                if fed {
                    self.with_owner(now, id, out, |owner, effects| owner.fed(now, other, effects));
                }
            }
        }
    }

    fn peer_welcome(&mut self, now: Now, wire: ShardWireId, welcome: Welcome, out: &mut Vec<ShardOutput>) {
        let key = KeeperKey::derive(&self.secret);
        let Some(peers) = &mut self.peers else { return };
        if welcome.edge == self.config.edge {
            // The list of peers also contains this edge.
            let reason = "an edge does not stand by for itself".to_string();
            out.push(ShardOutput::Send { wire, frame: Goodbye { reason }.into() });
            return out.push(ShardOutput::CloseWire { wire });
        }
        peers.dialer.welcomed(now.mono_ns, wire.0, welcome.shards);
        let Some(peer) = peers.wires.get_mut(&wire) else { return };
        peer.name = Some(welcome.edge);
        // The owner is alive, and restarts the feeds of the sessions that it has.
        peers.orphans.remove(&peer.target);
        let keeper = Keeper {
            proof: key.proof(&welcome.challenge, &self.config.edge),
            name: self.config.edge.clone(),
            role: 1,
            shard: self.config.shard,
            shards: self.config.shards,
        };
        out.push(ShardOutput::Send { wire, frame: keeper.into() });
    }

    /// An owner asks this shard to stand by for a session.
    fn stand_by(&mut self, now: Now, wire: ShardWireId, keep: &Keep, out: &mut Vec<ShardOutput>) {
        if let Err(StandbyError(code, reason)) = self.try_stand_by(now, wire, keep, out) {
            out.push(ShardOutput::Send {
                wire,
                frame: Reject { channel: keep.channel, code, reason }.into(),
            });
        }
    }

    fn try_stand_by(
        &mut self,
        now: Now,
        wire: ShardWireId,
        keep: &Keep,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), StandbyError> {
        let busy = |reason: &str| Err(StandbyError(Code::Busy, reason.to_string()));
        let peer = self.peers.as_ref().and_then(|peers| peers.wires.get(&wire));
        if peer.is_some_and(|peer| peer.channels.contains_key(&keep.channel)) {
            return Err(StandbyError(Code::Protocol, "the feed's channel is in use".to_string()));
        }
        if self.draining {
            return busy("the edge is shutting down");
        }
        if let Some(session) = self.sessions.get(&keep.session) {
            let newer = keep.generation > session.owner.generation();
            // The same owner may restart its feed.
            let without_feed = session.feeder.is_none_or(|(feeder, _)| feeder == wire);
            match session.owner.phase() {
                OwnerPhase::Following if newer || without_feed => self.drop_standby(now, keep.session, out),
                // This edge took over too early, or once owned the session: no end accepts an older generation again.
                OwnerPhase::Detached if newer => self.with_owner(now, keep.session, out, |owner, effects| {
                    owner.step_down(Code::Superseded, "the session is owned elsewhere".to_string(), effects);
                }),
                _ => return Err(StandbyError(Code::Superseded, "the session is owned here".to_string())),
            }
        }
        let limit = self.config.sessions_max as usize;
        if limit > 0 && self.sessions.len() >= limit {
            return busy("the shard has reached its maximum number of sessions (limits.sessions)");
        }
        let app = match self.apps.get(&keep.app).filter(|app| app.image == keep.image) {
            Some(app) => app.clone(),
            None => match self.images.get(&keep.image) {
                Some(app) => app.clone(),
                None => {
                    let reason = self.want(now, &keep.app, keep.image, out);
                    return Err(StandbyError(Code::UnknownImage, reason));
                }
            },
        };
        let keys = SessionKeys::derive(&self.secret, keep.session);
        let seed = Seed(self.random.bytes());
        let owner = Owner::standby(keys, policy(&app, &self.config), keep, seed)?;
        let mut session = self.new_session(now, owner, &app);
        session.feeder = Some((wire, keep.channel));
        self.sessions.insert(keep.session, session);
        let peer = self.peers.as_mut().and_then(|peers| peers.wires.get_mut(&wire));
        if let Some(peer) = peer {
            peer.channels.insert(keep.channel, keep.session);
        }
        Ok(())
    }

    /// The owner ends the standby here, or the session is over.
    fn dismissed(
        &mut self,
        now: Now,
        id: SessionId,
        feeder: (ShardWireId, Channel),
        out: &mut Vec<ShardOutput>,
    ) {
        let fed = self.sessions.get(&id).is_some_and(|session| session.feeder == Some(feeder));
        if fed {
            self.drop_standby(now, id, out);
        }
    }

    /// Forgets a session that this shard stood by for. A session that it owns, or is about to own, stays.
    fn drop_standby(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.feeder = None;
        if session.owner.phase() == OwnerPhase::Following {
            self.with_owner(now, id, out, |owner, effects| {
                owner.step_down(Code::Superseded, "it is no longer kept here".to_string(), effects);
            });
        }
    }

    /// Drops all sessions that this shard stands by for.
    pub(super) fn drop_standbys(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let standing = self.sessions.iter().filter(|(_, it)| it.owner.phase() == OwnerPhase::Following);
        for id in standing.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some((wire, channel)) = self.sessions.get(&id).and_then(|session| session.feeder) {
                let reason = "the edge is shutting down".to_string();
                let frame = Reject { channel, code: Code::Busy, reason }.into();
                out.push(ShardOutput::Send { wire, frame });
            }
            self.drop_standby(now, id, out);
        }
    }
}
