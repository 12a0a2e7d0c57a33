//! What follows from the log besides the cell's memory: its timers, tasks and pauses. A checkpoint's header has all of
//! it.

use super::{
    about::About,
    end_state::{EndState, Message},
    ends::Ends,
};
use crate::{
    cell::{CellInput, CellOutput, Ran, Seed},
    invariant::BrokenInvariant,
    owner::{pauses::Pauses, sides::Chore},
    schedule::{TaskCounts, Tasks, Timers},
    trace,
    trace::TraceContext,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{header::Header, id::Port, limits::CONNECTIONS_MAX, log::Event};

/// The part of the cell's state that the owner has. It changes only by what the log consumes, so that every replay of a
/// log leads to the same state.
#[derive(Debug)]
pub(super) struct CellState {
    /// Used if the session starts here; then the log's first entry has it, and a replay takes it from there.
    pub(super) seed: Seed,
    /// Whether the cell's ports are open: the session's first entry is consumed, or runs now.
    pub(super) is_opened: bool,
    timers: Timers,
    tasks: Tasks,
    pauses: Pauses,
}

impl CellState {
    /// Of a session that has not begun.
    pub(super) fn new(seed: Seed) -> Self {
        let (timers, tasks, pauses) = (Timers::default(), Tasks::default(), Pauses::default());
        Self { seed, is_opened: false, timers, tasks, pauses }
    }

    /// As at the start of the session, for a replay from there or the header of a checkpoint.
    pub(super) fn reset(&mut self) {
        self.timers = Timers::default();
        self.tasks = Tasks::default();
        self.pauses = Pauses::default();
    }

    /// As when the checkpoint was taken.
    pub(super) fn restore(&mut self, header: &Header) {
        self.timers = Timers::restore(header.timers_set, &header.timers);
        self.tasks = Tasks::restore(&header.tasks, &header.locks);
        self.pauses = Pauses::restore(&header.paused);
    }

    pub(super) fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    pub(super) fn timers(&self) -> &Timers {
        &self.timers
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(super) fn counts(&self) -> TaskCounts {
        self.tasks.counts()
    }

    /// Fires the timer with the earliest due time, if that is due by `now_ns`, in session time.
    pub(super) fn fire(&mut self, now_ns: i64) -> Option<CellInput> {
        self.timers.due_ns().filter(|due_ns| *due_ns <= now_ns)?;
        self.timers.fire()
    }

    pub(super) fn next_task(&mut self) -> Option<CellInput> {
        self.tasks.next()
    }

    /// The handlers that an entry of the log runs, in reverse order; none if what it consumes does not exist, or its port does not.
    pub(super) fn inputs_of(&mut self, event: Event, ends: &mut Ends) -> Option<Vec<CellInput>> {
        Some(match event {
            Event::Message(port) if ends.ports.is_some() => {
                let message = ends.take_taped(port)?;
                alloc::vec![input_of(port, message)]
            }
            Event::Message(port) => {
                let index = ends.index(port)?;
                let message = ends[index].take_input()?;
                alloc::vec![input_of(port, message)]
            }
            Event::Timer => alloc::vec![self.timers.fire()?],
            Event::Task => alloc::vec![self.tasks.next()?],
            Event::Start { peers, .. } => ends.opens(&peers),
            Event::Port(event) => ends.replay_port_event(&event)?,
        })
    }

    /// Applies what a handler did; an error if it did something forbidden.
    pub(super) fn apply(
        &mut self,
        ends: &mut Ends,
        context: TraceContext,
        now_ns: i64,
        ran: &Ran,
    ) -> Result<(), String> {
        let mut fit = true;
        for change in &ran.timers {
            fit &= self.timers.change(now_ns, *change);
        }
        let mut may_connect = true;
        for made in &ran.outputs {
            let (port, close, payload) = match made {
                CellOutput::Message { port, payload } => (*port, false, payload.clone()),
                CellOutput::Close { port } => (*port, true, Bytes::new()),
                CellOutput::Pause { stage, port } => {
                    let is_port = ends.index(*port).is_some();
                    if self.pauses.pause(*stage, *port, is_port) {
                        ends.all_changed(Chore::Grant);
                        trace!(context, "stage {stage} pauses port {}", port.0);
                    }
                    continue;
                }
                CellOutput::Connect { port, name } => {
                    may_connect &= ends.connect(*port, name);
                    continue;
                }
                CellOutput::Resume { stage, port } => {
                    if self.pauses.resume(*stage, *port) {
                        ends.all_changed(Chore::Grant);
                        trace!(context, "stage {stage} resumes port {}", port.0);
                    }
                    continue;
                }
            };
            let index = ends.index(port);
            if !index.is_some_and(|index| ends[index].produce(close, payload)) {
                trace!(context, "drops an output to port {}, which is closed or absent", port.0);
            }
        }
        if !may_connect {
            return Err(format!(
                "the cell connects to more than {CONNECTIONS_MAX} servers at a time, or is no shared cell with a backup"
            ));
        }
        let changed = self.tasks.change(&ran.tasks);
        if fit { changed } else { Err("the cell has more timers than the limit".to_string()) }
    }

    /// All handlers of an entry have run, and it is logged if entries are logged. Before that no output may be sent in any case: an
    /// owner that recovers from a log without the entry would not produce it. Returns how many pauses it ended.
    ///
    /// A shared cell never is at rest by itself: inputs of other sessions can make it send to this one or resume its
    /// port.
    pub(super) fn end_entry(&mut self, ends: &mut Ends, about: &About) -> u64 {
        let is_shared = about.policy.shared;
        if let Some(port) = ends.leaving() {
            self.pauses.forget(port);
        }
        if !is_shared {
            self.close_if_spent(ends);
        }
        self.resume_if_stuck(ends, is_shared, about.context())
    }

    /// A cell that can never run again has no more outputs: its ports are closed. Depends on the log alone, so a replay
    /// does the same.
    fn close_if_spent(&self, ends: &mut Ends) {
        let has_nothing_due = self.timers.is_empty() && self.tasks.is_quiet();
        if has_nothing_due && ends.iter().all(|side| side.input_closed) {
            for side in ends.iter_mut() {
                side.produce(true, Bytes::new());
            }
        }
    }

    /// Ends all pauses if nothing else can end them: there is no timer, no runnable task, and every open port is
    /// paused. Depends on the log alone, so a replay does the same.
    fn resume_if_stuck(&mut self, ends: &Ends, is_shared: bool, context: TraceContext) -> u64 {
        if is_shared || self.pauses.is_empty() {
            return 0;
        }
        let clients = ends.paused_clients();
        let can_run = |side: &EndState| !side.input_closed && !self.pauses.stops(side.port, clients);
        if !self.timers.is_empty() || !self.tasks.is_quiet() || ends.iter().any(can_run) {
            return 0;
        }
        trace!(context, "ends all pauses: nothing else can end them");
        self.pauses.take() as u64
    }

    /// The reason why a session ended in order.
    pub(super) fn reason_of_end(&self) -> String {
        let left = self.tasks.left().map(|left| format!("; {left}")).unwrap_or_default();
        format!("both sides are done{left}")
    }

    /// I37 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        self.timers.invariants()?;
        self.tasks.invariants()
    }
}

/// The cell's input for a message.
pub(super) fn input_of(port: Port, message: Message) -> CellInput {
    if message.close {
        CellInput::Close { port }
    } else {
        CellInput::Message { port, payload: message.payload }
    }
}
