//! Why a cell was not started. It is not part of `cells`, since `checkpoint` needs it too: restoring a cell starts one.

use crate::keys::KeyId;
use marram_session::cell::CellId;
use marram_wire::id::ImageHash;
use std::fmt;

/// Why a cell could not be started, or memory for cells could not be reserved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellStartError {
    /// The machine cannot provide what the configuration asks for.
    Pool(String),
    /// A live cell already has this number.
    Taken(CellId),
    /// The engine refuses the image.
    Image {
        /// The image.
        hash: ImageHash,
        /// The engine's message.
        why: String,
    },
    /// The host signs for the image's cells, and this machine does not have the key.
    Key {
        /// The image.
        hash: ImageHash,
        /// The missing key.
        key: KeyId,
    },
    /// No slot is free, or the machine is out of memory.
    Slot(String),
}

impl fmt::Display for CellStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(why) => write!(
                f,
                "the machine cannot hold this many cells: {why}; lower the number of slots or raise vm.max_map_count and the address-space limit"
            ),
            Self::Taken(cell) => write!(f, "cell {} exists already", cell.0),
            Self::Image { hash, why } => {
                write!(f, "the engine refuses image {hash}: {why}; load it again to rebuild it")
            }
            Self::Key { hash, key } => {
                write!(
                    f,
                    "this machine does not have the key {key} that image {hash} signs with; configure that key, or \
                     start the cell elsewhere"
                )
            }
            Self::Slot(why) => {
                write!(
                    f,
                    "no slot for another cell: {why}; end sessions, or raise `limits.cells` of the edge"
                )
            }
        }
    }
}

impl std::error::Error for CellStartError {}
