//! The shell of an edge: its supervisor, control, shards and their executors. Does not know the protocol.
//!
//! ```text
//! Control::step (supervisor) <== PIPE_NS ==> Shard::step (one process each)
//!        |                                      |-- Send, Dial, CloseWire --> wires
//!        '-- AskWitness, TellWitness            '-- Start, Run, Copy, ... --> executor::Cells
//!            --> coordinator                        <-- Started, Ran, Checkpointed, after a delay
//! ```
//! Messages between the processes are encoded and decoded on the way, so that a field that a codec
//! forgets is missed by a seed. An executor does its work at once and its answer comes later: to
//! the machine that is the same as a worker that takes that time.
//!
//! A crash takes a machine's state and its cells. A freeze takes nothing: what arrives waits, and
//! the machine wakes up into the past, as an owner that may have been replaced meanwhile.

use super::{
    Caller, Direction, Event, World,
    coordinator::ClientNode,
    learning::{LearnedPlaces, address_of},
    moves::MOVE_TAG,
    pace::PassPace,
    replay::ReplayJudge,
};
use crate::{
    executor::{Cells, Habits, Restoring},
    plan::{MS, Plan, S, US},
    position::ShardPosition,
    random::Random,
    watch::{PeerSide, Rare},
};
use marram_session::cell::{CellId, CellInput};
use marram_shard::{
    api::{FromShard, ShardInput, ShardOutput, ToShard},
    control::{self, Control, ControlAnswer, ControlRequest},
    shard::Shard,
};
use marram_wire::{
    frame::{CheckpointMeta, Frame},
    id::Port,
    limits::LOG_SIZE_MAX,
    seal::DomainSecret,
};
use std::collections::{BTreeMap, VecDeque};

/// Messages between the processes of one edge take this long.
const PIPE_NS: u64 = 5 * US;
/// Unix time when the simulation begins.
pub(super) const EPOCH_NS: i64 = 1_800_000_000_000_000_000;
/// Tag of a request for a sample of sessions. The world's own questions have a tag of one high bit
/// each; deployments count from 0.
const SAMPLE_TAG: u64 = 1 << 32;
/// As above, when one of them will be killed.
const KILL_TAG: u64 = 1 << 33;
/// Tag of a request for the list of standbys.
const LIST_TAG: u64 = 1 << 35;
/// Sessions that wait for memory in vain are ended by an operator then, in nanoseconds.
const STARVED_NS: u64 = 100 * S;
/// The end of what a shard notes of a move that gives way to another one.
const REPLACES: &str = "replaces that";
/// What an owner tells a hot standby that lags, before the number of entries.
const TOO_SLOW: &str = "it replays too slowly";
/// Tag of a request for a recording.
const RECORD_TAG: u64 = 1 << 34;

/// A shard's process.
#[derive(Debug)]
pub(crate) struct ShardNode {
    /// `None` while the process is down.
    pub(super) machine: Option<Shard>,
    pub(crate) life: u32,
    frozen: bool,
    inbox: VecDeque<Event>,
    wake_ns: u64,
    /// Inputs that it has handled, and whether the last ones belong to a batch that is not settled yet.
    pub(super) handled: u64,
    pub(super) unsettled: bool,
    /// Whether a move has ended since its invariants were checked last: what is left of one is found right then.
    pub(super) ended_move: bool,
    /// Origin of its monotonic clock: arbitrary, and another one for each process.
    pub(super) origin_ns: u64,
    cells: Cells,
    pub(super) replay: ReplayJudge,
    pub(super) pace: PassPace,
    /// Where its learned peers are.
    pub(crate) learned: LearnedPlaces,
    /// Time of the last reply of each cell: replies arrive in order.
    answers_ns: BTreeMap<CellId, u64>,
}

