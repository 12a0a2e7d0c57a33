//! The owner's local invariants, by their numbers in docs/protocol.md: those that relate its parts, and those of each
//! part.

use super::{
    EpochRelease, Owner, OwnerPhase,
    client_port::PortPhase,
    end_state::{EndState, Message},
    ends::Ends,
    phase::Phase,
    protection::Protection,
    sides::Chore,
};
use crate::invariant::{BrokenInvariant, holds};
use alloc::collections::VecDeque;
use marram_wire::{id::Port, limits::charge};

/// Queues of more messages are not summed: an edge that has a long one to replay would never come to its end.
const SUMMED_MAX: usize = 1_024;

impl Owner {
    /// Checks I15, I19, I23, I28 to I30, I35, I37, I38, I42, I49, I51, I52, I55 and I56 of docs/protocol.md, as far as they relate fields of this
    /// owner.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        let runs = matches!(self.phase, Phase::Running | Phase::Finishing);
        holds!("I29", self.live.is_none_or(|live| live <= self.about.generation()));
        holds!("I29", !runs || self.live == Some(self.about.generation()));
        holds!("I29", !runs || self.follow.is_none());
        let may_run =
            matches!(self.phase, Phase::Running | Phase::Promising(_) | Phase::Detached | Phase::Confirming);
        holds!("I29", !self.runner.is_busy() || may_run);
        holds!("I38", (self.phase() == OwnerPhase::Following) <= self.follow.is_some());
        for side in self.ends.all() {
            side.invariants(self.follow.is_some())?;
            let linked = self.phase() == OwnerPhase::Running && side.channel.is_some();
            let protected = linked && self.about.keeps_log();
            holds!("I23", !protected || (self.log.floor()..=self.log.end()).contains(&side.known));
            holds!("I23", !linked || side.next == side.fed_end());
            holds!("I49", side.kept_from.is_none() || self.about.is_protected_for_now());
        }
        holds!("I51", !self.about.is_shared_cell() || self.epoch_release() != EpochRelease::Ahead);
        self.ends.client_invariants()?;
        self.chore_invariants()?;
        if let Phase::Promising(opening) = &self.phase {
            opening.invariants(&self.ends)?;
        }
        if let Some(follow) = &self.follow {
            follow.invariants(&self.ends, &self.log)?;
        }
        let lent = self.about.protection != Protection::Off;
        holds!("I49", !lent || !(self.about.policy.keeps.anything() || self.about.policy.shared));
        self.state.invariants()?;
        self.witness.invariants()?;
        let own = self.keep.as_ref().and_then(|keep| keep.log_floor());
        holds!("I28", own.is_none_or(|from| self.log.floor() <= from || self.follow.is_some()));
        self.checkpointer.invariants(&self.about, &self.log)?;
        self.recordings.invariants()?;
        self.replicas.invariants()
    }
}

impl Owner {
    /// I52: what is done only for sides that have changed is done for all.
    fn chore_invariants(&self) -> Result<(), BrokenInvariant> {
        if self.ends.ports.is_none() {
            return Ok(());
        }
        self.ends.queue_invariants()?;
        let kept_to = self.epochs.kept().log_offset;
        holds!("I56", self.ends.connections().iter().all(|side| side.is_asked_in_time(kept_to)));
        let (last, kept) = (self.epochs.last(), self.epochs.kept());
        let (clients, window) = (self.ends.paused_clients(), self.ends.share.window());
        let runs = self.phase() == OwnerPhase::Running && !self.runner.is_busy();
        let may_send = self.phase() == OwnerPhase::Running && self.epoch_release() != EpochRelease::Held;
        for side in self.ends.all() {
            let has_changed = |chore| self.ends.has_changed(side, chore);
            holds!("I52", has_changed(Chore::Mark) || last.mark(side.port) == side.mark());
            holds!("I52", side.logged >= kept.mark(side.port).produced.min(side.produced));
            holds!("I52", has_changed(Chore::Send) || side.channel.is_none() || !side.has_output());
            // Whatever other ends do.
            holds!("I55", !may_send || side.channel.is_none() || !side.has_output());
            let is_owed = side.channel.is_some() && side.input_credit.due(window).is_some();
            let is_stopped = || self.state.pauses().stops(side.port, clients);
            holds!("I52", !runs || has_changed(Chore::Grant) || !is_owed || is_stopped());
            holds!("I52", has_changed(Chore::Look) || !(side.may_finish() || side.is_slow()));
            let is_much = kept.mark(side.port).uncovered >= side.forget_at();
            holds!("I52", !runs || has_changed(Chore::Measure) || !is_much);
            holds!("I52", has_changed(Chore::Forget) || kept.mark(side.port).uncovered == 0);
            let is_logged = has_changed(Chore::Log) || side.logged == side.produced;
            holds!("I52", self.follow.is_none() || is_logged);
        }
        Ok(())
    }
}

impl EndState {
    /// I15 and I30 of docs/protocol.md.
    fn invariants(&self, stands_by: bool) -> Result<(), BrokenInvariant> {
        let is_sum = |counted: u64, messages: &VecDeque<Message>| {
            let sum = || messages.iter().map(|message| charge(message.payload.len())).sum::<u64>();
            messages.len() > SUMMED_MAX || counted == sum()
        };
        holds!("I30", self.outbox.len() as u64 <= self.produced && self.sent <= self.outbox.len());
        holds!("I30", is_sum(self.inputs_charge, &self.inputs));
        holds!("I30", is_sum(self.outbox_charge, &self.outbox));
        let sent = self.outbox.iter().take(self.sent.min(SUMMED_MAX));
        let sent: u64 = sent.map(|message| charge(message.payload.len())).sum();
        holds!("I30", self.sent > SUMMED_MAX || self.unsent_charge + sent == self.outbox_charge);
        holds!("I15", stands_by || self.logged <= self.produced);
        holds!("I15", stands_by || self.acknowledged() + self.sent as u64 <= self.logged);
        Ok(())
    }
}

impl Ends {
    /// I52 of docs/protocol.md.
    fn client_invariants(&self) -> Result<(), BrokenInvariant> {
        let Some(list) = &self.ports else { return Ok(()) };
        holds!("I52", self.all().map(|side| side.port).is_sorted_by(|one, next| one < next));
        holds!("I52", list.entering.iter().all(|side| self.index(side.port).is_none()));
        for side in self.all().chain(&list.entering) {
            let Some(client) = &side.client else { continue };
            holds!("I52", side.port != Port::SERVER);
            holds!("I52", side.channel.is_none() || client.phase == PortPhase::Linked);
            holds!("I52", client.client.generation <= client.asked);
        }
        Ok(())
    }
}
