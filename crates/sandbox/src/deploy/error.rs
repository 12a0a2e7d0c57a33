//! Why a module was not deployed. Each message says what to change, since the module's author reads it.

use crate::image_dir::ImageWriteError;
use crate::plain::plain;
use std::fmt;

/// Why a module was not deployed.
#[derive(Debug)]
pub enum DeployError {
    /// The bytes are not a WebAssembly module.
    NotAModule(String),
    /// The bytes are a component, not a core module.
    Component,
    /// The module is too large to deploy.
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The largest size in bytes.
        bytes_max: usize,
    },
    /// The module is invalid, or uses a proposal that is not available to cells.
    Invalid(String),
    /// A required export is missing.
    ExportMissing(&'static str),
    /// An export does not have the type of the ABI.
    ExportType {
        /// Name of the export.
        name: String,
        /// Its type.
        found: String,
        /// The type in the ABI.
        expected: String,
    },
    /// The module exports a name that is reserved for the host, or an entry point that cells do not have.
    ExportForbidden {
        /// Name of the export.
        name: String,
        /// Why, and how to fix it.
        reason: &'static str,
    },
    /// The module imports something that the host does not provide.
    ImportForbidden {
        /// Module and name, as `module.name`.
        name: String,
        /// Why, and how to fix it.
        reason: String,
    },
    /// The module keeps state where it cannot be saved.
    Unsavable(String),
    /// The quotas are invalid or do not fit the module.
    Quotas(String),
    /// The keys that the app names are invalid.
    Keys(String),
    /// The image's files are invalid.
    Files(String),
    /// Initialisation failed or took too long.
    Initialisation(String),
    /// The engine could not compile the module.
    Compile(String),
    /// The image could not be written to the cache.
    Store(ImageWriteError),
}

impl fmt::Display for DeployError {
    /// Names come from the module, and so does what it printed: characters that a terminal would interpret are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.words()))
    }
}

impl DeployError {
    fn words(&self) -> String {
        match self {
            Self::NotAModule(why) => {
                format!("not a WebAssembly module ({why}); give the .wasm file that the compiler wrote")
            }
            Self::Component => String::from(
                "this is a component, and apps are core modules; build for wasm32-wasip1 (not wasip2) and do not run `wasm-tools component new`",
            ),
            Self::TooLarge { bytes, bytes_max } => {
                format!(
                    "the module has {bytes} bytes and the maximum is {bytes_max}; strip its debug information"
                )
            }
            Self::Invalid(why) => format!(
                "the module is invalid or uses a WebAssembly proposal that cells do not support: {why}; docs/abi.md \
                 lists the proposals"
            ),
            Self::ExportMissing(name) => format!(
                "the module does not export `{name}`, which marram_v1 requires; use the SDK's app macro or export it by hand (docs/abi.md)"
            ),
            Self::ExportType { name, found, expected } => {
                format!("the export `{name}` is {found}, and marram_v1 requires {expected}")
            }
            Self::ExportForbidden { name, reason } => format!("the module exports `{name}`: {reason}"),
            Self::ImportForbidden { name, reason } => format!("the module imports `{name}`: {reason}"),
            Self::Unsavable(why) => format!("the module keeps state that could not be saved: {why}"),
            Self::Quotas(why) => format!("the manifest's quotas: {why}"),
            Self::Keys(why) => format!("the app's keys: {why}"),
            Self::Files(why) => format!("the app's files: {why}"),
            Self::Initialisation(why) => format!("initialisation failed: {why}"),
            Self::Compile(why) => format!("the engine could not compile the module: {why}"),
            Self::Store(error) => format!("{error}"),
        }
    }
}

impl std::error::Error for DeployError {}