impl ShardNode {
    pub(crate) fn machine(&self) -> Option<&Shard> {
        self.machine.as_ref()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(crate) fn is_due(&self, life: u32, at_ns: u64) -> bool {
        self.life == life && self.wake_ns == at_ns
    }
}

/// An edge's machine and its supervisor.
#[derive(Debug)]
pub(crate) struct EdgeNode {
    /// Kept over restarts, as a configuration file is.
    config: control::ControlConfig,
    pub(super) habits: Habits,
    control: Option<Control>,
    pub(crate) life: u32,
    frozen: bool,
    frozen_until_ns: u64,
    inbox: VecDeque<Event>,
    pub(crate) shards: Vec<ShardNode>,
    /// How far its wall clock is off, in nanoseconds. Only `Now::unix_ns` has it: the monotonic
    /// clock never jumps.
    pub(crate) skew_ns: i64,
    /// The supervisor's side of the coordinator.
    pub(crate) client: Option<ClientNode>,
}

impl EdgeNode {
    pub(crate) fn new(plan: &Plan, edge: usize, chance: &mut Random) -> Self {
        let habits = Habits {
            poison: plan.poison,
            hall_connects: plan.hall_connects,
            closes_trap: plan.traps.closes,
            ballast: plan.ballast,
            has_memory: plan.has_epochs(),
            cost_ns: plan.cost_ns,
            datagrams: plan.datagrams,
            reads: plan.reads,
        };
        let shard = |_| ShardNode {
            machine: None,
            life: 0,
            frozen: false,
            inbox: VecDeque::new(),
            wake_ns: u64::MAX,
            handled: 0,
            unsettled: false,
            ended_move: false,
            origin_ns: chance.below(1_000 * S),
            cells: Cells::new(habits),
            replay: ReplayJudge::default(),
            pace: PassPace::default(),
            learned: LearnedPlaces::default(),
            answers_ns: BTreeMap::new(),
        };
        let config = control::ControlConfig {
            edge: format!("edge-{edge}"),
            shards: plan.shards[edge],
            sessions_max: 0,
            recoveries_max: plan.recoveries_max,
            replay_ns_max: plan.replay_ns_max,
            // For all shards, and each gets as much.
            memory_max: plan.shard_memory_max * u64::from(plan.shards[edge]),
            grants: Vec::new(),
            peers: false,
            coordinator: plan.witness.is_some(),
            record_stops: plan.records,
            checkpoints_max: plan.checkpoints_max,
            dials: (0..plan.dialled_edges()).map(address_of).collect(),
            learns: plan.edges_learn(),
            addresses: plan.learning.iter().map(|_| address_of(edge)).collect(),
            hand_over_ms: plan.hand_over_ms,
            settle_ms: plan.settle_ms(),
            move_bytes_per_s: plan.move_bytes_per_s,
            heartbeat_ms: [100, 400],
            sabotage: 0,
            policies: plan.policies(),
            whole: plan.copies_whole(),
        };
        let shards = (0..plan.shards[edge]).map(shard).collect();
        Self {
            config,
            habits,
            control: None,
            life: 0,
            frozen: false,
            frozen_until_ns: 0,
            inbox: VecDeque::new(),
            shards,
            skew_ns: 0,
            client: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.control.is_some()
    }

    /// Whether its supervisor is frozen.
    pub(crate) fn stands_still(&self) -> bool {
        self.frozen
    }

    /// The queue of events for a frozen process: a shard's, or the supervisor's.
    pub(crate) fn frozen_inbox(&mut self, shard: Option<usize>) -> Option<&mut VecDeque<Event>> {
        match shard {
            Some(shard) => {
                let node = &mut self.shards[shard];
                node.frozen.then_some(&mut node.inbox)
            }
            None => self.frozen.then_some(&mut self.inbox),
        }
    }
}

impl World {
    pub(crate) fn shard(&self, position: ShardPosition) -> &ShardNode {
        &self.edges[position.edge].shards[position.shard]
    }

    pub(super) fn shard_mut(&mut self, position: ShardPosition) -> &mut ShardNode {
        &mut self.edges[position.edge].shards[position.shard]
    }

    pub(crate) fn is_frozen(&self, position: ShardPosition) -> bool {
        self.shard(position).frozen
    }

