//! What `marram bench` measures of this crate, with guests made for it. Every figure is a list of single runs, so that
//! the caller chooses the statistics.

use crate::cells::{Cells, CellsConfig, Progress};
use crate::checkpoint::{Decoded, Snapshot};
use crate::image::Image;
use crate::images::Images;
use crate::quotas::Quotas;
use marram_session::cell::{Base, CellId, Input, Outcome, Run, Seed};
use marram_wire::id::Port;
use std::sync::Arc;
use std::time::Instant;

/// The cell that is measured.
const CELL: CellId = CellId(1);

/// One checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Nanoseconds that the cell waits: finding and copying its dirty pages.
    pub pause_ns: u64,
    /// Pages that were copied.
    pub pages: usize,
    /// Nanoseconds of encoding, which is done elsewhere.
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

/// A cell that writes as many pages as it is told to, and the means to drive it.
pub struct Workload {
    cells: Cells,
    image: Arc<Image>,
    pages: u32,
}

impl Workload {
    /// A cell of `memory_bytes` (rounded up to 64 KiB). Its pages all differ from the image and do not compress, as in
    /// the worst session. `images` keeps the guest's image.
    ///
    /// # Errors
    /// If the machine has no room for it.
    pub fn new(images: &Images, memory_bytes: u64) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError(error.to_string());
        let wasm_pages =
            u32::try_from(memory_bytes.div_ceil(65_536).max(2)).map_err(|error| failed(&error))?;
        let quotas = Quotas { memory_max: u64::from(wasm_pages) * 65_536, ..Quotas::default() };
        let info = images.deploy(&writer(wasm_pages), &[], &quotas).map_err(|error| failed(&error))?;
        let image = images.load(info.hash).map_err(|error| failed(&error))?;
        let config = CellsConfig { slots: 4, ..CellsConfig::default() };
        let mut cells = Cells::new(config).map_err(|error| failed(&error))?;
        cells.start(CELL, &image, Seed([1; 32])).map_err(|error| failed(&error))?;
        // The first page holds messages; the rest is there to be written.
        let mut workload = Self { cells, image, pages: wasm_pages * 16 - 1 };
        workload.write(workload.pages)?;
        Ok(workload)
    }

    /// How dirty pages are found on this machine.
    #[must_use]
    pub fn tracking(&self) -> &'static str {
        self.cells.tracking()
    }

    /// Has the guest write `count` pages, spread over its memory, with bytes that do not compress.
    ///
    /// # Errors
    /// If the guest does not come to its end.
    pub fn write(&mut self, count: u32) -> Result<(), BenchError> {
        let stride = (self.pages / count.max(1)).max(1);
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&count.min(self.pages).to_le_bytes());
        payload[4..].copy_from_slice(&stride.to_le_bytes());
        let input = Input::Message { port: Port::CLIENT, payload: payload.to_vec().into() };
        let mut progress = self.cells.run(Run { cell: CELL, input, now_ns: 0 });
        loop {
            match progress {
                Progress::Pending => progress = self.cells.poll(CELL),
                Progress::Done(ran) if ran.outcome == Outcome::Idle => return Ok(()),
                Progress::Done(ran) => return Err(BenchError(format!("{:?}", ran.outcome))),
            }
        }
    }

    /// Takes a checkpoint and measures it.
    ///
    /// # Errors
    /// If it cannot be taken.
    pub fn checkpoint(&mut self, base: Base) -> Result<(Checkpoint, Vec<u8>), BenchError> {
        let begun = Instant::now();
        let snapshot = self.cells.snapshot(CELL, base).map_err(|error| BenchError(error.to_string()))?;
        let pause_ns = nanoseconds(begun);
        let begun = Instant::now();
        let bytes = Snapshot::encode(&snapshot);
        let encode_ns = nanoseconds(begun);
        Ok((Checkpoint { pause_ns, pages: snapshot.page_count(), encode_ns, bytes: bytes.len() }, bytes))
    }

    /// Restores the checkpoints into a fresh cell: nanoseconds of decoding and of applying.
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

/// Pauses of `repeats` delta checkpoints of `dirty_pages` pages in a memory of `memory_bytes`, in nanoseconds.
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
    workload.checkpoint(Base::Image)?;
    (0..repeats)
        .map(|_| {
            workload.write(dirty_pages)?;
            workload.checkpoint(Base::Previous).map(|(checkpoint, _)| checkpoint.pause_ns)
        })
        .collect()
}

