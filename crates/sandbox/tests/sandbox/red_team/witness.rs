//! A cell next to the attackers: its state must not change, and it must continue to answer.

use crate::support::{ask_at, deploy, mixer, start_in};
use marram_sandbox::Cells;
use marram_session::cell::CellId;

const CELL: CellId = CellId(1 << 40);

/// The state hash of the cell when the attacks began.
pub(crate) struct Witness([u8; 32]);

impl Witness {
    /// Starts it and gives it some state of its own.
    pub(crate) fn beside(cells: &mut Cells) -> Self {
        start_in(cells, CELL, &deploy(&mixer()));
        for word in [&b"one"[..], b"grow", b"two"] {
            ask_at(cells, CELL, word, 7);
        }
        Self(cells.state_hash(CELL).unwrap())
    }

    /// Checks that its state has not changed.
    pub(crate) fn is_untouched(&self, cells: &mut Cells, attack: &str) {
        assert_eq!(cells.state_hash(CELL), Some(self.0), "another cell was changed by {attack}");
    }

    /// Checks that it answers; that changes its state.
    pub(crate) fn answers(&mut self, cells: &mut Cells) {
        assert_eq!(ask_at(cells, CELL, b"and now", 8).len(), 1);
        self.0 = cells.state_hash(CELL).unwrap();
    }
}
