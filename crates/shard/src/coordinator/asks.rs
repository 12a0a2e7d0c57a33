//! Decisions and records that an edge asks its coordinator for. The holder of a generation and what a client was seen to have are
//! one key each, changed by compare-and-swap on its revision; a slot's record is written once. The standby of a session is in the list of its owner.

mod slots;

use super::api::{Ask, AskAnswer, CoordinatorOutput, StandsBy};
use super::contents::{
    Claimed, GROUPS, Listed, POLICIES, STORE, StoreRecord, Subject, Witnessed, decode, encode, part_of,
    part_owner, part_prefix, slot_group_of, witness_key,
};
use super::leftovers::Leftovers;
use super::memory::{Deciding, accepting};
use super::policies;
use super::slots::{SLOTS, SlotRecord};
use super::{Lease, StoreEntry, StoreFailure, StoreReply, StoreRequest};
use crate::policies::ReplicationPolicy;
use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::String,
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{codec, codec::Field, frame::StoreMark, id::SessionId};

/// Questions in flight; further ones wait.
pub const ASKS_MAX: usize = 64;
/// Sessions with a witness report that waits to be written. Further reports are dropped and counted.
pub const REPORTS_MAX: usize = 16_384;
/// How often a write is retried after a conflicting write.
const TRIES_MAX: u32 = 8;
/// How long a witness report is kept after the last one of its session, in seconds.
pub(super) const WITNESS_S: u32 = 7 * 24 * 3_600;
/// After this many reports a new lease is taken, so that old leases expire.
const REPORTS_A_LEASE: u32 = 4_096;

const _: () = assert!(WITNESS_S >= super::DURABLE_LEASE_S, "a witness survives a restart");

#[derive(Debug)]
struct Pending {
    asker: Option<u64>,
    ask: Ask,
    tries: u32,
    /// The store's record that the last write of a claim expected.
    under: Option<Bytes>,
    /// The record of the slot that is asked for: what is read next is the claim of its group.
    slot: Option<SlotRecord>,
    /// How many policies are left behind the removal of one, once it was found.
    left: Option<usize>,
}

impl Pending {
    fn new(asker: Option<u64>, ask: Ask) -> Self {
        Self { asker, ask, tries: 0, under: None, slot: None, left: None }
    }

    /// Whether it may need a decision.
    fn decides(&self) -> bool {
        match &self.ask {
            Ask::Claim { .. } => true,
            Ask::Slot { take, from, .. } => take.is_some() || from.is_some(),
            _ => false,
        }
    }

    /// Counts a write. False, and answered, if others got in between too often.
    fn tries_again(&mut self, out: &mut Vec<CoordinatorOutput>) -> bool {
        self.tries += 1;
        if self.tries > TRIES_MAX {
            answer(self, AskAnswer::Away("others write the same key all the time".into()), out);
        }
        self.tries <= TRIES_MAX
    }
}

/// Questions that wait, and those in flight.
#[derive(Debug, Default)]
pub(super) struct Asks {
    waiting: VecDeque<Pending>,
    sent: BTreeMap<u64, Pending>,
    /// The newest report of each session that waits to be written.
    reports: BTreeMap<SessionId, Witnessed>,
    dropped: u64,
    /// The lease under which witness reports are written.
    lease: Option<Lease>,
    lent: u32,
    /// The request for this lease that is in flight.
    lending: Option<u64>,
    /// Whether claims may be made.
    deciding: Deciding,
    /// Claims that wait until that is known.
    held: VecDeque<Pending>,
    /// Records of groups that a former life of this edge has left.
    leftovers: Leftovers,
}

/// What the answer to a question says about the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// It failed.
    Failed(StoreFailure),
    /// A decision was written under this record, as the one with this number and revision.
    Decided(Bytes, u64, u64),
    /// The store has another record than the claim expected.
    OtherStore,
}

impl Asks {
    /// Of an edge for which this may be in the store.
    pub(super) fn new(leftovers: Leftovers) -> Self {
        Self { leftovers, ..Self::default() }
    }

