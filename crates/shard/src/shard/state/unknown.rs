//! Clients that say they have been in a shared cell that does not know them. Either they have left, or the cell's edge was replaced and
//! does not know it yet: they joined at the next one (docs/protocol-epochs.md, "Shared cells").
//!
//! A client is told that it has left only if an epoch that ended after its hello was confirmed: then no other edge had the cell when the
//! hello came. So the first hello waits, and the next one of that client finds out.

use alloc::collections::BTreeMap;
use marram_wire::id::SessionId;

/// Of more clients the one that asked first is forgotten: it waits for longer.
const CLIENTS_MAX: usize = 1_024;
/// Longer than an end waits between two hellos here: meanwhile another edge may hold one for as long as it asks the coordinator.
const VALID_NS: u64 = 30_000_000_000;

/// When each of these clients said hello last.
#[derive(Debug, Default)]
pub(crate) struct UnknownClients {
    asked_ns: BTreeMap<SessionId, u64>,
}

impl UnknownClients {
    /// A client asks. `confirmed_ns`: when the newest epoch ended that was confirmed. Returns whether the cell was this edge's at the
    /// client's last hello; if not, this one counts as the last.
    pub(crate) fn asks(&mut self, now_ns: u64, client: SessionId, confirmed_ns: u64) -> bool {
        let asked_ns = self.asked_ns.remove(&client);
        let is_valid = |asked_ns: &u64| now_ns < asked_ns.saturating_add(VALID_NS);
        if asked_ns.filter(is_valid).is_some_and(|asked_ns| asked_ns <= confirmed_ns) {
            return true;
        }
        if self.asked_ns.len() >= CLIENTS_MAX {
            let oldest = self.asked_ns.iter().min_by_key(|(_, asked_ns)| **asked_ns);
            oldest.map(|(client, _)| *client).and_then(|client| self.asked_ns.remove(&client));
        }
        self.asked_ns.insert(client, now_ns);
        false
    }

    /// The cell knows the client.
    pub(crate) fn is_known(&mut self, client: SessionId) {
        self.asked_ns.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: SessionId = SessionId([1; 16]);

    #[test]
    fn a_client_has_left_if_an_epoch_was_confirmed_that_ended_after_its_hello() {
        let mut unknown = UnknownClients::default();
        assert!(!unknown.asks(100, CLIENT, 99), "that epoch says nothing of the time of the hello");
        assert!(!unknown.asks(200, CLIENT, 99));
        assert!(!unknown.asks(300, CLIENT, 199));
        assert!(unknown.asks(400, CLIENT, 300));
        // It begins again behind an answer, if it was known meanwhile, and after some time.
        assert!(!unknown.asks(500, CLIENT, 450));
        unknown.is_known(CLIENT);
        assert!(!unknown.asks(600, CLIENT, 550));
        assert!(!unknown.asks(600 + VALID_NS, CLIENT, 600 + VALID_NS));
    }

    #[test]
    fn a_flood_of_clients_is_bounded() {
        let mut unknown = UnknownClients::default();
        let clients = (0..=u8::MAX)
            .flat_map(|a| (0..8).map(move |b| SessionId([[a, b]; 8].concat().try_into().unwrap())));
        for (number, client) in clients.enumerate() {
            assert!(!unknown.asks(number as u64, client, 0));
        }
        assert_eq!(unknown.asked_ns.len(), CLIENTS_MAX);
    }
}
