//! Injects faults. All of them heal without help.
//!
//! A fault is only ever an event in the world around the machines: a process that stops, a wire
//! that breaks, a clock that jumps. No fault changes a machine's state or its frames; that is what
//! `lies` and `liars` do.

use super::{Direction, Event, ShardPosition, TriggeredFault, World};
use crate::{
    plan::{FaultKind, FaultTarget, MS, On, US, When},
    watch::Rare,
};
use marram_shard::control::{self, ControlRequest};

impl World {
    /// Injects the first fault and schedules the others after it.
    pub(crate) fn inject_first_fault(&mut self, fault: FaultKind, here: Option<ShardPosition>) {
        self.watch.count_if(Rare::RunningSessionStruck, self.hits_a_running_session(fault, here));
        for fault in self.plan.faults.clone() {
            match fault.when {
                When::After(after_ns) => self.queue.after(after_ns, Event::InjectFault(fault.kind, None)),
                When::On(On { moment, skip, delay_ns }) => {
                    self.triggered.push(TriggeredFault { moment, skip, delay_ns, kind: fault.kind });
                }
            }
        }
        self.inject_fault(fault, here);
    }

    /// Whether a session with an owner, as an end knows it, depends on the target of the fault.
    ///
    /// Counted so that the batch can demand that nearly all first faults hit something (`main`).
    fn hits_a_running_session(&self, fault: FaultKind, here: Option<ShardPosition>) -> bool {
        let (agent, place) = match fault {
            FaultKind::CrashEdge { place, .. }
            | FaultKind::CrashShard { place }
            | FaultKind::FreezeEdge { place, .. }
            | FaultKind::Drain { place, .. }
            | FaultKind::JumpClock { place, .. }
            | FaultKind::Move { place, .. }
            | FaultKind::Kill { place } => (None, Some(place)),
            FaultKind::CutWires { agent, place }
            | FaultKind::CutOneSide { agent, place, .. }
            | FaultKind::Silence { agent, place, .. } => (Some(agent), Some(place)),
            FaultKind::FreezeAgent { agent, .. } | FaultKind::CrashAgent { agent } => (Some(agent), None),
            FaultKind::RenewInVain(_) => (None, Some(FaultTarget::Here)),
            FaultKind::CoordinatorAway { .. } => (None, None),
        };
        // A session depends on its standby, too.
        let place = place.filter(|place| *place != FaultTarget::Standby || self.watch.standby().is_none());
        let edge = place.map(|place| self.place(place, here));
        let concerned = |index: usize| agent.is_none_or(|agent| agent == index);
        let agents = self.agents.iter().enumerate().filter(|(index, _)| concerned(*index));
        let mut owners =
            agents.flat_map(|(_, node)| node.owned()).map(|session| self.watch.owner_of(session));
        owners.any(|owner| owner.is_some_and(|owner| edge.is_none_or(|edge| edge == owner.edge)))
    }

