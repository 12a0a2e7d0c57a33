//! The replay budget of shards (I43), judged from what executors run and copy and not from what owners count.
//!
//! Sums, for each cell, how long its handlers took since its last copy. After each step the sum over
//! the cells of a shard must be within the shard's budget. Not counted: the share of each session,
//! and cells of which no checkpoint can be begun.

use crate::plan::Plan;
use marram_session::{
    cell::{CellId, CheckpointBase, Ran},
    owner::{OwnerPhase, REPLAY_SHARE_MIN_NS, REPLAY_SHARE_NS_PER_BYTE},
};
use marram_shard::{
    api::{ShardInput, ShardOutput},
    shard::Shard,
};
use marram_wire::{frame::Keeps, id::SessionId, limits::CHECKPOINTS_SIZE};
use std::collections::BTreeMap;

/// A cell of a shard.
#[derive(Debug)]
struct Spent {
    session: SessionId,
    since_copy_ns: u64,
    /// Size of its largest checkpoint: its share is at most that of one of this size.
    size_max: u64,
    /// Handlers that were begun and have not answered.
    running: u32,
    /// Checkpoints that its owner had begun for the budget when that was last looked at.
    for_budget: u64,
}

/// The cells of one shard.
#[derive(Debug, Default)]
pub(crate) struct ReplayJudge {
    cells: BTreeMap<CellId, Spent>,
}

/// How many checkpoints the owner of a session has begun for the budget.
fn begun_for_budget(shard: &Shard, session: SessionId) -> u64 {
    shard.owner(session).map_or(0, |owner| owner.totals().budget_checkpoints)
}

impl ReplayJudge {
    /// The shard gets this next.
    pub(crate) fn gets(&mut self, input: &ShardInput) {
        match input {
            ShardInput::Ran(Ran { cell, cost_ns, .. }) => {
                let Some(spent) = self.cells.get_mut(cell) else { return };
                spent.since_copy_ns += cost_ns;
                spent.running -= 1;
            }
            ShardInput::Checkpointed { cell, result: Ok(bytes), .. } => {
                let Some(spent) = self.cells.get_mut(cell) else { return };
                spent.size_max = spent.size_max.max(bytes.len() as u64);
            }
            _ => {}
        }
    }

    /// The executor is given this. True if it is a copy that the owner has made for the budget.
    pub(crate) fn gives(&mut self, shard: &Shard, out: &ShardOutput) -> bool {
        match out {
            ShardOutput::Start { cell, session: Some(session), .. } => {
                self.begins(shard, *cell, *session, 0);
            }
            ShardOutput::Restore { cell, session, checkpoints, .. } => {
                let size_max = checkpoints.iter().map(|checkpoint| checkpoint.size).max();
                self.begins(shard, *cell, *session, size_max.unwrap_or(0));
            }
            ShardOutput::Advance { cell, meta } => {
                let Some(spent) = self.cells.get_mut(cell) else { return false };
                spent.size_max = spent.size_max.max(meta.size);
            }
            ShardOutput::Run(run) => {
                if let Some(spent) = self.cells.get_mut(&run.cell) {
                    spent.running += 1;
                }
            }
            // One for keepers alone covers nothing.
            ShardOutput::Copy { base: CheckpointBase::Apart, .. } => {}
            ShardOutput::Copy { cell, .. } => {
                let Some(spent) = self.cells.get_mut(cell) else { return false };
                spent.since_copy_ns = 0;
                let for_budget = begun_for_budget(shard, spent.session);
                return std::mem::replace(&mut spent.for_budget, for_budget) < for_budget;
            }
            ShardOutput::Remove { cell } => {
                self.cells.remove(cell);
            }
            _ => {}
        }
        false
    }

    fn begins(&mut self, shard: &Shard, cell: CellId, session: SessionId, size_max: u64) {
        let for_budget = begun_for_budget(shard, session);
        self.cells.insert(cell, Spent { session, since_copy_ns: 0, size_max, running: 0, for_budget });
    }

    /// What is wrong after a step of the shard, if anything is.
    pub(crate) fn judge(&self, shard: &Shard, plan: &Plan) -> Option<String> {
        // Large cells have only their own targets, and an end may have no room for a checkpoint.
        if plan.replay_ns_max == 0 || plan.large || plan.checkpoints_max < CHECKPOINTS_SIZE {
            return None;
        }
        let counted_ns =
            |(cell, spent): (&CellId, &Spent)| counted_ns(*cell, spent, shard, plan.replay_ns_max);
        let sum_ns: u64 = self.cells.iter().map(counted_ns).sum();
        (sum_ns > plan.replay_ns_max).then(|| {
            let budget_ns = plan.replay_ns_max;
            format!(
                "I43: {sum_ns} ns of handlers could be covered and are not, with a budget of {budget_ns} ns"
            )
        })
    }
}

/// How much a cell must count for the budget: nothing while its owner cannot begin a checkpoint. While a handler
/// runs, the checkpoint waits for its end. If its target is longer than the budget, it counts in proportion.
fn counted_ns(cell: CellId, spent: &Spent, shard: &Shard, budget_ns: u64) -> u64 {
    let Some(owner) = shard.owner(spent.session).filter(|owner| owner.cell() == Some(cell)) else { return 0 };
    let can_begin = owner.policy().keeps == Keeps::All
        && owner.phase() == OwnerPhase::Running
        && spent.running == 0
        && !owner.incomplete()
        && !owner.is_handed_over()
        && !owner.is_checkpoint_under_way();
    let share_ns = REPLAY_SHARE_MIN_NS + spent.size_max * REPLAY_SHARE_NS_PER_BYTE;
    let above_ns = if can_begin { spent.since_copy_ns.saturating_sub(share_ns) } else { 0 };
    let target_ns = owner.policy().recovery_target_ns;
    // Rounded to less than the proportion.
    if target_ns <= budget_ns { above_ns } else { above_ns / (target_ns / budget_ns + 1) }
}
