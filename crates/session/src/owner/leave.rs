//! The ways in which an owner gives a session up: for another edge, for good, or because a handler was stopped.

use super::{KeeperId, Owner, OwnerEffect, phase::Phase};
use crate::bug::Bug;
use crate::trace;
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::frame::{Code, Failure};

impl Owner {
    /// The session is to leave for a standby that holds checkpoints and log: takes a checkpoint, if that one would have too much to replay.
    pub(super) fn cover_to_leave(&mut self, keeper: KeeperId, out: &mut Vec<OwnerEffect>) {
        let may_ask = !self.checkpointer.is_under_way() && self.checkpointer.look_ns.is_none();
        if may_ask && self.replicas.needs_checkpoint(keeper) {
            self.checkpointer.leaves = true;
            self.checkpoint_if_due(out);
        }
    }

    /// Whether this keeper is fed. Otherwise it waits for a checkpoint to begin with.
    #[must_use]
    pub fn is_fed(&self, keeper: KeeperId) -> bool {
        self.replicas.streaming_on(keeper).is_some()
    }

    /// The attempt fails. A live cell is kept for the next attempt.
    pub fn abort_attempt(&mut self, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        if self.live.is_none() {
            return self.step_down(code, reason.into(), out);
        }
        self.ends.reject(code, reason, out);
        self.enter(Phase::Detached, reason);
    }

    /// Gives up ownership of the session. The ends know everything that has happened.
    pub fn step_down(&mut self, code: Code, reason: String, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "steps down: {code:?}: {reason}");
        self.recordings.give_up("the session left this edge meanwhile", out);
        self.replicas.end(code, &reason, out);
        self.ends.reject(code, &reason, out);
        self.remove_cell(out);
        out.push(OwnerEffect::Done(code, reason));
    }

    /// Ends the session permanently.
    pub fn terminate(&mut self, code: Code, reason: String, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "ends the session: {code:?}: {reason}");
        self.recordings.give_up("the session ended meanwhile", out);
        self.replicas.end(code, &reason, out);
        self.ends.end(code, &reason, out);
        self.remove_cell(out);
        out.push(OwnerEffect::Done(code, reason));
    }

    /// This owner is in a state that only a bug explains: the session ends, and no other session of the process.
    pub(super) fn end_for_bug(&mut self, bug: Bug, out: &mut Vec<OwnerEffect>) {
        self.terminate(Code::Protocol, bug.to_string(), out);
    }

    /// What ends or an executor have does not fit to what was sealed: the session ends before any of it runs.
    pub(super) fn tampered(&mut self, reason: &str, out: &mut Vec<OwnerEffect>) {
        self.terminate(Code::Tampered, reason.to_string(), out);
    }

    /// A handler was stopped. The session may be retried once, since the fault may be this machine's. A second stop at
    /// the same position ends it, so that a poison message cannot move from edge to edge.
    pub(super) fn failed(&mut self, input: u8, reason: String, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "a handler was stopped at log offset {}: {reason}", self.log.end());
        let failure = Failure { log_offset: self.log.end(), input, reason };
        if self.ends.know_failure(&failure) || !self.about.keeps_checkpoints() {
            return self.terminate(Code::Guest, failure.reason, out);
        }
        self.ends.fail(&failure, out);
        self.replicas.end(Code::Guest, &failure.reason, out);
        self.remove_cell(out);
        out.push(OwnerEffect::Done(Code::Guest, failure.reason));
    }

    /// The cell is not needed any more. An answer for it that is on its way is ignored.
    pub(super) fn remove_cell(&mut self, out: &mut Vec<OwnerEffect>) {
        out.extend(self.cell.take().map(OwnerEffect::Remove));
    }
}
