//! Inputs of a shard's machine, several of which can come together, and the checks that each such batch gets.

use super::{
    Event, World,
    edges::{EPOCH_NS, words},
    memory,
};
use crate::{plan::US, position::ShardPosition, watch::Rare};
use marram_shard::{
    api::{Now, ShardInput, ShardOutput, ToShard},
    shard::Shard,
};

/// Every so many inputs of a shard begin a batch, in seeds with batches: what comes within that time is settled together.
const BATCH_EACH: u64 = 3;
const BATCH_NS: u64 = 50 * US;

impl World {
    /// Gives a shard's machine an input. As in its shell several can come together; the last of them settles what is due.
    pub(crate) fn give_shard(&mut self, position: ShardPosition, input: ShardInput) {
        let now_ns = self.queue.now_ns();
        let has_batches = self.plan.batches;
        let node = self.shard_mut(position);
        if node.machine.is_none() {
            return;
        }
        node.handled += 1;
        let ends_batch = matches!(input, ShardInput::Wake);
        let begins = has_batches && node.handled.is_multiple_of(BATCH_EACH) && !ends_batch;
        if begins && !node.unsettled {
            node.unsettled = true;
            let life = node.life;
            self.queue.after(BATCH_NS, Event::ShardSettle(position, life));
        }
        if !matches!(
            input,
            ShardInput::Frame { .. }
                | ShardInput::Ran(_)
                | ShardInput::Wake
                | ShardInput::Control(ToShard::List(_))
        ) {
            self.trace.say(now_ns, || format!("{position} <- {}", words(&input)));
        }
        self.shard_mut(position).replay.gets(&input);
        self.drive_shard(position, |machine, now, out| machine.handle(now, input, out));
        if ends_batch || !self.shard(position).unsettled {
            self.settle_shard(position);
        }
    }

    /// The end of what came together, with the checks that each gets.
    pub(crate) fn settle_shard(&mut self, position: ShardPosition) {
        self.shard_mut(position).unsettled = false;
        self.drive_shard(position, Shard::settle);
        let each = self.checked_each;
        let node = self.shard_mut(position);
        let has_ended_move = std::mem::take(&mut node.ended_move);
        if (has_ended_move || node.handled.is_multiple_of(each))
            && let Some(Err(broken)) = self.shard(position).machine().map(Shard::invariants)
        {
            self.violations.push(format!("{position}: {broken}"));
        }
        self.note_confirmed(position);
        let node = self.shard(position);
        if let Some(wrong) = node.machine().and_then(|machine| node.replay.judge(machine, &self.plan)) {
            self.violations.push(format!("{position}: {wrong}"));
        }
        let judged = self.shard(position).machine().map(|machine| memory::judge(machine, &self.plan));
        let (slowed, excess) = judged.unwrap_or_default();
        self.watch.counts.add(Rare::CellSlowed, slowed as u64);
        self.violations.extend(excess.map(|excess| format!("{position}: {excess}")));
    }

    /// Calls a shard's machine, and carries out what it wants.
    fn drive_shard(
        &mut self,
        position: ShardPosition,
        call: impl FnOnce(&mut Shard, Now, &mut Vec<ShardOutput>),
    ) {
        let now_ns = self.queue.now_ns();
        let edge = &mut self.edges[position.edge];
        let node = &mut edge.shards[position.shard];
        let Some(machine) = &mut node.machine else { return };
        let elapsed_ns = i64::try_from(now_ns).expect("a short history");
        let now = Now { mono_ns: now_ns + node.origin_ns, unix_ns: EPOCH_NS + elapsed_ns + edge.skew_ns };
        let mut out = Vec::new();
        let (limited, crossed) = (machine.copies_waiting(), machine.policy_crossings());
        call(machine, now, &mut out);
        self.watch.count_if(Rare::PolicyCrossed, machine.policy_crossings() > crossed);
        self.watch.count_if(Rare::MoveLimited, machine.copies_waiting() > limited);
        self.trace.collect(now_ns, || position.to_string());
        self.judge_pace(position, now.mono_ns);
        for out in out {
            self.shard_out(position, out);
        }
    }
}
