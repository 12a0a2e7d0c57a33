//! Edges claim generations of groups at the coordinator, several at nearly the same time, and ask again if an answer is lost (I34).

use super::{Event, World, coordinator::QueryPurpose};
use crate::{plan::MS, watch::Rare};
use marram_shard::coordinator::{
    Ask, AskAnswer, StoreRefusal, StoreReply, StoreRequest,
    contents::{Claimed, Subject, group_of},
};
use marram_wire::id::Generation;

/// An edge claims a generation of a group.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    edge: usize,
    subject: Subject,
    /// The holder that the edge believes in when it claims.
    from: Option<Claimed>,
    /// None to remove the record.
    to: Option<Claimed>,
    /// Attempts that got no answer.
    tries: u32,
    /// How often the store had lost something when the claim was made.
    losses: u32,
    /// Number of earlier holders when the claim was made.
    held_before: usize,
}

impl World {
    /// An edge claims the next generation of a group, based on the holder that it assumes.
    pub(crate) fn claim(&mut self, edge: usize, group: u8) {
        let edge = edge % self.edges.len();
        if !self.edges[edge].is_up() {
            return;
        }
        // The names of real groups are random: none is used again after its record was removed.
        let removed = self.coordinator.as_ref().map_or(0, |store| store.removed);
        let subject = Subject::Group(format!("group-{group}-{}", if group == 1 { removed } else { 0 }));
        let opener = self.store_chance.below(u64::MAX);
        let Some(node) = &self.edges[edge].client else { return };
        let from = node.beliefs.get(&subject).cloned();
        let count = from.as_ref().map_or(0, |from| from.generation.count) + 1;
        let removes = group == 1 && from.is_some() && opener.is_multiple_of(3);
        let backup = (!opener.is_multiple_of(3)).then(|| format!("edge-{}", (edge + 1) % self.edges.len()));
        let to =
            Claimed { generation: Generation { count, opener }, primary: format!("edge-{edge}"), backup };
        let to = (!removes).then_some(to);
        let Some(store) = &mut self.coordinator else { return };
        let held_before = store.judge.holders.get(&subject.generation_key()).map_or(0, Vec::len);
        let losses = store.losses;
        store.claims.push(Claim { edge, subject, from, to, tries: 0, losses, held_before });
        let claim = store.claims.len() - 1;
        self.ask_claim(claim);
    }

    /// Also asks again after an answer that it is away: the same claim, with the same opener.
    pub(crate) fn ask_claim(&mut self, claim: usize) {
        let Some(store) = &self.coordinator else { return };
        let Claim { edge, subject, from, to, .. } = store.claims[claim].clone();
        self.ask(edge, QueryPurpose::Claim(claim), Ask::Claim { subject, from, to });
    }

