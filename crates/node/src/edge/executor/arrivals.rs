//! Checkpoints that arrive for cells: opened and decoded as their bytes come.
//!
//! ```text
//! small (most):  shard's thread: push ─────────────────▶ restored, or advanced
//! large:         shard's thread ─ job ─▶ worker: push ─▶ Part, Opened, Next ─▶ shard's thread
//! ```
//! To open a few kilobytes takes less time than to wake a thread for them, and when an edge dies its
//! peers get hundreds of such checkpoints at once.

use super::{Answer, Executor, PART_BYTES};
use crate::edge::checkpoints::Arriving;
use bytes::Bytes;
use marram_session::cell::CellId;
use marram_shard::api::ShardInput;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

/// Checkpoints of so many bytes together are opened on the shard's thread: most take about 20 us, and a few milliseconds if they
/// hold megabytes that compress well. The tenant is charged for it.
pub(super) const OPEN_AT_ONCE_BYTES: u64 = if cfg!(test) {
    0 /* so that the small ones of tests come in parts */
} else {
    32 << 10
};

/// The purpose of arriving checkpoints.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// To restore a cell.
    Restore,
    /// To advance a standby cell, in its attempt with this number.
    Advance(u64),
}

/// The next checkpoint of a standby cell: opened, or the reason why it was refused.
pub(super) struct Next {
    pub(super) cell: CellId,
    pub(super) attempt: u64,
    pub(super) result: Result<Box<super::Restored>, super::CellError>,
}

/// Checkpoints that are being opened, by the cells that they are for.
#[derive(Default)]
pub(super) struct Arrivals(BTreeMap<CellId, (Purpose, Arriving)>);

impl Arrivals {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn expect(&mut self, cell: CellId, purpose: Purpose, arriving: Arriving) {
        self.0.insert(cell, (purpose, arriving));
    }

    /// Opens the next bytes. None if there is nothing to do yet, or none are expected for this cell.
    fn push(&mut self, cell: CellId, bytes: &[u8]) -> Option<Answer> {
        let (purpose, arriving) = self.0.get_mut(&cell)?;
        let (purpose, image) = (*purpose, arriving.image);
        let result = match arriving.push(bytes) {
            Ok(false) if matches!(purpose, Purpose::Restore) => {
                let fillings = arriving.take(PART_BYTES)?;
                return Some(Answer::Part { cell, image, fillings });
            }
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let (_, arriving) = self.0.remove(&cell)?;
        let result = result.and_then(|()| arriving.finish());
        Some(match purpose {
            Purpose::Restore => Answer::Opened { cell, image, result },
            Purpose::Advance(attempt) => Answer::Next(Next { cell, attempt, result }),
        })
    }
}

impl Executor {
    /// Prepares for the bytes of these checkpoints.
    pub(super) fn expect_checkpoints(&mut self, cell: CellId, purpose: Purpose, arriving: Arriving) {
        // What arrives for an earlier attempt is of no use any more.
        self.drop_arriving(cell);
        if arriving.missing() <= self.open_at_once {
            return self.arrivals.expect(cell, purpose, arriving);
        }
        self.arrivals_at_worker.insert(cell);
        self.worker.urgent(move |state| {
            state.arrivals.expect(cell, purpose, arriving);
            None
        });
    }

    /// Opens the next bytes of a cell's checkpoints while others are still on their way. Verified parts are copied into the
    /// memory of a cell that is to be restored, and the cell runs only after all of them. A standby cell does not change before
    /// all parts are there.
    /// Bytes for a cell that expects none (it was removed, or its checkpoint was refused) are dropped.
    pub(in crate::edge) fn part(&mut self, cell: CellId, bytes: Bytes, inputs: &mut VecDeque<ShardInput>) {
        if self.arrivals_at_worker.contains(&cell) {
            self.worker.urgent(move |state| state.arrivals.push(cell, &bytes));
            return;
        }
        let began = Instant::now();
        let answer = self.arrivals.push(cell, &bytes);
        self.charge_since(cell, Some(began));
        if let Some(answer) = answer {
            self.take_answer(answer, inputs);
        }
    }

    /// Drops what has arrived for a cell and what is still on its way. The worker's jobs are done in order, so parts
    /// that were queued before are handled first and to no effect.
    pub(super) fn drop_arriving(&mut self, cell: CellId) {
        self.arrivals.0.remove(&cell);
        if self.arrivals_at_worker.remove(&cell) {
            self.worker.urgent(move |state| {
                state.arrivals.0.remove(&cell);
                None
            });
        }
    }
}
