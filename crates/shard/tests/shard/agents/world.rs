//! One shard with an honest client's agent, an honest server's agent and a session between them; and a hostile agent, for which
//! the test writes the frames.

use crate::support;
use bytes::Bytes;
use marram_session::{
    agent::{
        Agent, AgentConfig, AgentInput, AgentOutput, AgentReport, AgentServer, ConnectionId, Target,
        WireId as AgentWire,
    },
    cell::{CellInput, CellOutput, Ran, RunOutcome},
    owner::OwnerPhase,
};
use marram_shard::{
    api::{App, FromShard, NoteLevel, Now, SessionRow, ShardInput, ShardOutput, ShardWireId, Tag, ToShard},
    shard::Shard,
};
use marram_wire::{
    frame::{Channel, Code, Frame, Greet, Hello, Keeper, Superseded},
    id::{Generation, HostId, Port, SessionId},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    rights::{Rights, Verified},
    seal::{self, DomainSecret, KeeperKey, SessionKeys},
};
use std::collections::VecDeque;

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;
/// The first number of the hostile agent's wires.
const ROGUES: u64 = 10;
const CONNECTION: ConnectionId = ConnectionId(1);

pub(crate) fn client() -> Rights {
    Rights { client: true, ..Rights::default() }
}

pub(crate) fn serving(server: &str) -> Rights {
    Rights { servers: vec![server.into()], ..Rights::default() }
}

pub(crate) fn secret() -> DomainSecret {
    DomainSecret::from_material(b"the domain's")
}

pub(crate) fn app(name: &str, server: Option<&str>) -> App {
    App { server: server.map(str::to_string), recovery_target_ns: 1 << 40, ..support::app(name) }
}

fn agent(servers: &[&str], entropy: u8) -> Agent {
    let server = |name: &&str| AgentServer { name: name.to_string(), datagrams: false, messages: false };
    let servers = servers.iter().map(server).collect();
    let config = AgentConfig { servers, ..support::agent_config(1) };
    Agent::new(config, [entropy; 32])
}

enum Event {
    Shard(ShardInput),
    Agent(usize, AgentInput),
}

pub(crate) struct World {
    pub(crate) shard: Shard,
    agents: [Agent; 2],
    events: VecDeque<Event>,
    /// The bytes that the client's program received.
    pub(crate) received: Vec<u8>,
    /// The session between the two.
    pub(crate) session: SessionId,
    /// The codes with which the session ended, if it did.
    pub(crate) ended: Vec<Code>,
    /// Frames sent to hostile agents, with their wires.
    pub(crate) told: Vec<(ShardWireId, Frame)>,
    pub(crate) closed: Vec<ShardWireId>,
    /// Log lines.
    pub(crate) notes: Vec<(NoteLevel, String)>,
    rows: Vec<SessionRow>,
    /// What the shard has dialled.
    pub(crate) dials: Vec<Target>,
    /// Whether sessions were to leave, for each time that a hostile agent was told that the edge stops.
    pub(crate) drains: Vec<bool>,
    /// Messages to control other than listings and log lines.
    pub(crate) control: Vec<FromShard>,
    /// The size of each checkpoint of a cell.
    pub(crate) checkpoint_size: usize,
    /// The time of the shard and of the honest agents, which does not pass by itself.
    now_ns: u64,
    channels: Channel,
    /// The channel of the honest session's client.
    channel: Channel,
}

impl World {
    /// With the session running.
    pub(crate) fn new() -> Self {
        support::be_strict();
        let mut world = Self {
            shard: Shard::new(secret(), [2; 32]),
            agents: [agent(&[], 1), agent(&["origin"], 3)],
            events: VecDeque::new(),
            received: Vec::new(),
            session: SessionId::default(),
            ended: Vec::new(),
            told: Vec::new(),
            closed: Vec::new(),
            notes: Vec::new(),
            rows: Vec::new(),
            dials: Vec::new(),
            drains: Vec::new(),
            control: Vec::new(),
            checkpoint_size: 100,
            now_ns: 1_000_000_000,
            channels: 0,
            channel: 0,
        };
        for app in [app("web", Some("origin")), app("alone", None)] {
            world.shard(ShardInput::Control(ToShard::Deploy(app)));
        }
        for (agent, rights) in [(CLIENT, client()), (SERVER, serving("origin"))] {
            world.connect(agent, rights);
        }
        world.connected(CONNECTION);
        world.unharmed();
        world
    }

    /// An honest agent's wire.
    fn connect(&mut self, agent: usize, rights: Rights) {
        let wire = agent as u64;
        self.shard(up(ShardWireId(wire), HostId([agent as u8 + 1; 16]), rights));
        self.agent(agent, AgentInput::WireUp { wire: AgentWire(wire), target: Target { edge: 0, shard: 0 } });
    }

    fn connected(&mut self, connection: ConnectionId) {
        let (datagrams, messages, origin) = (false, false, None);
        self.agent(
            CLIENT,
            AgentInput::Accepted { key: None, connection, app: "web".into(), datagrams, messages, origin },
        );
    }

