//! The machines for one policy: three edges that run cells, a fourth with a gate only, agents beside a client and a server; and
//! what operations need between faults.
//!
//! ```text
//! namespaces:  A  B  C (cells)    D (gate only)      the benchmark's own: agents, client, server, recorder
//! each edge's machine has a link, in some runs a disk of 64 MiB and a clock that is ahead
//! ```
//! Everything that a person would do between two faults is here: start edges again, wait until
//! wires are up and until the session is as well protected as before. Waiting polls the admin API
//! and reads log events, as an operator would.

use super::axes::{Client, Fault, Policy};
use super::talk::{Server, Talk};
use crate::{Plan, standby};
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient as Admin;
use marram_cluster::{AgentSide, LogEvent, Namespace, TempDir, TestCluster, TestStore, free_address};
use marram_testbed::Link;
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
/// Number of edges that run cells; the edge with the gate has the next index.
pub(super) const EDGES: usize = 3;
const GATE: usize = EDGES;
/// How long any one step between faults may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two polls, so that the polled edge or recorder has time for its sessions.
const PAUSE: Duration = Duration::from_millis(2);

/// The capabilities of this machine beyond network namespaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Small disks, in mount namespaces.
    disks: bool,
    /// Separate clocks, in time namespaces.
    clocks: bool,
    /// Links with a limited rate.
    slow: bool,
}

impl Means {
    /// Detects the capabilities; an error says why no scene is possible at all.
    ///
    /// Each capability is tried, since rights and kernel configurations cannot be asked for in one
    /// place.
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

    /// Why this machine cannot make a fault.
    pub(super) fn missing(self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::FullDisk if !self.disks => Some("needs the right to mount in a namespace"),
            Fault::Clock if !self.clocks => Some("needs time namespaces (CONFIG_TIME_NS)"),
            Fault::Slow if !self.slow => Some("needs `tc` with a token bucket (tbf)"),
            _ => None,
        }
    }

    /// Writes a program that runs `marram`: edges and recorders with a disk of 64 MiB, and edges with the clock that is set for
    /// them.
    ///
    /// The program is a shell script, because a mount and a time namespace must exist before the
    /// edge starts. It finds the disk beside the configuration file, which is its third argument.
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

/// The machines, and the server of all sessions.
pub(super) struct Scene {
    pub(super) cluster: TestCluster,
    policy: Policy,
    pub(super) server: Server,
    /// The addresses for clients: of the agent beside them, and of the gate. Index 0 for
    /// `Client::Agent`, 1 for `Client::Gate`.
    listens: [SocketAddr; 2],
    /// The coordinator's store, of policies for which it decides.
    pub(super) store: Option<TestStore>,
    /// The script; used until the last process has started.
    _tools: TempDir,
}

/// The session of a conversation.
pub(super) struct Session {
    client: Client,
    /// As its agent or gate reports it.
    pub(super) id: String,
    /// As edges list it: where clients share a cell, that has a name of its own.
    listed: String,
}

