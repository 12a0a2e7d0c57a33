//! What the admin API needs of the edge around it. Knows no HTTP.

use super::access::Access;
use crate::config::edge::EdgeSettings;
use crate::coordinator::Coordinator;
use crate::edge::AdminClient;
use crate::keys::Key;
use marram_agent::{Routing, net::LogLimiter};
use marram_wire::seal::{DomainSecret, EdgeKey};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

/// The edge, as seen by its admin API.
#[derive(Debug)]
pub struct AdminState {
    /// Asks the control.
    pub control: AdminClient,
    /// The edge's name.
    pub edge: String,
    /// Where images are cached.
    pub images: PathBuf,
    /// Where recordings lie that were asked for.
    pub recordings: PathBuf,
    /// Where deployed apps are remembered.
    pub apps: PathBuf,
    /// Manifests to deploy at start.
    pub start: Vec<PathBuf>,
    /// What gates lead to: the client ends of such sessions die with this edge.
    pub routing: Routing,
    /// Servers that this edge's own gate connects to: such sessions' server ends die with it.
    pub gate_servers: Vec<String>,
    /// Admin URLs of edges to fetch apps from that this one lacks.
    pub peers: Vec<String>,
    /// Certificates in PEM by which other edges are believed; the system's if there are none.
    pub ca: Option<Vec<u8>>,
    /// Who knows of other edges, where there is such.
    pub coordinator: Option<Coordinator>,
    /// Apps whose stage goes before those of every app, the one next to the client first.
    pub first: Vec<String>,
    /// Apps whose stage goes behind those of every app, the one next to the server last.
    pub last: Vec<String>,
    /// Private keys that apps may be granted.
    pub keys: Vec<Key>,
    /// For what sessions bring about that nobody here asked for.
    pub log_limiter: Mutex<LogLimiter>,
    /// Who may ask what.
    pub access: Access,
    /// Where the operators' token is kept that is made if none is configured.
    pub token_file: PathBuf,
    /// What edges of the domain show each other, to read apps and images.
    pub credential: String,
}

impl AdminState {
    /// The desk of the edge that is configured so.
    #[must_use]
    pub fn new(config: &EdgeSettings, control: AdminClient, coordinator: Option<Coordinator>) -> Self {
        Self {
            control,
            edge: config.edge.name.clone(),
            images: config.edge.images.clone(),
            recordings: config.edge.recordings.clone(),
            apps: config.admin.state.join("apps"),
            start: config.admin.apps.clone(),
            routing: config.edge.routing.clone(),
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
            credential: EdgeKey::derive(&DomainSecret::from_material(&config.edge.secret)).bearer(),
        }
    }

    /// Whether this edge puts an app before or behind every other.
    #[must_use]
    pub fn is_forced(&self, app: &str) -> bool {
        self.first.iter().chain(&self.last).any(|forced| forced == app)
    }
}
