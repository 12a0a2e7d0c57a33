//! Slots: where the one cell of a protected shared app is, as far as this shard knows, and how it takes a slot that has no record
//! (docs/protocol-epochs.md, "Slots"). It sends nothing: it gives the questions for the coordinator, and takes the answers.
//!
//! ```text
//! look: Ask --answered: a record--> Known (for a second) --look--> Ask ..
//!                 |
//!                 no record --> Free --begin_taking--> the group is claimed --group_claimed--> the slot is taken --won--> Own
//!                                (the cell is there, unopened)                                      |             --lost--> Known
//! a backup is promoted: --promoted--> Own, or, if its log is empty, --take_promoted-----------------^
//! ```
//!
//! A shard may take a slot while it backs another edge that takes it too. If it is promoted for that one's empty cell, this waits for
//! the answer that is on its way, which decides about both groups.
//!
//! A hello for a cell that is not here calls [`Slots::look`]. A slot has one question in flight. A question that takes the slot is asked
//! again until its answer has come, by [`Slots::due`]; another one by the next `look`. An answer names what was to be written, which has
//! a random part, so what a former life of this shard has asked is not taken for a question of this one.

use super::asked::AskedClaim;
use crate::{
    api::{SlotAnswer, SlotQuery},
    coordinator::{SlotHeld, SlotName, SlotRecord},
};
use alloc::{collections::BTreeMap, string::String, vec, vec::Vec};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::frame::GroupId;

/// Clients are led by an answer that is younger than this, in nanoseconds. While the coordinator does not answer, an older one does:
/// where it leads, a client learns more.
pub(crate) const SLOT_FRESH_NS: u64 = 1_000_000_000;
/// Slots that one shard knows. Of further ones the answer that is the oldest is forgotten.
pub(crate) const SLOTS_MAX: usize = 1_024;
/// Questions about slots need no tag.
const NO_TAG: u64 = 0;

/// What an end that asks for the cell of a slot is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// The slot is this shard's: this group has the cell.
    Own(GroupId),
    /// The cell is where the record says. The question, if there is one, is to be sent.
    Known(SlotHeld, Option<SlotQuery>),
    /// The slot had no record just before: it may be taken.
    Free,
    /// Nothing is known, or nothing new: the end waits, and this is to be sent.
    Ask(SlotQuery),
    /// A question is on its way, or the slot is being taken here: the end waits.
    Waits,
}

/// What the answer to a question means for the cell that is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SlotNews {
    /// The slot is this shard's, with this record: its cell may be opened.
    Won { slot: SlotName, record: SlotRecord },
    /// Another group has it: the cell in this one is dropped. No slot will ever name this group.
    Lost { slot: SlotName, group: GroupId },
    /// The coordinator gave no answer, and why.
    Unanswered { slot: SlotName, why: String },
}

/// What is to be done for the empty cell of a group that this shard was promoted for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Promoted {
    /// This is to be sent.
    Ask(SlotQuery),
    /// The slot is being taken for another group: the answer says more.
    Waits,
    /// Another group of this shard has the slot: the cell is dropped. No slot will ever name this group.
    Lost,
}

/// What the coordinator said, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    at_ns: u64,
    held: Option<SlotHeld>,
}

/// One slot.
#[derive(Debug)]
enum SlotState {
    /// Its cell is not here, as far as is known.
    Elsewhere { known: Option<Known>, asked: Option<AskedClaim<()>> },
    /// It is being taken: first its group is claimed, then this record is written. `waiting`: groups that this shard was promoted for,
    /// with empty cells. One of them may have the slot already.
    Taking { record: SlotRecord, asked: Option<AskedClaim<()>>, waiting: Vec<SlotRecord> },
    /// This group has it.
    Own(GroupId),
}

impl SlotState {
    /// The groups of this shard that have the slot, or are to have it.
    fn groups(&self) -> Vec<GroupId> {
        match self {
            Self::Elsewhere { .. } => Vec::new(),
            Self::Taking { record, waiting, .. } => {
                core::iter::once(record).chain(waiting).map(|record| record.group).collect()
            }
            Self::Own(group) => vec![*group],
        }
    }

