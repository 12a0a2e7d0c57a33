//! The host's side of a whole cell: its stages, which of them runs, and the messages between them.
//!
//! What a stage sends to its server is the next stage's input from its client, and vice versa. Only the first stage reaches the
//! client, and only the last stage reaches the server. Two stages are connected only by what passes through this module. All
//! stages are in one store, so that a message goes from one to the next without leaving and entering the engine. But an import
//! acts only on the stage that runs, and on the memory of that stage.

use super::cache::{Reading, Window};
use super::{Host, Ports, guest_error, ports::TooManyPorts};
use crate::limits::{
    BETWEEN_STAGES_BYTES_MAX, BUFFER_BYTES_KEPT, BUFFERS_KEPT, HANDLERS_PER_INPUT_MAX, MESSAGE_BYTES_MAX,
    OUTPUT_BYTES_PER_HANDLER_MAX, OUTPUTS_PER_HANDLER_MAX, TASK_CHANGES_PER_HANDLER_MAX,
    TIMER_CHANGES_PER_HANDLER_MAX, WAITING_KEPT,
};
use crate::watch::Watch;
use bytes::Bytes;
use marram_session::cell::{
    CellId, CellInput, CellOutput, CellStop, PortKind, Ran, RunOutcome, TaskChange, TimerChange,
};
use marram_wire::{id::Port, limits::charge, log::Read, peer::Peer};
use std::{collections::VecDeque, sync::Arc};
use wasmtime::{ResourceLimiter, UpdateDeadline};

/// The host's side of a cell.
pub(crate) struct Hosts {
    /// One per stage, the one next to the client first.
    list: Vec<Host>,
    /// The stage that runs, or that ran last. Imports act on it.
    at: usize,
    /// Whether a handler is in progress.
    running: bool,
    /// Whether the slice had ended when the last handler ended.
    due: bool,
    failed: Option<Blamed>,
    /// Whether there is a server. If so, the stages are connected when its port opens, else when the client's port opens.
    server: bool,
    /// The kinds of the client's and the server's port.
    kinds: [PortKind; 2],
    /// What is known of the client; every stage can ask for it.
    client: Option<Arc<Peer>>,
    /// What is known of the peer behind the port that is about to be opened.
    opening: Option<Arc<Peer>>,
    /// Inputs that wait for their stages, first in, first out.
    waiting: VecDeque<(usize, Waiting)>,
    /// Memory charged for the waiting inputs, in bytes.
    waiting_charge: u64,
    /// The message for which the running stage is allocating memory.
    arriving: Payload,
    /// Used buffers, for later messages between stages.
    buffers: Vec<Vec<u8>>,
    /// The effects of the present input.
    made: Made,
    /// What the present input has read from the cache.
    pub(super) reading: Reading,
    watch: Watch,
}

/// The stage that makes the cell end, and the reason.
pub(crate) type Blamed = (usize, CellStop);

/// The effects of an input so far.
#[derive(Default)]
struct Made {
    now_ns: i64,
    outputs: Vec<CellOutput>,
    output_bytes: usize,
    timers: Vec<TimerChange>,
    tasks: Vec<TaskChange>,
    clock_read: bool,
    handlers: u32,
}

/// An input that waits for its stage.
enum Waiting {
    Message { port: Port, payload: Payload },
    Open { port: Port, kind: PortKind, peer: Option<Arc<Peer>> },
    Close { port: Port },
    Gone { port: Port },
    Timer { token: u64 },
    Task { token: u64 },
}

/// The bytes of a message to a stage.
enum Payload {
    /// As they came from outside.
    Outside(Bytes),
    /// A copy of what the adjacent stage sent.
    Between(Vec<u8>),
}

/// What a stage must do next; the host holds the bytes of a message. No field is narrower than a word: a processor
/// stalls when it reads a word that was just written in parts.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Message { port: u32, len: u32 },
    Open { port: u32, kind: u32 },
    Close { port: u32 },
    Gone { port: u32 },
    Timer { token: u64 },
    Task { token: u64 },
}

