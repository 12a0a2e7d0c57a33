//! Measures a message's cost through a chain of stages with the same module.
//!
//! The whole chain is one cell: a message in causes one call into the engine, and the stages'
//! handlers run in it one after the other through the driver. So the difference between two lengths
//! is the cost of a stage alone. Nothing here knows wires or sessions; that part is measured by
//! `marram bench chain` with real processes.

use super::{BenchError, finish, nanoseconds};
use crate::cells::{Cells, CellsConfig};
use crate::chain::{Chain, Image};
use crate::images::Images;
use crate::quotas::Quotas;
use bytes::Bytes;
use marram_session::cell::{CellId, CellInput, CellOutput, CheckpointBase, PortKind, Run, Seed};
use marram_wire::id::Port;
use std::sync::Arc;
use std::time::Instant;

/// The chain that is measured.
const CELL: CellId = CellId(1);
/// Messages between two snapshots for a checkpoint. A session with small messages sends many more: it takes a checkpoint for
/// every 4 MiB of them.
const COVER_MESSAGES: u32 = 1_000;

/// One client's chain; its stages pass the client's messages on to the server. Every
/// `COVER_MESSAGES`-th message pays for a delta snapshot first, as a session's messages do, so
/// its cost is in the mean.
pub struct BenchChain {
    /// The cell with all stages, in a pool of 16 slots: the longest chain fits.
    cells: Cells,
    /// Messages since the last snapshot.
    uncovered: u32,
}

impl BenchChain {
    /// A chain of `stages` cells of one module, opened, with one snapshot taken and dirty pages tracked. `images` stores it.
    ///
    /// # Errors
    /// If the machine has no room for it, or the module cannot be a stage.
    pub fn new(images: &Images, module: &[u8], stages: usize) -> Result<Self, BenchError> {
        let image = image(images, module, stages)?;
        let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
        let config = CellsConfig { slots: 16, ..CellsConfig::default() };
        let mut cells = Cells::new(config).map_err(|error| failed(&error))?;
        cells.start(CELL, &image, Seed([3; 32])).map_err(|error| failed(&error))?;
        for (port, kind) in [(Port::CLIENT, PortKind::Client), (Port::SERVER, PortKind::Server)] {
            finish(
                &mut cells,
                Run {
                    cell: CELL,
                    input: CellInput::Open { port, kind, peer: None },
                    now_ns: 0,
                    logged: None,
                },
            )?;
        }
        cells.snapshot(CELL, CheckpointBase::Image).map_err(|error| failed(&error))?;
        Ok(Self { cells, uncovered: 0 })
    }

    /// Passes a message of the client through all stages and returns what the server gets. Takes a snapshot before some of the
    /// messages.
    ///
    /// # Errors
    /// If the server gets anything but one message.
    pub fn pass(&mut self, payload: Bytes) -> Result<Bytes, BenchError> {
        self.uncovered += 1;
        if self.uncovered == COVER_MESSAGES {
            self.uncovered = 0;
            self.cells
                .snapshot(CELL, CheckpointBase::Previous)
                .map_err(|error| BenchError(error.to_string()))?;
        }
        let input = CellInput::Message { port: Port::CLIENT, payload };
        let ran = finish(&mut self.cells, Run { cell: CELL, input, now_ns: 0, logged: None })?;
        match <[CellOutput; 1]>::try_from(ran.outputs) {
            Ok([CellOutput::Message { port: Port::SERVER, payload }]) => Ok(payload),
            other => Err(BenchError(format!("a stage did not pass on a message: {other:?}"))),
        }
    }

    /// Nanoseconds for `count` messages in a row, each with this payload.
    ///
    /// # Errors
    /// As [`Self::pass`], and if the server gets other bytes.
    pub fn pass_many(&mut self, payload: &Bytes, count: u32) -> Result<u64, BenchError> {
        let begun = Instant::now();
        for _ in 0..count {
            if self.pass(payload.clone())? != payload {
                return Err(BenchError("a stage changed a message".into()));
            }
        }
        Ok(nanoseconds(begun))
    }
}

/// Deploys the module once and names it `stages` times; a chain of one stage is the app itself,
/// since a chain has at least two.
fn image(images: &Images, module: &[u8], stages: usize) -> Result<Arc<Image>, BenchError> {
    let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
    let info = images.deploy(module, &[], &Quotas::default()).map_err(|error| failed(&error))?;
    let hash = if stages == 1 {
        info.hash
    } else {
        let stages = (0..stages).map(|stage| (format!("stage-{stage}"), info.hash)).collect();
        let chain = Chain::new(true, stages).map_err(|error| failed(&error))?;
        images.deploy_chain(&chain).map_err(|error| failed(&error))?
    };
    images.load(hash).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_passes_all_stages_also_where_they_are_copied() {
        let module = wat::parse_str(
            r#"(module (import "marram_v1" "send" (func $send (param i32 i32 i32)))
                 (memory (export "memory") 1)
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 4096))
                 (func (export "marram_recv") (param i32 i32 i32)
                   (call $send (i32.xor (local.get 0) (i32.const 1)) (local.get 1) (local.get 2))))"#,
        )
        .unwrap();
        let dir = std::env::temp_dir().join(format!("marram-bench-chain-{}", std::process::id()));
        let images = Images::open(&dir).unwrap();
        for stages in [1, 3] {
            let mut line = BenchChain::new(&images, &module, stages).unwrap();
            assert_eq!(line.pass(Bytes::from_static(b"on")).unwrap(), &b"on"[..]);
            line.pass_many(&vec![7; 1024].into(), COVER_MESSAGES + 1).unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
