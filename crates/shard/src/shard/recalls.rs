//! Asks a recorder for its replica of a session that is to be recovered. The wait is short: what the recorder does not
//! send in time comes from the ends (docs/protocol-keepers.md, "Recorder").

use super::{Session, Shard, state::sessions::At};
use crate::api::{Now, ShardOutput, ShardWireId};
use alloc::{string::ToString, vec::Vec};
use marram_wire::{
    frame::{Code, Frame, Hello, Recall, Recalled},
    id::SessionId,
};

impl Shard {
    /// Asks a recorder for a session that is not here and is to be recovered. True if there is an answer to wait for.
    pub(super) fn recall(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        let session = hello.session;
        if self.recalls.is_asked(session) {
            // An earlier hello of the session waits for the answer, and this one is not needed.
            return true;
        }
        // Without a recorder the ends have everything that is needed, only more slowly.
        let Some((recorder, _)) = self.wires.of_recorder() else { return false };
        let Some(channel) = self.wires.open(recorder) else { return false };
        if let Some(at) = self.recalls.take_owed(session) {
            // What the recorder still sends there is of an earlier recovery.
            self.keepers.close(at);
        }
        self.keepers.recall((recorder, channel), session);
        self.recalls.ask(now, wire, hello.clone(), (recorder, channel));
        self.counters.recalls += 1;
        out.push(ShardOutput::Send { wire: recorder, frame: Recall { channel, session }.into() });
        true
    }

    pub(super) fn recall_frame(
        &mut self,
        now: Now,
        id: SessionId,
        at: At,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        match frame {
            Frame::Ended(_) | Frame::Reject(_) => {
                self.keepers.close(at);
                self.recall_over(now, id, out);
            }
            // The session may be here by now: its other end has moved it to this shard.
            Frame::Recalled(recalled) if !self.sessions.has(id) => {
                let Some((end, hello)) = self.recalls.answered(now, id) else { return };
                if !self.recalled(now, end, &hello, recalled, out) {
                    self.keepers.close(at);
                    self.recall_over(now, id, out);
                }
            }
            other => {
                // Log, messages and parts of checkpoints, as an owner sends them to a standby.
                let before = self.sessions.is_recalled(id);
                let bytes = match &other {
                    Frame::CheckpointPart(part) => part.bytes.len() as u64,
                    _ => 0,
                };
                self.with_owner(now, id, out, |owner, effects| owner.fed(now, other, effects));
                self.recalls.given(now, id, bytes);
                if !self.sessions.has(id) || (self.sessions.is_recalled(id) && !before) {
                    self.recall_over(now, id, out);
                }
            }
        }
    }

    /// Creates the owner that receives the recorder's replica. False if the session cannot be recovered with it.
    fn recalled(
        &mut self,
        now: Now,
        end: ShardWireId,
        hello: &Hello,
        recalled: Recalled,
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        // Everything may have changed since the hello, so it is checked again.
        let Some(wire) = self.wires.get(end) else { return false };
        let Ok(proven) = self.proven(wire, hello) else { return false };
        let Ok((app, ends)) = self.resolve(now, end, hello, proven, out) else { return false };
        let mut effects = Vec::new();
        let owner = self.new_owner(hello.session, &app, &ends);
        let Ok(owner) = owner.recalled(recalled, hello.promised, &mut effects) else { return false };
        self.sessions.insert(hello.session, Session::new(now, owner, self.tenants.place(&app)));
        self.perform(now, hello.session, effects, out);
        // Without checkpoint and log there is nothing to wait for.
        if self.sessions.is_recalled(hello.session) {
            self.recall_over(now, hello.session, out);
        }
        true
    }

    /// The ends are asked: a recall that still waits, because another hello came meanwhile that needs no recorder, is not used. All
    /// ends are asked at once, so the hello that waits for it needs no answer.
    pub(super) fn drop_recall(&mut self, id: SessionId) {
        if let Some(recalling) = self.recalls.take_asked(id) {
            self.keepers.close(recalling.at);
        }
    }

    /// The recorder has sent everything or failed: the session's recovery continues.
    pub(super) fn recall_over(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(recalling) = self.recalls.take_asked(id) else {
            // The recovery continued earlier; the checkpoints that were in flight are missing.
            return self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
        };
        if self.sessions.is_recalled(id) {
            self.counters.recalled += 1;
            // The ends can be asked now. Only the cell has to wait for the checkpoint.
            self.recalls.owe(now, id, recalling.at);
        } else {
            self.keepers.close(recalling.at);
            if self.sessions.is_following(id) {
                self.with_owner(now, id, out, |owner, effects| {
                    owner.step_down(Code::Waiting, "the recorder sent only a part".to_string(), effects);
                });
            }
        }
        let (wire, hello) = recalling.hello;
        if self.wires.has(wire) {
            // Again, with everything that the recorder returned.
            let tried = self.try_hello(now, wire, &hello, false, out);
            self.answer_hello(now, wire, &hello, tried, out);
        }
        // If the end that asked is gone, or was refused, nothing else would ever end what was recalled for it.
        if self.sessions.is_following(id) && !self.waiting.has(id) {
            if let Some(at) = self.recalls.take_owed(id) {
                self.keepers.close(at);
            }
            self.with_owner(now, id, out, |owner, effects| {
                owner.step_down(
                    Code::Waiting,
                    "the end that asked for the session has disconnected".to_string(),
                    effects,
                );
            });
        }
    }

    /// Ends the wait for recorders that take too long.
    pub(super) fn recalls_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        // Each pass takes one out of the table, so this ends.
        while let Some(id) = self.recalls.late(now) {
            self.counters.recalls_late += 1;
            self.recall_over(now, id, out);
        }
        while let Some((id, at)) = self.recalls.take_owed_late(now) {
            self.keepers.close(at);
            if self.sessions.get(id).is_some_and(|session| session.owner.recalled_lacks()) {
                self.counters.recalls_late += 1;
                self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
            }
        }
    }
}