    ///
    /// Faults of edges that are already down do nothing, except a crash, which is repeated: it
    /// makes them stay away for longer.
    pub(crate) fn inject_fault(&mut self, fault: FaultKind, here: Option<ShardPosition>) {
        self.faults_injected += 1;
        self.is_disturbed |= !matches!(fault, FaultKind::Move { .. } | FaultKind::CoordinatorAway { .. });
        let tag = self.faults_injected;
        self.note(&[7, tag], &[], || format!("FAULT {fault:?}, here {here:?}"));
        match fault {
            FaultKind::CrashEdge { place, loud, for_ns } => {
                let edge = self.place(place, here);
                self.crash_edge(edge, loud, for_ns);
            }
            FaultKind::CrashShard { place } => {
                let edge = self.place(place, here);
                let any = self.chance.index(self.edges[edge].shards.len());
                let position = here.filter(|here| here.edge == edge && place == FaultTarget::Here);
                let position = position.unwrap_or(ShardPosition { edge, shard: any });
                if self.shard(position).is_up() {
                    self.crash_shard(position, true);
                    self.restart_shard(position);
                }
            }
            FaultKind::FreezeEdge { place, for_ns } => {
                let edge = self.place(place, here);
                if self.edges[edge].is_up() {
                    self.freeze_edge(edge, for_ns);
                }
            }
            FaultKind::CutWires { agent, place } => {
                let edge = self.place(place, here);
                self.cut(agent, edge, [true, true]);
            }
            FaultKind::CutOneSide { agent, place, agent_told } => {
                let edge = self.place(place, here);
                self.cut(agent, edge, [!agent_told, agent_told]);
            }
            FaultKind::Silence { agent, place, up, down, for_ns } => {
                let edge = self.place(place, here);
                for (direction, silenced) in [(Direction::Up, up), (Direction::Down, down)] {
                    if silenced {
                        self.silences[direction as usize][agent][edge] += 1;
                        self.queue.after(for_ns, Event::Heal(agent, edge, direction));
                    }
                }
            }
            FaultKind::Drain { place, for_ns, cancel_ns } => {
                self.drain(self.place(place, here), (for_ns, cancel_ns))
            }
            FaultKind::JumpClock { place, by_ns } => {
                let edge = self.place(place, here);
                self.edges[edge].skew_ns += by_ns;
            }
            FaultKind::FreezeAgent { agent, for_ns } => self.freeze_agent(agent, for_ns),
            FaultKind::CrashAgent { agent } => self.crash_agent(agent),
            FaultKind::Kill { place } => {
                let edge = self.place(place, here);
                self.ask_to_kill(edge);
            }
            FaultKind::Move { place, by, cancel_ns, replaces, backup } => {
                let edge = self.place(place, here);
                self.ask_to_move(edge, by, cancel_ns, (replaces, backup));
            }
            FaultKind::CoordinatorAway { absence, for_ns } => self.store_away(absence, for_ns),
            FaultKind::RenewInVain(step) => self.renew_in_vain(step, here),
        }
    }

    fn drain(&mut self, edge: usize, (for_ns, cancel_ns): (u64, Option<u64>)) {
        self.backups_leave(edge);
        let life = self.edges[edge].life;
        let ask = |request| Event::Control(edge, life, control::ControlInput::Request { tag: 0, request });
        self.queue.after(0, ask(ControlRequest::Drain));
        if let Some(cancel_ns) = cancel_ns {
            return self.queue.after(cancel_ns, ask(ControlRequest::CancelDrain));
        }
        // When the time has passed it is stopped like any process, drained or not.
        let restart = FaultKind::CrashEdge { place: FaultTarget::Edge(edge), loud: true, for_ns: 10 * MS };
        self.queue.after(for_ns, Event::InjectFault(restart, None));
    }

    /// The edge that a target means now. `here` is where the moment was observed.
    fn place(&self, place: FaultTarget, here: Option<ShardPosition>) -> usize {
        let owner = self.watch.owner().map_or(0, |position| position.edge);
        match place {
            FaultTarget::Edge(edge) => edge,
            FaultTarget::Here => here.map_or(owner, |position| position.edge),
            FaultTarget::Owner => owner,
            FaultTarget::Behind(places) => (owner + places) % self.edges.len(),
            FaultTarget::Standby => self.watch.standby().unwrap_or(owner),
            FaultTarget::MoveTarget => self.watch.moved_to().unwrap_or(owner),
        }
    }

    /// Breaks the wires between an agent and an edge; `told`: whether the edge, and whether the
    /// agent, learns of it. Both wires of a pair break at times of their own, so one side may know
    /// long before the other.
    pub(super) fn cut(&mut self, agent: usize, edge: usize, told: [bool; 2]) {
        for wire in 0..self.wires.len() {
            let of = &self.wires[wire];
            if of.row != agent || of.position.edge != edge {
                continue;
            }
            for (direction, told) in [(Direction::Up, told[0]), (Direction::Down, told[1])] {
                if told && self.wires[wire].is_open(direction) {
                    let within_ns = self.chance.magnitude(US, 5 * MS);
                    self.break_wire(wire, direction, within_ns);
                }
            }
        }
    }
}
