//! Every maximum that the sandbox enforces, in one place. Changing one that a guest can observe changes what a replay
//! computes, so those are covered by [`DETERMINISM_VERSION`].

pub use marram_wire::limits::DETERMINISM_VERSION;

/// Bytes of a WebAssembly page.
pub const WASM_PAGE: usize = 65_536;
/// Bytes of the pages that are tracked, saved and restored.
pub const PAGE: usize = 4_096;

/// Bytes of one message in either direction: as many as fit a frame.
pub const MESSAGE_BYTES_MAX: usize = marram_wire::limits::MESSAGE_SIZE_MAX;
/// Messages and closes that one handler may send.
pub const OUTPUTS_PER_HANDLER_MAX: usize = 16_384;
/// Bytes that one handler may send.
pub const OUTPUT_BYTES_PER_HANDLER_MAX: usize = 64 << 20;
/// Changes that one handler may make to its timers.
pub const TIMER_CHANGES_PER_HANDLER_MAX: usize = 16_384;
/// Changes that one handler may make to its tasks and locks.
pub const TASK_CHANGES_PER_HANDLER_MAX: usize = 16_384;
/// Bytes that one call may draw from the generator.
pub const RANDOM_BYTES_MAX: usize = 65_536;
/// Keys that a stage's app may name.
pub const KEYS_MAX: usize = 8;
/// Servers that an app's cells may connect to.
pub const SERVERS_MAX: usize = 64;
/// Signatures that one handler may request: a TLS server needs one per connection.
pub const SIGNATURES_PER_HANDLER_MAX: usize = 8;
/// Bytes of the longest signature.
pub const SIGNATURE_BYTES_MAX: usize = 128;
/// Bytes of one printed text; the rest is cut off.
pub const PRINT_BYTES_MAX: usize = 8_192;
/// Bytes of the reason why a cell stopped. It contains function names of the guest, which may have any length.
pub const REASON_BYTES_MAX: usize = 480;
/// Texts that one handler may print; the rest is dropped.
pub const PRINTS_PER_HANDLER_MAX: usize = 256;
/// Ports that a cell can have at a time.
pub const PORTS_MAX: usize = 65_536;

/// Stages of a chain.
pub const STAGES_MAX: usize = 16;
/// Bytes of a stage's name.
pub const STAGE_NAME_BYTES_MAX: usize = 64;
/// Handlers that one input may run in all stages of a chain together. It stops stages that answer each other without end.
pub const HANDLERS_PER_INPUT_MAX: u32 = 65_536;
/// Bytes that may wait between the stages of a chain.
pub const BETWEEN_STAGES_BYTES_MAX: u64 = 128 << 20;
/// Message buffers that a chain keeps for later messages between its stages.
pub const BUFFERS_KEPT: usize = 4;
/// Largest capacity of a kept buffer, in bytes; see [`BUFFERS_KEPT`].
pub const BUFFER_BYTES_KEPT: usize = 16 << 10;
/// A cell keeps the capacity of its input queue up to this many inputs.
pub const WAITING_KEPT: usize = 64;

/// Cells that are started ahead of their clients for each image at first. The number grows to [`READY_MAX`] under load.
pub const READY_MIN: usize = 8;
/// See [`READY_MIN`].
pub const READY_MAX: usize = 512;
/// A process uses at most one slot in this many for cells that have no client yet.
pub const READY_SHARE: usize = 4;

/// A cell with at most this much memory is copied for a checkpoint at once: less than a millisecond.
pub const COPY_AT_ONCE_BYTES: usize = 4 << 20;
/// Bytes of a cell's memory that are copied for a checkpoint at a time: about a tenth of a millisecond.
pub const COPY_PIECE_BYTES: usize = 512 << 10;
/// Bytes of copies of large cells that a shard has at a time, until they are encoded. Beyond it cells that run are copied one after the other.
pub const COPIES_BYTES: usize = 256 << 20;

/// A cell keeps earlier versions of pages for its backup's checkpoints in this fraction of its memory.
pub const VERSIONS_MEMORY_PART: usize = 10;
/// Or in so many bytes, if that is more.
pub const VERSIONS_BYTES_MIN: usize = 64 << 10;
/// Bytes that all cells of a shard keep of earlier versions.
pub const VERSIONS_BYTES_MAX: usize = 64 << 20;

/// Bytes of ended cells that go back to the kernel at a time: a tenth of a millisecond if all were written.
pub const DEFERRED_FREE_PIECE_BYTES: usize = 1 << 20;
/// Or this fraction of all bytes that wait for it, if that is more.
pub const DEFERRED_FREE_PIECE_PART: usize = 64;
/// Bytes of ended cells that may wait for it. If there are more, the oldest cells are freed at once.
pub const DEFERRED_FREE_BYTES_MAX: usize = 512 << 20;

