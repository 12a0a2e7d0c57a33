//! Replay: runs a log through the cell, handler by handler, with the inputs, times and cache reads that it has.
//!
//! Used for a chosen log, and by a hot standby for the log that it is fed, which has no end yet. A replay that diverges
//! is a fault of this machine or of the executor, since the log was verified before: a standby gives up, and an owner
//! treats it as a stopped handler. So the session may be tried once more, perhaps elsewhere, and no further (I27 of
//! docs/protocol.md).

use super::{Now, Owner, OwnerEffect, StandbyError, follow::Follow, phase::replay_of, sides::Chore};
use crate::{
    bug,
    cell::{CellStop, Ran, Run, RunOutcome},
    replay::{Handler, LogReplayError, Step},
    trace,
};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::frame::Code;

/// The kind of input that ends remember of a handler that was stopped in replay. Ends compare it, so it never changes.
const STOPPED_IN_REPLAY: u8 = 4;

/// Whether more log may follow what is replayed: a standby's owner may send it.
fn waits_for_more(follow: &Option<Box<Follow>>) -> bool {
    follow.as_ref().is_some_and(|follow| follow.waits_for_more())
}

impl Owner {
    /// Runs the next handler of the replay, or finishes it at the end of the chosen log.
    pub(super) fn replay_next(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        loop {
            let (Some(cursor), Some(cell)) = (replay_of(&mut self.phase, &mut self.follow), self.cell) else {
                return self.end_for_bug(bug!("a replay has a log and a cell", self.phase(), self.cell), out);
            };
            // The handlers of one entry run one after the other; its timers, tasks and messages are taken when the first
            // one begins.
            match cursor.next_step(|event| self.state.inputs_of(event, &mut self.ends)) {
                Err(lost) => return self.not_followed(lost, out),
                // A log may have many of these in a row.
                Ok(Step::Entry) => self.entry_replayed(out),
                // More entries will follow, unless its owner has handed the session over.
                Ok(Step::End) if waits_for_more(&self.follow) => {
                    let takes_over = self.follow.as_mut().is_some_and(|follow| follow.takes_over());
                    if takes_over && !self.witness.ask_first(&self.about, out) {
                        out.push(OwnerEffect::TakeOver);
                    }
                    return;
                }
                Ok(Step::End) => return self.chosen(now, out),
                Ok(Step::Run(Handler { input, now_ns, reads })) => {
                    if let Some(follow) = &mut self.follow {
                        follow.set_busy(true);
                    }
                    // Logged reads are given to the handler: the cache of this edge has other contents.
                    return out.push(OwnerEffect::Run(Run { cell, input, now_ns, logged: Some(reads) }));
                }
            }
        }
    }

    /// The log cannot be replayed any further.
    fn not_followed(&mut self, lost: LogReplayError, out: &mut Vec<OwnerEffect>) {
        if self.follow.is_some() {
            let reason = "the log cannot be replayed".to_string();
            return self.fail_standby(StandbyError(Code::Guest, reason), out);
        }
        let what = match lost {
            LogReplayError::Unreadable => "the log cannot be decoded",
            LogReplayError::Reads => "an entry of the log has reads and runs nothing",
            LogReplayError::Missing | LogReplayError::Clock => {
                "the log consumes messages, or has ports, that do not exist"
            }
        };
        self.tampered(what, out);
    }

    /// The cell did not do what the log says. A standby gives up; in the replay of a chosen log the handler counts as
    /// stopped.
    fn diverged(&mut self, reason: String, out: &mut Vec<OwnerEffect>) {
        if waits_for_more(&self.follow) {
            return self.fail_standby(StandbyError(Code::Guest, reason), out);
        }
        self.failed(STOPPED_IN_REPLAY, reason, out);
    }

    /// A handler finished in replay.
    pub(super) fn replayed(&mut self, now: Now, ran: Ran, out: &mut Vec<OwnerEffect>) {
        if let Some(follow) = &mut self.follow {
            follow.set_busy(false);
        }
        let Some(cursor) = replay_of(&mut self.phase, &mut self.follow) else {
            return trace!(self.context(), "ignores a handler that finished: nothing is replayed");
        };
        let now_ns = cursor.now_ns();
        if let RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)) = ran.outcome {
            // The reason of a standby goes to the owner that feeds it, which knows that this is a replay.
            let is_fed = waits_for_more(&self.follow);
            return self.diverged(if is_fed { reason } else { format!("in replay: {reason}") }, out);
        }
        let whole = match cursor.ran(ran.clock_read, &ran.reads) {
            Ok(whole) => whole,
            Err(lost) => {
                let what = match lost {
                    LogReplayError::Reads => "the handler read something else from the cache",
                    _ => "the handler read the clock",
                };
                return self.diverged(format!("the replay diverged from the log: {what}"), out);
            }
        };
        // A forbidden action ended the session when it was first done, so no log contains one.
        if let Err(reason) = self.state.apply(&mut self.ends, self.about.context(), now_ns, &ran) {
            return self.diverged(format!("in replay: {reason}"), out);
        }
        // The feed says what ends have received. Without it, a standby's outboxes would hold all outputs since the
        // session began.
        if let Some(follow) = &self.follow {
            follow.drop_received(&mut self.ends);
        }
        self.checkpointer.spent(ran.cost_ns);
        if whole {
            self.entry_replayed(out);
        }
        self.replay_next(now, out);
    }

    /// All handlers of an entry have run.
    fn entry_replayed(&mut self, out: &mut Vec<OwnerEffect>) {
        self.totals.replayed += 1;
        self.totals.pauses_ended += self.state.end_entry(&mut self.ends, &self.about);
        if let Some(port) = self.ends.port_entry_ended(None)
            && let Some(follow) = &mut self.follow
        {
            follow.port_left(port);
        }
        // What this owner was fed, or what the ends keep, is logged.
        for index in self.ends.visit(Chore::Log) {
            self.ends.quietly(index).mark_logged();
        }
        let reported = self.follow.as_mut().and_then(|follow| follow.entry_replayed());
        out.extend(reported.map(OwnerEffect::ToFeeder));
    }
}
