//! The shell of an agent: local connections, wires, its clock. Does not know the protocol.
//!
//! ```text
//! Program --Act(Pump)--> Received --> Agent::step --> Write --> Program.received
//!         <-- Reading(off): back-pressure   |
//!         <-- Close, Shutdown               '--> Send, Dial, CloseWire --> wires
//!                                           '--> Report --> causes, watch
//! ```
//! As a real shell it translates between sockets and inputs. Unlike one it also keeps notes for the
//! checks: which session a program belongs to, which sessions an agent has reported.

use super::{
    Caller, Direction, Event, World,
    learning::{LearnedPlaces, address_of},
};
use crate::{
    plan::{EDGE_WAIT_NS, MS, Moment, Plan, S, SERVER, Service, US},
    program::{Act, Program, Taken},
    random::Random,
    watch::{PeerSide, Rare},
};
use bytes::Bytes;
use marram_chain_algo::Record;
use marram_session::agent::{
    Agent, AgentConfig, AgentInput, AgentOutput, AgentReport, AgentServer, ConnectionId, Target,
};
use marram_wire::{
    frame::Code,
    id::{HostId, SessionId},
    key::CellKey,
    limits::RETAINED_MIN,
    peer::Origin,
};
use std::collections::{BTreeMap, VecDeque};

/// Ids of connections: this bit is clear if a shell chose the id, and set if an agent did.
const AGENT_NAMES: u64 = 1 << 63;

/// An agent's process.
#[derive(Debug)]
pub(crate) struct AgentNode {
    config: AgentConfig,
    /// Different for each process.
    pub(crate) host: HostId,
    machine: Option<Agent>,
    /// Counts restarts: events for an earlier process are ignored. Counted up by a crash; a freeze
    /// leaves it.
    pub(crate) life: u32,
    /// Several freezes may overlap: the last one to end counts.
    frozen_until_ns: u64,
    frozen: bool,
    inbox: VecDeque<Event>,
    /// When its machine asked to be woken, by its own clock; earlier requests are outdated.
    wake_ns: u64,
    /// Origin of its monotonic clock, which is arbitrary.
    origin_ns: u64,
    connections: BTreeMap<ConnectionId, usize>,
    /// Connections of clients that it has accepted: the next one's id.
    accepted: u64,
    /// Sessions that it has reported and not ended, and whether they have an owner.
    sessions: BTreeMap<SessionId, bool>,
    /// Sessions that asked for their home shard, and that shard.
    pub(super) homeward: BTreeMap<SessionId, Target>,
    /// Steps of its machines.
    steps: u64,
    /// How often its sessions were slowed.
    slowed: u64,
    /// The session that last got an owner here.
    last_owned: Option<SessionId>,
    /// Where its learned edges are.
    pub(crate) learned: LearnedPlaces,
    name: String,
    visits: usize,
}

impl AgentNode {
    pub(crate) fn new(plan: &Plan, agent: usize, chance: &mut Random) -> Self {
        let (serves, host) = (agent >= plan.clients, super::host(chance));
        let edges = plan.learning.as_ref().map_or(plan.shards.len(), |learning| learning.configured[agent]);
        let listed = plan.learning.as_ref().is_some_and(|learning| learning.same_addresses);
        let config = AgentConfig {
            servers: serves
                .then(|| AgentServer { name: SERVER.into(), datagrams: plan.datagrams[1], messages: false })
                .into_iter()
                .collect(),
            edges: u16::try_from(edges).expect("a few edges"),
            addresses: (0..edges).filter(|_| listed).map(address_of).collect(),
            learn: plan.learning.is_some(),
            spread: plan.spread,
            heartbeat_interval_ns: 100 * MS,
            heartbeat_timeout_ns: 400 * MS,
            edge_wait_ns: EDGE_WAIT_NS,
            backoff_min_ns: 10 * MS,
            backoff_max_ns: 500 * MS,
            linger_ns: 20 * S,
            failback_delay_ns: 400 * MS,
            checkpoints_max: plan.checkpoints_max,
            // Longer than any freeze of a process.
            connect_timeout_ns: 10 * S,
            memory_max: plan.memory_max,
        };
        Self {
            config,
            host,
            machine: None,
            life: 0,
            frozen_until_ns: 0,
            frozen: false,
            inbox: VecDeque::new(),
            wake_ns: u64::MAX,
            origin_ns: chance.below(1_000 * S),
            connections: BTreeMap::new(),
            accepted: 0,
            sessions: BTreeMap::new(),
            homeward: BTreeMap::new(),
            steps: 0,
            slowed: 0,
            last_owned: None,
            learned: LearnedPlaces::default(),
            name: format!("A{agent}"),
            visits: plan.visits.iter().filter(|visit| visit.agent == agent).count(),
        }
    }

