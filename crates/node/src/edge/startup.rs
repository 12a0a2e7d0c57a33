//! Creates cells: from an image alone, or from checkpoints, which fill the cells while they arrive.
//!
//! ```text
//! Nothing ─ Seed ─────────────▶ started
//! Nothing ─ Checkpoints ──────▶ restored at once (small ones, whose parts all came together)
//! Nothing ─ Part ─▶ Rest ─ Part ... ─ Checkpoints ─▶ restored
//! ```

use super::checkpoints::{Restored, unrestorable, unstartable};
use marram_sandbox::{Cells, Filling, Image};
use marram_session::cell::{CellId, Seed};
use marram_shard::api::{CellError, ShardInput};
use std::sync::Arc;

/// What a cell is created from.
pub(super) enum StartSource {
    /// The image alone.
    Seed(Seed),
    /// A part of the memory in the checkpoints, while the rest is on its way.
    Part(Vec<Filling>),
    /// Checkpoints, without the parts that came before.
    Checkpoints(Box<Restored>),
}

/// How much of a requested cell exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expected {
    /// Nothing yet.
    Nothing,
    /// Some of its memory; the rest is on its way.
    Rest,
}

impl StartSource {
    /// Whether it may take longer than to read the clock.
    pub(super) fn is_large(&self) -> bool {
        !matches!(self, Self::Seed(_))
    }

    /// The answer if the cell cannot be created.
    pub(super) fn failed(&self, cell: CellId, error: CellError) -> ShardInput {
        match self {
            Self::Seed(_) => ShardInput::Started { cell, result: Err(error) },
            Self::Part(_) | Self::Checkpoints(_) => ShardInput::Restored { cell, result: Err(error) },
        }
    }
}

/// Starts to create a cell, or continues. Returns the answer, or `None` while parts are missing.
///
/// On the shard's thread: only it touches cells.
pub(super) fn start_cell(
    cells: &mut Cells,
    cell: CellId,
    image: &Arc<Image>,
    source: StartSource,
    expected: &mut Expected,
) -> Option<ShardInput> {
    let restored = match source {
        StartSource::Seed(seed) => {
            let result = cells.start(cell, image, seed).map_err(|error| unstartable(&error));
            return Some(ShardInput::Started { cell, result });
        }
        StartSource::Part(fillings) => {
            let before = std::mem::replace(expected, Expected::Rest);
            let begun = if before == Expected::Nothing { cells.begin(cell, image) } else { Ok(()) };
            let mut fillings = fillings.iter();
            match begun.and_then(|()| fillings.try_for_each(|filling| cells.fill(cell, filling))) {
                Ok(()) => return None,
                Err(error) => Err(error),
            }
        }
        StartSource::Checkpoints(restored) => {
            let Restored { header, decoded } = *restored;
            let restore = if *expected == Expected::Rest { Cells::complete } else { Cells::restore };
            restore(cells, cell, image, &decoded).map(|()| header)
        }
    };
    Some(ShardInput::Restored { cell, result: restored.map_err(|error| unrestorable(&error)) })
}
