//! The control of one edge: apps, shards, requests about sessions. It knows neither HTTP nor processes.

mod deployment;
mod drain;
mod invariants;
mod moves;
mod policies;
mod questions;
mod survives;
pub use moves::MOVES_REMEMBERED;
pub use policies::{PolicyChange, PolicyDifference, PolicyOrigin, PolicyReport, RebalanceReport};
#[cfg(test)]
mod tests;

use crate::api::{
    App, AppName, AppVersion, ClaimAnswer, Configure, Counter, DrainCancelled, FromShard, Grant, GroupClaim,
    Missing, MoveOver, MovePlan, MoveWish, NoteLevel, ReplicationPolicy, SessionRow, SlotAnswer, SlotQuery,
    Tag, ToShard, WitnessAnswer, WitnessQuery, WitnessReport,
};
use crate::coordinator::{DomainPolicies, Parts, Placements, StoreEdge, contents::EdgeStoreSeen};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use marram_session::invariant;
use marram_wire::{
    frame::{EdgeEntry, Edges, StoreMark, StoreSeen},
    id::{HostId, ImageHash, SessionId},
};
use moves::PastMoves;
use policies::PolicyLists;

/// Images that are fetched from peers at a time. A shard that needs one more asks again later.
pub const FETCHES_MAX: usize = 4;

/// Something happened to the control.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlInput {
    /// A shard process is connected, for the first time or again.
    ShardUp {
        /// The number of the shard, from 0.
        shard: u8,
    },
    /// A shard process died; the supervisor starts a new one.
    ShardDown {
        /// The number of the shard.
        shard: u8,
    },
    /// A message from a shard.
    FromShard {
        /// The number of the shard.
        shard: u8,
        /// The message.
        message: FromShard,
    },
    /// The gate's agent in this edge has this name.
    Gate {
        /// Its name.
        host: HostId,
    },
    /// An operator's request.
    Request {
        /// Names the answer.
        tag: u64,
        /// The request.
        request: ControlRequest,
    },
    /// The answer to [`ControlOutput::Fetch`].
    Fetched {
        /// The version that was to be fetched.
        version: AppVersion,
        /// The app, with the image on disk; or why no peer gave it.
        result: Result<App, String>,
    },
    /// The answer to [`ControlOutput::AskWitness`].
    WitnessAnswer {
        /// The shard that asked.
        shard: u8,
        /// The answer for that shard.
        testified: WitnessAnswer,
    },
    /// The answer to [`ControlOutput::AskClaim`].
    ClaimAnswer {
        /// The shard that asked.
        shard: u8,
        /// The answer for that shard.
        answer: ClaimAnswer,
    },
    /// The answer to [`ControlOutput::AskSlot`].
    SlotAnswer {
        /// The shard that asked.
        shard: u8,
        /// The answer for that shard.
        answer: SlotAnswer,
    },
    /// An answer is overdue: answer with what has arrived. The shell sends this some time after a request.
    Overdue {
        /// The tag of the request.
        tag: u64,
    },
}

/// An operator's request.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlRequest {
    /// The image is on disk: let sessions run it.
    Deploy(App),
    /// Refuse new sessions of this app.
    Undeploy(String),
    /// The apps deployed now.
    Apps,
    /// The agent of this edge's gates.
    Gate,
    /// The apps with this image that sessions here may run, deployed now or earlier.
    OfImage(ImageHash),
    /// All versions of apps that sessions here may run, and whether the edge drains.
    Versions,
    /// All sessions.
    Sessions,
    /// One session; the edge that has the only copy of the coordinator's store, if one has it.
    Inspect(SessionId, Option<StoreEdge>),
    /// End one session.
    Kill(SessionId, String),
    /// Record one session; true leaves out the messages, the cell's memory and its seed.
    Record(SessionId, bool),
    /// Move one session. The answer says whether the move was begun.
    Move(SessionId, MoveWish),
    /// What each session's move would be.
    PlanMoves(MoveWish),
    /// Stop the move of one session.
    CancelMove(SessionId),
    /// Moves under way, and those that are over.
    Moves,
    /// The replication policies in force, and how many sessions follow each.
    Policies,
    /// Change them.
    ChangePolicies {
        /// How.
        change: PolicyChange,
        /// Answer what that would change, and change nothing.
        dry_run: bool,
    },
    /// The coordinator has these policies for the domain, or none. No operator asks for this.
    DomainPolicies(Option<DomainPolicies>),
    /// Counters of every shard, and of the edge.
    Counters,
    /// The standbys of this edge's sessions that changed after a version.
    Placements(u64),
    /// Move all sessions away and refuse new ones.
    Drain,
    /// Stop that: sessions that are still here stay, and new ones are accepted.
    CancelDrain,
    /// The coordinator knows these edges. No operator asks for this.
    Edges(Vec<EdgeEntry>),
    /// This edge remembers this of the coordinator's store. No operator asks for this.
    StoreSeen(StoreMark),
}

