//! A whole run: some edges, a client's agent and a server's agent, on loopback.

use super::edge::{Settings, TestEdge};
use super::log_collector::LogCollector;
use super::namespace::Namespace;
use super::process::TestProcess;
use super::recorder::{RECORDER, TestRecorder};
use super::shared_images::SharedImages;
use super::temp_dir::{TempDir, free_address};
use anyhow::Context;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long an agent may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Part of the directory's name.
    pub purpose: &'static str,
    /// The `marram` program.
    pub program: PathBuf,
    /// Number of edges that have an address.
    pub edges: usize,
    /// Shard processes of each edge.
    pub shards: u8,
    /// Whether wires are encrypted and require a shared token, as between machines.
    pub encrypted: bool,
    /// Whether each edge runs in its own network namespace, where that is possible.
    pub namespaces: bool,
    /// Additional lines of the `[admin]` table of each edge's configuration.
    pub admin: String,
    /// Additional lines of each edge's configuration, after its last table.
    pub edge_tables: String,
    /// Additional lines of each agent's configuration, after its last table.
    pub agent_tables: String,
    /// Compiled images that its edges start with; each compiles its own if none.
    pub images: Option<SharedImages>,
}

/// A listener of the client's agent, and its app.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The app's name.
    pub app: String,
    /// The address for local clients.
    pub address: SocketAddr,
}

/// One of the two agents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentSide {
    /// The clients' agent.
    Client,
    /// The servers' agent.
    Server,
}

