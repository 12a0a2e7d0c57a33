//! Guests for benchmarks and for tests of whole edges, written instruction by instruction, since the program contains no
//! assembler: the guests to be measured, and guests that a hostile tenant could deploy to take more than its share.
//!
//! All guests have the same shape, so that only the bodies of their handlers differ:
//!
//! ```text
//! imports  marram_v1.send now timer spawn print          functions 0 to 4
//! exports  marram_alloc   returns the buffer's address    function  5
//!          marram_recv    the given body                  function  6
//!          marram_timer   the given body                  function  7, also exported as marram_task
//! memory   page 0 | page 1: message buffer | ...          64 KiB pages
//! ```
//! The buffer is not allocated for each message: a second message overwrites the first. That
//! is sound here, since a handler ends before the next message is copied in, and it keeps
//! allocation out of what is measured.

use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemArg, MemorySection, MemoryType, Module, TypeSection, ValType,
};

/// Writes the instructions of a body.
pub type Code<'a> = wasm_encoder::InstructionSink<'a>;
/// Writes the body of a handler, without its end.
pub type Body = fn(&mut Code<'_>);

/// Initial memory of a guest in pages of 64 KiB, and the address of its message buffer: on a page of its own.
const WASM_PAGES: u32 = 32;
const BUFFER: i32 = 65_536;
/// Memory of the guest that represents a small service, in pages of 64 KiB.
const VISITOR_WASM_PAGES: u32 = 16;

/// The numbers of `send(port, ptr, len)`, `now()`, `timer(delay_ns, token)`, `spawn(token)` and `print(level, ptr, len)`.
const SEND: u32 = 0;
const NOW: u32 = 1;
const TIMER: u32 = 2;
const SPAWN: u32 = 3;
const PRINT: u32 = 4;
/// Names of the imports and their types, as indices into the type section that `assemble` writes.
const IMPORTS: [(&str, u32); 5] = [("send", 0), ("now", 1), ("timer", 2), ("spawn", 4), ("print", 0)];

/// A module whose message handler has the locals 0 (port), 1 (address) and 2 (length), and whose timer handler has the
/// locals 0 (token) and 1, a number. The task handler is the timer handler.
#[must_use]
pub fn module(recv: Body, timer: Body) -> Vec<u8> {
    module_of(WASM_PAGES, recv, timer)
}

/// The same, with `wasm_pages` pages of 64 KiB. `recv` may use no further locals than its three
/// parameters; `timer` gets one more, for the counter of [`repeat`].
fn module_of(wasm_pages: u32, recv: Body, timer: Body) -> Vec<u8> {
    let function = |locals, body: Body| {
        let mut function = Function::new(locals);
        let mut code = function.instructions();
        body(&mut code);
        code.end();
        function
    };
    assemble(wasm_pages, BUFFER, &function(Vec::new(), recv), &function(vec![(1, ValType::I32)], timer))
}

/// Assembles a module with a memory, `marram_alloc` that returns `buffer`, `marram_recv` and `marram_timer`.
///
/// The number of functions that are imported decides all later indices: [`IMPORTS`] and the
/// constants above it change together.
fn assemble(wasm_pages: u32, buffer: i32, recv: &Function, timer: &Function) -> Vec<u8> {
    use ValType::{I32, I64};
    let mut types = TypeSection::new();
    types.ty().function([I32, I32, I32], []);
    types.ty().function([], [I64]);
    types.ty().function([I64, I64], []);
    types.ty().function([I32], [I32]);
    types.ty().function([I64], []);
    let mut imports = ImportSection::new();
    for (name, kind) in IMPORTS {
        imports.import("marram_v1", name, EntityType::Function(kind));
    }
    let (mut functions, mut exports, mut code) =
        (FunctionSection::new(), ExportSection::new(), CodeSection::new());
    let mut alloc = Function::new([]);
    alloc.instructions().i32_const(buffer).end();
    let all = [("marram_alloc", 3, &alloc), ("marram_recv", 0, recv), ("marram_timer", 4, timer)];
    for ((name, kind, function), number) in all.into_iter().zip(PRINT + 1..) {
        functions.function(kind);
        exports.export(name, ExportKind::Func, number);
        code.function(function);
    }
    let timer = PRINT + 3;
    exports.export("marram_task", ExportKind::Func, timer);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: wasm_pages.into(),
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    exports.export("memory", ExportKind::Memory, 0);
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&memories);
    module.section(&exports).section(&code);
    module.finish()
}

