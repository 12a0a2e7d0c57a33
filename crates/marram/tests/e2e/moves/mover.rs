//! An operator that moves sessions between edges all the time, and kills one of the two in some moves.

use super::{
    ledger::Ledger,
    world::{PATIENCE, SHARDS, World},
};
use hyper::Method;
use marram_wire::seeded::Seeded;
use std::{
    collections::BTreeMap,
    fmt, thread,
    time::{Duration, Instant},
};

/// Moves that are asked for at a time. A killed edge starts again while the next ones go on.
const AT_ONCE: usize = 12;
/// Time between two questions for results.
const PAUSE: Duration = Duration::from_millis(10);
/// An edge is killed at most so long after it was asked for a move.
const STRIKE_US_MAX: u64 = 20_000;

/// A move that was asked for. Edges are known by their names: each life of one has its own.
struct Asked {
    session: String,
    from: usize,
    from_name: String,
    to_name: String,
    at: Instant,
}

/// What became of the moves.
#[derive(Default)]
pub(super) struct Done {
    pub(super) asked: usize,
    pub(super) arrived: usize,
    /// Refused at once.
    refused: BTreeMap<String, usize>,
    /// The session stayed, or left in another way.
    given_up: BTreeMap<String, usize>,
    /// The edge that had the session was killed, and with it what it knew of the move.
    unknown: usize,
    /// Of edges that a session was to leave, and of those to which one was to move.
    pub(super) kills: [usize; 2],
    /// Of these, while the session had not left.
    pub(super) mid_move: usize,
}

impl fmt::Display for Done {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given_up: usize = self.given_up.values().sum();
        let (Self { asked, arrived, unknown, mid_move, .. }, [from, to]) = (self, self.kills);
        writeln!(
            out,
            "{asked} moves asked, {arrived} arrived, {given_up} given up, {unknown} whose edge was killed; \
             {from} kills of the edge that a session left, {to} of the other, {mid_move} in mid-move"
        )?;
        for (what, why) in [("given up", &self.given_up), ("refused", &self.refused)] {
            for (why, count) in why {
                writeln!(out, "  {what}: {count} x {why}")?;
            }
        }
        Ok(())
    }
}

pub(super) struct Mover {
    pub(super) world: World,
    pub(super) ledger: Ledger,
    pub(super) done: Done,
    random: Seeded,
    moving: Vec<Asked>,
    /// Of so many moves one meets a kill; none if 0.
    kill_every: usize,
}

