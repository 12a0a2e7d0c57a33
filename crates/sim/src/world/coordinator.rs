//! The coordinator: the real store in a process of its own, and a real client in every edge's supervisor. The simulated network
//! between them loses, delays and repeats requests; the store's process freezes, crashes, and restarts from its snapshot.
//!
//! ```text
//! edge's supervisor: CoordinatorClient --Send--> network: lost, late, twice --> Store::apply
//!                    <--Answered/PATIENCE-------  lost                      <-- reply
//!                    <--Watched----------------------------------------------- changes
//!                                           StoreJudge sees each request and reply at the store
//! ```
//! An answer that was lost is the interesting case: the write happened and its author does not
//! know. A claim must then find out by reading whether it won (I34).

use super::{
    Event, ShardPosition, World,
    claims::Claim,
    store_loss::{Copied, Known},
};
use crate::{
    oracle::StoreJudge,
    plan::{Absence, MS, S, StoreLoss, US},
    watch::Rare,
};
use bytes::Bytes;
use marram_shard::{
    api::{
        App, AppVersion, ClaimAnswer, GroupClaim, SlotAnswer, SlotQuery, WitnessAnswer, WitnessQuery,
        WitnessReport,
    },
    control,
    coordinator::{
        Ask, AskAnswer, Changes, CoordinatorClient, CoordinatorConfig, CoordinatorInput, CoordinatorOutput,
        CoordinatorState, Parts, Store, StoreChange, StoreFailure, StoreReply, StoreRequest,
        contents::{Claimed, Registration, Subject, edge_key, encode, images_key},
    },
};
use marram_wire::frame::StoreMark;
use std::collections::{BTreeMap, BTreeSet};

/// Timeout of a request.
const PATIENCE_NS: u64 = 700 * MS;
/// Lease of an edge's registration.
const LEASE_S: u32 = 2;
/// After a seed has ended, the coordinator and its clients must agree within this time.
const SETTLE_NS: u64 = 15_000 * MS;

/// The store's process.
#[derive(Debug)]
pub(crate) struct StoreNode {
    /// `None` while it is dead. To be dead, frozen or cut off are three ways to be away.
    store: Option<Store>,
    /// The snapshot that it would restart from.
    disk: Bytes,
    frozen: bool,
    /// Whether it is unreachable.
    cut: bool,
    /// Events that arrived while it was frozen. Requests and watches, in the order in which they
    /// came. A request that is answered after its timeout finds no one waiting.
    held: Vec<Event>,
    watchers: Vec<Watcher>,
    /// The next time at which a lease may end; `u64::MAX` for none.
    tick_ns: u64,
    pub(super) judge: StoreJudge,
    pub(super) claims: Vec<Claim>,
    /// A copy of its file, with what it holds; how it comes back from its death; how often it lost something.
    pub(super) copied: Option<Copied>,
    pub(super) loses: Option<StoreLoss>,
    pub(super) losses: u32,
    /// What is on each edge's disk of this store.
    pub(super) remembered: BTreeMap<usize, StoreMark>,
    /// Groups of which the record was removed.
    pub(super) removed: u32,
    /// Set after a seed has ended: no more requests are lost.
    settling: bool,
}

/// A client that watches a prefix.
#[derive(Debug)]
struct Watcher {
    edge: usize,
    life: u32,
    watch: u64,
    prefix: String,
    /// Changes of revisions up to this one have been reported.
    since: u64,
    /// Its position in the oracle's list of changes.
    place: usize,
    /// Reports of one watch arrive in order.
    last_ns: u64,
}

/// Why a client asked. Kept by tag, to know what an answer is for.
#[derive(Clone, Debug)]
pub(super) enum QueryPurpose {
    Shard(u8, WitnessQuery),
    /// A shard claims a group.
    Group(u8, u64),
    /// A shard asks for a slot.
    Slot(u8, SlotQuery),
    Unused,
    Claim(usize),
    Accept,
}

/// A client and the supervisor's state about it.
#[derive(Debug)]
pub(crate) struct ClientNode {
    pub(super) client: CoordinatorClient,
    here: Registration,
    held: Vec<AppVersion>,
    asked: BTreeMap<u64, QueryPurpose>,
    /// What the client was told of other edges' memories.
    pub(super) told: Known,
    tags: u64,
    /// Requests without a reply.
    sent: BTreeSet<u64>,
    wake_ns: u64,
    /// The newest version of the list of standbys that it received.
    pub(crate) listed: u64,
    /// The holder that it assumes for each group.
    pub(super) beliefs: BTreeMap<Subject, Claimed>,
}

