//! An edge's side of the coordinator: registers the edge, renews the registration and knows the other edges. Reports since when
//! the coordinator is away and what does not work meanwhile; no message waits for it.
//!
//! The client itself has one request in flight at a time, so that it knows what it has written. Questions from the edge
//! ([`super::Ask`]) are sent independently of it.

mod deciding;

use super::api::{Ask, CoordinatorInput, CoordinatorOutput};
use super::asks::Asks;
use super::contents::{
    LIVE, LiveKey, POLICIES, Registration, STORE, about, decode, edge_key, encode, images_key, named,
    part_key,
};
use super::leftovers::Leftovers;
use super::memory::{Remembers, StoreMemory};
use super::policies::{self, DomainPolicies};
use super::store::StoreChange;
use super::{Lease, StoreEntry, StoreFailure, StoreReply, StoreRequest};
use crate::app_version::AppVersion;
use crate::note_level::NoteLevel;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use bytes::Bytes;
use core::ops::Bound;
use marram_session::{
    holds,
    invariant::{self, BrokenInvariant},
};
use marram_wire::{frame::StoreMark, id::ImageHash};

/// First wait after a failure; doubles.
pub const BACKOFF_MIN_NS: u64 = 200_000_000;
/// Longest wait after a failure.
pub const BACKOFF_MAX_NS: u64 = 5_000_000_000;
/// The minimum interval of writes to the list of standbys. However fast it changes, the store has time for other requests, and a
/// store that keeps every revision, as etcd does until it compacts, does not fill.
pub const LISTING_NS: u64 = 500_000_000;

/// The configuration of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoordinatorConfig {
    /// The edge's name, unique in its domain.
    pub edge: String,
    /// The lease of the registration, in seconds: the edge stays registered for so long without a renewal.
    pub lease_s: u32,
    /// Spreads the retries of many edges; any number.
    pub salt: u64,
    /// Random: names a store that this edge begins.
    pub identity: [u8; 16],
    /// What this edge remembers of its store, from its disk.
    pub remembered: Option<StoreMark>,
    /// How long after its start it removes what a former life has left of groups, in nanoseconds.
    pub leftovers_after_ns: u64,
}

/// Whether the coordinator can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CoordinatorState {
    /// It can: the edge is registered and receives the changes of others.
    There,
    /// It cannot.
    Away {
        /// Since when (monotonic), in nanoseconds.
        since_ns: u64,
        /// The reason, for people.
        why: String,
    },
}

/// Counted over a client's life.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CoordinatorMetrics {
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed or were refused.
    pub failures: u64,
    /// How often the coordinator became unreachable.
    pub absences: u64,
    /// How often the edge had to register again because its lease had expired.
    pub leases_lost: u64,
    /// Written parts of the list of standbys.
    pub parts_written: u64,
    /// Parts that the store refused.
    pub parts_refused: u64,
    /// Records of groups of a former life of this edge that were removed.
    pub groups_removed: u64,
}

/// The purpose of the client's own request in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Grant,
    KeepAlive,
    /// Writes this value to this key.
    Write(String, Bytes),
    /// Writes a part of the list of standbys; an empty value removes it.
    ListStandbys(String, Bytes),
    /// Lists all edges, and reads the store's record; the number of this read.
    List(u64),
    /// Reads the store's record again; the number of this read.
    ReadStore(u64),
    /// Writes the record of a new store.
    BeginStore(Bytes),
    Revoke,
}

