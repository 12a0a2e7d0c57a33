//! Wires to edges: dialling with back-off, heartbeats, suspicion, and which edge is nearest.

use super::{Agent, EndId, Out, Report, Target, WireId};
use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Channel, Frame, Goodbye, Greet, Ping, Pong, Welcome},
    id::Generation,
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
};

/// Round trips that differ by less count as equally near.
const NEAR_NS: u64 = 2_000_000;
/// A suspected wire is given up after so many heartbeat timeouts of silence.
const GIVE_UP: u64 = 40;

/// Where a target stands.
#[derive(Debug)]
pub(super) enum Dial {
    /// To be dialled at this time.
    Waiting { at_ns: u64, backoff_ns: u64 },
    /// Being dialled.
    Dialling { backoff_ns: u64 },
    /// Connected.
    Up(WireId),
}

/// Which attempt a channel belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) session: EndId,
    /// None while the agent waits for the promise that it asked for.
    pub(super) generation: Generation,
}

/// A wire to one shard of one edge.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) target: Target,
    pub(super) welcome: Option<Welcome>,
    pub(super) draining: bool,
    pub(super) suspected: bool,
    heard_ns: u64,
    pinged_ns: u64,
    rtt_ns: u64,
    pub(super) channels: BTreeMap<Channel, Bound>,
    next_channel: Channel,
}

impl Wire {
    /// A channel number that was not used on this wire.
    pub(super) fn channel(&mut self) -> Channel {
        self.next_channel = self.next_channel.wrapping_add(2);
        self.next_channel
    }

    fn usable(&self) -> bool {
        self.welcome.is_some() && !self.suspected && !self.draining
    }
}

/// Forgets what a channel belongs to, if there is one and its wire is still there.
pub(super) fn unbind(wires: &mut BTreeMap<WireId, Wire>, at: Option<(WireId, Channel)>) {
    if let Some((wire, channel)) = at
        && let Some(wire) = wires.get_mut(&wire)
    {
        wire.channels.remove(&channel);
    }
}

/// Whether a channel still belongs to something.
pub(super) fn is_bound(wires: &BTreeMap<WireId, Wire>, (wire, channel): (WireId, Channel)) -> bool {
    wires.get(&wire).is_some_and(|wire| wire.channels.contains_key(&channel))
}

impl Agent {
    /// The first shard of each edge is to be dialled; its welcome tells of the others.
    pub(super) fn dial_all(&mut self, now_ns: u64) {
        for edge in 0..self.config.edges {
            self.dials.insert(Target { edge, shard: 0 }, Dial::Waiting { at_ns: now_ns, backoff_ns: 0 });
        }
    }

    pub(super) fn wire_up(&mut self, now_ns: u64, id: WireId, target: Target, out: &mut Vec<Out>) {
        self.dials.insert(target, Dial::Up(id));
        self.wires.insert(
            id,
            Wire {
                target,
                welcome: None,
                draining: false,
                suspected: false,
                heard_ns: now_ns,
                pinged_ns: now_ns,
                rtt_ns: 0,
                channels: BTreeMap::new(),
                next_channel: 0,
            },
        );
        let greet = Greet {
            version_oldest: WIRE_VERSION_OLDEST,
            version_newest: WIRE_VERSION,
            host: self.config.host,
            servers: self.config.servers.iter().map(|server| server.name.clone()).collect(),
        };
        out.push(Out::Send { wire: id, frame: greet.into() });
        out.push(Out::Send { wire: id, frame: Ping { stamp: now_ns }.into() });
    }

    pub(super) fn dial_failed(&mut self, now_ns: u64, target: Target, reason: String, out: &mut Vec<Out>) {
        let backoff_ns = match self.dials.get(&target) {
            Some(Dial::Dialling { backoff_ns } | Dial::Waiting { backoff_ns, .. }) => *backoff_ns,
            _ => 0,
        };
        self.back_off(now_ns, target, backoff_ns);
        out.push(Out::Report(Report::EdgeDown { target, reason, suspected: false }));
    }

