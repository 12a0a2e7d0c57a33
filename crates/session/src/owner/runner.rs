//! The entry that runs: its handlers, the session's time, and how much the cell did in the current second.

use super::{
    Now, OwnerEffect, OwnerPolicy,
    end_state::Message,
    ends::Ends,
    log::Log,
    rebuild::Rebuild,
    state::{CellState, input_of},
};
use crate::{
    cell::{CellId, CellInput, Run},
    schedule::Kind,
};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    id::Port,
    limits::OUTPUTS_MAX,
    log::{Event, Read},
    seal::LOG_OFFSET_MAX,
};

/// The entry that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) event: Event,
    /// What every handler of the entry observes as the time, in nanoseconds of session time.
    pub(super) now_ns: i64,
    /// What it consumed, for the running digest and for keepers.
    pub(super) message: Option<Message>,
    /// Handlers of this entry that still have to run, in reverse order.
    rest: Vec<CellInput>,
    /// Whether a handler has observed the time: only then it is logged.
    pub(super) clock_read: bool,
    /// What the handlers have read from the cache.
    pub(super) reads: Vec<Read>,
}

impl Running {
    /// An entry that runs nothing.
    pub(super) fn without_handler(event: Event) -> Self {
        let (message, rest, reads) = (None, Vec::new(), Vec::new());
        Self { event, now_ns: 0, message, rest, clock_read: false, reads }
    }
}

/// Counts of the current second.
#[derive(Debug, Default)]
struct Rates {
    second_ns: u64,
    messages: u32,
    log_bytes: u32,
}

impl Rates {
    fn count(&mut self, now: Now, messages: usize, log_bytes: usize) {
        if now.mono_ns.saturating_sub(self.second_ns) >= 1_000_000_000 {
            *self = Self { second_ns: now.mono_ns, ..Self::default() };
        }
        // Counts of one second, only compared with quotas.
        self.messages = self.messages.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        self.log_bytes = self.log_bytes.saturating_add(u32::try_from(log_bytes).unwrap_or(u32::MAX));
    }
}

/// Runs the inputs of a cell that lives, one entry at a time. Outlives phases: a handler that was begun while the owner
/// was running may finish while it is detached, or while the next generation is being opened.
#[derive(Debug)]
pub(super) struct Runner {
    running: Option<Running>,
    /// Of a shared cell that a client's input has stopped.
    pub(super) rebuild: Option<Box<Rebuild>>,
    /// The kind of the last entry: the next input is of another kind, if one waits.
    last: Kind,
    /// Session time minus monotonic time, in nanoseconds; fixed when a log was chosen.
    clock_offset_ns: i64,
    /// The same at the owner before this one, in this machine's monotonic time, as that owner last said.
    carried_offset_ns: Option<i64>,
    /// The same as an end said: the server's, if there is one.
    told_offset_ns: Option<i64>,
    /// The next entry logs the time, whether or not its handlers read it: a keeper that begins here is to know it.
    pub(super) logs_time: bool,
    rates: Rates,
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            running: None,
            rebuild: None,
            last: Kind::Message,
            clock_offset_ns: 0,
            carried_offset_ns: None,
            told_offset_ns: None,
            logs_time: false,
            rates: Rates::default(),
        }
    }
}

