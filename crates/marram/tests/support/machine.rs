//! The one cell of a test that runs cells without an edge.

use marram_sandbox::{Cells, Progress};
use marram_session::cell::{CellId, CellInput, CellOutput, Run, RunOutcome};

/// Its name.
pub(crate) const CELL: CellId = CellId(1);

/// Gives it an input, which it must not be stopped at. What it sent, and the nanoseconds that it took.
pub(crate) fn run(cells: &mut Cells, input: CellInput) -> (Vec<CellOutput>, u64) {
    let mut progress = cells.run(Run { cell: CELL, input, now_ns: 1, logged: None });
    loop {
        match progress {
            Progress::Done(ran) => {
                assert_eq!(ran.outcome, RunOutcome::Idle);
                return (ran.outputs, ran.cost_ns);
            }
            Progress::Pending => progress = cells.poll(CELL),
        }
    }
}