/// The client. The caller passes it events and carries out its outputs.
#[derive(Debug)]
pub struct CoordinatorClient {
    config: CoordinatorConfig,
    here: Option<Registration>,
    holds: Vec<AppVersion>,
    /// The list of standbys of its sessions, by key.
    listed: BTreeMap<String, Bytes>,
    /// When the next part of the list may be written.
    list_at_ns: u64,
    /// The part that was written last. Parts are written in turn, so that one that changes often does not delay the others.
    list_after: String,
    state: CoordinatorState,
    lease: Option<Lease>,
    keep_at_ns: u64,
    /// What the store holds under the lease.
    written: BTreeMap<String, Bytes>,
    /// The last known revision of each key. Every write expects one, so that a delayed write which the client no longer waits for
    /// cannot replace a newer value.
    revisions: BTreeMap<String, u64>,
    /// Keys with an unanswered last write: it may be done, or may still be executed.
    unsure: BTreeSet<String>,
    /// The number of the current watch; none if it is broken.
    watch: Option<u64>,
    watches: u64,
    step: Option<(u64, Step)>,
    tags: u64,
    failures: u32,
    retry_ns: u64,
    leaving: bool,
    left: bool,
    registrations: BTreeMap<String, Registration>,
    images: BTreeMap<String, Vec<AppVersion>>,
    /// The domain's policies, if it has some.
    policies: Option<DomainPolicies>,
    /// Values under [`LIVE`] that this version cannot read. Only the first one is logged.
    unread: u64,
    usurped: bool,
    /// Whether it is logged that the coordinator is away.
    complained: bool,
    /// The edges that the log last reported as registered.
    reported: Vec<String>,
    memory: StoreMemory,
    /// Whether it is logged that the store has lost decisions.
    is_doubt_told: bool,
    asks: Asks,
    figures: CoordinatorMetrics,
}

impl CoordinatorClient {
    /// A client that has not reached its coordinator yet.
    #[must_use]
    pub fn new(config: CoordinatorConfig, now_ns: u64) -> Self {
        let why = "it has not answered yet".into();
        let memory = StoreMemory::new(config.remembered.clone());
        // An edge that remembers nothing has not used the store before.
        let leftovers = config.remembered.as_ref().map_or_else(Leftovers::default, |_| {
            Leftovers::new(config.edge.clone(), config.leftovers_after_ns)
        });
        Self {
            config,
            here: None,
            holds: Vec::new(),
            listed: BTreeMap::new(),
            list_at_ns: 0,
            list_after: String::new(),
            state: CoordinatorState::Away { since_ns: now_ns, why },
            lease: None,
            keep_at_ns: 0,
            written: BTreeMap::new(),
            revisions: BTreeMap::new(),
            unsure: BTreeSet::new(),
            watch: None,
            watches: 0,
            step: None,
            tags: 0,
            failures: 0,
            retry_ns: 0,
            leaving: false,
            left: false,
            registrations: BTreeMap::new(),
            images: BTreeMap::new(),
            policies: None,
            unread: 0,
            usurped: false,
            complained: false,
            reported: Vec::new(),
            memory,
            is_doubt_told: false,
            asks: Asks::new(leftovers),
            figures: CoordinatorMetrics::default(),
        }
    }

    /// Whether the coordinator can be reached.
    #[must_use]
    pub fn state(&self) -> &CoordinatorState {
        &self.state
    }