impl Runner {
    /// Whether a handler runs, or the cell is rebuilt.
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some() || self.rebuild.is_some()
    }

    /// At the owner that feeds this one, the session time is now this or later: as it says when it hands the session over, and for a
    /// shared cell as it logs. The time continues from there, whatever the clocks of both machines say.
    ///
    /// The ends will say what the time is too ([`Self::tell_clock`]), but theirs is behind by a round trip to them, which would add up
    /// over many moves; and a client's end alone can make it run ahead.
    pub(super) fn carry_clock(&mut self, now: Now, session_ns: i64) {
        self.carried_offset_ns = self.carried_offset_ns.max(Some(session_ns.saturating_sub(mono_ns(now))));
    }

    /// The owner that handed the session over was not the last one: what it said of the time is out of date.
    pub(super) fn forget_carried_clock(&mut self) {
        self.carried_offset_ns = None;
    }

    /// The end at `port` says what the session time is now. The server's counts more than the client's: a client's machine may have slept
    /// meanwhile, or lie.
    pub(super) fn tell_clock(&mut self, now: Now, port: Port, session_ns: i64) {
        if port != Port::CLIENT || self.told_offset_ns.is_none() {
            self.told_offset_ns = Some(session_ns.saturating_sub(mono_ns(now)));
        }
    }

    /// Session time continues from the last logged time `logged_ns`, or from that of the last owner if it is later: as that owner or the ends
    /// have said, and at the session's start as the machine's clock says **\[M\]**.
    pub(super) fn set_clock(&mut self, now: Now, logged_ns: i64) {
        let mono_ns = mono_ns(now);
        let last_ns = self.carried_offset_ns.or(self.told_offset_ns);
        let carried_ns = last_ns.map(|offset_ns| mono_ns.saturating_add(offset_ns));
        let session_ns = logged_ns.max(carried_ns.unwrap_or(now.unix_ns));
        self.clock_offset_ns = session_ns.saturating_sub(mono_ns);
    }

    /// Session time: the edge's monotonic clock plus an offset fixed at recovery; never behind the last logged time.
    pub(super) fn session_ns(&self, now: Now, log: &Log) -> i64 {
        mono_ns(now).saturating_add(self.clock_offset_ns).max(log.last_ns())
    }

    /// When a timer of a running session fires, in monotonic nanoseconds. None while something holds it back that ends
    /// with a frame or an answer, not with time.
    pub(super) fn timer_due_ns(&self, ends: &Ends, log: &Log, state: &CellState) -> Option<u64> {
        if self.is_busy() || log.is_full() || ends.full() != 0 {
            return None;
        }
        let due_ns = state.timers().due_ns()?.saturating_sub(self.clock_offset_ns);
        Some(u64::try_from(due_ns).unwrap_or(0))
    }

    /// Begins the session's first entry, which opens the ports.
    pub(super) fn start(&mut self, now: Now, ends: &Ends, log: &Log, state: &mut CellState) {
        let peers = ends.peers();
        let rest = ends.opens(&peers);
        let event = Event::Start { seed: state.seed.0, peers };
        let now_ns = self.session_ns(now, log);
        state.is_opened = true;
        self.running =
            Some(Running { event, now_ns, message: None, rest, clock_read: true, reads: Vec::new() });
    }

    /// Begins the entry of the next input that waits. False if there is none.
    pub(super) fn begin_next(&mut self, now: Now, ends: &mut Ends, log: &Log, state: &mut CellState) -> bool {
        let (now_ns, clock_read) = (self.session_ns(now, log), self.logs_time);
        if let Some((event, rest)) = ends.next_port_event() {
            let (message, reads) = (None, Vec::new());
            self.running = Some(Running { event, now_ns, message, rest, clock_read, reads });
            return true;
        }
        let full = ends.full();
        let found = self.last.others_first().into_iter().find_map(|kind| {
            let next = next_of(kind, now_ns, full, ends, state)?;
            Some((kind, next))
        });
        let Some((kind, (event, message, input))) = found else { return false };
        self.last = kind;
        let rest = alloc::vec![input];
        self.running = Some(Running { event, now_ns, message, rest, clock_read, reads: Vec::new() });
        true
    }

    /// Runs the next handler of the entry that was begun, if one is left.
    pub(super) fn run_next(&mut self, cell: Option<CellId>, out: &mut Vec<OwnerEffect>) {
        if let (Some(cell), Some(running)) = (cell, &mut self.running)
            && let Some(input) = running.rest.pop()
        {
            out.push(OwnerEffect::Run(Run { cell, input, now_ns: running.now_ns, logged: None }));
        }
    }

    /// A handler finished. None if none ran.
    pub(super) fn take(&mut self) -> Option<Running> {
        self.running.take()
    }

    /// Puts the entry back, if it has more handlers. Otherwise it is complete, and returned.
    pub(super) fn complete(&mut self, running: Running) -> Option<Running> {
        if running.rest.is_empty() {
            return Some(running);
        }
        self.running = Some(running);
        None
    }

    /// The cell is given up.
    pub(super) fn drop_running(&mut self) {
        (self.running, self.rebuild) = (None, None);
    }

    /// Counts messages that the cell sent, and bytes that its log grew by.
    pub(super) fn count(&mut self, now: Now, messages: usize, log_bytes: usize) {
        self.rates.count(now, messages, log_bytes);
    }

    /// Whether so many outputs are more than a handler may send.
    pub(super) fn too_many(outputs: usize) -> Option<String> {
        (outputs > OUTPUTS_MAX).then(|| "one handler sent more messages than the limit".to_string())
    }

    /// The limit that the cell exceeds, if there is one; `outputs` were sent by its last handler.
    pub(super) fn broken_quota(&self, policy: &OwnerPolicy, log: &Log, outputs: usize) -> Option<String> {
        let over = |used: u32, limit: u32| limit > 0 && used > limit;
        if let Some(reason) = Self::too_many(outputs) {
            Some(reason)
        } else if over(self.rates.messages, policy.messages_per_s) {
            Some(format!("the cell sent more than quotas.messages_per_s = {}", policy.messages_per_s))
        } else if over(self.rates.log_bytes, policy.log_bytes_per_s) {
            Some(format!("the log grew by more than quotas.log_bytes_per_s = {}", policy.log_bytes_per_s))
        } else if log.is_at_last_offset() {
            Some(format!(
                "the log of the session has reached {} GiB, the most that one can have",
                LOG_OFFSET_MAX >> 30
            ))
        } else {
            None
        }
    }
}

/// Monotonic time as session time has it: signed.
fn mono_ns(now: Now) -> i64 {
    i64::try_from(now.mono_ns).unwrap_or(i64::MAX)
}

/// The next input of a kind, if there is one. While an end is full, only messages with outputs that do not go to that
/// end.
fn next_of(
    kind: Kind,
    now_ns: i64,
    full: u64,
    ends: &mut Ends,
    state: &mut CellState,
) -> Option<(Event, Option<Message>, CellInput)> {
    Some(match kind {
        Kind::Timer | Kind::Task if full != 0 => return None,
        Kind::Timer => (Event::Timer, None, state.fire(now_ns)?),
        Kind::Task => (Event::Task, None, state.next_task()?),
        Kind::Message => {
            let (port, message) = ends.next_message(full, state.pauses())?;
            (Event::Message(port), Some(message.clone()), input_of(port, message))
        }
    })
}
