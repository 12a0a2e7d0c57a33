//! Connections of browsers and other WebSocket clients: each WebSocket message is one message of the session, in both directions.
//! Knows no session.
//!
//! WebSocket has no half-close. A client that closes has finished sending, like the end of a stream; the cell's remaining
//! messages are sent before the client's close is answered, within [`CLOSING`].
//!
//! What a client can hold is bounded: connections ([`CONNECTIONS_MAX`]), those without a session
//! ([`ASKING_MAX`]), the time to send a request and to close, and bytes of messages that are not
//! complete ([`UNFINISHED_MAX`], over all clients, since each of many clients may send a message of
//! up to `MESSAGE_SIZE_MAX` bytes). Messages that are complete are bounded by flow control, as in
//! streams.

pub mod codec;
mod connection;
pub mod request;
mod unfinished;

pub(super) use request::UpgradeRefusal;
pub use request::{HEAD_MAX, is_origin};
pub use unfinished::UNFINISHED_MAX;

use crate::routing::Arrived;
use bytes::{Bytes, BytesMut};
use codec::Closing;
use connection::{Connection, Step};
use marram_session::agent::{AgentInput, ConnectionId, proxy::ProxyError};
use marram_transport::{Socket, token};
use marram_wire::frame::Code;
use mio::{Interest, Registry};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    ops::Bound,
    time::{Duration, Instant},
};
use unfinished::Unfinished;

use crate::locals::ACCEPTED;

/// Connections at a time; more wait in the listeners' queues.
pub const CONNECTIONS_MAX: usize = 32_768;
/// Limit of connections that have not sent a request or were refused; beyond it the oldest of these is closed, refused ones
/// first.
pub const ASKING_MAX: usize = 1_024;
/// How long a connection may take to close, after either side started it.
pub const CLOSING: Duration = Duration::from_secs(10);
/// How often connections are checked for unreachable peers within `peer_unreachable`, and how many in one turn.
const SEARCHES: u32 = 8;
const SEARCHED: usize = 256;
/// Steps without an input, before others have their turn: pings, parts of messages, refused requests.
const FRUITLESS_MAX: usize = 64;
/// This bit marks their numbers: they share a kind of poll token with streams.
const OURS: u64 = 1 << 59;

/// An event.
pub(super) enum WebSocketInput {
    /// From a client that was admitted.
    Input(AgentInput),
    /// A valid request, which the routes must decide: its head.
    Asked { connection: ConnectionId, arrived: Arrived, head: Bytes },
    /// A connection was closed because its proxy sent no valid header with the client's address.
    Unproxied { arrived: Arrived, error: ProxyError },
}

/// All WebSocket connections of an agent.
///
/// A table like `Locals`; the state machine knows a connection from its granted request on.
pub(super) struct WebSockets {
    all: BTreeMap<ConnectionId, Connection>,
    /// Connections that may be readable, in turn.
    ready: VecDeque<ConnectionId>,
    /// Connections that may be writable.
    dirty: BTreeSet<ConnectionId>,
    /// The deadlines of the connections that have one.
    deadlines: BTreeSet<(Instant, ConnectionId)>,
    /// Connections without a request yet, oldest first.
    asking: BTreeSet<ConnectionId>,
    /// Refused connections that have not closed yet, oldest first.
    turned_away: BTreeSet<ConnectionId>,
    /// [`ASKING_MAX`]; smaller in tests.
    asking_max: usize,
    unfinished: Unfinished,
    /// Steps without an input since the last [`Self::flush`].
    fruitless: usize,
    accepted: u64,
    timeout: Duration,
    peer_unreachable: Duration,
    search_at: Instant,
    search: Option<ConnectionId>,
    buffer: BytesMut,
}

impl WebSockets {
    /// No connections. Each may take `timeout` to send a request; those with a host that is silent for `peer_unreachable` are
    /// broken.
    pub(super) fn new(timeout: Duration, peer_unreachable: Duration, now: Instant) -> Self {
        Self {
            all: BTreeMap::new(),
            ready: VecDeque::new(),
            dirty: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            asking: BTreeSet::new(),
            turned_away: BTreeSet::new(),
            asking_max: ASKING_MAX,
            unfinished: Unfinished::new(),
            fruitless: 0,
            accepted: 0,
            timeout,
            peer_unreachable,
            search_at: now + peer_unreachable / SEARCHES,
            search: None,
            buffer: BytesMut::new(),
        }
    }

    /// Whether a poll token's number belongs to a WebSocket connection.
    pub(super) fn is_ours(number: u64) -> bool {
        number & OURS != 0
    }