    /// Starts an edge without state: its operator deploys the apps, its supervisor starts the shards.
    pub(crate) fn start_edge(&mut self, edge: usize) {
        let node = &mut self.edges[edge];
        node.control = Some(Control::new(node.config.clone()));
        self.start_client(edge);
        for (tag, app) in (0..).zip(self.plan.apps.clone()) {
            self.give_control(
                edge,
                control::ControlInput::Request { tag, request: ControlRequest::Deploy(app) },
            );
        }
        for shard in 0..self.edges[edge].shards.len() {
            self.start_shard(ShardPosition { edge, shard });
        }
    }

    /// Starts one shard's process. It has the domain's secret and nothing else: its sessions come
    /// back through their ends.
    pub(crate) fn start_shard(&mut self, position: ShardPosition) {
        if !self.edges[position.edge].is_up() {
            return;
        }
        let (entropy, origin_ns) = (self.chance.bytes(), self.chance.below(1_000 * S));
        let habits = self.edges[position.edge].habits;
        let node = self.shard_mut(position);
        node.machine = Some(Shard::new(DomainSecret::from_material(b"simulated domain"), entropy));
        node.origin_ns = origin_ns;
        node.wake_ns = u64::MAX;
        node.unsettled = false;
        node.cells = Cells::new(habits);
        node.replay = ReplayJudge::default();
        node.learned = LearnedPlaces::default();
        node.answers_ns.clear();
        let shard = u8::try_from(position.shard).expect("a few shards");
        self.give_control(position.edge, control::ControlInput::ShardUp { shard });
    }

    /// The machine crashes: only what is in flight remains.
    pub(crate) fn crash_edge(&mut self, edge: usize, loud: bool, for_ns: u64) {
        for shard in 0..self.edges[edge].shards.len() {
            self.crash_shard(ShardPosition { edge, shard }, loud);
        }
        let node = &mut self.edges[edge];
        node.control = None;
        node.client = None;
        node.life += 1;
        node.frozen = false;
        node.inbox.clear();
        let life = node.life;
        self.restart_disk(edge);
        self.queue.after(for_ns, Event::StartEdge(edge, life));
    }

    /// One process crashes; if `loud`, its kernel closes its peers' connections.
    pub(crate) fn crash_shard(&mut self, position: ShardPosition, loud: bool) {
        self.backed_sessions_die(position);
        let habits = self.edges[position.edge].habits;
        let node = self.shard_mut(position);
        node.machine = None;
        node.life += 1;
        node.frozen = false;
        node.inbox.clear();
        node.cells = Cells::new(habits);
        self.watch.died(position);
        for wire in 0..self.wires.len() {
            let mine = if self.wires[wire].position == position {
                Direction::Up
            } else if self.wires[wire].caller == Caller::Shard(position) {
                Direction::Down
            } else {
                continue;
            };
            if !self.wires[wire].is_open(mine) {
                continue;
            }
            self.wires[wire].close(mine);
            if loud {
                let within_ns = self.chance.magnitude(US, 5 * MS);
                self.break_wire(wire, mine.back(), within_ns);
            }
        }
    }

    /// The supervisor detects a dead shard and starts another.
    pub(crate) fn restart_shard(&mut self, position: ShardPosition) {
        let (edge_life, life) = (self.edges[position.edge].life, self.shard(position).life);
        let shard = u8::try_from(position.shard).expect("a few shards");
        self.queue
            .after(MS, Event::Control(position.edge, edge_life, control::ControlInput::ShardDown { shard }));
        let delay_ns = 2 * MS + self.chance.below(100 * MS);
        self.queue.after(delay_ns, Event::StartShard(position, life));
    }

    /// Stops all processes of the edge at once, as when its machine is suspended.
    pub(crate) fn freeze_edge(&mut self, edge: usize, for_ns: u64) {
        let until_ns = self.queue.now_ns() + for_ns;
        let node = &mut self.edges[edge];
        node.frozen = true;
        node.frozen_until_ns = node.frozen_until_ns.max(until_ns);
        node.shards.iter_mut().for_each(|shard| shard.frozen = true);
        self.queue.at(until_ns, Event::ThawEdge(edge));
    }

