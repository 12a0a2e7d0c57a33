//! Asks a recorder for its replica of a session that is to be recovered. The wait is short: what the recorder does not send in
//! time comes from the ends.

use super::Shard;
use crate::api::{Now, ShardOutput, ShardWireId};
use alloc::{collections::BTreeMap, string::ToString, vec::Vec};
use marram_session::{
    cell::Seed,
    owner::{Owner, OwnerPhase},
};
use marram_wire::{
    frame::{Channel, Code, Frame, Hello, Recall},
    id::SessionId,
    seal::SessionKeys,
};

const MS: u64 = 1_000_000;

/// How long a recorder may take to answer for a session that is recovered, and to send its replica.
const RECALL_NS: u64 = 50 * MS;
const RECALLED_NS: u64 = 500 * MS;
/// The deadline grows by this for each received byte of a checkpoint: a recorder must send at least a megabyte per second.
const RECALLED_BYTE_NS: u64 = 1_000;

/// A session that waits for a recorder's answer before its recovery.
#[derive(Debug)]
struct Recalling {
    hello: (ShardWireId, Hello),
    at: (ShardWireId, Channel),
    until_ns: u64,
}

/// A session in recovery that still waits for a checkpoint from a recorder.
#[derive(Debug)]
struct Owed {
    at: (ShardWireId, Channel),
    until_ns: u64,
}

/// Sessions that a recorder was asked for and has not sent completely.
#[derive(Debug, Default)]
pub(super) struct Recalls {
    /// Sessions with a recovery that waits for log and messages.
    asked: BTreeMap<SessionId, Recalling>,
    /// Sessions with a recovery that continues, and needs the checkpoint at the end.
    owed: BTreeMap<SessionId, Owed>,
}

impl Recalls {
    pub(super) fn due_ns(&self) -> Option<u64> {
        let asked = self.asked.values().map(|recalling| recalling.until_ns);
        asked.chain(self.owed.values().map(|owed| owed.until_ns)).min()
    }

    /// Sessions that wait for the recorder's answer, and the channel of each.
    pub(super) fn asked(&self) -> impl Iterator<Item = (SessionId, (ShardWireId, Channel))> {
        self.asked.iter().map(|(id, recalling)| (*id, recalling.at))
    }

    /// Sessions that still wait for a checkpoint, and the channel of each.
    pub(super) fn owed(&self) -> impl Iterator<Item = (SessionId, (ShardWireId, Channel))> {
        self.owed.iter().map(|(id, owed)| (*id, owed.at))
    }

    /// Extends the deadlines after bytes of a checkpoint have arrived.
    fn given(&mut self, now: Now, id: SessionId, bytes: u64) {
        let asked = self.asked.get_mut(&id).map(|recalling| &mut recalling.until_ns);
        let owed = self.owed.get_mut(&id).map(|owed| &mut owed.until_ns);
        for until_ns in asked.into_iter().chain(owed) {
            let longer_ns = until_ns.saturating_add(bytes.saturating_mul(RECALLED_BYTE_NS));
            *until_ns = longer_ns.min(now.mono_ns + RECALLED_NS).max(*until_ns);
        }
    }
}

impl Shard {
    /// Asks a recorder for a session that is not here and is to be recovered. True if there is an answer to wait for.
    pub(super) fn recall(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        if self.keepers.recalls.asked.contains_key(&hello.session) {
            return true;
        }
        let Some((at, _)) = self.recorder() else { return false };
        let Some(recorder) = self.wires.get_mut(&at) else { return false };
        let (channel, session) = (recorder.channel(), hello.session);
        if let Some(owed) = self.keepers.recalls.owed.remove(&session) {
            // What the recorder still sends there is of an earlier recovery.
            self.keepers.channels.remove(&owed.at);
        }
        self.keepers.channels.insert((at, channel), (session, None));
        let until_ns = now.mono_ns + RECALL_NS;
        let recalling = Recalling { hello: (wire, hello.clone()), at: (at, channel), until_ns };
        self.keepers.recalls.asked.insert(session, recalling);
        self.counters.recalls += 1;
        out.push(ShardOutput::Send { wire: at, frame: Recall { channel, session }.into() });
        true
    }

