//! The cell's timers: one a token, fired in the order in which they are due.

use crate::cell::TimerChange;
use alloc::{collections::BTreeMap, vec::Vec};
use marram_wire::{
    header::{Many, Timer},
    limits::TIMERS_MAX,
};

#[derive(Debug, Default)]
pub(super) struct Timers {
    by_due: BTreeMap<(i64, u64), u64>,
    by_token: BTreeMap<u64, (i64, u64)>,
    /// How many were ever set: orders those that are due at one time.
    set: u64,
}

impl Timers {
    /// False if there are too many.
    pub(super) fn change(&mut self, now_ns: i64, change: TimerChange) -> bool {
        match change {
            TimerChange::Set { token, delay_ns } => {
                self.cancel(token);
                let key = (now_ns.saturating_add(delay_ns.max(0)), self.set);
                self.set += 1;
                self.by_due.insert(key, token);
                self.by_token.insert(token, key);
            }
            TimerChange::Cancel { token } => self.cancel(token),
        }
        self.by_due.len() <= TIMERS_MAX
    }

    fn cancel(&mut self, token: u64) {
        if let Some(key) = self.by_token.remove(&token) {
            self.by_due.remove(&key);
        }
    }

    /// When the next one is due, in session time.
    pub(super) fn due_ns(&self) -> Option<i64> {
        self.by_due.first_key_value().map(|((due_ns, _), _)| *due_ns)
    }

    /// Takes the one due first.
    pub(super) fn fire(&mut self) -> Option<u64> {
        let (_, token) = self.by_due.pop_first()?;
        self.by_token.remove(&token);
        Some(token)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_due.is_empty()
    }

    pub(super) fn to_header(&self) -> (u64, Many<Timer>) {
        let timers: Vec<Timer> = self
            .by_due
            .iter()
            .map(|((due_ns, order), token)| Timer { token: *token, due_ns: *due_ns, order: *order })
            .collect();
        (self.set, Many(timers))
    }

    pub(super) fn restore(set: u64, timers: &Many<Timer>) -> Self {
        let mut restored = Self { set, ..Self::default() };
        for timer in &timers.0 {
            restored.by_due.insert((timer.due_ns, timer.order), timer.token);
            restored.by_token.insert(timer.token, (timer.due_ns, timer.order));
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_one_a_token() {
        let mut timers = Timers::default();
        for (token, delay_ns) in [(1, 50), (2, 10), (3, 10), (1, 5), (4, -7)] {
            assert!(timers.change(100, TimerChange::Set { token, delay_ns }));
        }
        assert!(timers.change(100, TimerChange::Cancel { token: 3 }));
        let (set, saved) = timers.to_header();
        let mut timers = Timers::restore(set, &saved);
        assert_eq!(timers.due_ns(), Some(100));
        let fired: Vec<u64> = core::iter::from_fn(|| timers.fire()).collect();
        assert_eq!(fired, [4, 1, 2]);
        assert!(timers.is_empty());
    }
}
