//! Wires to edges: welcomes, heartbeats, lost wires, and the order of edges by distance.

use super::{AGENT, Agent, AgentOutput, AgentReport, EndId, Target, WireId};
use crate::{
    bug,
    dialer::{self, DialerAction},
    trace,
};
use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Channel, Frame, Goodbye, Greet, Ping, Pong, Welcome},
    id::{Generation, SessionId},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
};

/// Round trips that differ by less count as equal.
const NEAR_NS: u64 = 2_000_000;

/// Maximum of reported pairs of domains.
const DOMAIN_MISMATCHES_MAX: usize = 16;
/// An edge that is back gets its apps within this time, if at all.
const DEPLOY_GRACE_NS: u64 = 5_000_000_000;

/// An edge that was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    /// When it was last lost.
    pub(super) at_ns: u64,
    /// When it came back; none while it is lost, and for an edge that was never lost after its first answer.
    pub(super) back_ns: Option<u64>,
    /// Whether it ever answered.
    pub(super) known: bool,
}

/// The attempt that a channel belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) session: EndId,
    /// [`Generation::NONE`] while the agent waits for an answer to its hello.
    pub(super) generation: Generation,
}

/// A wire to one shard of one edge.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) target: Target,
    pub(super) welcome: Option<Welcome>,
    pub(super) draining: bool,
    rtt_ns: u64,
    pub(super) channels: BTreeMap<Channel, Bound>,
    next_channel: Channel,
}

impl Wire {
    /// An unused channel number of this wire. After billions of attempts the numbers start again, and old channels may be bound.
    pub(super) fn channel(&mut self) -> Channel {
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
    pub(super) fn home(&self, session: SessionId) -> u8 {
        session.0[0] % self.shards()
    }
}

/// A wire that exists as long as what refers to it.
fn known(wires: &BTreeMap<WireId, Wire>, id: WireId) -> Option<&Wire> {
    let wire = wires.get(&id);
    if wire.is_none() {
        bug!("I36: an agent acts only on wires that it has", id);
    }
    wire
}

/// As [`known`].
pub(super) fn known_mut(wires: &mut BTreeMap<WireId, Wire>, id: WireId) -> Option<&mut Wire> {
    let wire = wires.get_mut(&id);
    if wire.is_none() {
        bug!("I36: an agent acts only on wires that it has", id);
    }
    wire
}

/// Unbinds a channel, if there is one and its wire is still there.
pub(super) fn unbind(wires: &mut BTreeMap<WireId, Wire>, at: Option<(WireId, Channel)>) {
    if let Some((wire, channel)) = at
        && let Some(wire) = wires.get_mut(&wire)
    {
        wire.channels.remove(&channel);
    }
}

/// Whether a channel is still bound.
pub(super) fn is_bound(wires: &BTreeMap<WireId, Wire>, (wire, channel): (WireId, Channel)) -> bool {
    wires.get(&wire).is_some_and(|wire| wire.channels.contains_key(&channel))
}

impl Agent {
    pub(super) fn wire_up(&mut self, now_ns: u64, id: WireId, target: Target, out: &mut Vec<AgentOutput>) {
        self.dialer.up(now_ns, id.0, target);
        let wire = Wire {
            target,
            welcome: None,
            draining: false,
            rtt_ns: 0,
            channels: BTreeMap::new(),
            next_channel: 0,
        };
        self.wires.insert(id, wire);
        let greet = Greet {
            version_oldest: WIRE_VERSION_OLDEST,
            version_newest: WIRE_VERSION,
            servers: self.config.servers.iter().map(|server| server.name.clone()).collect(),
        };
        out.push(AgentOutput::Send { wire: id, frame: greet.into() });
        out.push(AgentOutput::Send { wire: id, frame: Ping { stamp: now_ns }.into() });
    }

