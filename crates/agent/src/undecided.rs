//! Connections without a route yet: a rule needs their clients' first bytes, or their proxy has not sent its header. Each is held
//! for a bounded time and a bounded number of bytes, which the session then gets unchanged.
//!
//! The same connection has one timeout for both: the proxy's header and the bytes that a rule
//! wants.

use crate::routing::Arrived;
use bytes::BytesMut;
use marram_session::agent::ConnectionId;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// One held connection.
pub(super) struct Waiting {
    /// Where it connected.
    pub(super) arrived: Arrived,
    /// Whether its proxy's header is still incomplete.
    pub(super) proxied: bool,
    /// The client's bytes so far.
    pub(super) first: BytesMut,
}

/// All held connections.
pub(super) struct Undecided {
    all: BTreeMap<ConnectionId, Waiting>,
    /// In order of their deadlines: all have the same timeout.
    deadlines: VecDeque<(Instant, ConnectionId)>,
    timeout: Duration,
}

impl Undecided {
    /// Empty. Each connection is held for `timeout` at most.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { all: BTreeMap::new(), deadlines: VecDeque::new(), timeout }
    }

    /// Holds a connection from which nothing was read; `proxied` if its proxy sends a header first.
    pub(super) fn hold(&mut self, now: Instant, connection: ConnectionId, arrived: Arrived, proxied: bool) {
        self.all.insert(connection, Waiting { arrived, proxied, first: BytesMut::new() });
        self.deadlines.push_back((now + self.timeout, connection));
    }

    /// A held connection.
    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Waiting> {
        self.all.get_mut(&connection)
    }

    /// Whether this connection is held.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.all.contains_key(&connection)
    }

    /// Releases a connection.
    pub(super) fn release(&mut self, connection: ConnectionId) -> Option<Waiting> {
        let waiting = self.all.remove(&connection);
        // Others may be in front of it; a released connection is skipped when it reaches the front.
        while self.deadlines.front().is_some_and(|(_, first)| !self.all.contains_key(first)) {
            self.deadlines.pop_front();
        }
        waiting
    }

    /// When the next one times out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// The next one that has timed out.
    ///
    /// It stays held: the caller decides its route with what is there, which releases it. Each
    /// connection is returned once.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<ConnectionId> {
        while let Some((_, connection)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.all.contains_key(&connection) {
                return Some(connection);
            }
        }
        None
    }
}