impl StoreNode {
    pub(crate) fn new() -> Self {
        let mut store = Store::new();
        let disk = store.snapshot();
        Self {
            store: Some(store),
            disk,
            frozen: false,
            cut: false,
            held: Vec::new(),
            watchers: Vec::new(),
            tick_ns: u64::MAX,
            judge: StoreJudge::default(),
            claims: Vec::new(),
            copied: None,
            loses: None,
            losses: 0,
            remembered: BTreeMap::new(),
            removed: 0,
            settling: false,
        }
    }
}

impl StoreNode {
    /// Its file, and what the oracle knows of it.
    pub(super) fn copy(&self) -> Copied {
        (self.disk.clone(), self.judge.clone())
    }

    /// Another file is in the place of its own.
    pub(super) fn replace(&mut self, disk: Bytes, judge: StoreJudge) {
        (self.disk, self.judge) = (disk, judge);
    }

    /// Whether it is alive, and the seed has not ended.
    pub(super) fn may_lose(&self) -> bool {
        self.store.is_some() && !self.settling
    }

    /// Whether it has lost decisions.
    pub(super) fn has_lost(&self) -> bool {
        self.losses > 0
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling
    }
}

impl World {
    /// At once, which is harder than in the product: ends may still wait for their sessions. Of a hall each end speaks for its own client
    /// only, and the record alone keeps out an edge that slept and knows less of the others: no edge sleeps for so long.
    fn leftovers_after_ns(&self) -> u64 {
        if self.plan.has_hall() { 30 * S } else { 0 }
    }

    /// Starts the client of a new process.
    pub(crate) fn start_client(&mut self, edge: usize) {
        if self.coordinator.is_none() {
            return;
        }
        let (name, life) = (format!("edge-{edge}"), self.store_chance.below(u64::MAX));
        let config = CoordinatorConfig {
            edge: name,
            lease_s: LEASE_S,
            salt: life,
            identity: self.random_identity(),
            remembered: self.remembered(edge),
            leftovers_after_ns: self.leftovers_after_ns(),
        };
        let shards = u8::try_from(self.edges[edge].shards.len()).expect("a few shards");
        let here = Registration {
            life,
            addresses: vec![format!("edge-{edge}:7400")],
            admin: None,
            host: None,
            shards,
            sessions: 0,
            draining: false,
            has_store: false,
        };
        let held = self.plan.apps.iter().map(App::version).collect();
        let node = ClientNode {
            client: CoordinatorClient::new(config, self.queue.now_ns()),
            here,
            held,
            asked: BTreeMap::new(),
            told: Known::default(),
            tags: 0,
            sent: BTreeSet::new(),
            wake_ns: u64::MAX,
            listed: 0,
            beliefs: BTreeMap::new(),
        };
        let (here, held) = (node.here.clone(), node.held.clone());
        self.edges[edge].client = Some(node);
        self.give_client(edge, CoordinatorInput::Here(here));
        self.give_client(edge, CoordinatorInput::Holds(held));
    }

    /// Reports how many sessions the edge has, and the parts of their standby list that changed.
    pub(crate) fn tell_client(&mut self, edge: usize, sessions: u64) {
        let Some(node) = &mut self.edges[edge].client else { return };
        if node.here.sessions != sessions {
            node.here.sessions = sessions;
            let here = node.here.clone();
            self.give_client(edge, CoordinatorInput::Here(here));
        }
    }

    pub(crate) fn list_standbys(&mut self, edge: usize, version: u64, parts: Parts) {
        let Some(node) = &mut self.edges[edge].client else { return };
        if version > node.listed {
            node.listed = version;
            self.give_client(edge, CoordinatorInput::Listed(parts));
        }
    }

    /// One step of a client.
    fn give_client(&mut self, edge: usize, input: CoordinatorInput) {
        let now_ns = self.queue.now_ns();
        let Some(node) = &mut self.edges[edge].client else { return };
        let mut out = Vec::new();
        let removed = node.client.figures().groups_removed;
        node.client.step(now_ns, input, &mut out);
        let has_removed = node.client.figures().groups_removed > removed;
        self.watch.count_if(Rare::LeftoverRemoved, has_removed);
        if self.checked_each == 1
            && let Err(broken) = node.client.invariants()
        {
            self.violations.push(format!("the coordinator's client of E{edge}: {broken}"));
        }
        for out in out {
            self.client_out(edge, out);
        }
    }

