//! The stages of a simulated cell: the oracle's chain alone, or between delay stages, connected in a row. This is an independent
//! implementation of how stages run: with twins, the sandbox's is compared with it.
//!
//! ```text
//! Alone:             client -- chain -- server
//! Delayed, server:   client -- delay -- chain -- delay -- server
//! Delayed, none:     client -- delay -- chain
//! ```
//! A queue of inputs, first in, first out, until it is empty: what a stage sends is appended.
//! `sandbox::host::hosts` does the same in one call into the engine; that both orders are equal is
//! what the twins check.

use super::{cache::Reader, hall};
use crate::plan::Shape;
use bytes::Bytes;
use marram_chain_algo::{Chain, Event, Host, Peer, Stream, delay_stage::DelayStage};
use marram_hall_algo::Hall;
use marram_session::cell::{CellInput, CellOutput, Ran, Run, Seed, TaskChange, TimerChange};
use marram_wire::id::Port;
use std::collections::VecDeque;

/// The kind of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Machine {
    /// The record chain of the oracle.
    Chain(Chain),
    /// Holds messages for a while, draws random bytes and sets timers: state in every stage.
    DelayStage(DelayStage),
    /// Alone in its cell: it has any number of ports.
    Hall(Hall),
}

/// One machine and its generator.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stage {
    machine: Machine,
    /// The cell's seed for the first stage, a derived one for the others.
    seed: Seed,
    /// Bytes drawn so far: the position in the generator's stream.
    drawn: u64,
}

/// The machines of one cell, the one next to the client first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stages(Vec<Stage>);

/// The input of a machine.
#[derive(Clone, Debug)]
enum Fed {
    /// Also whether the session's peer there uses datagrams.
    Open(Peer, bool),
    Message(Peer, Bytes),
    Close(Peer),
    Timer(u64),
    Task(u64),
}

impl Stages {
    pub(super) fn new(shape: Shape, seed: Seed) -> Self {
        let (chain, delay_stage) =
            (Machine::Chain(Chain::default()), Machine::DelayStage(DelayStage::default()));
        let machines = match shape {
            Shape::Alone => vec![chain],
            Shape::Delayed { server: false } => vec![delay_stage, chain],
            Shape::Delayed { server: true } => vec![delay_stage.clone(), chain, delay_stage],
            Shape::Hall => vec![Machine::Hall(Hall::default())],
        };
        let stage = |(at, machine)| Stage { machine, seed: of_stage(seed, at), drawn: 0 };
        Self((0..).zip(machines).map(stage).collect())
    }

    /// Runs an input from outside until all machines are quiet.
    ///
    /// Effects are collected in `ran`. Outputs of one handler come before the pauses and resumes
    /// that it asked for.
    pub(super) fn run(&mut self, run: &Run, datagrams: [bool; 2], reader: &mut Reader<'_>, ran: &mut Ran) {
        if let [Stage { machine: Machine::Hall(machine), seed, drawn }] = &mut self.0[..] {
            return hall::run(machine, (*seed, drawn), run, reader, ran);
        }
        let last = self.0.len() - 1;
        let mut waiting = self.enter(&run.input, datagrams);
        while let Some((at, fed)) = waiting.pop_front() {
            let Some(stage) = self.0.get_mut(at) else {
                unreachable!("a stage {at} set no timer and has no task")
            };
            let task = if let Fed::Task(token) = fed { Some(token) } else { None };
            let generator = (stage.seed, &mut stage.drawn);
            let mut host = HostContext {
                at,
                now_ns: run.now_ns,
                stage: generator,
                reader,
                ran,
                task,
                sent: Vec::new(),
                flow: Vec::new(),
            };
            stage.machine.input(&fed, &mut host);
            let HostContext { sent, flow, .. } = host;
            for (to, payload) in sent {
                let (neighbour, from) = match to {
                    Peer::Server if at < last => (at + 1, Peer::Client),
                    Peer::Client if at > 0 => (at - 1, Peer::Server),
                    _ => {
                        ran.outputs.push(output(Port(to as u32), payload));
                        continue;
                    }
                };
                waiting.push_back((
                    neighbour,
                    payload.map_or(Fed::Close(from), |bytes| Fed::Message(from, bytes)),
                ));
            }
            ran.outputs.extend(flow);
        }
    }

