//! What a crowd's clients talk to: nginx directly, behind HAProxy, or behind two edges with two agents.

use super::clients::{Connections, Crowd, Target, float};
use crate::ballast::counter;
use crate::baseline::{Chain, require};
use crate::forward::{BARE, PROTECTED, manifests};
use crate::nginx::Nginx;
use crate::{Plan, memory};
use anyhow::{Context, ensure};
use marram_cluster::{LogCollector, TempDir, TestCluster, TestProcess};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The server, as the apps' manifests name it.
const SERVER: &str = "web";
/// The two files, and their bytes.
const SMALL: (&str, usize) = ("/small", 1 << 10);
const LARGE: (&str, usize) = ("/large", 16 << 10);
/// How long sessions may take to be where they are expected.
const PATIENCE: Duration = Duration::from_secs(30);
/// Descriptors that a process needs besides one for each client.
const DESCRIPTORS_BESIDES: u64 = 1_000;

/// Which of the files.
#[derive(Clone, Copy)]
pub(super) enum File {
    /// 1 KiB.
    Small,
    /// 16 KiB.
    Large,
}

/// nginx, and HAProxy before it.
pub(super) struct Servers {
    pub(super) nginx: Nginx,
    pub(super) proxy: Chain,
    small: Arc<[u8]>,
    large: Arc<[u8]>,
    _place: TempDir,
}

impl Servers {
    /// # Errors
    /// If one of the programs is not installed or does not start.
    pub(super) fn start() -> anyhow::Result<Self> {
        let (nginx, place) = (require("nginx", "nginx")?, TempDir::new("bench-crowd-www")?);
        let file = |(path, bytes): (&str, usize)| {
            // Text in which a byte that is lost or moved is noticed.
            let text: String = (0..bytes / 8).map(|number| format!("{number:07}\n")).collect();
            place.write(&format!("www{path}"), &text)?;
            anyhow::Ok(text.into_bytes().into())
        };
        let (small, large) = (file(SMALL)?, file(LARGE)?);
        // A request's query is its number, which the answer repeats: see `answer`.
        let nginx = Nginx::files(&nginx, &place, "add_header X-Asked $args;")?;
        let proxy = Chain::start(1, nginx.address, &place, &LogCollector::default())?;
        Ok(Self { nginx, proxy, small, large, _place: place })
    }

    /// A file behind this address.
    pub(super) fn target(&self, address: SocketAddr, file: File) -> Target {
        let (path, bytes) = match file {
            File::Small => (SMALL.0, &self.small),
            File::Large => (LARGE.0, &self.large),
        };
        Target { address, path, file: Arc::clone(bytes) }
    }
}

/// Where sessions begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// Both edges run from the start.
    Anywhere,
    /// The second edge starts later, so that the first one has all sessions.
    OnFirstEdge,
}

/// Two edges with two agents before nginx.
pub(super) struct Scene {
    pub(super) cluster: TestCluster,
    /// The addresses for clients of the protected app, and of the other one.
    pub(super) addresses: [SocketAddr; 2],
}

impl Scene {
    /// Starts edges that can have `clients` cells each. `agent_tables` are added to the configuration of both agents.
    pub(super) fn start(
        plan: &Plan,
        servers: &Servers,
        clients: usize,
        begin: Begin,
        agent_tables: &str,
    ) -> anyhow::Result<Self> {
        let mut layout = plan.layout("bench-crowd", 2, agent_tables);
        // A slot of a cell that ended is cleaned a little later.
        writeln!(layout.edge_tables, "[limits]\ncells = {}", (clients + clients / 4).max(4_096))?;
        let mut cluster = TestCluster::new(layout, |place| manifests(plan, place, SERVER))?;
        // As for users: with a line for each session, the agents would be slower.
        cluster.agent_level = "info";
        match begin {
            Begin::Anywhere => cluster.start_edges("")?,
            Begin::OnFirstEdge => cluster.start_edge(0, "")?,
        }
        let edges = cluster.edge_addresses();
        cluster.start_server_agent(&edges, &[(SERVER, servers.nginx.address)])?;
        let listens = cluster.start_client_agent(&edges, &[PROTECTED, BARE])?;
        let addresses = [listens[0].address, listens[1].address];
        Ok(Self { cluster, addresses })
    }

    /// Connects clients to the protected app, through the first edge alone; then the second edge starts.
    pub(super) fn connect(&mut self, servers: &Servers, file: File, clients: usize) -> anyhow::Result<Crowd> {
        let target = servers.target(self.addresses[0], file);
        let crowd = Crowd::connect(target, Connections::Keep, clients).with_context(|| self.said())?;
        self.cluster.respawn(1)?;
        Ok(crowd)
    }

    /// The edge that owns the most sessions, and its share of them: all, unless a busy machine let the agents suspect an edge that
    /// was only slow.
    ///
    /// # Errors
    /// If the edges do not own all of them in time.
    pub(super) fn owner(&self, sessions: usize) -> anyhow::Result<(usize, f64)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut counts = Vec::new();
            for edge in &self.cluster.edges {
                counts.push(counter(&edge.client()?, "sessions")?.unwrap_or(0));
            }
            if counts.iter().sum::<u64>() >= sessions as u64 {
                let most = counts.iter().enumerate().max_by_key(|(_, count)| **count);
                let (index, most) = most.context("there are edges")?;
                return Ok((index, (float(*most) / float(sessions as u64)).min(1.0)));
            }
            ensure!(Instant::now() < deadline, "the edges own {counts:?} sessions, not {sessions}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no edge that runs has a session.
    pub(super) fn wait_until_empty(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for edge in self.cluster.edges.iter().filter(|edge| edge.is_running()) {
            let client = edge.client()?;
            while let Some(left @ 1..) = counter(&client, "sessions")? {
                ensure!(Instant::now() < deadline, "{left} sessions remain whose clients are gone");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// The processes of the client's agent and of the server's.
    pub(super) fn agents(&mut self) -> anyhow::Result<[u32; 2]> {
        let agents: Vec<u32> = self.cluster.agents().map(|agent: &mut TestProcess| agent.id()).collect();
        agents.try_into().map_err(|_| anyhow::anyhow!("there are two agents"))
    }

    /// The last lines of all processes, for errors.
    pub(super) fn said(&self) -> String {
        format!("the last lines of edges and agents:\n{}", self.cluster.logs.tail(10))
    }
}

/// Resident sets of processes, in MiB: now, and the largest so far.
pub(super) fn resident_mib(process: u32) -> (f64, f64) {
    let (now, most) = memory::resident_kib(process);
    (float(now) / 1024.0, float(most) / 1024.0)
}

/// Raises the limit of descriptors, of this process and those that it starts, to the hard limit.
///
/// # Errors
/// If that is not enough for so many clients in one process.
pub(super) fn raise_descriptor_limit(clients: usize) -> anyhow::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("cannot raise the limit of descriptors")?;
    let needed = clients as u64 + DESCRIPTORS_BESIDES;
    ensure!(
        maximum.is_none_or(|maximum| maximum >= needed),
        "{clients} clients need {needed} descriptors, and the hard limit is {}: raise it (`ulimit -Hn`)",
        maximum.unwrap_or_default()
    );
    Ok(())
}
