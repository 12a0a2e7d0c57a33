//! Local connections: input from and output to programs.

use super::{
    ACK_DELAY_NS, AGENT, Agent, AgentOutput, AgentReport, ConnectionFailure, ConnectionId, EndId,
    datagrams::{broken, oversize},
    sessions::Session,
};
use crate::{
    bug,
    bug::Bug,
    end::{End, EndEffect},
    trace,
};
use alloc::{
    boxed::Box,
    collections::VecDeque,
    string::{String, ToString},
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Ended, Frame},
    id::SessionId,
    key::CellKey,
    limits::charge,
    peer::Origin,
};

/// Payloads of fewer bytes at a time do not count for how much was sent on a wire.
const SENT_COUNTED: u64 = 4 << 10;

/// Bytes of a frame's payload, if it is one of those that may be large.
fn payload_size(frame: &Frame) -> u64 {
    let payload = match frame {
        Frame::Input(input) => &input.payload,
        Frame::KeptInput(input) => &input.payload,
        Frame::LogPart(part) => &part.bytes,
        Frame::CheckpointPart(part) => &part.bytes,
        _ => return 0,
    };
    payload.len() as u64
}

/// A session's connection to the program at this end.
#[derive(Debug, Default)]
pub(super) struct Local {
    pub(super) id: Option<ConnectionId>,
    pub(super) open: bool,
    /// Whether the program uses datagrams.
    pub(super) datagrams: bool,
    /// Whether it is a connection that preserves message boundaries.
    pub(super) messages: bool,
    /// Output for the program, until the connection is open.
    waiting: Vec<Option<Bytes>>,
    /// Sizes of the writes that the socket has not taken completely, and how many bytes of the first one it has taken.
    writing: VecDeque<usize>,
    written: u64,
    pub(super) paused: bool,
    /// The program is gone, and the owner must be informed.
    pub(super) broken: Option<(Code, String)>,
}

impl Local {
    pub(super) fn new(datagrams: bool) -> Self {
        Self { datagrams, ..Self::default() }
    }

    /// Whether it is no connection, so that its program cannot signal its end.
    pub(super) fn is_flow(&self) -> bool {
        self.datagrams && !self.messages
    }

    /// The charge of outputs that the socket has now taken completely.
    fn take(&mut self, bytes: u64) -> u64 {
        self.written += bytes;
        let mut taken = 0;
        while let Some(len) = self.writing.front().copied().filter(|len| *len as u64 <= self.written) {
            self.written -= len as u64;
            taken += charge(len);
            self.writing.pop_front();
        }
        taken
    }

    fn deliver(&mut self, bytes: Option<Bytes>, out: &mut Vec<AgentOutput>) -> u64 {
        match (self.id.filter(|_| self.broken.is_none()), bytes) {
            (Some(connection), Some(bytes)) if self.open => {
                if bytes.is_empty() && !self.messages && !self.datagrams {
                    return charge(0);
                }
                self.writing.push_back(bytes.len());
                out.push(AgentOutput::Write { connection, bytes });
            }
            (Some(connection), None) if self.open => out.push(AgentOutput::Shutdown { connection }),
            // There is no program to take it.
            (None, Some(bytes)) => return charge(bytes.len()),
            (None, None) => {}
            (Some(_), bytes) => self.waiting.push(bytes),
        }
        0
    }
}

/// Resets a program's connection, with a reason.
pub(super) fn reset(
    connection: ConnectionId,
    session: Option<SessionId>,
    code: Code,
    reason: &str,
) -> AgentOutput {
    AgentOutput::Close {
        connection,
        failure: Some(ConnectionFailure { session, code, reason: reason.to_string() }),
    }
}

