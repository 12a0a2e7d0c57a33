//! Accepted connections without a complete preamble. There are few, for a short time, and each stores eight bytes.
//!
//! ```text
//! accept ─▶ enter ─▶ read (8 bytes, never more) ─┬─▶ Introduced: answer, pass the descriptor to a shard
//!                                                └─▶ Rejected: close, count
//! ```
//!
//! No byte behind the preamble may be read here: it belongs to the process that gets the
//! descriptor. At `size_max` the oldest connection goes: an agent sends its preamble at once, so it
//! is hardly ever the oldest.

use marram_transport::{NotUnderstood, PREAMBLE_SIZE, Preamble};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// `got[..count]` has arrived.
struct PendingConnection {
    stream: TcpStream,
    peer: SocketAddr,
    got: [u8; PREAMBLE_SIZE],
    count: usize,
}

/// Why a connection was closed before it reached a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rejected {
    /// Its bytes are no preamble of a known version.
    NotUnderstood(NotUnderstood),
    /// It closed, or failed, before its preamble was complete.
    Gone,
    /// It took too long.
    Slow,
    /// It was the oldest one when there were too many.
    TooMany,
}

/// A connection with a complete preamble.
#[derive(Debug)]
pub(super) struct Introduced {
    /// No longer registered with the poll.
    pub(super) stream: TcpStream,
    /// The peer's address.
    pub(super) peer: SocketAddr,
    /// What it asks for; or the reason of the refusal that it must receive.
    pub(super) preamble: Result<Preamble, NotUnderstood>,
}

/// The result of reading from a connection.
#[derive(Debug)]
pub(super) enum Outcome {
    /// More bytes are needed.
    Waiting,
    /// Its preamble is complete or invalid.
    Introduced(Introduced),
    /// It was closed.
    Rejected(SocketAddr, Rejected),
}

/// All pending connections.
pub(super) struct PendingConnections {
    connections: BTreeMap<u64, PendingConnection>,
    /// In order, as all have the same timeout. Entries of connections that are gone are skipped.
    deadlines: VecDeque<(Instant, u64)>,
    timeout: Duration,
    size_max: usize,
    next: u64,
}

impl PendingConnections {
    /// No connections. Each may stay for `timeout`; when there are `size_max`, the oldest is closed.
    pub(super) fn new(timeout: Duration, size_max: usize) -> Self {
        let (connections, deadlines) = (BTreeMap::new(), VecDeque::new());
        Self { connections, deadlines, timeout, size_max: size_max.max(1), next: 0 }
    }

    /// Adds a connection; returns the address of the one that was closed to make room, if any.
    pub(super) fn enter(
        &mut self,
        registry: &Registry,
        token: impl Fn(u64) -> Token,
        mut stream: TcpStream,
        peer: SocketAddr,
        now: Instant,
    ) -> io::Result<Option<SocketAddr>> {
        let too_many = self.connections.len() >= self.size_max;
        let evicted =
            if too_many { self.connections.pop_first().map(|(_, connection)| connection.peer) } else { None };
        let id = self.next;
        self.next += 1;
        registry.register(&mut stream, token(id), Interest::READABLE)?;
        self.connections.insert(id, PendingConnection { stream, peer, got: [0; PREAMBLE_SIZE], count: 0 });
        self.deadlines.push_back((now + self.timeout, id));
        Ok(evicted)
    }

    /// Reads from a connection that may be readable, never beyond its preamble.
    pub(super) fn read(&mut self, registry: &Registry, id: u64) -> Outcome {
        let Some(connection) = self.connections.get_mut(&id) else { return Outcome::Waiting };
        loop {
            match connection.stream.read(&mut connection.got[connection.count..]) {
                Ok(0) => break self.reject(id, Rejected::Gone),
                Ok(read) => connection.count += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Outcome::Waiting,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break self.reject(id, Rejected::Gone),
            }
            // An HTTP client or a port scanner is refused by its first byte, and does not wait for
            // the timeout.
            if !Preamble::may_begin(&connection.got[..connection.count]) {
                break self.reject(id, Rejected::NotUnderstood(NotUnderstood::Garbage));
            }
            if connection.count == PREAMBLE_SIZE {
                break self.introduce(registry, id);
            }
        }
    }

