//! What the admin API needs of the edge around it. Knows no HTTP.

use marram_edge::control::{Answer, Request};
use std::path::PathBuf;
use tokio::sync::oneshot;

/// Where the control's answer goes. Dropped unanswered if the edge stops.
pub type Reply = oneshot::Sender<Answer>;

/// The edge, as seen by its admin API.
pub struct Desk {
    /// Hands a request to the control; returns at once.
    pub ask: Box<dyn Fn(Request, Reply) + Send + Sync>,
    /// The edge's state: images in `images/`, deployed apps in `apps/`.
    pub state: PathBuf,
    /// Apps that have a gate on this edge: their sessions' client ends die with it.
    pub gate_apps: Vec<String>,
    /// Servers that this edge's own gate connects to: such sessions' server ends die with it.
    pub gate_servers: Vec<String>,
    /// Manifests of apps to deploy at start.
    pub apps: Vec<PathBuf>,
    /// Admin URLs of edges to fetch apps and images from that this one lacks.
    pub peers: Vec<String>,
    /// What must be shown as `Authorization: Bearer ...`, if anything.
    pub token: Option<String>,
}
