//! The clients of a shared cell: their numbers, who joins and leaves, and what the log says of them.

use super::{
    client_port::PortPhase,
    end_state::{EndState, Message},
    ends::Ends,
};
use crate::{cell::CellInput, replay::port_handlers};
use alloc::vec::Vec;
use marram_wire::{
    header::{ClientState, Header, Many},
    id::{Port, SessionId},
    log::{Event, Joined, PortEvent},
};

impl Ends {
    /// The lowest free number, since a cell may keep a table by port. The server's number is never used.
    pub(super) fn free_port(&self) -> Port {
        let is_used = |port: Port| {
            self.index(port).is_some() || self.ports.as_ref().is_some_and(|list| list.uses(port))
        };
        let mut numbers = (0..).map(Port).filter(|port| *port != Port::SERVER);
        numbers.find(|port| !is_used(*port)).unwrap_or(Port(u32::MAX))
    }

    /// The side of a client, whether or not its port is open.
    pub(super) fn client_at(&mut self, port: Port) -> Option<&mut EndState> {
        match self.index(port) {
            Some(index) => Some(&mut self[index]),
            None => self.ports.as_mut()?.entering.iter_mut().find(|side| side.port == port),
        }
    }

    /// The side of a client, to look at.
    pub(super) fn client(&self, port: Port) -> Option<&EndState> {
        let is_it = |side: &&EndState| side.port == port;
        self.at(port).or_else(|| self.ports.as_ref()?.entering.iter().find(is_it))
    }

    /// Clients whose ports are open, or about to be.
    pub(super) fn client_count(&self) -> usize {
        let open = self.len() - self.connections().len();
        self.ports.as_ref().map_or(0, |list| open + list.entering.len())
    }

    /// The port of the client with this session, if it has one.
    pub(super) fn port_of(&self, session: SessionId) -> Option<Port> {
        let entering = self.ports.iter().flat_map(|list| &list.entering);
        let is_it = |side: &&EndState| side.client.as_ref().is_some_and(|it| it.client.session == session);
        self.iter().chain(entering).find(is_it).map(|side| side.port)
    }

    /// A client is about to join.
    pub(super) fn enter(&mut self, side: EndState) {
        self.came(&side);
        if let Some(list) = &mut self.ports {
            list.entering.push(side);
        }
    }

    /// A client that will not join after all.
    pub(super) fn forget_entering(&mut self, port: Port) {
        let Some(list) = &mut self.ports else { return };
        if let Some(at) = list.entering.iter().position(|side| side.port == port) {
            let side = list.entering.remove(at);
            self.went(&side);
        }
    }

    fn forget_all_entering(&mut self) {
        let entering = self.ports.as_mut().map(|list| core::mem::take(&mut list.entering));
        entering.iter().flatten().for_each(|side| self.went(side));
    }

    /// The sessions of clients and servers, with their ports: of those that are about to join, too.
    pub(super) fn clients(&self) -> impl Iterator<Item = (SessionId, Port)> {
        let entering = self.ports.iter().flat_map(|list| &list.entering);
        self.all().chain(entering).filter_map(|side| Some((side.client.as_ref()?.client.session, side.port)))
    }

    /// What the log is to say next of a port, with the handlers that this runs, in reverse order.
    pub(super) fn next_port_event(&mut self) -> Option<(Event, Vec<CellInput>)> {
        self.ports.as_ref()?;
        // One that was expelled leaves before anything else happens.
        let first = self.queues().events.first().map(|(_, port)| *port);
        let mut at = first.and_then(|port| self.index(port));
        // One joins only if nothing else is to be said: its port is open from then on.
        if at.is_none() {
            let pends = |side: &EndState| side.client.as_ref().is_some_and(|it| it.pending.is_some());
            let list = self.ports.as_mut()?;
            let joins = list.entering.iter().position(pends)?;
            let side = list.entering.remove(joins);
            at = Some(self.insert(side));
        }
        let event = self[at?].client.as_mut()?.pending.take()?;
        if let PortEvent::Joined(joined) = &event {
            self.reached(joined);
        }
        let inputs = self.run_port_event(&event)?;
        Some((Event::Port(event), inputs))
    }

