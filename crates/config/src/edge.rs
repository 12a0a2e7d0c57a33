//! An edge's configuration: as written, and as the edge and its admin API take it.
//!
//! One file configures a machine, in four parts that know nothing of each other: the supervisor and
//! its shards ([`edge::EdgeOptions`]), the admin API, the coordinator, the logs. Nothing is passed
//! on to shards here; the supervisor does that when it starts them.

use super::agent;
use super::coordinator::{Around, WrittenCoordinator, reached_addresses};
use super::credentials::{self, WrittenCredential};
use super::environment;
use super::keys::{self, WrittenKey};
use super::policies::{self, WrittenPolicy};
use super::routes::{self, WrittenListener, WrittenRoute, WrittenServer};
use super::shared::{self, WrittenLog, WrittenSecurity, WrittenTimeouts, host_name, socket};
use super::source::{Problem, Source};
use super::units::{Address, Name, Size, Time};
use marram_agent::Listener;
use marram_http::Access;
use marram_node::{coordinator, edge, logging};
use marram_shard::{api::Grant, run_queue::WEIGHT};
use marram_wire::limits::EDGE_ADDRESSES_MAX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// The least bandwidth of moves, in bytes a second.
const MOVE_BANDWIDTH_MIN: u64 = 1 << 20;

/// What `marram config sample edge` prints.
pub const SAMPLE: &str = include_str!("edge.sample.toml");

/// An edge's configuration, resolved.
#[derive(Clone, Debug)]
pub struct EdgeSettings {
    /// For the edge's processes.
    pub edge: edge::EdgeOptions,
    /// For its admin API.
    pub admin: EdgeAdminSettings,
    /// For its coordinator, if it has one.
    pub coordinator: Option<coordinator::CoordinatorOptions>,
    /// For its logs.
    pub log: logging::LogOptions,
}

/// Settings of an edge's admin API.
///
/// Among them what the edge deploys: apps come through the admin API, at the start as well as
/// later.
#[derive(Clone, Debug)]
pub struct EdgeAdminSettings {
    /// Where operators connect.
    pub listen: SocketAddr,
    /// Access to the API; has a token if `listen` is not on loopback.
    pub access: Access,
    /// Admin URLs of other edges.
    pub peers: Vec<String>,
    /// CA certificates in PEM to verify other edges with.
    pub ca: Option<Vec<u8>>,
    /// The edge's state directory.
    /// Holds the admin token that the edge makes for itself, if none is configured.
    pub state: PathBuf,
    /// Manifests of apps to deploy at start.
    pub apps: Vec<PathBuf>,
    /// Apps with a stage that is put before those of every app.
    pub first: Vec<String>,
    /// Apps with a stage that is put after those of every app.
    pub last: Vec<String>,
}

impl EdgeSettings {
    /// Reads and resolves a configuration.
    ///
    /// # Errors
    /// If a field is unknown, missing, of a wrong type, or contradicts other fields.
    pub fn parse(source: &Source) -> Result<Self, Problem> {
        let source = &source.overridden::<Written>(environment::EDGE)?;
        source.parse::<Written>("edge")?.resolve(source)
    }
}

/// The whole file. `edge.sample.toml` explains each field to operators.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<Name>,
    /// The state directory, with images, recordings and the embedded store below it. No session
    /// depends on it.
    state: String,
    listen: Vec<Spanned<String>>,
    /// What agents and edges should dial. Absent: those of `listen` that are not every address
    /// (`0.0.0.0`), since that one means nothing on another machine.
    addresses: Option<Vec<Spanned<Address>>>,
    /// The domain's secret, the same on each edge of the domain: all keys of sessions derive from
    /// it.
    secret_file: Spanned<String>,
    /// Manifests, or directories that contain one.
    #[serde(default)]
    apps: Vec<String>,
    /// Processes; absent means one for each core, which is passed on as 0.
    shards: Option<Spanned<u8>>,
    /// Peers for apps that name a server; the server ends of these sessions are in this edge's
    /// gate.
    #[serde(default)]
    servers: BTreeMap<Name, WrittenServer>,
    #[serde(default)]
    security: WrittenSecurity,
    #[serde(default)]
    credential: Vec<Spanned<WrittenCredential>>,
    #[serde(default)]
    gate: Vec<WrittenGate>,
    #[serde(default)]
    gates: WrittenGates,
    #[serde(default)]
    route: Vec<Spanned<WrittenRoute>>,
    #[serde(default)]
    policy: Vec<Spanned<WrittenPolicy>>,
    #[serde(default)]
    chain: WrittenChain,
    #[serde(default)]
    admin: WrittenAdmin,
    #[serde(default)]
    limits: WrittenLimits,
    #[serde(default)]
    tenant: Vec<Spanned<WrittenTenant>>,
    #[serde(default)]
    key: Vec<Spanned<WrittenKey>>,
    #[serde(default)]
    record: WrittenRecord,
    coordinator: Option<Spanned<WrittenCoordinator>>,
    #[serde(default)]
    standby: WrittenStandby,
    #[serde(default)]
    timeouts: WrittenTimeouts,
    #[serde(default)]
    log: WrittenLog,
}