    /// Checks the answer to a claim against what the store really held.
    ///
    /// `Won`: the log of holders must have this claim right behind the holder that it started from.
    /// `Lost`: the holder that is named must have been there at some time since the claim was made,
    /// and be newer than this claim if this claim was ever written.
    pub(super) fn claimed(&mut self, index: usize, answer: AskAnswer) {
        let Some(store) = &mut self.coordinator else { return };
        let claim = &mut store.claims[index];
        let none = Vec::new();
        let holders = store.judge.holders.get(&claim.subject.generation_key()).unwrap_or(&none);
        let wrong = format!("{claim:?} is answered {answer:?}, and it was held by {holders:?}");
        let place = holders.iter().position(|holder| Some(holder) == claim.to.as_ref());
        let removed = store.judge.removed.get(&claim.subject.generation_key());
        // What a store answers that has lost something is compared with nothing.
        let has_lost = claim.losses != store.losses;
        let believed = match answer {
            AskAnswer::Won | AskAnswer::WonIn(_) if claim.to.is_none() => {
                self.watch.count_if(Rare::GroupRemoved, true);
                store.removed += 1;
                // A record that the store has lost need not be removed.
                let is_lost = store.losses > 0 && holders.is_empty();
                // Nor one that a later claim replaced, if that one's was removed since.
                let generation = |it: Option<&Claimed>| it.map(|it| it.generation);
                let is_gone = removed.is_some() && generation(removed) >= generation(claim.from.as_ref());
                if !has_lost && !is_lost && !is_gone {
                    self.violations.push(wrong);
                }
                None
            }
            AskAnswer::Won | AskAnswer::WonIn(_) => {
                self.watch.count_if(Rare::ClaimWon, true);
                let before = place.map(|place| place.checked_sub(1).map(|before| &holders[before]));
                if !has_lost && removed.is_none() && before != Some(claim.from.as_ref()) {
                    self.violations.push(wrong);
                }
                claim.to.clone()
            }
            AskAnswer::Lost(there) => {
                self.watch.count_if(Rare::ClaimLost, true);
                // The answer was true at some time after the claim was made; a successful claim is lost only to a later one.
                let since = claim.held_before.saturating_sub(1);
                let real = match &there {
                    Some(there) => holders[since.min(holders.len())..].contains(there),
                    None => claim.held_before == 0,
                };
                let after = place.is_none_or(|place| {
                    there.as_ref().is_some_and(|it| it.generation > holders[place].generation)
                });
                if !has_lost && removed.is_none() && (!real || !after) {
                    self.violations.push(wrong);
                }
                there
            }
            AskAnswer::Away(_) if claim.tries < 3 => {
                claim.tries += 1;
                let delay_ns = self.store_chance.magnitude(MS, 500 * MS);
                return self.queue.after(delay_ns, Event::ClaimAgain(index, self.edges[claim.edge].life));
            }
            AskAnswer::Away(_) => return,
            AskAnswer::Refused(why) if store.losses > 0 && why.contains("has lost decisions") => {
                let is_told = !why.contains("this edge remembers");
                self.watch.count_if(if is_told { Rare::LossTold } else { Rare::LossRemembered }, true);
                return;
            }
            _ => return self.violations.push(wrong),
        };
        let (edge, subject) = (claim.edge, claim.subject.clone());
        if let Some((node, believed)) = self.edges[edge].client.as_mut().zip(believed) {
            node.beliefs.insert(subject, believed);
        }
    }

    pub(crate) fn claim_edge(&self, claim: usize) -> usize {
        self.coordinator.as_ref().map_or(0, |store| store.claims[claim].edge)
    }

    /// Checks that no claim replaced another holder than the one that it named.
    pub(super) fn judge_claim(&mut self, request: &StoreRequest, reply: &Result<StoreReply, StoreRefusal>) {
        let (StoreRequest::Decide { key, .. }, Ok(StoreReply::Decided { .. })) = (request, reply) else {
            return;
        };
        let Some(store) = &self.coordinator else { return };
        let Some(holders) = store.judge.holders.get(key) else { return };
        let Some((to, before)) = holders.split_last() else { return };
        let is_it = |claim: &&Claim| claim.to.as_ref() == Some(to);
        if !store.claims.iter().any(|claim| claim.subject.generation_key() == *key) {
            // A shard's own group: it judges the answer itself.
            return;
        }
        let from = store.claims.iter().find(is_it).map(|claim| claim.from.as_ref());
        if from != Some(before.last()) {
            self.violations.push(format!("{to:?} was written from {from:?} upon {:?}", before.last()));
        }
    }

    /// Checks that no record was removed of a group that has sessions at its primary, and none but the one that a claim names.
    pub(super) fn judge_removal(&mut self, request: &StoreRequest, reply: &Result<StoreReply, StoreRefusal>) {
        let (StoreRequest::Decide { key, value: None, .. }, Ok(StoreReply::Decided { .. })) =
            (request, reply)
        else {
            return;
        };
        let Some(store) = &self.coordinator else { return };
        let Some(removed) = store.judge.removed.get(key) else { return };
        // Of a shard's own group it is judged below.
        let mut claims =
            store.claims.iter().filter(|claim| claim.subject.generation_key() == *key).peekable();
        if claims.peek().is_some()
            && !claims.any(|claim| claim.to.is_none() && claim.from.as_ref() == Some(removed))
        {
            self.violations.push(format!("{removed:?} was removed, which no claim was to remove"));
        }
        let Some(Subject::Group(name)) = group_of(key) else { return };
        let edges = self.edges.iter().enumerate();
        let of_primary = edges.filter(|(edge, _)| format!("edge-{edge}") == removed.primary);
        let mut machines = of_primary.flat_map(|(_, edge)| &edge.shards).filter_map(|shard| shard.machine());
        if machines.any(|machine| machine.leads_sessions_of(&name)) {
            self.violations.push(format!("{removed:?} was removed, of a group that has sessions"));
        }
    }
}