    pub(super) fn dial_failed(
        &mut self,
        now_ns: u64,
        target: Target,
        reason: String,
        out: &mut Vec<AgentOutput>,
    ) {
        self.dialer.failed(now_ns, target, &mut self.random);
        out.push(AgentOutput::Report(AgentReport::EdgeDown { target, reason, suspected: false }));
    }

    pub(super) fn wire_down(&mut self, now_ns: u64, id: WireId, reason: String, out: &mut Vec<AgentOutput>) {
        let usable = self.is_usable(id);
        let Some(wire) = self.wires.remove(&id) else {
            return trace!(AGENT, "ignores that wire {} broke, which this agent has closed: {reason}", id.0);
        };
        self.dialer.down(now_ns, id.0, &mut self.random);
        if usable {
            self.note_gone(now_ns, wire.target.edge);
        }
        self.affinity.failed(now_ns, wire.target, &mut self.random);
        let (target, suspected) = (wire.target, false);
        out.push(AgentOutput::Report(AgentReport::EdgeDown { target, reason: reason.clone(), suspected }));
        for bound in wire.channels.values() {
            self.lost_wire(now_ns, bound.session, id, &reason, out);
        }
    }

    pub(super) fn frame(&mut self, now_ns: u64, id: WireId, frame: Frame, out: &mut Vec<AgentOutput>) {
        let Some(wire) = self.wires.get(&id) else {
            return trace!(AGENT, "ignores {} on wire {}, which is closed", frame.name(), id.0);
        };
        if self.dialer.heard(now_ns, id.0) {
            self.affinity.back(now_ns, wire.target);
            let name = wire.welcome.as_ref().map_or_else(String::new, |welcome| welcome.edge.clone());
            out.push(AgentOutput::Report(AgentReport::EdgeUp { target: wire.target, name }));
            self.wire_usable(now_ns, out);
        }
        match frame {
            Frame::Welcome(welcome) => self.welcome(now_ns, id, welcome, out),
            Frame::Ping(ping) => {
                out.push(AgentOutput::Send { wire: id, frame: Pong { stamp: ping.stamp }.into() });
            }
            Frame::Pong(pong) => self.pong(now_ns, id, pong.stamp),
            Frame::Goodbye(goodbye) => {
                out.push(AgentOutput::CloseWire { wire: id, reason: goodbye.reason.clone() });
                self.wire_down(now_ns, id, goodbye.reason, out);
            }
            Frame::Drain(_) => self.drain_edge(now_ns, id, out),
            Frame::Promise(promise) => self.promise(now_ns, id, &promise, out),
            other => self.session_frame(now_ns, id, other, out),
        }
    }

    fn welcome(&mut self, now_ns: u64, id: WireId, welcome: Welcome, out: &mut Vec<AgentOutput>) {
        let Some(wire) = known_mut(&mut self.wires, id) else { return };
        if !(WIRE_VERSION_OLDEST..=WIRE_VERSION).contains(&welcome.version) || welcome.shards == 0 {
            let reason = "the edge supports another version only; update the older of the two".to_string();
            out.push(AgentOutput::Send { wire: id, frame: Goodbye { reason: reason.clone() }.into() });
            out.push(AgentOutput::CloseWire { wire: id, reason: reason.clone() });
            return self.wire_down(now_ns, id, reason, out);
        }
        wire.draining = welcome.draining;
        self.dialer.welcomed(now_ns, id.0, welcome.shards);
        self.affinity.back(now_ns, wire.target);
        out.push(AgentOutput::Report(AgentReport::EdgeUp {
            target: wire.target,
            name: welcome.edge.clone(),
        }));
        let target = wire.target;
        wire.welcome = Some(welcome);
        self.note_back(now_ns, target.edge);
        self.compare_domains(id, target, out);
        self.wire_usable(now_ns, out);
    }