/// Nanoseconds from nothing to the end of a fresh cell's first handler, `repeats` times.
///
/// # Errors
/// If the cell cannot be set up.
pub fn activations(images: &Images, repeats: usize) -> Result<Vec<u64>, BenchError> {
    let mut workload = Workload::new(images, 1 << 20)?;
    let image = Arc::clone(&workload.image);
    let other = CellId(2);
    (0..repeats)
        .map(|_| {
            let input = Input::Message { port: Port::CLIENT, payload: vec![8, 0, 0, 0, 1, 0, 0, 0].into() };
            let begun = Instant::now();
            workload
                .cells
                .start(other, &image, Seed([2; 32]))
                .map_err(|error| BenchError(error.to_string()))?;
            let progress = workload.cells.run(Run { cell: other, input, now_ns: 0 });
            let spent = nanoseconds(begun);
            workload.cells.remove(other);
            match progress {
                Progress::Done(ran) if ran.outcome != Outcome::Idle => {
                    Err(BenchError(format!("{:?}", ran.outcome)))
                }
                _ => Ok(spent),
            }
        })
        .collect()
}

/// Nanoseconds of a handler that writes one page, `repeats` times in blocks of a hundred.
///
/// # Errors
/// If the cell cannot be set up.
pub fn handlers(images: &Images, repeats: usize) -> Result<Vec<u64>, BenchError> {
    let mut workload = Workload::new(images, 1 << 20)?;
    (0..repeats)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..100 {
                workload.write(1)?;
            }
            Ok(nanoseconds(begun) / 100)
        })
        .collect()
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A guest that takes `| count 4 | stride 4 |` and fills that many pages with a stream that does not compress.
fn writer(wasm_pages: u32) -> Vec<u8> {
    use wasm_encoder::{
        CodeSection, ExportKind, ExportSection, Function, FunctionSection, MemorySection, MemoryType, Module,
        TypeSection, ValType,
    };
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([ValType::I32, ValType::I32, ValType::I32], []);
    let mut functions = FunctionSection::new();
    functions.function(0).function(1);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: wasm_pages.into(),
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0);
    exports.export("marram_alloc", ExportKind::Func, 0);
    exports.export("marram_recv", ExportKind::Func, 1);
    let mut alloc = Function::new([]);
    alloc.instructions().i32_const(16).end();
    let mut code = CodeSection::new();
    code.function(&alloc).function(&fill_pages());
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&memories).section(&exports).section(&code);
    module.finish()
}

/// `for page in 0..count { for word in page { x = xorshift(x); word = x } }`, with `x` kept at address 8.
fn fill_pages() -> wasm_encoder::Function {
    use wasm_encoder::{BlockType, Function, MemArg, ValType};
    let word = |offset| MemArg { offset, align: 2, memory_index: 0 };
    let long = |offset| MemArg { offset, align: 3, memory_index: 0 };
    // Parameters: 0 port, 1 ptr, 2 len. Locals: 3 pages left, 4 address, 5 end of page; 6 the stream.
    let mut function = Function::new([(3, ValType::I32), (1, ValType::I64)]);
    let mut code = function.instructions();
    code.i32_const(8).i64_load(long(0)).i64_const(0x1234_5678_9abc_def1).i64_or().local_set(6);
    code.local_get(1).i32_load(word(0)).local_set(3);
    code.i32_const(4096).local_set(4);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(3).i32_eqz().br_if(1);
    code.local_get(4).i32_const(4096).i32_add().local_set(5);
    code.loop_(BlockType::Empty);
    for (shift, left) in [(13, true), (7, false), (17, true)] {
        code.local_get(6).local_get(6).i64_const(shift);
        if left {
            code.i64_shl();
        } else {
            code.i64_shr_u();
        }
        code.i64_xor().local_set(6);
    }
    code.local_get(4).local_get(6).i64_store(long(0));
    code.local_get(4).i32_const(8).i32_add().local_tee(4).local_get(5).i32_lt_u().br_if(0);
    code.end();
    // On to the page that is `stride` pages after this one.
    code.local_get(5).local_get(1).i32_load(word(4)).i32_const(1).i32_sub().i32_const(4096).i32_mul();
    code.i32_add().local_set(4);
    code.local_get(3).i32_const(1).i32_sub().local_set(3);
    code.br(0).end().end();
    code.i32_const(8).local_get(6).i64_store(long(0));
    code.end();
    function
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_writes_the_pages_that_it_is_told_to() {
        let dir = std::env::temp_dir().join(format!("marram-bench-{}", std::process::id()));
        let images = Images::open(&dir).unwrap();
        let mut workload = Workload::new(&images, 1 << 20).unwrap();
        let (full, bytes) = workload.checkpoint(Base::Image).unwrap();
        assert_eq!(full.pages, 256);
        assert!(full.bytes > 255 * 4096, "{} bytes: it must not compress", full.bytes);
        workload.write(16).unwrap();
        let (delta, more) = workload.checkpoint(Base::Previous).unwrap();
        // The page that holds the message and the stream's state comes on top.
        assert_eq!(delta.pages, 17);
        workload.restore(&[bytes, more]).unwrap();
        assert_eq!(activations(&images, 3).unwrap().len(), 3);
        assert_eq!(handlers(&images, 3).unwrap().len(), 3);
        assert_eq!(checkpoint_pauses(&images, 1 << 20, 1, 3).unwrap().len(), 3);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
