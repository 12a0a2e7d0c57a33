//! One shard: wires from agents, and the owners of its sessions. It does no I/O.

mod cell_backups;
mod cell_moves;
mod changes;
mod clients;
mod connections;
mod drain;
mod edges;
mod effects;
mod groups;
mod handed_over;
mod hello;
mod images;
mod invariants;
mod keepers;
mod keys;
mod lost_backups;
mod moves;
mod peers;
mod plans;
mod policies;
mod promotion;
mod rebalance;
mod recalls;
mod record;
mod refused;
mod regroup;
mod report;
mod roles;
mod shared;
mod slots;
mod state;
mod store_seen;
mod traffic;
mod unkept;
mod whole;
mod wires;
mod witness;

pub use keys::{CELLS_PER_SLOT_MAX, UNUSED_NS};
pub use record::RECORDINGS_MAX;
pub use state::missing::{MISSING_MAX, RETRY_MAX_NS, RETRY_MIN_NS};
pub use state::moves::MOVES_MAX;
pub use state::plans::{ASKED_MAX, PLAN_NS, PLANS_MAX};
pub use state::rebalance::TRIES_MAX;
pub use state::refused::REMEMBERED_MAX;
pub use state::slots::SLOTS_MAX;
pub use state::unneeded::UNNEEDED_MAX;
pub use traffic::LOOKS_MAX;

