//! Edges that are backups of each other, a coordinator, and what operators see of their sessions.

use crate::support::{
    self, figures, marram,
    stream::{Stream, echo, until},
};
use hyper::Method;
use marram_cluster::{Layout, TempDir, TestCluster, TestStore};
use marram_testbed::Relay;
use serde_json::Value;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// Edges, agents of both sides, and the store in a process of its own.
pub(super) struct World {
    pub(super) cluster: TestCluster,
    pub(super) store: TestStore,
    /// Additional fields of each edge's configuration.
    pub(super) extra: String,
    pub(super) address: SocketAddr,
    /// Names of edges, of all their lives.
    names: BTreeMap<String, usize>,
}

/// Bytes that every stream must have got back before and after each fault or move.
const SOME: u64 = 20_000;

/// Waits until each of them has got some bytes back.
pub(super) fn hear(streams: &[Stream]) {
    streams.iter().for_each(|stream| stream.hear(SOME));
}

/// What the edge that runs a session lists of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) owner: usize,
    /// Its backup, if a claim names one.
    pub(super) backup: Option<usize>,
    /// Its key, if it is one of several shared cells.
    pub(super) key: Option<String>,
    generation: u64,
}

/// `forward` with this `[epoch]` table.
pub(super) fn manifest(epoch: &str) -> String {
    format!("server = \"web\"\nprotect = \"epoch\"\n[epoch]\n{epoch}\n")
}

/// Edges of one shard each, with the same timeouts as the agents.
pub(super) fn layout(purpose: &'static str, edges: usize, timeouts: &str) -> Layout {
    support::layout(purpose, |layout| {
        layout.edges = edges;
        layout.edge_tables = timeouts.into();
        layout.agent_tables = timeouts.into();
    })
}

impl World {
    /// Edges and agents on both sides of them.
    pub(super) fn new(purpose: &'static str, edges: usize, timeouts: &str, epoch: &str) -> Self {
        let mut world = Self::without_agents(layout(purpose, edges, timeouts), edges, epoch);
        world.start_agents();
        world
    }

    /// Starts an agent on each side.
    pub(super) fn start_agents(&mut self) {
        let addresses = self.cluster.edge_addresses();
        self.cluster.start_server_agent(&addresses, &[("web", echo())]).unwrap();
        self.address = self.cluster.start_client_agent(&addresses, &["forward"]).unwrap()[0].address;
    }

    /// The first edges, which run cells. Those after them are not started.
    pub(super) fn without_agents(layout: Layout, edges: usize, epoch: &str) -> Self {
        Self::with_app(layout, edges, ("forward", &manifest(epoch)))
    }

    /// As [`Self::without_agents`], with another cell, which is also the app's name, and the rest of its manifest.
    pub(super) fn with_app(layout: Layout, edges: usize, app: (&str, &str)) -> Self {
        Self::with_apps(layout, edges, &[app])
    }

    /// As [`Self::with_app`], with several.
    pub(super) fn with_apps(layout: Layout, edges: usize, apps: &[(&str, &str)]) -> Self {
        Self::start((layout, edges), apps, |cluster| {
            let addresses: Vec<String> =
                cluster.edge_addresses()[..edges].iter().map(SocketAddr::to_string).collect();
            format!("standby = {{ edges = {addresses:?} }}")
        })
    }

    /// As [`Self::with_app`]. The edges reach each other through relays alone: one in front of each edge.
    pub(super) fn through_relays(layout: Layout, edges: usize, app: (&str, &str)) -> (Self, Vec<Relay>) {
        let mut relays = Vec::new();
        let world = Self::start((layout, edges), &[app], |cluster| {
            let relay = |address: &SocketAddr| Relay::start(*address, Duration::ZERO).unwrap();
            relays.extend(cluster.edge_addresses().iter().map(relay));
            let addresses: Vec<String> = relays.iter().map(|relay| relay.address().to_string()).collect();
            format!("standby = {{ edges = {addresses:?}, learn = false }}")
        });
        (world, relays)
    }

    /// Starts the first edges, which reach each other as this field of their configuration says.
    fn start(
        (layout, edges): (Layout, usize),
        apps: &[(&str, &str)],
        standby: impl FnOnce(&TestCluster) -> String,
    ) -> Self {
        let manifests = |place: &TempDir| {
            apps.iter().map(|(app, rest)| support::cells().manifest(place, app, app, rest)).collect()
        };
        let mut cluster = TestCluster::new(layout, manifests).unwrap();
        let store = support::store(&cluster.logs);
        let extra = format!("{}\n{}", standby(&cluster), store.field());
        (0..edges).for_each(|edge| cluster.start_edge(edge, &extra).unwrap());
        let mut names = BTreeMap::new();
        let address = store.address();
        for edge in 0..edges {
            names.insert(name(&cluster, edge), edge);
        }
        Self { cluster, store, extra, address, names }
    }

    /// Starts an edge again, with nothing of its former life, and waits until the agents use it.
    pub(super) fn restart(&mut self, index: usize) {
        self.restart_with(index, "");
    }

