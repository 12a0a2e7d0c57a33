//! Conversations in datagrams at one listener: the conversation of each address, and its end, which no datagram signals.
//! Bounded: one too many is refused before it has a session.

use super::super::ConnectionId;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::SocketAddr;

/// One conversation.
#[derive(Debug)]
struct Flow {
    client: SocketAddr,
    /// When the last datagram was sent or received, in nanoseconds.
    heard_ns: u64,
    /// Its key in [`Flows::due`].
    due_ns: u64,
    /// It has ended for its client: the client's next datagram begins another one.
    retired: bool,
}

/// The conversations of one listener.
#[derive(Debug)]
pub struct Flows {
    bound: usize,
    idle_ns: u64,
    all: BTreeMap<ConnectionId, Flow>,
    /// Conversations that are not retired.
    by_client: BTreeMap<SocketAddr, ConnectionId>,
    /// When each conversation is checked next.
    due: BTreeSet<(u64, ConnectionId)>,
}

/// A conversation was silent for too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expired {
    /// Its client's input has ended; the cell's remaining output is still sent.
    Silent(ConnectionId),
    /// The output has not ended after the same time again: cut it off.
    Stuck(ConnectionId),
}

impl Flows {
    /// An empty table. At most `bound` conversations at a time; each ends after `idle_ns` of silence.
    #[must_use]
    pub fn new(bound: usize, idle_ns: u64) -> Self {
        Self { bound, idle_ns, all: BTreeMap::new(), by_client: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// Number of conversations, including retired ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one more can begin.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.all.len() < self.bound
    }

    /// A datagram came from this address: returns its conversation, if there is one.
    pub fn heard(&mut self, now_ns: u64, client: SocketAddr) -> Option<ConnectionId> {
        let connection = self.by_client.get(&client).copied()?;
        self.spoke(now_ns, connection);
        Some(connection)
    }

    /// A datagram was sent to its client.
    pub fn spoke(&mut self, now_ns: u64, connection: ConnectionId) {
        if let Some(flow) = self.all.get_mut(&connection) {
            flow.heard_ns = now_ns;
        }
    }

    /// Begins a conversation. False if there is no room ([`Self::has_room`]), or the address has one already.
    pub fn begin(&mut self, now_ns: u64, client: SocketAddr, connection: ConnectionId) -> bool {
        if !self.has_room() || self.by_client.contains_key(&client) || self.all.contains_key(&connection) {
            return false;
        }
        let due_ns = now_ns.saturating_add(self.idle_ns);
        self.all.insert(connection, Flow { client, heard_ns: now_ns, due_ns, retired: false });
        self.by_client.insert(client, connection);
        self.due.insert((due_ns, connection));
        true
    }

    /// The next datagram from its client begins another conversation. The rest of this one may be sent until it is stuck.
    pub fn retire(&mut self, now_ns: u64, connection: ConnectionId) {
        let Some(flow) = self.all.get_mut(&connection).filter(|flow| !flow.retired) else { return };
        flow.retired = true;
        flow.heard_ns = now_ns;
        self.by_client.remove(&flow.client);
    }

    /// Removes a conversation; returns its client's address.
    pub fn end(&mut self, connection: ConnectionId) -> Option<SocketAddr> {
        let flow = self.all.remove(&connection)?;
        self.due.remove(&(flow.due_ns, connection));
        if !flow.retired {
            self.by_client.remove(&flow.client);
        }
        Some(flow.client)
    }

    /// When a conversation may have been silent for too long.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// The next conversation that was silent for too long. Silent ones are retired; stuck ones stay until [`Self::end`].
    pub fn expire(&mut self, now_ns: u64) -> Option<Expired> {
        while let Some((due_ns, connection)) = self.due.first().copied() {
            if due_ns > now_ns {
                return None;
            }
            self.due.pop_first();
            let Some(flow) = self.all.get_mut(&connection) else { continue };
            let silent = flow.heard_ns.saturating_add(self.idle_ns) <= now_ns;
            let since_ns = if silent { now_ns } else { flow.heard_ns };
            // Checked again in any case, and always later: an end that missed the cut-off gets it again.
            flow.due_ns = since_ns.saturating_add(self.idle_ns.max(1));
            self.due.insert((flow.due_ns, connection));
            if silent && flow.retired {
                return Some(Expired::Stuck(connection));
            }
            if silent {
                self.retire(now_ns, connection);
                return Some(Expired::Silent(connection));
            }
        }
        None
    }
}
