//! A cache with the text protocol of memcached, on any number of ports: each client port is a connection, or the
//! source of datagrams with one request each; all share one store. This file handles ports and time; the modules
//! know neither.
//!
//! Differences to memcached 1.6: there are no slabs (`stats slabs` is empty), so memory is counted in chunks of
//! 128 bytes and the oldest items are evicted, of any size; flags beyond 32 bits are refused rather than truncated; a line of
//! keys may be 1 MiB long; the binary and meta protocols are not supported.
//!
//! ```text
//!  stream port ---> connection (lines, values) --+
//!                                                +--> server (one per cell) --> store (arena, index)
//!  datagram port -> udp (8-byte header) ---------+       |
//!                                                        +--> stats, reply
//! ```
//!
//! The cell has one thread and runs one handler at a time, so the store needs no locks. What a
//! handler does is replayed from its input: time comes from the context, and the hash key from the
//! cell's generator, so a recovered cache holds the same items and evicts the same ones.

pub mod clock;
mod command;
mod config;
pub mod connection;
mod reply;
pub mod server;
mod stats;
pub mod store;
pub mod udp;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use marram_sdk::{Cell, Context, MESSAGE_BYTES_MAX, Port, PortKind, Time, cell};

use crate::{
    clock::Seconds,
    connection::{Connection, Progress},
    server::Server,
};

/// Most reply bytes for one client in one handler; the rest waits.
const HANDLER_REPLY_BYTES_MAX: usize = 1 << 20;

/// Delay until the rest is sent: other clients get their turn, and this client time to read. A cell cannot learn how fast a
/// client reads, and a client for which too much waits is disconnected, so this is a guess: some 200 to 400 MB a second.
const TURN: Duration = Duration::from_millis(5);

/// The cell: a server, created with the first client, and its connections by port.
pub struct Memcached {
    /// Of items and their index; the buffers of connections come on top of it.
    memory_bytes: usize,
    /// `None` until then, because its hash key needs a context: `default` runs at deployment and
    /// has none, and what it drew would be the same for every cell of the image.
    server: Option<Server>,
    connections: BTreeMap<Port, Client>,
    /// Ports of clients that use datagrams; these have no connection.
    datagrams: BTreeSet<Port>,
    /// Kept between messages so that answering allocates nothing.
    out: Vec<u8>,
}

/// One client.
#[derive(Default)]
struct Client {
    connection: Connection,
    /// It will send no more, and is removed once it has its replies.
    is_finishing: bool,
}

impl Default for Memcached {
    /// Reads the image's configuration, so that deployment refuses an invalid one.
    fn default() -> Self {
        let text = std::fs::read_to_string(config::PATH).unwrap_or_default();
        let memory_bytes = config::memory_bytes(&text).unwrap_or_else(|error| panic!("{error}"));
        Self {
            memory_bytes,
            server: None,
            connections: BTreeMap::new(),
            datagrams: BTreeSet::new(),
            out: Vec::new(),
        }
    }
}

impl Memcached {
    /// Runs a connection, with `start` first, and sends the output. A reply that is too long
    /// pauses: after a turn's worth of bytes the rest waits for a timer whose token is the port's
    /// number, so each port has at most one turn outstanding. `out` is sent and cleared before each
    /// resumption, so that the next pause is counted from 0.
    fn run(
        &mut self,
        context: &mut Context,
        port: Port,
        start: impl FnOnce(&mut Connection, &mut Server, Seconds, &mut Vec<u8>) -> Progress,
    ) {
        let (Some(client), Some(server)) = (self.connections.get_mut(&port), &mut self.server) else {
            return;
        };
        let now = seconds(context.now());
        let mut sent = 0;
        let mut progress = start(&mut client.connection, server, now, &mut self.out);
        loop {
            self.out.chunks(MESSAGE_BYTES_MAX).for_each(|piece| context.send(port, piece));
            server.wrote(self.out.len());
            sent += self.out.len();
            self.out.clear();
            if progress != Progress::Paused || sent >= HANDLER_REPLY_BYTES_MAX {
                break;
            }
            progress = client.connection.resume(server, now, &mut self.out);
        }
        match progress {
            Progress::Paused => context.set_timer(TURN, u64::from(port.0)),
            Progress::Waiting if !client.is_finishing => {}
            Progress::Waiting | Progress::Closed => self.drop_client(context, port),
        }
    }

    /// Also gives back the memory of a half-received value. Does nothing for a port without a
    /// connection, so it may follow either side's close.
    fn drop_client(&mut self, context: &mut Context, port: Port) {
        if let (Some(mut client), Some(server)) = (self.connections.remove(&port), &mut self.server) {
            client.connection.close(server);
            server.disconnected();
            context.cancel_timer(u64::from(port.0));
            context.close(port);
        }
    }
}

impl Cell for Memcached {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        if !kind.is_client() {
            return;
        }
        let now = seconds(context.now());
        let server = self.server.get_or_insert_with(|| {
            let mut hash_key = [0; 16];
            context.fill_random(&mut hash_key);
            Server::new(self.memory_bytes, hash_key, now)
        });
        server.connected();
        if kind.is_datagrams() {
            self.datagrams.insert(port);
        } else {
            self.connections.insert(port, Client::default());
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if let (true, Some(server)) = (self.datagrams.contains(&port), &mut self.server) {
            for datagram in udp::answer(payload, server, seconds(context.now())) {
                server.wrote(datagram.len());
                context.send(port, &datagram);
            }
            return;
        }
        self.run(context, port, |connection, server, now, out| connection.receive(payload, server, now, out));
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        let Ok(port) = u32::try_from(token).map(Port) else { return };
        self.run(context, port, Connection::resume);
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if let (true, Some(server)) = (self.datagrams.remove(&port), &mut self.server) {
            server.disconnected();
            context.close(port);
        }
        if let Some(client) = self.connections.get_mut(&port) {
            client.is_finishing = true;
            self.run(context, port, Connection::resume);
        }
    }
}

cell!(Memcached);

/// Whole seconds of session time. 0 outside the 32 bits of the protocol: before 1970, and after the
/// year 2106.
fn seconds(now: Time) -> Seconds {
    Seconds(u32::try_from(now.nanoseconds / 1_000_000_000).unwrap_or(0))
}