    pub(crate) fn machine(&self) -> Option<&Agent> {
        self.machine.as_ref()
    }

    /// Whether an edge is not in its configuration.
    pub(crate) fn has_learned(&self, target: Target) -> bool {
        target.edge >= self.config.edges
    }

    pub(crate) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(crate) fn frozen_inbox(&mut self) -> Option<&mut VecDeque<Event>> {
        self.frozen.then_some(&mut self.inbox)
    }

    pub(crate) fn is_due(&self, life: u32, at_ns: u64) -> bool {
        self.life == life && self.wake_ns == at_ns
    }

    /// Sessions with an owner that it knows.
    pub(crate) fn owned(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().filter(|(_, owned)| **owned).map(|(session, _)| *session)
    }

    /// Whether it has reported the end of every session that it has reported.
    pub(crate) fn has_forgotten(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Sessions that have not ended, as text.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = String> {
        self.sessions
            .iter()
            .map(|(session, owned)| format!("{} has not ended session {session} (owned: {owned})", self.name))
    }
}

impl World {
    /// Starts the process. Its machine has no state; all that was kept in the old one is lost, as
    /// on a host that crashed.
    pub(crate) fn start_agent(&mut self, agent: usize) {
        let entropy = self.chance.bytes();
        let node = &mut self.agents[agent];
        node.machine = Some(Agent::new(node.config.clone(), entropy));
        node.learned = LearnedPlaces::default();
        node.slowed = 0;
        self.give_agent(agent, AgentInput::Wake);
    }

    /// The process crashes: its kernel resets its connections, its wires end, its memory is lost.
    pub(crate) fn crash_agent(&mut self, agent: usize) {
        let host = super::host(&mut self.chance);
        // The sessions of one that lies are known, and no other may end.
        if !self.lies(agent) {
            let sessions = self.session_ids(agent);
            self.causes.agent_died.extend(sessions);
        }
        self.watch.agent_died(agent);
        let node = &mut self.agents[agent];
        node.machine = None;
        node.life += 1;
        node.frozen = false;
        node.inbox.clear();
        node.host = host;
        node.sessions.clear();
        for program in std::mem::take(&mut node.connections).into_values() {
            self.programs[program].closed = Some(true);
            self.programs[program].excused = true;
        }
        for wire in 0..self.wires.len() {
            if self.wires[wire].caller == Caller::Agent(agent) && self.wires[wire].is_open(Direction::Down) {
                self.wires[wire].close(Direction::Down);
                self.break_wire(wire, Direction::Up, 5 * MS);
            }
        }
        let (life, delay_ns) = (self.agents[agent].life, self.chance.magnitude(MS, S));
        self.queue.after(delay_ns, Event::StartAgent(agent, life));
    }

    /// Stops the process; its sockets live on, and what arrives waits.
    pub(crate) fn freeze_agent(&mut self, agent: usize, for_ns: u64) {
        let until_ns = self.queue.now_ns() + for_ns;
        let node = &mut self.agents[agent];
        node.frozen = true;
        node.frozen_until_ns = node.frozen_until_ns.max(until_ns);
        self.queue.at(until_ns, Event::ThawAgent(agent));
    }

    /// Continues it, if no later freeze is in force. Events go in the order in which they came.
    pub(crate) fn thaw_agent(&mut self, agent: usize) {
        let node = &mut self.agents[agent];
        if node.frozen && self.queue.now_ns() >= node.frozen_until_ns {
            node.frozen = false;
            for event in std::mem::take(&mut node.inbox) {
                self.dispatch(event);
            }
        }
    }

