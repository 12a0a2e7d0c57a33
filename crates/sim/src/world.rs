//! A whole world on one thread: agents, edges, the wires between them and the programs next to them, driven by one clock and
//! one seed.
//!
//! Does what shells do (sockets, sandboxes, supervisors) and decides nothing that the machines must decide.
//!
//! ```text
//! Queue.next_event --> dispatch --frozen?--> inbox of the process, until it thaws
//!                         '--> happen --> give_agent / give_shard / give_control / give_recorder
//!                                           '--> machine.step(now, input, out) --> each output: an event
//!                         '--> spring: faults whose moment was just observed
//! ```
//! Each process has a `life`, the number of its restarts. Events carry the life of the process that
//! they were meant for and are dropped if it has died since: a timer or a reply must not reach its
//! successor. Wake-ups carry their time as well, because only the last one that a machine asked for
//! counts.
//!
//! Each process has a monotonic clock with an arbitrary origin (`origin_ns`), so that a time of one
//! machine cannot be used by another.

mod agents;
mod ahead;
mod batches;
mod causes;
mod claims;
mod coordinator;
mod edges;
mod epochs;
mod faults;
mod learning;
mod liars;
mod lies;
mod memory;
mod moves;
mod pace;
mod recorders;
mod recordings;
mod renewal;
mod replay;
mod stale;
mod store_loss;
mod wires;

pub(crate) use agents::AgentNode;
use coordinator::StoreNode;
pub(crate) use edges::EdgeNode;
use recorders::RecorderNode;
use wires::{Caller, Direction, Item, Wire};

use crate::{
    executor::Past,
    oracle::{self, HallsLost},
    plan::{Absence, Fault, FaultKind, MS, Moment, On, Plan, StoreLoss},
    position::ShardPosition,
    program::{Act, Program},
    random::Random,
    trace::Trace,
    watch::{Observation, Rare, Watch},
};
use marram_session::{agent, recorder};
use marram_shard::{
    api, control,
    coordinator::{StoreChange, StoreFailure, StoreReply, StoreRequest},
};
use marram_wire::{
    frame::Frame,
    id::{HostId, SessionId},
};
use std::collections::BTreeSet;

/// A seed that needs more does not terminate: 24,000 messages of a byte through a chain, with faults, take 430,000.
const EVENTS_MAX: u64 = 1_000_000;
/// A seed with fewer events tests too little.
const EVENTS_MIN: u64 = 200;
/// Interval at which edges are asked what they hold.
const SAMPLE_NS: u64 = 250 * MS;

/// An event of the simulation. Indices name agents, edges, wires and programs by their place in the
/// world's lists; a `u32` is a life.
#[derive(Debug)]
pub(crate) enum Event {
    Agent(usize, u32, agent::AgentInput),
    AgentWake(usize, u32, u64),
    Shard(ShardPosition, u32, Box<api::ShardInput>),
    ShardWake(ShardPosition, u32, u64),
    /// What came together for this shard is complete.
    ShardSettle(ShardPosition, u32),
    Control(usize, u32, control::ControlInput),
    Arrive(usize, Direction, Item),
    Deliver(usize, Direction, Item),
    Flush(usize, Direction),
    Dialled {
        caller: Caller,
        life: u32,
        target: agent::Target,
    },
    Act(usize, Act),
    Visit(usize),
    InjectFault(FaultKind, Option<ShardPosition>),
    InjectFirstFault(FaultKind, Option<ShardPosition>),
    StartEdge(usize, u32),
    StartShard(ShardPosition, u32),
    StartAgent(usize, u32),
    Recorder(u32, recorder::RecorderInput),
    RecorderWake(u32, u64),
    StartRecorder(u32),
    CrashRecorder(u64),
    FreezeRecorder(u64),
    ThawRecorder(u32),
    ThawEdge(usize),
    ThawAgent(usize),
    Heal(usize, usize, Direction),
    ToStore {
        edge: usize,
        life: u32,
        tag: u64,
        request: StoreRequest,
    },
    FromStore {
        edge: usize,
        life: u32,
        tag: u64,
        result: Result<StoreReply, StoreFailure>,
    },
    WatchStore {
        edge: usize,
        life: u32,
        watch: u64,
        prefix: String,
        since: u64,
    },
    News(usize, u32, u64, Option<Vec<StoreChange>>),
    ClientWake(usize, u32, u64),
    StoreTick(u64),
    StoreAway(Absence, u64),
    StoreBack(Absence),
    StoreCopied,
    StoreLost(StoreLoss, u64),
    /// An operator looks whether an edge's coordinator has lost decisions.
    LossChecked(usize),
    Claim(usize, u8),
    /// An operator changes the policies of an edge.
    ChangePolicies(usize, control::PolicyChange),
    ClaimAgain(usize, u32),
    Sample,
}