/// What to do next in a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A message waits for a stage.
    Message,
    /// An input other than a message waits for a stage.
    Other,
    /// An input waits, but the slice is over.
    Due,
    /// All stages are quiet.
    Nothing,
    /// The cell ends.
    Failed,
}

impl Hosts {
    /// For a cell that will have this many stages, and has none yet.
    pub(crate) fn new(stages: usize, server: bool, watch: Watch) -> Self {
        Self {
            list: Vec::with_capacity(stages),
            at: 0,
            running: false,
            due: false,
            failed: None,
            server,
            kinds: [PortKind::Client, PortKind::Server],
            client: None,
            opening: None,
            waiting: VecDeque::new(),
            waiting_charge: 0,
            arriving: Payload::Between(Vec::new()),
            buffers: Vec::new(),
            made: Made::default(),
            reading: Reading::default(),
            watch,
        }
    }

    /// Adds a stage after the others. Until the next stage is added, the store acts for this one.
    pub(crate) fn add(&mut self, host: Host) {
        self.at = self.list.len();
        self.list.push(host);
    }

    /// The stage that runs, or ran last.
    pub(crate) fn running(&mut self) -> &mut Host {
        &mut self.list[self.at]
    }

    /// The stage that runs, or ran last, for read access.
    pub(crate) fn runs(&self) -> &Host {
        &self.list[self.at]
    }

    /// The number of that stage.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Selects the stage for which the store acts next, between inputs.
    pub(crate) fn act_for(&mut self, at: usize) -> &mut Host {
        self.at = at;
        &mut self.list[at]
    }

    /// Whether a handler has run since the cell was started or restored.
    pub(crate) fn have_run(&self) -> bool {
        self.list.iter().any(|host| host.handled > 0)
    }

    /// One of the stages.
    pub(crate) fn stage(&self, at: usize) -> &Host {
        &self.list[at]
    }

    /// All stages.
    pub(crate) fn stages(&mut self) -> impl Iterator<Item = &mut Host> {
        self.list.iter_mut()
    }
}

/// Processing of inputs.
impl Hosts {
    /// Takes an input from outside and queues it for its stage.
    pub(crate) fn accept(&mut self, input: CellInput, now_ns: i64, logged: Option<Vec<Read>>) {
        self.made.now_ns = now_ns;
        self.reading.begin(logged);
        self.list.iter_mut().for_each(|host| host.spent_ns = 0);
        let last = self.list.len() - 1;
        let at = match &input {
            CellInput::Message { port, .. }
            | CellInput::Open { port, .. }
            | CellInput::Close { port }
            | CellInput::Gone { port } => {
                if *port == Port::SERVER {
                    last
                } else {
                    0
                }
            }
            CellInput::Timer { stage, .. } | CellInput::Task { stage, .. } => usize::from(*stage),
        };
        let unlinked = last > 0 && !self.stages_linked();
        let client = matches!(input, CellInput::Open { kind, .. } if kind.is_client());
        self.note(&input);
        if unlinked && !client {
            self.introduce();
        }
        self.wait(at, Waiting::from(input));
        // If there is a server, its port opens next: no stage gets a message before all of its ports are open.
        if unlinked && client && !self.server {
            self.introduce();
        }
    }

    fn wait(&mut self, at: usize, input: Waiting) {
        self.waiting_charge += input.charge();
        self.waiting.push_back((at, input));
    }

    /// Whether the ports between stages are open: all are, or none.
    fn stages_linked(&self) -> bool {
        let last = self.list.last().expect("there is a stage");
        last.ports.list().iter().any(|(port, _)| *port == Port::CLIENT)
    }

    /// Remembers the kinds of the ports and what is known of the client until the stages are connected. That happens within the
    /// session's first entry.
    fn note(&mut self, input: &CellInput) {
        if let CellInput::Open { kind, peer, .. } = input {
            let [client, server] = &mut self.kinds;
            *(if kind.is_client() { client } else { server }) = *kind;
            if kind.is_client() && self.list.len() > 1 {
                self.client.clone_from(peer);
            }
        }
    }

