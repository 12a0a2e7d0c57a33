//! Machines for one policy: three edges that run cells, a fourth with a gate only, agents beside a client and a server, and
//! what is asked of them between faults.

use super::axes::{Client, Fault, Policy};
use super::talk::{Server, Talk};
use crate::admin::client::ApiClient as Admin;
use crate::bench::Plan;
use crate::harness::{AgentSide, LogEvent, Namespace, TempDir, TestCluster, free_address};
use anyhow::Context;
use hyper::Method;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const APP: &str = "ballast";
const SERVER: &str = "echo";
/// Edges that run cells; the one with the gate is behind them.
pub(super) const EDGES: usize = 3;
const GATE: usize = EDGES;
/// How long any one thing between faults may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions, so that whoever is asked has time for its sessions.
const PAUSE: Duration = Duration::from_millis(2);

/// What this machine allows beyond network namespaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Small disks, in mount namespaces.
    disks: bool,
    /// Clocks of their own, in time namespaces.
    clocks: bool,
    /// A link that passes so much a second.
    slow: bool,
}

impl Means {
    /// Looks; an error says why there can be no scene at all.
    pub(super) fn find() -> Result<Self, &'static str> {
        if !Namespace::possible() {
            return Err("needs the right to make network namespaces, and `ip`");
        }
        let can = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
        };
        let slow = "tc qdisc add dev lo root tbf rate 1mbit burst 16kb latency 50ms";
        let mounts = "mount -t tmpfs tmpfs /tmp";
        Ok(Self {
            disks: can("unshare", &["-m", "sh", "-c", mounts]),
            clocks: can("unshare", &["-T", "--monotonic", "1000", "--boottime", "1000", "true"]),
            slow: can("unshare", &["-n", "sh", "-c", slow]),
        })
    }

    /// Why a fault cannot be made here.
    pub(super) fn missing(self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::FullDisk if !self.disks => Some("needs the right to mount in a namespace"),
            Fault::Clock if !self.clocks => Some("needs time namespaces (CONFIG_TIME_NS)"),
            Fault::Slow if !self.slow => Some("needs `tc` with a token bucket (tbf)"),
            _ => None,
        }
    }

    /// A program that runs `marram`, edges and recorders with a disk of 64 MiB, and edges with the clock that is set for them.
    fn program(self, place: &TempDir, marram: &Path) -> anyhow::Result<PathBuf> {
        let mut script = String::from("#!/bin/sh\ndirectory=$(dirname \"$3\")\n");
        writeln!(script, "case $1 in edge) disk=$directory/state ;; recorder) disk=$directory/kept ;;")?;
        writeln!(script, "*) exec {} \"$@\" ;; esac", marram.display())?;
        if self.clocks {
            script += "ahead=$(cat \"${directory%-*}.clock\" 2>/dev/null || echo 0)\n";
            script += "clock=\"-T --monotonic $ahead --boottime $ahead\"\n";
        }
        if self.disks {
            script += "mkdir -p \"$disk\" || exit 1\n";
            let mounting = "mount -t tmpfs -o size=64m tmpfs \"$0\" && exec \"$@\"";
            writeln!(
                script,
                "exec unshare -m $clock sh -c '{mounting}' \"$disk\" {} \"$@\"",
                marram.display()
            )?;
        } else {
            writeln!(script, "exec ${{clock:+unshare}} $clock {} \"$@\"", marram.display())?;
        }
        let path = place.write("marram", script)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

/// Machines, and a server that all sessions talk to.
pub(super) struct Scene {
    pub(super) cluster: TestCluster,
    policy: Policy,
    pub(super) server: Server,
    /// Where clients connect: to an agent beside them, to the gate.
    listens: [SocketAddr; 2],
    _tools: TempDir,
}

/// A session that is being talked in.
pub(super) struct Session {
    client: Client,
    pub(super) id: String,
}

impl Scene {
    pub(super) fn new(plan: &Plan, means: Means, policy: Policy) -> anyhow::Result<Self> {
        let tools = TempDir::new("bench-faults-tools")?;
        let mut layout = plan.layout("bench-faults", EDGES + 1, "");
        layout.program = means.program(&tools, &plan.program)?;
        (layout.encrypted, layout.namespaces) = (true, true);
        // Gates report like agents do.
        layout.edge_tables = "level = \"debug\"\n".into();
        let rest = format!("server = \"{SERVER}\"\n{}\n[quotas]\nmemory = \"64MiB\"\n", policy.manifest());
        let mut cluster =
            TestCluster::new(layout, |place| Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?]))?;
        cluster.edges[GATE].run_no_apps();
        let gate = cluster.edges[GATE].address().ip();
        let listens = [free_address()?, SocketAddr::new(gate, free_address()?.port())];
        let mut scene = Self { cluster, policy, server: Server::default(), listens, _tools: tools };
        scene.start()?;
        Ok(scene)
    }

    fn start(&mut self) -> anyhow::Result<()> {
        for edge in &self.cluster.edges {
            edge.namespace().context("each edge has a namespace")?.reach_others()?;
        }
        self.write_clocks()?;
        self.start_edges(&[0, 1, 2])?;
        if self.policy == Policy::Recorder {
            self.cluster.start_recorder("directory = \"kept\"", "")?;
        }
        let edges = self.cell_edges();
        let server = self.server.start()?;
        self.cluster.start_server_agent(&edges, &[(SERVER, server)])?;
        let listen = format!("[[listen]]\naddress = \"{}\"\napp = \"{APP}\"\n", self.listens[0]);
        self.cluster.start_agent_with(AgentSide::Client, &edges, &listen)?;
        self.start_edges(&[GATE])
    }

    /// Where the edges that run cells are.
    fn cell_edges(&self) -> Vec<SocketAddr> {
        self.cluster.edge_addresses()[..EDGES].to_vec()
    }

    /// Starts edges, again or for the first time, and waits until they are ready.
    pub(super) fn start_edges(&mut self, edges: &[usize]) -> anyhow::Result<()> {
        let start = self.cluster.logs.end();
        for edge in edges {
            let extra = self.extra(*edge);
            self.cluster.edges[*edge].start(&self.cluster.directory, &self.cluster.logs, &extra)?;
        }
        edges.iter().try_for_each(|edge| self.cluster.edges[*edge].wait_ready(&self.cluster.logs, start))
    }

    /// Further fields of an edge's configuration.
    fn extra(&self, edge: usize) -> String {
        let edges: Vec<String> = self.cell_edges().iter().map(ToString::to_string).collect();
        if edge == GATE {
            format!(
                "gate = [{{ listen = \"{}\", app = \"{APP}\" }}]\ngates = {{ edges = {edges:?} }}",
                self.listens[1]
            )
        } else {
            format!("standby = {{ edges = {edges:?} }}")
        }
    }

    /// The gate's machine dies.
    pub(super) fn kill_gate(&mut self) {
        self.cluster.edges[GATE].kill();
    }

    /// And comes back.
    pub(super) fn restore_gate(&mut self) -> anyhow::Result<()> {
        self.start_edges(&[GATE])
    }

    /// The machine of an edge.
    pub(super) fn machine(&self, edge: usize) -> anyhow::Result<&Namespace> {
        self.cluster.edges[edge].namespace().context("each edge has a namespace")
    }

    /// Who reports what becomes of a client's sessions.
    fn reporter(&self, client: Client) -> String {
        match client {
            Client::Agent => AgentSide::Client.agent().to_owned(),
            Client::Gate => self.cluster.edges[GATE].who(),
        }
    }

    /// Begins a conversation.
    pub(super) fn talk(&self, client: Client) -> anyhow::Result<(Session, Talk)> {
        self.wait_for_wires()?;
        let (start, who) = (self.cluster.logs.end(), self.reporter(client));
        let talk = Talk::start(self.listens[client as usize])?;
        let owned = |event: &LogEvent| *event.who == *who && event.name() == "owned";
        let (_, event) =
            self.cluster.logs.wait(start, PATIENCE, owned).with_context(|| {
                format!("no session began; the last lines:\n{}", self.cluster.logs.tail(20))
            })?;
        Ok((Session { client, id: event.text("session").to_owned() }, talk))
    }

    fn is_about(&self, session: &Session, name: &str, event: &LogEvent) -> bool {
        *event.who == *self.reporter(session.client)
            && event.name() == name
            && event.text("session") == session.id
    }

    /// The edge that owns a session: the newest of those that say so, if its client's agent or gate has said so as well.
    fn owner(&self, session: &Session) -> anyhow::Result<Option<usize>> {
        let owned = self.cluster.logs.last(|event| self.is_about(session, "owned", event));
        let owned = owned.context("the session has an owner")?;
        let mut newest = None;
        for (index, edge) in self.cluster.edges[..EDGES].iter().enumerate() {
            // One that does not answer now is asked again.
            let list = sessions_of(&edge.client()?).unwrap_or_default();
            if let Some(row) = row_of(&list, session).filter(|row| row["phase"] == "running") {
                newest = newest.max(Some((generation(row), index)));
            }
        }
        let address = |index: usize| self.cluster.edges[index].address().to_string();
        Ok(newest.map(|(_, index)| index).filter(|index| address(*index) == owned.text("edge")))
    }

    /// Waits until the session is reported to have no owner; or another one, if whoever stands by was quicker than that report.
    pub(super) fn wait_for_orphan(&self, session: &Session, start: usize) -> anyhow::Result<()> {
        let found = self.cluster.logs.wait(start, PATIENCE, |event| {
            self.is_about(session, "orphaned", event) || self.is_about(session, "owned", event)
        });
        found.map(drop).context("a session whose edge is killed is without an owner")
    }

    /// Whether it has had none from then on, at some time.
    pub(super) fn is_orphan(&self, session: &Session, start: usize, at: Instant) -> bool {
        self.cluster.logs.count(start, |event| event.at <= at && self.is_about(session, "owned", event)) == 0
    }

    /// Waits until every agent and gate has a wire to every edge that runs cells.
    pub(super) fn wait_for_wires(&self) -> anyhow::Result<()> {
        let watchers = [
            AgentSide::Client.agent().to_owned(),
            AgentSide::Server.agent().to_owned(),
            self.reporter(Client::Gate),
        ];
        let edges: Vec<String> = self.cell_edges().iter().map(ToString::to_string).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (start, mut up) = (self.cluster.logs.end(), BTreeSet::new());
            let news = |event: &LogEvent| ["edge_up", "edge_down"].contains(&event.name());
            for event in self.cluster.logs.all(0, news) {
                let wire = (event.who.to_string(), event.text("edge").to_owned());
                if event.name() == "edge_up" {
                    up.insert(wire);
                } else {
                    up.remove(&wire);
                }
            }
            let all =
                watchers.iter().all(|who| edges.iter().all(|edge| up.contains(&(who.clone(), edge.clone()))));
            if all {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let found = self.cluster.logs.wait(start, left, news);
            found.with_context(|| {
                format!("wires are missing; the last lines:\n{}", self.cluster.logs.tail(20))
            })?;
        }
    }

    /// Waits until nothing of the last fault is left: every wire is there, and so is whoever keeps the session besides its
    /// ends. Returns its owner.
    pub(super) fn wait_until_protected(&self, session: &Session) -> anyhow::Result<usize> {
        self.wait_for_wires()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // It may still move: what was true of one owner is asked again of the next.
            let (what, list) = match self.owner(session)? {
                None => ("its ends and the edges do not agree on its owner", Value::Null),
                Some(owner) => match self.missing(session, owner)? {
                    None => return Ok(owner),
                    Some(missing) => missing,
                },
            };
            anyhow::ensure!(
                Instant::now() < deadline,
                "{what}: {}\n{list}; what was said of it last:\n{}",
                session.id,
                self.cluster.logs.tail_of(20, |event| event.text("session") == session.id)
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// Who does not keep a session of this owner yet, and the list that shows it.
    fn missing(&self, session: &Session, owner: usize) -> anyhow::Result<Option<(&'static str, Value)>> {
        if let Some(how) = self.policy.keeper() {
            let list = sessions_of(&self.cluster.edges[owner].client()?)?;
            let ready = |keeper: &Value| {
                keeper.as_str().is_some_and(|it| it.contains(how) && it.contains(" B behind"))
            };
            let kept = |row: &Value| row["keepers"].as_array().is_some_and(|all| all.iter().any(ready));
            if !row_of(&list, session).is_some_and(kept) {
                return Ok(Some(("nobody stands by", list)));
            }
        }
        if self.policy == Policy::Recorder {
            let recorder = self.cluster.recorder.as_ref().context("a recorder was started")?;
            let list = sessions_of(&recorder.client()?)?;
            let address = self.cluster.edges[owner].address().to_string();
            let kept = |row: &Value| row["phase"] == "recorded" && row["edge"] == address;
            if !row_of(&list, session).is_some_and(kept) {
                return Ok(Some(("the recorder does not keep it", list)));
            }
        }
        Ok(None)
    }

    /// The edge that would go on with the session if its owner died: the one that stands by; else one of the others, in turn.
    pub(super) fn next_owner(&self, session: &Session, owner: usize, round: usize) -> anyhow::Result<usize> {
        let others: Vec<usize> = (0..EDGES).filter(|edge| *edge != owner).collect();
        if self.policy.keeper().is_some() {
            for edge in &others {
                let list = sessions_of(&self.cluster.edges[*edge].client()?)?;
                if row_of(&list, session).is_some_and(|row| row["phase"] == "standing by") {
                    return Ok(*edge);
                }
            }
        }
        Ok(others[round % others.len()])
    }
}

/// What an edge or a recorder says of its sessions.
fn sessions_of(client: &Admin) -> anyhow::Result<Value> {
    Ok(client.json(Method::GET, "/v1/sessions")?)
}

fn row_of<'a>(list: &'a Value, session: &Session) -> Option<&'a Value> {
    list["sessions"].as_array()?.iter().find(|row| row["session"] == session.id)
}

/// How often it has moved.
fn generation(row: &Value) -> Option<u64> {
    row["generation"].as_str()?.split('.').next()?.parse().ok()
}
