//! What a module must and must not do to become an app. Each error message says how to fix the module.

use super::error::DeployError;
use crate::app::App;
use crate::engine::features;
use crate::globals::RESERVED;
use crate::host::{ABI_FUNCTIONS, ABI_MODULE, WASI_FUNCTIONS, WASI_MODULE};
use crate::limits::{GLOBALS_MAX, KEYS_MAX, MODULE_BYTES_MAX, TABLE_ELEMENTS_MAX, WASM_PAGE};
use crate::quotas::Quotas;
use wasmparser::ValType::{self, I32, I64};
use wasmparser::types::{EntityType, Types};
use wasmparser::{Operator, Parser, Payload, TypeRef, Validator};

/// The exports of the ABI: name, parameters, results, whether required.
const EXPORTS: &[(&str, &[ValType], &[ValType], bool)] = &[
    ("marram_alloc", &[I32], &[I32], true),
    ("marram_recv", &[I32, I32, I32], &[], true),
    ("marram_open", &[I32, I32], &[], false),
    ("marram_timer", &[I64], &[], false),
    ("marram_task", &[I64], &[], false),
    ("marram_close", &[I32], &[], false),
    ("_initialize", &[], &[], false),
];

/// Facts about an accepted module that the rest of deployment needs.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Indices of the mutable globals, in order: state outside of memory.
    pub(crate) globals: Vec<u32>,
    /// Whether it exports `_initialize`.
    pub(crate) initialize: bool,
}

/// Refuses a module that cannot be a cell.
pub(crate) fn check(app: &App) -> Result<Facts, DeployError> {
    let module = &app.module[..];
    if app.keys.len() > KEYS_MAX {
        return Err(DeployError::Keys(format!("{} are named and the maximum is {KEYS_MAX}", app.keys.len())));
    }
    if module.len() > MODULE_BYTES_MAX {
        return Err(DeployError::TooLarge { bytes: module.len(), bytes_max: MODULE_BYTES_MAX });
    }
    if Parser::is_component(module) {
        return Err(DeployError::Component);
    }
    if !Parser::is_core_wasm(module) {
        return Err(DeployError::NotAModule(
            "it does not begin with the magic number \\0asm, version 1".into(),
        ));
    }
    check_payloads(module, app)?;
    let types = Validator::new_with_features(features())
        .validate_all(module)
        .map_err(|error| DeployError::Invalid(error.to_string()))?;
    check_exports(module, &types)?;
    check_memory(&types, &app.quotas)?;
    check_tables(&types)?;
    let globals = mutable_globals(&types)?;
    Ok(Facts { globals, initialize: has_export(module, "_initialize")? })
}

fn invalid(error: wasmparser::Error) -> DeployError {
    DeployError::Invalid(error.to_string())
}

/// Checks imports and instructions first: this check names them, whereas the validator would report a proposal's number.
fn check_payloads(module: &[u8], app: &App) -> Result<(), DeployError> {
    let mut memories = 0;
    for payload in Parser::new(0).parse_all(module) {
        match payload.map_err(|error| DeployError::NotAModule(error.to_string()))? {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(invalid)?;
                    check_import(import.module, import.name, &import.ty, app)?;
                }
            }
            Payload::MemorySection(section) => {
                memories += section.count();
                for memory in section {
                    if memory.map_err(invalid)?.shared {
                        return Err(DeployError::Invalid(
                            "its memory is shared; build without threads (no `+atomics`)".into(),
                        ));
                    }
                }
                if memories > 1 {
                    return Err(DeployError::Invalid(
                        "it has several memories and a cell has one; link it as one module".into(),
                    ));
                }
            }
            Payload::CodeSectionEntry(body) => check_body(&body)?,
            _ => {}
        }
    }
    Ok(())
}

fn check_import(module: &str, name: &str, ty: &TypeRef, app: &App) -> Result<(), DeployError> {
    let refuse =
        |reason: String| Err(DeployError::ImportForbidden { name: format!("{module}.{name}"), reason });
    if !matches!(ty, TypeRef::Func(_) | TypeRef::FuncExact(_)) {
        return refuse(
            "only functions can be imported; define the memory, table or global in the module (no `--import-memory`)".into(),
        );
    }
    match module {
        ABI_MODULE if name == "sign" && app.keys.is_empty() => refuse(
            "the app is granted no key; name the certificates of those it needs in the manifest, with `keys`"
                .into(),
        ),
        ABI_MODULE if name == "connect" && app.servers.is_empty() => refuse(
            "the app is granted no server; name those that its shared cell may connect to in the manifest, with `servers`"
                .into(),
        ),
        ABI_MODULE if ABI_FUNCTIONS.iter().any(|function| function.0 == name) => Ok(()),
        ABI_MODULE => refuse("marram_v1 has no such function; docs/abi.md lists them".into()),
        WASI_MODULE if WASI_FUNCTIONS.contains(&name) => Ok(()),
        WASI_MODULE => refuse("WASI preview 1 has no such function".into()),
        _ => refuse(format!(
            "a cell has only `{ABI_MODULE}` and `{WASI_MODULE}` to import from; build for wasm32-wasip1 or wasm32-unknown-unknown without bindings to another host"
        )),
    }
}

