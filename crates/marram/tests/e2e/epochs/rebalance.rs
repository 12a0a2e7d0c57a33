//! Elastic chords: a fourth edge joins three, and sessions move onto it while their clients talk.

use super::world::{World, hear, layout};
use crate::support::{
    self,
    stream::{Stream, until},
};
use serde_json::Value;

const POLICY: &str = "
[[policy]]
name = \"elastic\"
app = \"forward\"
rebalance = 2
";

const STREAMS: usize = 32;
/// The edge that joins.
const LATE: usize = 3;

/// What a policy list says of the passes that are under way.
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
    assert!(before.values().all(|seen| seen.owner != LATE));
    let start = world.cluster.logs.end();
    world.restart(LATE);
    let name = world.name(LATE);
    let joined = format!("the edge `{name}` has joined");
    let over = format!("rebalanced onto `{name}`");
    let mut planned = 0;
    for edge in 0..LATE {
        world.logged(edge, start, &joined);
        let who = world.cluster.edges[edge].who();
        let said =
            world.cluster.logs.last(|event| *event.who == *who && event.text("message").contains(&joined));
        let said = said.unwrap();
        let rest = said.text("message").split_once("has joined: ").unwrap().1;
        // It says "no session" if none belongs there.
        let Ok(count) = rest.split(' ').next().unwrap().parse::<usize>() else { continue };
        planned += count;
        if count > 2 {
            // Two a second: it takes a second at least.
            let list = under_way(&world, edge);
            assert!(list.iter().all(|pass| pass["edge"] == name[..]), "{list:?}");
            let list = world.marram(edge, &["policy", "list"]);
            assert!(list.contains("2/s"), "{list}");
        }
        world.logged(edge, start, &over);
    }
    hear(&streams);
    let after = world.backed(STREAMS);
    let there = after.values().filter(|seen| seen.owner == LATE).count();
    assert_eq!(there, planned, "{}", world.cluster.logs.tail(60));
    for (session, seen) in &after {
        assert!(seen.owner == LATE || seen.owner == before[session].owner, "{session} went elsewhere");
    }
    let moved: u64 = (0..LATE).map(|edge| world.counter(edge, "sessions_rebalanced_total")).sum();
    assert_eq!(moved, planned as u64);
    let failed = world.cluster.logs.count(0, |event| event.name() == "failed");
    assert_eq!(failed, 0, "no session ended");
    until(
        || (0..LATE).all(|edge| under_way(&world, edge).is_empty()).then_some(()),
        || world.cluster.logs.tail(30),
    );
    streams.into_iter().for_each(Stream::finish);
}
