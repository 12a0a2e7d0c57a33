//! All local connections of an agent: which may be readable, which may be writable, which take too long to connect.
//!
//! It works as `WireTable` does for wires: edge-triggered events, a queue of connections that may
//! be readable, in which each gets one read a turn, and one flush for each batch of inputs.

use super::local::Local;
use crate::program::CloseState;
use bytes::BytesMut;
use marram_session::agent::{AgentInput, ConnectionFailure, ConnectionId};
use marram_transport::{Socket, token};
use marram_wire::frame::Code;
use mio::{Interest, Registry};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

/// Connections at a time; more wait in the listeners' queues.
const LOCALS_MAX: usize = 32_768;
/// How often connections are checked for unreachable peers within `peer_unreachable`.
const SEARCHES: u32 = 8;
/// Connections that are checked in one turn; each costs a system call.
const SEARCHED: usize = 256;
/// This bit marks connections that the agent opened; accepted ones do not have it.
/// Set by the state machine when it opens a connection. It is left out of poll tokens, whose kind
/// says the same.
const ASKED: u64 = 1 << 63;
/// Poll tokens of accepted connections.
pub(super) const ACCEPTED: u64 = 3;
/// Poll tokens of connections that the agent opened.
pub(super) const CONNECTED: u64 = 4;

/// All local connections of an agent.
pub(super) struct Locals {
    all: BTreeMap<ConnectionId, Local>,
    /// Connections that may be readable.
    ready: VecDeque<ConnectionId>,
    /// Connections that may be writable.
    dirty: Vec<ConnectionId>,
    /// In order of their deadlines: all have the same timeout.
    /// Only of connections that are being established. Entries that are over are skipped when they
    /// are due.
    deadlines: VecDeque<(Instant, ConnectionId)>,
    connect_timeout: Duration,
    /// How long a peer's host may be silent before the peer counts as gone.
    peer_unreachable: Duration,
    /// When to check for unreachable peers, and the last connection that the current check has reached.
    search_at: Instant,
    /// None between two checks.
    search: Option<ConnectionId>,
    next_accepted: u64,
    /// The target of the next read.
    buffer: BytesMut,
}

