//! One shard with an honest client's agent, an honest server's agent and a session between them; and a hostile agent, whose frames a
//! test writes out.

use bytes::Bytes;
use marram_edge::{
    api::{
        App, FromShard, In as ShardIn, Keep, Now, Out as ShardOut, Protect, Row, Tag, ToShard, WireId,
        Witness,
    },
    shard::Shard,
};
use marram_session::{
    agent::{Agent, Config, ConnectionId, In, Out, Report, Server, Target, WireId as AgentWire},
    cell::{Input, Outcome, Output, Ran},
};
use marram_wire::{
    frame::{Channel, Code, Frame, Greet, Hello, Keeper},
    id::{Generation, HostId, ImageHash, Port, SessionId},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST},
    rights::{Rights, Verified},
    seal::{self, DomainSecret, KeeperKey, SessionKeys},
};
use std::collections::VecDeque;

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;
/// The hostile agent's wires begin here.
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
    App {
        name: name.into(),
        image: ImageHash([name.as_bytes()[0]; 32]),
        protect: Protect::Endpoints,
        server: server.map(str::to_string),
        keep: Keep::Client,
        recovery_target_ns: 1 << 40,
        linger_ms: 1_000,
        messages_per_s: 0,
        log_bytes_per_s: 0,
        sessions_max: 0,
        shared: false,
        tenant: "t".into(),
        priority: 0,
        cache: None,
        witness: Witness::None,
    }
}

fn agent(servers: &[&str], entropy: u8) -> Agent {
    let server = |name: &&str| Server { name: name.to_string(), datagrams: false, messages: false };
    let config = Config {
        servers: servers.iter().map(server).collect(),
        edges: 1,
        heartbeat_interval_ns: 1 << 40,
        heartbeat_timeout_ns: 1 << 50,
        edge_wait_ns: 1 << 50,
        backoff_min_ns: 1,
        backoff_max_ns: 1,
        linger_ns: 1 << 50,
        connect_timeout_ns: 1 << 50,
        failback_delay_ns: 1 << 50,
    };
    Agent::new(config, [entropy; 32])
}

enum Event {
    Shard(ShardIn),
    Agent(usize, In),
}

pub(crate) struct World {
    pub(crate) shard: Shard,
    agents: [Agent; 2],
    events: VecDeque<Event>,
    /// What the client's program was given.
    pub(crate) received: Vec<u8>,
    /// The session between the two.
    pub(crate) session: SessionId,
    /// How it ended, if it did.
    pub(crate) ended: Vec<Code>,
    /// What hostile agents were sent, and on which wire; and the wires that were closed.
    pub(crate) told: Vec<(WireId, Frame)>,
    pub(crate) closed: Vec<WireId>,
    /// Lines for the log.
    pub(crate) notes: Vec<(u8, String)>,
    rows: Vec<Row>,
    channels: Channel,
}

