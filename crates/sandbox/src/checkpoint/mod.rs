//! Checkpoints. Taking one is a scan and a copy; encoding, sending and decoding happen elsewhere; applying one makes a cell
//! that continues from the same state. The byte layout is drawn in `docs/formats-checkpoint.md`.
//!
//! This module does not know positions, sequence numbers and outboxes: the session puts those next to these bytes.

mod chain;
mod copied;
mod decode;
mod encode;
mod pages;
mod pieces;
mod reading;
mod runs;
mod stage;
mod versions;
mod zero_runs;

pub use chain::{Decoded, Snapshot};
pub(crate) use copied::Copied;
pub(crate) use decode::StageDecoded;
pub use reading::{CheckpointReader, Filling};
pub(crate) use stage::Write;
pub use versions::PageCounts;
pub(crate) use versions::{VersionPool, Versions};

use crate::dirty::PageSet;
use crate::files::FilesChange;
use crate::globals::GlobalValue;
use crate::host::Ports;
use crate::image::StageImage;
use crate::limits::CHECKPOINT_BYTES_MAX;
use crate::start_error::CellStartError;
use marram_session::cell::Seed;
use marram_wire::id::ImageHash;
use std::fmt;
use std::sync::Arc;

/// Bytes of a section's length in the short layout.
const SHORT_LENGTH_BYTES: usize = 5;
const _: () = assert!(
    CHECKPOINT_BYTES_MAX < 1 << (8 * SHORT_LENGTH_BYTES),
    "the length of any section fits in the short layout"
);
/// Begins every encoded checkpoint.
const MAGIC: [u8; 4] = *b"MRCK";
/// Bytes before the body: magic, version, length, checksum.
const HEADER_BYTES: usize = 4 + 4 + 8 + CHECKSUM_BYTES;
/// Bytes of a BLAKE3 digest that detects damage. Against attackers, checkpoints are encrypted and authenticated in transit.
const CHECKSUM_BYTES: usize = 16;

/// Versions of the layout, by their numbers in the format. A delta with differences of pages has another one than all else, so that a
/// reader that knows none refuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
#[repr(u32)]
enum Layout {
    /// No differences.
    Plain = 1,
    /// Differences of pages, each with the digest of its base. Read, and not written any more, like the next one.
    Differences = 2,
    /// The same, as runs of zeros and of other bytes.
    ZeroRuns = 3,
    /// The same in fewer bytes: variable-length integers, and one digest for all bases of a chunk.
    Short = 4,
}

impl Layout {
    fn from_number(number: u32) -> Option<Self> {
        [Self::Plain, Self::Differences, Self::ZeroRuns, Self::Short]
            .into_iter()
            .find(|layout| *layout as u32 == number)
    }
}

/// Identifies a checkpoint within its cell, so that a delta can name its base.
pub(crate) type CheckpointId = [u8; 16];

/// The full checkpoint on which a cell's deltas build, and the pages of memory that may have changed since. In a full checkpoint that
/// is none of the cell's own list ([`marram_session::cell::CheckpointBase::Apart`]).
#[derive(Clone)]
pub(crate) struct Since {
    pub(crate) full: CheckpointId,
    pub(crate) pages: PageSet,
}

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
    Since = 10,
    PastPorts = 11,
    Connections = 12,
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
            10 => Self::Since,
            11 => Self::PastPorts,
            12 => Self::Connections,
            _ => return None,
        })
    }
}

/// The state of one stage of a cell at one position, copied out and not yet encoded.
pub(crate) struct StageSnapshot {
    pub(crate) image: Arc<StageImage>,
    /// The checkpoint that this one builds on; `None` if it builds on the image only.
    pub(crate) base: Option<CheckpointId>,
    /// What the cell's deltas build on, if this checkpoint is none of its list.
    pub(crate) since: Option<Since>,
    /// Whether it contains everything that changed since a full checkpoint, and all files.
    pub(crate) is_merged: bool,
    pub(crate) id: CheckpointId,
    pub(crate) memory_len: usize,
    /// The pages of linear memory that were copied.
    pub(crate) memory: Copied,
    /// What the reader of a delta has of some pages, if it has exactly the base.
    pub(crate) versions: Option<Versions>,
    pub(crate) globals: Vec<GlobalValue>,
    pub(crate) ports: Ports,
    pub(crate) seed: Seed,
    pub(crate) position: u64,
    pub(crate) files: FilesChange,
}

impl fmt::Debug for StageSnapshot {
    /// Names and sizes only: the contents are a session's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageSnapshot")
            .field("image", &self.image.hash)
            .field("pages", &self.memory.len())
            .field("delta", &self.base.is_some())
            .finish_non_exhaustive()
    }
}

/// The base id of a full checkpoint, so that the checkpoint's own id depends on its image.
pub(crate) fn image_id(image: ImageHash) -> CheckpointId {
    let mut id = [0; 16];
    id.copy_from_slice(&image.0[..16]);
    id
}

/// Why no snapshot could be taken. The cell continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotError {
    /// No such cell, or it is in the middle of a handler.
    NotIdle,
    /// A delta was requested, and there is no checkpoint to build on: request a full one.
    NoBase,
    /// The kernel could not report which pages were written: request a full one, which reads all of them.
    Tracking(String),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIdle => f.write_str("the cell does not exist or runs a handler; ask between handlers"),
            Self::NoBase => f.write_str("the cell has no checkpoint to build on; ask for a full one"),
            Self::Tracking(why) => {
                write!(
                    f,
                    "the kernel cannot report which pages were written ({why}); ask for a full checkpoint"
                )
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

/// Why a cell could not be restored: then the cell is gone. Or why it could not be advanced: then it is unchanged, unless the
/// error is [`RestoreError::Lost`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RestoreError {
    /// The bytes are not a checkpoint, or are damaged: fetch them from another keeper.
    Corrupt(&'static str),
    /// Another version of this program wrote them: recover on an edge of that version.
    Version(u32),
    /// The checkpoints belong to another image.
    Image {
        /// The image that they belong to.
        found: ImageHash,
        /// The image that was expected.
        expected: ImageHash,
    },
    /// A delta does not build on the checkpoint before it: the list is incomplete or out of order.
    Chain {
        /// Its index in the list.
        index: usize,
    },
    /// The list is empty.
    Empty,
    /// Some pages of the cell are not those that differences were made against.
    Page {
        /// The number of the first page that was compared together with them.
        page: usize,
    },
    /// They do not fit the image's quotas or layout, or the target cell.
    Misfit(&'static str),
    /// There is no room for the cell.
    Start(CellStartError),
    /// They fit, but advancing the cell failed half-way: it is gone. Restore it, beginning with its full checkpoint.
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
                    "the checkpoint has format version {version}, and this edge reads {} to {}; recover elsewhere",
                    Layout::Plain as u32,
                    Layout::Short as u32
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
            Self::Page { page } => {
                write!(
                    f,
                    "the cell's pages from {page} on are not those that the delta was made against; fetch a full \
                     checkpoint"
                )
            }
            Self::Empty => f.write_str("no checkpoint was given"),
            Self::Misfit(why) => write!(f, "the checkpoint does not fit: {why}"),
            Self::Start(error) => write!(f, "{error}"),
            Self::Lost(error) => {
                write!(
                    f,
                    "a delta was applied only in part, so the cell was removed ({error}); restore it from its full \
                     checkpoint"
                )
            }
        }
    }
}

impl std::error::Error for RestoreError {}
