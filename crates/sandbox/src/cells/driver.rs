//! The driver: a WebAssembly module of our own, next to the guests of a cell, that delivers their messages. It asks the host
//! which stage is next, makes that stage allocate room, lets the host copy the message there, and calls the handler, until no
//! message waits. A call into the engine first gets a stack and costs more than most handlers; with the driver, each input of
//! the cell needs one such call, however many stages it has. Guests cannot name the driver, and it uses two functions of each.
//!
//! ```text
//! host                     driver (Wasm)              stage n (Wasm)
//! call drive()  ------->   next() --> host: ends the last handler, pops a message
//!                          alloc_n(len)  ----------->  marram_alloc
//!                          put(ptr)  --> host: copies the message to ptr
//!                          recv_n(port, ptr, len) -->  marram_recv   --> imports: send, now, ...
//!                          next() ...
//!               <-------   returns when `next` has no stage
//! ```
//! The driver has no memory and no state, so it is part of no checkpoint. A cell with a driver and
//! one without give the same results; only the trace of a trap could tell, and
//! [`Drivers::is_named`] keeps it out of that.

use super::live::{Handlers, now};
use crate::host::Hosts;
use crate::limits::STAGES_MAX;
use std::cell::RefCell;
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    Module as Encoder, NameSection, TypeSection, ValType,
};
use wasmtime::{Caller, Engine, Extern, Instance, Linker, Module, Store, TypedFunc};

/// The module's name; traces leave out frames of this module.
const NAME: &str = "marram:driver";
/// The module name under which it imports the host's functions.
const HOST: &str = "marram";
/// What the host returns when no message is next.
const NO_STAGE: u32 = u32::MAX;
/// Handlers after which a cell gets a driver: creating it costs as much as it saves on this many messages.
pub(super) const AFTER: u64 = 32;

/// Runs until no message is next.
pub(super) type Drive = TypedFunc<(), ()>;

/// The driver modules, one for each number of stages, compiled for one engine when first needed.
pub(crate) struct Drivers {
    /// Has [`next`] and [`put`] only; guests are linked with another linker that does not have
    /// them.
    host: Linker<Hosts>,
    /// By number of stages minus one. In a cell, since a module is compiled when a cell of that
    /// size is first prepared.
    modules: RefCell<[Option<Module>; STAGES_MAX]>,
}

impl Drivers {
    pub(super) fn new(engine: &Engine) -> wasmtime::Result<Self> {
        let mut host = Linker::new(engine);
        host.func_wrap(HOST, "next", next)?;
        host.func_wrap(HOST, "put", put)?;
        let drivers = Self { host, modules: RefCell::new([const { None }; STAGES_MAX]) };
        drivers.prepare(1)?;
        Ok(drivers)
    }

    /// Compiles the module for cells with this number of stages if it is missing: that takes a millisecond or two.
    ///
    /// Called before a cell is started, outside of any handler: compiling within one would be
    /// charged to it.
    pub(super) fn prepare(&self, stages: usize) -> wasmtime::Result<()> {
        let mut modules = self.modules.borrow_mut();
        let place = stages.checked_sub(1).and_then(|at| modules.get_mut(at));
        let place = place.ok_or_else(|| wasmtime::Error::msg("no cell has so many stages"))?;
        if place.is_none() {
            *place = Some(Module::new(self.host.engine(), assemble(u32::try_from(stages)?))?);
        }
        Ok(())
    }

    /// Adds a driver to guests with these exports.
    ///
    /// Uses up one more instance of the pool for the rest of the cell's life; `CellsConfig::pool`
    /// has room for one per cell. `new_async`, because a store with asynchronous imports refuses
    /// the other way.
    pub(super) fn join<'a>(
        &self,
        store: &mut Store<Hosts>,
        stages: impl ExactSizeIterator<Item = &'a Handlers>,
    ) -> wasmtime::Result<Drive> {
        self.prepare(stages.len())?;
        let modules = self.modules.borrow();
        let module = modules[stages.len() - 1].as_ref().expect("it was just made");
        let mut imports: Vec<Extern> = Vec::with_capacity(2 + 2 * stages.len());
        for name in ["next", "put"] {
            imports.push(self.host.get(&mut *store, HOST, name)?);
        }
        for Handlers { alloc, recv, .. } in stages {
            imports.push((*alloc.func()).into());
            imports.push((*recv.func()).into());
        }
        now(Instance::new_async(&mut *store, module, &imports))?.get_typed_func(&mut *store, "drive")
    }

    /// Whether this is the name of a driver module.
    pub(super) fn is_named(name: Option<&str>) -> bool {
        name == Some(NAME)
    }
}