    /// One step of the machine, with the checks that every step gets, and then its outputs in
    /// order.
    pub(crate) fn give_agent(&mut self, agent: usize, input: AgentInput) {
        let now_ns = self.queue.now_ns();
        let node = &mut self.agents[agent];
        let Some(machine) = &mut node.machine else { return };
        let mut out = Vec::new();
        if !matches!(
            input,
            AgentInput::Frame { .. }
                | AgentInput::Received { .. }
                | AgentInput::Written { .. }
                | AgentInput::Wake
        ) {
            self.trace.say(now_ns, || format!("A{agent} <- {input:?}"));
        }
        let asked = self.liar.as_mut().filter(|liar| liar.agent == agent);
        asked.into_iter().for_each(|liar| liar.hear(&input));
        machine.step(now_ns + node.origin_ns, input, &mut out);
        self.trace.collect(now_ns, || format!("A{agent}"));
        node.steps += 1;
        if node.steps.is_multiple_of(self.checked_each)
            && let Err(broken) = machine.invariants()
        {
            self.violations.push(format!("A{agent}: {broken}"));
        }
        let slowed = machine.memory().slowed_total;
        self.watch.counts.add(Rare::SessionSlowed, slowed - node.slowed);
        node.slowed = slowed;
        if let Some(excess) = excess(machine, node.config.memory_max) {
            self.violations.push(format!("A{agent} {excess}"));
        }
        if machine.datagrams_dropped() > 0 {
            self.violations.push(format!("A{agent} dropped a datagram that it had room for"));
        }
        if self.lies(agent)
            && let Some(liar) = &mut self.liar
        {
            let lies = liar.lie(&mut out);
            self.watch.counts.add(Rare::AgentLied, lies);
        }
        for out in out {
            self.agent_out(agent, out);
        }
    }

    /// Carries one output out.
    fn agent_out(&mut self, agent: usize, out: AgentOutput) {
        let life = self.agents[agent].life;
        match out {
            AgentOutput::Dial { target } => self.dial(Caller::Agent(agent), target),
            AgentOutput::Learn { edge, address } => {
                let now_ns = self.queue.now_ns();
                if !self.agents[agent].has_learned(Target { edge, shard: 0 }) {
                    self.violations.push(format!("A{agent} dials its configured edge {edge} at {address}"));
                }
                if self.agents[agent].config.addresses.contains(&address) {
                    self.violations.push(format!("A{agent} dials {address} a second time, as edge {edge}"));
                }
                self.agents[agent].learned.learn(now_ns, edge, address);
            }
            AgentOutput::Forget { edge } => self.agents[agent].learned.forget(edge),
            // Nothing depends on when it is freed.
            AgentOutput::Free { bytes } => drop(bytes),
            AgentOutput::CloseWire { wire, .. } => self.close_wire(index(wire.0), Direction::Up),
            AgentOutput::Send { wire, frame } => {
                let wire = index(wire.0);
                if self.lies(agent) {
                    self.watch.ignore_bounds(wire);
                }
                let (now_ns, position) = (self.queue.now_ns(), self.wires[wire].position);
                self.watch.sent(now_ns, (wire, agent), PeerSide::Agent, position, &frame);
                self.send(wire, Direction::Up, &frame);
            }
            AgentOutput::Connect { connection, server, .. } => {
                self.connect_server(agent, connection, &server)
            }
            AgentOutput::Write { connection, bytes } => self.write(agent, connection, &bytes),
            AgentOutput::Shutdown { connection } => {
                if let Some(program) = self.connected(agent, connection) {
                    program.end_received = true;
                    if program.datagrams {
                        program.answered();
                    }
                }
            }
            AgentOutput::Close { connection, failure } => {
                let service = self.connected(agent, connection).and_then(|program| program.service);
                if let Some(failure) = &failure {
                    let end = (failure.code, &failure.reason[..]);
                    // The oracle knows whether a hall that goes on has lost its server.
                    let explained = self.lies(agent)
                        || if self.serves_hall(agent) {
                            // Where a hall is lost, its server waits in vain.
                            self.causes.have_lost_any() || self.explains(end.0, failure.session, service)
                        } else {
                            self.judge_end("a program's connection", end, failure.session, service)
                        };
                    self.connected(agent, connection)
                        .into_iter()
                        .for_each(|program| program.excused = explained);
                }
                self.close_program(agent, connection, failure.is_some());
            }
            AgentOutput::Reading { connection, on } => {
                self.watch.count_if(Rare::BackPressure, !on);
                if let Some(program) = self.connected(agent, connection) {
                    program.reading = on;
                    let program = self.agents[agent].connections[&connection];
                    self.pump(program);
                }
            }
            AgentOutput::WakeAt { now_ns } => {
                let node = &mut self.agents[agent];
                node.wake_ns = now_ns;
                self.queue.at(now_ns.saturating_sub(node.origin_ns), Event::AgentWake(agent, life, now_ns));
            }
            AgentOutput::Report(report) => self.report(agent, &report),
        }
    }

