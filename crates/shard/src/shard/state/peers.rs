//! Wires that this shard dialled to stand by for its peers' sessions: which peer each leads to, the sessions that it
//! feeds, and when to dial again.

use super::{
    sessions::At,
    unneeded::{UnneededCopies, UnneededCopy},
};
use crate::api::{Configure, OWN_EDGE, ShardWireId};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_session::{
    agent::Target,
    dialer::{self, Dialer, DialerAction},
    invariant::BrokenInvariant,
    learned::{LearnedEdges, NotAsTold, Teller, Told},
};
use marram_wire::{
    frame::{Channel, EdgeEntry, ForgetCopy, Welcome},
    id::SessionId,
    random::Random,
};

const MS: u64 = 1_000_000;
/// First and longest wait before a peer is dialled again.
const BACKOFF_NS: (u64, u64) = (10 * MS, 2_000 * MS);

/// Reasons that operators are told of one target until it is reached: some come and go while an edge is away.
const REASONS_MAX: usize = 4;

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

    /// Whether it is another shard of this edge.
    pub(crate) fn is_own(&self) -> bool {
        self.target.edge == OWN_EDGE
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
    /// Edges beside the configured ones.
    learned: LearnedEdges,
    heartbeat_timeout_ns: u64,
    wires: BTreeMap<ShardWireId, Peer>,
    /// Sessions of broken wires, by target. The next connection shows whether their owner is alive.
    orphans: BTreeMap<Target, BTreeSet<SessionId>>,
    /// Why targets cannot be stood by for, as operators were told since each was reached last.
    refusals: BTreeMap<Target, BTreeSet<String>>,
    /// Copies of sessions that peers have handed over to this shard.
    unneeded: UnneededCopies,
    /// Empty between calls; kept so that a heartbeat allocates nothing.
    acts: Vec<DialerAction>,
}

impl Peers {
    /// Begins to dial the peers of this configuration, and the other shards of this edge; none if there are none. `domain` is this
    /// edge's.
    pub(crate) fn begin(config: &Configure, domain: [u8; 8], now_ns: u64) -> Option<Self> {
        if config.dials.is_empty() && !config.learns && config.shards < 2 {
            return None;
        }
        let dialer = dialer::DialerConfig {
            edges: u16::try_from(config.dials.len()).unwrap_or(u16::MAX),
            heartbeat_interval_ns: u64::from(config.heartbeat_interval_ms) * MS,
            heartbeat_timeout_ns: u64::from(config.heartbeat_timeout_ms) * MS,
            backoff_min_ns: BACKOFF_NS.0,
            backoff_max_ns: BACKOFF_NS.1,
        };
        let learned = LearnedEdges::new(config.learns, dialer.edges, &config.dials);
        let heartbeat_timeout_ns = dialer.heartbeat_timeout_ns;
        let mut dialer = Dialer::new(dialer, now_ns);
        for shard in (0..config.shards).filter(|shard| *shard != config.shard) {
            dialer.add_shard(now_ns, Target { edge: OWN_EDGE, shard });
        }
        Some(Self {
            learned: learned.of_edge(&config.edge, domain, &config.addresses),
            heartbeat_timeout_ns,
            dialer,
            wires: BTreeMap::new(),
            orphans: BTreeMap::new(),
            refusals: BTreeMap::new(),
            unneeded: UnneededCopies::default(),
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
        [self.dialer.wake_ns(), self.learned.wake_ns()].into_iter().flatten().min()
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
        self.next_address(target);
        self.take_orphans(target)
    }

    /// The sessions of the last wire to a target, which has not answered on another one.
    pub(crate) fn take_orphans(&mut self, target: Target) -> BTreeSet<SessionId> {
        self.orphans.remove(&target).unwrap_or_default()
    }

    /// A target refuses this shard, or cannot be dialled. Whether operators are to be told: it is dialled again and again.
    pub(crate) fn refused(&mut self, target: Target, reason: &str) -> bool {
        let told = self.refusals.entry(target).or_default();
        told.len() < REASONS_MAX && told.insert(reason.into())
    }

    /// The edge at the other side of this wire accepts this shard.
    pub(crate) fn accepted(&mut self, wire: ShardWireId) {
        if let Some(peer) = self.wires.get(&wire).filter(|_| !self.refusals.is_empty()) {
            self.refusals.remove(&peer.target);
        }
    }

    /// A wire is gone. Returns it, so that its sessions can be told.
    pub(crate) fn down(&mut self, now_ns: u64, wire: ShardWireId, random: &mut Random) -> Option<Peer> {
        self.dialer.down(now_ns, wire.0, random);
        let peer = self.wires.remove(&wire)?;
        if peer.name.is_none() {
            self.next_address(peer.target);
        }
        Some(peer)
    }

    /// A learned peer could not be reached, or is another edge: it is dialled at its next address.
    fn next_address(&mut self, target: Target) {
        if !self.wires.values().any(|peer| peer.target.edge == target.edge) {
            self.learned.failed(target.edge);
        }
    }

    /// A teller names these edges: they are dialled as well, if this shard learns any. Returns those that are dialled no more.
    pub(crate) fn told(&mut self, now_ns: u64, teller: (Teller, [u8; 8]), edges: &[EdgeEntry]) -> Vec<u16> {
        let (dialer, wires) = (&self.dialer, &self.wires);
        let in_use = |edge| wires.values().any(|peer| peer.target.edge == edge) || dialer.is_dialling(edge);
        let Told { evicted, new } = self.learned.told(now_ns, teller, edges, in_use);
        for edge in &evicted {
            self.dialer.remove(*edge);
            self.forget_sessions(*edge);
        }
        // By then, configured peers have answered as well.
        let dial_ns = now_ns.saturating_add(self.heartbeat_timeout_ns);
        new.into_iter().for_each(|edge| self.dialer.add(dial_ns, edge));
        evicted
    }

    /// What was told on this wire counts only for a while.
    pub(crate) fn teller_gone(&mut self, now_ns: u64, teller: Teller) {
        self.learned.gone(now_ns, teller);
    }

    /// The address of a learned peer, if the shell does not know it yet.
    pub(crate) fn moved(&mut self, edge: u16) -> Option<String> {
        self.learned.moved(edge)
    }

    /// A peer has answered.
    ///
    /// # Errors
    /// If it was learned, and is not what was told.
    pub(crate) fn answered(
        &mut self,
        now_ns: u64,
        wire: ShardWireId,
        welcome: &Welcome,
    ) -> Result<(), NotAsTold> {
        let Some(edge) = self.wires.get(&wire).filter(|peer| !peer.is_own()).map(|peer| peer.target.edge)
        else {
            return Ok(());
        };
        let answered = self.learned.answered(now_ns, edge, welcome);
        if answered.is_err() {
            self.dialer.distrust(edge);
        }
        answered
    }

    /// Whether to call [`Peers::expired`] now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.learned.is_due(now_ns)
    }

    /// Learned peers that nothing names any more, and that feed no session.
    pub(crate) fn expired(&mut self, now_ns: u64) -> Vec<u16> {
        let (dialer, wires) = (&self.dialer, &self.wires);
        let feeds = |edge| wires.values().any(|peer| peer.target.edge == edge && !peer.channels.is_empty());
        self.learned.expired(now_ns, |edge| feeds(edge) || dialer.is_dialling(edge))
    }

    /// Forgets a learned peer without wires. False if it is being dialled.
    pub(crate) fn forget(&mut self, edge: u16) -> bool {
        let removed = self.dialer.remove(edge);
        if removed {
            self.learned.forget(edge);
            self.forget_sessions(edge);
        }
        removed
    }

    /// An edge is not dialled any more.
    fn forget_sessions(&mut self, edge: u16) {
        self.orphans.retain(|target, _| target.edge != edge);
        self.refusals.retain(|target, _| target.edge != edge);
        self.unneeded.forget(edge);
    }

    /// The wires to the shards of a peer.
    pub(crate) fn of_edge(&self, edge: u16) -> Vec<ShardWireId> {
        let its = self.wires.iter().filter(|(_, peer)| peer.target.edge == edge);
        its.map(|(wire, _)| *wire).collect()
    }

    /// Whether an edge of this name has answered on a wire that was dialled here.
    pub(crate) fn is_connected(&self, name: &str) -> bool {
        self.wires.values().any(|peer| peer.name() == name)
    }

    /// Checks I48 of docs/protocol.md, as far as it concerns peers.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        self.unneeded.invariants()?;
        self.learned.invariants()
    }

