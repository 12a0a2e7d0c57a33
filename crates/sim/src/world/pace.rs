//! How fast a shard moves sessions onto an edge that has joined: judged at the moment in which each move begins.

use crate::{plan::S, position::ShardPosition};
use marram_shard::shard::Shard;
use marram_wire::id::SessionId;
use std::collections::BTreeSet;

/// What was seen of a shard's pass. Times are those of the shard.
#[derive(Debug, Default)]
pub(super) struct PassPace {
    /// When it began.
    begun_ns: u64,
    /// The sessions that it moves.
    moving: BTreeSet<SessionId>,
    /// When the move of one began last.
    last_ns: Option<u64>,
}

impl PassPace {
    /// After a step of the shard, whose policy allows so many moves in a second. Returns what is wrong. A move that comes to nothing in the
    /// step in which it begins is not seen.
    pub(super) fn judge(&mut self, now_ns: u64, per_s: u32, machine: &Shard) -> Option<String> {
        let (begun_ns, moving) = machine.rebalancing()?;
        if begun_ns != self.begun_ns {
            *self = Self { begun_ns, ..Self::default() };
        }
        let moving: BTreeSet<SessionId> = moving.collect();
        let begin = moving.difference(&self.moving).count();
        let since_ns = self.last_ns.map(|last_ns| now_ns - last_ns);
        self.moving = moving;
        if begin == 0 {
            return None;
        }
        self.last_ns = Some(now_ns);
        let is_early = since_ns.is_some_and(|since_ns| since_ns < S / u64::from(per_s));
        (begin > 1 || is_early).then(|| {
            format!("begins {begin} moves {since_ns:?} ns behind the one before, at {per_s} in a second")
        })
    }
}

impl super::World {
    /// After a step of a shard at this time of its own.
    pub(super) fn judge_pace(&mut self, position: ShardPosition, now_ns: u64) {
        let node = &mut self.edges[position.edge].shards[position.shard];
        let Some(machine) = node.machine.as_ref().filter(|machine| machine.rebalancing().is_some()) else {
            return;
        };
        let Some(elastic) = self.plan.elastic() else { return };
        let wrong = node.pace.judge(now_ns, elastic.per_s, machine);
        self.violations.extend(wrong.map(|wrong| format!("{position} {wrong}")));
    }
}