    pub(super) fn recall_frame(
        &mut self,
        now: Now,
        id: SessionId,
        wire: ShardWireId,
        channel: Channel,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        match frame {
            Frame::Ended(_) | Frame::Reject(_) => {
                self.keepers.channels.remove(&(wire, channel));
                self.recall_over(now, id, out);
            }
            Frame::Recalled(recalled) if !self.sessions.contains_key(&id) => {
                let Some(recalling) = self.keepers.recalls.asked.get_mut(&id) else { return };
                recalling.until_ns = now.mono_ns + RECALLED_NS;
                let (end, hello) = recalling.hello.clone();
                let made = self.recalled(now, end, &hello, recalled, out);
                if !made {
                    self.keepers.channels.remove(&(wire, channel));
                    self.recall_over(now, id, out);
                }
            }
            other => {
                let before = self.sessions.get(&id).is_some_and(|it| it.owner.recalled_whole());
                let bytes = match &other {
                    Frame::CheckpointPart(part) => part.bytes.len() as u64,
                    _ => 0,
                };
                self.with_owner(now, id, out, |owner, effects| owner.fed(now, other, effects));
                let whole = self.sessions.get(&id).is_some_and(|it| it.owner.recalled_whole());
                let gone = !self.sessions.contains_key(&id);
                self.keepers.recalls.given(now, id, bytes);
                if gone || (whole && !before) {
                    self.recall_over(now, id, out);
                }
            }
        }
    }

    /// Creates the owner that receives the recorder's replica.
    fn recalled(
        &mut self,
        now: Now,
        end: ShardWireId,
        hello: &Hello,
        recalled: marram_wire::frame::Recalled,
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        let keys = SessionKeys::derive(&self.secret, hello.session);
        let Ok(proven) = self.proven(end, hello, &keys) else { return false };
        let Ok((app, ends)) = self.resolve(now, end, hello, proven, out) else { return false };
        let hosts: Vec<_> = ends.iter().map(|(.., host)| *host).collect();
        let mut effects = Vec::new();
        let (policy, seed) = (super::policy(&app, &self.config), Seed(self.random.bytes()));
        let owner = Owner::new(hello.session, app.image, keys, policy, &hosts, seed);
        let Ok(owner) = owner.recalled(recalled, hello.promised, &mut effects) else { return false };
        let session = self.new_session(now, owner, &app);
        self.sessions.insert(hello.session, session);
        self.perform(now, hello.session, effects, out);
        // Without checkpoint and log there is nothing to wait for.
        let whole = self.sessions.get(&hello.session).is_some_and(|it| it.owner.recalled_whole());
        if whole {
            self.recall_over(now, hello.session, out);
        }
        true
    }

    /// The recorder has sent everything or failed: the session's recovery continues.
    pub(super) fn recall_over(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(recalling) = self.keepers.recalls.asked.remove(&id) else {
            // The recovery continued earlier; the checkpoints that were in flight are missing.
            return self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
        };
        let whole = self.sessions.get(&id).is_some_and(|it| it.owner.recalled_whole());
        if whole {
            self.counters.recalled += 1;
            let owed = Owed { at: recalling.at, until_ns: now.mono_ns + RECALLED_NS };
            self.keepers.recalls.owed.insert(id, owed);
        } else {
            self.keepers.channels.remove(&recalling.at);
            let following =
                self.sessions.get(&id).is_some_and(|it| it.owner.phase() == OwnerPhase::Following);
            if following {
                self.with_owner(now, id, out, |owner, effects| {
                    owner.step_down(Code::Waiting, "the recorder sent only a part".to_string(), effects);
                });
            }
        }
        let (wire, hello) = recalling.hello;
        if self.wires.contains_key(&wire) {
            self.hello_recalled(now, wire, hello, out);
        }
        // If the end that asked is gone, or was refused, nothing else would ever end what was recalled for it.
        let waits = self.waiting.iter().any(|(_, hello)| hello.session == id);
        let following = self.sessions.get(&id).is_some_and(|it| it.owner.phase() == OwnerPhase::Following);
        if following && !waits {
            if let Some(owed) = self.keepers.recalls.owed.remove(&id) {
                self.keepers.channels.remove(&owed.at);
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
        while let Some(id) = due(&self.keepers.recalls.asked, |recalling| recalling.until_ns, now) {
            self.counters.recalls_late += 1;
            self.recall_over(now, id, out);
        }
        while let Some(id) = due(&self.keepers.recalls.owed, |owed| owed.until_ns, now) {
            let Some(owed) = self.keepers.recalls.owed.remove(&id) else { continue };
            // A recorder that gave everything does not end its channel: nothing else would forget it.
            self.keepers.channels.remove(&owed.at);
            if self.sessions.get(&id).is_some_and(|it| it.owner.recalled_lacks()) {
                self.counters.recalls_late += 1;
                self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
            }
        }
    }
}

fn due<T>(waiting: &BTreeMap<SessionId, T>, until_ns: impl Fn(&T) -> u64, now: Now) -> Option<SessionId> {
    waiting.iter().find(|(_, it)| until_ns(it) <= now.mono_ns).map(|(id, _)| *id)
}
