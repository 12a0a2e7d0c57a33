//! Edges that agents and edges learn of: in some seeds not every agent has the whole list. Agents hear of the other edges from those
//! in their list, and edges of one another from agents. One edge may say what is not so.

use super::Plan;
use crate::random::Random;

/// How much of the list each process has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Learning {
    /// So many edges, the first ones, are in the list of each agent.
    pub configured: Vec<usize>,
    /// Whether edges have no list, and learn of one another from agents.
    pub edges_learn: bool,
    /// The edge that lies about the others.
    pub liar: Option<usize>,
    /// Whether agents list edges by the addresses that these tell.
    pub same_addresses: bool,
}

/// In a quarter of the seeds in which edges dial one another.
pub(super) fn draw(plan: &Plan) -> Option<Learning> {
    let mut random = Random::new(plan.seed, 71);
    let edges = plan.shards.len();
    if !random.percent(25) || edges < 2 || !plan.connects_edges() {
        return None;
    }
    // At least one agent knows all, or edges could not hear of one another.
    let all = random.index(plan.agents());
    let configured =
        (0..plan.agents()).map(|agent| if agent == all { edges } else { 1 + random.index(edges) }).collect();
    let liar = random.percent(50).then(|| random.index(edges));
    let edges_learn = random.percent(50);
    Some(Learning { configured, edges_learn, liar, same_addresses: random.percent(50) })
}

impl Plan {
    /// Whether edges dial those that they learn of.
    #[must_use]
    pub fn edges_learn(&self) -> bool {
        self.learning.as_ref().is_some_and(|learning| learning.edges_learn)
    }

    /// How many edges are in the list of each edge: all or none.
    #[must_use]
    pub fn dialled_edges(&self) -> usize {
        let lists = self.connects_edges() && !self.edges_learn();
        if lists { self.shards.len() } else { 0 }
    }
}
