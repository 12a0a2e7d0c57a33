//! Shared by all connections: the store, the counters, and the answer to each complete request. Does not know how
//! requests arrive.

use crate::{
    clock::{Expiry, Seconds},
    command::{Incoming, Request},
    reply::Reply,
    store::{Delta, Draft, Mode, NoCount, Refusal, Store, Stored},
};

/// The reply to `version`. Libraries parse the numbers and choose their protocol by them.
pub const VERSION: &str = "1.6.0-marram";

/// Counters since the start or the last `stats reset`. [`Server::connections_now`] is not among
/// them, since a reset must not forget who is connected.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub(crate) connections: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    /// Values received, whether or not they were stored.
    pub(crate) cmd_set: u64,
    pub(crate) cmd_flush: u64,
    pub(crate) get: Tally,
    pub(crate) touch: Tally,
    pub(crate) delete: Tally,
    pub(crate) incr: Tally,
    pub(crate) decr: Tally,
    pub(crate) cas: Tally,
    /// Refused since the item has another version; neither a hit nor a miss.
    pub(crate) cas_badval: u64,
}

/// Hits and misses.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Tally {
    fn count(&mut self, hit: bool) {
        *if hit { &mut self.hits } else { &mut self.misses } += 1;
    }
}

/// A cache and its counters.
pub struct Server {
    pub(crate) store: Store,
    pub(crate) counters: Counters,
    /// For `uptime`. A reset of the counters does not change it.
    pub(crate) started: Seconds,
    pub(crate) connections_now: u64,
}

/// What follows a request.
pub(crate) enum Next {
    /// The next request.
    Command,
    /// The end of the connection.
    Close,
}

impl Server {
    /// An empty cache. For its memory and the purpose of the hash key see [`Store::new`]. `now` is
    /// the start of `uptime`.
    #[must_use]
    pub fn new(memory_bytes: usize, hash_key: [u8; 16], now: Seconds) -> Self {
        Self {
            store: Store::new(memory_bytes, hash_key),
            counters: Counters::default(),
            started: now,
            connections_now: 0,
        }
    }

    /// The contents of the cache.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Counts a new client.
    pub fn connected(&mut self) {
        self.counters.connections += 1;
        self.connections_now += 1;
    }

    /// Counts a client that has disconnected.
    pub fn disconnected(&mut self) {
        self.connections_now = self.connections_now.saturating_sub(1);
    }

    /// Counts bytes sent to a client.
    pub fn wrote(&mut self, bytes: usize) {
        self.counters.bytes_written += bytes as u64;
    }

    /// Answers a request without a following value, other than those whose keys are looked up one
    /// by one. Must not be called for `Get` and `Store`, which the connection carries out in steps.
    pub(crate) fn execute(&mut self, request: &Request<'_>, now: Seconds, reply: &mut Reply<'_>) -> Next {
        match request {
            Request::Delete { key } => {
                let deleted = self.store.delete(key, now);
                self.counters.delete.count(deleted);
                reply.line(if deleted { "DELETED" } else { "NOT_FOUND" });
            }
            Request::Count { key, delta } => self.count(key, *delta, now, reply),
            Request::Touch { key, exptime } => {
                let item = self.store.get(key, now);
                self.counters.touch.count(item.is_some());
                if let Some(item) = item {
                    self.store.touch(item, Expiry::from_protocol(*exptime, now));
                }
                reply.line(if item.is_some() { "TOUCHED" } else { "NOT_FOUND" });
            }
            Request::FlushAll { delay } => {
                self.counters.cmd_flush += 1;
                self.store.flush((*delay > 0).then(|| Expiry::from_protocol(*delay, now)));
                reply.line("OK");
            }
            Request::Version => {
                reply.text("VERSION ");
                reply.line(VERSION);
            }
            Request::Verbosity => reply.line("OK"),
            Request::Stats { of } => self.stats(*of, now, reply),
            Request::Quit => return Next::Close,
            Request::Get { .. } | Request::Store(_) => {
                unreachable!("a connection asks for keys and values itself")
            }
        }
        Next::Command
    }

    /// One key of a `get` or `gat`. A hit of `gat` counts as a hit of both. The reply gets nothing
    /// for a miss: the client sees which keys are absent.
    pub(crate) fn look_up(
        &mut self,
        key: &[u8],
        touch: Option<Expiry>,
        with_cas: bool,
        now: Seconds,
        reply: &mut Reply<'_>,
    ) {
        let item = self.store.get(key, now);
        self.counters.get.count(item.is_some());
        if touch.is_some() {
            self.counters.touch.count(item.is_some());
        }
        let Some(item) = item else { return };
        if let Some(expiry) = touch {
            self.store.touch(item, expiry);
        }
        let len = self.store.value_len(item);
        reply.value_head(key, self.store.flags(item), len, with_cas.then(|| self.store.cas(item)));
        self.store.value(item).for_each(|piece| reply.bytes(piece));
        reply.bytes(b"\r\n");
    }

    /// Memory for an announced value; or `None`, and the reply says why. When a `set` is refused,
    /// the old value is deleted: after a failed replacement, clients must not read the stale one.
    pub(crate) fn receive(
        &mut self,
        incoming: &Incoming<'_>,
        now: Seconds,
        reply: &mut Reply<'_>,
    ) -> Option<Draft> {
        let expiry = Expiry::from_protocol(incoming.exptime, now);
        let refusal = match self.store.begin(incoming.key, incoming.flags, expiry, incoming.len, now) {
            Ok(draft) => return Some(draft),
            Err(refusal) => refusal,
        };
        reply.line(match refusal {
            Refusal::TooLarge => "SERVER_ERROR object too large for cache",
            Refusal::OutOfMemory => "SERVER_ERROR out of memory storing object",
        });
        if incoming.mode == Mode::Set {
            // The client wanted to replace the old value.
            self.store.delete(incoming.key, now);
        }
        None
    }

    /// A value has arrived. Ends the draft in every case.
    pub(crate) fn received(&mut self, draft: Draft, mode: Mode, now: Seconds, reply: &mut Reply<'_>) {
        self.counters.cmd_set += 1;
        let stored = self.store.commit(draft, mode, now);
        if let Mode::Cas(_) = mode {
            match stored {
                Stored::Exists => self.counters.cas_badval += 1,
                other => self.counters.cas.count(other == Stored::Stored),
            }
        }
        reply.line(match stored {
            Stored::Stored => "STORED",
            Stored::NotStored => "NOT_STORED",
            Stored::Exists => "EXISTS",
            Stored::NotFound => "NOT_FOUND",
        });
    }

    /// Carries out `incr` or `decr`.
    fn count(&mut self, key: &[u8], delta: Delta, now: Seconds, reply: &mut Reply<'_>) {
        let counted = self.store.count(key, delta, now);
        let tally = match delta {
            Delta::Up(_) => &mut self.counters.incr,
            Delta::Down(_) => &mut self.counters.decr,
        };
        match counted {
            Ok(value) => {
                tally.count(true);
                reply.number(value);
                reply.line("");
            }
            Err(NoCount::NotFound) => {
                tally.count(false);
                reply.line("NOT_FOUND");
            }
            Err(NoCount::NotANumber) => {
                reply.line("CLIENT_ERROR cannot increment or decrement non-numeric value");
            }
            Err(NoCount::OutOfMemory) => reply.line("SERVER_ERROR out of memory"),
        }
    }
}