/// The stage that gets the next message, the message's port and its length; [`NO_STAGE`] if the driver must return.
///
/// The driver calls it after each handler too, so this is where a handler that the driver ran is
/// accounted for. It stops with [`NO_STAGE`] as well when the slice is over, the cell has failed,
/// or the next input is not a message: the host does the rest.
fn next(mut caller: Caller<'_, Hosts>) -> (u32, u32, u32) {
    let hosts = caller.data_mut();
    if hosts.is_running() {
        hosts.ended();
    }
    match hosts.hand_over_message() {
        Some((stage, port, len)) => (u32::try_from(stage).unwrap_or(NO_STAGE), port, len),
        None => (NO_STAGE, 0, 0),
    }
}

/// Copies the message to the memory that its stage allocated.
///
/// # Errors
/// Traps if the guest's `marram_alloc` returned a place that is not within its memory.
fn put(mut caller: Caller<'_, Hosts>, ptr: u32) -> wasmtime::Result<()> {
    let memory = caller.data().runs().memory;
    let memory = memory.ok_or_else(|| wasmtime::Error::msg("a stage that runs has a memory"))?;
    let (memory, hosts) = memory.data_and_store_mut(&mut caller);
    hosts.put(memory, ptr)
}

/// ```text
/// loop
///   (stage, port, len) = next()
///   switch stage { n: ptr = alloc_n(len); put(ptr); recv_n(port, ptr, len); continue }
///   return
/// ```
/// The module. Function indices: 0 `next`, 1 `put`, then `alloc` and `recv` of each stage, then
/// `drive`.
fn assemble(stages: u32) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([], [ValType::I32; 3]);
    types.ty().function([ValType::I32], []);
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([ValType::I32; 3], []);
    types.ty().function([], []);
    let mut imports = ImportSection::new();
    imports.import(HOST, "next", EntityType::Function(0));
    imports.import(HOST, "put", EntityType::Function(1));
    for stage in 0..stages {
        imports.import(HOST, &format!("alloc-{stage}"), EntityType::Function(2));
        imports.import(HOST, &format!("recv-{stage}"), EntityType::Function(3));
    }
    let mut functions = FunctionSection::new();
    functions.function(4);
    let mut exports = ExportSection::new();
    exports.export("drive", ExportKind::Func, 2 + 2 * stages);
    let (stage, port, len, ptr) = (0, 1, 2, 3);
    let mut drive = Function::new([(4, ValType::I32)]);
    let mut code = drive.instructions();
    // One block per stage, the first innermost, inside a block that the switch leaves when no message is next.
    code.loop_(BlockType::Empty).block(BlockType::Empty);
    for _ in 0..stages {
        code.block(BlockType::Empty);
    }
    code.call(0).local_set(len).local_set(port).local_tee(stage);
    code.br_table((0..stages).collect::<Vec<_>>(), stages);
    for n in 0..stages {
        let (alloc, recv) = (2 + 2 * n, 3 + 2 * n);
        code.end().local_get(len).call(alloc).local_tee(ptr).call(1);
        code.local_get(port).local_get(ptr).local_get(len).call(recv);
        // Leaves the blocks of the later stages and the outer block, back to the loop.
        code.br(stages - n);
    }
    code.end().end().end();
    let mut code = CodeSection::new();
    code.function(&drive);
    let mut names = NameSection::new();
    names.module(NAME);
    let mut module = Encoder::new();
    module
        .section(&types)
        .section(&imports)
        .section(&functions)
        .section(&exports)
        .section(&code)
        .section(&names);
    module.finish()
}
