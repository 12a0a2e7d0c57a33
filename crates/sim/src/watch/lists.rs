//! The checkpoints that each end keeps, from the frames alone, and what each of them builds on, from the executor: so a delta on another state
//! than the one before it in an end's list is found when the end has it, and not only when a recovery needs it.

use crate::executor::Copied;
use marram_wire::{
    frame::{CheckpointKind, CheckpointMeta, Frame},
    id::{Generation, SessionId},
};
use std::collections::BTreeMap;

/// An end: its agent, its session, and whether it is the server's.
pub(super) type End = (usize, SessionId, bool);

/// The lists of all ends.
#[derive(Debug, Default)]
pub(super) struct Lists {
    copied: BTreeMap<(SessionId, Generation, u32), Copied>,
    kept: BTreeMap<End, Vec<CheckpointMeta>>,
    /// By wire and channel, the checkpoint that arrives at an end.
    arriving: BTreeMap<(usize, u32), CheckpointMeta>,
}

impl Lists {
    /// A checkpoint of this number was sealed.
    pub(super) fn sealed(
        &mut self,
        (session, generation, number): (SessionId, Generation, u32),
        copied: Copied,
    ) {
        self.copied.insert((session, generation, number), copied);
    }

    /// A frame reaches an end.
    pub(super) fn arrived(&mut self, wire: usize, frame: &Frame) {
        if let Frame::CheckpointBegin(begin) = frame {
            self.arriving.insert((wire, begin.channel), begin.meta.clone());
        }
    }

    /// An end sends a frame. Returns what is wrong with the checkpoint that it has stored.
    pub(super) fn sent(&mut self, wire: usize, end: End, frame: &Frame) -> Option<String> {
        match frame {
            Frame::Promised(promised) => {
                self.kept.insert(end, promised.checkpoints.clone());
                let partial = promised.partial.as_ref().map(|partial| partial.meta.clone());
                self.arriving.extend(partial.map(|meta| ((wire, promised.channel), meta)));
                None
            }
            Frame::Stored(stored) => {
                let meta = self.arriving.get(&(wire, stored.channel))?;
                if stored.complete != Some(meta.number) {
                    return None;
                }
                let meta = self.arriving.remove(&(wire, stored.channel))?;
                self.stored(end, meta)
            }
            _ => None,
        }
    }

    /// An end has a checkpoint, which comes behind those that it builds on.
    fn stored(&mut self, end: End, meta: CheckpointMeta) -> Option<String> {
        let list = self.kept.entry(end).or_default();
        match meta.kind {
            CheckpointKind::Full => list.clear(),
            CheckpointKind::Merged => list.truncate(1),
            CheckpointKind::Delta => {}
        }
        let copied = |meta: &CheckpointMeta| self.copied.get(&(end.1, meta.generation, meta.number));
        let (base, on) = (list.last().and_then(copied), copied(&meta).and_then(|copied| copied.on));
        let fits = base.zip(on).is_none_or(|(base, on)| base.state == on);
        let wrong = (!fits).then(|| {
            format!("an end of {} has {meta:?}, which builds on another state than {:?}", end.1, list.last())
        });
        list.push(meta);
        wrong
    }

    /// An agent's process died, with its ends.
    pub(super) fn agent_died(&mut self, agent: usize) {
        self.kept.retain(|(of, ..), _| *of != agent);
    }
}
