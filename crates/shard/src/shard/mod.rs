//! One shard: wires from agents, and the owners of its sessions. It does no I/O.

mod effects;
mod hello;
mod invariants;
mod keepers;
mod missing;
mod peers;
mod recalls;
mod record;
mod refused;
mod report;
mod roles;
mod shared;
mod tenants;
mod wires;
mod witness;

pub use missing::{MISSING_MAX, RETRY_MAX_NS, RETRY_MIN_NS};
pub use record::RECORDINGS_MAX;
pub use refused::REMEMBERED_MAX;

use crate::api::{
    App, CheckpointHolder, Configure, FromShard, NoteLevel, Now, Protect, SchedulingParams, ShardInput,
    ShardOutput, ShardWireId, ToShard,
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::{String, ToString},
    vec::Vec,
};
use keepers::{Keepers, Placing};
use marram_session::{
    cell::CellId,
    owner::{Holder, Owner, OwnerEffect, OwnerPhase, OwnerPolicy},
};
use marram_wire::{
    frame::{Channel, Code, Drain, Frame, Hello},
    id::{Generation, HostId, ImageHash, Port, SessionId},
    peer::Origin,
    random::Random,
    seal::DomainSecret,
};
use missing::MissingImages;
use peers::{FED_AGAIN_NS, Peers};
use refused::Refused;
use report::Counters;
use shared::SharedCells;
use tenants::Tenants;
use wires::Wire;

/// One session of this shard.
#[derive(Debug)]
struct Session {
    owner: Owner,
    /// The wire and channel of each end, by port.
    links: [Option<(ShardWireId, Channel)>; 2],
    /// The previous channels of ends that have not answered the current attempt. If the attempt fails, these ends must learn that
    /// the owner on the old channel is gone.
    former: Vec<(Port, ShardWireId, Channel)>,
    /// The cells that were named for its owner and not removed: at most two, since a standby keeps its former cell until the cell of
    /// the next checkpoint stands. Whatever ends the session, all of them are removed with it.
    cells: Vec<CellId>,
    fresh: bool,
    proven: bool,
    /// The address where its client connected, until the session has begun.
    origin: Option<Box<Origin>>,
    /// Whether it is among [`Shard::recoveries`].
    recovering: bool,
    /// Attempts in a row that conflicted with another attempt.
    again: u32,
    timer_ns: Option<u64>,
    /// When promises were requested, until the log is chosen.
    asked_ns: Option<u64>,
    /// Since when an end is missing.
    adrift_ns: Option<u64>,
    since_ms: u64,
    place: SchedulingParams,
    /// Whether it counts for its tenant's limit. Sessions that this shard only stands by for do not.
    counted: bool,
    /// Its replicas other than its ends.
    placing: Placing,
    /// The wire and channel of its owner's feed, while this shard stands by for it.
    feeder: Option<(ShardWireId, Channel)>,
    /// Since when it has no feed.
    feed_lost_ns: Option<u64>,
    /// Whether this attempt continues from the standby's state.
    stood: bool,
}

impl Session {
    /// How long a missing end is waited for.
    fn adrift_until_ns(&self) -> Option<u64> {
        let linger_ns = u64::from(self.owner.policy().linger_ms) * 1_000_000;
        self.adrift_ns.map(|since_ns| since_ns + linger_ns)
    }

    /// How long this shard keeps it without a feed, if it stands by for it.
    fn feed_lost_until_ns(&self) -> Option<u64> {
        let linger_ns = u64::from(self.owner.policy().linger_ms) * 1_000_000;
        self.feed_lost_ns.map(|since_ns| since_ns + linger_ns.max(FED_AGAIN_NS))
    }
}