    pub(super) fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// The coordinator can be reached: asks for what a former life has left, and for its removal if that is due.
    pub(super) fn clean_up(&mut self, now_ns: u64) {
        if let Some(ask) = self.leftovers.next_ask(now_ns) {
            self.waiting.push_front(Pending::new(None, ask));
        }
    }

    pub(super) fn reports_waiting(&self) -> usize {
        self.reports.len()
    }

    pub(super) fn reports_dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether a request with this tag is in flight for a question or a report.
    pub(super) fn waits_for(&self, tag: u64) -> bool {
        self.sent.contains_key(&tag)
    }

    /// Whether claims may be made from now on.
    pub(super) fn set_deciding(&mut self, deciding: Deciding) {
        self.deciding = deciding;
    }

    /// Claims that wait until it is known whether they may be made.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Questions that wait, questions and reports in flight, and the tag of the request for a lease.
    pub(super) fn counts(&self) -> (usize, usize, Option<u64>) {
        (self.waiting.len(), self.sent.len(), self.lending)
    }

    pub(super) fn ask(&mut self, tag: u64, ask: Ask) {
        match ask {
            Ask::Witness { session, seen } => {
                if self.reports.len() >= REPORTS_MAX && !self.reports.contains_key(&session) {
                    self.dropped += 1;
                } else {
                    self.reports.insert(session, seen);
                }
            }
            Ask::StoreSeen(_) => {}
            ask => {
                self.waiting.push_back(Pending::new(Some(tag), ask));
            }
        }
    }

    /// Sends what may be sent. While the coordinator is away, questions are answered so at once, except for one claim; reports wait.
    pub(super) fn go_on(
        &mut self,
        away: Option<&str>,
        out: &mut Vec<CoordinatorOutput>,
        tag: &mut dyn FnMut() -> u64,
    ) {
        if let Some(why) = away {
            self.probe(out, tag);
            for pending in self.held.drain(..).chain(self.waiting.drain(..)) {
                answer(&pending, AskAnswer::Away(why.into()), out);
            }
            return;
        }
        if self.deciding != Deciding::Reading {
            self.waiting.extend(self.held.drain(..));
        }
        while self.sent.len() < ASKS_MAX
            && let Some(pending) = self.waiting.pop_front()
        {
            match (pending.decides(), &self.deciding) {
                (true, Deciding::Reading) => self.held.push_back(pending),
                (true, Deciding::Not(why)) => {
                    answer(&pending, AskAnswer::Refused(why.clone()), out);
                }
                _ => self.begin(pending, out, tag),
            }
        }
        if !self.reports.is_empty() && self.lease.is_none() && self.lending.is_none() {
            let tag = tag();
            self.lending = Some(tag);
            return out
                .push(CoordinatorOutput::Send { tag, request: StoreRequest::Grant { ttl_s: WITNESS_S } });
        }
        while self.lease.is_some()
            && self.sent.len() < ASKS_MAX
            && let Some((session, seen)) = self.reports.pop_first()
        {
            let ask = Ask::Witness { session, seen };
            let request = first(&ask);
            self.send(Pending::new(None, ask), request, out, tag);
        }
    }

    /// The coordinator counts as away: one claim is asked for all the same. Sessions wait for it, and the next attempt of the client
    /// may be seconds away. A store that has lost decisions meanwhile refuses it.
    fn probe(&mut self, out: &mut Vec<CoordinatorOutput>, tag: &mut dyn FnMut() -> u64) {
        if !self.sent.is_empty() || !matches!(self.deciding, Deciding::May(..)) {
            return;
        }
        let is_claim = |pending: &Pending| matches!(pending.ask, Ask::Claim { .. });
        if let Some(pending) = self.waiting.iter().position(is_claim).and_then(|at| self.waiting.remove(at)) {
            self.begin(pending, out, tag);
        }
    }

    /// Sends the first request of a question.
    fn begin(&mut self, pending: Pending, out: &mut Vec<CoordinatorOutput>, tag: &mut dyn FnMut() -> u64) {
        if let Ask::Claim { subject, .. } = &pending.ask {
            self.leftovers.claims(subject);
        }
        let request = first(&pending.ask);
        self.send(pending, request, out, tag);
    }

