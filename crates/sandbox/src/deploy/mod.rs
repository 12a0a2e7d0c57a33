//! From a module to an image: check, instrument, initialise once, freeze, compile.
//!
//! Refuses to know where images are kept; `images` does.

mod check;
mod error;
mod initialise;
mod rewrite;

pub use error::DeployError;
pub(crate) use rewrite::{GlobalValue, global_name};

use crate::app::App;
use crate::engine::{compatibility, config};
use crate::image::StageImage;
use rewrite::{Baked, rewrite};
use wasmtime::{Engine, Module};

/// Makes the image of an app. Takes tens of milliseconds to seconds: compiling is most of it.
///
/// `initialise_ms_max` bounds initialisation alone.
pub(crate) fn build(app: &App, initialise_ms_max: u64) -> Result<StageImage, DeployError> {
    if let Some(problem) = app.quotas.problem() {
        return Err(DeployError::Quotas(problem));
    }
    let facts = check::check(app)?;
    let engine =
        Engine::new(&config(app.quotas.nan_canonicalization)).map_err(|error| compile_error(&error))?;
    let opened =
        rewrite(&app.module, &facts.globals, None).map_err(|e| DeployError::Invalid(e.to_string()))?;
    let module = Module::new(&engine, &opened).map_err(|error| compile_error(&error))?;
    let frozen = initialise::initialise(&engine, &module, &facts, app, initialise_ms_max)?;

    let data: Vec<(u32, &[u8])> = frozen.memory.runs().collect();
    let baked =
        Baked { globals: &frozen.globals, memory_pages: frozen.memory.wasm_pages(), data: data.as_slice() };
    let module = rewrite(&app.module, &facts.globals, Some(&baked))
        .map_err(|e| DeployError::Invalid(e.to_string()))?;
    let code = engine.precompile_module(&module).map_err(|error| compile_error(&error))?;
    Ok(StageImage {
        hash: app.hash(),
        quotas: app.quotas,
        keys: app.keys.clone(),
        compatibility: base_compatibility()?,
        memory: frozen.memory,
        globals: frozen.globals,
        files: frozen.files,
        prints: frozen.prints,
        code: code.into(),
        rebuilt: None,
    })
}

/// Whether NaNs are canonical does not decide whether code can be loaded, so one name serves both.
pub(crate) fn base_compatibility() -> Result<u64, DeployError> {
    let engine = Engine::new(&config(true)).map_err(|error| compile_error(&error))?;
    Ok(compatibility(&engine))
}

fn compile_error(error: &wasmtime::Error) -> DeployError {
    DeployError::Compile(format!("{error:#}"))
}
