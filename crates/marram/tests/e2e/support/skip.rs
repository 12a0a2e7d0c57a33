//! Skips a test that cannot run on this machine. In CI, which installs everything, it fails instead; elsewhere it is counted, and
//! the last line of `cargo xtask test` names it. Tests of other crates include this file.

use std::{fmt::Display, fs::File, io::Write};

/// Variable with the path of the file in which `cargo xtask test` collects skipped tests, one on each line.
const COLLECTED_IN: &str = "MARRAM_SKIPPED";

/// Reports that the calling test does not run here; the test then returns. `cargo xtask setup` installs what tests need.
///
/// # Panics
/// In CI (the variable `CI` is set), where every test must run.
pub(crate) fn skip(missing: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let is_ci = std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "false" | "0"));
    assert!(!is_ci, "{test} cannot run, and in CI every test must: {missing}");
    eprintln!("skipped: {missing}");
    if let Some(path) = std::env::var_os(COLLECTED_IN) {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        // One write for each line, since tests of many processes append at the same time.
        file.write_all(format!("{test}: {missing}\n").as_bytes()).unwrap();
    }
}
