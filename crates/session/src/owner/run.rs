//! The running phase: one input at a time, its log entry, its outputs, their release (docs/protocol.md, "The release
//! rule").

use super::{
    Now, Owner, OwnerEffect, OwnerPhase,
    end_state::EndState,
    phase::Phase,
    runner::{Runner, Running},
    sides::Chore,
};
use crate::{
    bug,
    cell::{CellOutput as Made, Ran, RunOutcome},
    trace,
};
use alloc::{format, string::String, vec::Vec};
use marram_wire::{
    frame::{Code, Increment, LogOnly, Output},
    limits::{LOG_AHEAD, READS_MAX, READS_SIZE_MAX, UNSENT_SHARED_MAX},
    log::Event,
};

impl Owner {
    /// The time of the next action, on the monotonic clock.
    #[must_use]
    pub fn due_ns(&mut self) -> Option<u64> {
        let is_running = self.phase() == OwnerPhase::Running;
        let may_run = is_running && !self.awaits_keeper_or_group();
        let timer_ns = self.runner.timer_due_ns(&self.ends, &self.log, &self.state).filter(|_| may_run);
        let witness_ns = self.witness.report_due_ns();
        let clients_ns = self.clients_due_ns().filter(|_| is_running);
        let servers_ns = self.servers_due_ns();
        let look_ns = self.checkpointer.look_ns.filter(|_| is_running);
        let others = [self.recordings.until_ns(), witness_ns, clients_ns, servers_ns, look_ns];
        others.into_iter().chain([timer_ns]).flatten().min()
    }

    /// Handles timeouts. Each is checked against the clock again, since a tick may be late or for another one.
    pub fn tick(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.recordings.until_ns().is_some_and(|until_ns| until_ns <= now.mono_ns) {
            self.recordings.give_up("the session's ends took too long to show what they keep", out);
            self.fail_if_stopped(out);
        }
        self.witness.report(now, &self.ends, out);
        self.clients_due(now, out);
        self.ask_servers(now, out);
        self.look_for_checkpoint(now, out);
        self.pump(now, out);
    }

    /// Gives the cell its next input, if the cell is idle, an input waits, and the ends have room for its outputs.
    pub(super) fn pump(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        // An entry that runs nothing is complete at once, and there may be many in a row.
        while self.phase() == OwnerPhase::Running && !self.runner.is_busy() && self.cell.is_some() {
            // Ends refuse log beyond `LOG_SIZE_MAX`: the cell waits for a checkpoint to be stored, or for a keeper.
            if self.log.is_full() || self.awaits_keeper_or_group() {
                return;
            }
            if !self.runner.begin_next(now, &mut self.ends, &self.log, &mut self.state) {
                return;
            }
            if self.run_or_log(now, out) {
                return;
            }
        }
    }

    /// Whether no entry begins until a keeper has caught up, or this owner for itself, all sessions of the group are copied, or another edge than the backup has
    /// taken the session over: what the backup confirms would be released, and that edge would lack it. A shared cell waits for its backup, too: what
    /// it did behind the hand-over would be done again.
    pub(super) fn awaits_keeper_or_group(&self) -> bool {
        let is_leaving = self.about.has_backup() && self.replicas.is_leaving(self.about.is_shared_cell());
        let is_full = self.keep.as_ref().is_some_and(|keep| keep.is_full());
        let stands = self.epochs.is_halted || self.epochs.is_still;
        self.replicas.waits_for_one() || stands || is_leaving || is_full
    }

    /// A handler finished.
    pub(super) fn consumed(&mut self, now: Now, mut ran: Ran, out: &mut Vec<OwnerEffect>) {
        if self.runner.rebuild.is_some() {
            return self.rebuild_ran(now, &ran, out);
        }
        let Some(mut running) = self.runner.take() else {
            let bug = bug!("a handler finishes once", self.about.session, self.phase());
            return self.end_for_bug(bug, out);
        };
        // Reads are kept also of a handler that was stopped: its recording must show them.
        running.reads.append(&mut ran.reads);
        if let RunOutcome::Stopped(stop) = ran.outcome {
            return self.stopped(now, running, stop, out);
        }
        running.clock_read |= ran.clock_read;
        let applied = self.state.apply(&mut self.ends, self.about.context(), running.now_ns, &ran);
        if let Event::Message(port) = running.event {
            self.ends.learn(port, &ran.outputs);
        }
        let sent = Made::count_sent(&ran.outputs);
        self.totals.produced += sent as u64;
        self.totals.payload_bytes += Made::payload_to(&ran.outputs, |port| self.about.is_client(port));
        self.checkpointer.spent(ran.cost_ns);
        self.replicas.ran(ran.cost_ns);
        if let Some(keep) = &mut self.keep {
            keep.spent(ran.cost_ns);
            // A client may have caused it: before anything is logged.
            let forbidden = applied.clone().err().or_else(|| Runner::too_many(sent));
            if let Some(reason) = forbidden {
                return self.handler_stopped(&running, reason, out);
            }
        }
        match self.runner.complete(running) {
            Some(running) => {
                if self.completed(now, running, (sent, applied), out) {
                    self.pump(now, out);
                }
            }
            None => self.runner.run_next(self.cell, out),
        }
    }

