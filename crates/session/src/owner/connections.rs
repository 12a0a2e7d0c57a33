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
    frame::Code,
    header::{ConnectedServer, Many},
    id::{Generation, HostId, Port, SessionId},
    limits::{CONNECT_NS, CONNECTIONS_MAX},
    log::{Client, Joined},
};

/// The end of a server that is away is asked again after this time.
const ASK_AGAIN_NS: u64 = 500_000_000;
const _: () = assert!(4 * ASK_AGAIN_NS <= CONNECT_NS, "an agent that comes late is asked in time");

/// The server at a port.
#[derive(Debug)]
pub(super) struct Connection {
    /// The server's name.
    pub(super) name: String,
    /// Whether the log says that its end has joined, or is about to say it.
    pub(super) is_reached: bool,
    /// The end of the log's entry that asked for it. None while that one runs.
    behind: Option<u64>,
    /// When an agent was asked last, and first.
    asked_ns: Option<u64>,
    since_ns: Option<u64>,
    /// Why an agent did not take it.
    pub(super) refusal: Option<String>,
}

impl Connection {
    fn new(name: String, is_reached: bool, behind: Option<u64>) -> Box<Self> {
        Box::new(Self { name, is_reached, behind, asked_ns: None, since_ns: None, refusal: None })
    }

    /// Its end goes on with this owner: when it is away again, it is asked at once.
    pub(super) fn linked(&mut self) {
        (self.asked_ns, self.refusal) = (None, None);
    }

    /// When an agent is to be asked, or when it is too late for that.
    fn due_ns(&self) -> u64 {
        let late_ns = self.since_ns.filter(|_| !self.is_reached);
        let late_ns = late_ns.map_or(u64::MAX, |since_ns| since_ns.saturating_add(CONNECT_NS));
        self.asked_ns.map_or(0, |asked_ns| asked_ns.saturating_add(ASK_AGAIN_NS)).min(late_ns)
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

    /// Whether no agent was asked for it before the entry that asked for it was kept elsewhere: the log before this offset is.
    pub(super) fn is_asked_in_time(&self, kept_to: u64) -> bool {
        let Some(connection) = self.connection() else { return true };
        let is_asked = self.client.as_ref().is_some_and(|client| client.asked != Generation::NONE);
        !is_asked || connection.behind.is_some_and(|behind| behind <= kept_to)
    }

    /// Whether the end of its server may be asked, if all log before `kept` is kept elsewhere.
    fn may_connect(&self, kept: u64) -> bool {
        let is_away = |client: &ClientPort| client.phase == PortPhase::Away && !client.leaves();
        self.client.as_deref().is_some_and(is_away)
            && self.connection().and_then(|it| it.behind).is_some_and(|behind| behind <= kept)
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
        let is_free = port.is_connected() && self.index(port).is_none();
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
        connection.into_iter().for_each(|connection| connection.is_reached = true);
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
    /// The server at this port of a shared cell: its name, and the agent of its end once the log has it.
    #[must_use]
    pub fn connection_at(&self, port: Port) -> Option<(&str, Option<HostId>)> {
        let side = self.ends.at(port)?;
        let connection = side.connection()?;
        Some((&connection.name, connection.is_reached.then_some(side.host)))
    }

    /// Servers to which a shared cell has connected, or connects.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.ends.connections().len()
    }

    /// Whether something is on its way to a server: the cell is not over before that has arrived.
    #[must_use]
    pub fn owes_servers(&self) -> bool {
        self.ends.connections().iter().any(|side| !side.outbox.is_empty())
    }

    /// An agent for this server may have come: those that wait for it are asked now.
    pub fn ask_servers_again(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        self.each_connection(|connection| connection.asked_ns = None);
        self.ask_servers(now, out);
    }

    /// Asks the ends of servers that are away and may be asked, and gives up those that were not reached for too long.
    ///
    /// An owner that may have been replaced asks none: it would take the end from the next one.
    pub(super) fn ask_servers(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let mut late = Vec::new();
        for (port, session, count) in self.servers_to_ask() {
            let Some(connection) = self.connection_mut(port) else { continue };
            if connection.due_ns() > now.mono_ns {
                continue;
            }
            let since_ns = *connection.since_ns.get_or_insert(now.mono_ns);
            if !connection.is_reached && since_ns.saturating_add(CONNECT_NS) <= now.mono_ns {
                late.push(port);
                continue;
            }
            connection.asked_ns = Some(now.mono_ns);
            out.push(OwnerEffect::AskPort(session, count));
        }
        for port in late {
            let refusal = self.connection_mut(port).and_then(|connection| connection.refusal.take());
            let why = refusal.unwrap_or_else(|| "no agent that reaches it is connected to this edge".into());
            self.connection_over(
                port,
                &format!("it was not reached in {} s: {why}", CONNECT_NS / 1_000_000_000),
                out,
            );
            self.end_client(now, port, (Code::Lost, "the cell does not wait for the server any longer"), out);
        }
    }

    /// The ports of servers whose ends may be asked, with their sessions and the counts of the generations that they were asked for.
    fn servers_to_ask(&self) -> Vec<(Port, SessionId, u64)> {
        let may = self.phase() == OwnerPhase::Running && !self.holds_outputs() && !self.is_handed_over();
        let Some(list) = self.ends.ports.as_ref().filter(|_| may) else { return Vec::new() };
        // One that leaves with the entry that runs is not asked any more.
        let may = |side: &&EndState| side.may_connect(list.kept) && list.leaving != Some(side.port);
        let may_ask = self.ends.connections().iter().filter(may);
        let asked = |side: &EndState| {
            let client = side.client.as_ref()?;
            Some((side.port, client.client.session, client.asked.count))
        };
        may_ask.filter_map(asked).collect()
    }

    /// When a server's end is to be asked next, in monotonic nanoseconds.
    pub(super) fn servers_due_ns(&self) -> Option<u64> {
        if self.ends.connections().is_empty() {
            return None;
        }
        let ports = self.servers_to_ask().into_iter();
        ports.filter_map(|(port, ..)| Some(self.ends.at(port)?.connection()?.due_ns())).min()
    }

    fn connection_mut(&mut self, port: Port) -> Option<&mut Connection> {
        let index = self.ends.index(port)?;
        self.ends.quietly(index).client.as_mut()?.connection.as_deref_mut()
    }

    fn each_connection(&mut self, does: impl Fn(&mut Connection)) {
        let ports: Vec<Port> = self.ends.connections().iter().map(|side| side.port).collect();
        for port in ports {
            self.connection_mut(port).into_iter().for_each(&does);
        }
    }

    /// An agent does not take a connection now, for this reason.
    pub(super) fn connection_refused(&mut self, port: Port, reason: &str) {
        if let Some(connection) = self.connection_mut(port) {
            connection.refusal = Some(reason.into());
        }
    }

    /// The connection to a server is over, and not because both sides are done: operators are told.
    pub(super) fn connection_over(&mut self, port: Port, reason: &str, out: &mut Vec<OwnerEffect>) {
        let Some(connection) = self.ends.at(port).and_then(EndState::connection) else { return };
        trace!(self.context(), "the connection to {} at port {} is over: {reason}", connection.name, port.0);
        out.push(OwnerEffect::ConnectionOver(connection.name.clone(), reason.into()));
    }
}
