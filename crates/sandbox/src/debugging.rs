//! Images for a debugger: apps compiled again with the debug information of their modules.
//!
//! A deployed image has no line information, and optimised code moves and removes variables. For
//! `marram replay --debug` the app is compiled again without optimisation. The state is the same at
//! each message boundary, because WebAssembly defines the result of every instruction; only the
//! native code differs. So a recording of a live session can be stepped through.
//!
//! Operators often deploy stripped modules. Debug information may therefore come from another file,
//! the module before it was stripped, if all of its sections except custom ones are byte for byte
//! equal: see `deploy::is_same_program`.
//!
//! Such an image has the same name as the app's own image, runs the same program to the same states, and is never stored.

use crate::app::App;
use crate::chain::{Image, Stage};
use crate::deploy::{self, has_debug_info, is_same_program};
use crate::images::{Images, LoadError};
use crate::limits::INITIALISE_MS_MAX;
use marram_wire::id::ImageHash;
use std::fmt;
use std::sync::Arc;

/// Why a debugger cannot be used.
#[derive(Debug)]
pub enum DebugError {
    /// Neither the deployed modules nor the given modules have debug information.
    NoInfo,
    /// The given module with this index has no debug information.
    Bare(usize),
    /// The given module with this index is not the program of any stage.
    Mismatch(usize),
    /// The image could not be made.
    Image(LoadError),
}

impl fmt::Display for DebugError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInfo => f.write_str(
                "the app's module was deployed without debug information: give the module as it was before it was stripped",
            ),
            Self::Bare(_) => f.write_str(
                "it has no debug information: give the module as it was before it was stripped (Rust: `debug = true` in the profile, C: -g)",
            ),
            Self::Mismatch(_) => f.write_str(
                "it is not the app's module: give the module that was stripped and deployed, not one that was built \
                 again",
            ),
            Self::Image(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DebugError {}

/// Makes an image for a debugger from an app, or from a chain, whose stages are in `images`. If a stage's module was stripped,
/// the debug information comes from the module in `symbols` that is the same program, if there is one.
/// `images` must have the app, and all stages of a chain.
///
/// # Errors
/// [`DebugError::Bare`] and [`DebugError::Mismatch`] have the index in `symbols`, so that the
/// caller can name the file.
pub(crate) fn load(images: &Images, hash: ImageHash, symbols: &[Vec<u8>]) -> Result<Image, DebugError> {
    if let Some(bare) = symbols.iter().position(|module| !has_debug_info(module)) {
        return Err(DebugError::Bare(bare));
    }
    let chain = images.chain(hash).map_err(DebugError::Image)?;
    let names = match &chain {
        Some(chain) => chain.stages().to_vec(),
        None => vec![(String::new(), hash)],
    };
    let apps: Vec<App> = names.iter().map(|(_, hash)| app(images, *hash)).collect::<Result<_, _>>()?;
    let is_unmatched = |module: &Vec<u8>| !apps.iter().any(|app| is_same_program(&app.module, module));
    if let Some(index) = symbols.iter().position(is_unmatched) {
        return Err(DebugError::Mismatch(index));
    }
    if symbols.is_empty() && !apps.iter().any(|app| has_debug_info(&app.module)) {
        return Err(DebugError::NoInfo);
    }
    let stages = names.iter().zip(&apps).map(|((name, _), app)| {
        let given = symbols.iter().find(|module| is_same_program(&app.module, module));
        let module = given.unwrap_or(&app.module);
        let image = deploy::build_debugged(app, module, INITIALISE_MS_MAX)
            .map_err(|error| DebugError::Image(LoadError::Build(error)))?;
        Ok(Stage { name: name.as_str().into(), image: Arc::new(image) })
    });
    let server = chain.as_ref().is_some_and(|chain| chain.has_server());
    Ok(Image { hash, stages: stages.collect::<Result<_, _>>()?, server })
}

/// The decoded app of one stage. A chain's stage is always an app: `deploy_chain` refuses chains of
/// chains.
fn app(images: &Images, hash: ImageHash) -> Result<App, DebugError> {
    let bytes = images.app(hash).map_err(DebugError::Image)?;
    App::decode(&bytes).map_err(|why| DebugError::Image(LoadError::App { hash, why }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::guests;
    use crate::chain::Chain;
    use crate::quotas::Quotas;

    /// A module with an empty custom section of this name.
    fn with_section(module: &[u8], name: &str) -> Vec<u8> {
        let len = u8::try_from(name.len()).unwrap();
        [module, &[0, len + 1, len], name.as_bytes()].concat()
    }

    fn program(number: i32) -> Vec<u8> {
        let recv: guests::Body = match number {
            0 => |_| {},
            _ => |code| {
                code.i32_const(1).drop();
            },
        };
        guests::module(recv, |_| {})
    }

    #[test]
    fn a_stripped_module_takes_its_own_debug_information_and_no_other() {
        let dir = std::env::temp_dir().join(format!("marram-debugging-{}", std::process::id()));
        let images = Images::open(&dir).unwrap();
        let deploy = |module: &[u8]| images.deploy(module, &[], &Quotas::default()).unwrap().hash;
        let [one, other] = [0, 1].map(program);
        let [bare, second] = [&one, &other].map(|module| deploy(module));
        let [info, info_of_other] = [&one, &other].map(|module| with_section(module, ".debug_info"));

        assert!(matches!(load(&images, bare, &[]), Err(DebugError::NoInfo)));
        assert!(matches!(load(&images, bare, &[info.clone(), one.clone()]), Err(DebugError::Bare(1))));
        let mismatch = load(&images, bare, &[info.clone(), info_of_other.clone()]);
        assert!(matches!(mismatch, Err(DebugError::Mismatch(1))));
        let image = load(&images, bare, std::slice::from_ref(&info)).unwrap();
        assert_eq!((image.hash(), image.stages[0].image.quotas.handler_time_ns), (bare, u64::MAX));
        assert!(load(&images, deploy(&info), &[]).is_ok(), "it was deployed with it");

        let stages = [("a", bare), ("b", second)].map(|(name, hash)| (name.to_owned(), hash));
        let chain = images.deploy_chain(&Chain::new(true, stages.to_vec()).unwrap()).unwrap();
        assert!(matches!(load(&images, chain, &[]), Err(DebugError::NoInfo)));
        let image = load(&images, chain, &[info_of_other]).unwrap();
        assert_eq!((image.stage_count(), image.server, &*image.stages[1].name), (2, true, "b"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
