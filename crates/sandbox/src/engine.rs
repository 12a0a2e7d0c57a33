//! The engine's settings: one place, so that images compiled by one process run in every other.

use crate::limits::{IMAGE_SPAN_MAX, STACK_BYTES, WASM_STACK_BYTES};
use std::hash::{DefaultHasher, Hash, Hasher};
use wasmtime::{Config, Engine, OptLevel};

/// What a module may use. Everything else is nondeterministic (threads, relaxed SIMD) or cannot be saved yet.
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

/// Settings that decide generated code, the same for compiling and for running.
pub(crate) fn config(nan_canonicalization: bool) -> Config {
    let mut config = Config::new();
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.cranelift_nan_canonicalization(nan_canonicalization);
    config.wasm_relaxed_simd(false);
    config.wasm_multi_memory(false);
    config.wasm_memory64(false);
    config.wasm_wide_arithmetic(true);
    config.max_wasm_stack(WASM_STACK_BYTES);
    config.async_stack_size(STACK_BYTES);
    // Pages of the image are mapped copy-on-write, never copied: deployment refuses what is wider than this.
    config.memory_guaranteed_dense_image_size(IMAGE_SPAN_MAX as u64);
    // Bounds checks by address space: one size of slot holds every 32-bit memory.
    config.memory_reservation(1 << 32);
    config.memory_guard_size(32 << 20);
    config.memory_may_move(false);
    config
}

/// As [`config`], for code that a person steps through: with the module's debug information translated, and values kept where
/// it says that they are.
pub(crate) fn debugged(nan_canonicalization: bool) -> Config {
    let mut config = config(nan_canonicalization);
    config.debug_info(true);
    config.cranelift_opt_level(OptLevel::None);
    config
}

/// Names the engine version and settings that compiled code is good for. Code with another name is compiled anew,
/// never loaded.
pub(crate) fn compatibility(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}