    /// One more session between the two; `number` is not 1, and not used before.
    pub(crate) fn another(&mut self, number: u64) -> SessionId {
        let first = self.session;
        self.connected(ConnectionId(number));
        core::mem::replace(&mut self.session, first)
    }

    /// The client's end of the honest session tells its owner that it has promised this generation.
    pub(crate) fn superseded(&mut self, promised: Generation) {
        let wire = ShardWireId(CLIENT as u64);
        let channel = self.channel;
        self.shard(ShardInput::Frame { wire, frame: Superseded { channel, promised }.into() });
    }

    /// The server's agent disconnects.
    pub(crate) fn lose_server(&mut self) {
        self.shard(ShardInput::WireDown { wire: ShardWireId(SERVER as u64) });
    }

    /// Checks that the session continues without disturbance: the server's echo arrives, from the same owner.
    pub(crate) fn unharmed(&mut self) {
        let before = self.received.len();
        self.agent(
            CLIENT,
            AgentInput::Received { connection: CONNECTION, bytes: Bytes::from_static(b"still there?") },
        );
        assert_eq!(&self.received[before..], b"still there?");
        assert_eq!(self.ended, []);
    }

    /// The row of the honest session, without its counters.
    pub(crate) fn owner(&mut self) -> (Generation, OwnerPhase, HostId, Option<HostId>) {
        let rows = self.rows();
        let row = rows.iter().find(|row| row.session == self.session).expect("it is listed");
        (row.generation, row.phase, row.client, row.server)
    }

    pub(crate) fn rows(&mut self) -> Vec<SessionRow> {
        self.rows.clear();
        self.shard(ShardInput::Control(ToShard::List(Tag { tag: 1 })));
        self.rows.clone()
    }

    /// A hostile agent's wire, verified with this host id, after its greeting.
    pub(crate) fn rogue(&mut self, number: u64, host: u8, rights: Rights, servers: &[&str]) -> ShardWireId {
        let wire = self.silent_rogue(number, host, rights);
        self.send(wire, greet(servers));
        wire
    }

    /// The same, before it has sent anything.
    pub(crate) fn silent_rogue(&mut self, number: u64, host: u8, rights: Rights) -> ShardWireId {
        let wire = ShardWireId(ROGUES + number);
        self.shard(up(wire, HostId([host; 16]), rights));
        wire
    }

    /// A wire from another shard of this edge, which its shell trusts.
    pub(crate) fn sibling(&mut self, number: u64) -> ShardWireId {
        let (wire, verified) = (ShardWireId(ROGUES + number), Verified::trusted(HostId([7; 16])));
        self.shard(ShardInput::WireUp { wire, verified: Box::new(verified), address: None });
        self.send(wire, greet(&[]));
        wire
    }

    pub(crate) fn send(&mut self, wire: ShardWireId, frame: impl Into<Frame>) {
        self.shard(ShardInput::Frame { wire, frame: frame.into() });
    }

    /// Frames that a hostile agent has received since the last call.
    pub(crate) fn heard(&mut self, wire: ShardWireId) -> Vec<Frame> {
        let (heard, others) = self.told.drain(..).partition(|(at, _)| *at == wire);
        self.told = others;
        Vec::into_iter(heard).map(|(_, frame)| frame).collect()
    }

    /// The challenge that the shard gave a wire in its welcome.
    pub(crate) fn challenge(&mut self, wire: ShardWireId) -> [u8; 16] {
        let heard = self.heard(wire);
        let challenge = heard.iter().find_map(|frame| match frame {
            Frame::Welcome(welcome) => Some(welcome.challenge),
            _ => None,
        });
        challenge.expect("it was welcome")
    }

    /// A hello for a new session, without any proof.
    pub(crate) fn hello(&mut self, session: SessionId, app: &str) -> Hello {
        self.channels += 2;
        Hello {
            channel: self.channels,
            session,
            server: false,
            app: app.into(),
            fresh: true,
            promised: Generation::NONE,
            image: None,
            proof: None,
            peer: None,
            origin: None,
            active: false,
            key: Default::default(),
        }
    }

    /// A hello that resumes the session, from an end with the key of `key_of`.
    pub(crate) fn resume(&mut self, session: SessionId, key_of: SessionId, challenge: &[u8; 16]) -> Hello {
        let key = SessionKeys::derive(&secret(), key_of).resume();
        Hello {
            fresh: false,
            image: Some(app("web", None).image),
            proof: Some(seal::proof(&key, challenge, session)),
            promised: Generation { count: 100, opener: 1 },
            ..self.hello(session, "web")
        }
    }

