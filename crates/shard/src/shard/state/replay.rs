//! The shard's replay budget: the sum of what its sessions would replay beyond their shares if the shard died, and the
//! order in which sessions take a checkpoint when the sum is too large (docs/protocol.md, "The replay budget").
//!
//! Oldest first: the session that has been above its share for longest. So a session that has become idle is covered
//! once and then costs nothing, while the session with the longest replay first would leave it above its share for
//! good, at the expense of those that run. What one session may have is bounded by its own recovery target anyway.
//!
//! Knows no owner: what counts for a session is given to it.

use alloc::collections::BTreeMap;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::id::SessionId;

/// What is counted for one session.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ReplayCount {
    above_ns: u64,
    /// Its key in the queue, if `above_ns` is not 0.
    place: u64,
}

/// All that is counted.
#[derive(Debug, Default)]
pub(crate) struct ReplayBudget {
    /// The sum over all sessions.
    above_ns: u64,
    /// Sessions of which something is counted, the oldest first.
    queue: BTreeMap<u64, SessionId>,
    /// Places that were given.
    places: u64,
}

impl ReplayBudget {
    /// Replaces what is counted for a session: called after each call of its owner. The queue is touched only when the
    /// session comes to be above its share or within it.
    pub(crate) fn recount(&mut self, id: SessionId, count: &mut ReplayCount, above_ns: u64) {
        if count.above_ns == above_ns {
            return;
        }
        if count.above_ns == 0 {
            self.places += 1;
            count.place = self.places;
            self.queue.insert(count.place, id);
        } else if above_ns == 0 {
            self.queue.remove(&count.place);
        }
        // Sums of durations: an overflow would take 584 years of handlers.
        self.above_ns = self.above_ns.saturating_sub(count.above_ns).saturating_add(above_ns);
        count.above_ns = above_ns;
    }

    /// The session that takes a checkpoint next, if the sum is above the budget; 0 is no budget.
    pub(crate) fn next_over(&self, budget_ns: u64) -> Option<SessionId> {
        let is_over = budget_ns > 0 && self.above_ns > budget_ns;
        self.queue.first_key_value().filter(|_| is_over).map(|(_, id)| *id)
    }

    /// Checks I43 of docs/protocol.md. For each session: its id, what is counted for it, and what should be.
    pub(crate) fn invariants(
        &self,
        sessions: impl Iterator<Item = (SessionId, ReplayCount, u64)>,
    ) -> Result<(), BrokenInvariant> {
        let (mut sum_ns, mut queued) = (0u64, 0);
        for (id, count, above_ns) in sessions {
            holds!("I43", count.above_ns == above_ns);
            holds!("I43", above_ns == 0 || self.queue.get(&count.place) == Some(&id));
            sum_ns = sum_ns.saturating_add(above_ns);
            queued += usize::from(above_ns > 0);
        }
        holds!("I43", self.above_ns == sum_ns && self.queue.len() == queued);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    /// Sessions with what is counted for each.
    #[derive(Default)]
    struct Counted {
        budget: ReplayBudget,
        sessions: BTreeMap<SessionId, ReplayCount>,
    }

    fn id(name: u8) -> SessionId {
        SessionId([name; 16])
    }

    impl Counted {
        fn set(&mut self, name: u8, above_ns: u64) {
            let count = self.sessions.entry(id(name)).or_default();
            self.budget.recount(id(name), count, above_ns);
            let all = self.sessions.iter().map(|(id, count)| (*id, *count, count.above_ns));
            assert_eq!(self.budget.invariants(all), Ok(()));
        }

        /// Sessions in the order in which they take checkpoints until the sum is within the budget.
        fn covered(&mut self, budget_ns: u64) -> Vec<u8> {
            let mut covered = Vec::new();
            while let Some(SessionId([name, ..])) = self.budget.next_over(budget_ns) {
                covered.push(name);
                self.set(name, 0);
            }
            covered
        }
    }

    #[test]
    fn within_the_budget_or_without_one_nothing_is_covered() {
        let mut counted = Counted::default();
        counted.set(1, 60);
        counted.set(2, 40);
        assert_eq!(counted.covered(100), vec![]);
        assert_eq!(counted.covered(0), vec![]);
    }

    #[test]
    fn as_many_are_covered_as_needed_the_oldest_first() {
        let mut counted = Counted::default();
        for (name, above_ns) in [(3, 10), (1, 30), (2, 20), (4, 50)] {
            counted.set(name, above_ns);
        }
        // More of the same session does not change its place.
        counted.set(3, 15);
        assert_eq!(counted.covered(75), vec![3, 1]);
        assert_eq!(counted.covered(75), vec![]);
    }

    #[test]
    fn idle_sessions_are_covered_once_and_leave_the_budget_to_those_that_run() {
        let mut counted = Counted::default();
        for idle in 10..20 {
            counted.set(idle, 10);
        }
        // One session runs, ten at a time, and is covered at 100 at the latest by its own target.
        let (mut of_idle, mut of_running) = (0, Vec::new());
        let mut above_ns = 0;
        for _ in 0..100 {
            above_ns += 10;
            counted.set(1, above_ns);
            for name in counted.covered(100) {
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
        let mut counted = Counted::default();
        let mut above_ns = [0u64; 10];
        let mut times = [0; 10];
        for step in 0..10_000 {
            let name = step % 10;
            above_ns[name] += 1;
            counted.set(u8::try_from(name).unwrap_or(0), above_ns[name]);
            for name in counted.covered(50) {
                above_ns[usize::from(name)] = 0;
                times[usize::from(name)] += 1;
            }
            assert!(above_ns.iter().sum::<u64>() <= 50);
        }
        let (least, most) = (times.iter().min(), times.iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| most - least <= 1), "{times:?}");
    }
}