    fn send(
        &mut self,
        pending: Pending,
        request: StoreRequest,
        out: &mut Vec<CoordinatorOutput>,
        tag: &mut dyn FnMut() -> u64,
    ) {
        let tag = tag();
        self.sent.insert(tag, pending);
        out.push(CoordinatorOutput::Send { tag, request });
    }

    /// Handles an answer. Returns what it says about the store.
    pub(super) fn answered(
        &mut self,
        now_ns: u64,
        tag: u64,
        result: Result<StoreReply, StoreFailure>,
        out: &mut Vec<CoordinatorOutput>,
    ) -> Option<Said> {
        if self.lending == Some(tag) {
            self.lending = None;
            if let Ok(StoreReply::Granted { lease, .. }) = &result {
                (self.lease, self.lent) = (Some(*lease), 0);
            }
            return result.err().map(Said::Failed);
        }
        let pending = self.sent.remove(&tag)?;
        match result {
            Err(failure) => {
                if let Ask::Witness { session, seen } = pending.ask {
                    self.reports.entry(session).or_insert(seen);
                } else if matches!(pending.ask, Ask::Groups | Ask::Slots) {
                    self.leftovers.unread();
                } else {
                    let said = match &failure {
                        StoreFailure::Unreachable(why) => AskAnswer::Away(why.clone()),
                        StoreFailure::Refused(why) => AskAnswer::Refused(why.clone()),
                    };
                    answer(&pending, said, out);
                }
                Some(Said::Failed(failure))
            }
            Ok(StoreReply::Entries { entries, .. }) => {
                self.was_read(now_ns, (tag, pending), entries, out);
                None
            }
            Ok(StoreReply::Conflict { entry }) => {
                self.look(tag, pending, entry, out);
                None
            }
            Ok(StoreReply::Undecided { store, entry }) => {
                let is_this = |there: &StoreEntry| {
                    let Deciding::May(value, least) = &self.deciding else { return false };
                    there.value == *value && there.version >= *least
                };
                if store.as_ref().is_some_and(is_this) {
                    self.look(tag, pending, entry, out);
                    return None;
                }
                self.held.push_back(Pending { tries: 0, ..pending });
                Some(Said::OtherStore)
            }
            Ok(StoreReply::Decided { decisions, revision }) => {
                answer(&pending, won(&pending), out);
                if pending.asker.is_none() && matches!(pending.ask, Ask::Claim { .. }) {
                    self.leftovers.removed();
                }
                pending.under.map(|store| Said::Decided(store, decisions, revision))
            }
            Ok(StoreReply::NoLease) => {
                self.lease = None;
                if let Ask::Witness { session, seen } = pending.ask {
                    self.reports.entry(session).or_insert(seen);
                }
                None
            }
            Ok(_) => {
                let removed = pending.left.map(|left| AskAnswer::PoliciesLeft(Some(left)));
                answer(&pending, removed.unwrap_or(AskAnswer::Done), out);
                None
            }
        }
    }

    /// Handles what was read: the value of a key, or those of all keys with a prefix.
    fn was_read(
        &mut self,
        now_ns: u64,
        (tag, pending): (u64, Pending),
        entries: Vec<StoreEntry>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        match pending.ask {
            Ask::Standby { session } => answer(&pending, stands_by(session, &entries), out),
            Ask::Groups => self.leftovers.read(now_ns, &entries),
            Ask::Slots => {
                let removals = self.leftovers.read_slots(&entries).into_iter();
                self.waiting.extend(removals.map(|ask| Pending::new(None, ask)));
            }
            _ => self.look(tag, pending, entries.into_iter().next(), out),
        }
    }

