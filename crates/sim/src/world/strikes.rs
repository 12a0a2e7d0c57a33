//! Faults as they happen. Every one of them heals by itself.

use super::{Ambush, Event, Seat, Way, World};
use crate::{
    plan::{MS, On, Place, Strike, US, When},
    watch::Rare,
};
use marram_edge::control::{self, ControlRequest};

impl World {
    /// The others follow the first one.
    pub(crate) fn first_strike(&mut self, strike: Strike, here: Option<Seat>) {
        self.watch.count_if(Rare::RunningSessionStruck, self.hits_a_running_session(strike, here));
        for fault in self.plan.faults.clone() {
            match fault.when {
                When::After(after_ns) => self.queue.after(after_ns, Event::Strike(fault.strike, None)),
                When::On(On { moment, skip, delay_ns }) => {
                    self.ambushes.push(Ambush { moment, skip, delay_ns, strike: fault.strike });
                }
            }
        }
        self.strike(strike, here);
    }

    /// Whether a session that an end has an owner of depends on what is struck.
    fn hits_a_running_session(&self, strike: Strike, here: Option<Seat>) -> bool {
        let (agent, place) = match strike {
            Strike::CrashEdge { place, .. }
            | Strike::CrashShard { place }
            | Strike::FreezeEdge { place, .. }
            | Strike::Drain { place, .. }
            | Strike::JumpClock { place, .. }
            | Strike::Kill { place } => (None, Some(place)),
            Strike::CutWires { agent, place }
            | Strike::CutOneSide { agent, place, .. }
            | Strike::Silence { agent, place, .. } => (Some(agent), Some(place)),
            Strike::FreezeAgent { agent, .. } | Strike::CrashAgent { agent } => (Some(agent), None),
        };
        let edge = place.map(|place| self.place(place, here));
        let concerned = |index: usize| agent.is_none_or(|agent| agent == index);
        let agents = self.agents.iter().enumerate().filter(|(index, _)| concerned(*index));
        let mut owners =
            agents.flat_map(|(_, node)| node.owned()).map(|session| self.watch.owner_of(session));
        owners.any(|owner| owner.is_some_and(|owner| edge.is_none_or(|edge| edge == owner.edge)))
    }

    pub(crate) fn strike(&mut self, strike: Strike, here: Option<Seat>) {
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
                let any = self.chance.index(self.edges[edge].shards.len());
                let seat = here.filter(|here| here.edge == edge && place == Place::Here);
                let seat = seat.unwrap_or(Seat { edge, shard: any });
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
                let request = control::ControlInput::Request { tag: 0, request: ControlRequest::Drain };
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

    fn place(&self, place: Place, here: Option<Seat>) -> usize {
        let owner = self.watch.owner().map_or(0, |seat| seat.edge);
        match place {
            Place::Edge(edge) => edge,
            Place::Here => here.map_or(owner, |seat| seat.edge),
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
