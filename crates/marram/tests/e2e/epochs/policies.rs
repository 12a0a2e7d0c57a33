//! Policies of edges: which edge is the backup of a session, and how often its epochs end.

use super::world::{World, hear, layout};
use crate::support::{
    self,
    stream::{Stream, until},
};
use serde_json::Value;

const POLICIES: &str = "
[[policy]]
name = \"near\"
app = \"forward\"
client = \"127.0.0.0/8\"
every = \"5ms\"
targets = [\"C-1\", \"B-1\"]
groups = 2

[[policy]]
name = \"rest\"
every = \"message\"
";

#[test]
fn a_policy_names_the_backup_and_the_interval_also_after_a_takeover() {
    let mut layout = layout("epoch-policy", 3, support::UNSUSPECTING);
    layout.edge_tables.push_str(POLICIES);
    let mut world = World::without_agents(layout, 3, "every = \"1ms\"");
    world.start_agents();
    // An edge that is not connected yet is the backup of none.
    let connected = || world.all().into_iter().all(|edge| world.counter(edge, "other_edges") == 2);
    until(|| connected().then_some(()), || world.cluster.logs.tail(30));
    let streams = world.streams(6);
    hear(&streams);
    let follows = |world: &World, edges: &[usize]| {
        let mut count = 0;
        for row in edges.iter().flat_map(|edge| world.rows(*edge)).filter(|row| row["phase"] == "running") {
            assert_eq!((&row["policy"], &row["every_us"]), (&"near".into(), &5_000.into()), "{row}");
            count += 1;
        }
        assert_eq!(count, 6);
    };
    follows(&world, &world.all());
    for (session, seen) in world.backed(streams.len()) {
        let backup = if seen.owner == 2 { 1 } else { 2 };
        assert_eq!(seen.backup, Some(backup), "{session} runs at edge {}", seen.owner);
    }
    // The backups know where the clients connected, so the policy holds there, too.
    let killed = if world.rows(0).iter().any(|row| row["phase"] == "running") { 0 } else { 1 };
    world.cluster.edges[killed].kill();
    hear(&streams);
    let left: Vec<usize> = world.all().into_iter().filter(|edge| *edge != killed).collect();
    world.backed(streams.len());
    follows(&world, &left);
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn a_session_whose_outputs_do_not_wait_goes_on_at_a_backup_that_is_behind() {
    const ROUNDS: usize = 4;
    let mut layout = layout("epoch-policy-ahead", 3, support::UNSUSPECTING);
    layout.edge_tables.push_str("\n[[policy]]\nname = \"ahead\"\napp = \"forward\"\nwaits = false\n");
    // What an epoch has done is at its owner alone until the epoch ends.
    let mut world = World::without_agents(layout, 3, "every = \"20ms\"\nform = \"pages\"");
    world.start_agents();
    let streams = world.streams(1);
    for round in 0..ROUNDS {
        hear(&streams);
        let seen = world.backed(streams.len()).into_values().next().unwrap();
        let (owner, backup) = (seen.owner, seen.backup.unwrap());
        assert!(world.rows(owner).iter().all(|row| row["waits"] == false), "{:?}", world.rows(owner));
        let list = world.marram(owner, &["policy", "list"]);
        assert!(list.contains("at once"), "{list}");
        world.cluster.edges[backup].stop();
        // Far more than one copy has; nothing would come back if outputs waited.
        (0..10).for_each(|_| hear(&streams));
        world.cluster.edges[owner].kill();
        world.cluster.edges[backup].wake();
        // Every byte is sent, and comes back, once.
        hear(&streams);
        let after = world.backed(streams.len()).into_values().next().unwrap();
        assert_eq!(after.owner, backup, "round {round}");
        world.restart(owner);
    }
    assert_eq!(world.lost(0), 0, "no session ended");
    streams.into_iter().for_each(Stream::finish);
}

/// Writes a list of policies into the cluster's directory.
fn file(world: &World, name: &str, text: &str) -> String {
    let path = world.cluster.directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// What an edge lists of its policies.
fn listed(world: &World, edge: usize) -> Value {
    let answers: Value = serde_json::from_str(&world.marram(edge, &["policy", "list", "--json"])).unwrap();
    answers[0].clone()
}

/// Waits until all sessions that run on an edge follow this policy with this interval, as they are listed.
fn follow(world: &World, edge: usize, (policy, every_us): (Option<&str>, u64)) {
    let seen = || {
        let rows = world.rows(edge).into_iter().filter(|row| row["phase"] == "running");
        rows.map(|row| (row["policy"].clone(), row["every_us"].clone(), row["policy_former"].clone()))
            .collect::<Vec<_>>()
    };
    let expected = (policy.into(), every_us.into(), false.into());
    let all = || seen().iter().all(|row| *row == expected).then_some(());
    until(all, || format!("{:?}\n{}", seen(), world.cluster.logs.tail(30)));
}

const FAST: &str =
    "[[policy]]\nname = \"fast\"\napp = \"forward\"\nclient = \"127.0.0.0/8\"\nevery = \"2ms\"\n";

#[test]
fn policies_change_at_one_edge_while_sessions_run_and_a_mistake_changes_nothing() {
    let world = World::new("epoch-policy-edge", 2, support::UNSUSPECTING, "every = \"10ms\"");
    let streams = world.streams(6);
    hear(&streams);
    world.backed(streams.len());
    let is_running = |row: &Value| row["phase"] == "running";
    // On a busy machine the first edge may be the other one's backup.
    let (here, there) = if world.rows(0).iter().any(is_running) { (0, 1) } else { (1, 0) };
    let (session, count) = {
        let rows: Vec<Value> = world.rows(here).into_iter().filter(is_running).collect();
        (rows[0]["session"].as_str().unwrap().to_owned(), rows.len())
    };
    let inspected = || {
        let answers: Value =
            serde_json::from_str(&world.marram(here, &["inspect", &session, "--json"])).unwrap();
        let row = if answers.is_array() { answers[0].clone() } else { answers };
        (row["policy"].clone(), row["every_us"].clone())
    };
    assert_eq!(inspected(), (Value::Null, 10_000.into()));
    assert_eq!(listed(&world, here)["unmatched"], count);
    let fast = file(&world, "fast.toml", FAST);
    let planned = world.marram(here, &["policy", "set", &fast, "--dry-run"]);
    assert!(planned.contains("fast: new"), "{planned}");
    assert_eq!((&listed(&world, here)["origin"], inspected().1), (&"configuration".into(), 10_000.into()));
    let set = world.marram(here, &["policy", "set", &fast]);
    assert!(set.contains("set at this edge") && !set.contains("former"), "{set}");
    // The answer comes when the shard follows.
    assert_eq!(inspected(), ("fast".into(), 2_000.into()));
    let list = listed(&world, here);
    assert_eq!((&list["policies"][0]["sessions"], &list["former"]), (&count.into(), &0.into()), "{list}");
    hear(&streams);
    follow(&world, there, (None, 10_000));
    // Each mistake is named as in a configuration, and nothing is changed.
    for (text, said) in [
        ("[[policy]]\nname = \"fast\"\nevery = \"1us\"\n", "wrong.toml:3"),
        ("[[policy]]\nname = \"fast\"\n", "changes nothing"),
        ("[[polices]]\nname = \"fast\"\nevery = \"1ms\"\n", "polices"),
        ("[[policy]]\nname = \"fast\"\nrebalance = 0\n", "wrong.toml:3"),
        ("[[policy]]\nname = \"fast\"\nrebalance = 1_001\n", "at most 1000 sessions"),
    ] {
        let wrong = file(&world, "wrong.toml", text);
        let refused = world.refused(here, &["policy", "set", &wrong]);
        assert!(refused.contains(said), "{refused}");
        assert_eq!(listed(&world, here), list);
    }
    let refused = world.refused(here, &["policy", "remove", "slow"]);
    assert!(refused.contains("no policy `slow`"), "{refused}");
    world.marram(here, &["policy", "remove", "fast"]);
    follow(&world, here, (None, 10_000));
    world.marram(here, &["policy", "reset"]);
    assert_eq!(listed(&world, here)["origin"], "configuration");
    hear(&streams);
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn the_coordinator_hands_policies_on_to_all_edges_and_to_those_that_start_later() {
    let mut world = World::new("epoch-policy-domain", 2, support::UNSUSPECTING, "every = \"10ms\"");
    let streams = world.streams(6);
    hear(&streams);
    world.backed(streams.len());
    let fast = file(&world, "fast.toml", FAST);
    let planned = world.marram(0, &["policy", "set", &fast, "--domain", "--dry-run"]);
    assert!(planned.contains("fast: new"), "{planned}");
    let set = world.marram(0, &["policy", "set", &fast, "--domain"]);
    assert!(set.contains("the domain has 1 policy"), "{set}");
    let comes_from = |world: &World, edge: usize, origin: &str| {
        let is_it = || (listed(world, edge)["origin"] == origin).then_some(());
        until(is_it, || format!("{}\n{}", listed(world, edge), world.cluster.logs.tail(30)));
    };
    for edge in world.all() {
        comes_from(&world, edge, "domain");
        follow(&world, edge, (Some("fast"), 2_000));
    }
    assert_eq!(listed(&world, 0)["revision"], listed(&world, 1)["revision"]);
    // One is removed from it, and the others stay.
    let two = file(&world, "two.toml", &format!("{FAST}{}", FAST.replace("fast", "other")));
    world.marram(1, &["policy", "set", &two, "--domain"]);
    let removed = world.marram(0, &["policy", "remove", "other", "--domain"]);
    assert!(removed.contains("the domain has 1 policy"), "{removed}");
    let refused = world.refused(1, &["policy", "remove", "other", "--domain"]);
    assert!(refused.contains("the domain has no policy `other`"), "{refused}");
    let has_one = |edge: usize| listed(&world, edge)["policies"].as_array().map(Vec::len) == Some(1);
    let same = || listed(&world, 0)["revision"] == listed(&world, 1)["revision"];
    until(|| (has_one(0) && has_one(1) && same()).then_some(()), || world.cluster.logs.tail(30));
    follow(&world, 1, (Some("fast"), 2_000));
    // An edge with a list of its own says that it does not follow the domain's.
    let own = file(&world, "own.toml", &FAST.replace("2ms", "5ms"));
    world.marram(1, &["policy", "set", &own]);
    follow(&world, 1, (Some("fast"), 5_000));
    let list = world.marram(1, &["policy", "list"]);
    assert!(list.contains("are not followed here"), "{list}");
    // A new life of it has no list of its own.
    world.cluster.edges[1].kill();
    hear(&streams);
    world.restart(1);
    comes_from(&world, 1, "domain");
    hear(&streams);
    world.marram(1, &["policy", "reset", "--domain"]);
    for edge in world.all() {
        comes_from(&world, edge, "configuration");
        follow(&world, edge, (None, 10_000));
    }
    hear(&streams);
    streams.into_iter().for_each(Stream::finish);
}

/// Waits until one of the sessions that run follows the policy for those that send much, and the other one does not. Returns where that
/// runs, and its row.
fn one_is_bulk(world: &World, edges: &[usize]) -> (usize, Value) {
    let running = || {
        let rows = edges.iter().flat_map(|edge| world.rows(*edge).into_iter().map(|row| (*edge, row)));
        rows.filter(|(_, row)| row["phase"] == "running").collect::<Vec<_>>()
    };
    let is_bulk = |row: &Value| row["policy"] == "bulk" && row["every_us"] == 3_000;
    let one = || {
        let rows = running();
        let settled = rows.len() == 2 && rows.iter().all(|(_, row)| row["policy_former"] == false);
        let (bulk, rest): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| is_bulk(row));
        let is_it = settled && rest.len() == 1 && rest[0].1["policy"].is_null();
        bulk.into_iter().next().filter(|_| is_it)
    };
    until(one, || format!("{:?}\n{}", running(), world.cluster.logs.tail(30)))
}

#[test]
fn a_session_that_sends_much_follows_the_policy_for_that_also_after_a_takeover() {
    let mut world = World::new("epoch-policy-rate", 3, support::UNSUSPECTING, "every = \"1ms\"");
    let streams = world.streams(2);
    hear(&streams);
    world.backed(streams.len());
    // One says nothing more. What was before is not measured.
    streams[1].rest();
    let bulk = "[[policy]]\nname = \"bulk\"\napp = \"forward\"\nmin_rate = \"16KiB\"\nmin_bytes = \"4KiB\"\nevery = \"3ms\"\n";
    world.marram(0, &["policy", "set", &file(&world, "bulk.toml", bulk), "--domain"]);
    let (here, row) = one_is_bulk(&world, &world.all());
    let figures = ["payload_bytes_per_s", "payload_bytes"].map(|name| row[name].as_u64());
    assert!(
        figures[0].is_some_and(|rate| rate >= 16 << 10) && figures[1].is_some_and(|it| it >= 4 << 10),
        "{row}"
    );
    let session = row["session"].as_str().unwrap();
    let seen = world.backed(2).remove(session).unwrap();
    assert!(seen.owner == here && seen.backup.is_some_and(|backup| backup != here), "{row}");
    let list = world.marram(here, &["policy", "list"]);
    assert!(list.contains("app=forward min_rate=16KiB/s min_bytes=4KiB"), "{list}");
    let shown = world.marram(here, &["inspect", session]);
    assert!(shown.contains("payload_bytes_per_s") && shown.contains("payload_bytes here"), "{shown}");
    assert!(world.counter(here, "policy_crossings_total") > 0);
    // Its next edge measures it from nothing.
    world.cluster.edges[here].kill();
    streams[0].hear(100_000);
    let left: Vec<usize> = world.all().into_iter().filter(|edge| *edge != here).collect();
    let (there, row) = one_is_bulk(&world, &left);
    assert_eq!((row["session"].as_str(), here == there), (Some(session), false));
    streams[1].go_on();
    hear(&streams);
    streams.into_iter().for_each(Stream::finish);
}

/// The sessions that run on an edge, each with its keepers: their names and kinds.
fn kept(world: &World, edge: usize) -> Vec<(String, Vec<(String, String)>)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let keepers = |row: &Value| {
        let keepers = row["keepers"].as_array().into_iter().flatten();
        keepers.map(|keeper| (text(&keeper["name"]), text(&keeper["kind"]))).collect()
    };
    let rows = world.rows(edge).into_iter().filter(|row| row["phase"] == "running");
    rows.map(|row| (text(&row["session"]), keepers(&row))).collect()
}

/// Waits until all sessions that run on an edge have this backup, and no other replica. Returns how many there are.
fn backed_by(world: &World, edge: usize, backup: &str) -> usize {
    let expected = vec![(backup.to_owned(), "backup".to_owned())];
    let all = || kept(world, edge).iter().all(|(_, keepers)| *keepers == expected).then_some(());
    until(all, || format!("{:?}\n{}", kept(world, edge), world.cluster.logs.tail(30)));
    kept(world, edge).len()
}

#[test]
fn backups_of_running_sessions_move_and_go_on_when_their_edge_dies() {
    let mut world = World::new("epoch-backups", 3, support::UNSUSPECTING, "every = \"1ms\"");
    let streams = world.streams(6);
    hear(&streams);
    world.backed(streams.len());
    let here = (0..3).find(|edge| !kept(&world, *edge).is_empty()).unwrap();
    let (one, other) = ((here + 1) % 3, (here + 2) % 3);
    let name = |world: &World, edge: usize| world.cluster.edges[edge].directory();
    // An operator moves all of them there and back. One that is there already is refused.
    for to in [one, other] {
        let to = name(&world, to);
        for (session, keepers) in kept(&world, here) {
            let asked = ["move", &session, "--backup", "--to", &to];
            if keepers.iter().any(|(keeper, _)| *keeper == to) {
                let refused = world.refused(here, &asked);
                assert!(refused.contains("backup already"), "{refused}");
            } else {
                let moved = world.marram(here, &asked);
                assert!(moved.contains("moved"), "{moved}");
            }
        }
        assert!(backed_by(&world, here, &to) > 0);
        hear(&streams);
    }
    // A policy moves them once more.
    let to = name(&world, one);
    let near = file(&world, "near.toml", &format!("[[policy]]\nname = \"near\"\ntargets = [\"{to}\"]\n"));
    world.marram(here, &["policy", "set", &near]);
    let count = backed_by(&world, here, &to);
    follow(&world, here, (Some("near"), 1_000));
    hear(&streams);
    world.cluster.edges[here].kill();
    hear(&streams);
    let running = kept(&world, one).len();
    assert!(running >= count, "{running} run at the backup of {count}");
    streams.into_iter().for_each(Stream::finish);
}
