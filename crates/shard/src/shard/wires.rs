//! Wires from agents: greeting, channels, timeouts.

use super::{Bound, Shard, index, keepers::Role};
use crate::api::{NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Channel, Frame, Goodbye, Greet, Pong, Sender, Welcome},
    id::HostId,
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    rights::Verified,
};

/// A wire without any frame for so long is closed; agents send pings many times a second.
const SILENCE_MAX_NS: u64 = 30_000_000_000;
const SILENCE_CHECK_NS: u64 = 5_000_000_000;

/// A wire from one agent.
#[derive(Debug)]
pub(super) struct Wire {
    /// Which agent it is and what it may do, as verified by the shell.
    pub(super) verified: Verified,
    /// The remote address.
    pub(super) address: Option<String>,
    /// Set by its greeting.
    pub(super) host: Option<HostId>,
    pub(super) servers: Vec<String>,
    /// Set once it has proved that it leads to a keeper.
    pub(super) role: Option<Role>,
    pub(super) challenge: [u8; 16],
    pub(super) channels: BTreeMap<Channel, Bound>,
    next_channel: Channel,
    heard_ns: u64,
}

impl Wire {
    /// A channel number that is unused on this wire: odd, since this shard opens the channel. After billions of attempts the numbers
    /// start again, and old channels may be bound.
    pub(super) fn channel(&mut self) -> Channel {
        loop {
            self.next_channel = self.next_channel.wrapping_add(2);
            if !self.channels.contains_key(&self.next_channel) {
                return self.next_channel;
            }
        }
    }
}

impl Shard {
    pub(super) fn wire_up(&mut self, now: Now, id: ShardWireId, verified: Verified, address: Option<String>) {
        let wire = Wire {
            verified,
            address,
            host: None,
            servers: Vec::new(),
            role: None,
            challenge: self.random.bytes(),
            channels: BTreeMap::new(),
            next_channel: u32::MAX,
            heard_ns: now.mono_ns,
        };
        self.wires.insert(id, wire);
    }

    pub(super) fn wire_down(&mut self, now: Now, id: ShardWireId, out: &mut Vec<ShardOutput>) {
        let Some(wire) = self.wires.remove(&id) else { return };
        if let Some(host) = wire.host
            && self.hosts.get(&host) == Some(&id)
        {
            self.hosts.remove(&host);
            // An agent may have several wires here.
            let other = self.wires.iter().find(|(_, other)| other.host == Some(host)).map(|(id, _)| *id);
            self.hosts.extend(other.map(|other| (host, other)));
        }
        self.waiting.retain(|(wire, _)| *wire != id);
        if wire.role.is_some() {
            return self.keeper_down(now, id, out);
        }
        let mut lost = 0_usize;
        for (channel, bound) in wire.channels {
            let Some(session) = self.sessions.get_mut(&bound.session) else { continue };
            let link = &mut session.links[index(bound.port)];
            if *link == Some((id, channel)) {
                *link = None;
                lost += 1;
                self.with_owner(now, bound.session, out, |owner, effects| {
                    owner.unlinked(bound.port, effects)
                });
            }
        }
        if lost > 0 {
            let text = alloc::format!(
                "an agent's connection was lost; sessions with an end there: {lost}. They continue when the agent \
                 reconnects, here or elsewhere"
            );
            self.note(NoteLevel::Info, None, text, out);
        }
    }

