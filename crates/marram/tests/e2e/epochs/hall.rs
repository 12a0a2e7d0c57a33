//! One cell that many clients of all edges share, and which has a backup. Its edge is killed, or stopped and woken; the clients do not
//! notice, and all hear the same.

use super::{
    guests::{Guest, finish},
    world::{Seen, World, layout},
};
use crate::support::{self, marram, stream::until};
use marram_cluster::{AgentSide, free_address};
use serde_json::Value;
use std::net::SocketAddr;

/// How a hall is protected: with epochs of this table, or with a standby.
pub(super) fn epochs(table: &str) -> String {
    format!("protect = \"epoch\"\n[epoch]\n{table}\n")
}

fn standby(kind: &str) -> String {
    format!("protect = \"standby\"\nstandby = \"{kind}\"\n")
}

/// Pieces that every guest must have heard of before and after each fault.
const SOME: u64 = 5;

/// Edges with the hall, and the guests of two agents.
pub(super) struct Hall {
    pub(super) world: World,
    pub(super) agents: [SocketAddr; 2],
    pub(super) guests: Vec<Guest>,
}

impl Hall {
    pub(super) fn new(purpose: &'static str, timeouts: &str, protection: &str) -> Self {
        let rest = format!("cell = \"shared\"\n{protection}");
        let mut world = World::with_app(layout(purpose, 3, timeouts), 3, ("hall", &rest));
        let agents = [(); 2].map(|()| free_address().unwrap());
        let listen = |at: &SocketAddr| format!("[[listen]]\naddress = \"{at}\"\napp = \"hall\"\n");
        let edges = world.cluster.edge_addresses();
        let [first, second] = agents.each_ref().map(listen);
        world.cluster.start_agent_with(AgentSide::Client, &edges, &first).unwrap();
        // An agent of servers takes clients, too.
        let second = format!("{second}[servers]\nnone = \"127.0.0.1:9\"\n");
        world.cluster.start_agent_with(AgentSide::Server, &edges, &second).unwrap();
        Self { world, agents, guests: Vec::new() }
    }

    /// As many guests more, at both agents.
    pub(super) fn join(&mut self, count: usize) {
        for _ in 0..count {
            let seed = self.guests.len();
            self.guests.push(Guest::start(self.agents[seed % 2], seed as u64));
        }
    }

    /// Waits until all guests have heard of more that they said.
    pub(super) fn hear(&self) {
        let why =
            || format!("{:?}\n{}", self.world.seen_by(&self.world.all()), self.world.cluster.logs.tail(400));
        self.guests.iter().for_each(|guest| guest.hear(SOME, why));
    }

    /// The cell, once it has a backup.
    pub(super) fn backed(&self) -> Seen {
        self.world.backed(1).into_values().next().unwrap()
    }

    fn finish(self) {
        assert_eq!(self.world.lost(0), 0, "no session ended");
        finish(self.guests);
    }
}

/// Kills the cell's edge, again and again, and starts it again. A guest more comes each time.
fn killed(purpose: &'static str, guests: usize, kills: usize, protection: &str) {
    let mut hall = Hall::new(purpose, support::UNSUSPECTING, protection);
    hall.join(guests);
    for round in 0..kills {
        hall.hear();
        let before = hall.backed();
        hall.world.cluster.edges[before.owner].kill();
        hall.join(1);
        hall.hear();
        assert_eq!(Some(hall.backed().owner), before.backup, "round {round}");
        hall.world.restart(before.owner);
    }
    hall.finish();
}

#[test]
fn a_hall_goes_on_when_its_edge_is_killed() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 6);
    killed("hall-kills", 4, kills, &epochs("every = \"1ms\""));
}

#[test]
fn a_hall_goes_on_from_pages_when_its_edge_is_killed() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 6);
    killed("hall-kills-pages", 4, kills, &epochs("every = \"1ms\"\nform = \"pages\""));
}

#[test]
fn a_hall_with_a_standby_goes_on_when_its_edge_is_killed() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 4);
    for (purpose, kind) in [("hall-warm", "warm"), ("hall-hot", "hot")] {
        killed(purpose, 4, kills, &standby(kind));
    }
}

#[test]
fn a_hall_of_fifty_goes_on_when_its_edge_is_killed() {
    killed("hall-fifty", 50, 2, &epochs("every = \"1ms\""));
}

#[test]
fn a_hall_whose_edge_was_replaced_while_it_slept_is_not_there_twice() {
    const ROUNDS: usize = 3;
    let mut hall = Hall::new("hall-sleeps", support::PATIENT, &epochs("every = \"1ms\""));
    hall.join(4);
    for _ in 0..ROUNDS {
        hall.hear();
        let sleeper = hall.backed().owner;
        hall.world.cluster.edges[sleeper].stop();
        hall.join(1);
        hall.hear();
        hall.world.cluster.edges[sleeper].wake();
        hall.hear();
        hall.backed();
    }
    hall.finish();
}