    /// Whether this is a WebSocket connection.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.all.contains_key(&connection)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one more can be accepted.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < CONNECTIONS_MAX
    }

    /// Whether [`Self::next`] may return something without another poll.
    pub(super) fn is_busy(&self) -> bool {
        !self.ready.is_empty() || self.unfinished.excess().is_some()
    }

    /// Adds a connection of a listener; says whether its proxy sends a header first. The agent does not know it before its
    /// request.
    pub(super) fn accept(
        &mut self,
        registry: &Registry,
        mut socket: Socket,
        (arrived, proxied): (Arrived, bool),
        now: Instant,
    ) -> io::Result<()> {
        let connection = ConnectionId(OURS | self.accepted);
        socket.ask_for_peer(self.peer_unreachable)?;
        let interests = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, token::token(ACCEPTED, connection.0), interests)?;
        self.accepted += 1;
        // New clients are preferred: an attacker that opens connections and stays silent displaces
        // its own oldest ones, and an honest client sends its request at once.
        if self.asking.len() + self.turned_away.len() >= self.asking_max
            && let Some(oldest) = self.turned_away.pop_first().or_else(|| self.asking.pop_first())
        {
            self.remove(oldest);
        }
        self.all.insert(connection, Connection::new(socket, arrived, proxied));
        self.asking.insert(connection);
        self.give_until(connection, now + self.timeout);
        Ok(())
    }

    /// Replaces the deadline, if it has one.
    fn give_until(&mut self, connection: ConnectionId, until: Instant) {
        if let Some(one) = self.all.get_mut(&connection) {
            if let Some(former) = one.deadline.replace(until) {
                self.deadlines.remove(&(former, connection));
            }
            self.deadlines.insert((until, connection));
        }
    }

    fn remove(&mut self, connection: ConnectionId) -> Option<Connection> {
        let one = self.all.remove(&connection)?;
        self.asking.remove(&connection);
        self.turned_away.remove(&connection);
        self.unfinished.note(connection, 0);
        if let Some(deadline) = one.deadline {
            self.deadlines.remove(&(deadline, connection));
        }
        Some(one)
    }

    /// Records a poll event.
    pub(super) fn on_event(&mut self, number: u64, event: &mio::event::Event) {
        let connection = ConnectionId(number);
        let Some(one) = self.all.get_mut(&connection) else { return };
        let closed = event.is_read_closed() || event.is_error();
        one.ready(event.is_readable() || closed, closed);
        one.queue(connection, &mut self.ready);
        if event.is_writable() {
            self.dirty.insert(connection);
        }
    }

    /// The next event; `origins` are the pages that may connect to a listener. `None` also after enough steps without an input
    /// ([`Self::is_busy`]).
    pub(super) fn next<'a>(
        &mut self,
        now: Instant,
        origins: impl Fn(usize) -> &'a [String],
    ) -> Option<WebSocketInput> {
        loop {
            if let Some(connection) = self.unfinished.excess() {
                self.end(now, connection, &Closing::crowded());
                return Some(WebSocketInput::Input(AgentInput::Broken { connection }));
            }
            if self.fruitless >= FRUITLESS_MAX {
                return None;
            }
            let connection = self.ready.pop_front()?;
            let Some(one) = self.all.get_mut(&connection) else { continue };
            one.queued = false;
            if !one.wants_read() {
                continue;
            }
            let allowed = origins(one.arrived.listener);
            let step = one.step(&mut self.buffer, allowed);
            one.queue(connection, &mut self.ready);
            self.unfinished.note(connection, one.unfinished());
            self.fruitless += 1;
            // An answer to a ping, a close or a request may wait.
            self.dirty.insert(connection);
            match step {
                Step::Nothing => {}
                Step::Asked(head) => {
                    let arrived = one.arrived;
                    return Some(WebSocketInput::Asked { connection, arrived, head });
                }
                Step::Unproxied(error) => {
                    let arrived = one.arrived;
                    self.remove(connection);
                    return Some(WebSocketInput::Unproxied { arrived, error });
                }
                Step::Received(bytes) => {
                    self.fruitless -= 1;
                    return Some(WebSocketInput::Input(AgentInput::Received { connection, bytes }));
                }
                Step::Closed => {
                    self.give_until(connection, now + CLOSING);
                    return Some(WebSocketInput::Input(AgentInput::EndOfInput { connection }));
                }
                Step::Left(known) => {
                    self.give_until(connection, now + CLOSING);
                    if known {
                        return Some(WebSocketInput::Input(AgentInput::Broken { connection }));
                    }
                    self.turn_away(connection);
                }
                Step::Gone => {
                    if self.remove(connection).is_some_and(|one| one.known) {
                        return Some(WebSocketInput::Input(AgentInput::Broken { connection }));
                    }
                }
            }
        }
    }

    fn turn_away(&mut self, connection: ConnectionId) {
        self.asking.remove(&connection);
        self.turned_away.insert(connection);
    }

    /// Changes a connection, and marks it for the next flush.
    fn change(&mut self, connection: ConnectionId, change: impl FnOnce(&mut Connection)) {
        if let Some(one) = self.all.get_mut(&connection) {
            change(one);
            self.unfinished.note(connection, one.unfinished());
            self.dirty.insert(connection);
        }
    }

    /// Grants a client's request: it has a session from now on.
    pub(super) fn grant(&mut self, connection: ConnectionId) {
        self.change(connection, Connection::grant);
        self.asking.remove(&connection);
        if let Some(one) = self.all.get_mut(&connection) {
            if let Some(deadline) = one.deadline.take() {
                self.deadlines.remove(&(deadline, connection));
            }
            // Bytes may have followed the request.
            one.queue(connection, &mut self.ready);
        }
    }

    /// Refuses a client's request.
    pub(super) fn refuse(&mut self, now: Instant, connection: ConnectionId, refusal: &UpgradeRefusal) {
        if self.has(connection) {
            self.change(connection, |one| one.refuse(refusal));
            self.turn_away(connection);
            self.give_until(connection, now + CLOSING);
        }
    }

    /// Queues one more message to a client.
    pub(super) fn push(&mut self, connection: ConnectionId, message: Bytes) {
        self.change(connection, |one| one.push(message));
    }

    /// Queues a close after the waiting messages: everything was sent.
    pub(super) fn shutdown(&mut self, connection: ConnectionId) {
        self.change(connection, |one| one.close(&Closing::done()));
    }

    /// Both directions have ended.
    pub(super) fn close(&mut self, connection: ConnectionId) {
        self.change(connection, |one| {
            one.close(&Closing::done());
            one.leave();
        });
    }

    /// The session has ended early, for this reason.
    pub(super) fn fail(&mut self, now: Instant, connection: ConnectionId, code: Code, reason: &str) {
        self.end(now, connection, &Closing::session(code, reason));
    }

    /// The connection stays until the client closes or the deadline is over.
    fn end(&mut self, now: Instant, connection: ConnectionId, closing: &Closing) {
        self.change(connection, |one| {
            one.close(closing);
            one.leave();
        });
        self.give_until(connection, now + CLOSING);
    }

    /// Stops or resumes reading from a connection.
    pub(super) fn set_reading(&mut self, connection: ConnectionId, on: bool) {
        if let Some(one) = self.all.get_mut(&connection) {
            one.reading = on;
            one.queue(connection, &mut self.ready);
        }
    }

    /// When the next deadline or the next check for unreachable peers is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let search = (!self.all.is_empty()).then_some(self.search_at);
        self.deadlines.first().map(|(at, _)| *at).into_iter().chain(search).min()
    }

    /// Ends connections that have timed out, and those with an unreachable host.
    pub(super) fn expire(&mut self, now: Instant, inputs: &mut VecDeque<AgentInput>) {
        let due = self.deadlines.range(..=(now, ConnectionId(u64::MAX)));
        let due: Vec<_> = due.map(|(_, connection)| *connection).collect();
        for connection in due {
            // Its request is already in the socket; only this process has not read it yet.
            if self.all.get(&connection).is_some_and(Connection::may_yet_ask) {
                continue;
            }
            let Some(mut one) = self.remove(connection) else { continue };
            if one.known {
                inputs.push_back(AgentInput::Broken { connection });
            }
            one.give_up();
        }
        self.search_vanished(now, inputs);
    }

    /// As for streams (`Locals::search_vanished`).
    fn search_vanished(&mut self, now: Instant, inputs: &mut VecDeque<AgentInput>) {
        if now < self.search_at {
            return;
        }
        let from = self.search.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<_> =
            self.all.range((from, Bound::Unbounded)).take(SEARCHED).map(|(id, _)| *id).collect();
        self.search = some.last().copied().filter(|_| some.len() == SEARCHED);
        if self.search.is_none() {
            self.search_at = now + self.peer_unreachable / SEARCHES;
        }
        for connection in some {
            let gone =
                self.all.get(&connection).is_some_and(|one| one.socket.has_vanished(self.peer_unreachable));
            if gone && self.remove(connection).is_some_and(|one| one.known) {
                inputs.push_back(AgentInput::Broken { connection });
            }
        }
    }

    /// Writes waiting bytes on all connections, as far as their sockets take them, and reports the number of bytes.
    pub(super) fn flush(&mut self, now: Instant, inputs: &mut VecDeque<AgentInput>) {
        self.fruitless = 0;
        while let Some(connection) = self.dirty.pop_first() {
            let Some(one) = self.all.get_mut(&connection) else { continue };
            let known = one.known;
            let (written, over) = match one.flush() {
                Ok(written) => (written, one.is_over()),
                Err(_) => (None, true),
            };
            let waits = one.awaits_close() && one.deadline.is_none();
            if let Some(bytes) = written.filter(|_| known) {
                inputs.push_back(AgentInput::Written { connection, bytes });
            }
            if waits && !over {
                // However slowly it read: from now on its client has this time to close.
                self.give_until(connection, now + CLOSING);
            }
            if over && self.remove(connection).is_some_and(|one| one.known) {
                inputs.push_back(AgentInput::Broken { connection });
            }
        }
    }
}

#[cfg(test)]
mod tests;