impl AgentSide {
    /// The agent's name in the collected logs.
    #[must_use]
    pub fn agent(self) -> &'static str {
        match self {
            Self::Client => "client agent",
            Self::Server => "server agent",
        }
    }

    /// The agent's name on the command line.
    fn argument(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// A run. Dropping it ends every process.
pub struct TestCluster {
    // Processes first, so that they end before their directory is removed.
    client: Option<TestProcess>,
    server: Option<TestProcess>,
    /// The recorder, if one was started.
    pub recorder: Option<TestRecorder>,
    /// Addresses under which each side's agent reaches the edges.
    seen: [Vec<String>; 2],
    /// The edges.
    pub edges: Vec<TestEdge>,
    /// The logs of all processes.
    pub logs: LogCollector,
    /// The run's directory.
    pub directory: TempDir,
    /// The log level of agents that are started from now on. Below `debug` they report nothing of single sessions, as at their
    /// default level: [`TestCluster::owner`] and what waits for owners then finds none.
    pub agent_level: &'static str,
    pub(super) layout: Layout,
}

impl TestCluster {
    /// Makes the directory and the addresses; starts nothing. `apps` writes the manifests into the directory and returns their
    /// paths.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn new(
        layout: Layout,
        apps: impl FnOnce(&TempDir) -> anyhow::Result<Vec<PathBuf>>,
    ) -> anyhow::Result<Self> {
        // A test that takes too long is ended by a signal, too.
        super::interrupt::end_on_interrupt()?;
        let directory = TempDir::new(layout.purpose)?;
        let mut secret = [0; 32];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
            .context("the operating system provides no random bytes")?;
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        directory.write_private("secret", &secret)?;
        // A value derived from the domain's secret: agents know the token and must not know the secret.
        let token = blake3_hex(&secret);
        directory.write_private("token", &token)?;
        let mut tables = layout.edge_tables.clone();
        if layout.encrypted {
            writeln!(
                tables,
                "[security]\ntoken_file = {:?}",
                directory.path().join("token").display().to_string()
            )?;
        }
        let settings = Settings {
            program: layout.program.clone(),
            apps: apps(&directory)?,
            shards: layout.shards,
            tables,
            admin: layout.admin.clone(),
            token,
            images: layout.images.clone(),
        };
        let name = |index: usize| char::from(b'A' + u8::try_from(index % 26).unwrap_or(0)).to_string();
        let apart = layout.namespaces && Namespace::possible();
        let edge = |index: usize| {
            let namespace = if apart { Some(Namespace::new()?) } else { None };
            TestEdge::new(&name(index), settings.clone(), namespace)
        };
        let edges = (0..layout.edges).map(edge).collect::<anyhow::Result<_>>()?;
        let seen = [Vec::new(), Vec::new()];
        Ok(Self {
            client: None,
            server: None,
            recorder: None,
            seen,
            edges,
            logs: LogCollector::default(),
            directory,
            agent_level: "debug",
            layout,
        })
    }

    /// Starts one edge with an empty directory and waits until it is ready. `extra` contains additional fields of its
    /// configuration.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_edge(&mut self, index: usize, extra: &str) -> anyhow::Result<()> {
        let start = self.logs.end();
        self.edges[index].start(&self.directory, &self.logs, extra)?;
        self.edges[index].wait_ready(&self.directory, &self.logs, start)
    }

    /// Starts all edges at once and waits until they are ready.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start_edges(&mut self, extra: &str) -> anyhow::Result<()> {
        let start = self.logs.end();
        for edge in &mut self.edges {
            edge.start(&self.directory, &self.logs, extra)?;
        }
        self.edges.iter_mut().try_for_each(|edge| edge.wait_ready(&self.directory, &self.logs, start))
    }

    /// The power of these edges is back: starts them with what is on their disks, and waits until they are ready.
    ///
    /// # Errors
    /// If one does not start.
    pub fn power_on(&mut self, edges: &[usize]) -> anyhow::Result<()> {
        let start = self.logs.end();
        for index in edges {
            self.edges[*index].start_again(&self.directory, &self.logs)?;
        }
        edges.iter().try_for_each(|index| self.edges[*index].wait_ready(&self.directory, &self.logs, start))
    }

    /// The edges' own addresses, which agents are given unless a relay is in between.
    #[must_use]
    pub fn edge_addresses(&self) -> Vec<SocketAddr> {
        self.edges.iter().map(TestEdge::address).collect()
    }

    /// Starts the client's agent; returns the address for clients of each app.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_client_agent(&mut self, edges: &[SocketAddr], apps: &[&str]) -> anyhow::Result<Vec<Listen>> {
        let listen = |app: &&str| Ok(Listen { app: (*app).to_owned(), address: free_address()? });
        let listens = apps.iter().map(listen).collect::<anyhow::Result<Vec<_>>>()?;
        let mut tables = String::new();
        for Listen { app, address } in &listens {
            writeln!(tables, "[[listen]]\naddress = \"{address}\"\napp = {app:?}")?;
        }
        self.client = Some(self.start_agent(AgentSide::Client, edges, &tables)?);
        Ok(listens)
    }

    /// Starts the server's agent. `servers` are names and addresses.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_server_agent(
        &mut self,
        edges: &[SocketAddr],
        servers: &[(&str, SocketAddr)],
    ) -> anyhow::Result<()> {
        let mut tables = String::from("[servers]\n");
        for (name, address) in servers {
            writeln!(tables, "{name} = \"{address}\"")?;
        }
        self.server = Some(self.start_agent(AgentSide::Server, edges, &tables)?);
        Ok(())
    }

    /// Starts one side's agent with additional lines in its configuration: listeners, servers, routes.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_agent_with(
        &mut self,
        side: AgentSide,
        edges: &[SocketAddr],
        tables: &str,
    ) -> anyhow::Result<()> {
        let process = Some(self.start_agent(side, edges, tables)?);
        match side {
            AgentSide::Client => self.client = process,
            AgentSide::Server => self.server = process,
        }
        Ok(())
    }

    fn start_agent(
        &mut self,
        side: AgentSide,
        edges: &[SocketAddr],
        tables: &str,
    ) -> anyhow::Result<TestProcess> {
        let edges: Vec<String> = edges.iter().map(SocketAddr::to_string).collect();
        self.seen[side as usize].clone_from(&edges);
        let (who, side) = (side.agent(), side.argument());
        let level = self.agent_level;
        let mut text =
            format!("edges = {edges:?}\n{tables}\n[log]\nformat = \"json\"\nlevel = \"{level}\"\n");
        text += &self.layout.agent_tables;
        text.push('\n');
        if self.layout.encrypted {
            let token = self.directory.path().join("token").display().to_string();
            writeln!(text, "[security]\ntoken_file = {token:?}")?;
        }
        let config = self.directory.write(&format!("agent-{side}.toml"), text)?;
        let mut command = Command::new(&self.layout.program);
        command.arg("agent").arg(side).arg("--config").arg(config);
        let errors = self.directory.path().join(format!("agent-{side}.stderr"));
        let start = self.logs.end();
        let process = TestProcess::start(who, &mut command, &self.logs, &errors)?;
        // Listeners are bound before wires are dialled. A session that begins before its home shard is connected begins on
        // another one, which tests do not expect.
        let running = self.edges.iter().filter(|edge| edge.is_running()).count();
        let (shards, mut up) = (running * usize::from(self.layout.shards), BTreeSet::new());
        process.wait_ready(&self.logs, start, START_PATIENCE, |event| {
            if let Some((address, shard)) = Self::edge_up(event) {
                up.insert((address.to_owned(), shard));
            }
            // If no edge of this run is running, the agent has tried to connect: to an edge of another run, or without success.
            let looked = matches!(event.name(), "edge_up" | "edge_down");
            up.len() >= shards && (running > 0 || looked)
        })?;
        Ok(process)
    }

    /// The file of the recorders' key, made as an operator makes it: a recorder's machine never has the secret.
    fn keeper_key(&self) -> anyhow::Result<PathBuf> {
        let path = self.directory.path().join("keeper-key");
        if path.exists() {
            return Ok(path);
        }
        let mut command = Command::new(&self.layout.program);
        command.args(["config", "keeper-key"]).arg(self.directory.path().join("secret"));
        let made = command.output()?;
        anyhow::ensure!(made.status.success(), "no keeper key: {}", String::from_utf8_lossy(&made.stderr));
        self.directory.write_private("keeper-key", made.stdout)
    }

    /// Starts a recorder for all edges, in place of a running one, and waits until every running edge is connected to it. `extra`
    /// contains additional fields before the first table of its configuration, `tables` additional tables.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_recorder(&mut self, extra: &str, tables: &str) -> anyhow::Result<()> {
        self.recorder = None;
        let admin = free_address()?;
        let edges: Vec<String> = self.edge_addresses().iter().map(SocketAddr::to_string).collect();
        let key = self.keeper_key()?.display().to_string();
        let mut text = format!("name = \"lab\"\nedges = {edges:?}\nkeeper_key_file = {key:?}\n{extra}\n");
        writeln!(
            text,
            "[admin]\nlisten = \"{admin}\"\n[log]\nformat = \"json\"\nlevel = \"debug\"\n{tables}"
        )?;
        if self.layout.encrypted {
            let token = self.directory.path().join("token").display().to_string();
            writeln!(text, "[security]\ntoken_file = {token:?}")?;
        }
        let config = self.directory.write("recorder.toml", text)?;
        let mut command = Command::new(&self.layout.program);
        command.arg("recorder").arg("--config").arg(config);
        let errors = self.directory.path().join("recorder.stderr");
        let start = self.logs.end();
        let process = TestProcess::start(RECORDER, &mut command, &self.logs, &errors)?;
        let shards =
            self.edges.iter().filter(|edge| edge.is_running()).count() * usize::from(self.layout.shards);
        let mut up = 0;
        process.wait_ready(&self.logs, start, START_PATIENCE, |event| {
            up += usize::from(event.name() == "edge_up");
            up >= shards
        })?;
        self.recorder = Some(TestRecorder { admin, process });
        Ok(())
    }

    /// The processes of the agents that are running, the client's first.
    pub fn agents(&mut self) -> impl Iterator<Item = &mut TestProcess> {
        self.client.iter_mut().chain(self.server.iter_mut())
    }

    /// The index of the edge that one side's agent knows under this address.
    #[must_use]
    pub fn edge_at(&self, side: AgentSide, address: &str) -> Option<usize> {
        self.seen[side as usize].iter().position(|seen| seen == address)
    }

    /// The address under which one side's agent knows an edge; empty if the agent has no such edge.
    #[must_use]
    pub fn address_for(&self, side: AgentSide, index: usize) -> String {
        self.seen[side as usize].get(index).cloned().unwrap_or_default()
    }
}

fn blake3_hex(secret: &str) -> String {
    blake3::derive_key("marram lab token", secret.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