/// A `[[gate]]`: like an agent's `[[listen]]`, with the address in `listen`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGate {
    listen: Spanned<String>,
    app: Name,
    name: Option<Name>,
    protocol: Option<Spanned<String>>,
    idle: Option<Spanned<Time>>,
    flows: Option<Spanned<usize>>,
    #[serde(default)]
    origins: Vec<Spanned<String>>,
    proxy_protocol: Option<Spanned<bool>>,
    key: Option<Spanned<String>>,
}

/// Where the sessions of this edge's gates run. Empty: here. Their ends are in this edge in either
/// case.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenGates {
    #[serde(default)]
    edges: Vec<Address>,
    /// As `learn` of an agent; true if absent. Without `edges` it has no effect.
    learn: Option<bool>,
    token_file: Option<Spanned<String>>,
    /// What the ends in the gates may keep, as `limits.memory` of an agent.
    memory: Option<Spanned<Size>>,
}

/// A `[[tenant]]`: what the edge grants to the apps of one tenant, as opposed to what a manifest
/// asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTenant {
    name: Name,
    /// Relative to other tenants; 100 if absent.
    weight: Option<u32>,
    /// On one shard; absent or 0: no limit.
    sessions: Option<u32>,
    /// Whether priorities of the tenant's apps count; true if absent.
    priority: Option<bool>,
}

/// `[chain]`: stages that every app deployed here gets in addition. An app's image depends on them,
/// so all edges of a domain must have the same ones, or they cannot recover each other's sessions.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenChain {
    /// Deployed apps of one stage, in the order in which a client's bytes pass them.
    #[serde(default)]
    first: Vec<Name>,
    #[serde(default)]
    last: Vec<Name>,
}

/// `[admin]`: the fields that every program has (`shared::WrittenAdmin`), `peers` and `ca`. It is
/// repeated here since serde cannot combine `flatten` with `deny_unknown_fields`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenAdmin {
    listen: Option<Spanned<String>>,
    token_file: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
    metrics_token_file: Option<Spanned<String>>,
    #[serde(default)]
    hosts: Vec<Spanned<Name>>,
    certificate: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    /// Admin URLs of other edges, from which this one fetches apps and images that it lacks.
    #[serde(default)]
    peers: Vec<Spanned<String>>,
    ca: Option<Spanned<String>>,
}

/// `[record]`: recordings of sessions of which a handler was stopped. Without a directory none are
/// made.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenRecord {
    directory: Option<String>,
    files: Option<u32>,
    bytes: Option<Size>,
    /// Leave the messages out: what the recording then shows is when, not what.
    redact: Option<bool>,
}

/// The edges to which this one offers itself as a standby. It dials them, as an agent would.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenStandby {
    #[serde(default)]
    edges: Vec<Address>,
    /// Whether it also offers itself to edges that it learns of. If absent: whether it offers itself to any, in `edges`.
    learn: Option<bool>,
    token_file: Option<Spanned<String>>,
}

/// `[limits]`. Absent fields take `edge::EdgeLimits::default`; 0 means no limit for `sessions`,
/// `recoveries` and `replay`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    sessions: Option<u32>,
    recoveries: Option<u32>,
    replay: Option<Time>,
    cells: Option<u32>,
    checkpoints: Option<Spanned<Size>>,
    memory: Option<Spanned<Size>>,
    /// Connections in their handshake.
    half_open: Option<u32>,
    handshake: Option<Time>,
    drain: Option<Time>,
    /// Bytes in a second.
    move_bandwidth: Option<Spanned<Size>>,
}