    /// Handles the current value: answers, or starts a write if the question needs one.
    fn look(
        &mut self,
        tag: u64,
        mut pending: Pending,
        entry: Option<StoreEntry>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let (revision, version) = entry.as_ref().map_or((0, 0), |entry| (entry.revision, entry.version));
        let value = entry.as_ref().map(|entry| entry.value.clone());
        let write = match &pending.ask {
            Ask::Holder { .. } => return answer(&pending, read(value, AskAnswer::Holder), out),
            // Answered with the current values.
            Ask::Groups | Ask::Slots => return,
            Ask::Standby { .. } => return answer(&pending, AskAnswer::Standby(None), out),
            Ask::Witnessed { .. } => return answer(&pending, read(value, AskAnswer::Witnessed), out),
            // The client keeps it.
            Ask::StoreSeen(_) => return answer(&pending, AskAnswer::Done, out),
            Ask::Claim { .. } => return self.decide(tag, pending, revision, value, out),
            Ask::Slot { .. } => return self.look_at_slot(tag, pending, entry, out),
            Ask::Accept { identity, lost } => {
                match value.map(|value| decode::<StoreRecord>(&value)).transpose() {
                    // It was written, and the answer got lost.
                    Ok(Some(there)) if there.identity == *identity => {
                        return answer(&pending, AskAnswer::Done, out);
                    }
                    Ok(before) => {
                        let there = before
                            .as_ref()
                            .map(|record| StoreMark { identity: record.identity, decisions: version });
                        let marks: Vec<StoreMark> = lost.iter().cloned().chain(there).collect();
                        Some(encode(&accepting(*identity, before, &marks)))
                    }
                    Err(error) => return answer(&pending, unreadable(&error), out),
                }
            }
            Ask::Witness { seen, .. } => match read::<Witnessed>(value, AskAnswer::Witnessed) {
                AskAnswer::Witnessed(Some(there))
                    if (there.generation, there.log_end) >= (seen.generation, seen.log_end) =>
                {
                    return answer(&pending, AskAnswer::Done, out);
                }
                // A value that cannot be read is from another version; a newer report replaces it.
                _ => Some(encode(seen)),
            },
            Ask::SetPolicies(to) => {
                let to = to.as_deref().map(policies::encode);
                // It was written, and the answer got lost; or it is there anyway.
                if to == value {
                    return answer(&pending, AskAnswer::Done, out);
                }
                to
            }
            Ask::RemovePolicy(name) => match without(name, value) {
                Ok(Some(left)) => {
                    let value = policies::encode(&left);
                    pending.left = Some(left.len());
                    Some(value)
                }
                // With an earlier attempt it was there: that was written, and the answer got lost, or another edge has removed it.
                Ok(None) => return answer(&pending, AskAnswer::PoliciesLeft(pending.left), out),
                Err(error) => return answer(&pending, unreadable(&error), out),
            },
        };
        if !pending.tries_again(out) {
            return;
        }
        let lease = matches!(pending.ask, Ask::Witness { .. }).then_some(self.lease).flatten();
        if lease.is_some() {
            self.lent += 1;
            if self.lent >= REPORTS_A_LEASE {
                self.lease = None;
            }
        }
        let key = key(&pending.ask);
        let request = StoreRequest::Write { key, expect: Some(revision), value: write, lease };
        self.sent.insert(tag, pending);
        out.push(CoordinatorOutput::Send { tag, request });
    }

    /// Handles the current record of a claim: answers, or asks for the decision.
    fn decide(
        &mut self,
        tag: u64,
        mut pending: Pending,
        expect: u64,
        value: Option<Bytes>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let Ask::Claim { from, to, .. } = &pending.ask else { return };
        let there = match read::<Claimed>(value, AskAnswer::Holder) {
            AskAnswer::Holder(there) => there,
            refused => return answer(&pending, refused, out),
        };
        let verifies = from == to;
        // An earlier attempt was written, and its answer got lost.
        if there == *to && !verifies {
            return answer(&pending, AskAnswer::Won, out);
        }
        let is_newer = |to: &Claimed| there.as_ref().is_none_or(|there| there.generation < to.generation);
        let is_as_believed = there == *from;
        if !is_as_believed || !(verifies || to.as_ref().is_none_or(is_newer)) {
            return answer(&pending, AskAnswer::Lost(there), out);
        }
        let Deciding::May(store, least) = self.deciding.clone() else {
            return self.held.push_back(pending);
        };
        if verifies {
            // Nothing is to be written, but something could be.
            return answer(&pending, AskAnswer::Won, out);
        }
        let value = to.as_ref().map(encode);
        if !pending.tries_again(out) {
            return;
        }
        pending.under = Some(store.clone());
        let request = StoreRequest::Decide { key: key(&pending.ask), expect, value, store, least };
        self.sent.insert(tag, pending);
        out.push(CoordinatorOutput::Send { tag, request });
    }
}

