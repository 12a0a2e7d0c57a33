//! The coordinator around its pure part (`marram_shard::coordinator`): a thread that talks to the store over HTTP, the store
//! itself if this edge serves it, and an interface for the rest of the edge.
//!
//! No session waits for it. While the coordinator is away, the last known state of other edges remains, and requests that
//! need the coordinator fail at once.
//!
//! ```text
//! shards ─▶ control ─▶ witness.rs ─┐                          ┌─ http.rs ─▶ store.rs of another edge, or etcd
//! admin API ───────────────────────┼─▶ Coordinator ─▶ link.rs ┤
//! fetches of images (`holders`) ───┘   (handle)               └─ http.rs ─▶ server.rs ─▶ keeping.rs (this edge)
//! ```
//!
//! An edge that serves the store uses it over HTTP as the others do: one path to test, and the
//! store's thread can fail or be slow without blocking the client.

mod error;
mod http;
mod keeping;
mod link;
pub mod protocol;
mod remembered;
mod server;
mod several;

pub use error::{CoordinatorError, StoreError};
pub use http::PATIENCE;
pub use keeping::WATCHES_MAX;
pub use link::{LOAD_INTERVAL, NEWS_INTERVAL};
pub use server::{ANSWER_PATIENCE, CONNECTIONS_MAX, REQUEST_BYTES_MAX, REQUEST_PATIENCE};

use crate::edge::{AdminClient, Answered};
use keeping::StoreHandle;
use marram_http::tls::{Acceptor, Connector};
use marram_shard::api::AppVersion;
use marram_shard::coordinator::{
    Ask, AskAnswer, CoordinatorConfig, CoordinatorMetrics, CoordinatorState, DomainPolicies,
    LEFTOVERS_AFTER_NS, Remembers, StoreEdge, StoreFigures, contents::Registration,
};
use marram_transport::Identity;
use marram_wire::frame::StoreMark;
use remembered::RememberedFile;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
    mpsc::sync_channel,
};
use std::time::{Duration, Instant};

/// The credentials for the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreCredentials {
    /// Nothing.
    None,
    /// A token, to an edge.
    Token(String),
    /// A user and a password, to etcd.
    User {
        /// The user's name.
        name: String,
        /// The password.
        /// It is sent to the store's address, so it should be an encrypted one.
        password: String,
    },
}

/// The store that this edge serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Serve {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The token that clients must show; always set if `listen` is not on loopback.
    pub token: Option<String>,
    /// The store's file.
    pub file: PathBuf,
}

/// The address of a store or of another edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreAddress {
    /// Host and port.
    pub authority: String,
    /// Whether connections to it are encrypted.
    pub is_encrypted: bool,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_encrypted { "https" } else { "http" }, self.authority)
    }
}

/// Coordinator settings, resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoordinatorOptions {
    /// The store that this edge serves, if it does so.
    pub serve: Option<Serve>,
    /// Addresses of the store: of edges that serve it, or of etcd's members. Empty if this edge serves it.
    pub stores: Vec<StoreAddress>,
    /// CA certificates in PEM to verify the store with; the system's if there are none.
    pub ca: Option<Vec<u8>>,
    /// Certificate and key that this edge serves the store with, and shows to an etcd that asks for them.
    pub identity: Option<Identity>,
    /// The credentials for the store.
    pub credentials: StoreCredentials,
    /// How long this edge stays registered after its last message, in seconds.
    pub lease_s: u32,
    /// Where agents reach this edge.
    pub addresses: Vec<String>,
    /// Where other edges reach its admin API.
    pub admin: Option<String>,
    /// The file in which this edge remembers how far it saw the store come.
    pub remembered: PathBuf,
}

impl CoordinatorOptions {
    /// The default lease, in seconds.
    pub const LEASE_S: u32 = 10;
    /// A shorter lease would expire at each brief delay, and etcd would lengthen it. In seconds.
    pub const LEASE_S_MIN: u32 = 5;
    /// A longer lease would keep dead edges registered for too long. In seconds.
    pub const LEASE_S_MAX: u32 = 600;
}

