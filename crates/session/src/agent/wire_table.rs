//! Wires to edges: which of them can be asked, in which order, and the channels on each. What the agent knows of edges
//! that it is not connected to is here too.

use super::{EndId, Target, WireId};
use crate::{
    bug,
    dialer::{Dialer, DialerAction},
    holds,
    invariant::BrokenInvariant,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_wire::{
    frame::{Channel, Welcome},
    id::{Generation, SessionId},
    random::Random,
};

/// Round trips that differ by less count as equal.
const NEAR_NS: u64 = 2_000_000;
/// Maximum of reported pairs of domains.
const DOMAIN_MISMATCHES_MAX: usize = 16;
/// An edge that is back gets its apps within this time, if at all.
const DEPLOY_GRACE_NS: u64 = 5_000_000_000;

/// A channel on a wire.
pub(crate) type At = (WireId, Channel);

/// An edge that was lost.
#[derive(Clone, Copy, Debug)]
struct Gone {
    /// When it was last lost.
    at_ns: u64,
    /// When it came back; none while it is lost, and for an edge that was never lost after its first answer.
    back_ns: Option<u64>,
    /// Whether it ever answered.
    known: bool,
}

/// The attempt that a channel belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    pub(crate) session: EndId,
    /// [`Generation::NONE`] while the agent waits for an answer to its hello.
    pub(crate) generation: Generation,
}

/// A wire to one shard of one edge. Others read it; [`Wires`] changes it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) target: Target,
    /// The edge's answer to the greeting. Before that the wire cannot be used.
    pub(crate) welcome: Option<Welcome>,
    /// The edge shuts down: it keeps its sessions until they have left.
    pub(crate) draining: bool,
    /// Smoothed over about eight heartbeats; 0 before the first answer.
    rtt_ns: u64,
    /// The sessions that the shard had when it answered last.
    load: u32,
    /// New sessions that have asked it since.
    asked: u32,
    channels: BTreeMap<Channel, Bound>,
    next_channel: Channel,
}

impl Wire {
    /// An unused channel number of this wire: even, since the agent opens it. After billions of attempts the numbers
    /// start again, and old channels may be bound.
    fn channel(&mut self) -> Channel {
        loop {
            self.next_channel = self.next_channel.wrapping_add(2);
            if !self.channels.contains_key(&self.next_channel) {
                return self.next_channel;
            }
        }
    }

    /// Number of shards of its edge.
    fn shards(&self) -> u8 {
        self.welcome.as_ref().map_or(1, |welcome| welcome.shards.max(1))
    }

    /// The shard that a session asks first.
    pub(crate) fn home(&self, session: SessionId) -> u8 {
        session.0[0] % self.shards()
    }

    /// The name of its edge and the shard there, as the edge says; none before it has answered.
    pub(crate) fn place(&self) -> Option<(&str, u8)> {
        self.welcome.as_ref().map(|welcome| (&welcome.edge[..], welcome.shard))
    }

    /// The attempt that a channel belongs to.
    pub(crate) fn bound(&self, channel: Channel) -> Option<Bound> {
        self.channels.get(&channel).copied()
    }

    /// All channels, in the order of their numbers.
    pub(crate) fn channels(&self) -> impl Iterator<Item = (Channel, Bound)> {
        self.channels.iter().map(|(channel, bound)| (*channel, *bound))
    }
}

/// What the usable wires to one edge tell of it.
#[derive(Clone, Copy, Debug)]
struct EdgeState {
    /// The best of its shards.
    rtt_ns: u64,
    sessions: u64,
    shards: u64,
}

impl Default for EdgeState {
    fn default() -> Self {
        Self { rtt_ns: u64::MAX, sessions: 0, shards: 0 }
    }
}

impl EdgeState {
    fn add(&mut self, wire: &Wire) {
        self.rtt_ns = self.rtt_ns.min(wire.rtt_ns);
        self.sessions += u64::from(wire.load) + u64::from(wire.asked);
        self.shards += 1;
    }

    /// Sessions of each shard, in 1/256, so that edges with few sessions and several shards differ.
    fn load(&self) -> u64 {
        (self.sessions << 8) / self.shards.max(1)
    }
}

/// All wires of an agent, and what it remembers of edges.
#[derive(Debug)]
pub(crate) struct Wires {
    by_id: BTreeMap<WireId, Wire>,
    /// The number of configured edges; those behind them in the list are learned.
    configured: u16,
    /// Decides when to dial, and which wires are silent.
    dialer: Dialer,
    /// When each edge, or a shard of it, was lost last. From the start on it also lists the edges that have not
    /// answered yet.
    gone: BTreeMap<u16, Gone>,
    /// Pairs of different domains that were reported.
    domain_mismatches: BTreeSet<([u8; 8], [u8; 8])>,
}