    pub(super) fn frame(&mut self, now: Now, id: ShardWireId, frame: Frame, out: &mut Vec<ShardOutput>) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        wire.heard_ns = now.mono_ns;
        let greeted = wire.host.is_some();
        match frame {
            Frame::Greet(greet) if !greeted => self.greet(id, &greet, out),
            Frame::Goodbye(_) => out.push(ShardOutput::CloseWire { wire: id }),
            Frame::Ping(ping) => {
                out.push(ShardOutput::Send { wire: id, frame: Pong { stamp: ping.stamp }.into() })
            }
            Frame::Pong(_) => {}
            _ if !greeted => self.goodbye(id, "the first frame must be a greeting", out),
            Frame::Keeper(keeper) => self.keeper(now, id, keeper, out),
            other if wire.role.is_some() => self.keeper_frame(now, id, other, out),
            Frame::Hello(hello) => self.hello(now, id, hello, out),
            other => self.session_frame(now, id, other, out),
        }
    }

    fn greet(&mut self, id: ShardWireId, greet: &Greet, out: &mut Vec<ShardOutput>) {
        let version = greet.version_newest.min(WIRE_VERSION);
        if version < greet.version_oldest.max(WIRE_VERSION_OLDEST) {
            let reason = alloc::format!(
                "this edge supports wire versions {WIRE_VERSION_OLDEST} to {WIRE_VERSION}, the agent {} to {}: \
                 update the older of the two",
                greet.version_oldest,
                greet.version_newest
            );
            return self.goodbye(id, &reason, out);
        }
        let Some(wire) = self.wires.get_mut(&id) else { return };
        if let Some(server) = greet.servers.iter().find(|server| !wire.verified.rights.serves(server)) {
            return self.refuse_server(id, server, out);
        }
        let host = wire.verified.host;
        wire.host = Some(host);
        wire.servers.clone_from(&greet.servers);
        // An agent may have several wires here. No other agent can have its id: it is the digest of the agent's key.
        self.hosts.insert(host, id);
        let welcome = Welcome {
            version,
            edge: self.config.edge.clone(),
            shard: self.config.shard,
            shards: self.config.shards,
            challenge: wire.challenge,
            draining: self.draining,
            domain: self.secret.fingerprint(),
        };
        out.push(ShardOutput::Send { wire: id, frame: welcome.into() });
        self.tell_shared_servers(id, out);
    }

    pub(super) fn goodbye(&mut self, id: ShardWireId, reason: &str, out: &mut Vec<ShardOutput>) {
        self.counters.wires_refused += 1;
        out.push(ShardOutput::Send { wire: id, frame: Goodbye { reason: reason.to_string() }.into() });
        out.push(ShardOutput::CloseWire { wire: id });
    }

    /// A frame on a channel. Frames of an older attempt are dropped.
    fn session_frame(&mut self, now: Now, id: ShardWireId, frame: Frame, out: &mut Vec<ShardOutput>) {
        let Some(channel) = frame.channel(Sender::End) else {
            return self.goodbye(id, "agents must not send such frames", out);
        };
        let Some(bound) = self.wires.get(&id).and_then(|wire| wire.channels.get(&channel)).copied() else {
            self.counters.stale_frames += 1;
            return;
        };
        let (session, port, generation, frame) = bound.frame(frame);
        let current = self.sessions.get(&session).is_some_and(|session| {
            session.owner.generation() == generation && session.links[index(port)] == Some((id, channel))
        });
        if !current {
            self.counters.stale_frames += 1;
            return;
        }
        if matches!(frame, Frame::Promised(_))
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.former.retain(|(at, ..)| *at != port);
        }
        if matches!(frame, Frame::Superseded(_)) {
            self.counters.superseded += 1;
            self.unlink(session, port);
        }
        self.with_owner(now, session, out, |owner, effects| owner.receive(now, port, frame, effects));
    }

    /// Forgets the channel of a session's end.
    pub(super) fn unlink(&mut self, session: marram_wire::id::SessionId, port: marram_wire::id::Port) {
        let link = self.sessions.get_mut(&session).and_then(|session| session.links[index(port)].take());
        if let Some((wire, channel)) = link
            && let Some(wire) = self.wires.get_mut(&wire)
        {
            wire.channels.remove(&channel);
        }
    }

    pub(super) fn wires_silent(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        if now.mono_ns < self.silence_checked_ns + SILENCE_CHECK_NS {
            return;
        }
        self.silence_checked_ns = now.mono_ns;
        for (id, wire) in &self.wires {
            if wire.heard_ns + SILENCE_MAX_NS < now.mono_ns {
                out.push(ShardOutput::CloseWire { wire: *id });
            }
        }
    }

    pub(super) fn silence_wake_ns(&self) -> Option<u64> {
        (!self.wires.is_empty()).then_some(self.silence_checked_ns + SILENCE_CHECK_NS)
    }
}
