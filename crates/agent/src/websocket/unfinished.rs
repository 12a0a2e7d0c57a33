//! How many bytes of partial messages all connections hold together, and which connection holds the oldest. Pure.
//!
//! The oldest one goes, not the largest: an attacker that begins many messages and never ends them
//! holds the oldest ones, while an honest message of any size is complete soon.

use marram_session::agent::ConnectionId;
use marram_wire::limits::MESSAGE_SIZE_MAX;
use std::collections::BTreeMap;

/// Limit of the bytes of partial WebSocket messages over all connections; beyond it the connection with the oldest one is closed.
pub const UNFINISHED_MAX: usize = 512 << 20;
const _: () =
    assert!(UNFINISHED_MAX >= 64 * MESSAGE_SIZE_MAX, "honest clients send large messages at once, too");

/// The partial messages of all connections.
pub(super) struct Unfinished {
    all: BTreeMap<ConnectionId, Part>,
    /// By the order in which they began.
    order: BTreeMap<u64, ConnectionId>,
    begun: u64,
    total: usize,
    pub(super) max: usize,
}

struct Part {
    /// Its place in `order`: kept while the message grows, given up when it is complete.
    number: u64,
    size: usize,
}

impl Unfinished {
    /// No partial messages.
    pub(super) fn new() -> Self {
        Self { all: BTreeMap::new(), order: BTreeMap::new(), begun: 0, total: 0, max: UNFINISHED_MAX }
    }

    /// A connection now holds this many bytes of a partial message.
    /// Each change of a connection must be noted, also its end, with 0.
    pub(super) fn note(&mut self, connection: ConnectionId, size: usize) {
        if size == 0 {
            if let Some(part) = self.all.remove(&connection) {
                self.order.remove(&part.number);
                self.total -= part.size;
            }
            return;
        }
        let part = self.all.entry(connection).or_insert_with(|| {
            self.begun += 1;
            self.order.insert(self.begun, connection);
            Part { number: self.begun, size: 0 }
        });
        self.total = self.total - part.size + size;
        part.size = size;
    }

    /// The connection to close while the total is above the limit.
    pub(super) fn excess(&self) -> Option<ConnectionId> {
        let oldest = self.order.first_key_value().map(|(_, connection)| *connection);
        oldest.filter(|_| self.total > self.max)
    }
}
