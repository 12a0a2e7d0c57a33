//! A recorder, its wires and files, and a model that stores everything. What was fed and not truncated can be recalled, byte
//! for byte and without a gap.

mod cases;
mod histories;

use super::*;
use crate::dialer;
use alloc::{format, vec};
use bytes::Bytes;
use marram_wire::{
    frame::{
        Base, CheckpointKind, CheckpointMeta, CheckpointPart, Fed, Input, KeptInput, Recall, Recalled,
        Renewed, Truncate,
    },
    id::{Generation, HostId, ImageHash},
    limits::{DELTAS_MAX, PART_SIZE},
    seal::{DomainSecret, KeeperKey},
};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const LINGER_NS: u64 = 60 * S;

fn config(memory: u64, store: bool) -> RecorderConfig {
    RecorderConfig {
        name: "r".into(),
        key: KeeperKey::derive(&DomainSecret::from_material(b"a secret for tests")),
        dialer: dialer::DialerConfig {
            edges: 2,
            heartbeat_interval_ns: 50 * MS,
            // The edges in these tests do not answer, for up to a minute.
            heartbeat_timeout_ns: 100 * S,
            backoff_min_ns: 10 * MS,
            backoff_max_ns: S,
        },
        linger_ns: LINGER_NS,
        memory,
        sessions: 100,
        store,
    }
}

/// A recorder and its outputs.
struct World {
    recorder: Recorder,
    now_ns: u64,
    wires: u64,
    /// By session, the contents of its file.
    files: BTreeMap<SessionId, Vec<Frame>>,
    sent: Vec<(WireId, Frame)>,
    reports: Vec<RecorderReport>,
    dials: Vec<Target>,
}

impl World {
    fn new(memory: u64, store: bool) -> Self {
        let recorder = Recorder::new(config(memory, store), 0, [7; 32]);
        let (files, sent, reports, dials) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let mut world = Self { recorder, now_ns: 0, wires: 0, files, sent, reports, dials };
        world.step(RecorderInput::Wake);
        world
    }

    fn step(&mut self, input: RecorderInput) {
        let mut out = Vec::new();
        self.recorder.step(self.now_ns, input, &mut out);
        for out in out {
            match out {
                RecorderOutput::Send { wire, frame } => self.sent.push((wire, frame)),
                RecorderOutput::Report(report) => self.reports.push(report),
                RecorderOutput::Dial { target } => self.dials.push(target),
                RecorderOutput::Store { session, store: FileOperation::Begin(frames) } => {
                    self.files.insert(session, frames);
                }
                RecorderOutput::Store { session, store: FileOperation::Append(frame) } => {
                    self.files.get_mut(&session).expect("appended to what was begun").push(frame);
                }
                RecorderOutput::Store { session, store: FileOperation::Remove } => {
                    self.files.remove(&session);
                }
                RecorderOutput::CloseWire { .. } | RecorderOutput::WakeAt { .. } => {}
            }
        }
        assert!(self.recorder.cost <= self.recorder.config.memory, "more is kept than there is room for");
        let cost: u64 = self.recorder.sessions.values().map(Entry::cost).sum();
        assert_eq!(self.recorder.cost, cost);
        assert_eq!(self.recorder.silent.len(), self.recorder.sessions.len());
    }

    /// A wire on which the recorder has proved its identity.
    fn wire(&mut self) -> WireId {
        self.wires += 1;
        let wire = WireId(self.wires);
        self.step(RecorderInput::WireUp { wire, target: Target { edge: 0, shard: 0 } });
        let (version, challenge) = (WIRE_VERSION, [9; 16]);
        let (edge, domain) = ("e".into(), [4; 8]);
        let welcome = Welcome { version, edge, shard: 0, shards: 1, challenge, draining: false, domain };
        self.hear(wire, welcome);
        wire
    }

    fn hear(&mut self, wire: WireId, frame: impl Into<Frame>) {
        self.step(RecorderInput::Frame { wire, frame: frame.into() });
    }

    fn said(&mut self) -> Vec<Frame> {
        let sent = core::mem::take(&mut self.sent).into_iter().map(|(_, frame)| frame);
        sent.filter(|frame| !matches!(frame, Frame::Ping(_))).collect()
    }

    /// The recalled data of a session; none if nothing is kept.
    fn recall(&mut self, wire: WireId, session: SessionId) -> Option<Answer> {
        self.sent.clear();
        self.hear(wire, Recall { channel: 999, session });
        Answer::read(self.said())
    }

    /// Starts another process with the files of this one.
    fn restart(&mut self) {
        let config = self.recorder.config.clone();
        self.recorder = Recorder::new(config, self.now_ns, [8; 32]);
        for (session, frames) in &self.files {
            let restored = self.recorder.restore(self.now_ns, *session, frames.iter().cloned());
            assert_eq!(restored, Ok(true), "its own file");
        }
        self.step(RecorderInput::Wake);
    }
}

