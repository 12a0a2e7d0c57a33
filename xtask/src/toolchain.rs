//! A Rust compiler that can build Wasm: the one in use if rustup can add the targets, else Debian's, unpacked below
//! `target/` without installing anything.
//!
//! ```text
//! rustup can add the targets?  yes: Native        cargo build --target ...
//!                              no:  Debian's rustc, unpacked below target/toolchain, with this machine's rust-lld
//! ```
//! The second way needs a Debian machine and its mirror, no root and no rustup server. Cells built
//! by two compilers have other bytes and so other digests, but the same behaviour.

mod debian;
mod sources;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    project,
    shell::{capture, installed, run, say},
    wrapper,
};

/// The target of the cells.
pub(crate) const CELL_TARGET: &str = "wasm32-wasip1";

/// The target of the pure crates: it has no operating system.
pub(crate) const PURE_TARGET: &str = "wasm32-unknown-unknown";

/// If set to `rustup` or `debian`, only that way is used.
const CHOICE: &str = "MARRAM_WASM_TOOLCHAIN";

/// How to call cargo so that it can build Wasm. Passed to cargo by `apply`, so that callers do not
/// know which it is.
pub(crate) enum Toolchain {
    /// As for native builds.
    Native,
    /// With another compiler, and the native compiler's linker.
    Private { rustc: PathBuf, linker: PathBuf },
}

impl Toolchain {
    /// Finds a toolchain or installs one; announces an installation first.
    pub(crate) fn ensure() -> Result<Self> {
        let choice = std::env::var(CHOICE).ok();
        let rustup = match choice.as_deref() {
            Some("debian") => Err(anyhow::anyhow!("{CHOICE}=debian")),
            _ => native_targets(),
        };
        let Err(rustup_error) = rustup else { return Ok(Self::Native) };
        if choice.as_deref() == Some("rustup") {
            return Err(rustup_error);
        }
        Self::private().map_err(|debian_error| {
            anyhow::anyhow!(
                "no Rust compiler for {CELL_TARGET}.\nWith rustup: {rustup_error:#}\nFrom Debian's packages: \
                 {debian_error:#}\nRun `rustup target add {CELL_TARGET} {PURE_TARGET}` on a machine that can \
                 download, or use Debian."
            )
        })
    }

    /// Debian's compiler without a linker for Wasm of its own.
    fn private() -> Result<Self> {
        let linker = bundled_linker()?;
        let rustc = debian::ensure(&project::target().join("toolchain"))?;
        Ok(Self::Private { rustc, linker })
    }

    /// Makes a cargo command build for one of the targets with this toolchain. Artefacts of Wasm builds have a folder
    /// of their own, so that two compilers do not repeatedly discard each other's.
    ///
    /// # Errors
    /// If the path of this program is unknown.
    pub(crate) fn apply(&self, command: &mut Command, target: &str) -> Result<()> {
        command.args(["--target", target]).arg("--target-dir").arg(project::target().join("wasm"));
        // The same bytes from any checkout: the hash of a module determines its image.
        let remap = format!("--remap-path-prefix={}=marram", project::root().display());
        wrapper::add(command, Path::new("/"), &[remap])?;
        // The engine supports SIMD on every machine, with the same results on each.
        let mut flags = vec!["-Ctarget-feature=+simd128"];
        if let Self::Private { rustc, linker } = self {
            command.env("RUSTC", rustc);
            command.arg("--config").arg(format!("target.{target}.linker={:?}", linker.display().to_string()));
            flags.push("-Clinker-flavor=wasm-ld");
        }
        command.arg("--config").arg(format!("target.{target}.rustflags={flags:?}"));
        Ok(())
    }
}

/// Succeeds if the compiler in use has both targets; adds them if necessary.
fn native_targets() -> Result<()> {
    let missing: Vec<_> =
        [CELL_TARGET, PURE_TARGET].into_iter().filter(|target| !has_target(target)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !installed("rustup") {
        bail!("the Rust compiler in use lacks {} and there is no rustup to add it", missing.join(", "));
    }
    let words = missing.join(" ");
    say(format!("installing the Rust standard library for {words}: rustup target add {words}"));
    run(Command::new("rustup").args(["target", "add"]).args(&missing).current_dir(project::root()))?;
    // rustup can report success for another toolchain than the one that cargo runs.
    match missing.iter().find(|target| !has_target(target)) {
        Some(target) => bail!("rustup added {target} to a toolchain that is not in use"),
        None => Ok(()),
    }
}

/// A target that is not installed has a path, but no folder there.
fn has_target(target: &str) -> bool {
    let folder = capture(Command::new("rustc").args(["--print", "target-libdir", "--target", target]));
    folder.is_ok_and(|folder| PathBuf::from(folder.trim_end()).is_dir())
}

/// The `rust-lld` that ships with the compiler in use.
///
/// # Errors
/// If the toolchain has none, as those of distributions.
fn bundled_linker() -> Result<PathBuf> {
    let ask = |what: &[&str]| capture(Command::new("rustc").args(what)).context("asking the Rust compiler");
    let host = ask(&["-vV"])?;
    let host =
        host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let linker = PathBuf::from(ask(&["--print", "sysroot"])?.trim_end())
        .join("lib/rustlib")
        .join(host)
        .join("bin/rust-lld");
    if !linker.is_file() {
        bail!("the Rust toolchain in use has no {}; one from rustup has", linker.display());
    }
    Ok(linker)
}