    /// The slot has this record. Returns what that means for the groups here that were to have it.
    fn decided(&mut self, now_ns: u64, slot: SlotName, held: SlotHeld) -> Vec<SlotNews> {
        let record = held.record.clone();
        let groups = self.groups();
        let is_own = groups.contains(&record.group);
        let lost = groups.into_iter().filter(|group| *group != record.group);
        let mut news: Vec<SlotNews> = lost.map(|group| SlotNews::Lost { slot, group }).collect();
        *self = if is_own {
            let group = record.group;
            news.push(SlotNews::Won { slot, record });
            Self::Own(group)
        } else {
            Self::Elsewhere { known: Some(Known { at_ns: now_ns, held: Some(held) }), asked: None }
        };
        news
    }

    /// What an end is told, and whether the coordinator is to be asked.
    fn look(&mut self, now_ns: u64, slot: SlotName) -> Look {
        let (known, asked) = match self {
            Self::Own(group) => return Look::Own(*group),
            Self::Taking { .. } => return Look::Waits,
            Self::Elsewhere { known, asked } => (known, asked),
        };
        let is_fresh = |known: &&Known| now_ns < known.at_ns.saturating_add(SLOT_FRESH_NS);
        match known.as_ref().filter(is_fresh) {
            Some(Known { held: Some(held), .. }) => return Look::Known(held.clone(), None),
            Some(Known { held: None, .. }) => return Look::Free,
            None => {}
        }
        let is_unanswered = asked.as_ref().is_some_and(|asked| asked.again_ns().is_some());
        let must_ask = asked.as_ref().is_none_or(|asked| asked.is_due(now_ns));
        if must_ask {
            asked.get_or_insert_with(|| AskedClaim::new(NO_TAG, ())).ask_again(NO_TAG);
        }
        let query = must_ask.then_some(SlotQuery { slot, take: None });
        let held = known.as_ref().and_then(|known| known.held.clone());
        match (held.filter(|_| is_unanswered), query) {
            (Some(held), query) => Look::Known(held, query),
            (None, Some(query)) => Look::Ask(query),
            (None, None) => Look::Waits,
        }
    }
}

/// The slots that this shard knows of.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    by_name: BTreeMap<SlotName, SlotState>,
}

impl Slots {
    /// An end asks for the cell of a slot, which is not here.
    pub(crate) fn look(&mut self, now_ns: u64, slot: SlotName) -> Look {
        if !self.by_name.contains_key(&slot) && !self.make_room() {
            return Look::Waits;
        }
        let fresh = || SlotState::Elsewhere { known: None, asked: None };
        self.by_name.entry(slot).or_insert_with(fresh).look(now_ns, slot)
    }

    /// Forgets an answer if there are too many. False if there is nothing to forget.
    fn make_room(&mut self) -> bool {
        if self.by_name.len() < SLOTS_MAX {
            return true;
        }
        let age = |(name, slot): (&SlotName, &SlotState)| match slot {
            SlotState::Elsewhere { known, asked: None } => {
                Some((known.as_ref().map(|known| known.at_ns), *name))
            }
            SlotState::Elsewhere { known, asked: Some(asked) } if asked.again_ns().is_some() => {
                Some((known.as_ref().map(|known| known.at_ns), *name))
            }
            _ => None,
        };
        let oldest = self.by_name.iter().filter_map(age).min();
        oldest.is_some_and(|(_, name)| self.by_name.remove(&name).is_some())
    }

    /// Begins to take a free slot. The cell with the record's id is here, unopened, in the record's group, which has no record yet.
    pub(crate) fn begin_taking(&mut self, slot: SlotName, record: SlotRecord) {
        let before =
            self.by_name.insert(slot, SlotState::Taking { record, asked: None, waiting: Vec::new() });
        assert!(matches!(before, Some(SlotState::Elsewhere { .. })), "a slot that is free is taken");
    }

    /// A claim of a group is won: if it is that of a slot which is being taken, this is to be sent.
    pub(crate) fn group_claimed(&mut self, group: GroupId) -> Option<SlotQuery> {
        self.by_name.iter_mut().find_map(|(slot, it)| match it {
            SlotState::Taking { record, asked: asked @ None, .. } if record.group == group => {
                *asked = Some(AskedClaim::new(NO_TAG, ()));
                Some(SlotQuery { slot: *slot, take: Some(record.clone()) })
            }
            _ => None,
        })
    }

    /// This shard was promoted for this group, and its cell has run before: the slot names it. Returns the groups that were to have it.
    pub(crate) fn promoted(&mut self, slot: SlotName, group: GroupId) -> Vec<SlotNews> {
        let before = self.by_name.insert(slot, SlotState::Own(group));
        let lost = before.map(|slot| slot.groups()).unwrap_or_default().into_iter();
        lost.filter(|other| *other != group).map(|group| SlotNews::Lost { slot, group }).collect()
    }

