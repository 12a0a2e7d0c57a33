//! Which session a channel is of, as the frames that opened it have said.

use super::Watch;
use marram_wire::id::SessionId;

impl Watch {
    /// The session whose end is at the other side of this channel, and whether that is the server's end.
    pub(crate) fn end_on(&self, wire: usize, channel: u32) -> Option<(SessionId, bool)> {
        self.channels.get(&(wire, channel)).map(|bound| (bound.session, bound.server))
    }

    /// The session that a keeper is fed on this channel.
    pub(crate) fn fed_on(&self, wire: usize, channel: u32) -> Option<SessionId> {
        self.feeds.session_of(wire, channel)
    }
}
