//! Advances the engine's epoch once per slice while guests run, so that a guest that computes for long is preempted.
//!
//! ```text
//! thread of the cells   running()  guest guest      running() guest ............
//! ticker                 wake      1 ms  1 ms ... 50 idle slices: park   wake
//! epoch                      +1    +1    +1                 +1 each 100 ms
//! ```
//! One thread per process is enough, since one guest runs at a time. It does no work but adding to
//! two counters, so it asks for the shortest slice of the scheduler: a late tick is a late
//! preemption.

use crate::limits::SLICE_MS;
use crate::scheduling::set_most_latency_sensitive;
use crate::watch::Watch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use wasmtime::Engine;

/// Slices without a guest after which the thread goes to sleep.
const IDLE_SLICES: u32 = 50;

/// How often the epoch advances while the thread sleeps.
const ASLEEP: Duration = Duration::from_millis(100);

/// The thread that advances the epoch. It sleeps while no guest runs, and ends when this is dropped.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    watch: Watch,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Handlers started or resumed so far, wrapping: if it changes, guests run.
    activity: AtomicU32,
    /// Set by the ticker before it parks, and looked at by `running` after it has changed
    /// `activity`. Both are sequentially consistent: the one that comes second sees the other, so a
    /// guest never starts while the ticker sleeps unnoticed.
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl Ticker {
    /// Starts the thread for one engine.
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let mut ticker = Self::still();
        let theirs = (Arc::clone(&ticker.shared), ticker.watch.clone());
        let thread = thread::Builder::new()
            .name("marram-epochs".into())
            .spawn(move || tick(&engine, &theirs.0, &theirs.1))?;
        ticker.thread = Some(thread);
        Ok(ticker)
    }

    /// A ticker that never advances the epoch: guests are not preempted.
    pub(crate) fn still() -> Self {
        let shared = Shared {
            activity: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), watch: Watch::default(), thread: None }
    }

    /// The clock that counts the slices.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Must be called before a guest runs. Costs an atomic load and store, and a wake-up after a pause.
    ///
    /// Called once a turn, for a resumed handler too, since the ticker counts these calls to see
    /// whether guests run.
    pub(crate) fn running(&self) {
        // Only this thread writes it.
        let activity = self.shared.activity.load(Ordering::Relaxed);
        self.shared.activity.store(activity.wrapping_add(1), Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }
}

/// The thread's body. `seen` is the activity at the last tick, `idle` the number of ticks since it
/// changed.
fn tick(engine: &Engine, shared: &Shared, watch: &Watch) {
    set_most_latency_sensitive();
    let mut seen = shared.activity.load(Ordering::SeqCst);
    let mut idle = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(SLICE_MS));
        engine.increment_epoch();
        watch.tick();
        let now = shared.activity.load(Ordering::SeqCst);
        idle = if now == seen { idle + 1 } else { 0 };
        seen = now;
        // A guest that computes for long is resumed once per slice, which counts as activity.
        if idle >= IDLE_SLICES {
            shared.asleep.store(true, Ordering::SeqCst);
            // Checked again after `asleep` is visible, so that a guest that started meanwhile is not missed.
            while shared.activity.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
                thread::park_timeout(ASLEEP);
                // On a machine without a free core, a guest's thread may have waited for longer than all idle slices between its
                // announcement and its first instruction. Nothing else would preempt that guest.
                engine.increment_epoch();
            }
            shared.asleep.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only fails if the thread panicked, and then the thread has already ended.
            let _ = thread.join();
        }
    }
}
