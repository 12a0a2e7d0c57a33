//! Turns: which handler runs next, for how long, and what its tenant is charged for it.
//!
//! ```text
//! handler:  | slice 1 ms | slice | slice | slice |  stretch of 4 ms, then the tenant's other cells
//! tenants:  whose turn it is, by weight and priority, is decided by `run_queue` in `marram_shard`
//! ```
//!
//! A handler is preempted by the sandbox after a slice and polled again later; it cannot see that.
//! The scheduler is cooperative towards the loop: between two turns the shard reads frames and
//! flushes (`shard.rs`). Time is charged as measured by the sandbox, other work by estimates
//! (`cost`).

use super::{Executor, QueuedHandler, cost};
use marram_sandbox::Progress;
use marram_session::cell::{CellId, CellInput, CellOutput, Ran, Run, RunOutcome};
use marram_shard::{
    api::SchedulingParams,
    run_queue::{Class, Tenant, WEIGHT},
};
use std::time::{Duration, Instant};

/// What is charged for a handler's slice that it used up.
/// The sandbox's ticker decides when a slice is over, so a turn is charged as a whole one.
const SLICE_NS: u64 = 1_000_000;
/// CPU time that a handler gets before the tenant's other cells get some: enough for most handlers to finish.
const STRETCH_NS: u64 = 4 * SLICE_NS;
/// A tenant's next turn after one that took this long may take as long: output is flushed before it.
const LONG_NS: u64 = 100_000;

impl Executor {
    /// Queues a handler.
    pub(in crate::edge) fn run(&mut self, run: Run) {
        let Some(run) = self.hold_back(run) else { return };
        // Only messages have a size worth charging.
        let size = match &run.input {
            CellInput::Message { payload, .. } => payload.len() as u64,
            _ => 0,
        };
        let tenant = self.queue(QueuedHandler::Run(run)).tenant;
        self.run_queue.charge(tenant, cost::INPUT_NS + size / cost::BYTES_PER_NS);
    }

    /// Queues a turn behind the tenant's others, or in front of them if the handler has used only a part of its stretch.
    pub(super) fn queue(&mut self, queued: QueuedHandler) -> SchedulingParams {
        let cell = queued.cell();
        let mut standing = None;
        let (place, had_ns) = match self.slots.get_mut(&cell) {
            Some(slot) => {
                slot.waiting += 1;
                // From now on its state is its own: it no longer stands by.
                standing = slot.standing.take();
                (slot.scheduling, slot.charged_ns)
            }
            // The run's answer will be that there is no such cell.
            None => (SchedulingParams { tenant: Tenant::default(), weight: WEIGHT, class: Class::Fair }, 0),
        };
        if standing.is_some_and(|standing| standing.is_underway()) {
            self.drop_arriving(cell);
        }
        if had_ns.is_multiple_of(STRETCH_NS) {
            self.run_queue.push(place.tenant, place.class, queued);
        } else {
            self.run_queue.requeue_front(place.tenant, place.class, queued);
        }
        place
    }

    /// Whether the next turn may take so long that ready output should be flushed first.
    pub(in crate::edge) fn next_may_be_long(&self) -> bool {
        let next = self.run_queue.peek().and_then(|queued| self.slots.get(&queued.cell()));
        next.is_some_and(|slot| self.slow.contains(&slot.scheduling.tenant))
    }