/// The answer to an operator's request.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlAnswer {
    /// Done.
    Done,
    /// No such app or session.
    NotFound,
    /// The manifest asks for more than this edge can guarantee; says what to change.
    Refused(String),
    /// Apps.
    Apps(Vec<App>),
    /// The agent of this edge's gates, if it has some.
    Gate(Option<HostId>),
    /// All versions of apps, and whether the edge drains.
    Versions(Vec<App>, bool),
    /// Sessions, and the counters that shards send with them.
    Sessions(Vec<SessionRow>, Vec<MetricSample>),
    /// One session and an explanation of which failures it survives (docs/protocol.md, "Failure model").
    Session(Box<SessionRow>, Vec<String>),
    /// The name of the file with the recording.
    Recorded(String),
    /// The sessions that are being moved, and the moves that are over.
    Moves(Vec<SessionRow>, Vec<MoveOver>),
    /// What the moves would be.
    MovePlans(Vec<MovePlan>),
    /// The drain was cancelled; what was left of it, on all shards together.
    DrainCancelled(DrainCancelled),
    /// The policies in force.
    Policies(Box<PolicyReport>),
    /// Counters.
    Counters(Vec<MetricSample>),
    /// The newest version, and the parts that changed.
    Placements(u64, Parts),
}

/// A counter, and the shard that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricSample {
    /// The shard that counts it; none for the edge's own counters.
    pub shard: Option<u8>,
    /// Its name, label and value.
    pub counter: Counter,
}

/// The control wants something done.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlOutput {
    /// A message to a shard.
    ToShard {
        /// The number of the shard.
        shard: u8,
        /// The message.
        message: ToShard,
    },
    /// The answer to a request.
    Answer {
        /// As in the request.
        tag: u64,
        /// The answer.
        answer: ControlAnswer,
    },
    /// Fetch an app's settings, and its image, from the peers; answered by [`ControlInput::Fetched`].
    Fetch(AppVersion),
    /// Ask the coordinator what a client was seen to have. [`ControlInput::WitnessAnswer`] always answers, after a bounded time.
    AskWitness {
        /// The shard that asks.
        shard: u8,
        /// The question.
        seek: WitnessQuery,
    },
    /// Claim a replication group at the coordinator. [`ControlInput::ClaimAnswer`] always answers, after a bounded time.
    AskClaim {
        /// The shard that asks.
        shard: u8,
        /// The claim.
        claim: GroupClaim,
    },
    /// Ask the coordinator for a slot, or take it. [`ControlInput::SlotAnswer`] always answers, after a bounded time.
    AskSlot {
        /// The shard that asks.
        shard: u8,
        /// The question.
        query: SlotQuery,
    },
    /// Report to the coordinator what a client has.
    TellWitness(WitnessReport),
    /// Tell the coordinator's client what another edge remembers.
    StoreSeen(EdgeStoreSeen),
    /// A line for the log: 0 error, 1 warning, 2 info, 3 debug.
    Log(NoteLevel, String),
    /// Every shard is empty after a drain: the process can stop.
    Drained,
}

