//! The shell of a site's recorder: its wires and its clock. A lying recorder changes what it returns.
//!
//! Two of ten recorders have so little memory, or room for so few sessions, that they drop some: an
//! owner must not count on what it has sent. A crashed recorder has lost everything; the disk of a
//! real one is not simulated.

use super::{Caller, Direction, Event, World, lies};
use crate::{
    plan::{MS, Plan, S},
    random::Random,
    watch::Rare,
};
use marram_session::{
    dialer,
    recorder::{Recorder, RecorderConfig, RecorderInput, RecorderOutput},
};
use marram_wire::{
    id::HostId,
    seal::{DomainSecret, KeeperKey},
};
use std::collections::VecDeque;

/// The recorder's process.
#[derive(Debug)]
pub(crate) struct RecorderNode {
    config: RecorderConfig,
    /// Different for each process.
    pub(crate) host: HostId,
    machine: Option<Recorder>,
    /// A freeze ends by itself; a crash in between makes its end outdated.
    pub(crate) life: u32,
    frozen: bool,
    inbox: VecDeque<Event>,
    wake_ns: u64,
    origin_ns: u64,
    /// Whether it lies in this seed.
    lies: bool,
}

impl RecorderNode {
    pub(crate) fn new(plan: &Plan, chance: &mut Random) -> Self {
        let (small, host) = (chance.percent(20), super::host(chance));
        let config = RecorderConfig {
            name: "recorder".into(),
            key: KeeperKey::derive(&DomainSecret::from_material(b"simulated domain")),
            dialer: dialer::DialerConfig {
                edges: u16::try_from(plan.shards.len()).expect("a few edges"),
                heartbeat_interval_ns: 100 * MS,
                heartbeat_timeout_ns: 400 * MS,
                backoff_min_ns: 10 * MS,
                backoff_max_ns: 500 * MS,
            },
            linger_ns: 20 * S,
            memory: if small { 20_000 } else { 256 << 20 },
            sessions: if small { 2 } else { 1_000 },
            store: false,
        };
        let lies = plan.recorder.as_ref().is_some_and(|recorder| recorder.lies);
        let (inbox, origin_ns) = (VecDeque::new(), chance.below(1_000 * S));
        Self {
            config,
            host,
            machine: None,
            life: 0,
            frozen: false,
            inbox,
            wake_ns: u64::MAX,
            origin_ns,
            lies,
        }
    }

    pub(crate) fn machine(&self) -> Option<&Recorder> {
        self.machine.as_ref()
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
}

impl World {
    /// Starts the process, with nothing kept.
    pub(crate) fn start_recorder(&mut self) {
        let (entropy, now_ns) = (self.chance.bytes(), self.queue.now_ns());
        let Some(node) = &mut self.recorder else { return };
        node.machine = Some(Recorder::new(node.config.clone(), now_ns + node.origin_ns, entropy));
        self.give_recorder(RecorderInput::Wake);
    }

    /// The process crashes; what it stored is lost.
    pub(crate) fn crash_recorder(&mut self, for_ns: u64) {
        let host = super::host(&mut self.chance);
        let Some(node) = &mut self.recorder else { return };
        node.machine = None;
        node.life += 1;
        node.frozen = false;
        node.inbox.clear();
        node.host = host;
        let life = node.life;
        for wire in 0..self.wires.len() {
            if self.wires[wire].caller == Caller::Recorder && self.wires[wire].is_open(Direction::Down) {
                self.wires[wire].close(Direction::Down);
                self.break_wire(wire, Direction::Up, 5 * MS);
            }
        }
        self.queue.after(for_ns, Event::StartRecorder(life));
    }

    /// Stops the process for a while.
    pub(crate) fn freeze_recorder(&mut self, for_ns: u64) {
        let Some(node) = &mut self.recorder else { return };
        node.frozen = true;
        let life = node.life;
        self.queue.after(for_ns, Event::ThawRecorder(life));
    }

    pub(crate) fn thaw_recorder(&mut self) {
        let Some(node) = &mut self.recorder else { return };
        node.frozen = false;
        for event in std::mem::take(&mut node.inbox) {
            self.dispatch(event);
        }
    }

    /// One step of the machine, with lies put into what it sends.
    pub(crate) fn give_recorder(&mut self, input: RecorderInput) {
        let now_ns = self.queue.now_ns();
        let Some(node) = &mut self.recorder else { return };
        let Some(machine) = &mut node.machine else { return };
        let mut out = Vec::new();
        machine.step(now_ns + node.origin_ns, input, &mut out);
        self.trace.collect(now_ns, || "recorder".into());
        if node.lies {
            let lies = lies::lie(&mut self.chance, &mut out);
            self.watch.counts.add(Rare::RecorderLied, lies);
        }
        for out in out {
            self.recorder_out(out);
        }
    }

    /// Carries one output out.
    fn recorder_out(&mut self, out: RecorderOutput) {
        let index = |wire: u64| usize::try_from(wire).expect("wires are named by their place");
        match out {
            RecorderOutput::Dial { target } => self.dial(Caller::Recorder, target),
            RecorderOutput::CloseWire { wire, .. } => self.close_wire(index(wire.0), Direction::Up),
            RecorderOutput::Send { wire, frame } => {
                self.watch.sent_by_keeper(index(wire.0), &frame);
                self.send(index(wire.0), Direction::Up, &frame);
            }
            RecorderOutput::Store { .. } => {}
            RecorderOutput::WakeAt { now_ns } => {
                let Some(node) = &mut self.recorder else { return };
                node.wake_ns = now_ns;
                let (life, at_ns) = (node.life, now_ns.saturating_sub(node.origin_ns));
                self.queue.at(at_ns, Event::RecorderWake(life, now_ns));
            }
            RecorderOutput::Report(report) => {
                self.trace.say(self.queue.now_ns(), || format!("recorder reports {report:?}"));
            }
        }
    }
}
