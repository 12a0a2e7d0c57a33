//! How soon a new client's cell answers, how long a whole life takes, and what a living cell weighs.

use super::{BenchError, finish, guests, nanoseconds};
use crate::cells::{Cells, CellsConfig};
use crate::chain::{Chain, Image};
use crate::images::Images;
use crate::quotas::Quotas;
use bytes::Bytes;
use marram_session::cell::{CellId, CellInput, CheckpointBase, PortKind, Run, Seed};
use marram_wire::id::Port;
use std::sync::Arc;
use std::time::Instant;

/// A process's cells, and apps to start more from. Each app's guest writes eight pages and sends its message back.
pub struct Nursery {
    cells: Cells,
    images: Vec<Arc<Image>>,
    next: u64,
    message: Bytes,
}

impl Nursery {
    /// With `apps` apps that differ, each a chain of `stages`, and room for `slots` cells. `images` keeps them.
    ///
    /// # Errors
    /// If the machine has no room for them.
    pub fn new(images: &Images, apps: u64, stages: usize, slots: u32) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
        let mut cells =
            Cells::new(CellsConfig { slots, ..CellsConfig::default() }).map_err(|error| failed(&error))?;
        let mut loaded = Vec::new();
        for app in 0..apps {
            // Another quota makes another image of the same module.
            let quotas = Quotas { memory_max: (32 + app) << 16, ..Quotas::default() };
            let info = images.deploy(&guests::visitor(), &[], &quotas).map_err(|error| failed(&error))?;
            let hash = if stages == 1 {
                info.hash
            } else {
                let stages = (0..stages).map(|stage| (format!("stage-{stage}"), info.hash)).collect();
                let chain = Chain::new(false, stages).map_err(|error| failed(&error))?;
                images.deploy_chain(&chain).map_err(|error| failed(&error))?
            };
            let image = images.load(hash).map_err(|error| failed(&error))?;
            cells.prepare(&image).map_err(|error| failed(&error))?;
            loaded.push(image);
        }
        Ok(Self { cells, images: loaded, next: 0, message: vec![7; 64].into() })
    }

    /// Nanoseconds from nothing to the answer to the first message of a new cell of an app; the cell stays.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn activate(&mut self, app: usize) -> Result<(CellId, u64), BenchError> {
        let begun = Instant::now();
        self.next += 1;
        let cell = CellId(self.next);
        let seed = Seed([2; 32]);
        self.cells.start(cell, &self.images[app], seed).map_err(|error| BenchError(error.to_string()))?;
        self.handle(cell, CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None })?;
        self.handle(cell, CellInput::Message { port: Port::CLIENT, payload: self.message.clone() })?;
        Ok((cell, nanoseconds(begun)))
    }

    /// Nanoseconds of a message to a cell that runs.
    ///
    /// # Errors
    /// If the guest does not come to its end.
    pub fn message(&mut self, cell: CellId) -> Result<u64, BenchError> {
        let begun = Instant::now();
        self.handle(cell, CellInput::Message { port: Port::CLIENT, payload: self.message.clone() })?;
        Ok(nanoseconds(begun))
    }

    /// Nanoseconds of a whole life: activated, copied for a checkpoint with its dirty pages watched from then on, ended,
    /// its slot clean and back in the pool, and the next client's cell, if it was taken from those, started ahead.
    ///
    /// # Errors
    /// If there is no room for it, or it cannot be copied.
    pub fn live(&mut self, app: usize) -> Result<u64, BenchError> {
        let begun = Instant::now();
        let (cell, _) = self.activate(app)?;
        self.cells.snapshot(cell, CheckpointBase::Image).map_err(|error| BenchError(error.to_string()))?;
        self.cells.remove(cell);
        self.cells.prewarm_one();
        Ok(nanoseconds(begun))
    }

    /// Starts cells ahead of the next clients, as a shard does when it has nothing better to do.
    pub fn stock(&mut self) {
        self.images.iter().for_each(|image| self.cells.expect(image));
        while self.cells.prewarm_one() {}
    }

    /// Cells that live.
    #[must_use]
    pub fn living(&self) -> usize {
        self.cells.len()
    }

    /// Ends a cell.
    pub fn end(&mut self, cell: CellId) {
        self.cells.remove(cell);
    }

    fn handle(&mut self, cell: CellId, input: CellInput) -> Result<(), BenchError> {
        finish(&mut self.cells, Run { cell, input, now_ns: 0, logged: None }).map(drop)
    }
}
