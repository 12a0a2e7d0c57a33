//! Rewrites a module: exports its mutable globals to the host, makes it preemptible wherever it may compute for long, and
//! embeds the state after initialisation.
//!
//! All indices stay the same, so elements and names are copied unread, and so is code except for the insertions. Code for
//! a debugger is copied unchanged: its debug information counts bytes from the start of the code.

use crate::globals::{GlobalValue, global_name};
use std::ops::Range;
use wasm_encoder::reencode::{Reencode, RoundtripReencoder};
use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, ExportKind, ExportSection, GlobalSection, Ieee32,
    Ieee64, MemorySection, Module, RawSection, SectionId,
};
use wasmparser::{DataKind, FunctionBody, Operator, Parser, Payload, TypeRef};

/// The state after initialisation.
pub(crate) struct Baked<'a> {
    /// One value per mutable global, in the order of their indices.
    pub(crate) globals: &'a [GlobalValue],
    /// Size of memory in WebAssembly pages.
    pub(crate) memory_pages: u64,
    /// Memory that is not zero, with its bytes: includes the module's own data.
    pub(crate) data: &'a [(u32, &'a [u8])],
}

/// How a module's code is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    /// It can be preempted wherever it may compute for long.
    Preemptible,
    /// It stays unchanged, with the module's debug information, and may occupy the thread for long.
    Debugged,
}

/// Prefix of the names of custom sections with DWARF debug information.
const DEBUG_SECTION: &str = ".debug_";

/// Whether a module has line information for its code.
pub(crate) fn has_debug_info(module: &[u8]) -> bool {
    let is_info =
        |payload| matches!(payload, Ok(Payload::CustomSection(section)) if section.name() == ".debug_info");
    Parser::new(0).parse_all(module).any(is_info)
}

/// Whether two modules are the same program: they may differ in custom sections, which running code cannot see.
pub(crate) fn is_same_program(a: &[u8], b: &[u8]) -> bool {
    fn sections(module: &[u8]) -> Option<Vec<(u8, &[u8])>> {
        let mut sections = Vec::new();
        for payload in Parser::new(0).parse_all(module) {
            if let Some((id, range)) = payload.ok()?.as_section()
                && id != u8::from(SectionId::Custom)
            {
                sections.push((id, module.get(range)?));
            }
        }
        Some(sections)
    }
    let a = sections(a);
    a.is_some() && a == sections(b)
}

/// A part of a validated module could not be encoded again.
pub(crate) type RewriteError = wasm_encoder::reencode::Error;

/// Adds an export for each mutable global; with `baked`, also embeds memory and globals and removes the
/// initialisation.
pub(crate) fn rewrite(
    module: &[u8],
    globals: &[u32],
    baked: Option<&Baked<'_>>,
    code: Code,
) -> Result<Vec<u8>, RewriteError> {
    let mut writer = Writer {
        source: module,
        globals,
        baked,
        form: code,
        out: Module::new(),
        imported: 0,
        code: None,
        data: None,
        exported: false,
    };
    for payload in Parser::new(0).parse_all(module) {
        writer.payload(&payload?)?;
    }
    writer.finish()
}

struct Writer<'a> {
    source: &'a [u8],
    globals: &'a [u32],
    baked: Option<&'a Baked<'a>>,
    form: Code,
    out: Module,
    /// Number of imported functions: they have the first indices.
    imported: u32,
    /// The functions so far, and how many are still to come.
    code: Option<(CodeSection, u32)>,
    /// The module's own data section, held back until the code is written.
    data: Option<wasmparser::DataSectionReader<'a>>,
    exported: bool,
}

impl<'a> Writer<'a> {
    fn payload(&mut self, payload: &Payload<'a>) -> Result<(), RewriteError> {
        match payload {
            Payload::MemorySection(section) if self.baked.is_some() => self.memory(section.clone()),
            Payload::GlobalSection(section) if self.baked.is_some() => self.global(section.clone()),
            Payload::ExportSection(section) => {
                self.exports(Some(section.clone()))?;
                Ok(())
            }
            Payload::StartSection { .. } if self.baked.is_some() => Ok(()),
            Payload::ImportSection(section) => {
                for import in section.clone().into_imports() {
                    self.imported +=
                        u32::from(matches!(import?.ty, TypeRef::Func(_) | TypeRef::FuncExact(_)));
                }
                self.raw(SectionId::Import.into(), section.range());
                Ok(())
            }
            Payload::CodeSectionStart { range, .. } if self.form == Code::Debugged => {
                self.raw(SectionId::Code.into(), range.clone());
                Ok(())
            }
            Payload::CodeSectionEntry(_) if self.form == Code::Debugged => Ok(()),
            Payload::CodeSectionStart { count, .. } => {
                self.code = Some((CodeSection::new(), *count));
                self.end_code(*count);
                Ok(())
            }
            Payload::CodeSectionEntry(body) => self.function(body),
            Payload::DataCountSection { count, .. } if self.baked.is_some() => {
                let added = self.baked.map_or(0, |baked| baked.data.len());
                let count = count + u32::try_from(added).unwrap_or(u32::MAX);
                self.out.section(&DataCountSection { count });
                Ok(())
            }
            Payload::DataSection(section) if self.baked.is_some() => {
                self.data = Some(section.clone());
                Ok(())
            }
            Payload::CustomSection(section) => {
                // Names make traps readable. Other custom sections are for tools and would only use space.
                if section.name() == "name" && self.baked.is_none() {
                    self.raw(0, section.range());
                }
                Ok(())
            }
            other => {
                if let Some((id, range)) = other.as_section() {
                    self.raw(id, range);
                }
                Ok(())
            }
        }
    }

