//! Thousands of seeded histories against a model that stores everything: what was fed and not truncated can be recalled, byte
//! for byte and without a gap.

use super::*;
use crate::dialer;
use alloc::{format, vec};
use bytes::Bytes;
use marram_wire::{
    frame::{
        Base, CheckpointMeta, CheckpointPart, Fed, Input, KeptInput, Recall, Recalled, Renewed, Truncate,
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
            log_offset: self.from,
            head,
            last_ns: 0,
            took: self.took(),
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
        let from = u8::try_from(from).expect("at most 2");
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
        let meta = CheckpointMeta { generation, number, full, log_offset: self.end(), size: size as u64 };
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
            if meta.full {
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

/// One history of a few sessions. In `strict` histories a recall must give everything, byte for byte; otherwise the recorder
/// may have deleted the session.
fn history(seed: u64, strict: bool) -> (u64, u64) {
    let mut entropy = [0; 32];
    entropy[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = Random::new(entropy);
    let store = random.below(2) == 0;
    let mut world = World::new(if strict { 64 << 20 } else { 40_000 }, store);
    let mut wire = world.wire();
    let mut models: Vec<Model> = (0..3).map(|index| Model::new(index, 1 + usize::from(index % 2))).collect();
    let (mut found, mut missed) = (0, 0);
    for _ in 0..120 {
        world.now_ns += random.below(S / 2);
        let model = &mut models[usize::try_from(random.below(3)).expect("small")];
        if model.fed_by.is_none() && random.below(2) == 0 {
            if random.below(2) == 0 {
                model.generation.count += 1;
            }
            model.keep(&mut world, wire);
        }
        let size = usize::try_from(random.below(200)).expect("small");
        match random.below(40) {
            0..=20 => model.feed(&mut world, &mut random, size),
            21 | 22 => model.base(&mut world, random.below(4) == 0, 1 + size * 3),
            23..=30 => model.part(&mut world, 1 + size),
            31 | 32 => model.truncate(&mut world, &mut random),
            33 => model.renew(&mut world),
            34 => {
                world.step(RecorderInput::WireDown { wire, reason: "test".into() });
                wire = world.wire();
                for model in &mut models {
                    (model.fed_by, model.arriving) = (None, None);
                }
            }
            35 if store => {
                world.restart();
                wire = world.wire();
                for model in &mut models {
                    (model.fed_by, model.arriving) = (None, None);
                }
            }
            36 => {
                if let Some(wire) = model.fed_by.take() {
                    model.arriving = None;
                    let (channel, code) = (model.channel, Code::Busy);
                    world.hear(wire, Ended { channel, code, reason: "it lags".into() });
                }
            }
            _ => {}
        }
        let model = &models[usize::try_from(random.below(3)).expect("small")];
        match (world.recall(wire, model.session), model.expected()) {
            (Some(answer), Some(expected)) if strict => {
                assert_eq!(answer, expected, "seed {seed}");
                found += 1;
            }
            (Some(_), _) => found += 1,
            // Its wire broke before the data was sufficient, or it had no feed for too long.
            (None, None) => missed += 1,
            (None, Some(_)) => {
                assert!(!strict || (model.fed_by.is_none()), "seed {seed}: what was fed is gone");
                missed += 1;
            }
        }
    }
    (found, missed)
}

#[test]
fn what_was_fed_and_not_truncated_can_be_recalled_byte_for_byte() {
    let (mut found, mut missed) = (0, 0);
    for seed in 0..3_000 {
        let (more, less) = history(seed, true);
        (found, missed) = (found + more, missed + less);
    }
    assert!(found > 100_000 && missed > 1_000, "{found} found, {missed} not");
}

#[test]
fn a_full_recorder_stays_within_its_memory_and_serves_the_others() {
    let found: u64 = (0..1_000).map(|seed| history(seed, false).0).sum();
    assert!(found > 10_000, "{found}");
}

fn fed(model: &Model, from: u8, payload: &'static [u8]) -> Fed {
    let (channel, entry) = (model.channel, Bytes::from_static(b"e"));
    Fed { channel, entry, tag: [1; 8], from, close: false, payload: Bytes::from_static(payload) }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_else_suffers() {
    let meta = |full, log_offset, size| CheckpointMeta {
        generation: Generation { count: 1, opener: 5 },
        number: 1,
        full,
        log_offset,
        size,
    };
    let base = |channel, meta, took: &[u64]| Frame::from(Base { channel, meta, took: took.to_vec() });
    let bad = |model: &Model| {
        let channel = model.channel;
        let closed = Fed { close: true, ..fed(model, 0, b"x") };
        let part = Bytes::from_static(b"part");
        vec![
            fed(model, 1, b"").into(),
            fed(model, 3, b"").into(),
            fed(model, 2, b"from no one").into(),
            closed.into(),
            Fed { entry: Bytes::new(), ..fed(model, 0, b"") }.into(),
            base(channel, meta(false, 1, 5), &[1]),
            base(channel, meta(true, 2, 5), &[1]),
            base(channel, meta(true, 1, 0), &[1]),
            base(channel, meta(true, 1, 5), &[2]),
            base(channel, meta(true, 1, 5), &[1, 0]),
            base(channel, meta(true, 1, u64::MAX), &[1]),
            base(
                channel,
                CheckpointMeta { generation: Generation { count: 2, opener: 0 }, ..meta(true, 1, 5) },
                &[1],
            ),
            CheckpointPart { channel, bytes: part }.into(),
            Truncate { channel, log_offset: 2, tag: [0; 8], sent: 0 }.into(),
            Renewed { channel, generation: model.generation }.into(),
            Input { channel, ack: 0, close: false, payload: Bytes::new() }.into(),
        ]
    };
    let count = bad(&Model::new(0, 1)).len();
    for index in 0..count {
        let mut world = World::new(1 << 20, true);
        let wire = world.wire();
        let (mut model, mut other) = (Model::new(0, 1), Model::new(1, 1));
        model.keep(&mut world, wire);
        other.keep(&mut world, wire);
        world.hear(wire, fed(&model, 0, b"m"));
        world.said();
        let frame = bad(&model).swap_remove(index);
        let of_ends = frame.channel(Sender::Edge).is_none();
        world.hear(wire, frame.clone());
        let said = world.said();
        if of_ends {
            assert!(matches!(said[0], Frame::Goodbye(_)), "{frame:?}: {said:?}");
            continue;
        }
        assert!(matches!(said[0], Frame::Reject(_)), "{frame:?}: {said:?}");
        // A frame that is still in flight is not the peer's fault.
        world.hear(wire, fed(&model, 0, b"m"));
        assert_eq!(world.recall(wire, model.session), None);
        assert!(!world.files.contains_key(&model.session));
        assert_eq!(world.recall(wire, other.session), other.expected());
    }
}

#[test]
fn a_session_that_consumed_more_messages_than_its_log_has_entries_is_refused() {
    let mut world = World::new(1 << 20, false);
    let wire = world.wire();
    for (channel, took, refused) in [(1, 0, false), (3, 7, false), (5, 8, true), (7, u64::MAX, true)] {
        let model = Model::new(0, 1);
        world.hear(wire, Keep { channel, took: vec![took], log_offset: 7, ..model.announcement() });
        assert_eq!(
            matches!(&world.said()[..], [Frame::Reject(it)] if it.code == Code::Protocol),
            refused,
            "{took}"
        );
    }
}

#[test]
fn an_older_generation_is_refused_and_a_newer_one_takes_over() {
    let mut world = World::new(1 << 20, false);
    let (first, second) = (world.wire(), world.wire());
    let (mut old, mut new) = (Model::new(0, 1), Model::new(0, 1));
    new.generation.count = 2;
    old.keep(&mut world, first);
    new.keep(&mut world, second);
    let said = core::mem::take(&mut world.sent);
    let told = |frame: &Frame| matches!(frame, Frame::Superseded(it) if it.promised == new.generation);
    assert!(said.iter().any(|(wire, frame)| *wire == first && told(frame)), "{said:?}");
    old.keep(&mut world, first);
    let said = world.said();
    assert!(matches!(&said[..], [Frame::Reject(it)] if it.code == Code::Busy), "{said:?}");
    assert_eq!(world.recall(first, new.session), new.expected());
}

#[test]
fn a_session_without_a_feed_is_kept_for_its_linger_time() {
    for (code, kept_ns) in [
        (None, LINGER_NS),
        (Some(Code::Superseded), GRACE_NS),
        (Some(Code::Busy), GRACE_NS),
        (Some(Code::Finished), 0),
        (Some(Code::Killed), 0),
    ] {
        let mut world = World::new(1 << 20, true);
        let (wire, other) = (world.wire(), world.wire());
        let mut model = Model::new(0, 1);
        model.keep(&mut world, wire);
        world.hear(wire, fed(&model, 2, b""));
        match code {
            None => world.step(RecorderInput::WireDown { wire, reason: "test".into() }),
            Some(code) => world.hear(wire, Ended { channel: model.channel, code, reason: "test".into() }),
        }
        let start_ns = world.now_ns;
        if kept_ns > 0 {
            world.now_ns = start_ns + kept_ns - 1;
            world.step(RecorderInput::Wake);
            assert!(world.recall(other, model.session).is_some(), "{code:?}");
        }
        world.now_ns = start_ns + kept_ns;
        world.step(RecorderInput::Wake);
        assert_eq!(world.recall(other, model.session), None, "{code:?}");
        assert!(world.files.is_empty());
    }
}

#[test]
fn what_was_kept_is_there_until_what_replaces_it_is_whole() {
    let mut world = World::new(1 << 20, false);
    let wire = world.wire();
    let (mut model, mut random) = (Model::new(0, 1), Random::new([1; 32]));
    model.keep(&mut world, wire);
    model.feed(&mut world, &mut random, 10);
    let before = model.expected();
    // Its owner had dropped the recorder, and makes it keep the session again.
    model.keep(&mut world, wire);
    model.feed(&mut world, &mut random, 10);
    assert_eq!(world.recall(wire, model.session), before);
    model.part(&mut world, 1_000);
    assert_eq!(world.recall(wire, model.session), model.expected());
    assert!(model.expected() != before);
}

#[test]
fn entries_and_parts_are_acknowledged_as_they_come() {
    let mut world = World::new(64 << 20, false);
    let wire = world.wire();
    let mut model = Model::new(0, 1);
    model.keep(&mut world, wire);
    let (mut frames, mut bytes) = (0, 0);
    let cost = charge(32 << 10) + 1;
    for _ in 0..200 {
        let payload = Bytes::from(vec![1; 32 << 10]);
        world.hear(wire, Fed { payload, ..fed(&model, 0, b"") });
    }
    for frame in world.said() {
        if let Frame::Credit(credit) = frame {
            assert!(credit.bytes >= 512 << 10 && credit.bytes < (512 << 10) + cost);
            (frames, bytes) = (frames + credit.received, bytes + credit.bytes);
        }
    }
    assert!(frames > 180 && bytes == frames * cost, "{frames} {bytes}");
    (model.log, model.inputs[0]) = (vec![(0, model.generation); 200], vec![(false, Bytes::new()); 200]);
    model.base(&mut world, true, 200_000);
    for _ in 0..20 {
        model.part(&mut world, 10_000);
    }
    let stored = world.said().into_iter().filter_map(|frame| match frame {
        Frame::Stored(stored) => Some((stored.bytes, stored.complete)),
        _ => None,
    });
    assert_eq!(stored.collect::<Vec<_>>(), [(70_000, None), (70_000, None), (60_000, Some(1))]);
}

#[test]
fn it_proves_its_identity_and_dials_ever_less_often_after_refusals() {
    let mut world = World::new(1 << 20, false);
    assert_eq!(world.dials.len(), 2);
    let wire = world.wire();
    let said = world.said();
    let (key, name) = (world.recorder.config.key.clone(), "r");
    assert!(matches!(&said[0], Frame::Greet(_)));
    assert!(said.iter().any(|frame| {
        matches!(frame, Frame::Keeper(it) if it.proof == key.proof(&[9; 16], name) && it.role == 0)
    }));
    let mut waits = Vec::new();
    let mut id = wire.0 + 100;
    world.dials.clear();
    world.hear(wire, Goodbye { reason: "not one of ours".into() });
    for _ in 0..10 {
        let before = world.now_ns;
        while !world.dials.contains(&Target { edge: 0, shard: 0 }) {
            world.now_ns += 5 * MS;
            world.step(RecorderInput::Wake);
        }
        waits.push(world.now_ns - before);
        id += 1;
        world.wires = id;
        let wire = world.wire();
        world.dials.clear();
        world.step(RecorderInput::WireDown { wire, reason: "refused".into() });
    }
    assert!(waits[0] <= 20 * MS && waits[9] >= 500 * MS, "{waits:?}");
}

#[test]
fn a_file_that_breaks_off_holds_an_older_state_and_nonsense_is_refused() {
    let mut world = World::new(1 << 20, true);
    let wire = world.wire();
    let (mut model, mut random) = (Model::new(0, 2), Random::new([3; 32]));
    model.keep(&mut world, wire);
    for round in 0..4 {
        for _ in 0..5 {
            model.feed(&mut world, &mut random, 30);
        }
        model.base(&mut world, round == 0, 300);
        model.part(&mut world, 1_000);
        model.truncate(&mut world, &mut random);
    }
    let frames = world.files[&model.session].clone();
    let restore = |frames: Vec<Frame>| {
        let mut recorder = Recorder::new(config(1 << 20, true), 0, [8; 32]);
        let restored = recorder.restore(0, model.session, frames);
        (restored, recorder.session_count())
    };
    for cut in 0..=frames.len() {
        let (restored, count) = restore(frames[..cut].to_vec());
        assert_eq!(restored, Ok(count == 1), "{cut}");
    }
    // If any one required frame is missing, the file is refused or gives an older state; it never causes a panic.
    let mut refused = 0;
    for index in 0..frames.len() {
        let mut some = frames.clone();
        some.remove(index);
        refused += u32::from(restore(some).0.is_err());
    }
    assert!(refused > 4, "{refused}");
    let other = Recorder::new(config(1 << 20, true), 0, [8; 32]).restore(0, SessionId([9; 16]), frames);
    assert_eq!(other.map_err(|(index, _)| index), Err(0));
    assert!(format!("{:?}", world.reports).contains("Kept"));
}
