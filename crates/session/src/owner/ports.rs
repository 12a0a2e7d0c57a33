//! The clients of a shared cell: each end promises for itself, while the cell runs (docs/protocol-epochs.md, "Shared cells").
//!
//! The log says who joined, who came back under a newer generation, and who left. An end is told that this owner goes on only when
//! the backup has the entry that says so: the next owner then knows which generation to offer to it.

use super::{
    Now, Owner, OwnerEffect, OwnerPhase,
    client_port::{ClientPort, PortPhase},
    end_state::{EndState, Message},
    epochs::EpochRelease,
    sides::{Chore, ClientChange},
};
use crate::{credit::MessageCredit, trace};
use alloc::{boxed::Box, format, vec::Vec};
use marram_wire::{
    codec::Last,
    frame::{Channel, Chosen, Code, Finish, Frame, Input, Live, Promise, Promised, Truncate},
    id::{Generation, HostId, Port, SessionId},
    limits::{INPUTS_MAX, RETAINED_MAX, UNSENT_SHARED_MAX, charge},
    log::{Client, Joined, PortEvent},
    peer::Peer,
};

/// A client's end that has promised another edge is asked again so often in a row.
const AGAIN_MAX: u32 = 4;

/// One attempt to have a client's end promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttempt<'a> {
    /// The client's session, which is not the cell's.
    pub client: SessionId,
    /// The key of that session, which is required to resume it.
    pub key: [u8; 16],
    /// The generation: unique to this attempt, and newer than all of the client's before.
    pub generation: Generation,
    /// The attempt's channel to the end.
    pub channel: Channel,
    /// The agent of the end.
    pub host: HostId,
    /// Whether the end may accept the session as a new one.
    pub fresh: bool,
    /// Whether the requester has proved that it has the session's key.
    pub proven: bool,
    /// The verified identity of the end's agent, if it was verified.
    pub identity: Option<&'a str>,
}

impl Owner {
    /// The port of the client with this session, if the cell has one.
    #[must_use]
    pub fn port_of(&self, client: SessionId) -> Option<Port> {
        self.ends.port_of(client)
    }

    /// The port that [`Owner::ask_port`] will use for this client.
    #[must_use]
    pub fn port_for(&self, client: SessionId) -> Port {
        self.ends.port_of(client).unwrap_or_else(|| self.ends.free_port())
    }

    /// The client at this port, and the agent of its end.
    #[must_use]
    pub fn client_of(&self, port: Port) -> Option<(SessionId, HostId)> {
        let side = self.ends.client(port)?;
        Some((side.client.as_ref()?.client.session, side.host))
    }

    /// Clients, and servers, that came to the cell or went since this was asked last, in this order.
    #[must_use]
    pub fn take_client_changes(&mut self) -> Vec<ClientChange> {
        self.ends.take_client_changes()
    }

    /// The sessions of the cell's clients and servers, with their ports.
    pub fn clients(&self) -> impl Iterator<Item = (SessionId, Port)> {
        self.ends.clients()
    }

