//! What a client's agent stores reveals nothing to it, and any change to it is detected (docs/protocol.md, "Secrets").
//!
//! One agent and two shards, driven by the test: the session begins on the first shard, which dies, and on the way to the second
//! a hostile client changes what its agent sends.

use crate::support;
use bytes::Bytes;
use marram_session::{
    agent::{Agent, AgentConfig, AgentInput, AgentOutput, AgentReport, ConnectionId, Target, WireId},
    cell::{CellInput, CellOutput, Ran, RunOutcome},
};
use marram_shard::{
    api::{App, Now, ShardInput, ShardOutput, ShardWireId, ToShard},
    shard::Shard,
};
use marram_wire::{
    frame::{CheckpointMeta, Code, Frame},
    header,
    id::{HostId, Port, SessionId},
    rights::Verified,
    seal::{DomainSecret, SessionKeys},
};
use std::collections::VecDeque;

const SECRET_STATE: &[u8] = b"what only the cell may know, sixty-four bytes of it, or nearly!";
const CLIENT: ConnectionId = ConnectionId(1);

/// A cell that counts and holds a secret.
#[derive(Default)]
struct Cell {
    seed: [u8; 32],
    count: u64,
}

impl Cell {
    fn run(&mut self, input: &CellInput) -> Vec<CellOutput> {
        if !matches!(input, CellInput::Message { .. }) {
            return Vec::new();
        }
        self.count += 1;
        vec![CellOutput::Message { port: Port::CLIENT, payload: Bytes::from(self.count.to_string()) }]
    }

    fn save(&self) -> Vec<u8> {
        [SECRET_STATE, &self.seed, &self.count.to_le_bytes()].concat()
    }

    fn restore(sections: &[u8]) -> Self {
        let (rest, count) = sections.split_at(sections.len() - 8);
        let seed = rest[SECRET_STATE.len()..].try_into().expect("a seed");
        Self { seed, count: u64::from_le_bytes(count.try_into().expect("8 bytes")) }
    }
}

/// One agent, one shard at a time.
struct World {
    agent: Agent,
    shard: Shard,
    cell: Cell,
    /// Its state at the last copy.
    copied: Vec<u8>,
    target: u16,
    /// The bytes that the client's program received, and how the session ended.
    received: Vec<u8>,
    ended: Option<Code>,
    session: Option<SessionId>,
    seeds: Vec<[u8; 32]>,
    /// The checkpoints that the shard's cell is restored from: their keys, those to come, and the received bytes of the next one.
    restoring: Option<(SessionKeys, VecDeque<CheckpointMeta>, Vec<u8>)>,
    /// How a hostile client changes the frames of its agent.
    tamper: fn(&mut Frame),
}

