//! Session time, as owners tell it to ends: once an end knows it, no later owner is ahead of it, whatever the edges' wall clocks say.
//! An owner may be behind, since what it is told was on its way meanwhile. An earlier owner of a shared cell, to which nothing is confirmed
//! any more, may tell a client that has gone to the next one: its end refuses that.

use marram_wire::id::{Generation, SessionId};
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// Session times less the time of the history, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// What was last sent, by wire and channel, and in which generation.
    sent: BTreeMap<(usize, u32), (Generation, i64)>,
    /// What an end of the session has first accepted, and in which generation.
    accepted: BTreeMap<SessionId, (Generation, i64)>,
    /// Where an owner has asked for a session as a new one, of which it knows nothing.
    begins: BTreeSet<(usize, u32)>,
    /// The session that is in there since the last time.
    is_new: Option<SessionId>,
}

impl Clocks {
    /// An owner asks, over this channel, for the session of a client that its cell does not know. The client has neither sent nor received
    /// anything: it begins again, perhaps with another cell in the place of one that is lost.
    pub(crate) fn begins(&mut self, channel: (usize, u32)) {
        self.begins.insert(channel);
    }

    /// An owner tells an end of a session the session time. An error if it is ahead.
    pub(crate) fn sent(
        &mut self,
        now_ns: u64,
        channel: (usize, u32),
        (session, generation): (SessionId, Generation),
        session_ns: i64,
    ) -> Result<(), String> {
        let offset_ns = session_ns.saturating_sub_unsigned(now_ns);
        if self.begins.remove(&channel) {
            self.accepted.remove(&session);
        }
        self.sent.insert(channel, (generation, offset_ns));
        let ahead = |(first, known_ns): &&(Generation, i64)| generation >= *first && *known_ns < offset_ns;
        self.accepted.get(&session).filter(ahead).map_or(Ok(()), |(_, known_ns)| {
            Err(format!("the time of {session} is {} ns ahead of what its ends know", offset_ns - known_ns))
        })
    }

    /// The clients of a hall may get another one: what was accepted is forgotten.
    pub(crate) fn begin_again(&mut self) {
        (self.accepted, self.is_new) = Default::default();
    }

    /// It has reached the end at this channel, which accepts it unless [`Self::refused`] is called next.
    pub(crate) fn accepted(&mut self, channel: (usize, u32), session: SessionId) {
        self.is_new = None;
        if let Some(sent) = self.sent.get(&channel)
            && let Entry::Vacant(first) = self.accepted.entry(session)
        {
            first.insert(*sent);
            self.is_new = Some(session);
        }
    }

    /// The end has left the owner whose word reached it last.
    pub(crate) fn refused(&mut self) {
        if let Some(session) = self.is_new.take() {
            self.accepted.remove(&session);
        }
    }
}
