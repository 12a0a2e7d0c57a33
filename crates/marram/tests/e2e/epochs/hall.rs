//! One cell that many clients of all edges share, and which has a backup. Its edge is killed, or stopped and woken; the clients do not
//! notice, and all hear the same.

use super::{
    guests::{Guest, finish},
    world::{Seen, World, layout},
};
use crate::support;
use marram_cluster::{AgentSide, free_address};
use std::net::SocketAddr;

const MANIFEST: &str = "cell = \"shared\"\nprotect = \"epoch\"\n";
/// Pieces that every guest must have heard of before and after each fault.
const SOME: u64 = 5;

/// Edges with the hall, and the guests of two agents.
struct Hall {
    world: World,
    agents: [SocketAddr; 2],
    guests: Vec<Guest>,
}

impl Hall {
    fn new(purpose: &'static str, timeouts: &str, epoch: &str) -> Self {
        let rest = format!("{MANIFEST}[epoch]\n{epoch}\n");
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
    fn join(&mut self, count: usize) {
        for _ in 0..count {
            let seed = self.guests.len();
            self.guests.push(Guest::start(self.agents[seed % 2], seed as u64));
        }
    }

    /// Waits until all guests have heard of more that they said.
    fn hear(&self) {
        let why =
            || format!("{:?}\n{}", self.world.seen_by(&self.world.all()), self.world.cluster.logs.tail(400));
        self.guests.iter().for_each(|guest| guest.hear(SOME, why));
    }

    /// The cell, once it has a backup.
    fn backed(&self) -> Seen {
        self.world.backed(1).into_values().next().unwrap()
    }

    fn finish(self) {
        let failed = self.world.cluster.logs.count(0, |event| event.name() == "failed");
        assert_eq!(failed, 0, "no session ended");
        finish(self.guests);
    }
}

/// Kills the cell's edge, again and again, and starts it again. A guest more comes each time.
fn killed(purpose: &'static str, guests: usize, kills: usize, epoch: &str) {
    let mut hall = Hall::new(purpose, support::UNSUSPECTING, epoch);
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
    killed("hall-kills", 4, kills, "every = \"1ms\"");
}

#[test]
fn a_hall_goes_on_from_pages_when_its_edge_is_killed() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 6);
    killed("hall-kills-pages", 4, kills, "every = \"1ms\"\nform = \"pages\"");
}

#[test]
fn a_hall_of_fifty_goes_on_when_its_edge_is_killed() {
    killed("hall-fifty", 50, 2, "every = \"1ms\"");
}

#[test]
fn a_hall_whose_edge_was_replaced_while_it_slept_is_not_there_twice() {
    const ROUNDS: usize = 3;
    let mut hall = Hall::new("hall-sleeps", support::PATIENT, "every = \"1ms\"");
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
    let mut hall = Hall::new("hall-others", support::UNSUSPECTING, "every = \"1ms\"");
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
