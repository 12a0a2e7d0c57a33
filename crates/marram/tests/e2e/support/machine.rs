//! The only cell of a test that runs cells without an edge.

use marram_sandbox::{Cells, Progress};
use marram_session::cell::{CellId, CellInput, CellOutput, Run, RunOutcome};

/// Its id.
pub(crate) const CELL: CellId = CellId(1);

/// Gives it an input, which must complete. Returns its outputs, and the nanoseconds that it ran.
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
