//! One cell that many sessions share: each client has its own port, and all inputs are handled one after the other.
//!
//! For its owner, each member looks like a session with a cell of its own: the member has its own [`CellId`], asks for one
//! handler at a time, and gets an answer. This state machine maps the members to the one real cell. Nothing is logged: a shared
//! cell is not protected yet (docs/protocol.md, "Chains and shared cells").

use crate::cell::{CellId, CellInput, CellOutput, CellStop, Ran, Run, RunOutcome};
use crate::owner::Now;
use crate::schedule::{Kind, Tasks, Timers};
use crate::{
    bug, trace,
    trace::{TraceContext, TraceRole},
};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};
use marram_wire::id::Port;

/// What a shared cell is in traces.
const SHARED: TraceContext = TraceContext::of(TraceRole::SharedCell);

/// An action for the shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SharedEffect {
    /// Run a handler of the cell.
    Run(Run),
    /// A member's cell is ready.
    Started(CellId),
    /// The answer to a member's run.
    Ran(Ran),
    /// The cell sent this to a member in a handler of another input.
    Deliver(CellId, Vec<CellOutput>),
    /// The cell was stopped: it is gone, and so are the cells of these members.
    Stopped(Vec<CellId>, String),
}

/// A handler's input, and the member that waits for it.
#[derive(Debug)]
struct QueuedHandler {
    /// The member that waits for the answer; none for a timer or a task, or if the member has left.
    member: Option<CellId>,
    input: CellInput,
}

/// A cell that many sessions share.
#[derive(Debug)]
pub struct SharedCell {
    cell: CellId,
    ready: bool,
    members: BTreeMap<CellId, Member>,
    by_port: BTreeMap<Port, CellId>,
    /// Ports that were a member's and can be reused.
    free: BTreeSet<Port>,
    /// The first port number that was never used.
    unused: u32,
    queue: VecDeque<QueuedHandler>,
    running: Option<QueuedHandler>,
    timers: Timers,
    tasks: Tasks,
    /// Ports between the stages of a chain that a stage has paused: they pause every client.
    paused: BTreeSet<(u8, Port)>,
    /// The kind of the last handler: the next one is of another kind, if one waits.
    last: Kind,
    /// Session time minus monotonic time, in nanoseconds.
    clock_offset_ns: i64,
    last_ns: i64,
}

/// A session that uses the cell.
#[derive(Clone, Copy, Debug)]
struct Member {
    port: Port,
    /// Whether the cell has received the port's open input, or it is queued.
    opened: bool,
    /// Whether the cell has received the port's close input, or it is queued.
    closed: bool,
}

impl SharedCell {
    /// A shared cell with this id, which was requested and has not started yet.
    #[must_use]
    pub fn new(now: Now, cell: CellId) -> Self {
        let mono_ns = i64::try_from(now.mono_ns).unwrap_or(i64::MAX);
        Self {
            cell,
            ready: false,
            members: BTreeMap::new(),
            by_port: BTreeMap::new(),
            free: BTreeSet::new(),
            unused: 0,
            queue: VecDeque::new(),
            running: None,
            timers: Timers::default(),
            tasks: Tasks::default(),
            paused: BTreeSet::new(),
            last: Kind::Message,
            clock_offset_ns: now.unix_ns.saturating_sub(mono_ns),
            last_ns: 0,
        }
    }

    /// The id of the real cell.
    #[must_use]
    pub fn cell(&self) -> CellId {
        self.cell
    }

    /// Number of sessions that share it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether no session shares it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A session joins; `member` is its id for the cell. It gets [`SharedEffect::Started`] when the cell is ready.
    pub fn join(&mut self, member: CellId, out: &mut Vec<SharedEffect>) {
        let port = self.free_port();
        self.by_port.insert(port, member);
        self.members.insert(member, Member { port, opened: false, closed: false });
        if self.ready {
            self.welcome(member, out);
        }
    }

