//! Inspects a cell between inputs, for people who run a recording. Changes nothing.
//!
//! Used by `marram replay` and its debugger. It borrows the cell for reading only, takes no
//! snapshot and arms no tracking, so a replay that looks computes the same as one that does not.

use super::Cells;
use super::live::Live;
use crate::globals::GlobalValue;
use marram_session::cell::CellId;
use marram_wire::id::Port;
use std::ops::Range;

/// The state of one stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageState {
    /// Linear memory, all of it.
    pub memory: Vec<u8>,
    /// Mutable globals in order, each with its type and its bits.
    pub globals: Vec<(&'static str, u128)>,
    /// Open ports, and whether the cell may still send there.
    pub ports: Vec<(Port, bool)>,
    /// Bytes drawn from the random generator.
    pub drawn: u64,
    /// The stage's part of the state hash.
    pub hash: [u8; 32],
}

impl Cells {
    /// The state of each stage of a cell. `None` if the cell is gone or in the middle of a handler.
    #[must_use]
    pub fn look(&self, cell: CellId) -> Option<Vec<StageState>> {
        let Live { stages, store, .. } = &mut *self.quiet(cell)?.live().borrow_mut();
        let states = stages.iter().enumerate().map(|(at, stage)| {
            let globals = stage.globals(store).into_iter().map(typed).collect();
            let hash = stage.hash(store, at);
            let host = store.data().stage(at);
            StageState {
                memory: stage.memory.data(&*store).to_vec(),
                globals,
                ports: host.ports.list().to_vec(),
                drawn: host.generator.position(),
                hash,
            }
        });
        Some(states.collect())
    }

    /// A range of a stage's memory, or the part of it that exists. `None` if there is no such stage, or as above.
    #[must_use]
    pub fn memory(&self, cell: CellId, stage: usize, range: Range<usize>) -> Option<Vec<u8>> {
        let live = self.quiet(cell)?.live().borrow();
        let memory = live.stages.get(stage)?.memory.data(&live.store);
        let (start, end) = (range.start.min(memory.len()), range.end.min(memory.len()));
        Some(memory.get(start..end).unwrap_or_default().to_vec())
    }
}

/// The name that a debugger shows, and the value's bits; a float's are not converted.
fn typed(value: GlobalValue) -> (&'static str, u128) {
    match value {
        GlobalValue::I32(bits) => ("i32", bits.into()),
        GlobalValue::I64(bits) => ("i64", bits.into()),
        GlobalValue::F32(bits) => ("f32", bits.into()),
        GlobalValue::F64(bits) => ("f64", bits.into()),
        GlobalValue::V128(bits) => ("v128", bits),
    }
}