    /// Runs the first handler of the entry that was begun. False if it has none: it is complete then, and more may follow.
    pub(super) fn run_or_log(&mut self, now: Now, out: &mut Vec<OwnerEffect>) -> bool {
        match self.runner.take().and_then(|running| self.runner.complete(running)) {
            Some(running) => {
                self.completed(now, running, (0, Ok(())), out);
                false
            }
            None => {
                self.runner.run_next(self.cell, out);
                true
            }
        }
    }

    /// All handlers of an entry have run. The last one `sent` so many messages, and did what is allowed or not. Returns whether the next
    /// one may begin.
    fn completed(
        &mut self,
        now: Now,
        running: Running,
        (sent, applied): (usize, Result<(), String>),
        out: &mut Vec<OwnerEffect>,
    ) -> bool {
        let (event, payload) = match &running.event {
            Event::Port(event) => (Some(event.clone()), 0),
            Event::Message(port) if self.about.is_client(*port) => {
                (None, running.message.as_ref().map_or(0, |message| message.payload.len() as u64))
            }
            _ => (None, 0),
        };
        let logged = if self.about.keeps() { self.log_entry(running, out) } else { Some(0) };
        let Some(logged) = logged else {
            let reason = format!(
                "more than {READS_MAX} reads from the cache, or {READS_SIZE_MAX} bytes of objects, at the session's start"
            );
            self.terminate(Code::Guest, reason, out);
            return false;
        };
        self.totals.consumed += 1;
        self.totals.payload_bytes += payload;
        self.totals.pauses_ended += self.state.end_entry(&mut self.ends, &self.about);
        event.into_iter().for_each(|event| self.port_logged(&event, out));
        self.ends.port_entry_ended(Some(self.log.end()));
        self.entry_ended(out);
        if self.runs_alone() {
            self.link_ports(now, self.log.end(), out);
        }
        // The quota is of a log that the app asked for.
        self.runner.count(now, sent, if self.about.policy.keeps.anything() { logged } else { 0 });
        let broken = self.runner.broken_quota(&self.about.policy, &self.log, sent);
        if let Some(reason) = broken.or(applied.err()) {
            self.terminate(Code::Guest, reason, out);
            return false;
        }
        if self.phase() != OwnerPhase::Running {
            // A new generation is being opened: outputs wait in the outbox. A backup may wait for a checkpoint.
            if self.may_copy() {
                self.checkpoint_if_due(out);
            }
            return false;
        }
        self.release(out);
        self.ends.give_credit(self.state.pauses(), out);
        // The release may have finished the session.
        let goes_on = self.phase() == OwnerPhase::Running;
        if goes_on {
            // A recording and a checkpoint take their position here, between two entries and before the next one
            // begins.
            self.ask_if_between(out);
            self.protect_if_between(now, out);
            self.open_to_end(out);
            self.checkpoint_if_due(out);
            // With a backup they are looked at when it has confirmed something.
            if self.runs_alone() {
                self.look_at_clients(now, out);
            }
        }
        self.phase() == OwnerPhase::Running
    }

    /// A shared cell sent something to this session in a handler of another session's input. Nothing of it is logged:
    /// the session ends with its owner.
    pub fn deliver(&mut self, now: Now, outputs: Vec<Made>, out: &mut Vec<OwnerEffect>) {
        let Some(cell) = self.cell else {
            let count = outputs.len();
            return trace!(self.context(), "drops {count} outputs of a shared cell: it has no cell");
        };
        let count = Made::count_sent(&outputs);
        let (clock_read, timers, tasks) = (false, Vec::new(), Vec::new());
        let (outcome, reads) = (RunOutcome::Idle, Vec::new());
        let ran = Ran { cell, outcome, clock_read, outputs, timers, tasks, reads, cost_ns: 0 };
        let applied = self.state.apply(&mut self.ends, self.about.context(), 0, &ran);
        self.ends.iter_mut().for_each(EndState::mark_logged);
        self.totals.produced += count as u64;
        self.totals.payload_bytes += Made::payload_to(&ran.outputs, |port| self.about.is_client(port));
        self.runner.count(now, count, 0);
        let broken = self.runner.broken_quota(&self.about.policy, &self.log, count);
        if let Some(reason) = broken.or(applied.err()) {
            return self.terminate(Code::Guest, reason, out);
        }
        self.release(out);
        if self.phase() == OwnerPhase::Running {
            self.ends.give_credit(self.state.pauses(), out);
        }
        // A client that does not take what a shared cell sends it must not delay the others.
        if self.about.policy.shared && self.ends.iter().any(|side| side.unsent_charge > UNSENT_SHARED_MAX) {
            let reason = format!(
                "more than {UNSENT_SHARED_MAX} bytes waited for a client that reads too slowly; its cell is shared"
            );
            self.terminate(Code::Guest, reason, out);
        }
    }