/// Bytes of a module at deployment.
pub const MODULE_BYTES_MAX: usize = 256 << 20;
/// Bytes of all files of an app together. Every shard holds them in memory.
pub const IMAGE_FILES_BYTES_MAX: usize = 64 << 20;
/// Image files that an app may bring.
pub const IMAGE_FILES_MAX: usize = 4_096;
/// Span of initialised memory, from the page of its first non-zero byte to the page of its last. The engine maps an image only
/// if it is dense; it would copy a larger one into every cell.
pub const IMAGE_SPAN_MAX: usize = 256 << 20;
/// Milliseconds that initialisation may run.
pub const INITIALISE_MS_MAX: u64 = 10_000;

/// Bytes of linear memory that a quota may grant: the largest 32-bit memory minus one page, so that every size fits 32 bits.
pub const MEMORY_MAX: u64 = (1 << 32) - WASM_PAGE as u64;
/// Bytes of scratch files that a quota may grant.
pub const SCRATCH_MAX: u64 = 1 << 32;
/// Bytes of native stack that a guest may use; exceeding it is a trap.
pub const WASM_STACK_BYTES: usize = 1 << 20;
/// Bytes of a cell's native stack: the guest's share, and the same amount again for the host calls on top of it.
pub const STACK_BYTES: usize = 2 << 20;
/// Mutable globals of a module.
pub const GLOBALS_MAX: usize = 10_000;
/// Elements of one table.
pub const TABLE_ELEMENTS_MAX: usize = 1 << 17;
/// Tables of one module.
pub const TABLES_MAX: u32 = 4;
/// Milliseconds between two points at which a handler can be preempted.
pub const SLICE_MS: u64 = 1;
/// Most nanoseconds that a handler's first slice is charged. A longer first slice means that the machine ran something else,
/// which must not kill the handler; or that one instruction worked on much memory, and then the CPU time of the following
/// slices is measured.
pub const SLICE_CHARGE_NS_MAX: u64 = 4 * SLICE_MS * 1_000_000;

/// Open file descriptors of a cell.
pub const DESCRIPTORS_MAX: usize = 256;
/// Highest inode number that a checkpoint may contain. No cell lives long enough to create as many, so counting on from it
/// never overflows.
pub const INODE_MAX: u64 = 1 << 48;
/// Most bytes that a checkpoint may say were drawn from the generator, for the same reason.
pub const GENERATOR_BYTES_MAX: u64 = 1 << 62;
/// Bytes of a file name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a path.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Bytes that one file operation moves at most.
pub const IO_BYTES_MAX: usize = 1 << 20;
/// Buffers that one file operation may name.
pub const IO_BUFFERS_MAX: u32 = 1_024;
/// Bytes that a file or directory counts against the scratch quota, in addition to its contents.
pub const NODE_BYTES: u64 = 1_024;

/// Deltas after the full checkpoint that one restore accepts.
pub const DELTAS_MAX: usize = 65_536;
/// Bytes of one encoded checkpoint.
pub const CHECKPOINT_BYTES_MAX: usize = 10 << 30;

const _: () = assert!(
    OUTPUT_BYTES_PER_HANDLER_MAX >= MESSAGE_BYTES_MAX,
    "a handler can answer the largest message with one as large"
);
const _: () = assert!(
    OUTPUTS_PER_HANDLER_MAX <= marram_wire::limits::OUTPUTS_MAX,
    "what a handler may send can be sent to the ends"
);
const _: () = assert!(
    BETWEEN_STAGES_BYTES_MAX
        >= OUTPUT_BYTES_PER_HANDLER_MAX as u64
            + OUTPUTS_PER_HANDLER_MAX as u64 * marram_wire::limits::charge(0),
    "a stage can pass on the most that a handler may send"
);
const _: () =
    assert!(STAGES_MAX <= u8::MAX as usize, "a stage's number is a byte wherever it is written down");
const _: () = assert!(STACK_BYTES >= 2 * WASM_STACK_BYTES, "host calls need room above the guest's stack");
const _: () = assert!(WASM_PAGE.is_multiple_of(PAGE), "memory grows by whole tracked pages");
const _: () = assert!(REASON_BYTES_MAX <= marram_wire::limits::TEXT_MAX, "a reason fits a frame");
const _: () = assert!(IO_BYTES_MAX <= u32::MAX as usize, "lengths that a guest receives fit its 32 bits");