/// The process that an event concerns; it may be frozen.
enum EventTarget {
    Agent(usize),
    Shard(ShardPosition),
    Control(usize),
    Recorder,
    NoMachine,
}

/// One seed of so many checks the invariants of its agents and shards after each step, which takes as long as there are messages.
const INVARIANTS_EVERY: u64 = 8;
/// The other seeds check them after one step of so many of each machine: most rules, once broken, stay so for a while.
const INVARIANTS_SAMPLED: u64 = 24;

/// The world of one seed.
#[derive(Debug)]
pub(crate) struct World {
    plan: Plan,
    queue: crate::queue::Queue<Event>,
    /// For everything that has no generator of its own. The order of draws is the order of events,
    /// so it is part of the history.
    chance: Random,
    /// Separate from the rest, so that the number of checkpoint parts changes nothing else.
    bulk_chance: Random,
    agents: Vec<AgentNode>,
    edges: Vec<EdgeNode>,
    recorder: Option<RecorderNode>,
    coordinator: Option<StoreNode>,
    /// Draws of the network and the process of the coordinator.
    store_chance: Random,
    /// As long as the seed runs: a wire that is closed keeps its number.
    wires: Vec<Wire>,
    /// By direction, caller's row and edge, how many silences are in force; nothing passes while it
    /// is not 0.
    silences: [Vec<Vec<u32>>; 2],
    programs: Vec<Program>,
    /// Connections to servers so far: the next one's number.
    servers_started: u64,
    visits_begun: usize,
    /// The first fault, until its moment occurs; the others follow it.
    first: Option<TriggeredFault>,
    /// Faults that wait for their moment, after the first one was injected.
    triggered: Vec<TriggeredFault>,
    faults_injected: u64,
    /// Whether one of them was not a move.
    is_disturbed: bool,
    causes: causes::Causes,
    /// Sessions that an operator has moved to another shard of their edge, until they lose their owner.
    assigned: BTreeSet<SessionId>,
    /// The state of the scenario `plan::Renewal`, once it has begun.
    renewal: Option<renewal::ScenarioState>,
    liar: Option<liars::Liar>,
    watch: Watch,
    past: Past,
    /// What ends have received of sessions whose outputs do not wait for a backup.
    ahead: ahead::Ahead,
    trace: Trace,
    violations: Vec<String>,
    /// After how many steps of an agent or a shard its invariants are checked; after each one makes a seed several times slower.
    checked_each: u64,
}

/// A fault that waits for its moment.
#[derive(Debug)]
struct TriggeredFault {
    moment: Moment,
    /// `skip` counts down, so a waiting fault changes with each moment of its kind.
    skip: u64,
    delay_ns: u64,
    kind: FaultKind,
}

impl TriggeredFault {
    /// Whether its moment has occurred; counts the ones to skip.
    fn is_now(&mut self, moment: Moment) -> bool {
        let meant = self.moment == moment;
        let now = meant && self.skip == 0;
        self.skip -= u64::from(meant && !now);
        now
    }
}

/// The result of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// Violations; empty if there were none.
    pub violations: Vec<String>,
    /// Equal for equal runs.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// How many answers of the Wasm machine were compared with the fake's.
    pub compared: u64,
    /// Rare states reached.
    pub watch: Watch,
    /// The events as text, if requested.
    pub lines: Vec<String>,
}

