//! Frames and the loss of wires from agents: greetings, and what comes on the channels of sessions.

use super::{
    SHARD, Shard,
    report::note,
    state::wires::{Bound, Wire},
};
use crate::api::{NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{string::ToString, vec::Vec};
use marram_session::{
    trace,
    trace::{TraceContext, TraceRole},
};
use marram_wire::{
    frame::{Code, Frame, Goodbye, Greet, Pong, Sender, Welcome},
    id::Port,
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
};

impl Shard {
    pub(super) fn wire_down(&mut self, now: Now, id: ShardWireId, out: &mut Vec<ShardOutput>) {
        let Some(wire) = self.wires.down(id) else { return };
        // The end asks again over its next wire.
        self.waiting.drop_wire(id);
        self.held.drop_wire(id);
        self.teller_gone(
            now,
            id,
            wire.role.as_ref().filter(|role| !role.recorder).map(|role| &role.name[..]),
        );
        if wire.role.is_some() {
            return self.keeper_down(now, id, out);
        }
        // One line for all: an agent can have thousands of sessions.
        let mut lost = 0_usize;
        for (channel, bound) in wire.channels() {
            let Some(session) = self.sessions.get_mut(bound.session) else { continue };
            // A call for an earlier channel may have ended the session, or opened a generation over another wire.
            if session.link(bound.port) == Some((id, channel)) {
                session.relink(bound.port, None);
                lost += 1;
                self.with_owner(now, bound.session, out, |owner, effects| {
                    owner.unlinked(bound.port, effects);
                });
            }
        }
        if lost > 0 {
            let text = alloc::format!(
                "an agent's connection was lost; sessions with an end there: {lost}. They continue when the agent \
                 reconnects, here or elsewhere"
            );
            note(NoteLevel::Info, None, text, out);
        }
    }

    pub(super) fn frame(&mut self, now: Now, id: ShardWireId, frame: Frame, out: &mut Vec<ShardOutput>) {
        let Some(wire) = self.wires.heard(now.mono_ns, id) else {
            return trace!(SHARD, "ignores {} on wire {}, which is closed", frame.name(), id.0);
        };
        // The order of these arms is what a peer may do when: nothing before the greeting, and only one kind of work on
        // a wire.
        let (greeted, is_keeper) = (wire.host.is_some(), wire.role.is_some());
        match frame {
            Frame::Greet(greet) if !greeted => self.greet(now, id, &greet, out),
            Frame::Goodbye(_) => out.push(ShardOutput::CloseWire { wire: id }),
            Frame::Ping(ping) => {
                let load = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
                out.push(ShardOutput::Send { wire: id, frame: Pong { stamp: ping.stamp, load }.into() });
            }
            Frame::Pong(_) => {}
            _ if !greeted => self.goodbye(id, "the first frame must be a greeting", out),
            Frame::Keeper(keeper) => self.keeper(now, id, keeper, out),
            Frame::Edges(edges) => self.edges_told(now, id, &edges.edges, out),
            Frame::StoreSeen(seen) => self.store_seen_on(id, seen, out),
            other if is_keeper => self.keeper_frame(now, id, other, out),
            Frame::Hello(hello) => self.hello(now, id, hello, out),
            other => self.session_frame(now, id, other, out),
        }
    }

    fn greet(&mut self, now: Now, id: ShardWireId, greet: &Greet, out: &mut Vec<ShardOutput>) {
        // The newest that both support.
        let version = greet.version_newest.min(WIRE_VERSION);
        if version < greet.version_oldest.max(WIRE_VERSION_OLDEST) {
            let reason = alloc::format!(
                "this edge supports wire versions {WIRE_VERSION_OLDEST} to {WIRE_VERSION}, the other side {} to {}: \
                 update the older of the two",
                greet.version_oldest,
                greet.version_newest
            );
            return self.goodbye(id, &reason, out);
        }
        let Some(wire) = self.wires.get(id) else { return };
        // One server too many refuses the whole wire: an agent that goes on without it would look as if it worked.
        if let Some(server) = greet.servers.iter().find(|server| !wire.verified.rights.serves(server)) {
            let what = alloc::format!("be the agent of the server {server:?}");
            return self.refuse_role(id, &what, &alloc::format!("servers = [{server:?}]"), out);
        }
        self.wires.greeted(id, version, &greet.servers);
        let Some(wire) = self.wires.get(id) else { return };
        let welcome = self.welcome(wire);
        out.push(ShardOutput::Send { wire: id, frame: welcome.into() });
        self.tell_edges_on(id, out);
        self.tell_shared_servers(id, out);
        if !greet.servers.is_empty() {
            self.ask_servers_again(now, out);
        }
    }

    /// What a wire that has greeted is told of this shard.
    pub(super) fn welcome(&self, wire: &Wire) -> Welcome {
        Welcome {
            version: wire.version(),
            edge: self.config.edge.clone(),
            shard: self.config.shard,
            shards: self.config.shards,
            challenge: wire.challenge,
            draining: self.drain.has_begun(),
            domain: self.secret.fingerprint(),
        }
    }

    /// Closes a wire, with a reason that the other side logs.
    pub(super) fn goodbye(&mut self, id: ShardWireId, reason: &str, out: &mut Vec<ShardOutput>) {
        self.counters.wires_refused += 1;
        out.push(ShardOutput::Send { wire: id, frame: Goodbye { reason: reason.to_string() }.into() });
        out.push(ShardOutput::CloseWire { wire: id });
    }

    /// A frame on a channel. Frames of an older attempt are dropped (I4 of docs/protocol.md).
    fn session_frame(&mut self, now: Now, id: ShardWireId, frame: Frame, out: &mut Vec<ShardOutput>) {
        let Some(channel) = frame.channel(Sender::End) else {
            return self.goodbye(id, "agents must not send such frames", out);
        };
        let Some(bound) = self.wires.get(id).and_then(|wire| wire.bound(channel)) else {
            self.counters.stale_frames += 1;
            return trace!(
                SHARD,
                "ignores {} on wire {}: channel {channel} is not bound",
                frame.name(),
                id.0
            );
        };
        let Bound { session, port, generation } = bound;
        // A bound channel is a link of its session's newest generation (I36). This holds even if that were not so.
        let current = self.sessions.get(session).is_some_and(|session| {
            session.owner.generation_of(port) == Some(generation) && session.link(port) == Some((id, channel))
        });
        if !current {
            self.counters.stale_frames += 1;
            let context = TraceContext::of_session(TraceRole::Shard, session, generation);
            return trace!(context, "ignores {} on wire {}: the link is an older one", frame.name(), id.0);
        }
        self.note_room(now, (id, port), &frame);
        if matches!(frame, Frame::Promised(_))
            && let Some(session) = self.sessions.get_mut(session)
        {
            // The end has left its former owners by itself.
            session.former.retain(|(at, ..)| *at != port);
        }
        self.counters.superseded += u64::from(matches!(frame, Frame::Superseded(_)));
        // A client that leaves a shared cell takes only its own channel with it.
        let leaves = matches!(frame, Frame::Ended(_)) && self.is_shared_cell(session);
        if leaves || matches!(frame, Frame::Superseded(_)) {
            self.unlink(session, port);
        }
        self.with_owner(now, session, out, |owner, effects| owner.receive(now, port, frame, effects));
    }

    /// The agent of a server may have no room for a session, or not reach the server: others are asked before that one then, for a while.
    fn note_room(&mut self, now: Now, (wire, port): (ShardWireId, Port), frame: &Frame) {
        match frame {
            _ if port == Port::CLIENT => {}
            Frame::Ended(ended) if matches!(ended.code, Code::Busy | Code::ServerDown) => {
                self.wires.had_no_room(now.mono_ns, wire);
            }
            _ => {}
        }
    }
}
