//! Compiles the shared object that `marram exec` has programs load, so that the one binary brings it along.
//!
//! `rustc` is called directly and not cargo: the object must not link Rust's standard library or
//! the C library, in any profile of the workspace, and a build script cannot ask cargo for
//! another crate type of a dependency.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"));
    let source = Path::new("../preload/src");
    for entry in fs::read_dir(source).expect("the sources of marram-preload lie beside").flatten() {
        println!("cargo::rerun-if-changed={}", entry.path().display());
    }
    println!("cargo::rerun-if-changed={}", source.display());

    let object = PathBuf::from(variable("OUT_DIR")).join("marram_preload.so");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-name", "marram_preload", "--crate-type", "cdylib"]);
    // For the target and not for this machine: the object runs where the binary runs.
    rustc.args(["--cfg", "marram_preload", "--target", &variable("TARGET")]);
    // No library is named: it takes its functions from the C library that the program has, whichever that is.
    rustc.args(["-C", "opt-level=2", "-C", "panic=abort", "-C", "strip=symbols", "-C", "link-arg=-nostdlib"]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    // The same flags as the rest, such as those for reproducible builds; cargo separates them by
    // this character.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.arg(source.join("lib.rs")).arg("-o").arg(&object);
    let status = rustc.status().expect("the compiler that cargo names starts");
    assert!(status.success(), "the shared object of marram-preload does not compile: {rustc:?}");
}
