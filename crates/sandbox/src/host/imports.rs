//! The functions that a guest's module can import, in one linker. They use the host's side of a stage (`Host`), which does not
//! know them.

use super::{Hosts, cache, marram, wasi};
use wasmtime::{Engine, Linker};

/// All imports, by name. Instantiation picks those that a module names. `waits` is set if modules run on stacks of their own,
/// and not only their initialisation.
pub(crate) fn linker(engine: &Engine, waits: bool) -> wasmtime::Result<Linker<Hosts>> {
    let mut linker = Linker::new(engine);
    marram::link(&mut linker)?;
    cache::link(&mut linker, waits)?;
    wasi::link(&mut linker)?;
    Ok(linker)
}