    /// The cell is ready for a member. The member is paused if all are.
    fn welcome(&self, member: CellId, out: &mut Vec<SharedEffect>) {
        out.push(SharedEffect::Started(member));
        let pauses = self.paused.iter().map(|(stage, port)| CellOutput::Pause { stage: *stage, port: *port });
        if !self.paused.is_empty() {
            out.push(SharedEffect::Deliver(member, pauses.collect()));
        }
    }

    /// The lowest free number, since a cell may keep a table by port. The server's number is never used.
    fn free_port(&mut self) -> Port {
        self.free.pop_first().unwrap_or_else(|| {
            if Port(self.unused) == Port::SERVER {
                self.unused += 1;
            }
            self.unused += 1;
            Port(self.unused - 1)
        })
    }

    /// The cell has started.
    pub fn started(&mut self, now: Now, out: &mut Vec<SharedEffect>) {
        self.ready = true;
        self.members.keys().for_each(|member| self.welcome(*member, out));
        self.pump(now, out);
    }

    /// A member's owner runs a handler.
    pub fn run(&mut self, now: Now, run: Run, out: &mut Vec<SharedEffect>) {
        let Some(entry) = self.members.get_mut(&run.cell) else {
            return trace!(SHARED, "ignores an input of member {}, which has left", run.cell.0);
        };
        entry.opened |= matches!(run.input, CellInput::Open { .. });
        entry.closed |= matches!(run.input, CellInput::Close { .. });
        let input = at_port(run.input, entry.port);
        self.queue.push_back(QueuedHandler { member: Some(run.cell), input });
        self.pump(now, out);
    }

    /// A member's session has ended: the cell receives that the client is gone. Its port is free again after that.
    pub fn leave(&mut self, now: Now, member: CellId, out: &mut Vec<SharedEffect>) {
        let Some(Member { port, opened, closed }) = self.members.remove(&member) else {
            return trace!(SHARED, "ignores that member {} left again", member.0);
        };
        self.by_port.remove(&port);
        // Its queued inputs are handled, but their answers are dropped.
        let handlers = self.queue.iter_mut().chain(&mut self.running);
        handlers.filter(|handler| handler.member == Some(member)).for_each(|handler| handler.member = None);
        if !opened {
            self.free.insert(port);
            return;
        }
        if !closed {
            self.queue.push_back(QueuedHandler { member: None, input: CellInput::Close { port } });
        }
        // Until the cell has handled this input it may use the port.
        self.queue.push_back(QueuedHandler { member: None, input: CellInput::Gone { port } });
        self.pump(now, out);
    }

