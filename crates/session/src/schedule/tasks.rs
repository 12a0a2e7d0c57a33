//! The cell's tasks and locks: the order of the tasks, the holder of each lock, and the tasks that wait for it.
//!
//! A task is identified by a stage and a token, as a timer is. It is runnable, waits for one lock, or is idle. It keeps
//! its locks while it is idle. So the holder of every lock can be run.

use crate::{
    cell::{CellInput, TaskChange},
    invariant::{BrokenInvariant, holds},
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::String,
    vec::Vec,
};
use core::fmt::Write;
use marram_wire::{
    header::{Lock, Many, Task},
    limits::{LOCKS_MAX, TASKS_MAX},
};

/// Identifies a task: its stage and its token.
type Name = (u8, u64);

/// Identifies a lock: its stage and its number.
type LockName = (u8, u64);

/// What a task that is not idle waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Turn,
    Lock(u64),
}

#[derive(Debug)]
struct Held {
    holder: u64,
    waiting: VecDeque<u64>,
}

/// Counts of one cell's tasks and locks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TaskCounts {
    /// Tasks in the run queue.
    pub runnable: u64,
    /// Tasks blocked on a lock.
    pub locked_out: u64,
    /// Locks that are held.
    pub locks: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// The run queue, in order.
    runnable: VecDeque<Name>,
    /// All tasks that are not idle.
    waits: BTreeMap<Name, Waits>,
    locks: BTreeMap<LockName, Held>,
}

impl Tasks {
    /// Applies all that a handler did: a later change may correct an earlier invalid one.
    ///
    /// # Errors
    /// If a change is forbidden; the reason. The session ends then.
    pub(crate) fn change(&mut self, changes: &[TaskChange]) -> Result<(), String> {
        let mut waiting = Vec::new();
        for change in changes {
            match *change {
                TaskChange::Spawn { stage, token } => self.spawn((stage, token)),
                TaskChange::Lock { stage, id, token } => {
                    let waits = self.lock((stage, token), id)?;
                    waiting.extend(waits.then_some((stage, token)));
                }
                TaskChange::Unlock { stage, id, token } => self.unlock((stage, token), id)?,
            }
        }
        if self.waits.len() > TASKS_MAX {
            return Err(format!("the cell has more tasks than the limit, {TASKS_MAX}"));
        }
        if self.locks.len() > LOCKS_MAX {
            return Err(format!("the cell holds more locks than the limit, {LOCKS_MAX}"));
        }
        waiting.into_iter().find_map(|task| self.deadlock(task)).map_or(Ok(()), Err)
    }

    fn spawn(&mut self, task: Name) {
        if let alloc::collections::btree_map::Entry::Vacant(rests) = self.waits.entry(task) {
            rests.insert(Waits::Turn);
            self.runnable.push_back(task);
        }
    }

    /// Whether the task is blocked now.
    fn lock(&mut self, task: Name, id: u64) -> Result<bool, String> {
        let (stage, token) = task;
        match self.waits.get(&task) {
            Some(Waits::Lock(other)) if *other == id => return Ok(false),
            Some(Waits::Lock(other)) => {
                return Err(format!(
                    "lock: {} asks for lock {id} while it waits for lock {other}",
                    named(task)
                ));
            }
            Some(Waits::Turn) | None => {}
        }
        let held = self.locks.entry((stage, id));
        let held = held.or_insert_with(|| Held { holder: token, waiting: VecDeque::new() });
        if held.holder == token {
            self.spawn(task);
            return Ok(false);
        }
        held.waiting.push_back(token);
        // It does not run before it has the lock, even if it was runnable before.
        if self.waits.insert(task, Waits::Lock(id)).is_some() {
            self.runnable.retain(|waits| *waits != task);
        }
        Ok(true)
    }

    fn unlock(&mut self, task: Name, id: u64) -> Result<(), String> {
        let (stage, token) = task;
        let Some(held) = self.locks.get_mut(&(stage, id)).filter(|held| held.holder == token) else {
            return Err(format!("unlock: {} does not hold lock {id}", named(task)));
        };
        match held.waiting.pop_front() {
            Some(next) => {
                held.holder = next;
                self.waits.remove(&(stage, next));
                self.spawn((stage, next));
            }
            None => {
                self.locks.remove(&(stage, id));
            }
        }
        Ok(())
    }

    /// The cycle of lock waits that this task is part of, if there is one. None of its tasks can ever run again,
    /// because only its holder releases a lock.
    fn deadlock(&self, first: Name) -> Option<String> {
        let (stage, mut token) = first;
        let mut why = String::from("tasks wait for each other's locks: ");
        // Each step leads to another lock.
        for step in 0..=self.locks.len() {
            let Some(Waits::Lock(id)) = self.waits.get(&(stage, token)) else { return None };
            let holder = self.locks.get(&(stage, *id))?.holder;
            if step < NAMED_MAX {
                let comma = if step > 0 { ", " } else { "" };
                let task = named((stage, token));
                // Writing to a string does not fail.
                let _ = write!(why, "{comma}{task} for lock {id} of task {holder}");
            }
            token = holder;
            if (stage, token) == first {
                return Some(why);
            }
        }
        None
    }

