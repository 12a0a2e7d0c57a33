//! Datagram sockets: one for each listener, with the conversations of its clients, and one for each conversation with a server. A
//! datagram is one message, in both directions. Knows no session.
//!
//! ```text
//! listener's socket (one, unconnected) ─┬─ client 10.0.0.1:5001 ─ conversation ─ session
//!                                       └─ client 10.0.0.2:5001 ─ conversation ─ session
//! server's socket (one a conversation, connected) ─────────────── conversation ─ session
//! ```
//!
//! UDP has no end, so the silence of a client is its end (`Flows`, in the session crate). A
//! datagram that finds no room is dropped before the agent numbers it, never after (I25).

use super::{
    error::AgentError,
    routing::{Listener, Routing},
};
use bytes::Bytes;
use marram_session::agent::{
    AgentInput, ConnectionId,
    routes::{
        RouteProtocol,
        flows::{Expired, Flows},
    },
};
use marram_transport::{cannot_listen, token};
use mio::{Interest, Registry, net::UdpSocket};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};
use tracing::info;

/// Poll tokens of listeners' sockets.
pub(super) const DATAGRAM_LISTENER: u64 = 5;
/// Poll tokens of sockets to servers.
pub(super) const SERVER: u64 = 6;
/// This bit marks conversations that a listener's client began; no other connection has it.
/// A number is never reused, so an output for a conversation that has ended finds nothing.
const BEGUN: u64 = 1 << 62;
/// This bit marks conversations that the agent opened.
const ASKED: u64 = 1 << 63;
/// Bytes of the receive buffer: no datagram is longer.
const BUFFER: usize = 1 << 16;

/// A listener's socket.
struct UdpListener {
    /// Its index among all listeners.
    listener: usize,
    socket: UdpSocket,
    flows: Flows,
}

/// A socket that may have something to read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Listener(usize),
    Server(ConnectionId),
}

/// How a conversation's peer is reached.
/// Clients share their listener's socket: replies must come from the address that the client sent
/// to.
enum PeerSocket {
    /// Through a listener's socket.
    Listener(usize, SocketAddr),
    /// Through its own socket.
    Socket(UdpSocket),
}

/// One conversation.
struct Conversation {
    socket: PeerSocket,
    /// Datagrams that the socket has not taken.
    waiting: VecDeque<Bytes>,
    /// Whether it ends after the waiting datagrams.
    /// Unlike a stream's, its socket is not shut down: the peer learns nothing of the end.
    closing: bool,
}

/// A received datagram, or an event of a conversation.
pub(super) enum DatagramInput {
    /// From a known peer.
    Known(AgentInput),
    /// From an address that has no conversation with this listener.
    New(NewClient, Bytes),
}

/// A client that could begin a conversation.
#[derive(Clone, Copy)]
pub(super) struct NewClient {
    socket: usize,
    pub(super) listener: usize,
    pub(super) address: SocketAddr,
}

/// All datagram sockets and conversations.
pub(super) struct Datagrams {
    listeners: Vec<UdpListener>,
    all: BTreeMap<ConnectionId, Conversation>,
    /// Sockets that may be readable, in turn.
    /// Edge-triggered: a source stays here until its socket would block. Each gives one datagram a
    /// turn.
    ready: VecDeque<Source>,
    /// The same ones, to avoid duplicates.
    queued: BTreeSet<Source>,
    /// Conversations that may be written to.
    /// Flushed after the batch of inputs, not at once, so that a batch of outputs costs one pass.
    dirty: BTreeSet<ConnectionId>,
    /// Conversations that wait until their socket takes more.
    clogged: BTreeSet<ConnectionId>,
    /// Conversations that clients have begun.
    begun: u64,
    /// The target of every receive. What arrives is copied out, since datagrams are small and may
    /// be kept for long.
    buffer: Box<[u8]>,
    routing: Routing,
}

impl Datagrams {
    /// Binds the listeners for datagrams.
    pub(super) fn bind(registry: &Registry, routing: &Routing) -> Result<Self, AgentError> {
        let mut listeners = Vec::new();
        for (listener, (at, _)) in routing.listeners().enumerate() {
            if at.protocol == RouteProtocol::Udp {
                listeners.push(UdpListener::bind(registry, listeners.len(), listener, at)?);
            }
        }
        Ok(Self {
            listeners,
            all: BTreeMap::new(),
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            dirty: BTreeSet::new(),
            clogged: BTreeSet::new(),
            begun: 0,
            buffer: vec![0; BUFFER].into(),
            routing: routing.clone(),
        })
    }

