//! The engine's settings, in one place, so that every process can run images that another process compiled.
//!
//! The image of an app is compiled by the supervisor and mapped by shards. Both make their engines
//! here, so that the engine's own compatibility check accepts the code. NaN canonicalization is a
//! setting of each app (`Quotas::nan_canonicalization`) and no part of that check, so one engine
//! runs both kinds.
//!
//! Determinism is decided here as far as the engine is concerned. Threads, relaxed SIMD and growth
//! that depends on the machine are off; epochs only yield or kill, so their timing cannot be
//! observed; a stack overflow is a trap that ends the cell, since its depth depends on the
//! processor. What remains observable, time and randomness, comes through `host`.

use crate::limits::{IMAGE_SPAN_MAX, STACK_BYTES, WASM_STACK_BYTES};
use std::hash::{DefaultHasher, Hash, Hasher};
use wasmtime::{Config, Engine, OptLevel};

/// The WebAssembly features that a module may use. All others are nondeterministic (threads, relaxed SIMD) or cannot be saved
/// yet.
/// Checked by the validator at deployment, not by the engine alone: an engine of a later version
/// may accept more by default, and the set of accepted modules must not depend on the edge.
pub(crate) fn features() -> wasmparser::WasmFeatures {
    use wasmparser::WasmFeatures as F;
    F::MUTABLE_GLOBAL
        | F::SATURATING_FLOAT_TO_INT
        | F::SIGN_EXTENSION
        | F::REFERENCE_TYPES
        | F::MULTI_VALUE
        | F::BULK_MEMORY
        | F::SIMD
        | F::TAIL_CALL
        | F::FLOATS
        | F::EXTENDED_CONST
        | F::WIDE_ARITHMETIC
}

/// Settings that determine the generated code; the same for compiling and for running.
pub(crate) fn config(nan_canonicalization: bool) -> Config {
    let mut config = Config::new();
    // The component model's asynchronous functions are not used. `call_async` on a core function
    // works without them.
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.cranelift_nan_canonicalization(nan_canonicalization);
    config.wasm_relaxed_simd(false);
    config.wasm_multi_memory(false);
    config.wasm_memory64(false);
    config.wasm_wide_arithmetic(true);
    config.max_wasm_stack(WASM_STACK_BYTES);
    config.async_stack_size(STACK_BYTES);
    // Pages of the image are mapped copy-on-write, never copied: deployment refuses an image with a wider span.
    config.memory_guaranteed_dense_image_size(IMAGE_SPAN_MAX as u64);
    // The address space does the bounds checks: one slot size fits every 32-bit memory.
    config.memory_reservation(1 << 32);
    // A load or store with a 32-bit offset reaches at most 4 GiB behind the base, plus a constant
    // offset in the instruction. Larger constants than the guard get an explicit check.
    config.memory_guard_size(32 << 20);
    // A memory that moves would leave the range that dirty tracking registered.
    config.memory_may_move(false);
    config
}

/// As [`config`], for code that a person steps through: the module's debug information is translated, and values stay where it
/// says they are.
pub(crate) fn debugged(nan_canonicalization: bool) -> Config {
    let mut config = config(nan_canonicalization);
    config.debug_info(true);
    // Optimisation would remove variables that the debug information names.
    config.cranelift_opt_level(OptLevel::None);
    config
}

/// Identifies the engine version and settings that compiled code works with. Code with another identifier is compiled
/// again, never loaded.
/// The value is only compared on one machine, with files that this machine wrote, so it need not be
/// stable between releases of Rust's standard hasher: another value costs one compilation.
pub(crate) fn compatibility(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}