    /// Logs an entry and feeds it to the keepers. Returns its size; none if readers would refuse it.
    pub(super) fn log_entry(&mut self, running: Running, out: &mut Vec<OwnerEffect>) -> Option<usize> {
        let Running { event, message, reads, .. } = running;
        let now_ns = running.clock_read.then_some(running.now_ns);
        self.runner.logs_time &= now_ns.is_none();
        let offset = self.log.end();
        if let (Some(keep), Event::Message(port), Some(message)) = (&mut self.keep, &event, &message) {
            keep.consumed(offset, *port, message);
        }
        let size = self.log.append(&self.about.keys, event.clone(), now_ns, reads, message.as_ref())?;
        self.replicas.feed_entry(&self.about, (&self.log, &self.ends), offset, &event, message, out);
        Some(size)
    }

    /// Sends outputs as far as credit allows, each with the log that it depends on, in one frame **\[M\]**: an end that
    /// has an output has the log that led to it, and gives that to the next owner (I14). Outputs of an entry that is
    /// not logged are held back (I15).
    pub(super) fn release(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.holds_outputs() {
            return;
        }
        for index in self.ends.visit(Chore::Send) {
            self.release_to(index, out);
        }
        self.finish_if_done(out);
    }

    /// The same, to the end at this index; outputs are not held.
    pub(super) fn release_to(&mut self, index: usize, out: &mut Vec<OwnerEffect>) {
        let Some(channel) = self.ends.get(index).and_then(|side| side.channel) else { return };
        let keep = self.about.keeps_log();
        let (port, known) = (self.ends[index].port, self.ends[index].known);
        let (floor, end) = (self.log.floor(), self.log.end());
        if keep && !(floor..=end).contains(&known) {
            let bug = bug!("I23: what an end knows of the log is here", known, floor, end);
            return self.end_for_bug(bug, out);
        }
        // So that one frame can hold the log that an output depends on, however long the end was sent none.
        if keep
            && end - known > LOG_AHEAD
            && let Some(Increment { entries, tag }) = self.ends.increment(index, &self.log, self.about.seal())
        {
            out.push(OwnerEffect::Send(port, LogOnly { channel, entries, tag }.into()));
        }
        // What is sent was the chore.
        while let Some(message) = self.ends.quietly(index).next_output() {
            let increment =
                if keep { self.ends.increment(index, &self.log, self.about.seal()) } else { None };
            let output = Output { channel, increment, close: message.close, payload: message.payload };
            out.push(OwnerEffect::Send(port, output.into()));
            self.witness.mark_sent(&self.about, &self.ends[index]);
            if !self.about.keeps() {
                // An owner that keeps nothing gets no acknowledgements.
                self.ends[index].acknowledge(1);
            }
        }
    }

    /// An end has received outputs and grants credit: `received` more outputs, and `bytes` of charge. A checkpoint may
    /// have waited for the acknowledgement, and the cell for the room in the outbox.
    pub(super) fn credit(
        &mut self,
        now: Now,
        index: usize,
        received: u64,
        bytes: u64,
        out: &mut Vec<OwnerEffect>,
    ) {
        if let Err(why) = self.take_credit(index, received, bytes) {
            return self.terminate(Code::Protocol, why.into(), out);
        }
        self.replicas.feed_received(received, &self.ends, out);
        self.witness.report(now, &self.ends, out);
        if self.phase() == OwnerPhase::Running {
            self.seal_if_settled(out);
            self.release(out);
            self.pump(now, out);
        }
    }

    /// Counts what an end has received and grants. An error if it claims more than can be.
    pub(super) fn take_credit(
        &mut self,
        index: usize,
        received: u64,
        bytes: u64,
    ) -> Result<(), &'static str> {
        let side = &mut self.ends[index];
        if !side.credit.grant(bytes) {
            return Err("an end grants more credit than can be counted");
        }
        // What was received before an end kept anything, and is acknowledged late, is not here.
        let counts = self.about.policy.keeps.anything() || side.kept_from.is_some();
        if counts && !side.acknowledge(received) {
            return Err("an end acknowledges outputs that it was not sent");
        }
        Ok(())
    }

    /// Both directions of every port are closed, and every end has received everything. The ends delete the session
    /// only once both are ready to (I26): one that deleted it alone would make a recovery of the other one impossible.
    fn finish_if_done(&mut self, out: &mut Vec<OwnerEffect>) {
        let done = !self.runner.is_busy() && self.ends.are_done(&self.about.policy);
        if !done || self.phase() != OwnerPhase::Running {
            return;
        }
        if !self.about.policy.keeps.anything() {
            return self.terminate(Code::Finished, self.state.reason_of_end(), out);
        }
        self.enter(Phase::Finishing, "every end has received everything");
        self.ends.finish(out);
    }

    /// An end is ready to delete the session. Once all are, they are allowed to.
    pub(super) fn finished(&mut self, index: usize, out: &mut Vec<OwnerEffect>) {
        self.ends[index].finished = true;
        if self.ends.iter().all(|side| side.finished) {
            self.terminate(Code::Finished, self.state.reason_of_end(), out);
        }
    }
}
