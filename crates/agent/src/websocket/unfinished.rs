//! How much of messages that are not whole yet all connections hold together, and which has held its own for longest. Pure.

use marram_session::agent::ConnectionId;
use marram_wire::limits::MESSAGE_SIZE_MAX;
use std::collections::BTreeMap;

/// Bytes of messages of WebSockets that are not whole yet, over all connections; beyond them the one that began first is closed.
pub const UNFINISHED_MAX: usize = 512 << 20;
const _: () =
    assert!(UNFINISHED_MAX >= 64 * MESSAGE_SIZE_MAX, "honest clients send large messages at once, too");

/// What all hold.
pub(super) struct Unfinished {
    all: BTreeMap<ConnectionId, Part>,
    /// In the order in which they began.
    order: BTreeMap<u64, ConnectionId>,
    begun: u64,
    total: usize,
    pub(super) max: usize,
}

struct Part {
    number: u64,
    size: usize,
}

impl Unfinished {
    /// Nothing.
    pub(super) fn new() -> Self {
        Self { all: BTreeMap::new(), order: BTreeMap::new(), begun: 0, total: 0, max: UNFINISHED_MAX }
    }

    /// A connection holds so much of a message now.
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

    /// Who has to go, while all hold too much.
    pub(super) fn excess(&self) -> Option<ConnectionId> {
        let oldest = self.order.first_key_value().map(|(_, connection)| *connection);
        oldest.filter(|_| self.total > self.max)
    }
}