    /// Continues them, if no later freeze is in force: first what waited for the supervisor, then
    /// what waited for each shard.
    pub(crate) fn thaw_edge(&mut self, edge: usize) {
        let node = &mut self.edges[edge];
        if self.queue.now_ns() < node.frozen_until_ns {
            return;
        }
        node.frozen = false;
        let mut waiting = std::mem::take(&mut node.inbox);
        for shard in &mut node.shards {
            shard.frozen = false;
            waiting.append(&mut shard.inbox);
        }
        for event in waiting {
            self.dispatch(event);
        }
    }

    /// One step of the supervisor's machine, and its outputs.
    pub(crate) fn give_control(&mut self, edge: usize, input: control::ControlInput) {
        let Some(control) = &mut self.edges[edge].control else { return };
        let mut out = Vec::new();
        control.step(input, &mut out);
        if self.checked_each == 1
            && let Err(broken) = control.invariants()
        {
            self.violations.push(format!("the control of E{edge}: {broken}"));
        }
        for out in out {
            match out {
                control::ControlOutput::ToShard { shard, message } => self.tell_shard(edge, shard, &message),
                control::ControlOutput::Answer { tag, answer } => self.answered(edge, tag, answer),
                control::ControlOutput::Fetch(version) => {
                    unreachable!("no one is there to ask for {version}")
                }
                control::ControlOutput::AskWitness { shard, seek } => self.ask_witness(edge, shard, seek),
                control::ControlOutput::AskClaim { shard, claim } => self.claim_group(edge, shard, claim),
                control::ControlOutput::AskSlot { shard, query } => self.ask_slot(edge, shard, query),
                control::ControlOutput::TellWitness(saw) => self.tell_witness(edge, saw),
                control::ControlOutput::StoreSeen(seen) => self.store_seen(edge, seen),
                control::ControlOutput::Log(level, text) => {
                    self.watch.count_if(Rare::MoveReplaced, text.ends_with(REPLACES));
                    self.trace.say(self.queue.now_ns(), || format!("E{edge} log {level:?}: {text}"));
                }
                control::ControlOutput::Drained => self.watch.count_if(Rare::EdgeDrained, true),
            }
        }
    }

    /// Sends a message to a shard, encoded as on a real pipe. A shard that has died since does not
    /// get it.
    fn tell_shard(&mut self, edge: usize, shard: u8, message: &ToShard) {
        let message = ToShard::decode(message.to_bytes()).expect("control speaks this build's language");
        let position = ShardPosition { edge, shard: usize::from(shard) };
        let life = self.shard(position).life;
        self.queue.after(PIPE_NS, Event::Shard(position, life, Box::new(ShardInput::Control(message))));
    }

    /// Asks every edge what it holds.
    pub(crate) fn sample(&mut self) {
        for edge in 0..self.edges.len() {
            let request =
                control::ControlInput::Request { tag: SAMPLE_TAG, request: ControlRequest::Sessions };
            let life = self.edges[edge].life;
            self.queue.after(0, Event::Control(edge, life, request));
            if let Some(client) = &self.edges[edge].client {
                let request = ControlRequest::Placements(client.listed);
                self.queue.after(
                    0,
                    Event::Control(edge, life, control::ControlInput::Request { tag: LIST_TAG, request }),
                );
            }
        }
        if self.plan.may_starve() && self.queue.now_ns() > STARVED_NS {
            // What else would help is more memory.
            (0..self.edges.len()).for_each(|edge| self.ask_to_kill(edge));
        }
        self.queue.after(super::SAMPLE_NS, Event::Sample);
    }

    /// Asks which sessions the edge has; the first of them is killed when the answer comes
    /// (`answered`).
    pub(crate) fn ask_to_kill(&mut self, edge: usize) {
        let life = self.edges[edge].life;
        let request = control::ControlInput::Request { tag: KILL_TAG, request: ControlRequest::Sessions };
        self.queue.after(0, Event::Control(edge, life, request));
    }