    /// Opens the ports between stages, beginning at the client's side, before any stage gets a message. The port to an adjacent
    /// stage has the kind of the peer on that side, and every stage gets what is known of the client.
    fn introduce(&mut self) {
        let [client, server] = self.kinds;
        for at in 1..self.list.len() {
            let peer = self.client.clone();
            self.wait(at - 1, Waiting::Open { port: Port::SERVER, kind: server, peer: None });
            self.wait(at, Waiting::Open { port: Port::CLIENT, kind: client, peer });
        }
        self.client = None;
    }

    /// Begins a turn between two handlers.
    pub(crate) fn begin_turn(&mut self) {
        self.due = false;
    }

    /// What to do next.
    pub(crate) fn next(&self) -> Next {
        if self.failed.is_some() {
            return Next::Failed;
        }
        match self.waiting.front() {
            None => Next::Nothing,
            Some(_) if self.due => Next::Due,
            Some((_, Waiting::Message { .. })) => Next::Message,
            Some(_) => Next::Other,
        }
    }

    /// Gives the next waiting input to its stage, which runs from here on. `None` if no input waits, or the cell ends.
    pub(crate) fn hand_over(&mut self) -> Option<Order> {
        let (at, input) = self.waiting.pop_front()?;
        self.waiting_charge -= input.charge();
        self.at = at;
        self.made.handlers += 1;
        if self.made.handlers > HANDLERS_PER_INPUT_MAX {
            return self.fail(CellStop::Kill(format!(
                "one input ran more than {HANDLERS_PER_INPUT_MAX} handlers of its chain"
            )));
        }
        let Some(host) = self.list.get_mut(at) else {
            return self.fail(CellStop::Kill(
                "a timer or task of a stage that the chain does not have is due".into(),
            ));
        };
        if let Some(stop) = host.too_long() {
            return self.fail(stop);
        }
        host.begin(self.made.now_ns);
        let order = match input {
            Waiting::Message { port, payload } => {
                let len = payload.bytes().len();
                if len > MESSAGE_BYTES_MAX {
                    return self.fail(CellStop::Trap(format!(
                        "a message of {len} bytes arrived; the maximum is {MESSAGE_BYTES_MAX}"
                    )));
                }
                self.arriving = payload;
                Order::Message { port: port.0, len: u32::try_from(len).unwrap_or(u32::MAX) }
            }
            Waiting::Open { port, kind, peer } => {
                self.opening = peer;
                Order::Open { port: port.0, kind: kind as u32 }
            }
            Waiting::Close { port } => Order::Close { port: port.0 },
            Waiting::Gone { port } => Order::Gone { port: port.0 },
            Waiting::Timer { token } => Order::Timer { token },
            Waiting::Task { token } => {
                host.task = Some(token);
                Order::Task { token }
            }
        };
        self.running = true;
        Some(order)
    }

    /// The next message for a stage, as [`Self::hand_over`] gives it: stage, port, and length in bytes. `None` if something else
    /// must be done next.
    pub(crate) fn hand_over_message(&mut self) -> Option<(usize, u32, u32)> {
        match (self.next() == Next::Message).then(|| self.hand_over())?? {
            Order::Message { port, len } => Some((self.at, port, len)),
            _ => None,
        }
    }

    /// Whether a handler is in progress.
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// Records that the current handler has ended.
    pub(crate) fn ended(&mut self) {
        self.running = false;
        if self.watch.is_resumed() {
            self.charge();
        }
        self.due = self.watch.is_due();
        self.made.clock_read |= self.list[self.at].clock_read;
        if let Some(why) = self.excess() {
            self.fail::<()>(CellStop::Kill(why));
        }
    }

