//! What the admin API uses of the edge around it. Knows no HTTP.
//!
//! It is fixed when the edge starts, and shared by all requests without a lock; what changes is
//! asked of `control`, `routing` and `coordinator`, which are handles.

use marram_agent::Routing;
use marram_config::edge::EdgeSettings;
use marram_http::Access;
use marram_node::coordinator::Coordinator;
use marram_node::edge::AdminClient;
use marram_node::keys::Key;
use marram_shard::{api::Protect, coordinator::StoreEdge};
use marram_transport::LogLimiter;
use marram_wire::edge_key::EdgeKey;
use marram_wire::seal::DomainSecret;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

/// The edge, as seen by its admin API.
///
/// It holds the operators' token: its `Debug` is not for logs.
#[derive(Debug)]
pub struct AdminState {
    /// Asks the control.
    pub control: AdminClient,
    /// The edge's name.
    pub edge: String,
    /// Bytes of checkpoints of one session that this edge takes.
    pub checkpoints_max: u64,
    /// The directory of the image cache.
    pub images: PathBuf,
    /// The directory of recordings that an operator asked for.
    pub recordings: PathBuf,
    /// The directory of deployed apps.
    pub apps: PathBuf,
    /// Manifests to deploy at start.
    pub start: Vec<PathBuf>,
    /// The gates' routes: the client ends of their sessions are lost with this edge.
    pub routing: Routing,
    /// Whether its gates reach edges other than this one: sessions through them may run there.
    pub gates_dial: bool,
    /// Servers that this edge's own agent connects to: the server ends of such sessions are lost with it.
    pub gate_servers: Vec<String>,
    /// Admin URLs of edges from which missing apps are fetched.
    pub peers: Vec<String>,
    /// CA certificates in PEM to verify other edges with; the system's if there are none.
    pub ca: Option<Vec<u8>>,
    /// Knows other edges, if there is a coordinator.
    pub coordinator: Option<Coordinator>,
    /// Apps with a stage that is put before those of every app, the one next to the client first.
    pub first: Vec<String>,
    /// Apps with a stage that is put after those of every app, the one next to the server last.
    pub last: Vec<String>,
    /// Private keys that apps may be granted.
    pub keys: Vec<Key>,
    /// For log lines that sessions cause and no operator.
    pub log_limiter: Mutex<LogLimiter>,
    /// Access settings.
    pub access: Access,
    /// The file of the operators' token that is made if none is configured.
    pub token_file: PathBuf,
    /// With it, edges of the domain read apps and images from each other.
    pub edge_key: EdgeKey,
}

impl AdminState {
    /// For the edge with this configuration.
    #[must_use]
    pub fn new(config: &EdgeSettings, control: AdminClient, coordinator: Option<Coordinator>) -> Self {
        Self {
            control,
            edge: config.edge.name.clone(),
            checkpoints_max: config.edge.limits.checkpoints_max,
            images: config.edge.images.clone(),
            recordings: config.edge.recordings.clone(),
            apps: config.admin.state.join("apps"),
            start: config.admin.apps.clone(),
            routing: config.edge.routing.clone(),
            gates_dial: !config.edge.gate_edges.is_empty(),
            gate_servers: config.edge.servers.iter().map(|server| server.name.clone()).collect(),
            peers: config.admin.peers.clone(),
            ca: config.admin.ca.clone(),
            coordinator,
            first: config.admin.first.clone(),
            last: config.admin.last.clone(),
            keys: config.edge.keys.clone(),
            log_limiter: Mutex::new(LogLimiter::new(Instant::now())),
            access: config.admin.access.clone(),
            token_file: config.admin.state.join("admin-token"),
            edge_key: EdgeKey::derive(&DomainSecret::from_material(&config.edge.secret)),
        }
    }

    /// Whether an app of which clients share one cell in the domain is reached through gates of this edge. The cell outlives its clients,
    /// so they may be in a gate, which must reach the edge that has the cell.
    pub(super) fn gates_reach_cell(&self, shared: bool, protect: Protect) -> bool {
        shared && protect != Protect::None && self.gates_dial
    }

    /// The edge that has the only copy of the coordinator's store in it, if one has.
    pub(super) fn store_edge(&self) -> Option<StoreEdge> {
        self.coordinator.as_ref().and_then(Coordinator::store_edge)
    }

    /// Whether this edge puts the app before or after every other.
    #[must_use]
    pub fn is_forced(&self, app: &str) -> bool {
        self.first.iter().chain(&self.last).any(|forced| forced == app)
    }
}