    /// The stages that an input from outside is for. Stages are connected when the last of the session's ports opens.
    ///
    /// The order of the opens is the sandbox's (`Hosts::accept`): if there is a server, its port is
    /// the last of the session's to open and its own open comes after those between the stages;
    /// otherwise the client's comes first.
    fn enter(&self, input: &CellInput, [client, server]: [bool; 2]) -> VecDeque<(usize, Fed)> {
        let peer = |port: Port| Peer::from_port(port.0).expect("a session has two ports");
        let last = self.0.len() - 1;
        // In a session without a server, the kind of the server is unknown.
        let opens = |peer| Fed::Open(peer, if peer == Peer::Client { client } else { server && last == 2 });
        let side = |port: Port| if port == Port::SERVER { last } else { 0 };
        let first = match input {
            CellInput::Open { port, .. } => (side(*port), opens(peer(*port))),
            CellInput::Message { port, payload } => (side(*port), Fed::Message(peer(*port), payload.clone())),
            CellInput::Close { port } => (side(*port), Fed::Close(peer(*port))),
            CellInput::Timer { stage, token } => (usize::from(*stage), Fed::Timer(*token)),
            CellInput::Task { stage, token } => (usize::from(*stage), Fed::Task(*token)),
            CellInput::Gone { .. } => return VecDeque::new(),
        };
        let with_server = last == 2;
        let meeting = matches!(first.1, Fed::Open(peer, _) if (peer == Peer::Server) == with_server);
        let met = (1..=last).filter(|_| meeting);
        let mut waiting: VecDeque<_> =
            met.flat_map(|at| [(at - 1, opens(Peer::Server)), (at, opens(Peer::Client))]).collect();
        if with_server {
            waiting.push_back(first);
        } else {
            waiting.push_front(first);
        }
        waiting
    }

    /// A hash that differs for cells with different inputs. Folded, so that equal states of all
    /// stages in the same order give the same number; for comparison only.
    pub(super) fn hash(&self) -> u64 {
        let hash = |stage: &Stage| match &stage.machine {
            Machine::Chain(chain) => chain.hash(),
            Machine::DelayStage(delay_stage) => delay_stage.hash().rotate_left(1),
            Machine::Hall(hall) => hall.hash(),
        };
        self.0.iter().fold(0, |sum, stage| sum ^ hash(stage).rotate_left(7))
    }

    /// Whether there are stages besides the oracle's chain.
    pub(super) fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether it is a cell that many clients share.
    pub(super) fn is_hall(&self) -> bool {
        matches!(self.0[..], [Stage { machine: Machine::Hall(_), .. }])
    }

    /// What the hall has consumed of a client that is here.
    pub(super) fn said(&self, port: Port) -> Option<Stream> {
        match &self.0[..] {
            [Stage { machine: Machine::Hall(hall), .. }] => hall.said(port.0),
            _ => None,
        }
    }

    /// Random bytes that all stages have drawn.
    pub(super) fn drawn(&self) -> u64 {
        self.0.iter().map(|stage| stage.drawn).sum()
    }

    /// The whole state as bytes, without the seed. `(kind 1 | drawn 8 | length 8 | machine)*`, kind
    /// 0 for a chain, 1 for a delay stage and 2 for a hall.
    pub(super) fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for stage in &self.0 {
            let (kind, machine) = match &stage.machine {
                Machine::Chain(chain) => (0, chain.save().to_vec()),
                Machine::DelayStage(delay_stage) => (1, delay_stage.save()),
                Machine::Hall(hall) => (2, hall.save()),
            };
            bytes.push(kind);
            bytes.extend_from_slice(&stage.drawn.to_le_bytes());
            bytes.extend_from_slice(&(machine.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&machine);
        }
        bytes
    }

