//! Local connections, by the end of the session that each belongs to. An end has at most one, and one that is closed is
//! not in the table: what the shell still reports of it is ignored.

use super::{ConnectionId, EndId};
use crate::{holds, invariant::BrokenInvariant};
use alloc::collections::BTreeMap;

/// Set in the ids of connections that the agent requests. The shell uses the other half for those that it accepts.
const REQUESTED: u64 = 1 << 63;

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_id: BTreeMap<ConnectionId, EndId>,
    /// Counts the connections that the agent requested: no id is used twice.
    made: u64,
}

impl Connections {
    /// The end that a connection belongs to.
    pub(crate) fn end(&self, connection: ConnectionId) -> Option<EndId> {
        self.by_id.get(&connection).copied()
    }

    /// The shell has accepted a connection for a new session.
    pub(crate) fn accept(&mut self, connection: ConnectionId, id: EndId) {
        self.by_id.insert(connection, id);
    }

    /// A new connection to an end's server, for the shell to open.
    pub(crate) fn request(&mut self, id: EndId) -> ConnectionId {
        self.made += 1;
        let connection = ConnectionId(self.made | REQUESTED);
        self.by_id.insert(connection, id);
        connection
    }

    /// A connection is closed, or its end does not use it any more.
    pub(crate) fn remove(&mut self, connection: ConnectionId) {
        self.by_id.remove(&connection);
    }

    /// Checks I36 of docs/protocol.md, as far as it concerns connections. `names` is true if the end names the
    /// connection.
    pub(crate) fn invariants(
        &self,
        names: impl Fn(EndId, ConnectionId) -> bool,
    ) -> Result<(), BrokenInvariant> {
        for (connection, id) in &self.by_id {
            holds!("I36", names(*id, *connection));
            holds!("I36", connection.0 & REQUESTED == 0 || connection.0 & !REQUESTED <= self.made);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &BTreeMap<ConnectionId, EndId> {
        &self.by_id
    }
}
