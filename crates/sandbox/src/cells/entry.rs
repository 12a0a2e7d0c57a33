//! One entry for a message: a module of our own beside the guest that asks it for room, has the host copy the message there,
//! and hands it over. Each call from the host gets a stack of its own first, which costs more than most handlers; so a
//! message takes one call where it would take two. Guests cannot name it.

use crate::host::{Host, put_arriving};
use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    Module as Encoder, NameSection, TypeSection, ValType,
};
use wasmtime::{Engine, Func, Instance, Module, Store, TypedFunc};

/// The module's name, by which traces leave it out.
const NAME: &str = "marram:entry";
/// Handlers after which a cell gets one: making it costs what it saves on so many messages.
pub(super) const AFTER: u64 = 32;

/// Takes a port and a length.
pub(super) type Enter = TypedFunc<(u32, u32), ()>;

/// The module, compiled for one engine.
pub(crate) struct Entry(Module);

impl Entry {
    pub(super) fn new(engine: &Engine) -> wasmtime::Result<Self> {
        Module::new(engine, assemble()).map(Self)
    }

    /// Puts it beside a guest with these exports.
    pub(super) fn join(
        &self,
        store: &mut Store<Host>,
        alloc: &TypedFunc<u32, u32>,
        recv: &TypedFunc<(u32, u32, u32), ()>,
    ) -> wasmtime::Result<Enter> {
        let put = Func::wrap(&mut *store, put_arriving);
        let imports = [(*alloc.func()).into(), put.into(), (*recv.func()).into()];
        Instance::new(&mut *store, &self.0, &imports)?.get_typed_func(&mut *store, "enter")
    }

    /// Whether this is what it is called.
    pub(super) fn is_named(name: Option<&str>) -> bool {
        name == Some(NAME)
    }
}

fn assemble() -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([ValType::I32], []);
    types.ty().function([ValType::I32; 3], []);
    types.ty().function([ValType::I32; 2], []);
    let mut imports = ImportSection::new();
    for (name, kind) in [("alloc", 0), ("put", 1), ("recv", 2)] {
        imports.import("marram", name, EntityType::Function(kind));
    }
    let mut functions = FunctionSection::new();
    functions.function(3);
    let mut exports = ExportSection::new();
    exports.export("enter", ExportKind::Func, 3);
    let (port, len, ptr) = (0, 1, 2);
    let mut enter = Function::new([(1, ValType::I32)]);
    enter
        .instructions()
        .local_get(len)
        .call(0)
        .local_tee(ptr)
        .call(1)
        .local_get(port)
        .local_get(ptr)
        .local_get(len)
        .call(2)
        .end();
    let mut code = CodeSection::new();
    code.function(&enter);
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
