//! Edges that can take one another's sessions, with all services, and operators' questions to them.

use crate::support::{
    self,
    services::{Service, Site, servers::Servers},
};
use hyper::Method;
use marram_cluster::{AgentSide, Layout, LogEvent, TestCluster, free_address};
use serde_json::Value;
use std::{
    fs,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const SHARDS: u8 = 2;
/// Log lines of each kind that are shown if a test fails.
const SHOWN: usize = 200;
/// `forward`, with the server of [`support::traffic`].
const BULK: &str = "bulk";

/// What runs on the edges.
pub(super) struct Plan<'a> {
    pub(super) purpose: &'static str,
    pub(super) edges: usize,
    /// How caches are protected.
    pub(super) protect: &'a str,
    /// How the streams of [`support::traffic`] are protected.
    pub(super) protect_bulk: &'a str,
    pub(super) services: &'a [Service],
    pub(super) sessions: usize,
    /// The server of [`support::traffic`].
    pub(super) bulk: SocketAddr,
    /// Further limits of edges, and timeouts of agents.
    pub(super) limits: &'a str,
    pub(super) timeouts: &'a str,
}

pub(super) struct World {
    pub(super) cluster: TestCluster,
    /// Each edge can take the sessions of the others.
    pub(super) extra: String,
    /// Where each service listens, and `bulk`.
    pub(super) services: Vec<(Service, SocketAddr)>,
    pub(super) bulk: SocketAddr,
    pub(super) site: Site,
}

impl World {
    pub(super) fn new(plan: &Plan<'_>) -> Self {
        let site = Site::new();
        let layout = support::layout(plan.purpose, |layout: &mut Layout| {
            (layout.edges, layout.shards) = (plan.edges, SHARDS);
            layout.edge_tables = site.table(Service::Tls.name());
            // All sessions may be on one edge, and on its standbys.
            let cells = 2 * plan.sessions + 64;
            layout.edge_tables +=
                &format!("[limits]\ncells = {cells}\n{}{}", plan.limits, support::UNSUSPECTING);
            layout.agent_tables = format!("{}{}", support::UNSUSPECTING, plan.timeouts);
        });
        let state = format!(
            "protect = {:?}\n[keep]\nrecovery_target = \"1ms\"\n[quotas]\nmemory = \"64MiB\"\n",
            plan.protect
        );
        let bulk = format!("server = \"peer\"\nprotect = {:?}\n", plan.protect_bulk);
        let apps = |place: &_| {
            let cells = support::cells();
            let manifest = |service: &Service| match service {
                Service::Memcached => cells.manifest(place, service.name(), service.name(), &state),
                other => other.manifest(place, &site),
            };
            let mut apps = plan.services.iter().map(manifest).collect::<anyhow::Result<Vec<_>>>()?;
            apps.push(cells.manifest(place, BULK, "forward", &bulk)?);
            Ok(apps)
        };
        let mut cluster = TestCluster::new(layout, apps).unwrap();
        let edges = cluster.edge_addresses();
        let names: Vec<String> = edges.iter().map(SocketAddr::to_string).collect();
        let extra = format!("standby = {{ edges = {names:?} }}");
        cluster.start_edges(&extra).unwrap();
        let servers = format!("{}peer = \"{}\"\n", Servers::start().table(), plan.bulk);
        cluster.start_agent_with(AgentSide::Server, &edges, &servers).unwrap();
        let services: Vec<_> =
            plan.services.iter().map(|service| (*service, free_address().unwrap())).collect();
        let bulk = free_address().unwrap();
        let listen = |(service, address): &(Service, SocketAddr)| {
            let protocol = if *service == Service::Datagrams { "udp" } else { "tcp" };
            let name = service.name();
            format!("[[listen]]\naddress = \"{address}\"\napp = {name:?}\nprotocol = {protocol:?}\n")
        };
        let tables = services.iter().map(listen).collect::<String>()
            + &format!("[[listen]]\naddress = \"{bulk}\"\napp = {BULK:?}\n");
        cluster.start_agent_with(AgentSide::Client, &edges, &tables).unwrap();
        Self { cluster, extra, services, bulk, site }
    }

    pub(super) fn ask(&self, edge: usize, method: Method, path: &str) -> Result<Value, String> {
        let client = self.cluster.edges[edge].client().unwrap();
        client.json(method, path).map_err(|error| error.to_string())
    }

    /// The sessions that run on an edge.
    pub(super) fn running(&self, edge: usize) -> Vec<String> {
        self.placed(edge).into_iter().map(|(session, _)| session).collect()
    }

    /// The same, with the shard of each.
    pub(super) fn placed(&self, edge: usize) -> Vec<(String, u64)> {
        let list = self.ask(edge, Method::GET, "/v1/sessions").unwrap_or_default();
        let rows = list["sessions"].as_array().into_iter().flatten();
        let running = rows.filter(|row| row["phase"] == "running");
        running
            .map(|row| (row["session"].as_str().unwrap().to_owned(), row["shard"].as_u64().unwrap()))
            .collect()
    }

    /// What an edge says of the only move that it knows.
    pub(super) fn only_move(&self, edge: usize) -> Value {
        let list = self.ask(edge, Method::GET, "/v1/moves").unwrap_or_default();
        list["moves"].as_array().and_then(|moves| moves.first().cloned()).unwrap_or_default()
    }

    /// Runs a command of operators for some edges: its status, and what it prints.
    pub(super) fn marram(&self, arguments: &[&str], edges: &[usize]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.args(arguments);
        for edge in edges {
            command.arg("--edge").arg(format!("http://{}", self.cluster.edges[*edge].admin()));
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Starts a command of operators for an edge, and reads nothing of what it prints.
    pub(super) fn begin(&self, arguments: &[&str], edge: usize) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.args(arguments).arg("--edge").arg(format!("http://{}", self.cluster.edges[edge].admin()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(super) fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}; {}", self.cluster.logs.tail(40));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The name that an edge has.
    pub(super) fn name(&self, edge: usize) -> String {
        self.ask(edge, Method::GET, "/v1/edge").unwrap()["edge"].as_str().unwrap().to_owned()
    }
}

/// What a program saw says little of why a test failed. What agents and edges said of their sessions, or wrote as they died, says more.
impl Drop for World {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let is_about_session = |event: &LogEvent| !event.text("session").is_empty();
        let is_warning = |event: &LogEvent| matches!(event.text("level"), "WARN" | "ERROR");
        eprintln!("of sessions:\n{}", self.cluster.logs.tail_of(SHOWN, is_about_session));
        let others = |event: &LogEvent| is_warning(event) && !is_about_session(event);
        eprintln!("warnings:\n{}", self.cluster.logs.tail_of(SHOWN, others));
        for entry in fs::read_dir(self.cluster.directory.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_errors = path.extension().is_some_and(|extension| extension == "stderr");
            match fs::read_to_string(&path) {
                Ok(text) if is_errors && !text.is_empty() => eprintln!("{}:\n{text}", path.display()),
                Err(error) if is_errors => eprintln!("{}: {error}", path.display()),
                _ => {}
            }
        }
    }
}
