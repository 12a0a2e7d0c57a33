//! What `marram bench` measures of this crate, with guests made for it. Every figure is a list of single runs, so that
//! the caller chooses the statistics.
//!
//! These run in the process that asks, with a pool of their own and no shard: they show what the
//! engine and this crate cost, as a lower bound for what `marram bench` measures over sockets. The
//! guests do as little as possible, so a real app's costs come on top.

mod chain;
pub mod guests;
mod start;

pub use chain::BenchChain;
pub use start::Nursery;

use crate::cells::{Cells, CellsConfig, Progress};
use crate::chain::Image;
use crate::checkpoint::{Decoded, Snapshot};
use crate::images::Images;
use crate::quotas::Quotas;
use bytes::Bytes;
use marram_session::cell::{CellId, CellInput, CheckpointBase, PortKind, Ran, Run, RunOutcome, Seed};
use marram_wire::id::Port;
use std::sync::Arc;
use std::time::Instant;

/// The cell that is measured.
const CELL: CellId = CellId(1);

/// The cost of one checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Nanoseconds that the cell pauses: finding and copying its dirty pages.
    pub pause_ns: u64,
    /// Pages that were copied.
    pub pages: usize,
    /// Nanoseconds of encoding, which happens outside of the pause.
    pub encode_ns: u64,
    /// Bytes of the encoded checkpoint.
    pub bytes: usize,
}

/// Why nothing could be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BenchError(String);

impl std::fmt::Display for BenchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the measurement could not be set up: {}", self.0)
    }
}

impl std::error::Error for BenchError {}

/// A cell that writes a given number of pages, and the means to drive it. A pool of four slots: the
/// cell that is measured, the one that a restore makes, and room for slots that are being cleaned.
pub struct Workload {
    cells: Cells,
    image: Arc<Image>,
    /// Pages of 4 KiB that the guest can write: all but the first.
    pages: u32,
}

impl Workload {
    /// A cell of `memory_bytes` (rounded up to 64 KiB). All of its pages differ from the image and do not compress, as in
    /// the worst session. `images` stores the guest's image.
    ///
    /// # Errors
    /// If the machine has no room for it.
    pub fn new(images: &Images, memory_bytes: u64) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
        let wasm_pages =
            u32::try_from(memory_bytes.div_ceil(65_536).max(2)).map_err(|error| failed(&error))?;
        let quotas = Quotas { memory_max: u64::from(wasm_pages) * 65_536, ..Quotas::default() };
        let info =
            images.deploy(&guests::writer(wasm_pages), &[], &quotas).map_err(|error| failed(&error))?;
        let image = images.load(info.hash).map_err(|error| failed(&error))?;
        let config = CellsConfig { slots: 4, ..CellsConfig::default() };
        let mut cells = Cells::new(config).map_err(|error| failed(&error))?;
        cells.start(CELL, &image, Seed([1; 32])).map_err(|error| failed(&error))?;
        // The first page is for messages; the guest writes to the rest.
        let mut workload = Self { cells, image, pages: wasm_pages * 16 - 1 };
        workload.write(workload.pages)?;
        Ok(workload)
    }

    /// How dirty pages are found on this machine, as a word.
    #[must_use]
    pub fn tracking(&self) -> &'static str {
        self.cells.tracking()
    }

    /// Makes the guest write `count` pages, spread over its memory, with bytes that do not compress.
    ///
    /// `count` is cut to the number of pages, and 0 writes none. The spread matters: pages side by
    /// side would be found and copied as one run.
    ///
    /// # Errors
    /// If the guest does not end normally.
    pub fn write(&mut self, count: u32) -> Result<(), BenchError> {
        let stride = (self.pages / count.max(1)).max(1);
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&count.min(self.pages).to_le_bytes());
        payload[4..].copy_from_slice(&stride.to_le_bytes());
        let input = CellInput::Message { port: Port::CLIENT, payload: payload.to_vec().into() };
        finish(&mut self.cells, Run { cell: CELL, input, now_ns: 0, logged: None }).map(drop)
    }

    /// Takes a checkpoint and measures it.
    ///
    /// The pause is what the cell's thread does; encoding is measured on the same thread here,
    /// while an edge does it on another.
    ///
    /// # Errors
    /// If it cannot be taken.
    pub fn checkpoint(&mut self, base: CheckpointBase) -> Result<(Checkpoint, Vec<u8>), BenchError> {
        let begun = Instant::now();
        let snapshot = self.cells.snapshot(CELL, base).map_err(|error| BenchError(error.to_string()))?;
        let pause_ns = nanoseconds(begun);
        let begun = Instant::now();
        let bytes = Snapshot::encode(&snapshot);
        let encode_ns = nanoseconds(begun);
        Ok((Checkpoint { pause_ns, pages: snapshot.page_count(), encode_ns, bytes: bytes.len() }, bytes))
    }

    /// Restores the checkpoints into a new cell: nanoseconds of decoding and of applying.
    ///
    /// The second cell is removed before this returns, but not measured: freeing it may be
    /// deferred.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn restore(&mut self, checkpoints: &[Vec<u8>]) -> Result<(u64, u64), BenchError> {
        let other = CellId(2);
        let begun = Instant::now();
        let decoded = Decoded::decode(checkpoints).map_err(|error| BenchError(error.to_string()))?;
        let decode_ns = nanoseconds(begun);
        let begun = Instant::now();
        self.cells.restore(other, &self.image, &decoded).map_err(|error| BenchError(error.to_string()))?;
        let apply_ns = nanoseconds(begun);
        self.cells.remove(other);
        Ok((decode_ns, apply_ns))
    }
}