impl World {
    pub(crate) fn new(plan: Plan, verbose: bool) -> Self {
        let (agents, edges) = (plan.agents(), plan.shards.len());
        let mut world = Self {
            queue: crate::queue::Queue::default(),
            chance: Random::new(plan.seed, 5),
            bulk_chance: Random::new(plan.seed, 6),
            agents: Vec::new(),
            edges: Vec::new(),
            recorder: None,
            coordinator: plan.witness.as_ref().map(|_| StoreNode::new()),
            store_chance: Random::new(plan.seed, 16),
            wires: Vec::new(),
            silences: [vec![vec![0; edges]; agents + edges + 1], vec![vec![0; edges]; agents + edges + 1]],
            programs: Vec::new(),
            servers_started: 0,
            visits_begun: 0,
            first: None,
            triggered: Vec::new(),
            faults_injected: 0,
            is_disturbed: false,
            causes: causes::Causes::default(),
            assigned: BTreeSet::new(),
            renewal: None,
            liar: plan.liar.map(|liar| liars::Liar::new(&plan, liar)),
            watch: Watch::default(),
            past: Past::new(),
            ahead: ahead::Ahead::default(),
            trace: Trace::new(verbose),
            violations: Vec::new(),
            checked_each: checked_each(&plan),
            plan,
        };
        world.watch.bound_windows([memory::input_window(&world.plan), memory::output_window(&world.plan)]);
        world.past.lied_to = world.liar.is_some();
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        for edge in 0..self.plan.shards.len() {
            let node = EdgeNode::new(&self.plan, edge, &mut self.chance);
            self.edges.push(node);
            self.start_edge(edge);
        }
        for agent in 0..self.plan.agents() {
            let node = AgentNode::new(&self.plan, agent, &mut self.chance);
            self.agents.push(node);
            self.queue.at(0, Event::StartAgent(agent, 0));
        }
        if let Some(recorder) = self.plan.recorder.clone() {
            self.recorder = Some(RecorderNode::new(&self.plan, &mut self.chance));
            self.queue.at(0, Event::StartRecorder(0));
            for (at_ns, for_ns) in recorder.crashes {
                self.queue.at(at_ns, Event::CrashRecorder(for_ns));
            }
            for (at_ns, for_ns) in recorder.freezes {
                self.queue.at(at_ns, Event::FreezeRecorder(for_ns));
            }
        }
        for (visit, of) in self.plan.visits.iter().enumerate() {
            self.queue.at(of.at_ns, Event::Visit(visit));
        }
        let Fault { when: On { moment, skip, delay_ns }, kind } = self.plan.first;
        self.first = Some(TriggeredFault { moment, skip, delay_ns, kind });
        for Fault { when: On { moment, skip, delay_ns }, kind } in self.plan.moves.clone() {
            self.triggered.push(TriggeredFault { moment, skip, delay_ns, kind });
        }
        if let Some(witness) = self.plan.witness.clone() {
            if !self.plan.has_epochs() {
                self.watch.witness(witness.how);
            }
            for (at_ns, for_ns, absence) in witness.away {
                self.queue.at(at_ns, Event::StoreAway(absence, for_ns));
            }
            for (at_ns, edge, group) in witness.claims {
                self.queue.at(at_ns, Event::Claim(edge, group));
            }
            self.plan_losses(witness.losses);
        }
        if let Some(liar) = &mut self.liar {
            liar.host = self.agents[liar.agent].host;
        }
        if let Some(liar) = self.plan.liar {
            let crash = FaultKind::CrashAgent { agent: liar.agent(self.plan.clients) };
            self.queue.at(liar.until_ns, Event::InjectFault(crash, None));
        }
        for step in self.plan.policy_steps() {
            self.queue.at(step.at_ns, Event::ChangePolicies(step.edge, step.change));
        }
        self.queue.at(SAMPLE_NS, Event::Sample);
    }

    /// Runs to the end, or to the first violation.
    ///
    /// The violations of a seed are all of its first bad event; later events could only be
    /// consequences.
    pub(crate) fn run(mut self) -> Outcome {
        while self.violations.is_empty() && !self.is_over() {
            let event = self.queue.next_event().expect("the next sample is always due");
            if self.queue.now_ns() > self.plan.horizon_ns() || self.trace.events() > EVENTS_MAX {
                let late = format!("no end after {} events, {} ns", self.trace.events(), self.queue.now_ns());
                self.violations.push(late);
                self.violations.extend(self.unfinished());
                break;
            }
            self.dispatch(event);
            self.violations.append(&mut self.past.violations);
        }
        if self.violations.is_empty() {
            self.settle();
        }
        self.mark_lied_to();
        self.mark_ran_ahead();
        if self.violations.is_empty() {
            oracle::judge(&self.programs, self.halls_lost(), &mut self.violations);
            self.watch.counts.add(Rare::NumberReused, oracle::numbers_reused(&self.programs));
            self.watch.counts.add(Rare::HallsInTurn, oracle::halls_in_turn(&self.programs));
        }
        let (hash, events) = (self.trace.hash(), self.trace.events());
        let compared = self.past.compared();
        let (violations, watch) = (self.violations, self.watch);
        Outcome { violations, hash, events, compared, watch, lines: self.trace.into_lines() }
    }

