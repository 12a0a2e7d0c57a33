//! Slots: where the one cell of a protected shared app is, as far as this shard knows, and how it takes a slot that has no record, or
//! one of a cell that is lost, and gives it back (docs/protocol-epochs.md, "Slots"). It sends nothing: it gives the questions for the coordinator, and takes the answers.
//!
//! ```text
//! look: Ask --answered: a record--> Known (for a second) --look--> Ask ..
//!                 |
//!                 no record --> Free --begin_taking--> the group is claimed --group_claimed--> the slot is taken --won--> Own
//!                                (the cell is there, unopened)                                      |             --lost--> Known
//! a backup is promoted: --take_promoted--------------------------------------------------------------^
//! Own --again: the store may have lost the record--> its group is claimed again, and so on
//! Own --remove: no client needs the cell--> Leaving --removed--> nothing is known
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
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec,
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::frame::GroupId;

/// Clients are led by an answer that is younger than this, in nanoseconds. While the coordinator does not answer, an older one does:
/// where it leads, a client learns more.
pub(crate) const SLOT_FRESH_NS: u64 = 1_000_000_000;
/// Slots that one shard knows: its own, and those of which it has an answer or waits for one. Of further ones the answer that is the oldest
/// is forgotten. It is enough for all slots of sixteen apps, which are half of what an embedded store has room for.
pub const SLOTS_MAX: usize = 16_384;
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
    /// The shard has [`SLOTS_MAX`] slots, and all of them are its own, or are being asked for.
    Full,
}

/// What the answer to a question means for the cell that is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SlotNews {
    /// The slot is this shard's, with this record: its cell may be opened, or goes on if it `has_run` before. `was_lost`: the record
    /// replaces that of a cell that is lost.
    Won { slot: SlotName, record: SlotRecord, has_run: bool, was_lost: bool },
    /// Another group has it: the cell in this one, which may be one that `has_run`, is dropped. No slot will ever name this group.
    Lost { slot: SlotName, group: GroupId, has_run: bool },
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

/// A record that a slot is to have, for a group of this shard.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Taker {
    record: SlotRecord,
    /// Whether its cell has run.
    has_run: bool,
    /// Whether the store may have the record, or another one that names its group.
    may_stand: bool,
}

impl Taker {
    /// For a cell that begins here, and has not been asked for.
    fn begins(record: SlotRecord) -> Self {
        Self { record, has_run: false, may_stand: false }
    }
}

/// One slot.
#[derive(Debug)]
enum SlotState {
    /// Its cell is not here, as far as is known.
    Elsewhere { known: Option<Known>, asked: Option<AskedClaim<()>> },
    /// It is being taken: first its group is claimed, then this record is written, in place of none or of `from`. `waiting`: groups that
    /// this shard was promoted for. One of them may have the slot already.
    Taking { taker: Taker, from: Option<SlotRecord>, asked: Option<AskedClaim<()>>, waiting: Vec<Taker> },
    /// It has this record.
    Own(SlotRecord),
    /// Its cell has ended for good: first its group is claimed without a backup, which may not know that; then this record is removed.
    Leaving { record: SlotRecord, asked: Option<AskedClaim<()>> },
}

impl SlotState {
    /// The groups of this shard that have the slot, or are to have it, and whether the cell of each has run.
    fn groups(&self) -> Vec<(GroupId, bool)> {
        match self {
            Self::Elsewhere { .. } => Vec::new(),
            Self::Taking { taker, waiting, .. } => {
                let takers = core::iter::once(taker).chain(waiting);
                takers.map(|taker| (taker.record.group, taker.has_run)).collect()
            }
            Self::Own(record) | Self::Leaving { record, .. } => vec![(record.group, true)],
        }
    }

    /// Since when its answer is known, if it can be forgotten.
    fn forgettable_since(&self) -> Option<Option<u64>> {
        match self {
            Self::Elsewhere { known, asked } if asked.as_ref().is_none_or(|it| it.again_ns().is_some()) => {
                Some(known.as_ref().map(|known| known.at_ns))
            }
            _ => None,
        }
    }

    /// Whether it is being taken or given back.
    fn is_changing(&self) -> bool {
        matches!(self, Self::Taking { .. } | Self::Leaving { .. })
    }

    /// The slot has this record. Returns what that means for the groups here that were to have it.
    fn decided(&mut self, now_ns: u64, slot: SlotName, held: SlotHeld) -> Vec<SlotNews> {
        let record = held.record.clone();
        let mut news = Vec::new();
        let mut won = None;
        for (group, has_run) in self.groups() {
            if group == record.group {
                won = Some(has_run);
            } else {
                news.push(SlotNews::Lost { slot, group, has_run });
            }
        }
        let was_lost = matches!(self, Self::Taking { from: Some(_), .. });
        *self = if let Some(has_run) = won {
            news.push(SlotNews::Won { slot, record: record.clone(), has_run, was_lost });
            Self::Own(record)
        } else {
            Self::Elsewhere { known: Some(Known { at_ns: now_ns, held: Some(held) }), asked: None }
        };
        news
    }

