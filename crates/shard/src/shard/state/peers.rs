//! Wires that this shard dialled to stand by for its peers' sessions: which peer each leads to, the sessions that it
//! feeds, and when to dial again.

use super::sessions::At;
use crate::api::{Configure, ShardWireId};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_session::{
    agent::Target,
    dialer::{self, Dialer, DialerAction},
};
use marram_wire::{
    frame::{Channel, Welcome},
    id::SessionId,
    random::Random,
};

const MS: u64 = 1_000_000;
/// First and longest wait before a peer is dialled again.
const BACKOFF_NS: (u64, u64) = (10 * MS, 2_000 * MS);

/// A wire that this shard dialled.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) target: Target,
    /// Set by its welcome.
    name: Option<String>,
    /// The session of each feed, also of one that this shard has given up: the owner ends the channel.
    channels: BTreeMap<Channel, SessionId>,
}

impl Peer {
    /// The edge's name; empty before its welcome.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The sessions that were fed over this wire.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.channels.values().copied()
    }
}

/// The peers to dial, and the wires to them.
#[derive(Debug)]
pub(crate) struct Peers {
    dialer: Dialer,
    wires: BTreeMap<ShardWireId, Peer>,
    /// Sessions of broken wires, by target. The next connection shows whether their owner is alive.
    orphans: BTreeMap<Target, BTreeSet<SessionId>>,
    /// Empty between calls; kept so that a heartbeat allocates nothing.
    acts: Vec<DialerAction>,
}

impl Peers {
    /// Begins to dial the peers of this configuration; none if it has none.
    pub(crate) fn begin(config: &Configure, now_ns: u64) -> Option<Self> {
        if config.dials == 0 {
            return None;
        }
        let dialer = dialer::DialerConfig {
            edges: u16::try_from(config.dials).unwrap_or(u16::MAX),
            heartbeat_interval_ns: u64::from(config.heartbeat_interval_ms) * MS,
            heartbeat_timeout_ns: u64::from(config.heartbeat_timeout_ms) * MS,
            backoff_min_ns: BACKOFF_NS.0,
            backoff_max_ns: BACKOFF_NS.1,
        };
        Some(Self {
            dialer: Dialer::new(dialer, now_ns),
            wires: BTreeMap::new(),
            orphans: BTreeMap::new(),
            acts: Vec::new(),
        })
    }

    /// Whether a wire was dialled here.
    pub(crate) fn has(&self, wire: ShardWireId) -> bool {
        self.wires.contains_key(&wire)
    }

    pub(crate) fn get(&self, wire: ShardWireId) -> Option<&Peer> {
        self.wires.get(&wire)
    }

    /// When something is due.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.dialer.wake_ns()
    }

    /// Everything that is due. Give the list back with [`Peers::did`].
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<DialerAction> {
        let mut acts = core::mem::take(&mut self.acts);
        if self.dialer.wake_ns().is_some_and(|wake_ns| wake_ns <= now_ns) {
            self.dialer.due(now_ns, &mut acts);
        }
        acts
    }

    /// Takes the list of [`Peers::due`] back.
    pub(crate) fn did(&mut self, mut acts: Vec<DialerAction>) {
        acts.clear();
        self.acts = acts;
    }

    /// A wire to a peer is up.
    pub(crate) fn up(&mut self, now_ns: u64, wire: ShardWireId, target: Target) {
        self.dialer.up(now_ns, wire.0, target);
        self.wires.insert(wire, Peer { target, name: None, channels: BTreeMap::new() });
    }

    /// A peer cannot be dialled. Returns the sessions of the wire that broke before: their owner does not answer.
    pub(crate) fn failed(&mut self, now_ns: u64, target: Target, random: &mut Random) -> BTreeSet<SessionId> {
        self.dialer.failed(now_ns, target, random);
        self.orphans.remove(&target).unwrap_or_default()
    }

    /// A wire is gone. Returns it, so that its sessions can be told.
    pub(crate) fn down(&mut self, now_ns: u64, wire: ShardWireId, random: &mut Random) -> Option<Peer> {
        self.dialer.down(now_ns, wire.0, random);
        self.wires.remove(&wire)
    }

    /// A session's feed broke with the wire to this target: it is taken over once the target cannot be dialled.
    pub(crate) fn orphan(&mut self, target: Target, session: SessionId) {
        self.orphans.entry(target).or_default().insert(session);
    }

    /// A frame has arrived on a wire; `stamp` is the time of the heartbeat which it answers, if it is an answer.
    pub(crate) fn heard(&mut self, now_ns: u64, wire: ShardWireId, stamp: Option<u64>) {
        self.dialer.heard(now_ns, wire.0, stamp);
    }

    /// A peer answers. The owners there are alive, and restart the feeds of the sessions that they have.
    pub(crate) fn welcomed(&mut self, now_ns: u64, wire: ShardWireId, welcome: &Welcome) {
        self.dialer.welcomed(now_ns, wire.0, welcome.shards);
        let Some(peer) = self.wires.get_mut(&wire) else { return };
        peer.name = Some(welcome.edge.clone());
        self.orphans.remove(&peer.target);
    }

    /// The session that the owner at the other side feeds on a channel.
    pub(crate) fn fed_on(&self, (wire, channel): At) -> Option<SessionId> {
        self.wires.get(&wire)?.channels.get(&channel).copied()
    }

    /// An owner feeds a session on a channel.
    pub(crate) fn feed(&mut self, (wire, channel): At, session: SessionId) {
        if let Some(peer) = self.wires.get_mut(&wire) {
            peer.channels.insert(channel, session);
        }
    }

    /// The owner has ended a feed.
    pub(crate) fn end_feed(&mut self, (wire, channel): At) {
        if let Some(peer) = self.wires.get_mut(&wire) {
            peer.channels.remove(&channel);
        }
    }

    /// All wires that were dialled here.
    pub(crate) fn wires(&self) -> impl Iterator<Item = ShardWireId> {
        self.wires.keys().copied()
    }
}