    /// What may have become of halls. An operator has ended one, or has accepted that the store has lost whose it is; or all edges that had
    /// it have died, and one of them is back.
    fn halls_lost(&self) -> HallsLost {
        let has_lost = self.coordinator.as_ref().is_some_and(|store| store.has_lost());
        match (has_lost, self.causes.have_lost_any()) {
            (true, true) => HallsLost::PutBack,
            (false, false) if self.causes.killed.is_empty() => HallsLost::No,
            _ => HallsLost::BeginAgain,
        }
    }

    /// Whether every program has ended and the seed has had enough faults.
    ///
    /// A world at rest without a fault yet gets its first one now: else the seed would test
    /// nothing. Then it goes on until at rest again.
    fn is_over(&mut self) -> bool {
        let over = self.is_at_rest();
        if over && let Some(first) = self.first.take() {
            // Its moment never occurred.
            self.queue.after(0, Event::InjectFirstFault(first.kind, None));
        }
        over && self.faults_injected > 0
    }

    /// Whether at most one session can still be open.
    fn is_nearly_over(&self) -> bool {
        let open = self.programs.iter().filter(|program| program.closed.is_none()).count();
        self.visits_begun == self.plan.visits.len() && open <= 2
    }

    /// Whether all visits were made, all programs have ended and no agent remembers a session.
    /// `EVENTS_MIN` lets faults that were planned for later happen in a short seed.
    fn is_at_rest(&self) -> bool {
        self.visits_begun == self.plan.visits.len()
            && self.trace.events() >= EVENTS_MIN
            && self.programs.iter().all(|program| program.closed.is_some() || program.broke)
            && self.agents.iter().all(AgentNode::has_forgotten)
    }

    /// For the report of a seed that does not end: what is still open.
    fn unfinished(&self) -> Vec<String> {
        let program = |(index, program): (usize, &Program)| {
            program.closed.is_none().then(|| {
                format!(
                    "the {:?} program {index} at A{} is not done: read {} of {}, end {}; received {}, end {}",
                    program.peer,
                    program.agent,
                    program.taken,
                    program.written.len(),
                    program.end_taken,
                    program.received.len(),
                    program.end_received,
                )
            })
        };
        let mut all: Vec<_> = self.programs.iter().enumerate().filter_map(program).collect();
        all.extend(self.agents.iter().flat_map(AgentNode::remembered));
        all
    }

    ///
    /// Events of the network, of the world's own clock and of faults concern no process: they
    /// happen also while machines are frozen.
    fn target_of(&self, event: &Event) -> EventTarget {
        match event {
            Event::Agent(agent, ..) | Event::AgentWake(agent, ..) => EventTarget::Agent(*agent),
            Event::Shard(position, ..)
            | Event::ShardWake(position, ..)
            | Event::ShardSettle(position, ..) => EventTarget::Shard(*position),
            Event::Control(edge, ..)
            | Event::FromStore { edge, .. }
            | Event::News(edge, ..)
            | Event::ClientWake(edge, ..) => EventTarget::Control(*edge),
            Event::Deliver(wire, Direction::Up, _) => EventTarget::Shard(self.wires[*wire].position),
            Event::Deliver(wire, Direction::Down, _) => match self.wires[*wire].caller {
                Caller::Agent(agent) => EventTarget::Agent(agent),
                Caller::Shard(position) => EventTarget::Shard(position),
                Caller::Recorder => EventTarget::Recorder,
            },
            Event::Recorder(..) | Event::RecorderWake(..) => EventTarget::Recorder,
            // These actions concern the agent's process; only the program itself writes.
            Event::Act(program, act) if *act != Act::Write => {
                EventTarget::Agent(self.programs[*program].agent)
            }
            _ => EventTarget::NoMachine,
        }
    }