    /// An answer to one of the world's own questions.
    ///
    /// A refused recording is legal if it says that the session moves at this moment or that the
    /// app keeps nothing.
    fn answered(&mut self, edge: usize, tag: u64, answer: ControlAnswer) {
        if let ControlAnswer::Refused(why) = &answer
            && tag == RECORD_TAG
        {
            let told =
                why.contains("try again") || why.contains("meanwhile") || why.contains("new generation");
            let unprotected = why.contains("protect = \"none\"") || why.contains("protect = \"epoch\"");
            // An end that lies shows what no recording is made of.
            if !told && !unprotected && !why.contains("too long") && self.liar.is_none() {
                self.violations.push(format!("E{edge} refuses to record: {why}"));
            }
            self.watch.count_if(Rare::RecordingGivenUp, !unprotected);
        }
        self.move_answered(edge, tag, &answer);
        let rows = match answer {
            ControlAnswer::Sessions(rows, _) => rows,
            ControlAnswer::DrainCancelled(left) => {
                return self.watch.count_if(Rare::DrainCancelled, left.moves > 0);
            }
            ControlAnswer::Policies(report) => return self.policies_changed(&report),
            ControlAnswer::Placements(version, parts) => return self.list_standbys(edge, version, parts),
            _ => return,
        };
        if tag == SAMPLE_TAG {
            self.tell_client(edge, rows.len() as u64);
        }
        if tag == SAMPLE_TAG && self.plan.records {
            for row in &rows {
                let request = ControlRequest::Record(row.session, false);
                self.ask_control(edge, 0, RECORD_TAG, request);
            }
        }
        if (MOVE_TAG..MOVE_TAG + 32).contains(&tag) {
            self.move_rows(edge, tag, &rows);
        }
        if tag == KILL_TAG
            && let Some(row) = rows.first()
        {
            self.causes.killed.insert(row.session);
            let request = ControlRequest::Kill(row.session, "an operator asks".into());
            self.ask_control(edge, 0, 0, request);
        }
        for row in rows.iter().filter(|row| row.uncovered_bytes > LOG_SIZE_MAX) {
            let text = format!("E{edge} holds {} B of log for {}", row.uncovered_bytes, row.session);
            self.violations.push(text);
        }
    }

    /// Carries one output out; what concerns a cell goes to the executor.
    pub(super) fn shard_out(&mut self, position: ShardPosition, out: ShardOutput) {
        let life = self.shard(position).life;
        match out {
            ShardOutput::Send { wire, mut frame } => {
                self.lie_about_edges(position.edge, &mut frame);
                let wire = usize::try_from(wire.0).expect("wires are named by their place");
                match self.wires[wire].caller {
                    Caller::Agent(agent) => {
                        self.watch.sent(self.queue.now_ns(), (wire, agent), PeerSide::Edge, position, &frame);
                        self.count_refusal(&frame);
                        self.judge_recovery(position, &frame);
                        self.note_liar(&frame);
                        self.send(wire, Direction::Down, &frame);
                    }
                    Caller::Shard(caller) => {
                        self.judge_forgotten(position, &frame);
                        self.judge_refused(position, &frame);
                        let slow = matches!(&frame, Frame::Ended(it) if it.reason.starts_with(TOO_SLOW));
                        self.watch.count_if(Rare::StandbyLagged, slow);
                        let direction = direction_from(position, caller);
                        match direction {
                            Direction::Up => self.watch.sent_by_keeper(wire, &frame),
                            Direction::Down => self.watch.sent_to_keeper(wire, position, &frame),
                        }
                        self.send(wire, direction, &frame);
                    }
                    Caller::Recorder => {
                        self.watch.sent_to_keeper(wire, position, &frame);
                        self.send(wire, Direction::Down, &frame);
                    }
                }
            }
            ShardOutput::Dial { target } => self.dial(Caller::Shard(position), target),
            ShardOutput::Learn { edge, address } => self.shard_learns(position, edge, Some(address)),
            ShardOutput::Forget { edge } => self.shard_learns(position, edge, None),
            ShardOutput::CloseWire { wire } => {
                let index = usize::try_from(wire.0).expect("wires are named by their place");
                let direction = match self.wires[index].caller {
                    Caller::Agent(_) | Caller::Recorder => Direction::Down,
                    Caller::Shard(caller) => direction_from(position, caller),
                };
                self.close_wire(index, direction);
                self.queue
                    .after(PIPE_NS, Event::Shard(position, life, Box::new(ShardInput::WireDown { wire })));
            }
            ShardOutput::WakeAt { mono_ns } => {
                let node = self.shard_mut(position);
                node.wake_ns = mono_ns;
                let at_ns = mono_ns.saturating_sub(node.origin_ns);
                self.queue.at(at_ns, Event::ShardWake(position, life, mono_ns));
            }
            ShardOutput::Control(message) => self.tell_control(position, &message),
            ShardOutput::Start { .. }
            | ShardOutput::Restore { .. }
            | ShardOutput::Advance { .. }
            | ShardOutput::Part { .. }
            | ShardOutput::Run(_)
            | ShardOutput::Prepare { .. }
            | ShardOutput::Copy { .. }
            | ShardOutput::Checkpoint { .. }
            | ShardOutput::Hash { .. }
            | ShardOutput::Record { .. }
            | ShardOutput::Remove { .. } => self.execute(position, out),
        }
    }

