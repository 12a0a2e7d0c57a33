//! One stage of a live cell: its instance, its handlers, and the task that runs them on a stack of their own.

use super::bound::Bound;
use super::entry::{self, Enter, Entry};
use super::reason;
use crate::checkpoint::CheckpointId;
use crate::dirty::Tracker;
use crate::host::{Host, Phase, Refusal};
use marram_session::cell::{Input, Outcome, Seed, Stop};
use marram_wire::id::Port;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use wasmtime::{Global, Instance, Memory, Store, TypedFunc, UpdateDeadline};

/// The instance of a live stage. Fields drop in this order: the memory is no longer tracked when its slot is cleaned,
/// or the slot's next cell could see this one's pages.
pub(crate) struct Live {
    pub(crate) tracker: Tracker,
    pub(crate) store: Store<Host>,
    pub(crate) memory: Memory,
    pub(crate) globals: Vec<Global>,
    /// The checkpoint taken or restored last, that a delta builds on.
    pub(crate) checkpoint: Option<CheckpointId>,
    /// Handlers run so far in this instance.
    pub(crate) handled: u64,
    handlers: Handlers,
    /// What [`Handlers::enter`] is made of.
    entry: Rc<Entry>,
}

impl Drop for Live {
    /// Before any field goes, whatever their order.
    fn drop(&mut self) {
        self.tracker.disarm();
    }
}

/// The exports that the host calls. Optional ones may be missing.
struct Handlers {
    alloc: TypedFunc<u32, u32>,
    recv: TypedFunc<(u32, u32, u32), ()>,
    open: Option<TypedFunc<(u32, u32), ()>>,
    timer: Option<TypedFunc<u64, ()>>,
    close: Option<TypedFunc<u32, ()>>,
    /// `alloc` and `recv` in one call, for a cell that has run some handlers.
    enter: Option<Enter>,
}

impl Live {
    /// Takes a slot and gives it the image's state.
    pub(super) fn start(
        bound: &Bound,
        entry: &Rc<Entry>,
        stage: u8,
        seed: Seed,
        tracker: Tracker,
    ) -> wasmtime::Result<Self> {
        let files = bound.image.files.clone();
        let mut host = Host::new(Phase::Running, seed, files, bound.quotas.memory_max);
        host.stage = stage;
        host.keys = Arc::clone(&bound.keys);
        let mut store = Store::new(bound.pre.module().engine(), host);
        store.limiter(|host| host);
        // A handler may run to the end of the slice that is under way; then it yields, slice after slice.
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        let instance = bound.pre.instantiate(&mut store)?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("the image exports no memory"))?;
        store.data_mut().memory = Some(memory);
        let handlers = Handlers::find(&mut store, &instance)?;
        let globals = bound
            .globals
            .iter()
            .map(|export| {
                instance.get_module_export(&mut store, export).and_then(wasmtime::Extern::into_global)
            })
            .collect::<Option<_>>()
            .ok_or_else(|| wasmtime::Error::msg("the image does not export its globals"))?;
        let entry = Rc::clone(entry);
        Ok(Self { tracker, store, memory, globals, checkpoint: None, handled: 0, handlers, entry })
    }

    /// Gets ready for one handler; what it is to do, for its task.
    pub(super) fn begin(&mut self, input: Input, now_ns: i64) -> Order {
        let host = self.store.data_mut();
        host.begin(now_ns);
        match input {
            Input::Message { port, payload } => {
                let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                host.arriving = Some(payload);
                Order::Message { port: port.0, len }
            }
            Input::Open { port, kind } => Order::Open { port: port.0, kind: kind as u32 },
            Input::Close { port } => Order::Close { port: port.0 },
            Input::Gone { port } => Order::Gone { port: port.0 },
            Input::Timer { token, .. } => Order::Timer { token },
        }
    }

    /// Runs one handler to its end. Resumes across awaits: each is a preemption.
    async fn handle(&mut self, order: Order) -> Outcome {
        self.handled += 1;
        if self.handled == entry::AFTER {
            let Handlers { alloc, recv, .. } = &self.handlers;
            // Without it messages are slower, and nothing else is different.
            self.handlers.enter = self.entry.join(&mut self.store, alloc, recv).ok();
        }
        self.store.set_epoch_deadline(1);
        match self.call(order).await {
            Ok(()) => Outcome::Idle,
            Err(error) => Outcome::Stopped(stop(&error)),
        }
    }

    async fn call(&mut self, order: Order) -> wasmtime::Result<()> {
        let store = &mut self.store;
        match order {
            Order::Message { port, len } => {
                if len as usize > crate::limits::MESSAGE_BYTES_MAX {
                    return Err(too_long(len));
                }
                if let Some(enter) = &self.handlers.enter {
                    return enter.call_async(&mut *store, (port, len)).await;
                }
                let ptr = self.handlers.alloc.call_async(&mut *store, len).await?;
                let (memory, host) = self.memory.data_and_store_mut(&mut *store);
                crate::host::put(memory, host, ptr)?;
                self.handlers.recv.call_async(&mut *store, (port, ptr, len)).await
            }
            Order::Open { port, kind } => {
                store
                    .data_mut()
                    .ports
                    .open(Port(port))
                    .map_err(|_| wasmtime::Error::msg("the cell has had too many ports"))?;
                match &self.handlers.open {
                    Some(open) => open.call_async(&mut *store, (port, kind)).await,
                    None => Ok(()),
                }
            }
            Order::Close { port } => match &self.handlers.close {
                Some(close) => close.call_async(&mut *store, port).await,
                None => Ok(()),
            },
            Order::Gone { port } => {
                store.data_mut().ports.forget(Port(port));
                Ok(())
            }
            Order::Timer { token } => match &self.handlers.timer {
                Some(timer) => timer.call_async(&mut *store, token).await,
                None => Ok(()),
            },
        }
    }
}