    /// An entry of the log is replayed that says this of a port. None if that cannot be.
    pub(super) fn replay_port_event(&mut self, event: &PortEvent) -> Option<Vec<CellInput>> {
        self.ports.as_ref()?;
        match event {
            PortEvent::Joined(joined) => {
                let Joined { port, client, .. } = &**joined;
                if port.is_from_connect() {
                    let state = self.reached(joined).then(|| self.client_at(*port)?.client.as_mut())??;
                    (state.client, state.asked) = (client.clone(), state.asked.max(client.generation));
                } else if self.index(*port).is_some() {
                    return None;
                } else {
                    self.insert(EndState::of_client(*port, client.clone(), None));
                }
            }
            PortEvent::Resumed { port, generation } => {
                let client = self.client_at(*port)?.client.as_mut()?;
                client.client.generation = *generation;
                client.asked = client.asked.max(*generation);
            }
            PortEvent::Expelled { port } => self.client_at(*port)?.client.as_mut()?.expelled = true,
            PortEvent::Left { port, .. } => {
                self.index(*port)?;
            }
        }
        self.run_port_event(event)
    }

    /// The handlers that this runs, in reverse order.
    fn run_port_event(&mut self, event: &PortEvent) -> Option<Vec<CellInput>> {
        let port = event.port();
        if matches!(event, PortEvent::Left { .. }) {
            self.ports.as_mut()?.leaving = Some(port);
        }
        Some(port_handlers(event, self.at(port)?.input_closed))
    }

    /// The next message of the log is consumed in replay; none if it is not one of this port.
    pub(super) fn take_taped(&mut self, port: Port) -> Option<Message> {
        let message = self.ports.as_mut()?.tape.take(port)?;
        let index = self.index(port)?;
        self[index].consumed(&message);
        Some(message)
    }

    /// The port whose client leaves with the entry that runs.
    pub(super) fn leaving(&self) -> Option<Port> {
        self.ports.as_ref()?.leaving
    }

    /// An entry is complete. Returns the port whose client has left with it. An owner that chooses numbers says where the entry ends in
    /// the log; in replay the log has chosen them.
    pub(super) fn port_entry_ended(&mut self, log_end: Option<u64>) -> Option<Port> {
        self.connections_logged(log_end);
        let list = self.ports.as_mut()?;
        let port = list.leaving.take()?;
        list.resting.extend(log_end.map(|offset| (port, offset)));
        self.remove(port);
        Some(port)
    }

    /// The log up to here is kept elsewhere.
    pub(super) fn ports_kept(&mut self, log_offset: u64) {
        if let Some(list) = &mut self.ports {
            list.kept = list.kept.max(log_offset);
            list.resting.retain(|(_, offset)| *offset > log_offset);
        }
    }

    /// The connections to all ends are gone, or belong to another attempt.
    pub(super) fn all_away(&mut self) {
        if self.ports.is_none() {
            return;
        }
        self.forget_all_entering();
        for side in self.iter_mut() {
            side.channel = None;
            if let Some(client) = &mut side.client {
                client.phase = PortPhase::Away;
                client.away_since_ns = None;
                client.connection.iter_mut().for_each(|connection| connection.count_from_now());
                client.pending.take_if(|event| event.is_of_promise());
            }
        }
    }

    /// The clients as a checkpoint has them; their outputs are added when it is sealed.
    pub(super) fn to_clients(&self) -> Many<ClientState> {
        let state = |side: &EndState| {
            let client = side.client.as_ref()?;
            let (state, expelled) = (side.to_header(), client.expelled);
            Some(ClientState { state, client: client.client.clone(), expelled })
        };
        Many(self.iter().filter_map(state).collect())
    }

    /// As when a checkpoint of a shared cell was taken. False if its ports are out of order.
    pub(super) fn restore_clients(&mut self, header: &mut Header) -> bool {
        self.forget_all_entering();
        let Some(list) = &mut self.ports else { return true };
        list.tape.skip_to(header.log_offset);
        (list.leaving, list.resting) = Default::default();
        list.connected.clear();
        let clients = core::mem::take(&mut header.clients.0);
        let ascend = clients.is_sorted_by(|one, next| one.state.port < next.state.port);
        let connected = clients.iter().map(|client| client.state.port).filter(|port| port.is_from_connect());
        let are_named = connected.eq(header.servers.0.iter().map(|server| server.port));
        let mut servers = core::mem::take(&mut header.servers.0).into_iter();
        let sides = clients.into_iter().map(|ClientState { state, client, expelled }| {
            let server = if state.port.is_from_connect() { servers.next() } else { None };
            let mut side = EndState::of_client(state.port, client, server.map(|server| server.name));
            side.client.iter_mut().for_each(|client| client.expelled = expelled);
            side.restore_client(state);
            side
        });
        self.replace(sides.collect());
        ascend && are_named && self.index(Port::SERVER).is_none()
    }
}