    /// The question that writes the record or removes it, if it is this state's turn to ask one.
    fn query(&self, slot: SlotName) -> Option<SlotQuery> {
        match self {
            Self::Taking { taker, from, .. } => {
                Some(SlotQuery { slot, take: Some(taker.record.clone()), from: from.clone() })
            }
            Self::Leaving { record, .. } => Some(SlotQuery { slot, take: None, from: Some(record.clone()) }),
            Self::Elsewhere { .. } | Self::Own(_) => None,
        }
    }

    /// The question of that kind that was asked.
    fn asked(&mut self) -> Option<&mut AskedClaim<()>> {
        match self {
            Self::Taking { asked, .. } | Self::Leaving { asked, .. } => asked.as_mut(),
            Self::Elsewhere { .. } | Self::Own(_) => None,
        }
    }

    /// What an end is told, and whether the coordinator is to be asked.
    fn look(&mut self, now_ns: u64, slot: SlotName) -> Look {
        let (known, asked) = match self {
            Self::Own(record) => return Look::Own(record.group),
            Self::Taking { .. } | Self::Leaving { .. } => return Look::Waits,
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
        let query = must_ask.then_some(SlotQuery { slot, take: None, from: None });
        let held = known.as_ref().and_then(|known| known.held.clone());
        match (held.filter(|_| is_unanswered), query) {
            (Some(held), query) => Look::Known(held, query),
            (None, Some(query)) => Look::Ask(query),
            (None, None) => Look::Waits,
        }
    }
}

/// The slots that this shard knows of. A shard may have thousands: what happens often looks at none but its own.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    by_name: BTreeMap<SlotName, SlotState>,
    /// The slot of each group of this shard that has one, or is to have it.
    of_group: BTreeMap<GroupId, SlotName>,
    /// Those that are being taken or given back.
    changing: BTreeSet<SlotName>,
    /// Groups whose slots have changed since this was asked.
    changed: Vec<GroupId>,
    /// Those that can be forgotten, with the time of the answer.
    forgettable: BTreeSet<(Option<u64>, SlotName)>,
}

impl Slots {
    /// An end asks for the cell of a slot, which is not here.
    pub(crate) fn look(&mut self, now_ns: u64, slot: SlotName) -> Look {
        if !self.by_name.contains_key(&slot) && !self.make_room() {
            return Look::Full;
        }
        let fresh = || SlotState::Elsewhere { known: None, asked: None };
        self.change(slot, |slots| slots.entry(slot).or_insert_with(fresh).look(now_ns, slot))
    }

    /// Groups whose slots have changed since the last time.
    pub(crate) fn take_changed(&mut self) -> Vec<GroupId> {
        core::mem::take(&mut self.changed)
    }

    /// Changes a slot, and the tables that must agree with it.
    fn change<T>(&mut self, slot: SlotName, call: impl FnOnce(&mut BTreeMap<SlotName, SlotState>) -> T) -> T {
        if let Some(it) = self.by_name.get(&slot) {
            for (group, _) in it.groups() {
                self.of_group.remove(&group);
                self.changed.push(group);
            }
            self.changing.remove(&slot);
            if let Some(at_ns) = it.forgettable_since() {
                self.forgettable.remove(&(at_ns, slot));
            }
        }
        let result = call(&mut self.by_name);
        if let Some(it) = self.by_name.get(&slot) {
            self.changed.extend(it.groups().into_iter().map(|(group, _)| group));
            self.of_group.extend(it.groups().into_iter().map(|(group, _)| (group, slot)));
            self.changing.extend(Some(slot).filter(|_| it.is_changing()));
            self.forgettable.extend(it.forgettable_since().map(|at_ns| (at_ns, slot)));
        }
        result
    }

    /// The slot that this group has, or is to have.
    fn slot_of(&self, group: GroupId) -> Option<(SlotName, &SlotState)> {
        let slot = *self.of_group.get(&group)?;
        Some((slot, self.by_name.get(&slot)?))
    }

    /// Forgets an answer if there are too many. False if there is nothing to forget.
    fn make_room(&mut self) -> bool {
        if self.by_name.len() < SLOTS_MAX {
            return true;
        }
        let oldest = self.forgettable.pop_first();
        oldest.is_some_and(|(_, name)| self.by_name.remove(&name).is_some())
    }