    /// As [`Self::restart`], with more fields of its configuration.
    pub(super) fn restart_with(&mut self, index: usize, more: &str) {
        let extra = format!("{}\n{more}", self.extra);
        self.cluster.respawn_with(index, &extra).unwrap();
        self.names.insert(name(&self.cluster, index), index);
    }

    /// As [`Self::restart`], where gates of other edges are in place of agents.
    pub(super) fn restart_without_agents(&mut self, index: usize) {
        let extra = self.extra.clone();
        self.cluster.start_edge(index, &extra).unwrap();
        self.names.insert(name(&self.cluster, index), index);
    }

    /// The rows of an edge; an empty list if it does not answer.
    pub(super) fn rows(&self, index: usize) -> Vec<Value> {
        if !self.cluster.edges[index].is_running() {
            return Vec::new();
        }
        let list = self.cluster.edges[index].client().unwrap().json(Method::GET, "/v1/sessions");
        list.ok().and_then(|list| list["sessions"].as_array().cloned()).unwrap_or_default()
    }

    /// Every session of these edges, as the edge lists it that has its newest generation.
    pub(super) fn seen_by(&self, edges: &[usize]) -> BTreeMap<String, Seen> {
        let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
        for index in edges {
            for row in self.rows(*index) {
                let session = row["session"].as_str().unwrap().to_owned();
                let Some(found) = self.of_row(*index, &row) else { continue };
                let known = seen.entry(session).or_insert_with(|| found.clone());
                if known.generation < found.generation {
                    *known = found;
                }
            }
        }
        seen
    }

    fn of_row(&self, owner: usize, row: &Value) -> Option<Seen> {
        if row["phase"] != "running" {
            return None;
        }
        let generation = row["generation"].as_str().unwrap().split('.').next().unwrap().parse().unwrap();
        let keepers = row["keepers"].as_array().unwrap();
        let named = keepers.iter().find(|keeper| keeper["kind"] == "backup" && keeper["ready"] == true);
        let backup =
            named.filter(|_| row["backup"] == "backed").map(|keeper| keeper["name"].as_str().unwrap());
        let (backup, key) =
            (backup.and_then(|name| self.names.get(name).copied()), row["key"].as_str().map(str::to_owned));
        Some(Seen { owner, backup, key, generation })
    }

    /// A manifest to deploy, with this `[epoch]` table.
    pub(super) fn manifest(&self, epoch: &str) -> String {
        let path = support::cells().manifest(&self.cluster.directory, "forward", "forward", &manifest(epoch));
        path.unwrap().display().to_string()
    }

    /// An edge's name.
    pub(super) fn name(&self, index: usize) -> String {
        name(&self.cluster, index)
    }

    /// All edges.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.cluster.edges.len()).collect()
    }

    /// Waits until so many sessions have a backup that a claim names, and returns them.
    pub(super) fn backed(&self, count: usize) -> BTreeMap<String, Seen> {
        self.backed_at(&self.all(), count)
    }

    /// As [`Self::backed`], asking these edges.
    pub(super) fn backed_at(&self, edges: &[usize], count: usize) -> BTreeMap<String, Seen> {
        let ask = || {
            let seen = self.seen_by(edges);
            (seen.len() == count && seen.values().all(|it| it.backup.is_some())).then_some(seen)
        };
        until(ask, || format!("not backed: {:?}\n{}", self.seen_by(edges), self.cluster.logs.tail(60)))
    }

    /// A counter of an edge.
    pub(super) fn counter(&self, index: usize, name: &str) -> u64 {
        figures::counter(&self.cluster.edges[index], name)
    }

    /// The standard output of a command at an edge.
    pub(super) fn marram(&self, index: usize, arguments: &[&str]) -> String {
        let edge = format!("http://{}", self.cluster.edges[index].admin());
        let output = marram().args(arguments).args(["--edge", &edge]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Why a command at an edge is refused.
    pub(super) fn refused(&self, index: usize, arguments: &[&str]) -> String {
        let edge = format!("http://{}", self.cluster.edges[index].admin());
        let output = marram().args(arguments).args(["--edge", &edge]).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Waits until an edge logs these words, from `start` on. Returns the position behind that line.
    pub(super) fn logged(&self, index: usize, start: usize, words: &str) -> usize {
        let who = self.cluster.edges[index].who();
        let said =
            |event: &marram_cluster::LogEvent| *event.who == *who && event.text("message").contains(words);
        let found = self.cluster.logs.wait(start, PATIENCE, said);
        found.unwrap_or_else(|| panic!("{who} does not say {words:?}\n{}", self.cluster.logs.tail(60))).0
    }

    /// How many sessions have ended since otherwise than in order, as their agents say.
    pub(super) fn lost(&self, start: usize) -> usize {
        self.cluster.logs.count(start, |event| event.name() == "ended" && event.text("code") != "Finished")
    }

    /// Connections through the client's agent.
    pub(super) fn streams(&self, count: usize) -> Vec<Stream> {
        (0..count).map(|_| Stream::start(self.address)).collect()
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// An edge's name in its configuration: with its life.
fn name(cluster: &TestCluster, index: usize) -> String {
    cluster.edges[index].directory()
}
