//! A cell that all clients of an app share: an edge has one, on one of its shards, whichever shard clients connect to.
//!
//! One agent, two shards and a cell that sends each message to all clients, driven by the test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;
use bytes::Bytes;
use marram_session::{
    agent::{
        Agent, AgentConfig, AgentInput, AgentOutput, AgentReport, ConnectionId, Target, WireId as AgentWire,
    },
    cell::{CellId, CellInput, CellOutput, CellStop, Ran, Run, RunOutcome},
};
use marram_shard::{
    api::{App, CellError, Configure, Now, Protect, ShardInput, ShardOutput, ShardWireId, ToShard},
    shard::Shard,
};
use marram_wire::{
    frame::Code,
    id::{HostId, ImageHash, Port},
    rights::Verified,
    seal::DomainSecret,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SHARDS: u8 = 2;

/// A message in flight between the agent and the shards.
enum Event {
    Agent(AgentInput),
    Shard(usize, ShardInput),
}

struct World {
    agent: Agent,
    shards: Vec<Shard>,
    /// The live cells: their shard and cell id, and their open ports.
    cells: BTreeMap<(usize, CellId), BTreeSet<Port>>,
    started: usize,
    received: BTreeMap<u64, String>,
    closed: BTreeSet<u64>,
    ended: Vec<Code>,
    events: VecDeque<Event>,
    /// Whether cells fail to start.
    full: bool,
}

fn hall(image: u8) -> App {
    App { image: ImageHash([image; 32]), protect: Protect::None, shared: true, ..support::app("hall") }
}

fn configure(shard: u8) -> ToShard {
    ToShard::Configure(Configure { shard, shards: SHARDS, ..Configure::default() })
}

impl World {
    fn new() -> Self {
        support::be_strict();
        let config = AgentConfig { connect_timeout_ns: 1, ..support::agent_config(1) };
        let secret = || DomainSecret::from_material(b"the domain's");
        let mut world = Self {
            agent: Agent::new(config, [1; 32]),
            shards: (0..SHARDS).map(|shard| Shard::new(secret(), [shard + 2; 32])).collect(),
            cells: BTreeMap::new(),
            started: 0,
            received: BTreeMap::new(),
            closed: BTreeSet::new(),
            ended: Vec::new(),
            events: VecDeque::new(),
            full: false,
        };
        for shard in 0..SHARDS {
            world.tell(shard, configure(shard));
            world.tell(shard, ToShard::Deploy(hall(7)));
            let wire = u64::from(shard);
            world.events.push_back(Event::Shard(
                usize::from(shard),
                ShardInput::WireUp {
                    wire: ShardWireId(wire),
                    verified: Box::new(Verified::trusted(HostId([9; 16]))),
                    address: None,
                },
            ));
            let target = Target { edge: 0, shard };
            world.agent(AgentInput::WireUp { wire: AgentWire(wire), target });
        }
        world
    }

    fn tell(&mut self, shard: u8, message: ToShard) {
        self.events.push_back(Event::Shard(usize::from(shard), ShardInput::Control(message)));
        self.settle();
    }

    fn agent(&mut self, input: AgentInput) {
        self.events.push_back(Event::Agent(input));
        self.settle();
    }

    fn connect(&mut self, client: u64) {
        self.agent(AgentInput::Accepted {
            key: None,
            connection: ConnectionId(client),
            app: "hall".into(),
            datagrams: false,
            messages: false,
            origin: None,
        });
        self.say(client, "hi");
    }

    fn say(&mut self, client: u64, text: &'static str) {
        self.agent(AgentInput::Received {
            connection: ConnectionId(client),
            bytes: Bytes::from_static(text.as_bytes()),
        });
    }

    fn received(&mut self, client: u64) -> String {
        self.received.remove(&client).unwrap_or_default()
    }

    /// Runs everything until there is no work left.
    fn settle(&mut self) {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Agent(input) => {
                    let mut out = Vec::new();
                    self.agent.step(1_000_000_000, input, &mut out);
                    out.into_iter().for_each(|out| self.deliver(out));
                }
                Event::Shard(shard, input) => {
                    let mut out = Vec::new();
                    let now = Now { mono_ns: 1_000_000_000, unix_ns: 5_000_000_000 };
                    self.shards[shard].step(now, input, &mut out);
                    out.into_iter().for_each(|out| self.perform(shard, out));
                }
            }
        }
    }

    fn deliver(&mut self, out: AgentOutput) {
        match out {
            AgentOutput::Send { wire, frame } => {
                let shard = usize::try_from(wire.0).unwrap();
                self.events
                    .push_back(Event::Shard(shard, ShardInput::Frame { wire: ShardWireId(wire.0), frame }));
            }
            AgentOutput::Write { connection, bytes } => {
                self.received.entry(connection.0).or_default().push_str(str::from_utf8(&bytes).unwrap());
                let bytes = bytes.len() as u64;
                self.events.push_back(Event::Agent(AgentInput::Written { connection, bytes }));
            }
            AgentOutput::Close { connection, .. } => {
                self.closed.insert(connection.0);
            }
            AgentOutput::Report(AgentReport::Ended { code, .. }) => self.ended.push(code),
            _ => {}
        }
    }

    fn perform(&mut self, shard: usize, out: ShardOutput) {
        match out {
            ShardOutput::Send { wire, frame } => {
                self.events.push_back(Event::Agent(AgentInput::Frame { wire: AgentWire(wire.0), frame }));
            }
            ShardOutput::Start { cell, .. } => {
                let error = || CellError { code: Code::Guest, reason: "no".into() };
                let result = if self.full { Err(error()) } else { Ok(()) };
                if result.is_ok() {
                    self.started += 1;
                    self.cells.insert((shard, cell), BTreeSet::new());
                }
                self.events.push_back(Event::Shard(shard, ShardInput::Started { cell, result }));
            }
            ShardOutput::Run(run) => {
                let ran = self.run(shard, run);
                self.events.push_back(Event::Shard(shard, ShardInput::Ran(ran)));
            }
            ShardOutput::Remove { cell } => {
                self.cells.remove(&(shard, cell)).expect("only cells that live are removed");
            }
            _ => {}
        }
    }

    /// Sends each message to all clients, with the number of its port.
    fn run(&mut self, shard: usize, Run { cell, input, .. }: Run) -> Ran {
        let ports = self.cells.get_mut(&(shard, cell)).expect("it was started");
        let mut outputs = Vec::new();
        let mut outcome = RunOutcome::Idle;
        match input {
            CellInput::Open { port, .. } => assert!(ports.insert(port), "{port:?} is free"),
            CellInput::Message { payload, .. } if payload == "poison" => {
                outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into()));
                self.cells.remove(&(shard, cell));
            }
            CellInput::Message { port, payload } => {
                let text = format!("{}:{} ", port.0, str::from_utf8(&payload).unwrap());
                let tell = |to: &Port| CellOutput::Message { port: *to, payload: text.clone().into() };
                outputs.extend(ports.iter().map(tell));
            }
            CellInput::Close { port } => outputs.push(CellOutput::Close { port }),
            CellInput::Gone { port } => assert!(ports.remove(&port), "{port:?} was open"),
            CellInput::Timer { .. } | CellInput::Task { .. } => panic!("it sets none"),
        }
        Ran {
            cell,
            outcome,
            clock_read: false,
            outputs,
            timers: Vec::new(),
            tasks: Vec::new(),
            reads: Vec::new(),
            cost_ns: 1_000,
        }
    }
}