    /// Whether this connection is a conversation in datagrams.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.all.contains_key(&connection)
    }

    /// Whether there are no conversations.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether [`Self::next`] may return something without another poll.
    pub(super) fn is_busy(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds a socket to a server, which is connected at once.
    ///
    /// There is no handshake: the input says so although the server may not exist.
    pub(super) fn connected(
        &mut self,
        registry: &Registry,
        connection: ConnectionId,
        mut socket: UdpSocket,
    ) -> io::Result<AgentInput> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, token::token(SERVER, connection.0 & !ASKED), interests)?;
        let socket = PeerSocket::Socket(socket);
        self.all.insert(connection, Conversation { socket, waiting: VecDeque::new(), closing: false });
        Ok(AgentInput::Connected { connection })
    }

    /// Records a poll event of token `number` of `kind`.
    /// Does nothing for a socket that is gone: its event may have been in the same poll.
    pub(super) fn on_event(&mut self, kind: u64, number: u64, event: &mio::event::Event) {
        let source = match kind {
            DATAGRAM_LISTENER => Source::Listener(usize::try_from(number).unwrap_or(usize::MAX)),
            _ => Source::Server(ConnectionId(number | ASKED)),
        };
        if event.is_readable() && self.queued.insert(source) {
            self.ready.push_back(source);
        }
        if event.is_writable() {
            // Sockets are rarely blocked, so all blocked ones are tried again.
            self.dirty.append(&mut self.clogged);
        }
    }

    /// Reads the next datagram.
    ///
    /// None if no socket has one, or after an error of one socket: the other inputs of the loop
    /// have their turn then.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<DatagramInput> {
        while let Some(source) = self.ready.pop_front() {
            let read = match source {
                Source::Listener(listener) => {
                    self.listeners.get(listener).map(|listener| listener.socket.recv_from(&mut self.buffer))
                }
                Source::Server(connection) => match self.all.get(&connection) {
                    Some(Conversation { socket: PeerSocket::Socket(socket), .. }) => {
                        Some(socket.recv(&mut self.buffer).map(|len| (len, SocketAddr::from(([0; 4], 0)))))
                    }
                    _ => None,
                },
            };
            let (len, from) = match read {
                Some(Ok(read)) => read,
                Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.queued.remove(&source);
                    continue;
                }
                // The peer's port is closed: what was sent is lost, which datagrams permit, and more may arrive.
                Some(Err(_)) => {
                    self.ready.push_back(source);
                    return None;
                }
                None => {
                    self.queued.remove(&source);
                    continue;
                }
            };
            self.ready.push_back(source);
            let bytes = Bytes::copy_from_slice(&self.buffer[..len]);
            return Some(match source {
                Source::Server(connection) => {
                    DatagramInput::Known(AgentInput::Received { connection, bytes })
                }
                Source::Listener(listener) => self.came(now_ns, listener, from, bytes),
            });
        }
        None
    }

    /// Known by the pair of listener and source address. The address may be forged: an answer then
    /// goes to the victim, at most as many as the cell sends.
    fn came(&mut self, now_ns: u64, number: usize, from: SocketAddr, bytes: Bytes) -> DatagramInput {
        let listener = &mut self.listeners[number];
        match listener.flows.heard(now_ns, from) {
            Some(connection) => DatagramInput::Known(AgentInput::Received { connection, bytes }),
            None => DatagramInput::New(
                NewClient { socket: number, listener: listener.listener, address: from },
                bytes,
            ),
        }
    }

    /// Whether a client can begin a conversation; counts a refusal.
    pub(super) fn has_room(&self, client: NewClient) -> bool {
        let room = self.listeners[client.socket].flows.has_room();
        if !room {
            self.routing.counts(client.listener).flows_refused.fetch_add(1, Relaxed);
        }
        room
    }

    /// Begins a conversation with a new client, after [`Self::has_room`].
    pub(super) fn begin(&mut self, now_ns: u64, client: NewClient) -> ConnectionId {
        let connection = ConnectionId(BEGUN | self.begun);
        self.begun += 1;
        let begun = self.listeners[client.socket].flows.begin(now_ns, client.address, connection);
        debug_assert!(begun, "the caller asked for room, and its address is new");
        let socket = PeerSocket::Listener(client.socket, client.address);
        self.all.insert(connection, Conversation { socket, waiting: VecDeque::new(), closing: false });
        self.count(client.socket);
        connection
    }

    fn count(&self, listener: usize) {
        let listener = &self.listeners[listener];
        self.routing.counts(listener.listener).flows.store(listener.flows.len() as u64, Relaxed);
    }

    /// Queues one more datagram.
    pub(super) fn push(&mut self, connection: ConnectionId, bytes: Bytes) {
        if let Some(conversation) = self.all.get_mut(&connection) {
            conversation.waiting.push_back(bytes);
            self.dirty.insert(connection);
        }
    }

    /// Further datagrams of this peer belong to a new conversation.
    /// The cell has closed its output; the old session goes on to its end.
    pub(super) fn retire(&mut self, now_ns: u64, connection: ConnectionId) {
        if let Some(Conversation { socket: PeerSocket::Listener(listener, _), .. }) =
            self.all.get(&connection)
        {
            self.listeners[*listener].flows.retire(now_ns, connection);
        }
    }

    /// Ends the conversation after the waiting datagrams.
    pub(super) fn close(&mut self, connection: ConnectionId) {
        if let Some(conversation) = self.all.get_mut(&connection) {
            conversation.closing = true;
            self.dirty.insert(connection);
        }
    }

    /// Removes the conversation.
    /// At once, and without sending what waits.
    pub(super) fn remove(&mut self, connection: ConnectionId) {
        if let Some(Conversation { socket: PeerSocket::Listener(listener, _), .. }) =
            self.all.remove(&connection)
        {
            self.listeners[listener].flows.end(connection);
            self.count(listener);
        }
        self.clogged.remove(&connection);
        self.dirty.remove(&connection);
    }

    /// When the next conversation may reach its idle timeout.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.listeners.iter().filter_map(|listener| listener.flows.due_ns()).min()
    }

    /// The next conversation that has reached its timeout.
    pub(super) fn expire(&mut self, now_ns: u64) -> Option<AgentInput> {
        let expired = self.listeners.iter_mut().find_map(|listener| listener.flows.expire(now_ns))?;
        Some(match expired {
            Expired::Silent(connection) => AgentInput::EndOfInput { connection },
            // The agent did not end it within the time: it is dropped here too, or it would hold
            // its place forever.
            Expired::Stuck(connection) => {
                self.remove(connection);
                AgentInput::Broken { connection }
            }
        })
    }

    /// Sends waiting datagrams, as far as the sockets take them, and reports the number of bytes.
    ///
    /// Bytes that are reported as written give credit back to the edge, so only those that the
    /// kernel has taken count.
    pub(super) fn flush(&mut self, now_ns: u64, inputs: &mut VecDeque<AgentInput>) {
        while let Some(connection) = self.dirty.pop_first() {
            let Some(conversation) = self.all.get_mut(&connection) else { continue };
            let (mut count, mut bytes, mut broken) = (0, 0, false);
            while let Some(datagram) = conversation.waiting.front() {
                let sent = match &conversation.socket {
                    PeerSocket::Listener(listener, client) => {
                        self.listeners[*listener].socket.send_to(datagram, *client)
                    }
                    PeerSocket::Socket(socket) => socket.send(datagram),
                };
                match sent {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.clogged.insert(connection);
                        break;
                    }
                    // The error of an earlier datagram; this one was not sent.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => {
                        broken = true;
                        break;
                    }
                }
                (count, bytes) = (count + 1, bytes + datagram.len() as u64);
                conversation.waiting.pop_front();
            }
            let over = broken || (conversation.closing && conversation.waiting.is_empty());
            if count > 0 {
                if let PeerSocket::Listener(listener, _) = conversation.socket {
                    self.listeners[listener].flows.spoke(now_ns, connection);
                }
                inputs.push_back(AgentInput::Written { connection, bytes });
            }
            if broken {
                inputs.push_back(AgentInput::Broken { connection });
            }
            if over {
                self.remove(connection);
            }
        }
    }
}

impl UdpListener {
    fn bind(registry: &Registry, number: usize, listener: usize, at: &Listener) -> Result<Self, AgentError> {
        let address = at.address;
        let mut socket = UdpSocket::bind(address).map_err(|error| {
            cannot_listen(format_args!("udp://{address}"), &format!("for {}", at.app), error)
        })?;
        let interests = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, token::token(DATAGRAM_LISTENER, number as u64), interests)?;
        info!(address = %socket.local_addr()?, app = %at.app, "listening for datagrams");
        let idle_ns = u64::try_from(at.idle.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { listener, socket, flows: Flows::new(at.flows_max, idle_ns) })
    }
}

/// Connects a socket for a conversation with a server.
pub(super) fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(socket)
}