/// The configuration of the control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlConfig {
    /// The edge's name.
    pub edge: String,
    /// How many shards it has.
    pub shards: u8,
    /// Sessions at a time on one shard; 0 for no limit.
    pub sessions_max: u32,
    /// Recoveries at a time on one shard; 0 for no limit.
    pub recoveries_max: u32,
    /// See [`crate::api::Configure::replay_ns_max`].
    pub replay_ns_max: u64,
    /// Bytes that all shards together may keep for sessions, without their cells; 0 for no limit.
    pub memory_max: u64,
    /// What tenants are granted.
    pub grants: Vec<Grant>,
    /// Whether there are peers to ask for images.
    pub peers: bool,
    /// Whether there is a coordinator, which can be a witness.
    pub coordinator: bool,
    /// See [`crate::api::Configure::record_stops`].
    pub record_stops: bool,
    /// See [`crate::api::Configure::checkpoints_max`].
    pub checkpoints_max: u64,
    /// See [`crate::api::Configure::dials`].
    pub dials: Vec<String>,
    /// See [`crate::api::Configure::learns`].
    pub learns: bool,
    /// See [`crate::api::Configure::addresses`].
    pub addresses: Vec<String>,
    /// See [`crate::api::Configure::hand_over_ms`].
    pub hand_over_ms: u32,
    /// Bytes in a second that moves may copy to other edges, from all shards together; 0 for no limit.
    pub move_bytes_per_s: u64,
    /// See [`crate::api::Configure::settle_ms`].
    pub settle_ms: u32,
    /// The interval of heartbeats to peers, and the silence after which a peer is suspected, in milliseconds.
    pub heartbeat_ms: [u32; 2],
    /// See [`crate::api::Configure::sabotage`].
    pub sabotage: u64,
    /// See [`crate::api::Configure::policies`].
    pub policies: Vec<ReplicationPolicy>,
    /// See [`crate::api::Configure::whole`].
    pub whole: bool,
}

/// A question to all shards that waits for their answers.
#[derive(Debug)]
struct Question {
    request: ControlRequest,
    waiting: Vec<u8>,
    rows: Vec<SessionRow>,
    figures: Vec<MetricSample>,
    plans: Vec<MovePlan>,
    found: bool,
    recorded: Option<Result<String, String>>,
    refused: Option<String>,
    differences: Vec<PolicyDifference>,
    drain: DrainCancelled,
}

/// The control. The caller passes it events and carries out its outputs.
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    gate: Option<HostId>,
    /// The image and settings of new sessions, by app.
    apps: BTreeMap<String, App>,
    /// Everything deployed or fetched since the edge started: sessions may name a version long after its app was redeployed.
    versions: BTreeMap<AppVersion, App>,
    /// Versions that are being fetched, and the shards that need them.
    fetching: BTreeMap<AppVersion, BTreeSet<u8>>,
    up: BTreeSet<u8>,
    drained: BTreeSet<u8>,
    draining: bool,
    /// The number of the last drain: shards repeat it, so that what they say of one that was cancelled counts for none.
    drains: u64,
    restarts: u64,
    questions: BTreeMap<u64, Question>,
    placements: Placements,
    moves: PastMoves,
    policies: PolicyLists,
    /// The edges that the coordinator knows, as it said last.
    edges: Vec<EdgeEntry>,
    /// What this edge remembers of the coordinator's store.
    store_seen: Option<StoreSeen>,
}

impl Control {
    /// An edge without apps.
    #[must_use]
    pub fn new(config: ControlConfig) -> Self {
        Self {
            policies: PolicyLists::new(config.policies.clone()),
            config,
            gate: None,
            apps: BTreeMap::new(),
            versions: BTreeMap::new(),
            fetching: BTreeMap::new(),
            up: BTreeSet::new(),
            drained: BTreeSet::new(),
            draining: false,
            drains: 0,
            restarts: 0,
            questions: BTreeMap::new(),
            placements: Placements::default(),
            moves: PastMoves::default(),
            edges: Vec::new(),
            store_seen: None,
        }
    }

