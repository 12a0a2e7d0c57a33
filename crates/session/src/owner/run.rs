//! The running phase: one input at a time, its log entry, its outputs, their release.

use super::{Now, Owner, OwnerEffect, OwnerPhase, choose::input_of, end_state::Message};
use crate::{
    bug,
    cell::{CellInput, CellOutput as Made, Ran, Run, RunOutcome},
    schedule::Kind,
    trace,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    frame::{Code, Finish, Increment, LogOnly, Output},
    id::Port,
    limits::{
        ENTRY_SIZE_MAX, LOG_AHEAD, LOG_SIZE_MAX, OUTPUT_WINDOW, OUTPUTS_MAX, READS_MAX, READS_SIZE_MAX,
        UNSENT_SHARED_MAX,
    },
    log::{Entry, Event, Read},
    seal::LOG_OFFSET_MAX,
};

/// Input with outputs that may go to an end waits while more bytes than this wait for that end's credit. A full buffer delays
/// input; it never drops.
const UNSENT_MAX: u64 = 256 << 10;
/// Input also waits while more bytes than this wait for an end's acknowledgement. An end that acknowledges in time never has as
/// much.
const OUTBOX_MAX: u64 = UNSENT_MAX + 2 * OUTPUT_WINDOW;

/// The session ends when this much is left of the log's offsets, so that the next entry always has a place.
const LOG_ROOM: u64 = ENTRY_SIZE_MAX as u64;

/// The entry that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) event: Event,
    pub(super) now_ns: i64,
    /// What it consumed, for the running digest and for keepers.
    pub(super) message: Option<Message>,
    /// Handlers of this entry that still have to run, in reverse order.
    rest: Vec<CellInput>,
    clock_read: bool,
    /// What the handlers have read from the cache.
    pub(super) reads: Vec<Read>,
}

/// Counts of the current second.
#[derive(Debug, Default)]
pub(super) struct Rates {
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

/// The bit of a side by its index. Sides from 63 on share one, and wait for each other.
fn bit(index: usize) -> u64 {
    1 << index.min(63)
}

impl Owner {
    /// Session time: the edge's monotonic clock plus an offset fixed at recovery; never behind the last logged time.
    fn session_ns(&self, now: Now) -> i64 {
        let mono_ns = i64::try_from(now.mono_ns).unwrap_or(i64::MAX);
        mono_ns.saturating_add(self.clock_offset_ns).max(self.log.cursor.last_ns)
    }

    /// The time of the next action, on the monotonic clock.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        [self.timer_due_ns(), self.record_until_ns(), self.report_due_ns()].into_iter().flatten().min()
    }

    fn timer_due_ns(&self) -> Option<u64> {
        if self.phase != OwnerPhase::Running
            || self.running.is_some()
            || self.log_is_full()
            || self.full() != 0
        {
            return None;
        }
        let due_ns = self.timers.due_ns()?.saturating_sub(self.clock_offset_ns);
        Some(u64::try_from(due_ns).unwrap_or(0))
    }

    /// Handles timeouts.
    pub fn tick(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        self.end_record_if_late(now, out);
        self.report(now, out);
        self.pump(now, out);
    }

    /// The log is chosen and the ends have it.
    pub(super) fn begin(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.opened {
            self.release(out);
            // The ends waited without an owner: the next message goes before a checkpoint.
            self.pump(now, out);
            // Ends with full buffers have stopped reading: only a checkpoint makes room again.
            return self.checkpoint_if_due(out);
        }
        let peers = self.peers();
        let rest = self.opens(&peers);
        let event = Event::Start { seed: self.seed.0, peers };
        let now_ns = self.session_ns(now);
        self.opened = true;
        self.running =
            Some(Running { event, now_ns, message: None, rest, clock_read: true, reads: Vec::new() });
        self.run_next(out);
    }

    fn run_next(&mut self, out: &mut Vec<OwnerEffect>) {
        if let (Some(cell), Some(running)) = (self.cell, &mut self.running)
            && let Some(input) = running.rest.pop()
        {
            out.push(OwnerEffect::Run(Run { cell, input, now_ns: running.now_ns, logged: None }));
        }
    }

    /// Gives the cell its next input, if the cell is idle, an input waits, and the ends have room for its outputs.
    pub(super) fn pump(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.phase != OwnerPhase::Running || self.running.is_some() || self.cell.is_none() {
            return;
        }
        if self.log_is_full() {
            return;
        }
        let (now_ns, full) = (self.session_ns(now), self.full());
        let found = self.last.others_first().into_iter().find_map(|kind| {
            let next = self.next_of(kind, now_ns, full)?;
            Some((kind, next))
        });
        let Some((kind, (event, message, input))) = found else { return };
        self.last = kind;
        let rest = alloc::vec![input];
        self.running = Some(Running { event, now_ns, message, rest, clock_read: false, reads: Vec::new() });
        self.run_next(out);
    }