    /// Decodes the result of [`Stages::save`]; `None` for anything else.
    pub(super) fn restore(mut bytes: &[u8], seed: Seed) -> Option<Self> {
        let mut stages = Vec::new();
        while let Some((kind, rest)) = bytes.split_first() {
            let (drawn, rest) = rest.split_first_chunk()?;
            let (len, rest) = rest.split_first_chunk()?;
            let (machine, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            let machine = match kind {
                0 => Machine::Chain(Chain::restore(machine.try_into().ok()?)),
                2 => Machine::Hall(Hall::restore(machine)?),
                _ => Machine::DelayStage(DelayStage::restore(machine)?),
            };
            let seed = of_stage(seed, u8::try_from(stages.len()).ok()?);
            stages.push(Stage { machine, seed, drawn: u64::from_le_bytes(*drawn) });
            bytes = rest;
        }
        Some(Self(stages))
    }
}

impl Machine {
    /// A chain does not care whether peers use datagrams; a delay stage must not merge them.
    fn input(&mut self, fed: &Fed, host: &mut HostContext<'_, '_>) {
        let event = match fed {
            Fed::Open(peer, datagrams) => {
                if let (Self::DelayStage(delay_stage), true) = (&mut *self, *datagrams) {
                    delay_stage.speaks_in_datagrams(*peer);
                }
                Event::Open(*peer)
            }
            Fed::Message(peer, payload) => Event::Message(*peer, payload),
            Fed::Close(peer) => Event::Close(*peer),
            Fed::Timer(token) => Event::Timer(*token),
            Fed::Task(token) => Event::Task(*token),
        };
        match self {
            Self::Chain(chain) => chain.input(event, host),
            Self::DelayStage(delay_stage) => delay_stage.input(event, host),
            Self::Hall(_) => unreachable!("a hall is the only stage of its cell"),
        }
    }
}

/// A stage's seed, as the sandbox derives it.
fn of_stage(seed: Seed, at: u8) -> Seed {
    if at == 0 {
        return seed;
    }
    let mut hasher = blake3::Hasher::new_keyed(&seed.0);
    hasher.update(b"marram stage seed 1").update(&[at]);
    Seed(*hasher.finalize().as_bytes())
}

/// The next bytes of a stage's generator, as the sandbox draws them.
pub(super) fn random(seed: Seed, drawn: &mut u64, buffer: &mut [u8]) {
    let mut hasher = blake3::Hasher::new_keyed(&seed.0);
    hasher.update(b"marram cell generator 1");
    let mut stream = hasher.finalize_xof();
    stream.set_position(*drawn);
    stream.fill(buffer);
    *drawn += buffer.len() as u64;
}

/// `None` is a close.
fn output(port: Port, payload: Option<Bytes>) -> CellOutput {
    match payload {
        Some(payload) => CellOutput::Message { port, payload },
        None => CellOutput::Close { port },
    }
}

/// The functions that a machine may call, with the results of one run.
struct HostContext<'a, 'r> {
    at: usize,
    now_ns: i64,
    /// The generator: its seed, and the number of bytes drawn.
    stage: (Seed, &'a mut u64),
    /// The edge's cache.
    reader: &'a mut Reader<'r>,
    ran: &'a mut Ran,
    /// The task that runs.
    task: Option<u64>,
    /// In order; `None` is a close.
    sent: Vec<(Peer, Option<Bytes>)>,
    /// Pauses and resumes. Machines decide on these after everything that they send.
    flow: Vec<CellOutput>,
}

impl HostContext<'_, '_> {
    /// The stage's number as the session writes it.
    fn number(&self) -> u8 {
        u8::try_from(self.at).expect("a cell has few stages")
    }
}

impl Host for HostContext<'_, '_> {
    fn now(&mut self) -> i64 {
        self.ran.clock_read = true;
        self.now_ns
    }

    fn random(&mut self, buffer: &mut [u8]) {
        let (seed, drawn) = &mut self.stage;
        random(*seed, drawn, buffer);
        // In some seeds a stage that draws also reads from the cache.
        self.reader.mix(buffer.first().copied().unwrap_or(0), self.ran, buffer);
    }

    fn send(&mut self, to: Peer, payload: &[u8]) {
        self.sent.push((to, Some(Bytes::copy_from_slice(payload))));
    }

    fn close(&mut self, to: Peer) {
        self.sent.push((to, None));
    }

    fn set_timer(&mut self, delay_ns: i64, token: u64) {
        self.ran.clock_read = true;
        let stage = self.number();
        self.ran.timers.push(TimerChange::Set { stage, token, delay_ns });
    }

    fn cancel_timer(&mut self, token: u64) {
        let stage = self.number();
        self.ran.timers.push(TimerChange::Cancel { stage, token });
    }

    fn spawn(&mut self, token: u64) {
        let stage = self.number();
        self.ran.tasks.push(TaskChange::Spawn { stage, token });
    }

    fn lock(&mut self, id: u64, token: u64) {
        let stage = self.number();
        self.ran.tasks.push(TaskChange::Lock { stage, id, token });
    }

    fn unlock(&mut self, id: u64) {
        let stage = self.number();
        let token = self.task.expect("only tasks of the chain give locks back");
        self.ran.tasks.push(TaskChange::Unlock { stage, id, token });
    }

    fn pause(&mut self, peer: Peer) {
        let stage = self.number();
        self.flow.push(CellOutput::Pause { stage, port: Port(peer as u32) });
    }

    fn resume(&mut self, peer: Peer) {
        let stage = self.number();
        self.flow.push(CellOutput::Resume { stage, port: Port(peer as u32) });
    }
}