impl Wires {
    /// No wire yet.
    pub(crate) fn new(dialer: Dialer) -> Self {
        let (by_id, gone, domain_mismatches) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { by_id, configured: 0, dialer, gone, domain_mismatches }
    }

    /// The agent begins to dial so many edges. None of them has answered yet.
    pub(crate) fn start(&mut self, now_ns: u64, dialer: Dialer, edges: u16) {
        (self.dialer, self.configured) = (dialer, edges);
        let never = Gone { at_ns: now_ns, back_ns: None, known: false };
        self.gone = (0..edges).map(|edge| (edge, never)).collect();
    }

    /// A learned edge: its first shard is dialled at this time.
    pub(crate) fn add_edge(&mut self, dial_ns: u64, edge: u16) {
        self.dialer.add(dial_ns, edge);
    }

    /// A learned edge without a wire is not dialled any more. False if it is being dialled.
    pub(crate) fn remove_edge(&mut self, edge: u16) -> bool {
        let removed = self.dialer.remove(edge);
        if removed {
            self.gone.remove(&edge);
        }
        removed
    }

    /// A learned edge is another one than was told: it is dialled as one that never answered.
    pub(crate) fn distrust(&mut self, edge: u16) {
        self.dialer.distrust(edge);
    }

    /// Whether an edge is being dialled.
    pub(crate) fn is_dialling(&self, edge: u16) -> bool {
        self.dialer.is_dialling(edge)
    }

    /// The wires to the shards of an edge.
    pub(crate) fn of_edge(&self, edge: u16) -> Vec<WireId> {
        let its = self.by_id.iter().filter(|(_, wire)| wire.target.edge == edge);
        its.map(|(id, _)| *id).collect()
    }

    /// Whether there is a wire to an edge.
    pub(crate) fn has_edge(&self, edge: u16) -> bool {
        self.by_id.values().any(|wire| wire.target.edge == edge)
    }

    /// Whether an edge has answered on a wire that is up.
    pub(crate) fn is_welcomed(&self, edge: u16) -> bool {
        self.by_id.values().any(|wire| wire.target.edge == edge && wire.welcome.is_some())
    }

    /// Whether a wire to an edge has channels.
    pub(crate) fn carries_sessions(&self, edge: u16) -> bool {
        self.by_id.values().any(|wire| wire.target.edge == edge && !wire.channels.is_empty())
    }

    pub(crate) fn get(&self, id: WireId) -> Option<&Wire> {
        self.by_id.get(&id)
    }

    /// A wire that exists as long as what refers to it.
    pub(crate) fn known(&self, id: WireId) -> Option<&Wire> {
        let wire = self.by_id.get(&id);
        if wire.is_none() {
            bug!("I36: an agent acts only on wires that it has", id);
        }
        wire
    }

