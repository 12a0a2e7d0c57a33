//! A live cell: the instances of its stages in one store, their handlers, and the task that runs them on a stack of their
//! own.
//!
//! ```text
//! Stages (stages.rs)                     Live (this file)
//!   signal.go -------------------------> task: go_on() until quiet, due or failed
//!   poll(task) ------> engine's stack -> handlers of the stages, in one store
//!   take_outcome <---------------------- outcome; none while a handler is preempted
//! ```
//! A handler that is preempted keeps its native stack and its borrow of the store. Nothing but a
//! further poll, or dropping the task, can touch the instances until it ends; the code outside asks
//! `are_quiet` first.
//!
//! This module does not know which input is next or what a handler may do: `host::hosts` decides
//! both.

use super::bound::Bound;
use super::copying::Copying;
use super::driver::{self, Drive, Drivers};
use super::reason;
use crate::buffers::{discard, prefer_small_pages};
use crate::checkpoint::{CheckpointId, Versions};
use crate::dirty::{Method, Tracker};
use crate::generator::{Generator, of_stage};
use crate::host::{Blamed, Host, Hosts, Next, Order, Phase, Refusal};
use crate::watch::Watch;
use marram_session::cell::{CellStop, Seed};
use marram_wire::id::Port;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasmtime::{Global, Instance, Memory, Store, TypedFunc};

/// The instances of a cell. Fields drop in this order: memory must no longer be tracked when its slot is cleaned, or the slot's
/// next cell could see the pages of this one.
pub(crate) struct Live {
    /// In the order of the chain; at least one.
    pub(crate) stages: Vec<Stage>,
    pub(crate) store: Store<Hosts>,
    /// Delivers the messages of a cell that has already run some handlers. `None` until the cell
    /// has run [`driver::AFTER`] handlers, and if no driver could be made.
    drive: Option<Drive>,
    drivers: Rc<Drivers>,
    /// Handlers until the cell gets a driver. `u64::MAX` after the attempt, so that it is not made
    /// again.
    until_driver: u64,
}

impl Drop for Live {
    /// Runs before any field is dropped, in any order of the fields.
    fn drop(&mut self) {
        self.disarm();
    }
}

/// The instance of one stage. The store owns the slot of its memory.
pub(crate) struct Stage {
    pub(crate) tracker: Tracker,
    /// The copy of its memory that is being made for a checkpoint.
    pub(crate) copying: Option<Copying>,
    pub(crate) memory: Memory,
    pub(crate) globals: Vec<Global>,
    /// The checkpoint that was taken or restored last; a delta builds on it.
    pub(crate) checkpoint: Option<CheckpointId>,
    /// The last full one of these; a merged delta builds on it.
    pub(crate) full_checkpoint: Option<CheckpointId>,
    /// What a backup has of some pages, if the last checkpoint went to one.
    pub(crate) versions: Option<Versions>,
    pub(crate) bound: Rc<Bound>,
    /// Whether some of its memory prefers huge pages.
    pub(crate) has_huge_pages: bool,
    handlers: Handlers,
}

/// The exports that the host calls. Optional ones may be missing. Deployment has checked names and
/// types, so a required one is only missing in an image of another version.
pub(super) struct Handlers {
    pub(super) alloc: TypedFunc<u32, u32>,
    pub(super) recv: TypedFunc<(u32, u32, u32), ()>,
    open: Option<TypedFunc<(u32, u32), ()>>,
    timer: Option<TypedFunc<u64, ()>>,
    task: Option<TypedFunc<u64, ()>>,
    close: Option<TypedFunc<u32, ()>>,
}

/// How far a cell came with an input.
pub(super) enum TaskOutcome {
    /// All stages are quiet.
    ToRest,
    /// The slice ended between two handlers.
    ThroughSlice,
    /// The cell ends.
    ToItsEnd(Blamed),
}

impl Live {
    /// Takes a slot for each stage and gives it its image's state.
    ///
    /// No guest code runs: an image's start function and `_initialize` ran at deployment, and
    /// `rewrite` removed them. The seed is the cell's; each stage gets one derived from it.
    ///
    /// # Errors
    /// If no slot is free or the machine lacks memory. Stages that were already added are freed
    /// with `live`.
    pub(super) fn start(
        stages: &[Rc<Bound>],
        server: bool,
        drivers: &Rc<Drivers>,
        seed: Seed,
        method: &Method,
        watch: &Watch,
    ) -> wasmtime::Result<Self> {
        let first = stages.first().ok_or_else(|| wasmtime::Error::msg("a cell has a stage"))?;
        let mut store =
            Store::new(first.pre.module().engine(), Hosts::new(stages.len(), server, watch.clone()));
        // The quota of memory growth is the host's, per stage.
        store.limiter(|hosts| hosts);
        // A handler may run to the end of the current slice; then it yields after each slice.
        store.epoch_deadline_callback(|mut store| store.data_mut().preempted());
        let drivers = Rc::clone(drivers);
        let list = Vec::with_capacity(stages.len());
        let mut live = Self { stages: list, store, drive: None, drivers, until_driver: driver::AFTER };
        // If one stage may wait in an import, the store must instantiate the other stages the same way.
        let waits = stages.iter().any(|bound| bound.waits);
        for (at, bound) in (0..).zip(stages) {
            live.add(bound, waits, at, (of_stage(seed, at), Tracker::new(method)))?;
        }
        Ok(live)
    }

