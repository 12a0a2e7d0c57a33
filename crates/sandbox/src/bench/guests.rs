//! The guests that are measured, written instruction by instruction, since the program brings no assembler.

use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemArg, MemorySection, MemoryType, Module, TypeSection, ValType,
};

/// Assembles a module with a memory, `marram_alloc` that answers `buffer`, and `marram_recv`. Imports come first among
/// the functions' numbers.
fn module(wasm_pages: u32, buffer: i32, send: bool, recv: &Function) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([ValType::I32, ValType::I32, ValType::I32], []);
    let mut imports = ImportSection::new();
    if send {
        imports.import("marram_v1", "send", EntityType::Function(1));
    }
    let mut functions = FunctionSection::new();
    functions.function(0).function(1);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: wasm_pages.into(),
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0);
    exports.export("marram_alloc", ExportKind::Func, u32::from(send));
    exports.export("marram_recv", ExportKind::Func, u32::from(send) + 1);
    let mut alloc = Function::new([]);
    alloc.instructions().i32_const(buffer).end();
    let mut code = CodeSection::new();
    code.function(&alloc).function(recv);
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

/// A guest that sends each message back from where it was put.
pub(super) fn echo() -> Vec<u8> {
    let mut recv = Function::new([]);
    recv.instructions().local_get(0).local_get(1).local_get(2).call(0).end();
    module(32, 65_536, true, &recv)
}

/// A guest that writes a word on each of eight pages and sends the message back: what the first message of a small service
/// costs in page faults.
pub(super) fn visitor() -> Vec<u8> {
    let mut recv = Function::new([]);
    let mut code = recv.instructions();
    for page in 1..=8 {
        code.i32_const(page * 4096).local_get(2).i32_store(MemArg { offset: 0, align: 2, memory_index: 0 });
    }
    code.local_get(0).local_get(1).local_get(2).call(0).end();
    module(16, 65_536, true, &recv)
}

/// A guest that takes `| count 4 | stride 4 |` and fills that many pages with a stream that does not compress.
pub(super) fn writer(wasm_pages: u32) -> Vec<u8> {
    module(wasm_pages, 16, false, &fill_pages())
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
    // On to the page that is `stride` pages after this one.
    code.local_get(5).local_get(1).i32_load(word(4)).i32_const(1).i32_sub().i32_const(4096).i32_mul();
    code.i32_add().local_set(4);
    code.local_get(3).i32_const(1).i32_sub().local_set(3);
    code.br(0).end().end();
    code.i32_const(8).local_get(6).i64_store(long(0));
    code.end();
    function
}