    /// The slice ended in the middle of a handler: the handler continues in the cell's next turn, unless its time is used up.
    pub(crate) fn preempted(&mut self) -> wasmtime::Result<UpdateDeadline> {
        self.charge();
        match self.list.get(self.at).and_then(Host::too_long).filter(|_| self.running) {
            Some(stop) => {
                self.fail::<()>(stop);
                Err(guest_error("it has had its time"))
            }
            None => Ok(UpdateDeadline::Yield(1)),
        }
    }

    /// Charges the stage that ran last for the time since the clock was last read.
    pub(crate) fn charge(&mut self) {
        let lap_ns = self.watch.lap_ns();
        if let Some(host) = self.list.get_mut(self.at) {
            host.spent_ns += lap_ns;
        }
    }

    /// The time that all stages have used for the present input.
    pub(crate) fn spent_ns(&self) -> u64 {
        self.list.iter().map(|host| host.spent_ns).sum()
    }

    fn fail<T>(&mut self, stop: CellStop) -> Option<T> {
        self.failed = Some((self.at, stop));
        None
    }

    /// Why the cell ends, if the host ends it.
    pub(crate) fn take_failure(&mut self) -> Option<Blamed> {
        self.failed.take()
    }

    /// The effects of the input, when all stages are quiet.
    pub(crate) fn take_made(&mut self, cell: CellId) -> Ran {
        self.made.handlers = 0;
        self.made.output_bytes = 0;
        if self.waiting.capacity() > WAITING_KEPT {
            self.waiting = VecDeque::new();
        }
        Ran {
            cell,
            outcome: RunOutcome::Idle,
            clock_read: std::mem::take(&mut self.made.clock_read),
            outputs: std::mem::take(&mut self.made.outputs),
            timers: std::mem::take(&mut self.made.timers),
            tasks: std::mem::take(&mut self.made.tasks),
            reads: self.take_reads(),
            cost_ns: self.spent_ns(),
        }
    }

    /// What the input has read from the cache.
    pub(crate) fn take_reads(&mut self) -> Vec<Read> {
        self.reading.take()
    }

    /// Where a handler asks for what it reads.
    pub(crate) fn window(&self) -> &Window {
        self.reading.window()
    }

    /// Which limit one input has exceeded, if any: the limits of one handler apply to all handlers of a chain together.
    fn excess(&self) -> Option<String> {
        let why = if self.waiting_charge > BETWEEN_STAGES_BYTES_MAX {
            format!("more than {BETWEEN_STAGES_BYTES_MAX} bytes wait between stages")
        } else if self.made.outputs.len() > OUTPUTS_PER_HANDLER_MAX {
            format!("one input produced more than {OUTPUTS_PER_HANDLER_MAX} outputs of its chain")
        } else if self.made.output_bytes > OUTPUT_BYTES_PER_HANDLER_MAX {
            format!("one input produced more than {OUTPUT_BYTES_PER_HANDLER_MAX} bytes of its chain")
        } else if self.made.timers.len() > TIMER_CHANGES_PER_HANDLER_MAX {
            format!("one input changed more than {TIMER_CHANGES_PER_HANDLER_MAX} timers of its chain")
        } else if self.made.tasks.len() > TASK_CHANGES_PER_HANDLER_MAX {
            format!("one input changed more than {TASK_CHANGES_PER_HANDLER_MAX} tasks and locks of its chain")
        } else {
            return None;
        };
        Some(why)
    }
}

/// Actions of the stage that runs.
impl Hosts {
    /// Sends a message to the adjacent stage behind a port, or out of the cell.
    pub(crate) fn send(&mut self, port: Port, bytes: &[u8]) {
        match self.neighbour(port) {
            Some((neighbour, port)) => {
                let mut buffer = self.buffers.pop().unwrap_or_default();
                buffer.extend_from_slice(bytes);
                self.wait(neighbour, Waiting::Message { port, payload: Payload::Between(buffer) });
            }
            None => {
                self.made.output_bytes += bytes.len();
                let payload = Bytes::copy_from_slice(bytes);
                self.made.outputs.push(CellOutput::Message { port, payload });
            }
        }
    }

