//! Sessions whose clients are at a gate move between other edges, and away from the gate's own edge: the connections stay where they are.

use super::world::PATIENCE;
use crate::support::{
    self, marram,
    stream::{Stream, echo, until},
};
use hyper::Method;
use marram_cluster::{LogEvent, TestCluster, free_address};
use serde_json::Value;
use std::net::SocketAddr;

/// Bytes that each stream must have got back before and after each move.
const SOME: u64 = 50_000;
const STREAMS: usize = 3;
/// Edges that run cells.
const CELLS: usize = 2;
/// Moves of each session.
const ROUNDS: usize = 4;

/// Two edges that run `forward`. The one with this number, or a third one, has a gate that reaches both.
struct Gated {
    cluster: TestCluster,
    at: usize,
    gate: SocketAddr,
}

impl Gated {
    fn new(purpose: &'static str, at: usize, protect: &str) -> Self {
        let layout = support::layout(purpose, |layout| {
            layout.edges = CELLS.max(at + 1);
            layout.edge_tables = support::UNSUSPECTING.into();
            layout.agent_tables = support::UNSUSPECTING.into();
        });
        let manifest = format!("server = \"web\"\nprotect = {protect:?}\n");
        let apps = |place: &_| Ok(vec![support::cells().manifest(place, "forward", "forward", &manifest)?]);
        let mut cluster = TestCluster::new(layout, apps).unwrap();
        let cells = cluster.edge_addresses()[..CELLS].to_vec();
        let names: Vec<String> = cells.iter().map(SocketAddr::to_string).collect();
        let gate = free_address().unwrap();
        let start = cluster.logs.end();
        let fields = |edge: usize| {
            let standby = format!("standby = {{ edges = {names:?} }}\n");
            let gates = format!(
                "gate = [{{ listen = \"{gate}\", app = \"forward\" }}]\ngates = {{ edges = {names:?} }}\n"
            );
            if edge == at { standby + &gates } else { standby }
        };
        (0..CELLS).for_each(|edge| cluster.start_edge(edge, &fields(edge)).unwrap());
        cluster.start_server_agent(&cells, &[("web", echo())]).unwrap();
        if at >= CELLS {
            cluster.edges[at].run_no_apps();
            cluster.start_edge(at, &fields(at)).unwrap();
        }
        let who = cluster.edges[at].who();
        let open = |event: &LogEvent| *event.who == *who && event.text("message") == "listening for clients";
        cluster.logs.wait(start, PATIENCE, open).expect("the gate opens");
        Self { cluster, at, gate }
    }

    /// The sessions that run on an edge.
    fn running(&self, edge: usize) -> Vec<Value> {
        let list = self.cluster.edges[edge].client().unwrap().json(Method::GET, "/v1/sessions").unwrap();
        let rows = list["sessions"].as_array().unwrap().iter();
        rows.filter(|row| row["phase"] == "running").cloned().collect()
    }

    /// Runs a command for these edges. Returns what it prints, if it succeeds.
    fn marram(&self, arguments: &[&str], edges: &[usize]) -> Result<String, String> {
        let mut command = marram();
        command.args(arguments);
        for edge in edges {
            command.arg(format!("--edge=http://{}", self.cluster.edges[*edge].admin()));
        }
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Moves all sessions of an edge to the other one, which the gate and the server's agent may not have reached yet.
    fn moves(&self, from: usize) {
        let to = self.cluster.edges[1 - from].directory();
        let mut said = String::new();
        until(
            || {
                let moved = self.marram(&["move", "--all", "--to", &to], &[from]);
                said = moved.err().unwrap_or_default();
                self.running(from).is_empty().then_some(())
            },
            || format!("they stay: {}", self.cluster.logs.tail(40)),
        );
        assert_eq!(self.running(1 - from).len(), STREAMS, "{said}");
    }

    /// What `marram inspect` says of a session, asking these edges.
    fn inspect(&self, session: &str, edges: &[usize]) -> (Value, String) {
        let json = self.marram(&["inspect", session, "--json"], edges).unwrap();
        let value: Value = serde_json::from_str(&json).unwrap();
        let value = if value.is_array() { value[0].clone() } else { value };
        (value, self.marram(&["inspect", session], edges).unwrap())
    }

    /// The cell's edge and that of the gate are shown, wherever the session runs.
    fn shown(&self, runs_at: usize) {
        let [cell, gate] = [runs_at, self.at].map(|edge| self.cluster.edges[edge].directory());
        for row in self.running(runs_at) {
            let session = row["session"].as_str().unwrap();
            let (value, text) = self.inspect(session, &(0..self.cluster.edges.len()).collect::<Vec<_>>());
            assert_eq!((&value["edge"], &value["client_gate"]), (&cell.clone().into(), &gate.clone().into()));
            assert_eq!(value["client_in_gate"], runs_at == self.at, "{text}");
            let elsewhere =
                format!("the failure of the edge `{gate}`: the client's connection stays at its gate");
            assert_eq!(text.contains(&elsewhere), runs_at != self.at, "{text}");
            // An edge that was not asked cannot say so.
            if runs_at != self.at {
                assert_eq!(self.inspect(session, &[runs_at]).0["client_gate"], Value::Null);
            }
        }
    }

    /// Sessions that ended otherwise than in order, as the server's agent says.
    fn lost(&self) -> usize {
        let is_lost = |event: &LogEvent| event.name() == "ended" && event.text("code") != "Finished";
        self.cluster.logs.count(0, is_lost)
    }
}

/// Moves the sessions of all clients of the gate there and back. Each byte comes back once, over the same connections.
fn moves_behind_a_gate(purpose: &'static str, at: usize, protect: &str) {
    let gated = Gated::new(purpose, at, protect);
    let streams: Vec<Stream> = (0..STREAMS).map(|_| Stream::start(gated.gate)).collect();
    streams.iter().for_each(|stream| stream.hear(SOME));
    // Where a session begins, its id says.
    if !gated.running(1).is_empty() {
        gated.moves(1);
    }
    for round in 0..ROUNDS {
        gated.shown(round % 2);
        gated.moves(round % 2);
        streams.iter().for_each(|stream| stream.hear(SOME));
    }
    gated.shown(ROUNDS % 2);
    assert_eq!(gated.lost(), 0, "no session ended");
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn clients_behind_a_gate_of_a_third_edge_notice_no_move() {
    for (purpose, protect) in [("moves-gate", "endpoints"), ("moves-gate-bare", "none")] {
        moves_behind_a_gate(purpose, CELLS, protect);
    }
}

#[test]
fn connections_stay_at_the_gate_of_the_edge_from_which_their_cells_move() {
    moves_behind_a_gate("moves-gate-own", 0, "none");
}
