//! What an agent's loop shares with its admin interface: its listeners, the rules that choose an app, and counters.
//!
//! Used once for each new connection or conversation, never for a message; the lock is free except during an operator's request.

use marram_session::agent::{
    Memory,
    proxy::ProxyAddresses,
    routes::{Arrival, Decision, KeySource, RouteError, RouteProtocol, RouteRule, RouteTable},
};
use marram_wire::{key::CellKey, peer::Origin};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A listener for clients.
///
/// Fixed for the life of the agent; only rules can be replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Its name in rules and logs.
    pub name: String,
    /// The address that it binds.
    pub address: SocketAddr,
    /// The protocol of its clients.
    pub protocol: RouteProtocol,
    /// The app of clients for which no rule chooses one.
    pub app: String,
    /// The idle timeout of a datagram client.
    pub idle: Duration,
    /// Limit of concurrent datagram clients; others are refused.
    pub flows_max: usize,
    /// Origins of pages that may connect by WebSocket, as browsers send them; if empty, only pages from the listener's own host
    /// and port. See [`crate::websocket::is_origin`].
    pub origins: Vec<String>,
    /// Whether a proxy in front of it sends each client's address in a PROXY protocol header. Not for datagrams.
    pub proxy_protocol: bool,
    /// What the key of its clients is, if its app has one cell for each key. Rules have keys of their own.
    pub key: Option<KeySource>,
}

/// The default idle timeout of a datagram client.
pub const IDLE: Duration = Duration::from_secs(30);
/// The default limit of conversations in datagrams of one listener.
pub const FLOWS_MAX: usize = 4096;

impl Listener {
    /// A listener for one app, named by its address, with defaults for the rest.
    #[must_use]
    pub fn new(address: SocketAddr, protocol: RouteProtocol, app: String) -> Self {
        Self {
            name: address.to_string(),
            address,
            protocol,
            app,
            idle: IDLE,
            flows_max: FLOWS_MAX,
            origins: Vec::new(),
            proxy_protocol: false,
            key: None,
        }
    }
}

/// Where a client connected.
///
/// Rules compare `client`, so behind a proxy they see the real client, once the header is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrived {
    /// The index of the listener.
    pub(super) listener: usize,
    /// The client's address; the one from the proxy's header, once that has been read.
    pub(super) client: SocketAddr,
    /// The local address that the client connected to.
    pub(super) local: SocketAddr,
}

impl Arrived {
    /// Takes the addresses of a proxy's header.
    pub(super) fn through(&mut self, ends: Option<ProxyAddresses>) {
        if let Some(ProxyAddresses { source, destination }) = ends {
            (self.client, self.local) = (source, destination);
        }
    }
}

/// The counters of one listener.
///
/// Written by the loop alone and read by any thread; each number is exact, but two may be of
/// different moments.
#[derive(Debug, Default)]
pub struct ListenerCounts {
    /// Sessions that have begun.
    pub begun: AtomicU64,
    /// Connections that a rule refused.
    pub refused: AtomicU64,
    /// Current conversations in datagrams.
    pub flows: AtomicU64,
    /// Datagrams of clients that were refused.
    pub flows_refused: AtomicU64,
}

/// The result of the rules for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// To this app, and to the cell of this key.
    App(String, Option<CellKey>),
    /// Refused: by which rule, and why.
    Refuse(String, String),
    /// More of its first bytes are needed.
    More,
}

/// Why rules were not replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotReplaced {
    /// The rules have been replaced since; the current revision.
    Moved(u64),
    /// One of them is wrong.
    Refused(RouteError),
}

/// Listeners, rules and counters of one agent; clones share them.
#[derive(Clone, Debug)]
pub struct Routing(Arc<Shared>);

/// Behind one pointer, so that the admin API and the loop see the same rules.
#[derive(Debug)]
struct Shared {
    listeners: Vec<(Listener, ListenerCounts)>,
    table: Mutex<Numbered>,
    /// A copy of the agent's counter, renewed each turn of the loop.
    dropped: AtomicU64,
    /// As above: what its sessions keep.
    memory: MemoryCounts,
}

/// What the sessions of an agent keep.
#[derive(Debug, Default)]
pub struct MemoryCounts {
    /// Bytes that they may keep.
    pub max: AtomicU64,
    /// Bytes that they keep.
    pub kept: AtomicU64,
    /// Sessions that wait for room before they read from their programs.
    pub slowed: AtomicU64,
    /// How often a session had to wait.
    pub slowed_total: AtomicU64,
}

/// Rules, and how often they were replaced.
#[derive(Debug, Default)]
struct Numbered {
    revision: u64,
    table: RouteTable,
}

impl Default for Routing {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new()).expect("no rule is no wrong rule")
    }
}

impl Routing {
    /// Rules for these listeners.
    ///
    /// # Errors
    /// If a rule is invalid, or names an unknown listener.
    ///
    /// The first rules have revision 0.
    pub fn new(listeners: Vec<Listener>, rules: Vec<RouteRule>) -> Result<Self, RouteError> {
        let listeners = listeners.into_iter().map(|listener| (listener, ListenerCounts::default())).collect();
        let (table, dropped, memory) = (Mutex::default(), AtomicU64::new(0), MemoryCounts::default());
        let routing = Self(Arc::new(Shared { listeners, table, dropped, memory }));
        routing.check(&rules)?;
        routing.lock().table.replace(rules)?;
        Ok(routing)
    }