#[test]
fn all_clients_share_one_cell_wherever_they_knock() {
    let mut world = World::new();
    // Session ids are random: some hellos reach the shard without the cell.
    (1..=8).for_each(|client| world.connect(client));
    assert_eq!((world.started, world.cells.len()), (1, 1));
    (1..=8).for_each(|client| drop(world.received(client)));
    world.say(3, "all");
    let heard: BTreeSet<String> = (1..=8).map(|client| world.received(client)).collect();
    assert_eq!(heard, BTreeSet::from(["3:all ".to_string()]));
}

#[test]
fn a_client_that_leaves_is_not_waited_for_and_the_next_one_gets_its_port() {
    let mut world = World::new();
    (1..=3).for_each(|client| world.connect(client));
    world.agent(AgentInput::EndOfInput { connection: ConnectionId(2) });
    assert_eq!(world.ended, [Code::Finished]);
    assert!(world.closed.contains(&2));
    (1..=3).for_each(|client| drop(world.received(client)));
    world.connect(4);
    world.say(4, "new");
    assert_eq!(world.received(1), "2:hi 2:new ");
    world.agent(AgentInput::Broken { connection: ConnectionId(1) });
    world.say(4, "alone");
    assert_eq!(world.received(1), "");
    assert_eq!(world.received(3), "2:hi 2:new 2:alone ");
    // A cell without clients stays: its state belongs to the app, not to a client.
    for connection in [ConnectionId(3), ConnectionId(4)] {
        world.agent(AgentInput::EndOfInput { connection });
    }
    assert_eq!(world.cells.values().next(), Some(&BTreeSet::new()));
}

#[test]
fn a_stop_ends_all_its_sessions_and_the_next_client_has_a_new_cell() {
    let mut world = World::new();
    (1..=3).for_each(|client| world.connect(client));
    world.say(2, "poison");
    assert_eq!(world.ended, [Code::Guest; 3]);
    assert_eq!(world.cells.len(), 0);
    world.connect(4);
    assert_eq!((world.received(4).as_str(), world.started), ("0:hi ", 2));
}

#[test]
fn a_cell_that_cannot_start_ends_all_waiting_sessions_with_the_reason() {
    let mut world = World::new();
    world.full = true;
    world.connect(1);
    assert_eq!(world.ended, [Code::Guest]);
    world.full = false;
    world.connect(2);
    assert_eq!(world.received(2), "0:hi ");
}

#[test]
fn another_version_has_a_cell_of_its_own_and_the_old_one_goes_with_its_last_client() {
    let mut world = World::new();
    world.connect(1);
    (0..SHARDS).for_each(|shard| world.tell(shard, ToShard::Deploy(hall(8))));
    world.connect(2);
    assert_eq!((world.received(2).as_str(), world.cells.len()), ("0:hi ", 2));
    world.agent(AgentInput::EndOfInput { connection: ConnectionId(1) });
    assert_eq!(world.cells.len(), 1);
    world.agent(AgentInput::EndOfInput { connection: ConnectionId(2) });
    assert_eq!(world.cells.len(), 1, "the current one stays");
}