    /// This shard was promoted, and its cell has not run: the slot may have no record, one that names this group, or that of another
    /// one. `record` has a new incarnation, and the group that was claimed.
    ///
    /// To read the slot is not enough if it has no record: the former primary may still write one that names this group, so the group's
    /// record could not be removed.
    pub(crate) fn take_promoted(&mut self, slot: SlotName, record: SlotRecord) -> Promoted {
        match self.by_name.get_mut(&slot) {
            Some(SlotState::Own(own)) if *own != record.group => Promoted::Lost,
            Some(SlotState::Taking { waiting, .. }) => {
                waiting.push(record);
                Promoted::Waits
            }
            _ => {
                let query = SlotQuery { slot, take: Some(record.clone()) };
                let asked = Some(AskedClaim::new(NO_TAG, ()));
                self.by_name.insert(slot, SlotState::Taking { record, asked, waiting: Vec::new() });
                Promoted::Ask(query)
            }
        }
    }

    /// The group is another edge's, or its cell was dropped while this shard did not [keep](Self::keeps) its record.
    pub(crate) fn group_gone(&mut self, now_ns: u64, group: GroupId) {
        self.by_name.retain(|_, slot| match slot {
            SlotState::Elsewhere { .. } => true,
            SlotState::Own(own) => *own != group,
            SlotState::Taking { record, asked, waiting } => {
                waiting.retain(|record| record.group != group);
                if record.group != group {
                    return true;
                }
                let Some(next) = waiting.pop() else { return false };
                let mut ask = AskedClaim::new(NO_TAG, ());
                ask.unanswered(now_ns);
                (*record, *asked) = (next, Some(ask));
                true
            }
        });
    }

    /// Whether the record of this group must stay although it is empty: a slot names it, or may do so.
    pub(crate) fn keeps(&self, group: GroupId) -> bool {
        self.by_name.values().any(|slot| match slot {
            SlotState::Taking { record, asked: None, .. } if record.group == group => false,
            slot => slot.groups().contains(&group),
        })
    }

    /// The answer to a question. One that nothing here waits for is ignored.
    pub(crate) fn answered(&mut self, now_ns: u64, answer: SlotAnswer) -> Vec<SlotNews> {
        let SlotAnswer { slot, take, won, held, away } = answer;
        let Some(it) = self.by_name.get_mut(&slot) else { return Vec::new() };
        let asked = match it {
            SlotState::Elsewhere { asked: Some(asked), .. } if take.is_none() => asked,
            SlotState::Taking { record, asked: Some(asked), .. } if take.as_ref() == Some(record) => asked,
            _ => return Vec::new(),
        };
        let is_look = take.is_none();
        let own = take.filter(|_| won).map(|record| SlotHeld { record, holder: None });
        match (away, own.or(held)) {
            (None, Some(held)) => it.decided(now_ns, slot, held),
            (None, None) if is_look => {
                *it = SlotState::Elsewhere { known: Some(Known { at_ns: now_ns, held: None }), asked: None };
                Vec::new()
            }
            (away, _) => {
                asked.unanswered(now_ns);
                let why = away.unwrap_or_else(|| "the coordinator says neither yes nor no".into());
                vec![SlotNews::Unanswered { slot, why }]
            }
        }
    }

    /// Questions that take a slot and were not answered: they are to be sent again.
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<SlotQuery> {
        let mut due = Vec::new();
        for (slot, it) in &mut self.by_name {
            if let SlotState::Taking { record, asked: Some(asked), .. } = it
                && asked.is_due(now_ns)
            {
                asked.ask_again(NO_TAG);
                due.push(SlotQuery { slot: *slot, take: Some(record.clone()) });
            }
        }
        due
    }

    /// When [`Self::due`] has something.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let again = |slot: &SlotState| match slot {
            SlotState::Taking { asked, .. } => asked.as_ref()?.again_ns(),
            _ => None,
        };
        self.by_name.values().filter_map(again).min()
    }

    /// Checks I51 of docs/protocol.md, as far as it concerns slots: a group is to have one at most.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        let mut groups: Vec<GroupId> = self.by_name.values().flat_map(SlotState::groups).collect();
        let count = groups.len();
        groups.sort_unstable();
        groups.dedup();
        holds!("I51", groups.len() == count);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
