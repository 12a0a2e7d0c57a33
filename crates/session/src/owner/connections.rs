//! The servers to which a shared cell connects (docs/protocol-epochs.md, "Servers of a shared cell").
//!
//! A handler asks for a connection, which is one of its outputs: the port is there from the end of its entry on, and no agent is asked
//! before that entry is kept elsewhere. From then on the server's end is one as those of clients are, which does not ask by itself: the
//! owner asks it again and again while it is away.

use super::{
    Now, Owner, OwnerEffect, OwnerPhase,
    client_port::{ClientPort, PortPhase},
    end_state::EndState,
    ends::Ends,
};
use crate::trace;
use alloc::{boxed::Box, format, string::String, vec::Vec};
use marram_wire::{
    frame::{Code, Reject},
    header::{ConnectedServer, Many, PortState},
    id::{Generation, HostId, Port, SessionId},
    limits::{CONNECT_ANSWER_NS, CONNECT_NS, CONNECTIONS_MAX},
    log::{Client, Joined},
};

/// The end of a server that is away is asked again after this time.
const ASK_AGAIN_NS: u64 = 500_000_000;
const _: () = assert!(4 * ASK_AGAIN_NS <= CONNECT_NS, "an agent that comes late is asked in time");
const _: () =
    assert!(2 * CONNECT_ANSWER_NS <= CONNECT_NS, "behind an agent that is silent another one is asked");

/// The server at a port.
#[derive(Debug)]
pub(super) struct Connection {
    /// The server's name.
    pub(super) name: String,
    /// Whether the log says that its end has joined, or is about to say it.
    pub(super) is_reached: bool,
    /// The end of the log's entry that asked for it. None while that one runs.
    behind: Option<u64>,
    /// The end of the log's entry in which the cell has closed it before it was reached.
    closed_behind: Option<u64>,
    /// When an agent was asked last.
    asked_ns: Option<u64>,
    /// For how long this owner could ask, and none has taken it or its agent was away, and up to when that is counted.
    waited_ns: u64,
    counted_ns: Option<u64>,
    /// Why the last agent did not take it, and which one that was since the first of them was asked.
    refusal: Option<String>,
    refused_by: Option<HostId>,
    /// Whether operators were told that it is over.
    is_told: bool,
}

/// On what depends what an owner does about a server.
#[derive(Clone, Copy)]
struct Asking {
    /// All log before this offset is kept elsewhere.
    kept: u64,
    /// Whether the owner may ask.
    may_ask: bool,
    /// The app's linger time.
    linger_ns: u64,
}

/// What an owner does about the server at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnectionStep {
    /// Asks an agent.
    Ask,
    /// The agent that was asked does not answer.
    Unanswered,
    /// None has taken it for too long, or its agent was away for too long.
    GiveUp,
    /// The cell has closed it.
    Cancel,
}

/// A server of a shared cell, as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellServer<'a> {
    /// The server's name.
    pub name: &'a str,
    /// The agent of its end, once the log has it.
    pub agent: Option<HostId>,
    /// Before that: the last agent that has not taken it. Of the others, those behind it are asked.
    pub refused_by: Option<HostId>,
    /// How far it is.
    pub state: CellServerState,
    /// Bytes of messages that its agent has not acknowledged.
    pub waiting_bytes: u64,
}

/// What is on its way from a shared cell to servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwedToServers {
    /// How many messages their agents have acknowledged so far.
    pub taken: u64,
    /// Whether it waits for the cell's backup, or a claim.
    pub is_held: bool,
}

/// How far a shared cell's connection to a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CellServerState {
    /// No agent has taken it.
    Connecting,
    /// It is open, and the owner has a channel to its end.
    Connected,
    /// It is open, and its agent is away.
    Away,
    /// It is over, which the log is to say.
    Leaving,
}

impl Connection {
    fn new(name: String, is_reached: bool, behind: Option<u64>) -> Box<Self> {
        Box::new(Self {
            name,
            is_reached,
            behind,
            closed_behind: None,
            asked_ns: None,
            waited_ns: 0,
            counted_ns: None,
            refusal: None,
            refused_by: None,
            is_told: false,
        })
    }

    /// Its end goes on with this owner: when it is away again, it is asked at once.
    pub(super) fn linked(&mut self) {
        (self.asked_ns, self.refusal, self.refused_by) = (None, None, None);
        self.count_from_now();
    }

    /// Time counts from now on.
    pub(super) fn count_from_now(&mut self) {
        (self.waited_ns, self.counted_ns) = (0, None);
    }