/// What the coordinator client knew at its last update.
#[derive(Clone, Debug)]
pub struct View {
    /// Whether the coordinator is reachable.
    pub state: CoordinatorState,
    /// Operations that are not possible now, for people to read.
    pub cannot: Vec<&'static str>,
    /// The store's address.
    pub store: String,
    /// Edges: name, registration, versions of apps that they have.
    pub edges: Vec<(String, Registration, Vec<AppVersion>)>,
    /// The replication policies of the domain, if it has some.
    pub policies: Option<DomainPolicies>,
    /// Counted since the start.
    pub figures: CoordinatorMetrics,
    /// Witness reports that wait to be sent, and those that were dropped.
    pub reports: (usize, u64),
    /// The store's identity, and how many decisions it has; `None` until it was read.
    pub shown: Option<StoreMark>,
    /// What edges remember of the store and it has lost: no decision is taken while there is any.
    pub doubts: Vec<Remembers>,
    /// What is on this edge's disk: other edges are told.
    pub(crate) remembered: Option<StoreMark>,
}

/// An edge's coordinator; clone it for each user.
#[derive(Clone, Debug)]
pub struct Coordinator {
    edge: String,
    /// Time 0 of the client's clock, for [`Self::away`].
    began: Instant,
    view: Arc<Mutex<View>>,
    events: tokio::sync::mpsc::Sender<link::Event>,
    /// For its counts; requests go over HTTP.
    keeping: Option<StoreHandle>,
    /// Whether that is the store which this edge uses.
    is_store_here: bool,
    /// Witness reports that were dropped because the thread's queue was full.
    unheard: Arc<AtomicU64>,
}

impl Coordinator {
    /// Starts what `options` asks for. `shards` is registered for this edge; `control` answers what the edge has.
    ///
    /// # Errors
    /// If the store that this edge should serve cannot be used, or its address cannot be listened on.
    pub fn start(
        name: &str,
        options: &CoordinatorOptions,
        shards: u8,
        control: AdminClient,
    ) -> Result<Self, CoordinatorError> {
        let (mut stores, mut ca) = (options.stores.clone(), options.ca.clone());
        let mut credentials = options.credentials.clone();
        let keeping = options.serve.as_ref().map(|serve| -> Result<_, CoordinatorError> {
            let (keeping, address) = start_store(serve, options.identity.as_ref())?;
            if stores.is_empty() {
                let authority = reachable(address).to_string();
                stores.push(StoreAddress { authority, is_encrypted: options.identity.is_some() });
                // It trusts its own certificate, for any name.
                ca = options.identity.as_ref().map(|identity| identity.chain_pem.clone());
                credentials = serve.token.clone().map_or(StoreCredentials::None, StoreCredentials::Token);
            }
            Ok(keeping)
        });
        let keeping = keeping.transpose()?;
        let connector = stores.iter().any(|store| store.is_encrypted).then(|| {
            let connector = Connector::new(ca.as_deref(), options.identity.as_ref());
            connector.map_err(CoordinatorError::Connector)
        });
        let store = http::Store::new(stores, connector.transpose()?, credentials);
        // Tells two runs of an edge with one name apart, and two edges to which one name was given
        // by mistake.
        let life = random::<8>()?;
        let here = Registration {
            life: u64::from_le_bytes(life),
            addresses: options.addresses.clone(),
            admin: options.admin.clone(),
            host: None,
            shards,
            sessions: 0,
            draining: false,
            has_store: options.serve.is_some() && options.stores.is_empty(),
        };
        let is_store_here = here.has_store;
        let began = Instant::now();
        let file = RememberedFile::open(options.remembered.clone())?;
        let config = CoordinatorConfig {
            edge: name.into(),
            lease_s: options.lease_s,
            salt: here.life,
            identity: random()?,
            remembered: file.mark().cloned(),
            leftovers_after_ns: LEFTOVERS_AFTER_NS,
        };
        let (events, view) = link::start(config, here, store, file, control, began)?;
        Ok(Self { edge: name.into(), began, view, events, keeping, is_store_here, unheard: Arc::default() })
    }