    /// Handles one event and appends the outputs.
    pub fn step(&mut self, input: ControlInput, out: &mut Vec<ControlOutput>) {
        match input {
            ControlInput::ShardUp { shard } => self.shard_up(shard, out),
            ControlInput::ShardDown { shard } => self.shard_down(shard, out),
            ControlInput::FromShard { shard, message } => self.heard(shard, message, out),
            ControlInput::Gate { host } => {
                self.gate = Some(host);
                let up: Vec<u8> = self.up.iter().copied().collect();
                up.into_iter().for_each(|shard| self.configure(shard, out));
            }
            ControlInput::Request { tag, request } => self.request(tag, request, out),
            ControlInput::Fetched { version, result } => self.fetched(&version, result, out),
            // If the shard has restarted since, it ignores the answer: it has no such attempt.
            ControlInput::ClaimAnswer { shard, answer } => {
                out.push(ControlOutput::ToShard { shard, message: ToShard::ClaimAnswer(answer) });
            }
            ControlInput::SlotAnswer { shard, answer } => {
                out.push(ControlOutput::ToShard { shard, message: ToShard::SlotAnswer(answer) });
            }
            ControlInput::WitnessAnswer { shard, testified } => {
                out.push(ControlOutput::ToShard { shard, message: ToShard::WitnessAnswer(testified) });
            }
            ControlInput::Overdue { tag } => self.answer(tag, out),
        }
        invariant::after_step(|| self.invariants());
    }

    fn configure(&self, shard: u8, out: &mut Vec<ControlOutput>) {
        let shards = u64::from(self.config.shards.max(1));
        let move_bytes_per_s = match self.config.move_bytes_per_s {
            0 => 0,
            limit => (limit / shards).max(1),
        };
        let configure = Configure {
            edge: self.config.edge.clone(),
            shard,
            shards: self.config.shards,
            gate: self.gate,
            sessions_max: self.config.sessions_max,
            recoveries_max: self.config.recoveries_max,
            replay_ns_max: self.config.replay_ns_max,
            memory_max: self.config.memory_max / shards,
            grants: self.config.grants.clone(),
            peers: self.config.peers,
            record_stops: self.config.record_stops,
            checkpoints_max: self.config.checkpoints_max,
            addresses: self.config.addresses.clone(),
            dials: self.config.dials.clone(),
            learns: self.config.learns,
            hand_over_ms: self.config.hand_over_ms,
            move_bytes_per_s,
            settle_ms: self.config.settle_ms,
            heartbeat_interval_ms: self.config.heartbeat_ms[0],
            heartbeat_timeout_ms: self.config.heartbeat_ms[1],
            sabotage: self.config.sabotage,
            policies: self.policies.in_force().to_vec(),
            whole: self.config.whole,
        };
        out.push(ControlOutput::ToShard { shard, message: ToShard::Configure(configure) });
    }

    fn shard_up(&mut self, shard: u8, out: &mut Vec<ControlOutput>) {
        self.up.insert(shard);
        self.configure(shard, out);
        if !self.edges.is_empty() {
            let edges = self.edges.clone();
            out.push(ControlOutput::ToShard { shard, message: ToShard::Edges(Edges { edges }) });
        }
        if let Some(seen) = self.store_seen.clone() {
            out.push(ControlOutput::ToShard { shard, message: ToShard::StoreSeen(seen) });
        }
        let is_current = |app: &&App| self.apps.get(&app.name).is_some_and(|now| now.image == app.image);
        for app in self.versions.values().filter(|app| !is_current(app)) {
            out.push(ControlOutput::ToShard { shard, message: ToShard::Know(app.clone()) });
        }
        for app in self.apps.values() {
            out.push(ControlOutput::ToShard { shard, message: ToShard::Deploy(app.clone()) });
        }
        if self.draining {
            out.push(ControlOutput::ToShard { shard, message: ToShard::Drain(Tag { tag: self.drains }) });
        }
    }

    fn shard_down(&mut self, shard: u8, out: &mut Vec<ControlOutput>) {
        self.up.remove(&shard);
        self.restarts += 1;
        self.placements.shard_gone(shard);
        let text = alloc::format!("shard {shard} died; its sessions recover elsewhere; starting a new shard");
        out.push(ControlOutput::Log(NoteLevel::Warning, text));
        let tags: Vec<u64> = self.questions.keys().copied().collect();
        tags.into_iter().for_each(|tag| self.answered(tag, shard, out));
        if self.draining {
            self.drained(shard, out);
        }
    }