    /// Sends a message to the control of a shard's edge, encoded as on a real pipe.
    fn tell_control(&mut self, position: ShardPosition, message: &FromShard) {
        let message = FromShard::decode(message.to_bytes()).expect("shards speak this build's language");
        match &message {
            FromShard::Note(note) => {
                self.shard_mut(position).ended_move |= note.text.ends_with(REPLACES);
                self.noted(position, note.session, &note.text);
            }
            FromShard::MoveOver(over) => {
                self.shard_mut(position).ended_move = true;
                self.move_over(position.edge, over);
            }
            _ => {}
        }
        let shard = u8::try_from(position.shard).expect("a few shards");
        let edge_life = self.edges[position.edge].life;
        let input = control::ControlInput::FromShard { shard, message };
        self.queue.after(PIPE_NS, Event::Control(position.edge, edge_life, input));
    }

    /// Does an executor's work at once and delivers the reply later.
    fn execute(&mut self, position: ShardPosition, out: ShardOutput) {
        let node = &mut self.edges[position.edge].shards[position.shard];
        let for_budget = node.machine.as_ref().is_some_and(|machine| node.replay.gives(machine, &out));
        self.watch.count_if(Rare::CopiedForBudget, for_budget);
        let cells = &mut node.cells;
        match out {
            ShardOutput::Start { cell, session, image, seed, .. } => {
                let session = session.expect("no cell here is shared");
                let result = cells.start(cell, session, (image, seed), &mut self.past);
                self.answer(position, cell, ShardInput::Started { cell, result });
                self.grow(position, cell);
            }
            ShardOutput::Restore { cell, session, image, keys, checkpoints, .. } => {
                cells.expect(cell, Restoring::new(session, image, keys, checkpoints));
            }
            ShardOutput::Advance { cell, meta } => self.advance(position, cell, meta),
            ShardOutput::Part { cell, bytes } => {
                if let Some(restoring) = cells.gather(cell, &bytes) {
                    let (session, count) = (restoring.session, restoring.count());
                    let result = cells.restore(cell, restoring, &mut self.past);
                    self.watch.restored(position, cell, session, count);
                    self.answer(position, cell, ShardInput::Restored { cell, result });
                    self.grow(position, cell);
                }
            }
            ShardOutput::Run(run) => {
                let Some((ran, seen)) = cells.run(&run, &mut self.past) else { return };
                self.note(&[6, run.cell.0, ran.outputs.len() as u64], &[], || {
                    format!("{position} {:?} {} outputs, {seen:?}", run.cell, ran.outputs.len())
                });
                self.watch.ran(position, run.cell, &ran, seen);
                let opens_server = matches!(run.input, CellInput::Open { port: Port::SERVER, .. });
                let extra_ns = if opens_server { self.plan.open_ns } else { 0 };
                self.answer_later(position, run.cell, ShardInput::Ran(ran), extra_ns);
            }
            ShardOutput::Prepare { cell, base } => {
                cells.prepare(cell, base, &mut self.past);
                let delay_ns = self.chance.below(50 * self.plan.handler_ns);
                let life = self.shard(position).life;
                self.queue
                    .after(delay_ns, Event::Shard(position, life, Box::new(ShardInput::Prepared { cell })));
            }
            ShardOutput::Copy { cell, base } => {
                let prepared = cells.copy(cell, base, &mut self.past);
                self.watch.count_if(Rare::CopyPrepared, prepared);
                self.watch.copied(base);
            }
            ShardOutput::Checkpoint { cell, header, seal } => {
                self.watch.sealed(position, &header, cells.copied(cell));
                let result = cells.checkpoint(cell, &header, &seal);
                let number = header.number;
                let delay_ns = self.chance.below(20 * self.plan.handler_ns);
                let life = self.shard(position).life;
                let input = ShardInput::Checkpointed { cell, number, result };
                self.queue.after(delay_ns, Event::Shard(position, life, Box::new(input)));
            }
            ShardOutput::Hash { cell } => cells.hash(cell),
            ShardOutput::Record { request, gathered, edge, unix_ns } => {
                let state = gathered.cell.and_then(|cell| cells.hashed(cell));
                let session = gathered.session;
                let result = self.keep_recording(position, *gathered, (edge, unix_ns, state));
                let life = self.shard(position).life;
                let input = ShardInput::Recorded { session, tag: request.tag, result };
                self.queue.after(PIPE_NS, Event::Shard(position, life, Box::new(input)));
            }
            ShardOutput::Remove { cell } => {
                cells.remove(cell, &mut self.past);
                self.shard_mut(position).answers_ns.remove(&cell);
            }
            // Not for the executor.
            _ => {}
        }
    }