/// A complete answer to a recall.
#[derive(PartialEq, Eq, Debug)]
struct Answer {
    head: Recalled,
    /// Each byte with its generation.
    log: Vec<(u8, Generation)>,
    inputs: Vec<Vec<(bool, Bytes)>>,
    checkpoints: Vec<Vec<u8>>,
}

impl Answer {
    fn read(frames: Vec<Frame>) -> Option<Self> {
        let mut frames = frames.into_iter().peekable();
        let head = match frames.next() {
            Some(Frame::Recalled(head)) => head,
            Some(Frame::Ended(ended)) => {
                assert_eq!(ended.code, Code::Forgotten);
                return None;
            }
            other => panic!("no answer: {other:?}"),
        };
        let mut log = Vec::new();
        while let Some(Frame::LogPart(part)) = frames.next_if(|frame| matches!(frame, Frame::LogPart(_))) {
            assert_eq!(part.offset, head.log_start + log.len() as u64);
            assert!(part.bytes.len() <= PART_SIZE);
            log.extend(part.bytes.iter().map(|byte| (*byte, part.generation)));
        }
        assert_eq!(head.log_start + log.len() as u64, head.log_end);
        let mut inputs = Vec::new();
        for (start, end) in head.sent_start.iter().zip(&head.sent_end) {
            let of_port = (*start..*end).map(|_| match frames.next() {
                Some(Frame::KeptInput(KeptInput { close, payload, .. })) => (close, payload),
                other => panic!("no message: {other:?}"),
            });
            inputs.push(of_port.collect());
        }
        let mut checkpoints = Vec::new();
        for meta in &head.checkpoints {
            match frames.next() {
                Some(Frame::CheckpointBegin(begin)) => assert_eq!(begin.meta, *meta),
                other => panic!("no checkpoint: {other:?}"),
            }
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < meta.size {
                match frames.next() {
                    Some(Frame::CheckpointPart(part)) => bytes.extend_from_slice(&part.bytes),
                    other => panic!("no part: {other:?}"),
                }
            }
            checkpoints.push(bytes);
        }
        assert_eq!(frames.next(), None);
        Some(Self { head, log, inputs, checkpoints })
    }
}

/// Everything that was fed of one session, and the part that a recorder must have.
struct Model {
    session: SessionId,
    ports: usize,
    generation: Generation,
    channel: Channel,
    fed_by: Option<WireId>,
    log: Vec<(u8, Generation)>,
    tag: [u8; 8],
    inputs: Vec<Vec<(bool, Bytes)>>,
    truncated: u64,
    /// The log offset at which the recorder began.
    from: u64,
    ready: bool,
    chain: Vec<(CheckpointMeta, Vec<u64>, Vec<u8>)>,
    arriving: Option<(CheckpointMeta, Vec<u64>, Vec<u8>, usize)>,
    numbers: u32,
}

impl Model {
    fn new(session: u8, ports: usize) -> Self {
        Self {
            session: SessionId([session; 16]),
            ports,
            generation: Generation { count: 1, opener: 5 },
            // Unique among all sessions on one wire.
            channel: 1 + 10_000 * Channel::from(session),
            fed_by: None,
            log: Vec::new(),
            tag: [0; 8],
            inputs: vec![Vec::new(); ports],
            truncated: 0,
            from: 0,
            ready: false,
            chain: Vec::new(),
            arriving: None,
            numbers: 0,
        }
    }

    fn took(&self) -> Vec<u64> {
        self.inputs.iter().map(|inputs| inputs.len() as u64).collect()
    }

    fn end(&self) -> u64 {
        self.log.len() as u64
    }

    /// What its owner announces to a recorder.
    fn announcement(&self) -> Keep {
        let mut head = [0; 32];
        head[..8].copy_from_slice(&self.tag);
        Keep {
            channel: self.channel,
            session: self.session,
            generation: self.generation,
            app: "app".into(),
            image: ImageHash([3; 32]),
            hosts: vec![HostId([2; 16]); self.ports],
            hot: false,
            moves: false,
            log_offset: self.from,
            head,
            last_ns: 0,
            took: self.took(),
            group: None,
            origin: None,
            key: Default::default(),
        }
    }

    /// Its owner makes a recorder keep it from here on.
    fn keep(&mut self, world: &mut World, wire: WireId) {
        self.channel += 2;
        (self.fed_by, self.from, self.arriving) = (Some(wire), self.end(), None);
        self.truncated = self.from;
        (self.ready, self.chain) = (self.from == 0, Vec::new());
        world.hear(wire, self.announcement());
        if !self.ready {
            self.base(world, true, 100);
        }
    }

