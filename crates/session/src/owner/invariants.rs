//! The owner's local invariants, by their numbers in docs/protocol.md.

use super::{EndState, Owner, OwnerPhase};
use crate::invariant::{BrokenInvariant, holds};
use marram_wire::limits::charge;

impl Owner {
    /// Checks I15, I19, I23, I28 to I30, I35, I37 and I38 of docs/protocol.md, as far as they relate fields of this owner.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        let runs = matches!(self.phase, OwnerPhase::Running | OwnerPhase::Finishing);
        holds!("I29", self.live.is_none_or(|live| live <= self.generation));
        holds!("I29", !runs || self.live == Some(self.generation));
        holds!("I29", !runs || self.follow.is_none());
        let may_run =
            matches!(self.phase, OwnerPhase::Running | OwnerPhase::Promising | OwnerPhase::Detached);
        holds!("I29", self.running.is_none() || may_run);
        holds!("I38", (self.phase == OwnerPhase::Following) <= self.follow.is_some());
        for side in &self.sides {
            side.invariants(self.follow.is_some())?;
            let linked = self.phase == OwnerPhase::Running && side.channel.is_some();
            let protected = linked && self.policy.keep;
            holds!("I23", !protected || (self.log.floor <= side.known && side.known <= self.log.end()));
            holds!("I23", !linked || side.next == side.fed_end());
        }
        if let Some(follow) = &self.follow {
            holds!("I38", follow.received.len() == self.sides.len());
            holds!("I38", follow.arriving.as_ref().is_none_or(|(meta, got)| *got <= meta.size));
        }
        self.timers.invariants()?;
        self.tasks.invariants()?;
        self.witness.invariants()?;
        self.checkpointer.invariants()?;
        self.replicas.invariants()
    }
}

impl EndState {
    fn invariants(&self, stands_by: bool) -> Result<(), BrokenInvariant> {
        let charge_of = |messages: &mut dyn Iterator<Item = &super::end_state::Message>| {
            messages.map(|message| charge(message.payload.len())).sum::<u64>()
        };
        holds!("I30", self.outbox.len() as u64 <= self.produced && self.sent <= self.outbox.len());
        holds!("I30", self.inputs_charge == charge_of(&mut self.inputs.iter()));
        holds!("I30", self.outbox_charge == charge_of(&mut self.outbox.iter()));
        holds!("I15", stands_by || self.logged <= self.produced);
        holds!("I15", stands_by || self.acknowledged() + self.sent as u64 <= self.logged);
        Ok(())
    }
}
