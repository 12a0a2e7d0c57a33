//! Why a session was refused or is over, as frames say it.

use crate::codec::{Error, Field};
use bytes::{Bytes, BytesMut};

/// Why a session was refused or is over; decides what an agent does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    /// Both sides are done.
    Finished = 0,
    /// The edge has no such app; another edge may have it.
    UnknownApp = 1,
    /// The edge does not have the session's image; another edge may have it.
    UnknownImage = 2,
    /// The proof does not match the session's key: final.
    WrongKey = 3,
    /// No agent of the app's server is connected to this edge.
    NoServerAgent = 4,
    /// The server could not be reached by its agent.
    ServerDown = 5,
    /// The edge is full or shutting down: try another, or later.
    Busy = 6,
    /// The handler was stopped twice at one position, or broke a quota: final.
    Guest = 7,
    /// What an end keeps does not verify: final.
    Tampered = 8,
    /// The other end does not know the session any more: final.
    Forgotten = 9,
    /// An operator ended it: final.
    Killed = 10,
    /// An end kept nothing (`none`) and its connection broke: final.
    Lost = 11,
    /// The peer broke the protocol: final.
    Protocol = 12,
    /// Another owner is newer; follow that owner.
    Superseded = 13,
    /// No edge could be reached in the configured time: final.
    NoEdge = 14,
    /// The other end is not connected to this edge yet; the edge will answer when it is, or retry.
    Waiting = 15,
    /// The program at one end reset its connection: final.
    Reset = 16,
    /// The shared cell is on another shard of this edge: try the other shards.
    Elsewhere = 17,
    /// The agent's credential does not allow it: final.
    Forbidden = 18,
    /// Between edges: the shared cell's edge has handed it to another one, which has claimed it. Its backup keeps its copy.
    HandedOn = 19,
}

impl Code {
    /// Whether a retry, here or elsewhere, can succeed.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::UnknownApp
                | Self::UnknownImage
                | Self::NoServerAgent
                | Self::Busy
                | Self::Superseded
                | Self::Waiting
                | Self::Elsewhere
        )
    }
}

impl Field for Code {
    fn put(&self, out: &mut BytesMut) {
        (*self as u8).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        use Code::*;
        let all = [
            Finished,
            UnknownApp,
            UnknownImage,
            WrongKey,
            NoServerAgent,
            ServerDown,
            Busy,
            Guest,
            Tampered,
            Forgotten,
            Killed,
            Lost,
            Protocol,
            Superseded,
            NoEdge,
            Waiting,
            Reset,
            Elsewhere,
            Forbidden,
            HandedOn,
        ];
        all.get(usize::from(u8::take(from)?)).copied().ok_or(Error::Unknown)
    }
}
