//! Wires to edges: welcomes, heartbeats, and what happens to sessions if a wire is lost or an edge drains.

use super::{AGENT, Agent, AgentOutput, AgentReport, EndId, Target, WireId};
use crate::{
    dialer::{self, DialerAction},
    trace,
};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Frame, Goodbye, Greet, Ping, Pong, Welcome},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
};

impl Agent {
    pub(super) fn wire_up(&mut self, now_ns: u64, id: WireId, target: Target, out: &mut Vec<AgentOutput>) {
        self.wires.up(now_ns, id, target);
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
        self.wires.failed(now_ns, target, &mut self.random);
        self.next_address(target);
        self.report_missing(target, &reason, out);
    }

    pub(super) fn wire_down(&mut self, now_ns: u64, id: WireId, reason: String, out: &mut Vec<AgentOutput>) {
        match self.wires.get(id).map(|wire| (wire.target, wire.welcome.is_some())) {
            Some((target, true)) => {
                let (reason, suspected) = (reason.clone(), false);
                out.push(AgentOutput::Report(AgentReport::EdgeDown { target, reason, suspected }));
            }
            Some((target, false)) => self.report_missing(target, &reason, out),
            None => {}
        }
        self.drop_wire(now_ns, id, &reason, out);
    }

    /// As [`Agent::wire_down`], without a report of the edge.
    pub(super) fn drop_wire(&mut self, now_ns: u64, id: WireId, reason: &str, out: &mut Vec<AgentOutput>) {
        let usable = self.wires.is_usable(id);
        let Some(wire) = self.wires.down(now_ns, id, &mut self.random) else {
            return trace!(AGENT, "ignores that wire {} broke, which this agent has closed: {reason}", id.0);
        };
        if usable {
            self.wires.lose(now_ns, wire.target.edge);
        }
        match wire.welcome {
            Some(_) => self.teller_gone(now_ns, wire.target.edge, out),
            None => self.next_address(wire.target),
        }
        self.affinity.failed(now_ns, wire.target, &mut self.random);
        for (_, bound) in wire.channels() {
            self.lost_wire(now_ns, bound.session, id, reason, out);
        }
    }

    pub(super) fn frame(&mut self, now_ns: u64, id: WireId, frame: Frame, out: &mut Vec<AgentOutput>) {
        if self.wires.get(id).is_none() {
            return trace!(AGENT, "ignores {} on wire {}, which is closed", frame.name(), id.0);
        }
        if let Some((target, name)) = self.wires.heard(now_ns, id, frame.answers()) {
            self.affinity.back(now_ns, target);
            out.push(AgentOutput::Report(AgentReport::EdgeUp { target, name }));
            self.wire_usable(now_ns, out);
        }
        match frame {
            Frame::Welcome(welcome) => self.welcome(now_ns, id, welcome, out),
            Frame::Ping(ping) => {
                let load = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
                out.push(AgentOutput::Send { wire: id, frame: Pong { stamp: ping.stamp, load }.into() });
            }
            Frame::Pong(pong) => self.wires.loaded(id, pong.load),
            Frame::Goodbye(goodbye) => {
                out.push(AgentOutput::CloseWire { wire: id, reason: goodbye.reason.clone() });
                self.wire_down(now_ns, id, goodbye.reason, out);
            }
            Frame::Edges(edges) => self.edges_told(now_ns, id, edges, out),
            Frame::Drain(drain) => self.drain_edge(now_ns, id, drain.leave, out),
            Frame::Promise(promise) => self.promise(now_ns, id, &promise, out),
            other => self.session_frame(now_ns, id, other, out),
        }
    }