    /// Carries one output of a client out.
    fn client_out(&mut self, edge: usize, out: CoordinatorOutput) {
        let life = self.edges[edge].life;
        match out {
            CoordinatorOutput::Send { tag, request } => self.send_request(edge, tag, request),
            CoordinatorOutput::Watch { watch, prefix, since } => {
                let delay_ns = self.store_chance.magnitude(10 * US, 20 * MS);
                self.queue.after(delay_ns, Event::WatchStore { edge, life, watch, prefix, since });
            }
            CoordinatorOutput::Asked { tag, answer } => self.asked(edge, tag, answer),
            CoordinatorOutput::WakeAt { mono_ns } => {
                let now_ns = self.queue.now_ns();
                let Some(node) = &mut self.edges[edge].client else { return };
                node.wake_ns = mono_ns;
                if mono_ns < u64::MAX {
                    self.queue.at(mono_ns.max(now_ns), Event::ClientWake(edge, life, mono_ns));
                }
            }
            CoordinatorOutput::Log(level, text) => {
                self.trace.say(self.queue.now_ns(), || format!("E{edge} client log {level:?}: {text}"));
            }
            CoordinatorOutput::Remember(mark) => self.remember_store(edge, mark),
            CoordinatorOutput::Changed | CoordinatorOutput::Left => {}
        }
    }

    /// Sends a request, which may get lost, arrive after its timeout, or arrive twice.
    ///
    /// The timeout is an event too: the first of answer and timeout wins, and the other finds the
    /// tag gone.
    fn send_request(&mut self, edge: usize, tag: u64, request: StoreRequest) {
        let life = self.edges[edge].life;
        self.judge_asked(edge, &request);
        if let Some(node) = &mut self.edges[edge].client {
            node.sent.insert(tag);
        }
        let given_up = Err(StoreFailure::Unreachable("no answer in time".into()));
        self.queue.after(PATIENCE_NS, Event::FromStore { edge, life, tag, result: given_up });
        let settling = self.coordinator.as_ref().is_some_and(|node| node.settling);
        let fate = if settling { 100 } else { self.store_chance.below(100) };
        let usual_ns = self.store_chance.magnitude(10 * US, 20 * MS);
        let late_ns = PATIENCE_NS + self.store_chance.magnitude(US, 2_000 * MS);
        let mut at = |after_ns| {
            let request = request.clone();
            self.queue.after(after_ns, Event::ToStore { edge, life, tag, request });
        };
        match fate {
            0..3 => return self.watch.count_if(Rare::RequestLost, true),
            3..8 => at(late_ns),
            8..13 => {
                at(usual_ns);
                at(usual_ns + late_ns / 8);
            }
            _ => at(usual_ns),
        }
        self.watch.count_if(Rare::RequestLate, (3..8).contains(&fate));
        self.watch.count_if(Rare::RequestTwice, (8..13).contains(&fate));
    }

    /// A request arrives at the store.
    pub(crate) fn reach_store(&mut self, (edge, life, tag): (usize, u32, u64), request: StoreRequest) {
        let now_ns = self.queue.now_ns();
        let Some(node) = &mut self.coordinator else { return };
        if node.frozen {
            return node.held.push(Event::ToStore { edge, life, tag, request });
        }
        if node.cut {
            return;
        }
        let Some(store) = &mut node.store else { return };
        let reply = store.apply(now_ns, request.clone());
        if self.checked_each == 1
            && let Err(broken) = store.invariants()
        {
            self.violations.push(format!("the store: {broken}"));
        }
        let judged = node.judge.applied(now_ns, &request, &reply);
        if store.must_be_saved() {
            node.disk = store.snapshot();
        }
        self.trace.count(now_ns, &[8, edge as u64, tag], &[]);
        self.trace.say(now_ns, || format!("store: E{edge} #{tag} {request:?} -> {reply:?}"));
        self.violations.extend(judged.err());
        self.judge_claim(&request, &reply);
        self.judge_removal(&request, &reply);
        let result = reply.map_err(|refused| StoreFailure::Refused(refused.to_string()));
        let lost =
            !self.coordinator.as_ref().is_some_and(|node| node.settling) && self.store_chance.percent(4);
        self.watch.count_if(
            Rare::AnswerLost,
            lost && matches!(request, StoreRequest::Write { .. } | StoreRequest::Decide { .. }),
        );
        if !lost {
            let is_decision = matches!(request, StoreRequest::Decide { .. });
            let late_ns = if is_decision { self.plan.decided_late_ns } else { 0 };
            let delay_ns = late_ns + self.store_chance.magnitude(10 * US, 20 * MS);
            self.queue.after(delay_ns, Event::FromStore { edge, life, tag, result });
        }
        self.tell_watchers();
    }