    /// Reports each pair of different domain secrets among the edges once: an edge with one cannot recover the other's
    /// sessions.
    fn compare_domains(&mut self, id: WireId, target: Target, out: &mut Vec<AgentOutput>) {
        let welcomes =
            || self.wires.values().filter_map(|wire| Some((wire.target.edge, wire.welcome.as_ref()?)));
        let Some(welcome) = self.wires.get(&id).and_then(|wire| wire.welcome.as_ref()) else { return };
        let pair = |other: &Welcome| (welcome.domain.min(other.domain), welcome.domain.max(other.domain));
        let other = welcomes().find(|(edge, other)| {
            *edge != target.edge
                && other.domain != welcome.domain
                && !self.domain_mismatches.contains(&pair(other))
        });
        if let Some((_, other)) = other.filter(|_| self.domain_mismatches.len() < DOMAIN_MISMATCHES_MAX) {
            let (pair, name, other) = (pair(other), welcome.edge.clone(), other.edge.clone());
            self.domain_mismatches.insert(pair);
            out.push(AgentOutput::Report(AgentReport::OtherDomain { target, name, other }));
        }
    }

    fn pong(&mut self, now_ns: u64, id: WireId, stamp: u64) {
        if let Some(wire) = self.wires.get_mut(&id) {
            // 0 if the edge has made up a later time.
            let sample_ns = now_ns.saturating_sub(stamp);
            wire.rtt_ns = if wire.rtt_ns == 0 { sample_ns } else { (wire.rtt_ns * 7 + sample_ns) / 8 };
        }
    }

    fn drain_edge(&mut self, now_ns: u64, id: WireId, out: &mut Vec<AgentOutput>) {
        let Some(wire) = known(&self.wires, id) else { return };
        let (edge, new) = (wire.target.edge, !wire.draining);
        if new {
            self.note_gone(now_ns, edge);
        }
        // The whole edge drains, so its other shards are no alternative.
        let mut sessions = Vec::new();
        for (id, wire) in self.wires.iter_mut().filter(|(_, wire)| wire.target.edge == edge) {
            wire.draining = true;
            sessions.extend(wire.channels.values().map(|bound| (bound.session, *id)));
        }
        for (session, wire) in sessions {
            self.move_away(now_ns, session, wire, out);
        }
    }

    /// Dials what is due, sends heartbeats, and suspects edges that do not answer.
    pub(super) fn wires_due(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        let mut acts = core::mem::take(&mut self.acts);
        self.dialer.due(now_ns, &mut acts);
        while !acts.is_empty() {
            self.act(now_ns, &mut acts, out);
            // Broken wires are dialled again at once.
            self.dialer.due(now_ns, &mut acts);
        }
        self.acts = acts;
    }

    fn act(&mut self, now_ns: u64, acts: &mut Vec<DialerAction>, out: &mut Vec<AgentOutput>) {
        for act in acts.drain(..) {
            match act {
                DialerAction::Dial(target) => out.push(AgentOutput::Dial { target }),
                DialerAction::Ping(wire) => {
                    out.push(AgentOutput::Send { wire: WireId(wire), frame: Ping { stamp: now_ns }.into() });
                }
                DialerAction::Suspect { wire, silent_ns } => {
                    self.suspect(now_ns, WireId(wire), &dialer::silence(silent_ns), out);
                }
                DialerAction::Close { wire, silent_ns } => {
                    let reason = dialer::silence(silent_ns);
                    out.push(AgentOutput::CloseWire { wire: WireId(wire), reason: reason.clone() });
                    self.wire_down(now_ns, WireId(wire), reason, out);
                }
            }
        }
    }

    /// The wire stays: the edge may only be slow and answer later, and a stale owner must learn of its successor. Sessions
    /// without kept data stay with it: no other owner could recover them, so they would be lost even if the edge was only slow.
    fn suspect(&mut self, now_ns: u64, id: WireId, reason: &str, out: &mut Vec<AgentOutput>) {
        let Some(wire) = known(&self.wires, id) else { return };
        let (target, was_there) = (wire.target, wire.welcome.is_some() && !wire.draining);
        let sessions: Vec<EndId> = wire.channels.values().map(|bound| bound.session).collect();
        if was_there {
            self.note_gone(now_ns, target.edge);
        }
        self.affinity.failed(now_ns, target, &mut self.random);
        out.push(AgentOutput::Report(AgentReport::EdgeDown {
            target,
            reason: reason.to_string(),
            suspected: true,
        }));
        for session in sessions {
            if !self.is_lost_with_its_owner(session) {
                self.lost_wire(now_ns, session, id, reason, out);
            }
        }
    }

