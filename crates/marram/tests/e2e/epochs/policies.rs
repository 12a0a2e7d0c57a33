//! Policies of edges: which edge is the backup of a session, and how often its epochs end.

use super::world::{World, hear, layout};
use crate::support::{
    self,
    stream::{Stream, until},
};

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
    let killed = if world.rows(0).is_empty() { 1 } else { 0 };
    world.cluster.edges[killed].kill();
    hear(&streams);
    let left: Vec<usize> = world.all().into_iter().filter(|edge| *edge != killed).collect();
    world.backed(streams.len());
    follows(&world, &left);
    streams.into_iter().for_each(Stream::finish);
}