/// Pauses of `repeats` delta checkpoints of `dirty_pages` pages in a memory of `memory_bytes`, in
/// nanoseconds. Each pause is measured alone, with the writes before it left out.
///
/// # Errors
/// If the cell cannot be set up.
pub fn checkpoint_pauses(
    images: &Images,
    memory_bytes: u64,
    dirty_pages: u32,
    repeats: usize,
) -> Result<Vec<u64>, BenchError> {
    let mut workload = Workload::new(images, memory_bytes)?;
    workload.checkpoint(CheckpointBase::Image)?;
    (0..repeats)
        .map(|_| {
            workload.write(dirty_pages)?;
            workload.checkpoint(CheckpointBase::Previous).map(|(checkpoint, _)| checkpoint.pause_ns)
        })
        .collect()
}

/// A guest that sends each message back, and the means to drive it.
struct Echo {
    cells: Cells,
    image: Arc<Image>,
    payload: Bytes,
}

impl Echo {
    fn new(images: &Images, payload_bytes: usize) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
        let info = images.deploy(&guests::echo(), &[], &Quotas::default()).map_err(|error| failed(&error))?;
        let image = images.load(info.hash).map_err(|error| failed(&error))?;
        let config = CellsConfig { slots: 4, ..CellsConfig::default() };
        let mut cells = Cells::new(config).map_err(|error| failed(&error))?;
        cells.prepare(&image).map_err(|error| failed(&error))?;
        Ok(Self { cells, image, payload: vec![7; payload_bytes].into() })
    }

    fn start(&mut self) -> Result<(), BenchError> {
        self.cells.start(CELL, &self.image, Seed([2; 32])).map_err(|error| BenchError(error.to_string()))?;
        self.handle(CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None })
    }

    fn message(&mut self) -> Result<(), BenchError> {
        self.handle(CellInput::Message { port: Port::CLIENT, payload: self.payload.clone() })
    }

    fn handle(&mut self, input: CellInput) -> Result<(), BenchError> {
        finish(&mut self.cells, Run { cell: CELL, input, now_ns: 0, logged: None }).map(drop)
    }
}

