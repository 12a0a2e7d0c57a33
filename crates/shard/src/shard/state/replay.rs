//! The shard's replay budget: the sum of what its sessions would replay beyond their shares if the shard died, and the
//! order in which sessions take a checkpoint when the sum is too large (docs/protocol.md, "The replay budget").
//!
//! An app with a longer recovery target than the budget accepts longer replays: its sessions count in proportion, so that
//! the budget is used up when the sum of their replays reaches that target.
//!
//! Oldest first: the session that has been above its share for longest. So a session that has become idle is covered
//! once and then costs nothing, while the session with the longest replay first would leave it above its share for
//! good, at the expense of those that run. What one session may have is bounded by its own recovery target anyway.
//!
//! Knows no owner: what a session has above its share is given to it.

use alloc::collections::BTreeMap;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::id::SessionId;

/// What is counted for one session.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ReplayCount {
    counted_ns: u64,
    /// Its key in the queue, if `counted_ns` is not 0.
    place: u64,
}

/// All that is counted.
#[derive(Debug, Default)]
pub(crate) struct ReplayBudget {
    /// 0 if there is none: then nothing is counted.
    budget_ns: u64,
    /// The sum over all sessions.
    counted_ns: u64,
    /// Sessions of which something is counted, the oldest first.
    queue: BTreeMap<u64, SessionId>,
    /// Places that were given.
    places: u64,
}

impl ReplayBudget {
    /// Sets the budget; false if it is the same. Otherwise all sessions must be counted again.
    pub(crate) fn set(&mut self, budget_ns: u64) -> bool {
        core::mem::replace(&mut self.budget_ns, budget_ns) != budget_ns
    }