impl Locals {
    /// No connections. Those that the agent opens may take `connect_timeout`; those with a host that is silent for
    /// `peer_unreachable` are broken.
    pub(super) fn new(connect_timeout: Duration, peer_unreachable: Duration, now: Instant) -> Self {
        Self {
            all: BTreeMap::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            deadlines: VecDeque::new(),
            connect_timeout,
            peer_unreachable,
            search_at: now + peer_unreachable / SEARCHES,
            search: None,
            next_accepted: 0,
            buffer: BytesMut::new(),
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one more can be accepted.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < LOCALS_MAX
    }

    /// When to check for unreachable peers; none without connections.
    pub(super) fn search_due(&self) -> Option<Instant> {
        (!self.all.is_empty()).then_some(self.search_at)
    }

    /// Checks some of the connections, in turn, and breaks those with an unreachable peer: the kernel detects only silent ones.
    ///
    /// TCP keep-alive, which the first check of a connection enables, ends idle connections; a connection with
    /// unacknowledged data needs this (`Socket::has_vanished`). A check of all connections may take several
    /// turns, so that 32,768 system calls do not stop the loop.
    pub(super) fn search_vanished(&mut self, now: Instant, inputs: &mut VecDeque<AgentInput>) {
        if now < self.search_at {
            return;
        }
        let from = self.search.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<ConnectionId> =
            self.all.range((from, Bound::Unbounded)).take(SEARCHED).map(|(id, _)| *id).collect();
        self.search = some.last().copied().filter(|_| some.len() == SEARCHED);
        if self.search.is_none() {
            self.search_at = now + self.peer_unreachable / SEARCHES;
        }
        for connection in some {
            let gone = |local: &mut Local| !local.connecting && local.has_vanished(self.peer_unreachable);
            if self.all.get_mut(&connection).is_some_and(gone) {
                let reason = "its host is unreachable".to_owned();
                self.reset(connection, ConnectionFailure { session: None, code: Code::Reset, reason });
                inputs.push_back(AgentInput::Broken { connection });
            }
        }
    }

    /// Whether [`Self::next_input`] may return something without another poll.
    pub(super) fn is_busy(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds an accepted connection, and assigns its id.
    ///
    /// # Errors
    /// If the socket has no peer any more or cannot be registered; it is then closed.
    pub(super) fn accept(
        &mut self,
        registry: &Registry,
        mut socket: Socket,
        close_state: Option<Arc<CloseState>>,
    ) -> io::Result<ConnectionId> {
        let number = self.next_accepted;
        let interests = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, token::token(ACCEPTED, number), interests)?;
        self.next_accepted += 1;
        let connection = ConnectionId(number);
        self.all.insert(connection, Local::new(connection, socket, false, close_state));
        Ok(connection)
    }

    /// Adds a connection that is being established.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub(super) fn connect(
        &mut self,
        registry: &Registry,
        connection: ConnectionId,
        mut socket: Socket,
        close_state: Option<Arc<CloseState>>,
        now: Instant,
    ) -> io::Result<()> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, token::token(CONNECTED, connection.0 & !ASKED), interests)?;
        self.all.insert(connection, Local::new(connection, socket, true, close_state));
        self.deadlines.push_back((now + self.connect_timeout, connection));
        Ok(())
    }

    /// Records a poll event of token `number` of `kind`; returns an input that follows from it directly.
    pub(super) fn on_event(
        &mut self,
        kind: u64,
        number: u64,
        event: &mio::event::Event,
    ) -> Option<AgentInput> {
        let connection = ConnectionId(if kind == CONNECTED { number | ASKED } else { number });
        let local = self.all.get_mut(&connection)?;
        let mut input = None;
        if local.connecting {
            match local.socket.connected() {
                Ok(false) => return None,
                Ok(true) => {
                    local.connecting = false;
                    input = Some(AgentInput::Connected { connection });
                }
                Err(error) => {
                    self.all.remove(&connection);
                    let reason = format!("cannot connect to the server: {error}");
                    return Some(AgentInput::ConnectFailed { connection, reason });
                }
            }
        }
        let closed = event.is_read_closed() || event.is_error();
        // No read would notice: the input has ended already.
        if (event.is_error() && local.input_ended()) || (closed && local.is_aborted()) {
            self.all.remove(&connection);
            return Some(AgentInput::Broken { connection });
        }
        local.ready(event.is_readable() || closed, closed);
        queue(&mut self.ready, connection, local);
        if event.is_writable() {
            self.dirty.push(connection);
        }
        input
    }

    /// When the next connection attempt times out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Ends one connection attempt that has timed out, if there is one.
    pub(super) fn expire(&mut self, now: Instant) -> Option<AgentInput> {
        while let Some((_, connection)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.all.get(&connection).is_some_and(|local| local.connecting) {
                self.all.remove(&connection);
                let reason = "the server did not answer in time".to_string();
                return Some(AgentInput::ConnectFailed { connection, reason });
            }
        }
        None
    }

    /// Reads from the next readable connection that `may_read`.
    pub(super) fn next_input(&mut self, may_read: impl Fn(ConnectionId) -> bool) -> Option<AgentInput> {
        while let Some(connection) = self.ready.pop_front() {
            let Some(local) = self.all.get_mut(&connection) else { continue };
            local.queued = false;
            if !local.wants_read() {
                continue;
            }
            // The agent stops the reading and resumes it.
            if !may_read(connection) {
                return Some(AgentInput::Waits { connection });
            }
            let input = local.read(&mut self.buffer);
            queue(&mut self.ready, connection, local);
            if matches!(input, Some(AgentInput::Broken { .. })) {
                self.all.remove(&connection);
            }
            if input.is_some() {
                return input;
            }
        }
        None
    }

    /// Changes a connection, and marks it for the next flush.
    /// The check for duplicates looks only at the last one, since outputs for one connection come
    /// together; a second flush does no harm.
    pub(super) fn change(&mut self, connection: ConnectionId, change: impl FnOnce(&mut Local)) {
        if let Some(local) = self.all.get_mut(&connection) {
            change(local);
            if self.dirty.last() != Some(&connection) {
                self.dirty.push(connection);
            }
        }
    }

    /// Stops or resumes reading from a connection.
    pub(super) fn set_reading(&mut self, connection: ConnectionId, on: bool) {
        if let Some(local) = self.all.get_mut(&connection) {
            local.set_reading(on);
            queue(&mut self.ready, connection, local);
        }
    }

    /// Closes a connection so that its program sees a failure.
    pub(super) fn reset(&mut self, connection: ConnectionId, failure: ConnectionFailure) {
        if let Some(local) = self.all.remove(&connection) {
            local.fail(failure);
        }
    }

    /// Writes waiting bytes on all connections, as far as their sockets take them, and reports the number of bytes.
    pub(super) fn flush(&mut self, inputs: &mut VecDeque<AgentInput>) {
        for connection in std::mem::take(&mut self.dirty) {
            let Some(local) = self.all.get_mut(&connection) else { continue };
            let over = match local.flush() {
                Ok(written) => {
                    inputs.extend(written.map(|bytes| AgentInput::Written { connection, bytes }));
                    local.is_over()
                }
                Err(_) => {
                    inputs.push_back(AgentInput::Broken { connection });
                    true
                }
            };
            if over {
                self.all.remove(&connection);
            }
        }
    }
}

/// Puts a connection at the end of the read queue, once, if it may return something.
/// `queued` makes the check cheap: searching the queue would not be.
fn queue(ready: &mut VecDeque<ConnectionId>, connection: ConnectionId, local: &mut Local) {
    if local.wants_read() && !std::mem::replace(&mut local.queued, true) {
        ready.push_back(connection);
    }
}
