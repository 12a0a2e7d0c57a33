//! The ports of a cell, which of them it has closed, and what is known of the peers behind them. This is part of the cell's
//! state, since it decides what `send` does and what `peer` returns.

use crate::limits::PORTS_MAX;
use marram_wire::{id::Port, limits::CONNECTIONS_MAX, peer::Peer};
use std::{collections::BTreeMap, sync::Arc};

/// A cell's ports, in the order of their numbers.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Ports {
    /// Port number, and whether the cell may still send there. Sorted by number; seldom more than two.
    list: Vec<(Port, bool)>,
    /// What is known of clients.
    peers: BTreeMap<Port, Arc<Peer>>,
    /// The number above the highest port that was ever gone; 0 if none was. What the cell sends to lower numbers that are not
    /// open is dropped.
    past: u32,
    /// How often the cell has connected to a server: the next one has this port, counted from [`Port::FIRST_CONNECTED`].
    connects: u32,
    /// Ports of servers that are not reached yet, in order.
    connecting: Vec<Port>,
}

/// The state of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortState {
    /// The cell may send to it.
    Open,
    /// The cell has closed it.
    Closed,
    /// Its peer is gone: messages to it are dropped.
    Gone,
    /// It leads to a server that is not reached yet.
    Connecting,
    /// It was never opened.
    Unknown,
}

impl Ports {
    /// Records that a peer has connected. A port that is already open stays unchanged.
    pub(crate) fn open(&mut self, port: Port, peer: Option<Arc<Peer>>) -> Result<(), TooManyPorts> {
        self.connecting.retain(|other| *other != port);
        if let Err(at) = self.find(port) {
            if self.list.len() >= PORTS_MAX {
                return Err(TooManyPorts);
            }
            self.list.insert(at, (port, true));
            self.peers.extend(peer.map(|peer| (port, peer)));
        }
        Ok(())
    }

    pub(crate) fn state(&self, port: Port) -> PortState {
        match self.find(port) {
            Ok(at) if self.list[at].1 => PortState::Open,
            Ok(_) => PortState::Closed,
            Err(_) if self.connecting.contains(&port) => PortState::Connecting,
            Err(_) if port.is_from_connect() => {
                let is_past = port.0 - Port::FIRST_CONNECTED.0 < self.connects;
                if is_past { PortState::Gone } else { PortState::Unknown }
            }
            Err(_) if port.0 < self.past => PortState::Gone,
            Err(_) => PortState::Unknown,
        }
    }

    /// Forgets a port whose peer is gone; its number may be opened again.
    pub(crate) fn forget(&mut self, port: Port) {
        self.connecting.retain(|other| *other != port);
        if let Ok(at) = self.find(port) {
            self.list.remove(at);
            self.peers.remove(&port);
            if !port.is_from_connect() {
                self.past = self.past.max(port.0.saturating_add(1));
            }
        }
    }

    /// The port of the server to which the cell connects now; none if there are too many.
    pub(crate) fn connect(&mut self) -> Option<Port> {
        let connected = self.list.iter().filter(|(port, _)| port.is_from_connect()).count();
        let port = Port::FIRST_CONNECTED.0.checked_add(self.connects)?;
        if connected + self.connecting.len() >= CONNECTIONS_MAX {
            return None;
        }
        self.connects += 1;
        self.connecting.push(Port(port));
        Some(Port(port))
    }

    /// How often the cell has connected to a server, and the ports of those that are not reached yet.
    pub(crate) fn connections(&self) -> (u32, &[Port]) {
        (self.connects, &self.connecting)
    }

    /// Adds the result of [`Ports::connections`]; refuses ports that it cannot have.
    pub(crate) fn with_connections(self, (connects, connecting): (u32, Vec<Port>)) -> Option<Self> {
        let is_one = |port: Port| port.is_from_connect() && port.0 - Port::FIRST_CONNECTED.0 < connects;
        let opened = self.list.iter().map(|(port, _)| *port).filter(|port| port.is_from_connect());
        let are_theirs = opened.chain(connecting.iter().copied()).all(is_one);
        let ordered = connecting.is_sorted_by(|one, next| one < next);
        let are_free = connecting.iter().all(|port| self.find(*port).is_err());
        let fits = are_theirs && ordered && are_free && connecting.len() <= CONNECTIONS_MAX;
        fits.then_some(Self { connects, connecting, ..self })
    }

    /// Records that the cell will send no more to the port; returns its state before.
    pub(crate) fn close(&mut self, port: Port) -> PortState {
        let before = self.state(port);
        if let Ok(at) = self.find(port) {
            self.list[at].1 = false;
        }
        before
    }

    /// The ports, with whether the cell may send there.
    pub(crate) fn list(&self) -> &[(Port, bool)] {
        &self.list
    }

    /// What is known of the client behind a port, until the port is gone.
    pub(crate) fn peer(&self, port: Port) -> Option<&Peer> {
        self.peers.get(&port).map(|peer| &**peer)
    }

    /// What is known of clients, in the order of their ports.
    pub(crate) fn peers(&self) -> impl ExactSizeIterator<Item = (Port, &Peer)> {
        self.peers.iter().map(|(port, peer)| (*port, &**peer))
    }

    /// The number above the highest port that was ever gone; 0 if none was.
    pub(crate) fn past(&self) -> u32 {
        self.past
    }

