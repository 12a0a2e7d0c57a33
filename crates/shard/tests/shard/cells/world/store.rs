//! The coordinator of the world: a store without its clients.

use marram_shard::{
    api::{ClaimAnswer, GroupClaim, SlotAnswer, SlotQuery},
    coordinator::{SlotHeld, SlotName, SlotRecord, contents::Claimed},
};
use marram_wire::{frame::GroupId, id::Generation};
use std::collections::BTreeMap;

/// The coordinator's store: groups' records, and slots as the shard's messages have them.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) groups: BTreeMap<GroupId, Claimed>,
    pub(crate) slots: BTreeMap<SlotName, SlotRecord>,
    pub(crate) away: bool,
    /// No question about a slot arrives.
    pub(crate) slots_away: bool,
    /// Claims that name a backup never arrive.
    pub(crate) loses_backups: bool,
    /// Whether groups are of sessions, each with a cell of its own, and not of slots.
    pub(super) of_sessions: bool,
    /// No claim of this edge arrives.
    pub(crate) away_from: Option<usize>,
    /// No answer to a claim arrives.
    pub(crate) loses_answers: bool,
    /// The next claims from no record are written, and the answers get lost.
    pub(crate) answers_lost: usize,
    /// How often an operator has accepted that it lost something.
    pub(super) losses: u8,
}

impl Store {
    pub(super) fn claim(&mut self, claim: GroupClaim) -> Option<ClaimAnswer> {
        let GroupClaim { tag, group, from, to, of_slot } = claim;
        assert_eq!(of_slot, !self.of_sessions, "it is a slot's group if cells are shared");
        if self.loses_backups && to.as_ref().is_some_and(|to| to.backup.is_some()) {
            return None;
        }
        let claims = |edge: usize| to.as_ref().is_some_and(|to| to.primary == format!("e{edge}"));
        if self.away || self.away_from.is_some_and(claims) {
            let away = Some("it is away".into());
            return Some(ClaimAnswer { tag, won: false, store: None, holder: None, away });
        }
        let holder = self.groups.get(&group).cloned();
        let (is_decided, won) = (holder == from, holder == from || holder == to);
        let is_first = is_decided && from.is_none();
        if won {
            match to {
                Some(to) => self.groups.insert(group, to),
                None => self.groups.remove(&group),
            };
        }
        if self.loses_answers {
            let away = Some("no answer".into());
            return Some(ClaimAnswer { tag, won: false, store: None, holder: None, away });
        }
        if is_first && self.answers_lost > 0 {
            self.answers_lost -= 1;
            let away = Some("the connection broke".into());
            return Some(ClaimAnswer { tag, won: false, store: None, holder: None, away });
        }
        let store = (is_decided && of_slot).then_some([self.losses; 16]);
        Some(ClaimAnswer { tag, won, store, holder: holder.filter(|_| !won), away: None })
    }

    pub(super) fn slot(&mut self, query: SlotQuery) -> SlotAnswer {
        let SlotQuery { slot, take, from } = query;
        if self.away || self.slots_away {
            return SlotAnswer { slot, take, from, won: false, held: None, away: Some("it is away".into()) };
        }
        let there = self.slots.get(&slot).cloned();
        let is_change = take.is_some() || from.is_some();
        if is_change && (there.is_none() || there == from) {
            match &take {
                Some(record) => {
                    assert!(self.groups.contains_key(&record.group), "its group was claimed before");
                    self.slots.insert(slot, record.clone());
                }
                None => drop(self.slots.remove(&slot)),
            }
        }
        let record = self.slots.get(&slot).cloned();
        let won = is_change && record == take;
        let held = record
            .filter(|_| !won)
            .map(|record| SlotHeld { holder: self.groups.get(&record.group).cloned(), record });
        SlotAnswer { slot, take, from, won, held, away: None }
    }

    /// An operator gives up the only cell, for one that begins at this edge.
    pub(crate) fn gives_up(&mut self, edge: usize) {
        for claim in self.groups.values_mut() {
            let generation = Generation { count: claim.generation.count + 1, opener: 0 };
            *claim = Claimed { generation, primary: format!("e{edge}"), backup: None };
        }
    }

    /// The next life of the only cell's edge takes it as lost.
    pub(crate) fn next_life_claims(&mut self, backup: Option<usize>) {
        for claim in self.groups.values_mut() {
            claim.generation = Generation { count: claim.generation.count + 1, opener: 77 };
            claim.backup = backup.map(|edge| format!("e{edge}"));
        }
    }

    /// It has lost everything, and an operator accepts that.
    pub(crate) fn loses_all(&mut self) {
        self.removes_all();
        self.losses += 1;
    }

    /// The edges that had its records remove them.
    pub(crate) fn removes_all(&mut self) {
        (self.groups, self.slots) = Default::default();
    }
}