    /// More of a cell that was restored arrives.
    fn advance(&mut self, position: ShardPosition, cell: CellId, meta: CheckpointMeta) {
        if !self.shard_mut(position).cells.expect_more(cell, meta) {
            self.violations.push(format!("{position} advances a cell that was not restored"));
        }
    }

    /// In some seeds all cells are large.
    fn grow(&mut self, position: ShardPosition, cell: CellId) {
        if self.plan.large {
            self.answer(position, cell, ShardInput::Large { cell });
        }
    }

    /// Replies of one cell arrive in order, those of several cells in any order.
    ///
    /// A real shard's worker answers for many cells and keeps the order of each.
    fn answer(&mut self, position: ShardPosition, cell: CellId, input: ShardInput) {
        self.answer_later(position, cell, input, 0);
    }

    /// As [`Self::answer`], and `extra_ns` later. In 1 of 100 cases a handler takes up to fifty
    /// times as long as usual.
    fn answer_later(&mut self, position: ShardPosition, cell: CellId, input: ShardInput, extra_ns: u64) {
        let usual_ns = self.plan.handler_ns;
        let slow = self.chance.percent(1);
        let delay_ns = extra_ns + self.chance.below(if slow { 50 * usual_ns } else { usual_ns });
        let at_ns = self.queue.now_ns() + delay_ns;
        let node = self.shard_mut(position);
        let last_ns = node.answers_ns.entry(cell).or_default();
        *last_ns = at_ns.max(*last_ns);
        let (at_ns, life) = (*last_ns, node.life);
        self.queue.at(at_ns, Event::Shard(position, life, Box::new(input)));
    }
}

/// The direction of what a shard sends on a wire between two shards.
fn direction_from(position: ShardPosition, caller: ShardPosition) -> Direction {
    if position == caller { Direction::Up } else { Direction::Down }
}

/// An input as short text.
pub(super) fn words(input: &ShardInput) -> String {
    match input {
        ShardInput::Checkpointed { cell, number, result } => {
            format!("Checkpointed {cell:?} #{number}: {:?}", result.as_ref().map(bytes::Bytes::len))
        }
        ShardInput::Restored { cell, result } => {
            format!("Restored {cell:?}: {:?}", result.as_ref().map(|header| header.log_offset))
        }
        other => format!("{other:?}"),
    }
}
