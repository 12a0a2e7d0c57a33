//! Shards with little memory: what they may keep of outputs, and what they may grant their ends.

use crate::{plan::Plan, watch::Rare, world::World};
use marram_session::owner::{Owner, OwnerPhase};
use marram_shard::shard::Shard;
use marram_wire::{
    frame::{Code, Frame},
    limits::{
        INPUT_WINDOW, INPUT_WINDOW_MIN, OUTPUT_WINDOW, OUTPUT_WINDOW_MIN, RETAINED_MIN, STREAM_CUT, charge,
    },
};

/// More than the outputs of one entry, in bytes of charge: the cell rests only when they are there.
const OUTPUTS_OF_ENTRY: u64 = 2 * charge(STREAM_CUT);

/// What a shard of this plan may grant an end at a time.
pub(super) fn input_window(plan: &Plan) -> u64 {
    match plan.shard_memory_max {
        0 => INPUT_WINDOW,
        // With one session.
        max => (max / 4).clamp(INPUT_WINDOW_MIN, INPUT_WINDOW),
    }
}

/// What an agent of this plan may let an edge have in flight to one of its ends: with one session.
pub(super) fn output_window(plan: &Plan) -> u64 {
    (plan.memory_max / 4).clamp(OUTPUT_WINDOW_MIN, OUTPUT_WINDOW)
}

/// After a step of a shard: how many cells rest, and what an owner keeps of outputs beyond its share, if any does.
pub(super) fn judge(shard: &Shard, plan: &Plan) -> (usize, Option<String>) {
    let max = plan.shard_memory_max;
    if max == 0 {
        return (0, None);
    }
    let slowed = shard.owners().filter(|owner| owner.is_slowed()).count();
    // An eighth of what is free, at most.
    let may = (max / 8).max(RETAINED_MIN) + OUTPUTS_OF_ENTRY;
    // What a standby has replayed, and what is replayed at a recovery, are not held back.
    let runs = |owner: &&Owner| owner.phase() == OwnerPhase::Running;
    let most = shard.owners().filter(runs).map(Owner::outbox_bytes).max().unwrap_or(0);
    let excess =
        (most > may).then(|| format!("I46: an owner keeps {most} bytes of outputs, and may keep {may}"));
    (slowed, excess)
}

impl World {
    /// A shard sends a frame: is it a refusal for want of memory?
    pub(super) fn count_refusal(&mut self, frame: &Frame) {
        let refused = matches!(
            frame,
            Frame::Reject(reject) if reject.code == Code::Busy && reject.reason.contains("limits.memory")
        );
        self.watch.count_if(Rare::ShardMemoryFull, refused);
    }
}
