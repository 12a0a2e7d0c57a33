//! An independent and simple model of the tasks of a simulated cell. It is part of every checkpoint, so that an owner that lost,
//! repeated or reordered a task is detected.
//!
//! One list for everything, in the order in which it was queued. The owner's own structure has a
//! map and queues (I37); the two have nothing in common but the rules of docs/decisions/tasks.md.

use marram_session::cell::TaskChange;

/// Words of a saved task or lock: queue, stage, lock, token.
const WORDS: usize = 4;

/// A task in a queue. Queue 0 is the run queue; another queue is that of a lock, and its first task holds the lock.
type Place = (u64, u8, u64, u64);

/// Tasks and locks in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Tasks(Vec<Place>);

impl Tasks {
    /// Runs a task: whether it is the next one in the run queue.
    ///
    /// The run queue has all stages' tasks in one order. Taking removes the task also if it was the
    /// wrong one: the caller reports that.
    pub(super) fn take(&mut self, stage: u8, token: u64) -> bool {
        let first = self.0.iter().position(|place| place.0 == 0);
        first.is_some_and(|at| self.0.remove(at) == (0, stage, 0, token))
    }

    /// Applies the effects of a handler. False if only a broken host could have allowed them.
    pub(super) fn change(&mut self, changes: &[TaskChange]) -> bool {
        // Rules: a task is in the run queue at most once; one that waits for a lock is not
        // runnable; a lock goes to the first that waits.
        changes.iter().all(|change| match *change {
            TaskChange::Spawn { stage, token } => {
                self.spawn(stage, token);
                true
            }
            TaskChange::Lock { stage, id, token } => {
                match self.holder(stage, id) {
                    Some(holder) if holder == token => self.spawn(stage, token),
                    Some(_) => {
                        if !self.waits(stage, token) {
                            self.0.retain(|place| *place != (0, stage, 0, token));
                            self.0.push((1, stage, id, token));
                        }
                    }
                    None => {
                        self.0.push((1, stage, id, token));
                        self.spawn(stage, token);
                    }
                }
                true
            }
            TaskChange::Unlock { stage, id, token } => {
                let held = self.holder(stage, id) == Some(token);
                self.0.retain(|place| !held || *place != (1, stage, id, token));
                if let Some(next) = self.holder(stage, id).filter(|_| held) {
                    self.spawn(stage, next);
                }
                held
            }
        })
    }

    /// Whether the run queue is empty.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.iter().all(|place| place.0 != 0)
    }

    /// Queues a task, unless it is queued or waits.
    fn spawn(&mut self, stage: u8, token: u64) {
        if !self.waits(stage, token) && !self.0.contains(&(0, stage, 0, token)) {
            self.0.push((0, stage, 0, token));
        }
    }

    /// The first task in a lock's queue holds the lock.
    fn holder(&self, stage: u8, id: u64) -> Option<u64> {
        let of_lock = |place: &&Place| (place.0, place.1, place.2) == (1, stage, id);
        self.0.iter().find(of_lock).map(|place| place.3)
    }

    /// Whether a task waits for a lock.
    fn waits(&self, stage: u8, token: u64) -> bool {
        let its = |place: &&Place| (place.0, place.1, place.3) == (1, stage, token);
        self.0.iter().filter(its).any(|place| self.holder(stage, place.2) != Some(token))
    }

    /// Encoded, with the count first.
    pub(super) fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::from((self.0.len() as u64).to_le_bytes());
        for (kind, stage, id, token) in &self.0 {
            for word in [*kind, u64::from(*stage), *id, *token] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes the result of [`Tasks::save`]; also returns the bytes after it.
    pub(super) fn load(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (words, rest) = rest.split_at_checked(count.checked_mul(WORDS * 8)?)?;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let place = |bytes: &[u8]| {
            let mut words = bytes.chunks_exact(8).map(word);
            let mut next = || words.next();
            Some((next()?, u8::try_from(next()?).ok()?, next()?, next()?))
        };
        Some((Self(words.chunks_exact(WORDS * 8).map(place).collect::<Option<_>>()?), rest))
    }
}