    /// The next input of a kind, if there is one. While an end is full, only messages with outputs that do not go to that end.
    fn next_of(&mut self, kind: Kind, now_ns: i64, full: u64) -> Option<(Event, Option<Message>, CellInput)> {
        Some(match kind {
            Kind::Timer | Kind::Task if full != 0 => return None,
            Kind::Timer => {
                self.timers.due_ns().filter(|due_ns| *due_ns <= now_ns)?;
                (Event::Timer, None, self.timers.fire()?)
            }
            Kind::Task => (Event::Task, None, self.tasks.next()?),
            Kind::Message => {
                let (port, message) = self.next_message(full)?;
                (Event::Message(port), Some(message.clone()), input_of(port, message))
            }
        })
    }

    /// The sides with ends that must take more before any input may run that could produce outputs for them: a bitmap by their
    /// index.
    ///
    /// The cell does not stop completely: a server that answers before it continues to read takes nothing more until its answer
    /// is read.
    fn full(&self) -> u64 {
        let full =
            |side: &super::EndState| side.unsent_charge > UNSENT_MAX || side.outbox_charge > OUTBOX_MAX;
        let bits = self.sides.iter().enumerate().map(|(index, side)| if full(side) { bit(index) } else { 0 });
        bits.fold(0, |all, bit| all | bit)
    }

    /// Records to which sides the messages of this port are answered.
    fn learn(&mut self, port: Port, ran: &Ran) {
        let place = |port: Port| self.sides.iter().position(|side| side.port == port);
        let outputs = ran.outputs.iter().filter_map(|made| match made {
            Made::Message { port, .. } | Made::Close { port } => place(*port),
            Made::Pause { .. } | Made::Resume { .. } => None,
        });
        let reaches = outputs.fold(0, |all, index| all | bit(index));
        if let Some(index) = place(port) {
            self.sides[index].reaches |= reaches;
        }
    }

    /// Whether the next entry might exceed the log that ends keep: a checkpoint must come first.
    pub(super) fn log_is_full(&self) -> bool {
        (self.log.bytes.len() + ENTRY_SIZE_MAX) as u64 > LOG_SIZE_MAX
    }

