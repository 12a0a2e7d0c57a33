//! The cell's timers: one for each stage and token, fired in the order of their due times.

use crate::{
    cell::{CellInput, TimerChange},
    invariant::{BrokenInvariant, holds},
};
use alloc::{collections::BTreeMap, vec::Vec};
use marram_wire::{
    header::{Many, Timer},
    limits::TIMERS_MAX,
};

/// Identifies a timer: the stage that set it and its token.
type Name = (u8, u64);

#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_due: BTreeMap<(i64, u64), Name>,
    by_name: BTreeMap<Name, (i64, u64)>,
    /// How many were ever set: the order of timers with equal due times.
    set: u64,
}

impl Timers {
    /// False if there are too many timers.
    pub(crate) fn change(&mut self, now_ns: i64, change: TimerChange) -> bool {
        match change {
            TimerChange::Set { stage, token, delay_ns } => {
                let name = (stage, token);
                self.cancel(name);
                let key = (now_ns.saturating_add(delay_ns.max(0)), self.set);
                self.set += 1;
                self.by_due.insert(key, name);
                self.by_name.insert(name, key);
            }
            TimerChange::Cancel { stage, token } => self.cancel((stage, token)),
        }
        self.by_due.len() <= TIMERS_MAX
    }

    fn cancel(&mut self, name: Name) {
        if let Some(key) = self.by_name.remove(&name) {
            self.by_due.remove(&key);
        }
    }

    /// When the next one is due, in session time.
    pub(crate) fn due_ns(&self) -> Option<i64> {
        self.by_due.first_key_value().map(|((due_ns, _), _)| *due_ns)
    }

    /// Takes the timer with the earliest due time, as an input.
    pub(crate) fn fire(&mut self) -> Option<CellInput> {
        let (_, name) = self.by_due.pop_first()?;
        self.by_name.remove(&name);
        let (stage, token) = name;
        Some(CellInput::Timer { stage, token })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_due.is_empty()
    }

    /// I37 of docs/protocol.md.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I37", self.by_due.len() == self.by_name.len() && self.by_due.len() <= TIMERS_MAX);
        for (key, name) in &self.by_due {
            holds!("I37", self.by_name.get(name) == Some(key));
            holds!("I37", key.1 < self.set);
        }
        Ok(())
    }

    pub(crate) fn to_header(&self) -> (u64, Many<Timer>) {
        let timers: Vec<Timer> = self
            .by_due
            .iter()
            .map(|(&(due_ns, order), &(stage, token))| Timer { stage, token, due_ns, order })
            .collect();
        (self.set, Many(timers))
    }

    pub(crate) fn restore(set: u64, timers: &Many<Timer>) -> Self {
        let mut restored = Self { set, ..Self::default() };
        for timer in &timers.0 {
            let (key, name) = ((timer.due_ns, timer.order), (timer.stage, timer.token));
            restored.by_due.insert(key, name);
            restored.by_name.insert(name, key);
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_one_a_stage_and_token() {
        let mut timers = Timers::default();
        for (stage, token, delay_ns) in
            [(0, 1, 50), (0, 2, 10), (0, 3, 10), (1, 3, 10), (0, 1, 5), (2, 1, 50), (0, 4, -7)]
        {
            assert!(timers.change(100, TimerChange::Set { stage, token, delay_ns }));
        }
        assert!(timers.change(100, TimerChange::Cancel { stage: 0, token: 3 }));
        let (set, saved) = timers.to_header();
        let mut timers = Timers::restore(set, &saved);
        assert_eq!(timers.due_ns(), Some(100));
        let fired: Vec<CellInput> = core::iter::from_fn(|| timers.fire()).collect();
        let timer = |(stage, token)| CellInput::Timer { stage, token };
        assert_eq!(fired, [(0, 4), (0, 1), (0, 2), (1, 3), (2, 1)].map(timer));
        assert!(timers.is_empty());
        assert!(timers.by_name.is_empty(), "a name is not remembered longer than its timer");
    }

    #[test]
    fn a_timer_without_its_name_breaks_an_invariant() {
        let mut timers = Timers::default();
        assert!(timers.change(0, TimerChange::Set { stage: 0, token: 1, delay_ns: 10 }));
        assert_eq!(timers.invariants(), Ok(()));
        timers.by_name.clear();
        assert_eq!(timers.invariants().map_err(|broken| broken.number), Err("I37"));
    }

    #[test]
    fn restored_timers_are_distinguished_by_name() {
        let mut timers = Timers::default();
        for token in [1, 2, 3] {
            assert!(timers.change(0, TimerChange::Set { stage: 0, token, delay_ns: 10 }));
        }
        let (set, saved) = timers.to_header();
        let mut timers = Timers::restore(set, &saved);
        assert!(timers.change(0, TimerChange::Set { stage: 0, token: 1, delay_ns: 20 }));
        assert!(timers.change(0, TimerChange::Cancel { stage: 0, token: 2 }));
        let fired: Vec<CellInput> = core::iter::from_fn(|| timers.fire()).collect();
        assert_eq!(fired, [3, 1].map(|token| CellInput::Timer { stage: 0, token }));
    }
}