    /// Clients that the cell has, or is about to have.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.ends.client_count()
    }

    /// The generation of the channel to the end at this port: of a client's end, the newest that it was asked for; of another one, that
    /// of the owner. None if there is no such client.
    #[must_use]
    pub fn generation_of(&self, port: Port) -> Option<Generation> {
        if !self.about.is_shared_cell() {
            return Some(self.generation());
        }
        Some(self.ends.client(port)?.client.as_ref()?.asked)
    }

    /// Asks a client's end for its promise, over this channel. Returns its port; none if the cell does not know the client, and it does
    /// not begin.
    pub fn ask_port(&mut self, attempt: &PortAttempt<'_>, out: &mut Vec<OwnerEffect>) -> Option<Port> {
        let known = self.ends.port_of(attempt.client);
        if known.is_none() && !attempt.fresh {
            return None;
        }
        let port = self.port_for(attempt.client);
        if known.is_none() {
            let (session, host, generation) = (attempt.client, attempt.host, Generation::NONE);
            let mut side = EndState::new(port, host);
            side.client = Some(ClientPort::new(Client { session, host, generation }));
            self.ends.enter(side);
        }
        let log_end = self.log.end();
        let side = self.ends.client_at(port)?;
        // What was asked before is no more: frames of that channel are dropped.
        side.ask(None, false);
        let server = side.connection().map(|connection| connection.name.clone()).unwrap_or_default();
        if side.is_connecting() {
            // The log says later whose it is.
            side.host = attempt.host;
        }
        side.identity = attempt.identity.map(Into::into);
        let (took, produced) = (side.took, side.produced);
        let client = side.client.as_mut()?;
        (client.asked, client.phase) = (attempt.generation, PortPhase::Asked(attempt.channel));
        client.finishes = false;
        client.away_since_ns = None;
        client.pending.take_if(|event| !matches!(event, PortEvent::Left { .. }));
        let generation = client.client.generation;
        let live = Some(Live { generation, took, produced, log_end });
        let promise = Promise {
            channel: attempt.channel,
            session: attempt.client,
            generation: attempt.generation,
            app: self.about.policy.app.clone(),
            image: self.about.image,
            server,
            peer: None,
            key: attempt.key,
            fresh: attempt.fresh,
            proven: attempt.proven,
            keeps: self.about.policy.keeps,
            shared: true,
            // It belongs where the cell is.
            assigned: true,
            linger_ms: self.about.policy.linger_ms,
            live: live.filter(|_| generation != Generation::NONE),
            origin: None,
            promoted: Last(None),
        };
        trace!(self.context(), "asks the client at port {} for {}", port.0, attempt.generation);
        out.push(OwnerEffect::Send(port, promise.into()));
        Some(port)
    }

    /// A frame from a client's end, on the channel of the last attempt.
    pub(super) fn receive_at_port(&mut self, now: Now, port: Port, frame: Frame, out: &mut Vec<OwnerEffect>) {
        let Some(phase) = self.port_phase(port) else {
            return trace!(self.context(), "ignores {} of the absent port {}", frame.name(), port.0);
        };
        let failed = match frame {
            Frame::Promised(promised) => self.port_promised(now, port, promised, out),
            Frame::Input(input) => self.port_input(now, port, input, out),
            Frame::Credit(credit) if phase == PortPhase::Linked => {
                return self.port_credit(now, port, credit.received, credit.bytes, out);
            }
            Frame::Allowance(allowance) => {
                self.ends.client_at(port).into_iter().for_each(|side| side.allow(allowance.bytes));
                if self.phase() == OwnerPhase::Running {
                    self.forget_if_much(out);
                }
                Ok(())
            }
            Frame::Superseded(superseded) => {
                self.port_superseded(now, port, superseded.promised, out);
                Ok(())
            }
            Frame::Finished(_) if self.finishes_at(port) => {
                return self.end_client(now, port, (Code::Finished, "both sides are done"), out);
            }
            Frame::Ended(ended) if ended.code.is_retryable() || self.is_forgotten_early(port, ended.code) => {
                self.connection_refused(now, port, &ended.reason, out);
                Ok(())
            }
            Frame::Ended(ended) => {
                self.connection_over(port, ended.code, &ended.reason, out);
                self.client_leaves(port, &ended.reason);
                self.pump(now, out);
                Ok(())
            }
            _ => Err("an end sent a frame that is not allowed in this phase"),
        };
        if let Err(why) = failed {
            self.end_client(now, port, (Code::Protocol, why), out);
        }
    }

    fn port_phase(&mut self, port: Port) -> Option<PortPhase> {
        Some(self.ends.client_at(port)?.client.as_ref()?.phase)
    }

    fn finishes_at(&mut self, port: Port) -> bool {
        self.ends.client_at(port).and_then(|side| side.client.as_ref()).is_some_and(|client| client.finishes)
    }

    /// A client's end has promised. It sends the messages that it announces.
    fn port_promised(
        &mut self,
        now: Now,
        port: Port,
        promised: Promised,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), &'static str> {
        let Some(side) = self.ends.client_at(port) else { return Ok(()) };
        let is_new = side.client.as_ref().is_some_and(|it| it.client.generation == Generation::NONE);
        let is_asked = matches!(side.client.as_ref().map(|it| it.phase), Some(PortPhase::Asked(_)));
        // An end of this cell keeps messages alone.
        let keeps_more = promised.log_end > promised.log_start || !promised.checkpoints.is_empty();
        let begins = promised.sent_start == 0 && promised.received == 0;
        let sound = promised.sent_start <= promised.sent_end && !keeps_more && (begins || !is_new);
        if !is_asked || side.promised.is_some() || !sound {
            return Err("an end's promise is inconsistent");
        }
        side.next = promised.sent_start;
        (side.credited_from, side.input_credit) = (promised.sent_end, MessageCredit::default());
        side.promised = Some(promised);
        self.server_answers(now, port);
        self.enter_if_complete(now, port, out)
    }

    fn port_input(
        &mut self,
        now: Now,
        port: Port,
        input: Input,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), &'static str> {
        let Some(side) = self.ends.client_at(port) else { return Ok(()) };
        let is_asked = matches!(side.client.as_ref().map(|it| it.phase), Some(PortPhase::Asked(_)));
        let bound = RETAINED_MAX + INPUTS_MAX + charge(0);
        // Until it is told that this owner goes on, an end sends what it announced and no more.
        let is_linked = side.channel.is_some();
        let announced = side.promised.as_ref().is_some_and(|it| is_linked || side.next < it.sent_end);
        if side.inputs_charge + charge(input.payload.len()) > bound || !announced {
            return Err("an end sends more than it was granted");
        }
        side.push_input(Message { close: input.close, payload: input.payload });
        if is_asked {
            self.server_answers(now, port);
            return self.enter_if_complete(now, port, out);
        }
        if input.ack > 0 {
            self.port_credit(now, port, input.ack, 0, out);
        }
        self.pump(now, out);
        Ok(())
    }

    /// A client's end has promised and sent all that it announced: the log is to say so.
    fn enter_if_complete(
        &mut self,
        now: Now,
        port: Port,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), &'static str> {
        let Some(side) = self.ends.client_at(port) else { return Ok(()) };
        let Some(promised) = side.promised.as_ref().filter(|it| side.next == it.sent_end) else {
            return Ok(());
        };
        let (received, window) = (promised.received, promised.window);
        let peer = Peer::new(promised.origin.as_deref(), side.identity.as_deref()).map(Into::into);
        let (datagrams, host) = (promised.datagrams, side.host);
        if !side.drop_covered() || !side.resume(received, window) {
            return Err("an end does not go on where the cell stands");
        }
        // The entry with which it joins may be running.
        let is_open = self.ends.at(port).is_some_and(|side| !side.is_connecting());
        let is_cancelled = self.ends.at(port).is_some_and(EndState::is_cancelled);
        let Some(client) = self.ends.client_at(port).and_then(|side| side.client.as_mut()) else {
            return Ok(());
        };
        let PortPhase::Asked(channel) = client.phase else { return Ok(()) };
        client.phase = PortPhase::Entering(channel);
        let generation = client.asked;
        if client.leaves() || is_cancelled {
            // It leaves all the same.
        } else if !is_open {
            let joined = Client { generation, host, ..client.client.clone() };
            // Of a server the cell knows what it has asked for.
            let peer = peer.filter(|_| !port.is_from_connect());
            client.pending =
                Some(PortEvent::Joined(Box::new(Joined { port, client: joined, datagrams, peer })));
        } else {
            client.pending = Some(PortEvent::Resumed { port, generation });
        }
        self.pump(now, out);
        Ok(())
    }

    /// An entry that says something of a port is logged, up to here.
    pub(super) fn port_logged(&mut self, event: &PortEvent, out: &mut Vec<OwnerEffect>) {
        let log_end = self.log.end();
        let Some(side) = self.ends.client_at(event.port()) else { return };
        let is_done = side.is_done();
        let Some(client) = side.client.as_mut() else { return };
        let generation = match event {
            PortEvent::Joined(joined) => {
                client.client.host = joined.client.host;
                joined.client.generation
            }
            PortEvent::Resumed { generation, .. } => *generation,
            PortEvent::Expelled { .. } => return,
            PortEvent::Left { port, .. } => {
                // Its end may have come back meanwhile. One that was done and did not hear it has lost nothing.
                let code = if client.expelled {
                    Code::Guest
                } else if is_done {
                    Code::Finished
                } else {
                    Code::Lost
                };
                return self.tell_ended(*port, code, "the client has left the cell", out);
            }
        };
        client.client.generation = generation;
        // Its end may have been asked again since.
        if client.asked == generation
            && let PortPhase::Entering(channel) = client.phase
        {
            client.phase = PortPhase::Confirming(channel, log_end);
        }
    }

    /// Everything up to this log offset is at the backup, or need not be: ends whose promise is logged before it are told that this owner
    /// goes on. They are to be looked at when they have been sent what may leave: one may have had everything when it went away.
    pub(super) fn link_ports(&mut self, now: Now, log_offset: u64, out: &mut Vec<OwnerEffect>) {
        self.ends.ports_kept(log_offset);
        if self.ends.ports.is_none() || self.phase() != OwnerPhase::Running {
            return;
        }
        self.ask_servers(now, out);
        let session_ns = self.runner.session_ns(now, &self.log);
        let (window, tag) = (self.ends.share.window(), self.log.tag());
        let clients = self.ends.paused_clients();
        let confirming: Vec<Port> = self.ends.queues().confirming.iter().copied().collect();
        for port in confirming {
            let Some(index) = self.ends.index(port) else { continue };
            let side = &mut self.ends[index];
            let Some(client) = side.client.as_mut() else { continue };
            let PortPhase::Confirming(channel, offset) = client.phase else { continue };
            if offset > log_offset {
                continue;
            }
            (client.phase, client.again) = (PortPhase::Linked, 0);
            client.connection.iter_mut().for_each(|connection| connection.linked());
            side.channel = Some(channel);
            let is_paused = self.state.pauses().stops(side.port, clients);
            let credit = side.begin_credit(window, is_paused);
            let log_offset = side.promised.as_ref().map_or(0, |promised| promised.log_end);
            let log = bytes::Bytes::new();
            let chosen = Chosen { channel, log_offset, log, tag, credit, session_ns, runs_ahead: Last(None) };
            out.push(OwnerEffect::Send(side.port, chosen.into()));
            // It was not told while it was away.
            let sent = self.epochs.kept().mark(side.port).took;
            let truncate = Truncate { channel, log_offset: 0, tag: [0; 8], sent };
            out.push(OwnerEffect::Send(side.port, truncate.into()));
        }
    }

    /// A client's end acknowledges outputs, and grants credit for more.
    fn port_credit(&mut self, now: Now, port: Port, received: u64, bytes: u64, out: &mut Vec<OwnerEffect>) {
        let Some(index) = self.ends.index(port) else { return };
        if let Err(why) = self.take_credit(index, received, bytes) {
            return self.end_client(now, port, (Code::Protocol, why), out);
        }
        self.replicas.feed_received(received, &self.ends, out);
        if self.phase() == OwnerPhase::Running {
            self.seal_if_settled(out);
            if !self.holds_outputs() {
                self.release_to(index, out);
            }
            self.look_at(now, [index], out);
            // The room that it made lets its own messages in, and no other's.
            if self.ends.at(port).is_some_and(|side| !side.inputs.is_empty()) {
                self.pump(now, out);
            }
        }
    }

    /// Finishes with the clients that are done, and ends those that do not take what is sent to them.
    pub(super) fn look_at_clients(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.ends.ports.is_some() {
            let changed = self.ends.visit(Chore::Look);
            self.look_at(now, changed, out);
        }
    }

    /// The same, of the clients at these indices.
    ///
    /// The end of one that is done says first that it has everything: one that is away then comes back, and hears it from this owner or
    /// the next one. Had the log said before that it left, none would know that it was done.
    fn look_at(&mut self, now: Now, clients: impl IntoIterator<Item = usize>, out: &mut Vec<OwnerEffect>) {
        let mut slow = Vec::new();
        for index in clients {
            let side = self.ends.quietly(index);
            let (channel, is_slow) = (side.channel.filter(|_| side.may_finish()), side.is_slow());
            slow.extend(is_slow.then_some(side.port));
            if let (Some(channel), Some(client)) = (channel, &mut side.client) {
                client.finishes = true;
                out.push(OwnerEffect::Send(side.port, Finish { channel }.into()));
            }
        }
        for port in slow {
            let what = if port.is_from_connect() { "server" } else { "client" };
            let why = format!(
                "more than {UNSENT_SHARED_MAX} bytes waited for a {what} that reads too slowly; its cell is shared"
            );
            self.end_client(now, port, (Code::Guest, &why), out);
        }
    }

    /// Ends a client's session for good: its end is told, and the log is to say that it left.
    pub fn end_client(
        &mut self,
        now: Now,
        port: Port,
        (code, reason): (Code, &str),
        out: &mut Vec<OwnerEffect>,
    ) {
        trace!(self.context(), "ends the client at port {}: {code:?}: {reason}", port.0);
        self.connection_over(port, code, reason, out);
        self.tell_ended(port, code, reason, out);
        self.client_leaves(port, reason);
        self.pump(now, out);
    }

    /// The log is to say that the client left. One that has not joined is forgotten.
    fn client_leaves(&mut self, port: Port, reason: &str) {
        trace!(self.context(), "the client at port {} leaves: {reason}", port.0);
        let is_open = self.ends.index(port).is_some();
        let Some(side) = self.ends.client_at(port) else { return };
        side.channel = None;
        let Some(client) = side.client.as_mut() else { return };
        client.phase = PortPhase::Away;
        if !is_open {
            return self.ends.forget_entering(port);
        }
        client.pending = Some(PortEvent::Left { port, quietly: false });
    }

    /// The connection to a client's end is gone.
    pub(super) fn port_away(&mut self, port: Port, why: &str) {
        trace!(self.context(), "the client at port {} is away: {why}", port.0);
        let is_open = self.ends.index(port).is_some();
        let Some(side) = self.ends.client_at(port) else { return };
        side.channel = None;
        let Some(client) = side.client.as_mut() else { return };
        (client.phase, client.away_since_ns) = (PortPhase::Away, None);
        if !is_open {
            // Its end asks again, as for a new session.
            return self.ends.forget_entering(port);
        }
        client.pending.take_if(|event| event.is_of_promise());
    }

    /// A client's end has promised another generation. If the group's claim lets this owner go on, it may ask again.
    fn port_superseded(&mut self, now: Now, port: Port, promised: Generation, out: &mut Vec<OwnerEffect>) {
        let client = self.ends.client_at(port).and_then(|side| side.client.as_ref());
        let Some((session, asked)) = client.map(|client| (client.client.session, client.asked)) else {
            return;
        };
        self.port_away(port, "it has promised another edge");
        let client = self.ends.client_at(port).and_then(|side| side.client.as_mut());
        let is_tired = client.is_some_and(|client| {
            client.again += 1;
            client.again > AGAIN_MAX
        });
        if is_tired && self.ends.at(port).is_some_and(EndState::is_connecting) {
            return self.connection_refused(now, port, "its agent goes on with another edge", out);
        }
        // Two owners that each believe in their claim would ask in turn for ever; an end asks by itself after a random wait. One that has
        // handed the cell over waits for the claim.
        let is_cancelled = self.ends.at(port).is_some_and(EndState::is_cancelled);
        if promised > asked && !is_tired && !is_cancelled && !self.holds_outputs() && !self.is_handed_over() {
            out.push(OwnerEffect::AskPort(session, promised.count));
        }
    }

    /// Clients that were away for too long leave. Servers do so elsewhere, since they do not come by themselves ([`Owner::ask_servers`]).
    pub(super) fn clients_due(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.ends.ports.is_none() || self.phase() != OwnerPhase::Running {
            return;
        }
        let linger_ns = u64::from(self.about.policy.linger_ms) * 1_000_000;
        let is_due = |since_ns: u64| since_ns.saturating_add(linger_ns) <= now.mono_ns;
        let away = self.ends.queues().away.iter();
        let due: Vec<_> = away.take_while(|(since_ns, _)| since_ns.is_none_or(is_due)).copied().collect();
        let mut over = Vec::new();
        for (since_ns, port) in due {
            let client = self.ends.client_at(port).and_then(|side| side.client.as_mut());
            client.into_iter().for_each(|client| client.away_since_ns = since_ns.or(Some(now.mono_ns)));
            over.extend(is_due(since_ns.unwrap_or(now.mono_ns)).then_some(port));
        }
        for port in over {
            let why = "the client did not come back within the app's linger time";
            self.end_client(now, port, (Code::Lost, why), out);
        }
    }

    /// When a client that is away is to leave, or is to be looked at, in monotonic nanoseconds.
    pub(super) fn clients_due_ns(&mut self) -> Option<u64> {
        self.ends.ports.as_ref()?;
        let linger_ns = u64::from(self.about.policy.linger_ms) * 1_000_000;
        let (since_ns, _) = self.ends.queues().away.first()?;
        Some(since_ns.map_or(0, |since_ns| since_ns.saturating_add(linger_ns)))
    }

    /// The cell runs: each client's end is to be asked for its promise. One that the last owner had expelled leaves.
    pub(super) fn ask_all_ports(&mut self, out: &mut Vec<OwnerEffect>) {
        for side in self.ends.iter_mut() {
            let expelled = side.client.as_mut().filter(|client| client.expelled && !client.leaves());
            let left = PortEvent::Left { port: side.port, quietly: false };
            expelled.into_iter().for_each(|client| client.pending = Some(left.clone()));
        }
        // Of servers, each when it is due.
        let away = |side: &&EndState| {
            let client = side.client.as_ref().filter(|client| client.connection.is_none());
            client.is_some_and(|client| client.phase == PortPhase::Away && !client.leaves())
        };
        for side in self.ends.iter().filter(away) {
            let client = side.client.as_ref();
            out.extend(client.map(|it| OwnerEffect::AskPort(it.client.session, it.asked.count)));
        }
    }

    /// Whether confirmations are not needed.
    pub(super) fn runs_alone(&self) -> bool {
        self.epoch_release() == EpochRelease::Alone
    }
}

impl EndState {
    /// Whether its client is to be asked to say that it has everything.
    pub(super) fn may_finish(&self) -> bool {
        let may = |client: &ClientPort| !client.leaves() && !client.finishes;
        self.is_done() && self.channel.is_some() && self.client.as_deref().is_some_and(may)
    }

    /// Whether its client does not take what is sent to it. What waits for the backup is no fault of the client, and there may always be
    /// something that does.
    pub(super) fn is_slow(&self) -> bool {
        let stays = self.client.as_ref().is_some_and(|client| !client.leaves());
        stays
            && self.unsent_charge > UNSENT_SHARED_MAX
            && self.unsent_charge > UNSENT_SHARED_MAX + self.unlogged_charge()
    }
}