    ///
    /// Reports are what an operator would see; here they decide which sessions are open and whether
    /// an end is explained.
    fn report(&mut self, agent: usize, report: &AgentReport) {
        self.trace.say(self.queue.now_ns(), || format!("A{agent} reports {report:?}"));
        self.judge_edge(agent, report);
        let sessions = &mut self.agents[agent].sessions;
        match report {
            AgentReport::Owned { session, app, target, .. } => {
                sessions.insert(*session, true);
                self.agents[agent].last_owned = Some(*session);
                self.watch.abandoned.owned(agent, *session);
                if app == Service::Bare.name() {
                    self.causes.bare.insert(*session);
                }
                let home = self.agents[agent].homeward.remove(session);
                self.watch.count_if(Rare::WentHome, home == Some(*target));
            }
            AgentReport::Orphaned { session, .. } => {
                sessions.insert(*session, false);
                self.assigned.remove(session);
            }
            AgentReport::ZombieRefused { session, .. } => self.watch.zombie_refused(*session),
            AgentReport::Ended { session, code, reason, lingered } => {
                let begun = sessions.remove(session).is_some();
                self.watch.count_if(Rare::LingerExpired, *lingered);
                let gave_up = self.watch.abandoned.ended(agent, *session, reason, self.wires.len());
                self.watch.count_if(Rare::BareAbandoned, gave_up);
                // A session that never had an owner here is judged by its programs: a refused client sees a reset. Such a session
                // must not end by a forgery either.
                let forged = matches!(code, Code::Tampered | Code::Protocol | Code::WrongKey);
                if (begun || forged) && !self.lies(agent) && (forged || !self.serves_hall(agent)) {
                    let name = format!("A{agent}'s end");
                    self.judge_end(&name, (*code, reason), Some(*session), None);
                }
            }
            AgentReport::FailingBack { session, target } => {
                self.agents[agent].homeward.insert(*session, *target);
                if self.assigned.contains(session) {
                    let what =
                        format!("A{agent} fetches {session} back, which an operator moved within its edge");
                    self.violations.push(what);
                }
            }
            AgentReport::MemoryFull { .. } => self.watch.count_if(Rare::MemoryFull, true),
            AgentReport::MemoryFree { .. } => {}
            AgentReport::OtherDomain { .. } => {
                self.violations.push(format!("{report:?}, and all edges have the same secret"));
            }
            AgentReport::EdgeUp { .. }
            | AgentReport::EdgeDown { .. }
            | AgentReport::EdgeNotFound { .. }
            | AgentReport::EdgeNotAsTold { .. }
            | AgentReport::EdgeForgotten { .. }
            | AgentReport::Waiting { .. } => {}
        }
    }

    /// Whether it is the agent of servers to which halls connect.
    fn serves_hall(&self, agent: usize) -> bool {
        self.plan.has_hall() && agent >= self.plan.clients
    }