/// One shard. The caller passes it events and carries out its outputs.
#[derive(Debug)]
pub struct Shard {
    secret: DomainSecret,
    random: Random,
    config: Configure,
    draining: bool,
    drained: bool,
    /// The image and settings of new sessions, by app.
    apps: BTreeMap<alloc::string::String, App>,
    /// The settings of sessions by image; kept after the app was redeployed.
    images: BTreeMap<ImageHash, App>,
    /// Images that sessions named and that are not in `images`.
    missing_images: MissingImages,
    refused: Refused,
    /// Recordings of stopped handlers that were already reported, the newest last.
    stops_told: VecDeque<String>,
    wires: BTreeMap<ShardWireId, Wire>,
    hosts: BTreeMap<HostId, ShardWireId>,
    sessions: BTreeMap<SessionId, Session>,
    cells: BTreeMap<CellId, SessionId>,
    cells_made: u64,
    shared: SharedCells,
    tenants: Tenants,
    keepers: Keepers,
    peers: Option<Peers>,
    /// Hellos that wait until a recovery is allowed (docs/protocol.md, "Opening a generation").
    waiting: VecDeque<(ShardWireId, Hello)>,
    /// Sessions that are being recovered.
    recoveries: usize,
    timers: BTreeSet<(u64, SessionId)>,
    silence_checked_ns: u64,
    wake_ns: Option<u64>,
    counters: Counters,
    /// Empty between steps; kept so that a message allocates no list of effects.
    effects: Vec<OwnerEffect>,
}

impl Shard {
    /// `entropy` seeds openers, seeds and challenges: 32 random bytes.
    #[must_use]
    pub fn new(secret: DomainSecret, entropy: [u8; 32]) -> Self {
        Self {
            secret,
            random: Random::new(entropy),
            config: Configure::default(),
            draining: false,
            drained: false,
            apps: BTreeMap::new(),
            images: BTreeMap::new(),
            missing_images: MissingImages::default(),
            refused: Refused::default(),
            stops_told: VecDeque::new(),
            wires: BTreeMap::new(),
            hosts: BTreeMap::new(),
            sessions: BTreeMap::new(),
            cells: BTreeMap::new(),
            cells_made: 0,
            shared: SharedCells::default(),
            tenants: Tenants::default(),
            keepers: Keepers::default(),
            peers: None,
            waiting: VecDeque::new(),
            recoveries: 0,
            timers: BTreeSet::new(),
            silence_checked_ns: 0,
            wake_ns: None,
            counters: Counters::default(),
            effects: Vec::new(),
        }
    }

    /// Handles one event and appends the outputs.
    pub fn step(&mut self, now: Now, input: ShardInput, out: &mut Vec<ShardOutput>) {
        match input {
            ShardInput::WireUp { wire, verified, address } => self.wire_up(now, wire, *verified, address),
            ShardInput::WireDown { wire } if self.is_peer(wire) => self.peer_down(now, wire, out),
            ShardInput::WireDown { wire } => self.wire_down(now, wire, out),
            ShardInput::Frame { wire, frame } if self.is_peer(wire) => self.peer_frame(now, wire, frame, out),
            ShardInput::Frame { wire, frame } => self.frame(now, wire, frame, out),
            ShardInput::Dialled { wire, target } => self.dialled(now, wire, target, out),
            ShardInput::DialFailed { target, .. } => self.dial_failed(now, target, out),
            ShardInput::Started { cell, result } if self.shared.has(cell) => {
                self.shared_started(now, cell, result, out);
            }
            ShardInput::Started { cell, result } => {
                self.with_cell(now, cell, out, |owner, effects| owner.started(now, cell, result, effects));
            }
            ShardInput::Restored { cell, result } => {
                self.with_cell(now, cell, out, |owner, effects| owner.restored(now, cell, result, effects));
            }
            ShardInput::Ran(ran) if self.shared.has(ran.cell) => self.shared_ran(now, ran, out),
            ShardInput::Ran(ran) => {
                let cell = ran.cell;
                self.with_cell(now, cell, out, |owner, effects| owner.ran(now, ran, effects));
            }
            ShardInput::Checkpointed { cell, number, result } => {
                let mut problem = None;
                self.with_cell(now, cell, out, |owner, effects| {
                    problem = owner.checkpointed(cell, number, result, effects);
                });
                if let Some(problem) = problem {
                    self.note(
                        NoteLevel::Warning,
                        None,
                        alloc::format!("no checkpoint could be taken: {problem}"),
                        out,
                    );
                }
            }
            ShardInput::Recorded { session, tag, result } => self.recorded(session, tag, result, out),
            ShardInput::Control(message) => self.control(now, message, out),
            ShardInput::Wake => {}
        }
        self.timers_due(now, out);
        self.shared_due(now, out);
        self.wires_silent(now, out);
        self.peers_due(now, out);
        self.recalls_due(now, out);
        self.admit(now, out);
        if self.draining && !self.drained && self.sessions.is_empty() {
            self.drained = true;
            out.push(ShardOutput::Control(FromShard::Drained));
        }
        self.ask_to_wake(out);
        debug_assert_eq!(self.invariants(), Ok(()));
    }

