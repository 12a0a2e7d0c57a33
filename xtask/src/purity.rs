//! Proves that the protocol crates do no I/O: they build for a target that has no operating system.
//! That also keeps a client's end inside a web page possible.
//!
//! `wasm32-unknown-unknown` has a standard library whose clocks, files and threads only panic. The
//! crates are `#![no_std]`, so they cannot even name them; the build for this target also proves it
//! for their dependencies.

use anyhow::Result;

use crate::{
    project,
    shell::run,
    toolchain::{PURE_TARGET, Toolchain},
};

/// The crates that make all decisions and do no I/O.
pub(crate) const PURE_CRATES: [&str; 3] = ["marram-wire", "marram-session", "marram-shard"];

/// Builds them for Wasm.
pub(crate) fn check() -> Result<()> {
    let toolchain = Toolchain::ensure()?;
    let mut command = project::cargo("check");
    command.args(["--release", "--locked", "--lib"]);
    PURE_CRATES.iter().for_each(|name| _ = command.args(["--package", name]));
    toolchain.apply(&mut command, PURE_TARGET)?;
    run(&mut command)
}