    /// The time of the shard.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ns / 1_000_000
    }

    /// Time passes; returns after what is due for the shard.
    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now_ns += ms * 1_000_000;
        self.shard(ShardInput::Wake);
    }

    pub(crate) fn shard(&mut self, input: ShardInput) {
        self.events.push_back(Event::Shard(input));
        self.drive();
    }

    fn agent(&mut self, agent: usize, input: AgentInput) {
        self.events.push_back(Event::Agent(agent, input));
        self.drive();
    }

    fn drive(&mut self) {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Shard(input) => {
                    let mut out = Vec::new();
                    self.shard.step(Now { mono_ns: self.now_ns, unix_ns: 5 }, input, &mut out);
                    out.into_iter().for_each(|out| self.perform(out));
                }
                Event::Agent(agent, input) => {
                    let mut out = Vec::new();
                    self.agents[agent].step(self.now_ns, input, &mut out);
                    out.into_iter().for_each(|out| self.deliver(agent, out));
                }
            }
        }
    }

    fn deliver(&mut self, agent: usize, out: AgentOutput) {
        let event = match out {
            AgentOutput::Send { wire, frame } => {
                if let (CLIENT, Frame::Hello(hello)) = (agent, &frame)
                    && self.channel == 0
                {
                    self.channel = hello.channel;
                }
                Event::Shard(ShardInput::Frame { wire: ShardWireId(wire.0), frame })
            }
            AgentOutput::Connect { connection, .. } => {
                Event::Agent(agent, AgentInput::Connected { connection })
            }
            AgentOutput::Write { connection, bytes } => {
                let count = bytes.len() as u64;
                self.events.push_back(Event::Agent(agent, AgentInput::Written { connection, bytes: count }));
                if agent == CLIENT {
                    return self.received.extend_from_slice(&bytes);
                }
                // The server echoes its input.
                Event::Agent(agent, AgentInput::Received { connection, bytes })
            }
            AgentOutput::Report(AgentReport::Owned { session, .. }) => return self.session = session,
            AgentOutput::Report(AgentReport::Ended { code, .. }) => return self.ended.push(code),
            _ => return,
        };
        self.events.push_back(event);
    }

    fn perform(&mut self, out: ShardOutput) {
        match out {
            ShardOutput::Send { wire, frame } if wire.0 < ROGUES => {
                let agent = usize::try_from(wire.0).expect("two");
                self.events
                    .push_back(Event::Agent(agent, AgentInput::Frame { wire: AgentWire(wire.0), frame }));
            }
            ShardOutput::Send { wire, frame } => self.told.push((wire, frame)),
            ShardOutput::CloseWire { wire } => {
                self.closed.push(wire);
                self.events.push_back(Event::Shard(ShardInput::WireDown { wire }));
            }
            ShardOutput::Start { cell, .. } => {
                self.events.push_back(Event::Shard(ShardInput::Started { cell, result: Ok(()) }));
            }
            ShardOutput::Run(run) => {
                let outputs = match run.input {
                    CellInput::Message { port, payload } => {
                        let port = if port == Port::CLIENT { Port::SERVER } else { Port::CLIENT };
                        vec![CellOutput::Message { port, payload }]
                    }
                    _ => Vec::new(),
                };
                let ran = Ran {
                    cell: run.cell,
                    outcome: RunOutcome::Idle,
                    clock_read: false,
                    outputs,
                    timers: Vec::new(),
                    tasks: Vec::new(),
                    reads: Vec::new(),
                    cost_ns: 1_000,
                };
                self.events.push_back(Event::Shard(ShardInput::Ran(ran)));
            }
            ShardOutput::Dial { target } => self.dials.push(target),
            ShardOutput::Control(FromShard::Rows(rows)) => self.rows.extend(rows.rows),
            ShardOutput::Control(FromShard::Note(note)) => self.notes.push((note.level, note.text)),
            ShardOutput::Control(message) => self.control.push(message),
            ShardOutput::Checkpoint { cell, header, .. } => {
                let (number, result) = (header.number, Ok(Bytes::from(vec![0; self.checkpoint_size])));
                self.events.push_back(Event::Shard(ShardInput::Checkpointed { cell, number, result }));
            }
            _ => {}
        }
    }
}

fn up(wire: ShardWireId, host: HostId, rights: Rights) -> ShardInput {
    let verified = Verified { rights, credential: "its-own".into(), ..Verified::trusted(host) };
    ShardInput::WireUp { wire, verified: Box::new(verified), address: Some("192.0.2.1:7".into()) }
}

pub(crate) fn greet(servers: &[&str]) -> Greet {
    let servers = servers.iter().map(|server| server.to_string()).collect();
    Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers }
}

/// A keeper's greeting, with the domain's secret.
pub(crate) fn keeper(challenge: &[u8; 16], name: &str, role: u8) -> Keeper {
    let proof = KeeperKey::derive(&secret()).proof(challenge, name);
    Keeper { proof, name: name.into(), role, shard: 0, shards: 1 }
}

/// The code and the reason with which a wire was closed or a hello refused.
pub(crate) fn refusal(heard: &[Frame]) -> (Option<Code>, String) {
    let refusal = heard.iter().find_map(|frame| match frame {
        Frame::Goodbye(goodbye) => Some((None, goodbye.reason.clone())),
        Frame::Reject(reject) => Some((Some(reject.code), reject.reason.clone())),
        _ => None,
    });
    refusal.unwrap_or_else(|| panic!("nothing was refused: {heard:?}"))
}