    /// Ports in turn. Skips ports with messages that were answered to a `full` side, and messages beyond the credit of a paused
    /// port.
    fn next_message(&mut self, full: u64) -> Option<(Port, Message)> {
        let count = self.sides.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let side = &self.sides[index];
            if side.reaches & full != 0 || (side.is_beyond_credit() && self.is_paused(side)) {
                continue;
            }
            if let Some(message) = self.sides[index].take_input() {
                self.turn = (index + 1) % count;
                return Some((self.sides[index].port, message));
            }
        }
        None
    }

    /// A handler finished.
    pub(super) fn consumed(&mut self, now: Now, mut ran: Ran, out: &mut Vec<OwnerEffect>) {
        let Some(mut running) = self.running.take() else {
            return self.end_for_bug(bug!("a handler finishes once", self.session, self.phase), out);
        };
        running.reads.append(&mut ran.reads);
        if let RunOutcome::Stopped(stop) = ran.outcome {
            return self.stopped(now, running, stop, out);
        }
        running.clock_read |= ran.clock_read;
        let applied = self.apply(running.now_ns, &ran);
        if let Event::Message(port) = running.event {
            self.learn(port, &ran);
        }
        let sent = Made::count_sent(&ran.outputs);
        self.totals.produced += sent as u64;
        self.checkpointer.spent(ran.cost_ns);
        if !running.rest.is_empty() {
            self.running = Some(running);
            return self.run_next(out);
        }
        let logged = if self.policy.keep { self.log_entry(running, out) } else { Some(0) };
        let Some(logged) = logged else {
            let reason = format!(
                "more than {READS_MAX} reads from the cache, or {READS_SIZE_MAX} bytes of objects, at the session's start"
            );
            return self.terminate(Code::Guest, reason, out);
        };
        self.totals.consumed += 1;
        self.end_entry();
        self.rates.count(now, sent, logged);
        if let Some(reason) = self.broken_quota(sent).or(applied.err()) {
            return self.terminate(Code::Guest, reason, out);
        }
        if self.phase != OwnerPhase::Running {
            // A new generation is being opened: outputs wait in the outbox.
            return;
        }
        self.release(out);
        self.give_credit(out);
        if self.phase == OwnerPhase::Running {
            self.ask_if_between(out);
            self.checkpoint_if_due(out);
            self.pump(now, out);
        }
    }

    fn broken_quota(&self, outputs: usize) -> Option<String> {
        let over = |used: u32, limit: u32| limit > 0 && used > limit;
        if outputs > OUTPUTS_MAX {
            Some("one handler sent more messages than the limit".to_string())
        } else if over(self.rates.messages, self.policy.messages_per_s) {
            Some(format!("the cell sent more than quotas.messages_per_s = {}", self.policy.messages_per_s))
        } else if over(self.rates.log_bytes, self.policy.log_bytes_per_s) {
            Some(format!(
                "the log grew by more than quotas.log_bytes_per_s = {}",
                self.policy.log_bytes_per_s
            ))
        } else if self.log.end() + LOG_ROOM >= LOG_OFFSET_MAX {
            Some(format!(
                "the log of the session has reached {} GiB, the most that one can have",
                LOG_OFFSET_MAX >> 30
            ))
        } else {
            None
        }
    }

    /// Applies what a handler did; an error if it did something forbidden.
    pub(super) fn apply(&mut self, now_ns: i64, ran: &Ran) -> Result<(), String> {
        let mut fit = true;
        for change in &ran.timers {
            fit &= self.timers.change(now_ns, *change);
        }
        for made in &ran.outputs {
            let (port, close, payload) = match made {
                Made::Message { port, payload } => (*port, false, payload.clone()),
                Made::Close { port } => (*port, true, Bytes::new()),
                Made::Pause { stage, port } => {
                    if self.pauses.pause(*stage, *port) {
                        trace!(self.context(), "stage {stage} pauses port {}", port.0);
                    }
                    continue;
                }
                Made::Resume { stage, port } => {
                    if self.pauses.resume(*stage, *port) {
                        trace!(self.context(), "stage {stage} resumes port {}", port.0);
                    }
                    continue;
                }
            };
            let side = self.sides.iter_mut().find(|side| side.port == port);
            if !side.is_some_and(|side| side.produce(close, payload)) {
                trace!(self.context(), "drops an output to port {}, which is closed or absent", port.0);
            }
        }
        let changed = self.tasks.change(&ran.tasks);
        if fit { changed } else { Err("the cell has more timers than the limit".to_string()) }
    }

    /// A shared cell sent something to this session in a handler of another session's input.
    pub fn deliver(&mut self, now: Now, outputs: Vec<Made>, out: &mut Vec<OwnerEffect>) {
        let Some(cell) = self.cell else {
            let count = outputs.len();
            return trace!(self.context(), "drops {count} outputs of a shared cell: it has no cell");
        };
        let count = Made::count_sent(&outputs);
        let (clock_read, timers, tasks) = (false, Vec::new(), Vec::new());
        let (outcome, reads) = (RunOutcome::Idle, Vec::new());
        let ran = Ran { cell, outcome, clock_read, outputs, timers, tasks, reads, cost_ns: 0 };
        let applied = self.apply(0, &ran);
        self.sides.iter_mut().for_each(super::EndState::mark_logged);
        self.totals.produced += count as u64;
        self.rates.count(now, count, 0);
        if let Some(reason) = self.broken_quota(count).or(applied.err()) {
            return self.terminate(Code::Guest, reason, out);
        }
        self.release(out);
        if self.phase == OwnerPhase::Running {
            self.give_credit(out);
        }
        self.end_if_slow(out);
    }

    /// Ends the session if an end does not take what a shared cell sends it.
    fn end_if_slow(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.policy.shared && self.sides.iter().any(|side| side.unsent_charge > UNSENT_SHARED_MAX) {
            let reason = format!(
                "more than {UNSENT_SHARED_MAX} bytes waited for a client that reads too slowly; its cell is shared"
            );
            self.terminate(Code::Guest, reason, out);
        }
    }

    /// All handlers of an entry have run, and it is logged if entries are logged: its outputs may be sent. Before that no
    /// output may be sent in any case: an owner that recovers from a log without the entry would not produce it.
    pub(super) fn end_entry(&mut self) {
        self.close_if_spent();
        self.resume_if_stuck();
        self.sides.iter_mut().for_each(super::EndState::mark_logged);
    }

    /// A cell that can never run again has no more outputs: its ports are closed. Depends on the log alone, so a replay does
    /// the same.
    fn close_if_spent(&mut self) {
        // Inputs of other sessions can make a shared cell send to this one.
        if self.policy.shared {
            return;
        }
        if self.timers.is_empty() && self.tasks.is_quiet() && self.sides.iter().all(|side| side.input_closed)
        {
            for side in &mut self.sides {
                side.produce(true, Bytes::new());
            }
        }
    }

    /// None if readers would refuse the entry: the reads of one handler are bounded, but an entry that opens ports has several.
    fn log_entry(&mut self, running: Running, out: &mut Vec<OwnerEffect>) -> Option<usize> {
        let now_ns = running.clock_read.then_some(running.now_ns);
        let reads = self.log.known.write(running.reads);
        if !reads.is_in_bounds() {
            return None;
        }
        let entry = Entry { event: running.event.clone(), now_ns, reads };
        let before = self.log.bytes.len();
        self.log.cursor.put(&entry, &mut self.log.bytes);
        let message = running.message.as_ref().map(|message| (message.close, &message.payload[..]));
        self.digest.absorb(&self.keys, &self.log.bytes[before..], message);
        self.feed_entry(self.log.floor + before as u64, running.event, running.message, out);
        Some(self.log.bytes.len() - before)
    }

    /// Sealed log that the end at `index` was not sent yet.
    pub(super) fn increment(&mut self, index: usize) -> Option<Increment> {
        let known = self.sides[index].known;
        let end = self.log.end();
        if known >= end || !self.policy.keep {
            return None;
        }
        let mut entries = BytesMut::from(self.log.since(known));
        self.seal.log(known, &mut entries);
        let tag = self.digest.tag();
        (self.sides[index].known, self.sides[index].known_tag) = (end, tag);
        Some(Increment { entries: entries.freeze(), tag })
    }

    /// Sends outputs as far as credit allows, each with the log that it depends on.
    pub(super) fn release(&mut self, out: &mut Vec<OwnerEffect>) {
        for index in 0..self.sides.len() {
            let Some(channel) = self.sides[index].channel else { continue };
            let (known, floor, end) = (self.sides[index].known, self.log.floor, self.log.end());
            if self.policy.keep && !(floor..=end).contains(&known) {
                let bug = bug!("I23: what an end knows of the log is here", known, floor, end);
                return self.end_for_bug(bug, out);
            }
            // So that one frame can hold the log that an output depends on, however long the end was sent none.
            if end - known > LOG_AHEAD
                && let Some(Increment { entries, tag }) = self.increment(index)
            {
                out.push(OwnerEffect::Send(self.sides[index].port, LogOnly { channel, entries, tag }.into()));
            }
            while let Some(message) = self.sides[index].next_output() {
                let increment = self.increment(index);
                let output = Output { channel, increment, close: message.close, payload: message.payload };
                out.push(OwnerEffect::Send(self.sides[index].port, output.into()));
                self.mark_sent(index);
                if !self.policy.keep {
                    // An owner that keeps nothing gets no acknowledgements.
                    self.sides[index].acknowledge(1);
                }
            }
        }
        self.finish_if_done(out);
    }

    /// An end has received outputs and grants credit.
    pub(super) fn credit(
        &mut self,
        now: Now,
        index: usize,
        received: u64,
        bytes: u64,
        out: &mut Vec<OwnerEffect>,
    ) {
        let side = &mut self.sides[index];
        let Some(credit) = side.credit.checked_add(bytes) else {
            return self.terminate(
                Code::Protocol,
                "an end grants more credit than can be counted".into(),
                out,
            );
        };
        side.credit = credit;
        if self.policy.keep && !side.acknowledge(received) {
            return self.terminate(
                Code::Protocol,
                "an end acknowledges outputs that it was not sent".into(),
                out,
            );
        }
        self.feed_received(received, out);
        self.report(now, out);
        if self.phase == OwnerPhase::Running {
            self.seal_if_settled(out);
            self.release(out);
            self.pump(now, out);
        }
    }

    /// Both directions of every port are closed, and every end has received everything.
    fn finish_if_done(&mut self, out: &mut Vec<OwnerEffect>) {
        let done = self.running.is_none()
            && self
                .sides
                .iter()
                .all(|side| side.input_closed && side.output_closed && side.outbox.is_empty());
        let done = done && (!self.policy.keep || self.sides.iter().all(|side| side.channel.is_some()));
        if !done || self.phase != OwnerPhase::Running {
            return;
        }
        if !self.policy.keep {
            return self.terminate(Code::Finished, self.done(), out);
        }
        self.enter(OwnerPhase::Finishing, "every end has received everything");
        for side in &self.sides {
            if let Some(channel) = side.channel {
                out.push(OwnerEffect::Send(side.port, Finish { channel }.into()));
            }
        }
    }

    /// The reason why the session ended.
    fn done(&self) -> String {
        let left = self.tasks.left().map(|left| format!("; {left}")).unwrap_or_default();
        format!("both sides are done{left}")
    }

    /// An end is ready to delete the session. Once all are, they are allowed to.
    pub(super) fn finished(&mut self, index: usize, out: &mut Vec<OwnerEffect>) {
        self.sides[index].finished = true;
        if self.sides.iter().all(|side| side.finished) {
            self.terminate(Code::Finished, self.done(), out);
        }
    }
}