    /// What is known at present.
    ///
    /// A copy; the lock is held for a moment by a thread that never waits while it has it.
    #[must_use]
    pub fn view(&self) -> View {
        let mut view = self.view.lock().expect("no holder panics").clone();
        view.reports.1 += self.unheard.load(Ordering::Relaxed);
        view
    }

    /// For how long the coordinator has been away, and why; `None` if it is reachable.
    #[must_use]
    pub fn away(&self) -> Option<(Duration, String)> {
        match self.view().state {
            CoordinatorState::There => None,
            CoordinatorState::Away { since_ns, why } => {
                Some((self.began.elapsed().saturating_sub(Duration::from_nanos(since_ns)), why))
            }
        }
    }

    /// Counts of the store that this edge serves, if it does so.
    #[must_use]
    pub fn served(&self) -> Option<StoreFigures> {
        self.keeping.as_ref().map(StoreHandle::figures)
    }

    /// The edge that has the only copy of the store in it; `None` if the store is in a process of its own, or is etcd.
    #[must_use]
    pub fn store_edge(&self) -> Option<StoreEdge> {
        if self.is_store_here {
            return Some(StoreEdge::This);
        }
        let view = self.view.lock().expect("no holder panics");
        let has_it = view.edges.iter().find(|(name, at, _)| at.has_store && *name != self.edge);
        has_it.map(|(name, ..)| StoreEdge::Other(name.clone()))
    }

    /// Other edges that are registered as having a version of an app, by name and admin URL.
    #[must_use]
    pub fn holders(&self, version: &AppVersion) -> Vec<(String, String)> {
        let view = self.view.lock().expect("no holder panics");
        let others = view.edges.iter().filter(|(name, ..)| *name != self.edge);
        let having = others.filter(|(_, _, holds)| holds.contains(version));
        having
            .filter_map(|(name, registration, _)| Some((name.clone(), registration.admin.clone()?)))
            .collect()
    }

    /// Asks, and blocks until the answer: at once if the coordinator is away, else up to the request's timeouts.
    #[must_use]
    pub fn ask(&self, ask: Ask) -> AskAnswer {
        let (reply, answer) = sync_channel(1);
        self.ask_then(ask, Box::new(move |said| drop(reply.try_send(said))));
        let away = |_| AskAnswer::Away("no answer in time".into());
        answer.recv_timeout(2 * (PATIENCE + PATIENCE)).unwrap_or_else(away)
    }

    /// Asks all of these, several at a time, and blocks until each is answered as [`Self::ask`] does. The answers are in the order of the
    /// questions.
    #[must_use]
    pub fn ask_all(&self, asks: impl IntoIterator<Item = Ask>) -> Vec<AskAnswer> {
        several::several(asks, |ask, answered| self.ask_then(ask, answered))
    }

    /// Asks, and passes the answer to `answered`, on another thread; soon if the coordinator is away.
    ///
    /// Does not block, so the supervisor's thread may call it. `answered` must not block either: it
    /// runs on the coordinator's thread, or on the caller's if the queue is full.
    pub fn ask_then(&self, ask: Ask, answered: Answered) {
        if let Err(why) = self.events.try_send(link::Event::Ask(ask, answered))
            && let link::Event::Ask(ask, answered) = why.into_inner()
        {
            self.unheard.fetch_add(u64::from(matches!(ask, Ask::Witness { .. })), Ordering::Relaxed);
            answered(AskAnswer::Away(
                "this edge has too many requests to its coordinator in progress".into(),
            ));
        }
    }