    fn heard(&mut self, shard: u8, message: FromShard, out: &mut Vec<ControlOutput>) {
        match message {
            FromShard::Ready => {}
            FromShard::Rows(rows) => {
                if let Some(question) = self.questions.get_mut(&rows.tag) {
                    question.rows.extend(rows.rows);
                }
            }
            FromShard::Counted(counted) => {
                if let Some(question) = self.questions.get_mut(&counted.tag) {
                    let figure = |counter| MetricSample { shard: Some(shard), counter };
                    question.figures.extend(counted.counters.into_iter().map(figure));
                    if counted.last {
                        self.answered(counted.tag, shard, out);
                    }
                }
            }
            FromShard::Killed(killed) => {
                if let Some(question) = self.questions.get_mut(&killed.tag) {
                    question.found |= killed.found;
                    self.answered(killed.tag, shard, out);
                }
            }
            FromShard::Recorded(recorded) => {
                if let Some(question) = self.questions.get_mut(&recorded.tag) {
                    // Where it only stands by it cannot be recorded.
                    if recorded.found && !matches!(question.recorded, Some(Ok(_))) {
                        question.recorded = Some(recorded.file.ok_or(recorded.why));
                    }
                    self.answered(recorded.tag, shard, out);
                }
            }
            FromShard::MoveAnswer(answer) => {
                if let Some(question) = self.questions.get_mut(&answer.tag) {
                    question.found |= answer.found;
                    question.refused =
                        question.refused.take().or((!answer.why.is_empty()).then_some(answer.why));
                    self.answered(answer.tag, shard, out);
                }
            }
            FromShard::Planned(planned) => {
                if let Some(question) = self.questions.get_mut(&planned.tag) {
                    question.plans.extend(planned.plans);
                    if planned.last {
                        self.answered(planned.tag, shard, out);
                    }
                }
            }
            FromShard::MoveOver(over) => self.moves.ended(over),
            FromShard::Note(note) => {
                let about = note.session.map_or_else(String::new, |id| alloc::format!("session {id}: "));
                out.push(ControlOutput::Log(
                    note.level,
                    alloc::format!("shard {shard}: {about}{}", note.text),
                ));
            }
            FromShard::Drained(Tag { tag }) => self.shard_drained(shard, tag, out),
            FromShard::DrainCancelled(cancelled) => self.drain_cancelled(shard, &cancelled, out),
            FromShard::Want(version) => self.want(shard, version, out),
            FromShard::Claim(claim) => out.push(ControlOutput::AskClaim { shard, claim }),
            FromShard::Slot(query) => out.push(ControlOutput::AskSlot { shard, query }),
            FromShard::WitnessQuery(seek) => out.push(ControlOutput::AskWitness { shard, seek }),
            FromShard::WitnessReport(saw) => out.push(ControlOutput::TellWitness(saw)),
            FromShard::StoreSeen(seen) => out.push(ControlOutput::StoreSeen(seen)),
            FromShard::Placed(placed) if self.config.coordinator => {
                self.placements.placed(shard, placed.session, placed.at);
            }
            FromShard::Placed(_) => {}
        }
    }

    fn want(&mut self, shard: u8, version: AppVersion, out: &mut Vec<ControlOutput>) {
        if let Some(app) = self.versions.get(&version) {
            // The request crossed with a deployment.
            return out.push(ControlOutput::ToShard { shard, message: ToShard::Know(app.clone()) });
        }
        let is_new = !self.fetching.contains_key(&version);
        if is_new && self.fetching.len() >= FETCHES_MAX {
            let why = "it already requests the maximum number of images from its peers".to_string();
            return out.push(missing(shard, version, why));
        }
        if is_new {
            let text = alloc::format!("a session runs {version}: requesting it from the peers");
            out.push(ControlOutput::Log(NoteLevel::Info, text));
            out.push(ControlOutput::Fetch(version.clone()));
        }
        self.fetching.entry(version).or_default().insert(shard);
    }