/// Runs a handler to its end. A handler that computes for longer than a slice is resumed at once:
/// no other cell waits here.
fn finish(cells: &mut Cells, run: Run) -> Result<Ran, BenchError> {
    let cell = run.cell;
    let mut progress = cells.run(run);
    loop {
        match progress {
            Progress::Pending => progress = cells.poll(cell),
            Progress::Done(ran) if ran.outcome == RunOutcome::Idle => return Ok(ran),
            Progress::Done(ran) => return Err(BenchError(format!("{:?}", ran.outcome))),
        }
    }
}

/// Nanoseconds from no cell to the answer to a new cell's first message, `repeats` times. The slots
/// are warm after the first run, as on an edge that has been up for a while, so use a median, not a
/// maximum.
///
/// # Errors
/// If the cell cannot be set up.
pub fn activations(images: &Images, repeats: usize) -> Result<Vec<u64>, BenchError> {
    let mut echo = Echo::new(images, 64)?;
    (0..repeats)
        .map(|_| {
            let begun = Instant::now();
            echo.start()?;
            echo.message()?;
            let spent = nanoseconds(begun);
            echo.cells.remove(CELL);
            Ok(spent)
        })
        .collect()
}

/// Nanoseconds of a cell's whole life: started, opened, one message, with `checkpointed` a full checkpoint and a delta, removed;
/// `repeats` times.
///
/// # Errors
/// If the cell cannot be set up.
pub fn lives(images: &Images, checkpointed: bool, repeats: usize) -> Result<Vec<u64>, BenchError> {
    let mut echo = Echo::new(images, 64)?;
    (0..repeats)
        .map(|_| {
            let begun = Instant::now();
            echo.start()?;
            echo.message()?;
            if checkpointed {
                for base in [CheckpointBase::Image, CheckpointBase::Previous] {
                    echo.cells.snapshot(CELL, base).map_err(|error| BenchError(error.to_string()))?;
                }
            }
            echo.cells.remove(CELL);
            Ok(nanoseconds(begun))
        })
        .collect()
}

/// Nanoseconds of a handler that sends its message of `payload_bytes` back: copied in, called, copied out. `repeats`
/// averages over a hundred runs each.
///
/// # Errors
/// If the cell cannot be set up.
pub fn handlers(images: &Images, payload_bytes: usize, repeats: usize) -> Result<Vec<u64>, BenchError> {
    let mut echo = Echo::new(images, payload_bytes)?;
    echo.start()?;
    (0..repeats)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..100 {
                echo.message()?;
            }
            Ok(nanoseconds(begun) / 100)
        })
        .collect()
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_writes_the_requested_pages() {
        let dir = std::env::temp_dir().join(format!("marram-bench-{}", std::process::id()));
        let images = Images::open(&dir).unwrap();
        let mut workload = Workload::new(&images, 1 << 20).unwrap();
        let (full, bytes) = workload.checkpoint(CheckpointBase::Image).unwrap();
        assert_eq!(full.pages, 256);
        assert!(full.bytes > 255 * 4096, "{} bytes: it must not compress", full.bytes);
        workload.write(16).unwrap();
        let (delta, more) = workload.checkpoint(CheckpointBase::Previous).unwrap();
        // The page with the message and the stream's state is additional.
        assert_eq!(delta.pages, 17);
        workload.restore(&[bytes, more]).unwrap();
        assert_eq!(activations(&images, 3).unwrap().len(), 3);
        assert_eq!(lives(&images, true, 3).unwrap().len(), 3);
        assert_eq!(handlers(&images, 64, 3).unwrap().len(), 3);
        assert_eq!(checkpoint_pauses(&images, 1 << 20, 1, 3).unwrap().len(), 3);
        let mut nursery = Nursery::new(&images, 2, 1, 8).unwrap();
        let (cell, _) = nursery.activate(0).unwrap();
        nursery.message(cell).unwrap();
        nursery.end(cell);
        nursery.live(1).unwrap();
        Nursery::new(&images, 1, 3, 8).unwrap().activate(0).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