    /// Takes the next task of the run queue, as an input.
    pub(crate) fn next(&mut self) -> Option<CellInput> {
        let (stage, token) = self.runnable.pop_front()?;
        self.waits.remove(&(stage, token));
        Some(CellInput::Task { stage, token })
    }

    /// Whether the run queue is empty.
    pub(crate) fn is_quiet(&self) -> bool {
        self.runnable.is_empty()
    }

    /// Describes the tasks that are left when nothing will ever run again: they wait for locks that will never be
    /// released.
    pub(crate) fn left(&self) -> Option<String> {
        let ((stage, id), held) = self.locks.iter().find(|(_, held)| !held.waiting.is_empty())?;
        let count = self.waits.len();
        let holder = named((*stage, held.holder));
        Some(format!("{count} tasks still waited for locks: lock {id} was never released by {holder}"))
    }

    pub(crate) fn counts(&self) -> TaskCounts {
        TaskCounts {
            runnable: self.runnable.len() as u64,
            locked_out: (self.waits.len() - self.runnable.len()) as u64,
            locks: self.locks.len() as u64,
        }
    }

    /// I37 of docs/protocol.md.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I37", self.waits.len() <= TASKS_MAX && self.locks.len() <= LOCKS_MAX);
        for task in &self.runnable {
            holds!("I37", self.waits.get(task) == Some(&Waits::Turn));
        }
        let mut waiting = 0;
        for ((stage, id), held) in &self.locks {
            waiting += held.waiting.len();
            holds!("I37", !held.waiting.contains(&held.holder));
            for token in &held.waiting {
                holds!("I37", self.waits.get(&(*stage, *token)) == Some(&Waits::Lock(*id)));
            }
        }
        // Each task is in one queue, and once.
        holds!("I37", self.runnable.len() + waiting == self.waits.len());
        Ok(())
    }

    pub(crate) fn to_header(&self) -> (Many<Task>, Many<Lock>) {
        let tasks = self.runnable.iter().map(|&(stage, token)| Task { stage, token }).collect();
        let locks = self.locks.iter().map(|(&(stage, id), held)| {
            let waiting = Many(held.waiting.iter().copied().collect());
            Lock { stage, id, holder: held.holder, waiting }
        });
        (Many(tasks), Many(locks.collect()))
    }

    pub(crate) fn restore(tasks: &Many<Task>, locks: &Many<Lock>) -> Self {
        let mut restored = Self::default();
        for task in &tasks.0 {
            restored.spawn((task.stage, task.token));
        }
        for lock in &locks.0 {
            let waiting: VecDeque<u64> = lock.waiting.0.iter().copied().collect();
            for token in &waiting {
                restored.waits.insert((lock.stage, *token), Waits::Lock(lock.id));
            }
            restored.locks.insert((lock.stage, lock.id), Held { holder: lock.holder, waiting });
        }
        restored
    }
}

/// How many tasks of a cycle are named in the message.
const NAMED_MAX: usize = 4;

