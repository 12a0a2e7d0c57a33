//! The scenario of an owner that renews its standby in vain (`plan::Renewal`): which processes reach one another at each step.
//!
//! ```text
//! step         client and server --  owner   standby   third
//! Mute                               down x   x         ok        third is cut off from owner and standby
//! Part                               x        x         ok
//! ThirdDies                          x        x         crashed
//! Return                             up       x         crashed
//! OwnerDies                          crashed  up        crashed
//! Over                               everything heals, when its time has come
//! ```
//! A step follows from a moment or a time; if one does not occur, the seed is an ordinary one and
//! heals all the same.

use super::{Direction, Event, ShardPosition, TriggeredFault, World};
use crate::plan::{FaultKind, FaultTarget, Moment, RenewalStep, S};

/// How long edges that crashed are away: longer than the rest of the scenario takes.
const AWAY_NS: u64 = 12 * S;
/// When everything is reached again, whatever came of the scenario.
const OVER_NS: u64 = 10 * S;

/// What was found when the scenario began, and what has not ended. Edges by their index.
#[derive(Clone, Debug)]
pub(super) struct ScenarioState {
    owner: usize,
    standby: usize,
    third: usize,
    /// The silences that have not ended: between which row of callers and which edge, in which direction.
    silences: Vec<(usize, usize, Direction)>,
}

impl World {
    /// Takes one step. Steps after the first do nothing if the scenario never began.
    pub(super) fn renew_in_vain(&mut self, step: RenewalStep, here: Option<ShardPosition>) {
        if step == RenewalStep::Mute {
            return self.mute(here);
        }
        let (Some(mut state), Some(times)) = (self.renewal.take(), self.plan.renewal) else { return };
        let agents = 0..self.agents.len();
        let owner = state.owner;
        match step {
            RenewalStep::Mute => {}
            RenewalStep::Part => {
                for agent in agents {
                    self.lose_wires(agent, owner);
                    self.silence(&mut state, agent, owner, Direction::Up);
                }
            }
            RenewalStep::ThirdDies => {
                self.crash_edge(state.third, times.loud, AWAY_NS);
                let back = FaultKind::RenewInVain(RenewalStep::Return);
                self.queue.after(times.lost_ns, Event::InjectFault(back, None));
            }
            RenewalStep::Return => {
                self.end_silences(&mut state, |row, edge| edge == owner && agents.contains(&row));
                let dies = FaultKind::RenewInVain(RenewalStep::OwnerDies);
                // The second of the two ends has promised, and the owner has not received that.
                self.wait_for(Moment::Promised, 1, 0, dies);
            }
            RenewalStep::OwnerDies => {
                self.crash_edge(owner, false, AWAY_NS);
                let standby = state.standby;
                self.end_silences(&mut state, |row, edge| edge == standby && agents.contains(&row));
            }
            RenewalStep::Over => self.end_silences(&mut state, |_, _| true),
        }
        self.renewal = Some(state);
    }

    /// The first step. Without a standby there is no such scenario, and the owner just crashes.
    fn mute(&mut self, here: Option<ShardPosition>) {
        let Some(times) = self.plan.renewal else { return };
        let owner = here.or(self.watch.owner()).map_or(0, |position| position.edge);
        let standby = self.watch.standby().filter(|standby| *standby != owner);
        let third =
            standby.and_then(|standby| (0..self.edges.len()).find(|it| ![owner, standby].contains(it)));
        let Some((standby, third)) = standby.zip(third) else {
            let crash = FaultKind::CrashEdge { place: FaultTarget::Edge(owner), loud: true, for_ns: S };
            return self.inject_fault(crash, here);
        };
        let mut state = ScenarioState { owner, standby, third, silences: Vec::new() };
        let agents = self.agents.len();
        for agent in 0..agents {
            self.silence(&mut state, agent, owner, Direction::Down);
        }
        // No end reaches the standby, and the third edge finds none.
        let apart = (0..agents).map(|agent| (agent, standby));
        for (row, edge) in apart.chain([owner, standby].map(|edge| (agents + edge, third))) {
            self.cut(row, edge, [true, true]);
            self.silence(&mut state, row, edge, Direction::Up);
            self.silence(&mut state, row, edge, Direction::Down);
        }
        self.renewal = Some(state);
        let part = FaultKind::RenewInVain(RenewalStep::Part);
        self.queue.after(times.silent_ns, Event::InjectFault(part, None));
        // The third edge has sent the chosen log to both ends.
        self.wait_for(Moment::Chosen, 1, times.held_ns, FaultKind::RenewInVain(RenewalStep::ThirdDies));
        self.queue.after(OVER_NS, Event::InjectFault(FaultKind::RenewInVain(RenewalStep::Over), None));
    }

    /// Adds a fault that waits for a moment.
    fn wait_for(&mut self, moment: Moment, skip: u64, delay_ns: u64, kind: FaultKind) {
        self.triggered.push(TriggeredFault { moment, skip, delay_ns, kind });
    }

    /// Silences one direction between a caller's row and an edge, until the scenario ends it.
    fn silence(&mut self, state: &mut ScenarioState, row: usize, edge: usize, direction: Direction) {
        self.silences[direction as usize][row][edge] += 1;
        state.silences.push((row, edge, direction));
    }

    /// Ends the silences that `which` picks, by row and edge.
    fn end_silences(&mut self, state: &mut ScenarioState, which: impl Fn(usize, usize) -> bool) {
        let all = std::mem::take(&mut state.silences);
        for (row, edge, direction) in all {
            if which(row, edge) {
                self.heal(row, edge, direction);
            } else {
                state.silences.push((row, edge, direction));
            }
        }
    }
}
