//! The cell of the halls: it numbers what happens, tells it to all whose ports are open, and falls when it is told to.

use bytes::Bytes;
use marram_session::cell::{CellInput, CellOutput, CellStop, Ran, Run, RunOutcome, TaskChange, TimerChange};
use marram_wire::{id::Port, limits::CONNECTIONS_MAX};
use std::collections::BTreeSet;

/// What "work" costs: a checkpoint is due behind it.
const WORK_NS: u64 = 2_000;
/// More outputs than a handler may have.
const MANY: usize = 70_000;
/// The port of the third client.
const THIRD: Port = Port(3);

/// What a message has the cell do, if it is `pause STAGE PORT` or `resume STAGE PORT`.
fn flow(line: &str) -> Option<CellOutput> {
    let words: Vec<_> = line.split(' ').collect();
    let [what @ ("pause" | "resume"), stage, port] = words[..] else { return None };
    let (stage, port) = (stage.parse().ok()?, Port(port.parse().ok()?));
    Some(if what == "pause" { CellOutput::Pause { stage, port } } else { CellOutput::Resume { stage, port } })
}

/// The state of the cell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Teller {
    open: BTreeSet<Port>,
    told: u64,
    /// How often it has connected to a server.
    connects: u32,
    /// Whether it falls when the third client joins, or a server, and the ports at whose end it falls.
    falls_at_open: bool,
    falls_at_close: BTreeSet<Port>,
    /// Whether it has fallen: then it runs no more.
    is_gone: bool,
}

impl Teller {
    pub(crate) fn run(&mut self, run: &Run) -> Ran {
        assert!(!self.is_gone, "a cell that has fallen runs no more: {:?}", run.input);
        let mut ran = Ran {
            cell: run.cell,
            outcome: RunOutcome::Idle,
            clock_read: false,
            outputs: Vec::new(),
            timers: Vec::new(),
            tasks: Vec::new(),
            reads: Vec::new(),
            cost_ns: 1,
        };
        let what = match &run.input {
            CellInput::Open { port, kind, .. }
                if !(self.falls_at_open && (*port == THIRD || !kind.is_client())) =>
            {
                assert_eq!(kind.is_client(), !port.is_from_connect());
                self.open.insert(*port);
                Some(format!("{} joins", port.0))
            }
            CellInput::Message { port, payload } => {
                self.hears(*port, &String::from_utf8_lossy(payload), &mut ran)
            }
            CellInput::Close { port } if !self.falls_at_close.contains(port) => {
                ran.outputs.push(CellOutput::Close { port: *port });
                self.open.remove(port);
                Some(format!("{} closes", port.0))
            }
            CellInput::Gone { port } => {
                self.open.remove(port);
                self.falls_at_close.remove(port);
                Some(format!("{} is gone", port.0))
            }
            CellInput::Timer { token: 1, .. } => Some("it wakes".into()),
            _ => None,
        };
        let Some(what) = what else {
            self.is_gone = true;
            let outcome = RunOutcome::Stopped(CellStop::Trap("it falls".into()));
            return Ran { outcome, outputs: Vec::new(), timers: Vec::new(), tasks: Vec::new(), ..ran };
        };
        self.told += 1;
        if let CellInput::Message { port, payload } = &run.input
            && **payload == *b"whisper"
        {
            ran.outputs.push(CellOutput::Message { port: *port, payload: payload.clone() });
            return ran;
        }
        let line = Bytes::from(format!("{} {what}", self.told));
        let told = self.open.iter().map(|port| CellOutput::Message { port: *port, payload: line.clone() });
        ran.outputs.extend(told);
        ran
    }

    fn connects_to(&mut self, name: &str, often: usize, ran: &mut Ran) {
        for _ in 0..often {
            let port = Port(Port::FIRST_CONNECTED.0 + self.connects);
            self.connects += 1;
            ran.outputs.push(CellOutput::Connect { port, name: name.into() });
        }
    }

    /// What it tells of a message; none if it falls.
    fn hears(&mut self, port: Port, text: &str, ran: &mut Ran) -> Option<String> {
        let stage = 0;
        // Of a long message it tells the first line.
        let text = text.lines().next().unwrap_or_default();
        ran.outputs.extend(flow(text));
        match text {
            "fall" => return None,
            "let the third fall" => self.falls_at_open = true,
            "let them come" => self.falls_at_open = false,
            "fall when I close" => _ = self.falls_at_close.insert(port),
            "fall later" => ran.timers.push(TimerChange::Set { stage, token: 0, delay_ns: 5 }),
            "connect" => self.connects_to("store", 1, ran),
            "cancel" | "connect and cancel" => {
                if text != "cancel" {
                    self.connects_to("store", 1, ran);
                }
                let port = Port(Port::FIRST_CONNECTED.0 + self.connects - 1);
                ran.outputs.push(CellOutput::Close { port });
            }
            "connect often" => self.connects_to("store", CONNECTIONS_MAX, ran),
            "connect and say too much" => {
                self.connects_to("store", 1, ran);
                let said = CellOutput::Message { port, payload: Bytes::from_static(b"much") };
                ran.outputs.extend(vec![said; MANY]);
            }
            "wake" => ran.timers.push(TimerChange::Set { stage, token: 1, delay_ns: 5 }),
            "fall as a task" => ran.tasks.push(TaskChange::Spawn { stage, token: 0 }),
            "work" => ran.cost_ns = WORK_NS,
            "say too much" => {
                let said = CellOutput::Message { port, payload: Bytes::from_static(b"much") };
                ran.outputs = vec![said; MANY];
            }
            _ => {}
        }
        ran.clock_read = !ran.timers.is_empty();
        Some(format!("{}: {text}", port.0))
    }
}
