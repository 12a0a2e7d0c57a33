//! Why a module was not deployed. Each message says what to change, since its reader wrote the module.

use crate::plain::plain;
use std::fmt;

/// Why a module was not deployed.
#[derive(Debug)]
pub enum DeployError {
    /// The bytes are no WebAssembly module.
    NotAModule(String),
    /// The bytes are a component, not a core module.
    Component,
    /// The module is larger than is deployed.
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most.
        bytes_max: usize,
    },
    /// The module is invalid, or uses a proposal that cells cannot have.
    Invalid(String),
    /// A required export is missing.
    ExportMissing(&'static str),
    /// An export has another type than the ABI says.
    ExportType {
        /// Its name.
        name: String,
        /// What it is.
        found: String,
        /// What the ABI says.
        expected: String,
    },
    /// The module exports a name that the host keeps for itself, or an entry point that cells do not have.
    ExportForbidden {
        /// Its name.
        name: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// The module imports something that the host does not give.
    ImportForbidden {
        /// Module and name, as `module.name`.
        name: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The module keeps state where it could not be saved.
    Unsavable(String),
    /// The quotas make no sense or do not fit the module.
    Quotas(String),
    /// The keys that the app names cannot be had.
    Keys(String),
    /// The image's files cannot be had.
    Files(String),
    /// Initialisation did not come to its end.
    Initialisation(String),
    /// The engine could not compile the module.
    Compile(String),
    /// The image could not be written to the cache.
    Store(crate::images::StoreError),
}

impl fmt::Display for DeployError {
    /// Names are the module's, and so is what it printed: what a terminal would obey is written out.
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
                    "the module has {bytes} bytes and the most is {bytes_max}; strip its debug information"
                )
            }
            Self::Invalid(why) => format!(
                "the module is invalid or uses a proposal that cells cannot have: {why}; docs/abi.md lists the proposals"
            ),
            Self::ExportMissing(name) => format!(
                "the module does not export `{name}`, which marram_v1 requires; use the SDK's app macro or export it by hand (docs/abi.md)"
            ),
            Self::ExportType { name, found, expected } => {
                format!("the export `{name}` is {found}, and marram_v1 says {expected}")
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