    /// Rules may name only existing listeners.
    /// A rule may use a listener's name or its address.
    fn check(&self, rules: &[RouteRule]) -> Result<(), RouteError> {
        let known = |name: &String| {
            self.listeners()
                .any(|(listener, _)| *name == listener.name || *name == listener.address.to_string())
        };
        let strange = |rule: &RouteRule| rule.listener.as_ref().is_some_and(|name| !known(name));
        let Some(index) = rules.iter().position(strange) else { return Ok(()) };
        let names: Vec<_> = self.listeners().map(|(listener, _)| listener.name.as_str()).collect();
        let there = if names.is_empty() {
            "none, and rules apply to listeners only".into()
        } else {
            names.join(", ")
        };
        let what = format!("is not a listener of this configuration; there are: {there}");
        Err(RouteError { index, field: "listener", what })
    }

    fn lock(&self) -> MutexGuard<'_, Numbered> {
        // After a panic the table is still whole: it is replaced in one assignment.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the rules at once, if `revision` is the current one, or is none. Existing sessions are not affected.
    ///
    /// # Errors
    /// If it is not, or a rule is invalid; nothing changes then.
    pub fn replace(&self, revision: Option<u64>, rules: Vec<RouteRule>) -> Result<u64, NotReplaced> {
        self.check(&rules).map_err(NotReplaced::Refused)?;
        let mut numbered = self.lock();
        if revision.is_some_and(|revision| revision != numbered.revision) {
            return Err(NotReplaced::Moved(numbered.revision));
        }
        numbered.table.replace(rules).map_err(NotReplaced::Refused)?;
        numbered.revision += 1;
        Ok(numbered.revision)
    }

    /// How often the rules were replaced; the rules as written, with how often each decided; how often none did.
    #[must_use]
    pub fn rules(&self) -> (u64, Vec<(RouteRule, u64)>, u64) {
        let numbered = self.lock();
        let rules = numbered.table.rules().map(|(rule, hits)| (rule.clone(), hits)).collect();
        (numbered.revision, rules, numbered.table.defaults())
    }

    /// The listeners, in the order of the configuration.
    pub fn listeners(&self) -> impl Iterator<Item = (&Listener, &ListenerCounts)> {
        self.0.listeners.iter().map(|(listener, counts)| (listener, counts))
    }

    /// Whether a listener or a rule leads to an app.
    #[must_use]
    pub fn leads_to(&self, app: &str) -> bool {
        use marram_session::agent::routes::RouteAction;
        self.listeners().any(|(listener, _)| listener.app == app)
            || self
                .lock()
                .table
                .rules()
                .any(|(rule, _)| matches!(&rule.action, RouteAction::App(name) if name == app))
    }

    /// Datagrams that were dropped because their session had no room.
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    pub(super) fn note_dropped(&self, dropped: u64) {
        self.0.dropped.store(dropped, Relaxed);
    }

    /// What the agent's sessions keep.
    #[must_use]
    pub fn memory(&self) -> &MemoryCounts {
        &self.0.memory
    }

    pub(super) fn note_memory(&self, memory: Memory) {
        let Memory { max, kept, slowed, slowed_total } = memory;
        let counts = &self.0.memory;
        counts.max.store(max, Relaxed);
        counts.kept.store(kept, Relaxed);
        counts.slowed.store(slowed as u64, Relaxed);
        counts.slowed_total.store(slowed_total, Relaxed);
    }

    pub(super) fn protocol(&self, listener: usize) -> RouteProtocol {
        self.0.listeners[listener].0.protocol
    }

    pub(super) fn takes_proxies(&self, listener: usize) -> bool {
        self.0.listeners[listener].0.proxy_protocol
    }

    pub(super) fn name(&self, listener: usize) -> &str {
        &self.0.listeners[listener].0.name
    }

    pub(super) fn address(&self, listener: usize) -> SocketAddr {
        self.0.listeners[listener].0.address
    }

    /// The session's information about its client.
    ///
    /// The cell can read it (`docs/abi.md`); it is in the session's log, so a replay sees the same.
    pub(super) fn origin(&self, arrived: &Arrived) -> Option<Origin> {
        let Arrived { listener, client, local } = *arrived;
        Some(Origin { client: Some(client), local: Some(local), listener: self.name(listener).to_owned() })
    }

    pub(super) fn origins(&self, listener: usize) -> &[String] {
        &self.0.listeners[listener].0.origins
    }

    pub(super) fn counts(&self, listener: usize) -> &ListenerCounts {
        &self.0.listeners[listener].1
    }

    /// The route of a connection to a listener; `last` if no more bytes of it will come.
    pub(super) fn decide(&self, listener: usize, client: SocketAddr, first: &[u8], last: bool) -> Route {
        let (at, counts) = &self.0.listeners[listener];
        let (protocol, key) = (at.protocol, at.key.as_ref());
        let arrival = Arrival { listener: &at.name, local: at.address, client, protocol, key };
        let mut numbered = self.lock();
        match numbered.table.decide(&arrival, first, last) {
            Decision::App(app, key) => Route::App(app.into(), key),
            Decision::Default(key) => Route::App(at.app.clone(), key),
            Decision::NoKey(why) => {
                counts.refused.fetch_add(1, Relaxed);
                Route::Refuse("key".into(), why)
            }
            Decision::More => Route::More,
            Decision::Refuse(rule, reason) => {
                counts.refused.fetch_add(1, Relaxed);
                Route::Refuse(rule.into(), reason.into())
            }
        }
    }
}
