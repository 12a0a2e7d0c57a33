//! Live moves with real processes: what they do to sessions, and the commands of operators.

mod ledger;
mod live;
mod mover;
mod world;

use crate::support::{self, caches::Caches, figures, services::Service};
use world::{Plan, World};

const EDGES: usize = 3;

/// Edges with caches that are protected like this.
fn caches(purpose: &'static str, protect: &str) -> World {
    let bulk = support::serve::echo();
    let services = &[Service::Memcached];
    World::new(&Plan {
        purpose,
        edges: EDGES,
        protect,
        protect_bulk: "endpoints",
        services,
        sessions: 8,
        bulk,
    })
}

#[test]
fn the_command_moves_sessions_and_says_why_one_stays() {
    let world = caches("move-command", "endpoints");
    let caches = Caches::start(world.services[0].1, 2, 1);
    let marram = |arguments: &[&str]| world.marram(arguments, &[0, 1, 2]);
    let at = |edge: usize| world.running(edge).len();
    world.wait("the sessions begin", || (0..EDGES).map(at).sum::<usize>() == 2);
    for edge in (0..EDGES).chain(0..EDGES) {
        let name = world.name(edge);
        let away = 2 - at(edge);
        let (status, out, error) = marram(&["move", "--app", "memcached", "--to", &name]);
        if away == 0 {
            assert!(
                status == Some(3) && error.contains("no edge that was asked has a session"),
                "{out} {error}"
            );
            continue;
        }
        assert_eq!((status, out.matches("moved").count()), (Some(0), away), "{out} {error}");
        assert_eq!(at(edge), 2, "{out}");
    }
    let session = world.running(EDGES - 1).remove(0);
    let (status, _, error) = marram(&["move", &session, "--to", "nowhere"]);
    assert!(status == Some(3) && error.contains("`nowhere` is not connected"), "{error}");
    let (status, out, _) = marram(&["move", &session[..6], "--to", &world.name(0), "--dry-run"]);
    assert!(status == Some(0) && out.contains("would move"), "{out}");
    assert!(caches.finish() > 0);
}

#[test]
fn an_edge_that_stops_hands_its_sessions_over_unless_they_would_lose_their_standby() {
    const SESSIONS: usize = 6;
    let mut world = caches("drain-moves", "standby");
    let caches = Caches::start(world.services[0].1, SESSIONS as u64, 2);
    let at = |world: &World, edge: usize| world.running(edge).len();
    world.wait("the sessions begin", || (0..EDGES).map(|edge| at(&world, edge)).sum::<usize>() == SESSIONS);
    let first = (0..EDGES).max_by_key(|edge| at(&world, *edge)).unwrap();
    let sessions = at(&world, first);
    world.wait("other edges can take them", || {
        let (status, out, error) = world.marram(&["drain", "--dry-run"], &[first]);
        assert_eq!(status, Some(0), "{error}");
        out.matches("moves to ").count() == sessions && !out.contains("--force")
    });
    let (status, out, error) = world.marram(&["drain", "--wait"], &[first]);
    assert!(
        status == Some(0) && out.contains("draining") && error.contains("stopped"),
        "{status:?} {out} {error}"
    );
    let ended = world.cluster.edges[first].process().unwrap().wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    // The two others stand by for one another: neither may go.
    let [second, third] = [(first + 1) % EDGES, (first + 2) % EDGES];
    let takeovers = |edge: usize| figures::counter(&world.cluster.edges[edge], "takeovers_total");
    let taken = takeovers(second) + takeovers(third);
    // All of them, unless a standby lags on a busy machine.
    assert!(taken > 0, "none was handed over: {}", world.cluster.logs.tail(40));
    world.wait("they have all sessions", || at(&world, second) + at(&world, third) == SESSIONS);
    let last = if at(&world, second) > 0 { second } else { third };
    let (status, out, error) = world.marram(&["drain"], &[last]);
    assert!(status == Some(3) && error.contains("no standby") && error.contains("--force"), "{out} {error}");
    let (_, out, _) = world.marram(&["drain", "--dry-run"], &[last]);
    assert!(out.contains("`--force` is needed"), "{out}");
    let (status, out, error) = world.marram(&["drain", "--force", "--wait"], &[last]);
    assert_eq!(status, Some(0), "{out} {error}");
    assert!(caches.finish() > 0);
}