    /// The agent connects to its server, which accepts or, for the first few of some seeds, does
    /// not.
    fn connect_server(&mut self, agent: usize, connection: ConnectionId, server: &str) {
        assert!(connection.0 & AGENT_NAMES != 0 && server == SERVER, "{connection:?} to {server}");
        let (life, nth) = (self.agents[agent].life, self.servers_started);
        self.servers_started += 1;
        self.programs.push(Program::server(&self.plan, nth, agent, life, connection));
        let program = self.programs.len() - 1;
        // The report of the session's owner comes right before.
        self.programs[program].session = self.agents[agent].last_owned;
        self.agents[agent].connections.insert(connection, program);
        let up = nth >= u64::from(self.plan.server_down);
        let delay_ns = self.chance.magnitude(10 * US, 5 * MS);
        self.queue.after(delay_ns, Event::Act(program, Act::Answer(up)));
    }

    pub(crate) fn visit(&mut self, visit: usize) {
        let agent = self.plan.visits[visit].agent;
        let node = &mut self.agents[agent];
        if !node.machine.as_ref().is_some_and(Agent::has_room) {
            // No agent accepts the connection; it waits in the kernel, or an unmodified client retries.
            self.queue.after(10 * MS, Event::Visit(visit));
            return;
        }
        let connection = ConnectionId(node.accepted);
        node.accepted += 1;
        let life = node.life;
        self.visits_begun += 1;
        self.programs.push(Program::client(&self.plan, visit, life, connection));
        let program = self.programs.len() - 1;
        self.agents[agent].connections.insert(connection, program);
        // At once: a moment later another connection could have taken the room.
        self.act(program, Act::Accept);
        let first_ns = self.programs[program].first_write_ns();
        self.queue.after(first_ns, Event::Act(program, Act::Write));
    }

    /// The world compares this before and after a step, to learn which session a new connection
    /// got.
    fn session_ids(&self, agent: usize) -> Vec<SessionId> {
        self.agents[agent].machine.iter().flat_map(Agent::session_ids).collect()
    }

    /// The program behind a connection of the present process.
    fn connected(&mut self, agent: usize, connection: ConnectionId) -> Option<&mut Program> {
        let program = *self.agents[agent].connections.get(&connection)?;
        Some(&mut self.programs[program])
    }

    /// The agent ended the connection; `reset` as the program sees it.
    fn close_program(&mut self, agent: usize, connection: ConnectionId, reset: bool) {
        if let Some(program) = self.agents[agent].connections.remove(&connection) {
            self.programs[program].closed = Some(reset);
            self.note(&[2, program as u64, u64::from(reset)], &[], || {
                format!("P{program} closed, reset {reset}")
            });
        }
    }

    ///
    /// The socket takes the bytes at once and reports that it has after the time that the program
    /// needs.
    fn write(&mut self, agent: usize, connection: ConnectionId, bytes: &Bytes) {
        let Some(&program) = self.agents[agent].connections.get(&connection) else { return };
        let of = &mut self.programs[program];
        let now_ns = self.queue.now_ns();
        let (after_end, torn) = (of.end_received, of.datagrams && bytes.len() != Record::SIZE);
        of.received.extend_from_slice(bytes);
        of.received_ns = Some((of.received_ns.map_or(now_ns, |(first_ns, _)| first_ns), now_ns));
        if of.took_ns == 0 {
            of.took_ns = now_ns + of.stall_ns();
        }
        of.took_ns = of.took_ns.max(now_ns) + of.slowness_ns(&mut self.chance);
        self.queue.at(of.took_ns, Event::Act(program, Act::Took(bytes.len() as u64)));
        self.note(&[3, program as u64], bytes, || format!("P{program} receives {} B", bytes.len()));
        if after_end {
            self.violations.push(format!("program {program} was written to after its end of input"));
        }
        if torn {
            self.violations
                .push(format!("program {program} received outputs merged or cut: {} B", bytes.len()));
        }
    }