    fn feed(&mut self, world: &mut World, random: &mut Random, size: usize) {
        let Some(wire) = self.fed_by else { return };
        let from = random.below(1 + self.ports as u64);
        let open = |port: usize| self.inputs[port].last().is_none_or(|(close, _)| !close);
        let known = usize::try_from(from).ok().filter(|port| *port < self.ports && open(*port));
        let from = known.unwrap_or(2);
        let entry: Vec<u8> = (0..=random.below(20)).map(|_| random.bytes::<1>()[0]).collect();
        let (mut close, mut payload) = (false, Bytes::new());
        if from < 2 {
            close = random.below(40) == 0;
            payload = if close { Bytes::new() } else { vec![random.bytes::<1>()[0]; size].into() };
            self.inputs[from].push((close, payload.clone()));
        }
        self.tag = random.bytes();
        self.log.extend(entry.iter().map(|byte| (*byte, self.generation)));
        let from = u32::try_from(from).expect("at most 2");
        world.hear(
            wire,
            Fed { channel: self.channel, entry: entry.into(), tag: self.tag, from, close, payload },
        );
    }

    /// Announces a checkpoint at the session's present position.
    fn base(&mut self, world: &mut World, full: bool, size: usize) {
        let Some(wire) = self.fed_by.filter(|_| self.arriving.is_none()) else { return };
        let full = full || self.chain.is_empty() || self.chain.len() > DELTAS_MAX;
        self.numbers += 1;
        let (generation, number) = (self.generation, self.numbers);
        let kind = if full { CheckpointKind::Full } else { CheckpointKind::Delta };
        let meta = CheckpointMeta { generation, number, kind, log_offset: self.end(), size: size as u64 };
        let bytes = vec![number.to_le_bytes()[0]; size];
        let took = self.took();
        world.hear(wire, Base { channel: self.channel, meta: meta.clone(), took: took.clone() });
        self.arriving = Some((meta, took, bytes, 0));
    }

    fn part(&mut self, world: &mut World, size: usize) {
        let Some(wire) = self.fed_by else { return };
        let Some((_, _, bytes, sent)) = &mut self.arriving else { return };
        let end = bytes.len().min(*sent + size);
        let part = Bytes::copy_from_slice(&bytes[*sent..end]);
        *sent = end;
        let whole = end == bytes.len();
        world.hear(wire, CheckpointPart { channel: self.channel, bytes: part });
        if whole && let Some((meta, took, bytes, _)) = self.arriving.take() {
            self.ready = true;
            if meta.is_full() {
                self.chain.clear();
            }
            self.chain.push((meta, took, bytes));
        }
    }

    /// Ends hold a checkpoint at or before the present position.
    fn truncate(&mut self, world: &mut World, random: &mut Random) {
        let Some(wire) = self.fed_by else { return };
        self.truncated += random.below(self.end() - self.truncated + 1);
        let (channel, log_offset) = (self.channel, self.truncated);
        world.hear(wire, Truncate { channel, log_offset, tag: [0; 8], sent: 0 });
    }

    fn renew(&mut self, world: &mut World) {
        let Some(wire) = self.fed_by else { return };
        self.generation.count += 1;
        world.hear(wire, Renewed { channel: self.channel, generation: self.generation });
    }

    /// The expected answer to a recall.
    fn expected(&self) -> Option<Answer> {
        if !self.ready {
            return None;
        }
        let covered = self.chain.last().map_or(self.from, |(meta, ..)| meta.log_offset);
        let log_start = self.truncated.min(covered);
        let sent_start = self.chain.last().map_or(vec![0; self.ports], |(_, took, _)| took.clone());
        let at = |offset: u64| usize::try_from(offset).expect("small");
        let inputs = self.inputs.iter().zip(&sent_start);
        Some(Answer {
            log: self.log[at(log_start)..].to_vec(),
            inputs: inputs.map(|(inputs, start)| inputs[at(*start)..].to_vec()).collect(),
            checkpoints: self.chain.iter().map(|(.., bytes)| bytes.clone()).collect(),
            head: Recalled {
                channel: 999,
                generation: self.generation,
                log_start,
                log_end: self.end(),
                tag: self.tag,
                sent_end: self.took(),
                sent_start,
                checkpoints: self.chain.iter().map(|(meta, ..)| meta.clone()).collect(),
            },
        })
    }
}

fn fed(model: &Model, from: u32, payload: &'static [u8]) -> Fed {
    let (channel, entry) = (model.channel, Bytes::from_static(b"e"));
    Fed { channel, entry, tag: [1; 8], from, close: false, payload: Bytes::from_static(payload) }
}
