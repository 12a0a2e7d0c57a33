//! The memory of an agent, or of a shard: what all its sessions keep together, and the share of it that each may have.
//!
//! The share is an eighth of what is free. So it shrinks as memory fills: a few sessions get as much as they want, a
//! thousand get about equal parts, and free memory never runs out by messages alone (the dynamic threshold of
//! shared-memory switches: Choudhury and Hahne, 1998). It depends on one sum, whatever the number of sessions.
//!
//! A small share makes the owners take checkpoints earlier. In an agent, sessions that keep more than their share wait before
//! they read from their programs; in a shard, their cells rest, and their ends get less credit. Nothing is dropped, and no
//! session ends. New sessions wait until there is room.

use crate::{end::Share, holds, invariant::BrokenInvariant};
use alloc::collections::BTreeSet;
use core::ops::Bound::{Excluded, Unbounded};
use marram_wire::limits::{CHECKPOINTS_SIZE, MESSAGE_SIZE_MAX, RETAINED_MAX, STREAM_CUT, charge};

/// Least memory that an agent or a shard can be given, in bytes.
pub const MEMORY_MIN: u64 = 16 << 20;
/// Memory of an agent, or of all shards of an edge, in bytes, if nothing is configured: half of the smallest machine that is
/// likely to run a server beside it. It changes nothing for a hundred busy sessions, which keep 4 MiB each between two checkpoints, or for
/// one whose checkpoints fill their limit ([`marram_wire::limits::CHECKPOINTS_SIZE`]).
pub const MEMORY: u64 = 1 << 30;
/// What a session takes beside messages, log and checkpoints, in bytes.
pub(crate) const SESSION_BYTES: u64 = 4 << 10;
/// One part of so many stays free: for the message that each session may always keep, and for checkpoints that arrive.
const RESERVE: u64 = 8;
/// A share is one part of so many of what is free.
const SHARES: u64 = 8;
/// While sessions wait for room, some of them are looked at so often, in nanoseconds.
const LOOK_NS: u64 = 2_000_000;
/// How many sessions are looked at in one step, and in one that was asked for that.
const LOOKS: usize = 2;
const LOOKS_DUE: usize = 64;

const _: () = assert!(
    (MEMORY - MEMORY / RESERVE - CHECKPOINTS_SIZE) / SHARES >= RETAINED_MAX,
    "one large session leaves the others what they would have alone"
);
const _: () = assert!(
    (MEMORY_MIN - MEMORY_MIN / RESERVE) / SHARES >= charge(MESSAGE_SIZE_MAX),
    "the least memory has room for the largest message"
);

/// What an agent or a shard keeps, for operators.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Memory {
    /// The configured limit, in bytes.
    pub max: u64,
    /// Bytes kept: messages, log, checkpoints, outputs that programs have not taken, and a part for each session.
    pub kept: u64,
    /// Sessions of an agent that wait before they read from their programs.
    pub slowed: usize,
    /// How often a session had to wait.
    pub slowed_total: u64,
}

/// The memory of one agent or shard, whose sessions have names of type `I`.
#[derive(Debug)]
pub struct Budget<I> {
    max: u64,
    kept: u64,
    sessions: usize,
    /// Sessions that have stopped reading for want of room.
    slowed: BTreeSet<I>,
    /// The one that was looked at last.
    turn: Option<I>,
    slowed_total: u64,
    /// The allowance that was last announced to all sessions.
    announced: u64,
    /// Whether it is being announced, and how far that is.
    announcing: Option<Option<I>>,
    /// When to look again.
    look_ns: Option<u64>,
    /// Whether it was reported that sessions are slowed or wait.
    reported: bool,
}

/// A change that operators should learn of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BudgetChange {
    /// Sessions are slowed, or new ones wait.
    Full,
    /// There is room again.
    Free,
}

impl<I: Copy + Ord> Budget<I> {
    /// The memory of an agent or a shard that may keep `max` bytes.
    #[must_use]
    pub fn new(max: u64) -> Self {
        Self {
            max,
            kept: 0,
            sessions: 0,
            slowed: BTreeSet::new(),
            turn: None,
            slowed_total: 0,
            announced: Share::of(u64::MAX).allowance(),
            announcing: None,
            look_ns: None,
            reported: false,
        }
    }