#[test]
fn a_hall_goes_on_while_the_other_edges_are_started_again() {
    let mut hall = Hall::new("hall-others", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.join(4);
    for _ in 0..2 {
        let Seen { owner, .. } = hall.backed();
        for other in (0..3).filter(|edge| *edge != owner) {
            hall.world.cluster.edges[other].kill();
            hall.hear();
            hall.world.restart(other);
            hall.join(1);
            hall.hear();
            assert_eq!(hall.backed().owner, owner);
        }
        // Then it is at one that was started again.
        hall.world.cluster.edges[owner].kill();
        hall.hear();
        hall.world.restart(owner);
    }
    hall.finish();
}

#[test]
fn clients_in_a_gate_are_in_the_hall_of_another_edge() {
    const GATE: usize = 2;
    let mut hall = Hall::new("hall-gate", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.join(2);
    hall.hear();
    hall.backed();
    // The hall is at another edge from now on, wherever it began.
    hall.world.cluster.edges[GATE].kill();
    hall.hear();
    let edges: Vec<String> = hall.world.cluster.edge_addresses().iter().map(SocketAddr::to_string).collect();
    let gate = free_address().unwrap();
    let gates =
        format!("gate = [{{ listen = \"{gate}\", app = \"hall\" }}]\ngates = {{ edges = {edges:?} }}");
    hall.world.restart_with(GATE, &gates);
    hall.guests.extend([100, 101].map(|seed| Guest::start(gate, seed)));
    hall.hear();
    let before = hall.backed();
    assert_ne!(before.owner, GATE);
    hall.world.cluster.edges[before.owner].kill();
    hall.hear();
    assert_eq!(Some(hall.backed().owner), before.backup);
    hall.finish();
}

#[test]
fn a_gate_that_reaches_its_edge_alone_is_refused_with_what_to_do() {
    let mut hall = Hall::new("hall-gate-alone", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.world.cluster.edges[2].kill();
    hall.world.cluster.edges[2].run_no_apps();
    let gate = format!("gate = [{{ listen = \"{}\", app = \"hall\" }}]", free_address().unwrap());
    hall.world.restart_with(2, &gate);
    let path = hall.world.cluster.directory.path().join("apps/hall");
    let edge = format!("http://{}", hall.world.cluster.edges[2].admin());
    let output = support::marram().arg("deploy").arg(path).args(["--edge", &edge]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("[gates] edges"), "{errors}");
}

#[test]
fn operators_see_one_cell_with_its_clients_and_end_one_of_them() {
    let mut hall = Hall::new("hall-operators", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.join(3);
    hall.hear();
    let owner = hall.backed().owner;
    let listed = hall.world.marram(owner, &["ps"]);
    assert!(listed.contains("CLIENTS") && listed.contains("hall"), "{listed}");
    let rows = hall.world.rows(owner);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&row["cell"], &row["clients"], &row["client"]), (&"shared".into(), &3.into(), &Value::Null));
    let clients = row["clients_listed"].as_array().unwrap();
    let sessions: Vec<&str> = clients.iter().map(|client| client["session"].as_str().unwrap()).collect();
    let shown = hall.world.marram(owner, &["inspect", row["session"].as_str().unwrap()]);
    assert!(sessions.iter().all(|session| shown.contains(session)), "{shown}");
    assert!(shown.contains("survives") && shown.contains("the other clients go on"), "{shown}");
    // A client is found by the first digits of its session, too, and leads to its cell.
    let shown = hall.world.marram(owner, &["inspect", &sessions[1][..12]]);
    assert!(shown.contains(row["session"].as_str().unwrap()), "{shown}");
    hall.world.marram(owner, &["kill", sessions[1]]);
    let is_over = || hall.guests.iter().position(|guest| guest.error().is_some());
    let gone = until(is_over, || hall.world.cluster.logs.tail(60));
    drop(hall.guests.remove(gone));
    hall.hear();
    until(
        || (hall.world.rows(owner)[0]["clients"] == 2).then_some(()),
        || format!("{:?}", hall.world.rows(owner)),
    );
}

#[test]
fn a_hall_goes_on_when_its_edge_is_stopped_in_order() {
    let mut hall = Hall::new("hall-stops", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.join(4);
    for _ in 0..2 {
        hall.hear();
        let before = hall.backed();
        let start = hall.world.cluster.logs.end();
        let edge = &mut hall.world.cluster.edges[before.owner];
        edge.terminate();
        edge.process().unwrap().wait().unwrap();
        edge.kill();
        let said =
            |words: &str| hall.world.cluster.logs.count(start, |event| event.text("message").contains(words));
        assert_eq!(said("stopping with"), 0, "it waits for nothing");
        let to = format!(": moved to `{}`", hall.world.name(before.backup.unwrap()));
        assert_eq!(said(&to), 1, "{}", hall.world.cluster.logs.tail(60));
        hall.join(1);
        hall.hear();
        assert_eq!(Some(hall.backed().owner), before.backup);
        hall.world.restart(before.owner);
    }
    hall.finish();
}

/// Records the cell at this edge, which may have to make its first checkpoint before. Returns the file and what the command says.
fn record(hall: &Hall, owner: usize, file: &str) -> (String, Value) {
    let session = hall.world.rows(owner)[0]["session"].as_str().unwrap().to_owned();
    let file = hall.world.cluster.directory.path().join(file).to_str().unwrap().to_owned();
    let edge = format!("http://{}", hall.world.cluster.edges[owner].admin());
    let record = || {
        let output = marram()
            .args(["record", &session, "--edge", &edge, "--output", &file, "--json"])
            .output()
            .unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    };
    let recorded: Value = until(record, || hall.world.cluster.logs.tail(60));
    (file, recorded[0].clone())
}

/// What a command prints that must succeed.
fn told(arguments: &[&str]) -> String {
    let output = marram().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The file alone runs to the state that the cell had. Returns what the command says.
fn replays(file: &str) -> Value {
    let whole: Value = serde_json::from_str(&told(&["replay", file, "--json"])).unwrap();
    assert_eq!((&whole["same"], &whole["halted"]["at"]), (&true.into(), &"end".into()), "{whole}");
    whole
}

/// The file's cell is shown at positions in the middle, with all its clients.
fn travels(file: &str, whole: &Value, clients: usize) {
    let entries = whole["entries"].as_u64().unwrap();
    let listed = told(&["replay", file, "--list"]);
    let number = |line: &str| line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let (numbers, lines): (Vec<u64>, Vec<&str>) =
        listed.lines().filter_map(|line| Some((number(line)?, line))).unzip();
    assert!(numbers.iter().copied().eq(0..entries), "{listed}");
    assert!(lines.iter().any(|line| line.contains(" sends 100 B ")), "{listed}");
    let last = entries - 1;
    let [middle, last, end] = [entries / 2, last, entries].map(|at| at.to_string());
    let dump = |until: &str| told(&["replay", file, "--until", until, "--dump", "state"]);
    let dumps = [&middle, &last, &end].map(|until| dump(until));
    let open = |dump: &String| dump.lines().filter(|line| line.ends_with(" open")).count();
    assert_eq!(open(&dumps[2]), clients, "{dumps:?}");
    assert_eq!(dump(&middle), dumps[0], "it is the same each time");
    assert!(dumps[0] != dumps[1] && dumps[1] != dumps[2], "{dumps:?}");
    let state = |until: &str| -> Value {
        serde_json::from_str::<Value>(&told(&["replay", file, "--until", until, "--json"])).unwrap()["state"]
            .clone()
    };
    assert_eq!(state(&end), whole["state"]);
    assert_ne!(state(&last), whole["state"]);
    // The order of the two does not matter, and each record changes the hall.
    let diff = told(&["replay", file, "--diff", &end, &last]);
    assert!(diff.contains(&format!("after {last} entries -> after {end} entries")), "{diff}");
    assert!(diff.contains("stage 0: 0x"), "{diff}");
    let same = told(&["replay", file, "--diff", &middle, &middle]);
    assert!(same.contains("nothing is different"), "{same}");
}

#[test]
fn a_hall_is_recorded_while_it_goes_on_and_runs_to_the_same_state() {
    let mut hall = Hall::new("hall-record", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.join(3);
    hall.hear();
    let before = hall.backed();
    let (file, _) = record(&hall, before.owner, "first.marram");
    replays(&file);
    hall.world.cluster.edges[before.owner].kill();
    hall.join(2);
    hall.hear();
    // The next owner goes on from a checkpoint with clients. It may have taken another one just before.
    let records = (0..100).map(|number| {
        let (file, recorded) = record(&hall, before.backup.unwrap(), &format!("second-{number}.marram"));
        assert_eq!(recorded["checkpoints"], 1, "{recorded}");
        (replays(&file), file)
    });
    let some = |(whole, _): &(Value, String)| whole["entries"].as_u64() >= Some(4);
    let (whole, file) = { records }.find(some).expect("a checkpoint is not taken at every message");
    travels(&file, &whole, hall.guests.len());
    hall.hear();
    hall.finish();
}

#[test]
fn operators_move_a_hall_to_any_edge_and_its_backup() {
    const ROUNDS: usize = 6;
    let mut hall = Hall::new("hall-moves", support::UNSUSPECTING, &epochs("every = \"1ms\""));
    hall.join(4);
    for round in 0..ROUNDS {
        hall.hear();
        let (cell, Seen { owner, backup, .. }) = hall.world.backed(1).into_iter().next().unwrap();
        let backup = backup.unwrap();
        let third = 3 - owner - backup;
        if round % 3 == 2 {
            hall.world.marram(owner, &["move", &cell, "--backup", "--to", &hall.world.name(third)]);
            hall.join(1);
            hall.hear();
            assert_eq!(hall.backed().backup, Some(third), "round {round}");
            continue;
        }
        let next = if round % 3 == 0 { backup } else { third };
        let to = hall.world.name(next);
        let planned = hall.world.marram(owner, &["move", &cell, "--to", &to, "--dry-run"]);
        assert!(planned.contains("would move"), "{planned}");
        hall.world.marram(owner, &["move", &cell, "--to", &to]);
        hall.join(1);
        hall.hear();
        assert_eq!(hall.backed().owner, next, "round {round}");
    }
    hall.finish();
}
