//! Whether an edge may ask its store for decisions (docs/protocol-keepers.md, "Coordinator").
//!
//! A store that lost its file, or was put back to an older one, has forgotten decisions, and would let an edge decide again what
//! was decided otherwise. So a store has a random identity and counts its decisions. Every edge remembers the identity and the
//! highest count that it saw, on disk, and edges tell each other. While any of them remembers something that the store has lost,
//! this edge asks for no decision; an operator who accepts the loss gives the store another identity, under which the marks that
//! were lost are listed.

use super::contents::{StoreRecord, decode};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use bytes::Bytes;
use core::fmt::Write;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::frame::StoreMark;

/// Edges of which is known what they remember; of further ones it is ignored.
pub const TOLD_MAX: usize = 256;
/// The minimum interval of writes of what this edge remembers, apart from its own decisions, in nanoseconds.
pub const REMEMBER_NS: u64 = 1_000_000_000;

/// An edge remembers what the store has lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remembers {
    /// The edge; none for this one.
    pub edge: Option<String>,
    /// What it remembers.
    pub mark: StoreMark,
}

/// Whether decisions may be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Deciding {
    /// The store's record is being read.
    #[default]
    Reading,
    /// They may, of the store with this record and at least this version of it.
    May(Bytes, u64),
    /// They may not, and why.
    Not(String),
}

/// The store's record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shown {
    record: StoreRecord,
    value: Bytes,
    decisions: u64,
    revision: u64,
    /// How many reads had begun when it came.
    reads: u64,
}

impl Shown {
    fn mark(&self) -> StoreMark {
        StoreMark { identity: self.record.identity, decisions: self.decisions }
    }

    /// Whether the store has everything up to this mark, or an operator has accepted that it does not.
    fn covers(&self, mark: &StoreMark) -> bool {
        let is_before = |at: &StoreMark| at.identity == mark.identity && mark.decisions <= at.decisions;
        is_before(&self.mark()) || self.record.accepted.iter().any(is_before)
    }
}

/// What another edge remembers.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    mark: StoreMark,
    /// How many reads had begun when it was told: only a later one shows whether the store has lost it.
    reads: u64,
}

/// What the store shows, and what is remembered of it.
#[derive(Debug, Default)]
pub(super) struct StoreMemory {
    shown: Option<Shown>,
    /// Whether the record is there, and of another version.
    is_foreign: bool,
    /// What this edge remembers.
    remembered: Option<StoreMark>,
    /// What of it is on disk.
    saved: Option<StoreMark>,
    save_at_ns: u64,
    /// What other edges remember, by name.
    told: BTreeMap<String, Told>,
    /// Reads of the record that have begun, and the newest one that was answered.
    reads: u64,
    answered: u64,
}

impl StoreMemory {
    /// `remembered` is from the disk.
    pub(super) fn new(remembered: Option<StoreMark>) -> Self {
        Self { saved: remembered.clone(), remembered, ..Self::default() }
    }

    /// A read of the record begins. Returns its number.
    pub(super) fn begin_read(&mut self) -> u64 {
        self.reads += 1;
        self.reads
    }

    /// The answer to this read: value, version and revision of the record; none if there is no record. False if this version does
    /// not know its format.
    pub(super) fn read(&mut self, read: u64, there: Option<(&Bytes, u64, u64)>) -> bool {
        // A watch may have shown a later record than the one that was read before it.
        let is_late = |shown: &Shown| {
            read <= shown.reads && there.is_none_or(|(.., revision)| revision < shown.revision)
        };
        let is_news = self.shown.as_ref().is_none_or(|shown| !is_late(shown));
        self.answered = self.answered.max(read);
        !is_news || self.show(there)
    }

    /// A watch, or the answer to a write, shows the record of this revision. A later one may have been shown already; a store that
    /// was put back is read before it is watched or written. False as for [`Self::read`].
    pub(super) fn shown(&mut self, revision: u64, there: Option<(&Bytes, u64, u64)>) -> bool {
        let is_late = self.shown.as_ref().is_some_and(|shown| revision < shown.revision);
        is_late || self.show(there)
    }

    fn show(&mut self, there: Option<(&Bytes, u64, u64)>) -> bool {
        self.shown = there.and_then(|(value, decisions, revision)| {
            let (value, reads) = (value.clone(), self.reads);
            decode(&value).ok().map(|record| Shown { record, value, decisions, revision, reads })
        });
        self.is_foreign = there.is_some() && self.shown.is_none();
        self.keep_up();
        !self.is_foreign
    }

    /// A decision of this edge was the one with this number and revision, under this record.
    pub(super) fn decided(&mut self, value: &Bytes, decisions: u64, revision: u64) {
        let is_it = |shown: &&mut Shown| shown.value == *value && shown.decisions < decisions;
        if let Some(shown) = self.shown.as_mut().filter(is_it) {
            (shown.decisions, shown.revision, shown.reads) = (decisions, revision, self.reads);
        }
        self.keep_up();
    }

