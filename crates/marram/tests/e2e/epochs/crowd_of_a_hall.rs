//! Very many clients in one hall, whose edge and backup are killed and stopped again and again, with moves in between. Every client hears
//! everything once and in one order. One that never reads costs its own connection, and one that has the handler stopped its own session.
//!
//! `MARRAM_CROWD_GUESTS` is the number of guests (40 if not set), `MARRAM_CROWD_ROUNDS` that of kills and stops (10), `MARRAM_SEED` selects them
//! (`cargo xtask soak crowd` has 1,000 guests and 200 rounds). After each one the cell may move, or its backup.

use super::{
    crowd::Crowd,
    hall::{Hall, epochs},
    world::Seen,
};
use crate::support;
use marram_cluster::LogEvent;
use marram_hall_algo::TELL_MORE;
use marram_wire::seeded::Seeded;
use std::time::Instant;

const GUESTS: usize = 40;
const ROUNDS: usize = 10;
/// So many guests speak at a time.
const VOICES: usize = 32;
/// Pieces that every guest must have heard of before and after each fault and move.
const SOME: u64 = 1;
/// The guest that never reads is sent more beside each record, since few records do not fill all buffers: so much in all, if each guest is
/// heard of once a round. Each is heard of at least twice.
const MORE: usize = 8 << 20;

/// What happens to the edge that runs the cell, or to that of its backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    OwnerKilled,
    OwnerStopped,
    BackupKilled,
    BackupStopped,
}

/// What moves after that.
#[derive(Clone, Copy, Debug)]
enum Move {
    Nothing,
    ToBackup,
    ToThird,
    OfBackup,
}

/// Draws each of these once, in any order, before it draws one again.
struct Deck<T: 'static> {
    all: &'static [T],
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    fn new(all: &'static [T]) -> Self {
        Self { all, left: Vec::new() }
    }

    fn draw(&mut self, random: &mut Seeded) -> T {
        if self.left.is_empty() {
            self.left.extend_from_slice(self.all);
        }
        self.left.swap_remove(random.index(self.left.len()))
    }
}

struct Test {
    hall: Hall,
    crowd: Crowd,
}

impl Test {
    fn why(&self) -> String {
        let world = &self.hall.world;
        format!("{:?}\n{}", world.seen_by(&world.all()), world.cluster.logs.tail(400))
    }

    fn hear(&self) {
        self.crowd.hear(SOME, || self.why());
    }

    /// The cell's session, and where it and its backup are, once it has one.
    fn protected(&self) -> (String, Seen) {
        self.hall.world.backed(1).into_iter().next().unwrap()
    }

    /// Some guests come and go while an edge is away, and all hear more.
    fn goes_on(&self) {
        self.crowd.join(1);
        self.crowd.leave_one();
        self.hear();
    }

    fn strike(&mut self, fault: Fault) {
        let (_, Seen { owner, backup, .. }) = self.protected();
        let edge =
            if matches!(fault, Fault::OwnerKilled | Fault::OwnerStopped) { owner } else { backup.unwrap() };
        if matches!(fault, Fault::OwnerKilled | Fault::BackupKilled) {
            self.hall.world.cluster.edges[edge].kill();
            self.goes_on();
            self.hall.world.restart(edge);
        } else {
            self.hall.world.cluster.edges[edge].stop();
            self.goes_on();
            self.hall.world.cluster.edges[edge].wake();
        }
        self.hear();
    }

    fn moves(&self, what: Move) {
        let (cell, Seen { owner, backup, .. }) = self.protected();
        let backup = backup.unwrap();
        let third = 3 - owner - backup;
        let (to, flags) = match what {
            Move::Nothing => return,
            Move::ToBackup => (backup, &[][..]),
            Move::ToThird => (third, &[][..]),
            Move::OfBackup => (third, &["--backup"][..]),
        };
        let to = self.hall.world.name(to);
        let arguments = [&["move", &*cell, "--to", &*to], flags].concat();
        self.hall.world.marram(owner, &arguments);
        self.hear();
    }

    /// How many sessions have ended with this in their reason.
    fn ended(&self, reason: &str) -> usize {
        let is_it = |event: &LogEvent| event.name() == "ended" && event.text("reason").contains(reason);
        self.hall.world.cluster.logs.count(0, is_it)
    }
}

#[test]
fn a_crowd_hears_one_history_whatever_becomes_of_edges() {
    let guests = support::amount("MARRAM_CROWD_GUESTS", GUESTS);
    let rounds = support::amount("MARRAM_CROWD_ROUNDS", ROUNDS);
    let seed = support::amount("MARRAM_SEED", 1) as u64;
    let mut random = Seeded::new(seed);
    let mut faults =
        Deck::new(&[Fault::OwnerKilled, Fault::OwnerStopped, Fault::BackupKilled, Fault::BackupStopped]);
    let mut moves = Deck::new(&[Move::Nothing, Move::ToBackup, Move::ToThird, Move::OfBackup]);
    let hall = Hall::new("hall-crowd", support::PATIENT, &epochs("every = \"1ms\""));
    let crowd = Crowd::new(hall.agents, VOICES);
    let mut test = Test { hall, crowd };
    test.crowd.join(guests);
    test.hear();
    let more = u32::try_from(MORE / (guests * rounds)).unwrap();
    let silent = test.crowd.join_silent(&[TELL_MORE, &more.to_le_bytes()].concat());
    let mut stoppers = Vec::new();
    let began = Instant::now();
    for round in 0..rounds {
        let (fault, next) = (faults.draw(&mut random), moves.draw(&mut random));
        // Of two guests that have the handler stopped, one does while an edge is lost.
        if round == rounds / 3 || round == rounds * 2 / 3 {
            stoppers.push(test.crowd.join_stopper());
        }
        if round == rounds / 3 {
            test.crowd.over(stoppers[0], || test.why());
        }
        test.strike(fault);
        test.moves(next);
        let (time, records) = (began.elapsed().as_secs(), test.crowd.records());
        println!("{time:>4} s: round {round} of {rounds}: {fault:?}, {next:?}; {records} records");
    }
    for stopper in &stoppers {
        test.crowd.over(*stopper, || test.why());
    }
    let why = test.crowd.over(silent, || test.why());
    assert!(why.contains("reset"), "{why}");
    let lost = (test.ended("reads too slowly"), test.ended("unreachable"), test.hall.world.lost(0));
    assert_eq!(lost, (1, stoppers.len(), 1 + stoppers.len()), "{}", test.why());
    let Test { hall, crowd } = test;
    let (records, heard) = (crowd.records(), crowd.finish(|| hall.world.cluster.logs.tail(400)));
    println!(
        "seed {seed}: {records} records and those with which the guests left, heard {heard} times; lost, repeated, reordered: 0"
    );
}