impl Handlers {
    fn find(store: &mut Store<Host>, instance: &Instance) -> wasmtime::Result<Self> {
        let alloc = instance.get_typed_func(&mut *store, "marram_alloc")?;
        let recv = instance.get_typed_func(&mut *store, "marram_recv")?;
        Ok(Self {
            alloc,
            recv,
            open: instance.get_typed_func(&mut *store, "marram_open").ok(),
            timer: instance.get_typed_func(&mut *store, "marram_timer").ok(),
            close: instance.get_typed_func(&mut *store, "marram_close").ok(),
            enter: None,
        })
    }
}

fn too_long(len: u32) -> wasmtime::Error {
    crate::host::guest_error(format!(
        "a message of {len} bytes arrived; the most is {}",
        crate::limits::MESSAGE_BYTES_MAX
    ))
}

/// Whether the guest failed or the host could not go on.
fn stop(error: &wasmtime::Error) -> Stop {
    match error.downcast_ref::<Refusal>() {
        Some(Refusal::MachineMemory(_)) => Stop::Kill(reason(error)),
        _ => Stop::Trap(reason(error)),
    }
}

/// An input, but for its bytes, which are with the host by then. No field is narrower than a word: tasks hand it on by the
/// word, and a processor waits when it reads as a whole what was just written in parts.
#[derive(Clone, Copy)]
pub(super) enum Order {
    Message { port: u32, len: u32 },
    Open { port: u32, kind: u32 },
    Close { port: u32 },
    Gone { port: u32 },
    Timer { token: u64 },
}

/// Where orders to a cell's task and its answers are left.
#[derive(Default)]
pub(crate) struct Desk {
    order: Cell<Option<Order>>,
    answer: Cell<Option<Outcome>>,
}

impl Desk {
    pub(super) fn put(&self, order: Order) {
        self.order.set(Some(order));
    }

    pub(crate) fn answer(&self) -> Option<Outcome> {
        self.answer.take()
    }
}

/// A cell's task: it never ends, and is pending while it waits for an order or is preempted.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// One task serves a cell for its whole life, so that a handler costs no allocation.
#[expect(
    clippy::await_holding_refcell_ref,
    reason = "while a handler is preempted nobody else may touch its instance"
)]
pub(crate) fn task(live: Rc<RefCell<Live>>, desk: Rc<Desk>) -> Task {
    Box::pin(async move {
        loop {
            let order = poll_fn(|_| match desk.order.take() {
                Some(order) => Poll::Ready(order),
                None => Poll::Pending,
            })
            .await;
            let outcome = live.borrow_mut().handle(order).await;
            desk.answer.set(Some(outcome));
        }
    })
}