    /// Begins to take a free slot, or one with the record `from` of a cell that is lost. The cell with the record's id is here, unopened,
    /// in the record's group, which is not claimed yet.
    pub(crate) fn begin_taking(&mut self, slot: SlotName, record: SlotRecord, from: Option<SlotRecord>) {
        let taker = Taker { may_stand: from.is_some(), ..Taker::begins(record) };
        let taking = SlotState::Taking { taker, from, asked: None, waiting: Vec::new() };
        let before = self.change(slot, |slots| slots.insert(slot, taking));
        assert!(
            matches!(before, Some(SlotState::Elsewhere { .. })),
            "a slot of which no cell is here is taken"
        );
    }

    /// A claim of a group is won: if it is that of a slot which is being taken or given back, this is to be sent.
    pub(crate) fn group_claimed(&mut self, group: GroupId) -> Option<SlotQuery> {
        let slot = *self.of_group.get(&group)?;
        self.changed.push(group);
        let it = self.by_name.get_mut(&slot)?;
        match it {
            SlotState::Taking { taker, asked: asked @ None, .. } if taker.record.group == group => {
                *asked = Some(AskedClaim::new(NO_TAG, ()));
                taker.may_stand = true;
            }
            SlotState::Leaving { asked: asked @ None, .. } => *asked = Some(AskedClaim::new(NO_TAG, ())),
            _ => return None,
        }
        it.query(slot)
    }

    /// The store may have lost the record of this group's slot: it is written again when the group's next claim is won. It gets this new
    /// incarnation: an answer of what the store had before is none to that question.
    pub(crate) fn again(&mut self, group: GroupId, incarnation: [u8; 16]) {
        let Some(slot) = self.of_group.get(&group).copied() else { return };
        self.change(slot, |slots| match slots.get_mut(&slot) {
            Some(it @ SlotState::Own(_)) => {
                let record = SlotRecord { incarnation, group };
                let taker = Taker { record, has_run: true, may_stand: true };
                *it = SlotState::Taking { taker, from: None, asked: None, waiting: Vec::new() };
            }
            Some(SlotState::Taking { taker, asked, .. }) if taker.record.group == group => {
                (taker.record.incarnation, *asked) = (incarnation, None);
            }
            _ => {}
        });
    }

    /// The group of a slot that is this shard's.
    pub(crate) fn own(&self, slot: SlotName) -> Option<GroupId> {
        match self.by_name.get(&slot) {
            Some(SlotState::Own(record)) => Some(record.group),
            _ => None,
        }
    }

    /// The slot of this group, if the slot is this shard's.
    pub(crate) fn own_of(&self, group: GroupId) -> Option<SlotName> {
        let (slot, it) = self.slot_of(group)?;
        matches!(it, SlotState::Own(_)).then_some(slot)
    }

    /// The cell of a slot that is this shard's has ended, and no other one is to begin. Returns its group, which is to be claimed without a
    /// backup: then its record is removed.
    pub(crate) fn remove(&mut self, slot: SlotName) -> Option<GroupId> {
        self.change(slot, |slots| {
            let it = slots.get_mut(&slot)?;
            let SlotState::Own(record) = it else { return None };
            let group = record.group;
            *it = SlotState::Leaving { record: record.clone(), asked: None };
            Some(group)
        })
    }

    /// Whether the record of this group's slot is to be removed.
    pub(crate) fn is_leaving(&self, group: GroupId) -> bool {
        self.slot_of(group).is_some_and(|(_, it)| matches!(it, SlotState::Leaving { .. }))
    }

    /// This shard was promoted for a group, and its cell may be one that `has_run`. The slot may have no record, one that names this group,
    /// or that of another one. `record` has a new incarnation, and the group that was claimed.
    ///
    /// To read the slot is not enough if it has no record: the former primary may still write one that names this group, so the group's
    /// record could not be removed.
    pub(crate) fn take_promoted(&mut self, slot: SlotName, record: SlotRecord, has_run: bool) -> Promoted {
        let taker = Taker { record, has_run, may_stand: true };
        self.change(slot, |slots| match slots.get_mut(&slot) {
            Some(SlotState::Own(own) | SlotState::Leaving { record: own, .. })
                if own.group != taker.record.group =>
            {
                Promoted::Lost
            }
            Some(SlotState::Taking { waiting, .. }) => {
                waiting.push(taker);
                Promoted::Waits
            }
            _ => {
                let query = SlotQuery { slot, take: Some(taker.record.clone()), from: None };
                let asked = Some(AskedClaim::new(NO_TAG, ()));
                let taking = SlotState::Taking { taker, from: None, asked, waiting: Vec::new() };
                slots.insert(slot, taking);
                Promoted::Ask(query)
            }
        })
    }