    /// Whether the edge can be asked for a generation.
    pub(super) fn is_usable(&self, id: WireId) -> bool {
        let wire = self.wires.get(&id);
        wire.is_some_and(|wire| wire.welcome.is_some() && !wire.draining) && !self.dialer.is_suspected(id.0)
    }

    fn note_gone(&mut self, now_ns: u64, edge: u16) {
        self.gone.insert(edge, Gone { at_ns: now_ns, back_ns: None, known: true });
    }

    fn note_back(&mut self, now_ns: u64, edge: u16) {
        if let Some(gone) = self.gone.get_mut(&edge) {
            let back_ns = gone.known.then_some(now_ns);
            gone.back_ns = gone.back_ns.or(back_ns);
        }
    }

    /// Whether a client may wait for an edge that is not connected now, or that may still get its apps.
    pub(super) fn misses_an_edge(&self, now_ns: u64) -> bool {
        let there =
            |edge| self.wires.iter().any(|(id, wire)| wire.target.edge == edge && self.is_usable(*id));
        self.gone.iter().any(|(edge, gone)| {
            // An edge that never answered may not exist.
            let patience_ns =
                if gone.known { u64::MAX } else { DEPLOY_GRACE_NS }.min(self.config.edge_wait_ns);
            let deploys =
                gone.back_ns.is_some_and(|back_ns| now_ns < back_ns.saturating_add(DEPLOY_GRACE_NS));
            deploys || (now_ns < gone.at_ns.saturating_add(patience_ns) && !there(*edge))
        })
    }

    /// Usable wires for a session, best first: edges that can decrypt what is kept of it, its standby, the nearest edge, then
    /// the shard that the session's id selects.
    pub(super) fn candidates(&self, id: EndId) -> Vec<WireId> {
        let mut rtt_ns: BTreeMap<u16, u64> = BTreeMap::new();
        for (_, wire) in self.wires.iter().filter(|(id, _)| self.is_usable(**id)) {
            let best = rtt_ns.entry(wire.target.edge).or_insert(u64::MAX);
            *best = (*best).min(wire.rtt_ns);
        }
        let session = id.session;
        let known = self.sessions.get(&id);
        let standby = known.and_then(|session| session.end.standby());
        let domain = known.and_then(|session| session.domain);
        let is_other = |welcome: &Welcome| domain.is_some_and(|domain| domain != welcome.domain);
        let stands_by = |welcome: &Welcome| standby == Some((&welcome.edge[..], welcome.shard));
        let mut ranked: Vec<_> = self
            .wires
            .iter()
            .filter(|(id, _)| self.is_usable(**id))
            .map(|(id, wire)| {
                let (shards, home) = (u16::from(wire.shards()), u16::from(wire.home(session)));
                let turn = (u16::from(wire.target.shard) + shards - home) % shards;
                (
                    wire.welcome.as_ref().is_some_and(is_other),
                    !wire.welcome.as_ref().is_some_and(stands_by),
                    rtt_ns.get(&wire.target.edge).map_or(0, |rtt_ns| rtt_ns / NEAR_NS),
                    wire.target.edge,
                    turn,
                    *id,
                )
            })
            .collect();
        ranked.sort_unstable();
        // Edges that cannot decrypt what is kept are asked only if there are no others: their answer contains the reason.
        let others = ranked.iter().position(|(is_other, ..)| *is_other).filter(|own| *own > 0);
        ranked.truncate(others.unwrap_or(usize::MAX));
        ranked.into_iter().map(|(.., id)| id).collect()
    }
}
