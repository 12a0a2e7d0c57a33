//! The hostile cells, written instruction by instruction: what a tenant could deploy to take more than its share.

use super::Kind;
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    InstructionSink, MemArg, MemorySection, MemoryType, Module, TypeSection, ValType,
};

/// Where messages are put.
const BUFFER: i32 = 65_536;
/// Messages that a flood answers one byte with, and their size.
const FLOOD_MESSAGES: i32 = 256;
const FLOOD_BYTES: i32 = 4_096;
/// Timers that are always due.
const TIMERS: i64 = 8;

/// The functions' numbers: imports come first.
const SEND: u32 = 0;
const TIMER: u32 = 1;

/// A module that does what a process of this kind does.
#[must_use]
pub(super) fn module(kind: Kind) -> Vec<u8> {
    match kind {
        Kind::Echo | Kind::Connections => assemble(&echo(), &nothing()),
        Kind::Loop => assemble(&endless(), &nothing()),
        Kind::Flood => assemble(&flood(), &nothing()),
        Kind::Growth => assemble(&growth(), &nothing()),
        Kind::Timers => assemble(&timers(), &timer_again()),
    }
}

/// A module whose handlers are `recv` (port, ptr, len) and `timer` (token).
fn assemble(recv: &Function, timer: &Function) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([ValType::I32, ValType::I32, ValType::I32], []);
    types.ty().function([ValType::I64, ValType::I64], []);
    types.ty().function([ValType::I64], []);
    let mut imports = ImportSection::new();
    imports.import("marram_v1", "send", EntityType::Function(1));
    imports.import("marram_v1", "timer", EntityType::Function(2));
    let mut functions = FunctionSection::new();
    functions.function(0).function(1).function(3);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: 32,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0);
    for (name, number) in [("marram_alloc", 2), ("marram_recv", 3), ("marram_timer", 4)] {
        exports.export(name, ExportKind::Func, number);
    }
    let mut alloc = Function::new([]);
    alloc.instructions().i32_const(BUFFER).end();
    let mut code = CodeSection::new();
    code.function(&alloc).function(recv).function(timer);
    let mut module = Module::new();
    module
        .section(&types)
        .section(&imports)
        .section(&functions)
        .section(&memories)
        .section(&exports)
        .section(&code);
    module.finish()
}

/// A function without locals of its own.
fn function(body: impl FnOnce(&mut InstructionSink<'_>)) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    body(&mut code);
    code.end();
    function
}

fn nothing() -> Function {
    function(|_| {})
}

fn echo() -> Function {
    function(|code| _ = code.local_get(0).local_get(1).local_get(2).call(SEND))
}

fn endless() -> Function {
    function(|code| _ = code.loop_(BlockType::Empty).br(0).end())
}

/// Counts down in the place of the message's length.
fn flood() -> Function {
    function(|code| {
        code.i32_const(FLOOD_MESSAGES).local_set(2);
        code.loop_(BlockType::Empty);
        code.local_get(0).i32_const(BUFFER).i32_const(FLOOD_BYTES).call(SEND);
        code.local_get(2).i32_const(1).i32_sub().local_tee(2).br_if(0).end();
    })
}

/// Takes page after page of 64 KiB and writes on all that they consist of; traps when there are no more, so that the next
/// client begins anew.
fn growth() -> Function {
    function(|code| {
        code.loop_(BlockType::Empty);
        code.i32_const(1).memory_grow(0).local_tee(1).i32_const(-1).i32_eq();
        code.if_(BlockType::Empty).unreachable().end();
        code.local_get(1).i32_const(16).i32_shl().local_set(1);
        for page in 0..16 {
            let place = MemArg { offset: page * 4_096, align: 2, memory_index: 0 };
            code.local_get(1).i32_const(1).i32_store(place);
        }
        code.br(0).end();
    })
}

fn timers() -> Function {
    function(|code| {
        for token in 0..TIMERS {
            code.i64_const(1).i64_const(token).call(TIMER);
        }
    })
}

fn timer_again() -> Function {
    function(|code| _ = code.i64_const(1).local_get(0).call(TIMER))
}
