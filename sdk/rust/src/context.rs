//! What a handler can ask of the host, typed. There are two hosts: the real one behind the Wasm imports, and on every
//! other target the scripted double.

use core::{fmt, mem, net::SocketAddr, time::Duration};

use alloc::{
    string::{String, ToString},
    vec::Vec,
};

#[cfg(not(target_arch = "wasm32"))]
use crate::double::Script as Host;
#[cfg(target_arch = "wasm32")]
use crate::rim::Host;

/// Bytes of the longest message. A longer one ends the session.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The host fills at most so many bytes in one call.
const RANDOM_BYTES_MAX: usize = 1 << 16;

/// A handle on one peer of the cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u32);

impl Port {
    /// The session's client.
    pub const CLIENT: Self = Self(0);
    /// The session's server, or the next stage of the chain.
    pub const SERVER: Self = Self(1);
    /// The first server to which a shared cell connects; further ones have the next numbers.
    pub const FIRST_CONNECTED: Self = Self(1 << 31);

    /// Whether it leads to a server to which the cell has connected ([`Context::connect`]).
    #[must_use]
    pub const fn is_from_connect(self) -> bool {
        self.0 >= Self::FIRST_CONNECTED.0
    }

    /// The other one of client and server; for any further port the client.
    #[must_use]
    pub const fn opposite(self) -> Self {
        if self.0 == Self::CLIENT.0 { Self::SERVER } else { Self::CLIENT }
    }
}

/// What kind of peer a port leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PortKind {
    /// The session's client.
    Client,
    /// The session's server.
    Server,
    /// The session's client, over datagrams: each received datagram is one message, and each sent message is one datagram. A
    /// message of more than 65,507 bytes ends the session.
    ClientDatagrams,
    /// The session's server, over datagrams.
    ServerDatagrams,
    /// A kind that this version of the SDK does not know.
    Unknown(u32),
}

impl PortKind {
    /// From its number in the ABI.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Client,
            1 => Self::Server,
            2 => Self::ClientDatagrams,
            3 => Self::ServerDatagrams,
            other => Self::Unknown(other),
        }
    }

    /// Whether it is a client, over streams or datagrams.
    #[must_use]
    pub const fn is_client(self) -> bool {
        matches!(self, Self::Client | Self::ClientDatagrams)
    }

    /// Whether the peer uses datagrams: messages are never cut and never merged.
    #[must_use]
    pub const fn is_datagrams(self) -> bool {
        matches!(self, Self::ClientDatagrams | Self::ServerDatagrams)
    }
}

/// A point in session time. Only differences are meaningful. Time never runs backwards, not even across a recovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time {
    /// Nanoseconds since an origin that is fixed for the session.
    pub nanoseconds: i64,
}

impl Time {
    /// How long after `earlier` this is; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanoseconds.saturating_sub(earlier.nanoseconds)).unwrap_or(0))
    }
}

/// The severity of a printed line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Level {
    /// The cell cannot do its work.
    Error = 0,
    /// Something unexpected that the cell can handle.
    Warn = 1,
    /// Useful during operation.
    Info = 2,
    /// For the developer of the cell.
    Debug = 3,
}

/// Why [`Context::cache`] has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// The origin cannot be reached, or is too slow; a later read may succeed.
    Away,
    /// The key is not a path below the origin, the object is larger than an edge's cache accepts (512 KiB, or the manifest's
    /// `max_bytes`), or the origin's answer cannot be used. The edge's log has the reason.
    Refused,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Away => "the origin cannot be reached in time",
            Self::Refused => "there is no such object to be had",
        })
    }
}

impl core::error::Error for Unread {}

/// The fields of a peer, by their numbers in the ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub(crate) enum PeerField {
    Address = 0,
    Listener = 1,
    Identity = 2,
}

/// The cell's interface to the host, lent to each handler.
pub struct Context {
    pub(crate) host: Host,
}

impl Context {
    /// Sends a message to the client: CESSNA's `send_msg_to_client`.
    pub fn send_to_client(&mut self, payload: &[u8]) {
        self.send(Port::CLIENT, payload);
    }

    /// Sends a message to the server: CESSNA's `send_msg_to_server`.
    pub fn send_to_server(&mut self, payload: &[u8]) {
        self.send(Port::SERVER, payload);
    }

    /// Sends a message to a peer. Messages to one port arrive in this order, each exactly once.
    ///
    /// Ends the session if the port was never opened, if this cell has closed it, or if the message is longer than
    /// [`MESSAGE_BYTES_MAX`].
    pub fn send(&mut self, port: Port, payload: &[u8]) {
        self.host.send(port, payload);
    }

    /// The address of a client, as its agent reports it: with PROXY protocol, the address in the header of the proxy in front of
    /// the agent. None for a port without a client, and for a client without an address, such as a program in its agent's own
    /// process. The same throughout the session, on every edge, and in every stage of a chain.
    pub fn client_address(&mut self, port: Port) -> Option<SocketAddr> {
        self.host.peer(port, PeerField::Address)?.parse().ok()
    }

    /// The name of the listener that a client connected to, as its agent reports it: the name in the agent's or gate's
    /// configuration, or its address if it has none. None if [`Context::client_address`] is none.
    pub fn client_listener(&mut self, port: Port) -> Option<String> {
        self.host.peer(port, PeerField::Listener)
    }

    /// The identity in the TLS certificate that a client's agent presented to its edge, which verified it. None if there was no
    /// certificate. It identifies the agent and not the client: clients of one agent have one identity.
    pub fn client_identity(&mut self, port: Port) -> Option<String> {
        self.host.peer(port, PeerField::Identity)
    }