    fn is_peer(&self, wire: ShardWireId) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.has(wire))
    }

    /// A session with this owner.
    fn new_session(&mut self, now: Now, owner: Owner, app: &App) -> Session {
        Session {
            owner,
            links: [None; 2],
            former: Vec::new(),
            cells: Vec::new(),
            fresh: false,
            proven: true,
            origin: None,
            recovering: false,
            again: 0,
            timer_ns: None,
            asked_ns: None,
            adrift_ns: None,
            since_ms: u64::try_from(now.unix_ns / 1_000_000).unwrap_or(0),
            place: self.tenants.place(app),
            counted: false,
            placing: Placing::default(),
            feeder: None,
            feed_lost_ns: None,
            stood: false,
        }
    }

    /// Sessions on this shard.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The owner of one session, for inspection.
    #[must_use]
    pub fn owner(&self, session: SessionId) -> Option<&Owner> {
        self.sessions.get(&session).map(|session| &session.owner)
    }

    /// Bytes held for all sessions, without the cells.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.sessions.values().map(|session| session.owner.held_bytes()).sum()
    }

    fn with_cell(
        &mut self,
        now: Now,
        cell: CellId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut Owner, &mut Vec<OwnerEffect>),
    ) {
        if let Some(session) = self.cells.get(&cell).copied() {
            self.with_owner(now, session, out, call);
        }
    }

    fn with_owner(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut Owner, &mut Vec<OwnerEffect>),
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let mut effects = core::mem::take(&mut self.effects);
        call(&mut session.owner, &mut effects);
        self.perform(now, id, effects, out);
    }

    fn control(&mut self, now: Now, message: ToShard, out: &mut Vec<ShardOutput>) {
        match message {
            ToShard::Configure(configure) => {
                self.tenants.grant(&configure.grants);
                self.config = configure;
                self.begin_peers(now);
                out.push(ShardOutput::Control(FromShard::Ready));
            }
            ToShard::Deploy(app) => {
                self.retire_shared(&app.name, app.shared.then_some(app.image), out);
                self.apps.insert(app.name.clone(), app.clone());
                self.know(app);
                self.keepers_changed(now, out);
            }
            ToShard::Know(app) => self.know(app),
            ToShard::Missing(missing) => self.missing(now, missing),
            ToShard::WitnessAnswer(testified) => self.testified(now, testified, out),
            ToShard::Undeploy(name) => {
                self.apps.remove(&name.name);
                self.retire_shared(&name.name, None, out);
            }
            ToShard::Drain => {
                self.draining = true;
                self.drop_standbys(now, out);
                for wire in self.wires.keys() {
                    out.push(ShardOutput::Send { wire: *wire, frame: Drain {}.into() });
                }
            }
            ToShard::Kill(kill) => {
                // A standby must not end the session.
                let session = self.sessions.get(&kill.session);
                let found = session.is_some_and(|session| session.owner.phase() != OwnerPhase::Following);
                if found {
                    self.with_owner(now, kill.session, out, |owner, effects| {
                        owner.terminate(Code::Killed, kill.reason, effects);
                    });
                }
                out.push(ShardOutput::Control(FromShard::Killed(crate::api::Killed {
                    tag: kill.tag,
                    found,
                })));
            }
            ToShard::List(tag) => self.list(now, tag.tag, out),
            ToShard::Record(record) => self.record(now, &record, out),
        }
    }

    fn know(&mut self, app: App) {
        self.missing_images.found(app.image);
        self.tenants.know(&app);
        self.images.insert(app.image, app);
    }

    fn timers_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        while let Some(&(due_ns, id)) = self.timers.first() {
            if due_ns > now.mono_ns {
                return;
            }
            self.timers.pop_first();
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            session.timer_ns = None;
            if session.owner.phase() == OwnerPhase::Following {
                if session.feed_lost_until_ns().is_some_and(|until_ns| until_ns <= now.mono_ns) {
                    self.with_owner(now, id, out, |owner, effects| {
                        owner.step_down(
                            Code::Lost,
                            "its owner's feed did not return in time".to_string(),
                            effects,
                        );
                    });
                }
                continue;
            }
            if session.placing.again_ns.is_some_and(|again_ns| again_ns <= now.mono_ns) {
                session.placing.again_ns = None;
                self.place(now, id, out);
            }
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if session.adrift_until_ns().is_some_and(|until_ns| until_ns <= now.mono_ns) {
                self.with_owner(now, id, out, |owner, effects| {
                    let reason = "the other end did not reconnect within the app's linger time";
                    owner.terminate(Code::Lost, reason.to_string(), effects);
                });
            } else {
                self.with_owner(now, id, out, |owner, effects| owner.tick(now, effects));
            }
        }
    }

    /// Updates the timer of a session.
    fn rearm(&mut self, now: Now, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let since_ns = session.adrift_ns.unwrap_or(now.mono_ns);
        session.adrift_ns = session.owner.incomplete().then_some(since_ns);
        let following = session.owner.phase() == OwnerPhase::Following;
        let feed_lost_until_ns = session.feed_lost_until_ns().filter(|_| following);
        let again_ns = session.placing.again_ns.filter(|_| session.owner.phase() == OwnerPhase::Running);
        let due_ns = [session.owner.due_ns(), session.adrift_until_ns(), again_ns, feed_lost_until_ns];
        let due_ns = due_ns.into_iter().flatten().min();
        if due_ns != session.timer_ns {
            if let Some(timer_ns) = session.timer_ns {
                self.timers.remove(&(timer_ns, id));
            }
            session.timer_ns = due_ns;
            self.timers.extend(due_ns.map(|due_ns| (due_ns, id)));
        }
    }

    fn ask_to_wake(&mut self, out: &mut Vec<ShardOutput>) {
        let sessions = self.timers.first().map(|(due_ns, _)| *due_ns);
        let peers = self.peers.as_ref().and_then(Peers::wake_ns);
        let due_ns = [sessions, self.shared.due_ns(), self.silence_wake_ns(), peers, self.keepers.due_ns()];
        let due_ns = due_ns.into_iter().flatten().min();
        if let Some(mono_ns) = due_ns.filter(|due_ns| self.wake_ns != Some(*due_ns)) {
            self.wake_ns = Some(mono_ns);
            out.push(ShardOutput::WakeAt { mono_ns });
        }
    }
}

fn policy(app: &App, config: &Configure) -> OwnerPolicy {
    OwnerPolicy {
        app: app.name.clone(),
        server: app.server.clone(),
        keep: app.protect != Protect::None,
        holder: match app.keep {
            CheckpointHolder::Client => Holder::Client,
            CheckpointHolder::Server => Holder::Server,
            CheckpointHolder::Both => Holder::Both,
        },
        recovery_target_ns: app.recovery_target_ns,
        linger_ms: app.linger_ms,
        messages_per_s: app.messages_per_s,
        log_bytes_per_s: app.log_bytes_per_s,
        record_stops: config.record_stops,
        shared: app.shared,
        witness: witness::witnessing(app.witness),
    }
}

/// The port's index in a session's links.
fn index(port: Port) -> usize {
    usize::from(port != Port::CLIENT)
}

/// The attempt that a channel belongs to.
#[derive(Clone, Copy, Debug)]
struct Bound {
    session: SessionId,
    port: Port,
    generation: Generation,
}

impl Bound {
    fn frame(self, frame: Frame) -> (SessionId, Port, Generation, Frame) {
        (self.session, self.port, self.generation, frame)
    }
}
