//! Checkpoints: taking one is a scan and a copy; encoding, shipping and decoding happen elsewhere; applying one makes a
//! cell that continues where the first stood. The byte layout is drawn in `docs/formats-checkpoint.md`.
//!
//! Refuses to know positions, sequence numbers and outboxes: the session puts those beside these bytes.

mod chain;
mod decode;
mod encode;
mod pages;
mod pieces;
mod reading;
mod stage;

pub use chain::{Decoded, Snapshot};
pub(crate) use decode::StageDecoded;
pub use reading::{CheckpointReader, Filling};
pub(crate) use stage::Write;

use crate::buffers::Spares;
use crate::deploy::GlobalValue;
use crate::files::FilesChange;
use crate::host::Ports;
use crate::image::StageImage;
use marram_session::cell::Seed;
use marram_wire::id::ImageHash;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Begins every encoded checkpoint.
const MAGIC: [u8; 4] = *b"MRCK";
/// Version of the layout.
const VERSION: u32 = 1;
/// Bytes before the body: magic, version, length, checksum.
const HEADER_BYTES: usize = 4 + 4 + 8 + CHECKSUM_BYTES;
/// Bytes of a BLAKE3 digest that guard against damage. Against malice, checkpoints are sealed where they travel.
const CHECKSUM_BYTES: usize = 16;

/// Names a checkpoint within its cell, so that a delta finds what it builds on.
pub(crate) type CheckpointId = [u8; 16];

/// Kinds of sections, by their numbers in the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    MemorySize = 1,
    MemoryPages = 2,
    Globals = 3,
    Ports = 4,
    Generator = 5,
    Directory = 6,
    Descriptors = 7,
    FilePages = 8,
    Peers = 9,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::MemorySize,
            2 => Self::MemoryPages,
            3 => Self::Globals,
            4 => Self::Ports,
            5 => Self::Generator,
            6 => Self::Directory,
            7 => Self::Descriptors,
            8 => Self::FilePages,
            9 => Self::Peers,
            _ => return None,
        })
    }
}

/// The state of one stage of a cell at one position, copied out and not yet encoded.
pub(crate) struct StageSnapshot {
    pub(crate) image: Arc<StageImage>,
    /// The checkpoint that this one builds on; `None` if it stands alone on the image.
    pub(crate) base: Option<CheckpointId>,
    pub(crate) id: CheckpointId,
    pub(crate) memory_len: usize,
    /// Which pages, in order.
    pub(crate) runs: Vec<Range<u32>>,
    /// Their contents, one after the other.
    pub(crate) bytes: Vec<u8>,
    pub(crate) globals: Vec<GlobalValue>,
    pub(crate) ports: Ports,
    pub(crate) seed: Seed,
    pub(crate) position: u64,
    pub(crate) files: FilesChange,
    /// Where `bytes` goes back to.
    pub(crate) spares: Spares,
}

impl Drop for StageSnapshot {
    fn drop(&mut self) {
        self.spares.give(std::mem::take(&mut self.bytes));
    }
}

impl StageSnapshot {
    /// Pages of linear memory that were copied.
    pub(crate) fn page_count(&self) -> usize {
        self.runs.iter().map(ExactSizeIterator::len).sum()
    }
}

impl fmt::Debug for StageSnapshot {
    /// Names and sizes only: the contents are a session's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageSnapshot")
            .field("image", &self.image.hash)
            .field("pages", &self.page_count())
            .field("delta", &self.base.is_some())
            .finish_non_exhaustive()
    }
}

/// The id that deltas on nothing build on, so that a full checkpoint's id depends on its image.
pub(crate) fn image_id(image: ImageHash) -> CheckpointId {
    let mut id = [0; 16];
    id.copy_from_slice(&image.0[..16]);
    id
}

/// Why no snapshot could be taken. The cell goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotError {
    /// No such cell, or it is in the middle of a handler.
    NotIdle,
    /// A delta was asked for, and there is no checkpoint for it to build on: ask for a full one.
    NoBase,
    /// The kernel could not say which pages were written: ask for a full one, which looks at all of them.
    Tracking(String),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIdle => {
                f.write_str("the cell is gone or in the middle of a handler; ask between handlers")
            }
            Self::NoBase => f.write_str("the cell has no checkpoint to build on; ask for a full one"),
            Self::Tracking(why) => {
                write!(f, "the kernel cannot say what was written ({why}); ask for a full checkpoint")
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

/// Why a cell could not be restored: nothing of it is left then. Or why it could not be brought forward: it is as before, unless
/// it is [`RestoreError::Lost`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RestoreError {
    /// The bytes are no checkpoint, or damaged: fetch them from another keeper.
    Corrupt(&'static str),
    /// Another version of this program wrote them: recover on an edge of that version.
    Version(u32),
    /// They are another image's.
    Image {
        /// Whose they are.
        found: ImageHash,
        /// Whose they should be.
        expected: ImageHash,
    },
    /// A delta does not build on what came before it: the list is incomplete or out of order.
    Chain {
        /// Its place in the list.
        index: usize,
    },
    /// There is nothing to restore from.
    Empty,
    /// They do not fit the image's quotas or shape, or the cell that they were for.
    Misfit(&'static str),
    /// There is no room for the cell.
    Start(crate::cells::StartError),
    /// They fit, and bringing the cell forward failed half-way: it is gone. Restore it from its full checkpoint on.
    Lost(Box<Self>),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(why) => {
                write!(f, "the checkpoint is damaged ({why}); fetch it from another keeper")
            }
            Self::Version(version) => {
                write!(
                    f,
                    "the checkpoint has format version {version}, and this edge reads {VERSION}; recover elsewhere"
                )
            }
            Self::Image { found, expected } => {
                write!(f, "the checkpoint is of image {found}, and the session names {expected}")
            }
            Self::Chain { index } => {
                write!(
                    f,
                    "checkpoint {index} of the list does not build on the one before it; fetch the whole list again"
                )
            }
            Self::Empty => f.write_str("no checkpoint was given"),
            Self::Misfit(why) => write!(f, "the checkpoint does not fit: {why}"),
            Self::Start(error) => write!(f, "{error}"),
            Self::Lost(error) => {
                write!(
                    f,
                    "the cell was brought forward in part and is gone ({error}); restore it from its full checkpoint on"
                )
            }
        }
    }
}

impl std::error::Error for RestoreError {}
