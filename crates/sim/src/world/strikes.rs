//! Faults as they happen. Every one of them heals by itself.

use super::{Event, Seat, Way, World};
use crate::plan::{MS, Place, Strike, US};
use marram_edge::control::{self, Request};

impl World {
    pub(crate) fn strike(&mut self, strike: Strike, here: Option<usize>) {
        self.strikes += 1;
        let tag = self.strikes;
        self.note(&[7, tag], &[], || format!("STRIKE {strike:?}, here {here:?}"));
        match strike {
            Strike::CrashEdge { place, loud, for_ns } => {
                let edge = self.place(place, here);
                self.crash_edge(edge, loud, for_ns);
            }
            Strike::CrashShard { place } => {
                let edge = self.place(place, here);
                let seat = Seat { edge, shard: self.chance.index(self.edges[edge].shards.len()) };
                if self.shard(seat).is_up() {
                    self.crash_shard(seat, true);
                    self.restart_shard(seat);
                }
            }
            Strike::FreezeEdge { place, for_ns } => {
                let edge = self.place(place, here);
                if self.edges[edge].is_up() {
                    self.freeze_edge(edge, for_ns);
                }
            }
            Strike::CutWires { agent, place } => {
                let edge = self.place(place, here);
                self.cut(agent, edge, [true, true]);
            }
            Strike::CutOneSide { agent, place, agent_told } => {
                let edge = self.place(place, here);
                self.cut(agent, edge, [!agent_told, agent_told]);
            }
            Strike::Silence { agent, place, up, down, for_ns } => {
                let edge = self.place(place, here);
                for (way, silenced) in [(Way::Up, up), (Way::Down, down)] {
                    if silenced {
                        self.silences[way as usize][agent][edge] += 1;
                        self.queue.after(for_ns, Event::Heal(agent, edge, way));
                    }
                }
            }
            Strike::Drain { place, for_ns } => {
                let edge = self.place(place, here);
                let life = self.edges[edge].life;
                let request = control::In::Request { tag: 0, request: Request::Drain };
                self.queue.after(0, Event::Control(edge, life, request));
                // When its time is up it is stopped like any process, drained or not.
                let restart = Strike::CrashEdge { place: Place::Edge(edge), loud: true, for_ns: 10 * MS };
                self.queue.after(for_ns, Event::Strike(restart, None));
            }
            Strike::JumpClock { place, by_ns } => {
                let edge = self.place(place, here);
                self.edges[edge].skew_ns += by_ns;
            }
            Strike::FreezeAgent { agent, for_ns } => self.freeze_agent(agent, for_ns),
            Strike::CrashAgent { agent } => self.crash_agent(agent),
            Strike::Kill { place } => {
                let edge = self.place(place, here);
                self.ask_to_kill(edge);
            }
        }
    }

    fn place(&self, place: Place, here: Option<usize>) -> usize {
        let owner = self.watch.owner().unwrap_or(0);
        match place {
            Place::Edge(edge) => edge,
            Place::Here => here.unwrap_or(owner),
            Place::Owner => owner,
        }
    }

    /// Breaks the wires between an agent and an edge; `told`: the edge, the agent.
    fn cut(&mut self, agent: usize, edge: usize, told: [bool; 2]) {
        for wire in 0..self.wires.len() {
            let of = &self.wires[wire];
            if of.row != agent || of.seat.edge != edge {
                continue;
            }
            for (way, told) in [(Way::Up, told[0]), (Way::Down, told[1])] {
                if told && self.wires[wire].is_open(way) {
                    let within_ns = self.chance.magnitude(US, 5 * MS);
                    self.break_wire(wire, way, within_ns);
                }
            }
        }
    }
}