fn key(ask: &Ask) -> String {
    match ask {
        Ask::Accept { .. } | Ask::StoreSeen(_) => STORE.into(),
        Ask::Claim { subject, .. } | Ask::Holder { subject } => subject.generation_key(),
        Ask::Witness { session, .. } | Ask::Witnessed { session } => witness_key(*session),
        Ask::Standby { session } => part_prefix(part_of(*session)),
        Ask::SetPolicies(_) | Ask::RemovePolicy(_) => POLICIES.into(),
        Ask::Groups => GROUPS.into(),
        Ask::Slots => SLOTS.into(),
        Ask::Slot { name, .. } => name.key(),
    }
}

/// The first request of a question.
fn first(ask: &Ask) -> StoreRequest {
    let key = key(ask);
    if matches!(ask, Ask::Standby { .. } | Ask::Groups | Ask::Slots) {
        StoreRequest::Range { prefix: key }
    } else {
        StoreRequest::Get { key }
    }
}

/// The session's entry of the newest owner, from the parts of all edges.
fn stands_by(session: SessionId, entries: &[StoreEntry]) -> AskAnswer {
    let mut newest: Option<StandsBy> = None;
    let mut unread = None;
    for entry in entries {
        let listed = match decode::<Vec<Listed>>(&entry.value) {
            Ok(listed) => listed,
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
        let Some(Listed { at, .. }) = listed.into_iter().find(|listed| listed.session == session) else {
            continue;
        };
        if let Some(owner) = part_owner(&entry.key)
            && newest.as_ref().is_none_or(|newest| newest.at.generation < at.generation)
        {
            newest = Some(StandsBy { owner: owner.into(), at });
        }
    }
    match (newest, unread) {
        (None, Some(error)) => unreadable(&error),
        (newest, _) => AskAnswer::Standby(newest),
    }
}

/// The policies of a value without the one that has this name; none if none has.
fn without(name: &str, value: Option<Bytes>) -> Result<Option<Vec<ReplicationPolicy>>, codec::Error> {
    let mut policies = value.map(|value| policies::decode(&value)).transpose()?.unwrap_or_default();
    let before = policies.len();
    policies.retain(|policy| policy.name != name);
    Ok((policies.len() < before).then_some(policies))
}

fn unreadable(error: &marram_wire::codec::Error) -> AskAnswer {
    AskAnswer::Refused(format!(
        "the coordinator holds an answer that this version cannot read ({error}): is an edge of another version in this \
         domain?"
    ))
}

fn read<T: Field>(value: Option<Bytes>, answer: fn(Option<T>) -> AskAnswer) -> AskAnswer {
    match value.map(|value| decode(&value)).transpose() {
        Ok(value) => answer(value),
        Err(error) => unreadable(&error),
    }
}

/// The answer to a decision that was written. The primary of a slot's group must know in which store: if that has no record of the group any
/// more, it was removed.
fn won(pending: &Pending) -> AskAnswer {
    let of_slot = |subject: &Subject| slot_group_of(&subject.generation_key()).is_some();
    match (&pending.ask, &pending.under) {
        (Ask::Claim { subject, .. }, Some(store)) if of_slot(subject) => {
            decode::<StoreRecord>(store).map_or(AskAnswer::Won, |store| AskAnswer::WonIn(store.identity))
        }
        _ => AskAnswer::Won,
    }
}

fn answer(pending: &Pending, answer: AskAnswer, out: &mut Vec<CoordinatorOutput>) {
    out.extend(pending.asker.map(|tag| CoordinatorOutput::Asked { tag, answer }));
}
