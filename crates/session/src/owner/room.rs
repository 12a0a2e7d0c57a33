//! Room for checkpoints: which ends keep them, how much these still take, and what is reported if one does not fit
//! (docs/protocol.md, "Checkpoints", Room).

use super::{Holder, OwnerPolicy, about::About, checkpointer::Checkpointer, ends::Ends};
use alloc::{string::String, vec::Vec};
use marram_wire::{frame::CheckpointKind, id::Port};

/// Whether the end at this port keeps checkpoints.
fn is_holder(policy: &OwnerPolicy, port: Port) -> bool {
    match policy.holder {
        Holder::Client => port == Port::CLIENT,
        Holder::Server => port == Port::SERVER,
        Holder::Both => true,
    }
}

/// The sides that keep checkpoints, by their index.
pub(super) fn holders(policy: &OwnerPolicy, ends: &Ends) -> Vec<usize> {
    (0..ends.len()).filter(|index| is_holder(policy, ends[*index].port)).collect()
}

/// Whether every holder is linked: a checkpoint can be sent to it.
pub(super) fn holders_are_linked(policy: &OwnerPolicy, ends: &Ends) -> bool {
    ends.iter().all(|side| side.channel.is_some() || !is_holder(policy, side.port))
}

/// The size of a further checkpoint that every holder has room for, in bytes: a chain is kept until the checkpoint that replaces
/// it is complete.
pub(super) fn room(policy: &OwnerPolicy, ends: &Ends) -> u64 {
    let left = |index: &usize| ends[*index].checkpoints_max.saturating_sub(ends[*index].checkpoint_bytes);
    holders(policy, ends).iter().map(left).min().unwrap_or(0)
}

impl Checkpointer {
    /// No checkpoint fits beside what the holders keep: what to report, if it was not reported yet.
    pub(super) fn refuse(&mut self, size: u64, room: u64) -> Option<String> {
        let is_new = !core::mem::replace(&mut self.is_refused, true);
        is_new.then(|| {
            alloc::format!(
                "it needs about {size} bytes, and an end has room for {room} beside those \
                 that it keeps; raise limits.checkpoints of the agents and edges"
            )
        })
    }

    /// Deltas are merged because no full checkpoint fits: what to report, if it was not reported yet.
    pub(super) fn merges(&mut self, about: &About, ends: &Ends) -> Option<String> {
        let is_new = !core::mem::replace(&mut self.is_merging, true);
        is_new.then(|| {
            alloc::format!(
                "a full one may need {} bytes, and an end has room for {} beside those that it keeps; deltas are merged \
                 instead, which costs more; raise limits.checkpoints of the agents and edges",
                self.full_size + self.delta_size + self.last_delta_size,
                room(&about.policy, ends),
            )
        })
    }

    /// Whether every holder has room for the sealed copy. Otherwise its size is the estimate for the next one.
    pub(super) fn fits(&mut self, about: &About, ends: &Ends, size: u64) -> Result<(), String> {
        let max = about.policy.checkpoints_max;
        let room = match &self.apart {
            // A backup restores a cell from it, and keeps no copy.
            Some(_) if about.has_backup() => u64::MAX,
            Some(_) => max,
            None => room(&about.policy, ends),
        };
        if size <= room {
            return Ok(());
        }
        if self.apart.is_some() {
            return Err(alloc::format!(
                "another edge needs a checkpoint of {size} bytes, and limits.checkpoints of this one is {max}"
            ));
        }
        match self.taken.as_ref().map(|taken| taken.kind) {
            Some(CheckpointKind::Full) => self.full_size = size,
            Some(CheckpointKind::Merged) => self.merged_size = size,
            Some(CheckpointKind::Delta) | None => {}
        }
        Err(alloc::format!(
            "a checkpoint has {size} bytes, and an end has room for {room} beside those that it keeps; raise \
             limits.checkpoints of the agents and edges"
        ))
    }
}