    /// Drops what comes twice, or after the timeout.
    pub(crate) fn answer_client(&mut self, edge: usize, tag: u64, result: Result<StoreReply, StoreFailure>) {
        let waited = self.edges[edge].client.as_mut().is_some_and(|node| node.sent.remove(&tag));
        if waited {
            self.give_client(edge, CoordinatorInput::Answered { tag, result });
        }
    }

    /// Wake-ups that the client has replaced by a later request do nothing.
    pub(crate) fn client_wake(&mut self, edge: usize, at_ns: u64) {
        if self.edges[edge].client.as_ref().is_some_and(|node| node.wake_ns == at_ns) {
            self.give_client(edge, CoordinatorInput::Wake);
        }
    }

    /// A watch reports changes, or ended: then the client lists again.
    pub(crate) fn client_news(&mut self, edge: usize, watch: u64, changes: Option<Vec<StoreChange>>) {
        let input = match changes {
            Some(changes) => CoordinatorInput::Watched { watch, changes },
            None => CoordinatorInput::WatchEnded { watch, why: "the connection is gone".into() },
        };
        self.give_client(edge, input);
    }

    ///
    /// A newer watch of the same process replaces the older one. A watch at a store that is away
    /// ends soon, and the client tries again.
    pub(crate) fn watch_store(&mut self, (edge, life): (usize, u32), watch: u64, prefix: String, since: u64) {
        let last_ns = self.queue.now_ns();
        let Some(node) = &mut self.coordinator else { return };
        if node.frozen {
            return node.held.push(Event::WatchStore { edge, life, watch, prefix, since });
        }
        let same = |watcher: &Watcher| (watcher.edge, watcher.life) == (edge, life);
        if node.watchers.iter().any(|watcher| same(watcher) && watcher.watch > watch) {
            return;
        }
        node.watchers.retain(|watcher| !same(watcher));
        if node.cut || node.store.is_none() {
            return self.queue.after(100 * MS, Event::News(edge, life, watch, None));
        }
        let place = node.judge.place(since);
        node.watchers.push(Watcher { edge, life, watch, prefix, since, place, last_ns });
        self.tell_watchers();
    }

    /// Sends watchers the changes since their last report; sometimes a watch breaks.
    fn tell_watchers(&mut self) {
        let now_ns = self.queue.now_ns();
        let Some(node) = &mut self.coordinator else { return };
        let Some(store) = &node.store else { return };
        let mut broken = Vec::new();
        for watcher in &mut node.watchers {
            let changes = store.changes(&watcher.prefix, watcher.since);
            match node.judge.told(&watcher.prefix, watcher.place, &changes) {
                Ok(place) => watcher.place = place,
                Err(why) => self.violations.push(why),
            }
            watcher.since = store.revision();
            let delay_ns = self.store_chance.magnitude(10 * US, 20 * MS);
            watcher.last_ns = watcher.last_ns.max(now_ns + delay_ns);
            let breaks = !node.settling && self.store_chance.percent(1);
            let news = match changes {
                Changes::All(changes) if changes.is_empty() => continue,
                Changes::All(changes) if !breaks => Some(changes),
                _ => None,
            };
            if news.is_none() {
                broken.push((watcher.edge, watcher.life));
            }
            self.queue.at(watcher.last_ns, Event::News(watcher.edge, watcher.life, watcher.watch, news));
        }
        node.watchers.retain(|watcher| !broken.contains(&(watcher.edge, watcher.life)));
        if let Some(at_ns) = store.next_expiry_ns().filter(|at_ns| *at_ns < node.tick_ns) {
            node.tick_ns = at_ns;
            self.queue.at(at_ns, Event::StoreTick(at_ns));
        }
    }

