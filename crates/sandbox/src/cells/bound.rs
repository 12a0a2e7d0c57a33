//! An image prepared for this process's engine: its code is mapped, its imports are resolved, its globals are located.
//!
//! Binding costs a mapping of the code and a look-up of every import and global by name. It is done
//! once per image and process, so that no start repeats it. Cells hold the result by `Rc`: an image
//! that is forgotten while cells run goes with the last of them.

use crate::globals::global_name;
use crate::host::{ABI_MODULE, Hosts};
use crate::image::StageImage;
use crate::keys::Signer;
use crate::quotas::Quotas;
use std::sync::Arc;
use wasmtime::{Engine, InstancePre, Linker, Module, ModuleExport};

/// An image that cells of this process can start from.
pub(crate) struct Bound {
    pub(crate) image: Arc<StageImage>,
    /// Imports resolved against the linker of this process; instantiating it cannot fail for a
    /// name.
    pub(crate) pre: InstancePre<Hosts>,
    /// Indices of the exports that deployment added for the mutable globals, in their order.
    pub(crate) globals: Vec<ModuleExport>,
    pub(crate) quotas: Quotas,
    /// Whether a handler may wait in an import, so that the module must be instantiated asynchronously.
    pub(crate) waits: bool,
    /// Keys that the host signs with for its cells.
    pub(crate) keys: Arc<[Arc<dyn Signer>]>,
}

impl Bound {
    /// # Errors
    /// If the engine refuses the code, or the image lacks an export that deployment always writes:
    /// then it is of another version.
    pub(crate) fn new(
        engine: &Engine,
        linker: &Linker<Hosts>,
        image: &Arc<StageImage>,
        keys: Arc<[Arc<dyn Signer>]>,
    ) -> wasmtime::Result<Self> {
        // SAFETY: the code must be what this engine's own compiler produced. A `StageImage` comes from `deploy::build`,
        // which just compiled it, or from `StageImage::decode`, which checked a digest over all of its bytes and that
        // exactly this engine version and these settings wrote it; the directory is this program's own. A safe way
        // would compile every image in every process.
        let module = unsafe { Module::deserialize(engine, &image.code)? };
        let globals = (0..image.globals.len())
            .map(|n| module.get_export_index(&global_name(n)))
            .collect::<Option<_>>()
            .ok_or_else(|| wasmtime::Error::msg("the image does not export its globals"))?;
        let pre = linker.instantiate_pre(&module)?;
        let waits =
            module.imports().any(|import| (import.module(), import.name()) == (ABI_MODULE, "cache_read"));
        Ok(Self { image: Arc::clone(image), pre, globals, quotas: image.quotas, waits, keys })
    }
}