    /// The answer to [`SharedEffect::Run`].
    pub fn ran(&mut self, now: Now, ran: Ran, out: &mut Vec<SharedEffect>) {
        let Some(handler) = self.running.take() else {
            bug!("a shared cell's handler finishes once", ran.cell);
            return;
        };
        if let RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)) = ran.outcome {
            let members = self.members.keys().copied().collect();
            return out.push(SharedEffect::Stopped(members, reason));
        }
        if let CellInput::Gone { port } = handler.input {
            self.free.insert(port);
        }
        let mut fit = true;
        for change in &ran.timers {
            fit &= self.timers.change(self.last_ns, *change);
        }
        let changed = self.tasks.change(&ran.tasks);
        let changed = if fit { changed } else { Err("the cell has more timers than the limit".into()) };
        if let Err(reason) = changed {
            let members = self.members.keys().copied().collect();
            return out.push(SharedEffect::Stopped(members, reason));
        }
        self.distribute(handler.member, ran, out);
        self.pump(now, out);
    }

    /// Distributes outputs to the members by port. The member that ran the input gets its part as the answer.
    fn distribute(&mut self, member: Option<CellId>, ran: Ran, out: &mut Vec<SharedEffect>) {
        let mut answer = Vec::new();
        let mut others: Vec<(CellId, Vec<CellOutput>)> = Vec::new();
        for output in ran.outputs {
            if self.concerns_all(&output) {
                others.extend(self.members.keys().map(|member| (*member, alloc::vec![output.clone()])));
                continue;
            }
            let port = match &output {
                // Such a cell may not.
                CellOutput::Connect { .. } => continue,
                CellOutput::Message { port, .. } | CellOutput::Close { port } => port,
                CellOutput::Pause { port, .. } | CellOutput::Resume { port, .. } => port,
            };
            let Some(to) = self.by_port.get(port).copied() else {
                trace!(SHARED, "drops an output to port {}: its member has left", port.0);
                continue;
            };
            let output = to_client(output);
            if Some(to) == member {
                answer.push(output);
            } else if let Some((_, outputs)) = others.last_mut().filter(|(last, _)| *last == to) {
                outputs.push(output);
            } else {
                others.push((to, alloc::vec![output]));
            }
        }
        if let Some(cell) = member {
            out.push(SharedEffect::Ran(Ran {
                cell,
                outputs: answer,
                timers: Vec::new(),
                tasks: Vec::new(),
                ..ran
            }));
        }
        out.extend(others.into_iter().map(|(to, outputs)| SharedEffect::Deliver(to, outputs)));
    }

    /// Whether the output pauses or resumes a port between stages, and with it every client. Stored for members that join
    /// later.
    fn concerns_all(&mut self, output: &CellOutput) -> bool {
        let inner = |stage: u8, port: Port| stage > 0 || port == Port::SERVER;
        match *output {
            CellOutput::Pause { stage, port } if inner(stage, port) => {
                self.paused.insert((stage, port));
                true
            }
            CellOutput::Resume { stage, port } if inner(stage, port) => {
                self.paused.remove(&(stage, port));
                true
            }
            _ => false,
        }
    }

    /// Handles timeouts.
    pub fn tick(&mut self, now: Now, out: &mut Vec<SharedEffect>) {
        self.pump(now, out);
    }

    /// When the next timer is due, on the monotonic clock.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        if !self.ready || self.running.is_some() {
            return None;
        }
        let due_ns = self.timers.due_ns()?.saturating_sub(self.clock_offset_ns);
        Some(u64::try_from(due_ns).unwrap_or(0))
    }

    /// Members in the order in which they asked; timers first, then tasks, but no kind twice in a row while another waits.
    fn pump(&mut self, now: Now, out: &mut Vec<SharedEffect>) {
        if !self.ready || self.running.is_some() {
            return;
        }
        let mono_ns = i64::try_from(now.mono_ns).unwrap_or(i64::MAX);
        let now_ns = mono_ns.saturating_add(self.clock_offset_ns).max(self.last_ns);
        let own = |input| QueuedHandler { member: None, input };
        let found = self.last.others_first().into_iter().find_map(|kind| {
            let handler = match kind {
                Kind::Timer => {
                    self.timers.due_ns().filter(|due_ns| *due_ns <= now_ns)?;
                    self.timers.fire().map(own)
                }
                Kind::Task => self.tasks.next().map(own),
                Kind::Message => self.queue.pop_front(),
            };
            handler.map(|handler| (kind, handler))
        });
        let Some((kind, handler)) = found else { return };
        self.last = kind;
        self.last_ns = now_ns;
        out.push(SharedEffect::Run(Run {
            cell: self.cell,
            input: handler.input.clone(),
            now_ns,
            logged: None,
        }));
        self.running = Some(handler);
    }
}

/// A member knows only its client port; the cell has another number for it.
fn at_port(input: CellInput, port: Port) -> CellInput {
    match input {
        CellInput::Open { kind, peer, .. } => CellInput::Open { port, kind, peer },
        CellInput::Message { payload, .. } => CellInput::Message { port, payload },
        CellInput::Close { .. } => CellInput::Close { port },
        other @ (CellInput::Gone { .. } | CellInput::Timer { .. } | CellInput::Task { .. }) => other,
    }
}

fn to_client(output: CellOutput) -> CellOutput {
    match output {
        CellOutput::Message { payload, .. } => CellOutput::Message { port: Port::CLIENT, payload },
        CellOutput::Close { .. } => CellOutput::Close { port: Port::CLIENT },
        CellOutput::Pause { stage, .. } => CellOutput::Pause { stage, port: Port::CLIENT },
        CellOutput::Resume { stage, .. } => CellOutput::Resume { stage, port: Port::CLIENT },
        connect @ CellOutput::Connect { .. } => connect,
    }
}