impl Agent {
    pub(super) fn accepted(
        &mut self,
        now_ns: u64,
        connection: ConnectionId,
        (app, key, origin): (String, Option<CellKey>, Option<Origin>),
        local: Local,
        out: &mut Vec<AgentOutput>,
    ) {
        if self.draining {
            return out.push(reset(connection, None, Code::NoEdge, "the agent is stopping"));
        }
        if !self.has_room() {
            return out.push(reset(connection, None, Code::Busy, &self.no_room()));
        }
        let id = EndId { session: self.new_session(), server: false };
        let end = End::new(id.session, false, app)
            .with_datagrams(local.datagrams)
            .with_key(key)
            .with_origin(origin.map(Box::new))
            .with_checkpoints_max(self.config.checkpoints_max);
        let mut session = Session::new(end, now_ns);
        session.local = Local { id: Some(connection), open: true, ..local };
        self.connections.accept(connection, id);
        self.begin_session(id, session);
        self.lead(now_ns, id, out);
    }

    /// An unguessable id, except for the byte that selects the shard which its ends ask first. Shards are selected in
    /// turn: a random choice would give one of two shards a fifth more sessions than the other.
    fn new_session(&mut self) -> SessionId {
        let mut id = self.random.bytes();
        id[0] = self.turn;
        // Shards are chosen by its remainder: it starts again on purpose.
        self.turn = self.turn.wrapping_add(1);
        SessionId(id)
    }

    /// Connects the new server's end to its server.
    pub(super) fn connect(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        // What the cell has sent with the chosen log may have ended it.
        let Some(session) = self.sessions.get_mut(id) else { return };
        let connection = self.connections.request(id);
        session.local.id = Some(connection);
        let by_ns = now_ns + self.config.connect_timeout_ns;
        session.connect_by_ns = Some(by_ns);
        let (server, origin) = (session.server.clone(), session.end.origin().cloned());
        out.push(AgentOutput::Connect { connection, server, origin });
        self.sessions.arm(id, by_ns);
    }

    pub(super) fn connected(&mut self, now_ns: u64, connection: ConnectionId, out: &mut Vec<AgentOutput>) {
        let Some((id, session)) = self.by_connection(connection) else {
            trace!(AGENT, "resets connection {}: its session is over", connection.0);
            return out.push(reset(connection, None, Code::Forgotten, "the session is over"));
        };
        session.connect_by_ns = None;
        session.local.open = true;
        let waiting = core::mem::take(&mut session.local.waiting);
        let answered = session.local.is_flow() && waiting.contains(&None);
        let taken = waiting.into_iter().map(|bytes| session.local.deliver(bytes, out)).sum();
        self.taken(now_ns, id, taken, out);
        if answered {
            self.answered(now_ns, id, out);
        }
    }

    pub(super) fn connect_failed(
        &mut self,
        now_ns: u64,
        connection: ConnectionId,
        reason: String,
        out: &mut Vec<AgentOutput>,
    ) {
        if let Some((id, _)) = self.by_connection(connection) {
            self.connections.remove(connection);
            self.give_up(now_ns, id, Code::ServerDown, reason, out);
        } else {
            trace!(AGENT, "ignores that connection {} failed: its session is over", connection.0);
        }
    }

    pub(super) fn local_bytes(
        &mut self,
        now_ns: u64,
        connection: ConnectionId,
        bytes: Bytes,
        out: &mut Vec<AgentOutput>,
    ) {
        let mut effects = core::mem::take(&mut self.effects);
        let Some(id) = self.connections.end(connection) else {
            let len = bytes.len();
            return trace!(AGENT, "ignores {len} bytes of connection {}: its session is over", connection.0);
        };
        let Some(session) = self.sessions.known_mut(id) else { return };
        if Self::drops(&session.end, &bytes) {
            trace!(session.end.context(), "drops a datagram of {} bytes: there is no room", bytes.len());
            self.datagrams_dropped += 1;
            return;
        }
        session.active_ns = now_ns;
        session.end.send(bytes, &mut effects);
        session.count_memory(&mut self.budget, &mut effects);
        if !session.local.paused && !session.local.datagrams && !session.end.readable() {
            session.local.paused = true;
            out.push(AgentOutput::Reading { connection, on: false });
        }
        self.perform(now_ns, id, effects, out);
    }