    /// Time has passed in which this owner could ask, if it `counts`. Time in which it did not look does not count.
    fn count_wait(&mut self, now_ns: u64, counts: bool) {
        let since_ns = self.counted_ns.take().filter(|_| counts);
        self.waited_ns += since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns).min(ASK_AGAIN_NS));
        self.counted_ns = counts.then_some(now_ns);
    }

    /// When the time is to be counted that it waits.
    fn count_due_ns(&self, linger_ns: u64) -> u64 {
        let left_ns = self.patience_ns(linger_ns).saturating_sub(self.waited_ns);
        self.counted_ns.map_or(0, |counted_ns| counted_ns.saturating_add(left_ns.min(ASK_AGAIN_NS)))
    }

    /// How long it may wait.
    fn patience_ns(&self, linger_ns: u64) -> u64 {
        if self.is_reached { linger_ns } else { CONNECT_NS }
    }

    /// So long after an agent was asked.
    fn asked_before_ns(&self, ns: u64) -> u64 {
        self.asked_ns.map_or(0, |asked_ns| asked_ns.saturating_add(ns))
    }
}

impl EndState {
    /// The server at this port.
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.client.as_ref()?.connection.as_deref()
    }

    /// Whether it is a server that is not reached yet: no peer is there.
    pub(super) fn is_connecting(&self) -> bool {
        self.connection().is_some_and(|connection| !connection.is_reached)
    }

    /// Whether the cell has closed it before it was reached: it is not reached any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_connecting() && self.connection().is_some_and(|connection| connection.closed_behind.is_some())
    }

    /// Whether no agent was asked for it before the entry that asked for it was kept elsewhere: the log before this offset is.
    pub(super) fn is_asked_in_time(&self, kept_to: u64) -> bool {
        let Some(connection) = self.connection() else { return true };
        let is_asked = self.client.as_ref().is_some_and(|client| client.asked != Generation::NONE);
        !is_asked || connection.behind.is_some_and(|behind| behind <= kept_to)
    }

    /// Whether the time counts that its server is not reached, or its agent is away: an owner that may ask could reach it.
    fn waits_for_agent(&self, kept: u64) -> bool {
        let waits = |client: &ClientPort| matches!(client.phase, PortPhase::Away | PortPhase::Asked(_));
        let waits = self.client.as_deref().is_some_and(waits);
        !self.is_cancelled() && self.is_askable(kept) && waits && !self.is_coming_back()
    }

    /// Whether the end of a server that was reached has promised, and may take its time to send what it keeps.
    fn is_coming_back(&self) -> bool {
        let is_asked = |client: &ClientPort| matches!(client.phase, PortPhase::Asked(_));
        self.promised.is_some() && !self.is_connecting() && self.client.as_deref().is_some_and(is_asked)
    }

    fn is_askable(&self, kept: u64) -> bool {
        let stays = self.client.as_ref().is_some_and(|client| !client.leaves());
        stays && self.connection().and_then(|it| it.behind).is_some_and(|behind| behind <= kept)
    }

    /// What an owner is to do here next, and when.
    fn connection_step(&self, asking: Asking) -> Option<(u64, ConnectionStep)> {
        let (connection, client) = (self.connection()?, self.client.as_ref()?);
        if self.is_cancelled() {
            let is_kept = connection.closed_behind.is_some_and(|behind| behind <= asking.kept);
            return (is_kept && !client.leaves()).then_some((0, ConnectionStep::Cancel));
        }
        if !asking.may_ask || !self.is_askable(asking.kept) {
            return None;
        }
        let late = connection.waited_ns >= connection.patience_ns(asking.linger_ns) && !self.is_coming_back();
        match client.phase {
            PortPhase::Away | PortPhase::Asked(_) if late => Some((0, ConnectionStep::GiveUp)),
            PortPhase::Away => Some((connection.asked_before_ns(ASK_AGAIN_NS), ConnectionStep::Ask)),
            PortPhase::Asked(_) => {
                Some((connection.asked_before_ns(CONNECT_ANSWER_NS), ConnectionStep::Unanswered))
            }
            PortPhase::Entering(_) | PortPhase::Confirming(..) | PortPhase::Linked => None,
        }
    }

    /// An entry is complete, which ends here in the log. If the cell has closed the port in it, before an agent has taken the connection,
    /// none is to take it.
    fn connection_logged(&mut self, log_end: u64) {
        if !self.is_connecting() || !self.output_closed {
            return;
        }
        let Some(client) = &mut self.client else { return };
        client.pending.take_if(|event| event.is_of_promise());
        let connection = client.connection.as_mut();
        connection.into_iter().for_each(|it| _ = it.closed_behind.get_or_insert(log_end));
    }
}