impl Mover {
    /// `unprotected` are the apps that have no protection.
    pub(super) fn new(
        world: World,
        unprotected: &'static [&'static str],
        kill_every: usize,
        seed: u64,
    ) -> Self {
        let (ledger, done) = (Ledger::new(unprotected), Done::default());
        Self { world, ledger, done, random: Seeded::new(seed), moving: Vec::new(), kill_every }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).unwrap()
    }

    /// Asks for moves, strikes, and looks at results, once.
    pub(super) fn turn(&mut self) {
        self.ledger.read(&self.world.cluster);
        while self.moving.len() < AT_ONCE && self.ask() {}
        self.results();
        thread::sleep(PAUSE);
    }

    /// Whether fewer edges were killed than so many moves must meet.
    pub(super) fn lacks_kills(&self, moves: usize) -> bool {
        self.kill_every > 0 && self.done.kills.iter().sum::<usize>() < moves / self.kill_every
    }

    /// Waits for the moves that are under way.
    pub(super) fn finish(&mut self) {
        while !self.moving.is_empty() {
            self.results();
            thread::sleep(PAUSE);
        }
    }

    /// The indices and names of the edges that can take sessions.
    fn usable(&self) -> Vec<(usize, String)> {
        let name = |edge| Some((edge, self.ledger.usable(edge, SHARDS)?.to_owned()));
        (0..self.world.cluster.edges.len()).filter_map(name).collect()
    }

    /// Asks for the move of one session to another edge. False if there is none to move now, or it was refused.
    fn ask(&mut self) -> bool {
        let mut edges = self.usable();
        if edges.len() < 2 {
            return false;
        }
        let at = self.below(edges.len());
        let (from, from_name) = edges.swap_remove(at);
        let at = self.below(edges.len());
        let (to, to_name) = edges.swap_remove(at);
        let count = self.ledger.at(&from_name).len();
        if count == 0 {
            return false;
        }
        let at = self.below(count);
        let session = self.ledger.at(&from_name)[at].to_owned();
        if let Err(why) =
            self.world.ask(from, Method::POST, &format!("/v1/sessions/{session}/move/{to_name}"))
        {
            let why = why.split(" (").next().unwrap_or_default().replace(&to_name, "it");
            *self.done.refused.entry(why).or_default() += 1;
            return false;
        }
        self.done.asked += 1;
        self.ledger.moves(&session, Some(&to_name));
        self.moving.push(Asked { session, from, from_name, to_name, at: Instant::now() });
        self.strike(from, to);
        true
    }

    /// Whether the next kill must be in the middle of a move: of four, the first of each kind. The others may come just after it.
    fn must_be_mid_move(&self) -> bool {
        self.done.kills.iter().sum::<usize>() % 4 < 2
    }

    /// Kills one edge of the latest move, if it is time for that and all run. If the session has left already, though the kill was to be
    /// in the middle of a move, a later move meets it.
    fn strike(&mut self, from: usize, to: usize) {
        let kills: usize = self.done.kills.iter().sum();
        let is_due = self.kill_every > 0 && self.done.asked / self.kill_every > kills;
        if !is_due || self.usable().len() < self.world.cluster.edges.len() {
            return;
        }
        thread::sleep(Duration::from_micros(self.random.below(STRIKE_US_MAX)));
        let Some(struck) = self.moving.last() else { return };
        let kills_target = kills % 2 == 1;
        let (edge, name) =
            if kills_target { (to, struck.to_name.clone()) } else { (from, struck.from_name.clone()) };
        self.ledger.read(&self.world.cluster);
        let is_mid_move = !self.ledger.has_left(&struck.session, &struck.from_name);
        if self.must_be_mid_move() && !is_mid_move {
            return;
        }
        self.done.mid_move += usize::from(is_mid_move);
        self.done.kills[usize::from(kills_target)] += 1;
        self.ledger.killed(&name);
        let World { cluster, extra, .. } = &mut self.world;
        cluster.edges[edge].start(&cluster.directory, &cluster.logs, extra).unwrap();
        // What it knew of its moves is lost.
        let before = self.moving.len();
        self.moving.retain(|asked| asked.from_name != name);
        self.done.unknown += before - self.moving.len();
    }

    /// Notes which moves are over.
    fn results(&mut self) {
        let mut froms: Vec<usize> = self.moving.iter().map(|asked| asked.from).collect();
        froms.sort_unstable();
        froms.dedup();
        for from in froms {
            // An edge that has no time to answer is asked again.
            let list = self.world.ask(from, Method::GET, "/v1/moves").unwrap_or_default();
            for row in list["moves"].as_array().into_iter().flatten() {
                let (session, state) = (row["session"].as_str().unwrap(), row["state"].as_str().unwrap());
                let is_it = |asked: &Asked| {
                    asked.session == session && asked.from == from && row["to"] == asked.to_name
                };
                let place = self.moving.iter().position(is_it);
                let Some(place) = place.filter(|_| ["moved", "failed"].contains(&state)) else { continue };
                let Asked { session, to_name, .. } = self.moving.swap_remove(place);
                match row["why"].as_str() {
                    None => self.done.arrived += 1,
                    Some(why) => {
                        self.ledger.moves(&session, None);
                        *self.done.given_up.entry(why.replace(&to_name, "it")).or_default() += 1;
                    }
                }
            }
        }
        if let Some(asked) = self.moving.iter().find(|asked| asked.at.elapsed() > 3 * PATIENCE) {
            let Asked { session, from_name, to_name, .. } = asked;
            panic!(
                "the move of {session} from {from_name} to {to_name} does not end; {}",
                self.world.cluster.logs.tail(40)
            );
        }
    }
}