    fn introduce(&mut self, registry: &Registry, id: u64) -> Outcome {
        let Some(mut connection) = self.connections.remove(&id) else { return Outcome::Waiting };
        // The descriptor continues to exist in another process, so closing ours would not remove it from the poll.
        if registry.deregister(&mut connection.stream).is_err() {
            return Outcome::Rejected(connection.peer, Rejected::Gone);
        }
        let preamble = Preamble::decode(connection.got);
        Outcome::Introduced(Introduced { stream: connection.stream, peer: connection.peer, preamble })
    }

    fn reject(&mut self, id: u64, why: Rejected) -> Outcome {
        self.connections
            .remove(&id)
            .map_or(Outcome::Waiting, |connection| Outcome::Rejected(connection.peer, why))
    }

    /// When the next connection times out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Closes one connection that has timed out, if there is one.
    pub(super) fn expire(&mut self, now: Instant) -> Option<SocketAddr> {
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if let Some(connection) = self.connections.remove(&id) {
                return Some(connection.peer);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll};
    use std::{io::Write, net::TcpListener};

    const PATIENCE: Duration = Duration::from_secs(1);

    struct World {
        poll: Poll,
        pending: PendingConnections,
        listener: TcpListener,
        now: Instant,
    }

    impl World {
        fn new(size_max: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let (poll, pending) = (Poll::new().expect("a poll"), PendingConnections::new(PATIENCE, size_max));
            Self { poll, pending, listener, now: Instant::now() }
        }

        fn enter(&mut self) -> (std::net::TcpStream, Option<SocketAddr>) {
            let address = self.listener.local_addr().expect("bound");
            let client = std::net::TcpStream::connect(address).expect("listening");
            let (stream, peer) = self.listener.accept().expect("connected");
            stream.set_nonblocking(true).expect("a socket");
            let stream = TcpStream::from_std(stream);
            let token = |id| Token(usize::try_from(id).expect("few"));
            let evicted =
                self.pending.enter(self.poll.registry(), token, stream, peer, self.now).expect("a socket");
            (client, evicted)
        }

        /// Waits until a connection is readable, and reads.
        fn read(&mut self) -> Outcome {
            let mut events = Events::with_capacity(8);
            self.poll.poll(&mut events, Some(Duration::from_secs(20))).expect("a poll");
            let id = events.iter().next().expect("something was sent").token().0;
            self.pending.read(self.poll.registry(), id as u64)
        }
    }

    #[test]
    fn a_preamble_may_come_in_pieces_and_nothing_behind_it_is_read() {
        let mut world = World::new(8);
        let (mut client, _) = world.enter();
        let preamble = Preamble { shard: 2, tls: true, token: false };
        let bytes = preamble.encode();
        client.write_all(&bytes[..5]).expect("open");
        assert!(matches!(world.read(), Outcome::Waiting));
        client.write_all(&bytes[5..]).expect("open");
        client.write_all(b"hello").expect("open");
        let Outcome::Introduced(mut introduced) = world.read() else { panic!("it is complete") };
        assert_eq!(introduced.preamble, Ok(preamble));
        let mut rest = [0; 16];
        assert_eq!(introduced.stream.read(&mut rest).expect("still there"), 5);
    }

    #[test]
    fn the_rude_the_mute_and_the_slow_are_sent_away() {
        let mut world = World::new(8);
        let (mut rude, _) = world.enter();
        rude.write_all(b"G").expect("open");
        let garbage = Rejected::NotUnderstood(NotUnderstood::Garbage);
        assert!(matches!(world.read(), Outcome::Rejected(_, why) if why == garbage));
        let (mute, _) = world.enter();
        drop(mute);
        assert!(matches!(world.read(), Outcome::Rejected(_, Rejected::Gone)));
        let (slow, _) = world.enter();
        assert_eq!(world.pending.expire(world.now + PATIENCE / 2), None);
        let peer = slow.local_addr().expect("connected");
        assert_eq!(world.pending.expire(world.now + PATIENCE), Some(peer));
        assert_eq!(world.pending.deadline(), None);
    }

    #[test]
    fn when_it_is_crowded_the_oldest_goes() {
        let mut world = World::new(2);
        let (first, none) = world.enter();
        let (_second, also_none) = world.enter();
        assert_eq!((none, also_none), (None, None));
        let (_third, evicted) = world.enter();
        assert_eq!(evicted, first.local_addr().ok());
    }
}
