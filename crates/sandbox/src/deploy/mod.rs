//! Makes an image of a module: check, instrument, initialise once, freeze, compile.
//!
//! This module does not know where images are stored; `images` does.

mod check;
mod error;
mod initialise;
mod rewrite;

pub use error::DeployError;
pub(crate) use rewrite::{has_debug_info, is_same_program};

use crate::app::App;
use crate::engine::{compatibility, config, debugged};
use crate::image::StageImage;
use check::Facts;
use initialise::Frozen;
use rewrite::{Baked, Code, rewrite};
use wasmtime::{Config, Engine, Module};

/// Makes the image of an app. Takes tens of milliseconds to seconds, mostly for compiling.
///
/// `initialise_ms_max` bounds initialisation alone.
pub(crate) fn build(app: &App, initialise_ms_max: u64) -> Result<StageImage, DeployError> {
    let (facts, frozen) = freeze(app, initialise_ms_max)?;
    let code =
        compile(&app.module, &facts, &frozen, Code::Preemptible, &config(app.quotas.nan_canonicalization))?;
    image(app, frozen, code)
}

/// Makes an image of an app for an engine with [`debugged`] settings: the same program with debug information. It is another
/// image with the same name, and must not be stored. A handler may take any time, since a person steps through it.
pub(crate) fn build_debugged(
    app: &App,
    module: &[u8],
    initialise_ms_max: u64,
) -> Result<StageImage, DeployError> {
    let (facts, frozen) = freeze(app, initialise_ms_max)?;
    let code = compile(module, &facts, &frozen, Code::Debugged, &debugged(app.quotas.nan_canonicalization))?;
    let mut image = image(app, frozen, code)?;
    image.quotas.handler_time_ns = u64::MAX;
    Ok(image)
}

/// Checks an app and runs its initialisation.
fn freeze(app: &App, initialise_ms_max: u64) -> Result<(Facts, Frozen), DeployError> {
    if let Some(problem) = app.quotas.problem() {
        return Err(DeployError::Quotas(problem));
    }
    let facts = check::check(app)?;
    let engine =
        Engine::new(&config(app.quotas.nan_canonicalization)).map_err(|error| compile_error(&error))?;
    let opened = rewrite(&app.module, &facts.globals, None, Code::Preemptible)
        .map_err(|e| DeployError::Invalid(e.to_string()))?;
    let module = Module::new(&engine, &opened).map_err(|error| compile_error(&error))?;
    let frozen = initialise::initialise(&engine, &module, &facts, app, initialise_ms_max)?;
    Ok((facts, frozen))
}

/// Compiles a module with the state after initialisation.
fn compile(
    module: &[u8],
    facts: &Facts,
    frozen: &Frozen,
    code: Code,
    config: &Config,
) -> Result<Vec<u8>, DeployError> {
    let data: Vec<(u32, &[u8])> = frozen.memory.runs().collect();
    let baked =
        Baked { globals: &frozen.globals, memory_pages: frozen.memory.wasm_pages(), data: data.as_slice() };
    let module = rewrite(module, &facts.globals, Some(&baked), code)
        .map_err(|e| DeployError::Invalid(e.to_string()))?;
    let engine = Engine::new(config).map_err(|error| compile_error(&error))?;
    engine.precompile_module(&module).map_err(|error| compile_error(&error))
}

fn image(app: &App, frozen: Frozen, code: Vec<u8>) -> Result<StageImage, DeployError> {
    Ok(StageImage {
        hash: app.hash(),
        quotas: app.quotas,
        keys: app.keys.clone(),
        servers: app.servers.clone(),
        compatibility: base_compatibility()?,
        memory: frozen.memory,
        globals: frozen.globals,
        files: frozen.files,
        prints: frozen.prints,
        code: code.into(),
        rebuilt: None,
    })
}

/// NaN canonicalization does not decide whether code can be loaded, so one identifier serves both settings.
pub(crate) fn base_compatibility() -> Result<u64, DeployError> {
    let engine = Engine::new(&config(true)).map_err(|error| compile_error(&error))?;
    Ok(compatibility(&engine))
}

fn compile_error(error: &wasmtime::Error) -> DeployError {
    DeployError::Compile(format!("{error:#}"))
}