    /// A session's feed broke with the wire to this target: it is taken over once the target cannot be dialled.
    pub(crate) fn orphan(&mut self, target: Target, session: SessionId) {
        self.orphans.entry(target).or_default().insert(session);
    }

    /// A frame has arrived on a wire; `stamp` is the time of the heartbeat which it answers, if it is an answer.
    pub(crate) fn heard(&mut self, now_ns: u64, wire: ShardWireId, stamp: Option<u64>) {
        self.dialer.heard(now_ns, wire.0, stamp);
        if let Some(stamp_ns) = stamp {
            self.unneeded.answered(wire, stamp_ns);
        }
    }

    /// A copy that a peer has is not needed any more. Returns the wire on which the peer is to be told now; otherwise
    /// [`Peers::welcomed`] says when.
    pub(crate) fn unneeded(&mut self, now_ns: u64, copy: UnneededCopy) -> Option<ShardWireId> {
        let mut wires = self.wires.iter().filter(|(_, peer)| peer.target == copy.at && peer.name.is_some());
        let wire = wires.next_back().map(|(wire, _)| *wire);
        self.unneeded.add(now_ns, copy, wire);
        wire
    }

    /// A peer answers. The owners there are alive, and restart the feeds of the sessions that they have. Returns which copies are
    /// not needed there, as far as it may not know that.
    pub(crate) fn welcomed(&mut self, now_ns: u64, wire: ShardWireId, welcome: &Welcome) -> Vec<ForgetCopy> {
        let Some(peer) = self.wires.get_mut(&wire) else { return Vec::new() };
        // The shards of this edge are known, and this one is among them.
        let shards = if peer.is_own() { 0 } else { welcome.shards };
        self.dialer.welcomed(now_ns, wire.0, shards);
        peer.name = Some(welcome.edge.clone());
        self.orphans.remove(&peer.target);
        self.unneeded.again(now_ns, peer.target, wire)
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