impl World {
    /// With the session under way.
    pub(crate) fn new() -> Self {
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
            channels: 0,
        };
        for app in [app("web", Some("origin")), app("alone", None)] {
            world.shard(ShardIn::Control(ToShard::Deploy(app)));
        }
        for (agent, rights) in [(CLIENT, client()), (SERVER, serving("origin"))] {
            world.connect(agent, rights);
        }
        world.agent(
            CLIENT,
            In::Accepted {
                connection: CONNECTION,
                app: "web".into(),
                datagrams: false,
                messages: false,
                origin: None,
            },
        );
        world.unharmed();
        world
    }

    /// An honest agent's wire.
    fn connect(&mut self, agent: usize, rights: Rights) {
        let wire = agent as u64;
        self.shard(up(WireId(wire), HostId([agent as u8 + 1; 16]), rights));
        self.agent(agent, In::WireUp { wire: AgentWire(wire), target: Target { edge: 0, shard: 0 } });
    }

    /// The server's agent goes away.
    pub(crate) fn lose_server(&mut self) {
        self.shard(ShardIn::WireDown { wire: WireId(SERVER as u64) });
    }

    /// The session goes on as if nobody meant ill: what is said comes back from the server, by the same owner.
    pub(crate) fn unharmed(&mut self) {
        let before = self.received.len();
        self.agent(
            CLIENT,
            In::Received { connection: CONNECTION, bytes: Bytes::from_static(b"still there?") },
        );
        assert_eq!(&self.received[before..], b"still there?");
        assert_eq!(self.ended, []);
    }

    /// The row of the session between the honest two, but for what counts its messages.
    pub(crate) fn owner(&mut self) -> (Generation, String, HostId, Option<HostId>) {
        let rows = self.rows();
        let row = rows.iter().find(|row| row.session == self.session).expect("it is listed");
        (row.generation, row.phase.clone(), row.client, row.server)
    }

    pub(crate) fn rows(&mut self) -> Vec<Row> {
        self.rows.clear();
        self.shard(ShardIn::Control(ToShard::List(Tag { tag: 1 })));
        self.rows.clone()
    }

    /// A hostile agent's wire, verified as this agent's, which has greeted.
    pub(crate) fn rogue(&mut self, number: u64, host: u8, rights: Rights, servers: &[&str]) -> WireId {
        let wire = self.silent_rogue(number, host, rights);
        self.send(wire, greet(servers));
        wire
    }

    /// The same, before it has said anything.
    pub(crate) fn silent_rogue(&mut self, number: u64, host: u8, rights: Rights) -> WireId {
        let wire = WireId(ROGUES + number);
        self.shard(up(wire, HostId([host; 16]), rights));
        wire
    }

    pub(crate) fn send(&mut self, wire: WireId, frame: impl Into<Frame>) {
        self.shard(ShardIn::Frame { wire, frame: frame.into() });
    }

    /// What a hostile agent was told since it was asked last.
    pub(crate) fn heard(&mut self, wire: WireId) -> Vec<Frame> {
        let (heard, others) = self.told.drain(..).partition(|(at, _)| *at == wire);
        self.told = others;
        Vec::into_iter(heard).map(|(_, frame)| frame).collect()
    }

    /// The challenge that the shard gave a wire in its welcome.
    pub(crate) fn challenge(&mut self, wire: WireId) -> [u8; 16] {
        let heard = self.heard(wire);
        let challenge = heard.iter().find_map(|frame| match frame {
            Frame::Welcome(welcome) => Some(welcome.challenge),
            _ => None,
        });
        challenge.expect("it was welcome")
    }

    /// A hello that asks for a session to begin, with nothing to show.
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
        }
    }

    /// One that asks for the session to go on, by an end of it that shows the key of `key_of`.
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

    pub(crate) fn shard(&mut self, input: ShardIn) {
        self.events.push_back(Event::Shard(input));
        self.drive();
    }

    fn agent(&mut self, agent: usize, input: In) {
        self.events.push_back(Event::Agent(agent, input));
        self.drive();
    }

    fn drive(&mut self) {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Shard(input) => {
                    let mut out = Vec::new();
                    self.shard.step(Now { mono_ns: 1_000_000_000, unix_ns: 5 }, input, &mut out);
                    out.into_iter().for_each(|out| self.perform(out));
                }
                Event::Agent(agent, input) => {
                    let mut out = Vec::new();
                    self.agents[agent].step(1_000_000_000, input, &mut out);
                    out.into_iter().for_each(|out| self.deliver(agent, out));
                }
            }
        }
    }

    fn deliver(&mut self, agent: usize, out: Out) {
        let event = match out {
            Out::Send { wire, frame } => Event::Shard(ShardIn::Frame { wire: WireId(wire.0), frame }),
            Out::Connect { connection, .. } => Event::Agent(agent, In::Connected { connection }),
            Out::Write { connection, bytes } => {
                let count = bytes.len() as u64;
                self.events.push_back(Event::Agent(agent, In::Written { connection, bytes: count }));
                if agent == CLIENT {
                    return self.received.extend_from_slice(&bytes);
                }
                // The server says back what it hears.
                Event::Agent(agent, In::Received { connection, bytes })
            }
            Out::Report(Report::Owned { session, .. }) => return self.session = session,
            Out::Report(Report::Ended { code, .. }) => return self.ended.push(code),
            _ => return,
        };
        self.events.push_back(event);
    }

    fn perform(&mut self, out: ShardOut) {
        match out {
            ShardOut::Send { wire, frame } if wire.0 < ROGUES => {
                let agent = usize::try_from(wire.0).expect("two");
                self.events.push_back(Event::Agent(agent, In::Frame { wire: AgentWire(wire.0), frame }));
            }
            ShardOut::Send { wire, frame } => self.told.push((wire, frame)),
            ShardOut::CloseWire { wire } => {
                self.closed.push(wire);
                self.events.push_back(Event::Shard(ShardIn::WireDown { wire }));
            }
            ShardOut::Start { cell, .. } => {
                self.events.push_back(Event::Shard(ShardIn::Started { cell, result: Ok(()) }));
            }
            ShardOut::Run(run) => {
                let outputs = match run.input {
                    Input::Message { port, payload } => {
                        let port = if port == Port::CLIENT { Port::SERVER } else { Port::CLIENT };
                        vec![Output::Message { port, payload }]
                    }
                    _ => Vec::new(),
                };
                let ran = Ran {
                    cell: run.cell,
                    outcome: Outcome::Idle,
                    clock_read: false,
                    outputs,
                    timers: Vec::new(),
                    tasks: Vec::new(),
                    reads: Vec::new(),
                    cost_ns: 1_000,
                };
                self.events.push_back(Event::Shard(ShardIn::Ran(ran)));
            }
            ShardOut::Control(FromShard::Rows(rows)) => self.rows.extend(rows.rows),
            ShardOut::Control(FromShard::Note(note)) => self.notes.push((note.level, note.text)),
            _ => {}
        }
    }
}

fn up(wire: WireId, host: HostId, rights: Rights) -> ShardIn {
    let verified = Verified { rights, credential: "its-own".into(), ..Verified::trusted(host) };
    ShardIn::WireUp { wire, verified: Box::new(verified), address: Some("192.0.2.1:7".into()) }
}

pub(crate) fn greet(servers: &[&str]) -> Greet {
    let servers = servers.iter().map(|server| server.to_string()).collect();
    Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers }
}

/// A keeper's greeting, as one writes it who knows the domain's secret.
pub(crate) fn keeper(challenge: &[u8; 16], name: &str, role: u8) -> Keeper {
    let proof = KeeperKey::derive(&secret()).proof(challenge, name);
    Keeper { proof, name: name.into(), role, shard: 0, shards: 1 }
}

/// Why a wire was closed, or what it was refused.
pub(crate) fn refusal(heard: &[Frame]) -> (Option<Code>, String) {
    let refusal = heard.iter().find_map(|frame| match frame {
        Frame::Goodbye(goodbye) => Some((None, goodbye.reason.clone())),
        Frame::Reject(reject) => Some((Some(reject.code), reject.reason.clone())),
        _ => None,
    });
    refusal.unwrap_or_else(|| panic!("nothing was refused: {heard:?}"))
}