    fn raw(&mut self, id: u8, range: Range<usize>) {
        self.out.section(&RawSection { id, data: &self.source[range] });
    }

    fn function(&mut self, body: &FunctionBody<'a>) -> Result<(), RewriteError> {
        let body = preemptible(self.source, body, self.imported)?;
        let (code, left) = self.code.as_mut().expect("functions come behind the head of their section");
        code.raw(&body);
        *left -= 1;
        let left = *left;
        self.end_code(left);
        Ok(())
    }

    fn end_code(&mut self, left: u32) {
        if left == 0
            && let Some((code, _)) = self.code.take()
        {
            self.out.section(&code);
        }
    }

    fn memory(&mut self, section: wasmparser::MemorySectionReader<'_>) -> Result<(), RewriteError> {
        let mut memories = MemorySection::new();
        for memory in section {
            let mut memory = RoundtripReencoder.memory_type(memory?)?;
            if let Some(baked) = self.baked {
                memory.minimum = baked.memory_pages;
            }
            memories.memory(memory);
        }
        self.out.section(&memories);
        Ok(())
    }

    fn global(&mut self, section: wasmparser::GlobalSectionReader<'_>) -> Result<(), RewriteError> {
        let mut values = self.baked.map(|baked| baked.globals).unwrap_or_default().iter();
        let mut globals = GlobalSection::new();
        for global in section {
            let global = global?;
            let init = match values.as_slice().first() {
                Some(value) if global.ty.mutable => {
                    values.next();
                    constant(*value)
                }
                _ => RoundtripReencoder.const_expr(global.init_expr)?,
            };
            globals.global(RoundtripReencoder.global_type(global.ty)?, &init);
        }
        self.out.section(&globals);
        Ok(())
    }

    fn exports(&mut self, section: Option<wasmparser::ExportSectionReader<'_>>) -> Result<(), RewriteError> {
        let mut exports = ExportSection::new();
        for export in section.into_iter().flatten() {
            let export = export?;
            if self.baked.is_some() && export.name == "_initialize" {
                continue;
            }
            exports.export(export.name, RoundtripReencoder.export_kind(export.kind)?, export.index);
        }
        for (n, index) in self.globals.iter().enumerate() {
            exports.export(&global_name(n), ExportKind::Global, *index);
        }
        self.out.section(&exports);
        self.exported = true;
        Ok(())
    }

    /// Active segments were already applied: they stay as empty passive ones, so that the other segments keep their indices.
    fn finish(mut self) -> Result<Vec<u8>, RewriteError> {
        debug_assert!(self.exported, "a module that passed the check exports its handlers");
        let Some(baked) = self.baked else { return Ok(self.out.finish()) };
        let mut data = DataSection::new();
        for segment in self.data.take().into_iter().flatten() {
            let segment = segment?;
            match segment.kind {
                DataKind::Passive => data.passive(segment.data.iter().copied()),
                DataKind::Active { .. } => data.passive([]),
            };
        }
        for (offset, bytes) in baked.data {
            data.active(0, &ConstExpr::i32_const(offset.cast_signed()), bytes.iter().copied());
        }
        self.out.section(&data);
        for payload in Parser::new(0).parse_all(self.source) {
            if let Payload::CustomSection(section) = payload?
                && (section.name() == "name"
                    || self.form == Code::Debugged && section.name().starts_with(DEBUG_SECTION))
            {
                self.raw(SectionId::Custom.into(), section.range());
            }
        }
        Ok(self.out.finish())
    }
}

/// Makes a function preemptible before each instruction that may take long and that the engine cannot interrupt: calls of host
/// functions, and instructions on ranges of memory. Without that, a function that clears its memory a million times in a row,
/// written without a loop, would make all other cells wait until it is done.
///
/// The insertion is an empty loop: at the head of every loop the engine checks whether the slice is over.
fn preemptible(source: &[u8], body: &FunctionBody<'_>, imported: u32) -> Result<Vec<u8>, RewriteError> {
    const EMPTY_LOOP: [u8; 3] = [0x03, 0x40, 0x0b];
    let range = body.range();
    let mut out = Vec::with_capacity(range.len());
    let mut copied = range.start;
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        let (operator, at) = operators.read_with_offset()?;
        let long = match operator {
            Operator::Call { function_index } => function_index < imported,
            Operator::CallIndirect { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryInit { .. } => true,
            _ => false,
        };
        if long {
            out.extend_from_slice(&source[copied..at]);
            out.extend_from_slice(&EMPTY_LOOP);
            copied = at;
        }
    }
    out.extend_from_slice(&source[copied..range.end]);
    Ok(out)
}

fn constant(value: GlobalValue) -> ConstExpr {
    match value {
        GlobalValue::I32(bits) => ConstExpr::i32_const(bits.cast_signed()),
        GlobalValue::I64(bits) => ConstExpr::i64_const(bits.cast_signed()),
        GlobalValue::F32(bits) => ConstExpr::f32_const(Ieee32::new(bits)),
        GlobalValue::F64(bits) => ConstExpr::f64_const(Ieee64::new(bits)),
        GlobalValue::V128(bits) => ConstExpr::v128_const(bits.cast_signed()),
    }
}
