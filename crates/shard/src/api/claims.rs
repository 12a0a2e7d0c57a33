//! Claims on replication groups and questions about slots, between a shard and the coordinator (docs/protocol-epochs.md).

use crate::coordinator::{
    Ask, AskAnswer, SlotHeld, SlotName, SlotRecord,
    contents::{Claimed, Subject},
};
use alloc::{format, string::String};
use marram_wire::{frame::GroupId, record};

record! {
    /// A change of a group's record.
    GroupClaim {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
        /// The group.
        group: GroupId,
        /// Whether it is the group of a slot's cells, whose record has another key.
        of_slot: bool,
        /// The record that it has, as far as the asker knows; none if it has none yet.
        from: Option<Claimed>,
        /// The record that it is to have; none if it is over.
        to: Option<Claimed>,
    }
}

impl GroupClaim {
    /// The question to the coordinator.
    #[must_use]
    pub fn ask(self) -> Ask {
        let subject =
            if self.of_slot { Subject::of_slot_group(self.group) } else { Subject::of_group(self.group) };
        Ask::Claim { subject, from: self.from, to: self.to }
    }
}

record! {
    /// Whether a group's record was changed.
    ClaimAnswer {
        /// As in the request.
        tag: u64,
        /// Whether it was.
        won: bool,
        /// If so, of a slot's group: the identity of the store, unless it was written before and the answer got lost.
        store: Option<[u8; 16]>,
        /// If not: its record, if there is one.
        holder: Option<Claimed>,
        /// Why it is not known; for people.
        away: Option<String>,
    }
}

/// Why an answer decides nothing.
fn undecided(answer: AskAnswer) -> String {
    match answer {
        AskAnswer::Away(why) | AskAnswer::Refused(why) => why,
        other => format!("the coordinator answered {other:?}"),
    }
}

impl ClaimAnswer {
    /// What the coordinator has answered to the claim with this tag. A refusal is no decision: the store may have lost some, which an
    /// operator must accept first.
    #[must_use]
    pub fn of(tag: u64, answer: AskAnswer) -> Self {
        let store = if let AskAnswer::WonIn(store) = answer { Some(store) } else { None };
        let (won, holder, away) = match answer {
            AskAnswer::Won | AskAnswer::WonIn(_) => (true, None, None),
            AskAnswer::Lost(holder) => (false, holder, None),
            other => (false, None, Some(undecided(other))),
        };
        Self { tag, won, store, holder, away }
    }
}

record! {
    /// Which group has a slot's cell? The slot is taken if it has none, or the record is changed, and the question says so.
    SlotQuery {
        /// The slot.
        slot: SlotName,
        /// The record that it is to have, if it has none or `from`.
        take: Option<SlotRecord>,
        /// The record that it has, of a cell that is lost; or, without `take`, of one that is over: then it is removed.
        from: Option<SlotRecord>,
    }
}

impl SlotQuery {
    /// The question to the coordinator.
    #[must_use]
    pub fn ask(self) -> Ask {
        Ask::Slot { name: self.slot, take: self.take, from: self.from }
    }
}

record! {
    /// Which group has a slot's cell. It repeats the question: an incarnation is random, so a shard never takes the answer to a
    /// former life's question for that to its own.
    SlotAnswer {
        /// The slot.
        slot: SlotName,
        /// The record that it was to have,
        take: Option<SlotRecord>,
        /// in place of this one, or of none.
        from: Option<SlotRecord>,
        /// Whether it has that.
        won: bool,
        /// If not: the one that it has, and who holds its group; none if it has none.
        held: Option<SlotHeld>,
        /// Why it is not known; for people.
        away: Option<String>,
    }
}

impl SlotAnswer {
    /// What the coordinator has answered to a question. A refusal is no decision, as for a claim.
    #[must_use]
    pub fn of(query: SlotQuery, answer: AskAnswer) -> Self {
        let (won, held, away) = match answer {
            AskAnswer::Won => (true, None, None),
            AskAnswer::Slot(held) => (false, held, None),
            other => (false, None, Some(undecided(other))),
        };
        let SlotQuery { slot, take, from } = query;
        Self { slot, take, from, won, held, away }
    }
}