    pub(super) fn local_end(&mut self, now_ns: u64, connection: ConnectionId, out: &mut Vec<AgentOutput>) {
        let mut effects = core::mem::take(&mut self.effects);
        let Some((id, session)) = self.by_connection(connection) else {
            return trace!(AGENT, "ignores the end of connection {}: its session is over", connection.0);
        };
        session.end.close(&mut effects);
        self.perform(now_ns, id, effects, out);
    }

    pub(super) fn local_broken(&mut self, now_ns: u64, connection: ConnectionId, out: &mut Vec<AgentOutput>) {
        if let Some((id, session)) = self.by_connection(connection) {
            let (complete, reason) = (session.end.complete(), broken(session.local.is_flow()));
            self.connections.remove(connection);
            if complete {
                // Both directions were closed; the program only closed its socket.
                if let Some(session) = self.sessions.get_mut(id) {
                    session.local.id = None;
                }
            } else {
                self.give_up(now_ns, id, Code::Reset, reason.into(), out);
            }
        } else {
            trace!(AGENT, "ignores that connection {} broke: its session is over", connection.0);
        }
    }

    pub(super) fn local_written(
        &mut self,
        now_ns: u64,
        connection: ConnectionId,
        bytes: u64,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some((id, session)) = self.by_connection(connection) else {
            return trace!(AGENT, "ignores {bytes} written bytes of connection {}", connection.0);
        };
        let taken = session.local.take(bytes);
        self.taken(now_ns, id, taken, out);
    }

    /// The program at this end is permanently gone: the owner is informed, now or once there is one.
    pub(super) fn give_up(
        &mut self,
        now_ns: u64,
        id: EndId,
        code: Code,
        reason: String,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        session.local.id = None;
        if let Some((wire, channel)) = session.attached {
            let ended = Ended { channel, code, reason: reason.clone() };
            out.push(AgentOutput::Send { wire, frame: ended.into() });
            self.end_session(now_ns, id, code, reason, out);
        } else if session.end.promised() == marram_wire::id::Generation::NONE {
            self.end_session(now_ns, id, code, reason, out);
        } else {
            session.local.broken = Some((code, reason));
            self.sessions.arm(id, now_ns);
        }
    }

    pub(super) fn taken(&mut self, now_ns: u64, id: EndId, taken: u64, out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        let mut effects = core::mem::take(&mut self.effects);
        session.end.taken(taken, &mut effects);
        self.perform(now_ns, id, effects, out);
    }

    /// Carries out the effects of an end.
    pub(super) fn perform(
        &mut self,
        now_ns: u64,
        id: EndId,
        mut effects: Vec<EndEffect>,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        session.count_memory(&mut self.budget, &mut effects);
        let (datagrams, flow) = (session.local.datagrams, session.local.is_flow());
        let (mut taken, mut answered, mut overflow) = (0, false, None);
        let mut sent = 0;
        for effect in effects.drain(..) {
            match effect {
                EndEffect::Send(frame) => {
                    if let Some((wire, _)) = session.attached {
                        sent += payload_size(&frame);
                        out.push(AgentOutput::Send { wire, frame });
                    } else {
                        trace!(session.end.context(), "does not send {}: it has no owner", frame.name());
                    }
                }
                EndEffect::Deliver(bytes) => {
                    session.active_ns = now_ns;
                    overflow = overflow.or_else(|| oversize(&bytes).filter(|_| datagrams));
                    if overflow.is_none() {
                        taken += session.local.deliver(Some(bytes), out);
                    }
                }
                EndEffect::DeliverClose => {
                    session.local.deliver(None, out);
                    // If the connection is not open yet, output still waits for it.
                    answered = flow && session.local.open;
                }
                EndEffect::Free(bytes) => out.push(AgentOutput::Free { bytes }),
            }
        }
        self.effects = effects;
        if let Some((wire, _)) = session.attached.filter(|_| sent >= SENT_COUNTED) {
            self.wires.sent(wire, sent);
        }
        if let Some(bug) = session.end.bug() {
            return self.end_for_bug(now_ns, id, bug, out);
        }
        if let Some(reason) = overflow {
            return self.overflowed(now_ns, id, reason, out);
        }
        if answered {
            self.answered(now_ns, id, out);
        }
        let Some(session) = self.sessions.known_mut(id) else { return };
        if session.local.paused && session.end.readable() {
            session.local.paused = false;
            self.budget.release(id);
            if let Some(connection) = session.local.id {
                out.push(AgentOutput::Reading { connection, on: true });
            }
        } else if session.local.paused && session.end.is_slowed() {
            self.budget.slow(id);
        }
        if taken > 0 {
            return self.taken(now_ns, id, taken, out);
        }
        if session.end.owes() && !session.acknowledging {
            session.acknowledging = true;
            self.sessions.arm(id, now_ns + ACK_DELAY_NS);
        }
    }