    /// Ends leases that have expired.
    pub(crate) fn store_tick(&mut self, at_ns: u64) {
        let now_ns = self.queue.now_ns();
        let Some(node) = self.coordinator.as_mut().filter(|node| node.tick_ns == at_ns) else { return };
        node.tick_ns = u64::MAX;
        if node.frozen {
            return node.held.push(Event::StoreTick(u64::MAX));
        }
        if let Some(store) = &mut node.store {
            store.expire(now_ns);
            node.judge.expire(now_ns);
            self.tell_watchers();
        }
    }

    /// The store becomes unavailable.
    pub(crate) fn store_away(&mut self, absence: Absence, for_ns: u64) {
        let Some(node) = self.coordinator.as_mut().filter(|node| !node.settling) else { return };
        self.watch.count_if(Rare::CoordinatorAway, true);
        self.trace.say(self.queue.now_ns(), || format!("store: {absence:?} for {for_ns} ns"));
        match absence {
            Absence::Frozen => node.frozen = true,
            Absence::Cut => node.cut = true,
            Absence::Dead => {
                (node.store, node.frozen) = (None, false);
                for event in std::mem::take(&mut node.held) {
                    // The connection of a watch breaks; requests get no reply.
                    if let Event::WatchStore { edge, life, watch, .. } = event {
                        self.queue.after(MS, Event::News(edge, life, watch, None));
                    }
                }
            }
        }
        if absence != Absence::Frozen {
            for watcher in std::mem::take(&mut node.watchers) {
                self.queue
                    .at(watcher.last_ns + MS, Event::News(watcher.edge, watcher.life, watcher.watch, None));
            }
        }
        self.queue.after(for_ns, Event::StoreBack(absence));
    }

    pub(crate) fn store_back(&mut self, absence: Absence) {
        let now_ns = self.queue.now_ns();
        let Some(node) = &mut self.coordinator else { return };
        match absence {
            Absence::Cut => node.cut = false,
            Absence::Frozen => {
                node.frozen = false;
                for event in std::mem::take(&mut node.held) {
                    self.dispatch(event);
                }
            }
            Absence::Dead if node.store.is_none() => {
                node.come_back();
                let mut store = match Store::restore(&node.disk, now_ns) {
                    Ok(store) => store,
                    Err(damage) => return self.violations.push(format!("a snapshot is of no use: {damage}")),
                };
                store.skip_revisions(self.store_chance.below(u64::MAX));
                node.disk = store.snapshot();
                node.store = Some(store);
                node.tick_ns = u64::MAX;
                node.judge.restarted(now_ns);
            }
            Absence::Dead => {}
        }
        self.tell_watchers();
    }

    /// Asks the client for its edge, with the reason remembered.
    pub(super) fn ask(&mut self, edge: usize, purpose: QueryPurpose, ask: Ask) {
        let Some(node) = &mut self.edges[edge].client else { return };
        node.tags += 1;
        let tag = node.tags;
        node.asked.insert(tag, purpose);
        self.give_client(edge, CoordinatorInput::Ask { tag, ask });
    }

    /// A shard asks what a client was seen to have.
    pub(crate) fn ask_witness(&mut self, edge: usize, shard: u8, seek: WitnessQuery) {
        let ask = Ask::Witnessed { session: seek.session };
        self.ask(edge, QueryPurpose::Shard(shard, seek), ask);
    }

    /// A shard claims a group.
    pub(crate) fn claim_group(&mut self, edge: usize, shard: u8, claim: GroupClaim) {
        self.ask(edge, QueryPurpose::Group(shard, claim.tag), claim.ask());
    }

    /// A shard asks for a slot, or takes it.
    pub(crate) fn ask_slot(&mut self, edge: usize, shard: u8, query: SlotQuery) {
        self.ask(edge, QueryPurpose::Slot(shard, query.clone()), query.ask());
    }

    /// An edge reports what a client has.
    pub(crate) fn tell_witness(&mut self, edge: usize, saw: WitnessReport) {
        let WitnessReport { session, seen } = saw;
        self.ask(edge, QueryPurpose::Unused, Ask::Witness { session, seen });
    }

