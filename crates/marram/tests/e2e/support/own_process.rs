//! Runs a test in a process of its own: for what belongs to a whole process, such as its panic hook or its memory. Tests of other
//! crates include this file.

use std::{env, process::Command, thread};

/// Variable with the name of the test that this process was started for.
const STARTED_FOR: &str = "MARRAM_TEST_IN_ITS_OWN_PROCESS";

/// Whether this process was started for one test.
#[allow(dead_code, reason = "each test program uses what it needs")]
pub(crate) fn is_child() -> bool {
    env::var_os(STARTED_FOR).is_some()
}

/// Whether this process runs the calling test and no other. If not, such a process is started, in which the test must succeed;
/// the caller then returns.
///
/// # Panics
/// If the test fails there.
pub(crate) fn entered() -> bool {
    let thread = thread::current();
    let test = thread.name().expect("the thread of a test has its name");
    if env::var(STARTED_FOR).is_ok_and(|name| name == test) {
        return true;
    }
    let mut command = Command::new(env::current_exe().expect("a running program has a path"));
    let output = command.args(["--exact", test, "--nocapture"]).env(STARTED_FOR, test).output();
    let output = output.expect("this program can be started again");
    let said = [output.stdout, output.stderr].concat();
    // Indented, so that its results are not taken for those of this process.
    let said = format!("    {}", String::from_utf8_lossy(&said).trim_end().replace('\n', "\n    "));
    assert!(output.status.success() && said.contains("test result: ok. 1 passed"), "{test}:\n{said}");
    println!("{said}");
    false
}