    /// What does not work now, in words; empty while the coordinator can be reached.
    #[must_use]
    pub fn cannot(&self) -> &'static [&'static str] {
        match self.state {
            CoordinatorState::There => &[],
            CoordinatorState::Away { .. } => &[
                "no updates about standbys of sessions",
                "no decision between a primary and its backup",
                "no witness",
                "no updates about other edges and their images",
            ],
        }
    }

    /// The registered edges, including this one. While the coordinator is away, the last known ones.
    pub fn edges(&self) -> impl Iterator<Item = (&str, &Registration, &[AppVersion])> {
        self.registrations.iter().map(|(name, registration)| {
            (name.as_str(), registration, self.images.get(name).map_or(&[][..], Vec::as_slice))
        })
    }

    /// The replication policies of the domain, if it has some. While the coordinator is away, the last known ones.
    #[must_use]
    pub fn policies(&self) -> Option<&DomainPolicies> {
        self.policies.as_ref()
    }

    /// The other edges that list an image as theirs.
    pub fn holders(&self, image: ImageHash) -> impl Iterator<Item = (&str, &Registration)> {
        self.edges()
            .filter(move |(name, _, holds)| {
                *name != self.config.edge && holds.iter().any(|held| held.image == image)
            })
            .map(|(name, registration, _)| (name, registration))
    }

    /// The store's identity, and how many decisions it has, as it shows them.
    #[must_use]
    pub fn store_mark(&self) -> Option<StoreMark> {
        self.memory.mark()
    }

    /// What edges remember and the store has lost. No decision is asked for while there is any.
    pub fn doubts(&self) -> impl Iterator<Item = Remembers> {
        self.memory.doubts()
    }

    /// Counters over the client's life.
    #[must_use]
    pub fn figures(&self) -> CoordinatorMetrics {
        CoordinatorMetrics { groups_removed: self.asks.leftovers().count(), ..self.figures }
    }

    /// Witness reports that wait to be written, and those that were dropped because too many waited.
    #[must_use]
    pub fn reports(&self) -> (usize, u64) {
        (self.asks.reports_waiting(), self.asks.reports_dropped())
    }

    /// Handles one event and appends the outputs.
    pub fn step(&mut self, now_ns: u64, input: CoordinatorInput, out: &mut Vec<CoordinatorOutput>) {
        match input {
            CoordinatorInput::Wake => {}
            CoordinatorInput::Here(registration) => self.here = Some(registration),
            CoordinatorInput::Holds(mut holds) => {
                holds.truncate(super::contents::HELD_MAX);
                self.holds = holds;
            }
            CoordinatorInput::Listed(parts) => {
                let key = |(part, value)| (part_key(part, &self.config.edge), value);
                self.listed.extend(parts.into_iter().map(key));
            }
            CoordinatorInput::Answered { tag, result } => self.answered(now_ns, tag, result, out),
            CoordinatorInput::Watched { watch, changes } if self.watch == Some(watch) => {
                self.watched(changes, out)
            }
            CoordinatorInput::WatchEnded { watch, why } if self.watch == Some(watch) => {
                out.push(CoordinatorOutput::Log(
                    NoteLevel::Debug,
                    format!("the coordinator's watch ended: {why}"),
                ));
                self.watch = None;
            }
            CoordinatorInput::Watched { .. } | CoordinatorInput::WatchEnded { .. } => {}
            CoordinatorInput::Ask { ask: Ask::StoreSeen(seen), .. } => self.memory.told(seen.edge, seen.mark),
            CoordinatorInput::Ask { tag, ask } => self.asks.ask(tag, ask),
            CoordinatorInput::Leave => self.leaving = true,
        }
        if self.usurped {
            self.answer_no_own_slot(out);
        }
        self.go_on(now_ns, out);
        self.remember(now_ns, false, out);
        self.asks.set_deciding(self.memory.deciding());
        let away = match &self.state {
            // With another edge of its name, it cannot tell whose a record is.
            CoordinatorState::There if !self.usurped => {
                self.asks.clean_up(now_ns);
                None
            }
            CoordinatorState::There => None,
            CoordinatorState::Away { why, .. } => Some(why.as_str()),
        };
        let (tags, figures) = (&mut self.tags, &mut self.figures);
        self.asks.go_on(away, out, &mut || {
            *tags += 1;
            figures.requests += 1;
            *tags
        });
        invariant::after_step(|| self.invariants());
    }

    /// Checks I41 of docs/protocol.md, as far as it concerns an edge's client.
    ///
    /// # Errors
    /// If it does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        // What is written expires with the lease, so without a lease nothing is there.
        holds!("I41", self.lease.is_some() || self.written.is_empty() || self.left);
        // Every write expects a known revision, except for a part of the list that the store refused.
        let is_known = |key: &String| self.revisions.contains_key(key) || self.listed.contains_key(key);
        holds!("I41", self.written.keys().all(is_known));
        holds!("I41", self.watch.is_none_or(|watch| watch <= self.watches));
        holds!("I41", !self.left || (self.leaving && self.lease.is_none()));
        self.memory.invariants()?;
        let own = self.step.as_ref().map(|(tag, _)| *tag);
        holds!("I41", own.is_none_or(|tag| tag <= self.tags && !self.asks.waits_for(tag)));
        self.asks.invariants(self.tags, self.state == CoordinatorState::There)
    }

    fn answered(
        &mut self,
        now_ns: u64,
        tag: u64,
        result: Result<StoreReply, StoreFailure>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        self.figures.failures += u64::from(result.is_err());
        if self.step.as_ref().is_none_or(|(own, _)| *own != tag) {
            return self.ask_answered(now_ns, tag, result, out);
        }
        let Some((_, step)) = self.step.take() else { return };
        // An answer shows that the store is reachable: a later lost answer must not cost the lease.
        let failures = self.failures;
        if result.is_ok() {
            self.failures = 0;
        }
        match (step, result) {
            (Step::Revoke, _) => self.lease = None,
            // The store is full, which does not mean that it is away.
            (Step::ListStandbys(key, value), Err(StoreFailure::Refused(why))) => {
                self.part_refused(key, value, &why, out);
            }
            (Step::Write(key, _) | Step::ListStandbys(key, _), Err(failure)) => {
                self.unsure.insert(key);
                self.failed(now_ns, &failure, out);
            }
            (_, Err(failure)) => self.failed(now_ns, &failure, out),
            (Step::Grant, Ok(StoreReply::Granted { lease, ttl_s })) => {
                self.lease = Some(lease);
                self.keep_at_ns = now_ns + keep_interval_ns(ttl_s);
            }
            (Step::KeepAlive, Ok(StoreReply::Kept)) => {
                self.keep_at_ns = now_ns + keep_interval_ns(self.config.lease_s);
            }
            (Step::Write(key, value), Ok(StoreReply::Written { revision })) => {
                self.wrote(key, value, revision);
            }
            (Step::ListStandbys(key, value), Ok(StoreReply::Written { revision })) => {
                self.figures.parts_written += 1;
                self.wrote(key, value, revision);
            }
            // A delayed write of this edge, or another edge of the same name: write again, on top of that revision.
            (Step::Write(key, _) | Step::ListStandbys(key, _), Ok(StoreReply::Conflict { entry })) => {
                self.unsure.insert(key.clone());
                self.revisions.insert(key, entry.map_or(0, |entry| entry.revision));
            }
            (Step::List(read), Ok(StoreReply::Entries { revision, entries })) => {
                self.store_read(read, entries.iter().find(|entry| entry.key == STORE), out);
                self.edges_listed(revision, entries, out);
            }
            (Step::ReadStore(read), Ok(StoreReply::Entries { entries, .. })) => {
                self.store_read(read, entries.first(), out);
            }
            (Step::BeginStore(value), Ok(StoreReply::Written { revision })) => {
                self.shown(revision, Some((&value, 1, revision)), out);
            }
            // Another edge began it.
            (Step::BeginStore(_), Ok(StoreReply::Conflict { entry })) => {
                let there = entry.as_ref().map(|entry| (&entry.value, entry.version, entry.revision));
                self.shown(there.map_or(0, |(.., revision)| revision), there, out);
            }
            (Step::KeepAlive | Step::Write(..) | Step::ListStandbys(..), Ok(StoreReply::NoLease)) => {
                self.lease_expired(now_ns, out);
            }
            (step, Ok(reply)) => {
                self.failures = failures;
                let why =
                    format!("the store answered {step:?} with {reply:?}, which this version does not expect");
                self.failed(now_ns, &StoreFailure::Refused(why), out);
            }
        }
    }

    /// The store did not take a part of the list of standbys. It is not retried until the value changes.
    fn part_refused(&mut self, key: String, value: Bytes, why: &str, out: &mut Vec<CoordinatorOutput>) {
        self.figures.parts_refused += 1;
        if self.figures.parts_refused == 1 {
            let text = format!("the coordinator refuses the list of standbys of this edge's sessions: {why}");
            out.push(CoordinatorOutput::Log(NoteLevel::Warning, text));
        }
        self.written.insert(key, value);
    }

    /// All edges and their images, as of this revision: watches for later changes.
    fn edges_listed(&mut self, revision: u64, entries: Vec<StoreEntry>, out: &mut Vec<CoordinatorOutput>) {
        self.registrations.clear();
        self.images.clear();
        if entries.iter().all(|entry| entry.key != POLICIES) {
            self.policies = None;
        }
        for entry in entries {
            self.learn((&entry.key, entry.revision), Some(&entry.value), out);
        }
        self.news(out);
        self.watches += 1;
        self.watch = Some(self.watches);
        out.push(CoordinatorOutput::Watch { watch: self.watches, prefix: LIVE.into(), since: revision });
    }

    /// The store has removed all that was written under the lease.
    fn lease_expired(&mut self, now_ns: u64, out: &mut Vec<CoordinatorOutput>) {
        let text = "this edge's lease at the coordinator has expired: registering again".into();
        out.push(CoordinatorOutput::Log(NoteLevel::Warning, text));
        self.figures.leases_lost += 1;
        self.lease = None;
        self.written.clear();
        self.revisions.clear();
        self.unsure.clear();
        self.wait(now_ns);
    }

    fn wrote(&mut self, key: String, value: Bytes, revision: u64) {
        self.unsure.remove(&key);
        // A removed key has no revision.
        self.revisions.insert(key.clone(), if value.is_empty() { 0 } else { revision });
        self.written.insert(key, value);
    }

    fn failed(&mut self, now_ns: u64, failure: &StoreFailure, out: &mut Vec<CoordinatorOutput>) {
        self.wait(now_ns);
        self.go_away(now_ns, format!("{failure}"), out);
    }

    /// Sends nothing for a while, with exponential backoff until the store answers.
    fn wait(&mut self, now_ns: u64) {
        let doubled = BACKOFF_MIN_NS.saturating_mul(1 << self.failures.min(8)).min(BACKOFF_MAX_NS);
        self.failures = self.failures.saturating_add(1);
        // Up to a quarter less: jitter that differs for each edge and each retry.
        let salt = self.config.salt.wrapping_mul(u64::from(self.failures).wrapping_add(0x9e37_79b9));
        self.retry_ns = now_ns + doubled - (salt >> 8) % (doubled / 4);
    }

    fn go_away(&mut self, now_ns: u64, why: String, out: &mut Vec<CoordinatorOutput>) {
        match &mut self.state {
            CoordinatorState::Away { why: before, .. } => before.clone_from(&why),
            CoordinatorState::There => {
                self.figures.absences += 1;
                self.state = CoordinatorState::Away { since_ns: now_ns, why: why.clone() };
            }
        }
        if !core::mem::replace(&mut self.complained, true) {
            let cannot = self.cannot().join(", ");
            let text =
                format!("the coordinator is unreachable ({why}): {cannot}; sessions continue, retrying");
            out.push(CoordinatorOutput::Log(NoteLevel::Warning, text));
        }
        // Changes in the meantime are unknown.
        self.watch = None;
    }

    /// Sends the next own request, if one is due.
    fn go_on(&mut self, now_ns: u64, out: &mut Vec<CoordinatorOutput>) {
        if self.step.is_some() || self.left {
            return;
        }
        if self.leaving && self.lease.is_none() {
            self.left = true;
            return out.push(CoordinatorOutput::Left);
        }
        if now_ns < self.retry_ns && !self.leaving {
            return out.push(CoordinatorOutput::WakeAt { mono_ns: self.retry_ns });
        }
        let step = self.next_step(now_ns).or_else(|| {
            self.come_back(now_ns, out);
            self.next_part(now_ns)
        });
        let Some(step) = step else {
            let due_ns = if self.list_at_ns > now_ns { self.list_at_ns } else { u64::MAX };
            let due_ns = due_ns.min(self.memory.save_due_ns()).min(self.keep_at_ns);
            let due_ns = due_ns.min(self.asks.leftovers().due_ns());
            return out.push(CoordinatorOutput::WakeAt { mono_ns: due_ns });
        };
        let request = match (&step, self.lease) {
            (Step::Grant, _) => StoreRequest::Grant { ttl_s: self.config.lease_s },
            (Step::List(_), _) => StoreRequest::Range { prefix: LIVE.into() },
            (Step::ReadStore(_), _) => StoreRequest::Get { key: STORE.into() },
            (Step::BeginStore(value), _) => {
                let (expect, value) = (Some(0), Some(value.clone()));
                StoreRequest::Write { key: STORE.into(), expect, value, lease: None }
            }
            (Step::KeepAlive, Some(lease)) => StoreRequest::KeepAlive { lease },
            (Step::Revoke, Some(lease)) => StoreRequest::Revoke { lease },
            (Step::Write(key, value), lease) => {
                let (expect, value) = (Some(self.known(key)), Some(value.clone()));
                StoreRequest::Write { key: key.clone(), expect, value, lease }
            }
            (Step::ListStandbys(key, value), lease) => {
                self.list_at_ns = now_ns + LISTING_NS;
                self.list_after.clone_from(key);
                let (expect, value) = (Some(self.known(key)), (!value.is_empty()).then(|| value.clone()));
                StoreRequest::Write { key: key.clone(), expect, value, lease }
            }
            (Step::KeepAlive | Step::Revoke, None) => return,
        };
        self.tags += 1;
        self.figures.requests += 1;
        self.step = Some((self.tags, step));
        out.push(CoordinatorOutput::Send { tag: self.tags, request });
    }

    /// The revision that a write to a key expects.
    fn known(&self, key: &str) -> u64 {
        self.revisions.get(key).copied().unwrap_or(0)
    }

    fn next_step(&mut self, now_ns: u64) -> Option<Step> {
        if self.leaving {
            return Some(Step::Revoke);
        }
        let here = self.here.as_ref()?;
        if self.lease.is_none() {
            return Some(Step::Grant);
        }
        if now_ns >= self.keep_at_ns {
            return Some(Step::KeepAlive);
        }
        for (key, value) in [
            (images_key(&self.config.edge), encode(&self.holds)),
            (edge_key(&self.config.edge), encode(here)),
        ] {
            if self.written.get(&key) != Some(&value) || self.unsure.contains(&key) {
                return Some(Step::Write(key, value));
            }
        }
        if self.watch.is_none() {
            return Some(Step::List(self.memory.begin_read()));
        }
        if self.memory.is_blank() {
            return Some(Step::BeginStore(self.new_store()));
        }
        self.memory.must_read().then(|| Step::ReadStore(self.memory.begin_read()))
    }

    /// The next part of the list of standbys that the store does not have, if a write is due.
    fn next_part(&self, now_ns: u64) -> Option<Step> {
        // Without a lease the part would never expire.
        if now_ns < self.list_at_ns || self.lease.is_none() {
            return None;
        }
        // A part that was never written need not be removed.
        let there = |key: &String| self.written.get(key).cloned().unwrap_or_default();
        let after = (Bound::Excluded(&self.list_after), Bound::Unbounded);
        let turn = self.listed.range::<String, _>(after).chain(&self.listed);
        let (key, value) =
            turn.into_iter().find(|(key, value)| there(key) != **value || self.unsure.contains(*key))?;
        Some(Step::ListStandbys(key.clone(), value.clone()))
    }

    fn come_back(&mut self, now_ns: u64, out: &mut Vec<CoordinatorOutput>) {
        self.failures = 0;
        if let CoordinatorState::Away { since_ns, .. } = self.state
            && self.here.is_some()
        {
            let away_s = now_ns.saturating_sub(since_ns) / 1_000_000_000;
            let edges = self.registrations.len();
            out.push(CoordinatorOutput::Log(
                NoteLevel::Info,
                format!("the coordinator is reachable (after {away_s} s): {edges} edges"),
            ));
            self.state = CoordinatorState::There;
            self.complained = false;
            out.push(CoordinatorOutput::Changed);
        }
    }

    fn watched(&mut self, changes: Vec<StoreChange>, out: &mut Vec<CoordinatorOutput>) {
        for change in changes {
            if change.key == STORE {
                let there = change.value.as_ref().map(|value| (value, change.version, change.revision));
                self.shown(change.revision, there, out);
            }
            self.learn((&change.key, change.revision), change.value.as_ref(), out);
        }
        self.news(out);
    }

    fn learn(
        &mut self,
        (key, revision): (&str, u64),
        value: Option<&Bytes>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let readable = match (about(key), value) {
            (None | Some(LiveKey::Store), _) => true,
            (Some(LiveKey::Policies), None) => {
                self.policies = None;
                true
            }
            // Those that were known stay if this version cannot read it, or no operator could set it.
            (Some(LiveKey::Policies), Some(value)) => policies::decode(value).is_ok_and(|policies| {
                self.policies = Some(DomainPolicies { revision, policies });
                true
            }),
            (Some(LiveKey::Edge(edge)), None) => {
                self.registrations.remove(edge);
                self.gone(edge, out);
                true
            }
            (Some(LiveKey::Images(edge)), None) => {
                self.images.remove(edge);
                true
            }
            (Some(LiveKey::Edge(edge)), Some(value)) => decode(value).is_ok_and(|registration| {
                self.met(edge, &registration, out);
                self.registrations.insert(edge.into(), registration);
                true
            }),
            (Some(LiveKey::Images(edge)), Some(value)) => decode(value).is_ok_and(|holds| {
                self.images.insert(edge.into(), holds);
                true
            }),
        };
        if !readable {
            self.unreadable(key, out);
        }
    }

    /// Logs once that the store holds something of another version.
    fn unreadable(&mut self, key: &str, out: &mut Vec<CoordinatorOutput>) {
        self.unread += 1;
        if self.unread == 1 {
            let text = format!(
                "the coordinator has {key} in a format that this version does not know: is an edge of another \
                 version in this domain?"
            );
            out.push(CoordinatorOutput::Log(NoteLevel::Warning, text));
        }
    }

    /// There must be only one edge with this edge's name.
    fn met(&mut self, edge: &str, registration: &Registration, out: &mut Vec<CoordinatorOutput>) {
        let own = edge == self.config.edge
            && self.written.contains_key(&edge_key(edge))
            && self.here.as_ref().is_some_and(|here| here.life != registration.life);
        if own && !self.usurped {
            self.usurped = true;
            let text = format!(
                "another edge registers itself with the same name, `{edge}`: give each edge its own `name`"
            );
            out.push(CoordinatorOutput::Log(NoteLevel::Error, text));
        }
    }

    /// If this edge's registration was removed by others, it is written again.
    fn gone(&mut self, edge: &str, out: &mut Vec<CoordinatorOutput>) {
        if edge == self.config.edge && self.written.remove(&edge_key(edge)).is_some() {
            out.push(CoordinatorOutput::Log(
                NoteLevel::Warning,
                "this edge's registration is missing at the coordinator: registering again".into(),
            ));
            self.written.clear();
        }
    }

    fn news(&mut self, out: &mut Vec<CoordinatorOutput>) {
        let known: Vec<String> = self.registrations.keys().cloned().collect();
        for (there, previous, what) in [
            (&known, &self.reported, "registered at the coordinator"),
            (&self.reported, &known, "no longer registered"),
        ] {
            let new: Vec<String> = there.iter().filter(|name| !previous.contains(name)).cloned().collect();
            if !new.is_empty() {
                out.push(CoordinatorOutput::Log(NoteLevel::Info, format!("edges {what}: {}", named(&new))));
            }
        }
        self.reported = known;
        out.push(CoordinatorOutput::Changed);
    }
}

/// A third of a lease, so that two may be lost.
fn keep_interval_ns(ttl_s: u32) -> u64 {
    u64::from(ttl_s) * 1_000_000_000 / 3
}