    /// The client answers a question.
    fn asked(&mut self, edge: usize, tag: u64, answer: AskAnswer) {
        let purpose = self.edges[edge].client.as_mut().and_then(|node| node.asked.remove(&tag));
        match purpose {
            Some(QueryPurpose::Shard(shard, WitnessQuery { session, generation })) => {
                let (seen, away) = match answer {
                    AskAnswer::Witnessed(seen) => (seen, None),
                    AskAnswer::Away(why) => (None, Some(why)),
                    other => {
                        self.violations.push(format!("the witness of {session} answers {other:?}"));
                        return;
                    }
                };
                self.watch.count_if(Rare::WitnessAway, away.is_some());
                self.watch.count_if(Rare::WitnessVouched, seen.is_some());
                let said = if away.is_some() { None } else { Some(seen.clone().map(|seen| seen.log_end)) };
                let position = ShardPosition { edge, shard: usize::from(shard) };
                self.watch.testified((session, generation, position), said);
                let testified = WitnessAnswer { session, generation, seen, away };
                self.give_control(edge, control::ControlInput::WitnessAnswer { shard, testified });
            }
            Some(QueryPurpose::Group(shard, tag)) => {
                let answer = ClaimAnswer::of(tag, answer);
                self.give_control(edge, control::ControlInput::ClaimAnswer { shard, answer });
            }
            Some(QueryPurpose::Slot(shard, query)) => {
                let answer = SlotAnswer::of(query, answer);
                let takes = answer.take.is_some();
                if takes && answer.won {
                    self.watch.hall_begins();
                }
                self.watch.count_if(Rare::SlotRaceLost, takes && !answer.won && answer.held.is_some());
                self.watch.count_if(Rare::SlotAnswerLost, takes && answer.away.is_some());
                self.give_control(edge, control::ControlInput::SlotAnswer { shard, answer });
            }
            Some(QueryPurpose::Claim(claim)) => self.claimed(claim, answer),
            Some(QueryPurpose::Accept) => {
                self.watch.count_if(Rare::LossAccepted, answer == AskAnswer::Done);
            }
            Some(QueryPurpose::Unused) | None => {}
        }
    }

    /// After the last session: without further losses, the store has the data of every live edge, edges know one another, and
    /// every question was answered.
    pub(crate) fn settle(&mut self) {
        let until_ns = self.queue.now_ns() + SETTLE_NS;
        let Some(node) = &mut self.coordinator else { return };
        node.settling = true;
        for absence in [Absence::Cut, Absence::Frozen, Absence::Dead] {
            self.store_back(absence);
        }
        for edge in 0..self.edges.len() {
            self.check_loss(edge);
        }
        // Events of agents and shards are dropped from here on: only the coordinator is still
        // judged.
        while self.violations.is_empty()
            && let Some(event) = self.queue.next_event()
            && self.queue.now_ns() < until_ns
        {
            let frozen = |edge: usize| self.edges[edge].stands_still();
            match event {
                Event::ToStore { .. }
                | Event::WatchStore { .. }
                | Event::StoreTick(_)
                | Event::LossChecked(_) => self.happen(event),
                Event::FromStore { edge, .. } | Event::News(edge, ..) | Event::ClientWake(edge, ..)
                    if !frozen(edge) =>
                {
                    self.happen(event);
                }
                _ => {}
            }
        }
        for edge in 0..self.edges.len() {
            let (up, frozen) = (self.edges[edge].is_up(), self.edges[edge].stands_still());
            let (Some(store), Some(node)) = (&self.coordinator, &self.edges[edge].client) else { continue };
            if !up || frozen {
                continue;
            }
            let name = format!("edge-{edge}");
            let there = |key: &str, value: Bytes| store.judge.value(key) == Some(&value);
            let registered = there(&edge_key(&name), encode(&node.here));
            let holds = there(&images_key(&name), encode(&node.held));
            // Only live edges count.
            let known = self.edges.iter().enumerate().all(|(other, it)| {
                let name = format!("edge-{other}");
                let there = |node: &ClientNode| {
                    node.client.edges().any(|(known, here, _)| {
                        known == name && Some(here) == it.client.as_ref().map(|node| &node.here)
                    })
                };
                !it.is_up() || it.stands_still() || there(node)
            });
            let wrong = match (node.client.state() == &CoordinatorState::There, registered && holds, known) {
                (false, ..) => "never found the coordinator again",
                (_, false, _) => "has something else at the coordinator than it believes",
                (.., false) => "does not know an edge that is registered",
                _ if node.client.doubts().next().is_some() => "still remembers what an operator has accepted",
                _ if node.asked.values().any(|purpose| !matches!(purpose, QueryPurpose::Unused)) => {
                    "asked and was never answered"
                }
                _ => continue,
            };
            self.violations.push(format!("E{edge} {wrong}"));
        }
    }
}
