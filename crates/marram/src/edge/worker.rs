//! What a shard process does beside its one busy thread: loading images, sealing checkpoints, opening them.
//!
//! One thread, since every further one slows the busy one down (they share an address space). What a session waits for
//! goes before what it does not.

use marram_sandbox::Images;
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// A job: given the image cache, makes an answer.
type Job<T> = Box<dyn FnOnce(&Images) -> T + Send>;

struct Queues<T> {
    urgent: VecDeque<Job<T>>,
    lazy: VecDeque<Job<T>>,
    closed: bool,
}

struct Shared<T> {
    queues: Mutex<Queues<T>>,
    some: Condvar,
}

impl<T> Shared<T> {
    /// Jobs run outside the lock, so nothing can panic while it is held and leave the queues half-changed.
    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job; `None` when there will be no more.
    fn next(&self) -> Option<Job<T>> {
        let mut queues = self.lock();
        loop {
            if queues.closed {
                return None;
            }
            let job = queues.urgent.pop_front().or_else(|| queues.lazy.pop_front());
            if job.is_some() {
                return job;
            }
            queues = self.some.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread and its queues. Sessions bound both: each has at most one checkpoint and one restoration under way.
pub(super) struct Worker<T> {
    shared: Arc<Shared<T>>,
    answers: Receiver<T>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread; `waker` is told of each answer.
    pub(super) fn start(images: Images, waker: mio::Waker) -> io::Result<Self> {
        let queues = Queues { urgent: VecDeque::new(), lazy: VecDeque::new(), closed: false };
        let shared = Arc::new(Shared { queues: Mutex::new(queues), some: Condvar::new() });
        let (sender, answers) = channel();
        let theirs = Arc::clone(&shared);
        thread::Builder::new()
            .name("worker".into())
            .spawn(move || work(&theirs, &images, &sender, &waker))?;
        Ok(Self { shared, answers })
    }

    /// Adds a job that a session waits for.
    pub(super) fn urgent(&self, job: impl FnOnce(&Images) -> T + Send + 'static) {
        self.shared.lock().urgent.push_back(Box::new(job));
        self.shared.some.notify_one();
    }

    /// Adds a job that nobody waits for.
    pub(super) fn lazy(&self, job: impl FnOnce(&Images) -> T + Send + 'static) {
        self.shared.lock().lazy.push_back(Box::new(job));
        self.shared.some.notify_one();
    }

    /// Takes the next answer, if one is there.
    pub(super) fn take(&self) -> Option<T> {
        self.answers.try_recv().ok()
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.some.notify_one();
    }
}

fn work<T>(shared: &Shared<T>, images: &Images, answers: &Sender<T>, waker: &mio::Waker) {
    while let Some(job) = shared.next() {
        if answers.send(job(images)).is_err() || waker.wake().is_err() {
            return;
        }
    }
}