    /// The end of a session is in a state that only a bug explains: the session ends, and its owner is told.
    fn end_for_bug(&mut self, now_ns: u64, id: EndId, bug: Bug, out: &mut Vec<AgentOutput>) {
        let attached = self.sessions.get(id).and_then(|session| session.attached);
        if let Some((wire, channel)) = attached {
            let ended = Ended { channel, code: Code::Protocol, reason: bug.to_string() };
            out.push(AgentOutput::Send { wire, frame: ended.into() });
        }
        self.end_session(now_ns, id, Code::Protocol, bug.to_string(), out);
    }

    /// Removes a session and its program's connection: closed in order if both directions are closed, otherwise reset.
    pub(super) fn end_session(
        &mut self,
        now_ns: u64,
        id: EndId,
        code: Code,
        reason: String,
        out: &mut Vec<AgentOutput>,
    ) {
        self.forget_home(id);
        let Some(session) = self.sessions.remove(id) else {
            bug!("I36: a session ends once", id);
            return;
        };
        self.budget.remove(id, session.counted);
        trace!(session.end.context(), "ends: {code:?}: {reason}");
        if id.server {
            let linger_ms = session.end.terms().map_or(0, |terms| u64::from(terms.linger_ms));
            self.tombstones.add(now_ns + (linger_ms * 1_000_000).max(self.config.linger_ns), id.session);
        }
        // The other end removes the session only when every end has everything; its last frame may have been lost here.
        let code = if code == Code::Forgotten && session.end.complete() { Code::Finished } else { code };
        let channels = [session.attached, session.asking, session.silent];
        for bound in channels.into_iter().flatten().chain(session.stale) {
            self.wires.unbind(bound);
        }
        if let Some(connection) = session.local.id {
            self.connections.remove(connection);
            out.push(match session.end.complete() {
                true => AgentOutput::Close { connection, failure: None },
                false => reset(connection, Some(id.session), code, &reason),
            });
        }
        let lingered = session.lingered;
        out.extend(session.end.slow_to_free().map(|bytes| AgentOutput::Free { bytes }));
        out.push(AgentOutput::Report(AgentReport::Ended { session: id.session, code, reason, lingered }));
    }

    /// An edge that was asked ends the session. An owner that is left must end it as well, for the other end.
    pub(super) fn ended_by_another(
        &mut self,
        now_ns: u64,
        id: EndId,
        ended: Ended,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(session) = self.sessions.known(id) else { return };
        let Ended { code, reason, .. } = ended;
        let owners = [session.attached, session.silent].into_iter().flatten();
        for (wire, channel) in owners.filter(|owner| self.wires.bound(*owner).is_some()) {
            let ended = Ended { channel, code, reason: reason.clone() };
            out.push(AgentOutput::Send { wire, frame: ended.into() });
        }
        self.end_session(now_ns, id, code, reason, out);
    }

    fn by_connection(&mut self, connection: ConnectionId) -> Option<(EndId, &mut Session)> {
        let id = self.connections.end(connection)?;
        self.sessions.get_mut(id).map(|session| (id, session))
    }
}
