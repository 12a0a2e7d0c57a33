//! Elastic chords: a fourth edge joins three, and sessions move onto it while their clients talk.

use super::world::{World, hear, layout};
use crate::support::{
    self,
    stream::{Stream, until},
};
use serde_json::Value;
use std::collections::BTreeSet;

const POLICY: &str = "
[[policy]]
name = \"elastic\"
app = \"forward\"
rebalance = 2
";

const STREAMS: usize = 32;
/// The edge that joins.
const LATE: usize = 3;

/// What a policy list says of the sessions that are being moved to an edge which has joined.
fn under_way(world: &World, edge: usize) -> Vec<Value> {
    let answers: Value = serde_json::from_str(&world.marram(edge, &["policy", "list", "--json"])).unwrap();
    answers[0]["rebalances"].as_array().unwrap().clone()
}

#[test]
fn an_edge_that_joins_gets_its_share_and_nothing_is_lost() {
    let mut layout = layout("epoch-rebalance", 4, support::UNSUSPECTING);
    layout.edge_tables.push_str(POLICY);
    let mut world = World::without_agents(layout, 4, "every = \"1ms\"");
    // Its next life has another name: nothing has been seen of that.
    world.cluster.edges[LATE].kill();
    world.start_agents();
    let streams = world.streams(STREAMS);
    hear(&streams);
    let before = world.backed(STREAMS);
    let owners: BTreeSet<usize> = before.values().map(|seen| seen.owner).collect();
    assert!(!owners.contains(&LATE) && owners.iter().all(|edge| under_way(&world, *edge).is_empty()));
    world.restart(LATE);
    let name = world.name(LATE);
    // Two a second: where more than two belong there, that takes a second at least.
    let mut planned = 0;
    for edge in &owners {
        let begun = || (world.counter(*edge, "rebalance_passes_total") > 0).then_some(());
        until(begun, || world.cluster.logs.tail(60));
        let list = under_way(&world, *edge);
        assert!(list.iter().all(|pass| pass["edge"] == name[..]), "{list:?}");
        planned += list.iter().filter_map(|pass| pass["sessions"].as_u64()).sum::<u64>();
        let over = || under_way(&world, *edge).is_empty().then_some(());
        until(over, || {
            format!("{}\n{}", world.marram(*edge, &["policy", "list"]), world.cluster.logs.tail(60))
        });
    }
    hear(&streams);
    let after = world.backed(STREAMS);
    let there = after.values().filter(|seen| seen.owner == LATE).count() as u64;
    let counted = |name: &str| owners.iter().map(|edge| world.counter(*edge, name)).sum::<u64>();
    let (moved, backups) = (counted("sessions_rebalanced_total"), counted("backups_moved_total"));
    // What was over before it could be seen is in no list.
    let told = |event: &marram_cluster::LogEvent| {
        ["joined", "rebalanced", "moved", "stand by"].iter().any(|word| event.text("message").contains(word))
    };
    assert!(
        there > 0 && there == moved && planned <= moved + backups,
        "{there} {moved} {backups} {planned}: {before:?}\n{after:?}\n{}",
        world.cluster.logs.tail_of(60, told)
    );
    for (session, seen) in &after {
        assert!(seen.owner == LATE || seen.owner == before[session].owner, "{session} went elsewhere");
    }
    let list = world.marram(*owners.first().unwrap(), &["policy", "list"]);
    assert!(list.contains("2/s"), "{list}");
    assert_eq!(world.lost(0), 0, "no session ended");
    streams.into_iter().for_each(Stream::finish);
}