    /// Closes a port towards the stage or peer behind it: no more messages follow.
    pub(crate) fn close(&mut self, port: Port) {
        match self.neighbour(port) {
            Some((neighbour, port)) => self.wait(neighbour, Waiting::Close { port }),
            None => self.made.outputs.push(CellOutput::Close { port }),
        }
    }

    /// Whether the cell is no chain.
    pub(crate) fn is_only_stage(&self) -> bool {
        self.list.len() == 1
    }

    /// Connects to a server.
    pub(crate) fn connect(&mut self, port: Port, name: String) {
        self.made.outputs.push(CellOutput::Connect { port, name });
    }

    /// Pauses or resumes a port of the stage that runs. The session does this, also if another stage is behind the port.
    pub(crate) fn change_flow(&mut self, change: CellOutput) {
        self.made.outputs.push(change);
    }

    /// The stage behind a port of the stage that runs, and the port by which that stage knows this one.
    fn neighbour(&self, port: Port) -> Option<(usize, Port)> {
        match port {
            Port::SERVER if self.at + 1 < self.list.len() => Some((self.at + 1, Port::CLIENT)),
            Port::CLIENT if self.at > 0 => Some((self.at - 1, Port::SERVER)),
            _ => None,
        }
    }

    pub(crate) fn change_timer(&mut self, change: TimerChange) {
        self.made.timers.push(change);
    }

    pub(crate) fn change_task(&mut self, change: TaskChange) {
        self.made.tasks.push(change);
    }

    /// Copies the arrived message to the memory that the running stage allocated for it.
    pub(crate) fn put(&mut self, memory: &mut [u8], ptr: u32) -> wasmtime::Result<()> {
        let payload = std::mem::replace(&mut self.arriving, Payload::Between(Vec::new()));
        let bytes = payload.bytes();
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let range = super::range(memory, ptr, len, "marram_alloc")?;
        memory[range].copy_from_slice(bytes);
        if let Payload::Between(mut buffer) = payload
            && buffer.capacity() <= BUFFER_BYTES_KEPT
            && self.buffers.len() < BUFFERS_KEPT
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
        Ok(())
    }

    /// Opens the port that the running stage was ordered to open.
    pub(crate) fn open(&mut self, port: Port) -> Result<(), TooManyPorts> {
        let peer = self.opening.take();
        self.running().ports.open(port, peer)
    }

    /// The ports of the stage that runs.
    pub(crate) fn ports(&mut self) -> &mut Ports {
        &mut self.running().ports
    }
}

/// Memory growth and the quota are those of the stage that runs.
impl ResourceLimiter for Hosts {
    fn memory_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired as u64 <= self.runs().memory_max && maximum.is_none_or(|max| desired <= max))
    }

    /// Growth within the quota must not depend on the machine: if the machine has no memory, the handler ends.
    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(super::Refusal::MachineMemory(error.to_string()).into())
    }

    fn table_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(true)
    }
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Outside(bytes) => bytes,
            Self::Between(bytes) => bytes,
        }
    }
}

impl Waiting {
    /// Memory charged while it waits, in bytes.
    fn charge(&self) -> u64 {
        match self {
            Self::Message { payload, .. } => charge(payload.bytes().len()),
            _ => charge(0),
        }
    }
}

impl From<CellInput> for Waiting {
    fn from(input: CellInput) -> Self {
        match input {
            CellInput::Message { port, payload } => {
                Self::Message { port, payload: Payload::Outside(payload) }
            }
            CellInput::Open { port, kind, peer } => Self::Open { port, kind, peer },
            CellInput::Close { port } => Self::Close { port },
            CellInput::Gone { port } => Self::Gone { port },
            CellInput::Timer { token, .. } => Self::Timer { token },
            CellInput::Task { token, .. } => Self::Task { token },
        }
    }
}