    fn fetched(&mut self, version: &AppVersion, result: Result<App, String>, out: &mut Vec<ControlOutput>) {
        let shards = self.fetching.remove(version).unwrap_or_default();
        match result {
            Ok(app) => {
                let text = alloc::format!("{version} is fetched: its sessions can continue here");
                out.push(ControlOutput::Log(NoteLevel::Info, text));
                self.versions.insert(app.version(), app.clone());
                self.tell_all(&ToShard::Know(app), out);
            }
            Err(why) => {
                let text = alloc::format!("{version} cannot be fetched: {why}");
                out.push(ControlOutput::Log(NoteLevel::Warning, text));
                let up = shards.intersection(&self.up);
                out.extend(up.map(|shard| missing(*shard, version.clone(), why.clone())));
            }
        }
    }

    fn request(&mut self, tag: u64, request: ControlRequest, out: &mut Vec<ControlOutput>) {
        let answer = match request {
            ControlRequest::Deploy(app) => self.deploy(app, out),
            ControlRequest::Undeploy(name) => {
                let known = self.apps.remove(&name).is_some();
                self.tell_all(&ToShard::Undeploy(AppName { name }), out);
                if known { ControlAnswer::Done } else { ControlAnswer::NotFound }
            }
            ControlRequest::Apps => ControlAnswer::Apps(self.apps.values().cloned().collect()),
            ControlRequest::Gate => ControlAnswer::Gate(self.gate),
            ControlRequest::OfImage(image) => {
                let having = self.versions.values().filter(|app| app.image == image);
                ControlAnswer::Apps(having.cloned().collect())
            }
            ControlRequest::Versions => {
                ControlAnswer::Versions(self.versions.values().cloned().collect(), self.draining)
            }
            ControlRequest::Placements(version) => {
                let (version, parts) = self.placements.since(version);
                ControlAnswer::Placements(version, parts)
            }
            ControlRequest::Edges(edges) => {
                if edges != self.edges {
                    self.tell_all(&ToShard::Edges(Edges { edges: edges.clone() }), out);
                    self.edges = edges;
                }
                ControlAnswer::Done
            }
            ControlRequest::StoreSeen(mark) => {
                let seen = StoreSeen { mark };
                self.tell_all(&ToShard::StoreSeen(seen.clone()), out);
                self.store_seen = Some(seen);
                ControlAnswer::Done
            }
            ControlRequest::Drain => self.begin_drain(out),
            ControlRequest::CancelDrain if self.draining => return self.cancel_drain(tag, out),
            ControlRequest::CancelDrain => ControlAnswer::Refused("the edge does not drain".into()),
            ControlRequest::ChangePolicies { change, dry_run } => {
                return self.change_policies(tag, (change, dry_run), out);
            }
            ControlRequest::DomainPolicies(domain) => {
                self.domain_policies(domain, out);
                ControlAnswer::Done
            }
            of_shards => return self.ask_shards(tag, of_shards, out),
        };
        out.push(ControlOutput::Answer { tag, answer });
    }

    fn deploy(&mut self, app: App, out: &mut Vec<ControlOutput>) -> ControlAnswer {
        if let Some(why) = deployment::refusal(&app, &self.config) {
            return ControlAnswer::Refused(why);
        }
        self.warn_of_idle_policies(&app, out);
        self.versions.insert(app.version(), app.clone());
        self.apps.insert(app.name.clone(), app.clone());
        self.tell_all(&ToShard::Deploy(app), out);
        ControlAnswer::Done
    }

    fn tell_all(&self, message: &ToShard, out: &mut Vec<ControlOutput>) {
        out.extend(
            self.up.iter().map(|shard| ControlOutput::ToShard { shard: *shard, message: message.clone() }),
        );
    }
}

fn missing(shard: u8, version: AppVersion, why: String) -> ControlOutput {
    ControlOutput::ToShard { shard, message: ToShard::Missing(Missing { version, why }) }
}