    /// An action of a program or its socket.
    pub(crate) fn act(&mut self, program: usize, act: Act) {
        let of = &mut self.programs[program];
        let (agent, connection, life) = (of.agent, of.connection, of.life);
        if of.closed.is_some() || self.agents[agent].life != life {
            return;
        }
        match act {
            Act::Accept => {
                let service = of.service.expect("only clients are accepted");
                let (app, datagrams) = (String::from(service.name()), of.datagrams);
                let key = of.key.and_then(|key| CellKey::new([b'k', key]).ok());
                let [.., a, b, c] = connection.0.to_be_bytes();
                let client = Some(([10, a, b, c], 40_000).into());
                let origin = Some(Origin { client, local: None, listener: app.clone() });
                let before: Vec<SessionId> = self.session_ids(agent);
                self.give_agent(
                    agent,
                    AgentInput::Accepted { key, connection, app, datagrams, messages: false, origin },
                );
                let new = self.session_ids(agent).into_iter().find(|session| !before.contains(session));
                self.programs[program].session = new;
                if self.lies(agent)
                    && let Some(liar) = &mut self.liar
                {
                    liar.sessions.extend(new);
                }
            }
            Act::Answer(true) => {
                let first_ns = of.first_write_ns();
                self.queue.after(first_ns, Event::Act(program, Act::Write));
                self.give_agent(agent, AgentInput::Connected { connection });
            }
            Act::Answer(false) => {
                self.causes.server_refused.extend(of.session);
                (of.closed, of.excused) = (Some(true), true);
                self.agents[agent].connections.remove(&connection);
                self.give_agent(agent, AgentInput::ConnectFailed { connection, reason: "refused".into() });
            }
            Act::Write => self.program_writes(program),
            Act::Pump => self.read_program(program),
            Act::Took(bytes) => self.give_agent(agent, AgentInput::Written { connection, bytes }),
        }
    }

    /// The program writes its next chunk, ends its output, or resets.
    fn program_writes(&mut self, program: usize) {
        let of = &mut self.programs[program];
        let (agent, connection) = (of.agent, of.connection);
        if let Some(after_ns) = of.write() {
            self.queue.after(after_ns, Event::Act(program, Act::Write));
        }
        if self.programs[program].broke {
            let session = self.programs[program].session;
            self.causes.program_broke.extend(session);
            self.programs[program].closed = Some(true);
            self.programs[program].excused = true;
            let life = self.agents[agent].life;
            self.agents[agent].connections.remove(&connection);
            self.queue.after(0, Event::Agent(agent, life, AgentInput::Broken { connection }));
        } else {
            self.pump(program);
        }
    }

    /// Schedules a read by the agent, unless one is scheduled.
    fn pump(&mut self, program: usize) {
        if !self.programs[program].pumping {
            self.programs[program].pumping = true;
            let delay_ns = self.chance.below(5 * US);
            self.queue.after(delay_ns, Event::Act(program, Act::Pump));
        }
    }

    /// The agent reads as much as the program's cut allows, and comes back until there is nothing.
    fn read_program(&mut self, program: usize) {
        let of = &mut self.programs[program];
        let (agent, connection) = (of.agent, of.connection);
        of.pumping = false;
        let may_read = self.agents[agent].machine.as_ref().is_none_or(|it| it.may_read(connection));
        if !of.datagrams && of.is_readable() && !may_read {
            return self.give_agent(agent, AgentInput::Waits { connection });
        }
        match of.take(&mut self.chance) {
            Taken::Bytes(bytes) => {
                self.note(&[4, program as u64, bytes.len() as u64], &[], || {
                    format!("P{program} sends {} B", bytes.len())
                });
                self.give_agent(agent, AgentInput::Received { connection, bytes });
                self.pump(program);
            }
            Taken::End => {
                self.note(&[5, program as u64], &[], || format!("P{program} ends its output"));
                let node = &self.agents[agent];
                let orphaned = node.visits == 1 && node.sessions.values().any(|owned| !owned);
                self.watch.count_if(Rare::CloseDuringRecovery, orphaned);
                self.watch.see(Moment::EndOfInput, None);
                self.give_agent(agent, AgentInput::EndOfInput { connection });
            }
            Taken::Nothing => {}
        }
    }
}

/// What an agent's ends keep of messages beyond what they may: its memory, and one message for each end.
fn excess(machine: &Agent, max: u64) -> Option<String> {
    let may = max + machine.session_count() as u64 * RETAINED_MIN;
    let kept = machine.messages_bytes();
    (kept > may).then(|| format!("keeps {kept} bytes of messages, and may keep {may} (I44)"))
}

/// Wires are named by their place in the world's list, at both sides.
fn index(wire: u64) -> usize {
    usize::try_from(wire).expect("wires are named by their place")
}
