//! New connections at an agent's listeners: which route each takes, and what is held until that is known.
//!
//! ```text
//! accept ─▶ [PROXY header] ─▶ decide(no bytes) ─┬─ App ──────▶ begin
//!              hold                             ├─ Refuse ───▶ reset
//!                                               └─ More ─────▶ hold ─ bytes, end or timeout ─▶ decide again
//! ```
//!
//! The state machine learns of a connection only when its app is known. Until then the bytes are in
//! `Undecided`, up to `HELD_MAX` and `timeouts.first_bytes`; afterwards the rules must decide with
//! what is there.

use super::{LISTENER, Shell};
use crate::{
    AgentError,
    datagrams::DatagramInput,
    program::{self, ConnectionKind},
    routing::{Arrived, Route, Routing},
};
use bytes::Buf;
use marram_session::agent::{
    AgentInput, ConnectionFailure, ConnectionId,
    proxy::{self, ProxyHeader},
    routes::{HELD_MAX, RouteProtocol},
};
use marram_transport::{Socket, cannot_listen, token};
use marram_wire::{frame::Code, key::CellKey, limits::STREAM_CUT};
use mio::{
    Interest, Poll,
    net::{TcpListener, TcpStream},
};
use std::{io, net::SocketAddr, sync::atomic::Ordering::Relaxed, time::Duration};
use tracing::{error, info, warn};

/// How long after a failure it is tried again to accept a connection, or to listen.
const AGAIN: Duration = Duration::from_millis(100);

/// Binds the listeners for streams.
///
/// # Errors
/// If an address cannot be bound; the text says how to find the cause.
pub(super) fn listen(poll: &Poll, routing: &Routing) -> Result<Vec<(TcpListener, usize)>, AgentError> {
    let mut listeners = Vec::new();
    for (place, (at, _)) in
        routing.listeners().enumerate().filter(|(_, (at, _))| at.protocol != RouteProtocol::Udp)
    {
        let (address, app) = (at.address, &at.app);
        let mut listener = TcpListener::bind(address)
            .map_err(|error| cannot_listen(address, &format!("for {app}"), error))?;
        let token = token::token(LISTENER, listeners.len() as u64);
        poll.registry().register(&mut listener, token, Interest::READABLE)?;
        info!(address = %listener.local_addr()?, %app, "listening for clients");
        listeners.push((listener, place));
    }
    Ok(listeners)
}

impl Shell {
    /// Whether new connections are accepted from now on. While they are not, listeners are closed, so that clients and load balancers see at
    /// once that nothing answers here; they are bound again at the addresses which they had.
    pub(super) fn set_accepts(&mut self, accepts: bool) {
        if accepts {
            self.listen_again();
            self.inputs.push_back(AgentInput::CancelDrain);
        } else {
            info!("accepting no new connections");
            let of = |(listener, place): (TcpListener, usize)| Some((listener.local_addr().ok()?, place));
            self.closed.extend(self.listeners.drain(..).filter_map(of));
            self.accepting.clear();
            self.again = None;
            self.inputs.push_back(AgentInput::Drain);
        }
    }

    fn listen_again(&mut self) {
        for (address, place) in std::mem::take(&mut self.closed) {
            let index = self.listeners.len();
            let bound = TcpListener::bind(address).and_then(|mut listener| {
                let token = token::token(LISTENER, index as u64);
                self.poll.registry().register(&mut listener, token, Interest::READABLE)?;
                Ok(listener)
            });
            match bound {
                Ok(listener) => {
                    info!(%address, "listening for clients again");
                    self.listeners.push((listener, place));
                    self.accepting.push(false);
                }
                Err(error) => {
                    self.closed.push((address, place));
                    self.try_later();
                    if let Some(suppressed) = self.accept_errors.pass(self.clock.now()) {
                        error!(%address, %error, suppressed, "cannot listen for clients again: free the address");
                    }
                }
            }
        }
    }

    fn try_later(&mut self) {
        self.again.get_or_insert(self.clock.now() + AGAIN);
    }

    /// Tries again what has failed: the poll reports a connection once, so nothing else would, until another client comes.
    fn try_again(&mut self) {
        let now = self.clock.now();
        if self.again.take_if(|at| *at <= now).is_some() {
            self.accepting.fill(true);
            self.listen_again();
        }
    }