    /// Doubles the wait, with jitter so that a thousand agents do not come back as one.
    fn back_off(&mut self, now_ns: u64, target: Target, backoff_ns: u64) {
        let longest = self.config.backoff_max_ns;
        let wait_ns =
            (backoff_ns * 2).clamp(self.config.backoff_min_ns, longest.max(self.config.backoff_min_ns));
        let jitter_ns = self.random.below(wait_ns / 2 + 1);
        self.dials
            .insert(target, Dial::Waiting { at_ns: now_ns + wait_ns / 2 + jitter_ns, backoff_ns: wait_ns });
    }

    pub(super) fn wire_down(&mut self, now_ns: u64, id: WireId, reason: String, out: &mut Vec<Out>) {
        let Some(wire) = self.wires.remove(&id) else { return };
        if matches!(self.dials.get(&wire.target), Some(Dial::Up(up)) if *up == id) {
            self.back_off(now_ns, wire.target, 0);
        }
        let (target, suspected) = (wire.target, false);
        out.push(Out::Report(Report::EdgeDown { target, reason: reason.clone(), suspected }));
        for bound in wire.channels.values() {
            self.lost_wire(now_ns, bound.session, id, &reason, out);
        }
    }

    pub(super) fn frame(&mut self, now_ns: u64, id: WireId, frame: Frame, out: &mut Vec<Out>) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        wire.heard_ns = now_ns;
        if wire.suspected {
            wire.suspected = false;
            let name = wire.welcome.as_ref().map_or_else(String::new, |welcome| welcome.edge.clone());
            out.push(Out::Report(Report::EdgeUp { target: wire.target, name }));
            self.wire_usable(now_ns, out);
        }
        match frame {
            Frame::Welcome(welcome) => self.welcome(now_ns, id, welcome, out),
            Frame::Ping(ping) => {
                out.push(Out::Send { wire: id, frame: Pong { stamp: ping.stamp }.into() });
            }
            Frame::Pong(pong) => self.pong(now_ns, id, pong.stamp),
            Frame::Goodbye(goodbye) => {
                out.push(Out::CloseWire { wire: id, reason: goodbye.reason.clone() });
                self.wire_down(now_ns, id, goodbye.reason, out);
            }
            Frame::Drain(_) => self.drain_edge(now_ns, id, out),
            Frame::Promise(promise) => self.promise(now_ns, id, &promise, out),
            other => self.session_frame(now_ns, id, other, out),
        }
    }

    fn welcome(&mut self, now_ns: u64, id: WireId, welcome: Welcome, out: &mut Vec<Out>) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let edge = wire.target.edge;
        if !(WIRE_VERSION_OLDEST..=WIRE_VERSION).contains(&welcome.version) || welcome.shards == 0 {
            let reason = "the edge speaks another version; update the older of the two".to_string();
            out.push(Out::Send { wire: id, frame: Goodbye { reason: reason.clone() }.into() });
            out.push(Out::CloseWire { wire: id, reason: reason.clone() });
            return self.wire_down(now_ns, id, reason, out);
        }
        wire.draining = welcome.draining;
        out.push(Out::Report(Report::EdgeUp { target: wire.target, name: welcome.edge.clone() }));
        for shard in 0..welcome.shards {
            let target = Target { edge, shard };
            self.dials.entry(target).or_insert(Dial::Waiting { at_ns: now_ns, backoff_ns: 0 });
        }
        wire.welcome = Some(welcome);
        self.wire_usable(now_ns, out);
    }

    fn pong(&mut self, now_ns: u64, id: WireId, stamp: u64) {
        if let Some(wire) = self.wires.get_mut(&id) {
            let sample_ns = now_ns.saturating_sub(stamp);
            wire.rtt_ns = if wire.rtt_ns == 0 { sample_ns } else { (wire.rtt_ns * 7 + sample_ns) / 8 };
        }
    }

    fn drain_edge(&mut self, now_ns: u64, id: WireId, out: &mut Vec<Out>) {
        let Some(edge) = self.wires.get(&id).map(|wire| wire.target.edge) else { return };
        // It is the edge that goes, so none of its other shards is a place to go to.
        let mut sessions = Vec::new();
        for (id, wire) in self.wires.iter_mut().filter(|(_, wire)| wire.target.edge == edge) {
            wire.draining = true;
            sessions.extend(wire.channels.values().map(|bound| (bound.session, *id)));
        }
        for (session, wire) in sessions {
            self.leave(now_ns, session, wire, out);
        }
    }

    /// Dials what is due, asks silent wires whether they live, suspects those that do not answer.
    pub(super) fn wires_due(&mut self, now_ns: u64, out: &mut Vec<Out>) {
        for (target, dial) in &mut self.dials {
            if let Dial::Waiting { at_ns, backoff_ns } = *dial
                && at_ns <= now_ns
            {
                *dial = Dial::Dialling { backoff_ns };
                out.push(Out::Dial { target: *target });
            }
        }
        let mut silent = Vec::new();
        for (id, wire) in &mut self.wires {
            if wire.pinged_ns + self.config.heartbeat_interval_ns <= now_ns {
                wire.pinged_ns = now_ns;
                out.push(Out::Send { wire: *id, frame: Ping { stamp: now_ns }.into() });
            }
            let silent_ns = now_ns.saturating_sub(wire.heard_ns);
            let dead = silent_ns >= self.config.heartbeat_timeout_ns * GIVE_UP;
            if dead || (!wire.suspected && silent_ns >= self.config.heartbeat_timeout_ns) {
                wire.suspected = true;
                silent.push((*id, wire.target, dead, silent_ns));
            }
        }
        for (id, target, dead, silent_ns) in silent {
            let reason = alloc::format!("no word from the edge for {} ms", silent_ns / 1_000_000);
            if dead {
                out.push(Out::CloseWire { wire: id, reason: reason.clone() });
                self.wire_down(now_ns, id, reason, out);
            } else {
                out.push(Out::Report(Report::EdgeDown { target, reason: reason.clone(), suspected: true }));
                self.suspect(now_ns, id, &reason, out);
            }
        }
    }

    /// The wire stays, so that a host that was only slow is heard again and a stale owner is told so. Sessions that nobody
    /// keeps stay with it: another owner could not go on with them, so they have nothing to gain, and would be lost to a host
    /// that was only slow.
    fn suspect(&mut self, now_ns: u64, id: WireId, reason: &str, out: &mut Vec<Out>) {
        let Some(wire) = self.wires.get(&id) else { return };
        let sessions: Vec<EndId> = wire.channels.values().map(|bound| bound.session).collect();
        for session in sessions {
            if !self.is_lost_with_its_owner(session) {
                self.lost_wire(now_ns, session, id, reason, out);
            }
        }
    }

    pub(super) fn wires_wake_ns(&self) -> Option<u64> {
        let dials = self.dials.values().filter_map(|dial| match dial {
            Dial::Waiting { at_ns, .. } => Some(*at_ns),
            _ => None,
        });
        let wires = self.wires.values().map(|wire| {
            let ping_ns = wire.pinged_ns + self.config.heartbeat_interval_ns;
            let patience = if wire.suspected { GIVE_UP } else { 1 };
            ping_ns.min(wire.heard_ns + self.config.heartbeat_timeout_ns * patience)
        });
        dials.chain(wires).min()
    }

    /// Usable wires for a session, best first: whoever stands by for it, the nearest edge, then the shard that the session's id
    /// points to.
    pub(super) fn candidates(&self, id: EndId) -> Vec<WireId> {
        let mut rtt_ns: BTreeMap<u16, u64> = BTreeMap::new();
        for wire in self.wires.values().filter(|wire| wire.usable()) {
            let best = rtt_ns.entry(wire.target.edge).or_insert(u64::MAX);
            *best = (*best).min(wire.rtt_ns);
        }
        let hint = u64::from(id.session.0[0]);
        let standby = self.sessions.get(&id).and_then(|session| session.end.standby());
        let stands_by = |welcome: &Welcome| standby == Some((&welcome.edge[..], welcome.shard));
        let mut ranked: Vec<_> = self
            .wires
            .iter()
            .filter(|(_, wire)| wire.usable())
            .map(|(id, wire)| {
                let shards = wire.welcome.as_ref().map_or(1, |welcome| u64::from(welcome.shards.max(1)));
                let turn = (u64::from(wire.target.shard) + shards - hint % shards) % shards;
                (
                    !wire.welcome.as_ref().is_some_and(stands_by),
                    rtt_ns.get(&wire.target.edge).map_or(0, |rtt_ns| rtt_ns / NEAR_NS),
                    wire.target.edge,
                    turn,
                    *id,
                )
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., id)| id).collect()
    }
}
