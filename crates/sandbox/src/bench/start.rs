//! How soon a new client's cell answers, how long a whole life takes, and how much memory a live cell uses.
//!
//! [`super::activations`] measures one image in a warm pool. Here many images take turns, so that a
//! slot often had another image before, and the live cells stay, so that their number and their
//! memory can grow as on a busy edge.

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

/// A process's cells, and apps to start more cells from. Each app's guest writes eight pages and sends its message back.
pub struct Nursery {
    cells: Cells,
    /// One per app. They share the module and differ in a quota, which is enough to make them
    /// different images.
    images: Vec<Arc<Image>>,
    /// The number of the cell that was started last. Numbers are not used again.
    next: u64,
    message: Bytes,
}

impl Nursery {
    /// Creates `apps` different apps, each a chain of `stages`, and memory for `slots` cells. `images` stores them.
    ///
    /// # Errors
    /// If the machine has no room for them.
    pub fn new(images: &Images, apps: u64, stages: usize, slots: u32) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
        let mut cells =
            Cells::new(CellsConfig { slots, ..CellsConfig::default() }).map_err(|error| failed(&error))?;
        let mut loaded = Vec::new();
        for app in 0..apps {
            // A different quota makes a different image of the same module.
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

    /// Nanoseconds from no cell to the answer to the first message of a new cell of an app; the cell stays.
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

    /// Nanoseconds of a message to a running cell.
    ///
    /// # Errors
    /// If the guest does not end normally.
    pub fn message(&mut self, cell: CellId) -> Result<u64, BenchError> {
        let begun = Instant::now();
        self.handle(cell, CellInput::Message { port: Port::CLIENT, payload: self.message.clone() })?;
        Ok(nanoseconds(begun))
    }

    /// Nanoseconds of a whole life: activated, a snapshot taken and dirty pages tracked from then on, ended, its slot clean and
    /// back in the pool, and the next client's cell started ahead, if this one was taken from the warm pool.
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

    /// Starts cells ahead of the next clients, as an idle shard does.
    pub fn stock(&mut self) {
        self.images.iter().for_each(|image| self.cells.expect(image));
        while self.cells.prewarm_one() {}
    }

    /// Number of live cells.
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