    /// What is not kept and not in reserve.
    fn free(&self) -> u64 {
        (self.max - self.max / RESERVE).saturating_sub(self.kept)
    }

    /// Changes how much may be kept, in bytes.
    pub fn set_max(&mut self, max: u64) {
        self.max = max;
    }

    /// What each session may keep.
    #[must_use]
    pub fn share(&self) -> Share {
        Share::of(self.free() / SHARES)
    }

    /// What each end of a session may have in flight, however little is kept: credit that was granted cannot be taken back. If
    /// all sessions of a shard have two ends with so much, these take half of the memory. In an agent it is for the outputs of each end, which take a
    /// quarter.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.max / 4 / (self.sessions as u64).max(1)
    }

    /// Whether one more session fits. One alone always does.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.sessions == 0 || self.free() >= charge(STREAM_CUT) + SESSION_BYTES
    }

    /// What is kept, for operators.
    #[must_use]
    pub fn figures(&self) -> Memory {
        let (max, kept, slowed_total) = (self.max, self.kept, self.slowed_total);
        Memory { max, kept, slowed: self.slowed.len(), slowed_total }
    }

    /// A session begins. Returns what it counts for.
    pub fn add(&mut self) -> u64 {
        self.sessions += 1;
        self.kept += SESSION_BYTES;
        SESSION_BYTES
    }

    /// A session keeps `held` bytes now, and counted for `counted`, which is updated.
    pub fn count(&mut self, counted: &mut u64, held: u64) {
        let counts = Self::counts(held);
        self.kept = self.kept - *counted + counts;
        *counted = counts;
    }

    /// What a session that keeps `held` bytes counts for.
    #[must_use]
    pub fn counts(held: u64) -> u64 {
        held + SESSION_BYTES
    }

    /// A session has ended that counted for so much.
    pub fn remove(&mut self, id: I, counted: u64) {
        self.sessions -= 1;
        self.kept -= counted;
        self.slowed.remove(&id);
    }

    /// A session has stopped reading from its program.
    pub fn slow(&mut self, id: I) {
        self.slowed_total += u64::from(self.slowed.insert(id));
    }

    /// A session reads again.
    pub fn release(&mut self, id: I) {
        self.slowed.remove(&id);
    }

    /// When the agent or shard must be woken to look at sessions.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        self.look_ns
    }

    /// How many sessions to look at now.
    #[must_use]
    pub fn looks(&self, now_ns: u64) -> usize {
        if self.look_ns.is_some_and(|look_ns| look_ns <= now_ns) { LOOKS_DUE } else { LOOKS }
    }

    /// The next session that may read again, in turn.
    pub fn next_slowed(&mut self) -> Option<I> {
        let from = self.turn.map_or(Unbounded, Excluded);
        let next = self.slowed.range((from, Unbounded)).next().or_else(|| self.slowed.first());
        self.turn = next.copied();
        self.turn
    }

    /// The allowance has become smaller: all sessions are looked at, since those that are idle keep most. Returns how far
    /// that has come.
    pub fn announces(&mut self) -> Option<Option<I>> {
        let allowance = self.share().allowance();
        if allowance < self.announced {
            self.announced = allowance;
            self.announcing = Some(None);
        } else if allowance / 4 >= self.announced {
            self.announced = allowance;
        }
        self.announcing
    }

    /// This session was looked at; none if there are no more.
    pub fn announced_to(&mut self, id: Option<I>) {
        self.announcing = id.map(Some);
    }

    /// After a step: when to look again, and what to report.
    pub fn settle(&mut self, now_ns: u64) -> Option<BudgetChange> {
        let looks = !self.slowed.is_empty() || self.announcing.is_some();
        let later_ns = self.look_ns.filter(|look_ns| *look_ns > now_ns);
        self.look_ns = looks.then(|| later_ns.unwrap_or(now_ns + LOOK_NS));
        let is_full = !self.slowed.is_empty() || !self.has_room();
        let is_free = !is_full && self.free() >= self.max / 4;
        match self.reported {
            false if is_full => {
                self.reported = true;
                Some(BudgetChange::Full)
            }
            true if is_free => {
                self.reported = false;
                Some(BudgetChange::Free)
            }
            _ => None,
        }
    }

    /// I44 of docs/protocol.md: what is kept is the sum over the sessions.
    ///
    /// # Errors
    /// If it is not.
    pub fn invariants(&self, counted: u64, sessions: usize) -> Result<(), BrokenInvariant> {
        holds!("I44", self.kept == counted && self.sessions == sessions);
        Ok(())
    }

    /// Sessions that have stopped reading for want of room.
    pub fn slowed(&self) -> impl ExactSizeIterator<Item = I> {
        self.slowed.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use marram_wire::limits::RETAINED_MIN;

    /// Sessions that all keep what they may.
    fn filled(max: u64, sessions: usize) -> (Budget<u64>, Vec<u64>) {
        let mut budget = Budget::new(max);
        let mut counted: Vec<u64> = (0..sessions).map(|_| budget.add()).collect();
        loop {
            let before = budget.kept;
            for counted in &mut counted {
                let (held, room) = (*counted - SESSION_BYTES, budget.share().room());
                if held + charge(STREAM_CUT) <= room {
                    budget.count(counted, held + charge(STREAM_CUT));
                }
            }
            if budget.kept == before {
                return (budget, counted);
            }
        }
    }

    #[test]
    fn sessions_that_want_all_get_equal_parts_within_the_limit() {
        for sessions in [1, 2, 30, 500, 4_000, 7_000] {
            let (budget, counted) = filled(MEMORY, sessions);
            let (least, most) = (counted.iter().min(), counted.iter().max());
            let (Some(least), Some(most)) = (least, most) else { panic!("there are sessions") };
            assert!(budget.kept <= MEMORY, "{sessions} sessions keep {}", budget.kept);
            assert!(most - least <= 2 * charge(STREAM_CUT), "{sessions} sessions keep {least} to {most}");
            assert!(
                most * 16 >= (MEMORY / sessions as u64).min(16 << 20),
                "{sessions} sessions keep only {most}"
            );
        }
    }

    #[test]
    fn beyond_the_limit_each_session_keeps_one_message_and_new_ones_wait() {
        let (budget, counted) = filled(MEMORY_MIN, 1_000);
        assert!(counted.iter().all(|counted| *counted - SESSION_BYTES <= RETAINED_MIN));
        assert!(!budget.has_room());
        assert!(Budget::<u64>::new(0).has_room(), "one session alone");
    }

    #[test]
    fn a_smaller_allowance_is_announced_once() {
        let mut budget = Budget::<u64>::new(MEMORY);
        let mut counted = budget.add();
        assert_eq!(budget.announces(), None);
        budget.count(&mut counted, MEMORY / 4 * 3);
        assert_eq!(budget.announces(), Some(None));
        budget.announced_to(None);
        assert_eq!(budget.announces(), None);
        budget.count(&mut counted, 0);
        assert_eq!(budget.announces(), None, "a larger one can wait");
        budget.count(&mut counted, MEMORY);
        assert_eq!(budget.announces(), Some(None), "and becomes smaller again");
    }

    #[test]
    fn that_memory_is_full_and_free_again_is_reported_once() {
        let mut budget = Budget::<u64>::new(MEMORY);
        let mut counted = budget.add();
        assert_eq!(budget.settle(1), None);
        budget.count(&mut counted, MEMORY);
        assert_eq!((budget.settle(2), budget.settle(3)), (Some(BudgetChange::Full), None));
        budget.count(&mut counted, MEMORY / 8 * 7 - (1 << 20));
        assert_eq!(budget.settle(4), None, "not while little is free");
        budget.count(&mut counted, 0);
        assert_eq!((budget.settle(5), budget.settle(6)), (Some(BudgetChange::Free), None));
    }
}