    /// The group is another edge's, or its cell was dropped while this shard did not [keep](Self::keeps) its record.
    /// Returns the slot, which may be free now.
    pub(crate) fn group_gone(&mut self, now_ns: u64, group: GroupId) -> Option<SlotName> {
        let slot = *self.of_group.get(&group)?;
        self.change(slot, |slots| {
            let stays = match slots.get_mut(&slot) {
                Some(SlotState::Taking { taker, from, asked, waiting }) => {
                    waiting.retain(|taker| taker.record.group != group);
                    if taker.record.group != group {
                        return;
                    }
                    let next = waiting.pop();
                    let stays = next.is_some();
                    if let Some(next) = next {
                        let mut ask = AskedClaim::new(NO_TAG, ());
                        ask.unanswered(now_ns);
                        (*taker, *from, *asked) = (next, None, Some(ask));
                    }
                    stays
                }
                _ => false,
            };
            if !stays {
                slots.remove(&slot);
            }
        });
        Some(slot)
    }

    /// Whether the record of this group must stay although it is empty: a slot names it, or may do so.
    pub(crate) fn keeps(&self, group: GroupId) -> bool {
        match self.slot_of(group) {
            Some((_, SlotState::Taking { taker, .. })) if taker.record.group == group => taker.may_stand,
            slot => slot.is_some(),
        }
    }

    /// The answer to a question. One that nothing here waits for is ignored.
    pub(crate) fn answered(&mut self, now_ns: u64, answer: SlotAnswer) -> Vec<SlotNews> {
        self.change(answer.slot, |slots| Self::answer(slots, now_ns, answer))
    }

    fn answer(slots: &mut BTreeMap<SlotName, SlotState>, now_ns: u64, answer: SlotAnswer) -> Vec<SlotNews> {
        let SlotAnswer { slot, take, from, won, held, away } = answer;
        let Some(it) = slots.get_mut(&slot) else { return Vec::new() };
        let question = SlotQuery { slot, take, from };
        let is_look = question.take.is_none() && question.from.is_none();
        let is_own = it.query(slot).as_ref() == Some(&question);
        let asked = match it {
            SlotState::Elsewhere { asked: Some(asked), .. } if is_look => asked,
            SlotState::Taking { asked: Some(asked), .. } | SlotState::Leaving { asked: Some(asked), .. }
                if is_own =>
            {
                asked
            }
            _ => return Vec::new(),
        };
        if let Some(why) = away {
            asked.unanswered(now_ns);
            return vec![SlotNews::Unanswered { slot, why }];
        }
        if matches!(it, SlotState::Leaving { .. }) {
            // It is removed, or was another group's.
            slots.remove(&slot);
            return Vec::new();
        }
        let own = question.take.filter(|_| won).map(|record| SlotHeld { record, holder: None });
        match own.or(held) {
            Some(held) => it.decided(now_ns, slot, held),
            None if is_look => {
                *it = SlotState::Elsewhere { known: Some(Known { at_ns: now_ns, held: None }), asked: None };
                Vec::new()
            }
            None => {
                it.asked().into_iter().for_each(|asked| asked.unanswered(now_ns));
                let why = "the coordinator says neither yes nor no".into();
                vec![SlotNews::Unanswered { slot, why }]
            }
        }
    }

    /// Questions that take a slot or remove its record and were not answered: they are to be sent again.
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<SlotQuery> {
        let mut due = Vec::new();
        for slot in &self.changing {
            let Some(it) = self.by_name.get_mut(slot) else { continue };
            if let Some(asked) = it.asked().filter(|asked| asked.is_due(now_ns)) {
                asked.ask_again(NO_TAG);
                due.extend(it.query(*slot));
            }
        }
        due
    }

    /// When [`Self::due`] has something.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let again = |slot: &SlotState| match slot {
            SlotState::Taking { asked, .. } | SlotState::Leaving { asked, .. } => asked.as_ref()?.again_ns(),
            _ => None,
        };
        self.changing.iter().filter_map(|slot| again(self.by_name.get(slot)?)).min()
    }

    /// Checks I51 of docs/protocol.md, as far as it concerns slots: a group is to have one at most.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        let mut count = 0;
        for (slot, it) in &self.by_name {
            let groups = it.groups();
            count += groups.len();
            holds!("I51", groups.iter().all(|(group, _)| self.of_group.get(group) == Some(slot)));
            holds!("I51", self.changing.contains(slot) == it.is_changing());
            let since = it.forgettable_since();
            holds!("I51", since.is_none_or(|at_ns| self.forgettable.contains(&(at_ns, *slot))));
        }
        holds!("I51", self.of_group.len() == count);
        let forgettable = self.by_name.values().filter(|it| it.forgettable_since().is_some()).count();
        holds!("I51", self.forgettable.len() == forgettable);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