    /// All wires, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WireId, &Wire)> {
        self.by_id.iter().map(|(id, wire)| (*id, wire))
    }

    /// A wire is up.
    pub(crate) fn up(&mut self, now_ns: u64, id: WireId, target: Target) {
        self.dialer.up(now_ns, id.0, target);
        let wire = Wire {
            target,
            welcome: None,
            draining: false,
            rtt_ns: 0,
            load: 0,
            asked: 0,
            channels: BTreeMap::new(),
            next_channel: 0,
        };
        self.by_id.insert(id, wire);
    }

    /// A wire is gone. Returns it, so that its sessions can be told.
    pub(crate) fn down(&mut self, now_ns: u64, id: WireId, random: &mut Random) -> Option<Wire> {
        let wire = self.by_id.remove(&id)?;
        self.dialer.down(now_ns, id.0, random);
        Some(wire)
    }

    /// A shard cannot be reached. It is dialled again later, with jitter from `random`.
    pub(crate) fn failed(&mut self, now_ns: u64, target: Target, random: &mut Random) {
        self.dialer.failed(now_ns, target, random);
    }

    /// Appends what is to be dialled, sent and suspected now.
    pub(crate) fn due(&mut self, now_ns: u64, acts: &mut Vec<DialerAction>) {
        self.dialer.due(now_ns, acts);
    }

    /// When something is due.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.dialer.wake_ns()
    }

    /// So many bytes were sent on a wire.
    pub(crate) fn sent(&mut self, id: WireId, bytes: u64) {
        self.dialer.sent(id.0, bytes);
    }

    /// An edge has answered the greeting on a wire.
    pub(crate) fn welcomed(&mut self, now_ns: u64, id: WireId, welcome: Welcome) {
        let Some(wire) = self.by_id.get_mut(&id) else { return };
        self.dialer.welcomed(now_ns, id.0, welcome.shards);
        let edge = wire.target.edge;
        wire.draining = welcome.draining;
        wire.welcome = Some(welcome);
        if let Some(gone) = self.gone.get_mut(&edge) {
            let back_ns = gone.known.then_some(now_ns);
            gone.back_ns = gone.back_ns.or(back_ns);
        }
    }

    /// A frame has arrived on a wire; `stamp` is the time of the heartbeat which it answers, if it is an answer. If the edge was
    /// suspected, it is not any more: returns the shard and the edge's name then.
    pub(crate) fn heard(&mut self, now_ns: u64, id: WireId, stamp: Option<u64>) -> Option<(Target, String)> {
        let is_back = self.dialer.heard(now_ns, id.0, stamp);
        let wire = self.by_id.get_mut(&id)?;
        if let Some(stamp) = stamp {
            // 0 if the edge has made up a later time.
            let sample_ns = now_ns.saturating_sub(stamp);
            wire.rtt_ns = if wire.rtt_ns == 0 { sample_ns } else { (wire.rtt_ns * 7 + sample_ns) / 8 };
        }
        is_back.then(|| {
            let name = wire.welcome.as_ref().map_or_else(String::new, |welcome| welcome.edge.clone());
            (wire.target, name)
        })
    }

    /// A shard has told how many sessions it has.
    pub(crate) fn loaded(&mut self, id: WireId, load: u32) {
        if let Some(wire) = self.by_id.get_mut(&id) {
            (wire.load, wire.asked) = (load, 0);
        }
    }

    /// A new session asks this shard, which will count it in its next answer.
    pub(crate) fn asked(&mut self, id: WireId) {
        if let Some(wire) = self.by_id.get_mut(&id) {
            wire.asked = wire.asked.saturating_add(1);
        }
    }

    /// An edge drains, with all its shards, so none of them is an alternative to another.
    pub(crate) fn drain(&mut self, edge: u16) {
        let wires = self.by_id.values_mut().filter(|wire| wire.target.edge == edge);
        wires.for_each(|wire| wire.draining = true);
    }

    /// An edge does not drain any more. All of its shards are told, one after the other, and each says so: the last one decides,
    /// also if another one has said the opposite shortly before.
    pub(crate) fn stays(&mut self, edge: u16) {
        let wires = self.by_id.values_mut().filter(|wire| wire.target.edge == edge);
        wires.for_each(|wire| wire.draining = false);
        self.gone.remove(&edge);
    }

    /// The sessions whose channels are on a wire.
    pub(crate) fn sessions(&self, id: WireId) -> Vec<EndId> {
        let channels = self.by_id.get(&id).into_iter().flat_map(|wire| wire.channels.values());
        channels.map(|bound| bound.session).collect()
    }

    /// A new channel on a wire, for a hello of this end.
    pub(crate) fn open(&mut self, id: WireId, session: EndId) -> Option<Channel> {
        let wire = self.by_id.get_mut(&id)?;
        let channel = wire.channel();
        wire.channels.insert(channel, Bound { session, generation: Generation::NONE });
        Some(channel)
    }

    /// Binds a channel to an attempt.
    pub(crate) fn bind(&mut self, (wire, channel): At, bound: Bound) {
        if let Some(wire) = self.by_id.get_mut(&wire) {
            wire.channels.insert(channel, bound);
        }
    }

    /// Unbinds a channel, if its wire is still there.
    pub(crate) fn unbind(&mut self, (wire, channel): At) {
        if let Some(wire) = self.by_id.get_mut(&wire) {
            wire.channels.remove(&channel);
        }
    }

    /// The attempt that a channel belongs to; none if it is unbound, or its wire is gone.
    pub(crate) fn bound(&self, (wire, channel): At) -> Option<Bound> {
        self.by_id.get(&wire)?.bound(channel)
    }

    /// Whether the edge can be asked for a generation.
    pub(crate) fn is_usable(&self, id: WireId) -> bool {
        let wire = self.by_id.get(&id);
        wire.is_some_and(|wire| wire.welcome.is_some() && !wire.draining) && !self.dialer.is_suspected(id.0)
    }

    /// Whether an edge may answer soon that cannot be asked now: it is dialled for the first time since it was connected, has not
    /// answered the greeting, or is silent. One that drains asks by itself for the sessions that it still has.
    pub(crate) fn expects_an_edge(&self) -> bool {
        let is_awaited = |(id, wire): (&WireId, &Wire)| {
            wire.welcome.is_none() || wire.draining || self.dialer.is_suspected(id.0)
        };
        self.by_id.iter().any(is_awaited) || self.dialer.is_trying()
    }

    /// An edge, or a shard of it, is lost.
    pub(crate) fn lose(&mut self, now_ns: u64, edge: u16) {
        self.gone.insert(edge, Gone { at_ns: now_ns, back_ns: None, known: true });
    }

    /// Whether a client may wait for an edge that is not connected now, or that may still get its apps. An edge that
    /// never answered may not exist: it is waited for only for `edge_wait_ns`.
    pub(crate) fn misses_an_edge(&self, now_ns: u64, edge_wait_ns: u64) -> bool {
        let there =
            |edge| self.by_id.iter().any(|(id, wire)| wire.target.edge == edge && self.is_usable(*id));
        self.gone.iter().any(|(edge, gone)| {
            let patience_ns = if gone.known { u64::MAX } else { DEPLOY_GRACE_NS }.min(edge_wait_ns);
            let deploys =
                gone.back_ns.is_some_and(|back_ns| now_ns < back_ns.saturating_add(DEPLOY_GRACE_NS));
            deploys || (now_ns < gone.at_ns.saturating_add(patience_ns) && !there(*edge))
        })
    }

    /// An edge with another domain secret than the one behind this wire, if that was not reported yet: neither can
    /// recover the other's sessions. Each pair of secrets is returned once.
    pub(crate) fn other_domain(&mut self, id: WireId) -> Option<(&Welcome, &Welcome)> {
        let wire = self.by_id.get(&id)?;
        let (welcome, edge) = (wire.welcome.as_ref()?, wire.target.edge);
        let pair = |other: &Welcome| (welcome.domain.min(other.domain), welcome.domain.max(other.domain));
        let others = self.by_id.values().filter(|other| other.target.edge != edge);
        let other = others
            .filter_map(|other| other.welcome.as_ref())
            .find(|other| other.domain != welcome.domain && !self.domain_mismatches.contains(&pair(other)))?;
        if self.domain_mismatches.len() >= DOMAIN_MISMATCHES_MAX {
            return None;
        }
        self.domain_mismatches.insert(pair(other));
        Some((welcome, other))
    }

    /// Usable wires for a session, best first: edges that can decrypt what is kept of it, the shards in `first` in their order,
    /// configured edges, the nearest edge, then the shard that the session's id selects. If `spread` is there, the session asks the
    /// least loaded of the edges that are equally near, and those in `spread` last.
    pub(crate) fn candidates(
        &self,
        session: SessionId,
        first: &[(&str, u8)],
        domain: Option<[u8; 8]>,
        spread: Option<&BTreeSet<u16>>,
    ) -> Vec<WireId> {
        let usable = || self.by_id.iter().filter(|(id, _)| self.is_usable(**id));
        let mut edges: BTreeMap<u16, EdgeState> = BTreeMap::new();
        for (_, wire) in usable() {
            edges.entry(wire.target.edge).or_default().add(wire);
        }
        let distance = |edge: u16| edges.get(&edge).map_or(0, |edge| edge.rtt_ns / NEAR_NS);
        let load = |edge: u16| {
            let load = edges.get(&edge).map_or(0, EdgeState::load);
            spread.map_or(0, |avoided| if avoided.contains(&edge) { u64::MAX } else { load })
        };
        let is_other = |welcome: &Welcome| domain.is_some_and(|domain| domain != welcome.domain);
        let rank = |(id, wire): (&WireId, &Wire)| {
            let (shards, home) = (u16::from(wire.shards()), u16::from(wire.home(session)));
            let turn = (u16::from(wire.target.shard) + shards - home) % shards;
            (
                wire.welcome.as_ref().is_some_and(is_other),
                wire.place().and_then(|at| first.iter().position(|to| *to == at)).unwrap_or(first.len()),
                wire.target.edge >= self.configured,
                distance(wire.target.edge),
                load(wire.target.edge),
                wire.target.edge,
                turn,
                *id,
            )
        };
        let mut ranked: Vec<_> = usable().map(rank).collect();
        ranked.sort_unstable();
        // Edges that cannot decrypt what is kept are asked only if there are no others: their answer contains the
        // reason.
        let others = ranked.iter().position(|(is_other, ..)| *is_other).filter(|own| *own > 0);
        ranked.truncate(others.unwrap_or(usize::MAX));
        ranked.into_iter().map(|(.., id)| id).collect()
    }

    /// Checks I36 of docs/protocol.md, as far as it concerns wires. `uses` is true if the session has the channel.
    pub(crate) fn invariants(&self, uses: impl Fn(EndId, At) -> bool) -> Result<(), BrokenInvariant> {
        for (wire, of) in &self.by_id {
            for (channel, bound) in &of.channels {
                holds!("I36", uses(bound.session, (*wire, *channel)));
            }
        }
        holds!("I36", self.domain_mismatches.len() <= DOMAIN_MISMATCHES_MAX);
        Ok(())
    }
}