    /// Instantiates one more stage. `at` is its number, and must be the number of stages so far.
    fn add(
        &mut self,
        bound: &Rc<Bound>,
        waits: bool,
        at: u8,
        (seed, tracker): (Seed, Tracker),
    ) -> wasmtime::Result<()> {
        // Until `stages` has this stage, an early return drops the store; no tracking is armed yet,
        // so that is safe.
        let store = &mut self.store;
        let mut host = Host::new(Phase::Running, seed, bound.image.files.clone(), &bound.quotas);
        host.stage = at;
        host.keys = std::sync::Arc::clone(&bound.keys);
        host.servers = bound.image.servers.clone().into();
        store.data_mut().add(host);
        let instance = if waits {
            now(bound.pre.instantiate_async(&mut *store))?
        } else {
            bound.pre.instantiate(&mut *store)?
        };
        let memory = instance
            .get_memory(&mut *store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("the image exports no memory"))?;
        store.data_mut().running().memory = Some(memory);
        let handlers = Handlers::find(store, &instance)?;
        let globals = bound
            .globals
            .iter()
            .map(|export| {
                instance.get_module_export(&mut *store, export).and_then(wasmtime::Extern::into_global)
            })
            .collect::<Option<_>>()
            .ok_or_else(|| wasmtime::Error::msg("the image does not export its globals"))?;
        let bound = Rc::clone(bound);
        self.stages.push(Stage {
            tracker,
            copying: None,
            memory,
            globals,
            checkpoint: None,
            full_checkpoint: None,
            versions: None,
            bound,
            has_huge_pages: false,
            handlers,
        });
        Ok(())
    }

    /// Assigns the instances to another session, before their first input. Only for a cell that no
    /// handler has run in: it would have drawn from the old seed.
    pub(super) fn reseed(&mut self, seed: Seed) {
        for (at, host) in (0..).zip(self.store.data_mut().stages()) {
            host.generator = Generator::new(of_stage(seed, at));
        }
    }

    /// Ends dirty tracking by the kernel. Must be called before the memories' slots are given back; dropping also does it.
    pub(super) fn disarm(&mut self) {
        self.forget_copies();
        (0..self.stages.len()).for_each(|at| self.disarm_from(at, 0));
    }

    /// Forgets what was copied, and earlier versions of pages: others may keep as much from now on.
    pub(super) fn forget_copies(&mut self) {
        self.stages.iter_mut().for_each(|stage| (stage.copying, stage.versions) = (None, None));
    }

    /// As [`Self::disarm`], for the memory of a stage from this offset on: that of a large one goes piece by piece.
    pub(super) fn disarm_from(&mut self, at: usize, offset: usize) {
        let stage = &mut self.stages[at];
        stage.tracker.disarm_from(offset);
        if std::mem::take(&mut stage.has_huge_pages) {
            prefer_small_pages(stage.memory.data_mut(&mut self.store));
        }
    }

    /// Gives the pages of its memories back to the kernel. No session uses it.
    pub(super) fn discard(&mut self) {
        self.disarm();
        for stage in &self.stages {
            discard(stage.memory.data_mut(&mut self.store));
        }
    }

    /// Runs handlers until all stages are quiet or the slice is over. Resumes across awaits: each is a preemption.
    ///
    /// Each round runs one handler, or with a driver all messages up to the slice's end. The
    /// deadline of 1 lets the first handler run to the end of the current slice, wherever in it the
    /// turn began; `Hosts::preempted` then yields once a slice.
    async fn go_on(&mut self) -> TaskOutcome {
        self.store.data_mut().begin_turn();
        self.store.set_epoch_deadline(1);
        let outcome = loop {
            let done = match self.store.data().next() {
                Next::Nothing => break TaskOutcome::ToRest,
                Next::Due => break TaskOutcome::ThroughSlice,
                Next::Failed => Ok(()),
                Next::Message if self.has_driver() => self.drive().await,
                Next::Message | Next::Other => self.handle().await,
            };
            let hosts = self.store.data_mut();
            // The host's reason for a failure takes precedence over the engine's error.
            let failure = hosts.take_failure();
            if let Some(blamed) = failure.or_else(|| Some((hosts.at(), stop(&done.err()?)))) {
                break TaskOutcome::ToItsEnd(blamed);
            }
        };
        self.store.data_mut().charge();
        outcome
    }