    /// Accepts connections that the program has opened, while there is room.
    pub(super) fn accept_asked(&mut self) {
        while self.asked && self.locals.has_room() && (self.stops > 0 || self.agent.has_room()) {
            let Some(ask) = self.program.as_ref().and_then(|program| program.asks.try_recv().ok()) else {
                self.asked = false;
                return;
            };
            if self.stops > 0 {
                program::turn_down(&ask);
                continue;
            }
            let program::ConnectRequest { app, key, half } = ask;
            let (socket, close_state) = half.into_socket();
            let (datagrams, messages) =
                (close_state.kind() == ConnectionKind::Datagrams, close_state.kind().keeps_messages());
            // Fails if the system is out of memory; the program sees its connection close.
            if let Ok(connection) = self.locals.accept(self.poll.registry(), socket, Some(close_state)) {
                self.step(AgentInput::Accepted { connection, app, key, datagrams, messages, origin: None });
            }
        }
    }

    /// Accepts connections from ready listeners and from the program, while there is room.
    pub(super) fn accept(&mut self) {
        self.accept_asked();
        self.try_again();
        for index in 0..self.listeners.len() {
            while self.accepting[index] && self.has_room(index) {
                match self.listeners[index].0.accept() {
                    Ok((stream, client)) => self.accepted(stream, client, index),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.accepting[index] = false,
                    Err(error) => {
                        // For example out of file descriptors: the connection stays in the kernel's queue.
                        self.accepting[index] = false;
                        self.try_later();
                        if let Some(suppressed) = self.accept_errors.pass(self.clock.now()) {
                            warn!(%error, suppressed, "cannot accept a client's connection");
                        }
                    }
                }
            }
        }
    }

    /// Whether one more connection can be accepted from a listener: WebSocket connections have a separate limit.
    // Without room a connection stays in the kernel's queue; it is not refused.
    fn has_room(&self, index: usize) -> bool {
        self.agent.has_room()
            && match self.routing.protocol(self.listeners[index].1) {
                RouteProtocol::WebSocket => self.websockets.has_room(),
                RouteProtocol::Tcp | RouteProtocol::Udp => self.locals.has_room(),
            }
    }

    /// Whether [`Self::accept`] may find a connection without another poll.
    pub(super) fn can_accept(&self) -> bool {
        let mut listeners = (0..self.listeners.len()).filter(|index| self.accepting[*index]);
        (self.asked && self.locals.has_room() && self.agent.has_room())
            || listeners.any(|index| self.has_room(index))
    }

    fn accepted(&mut self, stream: TcpStream, client: SocketAddr, index: usize) {
        let listener = self.listeners[index].1;
        let local = stream.local_addr().unwrap_or(self.routing.address(listener));
        let arrived = Arrived { listener, client, local };
        if self.routing.protocol(listener) == RouteProtocol::WebSocket {
            return self.browser_accepted(stream, arrived);
        }
        let registry = self.poll.registry();
        // Fails if the client is gone already, or the system is out of memory; the client sees its connection close.
        let accepted = Socket::tcp(stream).and_then(|socket| self.locals.accept(registry, socket, None));
        let Ok(connection) = accepted else { return };
        if self.routing.takes_proxies(listener) {
            return self.undecided.hold(self.clock.now(), connection, arrived, true);
        }
        match self.routing.decide(listener, client, &[], false) {
            Route::App(app, key) => self.begin(connection, (app, key), &arrived),
            Route::Refuse(rule, reason) => self.refuse(connection, client, &rule, &reason),
            Route::More => self.undecided.hold(self.clock.now(), connection, arrived, false),
        }
    }

    fn begin(&mut self, connection: ConnectionId, (app, key): (String, Option<CellKey>), arrived: &Arrived) {
        self.routing.counts(arrived.listener).begun.fetch_add(1, Relaxed);
        let origin = self.routing.origin(arrived);
        let (datagrams, messages) = (false, false);
        self.step(AgentInput::Accepted { connection, app, key, datagrams, messages, origin });
    }

    /// Closes a connection without a valid PROXY header.
    /// The address in the log is the proxy's: no other one is known.
    fn refuse_unproxied(&mut self, connection: ConnectionId, reason: &str) {
        let Some(waiting) = self.undecided.release(connection) else { return };
        let session = None;
        self.locals
            .reset(connection, ConnectionFailure { session, code: Code::Killed, reason: reason.to_owned() });
        self.tell_unproxied(&waiting.arrived, reason);
    }

    pub(super) fn tell_unproxied(&mut self, arrived: &Arrived, reason: &str) {
        self.routing.counts(arrived.listener).refused.fetch_add(1, Relaxed);
        if let Some(suppressed) = self.refusals.pass(self.clock.now()) {
            let listener = self.routing.name(arrived.listener);
            warn!(proxy = %arrived.client, listener, reason, suppressed, "connection refused: no usable PROXY protocol header");
        }
    }