    fn welcome(&mut self, now_ns: u64, id: WireId, welcome: Welcome, out: &mut Vec<AgentOutput>) {
        let Some(wire) = self.wires.known(id) else { return };
        let (target, is_again) = (wire.target, wire.welcome.is_some());
        if is_again {
            return self.welcome_again(now_ns, (id, target.edge), &welcome, out);
        }
        if !(WIRE_VERSION_OLDEST..=WIRE_VERSION).contains(&welcome.version) || welcome.shards == 0 {
            let reason = "the edge supports another version only; update the older of the two".to_string();
            out.push(AgentOutput::Send { wire: id, frame: Goodbye { reason: reason.clone() }.into() });
            out.push(AgentOutput::CloseWire { wire: id, reason: reason.clone() });
            return self.wire_down(now_ns, id, reason, out);
        }
        if !self.is_as_told(now_ns, id, &welcome, out) {
            return;
        }
        self.affinity.back(now_ns, target);
        out.push(AgentOutput::Report(AgentReport::EdgeUp { target, name: welcome.edge.clone() }));
        self.wires.welcomed(now_ns, id, welcome);
        self.tell_edges_on(id, out);
        if let Some((own, other)) = self.wires.other_domain(id) {
            let (name, other) = (own.edge.clone(), other.edge.clone());
            out.push(AgentOutput::Report(AgentReport::OtherDomain { target, name, other }));
        }
        self.wire_usable(now_ns, out);
    }

    /// Whether an edge drains has changed. If it stays, its sessions stay there from now on, and it can be asked for others; those that have
    /// left do not come back. What a session has asked of another edge meanwhile goes on.
    fn welcome_again(
        &mut self,
        now_ns: u64,
        (id, edge): (WireId, u16),
        welcome: &Welcome,
        out: &mut Vec<AgentOutput>,
    ) {
        if welcome.draining {
            return self.drain_edge(now_ns, id, false, out);
        }
        self.wires.stays(edge);
        self.wire_usable(now_ns, out);
    }

    /// An edge drains. The sessions of this shard ask another edge if they are to `leave`; until then the edge may hand them over.
    fn drain_edge(&mut self, now_ns: u64, id: WireId, leave: bool, out: &mut Vec<AgentOutput>) {
        let Some(wire) = self.wires.known(id) else { return };
        let (edge, new) = (wire.target.edge, !wire.draining);
        if new {
            self.wires.lose(now_ns, edge);
        }
        self.wires.drain(edge);
        if leave {
            for session in self.wires.sessions(id) {
                self.move_away(now_ns, session, id, out);
            }
        }
    }

    /// Dials what is due, sends heartbeats, and suspects edges that do not answer.
    pub(super) fn wires_due(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        let mut acts = core::mem::take(&mut self.acts);
        self.wires.due(now_ns, &mut acts);
        while !acts.is_empty() {
            self.act(now_ns, &mut acts, out);
            // Broken wires are dialled again at once.
            self.wires.due(now_ns, &mut acts);
        }
        self.acts = acts;
    }

    fn act(&mut self, now_ns: u64, acts: &mut Vec<DialerAction>, out: &mut Vec<AgentOutput>) {
        for act in acts.drain(..) {
            match act {
                DialerAction::Dial(target) => self.dial(target, out),
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

    /// The wire stays: the edge may only be slow and answer later, and a stale owner must learn of its successor.
    /// Sessions without kept data stay with it: no other owner could recover them, so they would be lost even if the
    /// edge was only slow.
    fn suspect(&mut self, now_ns: u64, id: WireId, reason: &str, out: &mut Vec<AgentOutput>) {
        let Some(wire) = self.wires.known(id) else { return };
        let (target, was_there) = (wire.target, wire.welcome.is_some() && !wire.draining);
        let sessions: Vec<EndId> = wire.channels().map(|(_, bound)| bound.session).collect();
        if was_there {
            self.wires.lose(now_ns, target.edge);
        }
        self.affinity.failed(now_ns, target, &mut self.random);
        out.push(AgentOutput::Report(AgentReport::EdgeDown {
            target,
            reason: reason.to_string(),
            suspected: true,
        }));
        for session in sessions {
            if !self.sessions.is_lost_with_its_owner(session) {
                self.lost_wire(now_ns, session, id, reason, out);
            }
        }
    }

    /// Usable wires for a session, best first.
    pub(super) fn candidates(&self, now_ns: u64, id: EndId) -> Vec<WireId> {
        let session = self.sessions.get(id);
        let led = session.into_iter().flat_map(|session| session.leads.to());
        let first: Vec<_> = led.chain(session.and_then(|session| session.end.standby())).collect();
        // Which edge a session asks that has begun is not a matter of load: it wants the one that another end asks too.
        let new = session.filter(|session| session.end.terms().is_none());
        let avoided = new.and_then(|session| self.spread.avoided(now_ns, session.end.app()));
        let domain = session.and_then(|session| session.domain);
        self.wires.candidates(id.session, &first, domain, avoided.as_ref())
    }
}