    /// Another edge tells what it remembers.
    pub(super) fn told(&mut self, edge: String, mark: StoreMark) {
        let is_covered = |mark: &StoreMark| self.shown.as_ref().is_some_and(|shown| shown.covers(mark));
        if self.told.len() >= TOLD_MAX && !self.told.contains_key(&edge) {
            self.told.retain(|_, told| !is_covered(&told.mark));
            if self.told.len() >= TOLD_MAX {
                return;
            }
        }
        // It is remembered here as well: the other edge may not be there when it counts.
        if let Some(own) = self.remembered.as_mut().filter(|own| own.identity == mark.identity) {
            own.decisions = own.decisions.max(mark.decisions);
        }
        // Of two wires to that edge, one may be slow: what it told before is out of date.
        let is_late =
            |told: &Told| told.mark.identity == mark.identity && told.mark.decisions > mark.decisions;
        if !self.told.get(&edge).is_some_and(is_late) {
            self.told.insert(edge, Told { mark, reads: self.reads });
        }
    }

    /// Remembers what the store shows, unless something else is remembered that it has lost.
    fn keep_up(&mut self) {
        if self.doubts().next().is_none()
            && let Some(shown) = &self.shown
        {
            self.remembered = Some(shown.mark());
        }
    }

    /// Whether there is no record, as far as is known.
    pub(super) fn is_blank(&self) -> bool {
        self.shown.is_none() && !self.is_foreign
    }

    /// Whether a read must show if the store has what another edge remembers.
    pub(super) fn must_read(&self) -> bool {
        let Some(shown) = &self.shown else { return false };
        self.told.values().any(|told| told.reads >= self.answered && !shown.covers(&told.mark))
    }

    /// What is remembered and the store does not have.
    pub(super) fn doubts(&self) -> impl Iterator<Item = Remembers> {
        let lost = |mark: &&StoreMark| self.shown.as_ref().is_some_and(|shown| !shown.covers(mark));
        // What another edge remembers may only be newer than what was shown last.
        let is_known = !self.must_read();
        let own = self.remembered.iter().filter(move |mark| is_known && lost(mark)).map(|mark| (None, mark));
        let told = self.told.iter().filter(move |(_, told)| told.reads < self.answered && lost(&&told.mark));
        let told = told.map(|(edge, told)| (Some(edge.clone()), &told.mark));
        own.chain(told).map(|(edge, mark)| Remembers { edge, mark: mark.clone() })
    }

    /// The identity and count that the store shows.
    pub(super) fn mark(&self) -> Option<StoreMark> {
        self.shown.as_ref().map(Shown::mark)
    }

    /// Whether decisions may be asked for.
    pub(super) fn deciding(&self) -> Deciding {
        if self.must_read() {
            return Deciding::Reading;
        }
        match (&self.shown, self.doubts().next()) {
            (None, _) if self.is_foreign => Deciding::Not(
                "the coordinator's store has a record of another version: let all edges run one version"
                    .into(),
            ),
            (None, _) => Deciding::Reading,
            (Some(shown), None) => Deciding::May(shown.value.clone(), shown.decisions),
            (Some(shown), Some(Remembers { edge, mark })) => {
                let who = edge.map_or("this edge".into(), |edge| format!("edge {edge}"));
                Deciding::Not(format!(
                    "the coordinator's store has lost decisions: {who} remembers {} of store {}, and store {} has {}. Find out which of \
                     the edges may still run sessions of the others, then run `marram coordinator accept`",
                    mark.decisions,
                    short(&mark.identity),
                    short(&shown.record.identity),
                    shown.decisions
                ))
            }
        }
    }

    /// What must be on disk: now, if it is about an own decision; otherwise once in [`REMEMBER_NS`].
    pub(super) fn due_to_save(&mut self, now_ns: u64, is_urgent: bool) -> Option<StoreMark> {
        if self.remembered == self.saved || (!is_urgent && now_ns < self.save_at_ns) {
            return None;
        }
        self.save_at_ns = now_ns + REMEMBER_NS;
        self.saved.clone_from(&self.remembered);
        self.saved.clone()
    }

    /// When it must be on disk at the latest.
    pub(super) fn save_due_ns(&self) -> u64 {
        if self.remembered == self.saved { u64::MAX } else { self.save_at_ns }
    }

    /// Checks I50 of docs/protocol.md, as far as it concerns an edge's memory: decisions are asked for only while the store has
    /// everything that is remembered.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I50", self.answered <= self.reads && self.told.len() <= TOLD_MAX);
        if let (Deciding::May(..), Some(shown)) = (self.deciding(), &self.shown) {
            holds!("I50", self.remembered.as_ref().is_none_or(|mark| shown.covers(mark)));
            holds!("I50", self.told.values().all(|told| shown.covers(&told.mark)));
        }
        Ok(())
    }
}

/// The first digits of a store's identity, for people.
pub(super) fn short(identity: &[u8; 16]) -> String {
    let mut text = String::new();
    for byte in &identity[..4] {
        write!(text, "{byte:02x}").expect("writing to a string never fails");
    }
    text
}

/// The record of a store that goes on under a new identity, although it has lost these marks.
#[must_use]
pub(super) fn accepting(identity: [u8; 16], before: Option<StoreRecord>, marks: &[StoreMark]) -> StoreRecord {
    let mut accepted = before.map_or(Vec::new(), |record| record.accepted);
    for mark in marks {
        match accepted.iter_mut().find(|there| there.identity == mark.identity) {
            Some(there) => there.decisions = there.decisions.max(mark.decisions),
            None => accepted.push(mark.clone()),
        }
    }
    let dropped = accepted.len().saturating_sub(super::contents::ACCEPTED_MAX);
    accepted.drain(..dropped);
    StoreRecord { identity, accepted }
}
