//! All tests, cheapest first: what `cargo xtask test` runs, and the end of CI.
//!
//! ```text
//! set-up, cells --> side workspaces (sdk, cells, mutants) --> the workspace
//!      --> simulation --> named mutations --> fuzz
//! ```
//! A test that cannot run on a machine, for want of a program or a right, says so in a file, and
//! the last line of the run counts these: a green run shows what it did not test. On a CI machine
//! such a test fails instead.

use std::{io::ErrorKind, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{
    c, cells, flaky, fuzz,
    options::Options,
    project, setup,
    shell::{run, say, step},
};

/// Tells tests the file in which they record that they could not run, one line each. In the
/// environment of every test program.
const SKIPPED: &str = "MARRAM_SKIPPED";

/// Makes the edges, agents and recorders of the tests check their invariants after each step, and panic on a bug.
pub(crate) const CHECK_INVARIANTS: &str = "MARRAM_CHECK_INVARIANTS";

/// For each fuzz target, if not said otherwise: it runs the committed inputs, and looks a little further.
const FUZZ_SECONDS: u64 = 2;

/// `cargo xtask test [--fuzz-seconds N]`: 0 leaves the fuzz targets out. Its last line counts the tests that could not run.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    forget_skipped()?;
    let result = run_all(arguments);
    say_skipped();
    result
}

/// Removes the results of an earlier run.
pub(crate) fn forget_skipped() -> Result<()> {
    for list in [skipped_file(), flaky::file()] {
        match std::fs::remove_file(list) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("cannot remove the list of skipped or flaky tests");
            }
            _ => {}
        }
    }
    Ok(())
}

/// The file in which tests record that they could not run.
fn skipped_file() -> PathBuf {
    project::target().join("skipped-tests")
}

/// Prints how many tests were skipped and how many were flaky, and which; nothing if no test ran.
///
/// The last line, because that is the one that is read.
pub(crate) fn say_skipped() {
    if let Ok(text) = std::fs::read_to_string(skipped_file()) {
        let flaky = std::fs::read_to_string(flaky::file()).unwrap_or_default();
        say(format!("{}; {}", summary("skipped", &text), summary("flaky", &flaky)));
    }
}

/// The summary of a list of tests.
fn summary(what: &str, list: &str) -> String {
    let mut tests: Vec<&str> = list.lines().collect();
    tests.sort_unstable();
    tests.dedup();
    match tests.len() {
        0 => format!("{what}: no test"),
        1 => format!("{what}: 1 test: {}", tests[0]),
        count => format!("{what}: {count} tests: {}", tests.join("; ")),
    }
}

/// Runs all tests.
///
/// # Errors
/// With the first step that fails; the tests of the workspace all run before that is decided.
pub(crate) fn run_all(arguments: &[String]) -> Result<()> {
    let mut options = Options::new(arguments);
    let fuzz_seconds = options.number("--fuzz-seconds")?.unwrap_or(FUZZ_SECONDS);
    options.finish()?;
    step("set-up", setup::for_tests)?;
    step("cells", cells::build)?;
    step("cells in C by zig", c::build_with_zig)?;
    std::fs::write(skipped_file(), "").context("cannot begin the list of skipped tests")?;
    for manifest in project::SIDE_MANIFESTS {
        step(&format!("tests of {manifest}"), || run(&mut side_tests(manifest)))?;
    }
    step("tests of the workspace", || {
        // All tests, even if one fails: a run takes long, and must report as much as possible.
        let mut tests = project::cargo("test");
        tests.args(project::WORKSPACE_FLAGS).arg("--no-fail-fast").env(SKIPPED, skipped_file());
        tests.env(project::TEST_THREADS, project::test_threads()).env(CHECK_INVARIANTS, "1");
        flaky::run(&mut tests)
    })?;
    // As the tests of the workspace built it: with other features it would be compiled again.
    step("simulation", || run(&mut project::built("marram-sim")))?;
    step("named mutations of the protocol", || run(project::built("marram-sim").arg("mutants")))?;
    if fuzz_seconds > 0 {
        step("fuzz", || fuzz::run_light(fuzz_seconds))?;
    }
    Ok(())
}

/// Natively, with the SDK's test context; without the optimisation that only the modules need.
fn side_tests(manifest: &str) -> Command {
    let mut command = project::side_cargo("test", manifest);
    command.args(["--release", "--workspace"]).env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    command.env(SKIPPED, skipped_file());
    command
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn the_last_line_counts_and_names_what_was_skipped() {
        assert_eq!(summary("skipped", ""), "skipped: no test");
        assert_eq!(summary("skipped", "a: no gdb\n"), "skipped: 1 test: a: no gdb");
        // A test that misses two things, and one that reports the same twice.
        let text = "b: no nginx\na: no gdb\nb: no nginx\n";
        assert_eq!(summary("skipped", text), "skipped: 2 tests: a: no gdb; b: no nginx");
    }
}
