//! Why a module was not deployed. Each message says what to change, since its reader wrote the module.

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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAModule(why) => {
                write!(f, "not a WebAssembly module ({why}); give the .wasm file that the compiler wrote")
            }
            Self::Component => f.write_str(
                "this is a component, and apps are core modules; build for wasm32-wasip1 (not wasip2) and do not run `wasm-tools component new`",
            ),
            Self::TooLarge { bytes, bytes_max } => {
                write!(f, "the module has {bytes} bytes and the most is {bytes_max}; strip its debug information")
            }
            Self::Invalid(why) => write!(
                f,
                "the module is invalid or uses a proposal that cells cannot have: {why}; docs/abi.md lists the proposals"
            ),
            Self::ExportMissing(name) => write!(
                f,
                "the module does not export `{name}`, which marram_v1 requires; use the SDK's app macro or export it by hand (docs/abi.md)"
            ),
            Self::ExportType { name, found, expected } => {
                write!(f, "the export `{name}` is {found}, and marram_v1 says {expected}")
            }
            Self::ExportForbidden { name, reason } => write!(f, "the module exports `{name}`: {reason}"),
            Self::ImportForbidden { name, reason } => write!(f, "the module imports `{name}`: {reason}"),
            Self::Unsavable(why) => write!(f, "the module keeps state that could not be saved: {why}"),
            Self::Quotas(why) => write!(f, "the manifest's quotas: {why}"),
            Self::Files(why) => write!(f, "the app's files: {why}"),
            Self::Initialisation(why) => write!(f, "initialisation failed: {why}"),
            Self::Compile(why) => write!(f, "the engine could not compile the module: {why}"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DeployError {}
