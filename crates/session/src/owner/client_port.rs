//! A client of a shared cell, or a server to which it connects, as the cell's owner knows it.

use super::connections::Connection;
use alloc::boxed::Box;
use marram_wire::{
    frame::Channel,
    id::Generation,
    log::{Client, PortEvent},
};

/// How far a client's end is.
///
/// ```text
/// Away ──asked──▶ Asked ──it promised, and sent what it announced──▶ Entering ──logged──▶ Confirming ──kept──▶ Linked
///  ▲                └──────── its connection breaks, or it has promised another edge ────────┴────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PortPhase {
    /// There is no connection to it.
    Away,
    /// It was asked for its promise.
    Asked(Channel),
    /// An entry is to say that it has promised.
    Entering(Channel),
    /// That entry ends at this log offset. Until the backup has it, the end must not be told that this owner goes on.
    Confirming(Channel, u64),
    /// Outputs go to it, on the channel of its side.
    Linked,
}

/// The client at a port.
#[derive(Debug)]
pub(super) struct ClientPort {
    /// As the log has it: its generation is the newest one that is logged.
    pub(super) client: Client,
    /// If it is no client, but a server to which the cell connects.
    pub(super) connection: Option<Box<Connection>>,
    /// The newest generation that its end was asked for.
    pub(super) asked: Generation,
    pub(super) phase: PortPhase,
    /// How often in a row its end had promised another edge.
    pub(super) again: u32,
    /// Whether its end was asked to say that it has everything, on this channel.
    pub(super) finishes: bool,
    /// What the log is to say of it next.
    pub(super) pending: Option<PortEvent>,
    /// A handler of its input was stopped: it is to leave.
    pub(super) expelled: bool,
    /// Since when its end is away, in monotonic nanoseconds; none before a tick has seen it, and of a server.
    pub(super) away_since_ns: Option<u64>,
}

impl ClientPort {
    /// Its end was not asked yet.
    pub(super) fn new(client: Client) -> Box<Self> {
        let (asked, phase) = (client.generation, PortPhase::Away);
        let (finishes, expelled, pending, connection) = (false, false, None, None);
        let (again, away_since_ns) = (0, None);
        Box::new(Self { client, connection, asked, phase, again, finishes, pending, expelled, away_since_ns })
    }

    /// The channel to its end, linked or not; `linked` is that of the side.
    pub(super) fn channel(&self, linked: Option<Channel>) -> Option<Channel> {
        match self.phase {
            PortPhase::Away => None,
            PortPhase::Asked(channel) | PortPhase::Entering(channel) | PortPhase::Confirming(channel, _) => {
                Some(channel)
            }
            PortPhase::Linked => linked,
        }
    }

    /// Whether its messages wait: its end is promising, and sends what was consumed already; the log has to say something of it first; or
    /// it was expelled.
    pub(super) fn rests(&self) -> bool {
        self.expelled || self.pending.is_some() || matches!(self.phase, PortPhase::Asked(_))
    }

    /// Whether the log says, or is to say, that it leaves.
    pub(super) fn leaves(&self) -> bool {
        matches!(self.pending, Some(PortEvent::Left { .. }))
    }
}