impl Written {
    fn resolve(self, source: &Source) -> Result<EdgeSettings, Problem> {
        if self.listen.is_empty() {
            return Err(source.missing("listen", "write listen = [\"0.0.0.0:7400\"]"));
        }
        if let Some(shards) = self.shards.as_ref().filter(|shards| *shards.get_ref() == 0) {
            return Err(source.problem(
                &shards.span(),
                "an edge needs at least one shard; remove it for one on each \
                core",
            ));
        }
        // The span of the first address: a warning about `listen` points there.
        let (state, listens) = (source.path(&self.state), self.listen.first().map(Spanned::span));
        let gates = self.gate.into_iter().map(|gate| gate.resolve(source)).collect::<Result<_, _>>()?;
        let mut security = self.security.resolve_edge(source)?;
        security.credentials = credentials::resolve(source, self.credential, &security)?;
        let token = |path: &Option<Spanned<String>>| {
            path.as_ref().map(|path| shared::token(source, path)).transpose()
        };
        let listen =
            self.listen.iter().map(|text| socket(source, text)).collect::<Result<Vec<_>, Problem>>()?;
        let addresses = reached_at(source, self.addresses, &listen)?;
        let edge = edge::EdgeOptions {
            policies: policies::resolve(source, self.policy)?,
            gate_token: token(&self.gates.token_file)?,
            standby_token: token(&self.standby.token_file)?,
            keys: keys::resolve(source, self.key, security.insecure_plain)?,
            name: self.name.map_or_else(host_name, |name| name.0),
            listen,
            addresses,
            security,
            secret: shared::secret(source, &self.secret_file)?,
            shards: self.shards.map_or(0, Spanned::into_inner),
            images: state.join("images"),
            recordings: state.join("recordings"),
            // Before `self.admin` is consumed below: the log names a command that fetches a
            // recording.
            stops: self.record.resolve(source, self.admin.from(source)),
            routing: routes::routing(source, gates, &self.route)?,
            servers: routes::servers(self.servers),
            gate_edges: self.gates.edges.into_iter().map(|edge| edge.0).collect(),
            gates_learn: self.gates.learn.unwrap_or(true),
            gate_memory: agent::memory(source, self.gates.memory.as_ref())?,
            timeouts: self.timeouts.resolve(source)?,
            standby_learns: self.standby.learn.unwrap_or(!self.standby.edges.is_empty()),
            standby: self.standby.edges.into_iter().map(|edge| edge.0).collect(),
            limits: self.limits.resolve(source, tenants(source, self.tenant)?)?,
            // No configuration can ask for faults, or for the baseline of a benchmark; `marram demo-edge` does.
            sabotage: 0,
            whole: false,
        };
        if let Some(span) = listens.filter(|_| edge.lacks_authentication()) {
            let what = "is not on loopback, and agents elsewhere cannot authenticate this edge, so they refuse it; \
                        name a token with `security.token_file`, or a certificate";
            source.warn(&span, what);
        }
        let apps = self.apps.iter().map(|path| source.path(path)).collect();
        let admin = self.admin.resolve(source, state, apps, self.chain)?;
        let around = Around {
            state: &admin.state,
            addresses: &edge.addresses,
            admin: admin.listen,
            admin_is_encrypted: admin.access.identity.is_some(),
        };
        let coordinator = self.coordinator.map(|table| {
            let span = table.span();
            table.into_inner().resolve(source, &span, &around)
        });
        let coordinator = coordinator.transpose()?;
        Ok(EdgeSettings { edge, admin, coordinator, log: self.log.resolve(source)? })
    }
}

/// Where others reach this edge.
fn reached_at(
    source: &Source,
    written: Option<Vec<Spanned<Address>>>,
    listen: &[SocketAddr],
) -> Result<Vec<String>, Problem> {
    if let Some(many) = written.as_ref().and_then(|addresses| addresses.get(EDGE_ADDRESSES_MAX)) {
        let what = format!("is one too many; at most {EDGE_ADDRESSES_MAX} are told");
        return Err(source.problem(&many.span(), what));
    }
    let reached = || reached_addresses(listen).take(EDGE_ADDRESSES_MAX).collect();
    Ok(written
        .map_or_else(reached, |written| written.into_iter().map(|address| address.into_inner().0).collect()))
}

impl WrittenGate {
    fn resolve(self, source: &Source) -> Result<Listener, Problem> {
        let Self { listen, app, name, protocol, idle, flows, origins, proxy_protocol, key } = self;
        let address = socket(source, &listen)?;
        let listener = WrittenListener { name, protocol, idle, flows, origins, proxy_protocol, key };
        listener.resolve(source, address, app)
    }
}

impl WrittenAdmin {
    /// The arguments with which a command on this machine fetches from this edge.
    ///
    /// It goes into log lines that tell an operator how to get a recording. An address that means
    /// every one is replaced by loopback, since the command runs here.
    fn from(&self, source: &Source) -> String {
        let listen = self.listen.as_ref().map_or("127.0.0.1:7401", |listen| listen.get_ref());
        let reached = listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
        let token = self.token_file.as_ref().map(|path| source.path(path.get_ref()));
        let token = token.map_or_else(String::new, |path| format!(" --token-file {}", path.display()));
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("--from {scheme}://{reached}{token}")
    }