/// A task's name in messages. Only chains have stages other than 0.
fn named((stage, token): Name) -> String {
    if stage == 0 { format!("task {token}") } else { format!("task {token} of stage {stage}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    fn spawn(token: u64) -> TaskChange {
        TaskChange::Spawn { stage: 0, token }
    }

    fn lock(id: u64, token: u64) -> TaskChange {
        TaskChange::Lock { stage: 0, id, token }
    }

    fn unlock(id: u64, token: u64) -> TaskChange {
        TaskChange::Unlock { stage: 0, id, token }
    }

    /// The tasks that run if none of them changes anything.
    fn rest(tasks: &mut Tasks) -> Vec<u64> {
        core::iter::from_fn(|| tasks.next())
            .map(|input| if let CellInput::Task { token, .. } = input { token } else { unreachable!() })
            .collect()
    }

    /// The state after a checkpoint and a restore.
    fn saved(tasks: &Tasks) -> Tasks {
        let (queue, locks) = tasks.to_header();
        Tasks::restore(&queue, &locks)
    }

    #[test]
    fn tasks_run_in_the_order_in_which_they_were_queued_and_once() {
        let mut tasks = Tasks::default();
        tasks.change(&[3, 1, 3, 2, 1].map(spawn)).unwrap();
        tasks.change(&[TaskChange::Spawn { stage: 1, token: 3 }]).unwrap();
        let mut tasks = saved(&tasks);
        assert_eq!(tasks.next(), Some(CellInput::Task { stage: 0, token: 3 }));
        tasks.change(&[spawn(3)]).unwrap();
        assert_eq!(rest(&mut tasks), [1, 2, 3, 3]);
        assert!(tasks.is_quiet() && tasks.waits.is_empty());
    }

    #[test]
    fn a_lock_has_one_holder_and_the_others_get_it_in_the_order_in_which_they_asked() {
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7), lock(1, 9), lock(1, 8), lock(1, 9), lock(2, 6)]).unwrap();
        let mut tasks = saved(&tasks);
        assert_eq!(rest(&mut tasks), [7, 6]);
        tasks.change(&[unlock(1, 7)]).unwrap();
        assert_eq!(rest(&mut tasks), [9]);
        // It keeps the lock while it is idle, and can be woken.
        tasks.change(&[spawn(9)]).unwrap();
        assert_eq!(rest(&mut tasks), [9]);
        tasks.change(&[unlock(1, 9)]).unwrap();
        assert_eq!(rest(&mut tasks), [8]);
        tasks.change(&[unlock(1, 8), unlock(2, 6)]).unwrap();
        assert!(tasks.is_quiet() && tasks.waits.is_empty() && tasks.locks.is_empty());
    }

    #[test]
    fn a_task_that_waits_for_a_lock_is_not_run_before_it_has_it() {
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7), spawn(8), lock(1, 8), spawn(8), spawn(9)]).unwrap();
        assert_eq!(rest(&mut tasks), [7, 9]);
        tasks.change(&[unlock(1, 7)]).unwrap();
        assert_eq!(rest(&mut tasks), [8]);
    }

    #[test]
    fn a_task_that_holds_a_lock_gets_it_again_at_once() {
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7), lock(1, 7)]).unwrap();
        assert_eq!(rest(&mut tasks), [7]);
        tasks.change(&[lock(1, 7)]).unwrap();
        assert_eq!(rest(&mut tasks), [7]);
    }

    #[test]
    fn stages_have_locks_of_their_own() {
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7), TaskChange::Lock { stage: 1, id: 1, token: 7 }]).unwrap();
        assert_eq!(rest(&mut tasks), [7, 7]);
        tasks.change(&[TaskChange::Unlock { stage: 1, id: 1, token: 7 }]).unwrap();
        let why = tasks.change(&[TaskChange::Unlock { stage: 1, id: 1, token: 7 }]).unwrap_err();
        assert_eq!(why, "unlock: task 7 of stage 1 does not hold lock 1");
        tasks.change(&[unlock(1, 7)]).unwrap();
    }

    #[test]
    fn only_its_holder_gives_a_lock_back_and_a_task_waits_for_one() {
        for (changes, why) in [
            (vec![unlock(1, 7)], "unlock: task 7 does not hold lock 1"),
            (vec![lock(1, 7), unlock(1, 8)], "unlock: task 8 does not hold lock 1"),
            (vec![lock(1, 7), lock(1, 8), unlock(1, 8)], "unlock: task 8 does not hold lock 1"),
            (
                vec![lock(1, 7), lock(2, 6), lock(1, 8), lock(2, 8)],
                "lock: task 8 asks for lock 2 while it waits for lock 1",
            ),
        ] {
            assert_eq!(Tasks::default().change(&changes).unwrap_err(), why);
        }
    }

    #[test]
    fn tasks_that_wait_for_each_other_are_found_out() {
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7), lock(2, 8), lock(3, 9), lock(1, 6)]).unwrap();
        tasks.change(&[lock(2, 7), lock(3, 8)]).unwrap();
        let mut tasks = saved(&tasks);
        let why = tasks.change(&[lock(1, 9)]).unwrap_err();
        let circle = "task 9 for lock 1 of task 7, task 7 for lock 2 of task 8, task 8 for lock 3 of task 9";
        assert_eq!(why, format!("tasks wait for each other's locks: {circle}"));
        // A task that releases the others' lock in the same handler is not in a cycle with them.
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7), lock(2, 8)]).unwrap();
        tasks.change(&[lock(2, 7)]).unwrap();
        tasks.change(&[lock(1, 8), unlock(2, 8)]).unwrap();
        assert_eq!(rest(&mut tasks), [7, 8][..1]);
    }

    #[test]
    fn tasks_and_locks_have_limits() {
        let spawned = |count: usize| -> Vec<TaskChange> { (0..count as u64).map(spawn).collect() };
        assert_eq!(Tasks::default().change(&spawned(TASKS_MAX)), Ok(()));
        assert!(Tasks::default().change(&spawned(TASKS_MAX + 1)).unwrap_err().contains("more tasks"));
        let waits: Vec<TaskChange> = (0..=TASKS_MAX as u64 + 1).map(|token| lock(1, token)).collect();
        assert!(Tasks::default().change(&waits).unwrap_err().contains("more tasks"));
        let locked = |count: usize| -> Vec<TaskChange> { (0..count as u64).map(|id| lock(id, 5)).collect() };
        assert_eq!(Tasks::default().change(&locked(LOCKS_MAX)), Ok(()));
        assert!(Tasks::default().change(&locked(LOCKS_MAX + 1)).unwrap_err().contains("more locks"));
    }

    #[test]
    fn locks_that_no_task_will_release_are_reported() {
        let mut tasks = Tasks::default();
        tasks.change(&[lock(1, 7)]).unwrap();
        rest(&mut tasks);
        assert_eq!(tasks.left(), None);
        tasks.change(&[lock(1, 8)]).unwrap();
        assert!(tasks.is_quiet());
        assert_eq!(
            tasks.left().unwrap(),
            "1 tasks still waited for locks: lock 1 was never released by task 7"
        );
    }
}