    /// Handles an event, or queues it for a frozen process.
    fn dispatch(&mut self, event: Event) {
        let inbox = match self.target_of(&event) {
            EventTarget::Agent(agent) => self.agents[agent].frozen_inbox(),
            EventTarget::Shard(position) => self.edges[position.edge].frozen_inbox(Some(position.shard)),
            EventTarget::Control(edge) => self.edges[edge].frozen_inbox(None),
            EventTarget::Recorder => self.recorder.as_mut().and_then(RecorderNode::frozen_inbox),
            EventTarget::NoMachine => None,
        };
        match inbox {
            Some(inbox) => inbox.push_back(event),
            None => self.happen(event),
        }
        self.spring();
    }

    /// Events for a process that has died since are dropped here, except for those that the called
    /// functions check themselves.
    fn happen(&mut self, event: Event) {
        match event {
            Event::Agent(agent, life, input) if self.agents[agent].life == life => {
                self.give_agent(agent, input)
            }
            Event::AgentWake(agent, life, at_ns) if self.agents[agent].is_due(life, at_ns) => {
                self.give_agent(agent, agent::AgentInput::Wake);
            }
            Event::Shard(position, life, input) if self.shard(position).life == life => {
                self.give_shard(position, *input)
            }
            Event::ShardWake(position, life, at_ns) if self.shard(position).is_due(life, at_ns) => {
                self.give_shard(position, api::ShardInput::Wake);
            }
            Event::ShardSettle(position, life) if self.shard(position).life == life => {
                self.settle_shard(position);
            }
            Event::Control(edge, life, input) if self.edges[edge].life == life => {
                self.give_control(edge, input)
            }
            // Outdated by a crash or a later wake-up request.
            Event::Agent(..)
            | Event::AgentWake(..)
            | Event::Shard(..)
            | Event::ShardWake(..)
            | Event::ShardSettle(..)
            | Event::Control(..) => {}
            Event::Arrive(wire, direction, item) => self.arrive(wire, direction, item),
            Event::Deliver(wire, direction, item) => self.deliver(wire, direction, item),
            Event::Flush(wire, direction) => self.flush(wire, direction),
            Event::Dialled { caller, life, target } => self.dialled(caller, life, target),
            Event::Act(program, act) => self.act(program, act),
            Event::Visit(visit) => self.visit(visit),
            Event::InjectFault(fault, here) => self.inject_fault(fault, here),
            Event::InjectFirstFault(fault, here) => self.inject_first_fault(fault, here),
            Event::StartEdge(edge, life) if self.edges[edge].life == life => self.start_edge(edge),
            Event::StartShard(position, life) if self.shard(position).life == life => {
                self.start_shard(position)
            }
            Event::StartAgent(agent, life) if self.agents[agent].life == life => self.start_agent(agent),
            Event::StartEdge(..) | Event::StartShard(..) | Event::StartAgent(..) => {}
            Event::Recorder(life, input) => {
                if self.recorder.as_ref().is_some_and(|node| node.life == life) {
                    self.give_recorder(input);
                }
            }
            Event::RecorderWake(life, at_ns) => {
                if self.recorder.as_ref().is_some_and(|node| node.is_due(life, at_ns)) {
                    self.give_recorder(recorder::RecorderInput::Wake);
                }
            }
            Event::StartRecorder(life) => {
                if self.recorder.as_ref().is_some_and(|node| node.life == life) {
                    self.start_recorder();
                }
            }
            Event::CrashRecorder(for_ns) => self.crash_recorder(for_ns),
            Event::FreezeRecorder(for_ns) => self.freeze_recorder(for_ns),
            Event::ThawRecorder(life) => {
                if self.recorder.as_ref().is_some_and(|node| node.life == life) {
                    self.thaw_recorder();
                }
            }
            Event::ThawEdge(edge) => self.thaw_edge(edge),
            Event::ThawAgent(agent) => self.thaw_agent(agent),
            Event::Heal(agent, edge, direction) => self.heal(agent, edge, direction),
            Event::Sample => self.sample(),
            other => self.happen_at_the_coordinator(other),
        }
    }

