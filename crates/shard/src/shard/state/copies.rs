//! The bandwidth of moves: how fast the copies of sessions that move are sent, part by part.
//!
//! ```text
//! a part could be sent -> waiting (first in, first out) -> its turn, at the earliest when the last parts have had their time -> sent
//! ```
//! Live traffic, the log that the other edge is fed, and copies for standbys are not limited here.

use alloc::collections::VecDeque;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::id::SessionId;

/// A shard that wakes late sends the parts of so much time at once, and no more.
const LATE_NS: u64 = 10_000_000;
const S: u64 = 1_000_000_000;

/// The copies of a shard. Limits are in bytes a second; 0 is none.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Sessions of which a part could be sent, each once.
    waiting: VecDeque<SessionId>,
    /// When the next part may be sent.
    next_ns: u64,
}

impl Copies {
    /// A part of this session could be sent.
    pub(crate) fn wait(&mut self, session: SessionId) {
        self.waiting.push_back(session);
    }

    /// The session does not move any more.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|waiting| *waiting != session);
    }

    /// Sessions that wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// When the next part may be sent, if a session waits for that.
    pub(crate) fn due_ns(&self, limit: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(if limit == 0 { 0 } else { self.next_ns })
    }

    /// The session of which a part is sent now, if it is time.
    pub(crate) fn next(&mut self, now_ns: u64, limit: u64) -> Option<SessionId> {
        self.due_ns(limit).filter(|due_ns| *due_ns <= now_ns)?;
        self.waiting.pop_front()
    }

    /// So many bytes were sent: the next part waits for as long as they may take.
    pub(crate) fn sent(&mut self, now_ns: u64, bytes: u64, limit: u64) {
        if limit > 0 {
            let took_ns = u128::from(bytes) * u128::from(S) / u128::from(limit);
            let from_ns = self.next_ns.max(now_ns.saturating_sub(LATE_NS));
            self.next_ns = from_ns.saturating_add(u64::try_from(took_ns).unwrap_or(u64::MAX));
        }
    }

    /// Checks I47 of docs/protocol.md, as far as it concerns copies: `waits` says which session waits here.
    pub(crate) fn invariants(&self, waits: impl Fn(SessionId) -> bool) -> Result<(), BrokenInvariant> {
        holds!("I47", self.waiting.iter().all(|session| waits(*session)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 1_000_000;
    const PART: u64 = 64 << 10;
    const LIMIT: u64 = 1 << 20;

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    /// Sends what may be sent at this time, where each session waits again at once.
    fn send(copies: &mut Copies, now_ns: u64, limit: u64) -> Vec<SessionId> {
        let mut sent = Vec::new();
        while let Some(session) = copies.next(now_ns, limit) {
            copies.sent(now_ns, PART, limit);
            copies.wait(session);
            sent.push(session);
        }
        sent
    }

    #[test]
    fn parts_are_sent_at_the_rate_and_in_turn() {
        let mut copies = Copies::default();
        (0..3).for_each(|number| copies.wait(session(number)));
        let mut sent = Vec::new();
        // The shard is woken whenever it asked for that.
        while copies.due_ns(LIMIT).is_some_and(|due_ns| due_ns < 3 * S) {
            let due_ns = copies.due_ns(LIMIT).unwrap();
            sent.extend(send(&mut copies, due_ns, LIMIT));
        }
        assert!((3 * LIMIT / PART).abs_diff(sent.len() as u64) <= 1, "{}", sent.len());
        assert!(sent.windows(3).all(|turn| turn[0] != turn[1] && turn[1] != turn[2] && turn[0] != turn[2]));
    }

    #[test]
    fn what_was_not_used_is_not_saved_and_a_late_shard_does_not_lose_it() {
        let limit = 100 * LIMIT;
        let mut copies = Copies::default();
        copies.wait(session(1));
        assert!(send(&mut copies, 100 * S, limit).len() as u64 <= 10 * MS * limit / S / PART + 2);
        // It wakes every 5 ms.
        let sent: usize = (1..=200).map(|at| send(&mut copies, 100 * S + at * 5 * MS, limit).len()).sum();
        assert!((limit / PART).abs_diff(sent as u64) <= 20, "{sent}");
    }

    #[test]
    fn without_a_limit_nothing_waits_and_a_session_that_stays_is_forgotten() {
        let mut copies = Copies::default();
        copies.wait(session(1));
        copies.wait(session(2));
        copies.sent(0, PART, 1);
        assert_eq!(copies.next(0, 1), None, "it is not time");
        copies.forget(session(1));
        assert_eq!(copies.next(0, 0), Some(session(2)));
        assert_eq!((copies.next(0, 0), copies.due_ns(1)), (None, None));
    }
}