    /// Runs the next handler for one slice at most. Returns its answer if it has finished, and how long the turn took; `None` if
    /// no handler is ready.
    pub(in crate::edge) fn next_turn(&mut self) -> Option<(Option<Ran>, Duration)> {
        let queued = self.run_queue.pop()?;
        let cell = queued.cell();
        if let Some(slot) = self.slots.get_mut(&cell) {
            slot.waiting -= 1;
        }
        let freeing = self.cells.deferred_free_bytes();
        // A clock reading a turn is saved where no handler can read from a cache.
        let mut started = self.caches.are_there().then(Instant::now);
        let mut progress = match queued {
            QueuedHandler::Run(run) => self.cells.run(run),
            QueuedHandler::Resume(cell) => self.cells.poll(cell),
        };
        let mut waits = false;
        while matches!(progress, Progress::Pending)
            && let Some(key) = self.cells.wanted(cell)
        {
            let app = self.slots.get(&cell).map_or("", |slot| slot.app.as_str());
            let Some(found) = self.caches.read(app, &key, cell) else {
                waits = true;
                break;
            };
            self.cells.found(cell, found);
            // A handler that reads repeatedly gets one slice, including what it computed before.
            if started.get_or_insert_with(Instant::now).elapsed() > Duration::from_nanos(SLICE_NS) {
                break;
            }
            progress = self.cells.poll(cell);
        }
        self.charge_freeing(cell, freeing);
        let (ran, cost_ns) = match progress {
            // It may have computed before it read.
            Progress::Pending if waits => {
                let spent_ns = started.map_or(0, |started| started.elapsed().as_nanos());
                (None, u64::try_from(spent_ns).unwrap_or(u64::MAX).max(cost::INPUT_NS))
            }
            Progress::Pending => (None, SLICE_NS),
            Progress::Done(ran) => {
                self.print(cell, matches!(ran.outcome, RunOutcome::Stopped(_)));
                let cost_ns = ran.cost_ns;
                (Some(ran), cost_ns)
            }
        };
        let spent_ns = self.charge(cell, cost_ns, ran.as_ref());
        // A handler that waits for an object is queued again by `go_on`, when the object is there.
        if ran.is_none() && !waits {
            self.queue(QueuedHandler::Resume(cell));
        }
        Some((ran, Duration::from_nanos(spent_ns)))
    }

    /// Charges a turn to its tenant, and also the sending of the outputs if the handler has finished. Returns how long the turn
    /// took.
    pub(super) fn charge(&mut self, cell: CellId, cost_ns: u64, ran: Option<&Ran>) -> u64 {
        // The session may have ended the cell in the meantime.
        let Some(slot) = self.slots.get_mut(&cell) else { return cost_ns };
        let tenant = slot.scheduling.tenant;
        // An unfinished handler has no outputs yet: they leave when it ends.
        let (spent_ns, made_ns) = match ran {
            None => {
                slot.charged_ns += cost_ns;
                (cost_ns, 0)
            }
            // The cost of a handler is that of all its slices.
            Some(ran) => {
                (cost_ns.saturating_sub(std::mem::take(&mut slot.charged_ns)), sending_ns(&ran.outputs))
            }
        };
        if spent_ns >= LONG_NS {
            self.slow.insert(tenant);
        } else {
            self.slow.remove(&tenant);
        }
        self.run_queue.charge(tenant, spent_ns + made_ns);
        spent_ns
    }

    /// If a cell has ended since `before` bytes waited to be freed, charges what freeing its memory will take: a tenant pays
    /// before it can take as much again.
    pub(super) fn charge_freeing(&mut self, cell: CellId, before: usize) {
        let bytes = self.cells.deferred_free_bytes().saturating_sub(before) as u64;
        if let Some(slot) = self.slots.get(&cell).filter(|_| bytes > 0) {
            self.run_queue.charge(slot.scheduling.tenant, bytes / cost::FREEING_BYTES_PER_NS);
        }
    }
}

/// The estimated cost of sending these, in nanoseconds.
fn sending_ns(outputs: &[CellOutput]) -> u64 {
    let size = |output: &CellOutput| match output {
        CellOutput::Message { payload, .. } => payload.len() as u64,
        CellOutput::Connect { name, .. } => name.len() as u64,
        CellOutput::Close { .. } | CellOutput::Pause { .. } | CellOutput::Resume { .. } => 0,
    };
    outputs.iter().map(|output| cost::OUTPUT_NS + size(output) / cost::BYTES_PER_NS).sum()
}
