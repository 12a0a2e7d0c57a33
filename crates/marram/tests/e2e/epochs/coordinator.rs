//! Sessions with backups while the coordinator is away, and what operators see of them.

use super::world::{World, hear, layout, manifest};
use crate::support::{
    self, marram,
    stream::{Stream, echo, until},
};
use marram_cluster::{TestCluster, free_address};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

#[test]
fn without_the_coordinator_sessions_go_on_and_wait_only_if_their_edge_fails() {
    let mut world = World::new("epoch-away", 2, support::UNSUSPECTING, "every = \"1ms\"");
    let streams = world.streams(2);
    let hear = |streams: &[Stream]| streams.iter().for_each(|stream| stream.hear(50_000));
    hear(&streams);
    let seen = world.backed(streams.len());
    world.store.kill();
    // The backups confirm: nothing has to be decided.
    hear(&streams);
    assert!(world.seen_by(&world.all()).values().all(|it| it.backup.is_some()));
    let owner = seen.values().next().unwrap().owner;
    let backup = 1 - owner;
    let start = world.cluster.logs.end();
    world.cluster.edges[owner].kill();
    let asked = world.logged(backup, start, "the coordinator does not decide");
    let count = || streams.iter().map(Stream::heard).collect::<Vec<_>>();
    let waits = count();
    // It asks again, and nothing leaves meanwhile.
    world.logged(backup, asked, "the coordinator does not decide");
    assert_eq!(count(), waits);
    world.store.restart().unwrap();
    hear(&streams);
    world.restart(owner);
    world.backed(streams.len());
    streams.into_iter().for_each(Stream::finish);
}

/// How long neither the backup confirms nor the coordinator decides.
const SILENCE: Duration = Duration::from_secs(10);

#[test]
fn nothing_leaves_while_no_backup_confirms_and_no_coordinator_decides() {
    let mut world = World::new("epoch-silence", 2, support::PATIENT, "every = \"1ms\"");
    let streams = world.streams(2);
    let count = || streams.iter().map(Stream::heard).collect::<Vec<_>>();
    for store_is_first in [false, true] {
        hear(&streams);
        let seen = world.backed(streams.len());
        let owner = seen.values().next().unwrap().owner;
        let backup = 1 - owner;
        world.store.kill();
        let start = world.cluster.logs.end();
        world.cluster.edges[backup].stop();
        // The owner would run alone, if the coordinator decided so.
        let asked = world.logged(owner, start, "the coordinator does not decide");
        let (waits, begun) = (count(), Instant::now());
        let mut end = asked;
        while begun.elapsed() < SILENCE {
            end = world.logged(owner, end, "the coordinator does not decide");
            assert_eq!(count(), waits);
        }
        if store_is_first {
            world.store.restart().unwrap();
            world.cluster.edges[backup].wake();
        } else {
            world.cluster.edges[backup].wake();
            world.store.restart().unwrap();
        }
        hear(&streams);
        world.backed(streams.len());
    }
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn operators_see_whether_a_session_has_a_backup() {
    let epoch = "alone_after = \"0s\"\nform = \"pages\"";
    let mut world = World::new("epoch-shown", 2, support::UNSUSPECTING, epoch);
    let stream = world.streams(1).remove(0);
    let seen = world.backed(1);
    let (session, at) = seen.first_key_value().unwrap();
    let (owner, backup) = (at.owner, at.backup.unwrap());
    let shown = world.marram(owner, &["inspect", session]);
    assert!(shown.contains("or of its backup") && shown.contains("(backup, "), "{shown}");
    // Until the first epoch ends its backup gets the log.
    until(
        || (world.rows(owner)[0]["form_now"] == "pages").then_some(()),
        || format!("{:?}", world.rows(owner)),
    );
    assert_eq!(world.rows(owner)[0]["form"], "pages");
    let listed = world.marram(owner, &["ps", "--protect", "epoch"]);
    assert!(listed.contains("(backup, ") && listed.contains("BACKUP GETS"), "{listed}");
    let shown = world.marram(backup, &["inspect", session]);
    assert!(shown.contains("stands by"), "{shown}");
    assert_eq!(world.rows(backup)[0]["form"], serde_json::Value::Null);
    world.cluster.edges[backup].kill();
    // No edge is left that could be the backup: it runs alone, by a claim.
    until(
        || (world.rows(owner)[0]["backup"] == "alone").then_some(()),
        || format!("{:?}", world.rows(owner)),
    );
    let shown = world.marram(owner, &["inspect", session]);
    assert!(shown.contains("it runs without a backup"), "{shown}");
    assert_eq!(world.rows(owner)[0]["form_now"], serde_json::Value::Null);
    assert_eq!(world.counter(owner, "sessions_without_backup"), 1);
    let path = world.manifest("alone_after = \"0s\"");
    let said = world.marram(owner, &["deploy", &path]);
    assert!(said.contains("no other edge") && said.contains("standby.edges"), "{said}");
    stream.hear(50_000);
    world.restart(backup);
    assert_eq!(world.backed(1)[session].owner, owner);
    assert_eq!(world.counter(owner, "sessions_without_backup"), 0);
    stream.finish();
}

#[test]
fn operators_are_told_if_the_only_store_is_in_an_edge_that_it_may_have_to_decide_about() {
    let mut path = None;
    let mut cluster = TestCluster::new(layout("epoch-store-edge", 2, support::UNSUSPECTING), |place| {
        path = Some(support::cells().manifest(place, "forward", "forward", &manifest(""))?);
        Ok(path.iter().cloned().collect())
    })
    .unwrap();
    let (addresses, store) = (cluster.edge_addresses(), free_address().unwrap());
    let others: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    for (edge, table) in
        [format!("serve = \"{store}\""), format!("urls = [\"http://{store}\"]")].iter().enumerate()
    {
        let fields =
            format!("standby = {{ edges = {others:?} }}\ncoordinator = {{ {table}, lease = \"5s\" }}");
        cluster.start_edge(edge, &fields).unwrap();
    }
    cluster.start_server_agent(&addresses, &[("web", echo())]).unwrap();
    let client = cluster.start_client_agent(&addresses, &["forward"]).unwrap()[0].address;
    let run = |edges: &[usize], arguments: &[&str]| {
        let urls = edges.iter().map(|edge| format!("--edge=http://{}", cluster.edges[*edge].admin()));
        let output = marram().args(arguments).args(urls).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let path = path.unwrap().display().to_string();
    for (edge, says) in [(0, "store is in this edge"), (1, "store is in edge `A-1`")] {
        let deployed = || {
            let said = run(&[edge], &["deploy", &path]);
            (said.contains(says) && said.contains("marram coordinator serve")).then_some(())
        };
        until(deployed, || format!("{}\n{}", run(&[edge], &["deploy", &path]), cluster.logs.tail(30)));
    }
    let stream = Stream::start(client);
    stream.hear(1_000);
    // One of the two runs it, and the other is its backup.
    let inspect = || run(&[0, 1], &["inspect", run(&[0, 1], &["ps", "-q"]).trim()]);
    until(
        || {
            let said = inspect();
            let waits = said.contains("fails, it waits until that edge is back");
            (waits && said.contains("marram coordinator serve")).then_some(())
        },
        || format!("{}\n{}", inspect(), cluster.logs.tail(30)),
    );
    stream.finish();
}