    /// Builds the ports from [`Ports::list`]; refuses a wrong order.
    pub(crate) fn from_list(list: Vec<(Port, bool)>) -> Option<Self> {
        let ordered = list.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let ports = Self { list, ..Self::default() };
        (ordered && ports.list.len() <= PORTS_MAX).then_some(ports)
    }

    /// Adds the result of [`Ports::peers`]; refuses a wrong order, and peers of ports that do not exist.
    pub(crate) fn with_peers(mut self, peers: Vec<(Port, Peer)>) -> Option<Self> {
        let ordered = peers.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let known = peers.iter().all(|(port, _)| self.find(*port).is_ok());
        self.peers = peers.into_iter().map(|(port, peer)| (port, Arc::new(peer))).collect();
        (ordered && known).then_some(self)
    }

    /// Adds the result of [`Ports::past`].
    pub(crate) fn with_past(self, past: u32) -> Self {
        Self { past, ..self }
    }

    fn find(&self, port: Port) -> Result<usize, usize> {
        self.list.binary_search_by_key(&port, |entry| entry.0)
    }
}

/// The cell has the most ports that a cell can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyPorts;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_go_from_unknown_to_open_to_closed_and_back_only_when_gone() {
        let mut ports = Ports::default();
        assert_eq!(ports.state(Port::CLIENT), PortState::Unknown);
        assert_eq!(ports.close(Port::CLIENT), PortState::Unknown);
        for port in [Port::SERVER, Port::CLIENT] {
            assert_eq!(ports.open(port, None), Ok(()));
            assert_eq!(ports.state(port), PortState::Open);
        }
        assert_eq!(ports.close(Port::CLIENT), PortState::Open);
        assert_eq!(ports.close(Port::CLIENT), PortState::Closed);
        assert_eq!(ports.open(Port::CLIENT, None), Ok(()));
        assert_eq!(ports.state(Port::CLIENT), PortState::Closed);
        assert_eq!(Ports::from_list(ports.list().to_vec()).as_ref(), Some(&ports));
        ports.forget(Port::CLIENT);
        assert_eq!(ports.state(Port::CLIENT), PortState::Gone);
        let again = Ports::from_list(ports.list().to_vec()).map(|again| again.with_past(ports.past()));
        assert_eq!((again.as_ref(), ports.past()), (Some(&ports), 1));
        assert_eq!(ports.open(Port::CLIENT, None), Ok(()));
        assert_eq!(ports.state(Port::CLIENT), PortState::Open);
        assert_eq!(ports.state(Port(2)), PortState::Unknown);
        assert_eq!(Ports::from_list(vec![(Port(1), true), (Port(1), true)]), None);
    }

    #[test]
    fn what_is_known_of_a_client_goes_with_its_port() {
        let peer = |name: &str| Peer::new(None, Some(name)).unwrap();
        let mut ports = Ports::default();
        assert_eq!(ports.open(Port(4), Some(peer("a").into())), Ok(()));
        assert_eq!(ports.open(Port::CLIENT, None), Ok(()));
        // An open port stays as it is.
        assert_eq!(ports.open(Port(4), Some(peer("b").into())), Ok(()));
        ports.close(Port(4));
        assert_eq!((ports.peer(Port(4)), ports.peer(Port::CLIENT)), (Some(&peer("a")), None));
        let peers: Vec<_> = ports.peers().map(|(port, peer)| (port, peer.clone())).collect();
        let again = Ports::from_list(ports.list().to_vec()).and_then(|again| again.with_peers(peers));
        assert_eq!(again.as_ref(), Some(&ports));
        for wrong in [&[5][..], &[4, 4], &[4, 0]] {
            let peers = wrong.iter().map(|port| (Port(*port), peer("a"))).collect();
            assert_eq!(ports.clone().with_peers(peers), None, "{wrong:?}");
        }
        ports.forget(Port(4));
        assert_eq!(ports.peer(Port(4)), None);
        assert_eq!(ports.open(Port(4), None), Ok(()));
        assert_eq!(ports.peer(Port(4)), None);
    }

    #[test]
    fn connections_have_numbers_of_their_own_that_are_not_used_twice() {
        let port = |nth| Port(Port::FIRST_CONNECTED.0 + nth);
        let mut ports = Ports::default();
        assert_eq!(ports.open(Port::CLIENT, None), Ok(()));
        assert_eq!((ports.connect(), ports.connect()), (Some(port(0)), Some(port(1))));
        assert_eq!(ports.state(port(0)), PortState::Connecting);
        assert_eq!(ports.open(port(0), None), Ok(()));
        ports.forget(port(1));
        let states = [0, 1, 2].map(|nth| ports.state(port(nth)));
        assert_eq!(states, [PortState::Open, PortState::Gone, PortState::Unknown]);
        ports.forget(port(0));
        assert_eq!((ports.state(Port(2)), ports.past()), (PortState::Unknown, 0), "clients have their own");
        assert_eq!(ports.connect(), Some(port(2)));
        let (connects, connecting) = ports.connections();
        let saved = (connects, connecting.to_vec());
        let again = || Ports::from_list(ports.list().to_vec());
        assert_eq!(again().and_then(|again| again.with_connections(saved)).as_ref(), Some(&ports));
        for wrong in [(2, vec![port(2)]), (3, vec![port(2), port(1)]), (3, vec![Port(2)])] {
            assert_eq!(again().and_then(|again| again.with_connections(wrong)), None);
        }
        let more = std::iter::from_fn(|| ports.connect()).count();
        assert_eq!(more, CONNECTIONS_MAX - 1);
    }
}