    fn has_driver(&mut self) -> bool {
        if self.until_driver == 0 {
            // Tried once: without a driver messages are slower, and nothing else changes.
            self.until_driver = u64::MAX;
            let handlers = self.stages.iter().map(|stage| &stage.handlers);
            self.drive = self.drivers.join(&mut self.store, handlers).ok();
        }
        self.drive.is_some()
    }

    /// Lets the driver deliver messages until there is something else to do.
    async fn drive(&mut self) -> wasmtime::Result<()> {
        match &self.drive {
            Some(drive) => drive.call_async(&mut self.store, ()).await,
            None => Ok(()),
        }
    }

    /// Runs one handler to its end. Without the driver: for the first messages of a cell, and for
    /// every input that is not a message.
    async fn handle(&mut self) -> wasmtime::Result<()> {
        self.until_driver = self.until_driver.saturating_sub(1);
        let Some(order) = self.store.data_mut().hand_over() else { return Ok(()) };
        self.call(order).await?;
        self.store.data_mut().ended();
        Ok(())
    }

    /// Calls the export for this order. An app need not export a handler other than `marram_recv`;
    /// without it the input has no effect except on the ports.
    async fn call(&mut self, order: Order) -> wasmtime::Result<()> {
        let store = &mut self.store;
        let Stage { memory, handlers, .. } = &self.stages[store.data().at()];
        match order {
            Order::Message { port, len } => {
                let ptr = handlers.alloc.call_async(&mut *store, len).await?;
                let (memory, hosts) = memory.data_and_store_mut(&mut *store);
                hosts.put(memory, ptr)?;
                handlers.recv.call_async(&mut *store, (port, ptr, len)).await
            }
            Order::Open { port, kind } => {
                let hosts = store.data_mut();
                hosts
                    .open(Port(port))
                    .map_err(|_| wasmtime::Error::msg("the cell has had too many ports"))?;
                match &handlers.open {
                    Some(open) => open.call_async(&mut *store, (port, kind)).await,
                    None => Ok(()),
                }
            }
            Order::Close { port } => match &handlers.close {
                Some(close) => close.call_async(&mut *store, port).await,
                None => Ok(()),
            },
            Order::Gone { port } => {
                store.data_mut().ports().forget(Port(port));
                Ok(())
            }
            Order::Task { token } => match &handlers.task {
                Some(task) => task.call_async(&mut *store, token).await,
                None => Ok(()),
            },
            Order::Timer { token } => match &handlers.timer {
                Some(timer) => timer.call_async(&mut *store, token).await,
                None => Ok(()),
            },
        }
    }
}

impl Handlers {
    fn find(store: &mut Store<Hosts>, instance: &Instance) -> wasmtime::Result<Self> {
        let alloc = instance.get_typed_func(&mut *store, "marram_alloc")?;
        let recv = instance.get_typed_func(&mut *store, "marram_recv")?;
        Ok(Self {
            alloc,
            recv,
            open: instance.get_typed_func(&mut *store, "marram_open").ok(),
            timer: instance.get_typed_func(&mut *store, "marram_timer").ok(),
            task: instance.get_typed_func(&mut *store, "marram_task").ok(),
            close: instance.get_typed_func(&mut *store, "marram_close").ok(),
        })
    }
}

/// Polls a future until it is ready. It waits for nothing and can only be preempted: creating an instance is not interrupted.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

/// Maps the engine's error: either the guest failed, or the host could not continue. A kill is the
/// machine's doing, so another edge may succeed; a trap is the guest's, and cells are
/// deterministic.
fn stop(error: &wasmtime::Error) -> CellStop {
    match error.downcast_ref::<Refusal>() {
        Some(Refusal::MachineMemory(_)) => CellStop::Kill(reason(error)),
        _ => CellStop::Trap(reason(error)),
    }
}

/// Starts a cell's task, and returns how far it came. A task cannot be passed arguments and never
/// returns, so both directions go through these cells. Values of one thread: no lock.
#[derive(Default)]
pub(crate) struct TaskSignal {
    go: Cell<bool>,
    outcome: Cell<Option<TaskOutcome>>,
}

impl TaskSignal {
    pub(super) fn go(&self) {
        self.go.set(true);
    }

    pub(super) fn take_outcome(&self) -> Option<TaskOutcome> {
        self.outcome.take()
    }
}

/// A cell's task: it never completes, and is pending while it waits for its turn or is preempted.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// One task serves a cell for its whole life, so that a handler costs no allocation.
#[expect(
    clippy::await_holding_refcell_ref,
    reason = "while a handler is preempted no other code may touch its instance"
)]
pub(crate) fn task(live: Rc<RefCell<Live>>, signal: Rc<TaskSignal>) -> Task {
    Box::pin(async move {
        loop {
            poll_fn(|_| if signal.go.take() { Poll::Ready(()) } else { Poll::Pending }).await;
            let outcome = live.borrow_mut().go_on().await;
            signal.outcome.set(Some(outcome));
        }
    })
}
