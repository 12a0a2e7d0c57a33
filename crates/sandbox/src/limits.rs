//! Every maximum that the sandbox enforces, in one place. Changing one that a guest can observe changes what a replay
//! computes, so those are covered by [`DETERMINISM_VERSION`].

pub use marram_wire::limits::DETERMINISM_VERSION;

/// Bytes of a WebAssembly page.
pub const WASM_PAGE: usize = 65_536;
/// Bytes of the pages that are tracked, saved and restored.
pub const PAGE: usize = 4_096;

/// Bytes of one message, either way: what fits a frame.
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
/// Signatures that one handler may have made: a TLS server needs one a connection.
pub const SIGNATURES_PER_HANDLER_MAX: usize = 8;
/// Bytes of the longest signature.
pub const SIGNATURE_BYTES_MAX: usize = 128;
/// Bytes of one printed text; the rest is cut off.
pub const PRINT_BYTES_MAX: usize = 8_192;
/// Bytes of the reason for which a cell stopped: function names are the guest's, and may be of any length.
pub const REASON_BYTES_MAX: usize = 480;
/// Texts that one handler may print; the rest is dropped.
pub const PRINTS_PER_HANDLER_MAX: usize = 256;
/// Ports that a cell can have at a time.
pub const PORTS_MAX: usize = 65_536;

/// Stages of a chain.
pub const STAGES_MAX: usize = 16;
/// Bytes of a stage's name.
pub const STAGE_NAME_BYTES_MAX: usize = 64;
/// Handlers that one input may run in all stages of a chain together: stages that answer each other without end.
pub const HANDLERS_PER_INPUT_MAX: u32 = 65_536;
/// Bytes that may wait between the stages of a chain.
pub const BETWEEN_STAGES_BYTES_MAX: u64 = 128 << 20;
/// Buffers that a chain keeps from one message between its stages to the next, and bytes of each at most.
pub const BUFFERS_KEPT: usize = 4;
/// See [`BUFFERS_KEPT`].
pub const BUFFER_BYTES_KEPT: usize = 16 << 10;
/// Inputs that may have waited at a time in a cell that keeps the room for them.
pub const WAITING_KEPT: usize = 64;

/// Cells that are started ahead of their clients for each image at first, and at most when clients come in numbers.
pub const READY_MIN: usize = 8;
/// See [`READY_MIN`].
pub const READY_MAX: usize = 512;
/// One slot in so many may hold a cell that is nobody's yet.
pub const READY_SHARE: usize = 4;

/// Bytes of cells that have ended that go back to the kernel at a time: a tenth of a millisecond, if all were written.
pub const DEFERRED_FREE_PIECE_BYTES: usize = 1 << 20;
/// Or this part of all that wait for it, if that is more.
pub const DEFERRED_FREE_PIECE_PART: usize = 64;
/// Bytes of cells that have ended that wait for it. If there are more, the oldest go at once.
pub const DEFERRED_FREE_BYTES_MAX: usize = 512 << 20;

/// Bytes of a module at deployment.
pub const MODULE_BYTES_MAX: usize = 256 << 20;
/// Bytes of an app's files together. Every shard holds them in memory.
pub const IMAGE_FILES_BYTES_MAX: usize = 64 << 20;
/// Image files that an app may bring.
pub const IMAGE_FILES_MAX: usize = 4_096;
/// Span of initialised memory, from its first to its last non-zero byte's page. The engine maps an image only if it is
/// dense; a larger one would be copied into every cell.
pub const IMAGE_SPAN_MAX: usize = 256 << 20;
/// Milliseconds that initialisation may run.
pub const INITIALISE_MS_MAX: u64 = 10_000;

/// Bytes of linear memory that a quota may grant: the largest 32-bit memory but one page, so that every size fits.
pub const MEMORY_MAX: u64 = (1 << 32) - WASM_PAGE as u64;
/// Bytes of scratch files that a quota may grant.
pub const SCRATCH_MAX: u64 = 1 << 32;
/// Bytes of native stack that a guest may use; exceeding it is a trap.
pub const WASM_STACK_BYTES: usize = 1 << 20;
/// Bytes of a cell's native stack: the guest's share, and as much again for the host calls on top of it.
pub const STACK_BYTES: usize = 2 << 20;
/// Mutable globals of a module.
pub const GLOBALS_MAX: usize = 10_000;
/// Elements of one table.
pub const TABLE_ELEMENTS_MAX: usize = 1 << 17;
/// Tables of one module.
pub const TABLES_MAX: u32 = 4;
/// Milliseconds between two chances to preempt a handler.
pub const SLICE_MS: u64 = 1;
/// Nanoseconds that a handler's first slice costs it at most. One that took longer did so because the machine ran something
/// else, and no handler is killed for that; or within one instruction on much memory, and then it is the slices that follow
/// whose computing is measured.
pub const SLICE_CHARGE_NS_MAX: u64 = 4 * SLICE_MS * 1_000_000;

/// Open file descriptors of a cell.
pub const DESCRIPTORS_MAX: usize = 256;
/// Numbers of files and directories that a checkpoint may have come to. No cell lives long enough to make as many, so
/// counting on from there never overflows.
pub const INODE_MAX: u64 = 1 << 48;
/// Bytes that a checkpoint's generator may have given, for the same reason.
pub const GENERATOR_BYTES_MAX: u64 = 1 << 62;
/// Bytes of a file name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a path.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Bytes that one file operation moves at most.
pub const IO_BYTES_MAX: usize = 1 << 20;
/// Buffers that one file operation may name.
pub const IO_BUFFERS_MAX: u32 = 1_024;
/// Bytes that a file or directory counts against the scratch quota, contents apart.
pub const NODE_BYTES: u64 = 1_024;

/// Deltas that one restore may be given after the full checkpoint.
pub const DELTAS_MAX: usize = 65_536;
/// Bytes of one encoded checkpoint.
pub const CHECKPOINT_BYTES_MAX: usize = 10 << 30;

const _: () = assert!(
    OUTPUT_BYTES_PER_HANDLER_MAX >= MESSAGE_BYTES_MAX,
    "a handler can answer the largest message with one as large"
);
const _: () = assert!(
    OUTPUTS_PER_HANDLER_MAX <= marram_wire::limits::OUTPUTS_MAX,
    "what a handler may send can be told to the ends"
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
const _: () = assert!(IO_BYTES_MAX <= u32::MAX as usize, "lengths that a guest is told fit its 32 bits");
