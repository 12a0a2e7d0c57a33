//! The virtual clock: events in the order of their times; events with equal times in the order of scheduling.
//!
//! Time passes only here, by jumping to the next event. The order of events with equal times is the
//! order in which they were scheduled, so two runs of one seed take them in the same order.

use std::{cmp::Ordering, collections::BinaryHeap};

/// An event that is scheduled. `order` is unique, so two are never equal, and the heap's order is
/// total.
#[derive(Debug)]
struct Due<T> {
    at_ns: u64,
    order: u64,
    event: T,
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T> Eq for Due<T> {}
impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Due<T> {
    /// Reversed: the heap returns the greatest first, and the earliest is needed.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

/// Scheduled events and the current time.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Due<T>>,
    order: u64,
    now_ns: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), order: 0, now_ns: 0 }
    }
}

impl<T> Queue<T> {
    /// Virtual time since the simulation began, in nanoseconds.
    #[must_use]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Schedules an event at a time, or now if that time has passed.
    ///
    /// A time in the past happens when a machine asks to be woken at a time that its own clock has
    /// already passed.
    pub(crate) fn at(&mut self, at_ns: u64, event: T) {
        self.order += 1;
        self.heap.push(Due { at_ns: at_ns.max(self.now_ns), order: self.order, event });
    }

    /// Schedules an event after a delay.
    pub(crate) fn after(&mut self, delay_ns: u64, event: T) {
        self.at(self.now_ns + delay_ns, event);
    }

    /// Advances to the next event.
    pub(crate) fn next_event(&mut self) -> Option<T> {
        let due = self.heap.pop()?;
        self.now_ns = due.at_ns;
        Some(due.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_the_order_of_asking() {
        let mut queue = Queue::default();
        for (at_ns, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            queue.at(at_ns, name);
        }
        let order: String = std::iter::from_fn(|| queue.next_event()).collect();
        assert_eq!(order, "abcd");
        assert_eq!(queue.now_ns(), 5);
    }
}
