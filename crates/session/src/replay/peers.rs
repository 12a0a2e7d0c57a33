//! What the peers of a recorded cell sent, which of them are there, and which still receive.

use super::port_handlers;
use crate::cell::CellInput;
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use marram_wire::{
    id::{Generation, Port},
    log::PortEvent,
    recording::{RecordedMessage, Recording},
};

/// A port that is open.
#[derive(Clone, Copy, Debug, Default)]
struct OpenPort {
    input_closed: bool,
    output_closed: bool,
    /// It leads to a server that is not reached yet.
    is_connecting: bool,
}

/// The peers: client and server, or the clients of a shared cell, which join and leave.
#[derive(Debug)]
pub(super) struct Peers {
    said: BTreeMap<Port, VecDeque<RecordedMessage>>,
    open: BTreeMap<Port, OpenPort>,
    /// The port that is gone at the end of the entry.
    leaving: Option<Port>,
    shared: bool,
}

impl Peers {
    /// The peers at the beginning of the recording.
    pub(super) fn new(recording: &Recording) -> Self {
        let shared = recording.about.shared;
        let header = recording.header.as_deref();
        let clients = header.into_iter().flat_map(|header| &header.clients.0);
        let clients = clients.map(|it| {
            let is_reached = it.client.generation != Generation::NONE;
            (&it.state, it.state.port.is_from_connect() && !is_reached)
        });
        let states = header.into_iter().flat_map(|header| &header.ports).map(|state| (state, false));
        let mut open: BTreeMap<Port, OpenPort> = states
            .chain(clients)
            .map(|(state, is_connecting)| {
                let (input_closed, output_closed) = (state.input_closed, state.output_closed);
                (state.port, OpenPort { input_closed, output_closed, is_connecting })
            })
            .collect();
        let ports = recording.inputs.iter().map(|inputs| inputs.port);
        if !shared {
            ports.for_each(|port| _ = open.entry(port).or_default());
        }
        let said =
            recording.inputs.iter().map(|inputs| (inputs.port, inputs.messages.0.iter().cloned().collect()));
        Self { said: said.collect(), open, leaving: None, shared }
    }

    /// The ports that open with the cell.
    pub(super) fn at_the_start(&self) -> impl DoubleEndedIterator<Item = Port> {
        self.open.keys().copied().filter(|_| !self.shared)
    }

    /// The next message of a port; none if there is none, or if it is not shown.
    pub(super) fn take(&mut self, port: Port) -> Option<CellInput> {
        let open = self.open.get_mut(&port)?;
        Some(match self.said.get_mut(&port)?.pop_front()? {
            RecordedMessage::Payload(payload) => CellInput::Message { port, payload },
            RecordedMessage::Close => {
                open.input_closed = true;
                CellInput::Close { port }
            }
            RecordedMessage::Redacted { .. } => return None,
        })
    }

    /// The handlers that an event of a shared cell's port runs, in reverse order; none if it cannot be.
    pub(super) fn port_event(&mut self, event: &PortEvent) -> Option<Vec<CellInput>> {
        let port = event.port();
        if matches!(event, PortEvent::Joined(_)) {
            // A client's port is free before, and a server's is one that the cell has connected to, and that is not reached.
            let may_join = match self.open.insert(port, OpenPort::default()) {
                Some(open) => open.is_connecting,
                None => !port.is_from_connect(),
            };
            if !may_join {
                return None;
            }
        }
        let open = self.open.get(&port)?;
        if matches!(event, PortEvent::Left { .. }) {
            self.leaving = Some(port);
        }
        Some(port_handlers(event, open.input_closed))
    }

    /// The cell connects to a server.
    pub(super) fn connect(&mut self, port: Port) {
        self.open.insert(port, OpenPort { is_connecting: true, ..OpenPort::default() });
    }

    /// The cell sends no more to this port.
    pub(super) fn close_output(&mut self, port: Port) {
        if let Some(open) = self.open.get_mut(&port) {
            open.output_closed = true;
        }
    }

    /// An entry is complete.
    pub(super) fn entry_ended(&mut self) {
        if let Some(port) = self.leaving.take() {
            self.open.remove(&port);
        }
    }

    /// Whether a peer still receives.
    pub(super) fn hears(&self, port: Port) -> bool {
        self.open.get(&port).is_some_and(|open| !open.output_closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use marram_wire::{
        id::{HostId, SessionId},
        log::{Client, Joined},
    };

    #[test]
    fn a_port_is_joined_once_and_a_servers_when_the_cell_has_connected() {
        let none = (BTreeMap::new(), BTreeMap::new());
        let mut peers = Peers { said: none.0, open: none.1, leaving: None, shared: true };
        let joins = |peers: &mut Peers, port: Port| {
            let generation = Generation { count: 1, opener: 1 };
            let client = Client { session: SessionId([1; 16]), host: HostId([2; 16]), generation };
            let joined = Joined { port, client, datagrams: false, peer: None };
            peers.port_event(&PortEvent::Joined(Box::new(joined))).is_some()
        };
        assert_eq!([0, 1].map(|_| joins(&mut peers, Port::CLIENT)), [true, false]);
        let server = Port::FIRST_CONNECTED;
        assert!(!joins(&mut peers, server), "it has not connected");
        peers.connect(server);
        assert_eq!([0, 1].map(|_| joins(&mut peers, server)), [true, false]);
        assert!(peers.port_event(&PortEvent::Left { port: server, quietly: false }).is_some());
        peers.entry_ended();
        assert!(!joins(&mut peers, server), "it has left");
    }
}