/// What is changed, the app's recovery target in nanoseconds, and the change.
type Attack = (&'static str, u64, fn(&mut Frame));

fn secret() -> DomainSecret {
    DomainSecret::from_material(b"the domain's")
}

fn app(recovery_target_ns: u64) -> App {
    App { recovery_target_ns, ..support::app("count") }
}

impl World {
    fn new(recovery_target_ns: u64) -> Self {
        support::be_strict();
        let config = AgentConfig { connect_timeout_ns: 1, ..support::agent_config(2) };
        let mut world = Self {
            agent: Agent::new(config, [1; 32]),
            shard: Shard::new(secret(), [2; 32]),
            cell: Cell::default(),
            copied: Vec::new(),
            target: 0,
            received: Vec::new(),
            ended: None,
            session: None,
            seeds: Vec::new(),
            restoring: None,
            tamper: |_| {},
        };
        world.connect(recovery_target_ns, secret());
        world
    }

    fn connect(&mut self, recovery_target_ns: u64, secret: DomainSecret) {
        self.target += 1;
        let wire = u64::from(self.target);
        self.shard = Shard::new(secret, [self.target.to_le_bytes()[0] + 10; 32]);
        let deploy = ShardInput::Control(ToShard::Deploy(app(recovery_target_ns)));
        self.drive(
            vec![],
            vec![
                deploy,
                ShardInput::WireUp {
                    wire: ShardWireId(wire),
                    verified: Box::new(Verified::trusted(HostId([9; 16]))),
                    address: None,
                },
            ],
        );
        let up =
            AgentInput::WireUp { wire: WireId(wire), target: Target { edge: self.target - 1, shard: 0 } };
        self.drive(vec![up], vec![]);
    }

    /// The edge dies; the agent connects to another, which has no cells.
    fn fail_over(&mut self, recovery_target_ns: u64, secret: DomainSecret) {
        let dead = WireId(u64::from(self.target));
        self.cell = Cell::default();
        self.connect(recovery_target_ns, secret);
        self.drive(vec![AgentInput::WireDown { wire: dead, reason: "killed".into() }], vec![]);
    }

    fn say(&mut self, text: &'static [u8]) {
        self.drive(
            vec![AgentInput::Received { connection: CLIENT, bytes: Bytes::from_static(text) }],
            vec![],
        );
    }

    /// Runs both until neither has any work left.
    fn drive(&mut self, to_agent: Vec<AgentInput>, to_shard: Vec<ShardInput>) {
        let mut to_agent = VecDeque::from(to_agent);
        let mut to_shard = VecDeque::from(to_shard);
        loop {
            if let Some(input) = to_shard.pop_front() {
                let mut out = Vec::new();
                self.shard.step(Now { mono_ns: 1_000_000_000, unix_ns: 5_000_000_000 }, input, &mut out);
                out.into_iter().for_each(|out| self.perform(out, &mut to_agent, &mut to_shard));
            } else if let Some(input) = to_agent.pop_front() {
                let mut out = Vec::new();
                self.agent.step(1_000_000_000, input, &mut out);
                out.into_iter().for_each(|out| self.deliver(out, &mut to_shard));
            } else {
                return;
            }
        }
    }

    fn deliver(&mut self, out: AgentOutput, to_shard: &mut VecDeque<ShardInput>) {
        match out {
            AgentOutput::Send { wire, mut frame } if wire.0 == u64::from(self.target) => {
                (self.tamper)(&mut frame);
                to_shard.push_back(ShardInput::Frame { wire: ShardWireId(wire.0), frame });
            }
            AgentOutput::Write { bytes, .. } => self.received.extend_from_slice(&bytes),
            AgentOutput::Report(AgentReport::Ended { code, .. }) => self.ended = Some(code),
            AgentOutput::Report(AgentReport::Owned { session, .. }) => self.session = Some(session),
            _ => {}
        }
    }

    fn perform(
        &mut self,
        out: ShardOutput,
        to_agent: &mut VecDeque<AgentInput>,
        to_shard: &mut VecDeque<ShardInput>,
    ) {
        match out {
            ShardOutput::Send { wire, frame } => {
                to_agent.push_back(AgentInput::Frame { wire: WireId(wire.0), frame })
            }
            ShardOutput::Start { cell, seed, .. } => {
                self.cell = Cell { seed: seed.0, count: 0 };
                self.seeds.push(seed.0);
                to_shard.push_back(ShardInput::Started { cell, result: Ok(()) });
            }
            ShardOutput::Run(run) => {
                let outputs = self.cell.run(&run.input);
                let (timers, tasks, cost_ns) = (Vec::new(), Vec::new(), 1_000);
                let ran = Ran {
                    cell: run.cell,
                    outcome: RunOutcome::Idle,
                    clock_read: false,
                    outputs,
                    timers,
                    tasks,
                    reads: Vec::new(),
                    cost_ns,
                };
                to_shard.push_back(ShardInput::Ran(ran));
            }
            ShardOutput::Copy { .. } => self.copied = self.cell.save(),
            ShardOutput::Checkpoint { cell, header, seal } => {
                let number = header.number;
                let sealed = seal.seal_checkpoint(number, header::join(&header, &self.copied));
                to_shard.push_back(ShardInput::Checkpointed { cell, number, result: Ok(sealed.into()) });
            }
            ShardOutput::Restore { keys, checkpoints, .. } => {
                self.restoring = Some((keys, checkpoints.into(), Vec::new()));
            }
            ShardOutput::Part { cell, bytes } => {
                let (keys, expected, arriving) = self.restoring.as_mut().expect("a cell is restored");
                arriving.extend_from_slice(&bytes);
                if arriving.len() as u64 != expected[0].size {
                    return;
                }
                let (meta, sealed) = (expected.pop_front().expect("looked at"), std::mem::take(arriving));
                if !expected.is_empty() {
                    return;
                }
                let result = match keys.seal(meta.generation).open_checkpoint(meta.number, &sealed) {
                    Ok(plain) => {
                        let (header, sections) = header::split(plain.into()).expect("what was sealed");
                        self.cell = Cell::restore(&sections);
                        Ok(Box::new(header))
                    }
                    Err(broken) => {
                        Err(marram_shard::api::CellError { code: Code::Tampered, reason: broken.to_string() })
                    }
                };
                to_shard.push_back(ShardInput::Restored { cell, result });
            }
            _ => {}
        }
    }
}

/// A session that has consumed three messages; with a target of 0 a checkpoint follows each.
fn begun(recovery_target_ns: u64) -> World {
    let mut world = World::new(recovery_target_ns);
    world.drive(
        vec![AgentInput::Accepted {
            key: None,
            connection: CLIENT,
            app: "count".into(),
            datagrams: false,
            messages: false,
            origin: None,
        }],
        vec![],
    );
    [b"a", b"b", b"c"].into_iter().for_each(|text| world.say(text));
    assert_eq!(world.received, b"123");
    world
}

fn recovered(recovery_target_ns: u64, tamper: fn(&mut Frame)) -> World {
    let mut world = begun(recovery_target_ns);
    world.tamper = tamper;
    world.fail_over(recovery_target_ns, secret());
    world.say(b"d");
    world
}

#[test]
fn an_honest_client_recovers_from_the_log_and_from_a_checkpoint() {
    for recovery_target_ns in [u64::MAX, 0] {
        let world = recovered(recovery_target_ns, |_| {});
        assert_eq!((world.received.as_slice(), world.ended), (b"1234".as_slice(), None));
    }
}

#[test]
fn what_an_agent_stores_shows_neither_state_nor_seed_nor_keys() {
    let contains = |hay: &[u8], needle: &[u8]| hay.windows(needle.len()).any(|window| window == needle);
    for recovery_target_ns in [u64::MAX, 0] {
        let world = begun(recovery_target_ns);
        let session = world.session.expect("it has an owner");
        let end = world.agent.end(session, false).expect("it is remembered");
        let stored: Vec<u8> = end.kept_sealed().flatten().copied().collect();
        assert!(!stored.is_empty());
        let keys = SessionKeys::derive(&secret(), session);
        let mut secrets: Vec<Vec<u8>> = world.seeds.iter().map(|seed| seed.to_vec()).collect();
        secrets.extend(SECRET_STATE.chunks(8).filter(|chunk| chunk.len() == 8).map(<[u8]>::to_vec));
        secrets.push(keys.resume().to_vec());
        // The only type that holds the key material prints none of it.
        assert_eq!(format!("{keys:?} {:?}", secret()), "SessionKeys DomainSecret");
        for needle in secrets {
            assert!(!contains(&stored, &needle), "{recovery_target_ns}: {needle:?}");
        }
    }
}

#[test]
fn an_altered_log_message_or_checkpoint_is_refused() {
    fn flip(bytes: &Bytes) -> Bytes {
        let mut altered = bytes.to_vec();
        if let Some(last) = altered.last_mut() {
            *last ^= 1;
        }
        altered.into()
    }
    let attacks: [Attack; 6] = [
        ("log", u64::MAX, |frame| {
            if let Frame::LogPart(part) = frame {
                part.bytes = flip(&part.bytes);
            }
        }),
        ("message", u64::MAX, |frame| {
            if let Frame::Input(input) = frame {
                input.payload = flip(&input.payload);
            }
        }),
        ("digest", u64::MAX, |frame| {
            if let Frame::Promised(promised) = frame {
                promised.tag[0] ^= 1;
            }
        }),
        ("checkpoint", 0, |frame| {
            if let Frame::CheckpointPart(part) = frame {
                part.bytes = flip(&part.bytes);
            }
        }),
        ("number", 0, |frame| {
            let bump = |meta: &mut marram_wire::frame::CheckpointMeta| meta.number += 1;
            match frame {
                Frame::Promised(promised) => promised.checkpoints.iter_mut().for_each(bump),
                Frame::CheckpointBegin(begin) => bump(&mut begin.meta),
                _ => {}
            }
        }),
        ("messages withheld", u64::MAX, |frame| {
            if let Frame::Promised(promised) = frame {
                promised.sent_start = promised.sent_end;
            }
        }),
    ];
    for (name, recovery_target_ns, tamper) in attacks {
        let world = recovered(recovery_target_ns, tamper);
        assert_eq!(world.received, b"123", "{name}: nothing more was released");
        let refused = matches!(world.ended, Some(Code::Tampered | Code::Protocol));
        assert!(refused, "{name}: {:?}", world.ended);
    }
}

#[test]
fn a_wrong_key_resumes_nothing() {
    let mut world = begun(u64::MAX);
    world.tamper = |frame| {
        if let Frame::Hello(hello) = frame {
            hello.proof = hello.proof.map(|proof| proof.map(|byte| byte ^ 1));
        }
    };
    world.fail_over(u64::MAX, secret());
    assert_eq!(world.ended, Some(Code::WrongKey));
    // An edge of another domain refuses it too, and so does an edge that gets no proof.
    let mut world = begun(u64::MAX);
    world.fail_over(u64::MAX, DomainSecret::from_material(b"another domain's"));
    assert_eq!(world.ended, Some(Code::WrongKey));
    let mut world = begun(u64::MAX);
    world.tamper = |frame| {
        if let Frame::Hello(hello) = frame {
            hello.proof = None;
        }
    };
    world.fail_over(u64::MAX, secret());
    assert_eq!(world.ended, Some(Code::WrongKey));
}
