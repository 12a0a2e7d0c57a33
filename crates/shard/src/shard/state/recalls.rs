//! Sessions that a recorder was asked for and has not sent completely, and until when each is waited for
//! (docs/protocol-keepers.md, "Recorder").

use super::sessions::At;
use crate::api::{Now, ShardWireId};
use alloc::collections::BTreeMap;
use marram_wire::{frame::Hello, id::SessionId};

const MS: u64 = 1_000_000;

/// How long a recorder may take to answer for a session that is recovered, and to send its replica.
const RECALL_NS: u64 = 50 * MS;
const RECALLED_NS: u64 = 500 * MS;
/// The deadline grows by this for each received byte of a checkpoint: a recorder must send at least a megabyte per
/// second.
const RECALLED_BYTE_NS: u64 = 1_000;

/// A session that waits for a recorder's answer before its recovery.
#[derive(Debug)]
pub(crate) struct Recalling {
    /// The hello that asked for the session, which is handled again then.
    pub(crate) hello: (ShardWireId, Hello),
    pub(crate) at: At,
    until_ns: u64,
}

/// A session in recovery that still waits for a checkpoint from a recorder.
#[derive(Debug)]
struct Owed {
    at: At,
    until_ns: u64,
}

/// All recalls of a shard. A session is in one of the two tables, or in none.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    /// Sessions with a recovery that waits for log and messages.
    asked: BTreeMap<SessionId, Recalling>,
    /// Sessions with a recovery that continues, and needs the checkpoint at the end.
    owed: BTreeMap<SessionId, Owed>,
}

impl Recalls {
    /// When the wait for a recorder ends next.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let asked = self.asked.values().map(|recalling| recalling.until_ns);
        asked.chain(self.owed.values().map(|owed| owed.until_ns)).min()
    }

    /// Whether a recovery of the session waits.
    pub(crate) fn is_asked(&self, id: SessionId) -> bool {
        self.asked.contains_key(&id)
    }

    /// A recorder is asked for a session.
    pub(crate) fn ask(&mut self, now: Now, wire: ShardWireId, hello: Hello, at: At) {
        let until_ns = now.mono_ns + RECALL_NS;
        self.asked.insert(hello.session, Recalling { hello: (wire, hello), at, until_ns });
    }

    /// The recorder has the session. Returns the hello that asked for it.
    pub(crate) fn answered(&mut self, now: Now, id: SessionId) -> Option<(ShardWireId, Hello)> {
        let recalling = self.asked.get_mut(&id)?;
        recalling.until_ns = now.mono_ns + RECALLED_NS;
        Some(recalling.hello.clone())
    }

    /// The recovery of a session does not wait any more.
    pub(crate) fn take_asked(&mut self, id: SessionId) -> Option<Recalling> {
        self.asked.remove(&id)
    }

    /// The recovery continues, and the recorder owes it a checkpoint on this channel.
    pub(crate) fn owe(&mut self, now: Now, id: SessionId, at: At) {
        self.owed.insert(id, Owed { at, until_ns: now.mono_ns + RECALLED_NS });
    }

    /// No checkpoint is waited for any more. Returns the channel, which nothing else would close: a recorder that gave
    /// everything does not end it.
    pub(crate) fn take_owed(&mut self, id: SessionId) -> Option<At> {
        self.owed.remove(&id).map(|owed| owed.at)
    }

    /// Extends the deadlines after bytes of a checkpoint have arrived.
    pub(crate) fn given(&mut self, now: Now, id: SessionId, bytes: u64) {
        let asked = self.asked.get_mut(&id).map(|recalling| &mut recalling.until_ns);
        let owed = self.owed.get_mut(&id).map(|owed| &mut owed.until_ns);
        for until_ns in asked.into_iter().chain(owed) {
            let longer_ns = until_ns.saturating_add(bytes.saturating_mul(RECALLED_BYTE_NS));
            *until_ns = longer_ns.min(now.mono_ns + RECALLED_NS).max(*until_ns);
        }
    }

    /// A recovery that has waited for too long.
    pub(crate) fn late(&self, now: Now) -> Option<SessionId> {
        let is_late = |recalling: &Recalling| recalling.until_ns <= now.mono_ns;
        self.asked.iter().find(|(_, recalling)| is_late(recalling)).map(|(id, _)| *id)
    }

    /// A session with a checkpoint that was waited for long enough: it is here, or is taken for lost.
    pub(crate) fn take_owed_late(&mut self, now: Now) -> Option<(SessionId, At)> {
        let is_late = |owed: &Owed| owed.until_ns <= now.mono_ns;
        let id = self.owed.iter().find(|(_, owed)| is_late(owed)).map(|(id, _)| *id)?;
        self.take_owed(id).map(|at| (id, at))
    }

    /// Sessions that wait for the recorder's answer, and the channel of each.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (SessionId, At)> {
        self.asked.iter().map(|(id, recalling)| (*id, recalling.at))
    }

    /// Sessions that still wait for a checkpoint, and the channel of each.
    pub(crate) fn owed(&self) -> impl Iterator<Item = (SessionId, At)> {
        self.owed.iter().map(|(id, owed)| (*id, owed.at))
    }
}
