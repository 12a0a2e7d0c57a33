//! Sessions of all kinds, which are moved while both sides send, and edges that are killed in mid-move. Not a byte may be lost,
//! repeated or changed, and no program may notice.
//!
//! `MARRAM_MOVES` is the number of moves that must arrive (100 if not set; `cargo xtask soak moves` makes 10,000), `MARRAM_MOVE_SESSIONS`
//! the number of sessions at a time (28), `MARRAM_SEED` selects them. One of fifty moves meets the death of one of its two edges.

use super::{
    mover::Mover,
    world::{PATIENCE, Plan, World},
};
use crate::support::{
    self,
    services::{Clients, Habits, Service},
    traffic::Traffic,
};
use std::time::{Duration, Instant};

const EDGES: usize = 4;
/// One of so many moves meets a kill.
const KILL_EVERY: usize = 50;
/// Of so many sessions one sends without a pause in both directions.
const BULK_ONE_OF: usize = 8;
/// Most bytes of such a session, each way.
const BULK_BYTES_MAX: u64 = 20_000_000;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

const SERVICES: [Service; 7] = [
    Service::Forward,
    Service::Tls,
    Service::Datagrams,
    Service::Chain,
    Service::Snake,
    Service::Memcached,
    Service::Unprotected,
];

/// Moves sessions until so many have arrived, and some of them have met a kill.
fn move_until(mover: &mut Mover, moves: usize, wrong: &dyn Fn() -> Vec<String>, answers: &dyn Fn() -> u64) {
    let (begun, mut said) = (Instant::now(), Instant::now());
    while mover.done.arrived < moves || mover.lacks_kills(moves) {
        mover.turn();
        let wrong = [wrong(), mover.ledger.unexplained(&mover.world.cluster)].concat();
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), mover.done);
        assert!(
            begun.elapsed() < PATIENCE * 2 + Duration::from_secs(moves as u64),
            "too few moves: {}",
            mover.done
        );
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            let (done, ledger) = (&mover.done, &mover.ledger);
            let kills: usize = done.kills.iter().sum();
            println!(
                "{:>4} s: {} of {moves} moves arrived, {kills} kills, {} recoveries, {} answers",
                begun.elapsed().as_secs(),
                done.arrived,
                ledger.recovered,
                answers()
            );
        }
    }
    mover.finish();
}

#[test]
fn moves_lose_nothing_and_no_program_notices() {
    support::turns::alone();
    let moves = support::amount("MARRAM_MOVES", 100);
    let sessions = support::amount("MARRAM_MOVE_SESSIONS", 28);
    let seed = support::amount("MARRAM_SEED", 1) as u64;
    let mut traffic = Traffic::new();
    let bulk = sessions.div_ceil(BULK_ONE_OF);
    let world = World::new(&Plan {
        purpose: "moves",
        edges: EDGES,
        protect: "standby",
        protect_bulk: "endpoints",
        services: &SERVICES,
        sessions,
        bulk: traffic.server,
        limits: "",
        timeouts: "",
    });
    traffic.start(world.bulk, bulk as u64, BULK_BYTES_MAX, seed);
    let habits = Habits {
        services: world.services.clone(),
        sessions: sessions - bulk,
        // As much work in all, however many there are.
        pace_ms_max: sessions as u64,
        patience: PATIENCE,
        seed,
    };
    let clients = Clients::start(habits, &world.site);
    let mut mover = Mover::new(world, &["unprotected"], KILL_EVERY, seed);
    let wrong = || [traffic.wrong(), clients.wrong()].concat();
    move_until(&mut mover, moves, &wrong, &|| clients.answers());
    let counts = clients.finish();
    let (streams, bytes) = traffic.finish();
    mover.ledger.read(&mover.world.cluster);
    let Mover { done, ledger, .. } = &mover;
    println!(
        "seed {seed}: {done}  {} hand-overs, {} recoveries, {} promises again after a move that was given up",
        ledger.handed_over, ledger.recovered, ledger.stayed
    );
    for (why, count) in &ledger.ended {
        println!("  unprotected sessions that ended with an edge that was killed: {count} x {why}");
    }
    println!(
        "lost, repeated, reordered: 0; sessions that ended in order, messages checked, the longest wait:"
    );
    for count in &counts {
        println!("  {}: {}, {}, {} ms", count.service, count.ended, count.answers, count.longest_ms);
        assert!(count.answers > 0, "{} ran", count.service);
    }
    println!("  bulk: {streams}, {bytes} bytes");
    assert!(streams > 0);
    let kills: usize = done.kills.iter().sum();
    assert!(2 * done.mid_move >= kills, "{} of {kills} kills in the middle of a move", done.mid_move);
    assert!(ledger.unexplained.is_empty(), "{}", ledger.unexplained(&mover.world.cluster).join("\n"));
    let broken: u64 = counts.iter().map(|count| count.broken).sum();
    let ended: usize = ledger.ended.values().sum();
    assert!(broken <= ended as u64, "{broken} clients lost their connections, {ended} sessions ended");
}

#[test]
fn sessions_without_protection_move_while_both_sides_send() {
    support::turns::alone();
    const MOVES: usize = 20;
    let mut traffic = Traffic::new();
    let world = World::new(&Plan {
        purpose: "moves-bare",
        edges: 3,
        protect: "endpoints",
        protect_bulk: "none",
        services: &[],
        sessions: 4,
        bulk: traffic.server,
        limits: "",
        timeouts: "",
    });
    traffic.start(world.bulk, 4, BULK_BYTES_MAX, 5);
    let mut mover = Mover::new(world, &["bulk"], 0, 5);
    move_until(&mut mover, MOVES, &|| traffic.wrong(), &|| 0);
    let (streams, bytes) = traffic.finish();
    println!("{}{streams} streams of {bytes} bytes", mover.done);
    assert!(streams > 0);
}
