//! Differences for programs that use datagrams: when one is dropped, when one is too large, and how such a conversation
//! ends, since no datagram signals its end.
//!
//! A datagram may be dropped before an end has numbered it, never after (docs/protocol.md, "Datagrams").

use super::{Agent, AgentOutput, EndId, local::reset};
use crate::end::{End, EndEffect};
use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{frame::Code, limits::DATAGRAM_SIZE_MAX};

/// Why an output cannot be sent to a program that uses datagrams, if it cannot.
pub(super) fn oversize(bytes: &Bytes) -> Option<String> {
    (bytes.len() > DATAGRAM_SIZE_MAX).then(|| {
        alloc::format!(
            "the cell sent a message of {} bytes to a peer that uses datagrams; the maximum is {DATAGRAM_SIZE_MAX}",
            bytes.len()
        )
    })
}

/// Why a session cannot continue without its program.
pub(super) fn broken(flow: bool) -> &'static str {
    if flow {
        "its peer cannot be reached; or it was silent, and the cell did not end the session in as much time again"
    } else {
        "the program reset its connection"
    }
}

impl Agent {
    /// Datagrams that were dropped because their session had no room for them, or had closed its input.
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.datagrams_dropped
    }

    /// Whether to drop a datagram from the program at this end.
    pub(super) fn drops(end: &End, bytes: &Bytes) -> bool {
        end.datagrams() && !end.has_place(bytes.len())
    }

    /// The cell has closed its output: a program that cannot signal its end is treated as closed, too.
    pub(super) fn answered(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        let mut effects: Vec<EndEffect> = core::mem::take(&mut self.effects);
        let Some(session) = self.sessions.known_mut(id) else { return };
        session.end.close(&mut effects);
        self.perform(now_ns, id, effects, out);
    }

    /// The cell sent a message that is too large for a datagram: its session cannot continue, here or after a recovery.
    pub(super) fn overflowed(&mut self, now_ns: u64, id: EndId, reason: String, out: &mut Vec<AgentOutput>) {
        if let Some(connection) = self.sessions.get_mut(id).and_then(|session| session.local.id.take()) {
            self.connections.remove(connection);
            out.push(reset(connection, Some(id.session), Code::Guest, &reason));
        }
        self.give_up(now_ns, id, Code::Guest, reason, out);
    }
}
