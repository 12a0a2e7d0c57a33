//! Images, cells and checkpoints: the only crate that names the WebAssembly engine.
//!
//! [`Images`] turns a module into an image; [`Cells`] starts cells from images and runs their handlers. `docs/abi.md`
//! describes the guest's side of the contract. What goes into a cell and comes out of it are the types of
//! `marram_session::cell`; from `marram_wire` come numbers, limits and the codec. This crate runs no session, opens no
//! connection, and reads clocks only to charge and stop handlers: session time is an input.
//!
//! The main modules, each above those that it uses:
//!
//! ```text
//! images          keeps apps and images in a directory
//! deploy          makes an image of an app
//! cells           starts and runs cells
//! checkpoint      copies, encodes and decodes the state of a cell
//! chain, dirty    what a session names; which pages of its memory a cell has written
//! image           what one stage starts from
//! host            what a guest's imports read and write
//! files, globals, image_dir, start_error
//! ```

mod app;
pub mod bench;
mod buffers;
mod bytes_io;
mod cells;
mod chain;
mod checkpoint;
mod debugging;
mod deploy;
mod dirty;
mod engine;
mod files;
mod generator;
mod globals;
mod host;
mod image;
mod image_dir;
mod image_key;
mod images;
mod keys;
pub mod limits;
mod plain;
mod quotas;
mod replay;
mod scheduling;
mod start_error;
mod watch;

pub use app::{AppParts, ImageFile};
pub use buffers::CopyBuffers;
pub use cells::{Cells, CellsConfig, Progress, ReadyStats, Reset, StageState, WarmPoolStats};
pub use chain::{Chain, ChainError, Image};
pub use checkpoint::{CheckpointReader, Decoded, Filling, PageCounts, RestoreError, Snapshot, SnapshotError};
pub use debugging::DebugError;
pub use deploy::DeployError;
pub use dirty::Tracking;
pub use host::{Print, PrintLevel, reads_cache};
pub use image::{ImageFault, ImageInfo};
pub use image_dir::ImageWriteError;
pub use images::{Images, LoadError};
pub use keys::{KeyId, Keyring, Signer};
pub use quotas::Quotas;
pub use replay::{ReplayError, ReplayStep, Replayer};
pub use scheduling::{reset_scheduling, set_background, set_latency_sensitive};
pub use start_error::CellStartError;