impl Ends {
    /// The sides of servers to which the cell has connected, or connects.
    pub(super) fn connections(&self) -> &[EndState] {
        self.at_and_behind(Port::FIRST_CONNECTED)
    }

    /// A handler connects to this server. False if it must not.
    pub(super) fn connect(&mut self, port: Port, name: &str) -> bool {
        let is_full = self.connections().len() >= CONNECTIONS_MAX;
        let is_free = port.is_from_connect() && self.index(port).is_none();
        let Some(list) = self.ports.as_mut().filter(|_| is_free && !is_full) else { return false };
        list.connected.push(port);
        let session = SessionId::of_connection(list.cell, port);
        let client = Client { session, host: HostId::default(), generation: Generation::NONE };
        self.insert(EndState::of_connection(port, client, Connection::new(name.into(), false, None)));
        true
    }

    /// An entry is complete, which ends here in the log; in replay all log is kept.
    pub(super) fn connections_logged(&mut self, log_end: Option<u64>) {
        let Some(list) = &mut self.ports else { return };
        for port in core::mem::take(&mut list.connected) {
            let side = self.index(port).map(|index| self.quietly(index));
            let client = side.and_then(|side| side.client.as_mut());
            let connection = client.and_then(|client| client.connection.as_mut());
            connection.into_iter().for_each(|it| it.behind = Some(log_end.unwrap_or(0)));
        }
        let is_closed = |side: &&EndState| side.is_connecting() && side.output_closed && !side.is_cancelled();
        let closed: Vec<Port> = self.connections().iter().filter(is_closed).map(|side| side.port).collect();
        for port in closed {
            self.client_at(port).into_iter().for_each(|side| side.connection_logged(log_end.unwrap_or(0)));
        }
    }

    /// The entry that runs did not happen: what its handlers connected to is gone, and a server that it was about to say of that it
    /// is reached is not.
    pub(super) fn undo_connections(&mut self) {
        let Some(list) = &mut self.ports else { return };
        let connected = core::mem::take(&mut list.connected);
        connected.into_iter().for_each(|port| self.remove(port));
        let ports: Vec<Port> = self.connections().iter().map(|side| side.port).collect();
        for port in ports {
            let Some(client) = self.client_at(port).and_then(|side| side.client.as_mut()) else { continue };
            let is_reached = client.client.generation != Generation::NONE;
            client.connection.iter_mut().for_each(|connection| connection.is_reached = is_reached);
        }
    }

    /// The log says that an agent has taken the connection at this port. False if there is none that waits for it.
    pub(super) fn reached(&mut self, joined: &Joined) -> bool {
        let Some(index) = self.index(joined.port).filter(|index| self.list()[*index].is_connecting()) else {
            return false;
        };
        let side = &mut self[index];
        side.host = joined.client.host;
        let connection = side.client.as_mut().and_then(|client| client.connection.as_mut());
        if let Some(connection) = connection {
            connection.is_reached = true;
            connection.count_from_now();
        }
        true
    }

    /// The names of the servers, as a checkpoint has them.
    pub(super) fn to_servers(&self) -> Many<ConnectedServer> {
        let server = |side: &EndState| {
            Some(ConnectedServer { port: side.port, name: side.connection()?.name.clone() })
        };
        Many(self.connections().iter().filter_map(server).collect())
    }
}

impl EndState {
    /// As in a checkpoint, which another edge has.
    pub(super) fn restore_client(&mut self, state: PortState) {
        self.restore(state);
        self.connection_logged(0);
    }

    fn of_connection(port: Port, client: Client, connection: Box<Connection>) -> Self {
        let mut side = Self::new(port, client.host);
        let mut client = ClientPort::new(client);
        client.connection = Some(connection);
        side.client = Some(client);
        side
    }

    /// As in a checkpoint, which has the server's name if it is one.
    pub(super) fn of_client(port: Port, client: Client, server: Option<String>) -> Self {
        let is_reached = client.generation != Generation::NONE;
        match server {
            Some(name) => Self::of_connection(port, client, Connection::new(name, is_reached, Some(0))),
            None => {
                let mut side = Self::new(port, client.host);
                side.client = Some(ClientPort::new(client));
                side
            }
        }
    }
}