    /// The coordinator's events; `Event` has many, and this half knows nothing of sessions.
    fn happen_at_the_coordinator(&mut self, event: Event) {
        match event {
            Event::ToStore { edge, life, tag, request } => self.reach_store((edge, life, tag), request),
            Event::FromStore { edge, life, tag, result } if self.edges[edge].life == life => {
                self.answer_client(edge, tag, result);
            }
            Event::WatchStore { edge, life, watch, prefix, since } => {
                self.watch_store((edge, life), watch, prefix, since);
            }
            Event::News(edge, life, watch, changes) if self.edges[edge].life == life => {
                self.client_news(edge, watch, changes);
            }
            Event::ClientWake(edge, life, at_ns) if self.edges[edge].life == life => {
                self.client_wake(edge, at_ns);
            }
            Event::StoreTick(at_ns) => self.store_tick(at_ns),
            Event::StoreAway(absence, for_ns) => self.store_away(absence, for_ns),
            Event::StoreBack(absence) => self.store_back(absence),
            Event::StoreCopied => self.copy_store(),
            Event::StoreLost(loss, for_ns) => self.lose_store(loss, for_ns),
            Event::LossChecked(edge) => self.check_loss(edge),
            Event::Claim(edge, group) => self.claim(edge, group),
            Event::ChangePolicies(edge, change) => self.change_policies(edge, change),
            Event::ClaimAgain(claim, life) if self.edges[self.claim_edge(claim)].life == life => {
                self.ask_claim(claim);
            }
            _ => {}
        }
    }

    /// Triggers faults whose moment was observed.
    ///
    /// One moment triggers at most one waiting fault besides the first. The fault happens after its
    /// delay as an event of its own, so that it falls between two steps and not into one.
    fn spring(&mut self) {
        for Observation { moment, position, agent } in std::mem::take(&mut self.watch.sights) {
            // The last session is about to end: this is the last opportunity.
            let last = moment == Moment::Finish && self.is_nearly_over();
            if let Some(first) = self.first.take_if(|first| first.is_now(moment) || last) {
                let here = agent.filter(|_| first.moment == Moment::Message);
                let fault = here.map_or(first.kind, |agent| first.kind.on(agent));
                self.queue.after(first.delay_ns, Event::InjectFirstFault(fault, position));
            }
            let waiting = self.triggered.iter_mut().position(|waiting_fault| waiting_fault.is_now(moment));
            if let Some(waiting) = waiting {
                let waiting_fault = self.triggered.swap_remove(waiting);
                self.queue.after(waiting_fault.delay_ns, Event::InjectFault(waiting_fault.kind, position));
            }
        }
    }

    /// Records an event in the trace.
    fn note(&mut self, words: &[u64], bytes: &[u8], text: impl FnOnce() -> String) {
        self.trace.note(self.queue.now_ns(), words, bytes, text);
    }
}

/// A frame as short text: payloads only by their length.
fn brief(frame: &Frame) -> String {
    match frame {
        Frame::Input(input) => format!(
            "Input ch{} ack {} close {} {} B",
            input.channel,
            input.ack,
            input.close,
            input.payload.len()
        ),
        Frame::Output(output) => format!(
            "Output ch{} log {:?} close {} {} B",
            output.channel,
            output.increment.as_ref().map(|increment| increment.entries.len()),
            output.close,
            output.payload.len()
        ),
        Frame::CheckpointPart(part) => format!("CheckpointPart ch{} {} B", part.channel, part.bytes.len()),
        Frame::LogPart(part) => {
            format!(
                "LogPart ch{} {:?} @{} {} B",
                part.channel,
                part.generation,
                part.offset,
                part.bytes.len()
            )
        }
        Frame::Chosen(chosen) => format!(
            "Chosen ch{} @{} {} B credit {}",
            chosen.channel,
            chosen.log_offset,
            chosen.log.len(),
            chosen.credit
        ),
        other => format!("{other:?}"),
    }
}

/// After how many steps of a machine its invariants are checked. Where there are very many messages, never.
fn checked_each(plan: &Plan) -> u64 {
    match plan.seed.is_multiple_of(INVARIANTS_EVERY) {
        _ if plan.keeps_many_messages() => u64::MAX,
        true => 1,
        false => INVARIANTS_SAMPLED,
    }
}

/// A process's host id: random, and different for each process.
fn host(chance: &mut Random) -> HostId {
    HostId(chance.bytes())
}
