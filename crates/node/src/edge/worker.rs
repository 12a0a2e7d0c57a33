//! The work of a shard process beside its one busy thread: loading images, sealing checkpoints, opening them.
//!
//! There are as few threads as possible, since each one slows the busy one down (they share an address space): one for work that
//! sessions wait for, and one, at background priority, for the rest.
//!
//! ```text
//! shard's thread ── urgent, lazy (mutex, condition) ──▶ worker: one job at a time, in order
//!                ◀── answers (channel), Waker ─────────┘
//! ```
//!
//! A lazy job runs if no urgent one waits, or after some of these, and is not interrupted. Jobs of one kind keep their
//! order, which restorations rely on: parts are queued behind the job that expects them.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// A job: uses the thread's state, and returns an answer, or `None` if it has none yet.
type Job<D, T> = Box<dyn FnOnce(&mut D) -> Option<T> + Send>;

/// So many urgent jobs run one after another while a lazy one waits, which a session may wait for as well in the end.
const URGENT_IN_A_ROW: usize = 8;

struct Queues<D, T> {
    urgent: VecDeque<Job<D, T>>,
    lazy: VecDeque<Job<D, T>>,
    /// Urgent jobs that have run since the last lazy one.
    in_a_row: usize,
    /// Jobs that wait then are dropped: the shard that wanted their answers is gone.
    closed: bool,
}

struct Shared<D, T> {
    queues: Mutex<Queues<D, T>>,
    some: Condvar,
}

impl<D, T> Queues<D, T> {
    fn new() -> Self {
        Self { urgent: VecDeque::new(), lazy: VecDeque::new(), in_a_row: 0, closed: false }
    }

    fn pop(&mut self) -> Option<Job<D, T>> {
        let is_turn = self.in_a_row >= URGENT_IN_A_ROW && !self.lazy.is_empty();
        let urgent = if is_turn { None } else { self.urgent.pop_front() };
        self.in_a_row = if urgent.is_some() { self.in_a_row + 1 } else { 0 };
        urgent.or_else(|| self.lazy.pop_front())
    }
}

impl<D, T> Shared<D, T> {
    /// Jobs run outside the lock, so nothing can panic while it is held and leave the queues half-changed.
    fn lock(&self) -> MutexGuard<'_, Queues<D, T>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job; `None` when there will be no more.
    fn next(&self) -> Option<Job<D, T>> {
        let mut queues = self.lock();
        loop {
            if queues.closed {
                return None;
            }
            let job = queues.pop();
            if job.is_some() {
                return job;
            }
            queues = self.some.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread and its queues. Sessions limit both: each has at most one checkpoint and one restoration in progress.
pub(super) struct Worker<D, T> {
    shared: Arc<Shared<D, T>>,
    answers: Receiver<T>,
}

impl<D: Send + 'static, T: Send + 'static> Worker<D, T> {
    /// Starts the thread, which owns `state` and first calls `prepare`; it wakes `waker` for each answer.
    pub(super) fn start(name: &str, prepare: fn(), state: D, waker: Arc<mio::Waker>) -> io::Result<Self> {
        let shared = Arc::new(Shared { queues: Mutex::new(Queues::new()), some: Condvar::new() });
        let (sender, answers) = channel();
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name(name.into()).spawn(move || {
            prepare();
            work(&theirs, state, &sender, &waker);
        })?;
        Ok(Self { shared, answers })
    }

    /// Adds a job that a session waits for.
    pub(super) fn urgent(&self, job: impl FnOnce(&mut D) -> Option<T> + Send + 'static) {
        self.shared.lock().urgent.push_back(Box::new(job));
        self.shared.some.notify_one();
    }

    /// Adds a job without urgency.
    pub(super) fn lazy(&self, job: impl FnOnce(&mut D) -> Option<T> + Send + 'static) {
        self.shared.lock().lazy.push_back(Box::new(job));
        self.shared.some.notify_one();
    }

    /// Takes the next answer, if one is there.
    pub(super) fn take(&self) -> Option<T> {
        self.answers.try_recv().ok()
    }
}

impl<D, T> Drop for Worker<D, T> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.some.notify_one();
    }
}

/// Stops the process if the thread that has it panics. The shard's thread could not find out: sessions would wait for ever for
/// an image or for a checkpoint to be sealed. A shard that ends is started again, and other owners take its sessions.
struct StopsProcess;

impl Drop for StopsProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            // The panic's message has been printed.
            std::process::abort();
        }
    }
}

/// Ends when the shard drops its side.
fn work<D, T>(shared: &Shared<D, T>, mut state: D, answers: &Sender<T>, waker: &mio::Waker) {
    let _stops = StopsProcess;
    while let Some(job) = shared.next() {
        let Some(answer) = job(&mut state) else { continue };
        if answers.send(answer).is_err() || waker.wake().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lazy_job_waits_for_some_urgent_ones_and_not_for_ever() {
        let mut queues: Queues<(), &str> = Queues::new();
        for _ in 0..2 * URGENT_IN_A_ROW {
            queues.urgent.push_back(Box::new(|(): &mut ()| Some("urgent")));
        }
        queues.lazy.extend((0..3).map(|_| Box::new(|(): &mut ()| Some("lazy")) as Job<(), &str>));
        let order: Vec<&str> = std::iter::from_fn(|| queues.pop()).filter_map(|job| job(&mut ())).collect();
        let urgent = ["urgent"; URGENT_IN_A_ROW];
        assert_eq!(order, [&urgent[..], &["lazy"], &urgent, &["lazy"; 2]].concat());
    }
}
