//! Sessions refused for a reason that an operator can fix: which of them to log, within a rate, and how many still
//! retry. Decides nothing.

use alloc::collections::BTreeMap;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::Code, id::SessionId};

/// A session that has not retried for so long waits no longer, or is elsewhere: agents retry every half second.
const FORGET_NS: u64 = 10_000_000_000;
/// Sessions remembered at a time. Others are not counted, and may be logged again.
pub const REMEMBERED_MAX: usize = 1_024;
/// Log lines in a burst; then one per [`LINE_NS`].
const LINES: u64 = 10;
const LINE_NS: u64 = 1_000_000_000;

/// Sessions that were refused recently.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The reason, and when it was last given.
    sessions: BTreeMap<SessionId, (Code, u64)>,
    lines: u64,
    filled_ns: u64,
    suppressed: u64,
}

impl Default for Refused {
    fn default() -> Self {
        Self { sessions: BTreeMap::new(), lines: LINES, filled_ns: 0, suppressed: 0 }
    }
}

impl Refused {
    /// A session was refused for this reason: whether to log it, and how many lines were suppressed before.
    pub(crate) fn tell(&mut self, now_ns: u64, session: SessionId, code: Code) -> Option<u64> {
        let before = self.sessions.get(&session).copied();
        if before.is_none() && self.sessions.len() >= REMEMBERED_MAX {
            self.sessions.retain(|_, (_, at_ns)| now_ns < *at_ns + FORGET_NS);
        }
        if before.is_some() || self.sessions.len() < REMEMBERED_MAX {
            self.sessions.insert(session, (code, now_ns));
        }
        if before.is_some_and(|(reported, at_ns)| reported == code && now_ns < at_ns + FORGET_NS) {
            return None;
        }
        let earned = now_ns.saturating_sub(self.filled_ns) / LINE_NS;
        self.lines = LINES.min(self.lines + earned);
        self.filled_ns += earned * LINE_NS;
        if self.lines == 0 {
            self.suppressed += 1;
            return None;
        }
        self.lines -= 1;
        Some(core::mem::take(&mut self.suppressed))
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns refused sessions.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I39", self.sessions.len() <= REMEMBERED_MAX && self.lines <= LINES);
        Ok(())
    }

    /// The session was admitted.
    pub(crate) fn admitted(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// How many sessions still retry.
    pub(crate) fn waiting(&self, now_ns: u64) -> usize {
        let waits = |(code, at_ns): &&(Code, u64)| code.is_retryable() && now_ns < *at_ns + FORGET_NS;
        self.sessions.values().filter(waits).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> SessionId {
        SessionId(u128::from(number).to_le_bytes())
    }

    #[test]
    fn each_session_is_logged_once_while_it_asks() {
        let mut refused = Refused::default();
        for second in 0..20 {
            let told = refused.tell(second * LINE_NS / 2, session(1), Code::UnknownImage);
            assert_eq!(told, (second == 0).then_some(0), "{second}");
        }
        assert_eq!(refused.tell(10 * LINE_NS, session(1), Code::NoServerAgent), Some(0), "another reason");
        assert_eq!(refused.waiting(10 * LINE_NS), 1);
        assert_eq!(refused.waiting(10 * LINE_NS + FORGET_NS), 0);
        refused.admitted(session(1));
        assert_eq!(refused.tell(11 * LINE_NS, session(1), Code::NoServerAgent), Some(0), "it came back");
    }

    #[test]
    fn a_flood_is_counted_and_not_remembered() {
        let mut refused = Refused::default();
        let told = (0..5_000).filter(|n| refused.tell(0, session(*n), Code::NoServerAgent).is_some()).count();
        assert_eq!((told as u64, refused.waiting(0)), (LINES, REMEMBERED_MAX));
        assert_eq!(refused.tell(LINE_NS, session(9_999), Code::NoServerAgent), Some(5_000 - LINES));
        assert_eq!(refused.tell(FORGET_NS, session(10_000), Code::NoServerAgent), Some(0));
        assert_eq!(refused.waiting(FORGET_NS), 1, "those that asked once are forgotten");
    }
}