    /// Accepts that the store has lost what edges remember: it goes on under a new identity, which is returned, and decisions are
    /// taken again.
    ///
    /// Blocks as [`Self::ask`] does.
    ///
    /// # Errors
    /// If the operating system gives no random bytes.
    pub fn accept(&self) -> Result<(AskAnswer, [u8; 16]), CoordinatorError> {
        let (identity, lost) = (random()?, self.view().doubts.into_iter().map(|doubt| doubt.mark).collect());
        Ok((self.ask(Ask::Accept { identity, lost }), identity))
    }

    /// Deregisters this edge, so that others need not wait until its lease expires.
    ///
    /// Blocks for [`PATIENCE`] at most.
    pub fn leave(&self) {
        let (done, left) = sync_channel(1);
        if self.events.try_send(link::Event::Leave(done)).is_ok() {
            // If the coordinator is away, the lease expires by itself.
            let _ = left.recv_timeout(PATIENCE);
        }
    }
}

/// A store that is served without an edge, until it is dropped or the process ends.
#[derive(Debug)]
pub struct ServedStore {
    keeping: StoreHandle,
    address: SocketAddr,
}

impl ServedStore {
    /// Starts a store and its server; `identity` encrypts connections.
    ///
    /// # Errors
    /// If the store's file cannot be used, the address cannot be listened on, or the identity is invalid.
    pub fn start(serve: &Serve, identity: Option<&Identity>) -> Result<Self, CoordinatorError> {
        let (keeping, address) = start_store(serve, identity)?;
        Ok(Self { keeping, address })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of what it holds.
    #[must_use]
    pub fn figures(&self) -> StoreFigures {
        self.keeping.figures()
    }
}

fn start_store(
    serve: &Serve,
    identity: Option<&Identity>,
) -> Result<(StoreHandle, SocketAddr), CoordinatorError> {
    let keeping = StoreHandle::start(serve.file.clone())?;
    let listener =
        TcpListener::bind(serve.listen).map_err(|error| CoordinatorError::Listen(serve.listen, error))?;
    let address = listener.local_addr()?;
    let tls = identity.map(Acceptor::new).transpose().map_err(CoordinatorError::Identity)?;
    server::start(listener, keeping.clone(), serve.token.clone(), tls).map_err(CoordinatorError::Serve)?;
    tracing::info!(%address, "serving the coordinator's store");
    Ok((keeping, address))
}

fn random<const N: usize>() -> Result<[u8; N], CoordinatorError> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| CoordinatorError::Random(error.into()))?;
    Ok(bytes)
}

/// The address at which this machine reaches its own socket.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_shard::coordinator::contents::Witnessed;
    use marram_wire::id::{Generation, SessionId};

    #[test]
    fn reports_that_find_no_room_are_counted() {
        let (events, waiting) = tokio::sync::mpsc::channel(2);
        let state = CoordinatorState::Away { since_ns: 0, why: String::new() };
        let (cannot, store, edges, figures) =
            (Vec::new(), String::new(), Vec::new(), CoordinatorMetrics::default());
        let (shown, doubts, remembered) = (None, Vec::new(), None);
        let view = View {
            policies: None,
            state,
            cannot,
            store,
            edges,
            figures,
            reports: (0, 1),
            shown,
            doubts,
            remembered,
        };
        let coordinator = Coordinator {
            edge: "e".into(),
            began: Instant::now(),
            view: Arc::new(Mutex::new(view)),
            events,
            keeping: None,
            is_store_here: false,
            unheard: Arc::default(),
        };
        let session = SessionId([1; 16]);
        let seen = Witnessed { generation: Generation::NONE, log_end: 1, tag: [0; 8] };
        for _ in 0..5 {
            coordinator.ask_then(Ask::Witness { session, seen: seen.clone() }, Box::new(drop));
        }
        coordinator.ask_then(Ask::Witnessed { session }, Box::new(drop));
        assert_eq!((waiting.len(), coordinator.view().reports), (2, (0, 1 + 3)));
    }
}