/// For any handler: does nothing.
pub fn nothing(_: &mut Code<'_>) {}

/// For a message: sends it back from its buffer.
pub fn answer(code: &mut Code<'_>) {
    code.local_get(0).local_get(1).local_get(2).call(SEND);
}

/// For any handler: never ends.
pub fn endless(code: &mut Code<'_>) {
    code.loop_(BlockType::Empty).br(0).end();
}

/// For a message: answers with `count` messages of `size` bytes.
pub fn send(code: &mut Code<'_>, count: i32, size: i32) {
    repeat(code, 2, count, |code| _ = code.local_get(0).i32_const(BUFFER).i32_const(size).call(SEND));
}

/// For a message: takes page after page of 64 KiB and writes to every 4 KiB page of it; traps when there is no more memory, so
/// that the next client starts again.
///
/// Local 1 is the handler's second parameter, which is free once the message's address is not
/// needed: it holds the page's number and then its address. A trap ends the session, so the next
/// client's cell begins with a small memory again.
pub fn grow(code: &mut Code<'_>) {
    code.loop_(BlockType::Empty);
    code.i32_const(1).memory_grow(0).local_tee(1).i32_const(-1).i32_eq();
    code.if_(BlockType::Empty).unreachable().end();
    code.local_get(1).i32_const(16).i32_shl().local_set(1);
    for page in 0..16 {
        code.local_get(1).i32_const(1).i32_store(MemArg { offset: page * 4_096, align: 2, memory_index: 0 });
    }
    code.br(0).end();
}

/// For a message: sets `count` timers that are due at once. The tokens are `count` down to 1, so
/// each message sets the same timers again.
pub fn set_timers(code: &mut Code<'_>, count: i32) {
    repeat(code, 2, count, |code| _ = code.i64_const(1).local_get(2).i64_extend_i32_u().call(TIMER));
}

/// For a message: spawns `count` tasks. The tokens are `count` down to 1.
pub fn spawn_tasks(code: &mut Code<'_>, count: i32) {
    repeat(code, 2, count, |code| _ = code.local_get(2).i64_extend_i32_u().call(SPAWN));
}

/// For a task: spawns it again.
pub fn spawn_again(code: &mut Code<'_>) {
    code.local_get(0).call(SPAWN);
}

/// For a timer: sets it again, due at once.
pub fn again(code: &mut Code<'_>) {
    code.i64_const(1).local_get(0).call(TIMER);
}

/// For a timer: reads the time and writes to the log, `count` times; then sets the timer again, due at once.
pub fn print(code: &mut Code<'_>, count: i32) {
    repeat(code, 1, count, |code| {
        code.call(NOW).drop().i32_const(2).i32_const(BUFFER).i32_const(1).call(PRINT);
    });
    again(code);
}

/// Runs `body` `count` times, at least once, counting down in this local. `body` must leave the
/// stack as it found it. With `count` 0 it would run 2^32 times: the counter wraps.
fn repeat(code: &mut Code<'_>, local: u32, count: i32, body: impl FnOnce(&mut Code<'_>)) {
    code.i32_const(count).local_set(local).loop_(BlockType::Empty);
    body(code);
    code.local_get(local).i32_const(1).i32_sub().local_tee(local).br_if(0).end();
}

/// A guest that sends each message back.
pub(super) fn echo() -> Vec<u8> {
    module(answer, nothing)
}

/// A guest that writes a word on each of eight pages and sends the message back: the page faults of a small service's first
/// message. It has 1 MiB: the cost of a checkpoint and of returning a slot grows with the number of memory pages.
pub(super) fn visitor() -> Vec<u8> {
    module_of(
        VISITOR_WASM_PAGES,
        |code| {
            for page in 1..=8 {
                let place = MemArg { offset: 0, align: 2, memory_index: 0 };
                code.i32_const(page * 4096).local_get(2).i32_store(place);
            }
            answer(code);
        },
        nothing,
    )
}

/// A guest that takes `| count 4 | stride 4 |` and fills that many pages with a stream that does
/// not compress. `| count 4 | stride 4 |`, in the session's byte order of WebAssembly,
/// little-endian. The pages are every `stride`-th one, from the second on; the first is the
/// message's. Address 8 has the state of the stream, so that every message writes other bytes.
pub(super) fn writer(wasm_pages: u32) -> Vec<u8> {
    let mut idle = Function::new([]);
    idle.instructions().end();
    assemble(wasm_pages, 16, &fill_pages(), &idle)
}

/// `for page in 0..count { for word in page { x = xorshift(x); word = x } }`, with `x` kept at address 8.
fn fill_pages() -> Function {
    let word = |offset| MemArg { offset, align: 2, memory_index: 0 };
    let long = |offset| MemArg { offset, align: 3, memory_index: 0 };
    // Parameters: 0 port, 1 ptr, 2 len. Locals: 3 pages left, 4 address, 5 end of page; 6 the stream.
    let mut function = Function::new([(3, ValType::I32), (1, ValType::I64)]);
    let mut code = function.instructions();
    code.i32_const(8).i64_load(long(0)).i64_const(0x1234_5678_9abc_def1).i64_or().local_set(6);
    code.local_get(1).i32_load(word(0)).local_set(3);
    code.i32_const(4096).local_set(4);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(3).i32_eqz().br_if(1);
    code.local_get(4).i32_const(4096).i32_add().local_set(5);
    code.loop_(BlockType::Empty);
    for (shift, left) in [(13, true), (7, false), (17, true)] {
        code.local_get(6).local_get(6).i64_const(shift);
        if left {
            code.i64_shl();
        } else {
            code.i64_shr_u();
        }
        code.i64_xor().local_set(6);
    }
    code.local_get(4).local_get(6).i64_store(long(0));
    code.local_get(4).i32_const(8).i32_add().local_tee(4).local_get(5).i32_lt_u().br_if(0);
    code.end();
    // Go to the page that is `stride` pages after this one.
    code.local_get(5).local_get(1).i32_load(word(4)).i32_const(1).i32_sub().i32_const(4096).i32_mul();
    code.i32_add().local_set(4);
    code.local_get(3).i32_const(1).i32_sub().local_set(3);
    code.br(0).end().end();
    code.i32_const(8).local_get(6).i64_store(long(0));
    code.end();
    function
}
