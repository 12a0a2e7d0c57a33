//! Connections whose route is not decided: a rule asks for what their clients say first, or their proxy has to say who they are. Each is held for a bounded time and a
//! bounded number of bytes, which the session then gets unchanged.

use crate::routing::Arrived;
use bytes::BytesMut;
use marram_session::agent::ConnectionId;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// One of them.
pub(super) struct Waiting {
    /// Where it came in.
    pub(super) arrived: Arrived,
    /// Whether its proxy has not said all yet.
    pub(super) proxied: bool,
    /// What its client has said so far.
    pub(super) first: BytesMut,
}

/// All of them.
pub(super) struct Undecided {
    all: BTreeMap<ConnectionId, Waiting>,
    /// In order of their deadlines, which all lie equally far ahead.
    deadlines: VecDeque<(Instant, ConnectionId)>,
    timeout: Duration,
}

impl Undecided {
    /// None. Each is held for `timeout` at most.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { all: BTreeMap::new(), deadlines: VecDeque::new(), timeout }
    }

    /// Holds one from which nothing was read; `proxied` if its proxy speaks first.
    pub(super) fn hold(&mut self, now: Instant, connection: ConnectionId, arrived: Arrived, proxied: bool) {
        self.all.insert(connection, Waiting { arrived, proxied, first: BytesMut::new() });
        self.deadlines.push_back((now + self.timeout, connection));
    }

    /// One that is held.
    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Waiting> {
        self.all.get_mut(&connection)
    }

    /// Whether this one is held.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.all.contains_key(&connection)
    }

    /// Lets one go.
    pub(super) fn release(&mut self, connection: ConnectionId) -> Option<Waiting> {
        let waiting = self.all.remove(&connection);
        // Others may stand before it; what was released is skipped when its turn comes.
        while self.deadlines.front().is_some_and(|(_, first)| !self.all.contains_key(first)) {
            self.deadlines.pop_front();
        }
        waiting
    }

    /// When the first has been held for long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// The next one that has.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<ConnectionId> {
        while let Some((_, connection)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.all.contains_key(&connection) {
                return Some(connection);
            }
        }
        None
    }
}