    /// What counts of `above_ns` for a session of an app with this recovery target.
    fn part(&self, above_ns: u64, target_ns: u64) -> u64 {
        if above_ns == 0 || self.budget_ns == 0 {
            return 0;
        }
        if target_ns <= self.budget_ns {
            return above_ns;
        }
        let part = u128::from(above_ns) * u128::from(self.budget_ns) / u128::from(target_ns);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Replaces what is counted for a session, which has `above_ns` above its share: called after each call of its owner.
    /// The queue is touched only when the session comes to be above its share or within it.
    pub(crate) fn recount(&mut self, id: SessionId, count: &mut ReplayCount, above_ns: u64, target_ns: u64) {
        let counted_ns = self.part(above_ns, target_ns);
        if count.counted_ns == counted_ns {
            return;
        }
        if count.counted_ns == 0 {
            self.places += 1;
            count.place = self.places;
            self.queue.insert(count.place, id);
        } else if counted_ns == 0 {
            self.queue.remove(&count.place);
        }
        // Sums of durations: an overflow would take 584 years of handlers.
        self.counted_ns = self.counted_ns.saturating_sub(count.counted_ns).saturating_add(counted_ns);
        count.counted_ns = counted_ns;
    }

    /// The session that takes a checkpoint next, if the sum is above the budget.
    pub(crate) fn next_over(&self) -> Option<SessionId> {
        let is_over = self.counted_ns > self.budget_ns;
        self.queue.first_key_value().filter(|_| is_over).map(|(_, id)| *id)
    }

    /// Checks I43 of docs/protocol.md. For each session: its id, what is counted for it, what it has above its share, and
    /// its target.
    pub(crate) fn invariants(
        &self,
        sessions: impl Iterator<Item = (SessionId, ReplayCount, [u64; 2])>,
    ) -> Result<(), BrokenInvariant> {
        let (mut sum_ns, mut queued) = (0u64, 0);
        for (id, count, [above_ns, target_ns]) in sessions {
            holds!("I43", count.counted_ns == self.part(above_ns, target_ns));
            holds!("I43", count.counted_ns == 0 || self.queue.get(&count.place) == Some(&id));
            sum_ns = sum_ns.saturating_add(count.counted_ns);
            queued += usize::from(count.counted_ns > 0);
        }
        holds!("I43", self.counted_ns == sum_ns && self.queue.len() == queued);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    /// Sessions with what is counted for each, and what each has above its share.
    #[derive(Default)]
    struct Counted {
        budget: ReplayBudget,
        sessions: BTreeMap<SessionId, (ReplayCount, u64)>,
        /// The recovery target of all of them.
        target_ns: u64,
    }

    fn id(name: u8) -> SessionId {
        SessionId([name; 16])
    }

    impl Counted {
        fn of(budget_ns: u64) -> Self {
            Self { budget: ReplayBudget { budget_ns, ..ReplayBudget::default() }, ..Self::default() }
        }

        fn set(&mut self, name: u8, above_ns: u64) {
            let (count, above) = self.sessions.entry(id(name)).or_default();
            *above = above_ns;
            self.budget.recount(id(name), count, above_ns, self.target_ns);
            let all = self.sessions.iter();
            let all = all.map(|(id, (count, above_ns))| (*id, *count, [*above_ns, self.target_ns]));
            assert_eq!(self.budget.invariants(all), Ok(()));
        }

        /// Sessions in the order in which they take checkpoints until the sum is within the budget.
        fn covered(&mut self) -> Vec<u8> {
            let mut covered = Vec::new();
            while let Some(SessionId([name, ..])) = self.budget.next_over() {
                covered.push(name);
                self.set(name, 0);
            }
            covered
        }
    }

    #[test]
    fn within_the_budget_or_without_one_nothing_is_covered() {
        for budget_ns in [0, 100] {
            let mut counted = Counted::of(budget_ns);
            counted.set(1, 60);
            counted.set(2, 40);
            assert_eq!(counted.covered(), vec![]);
        }
    }

    #[test]
    fn an_app_that_accepts_longer_replays_counts_in_proportion() {
        let mut counted = Counted { target_ns: 1_000, ..Counted::of(100) };
        counted.set(1, 600);
        counted.set(2, 400);
        assert_eq!(counted.covered(), vec![], "the sum is the target");
        counted.set(2, 410);
        assert_eq!(counted.covered(), vec![1]);
        let mut counted = Counted { target_ns: u64::MAX, ..Counted::of(100) };
        counted.set(1, 1 << 40);
        assert_eq!(counted.covered(), vec![]);
    }

    #[test]
    fn as_many_are_covered_as_needed_the_oldest_first() {
        let mut counted = Counted::of(75);
        for (name, above_ns) in [(3, 10), (1, 30), (2, 20), (4, 50)] {
            counted.set(name, above_ns);
        }
        // More of the same session does not change its place.
        counted.set(3, 15);
        assert_eq!(counted.covered(), vec![3, 1]);
        assert_eq!(counted.covered(), vec![]);
    }

    #[test]
    fn idle_sessions_are_covered_once_and_leave_the_budget_to_those_that_run() {
        let mut counted = Counted::of(100);
        for idle in 10..20 {
            counted.set(idle, 10);
        }
        // One session runs, ten at a time, and is covered at 100 at the latest by its own target.
        let (mut of_idle, mut of_running) = (0, Vec::new());
        let mut above_ns = 0;
        for _ in 0..100 {
            above_ns += 10;
            counted.set(1, above_ns);
            for name in counted.covered() {
                if name == 1 {
                    of_running.push(above_ns);
                    above_ns = 0;
                } else {
                    of_idle += 1;
                }
            }
        }
        assert_eq!(of_idle, 10, "each idle session once");
        // Once they are covered, the session that runs has the whole budget.
        assert!(
            of_running.len() >= 5 && of_running.iter().all(|above_ns| *above_ns == 110),
            "{of_running:?}"
        );
    }

    #[test]
    fn sessions_that_run_alike_get_alike_checkpoints() {
        let mut counted = Counted::of(50);
        let mut above_ns = [0u64; 10];
        let mut times = [0; 10];
        for step in 0..10_000 {
            let name = step % 10;
            above_ns[name] += 1;
            counted.set(u8::try_from(name).unwrap_or(0), above_ns[name]);
            for name in counted.covered() {
                above_ns[usize::from(name)] = 0;
                times[usize::from(name)] += 1;
            }
            assert!(above_ns.iter().sum::<u64>() <= 50);
        }
        let (least, most) = (times.iter().min(), times.iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| most - least <= 1), "{times:?}");
    }
}