impl Scene {
    pub(super) fn new(plan: &Plan, means: Means, policy: Policy) -> anyhow::Result<Self> {
        let tools = TempDir::new("bench-faults-tools")?;
        let mut layout = plan.layout("bench-faults", EDGES + 1, "");
        layout.program = means.program(&tools, &plan.program)?;
        (layout.encrypted, layout.namespaces) = (true, true);
        // So that gates report as agents do.
        layout.edge_tables = "level = \"debug\"\n".into();
        let server =
            if policy == Policy::Shared { String::new() } else { format!("server = \"{SERVER}\"\n") };
        let rest = format!("{server}{}\n[quotas]\nmemory = \"64MiB\"\n", policy.manifest());
        let mut cluster =
            TestCluster::new(layout, |place| Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?]))?;
        cluster.edges[GATE].run_no_apps();
        let gate = cluster.edges[GATE].address().ip();
        let listens = [free_address()?, SocketAddr::new(gate, free_address()?.port())];
        let store = if policy.is_epoch() {
            let token = cluster.directory.path().join("token");
            Some(TestStore::start_for_all(token, &plan.program, &cluster.logs)?)
        } else {
            None
        };
        let mut scene = Self { cluster, policy, server: Server::default(), listens, store, _tools: tools };
        scene.start()?;
        Ok(scene)
    }

    /// Edges first, then agents, and the gate last, when its edges are there.
    fn start(&mut self) -> anyhow::Result<()> {
        for edge in &self.cluster.edges {
            edge.namespace().map(Link::of).context("each edge has a namespace")?.reach_others()?;
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

    /// Addresses of the edges that run cells.
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
        edges.iter().try_for_each(|edge| {
            self.cluster.edges[*edge].wait_ready(&self.cluster.directory, &self.cluster.logs, start)
        })
    }

    /// Additional fields of an edge's configuration.
    fn extra(&self, edge: usize) -> String {
        let edges: Vec<String> = self.cell_edges().iter().map(ToString::to_string).collect();
        if edge == GATE {
            format!(
                "gate = [{{ listen = \"{}\", app = \"{APP}\" }}]\ngates = {{ edges = {edges:?} }}",
                self.listens[1]
            )
        } else {
            let gateway = self.cluster.edges[edge].namespace().map(Namespace::gateway);
            let store = self.store.as_ref().zip(gateway).map(|(store, gateway)| store.field_at(gateway));
            format!("standby = {{ edges = {edges:?} }}\n{}", store.unwrap_or_default())
        }
    }

    /// Kills all processes on the gate's machine.
    pub(super) fn kill_gate(&mut self) {
        self.cluster.edges[GATE].kill();
    }

    /// Starts the gate again.
    pub(super) fn restore_gate(&mut self) -> anyhow::Result<()> {
        self.start_edges(&[GATE])
    }

    /// The machine of an edge.
    pub(super) fn machine(&self, edge: usize) -> anyhow::Result<Link<'_>> {
        self.cluster.edges[edge].namespace().map(Link::of).context("each edge has a namespace")
    }

    /// Name of the process that reports the state of a client's sessions: its agent or its gate.
    fn reporter(&self, client: Client) -> String {
        match client {
            Client::Agent => AgentSide::Client.agent().to_owned(),
            Client::Gate => self.cluster.edges[GATE].who(),
        }
    }

    /// Begins a conversation.
    ///
    /// Every agent and gate has its wires before, so that the session begins as it would on a
    /// machine that has been up for a while.
    pub(super) fn talk(&self, client: Client) -> anyhow::Result<(Session, Talk)> {
        self.wait_for_wires()?;
        let (start, who) = (self.cluster.logs.end(), self.reporter(client));
        let own = self.listens[client as usize];
        let other =
            self.listens.iter().find(|listen| **listen != own).filter(|_| self.policy == Policy::Shared);
        let talk = Talk::start(own, other.copied())?;
        let owned = |event: &LogEvent| *event.who == *who && event.name() == "owned";
        let (_, event) =
            self.cluster.logs.wait(start, PATIENCE, owned).with_context(|| {
                format!("no session began; the last lines:\n{}", self.cluster.logs.tail(20))
            })?;
        let id = event.text("session").to_owned();
        let listed = if self.policy == Policy::Shared { self.shared_cell()? } else { id.clone() };
        Ok((Session { client, id, listed }, talk))
    }

    /// The name of the only cell: that of the highest generation, if some edges have not noticed yet that they run it no more.
    fn shared_cell(&self) -> anyhow::Result<String> {
        let mut newest = None;
        for edge in &self.cluster.edges[..EDGES] {
            let list = sessions_of(&edge.client()?).unwrap_or_default();
            let rows = list["sessions"].as_array().into_iter().flatten();
            let running = rows.filter(|row| row["phase"] == "running" && row["cell"] == "shared");
            newest = running
                .map(|row| (generation(row), row["session"].as_str().map(str::to_owned)))
                .fold(newest, |newest, row| newest.max(Some(row)));
        }
        newest.and_then(|(_, name)| name).context("no edge lists the cell that clients share")
    }

    /// Whether an event is from the agent or gate of this session, and about it.
    fn is_about(&self, session: &Session, name: &str, event: &LogEvent) -> bool {
        *event.who == *self.reporter(session.client)
            && event.name() == name
            && event.text("session") == session.id
    }

    /// The edge that owns a session: of the edges that list it as running, the one with the highest generation, if the client's
    /// agent or gate reports the same edge.
    ///
    /// `None` while they disagree: a session that moves is listed by two edges, or by none.
    fn owner(&self, session: &Session) -> anyhow::Result<Option<usize>> {
        let owned = self.cluster.logs.last(|event| self.is_about(session, "owned", event));
        let owned = owned.context("the session has an owner")?;
        let mut newest = None;
        for (index, edge) in self.cluster.edges[..EDGES].iter().enumerate() {
            // An edge that does not answer now is asked again later.
            let list = sessions_of(&edge.client()?).unwrap_or_default();
            if let Some(row) = row_of(&list, session).filter(|row| row["phase"] == "running") {
                newest = newest.max(Some((generation(row), index)));
            }
        }
        let address = |index: usize| self.cluster.edges[index].address().to_string();
        Ok(newest.map(|(_, index)| index).filter(|index| address(*index) == owned.text("edge")))
    }

    /// Waits until the session is reported to have no owner, or to have a new one, if the standby took over before that report.
    pub(super) fn wait_for_orphan(&self, session: &Session, start: usize) -> anyhow::Result<()> {
        let found = self.cluster.logs.wait(start, PATIENCE, |event| {
            self.is_about(session, "orphaned", event) || self.is_about(session, "owned", event)
        });
        found.map(drop).context("a session whose edge is killed is without an owner")
    }

    /// Whether it had no owner between `start` and `at`.
    pub(super) fn is_orphan(&self, session: &Session, start: usize, at: Instant) -> bool {
        self.cluster.logs.count(start, |event| event.at <= at && self.is_about(session, "owned", event)) == 0
    }

    /// Waits until every agent and gate has a wire to every edge that runs cells.
    ///
    /// From the whole log, since a wire that is up and was never down is reported only once.
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

    /// Waits until the last fault has no effect any more: every wire is up, and the standby or the recorder has the session.
    /// Returns its owner.
    pub(super) fn wait_until_protected(&self, session: &Session) -> anyhow::Result<usize> {
        self.wait_for_wires()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The session may still move: each round checks its current owner.
            let (what, list) = match self.owner(session)? {
                None => ("its ends and the edges do not agree on its owner", Value::Null),
                Some(owner) => match self.missing(session, owner)? {
                    None => return Ok(owner),
                    Some(missing) => missing,
                },
            };
            anyhow::ensure!(
                Instant::now() < deadline,
                "{what}: {}\n{list}; the last lines about it:\n{}",
                session.id,
                self.cluster.logs.tail_of(20, |event| event.text("session") == session.id)
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// The protection that a session of this owner still lacks, and the list that shows it. A
    /// standby is ready if the owner lists it so; a recorder, if it names the
    /// owner.
    fn missing(&self, session: &Session, owner: usize) -> anyhow::Result<Option<(&'static str, Value)>> {
        if let Some(kind) = self.policy.keeper() {
            let list = sessions_of(&self.cluster.edges[owner].client()?)?;
            let is_backed = |row: &Value| !self.policy.is_epoch() || row["backup"] == "backed";
            if !row_of(&list, session).is_some_and(|row| standby::is_kept(row, kind) && is_backed(row)) {
                return Ok(Some(("no edge stands by", list)));
            }
        }
        let list = sessions_of(&self.cluster.edges[owner].client()?)?;
        if !row_of(&list, session).is_some_and(|row| row["moving"].is_null()) {
            return Ok(Some(("it is still being moved", list)));
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

    /// The edge that would take over the session if its owner died: the standby; else one of the others, in turn.
    ///
    /// `round` selects among the others, so that each of them is met over several combinations.
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

    /// The edge that a session is moved to: one that is not its standby or backup, since that one needs no copy.
    fn target_of_move(&self, session: &Session, owner: usize, round: usize) -> anyhow::Result<usize> {
        let next = self.next_owner(session, owner, round)?;
        let other = (0..EDGES).find(|edge| ![owner, next].contains(edge));
        other.context("there is a third edge")
    }

    /// Begins to move a session from its owner. It is asked for until it is accepted: edges that have just started dial each other, and
    /// on a busy machine the session may have left that edge just now.
    pub(super) fn begin_move(
        &self,
        session: &Session,
        mut owner: usize,
        round: usize,
    ) -> anyhow::Result<Begun> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_move(session, owner, round) {
                Ok(begun) => return Ok(begun),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
            }
            owner = self.owner(session)?.unwrap_or(owner);
        }
    }

    fn try_move(&self, session: &Session, from: usize, round: usize) -> anyhow::Result<Begun> {
        let to = self.target_of_move(session, from, round)?;
        let name = self.cluster.edges[to].client()?.json(Method::GET, "/v1/edge")?;
        let name = name["edge"].as_str().context("an edge has a name")?;
        let begun =
            Begun { from, to, logs: self.cluster.logs.end(), sent: self.machine(from)?.sent_bytes()? };
        let path = format!("/v1/sessions/{}/move/{name}", session.listed);
        self.cluster.edges[from].client()?.json(Method::POST, &path)?;
        Ok(begun)
    }
}

/// Where a move began.
pub(super) struct Begun {
    /// The owner at that time.
    pub(super) from: usize,
    /// The edge to which the session is moved.
    pub(super) to: usize,
    /// The end of the collected logs.
    pub(super) logs: usize,
    /// The bytes that the owner's machine had sent.
    pub(super) sent: u64,
}

/// The sessions that an edge or a recorder lists.
fn sessions_of(client: &Admin) -> anyhow::Result<Value> {
    Ok(client.json(Method::GET, "/v1/sessions")?)
}

fn row_of<'a>(list: &'a Value, session: &Session) -> Option<&'a Value> {
    list["sessions"].as_array()?.iter().find(|row| row["session"] == session.listed)
}

/// The session's generation, which grows with each move.
fn generation(row: &Value) -> Option<u64> {
    row["generation"].as_str()?.split('.').next()?.parse().ok()
}
