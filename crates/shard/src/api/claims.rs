//! Claims on replication groups, between a shard and the coordinator (docs/protocol-epochs.md).

use crate::coordinator::{
    Ask, AskAnswer,
    contents::{Claimed, Subject},
};
use alloc::{format, string::String};
use core::fmt::Write;
use marram_wire::{frame::GroupId, record};

record! {
    /// A change of a group's record.
    GroupClaim {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
        /// The group.
        group: GroupId,
        /// The record that it has, as far as the asker knows; none if it has none yet.
        from: Option<Claimed>,
        /// The record that it is to have; none if it is over.
        to: Option<Claimed>,
    }
}

/// A group's name at the coordinator.
pub(crate) fn name_of(group: GroupId) -> String {
    let mut name = String::new();
    for byte in group {
        write!(name, "{byte:02x}").expect("writing to a string never fails");
    }
    name
}

impl GroupClaim {
    /// The question to the coordinator.
    #[must_use]
    pub fn ask(self) -> Ask {
        Ask::Claim { subject: Subject::Group(name_of(self.group)), from: self.from, to: self.to }
    }
}

record! {
    /// Whether a group's record was changed.
    ClaimAnswer {
        /// As in the request.
        tag: u64,
        /// Whether it was.
        won: bool,
        /// If not: its record, if there is one.
        holder: Option<Claimed>,
        /// Why it is not known; for people.
        away: Option<String>,
    }
}

impl ClaimAnswer {
    /// What the coordinator has answered to the claim with this tag. A refusal is no decision: the store may have lost some, which an
    /// operator must accept first.
    #[must_use]
    pub fn of(tag: u64, answer: AskAnswer) -> Self {
        let (won, holder, away) = match answer {
            AskAnswer::Won => (true, None, None),
            AskAnswer::Lost(holder) => (false, holder, None),
            AskAnswer::Away(why) | AskAnswer::Refused(why) => (false, None, Some(why)),
            other => (false, None, Some(format!("the coordinator answered {other:?}"))),
        };
        Self { tag, won, holder, away }
    }
}
