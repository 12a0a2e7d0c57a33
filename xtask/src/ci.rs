//! The checks before any change lands, cheapest first. Ends with the same tests that the README names.
//!
//! There is no other list of checks: a CI machine runs `cargo xtask ci` and nothing else. The order
//! is by cost, so that a missing space is found in seconds and not after the build of the engine.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    cells, deny,
    options::Options,
    project, purity, setup,
    shell::{run, step},
    suite, tidy,
};

/// A step: its name, and what it does. A plain function each, so that the list can be read as the
/// order.
type Step = (&'static str, fn() -> Result<()>);

/// All steps, in order.
const STEPS: [Step; 9] = [
    ("set-up for building", set_up),
    ("format", format),
    ("tidy", tidy::check),
    ("deny", deny::check),
    ("cells", cells::build),
    ("purity", purity::check),
    ("clippy", clippy),
    ("docs", docs),
    ("test", || suite::run_all(&[])),
];

/// `cargo xtask ci [--keep-going]`: stops at the first step that fails, or continues and lists the failed steps at the end.
pub(crate) fn all(arguments: &[String]) -> Result<()> {
    let mut options = Options::new(arguments);
    let keep_going = options.flag("--keep-going");
    options.finish()?;
    suite::forget_skipped()?;
    let result = steps(keep_going);
    suite::say_skipped();
    result
}

/// With `keep_going` every step runs, whatever failed before; the later ones may fail because of
/// the earlier.
fn steps(keep_going: bool) -> Result<()> {
    let mut failed = Vec::new();
    for (name, action) in STEPS {
        match step(name, action) {
            Ok(()) => {}
            Err(error) if keep_going => {
                println!("{error:#}");
                failed.push(name);
            }
            Err(error) => return Err(error),
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// On a CI machine, installs everything in one call of the package manager.
///
/// A developer's machine gets packages only when a step needs them.
fn set_up() -> Result<()> {
    if setup::is_ci() {
        setup::for_tests()?;
    }
    setup::ensure(setup::BUILD)?;
    setup::ensure_components()
}

/// Every workspace, as rustfmt.toml says.
fn format() -> Result<()> {
    let check = |manifest| run(project::cargo("fmt").args(["--manifest-path", manifest, "--all", "--check"]));
    project::manifests().into_iter().try_for_each(check)
}

/// All targets with all lints denied, in the flags that the tests use, so that dependencies are
/// compiled once.
fn clippy() -> Result<()> {
    const DENY: [&str; 3] = ["--", "-D", "warnings"];
    run(project::cargo("clippy").args(project::WORKSPACE_FLAGS).arg("--all-targets").args(DENY))?;
    let side = |manifest| {
        run(project::side_cargo("clippy", manifest)
            .args(["--release", "--workspace", "--all-targets"])
            .args(DENY))
    };
    project::SIDE_MANIFESTS.into_iter().try_for_each(side)?;
    // All fuzz targets, also those that link the engine, which the short run of the fuzzer leaves out. In the same folder as above, most of
    // their dependencies are checked already. Not `--locked`, as in `fuzz.rs`.
    let mut fuzz = project::cargo("clippy");
    fuzz.args(["--manifest-path", project::FUZZ_MANIFEST, "--features", "engine", "--bins"]);
    run(fuzz.arg("--target-dir").arg(project::target()).args(DENY))
}

/// Documentation with its warnings denied: broken links, mostly.
fn docs() -> Result<()> {
    let deny = |command: &mut Command| run(command.env("RUSTDOCFLAGS", "-D warnings"));
    deny(project::cargo("doc").args(project::WORKSPACE_FLAGS).arg("--no-deps"))?;
    let side =
        |manifest| deny(project::side_cargo("doc", manifest).args(["--release", "--workspace", "--no-deps"]));
    project::SIDE_MANIFESTS.into_iter().try_for_each(side)
}