use crate::api::{
    App, CheckpointHolder, Configure, FromShard, Killed, NoteLevel, Now, Protect, ReplicationPolicy,
    ShardInput, ShardOutput, ToShard,
};
use alloc::{
    collections::BTreeSet,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use marram_session::{
    budget::{BudgetChange, Memory},
    cell::CellId,
    invariant,
    owner::{Holder, Owner, OwnerEffect, OwnerPolicy},
    trace::{TraceContext, TraceRole},
};
use marram_wire::{
    frame::{Code, GroupId, Keeps, StoreSeen},
    id::SessionId,
    random::Random,
    seal::DomainSecret,
};
use record::ReportedStops;
use regroup::Regroup;
use report::{Counters, note};
use state::{
    apps::Apps,
    backups::Backups,
    drain::Drain,
    edges::KnownEdges,
    groups::Groups,
    held::HeldHellos,
    keepers::Keepers,
    moves::Moves,
    peers::Peers,
    plans::Plans,
    rebalance::Rebalance,
    recalls::Recalls,
    refused::Refused,
    sessions::{Session, Sessions},
    shared::SharedCells,
    slots::Slots,
    tenants::Tenants,
    unknown::UnknownClients,
    waiting::Waiting,
    wires::Wires,
};
use traffic::TrafficLooks;

/// What a shard traces that is of no session that it has.
const SHARD: TraceContext = TraceContext::of(TraceRole::Shard);

/// One shard. The caller passes it events and carries out its outputs. The state is in `state`, by subject; what
/// needs more than one subject is decided here.
#[derive(Debug)]
pub struct Shard {
    secret: DomainSecret,
    random: Random,
    /// From control; the default until its first message, when no agent is connected yet.
    config: Configure,
    /// Begun by control, and never taken back.
    drain: Drain,
    apps: Apps,
    tenants: Tenants,
    wires: Wires,
    sessions: Sessions,
    shared: SharedCells,
    keepers: Keepers,
    groups: Groups,
    /// Those in force, in the order in which they are tried.
    policies: Vec<Arc<ReplicationPolicy>>,
    slots: Slots,
    backups: Backups,
    moves: Moves,
    regroup: Regroup,
    looks: TrafficLooks,
    rebalance: Rebalance,
    plans: Plans,
    recalls: Recalls,
    /// None until the first configuration, and if there are no peers to dial.
    peers: Option<Peers>,
    edges: KnownEdges,
    /// What this edge remembers of its coordinator's store.
    store_seen: Option<StoreSeen>,
    waiting: Waiting,
    /// Hellos of clients that wait for their shared cell.
    held: HeldHellos,
    /// Groups that may be of a slot whose cells no client needs any more.
    groups_idle: BTreeSet<GroupId>,
    /// Clients that a shared cell does not know.
    unknown: UnknownClients,
    refused: Refused,
    stops: ReportedStops,
    counters: Counters,
    /// The time that the shell was last asked to wake this shard at.
    wake_ns: Option<u64>,
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
            drain: Drain::default(),
            apps: Apps::default(),
            tenants: Tenants::default(),
            wires: Wires::default(),
            sessions: Sessions::default(),
            shared: SharedCells::default(),
            keepers: Keepers::default(),
            groups: Groups::counting_from(entropy),
            policies: Vec::new(),
            slots: Slots::default(),
            backups: Backups::default(),
            moves: Moves::default(),
            regroup: Regroup::default(),
            looks: TrafficLooks::default(),
            rebalance: Rebalance::default(),
            plans: Plans::default(),
            recalls: Recalls::default(),
            peers: None,
            edges: KnownEdges::default(),
            store_seen: None,
            waiting: Waiting::default(),
            held: HeldHellos::default(),
            groups_idle: BTreeSet::new(),
            unknown: UnknownClients::default(),
            refused: Refused::default(),
            stops: ReportedStops::default(),
            counters: Counters::default(),
            wake_ns: None,
            effects: Vec::new(),
        }
    }

    /// [`Self::handle`] for one event that comes alone, and then [`Self::settle`].
    pub fn step(&mut self, now: Now, input: ShardInput, out: &mut Vec<ShardOutput>) {
        self.handle(now, input, out);
        self.settle(now, out);
    }

    /// Handles one of the events that came together, and appends the outputs. [`Self::settle`] must follow behind the last of them,
    /// before the caller waits for others.
    pub fn handle(&mut self, now: Now, input: ShardInput, out: &mut Vec<ShardOutput>) {
        let is_peer = |wire| self.peers.as_ref().is_some_and(|peers| peers.has(wire));
        match input {
            ShardInput::WireUp { wire, verified, address } => {
                let challenge = self.random.bytes();
                self.wires.up(now.mono_ns, wire, (*verified, address), challenge);
            }
            ShardInput::WireDown { wire } if is_peer(wire) => self.peer_down(now, wire, out),
            ShardInput::WireDown { wire } => self.wire_down(now, wire, out),
            ShardInput::Frame { wire, frame } if is_peer(wire) => self.peer_frame(now, wire, frame, out),
            ShardInput::Frame { wire, frame } => self.frame(now, wire, frame, out),
            ShardInput::Dialled { wire, target } => peers::dialled(&mut self.peers, now, wire, target, out),
            ShardInput::DialFailed { target, reason } => self.dial_failed(now, (target, &reason), out),
            // One counter names cells of both kinds, so an answer is about exactly one of them.
            ShardInput::Started { cell, result } if self.shared.has(cell) => {
                self.shared_started(now, cell, result, out);
            }
            ShardInput::Started { cell, result } => {
                self.with_cell(now, cell, out, |owner, effects| owner.started(now, cell, result, effects));
            }
            ShardInput::Restored { cell, result } => {
                self.with_cell(now, cell, out, |owner, effects| owner.restored(now, cell, result, effects));
            }
            ShardInput::Ran(ran) if self.shared.has(ran.cell) => {
                self.with_shared(now, ran.cell, out, |shared, effects| shared.ran(now, ran, effects));
            }
            ShardInput::Ran(ran) => {
                let cell = ran.cell;
                self.with_cell(now, cell, out, |owner, effects| owner.ran(now, ran, effects));
            }
            ShardInput::Large { cell } => self.with_cell(now, cell, out, |owner, _| owner.large(cell)),
            ShardInput::Prepared { cell } => {
                self.with_cell(now, cell, out, |owner, effects| owner.prepared(cell, effects));
            }
            ShardInput::Checkpointed { cell, number, result } => {
                self.with_cell(now, cell, out, |owner, effects| {
                    owner.checkpointed(now, cell, number, result, effects);
                });
            }
            ShardInput::Recorded { session, tag, result } => self.recorded(session, tag, result, out),
            ShardInput::Control(message) => self.control(now, message, out),
            ShardInput::Wake => {
                self.wake_ns = None;
                self.epochs_due(now, out);
            }
        }
    }

    /// Does everything that is due after the events that came together, and asks to be called again when more is.
    pub fn settle(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        self.all_due(now, out);
        self.ask_to_wake(out);
        invariant::after_step(|| self.invariants());
    }

    /// Everything that is due, after any event: the shell's timer may be late, and an event may free a place for a
    /// recovery.
    fn all_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        self.timers_due(now, out);
        self.shared_due(now, out);
        out.extend(self.wires.silent(now.mono_ns).map(|wire| ShardOutput::CloseWire { wire }));
        self.peers_due(now, out);
        self.edges_due(now, out);
        self.recalls_due(now, out);
        self.traffic_due(now);
        self.regroup_due(now);
        self.moves_due(now, out);
        self.rebalance_due(now, out);
        self.copies_due(now, out);
        self.plans_due(now, out);
        self.drain_due(now, out);
        self.groups_due(now, out);
        self.held_due(now, out);
        self.replay_due(now, out);
        self.memory_due(now, out);
        self.admit(now, out);
    }

    /// Keeps the replays that the shard's death would cost within the budget (I43 of docs/protocol.md). A session that
    /// is required to take a checkpoint does not count any more, so each is required once.
    fn replay_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        while let Some(id) = self.sessions.over_replay_budget() {
            self.with_owner(now, id, out, Owner::require_checkpoint);
        }
    }

    /// Keeps within the shard's memory: idle sessions take checkpoints when less of it is left, and operators learn when
    /// it is full.
    fn memory_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for id in self.sessions.over_memory(now.mono_ns) {
            self.with_owner(now, id, out, Owner::check_share);
        }
        match self.sessions.settle_memory(now.mono_ns) {
            Some(BudgetChange::Full) => note(NoteLevel::Warning, None, self.no_memory(), out),
            Some(BudgetChange::Free) => {
                note(NoteLevel::Info, None, "the shard has memory for new sessions again".to_string(), out);
            }
            None => {}
        }
    }

    /// Why a new session is refused.
    fn no_memory(&self) -> String {
        let Memory { max, kept, .. } = self.sessions.memory();
        let sessions = self.sessions.len();
        alloc::format!(
            "the shard keeps {kept} bytes for {sessions} sessions, of {max} that it may (`limits.memory` of the edge): new \
             sessions are refused until there is room"
        )
    }

    /// Sessions on this shard.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The owner of one session, for inspection.
    #[must_use]
    pub fn owner(&self, session: SessionId) -> Option<&Owner> {
        self.sessions.get(session).map(|session| &session.owner)
    }

    /// The owners of all sessions, for inspection.
    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.sessions.iter().map(|(_, session)| &session.owner)
    }

    /// Bytes held for all sessions, without the cells.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.sessions.iter().map(|(_, session)| session.owner.held_bytes()).sum()
    }

    /// Calls the owner of the session that has a cell. An answer about a cell that was removed meanwhile is ignored.
    fn with_cell(
        &mut self,
        now: Now,
        cell: CellId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut Owner, &mut Vec<OwnerEffect>),
    ) {
        if let Some(session) = self.sessions.of_cell(cell) {
            self.with_owner(now, session, out, call);
        }
    }

    /// Calls the owner of a session and carries out what it wants, which may end the session.
    fn with_owner(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut Owner, &mut Vec<OwnerEffect>),
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        // Nested calls find an empty list, and allocate their own.
        let mut effects = core::mem::take(&mut self.effects);
        call(&mut session.owner, &mut effects);
        self.perform(now, id, effects, out);
    }

    fn control(&mut self, now: Now, message: ToShard, out: &mut Vec<ShardOutput>) {
        match message {
            ToShard::Configure(configure) => {
                self.tenants.grant(&configure.grants);
                self.sessions.set_replay_budget(configure.replay_ns_max);
                self.sessions.set_memory_max(configure.memory_max);
                self.config = configure;
                self.set_policies(now, self.config.policies.clone());
                self.rebalance.settle_after(u64::from(self.config.settle_ms) * 1_000_000);
                // Peers are dialled once: a later configuration comes from the same process with the same list.
                if self.peers.is_none() {
                    self.peers = Peers::begin(&self.config, self.secret.fingerprint(), now.mono_ns);
                }
                self.tell_edges(now, out);
                out.push(ShardOutput::Control(FromShard::Ready));
            }
            ToShard::Deploy(app) => {
                // Sessions of the former version keep their cell, and new ones get a cell of the new image.
                let unused = self.shared.retire(&app.name, app.shared.then_some(app.image));
                out.extend(unused.map(|cell| ShardOutput::Remove { cell }));
                self.tenants.know(&app);
                self.apps.deploy(app);
                self.groups_idle.extend(self.groups.of_slots());
                self.keepers_changed(now, out);
            }
            ToShard::Know(app) => {
                self.tenants.know(&app);
                self.apps.know(app);
            }
            ToShard::Missing(missing) => self.apps.fetch_failed(now.mono_ns, missing),
            ToShard::WitnessAnswer(testified) => self.testified(now, testified, out),
            ToShard::Undeploy(name) => {
                self.apps.undeploy(&name.name);
                self.groups_idle.extend(self.groups.of_slots());
                let unused = self.shared.retire(&name.name, None);
                out.extend(unused.map(|cell| ShardOutput::Remove { cell }));
            }
            ToShard::Drain(drain) => self.begin_drain(now, drain.tag, out),
            ToShard::CancelDrain(asked) => self.cancel_drain(now, asked.tag, out),
            ToShard::Kill(kill) => {
                // A standby must not end the session.
                let found = self.sessions.has(kill.session) && !self.sessions.is_following(kill.session);
                let found = if found {
                    self.with_owner(now, kill.session, out, |owner, effects| {
                        owner.terminate(Code::Killed, kill.reason, effects);
                    });
                    true
                } else {
                    self.end_client(now, kill.session, (Code::Killed, &kill.reason), out)
                };
                out.push(ShardOutput::Control(FromShard::Killed(Killed { tag: kill.tag, found })));
            }
            ToShard::List(tag) => self.list(now, tag.tag, out),
            ToShard::Move(asked) => self.move_session(now, asked, out),
            ToShard::PlanMoves(asked) => self.plan_moves(now, asked, out),
            ToShard::CancelMove(asked) => self.cancel_move(now, &asked, out),
            ToShard::Record(record) => self.record(now, &record, out),
            ToShard::Policies(set) => self.set_policies(now, set.policies),
            ToShard::Edges(edges) => self.registered_edges(now, edges.edges, out),
            ToShard::StoreSeen(seen) => self.store_seen(seen, out),
            ToShard::ClaimAnswer(answer) => self.claim_answered(now, answer, out),
            ToShard::SlotAnswer(answer) => self.slot_answered(now, answer, out),
        }
    }

    fn timers_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let is_over = |until_ns: Option<u64>| until_ns.is_some_and(|until_ns| until_ns <= now.mono_ns);
        while let Some(id) = self.sessions.due(now.mono_ns) {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            if session.is_following() {
                let until_ns = session.feed_lost_until_ns();
                if is_over(until_ns) && !self.must_keep(id) {
                    let reason = "its owner's feed did not return in time".to_string();
                    self.with_owner(now, id, out, |owner, effects| {
                        owner.step_down(Code::Lost, reason, effects);
                    });
                }
                continue;
            }
            // Placing calls the owner, which may end the session.
            if session.placing.is_due(now.mono_ns) {
                self.place(now, id, out);
            }
            let Some(session) = self.sessions.get(id) else { continue };
            if is_over(session.move_until_ns())
                && !self.reads_before_giving_up(now, id)
                && !self.cell_not_taken(now, id, out)
                && !self.still_goes_over(now, id)
                && !self.copies_to_standby(now, id, out)
            {
                let session = self.sessions.get(id);
                let moving = session.and_then(|session| session.moving.as_deref());
                let why = moving.map_or("", |moving| moving.why_late());
                self.give_up_move(now, id, why, out);
            }
            let Some(session) = self.sessions.get(id) else { continue };
            if is_over(session.end_awaited_until_ns()) {
                self.with_owner(now, id, out, |owner, effects| {
                    let reason = "the other end did not reconnect within the app's linger time";
                    owner.terminate(Code::Lost, reason.to_string(), effects);
                });
            } else {
                self.with_owner(now, id, out, |owner, effects| owner.tick(now, effects));
            }
        }
    }

    /// Asks the shell for the next time at which anything is due, unless it was asked for that time.
    fn ask_to_wake(&mut self, out: &mut Vec<ShardOutput>) {
        // An earlier time that was asked for still comes, and does nothing.
        let peers = self.peers.as_ref().and_then(Peers::wake_ns);
        let sessions =
            [self.sessions.wake_ns(), self.shared.due_ns(), self.recalls.due_ns(), self.drain.due_ns()];
        let others = [self.wires.wake_ns(), peers, self.edges.wake_ns()];
        let copies = self.moves.copies.due_ns(self.move_limit());
        let moves = [self.moves.due_ns(), copies, self.plans.due_ns(), self.rebalance_due_ns()];
        let groups = [self.groups_due_ns(), self.regroup.due_ns(), self.looks.due_ns()];
        let due_ns = sessions.into_iter().chain(others).chain(moves).chain(groups).flatten().min();
        if let Some(mono_ns) = due_ns.filter(|due_ns| self.wake_ns != Some(*due_ns)) {
            self.wake_ns = Some(mono_ns);
            out.push(ShardOutput::WakeAt { mono_ns });
        }
    }
}

/// What an app's settings mean for the owners of its sessions.
fn policy(app: &App, config: &Configure) -> OwnerPolicy {
    OwnerPolicy {
        app: app.name.clone(),
        server: app.server.clone(),
        keeps: match app.protect {
            Protect::None => Keeps::Nothing,
            _ if app.has_backup() => Keeps::Messages,
            _ => Keeps::All,
        },
        form: app.epoch.as_ref().map_or_else(Default::default, |epoch| epoch.form),
        holder: match app.keep {
            CheckpointHolder::Client => Holder::Client,
            CheckpointHolder::Server => Holder::Server,
            CheckpointHolder::Both => Holder::Both,
        },
        recovery_target_ns: app.recovery_target_ns,
        checkpoints_max: config.checkpoints_max,
        linger_ms: app.linger_ms,
        messages_per_s: app.messages_per_s,
        log_bytes_per_s: app.log_bytes_per_s,
        record_stops: config.record_stops,
        shared: app.shared,
        witness: witness::witnessing(app.witness),
    }
}