    fn resolve(
        self,
        source: &Source,
        state: PathBuf,
        apps: Vec<PathBuf>,
        chain: WrittenChain,
    ) -> Result<EdgeAdminSettings, Problem> {
        let Self { listen, token_file, metrics, metrics_token_file, hosts, certificate, key, peers, ca } =
            self;
        let shared =
            shared::WrittenAdmin { listen, token_file, metrics, metrics_token_file, hosts, certificate, key };
        let (listen, access) = shared.resolve(source, "deploy and kill")?;
        let listen = listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7401)));
        let is_url = |peer: &String| ["http://", "https://"].iter().any(|scheme| peer.starts_with(scheme));
        if let Some(peer) = peers.iter().find(|peer| !is_url(peer.get_ref())) {
            let what = "a peer is written \"http://HOST:PORT\" or \"https://HOST:PORT\"";
            return Err(source.problem(&peer.span(), what));
        }
        let ca = ca.map(|path| shared::pem(source, &path)).transpose()?;
        let peers = peers.into_iter().map(Spanned::into_inner).collect();
        let names = |names: Vec<Name>| names.into_iter().map(|name| name.0).collect();
        let (first, last) = (names(chain.first), names(chain.last));
        Ok(EdgeAdminSettings { listen, access, peers, ca, state, apps, first, last })
    }
}

impl WrittenRecord {
    fn resolve(self, source: &Source, from: String) -> Option<edge::Stops> {
        Some(edge::Stops {
            directory: source.path(&self.directory?),
            files_max: self.files.unwrap_or(edge::Stops::FILES),
            bytes_max: self.bytes.map_or(edge::Stops::BYTES, |size| size.0),
            redact: self.redact.unwrap_or(false),
            from,
        })
    }
}

/// What each tenant is granted; a tenant that is listed twice is an error.
fn tenants(source: &Source, written: Vec<Spanned<WrittenTenant>>) -> Result<Vec<Grant>, Problem> {
    let mut grants: Vec<Grant> = Vec::new();
    for tenant in written {
        let span = tenant.span();
        let WrittenTenant { name, weight, sessions, priority } = tenant.into_inner();
        if grants.iter().any(|grant| grant.tenant == name.0) {
            return Err(source.problem(&span, format!("`{}` is listed twice; merge the two", name.0)));
        }
        if weight == Some(0) {
            return Err(source.problem(&span, "a weight is at least 1; the default is 100"));
        }
        grants.push(Grant {
            tenant: name.0,
            weight: weight.unwrap_or(WEIGHT),
            sessions_max: sessions.unwrap_or(0),
            priority: priority.unwrap_or(true),
        });
    }
    Ok(grants)
}

/// Bytes in a second. With too few, a move of a session that changes would end only when it is given up.
fn move_bandwidth(source: &Source, written: &Spanned<Size>) -> Result<u64, Problem> {
    let Size(bytes) = *written.get_ref();
    if bytes > 0 && bytes < MOVE_BANDWIDTH_MIN {
        let what = format!(
            "is too little for moves to end; at least {}, or \"0B\" for no limit",
            Size(MOVE_BANDWIDTH_MIN)
        );
        return Err(source.problem(&written.span(), what));
    }
    Ok(bytes)
}

impl WrittenLimits {
    fn resolve(&self, source: &Source, grants: Vec<Grant>) -> Result<edge::EdgeLimits, Problem> {
        let default = edge::EdgeLimits::default();
        Ok(edge::EdgeLimits {
            checkpoints_max: shared::checkpoints_max(source, self.checkpoints.as_ref())?,
            sessions_max: self.sessions.unwrap_or(default.sessions_max),
            recoveries_max: self.recoveries.unwrap_or(default.recoveries_max),
            replay: self.replay.map_or(default.replay, |time| time.0),
            memory: agent::memory(source, self.memory.as_ref())?,
            half_open_max: self.half_open.map_or(default.half_open_max, |count| count as usize),
            handshake: self.handshake.map_or(default.handshake, |time| time.0),
            drain: self.drain.map_or(default.drain, |time| time.0),
            move_bytes_per_s: match &self.move_bandwidth {
                Some(written) => move_bandwidth(source, written)?,
                None => default.move_bytes_per_s,
            },
            cells_max: self.cells.unwrap_or(default.cells_max),
            grants,
        })
    }
}
