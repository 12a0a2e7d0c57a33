//! The edge drains: its shards are told, and it can stop once all of them are empty. A drain can be cancelled until then.

use super::{Control, ControlAnswer, ControlOutput, ControlRequest};
use crate::api::{DrainCancelled, Tag, ToShard};
use alloc::vec::Vec;

impl Control {
    /// Asked again, it changes nothing.
    pub(super) fn begin_drain(&mut self, out: &mut Vec<ControlOutput>) -> ControlAnswer {
        self.drains += u64::from(!self.draining);
        self.draining = true;
        self.tell_all(&ToShard::Drain(Tag { tag: self.drains }), out);
        if self.up.is_empty() {
            out.push(ControlOutput::Drained);
        }
        ControlAnswer::Done
    }

    /// New sessions are accepted from now on. The shards answer with what is left.
    pub(super) fn cancel_drain(&mut self, tag: u64, out: &mut Vec<ControlOutput>) {
        self.draining = false;
        self.drained.clear();
        self.ask(tag, ControlRequest::CancelDrain, &ToShard::CancelDrain(Tag { tag }), out);
    }

    /// A shard is empty, after the drain of this number. If that was cancelled meanwhile, it may have sessions again.
    pub(super) fn shard_drained(&mut self, shard: u8, tag: u64, out: &mut Vec<ControlOutput>) {
        if self.draining && tag == self.drains {
            self.drained(shard, out);
        }
    }

    /// What a shard had left when its drain was cancelled.
    pub(super) fn drain_cancelled(&mut self, shard: u8, left: &DrainCancelled, out: &mut Vec<ControlOutput>) {
        if let Some(question) = self.questions.get_mut(&left.tag) {
            question.drain.add(left);
            self.answered(left.tag, shard, out);
        }
    }

    /// A shard is empty, or dead: then nothing is left of its sessions either.
    pub(super) fn drained(&mut self, shard: u8, out: &mut Vec<ControlOutput>) {
        let new = self.drained.insert(shard);
        if new && self.up.iter().all(|shard| self.drained.contains(shard)) {
            out.push(ControlOutput::Drained);
        }
    }
}

impl DrainCancelled {
    /// Adds what another shard has said.
    fn add(&mut self, other: &Self) {
        let Self { tag: _, stay, moves, handed_over } = other;
        self.stay += stay;
        self.moves += moves;
        self.handed_over += handed_over;
    }
}
