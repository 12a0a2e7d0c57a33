//! WASI preview 1, deterministic.

/// Every function of WASI preview 1.
pub(crate) const FUNCTIONS: &[&str] = &[];