/// Instantiation rebuilds tables and segments; they are never saved. So instructions that change them are refused.
fn check_body(body: &wasmparser::FunctionBody<'_>) -> Result<(), DeployError> {
    let mut operators = body.get_operators_reader().map_err(invalid)?;
    while !operators.eof() {
        let (operator, offset) = operators.read_with_offset().map_err(invalid)?;
        let name = match operator {
            Operator::TableSet { .. } => "table.set",
            Operator::TableGrow { .. } => "table.grow",
            Operator::TableFill { .. } => "table.fill",
            Operator::TableCopy { .. } => "table.copy",
            Operator::TableInit { .. } => "table.init",
            Operator::ElemDrop { .. } => "elem.drop",
            Operator::DataDrop { .. } => "data.drop",
            _ => continue,
        };
        return Err(DeployError::Unsavable(format!(
            "`{name}` at offset {offset:#x}: tables and segments must stay as the module declares them; build without dynamic linking or run-time code loading"
        )));
    }
    Ok(())
}

fn check_exports(module: &[u8], types: &Types) -> Result<(), DeployError> {
    let mut memory = false;
    let mut seen = [false; EXPORTS.len()];
    for export in exports(module)? {
        let name = export.name;
        if name.starts_with(RESERVED) {
            return Err(DeployError::ExportForbidden {
                name: name.into(),
                reason: "names that begin with `marram:` are the host's; rename it",
            });
        }
        if name == "_start" {
            return Err(DeployError::ExportForbidden {
                name: name.into(),
                reason: "a cell has handlers and no main; build a reactor (crate-type = [\"cdylib\"], or -mexec-model=reactor)",
            });
        }
        let entity = types.as_ref().entity_type_from_export(&export);
        if name == "memory" {
            memory = matches!(entity, Some(EntityType::Memory(_)));
        }
        if let Some(at) = EXPORTS.iter().position(|expected| expected.0 == name) {
            check_export_type(types, name, entity, EXPORTS[at].1, EXPORTS[at].2)?;
            seen[at] = true;
        }
    }
    if !memory {
        return Err(DeployError::ExportMissing("memory"));
    }
    match EXPORTS.iter().zip(seen).find(|(export, seen)| export.3 && !seen) {
        Some((export, _)) => Err(DeployError::ExportMissing(export.0)),
        None => Ok(()),
    }
}

fn check_export_type(
    types: &Types,
    name: &str,
    entity: Option<EntityType>,
    params: &[ValType],
    results: &[ValType],
) -> Result<(), DeployError> {
    let found = match entity {
        Some(EntityType::Func(id)) => {
            let ty = types[id].unwrap_func();
            if ty.params() == params && ty.results() == results {
                return Ok(());
            }
            describe(ty.params(), ty.results())
        }
        _ => "not a function".into(),
    };
    Err(DeployError::ExportType { name: name.into(), found, expected: describe(params, results) })
}

fn describe(params: &[ValType], results: &[ValType]) -> String {
    let list = |types: &[ValType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("({}) -> ({})", list(params), list(results))
}

fn check_memory(types: &Types, quotas: &Quotas) -> Result<(), DeployError> {
    if types.as_ref().memory_count() != 1 {
        return Err(DeployError::ExportMissing("memory"));
    }
    let bytes = types.as_ref().memory_at(0).initial.saturating_mul(WASM_PAGE as u64);
    if bytes > quotas.memory_max {
        return Err(DeployError::Quotas(format!(
            "memory_max is {} bytes and the module starts with {bytes}; raise it, or give the module a smaller stack and less static data",
            quotas.memory_max
        )));
    }
    Ok(())
}

fn check_tables(types: &Types) -> Result<(), DeployError> {
    for index in 0..types.as_ref().table_count() {
        let elements = types.as_ref().table_at(index).initial;
        if elements > TABLE_ELEMENTS_MAX as u64 {
            return Err(DeployError::Invalid(format!(
                "table {index} has {elements} elements and the maximum is {TABLE_ELEMENTS_MAX}"
            )));
        }
    }
    if types.as_ref().table_count() > crate::limits::TABLES_MAX {
        return Err(DeployError::Invalid(format!(
            "it has {} tables and the maximum is {}",
            types.as_ref().table_count(),
            crate::limits::TABLES_MAX
        )));
    }
    Ok(())
}

fn mutable_globals(types: &Types) -> Result<Vec<u32>, DeployError> {
    let types = types.as_ref();
    let mut globals = Vec::new();
    for index in 0..types.global_count() {
        let ty = types.global_at(index);
        if !ty.mutable {
            continue;
        }
        if matches!(ty.content_type, ValType::Ref(_)) {
            return Err(DeployError::Unsavable(format!(
                "global {index} is mutable and holds a reference; keep an index into a table instead"
            )));
        }
        globals.push(index);
    }
    if globals.len() > GLOBALS_MAX {
        return Err(DeployError::Invalid(format!(
            "it has {} mutable globals and the maximum is {GLOBALS_MAX}",
            globals.len()
        )));
    }
    Ok(globals)
}

fn exports(module: &[u8]) -> Result<Vec<wasmparser::Export<'_>>, DeployError> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::ExportSection(section) = payload.map_err(invalid)? {
            return section.into_iter().collect::<Result<_, _>>().map_err(invalid);
        }
    }
    Ok(Vec::new())
}

fn has_export(module: &[u8], name: &str) -> Result<bool, DeployError> {
    Ok(exports(module)?.iter().any(|export| export.name == name))
}