impl Owner {
    /// The server at this port of a shared cell.
    #[must_use]
    pub fn server_at(&self, port: Port) -> Option<CellServer<'_>> {
        let side = self.ends.at(port)?;
        let connection = side.connection()?;
        let agent = connection.is_reached.then_some(side.host);
        let state = if side.client.as_ref().is_some_and(|client| client.leaves()) || side.is_cancelled() {
            CellServerState::Leaving
        } else if !connection.is_reached {
            CellServerState::Connecting
        } else if side.channel.is_some() {
            CellServerState::Connected
        } else {
            CellServerState::Away
        };
        let (refused_by, waiting_bytes) = (connection.refused_by, side.outbox_charge);
        Some(CellServer { name: &connection.name, agent, refused_by, state, waiting_bytes })
    }

    /// Servers to which a shared cell has connected, or connects.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.ends.connections().len()
    }

    /// What is on its way to servers, if something is: the cell is not over before all has arrived, unless their agents take nothing.
    #[must_use]
    pub fn owed_to_servers(&self) -> Option<OwedToServers> {
        let connections = self.ends.connections();
        let owes = connections.iter().any(|side| !side.outbox.is_empty());
        let taken = || connections.iter().map(EndState::acknowledged).sum();
        owes.then(|| OwedToServers { taken: taken(), is_held: self.holds_outputs() })
    }

    /// The servers whose agents have not acknowledged everything.
    pub fn servers_owed(&self) -> impl Iterator<Item = &str> {
        let owed = self.ends.connections().iter().filter(|side| !side.outbox.is_empty());
        owed.filter_map(|side| Some(&*side.connection()?.name))
    }

    /// An agent for this server may have come: those that wait for it are asked now.
    pub fn ask_servers_again(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        for port in self.server_ports() {
            let client = self.ends.at(port).and_then(|side| side.client.as_ref());
            let is_away = client.is_some_and(|client| client.phase == PortPhase::Away);
            let connection = self.connection_mut(port).filter(|_| is_away);
            connection.into_iter().for_each(|connection| connection.asked_ns = None);
        }
        self.ask_servers(now, out);
    }

    /// Asks the ends of servers that are away and may be asked, and gives up those that were not reached for too long, or that the cell has
    /// closed.
    pub(super) fn ask_servers(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.phase() != OwnerPhase::Running {
            return;
        }
        for port in self.server_ports() {
            let Some((side, asking)) = self.server_side(port) else { continue };
            let counts = asking.may_ask && side.waits_for_agent(asking.kept);
            let Some(connection) = self.connection_mut(port) else { continue };
            connection.count_wait(now.mono_ns, counts);
            let step = self.server_side(port).and_then(|(side, asking)| side.connection_step(asking));
            if let Some((_, step)) = step.filter(|(due_ns, _)| *due_ns <= now.mono_ns) {
                self.take_step(now, port, step, out);
            }
        }
    }

    fn take_step(&mut self, now: Now, port: Port, step: ConnectionStep, out: &mut Vec<OwnerEffect>) {
        let Some(connection) = self.connection_mut(port) else { return };
        match step {
            ConnectionStep::Ask => {
                connection.refused_by = None;
                self.ask_server(now, port, out);
            }
            // Its end has said hello.
            ConnectionStep::Unanswered if connection.asked_ns.is_none() => {
                connection.asked_ns = Some(now.mono_ns)
            }
            ConnectionStep::Unanswered => {
                let reason = format!("its agent did not answer in {} s", CONNECT_ANSWER_NS / 1_000_000_000);
                self.leave_agent(port, &reason, out);
                self.connection_refused(now, port, &reason, out);
            }
            ConnectionStep::GiveUp if connection.is_reached => {
                let over = "its agent did not come back within the app's linger time";
                self.connection_over(port, Code::Lost, over, out);
                let told = "the server's agent did not come back within the app's linger time";
                self.end_client(now, port, (Code::Lost, told), out);
            }
            ConnectionStep::GiveUp => {
                let why = connection.refusal.take();
                let why = why.unwrap_or_else(|| "no agent that reaches it is connected to this edge".into());
                let over = format!("it was not reached in {} s: {why}", CONNECT_NS / 1_000_000_000);
                self.connection_over(port, Code::Lost, &over, out);
                let told = (Code::Lost, "the cell does not wait for the server any longer");
                self.end_client(now, port, told, out);
            }
            ConnectionStep::Cancel => {
                self.end_client(
                    now,
                    port,
                    (Code::Finished, "the cell has closed it before it was open"),
                    out,
                );
            }
        }
    }

    /// An owner that may have been replaced asks none: it would take the end from the next one.
    pub(super) fn may_ask_servers(&self) -> bool {
        self.phase() == OwnerPhase::Running && !self.holds_outputs() && !self.is_handed_over()
    }

    fn server_ports(&self) -> Vec<Port> {
        self.ends.connections().iter().map(|side| side.port).collect()
    }

    /// The server's side at this port, and on what depends what is done about it. None if it leaves with the entry that runs.
    fn server_side(&self, port: Port) -> Option<(&EndState, Asking)> {
        let list = self.ends.ports.as_ref().filter(|list| list.leaving != Some(port))?;
        let (kept, may_ask) = (list.kept, self.may_ask_servers());
        let linger_ns = u64::from(self.about.policy.linger_ms) * 1_000_000;
        Some((self.ends.at(port)?, Asking { kept, may_ask, linger_ns }))
    }

    /// An agent is asked for the connection at this port, if one serves the server that is not passed over.
    fn ask_server(&mut self, now: Now, port: Port, out: &mut Vec<OwnerEffect>) {
        self.connection_mut(port).into_iter().for_each(|connection| connection.asked_ns = Some(now.mono_ns));
        let client = self.ends.at(port).and_then(|side| side.client.as_ref());
        out.extend(client.map(|client| OwnerEffect::AskPort(client.client.session, client.asked.count)));
    }

    /// The end of a server that was asked has promised, or sends what it keeps: it is waited for as long as it does.
    pub(super) fn server_answers(&mut self, now: Now, port: Port) {
        self.connection_mut(port).into_iter().for_each(|connection| connection.asked_ns = Some(now.mono_ns));
    }

    /// The agent that was asked is not waited for: what it answers now finds no channel.
    fn leave_agent(&mut self, port: Port, reason: &str, out: &mut Vec<OwnerEffect>) {
        let client = self.ends.at(port).and_then(|side| side.client.as_ref());
        if let Some(channel) = client.and_then(|client| client.channel(None)) {
            let reject = Reject { channel, code: Code::Waiting, reason: reason.into() };
            out.push(OwnerEffect::Send(port, reject.into()));
        }
    }

    /// When a server's end is to be asked next, or given up, in monotonic nanoseconds.
    pub(super) fn servers_due_ns(&self) -> Option<u64> {
        if self.ends.connections().is_empty() || self.phase() != OwnerPhase::Running {
            return None;
        }
        let due = self.server_ports().into_iter().filter_map(|port| {
            let (side, asking) = self.server_side(port)?;
            let (step_ns, _) = side.connection_step(asking)?;
            let waits = side.waits_for_agent(asking.kept);
            let count_ns = side
                .connection()
                .filter(|_| waits)
                .map_or(u64::MAX, |connection| connection.count_due_ns(asking.linger_ns));
            Some(step_ns.min(count_ns))
        });
        due.min()
    }

    fn connection_mut(&mut self, port: Port) -> Option<&mut Connection> {
        let index = self.ends.index(port)?;
        self.ends.quietly(index).client.as_mut()?.connection.as_deref_mut()
    }

    /// The agent that was asked for the end at this port does not take it now, for this reason. Before the log says which agent has the end
    /// of a server, the next one is asked.
    pub(super) fn connection_refused(
        &mut self,
        now: Now,
        port: Port,
        reason: &str,
        out: &mut Vec<OwnerEffect>,
    ) {
        self.port_away(port, reason);
        let Some(side) = self.ends.at(port) else { return };
        let (host, is_connecting) = (side.host, side.is_connecting() && !side.is_cancelled());
        let is_askable = self.server_side(port).is_some_and(|(side, asking)| side.is_askable(asking.kept));
        let Some(connection) = self.connection_mut(port) else { return };
        connection.refusal = Some(reason.into());
        if is_connecting {
            connection.refused_by = Some(host);
            if is_askable && self.may_ask_servers() {
                self.ask_server(now, port, out);
            }
        }
    }

    /// Whether an agent says of a server that is not reached that its end is gone, as one does that was asked before and was not told
    /// that the owner goes on. No agent has connected for it: another one may.
    pub(super) fn is_forgotten_early(&self, port: Port, code: Code) -> bool {
        code == Code::Forgotten && self.ends.at(port).is_some_and(EndState::is_connecting)
    }

    /// The connection to a server is over: operators are told, once.
    pub(super) fn connection_over(
        &mut self,
        port: Port,
        code: Code,
        reason: &str,
        out: &mut Vec<OwnerEffect>,
    ) {
        let Some(connection) = self.connection_mut(port).filter(|connection| !connection.is_told) else {
            return;
        };
        connection.is_told = true;
        let name = connection.name.clone();
        trace!(self.context(), "the connection to {name} at port {} is over: {reason}", port.0);
        out.push(OwnerEffect::ConnectionOver(name, code, reason.into()));
    }
}
