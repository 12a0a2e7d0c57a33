//! Whose turn it is on this machine. Most tests share it, as many at a time as there are threads for them. A test that keeps the
//! whole machine busy, or measures it, has it alone.

use std::{
    cell::RefCell,
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

/// The tests that run, and those that wait to run alone.
struct Turns {
    sharing: usize,
    waiting: usize,
    is_alone: bool,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns { sharing: 0, waiting: 0, is_alone: false });
static CHANGED: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().expect("no one panics with it")
}

/// A test's turn, which ends with the thread of the test.
enum Turn {
    Shared,
    Alone,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = turns();
        match self {
            Self::Shared => turns.sharing -= 1,
            Self::Alone => turns.is_alone = false,
        }
        CHANGED.notify_all();
    }
}

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// From now on until its end, the calling test shares the machine; it waits for one that has it alone. All functions of
/// [`support`](super) that start processes or run cells call this. A second call does nothing.
pub(crate) fn share() {
    // A thread that a test starts has no name, or not that of a test; the test has its turn already.
    let is_test = thread::current().name().is_some_and(|name| name.contains("::"));
    let is_new = || TURN.with_borrow(Option::is_none);
    if !is_test || !is_new() {
        return;
    }
    // Those that wait to be alone go first, or they would wait for all others.
    let wait = |turns: &mut Turns| turns.is_alone || turns.waiting > 0;
    let mut turns = CHANGED.wait_while(turns(), wait).expect("no one panics with it");
    turns.sharing += 1;
    TURN.set(Some(Turn::Shared));
}

/// From now on until its end, the calling test has the machine alone. It must not share it already.
///
/// # Panics
/// If it does.
pub(crate) fn alone() {
    assert!(TURN.with_borrow(Option::is_none), "two tests that share would wait for each other");
    let mut turns = turns();
    turns.waiting += 1;
    let wait = |turns: &mut Turns| turns.is_alone || turns.sharing > 0;
    let mut turns = CHANGED.wait_while(turns, wait).expect("no one panics with it");
    turns.waiting -= 1;
    turns.is_alone = true;
    TURN.set(Some(Turn::Alone));
}
