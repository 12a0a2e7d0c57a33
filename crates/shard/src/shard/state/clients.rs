//! Which shared cells have which clients and servers, so that none is looked for in all cells.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::RangeInclusive;
use marram_session::{
    holds,
    invariant::BrokenInvariant,
    owner::{ClientChange, Owner},
};
use marram_wire::id::{Port, SessionId};

/// The clients and servers of shared cells, also of those that a shard only stands by for.
#[derive(Debug, Default)]
pub(crate) struct CellClients {
    /// By client and cell. A client may be in a cell that runs and in a copy of it.
    by_client: BTreeMap<(SessionId, SessionId), Port>,
    by_cell: BTreeSet<(SessionId, SessionId)>,
    /// By cell.
    servers: BTreeSet<(SessionId, Port)>,
}

/// All pairs that begin with this.
fn of(first: SessionId) -> RangeInclusive<(SessionId, SessionId)> {
    (first, SessionId([0; 16]))..=(first, SessionId([u8::MAX; 16]))
}

impl CellClients {
    /// A client of this cell came or went.
    pub(crate) fn change(&mut self, cell: SessionId, change: ClientChange) {
        let client = change.session;
        if let Some(former) = self.by_client.remove(&(client, cell)) {
            self.by_cell.remove(&(cell, client));
            self.servers.remove(&(cell, former));
        }
        if let Some(port) = change.port {
            self.by_client.insert((client, cell), port);
            self.by_cell.insert((cell, client));
            self.servers.extend(port.is_from_connect().then_some((cell, port)));
        }
    }

    /// A cell is gone.
    pub(crate) fn forget(&mut self, cell: SessionId) {
        while let Some((_, session)) = self.by_cell.range(of(cell)).next().copied() {
            self.change(cell, ClientChange { session, port: None });
        }
    }

    /// The cells that a client is in, with its port there.
    pub(crate) fn cells_of(&self, client: SessionId) -> impl Iterator<Item = (SessionId, Port)> {
        self.by_client.range(of(client)).map(|((_, cell), port)| (*cell, *port))
    }

    /// The cells that have servers.
    pub(crate) fn cells_with_servers(&self) -> BTreeSet<SessionId> {
        self.servers.iter().map(|(cell, _)| *cell).collect()
    }

    /// Whether these are all clients of a cell.
    fn are_of(&self, cell: SessionId, clients: impl Iterator<Item = (SessionId, Port)>) -> bool {
        let clients: BTreeMap<SessionId, Port> = clients.collect();
        let known = self.by_cell.range(of(cell)).map(|(_, client)| *client);
        let has_port = |(client, port): (&SessionId, &Port)| {
            let is_server = self.servers.contains(&(cell, *port));
            self.by_client.get(&(*client, cell)) == Some(port) && is_server == port.is_from_connect()
        };
        known.eq(clients.keys().copied()) && clients.iter().all(has_port)
    }

    /// Checks I36 of docs/protocol.md: these are all cells, with their owners.
    pub(crate) fn invariants<'a>(
        &self,
        cells: impl Iterator<Item = (SessionId, &'a Owner)>,
    ) -> Result<(), BrokenInvariant> {
        let mut count = 0;
        for (cell, owner) in cells {
            holds!("I36", self.are_of(cell, owner.clients()));
            count += owner.clients().count();
        }
        holds!("I36", self.by_client.len() == count && self.by_cell.len() == count);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn id(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn came(session: u8, port: u32) -> ClientChange {
        ClientChange { session: id(session), port: Some(Port(port)) }
    }

    #[test]
    fn clients_are_found_in_their_cells_until_they_or_the_cells_go() {
        const SERVER: u32 = Port::FIRST_CONNECTED.0;
        let mut clients = CellClients::default();
        for (cell, change) in [(1, came(7, 0)), (1, came(8, 2)), (2, came(7, 3)), (2, came(9, SERVER))] {
            clients.change(id(cell), change);
        }
        let cells = |clients: &CellClients, client| clients.cells_of(id(client)).collect::<Vec<_>>();
        assert_eq!(cells(&clients, 7), [(id(1), Port(0)), (id(2), Port(3))]);
        assert_eq!((cells(&clients, 8), cells(&clients, 6)), (alloc::vec![(id(1), Port(2))], Vec::new()));
        assert_eq!(clients.cells_with_servers(), [id(2)].into());
        // One that came already, and one that comes back at another port.
        clients.change(id(1), came(8, 2));
        clients.change(id(1), came(7, 4));
        assert!(clients.are_of(id(1), [(id(7), Port(4)), (id(8), Port(2))].into_iter()));
        assert!(!clients.are_of(id(1), [(id(7), Port(4))].into_iter()));
        clients.change(id(2), ClientChange { session: id(9), port: None });
        assert_eq!((clients.cells_with_servers(), clients.by_client.len()), (BTreeSet::new(), 3));
        clients.forget(id(1));
        assert_eq!((cells(&clients, 7), clients.by_cell.len()), (alloc::vec![(id(2), Port(3))], 1));
        clients.forget(id(2));
        assert_eq!((clients.by_client.len(), clients.by_cell.len()), (0, 0));
    }
}