    /// Session time. Every call within one handler returns the same value.
    pub fn now(&mut self) -> Time {
        Time { nanoseconds: self.host.now() }
    }

    /// Fills `buffer` with random bytes that no other session shares.
    pub fn fill_random(&mut self, buffer: &mut [u8]) {
        buffer.chunks_mut(RANDOM_BYTES_MAX).for_each(|chunk| self.host.random(chunk));
    }

    /// 64 random bits.
    pub fn random_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Signs with the private key of this number in the manifest, counted from 0. The host signs only what a TLS 1.3 server signs
    /// in its handshake, with Ed25519 or with ECDSA on P-256 and SHA-256 (the signature in DER), depending on the key. The same
    /// message always gets the same signature.
    ///
    /// Ends the session if the manifest names no such key, if the message is anything else, or at the ninth signature in one
    /// handler.
    pub fn sign(&mut self, key: u32, message: &[u8]) -> Vec<u8> {
        self.host.sign(key, message)
    }

    /// Reads an object from the edge's cache, which fetches it from the app's origin if necessary; the handler waits for it.
    /// `key` is a path below the origin that the manifest names. None if there is no such object.
    ///
    /// The result is in the session's log: a replay reads the same, whatever the origin has by then. A later read of the same key
    /// may find another version, because the cache fetches an expired object again.
    ///
    /// An object of more than 4 KiB that is larger than the previously read one is read twice, and counts twice.
    ///
    /// Ends the session at more than 1,024 reads, or more than 1 MiB of different objects, for one input.
    ///
    /// # Errors
    /// If the object could not be fetched in time, or cannot be read.
    pub fn cache(&mut self, key: &str) -> Result<Option<Vec<u8>>, Unread> {
        self.host.cache(key)
    }

    /// Takes the context out of the handler's reference, for a library that calls back without passing it on: store it where the
    /// callback finds it, and put it back before the handler continues. What remains in its place must not be used.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { host: mem::take(&mut self.host) }
    }

    /// Calls [`Cell::timer`](crate::Cell::timer) with `token` once, `delay` after now. There is one timer per token:
    /// setting it again replaces it. Delays beyond 292 years count as 292 years.
    pub fn set_timer(&mut self, delay: Duration, token: u64) {
        self.host.timer(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX), token);
    }

    /// Cancels a timer; a timer that is not set is no error.
    pub fn cancel_timer(&mut self, token: u64) {
        self.host.timer_cancel(token);
    }

    /// Calls [`Cell::task`](crate::Cell::task) with `token` once, in a separate handler, after the tasks that were queued before;
    /// messages and timers may come in between. There is one task per token: queueing it has no effect while it waits in the
    /// queue or for a lock. Its own handler may queue it again, so that long work can be done in pieces.
    ///
    /// More tasks than the edge's limit end the session.
    pub fn spawn(&mut self, token: u64) {
        self.host.spawn(token);
    }

    /// Calls [`Cell::task`](crate::Cell::task) with `token` as soon as that task has the lock `id`: at its next turn if it holds
    /// the lock or the lock is free, else after all earlier waiting tasks have released it. Until then the task does not run. It
    /// keeps the lock, over any number of handlers, until it calls [`Context::unlock`]; meanwhile [`Context::spawn`] wakes it.
    ///
    /// A task waits for one lock at a time. Tasks that wait for each other's locks end the session.
    pub fn lock(&mut self, id: u64, token: u64) {
        self.host.lock(id, token);
    }

    /// Releases a lock of the running task; the first task that waits for it gets it.
    ///
    /// Ends the session outside [`Cell::task`](crate::Cell::task), or if this task does not hold the lock.
    pub fn unlock(&mut self, id: u64) {
        self.host.unlock(id);
    }

    /// Closes a port: nothing more will be sent to this peer. Earlier messages still arrive. A second call has no effect. A connection
    /// that is not open yet is cancelled: [`Cell::closed`](crate::Cell::closed) is called with its port.
    pub fn close(&mut self, port: Port) {
        self.host.close(port);
    }

    /// Connects a shared cell that has a backup to a server, one of the manifest's `servers`. Returns the port that will lead there: no
    /// peer is there before [`Cell::opened`](crate::Cell::opened) is called with it. If the server cannot be reached within ten seconds, or is
    /// gone, [`Cell::closed`](crate::Cell::closed) is called with it instead. Each call makes another connection, with another number.
    ///
    /// It is an output: nothing is asked of a server before the backup knows of it, and after a recovery it is made once.
    ///
    /// Ends the session of the client whose input this is if the server is not granted, or if the cell has 64 connections; in a timer or a
    /// task, the cell. So does sending to a port that is not open yet. A connection counts until both sides have closed it.
    pub fn connect(&mut self, server: &str) -> Port {
        self.host.connect(server)
    }

    /// Pauses a peer: it gets no more credit until [`Context::resume`]. What it sends within its remaining credit, about a
    /// mebibyte, still arrives, as does its close; a datagram beyond it is dropped. Takes effect when the handler returns. A
    /// second call has no effect.
    ///
    /// A pause ends by itself when nothing is left that could end it: no timer, no task, and no open port that is not paused.
    ///
    /// Ends the session if the port was never opened.
    pub fn pause(&mut self, port: Port) {
        self.host.pause(port);
    }

    /// Lets a paused peer send again; has no effect on other peers.
    pub fn resume(&mut self, port: Port) {
        self.host.resume(port);
    }

    /// Writes a line to the edge's log, within the manifest's `log_bytes_per_s`. It does not affect the cell's behaviour: a line
    /// may be printed again when the handler is replayed.
    pub fn print(&mut self, level: Level, line: impl fmt::Display) {
        self.host.print(level, &line.to_string());
    }
}