    fn refuse(&mut self, connection: ConnectionId, client: SocketAddr, rule: &str, reason: &str) {
        let session = None;
        self.locals
            .reset(connection, ConnectionFailure { session, code: Code::Killed, reason: reason.to_owned() });
        self.tell_refused(client, rule, reason);
    }

    pub(super) fn tell_refused(&mut self, client: SocketAddr, rule: &str, reason: &str) {
        if let Some(suppressed) = self.refusals.pass(self.clock.now()) {
            warn!(%client, rule, reason, suppressed, "refused by a route");
        }
    }

    /// Handles an input of a connection; its route may not be decided yet.
    pub(super) fn heard(&mut self, input: AgentInput) {
        match &input {
            AgentInput::Received { connection, bytes } => {
                if let Some(waiting) = self.undecided.get_mut(*connection) {
                    waiting.first.extend_from_slice(bytes);
                    return self.ask(*connection, false);
                }
            }
            // The route is decided with what came; then the state machine gets the end as well.
            AgentInput::EndOfInput { connection } if self.undecided.has(*connection) => {
                self.ask(*connection, true)
            }
            AgentInput::Broken { connection } if self.undecided.release(*connection).is_some() => return,
            _ => {}
        }
        self.step(input);
    }

    /// Decides the route of a held connection again; `last` if it is held no longer.
    pub(super) fn ask(&mut self, connection: ConnectionId, last: bool) {
        let Some(waiting) = self.undecided.get_mut(connection) else { return };
        if waiting.proxied {
            match proxy::read(&waiting.first) {
                Ok(ProxyHeader::More) if !last => return,
                Ok(ProxyHeader::More) => {
                    let reason = "its PROXY protocol header did not arrive in time (`timeouts.first_bytes`)";
                    return self.refuse_unproxied(connection, reason);
                }
                Ok(ProxyHeader::Header { len, ends }) => {
                    waiting.first.advance(len);
                    waiting.proxied = false;
                    waiting.arrived.through(ends);
                }
                Err(error) => return self.refuse_unproxied(connection, &error.to_string()),
            }
        }
        let last = last || waiting.first.len() >= HELD_MAX;
        let Arrived { listener, client, .. } = waiting.arrived;
        let route = self.routing.decide(listener, client, &waiting.first, last);
        if route == Route::More {
            return;
        }
        let Some(waiting) = self.undecided.release(connection) else { return };
        match route {
            Route::Refuse(rule, reason) => self.refuse(connection, client, &rule, &reason),
            Route::More => {}
            Route::App(app, key) => {
                self.begin(connection, (app, key), &waiting.arrived);
                // In pieces, as if they were read now: a read has STREAM_CUT bytes at most.
                let mut first = waiting.first.freeze();
                while !first.is_empty() {
                    let bytes = first.split_to(first.len().min(STREAM_CUT));
                    self.step(AgentInput::Received { connection, bytes });
                }
            }
        }
    }

    /// The next datagram, if one arrived.
    pub(super) fn next_datagram(&mut self) -> Option<AgentInput> {
        let now_ns = self.now_ns();
        loop {
            // While the agent stops, and without room, datagrams of new clients are dropped: UDP
            // permits it, and the client may send again.
            let (client, bytes) = match self.datagrams.next(now_ns)? {
                DatagramInput::Known(input) => return Some(input),
                DatagramInput::New(client, bytes) => (client, bytes),
            };
            if self.stops > 0 || !self.datagrams.has_room(client) || !self.agent.has_room() {
                continue;
            }
            match self.routing.decide(client.listener, client.address, &bytes, true) {
                Route::More => {}
                Route::Refuse(rule, reason) => self.tell_refused(client.address, &rule, &reason),
                Route::App(app, key) => {
                    self.routing.counts(client.listener).begun.fetch_add(1, Relaxed);
                    let local = self.routing.address(client.listener);
                    let arrived = Arrived { listener: client.listener, client: client.address, local };
                    let origin = self.routing.origin(&arrived);
                    let connection = self.datagrams.begin(now_ns, client);
                    self.step(AgentInput::Accepted {
                        connection,
                        app,
                        key,
                        datagrams: true,
                        messages: false,
                        origin,
                    });
                    return Some(AgentInput::Received { connection, bytes });
                }
            }
        }
    }
}
