//! Tests of real processes that fail on a busy machine and pass alone right after. CI prints them as FLAKY, with their log, and does
//! not fail for one or two of them; `cargo xtask soak suite` fails for each.
//!
//! ```text
//! cargo test --fails--> failures(text): which, and is the report complete?
//!    more than FLAKY_MAX, a crash, or a test without processes --> failed
//!    else each alone: passes --> FLAKY, counted in the last line;  fails --> failed
//! ```
//! A pure test that fails once is a bug at once: it has no excuse of time. Tests of real processes
//! share two cores with others; one that fails there and passes alone is reported, so that it can
//! be made robust, without stopping every change.

use std::{
    io::{BufRead, BufReader, Write, pipe, stdout},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{project, shell::say};

/// More than so many are no accident.
const FLAKY_MAX: usize = 2;
/// How long the output of a program that has ended is waited for: processes that it left behind may hold the pipe for ever.
const OUTPUT_AFTER_END: Duration = Duration::from_secs(1);

/// A test program of which tests failed. Read from what cargo prints: there is no stable format for
/// machines.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Failed {
    /// As cargo names it, such as `-p marram --test e2e`.
    target: String,
    /// With their modules, such as `sessions::exec::redis_cli_keeps_its_connection_when_an_edge_dies`.
    tests: Vec<String>,
    /// Whether the program ran to its end and named every test that failed.
    is_complete: bool,
}

/// `None` for tests of a library, which must never be run twice to pass.
impl Failed {
    /// The name of the program if its tests start real processes.
    fn process_test(&self) -> Option<&str> {
        self.target.strip_prefix("-p marram --test ")
    }
}

/// Where the names of flaky tests are kept for the last line. One line per test; `suite` removes it
/// at the start of a run.
pub(crate) fn file() -> PathBuf {
    project::target().join("flaky-tests")
}

/// Runs tests, and alone those that failed.
///
/// # Errors
/// With the names of the tests, if any failed for good.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let (passed, text) = tee(command)?;
    if passed {
        return Ok(());
    }
    let failed = failures(&text);
    let count: usize = failed.iter().map(|it| it.tests.len()).sum();
    let may_be_flaky = |it: &Failed| it.is_complete && it.process_test().is_some();
    if failed.is_empty() || count > FLAKY_MAX || !failed.iter().all(may_be_flaky) {
        let names: Vec<String> =
            failed.iter().map(|it| format!("{}: {}", it.target, it.tests.join(", "))).collect();
        bail!("tests failed: {}", names.join("; "));
    }
    for (program, test) in
        failed.iter().flat_map(|it| it.tests.iter().map(|test| (it.process_test().unwrap_or_default(), test)))
    {
        say(format!("{test} failed; once more, alone"));
        let mut again = project::cargo("test");
        let (passed, alone) =
            tee(again.args(project::WORKSPACE_FLAGS).args(["--test", program, "--", "--exact", test]))?;
        if !passed || !alone.lines().any(|line| line == format!("test {test} ... ok")) {
            bail!("{test} failed again, alone");
        }
        say(format!("FLAKY: {program}: {test}\n{}", log_of(&text, test)));
        let mut all = std::fs::read_to_string(file()).unwrap_or_default();
        all.push_str(&format!("{test}\n"));
        std::fs::write(file(), all).context("cannot write the list of flaky tests")?;
    }
    Ok(())
}

/// Runs a program, shows what it says, and returns that, whether it succeeded first.
///
/// Both streams go into one pipe, so that the order of lines is as on a terminal. A thread reads
/// it, because a process that a test left behind can hold the pipe open after cargo has ended.
fn tee(command: &mut Command) -> Result<(bool, String)> {
    let (reader, writer) = pipe()?;
    let errors = writer.try_clone()?;
    let mut child = command.stdout(writer).stderr(errors).spawn().context("cannot start cargo")?;
    // The command holds the other ends of the pipe.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (lines, came) = channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            if lines.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    let (mut text, mut ended) = (String::new(), None);
    loop {
        match came.recv_timeout(OUTPUT_AFTER_END) {
            Ok(line) => {
                stdout().write_all(&line)?;
                text.push_str(&String::from_utf8_lossy(&line));
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if ended.is_some() => break,
            Err(RecvTimeoutError::Timeout) => ended = child.try_wait()?,
        }
    }
    let status = match ended {
        Some(status) => status,
        None => child.wait()?,
    };
    Ok((status.success(), text))
}

/// What failed, by the words of cargo and of the test programs. A target is complete if its summary counts as many failed tests as
/// were named; one that crashed has no summary.
///
/// The words are those of cargo and of libtest; if they change, the tests of this file fail and
/// nothing is ever called flaky.
fn failures(text: &str) -> Vec<Failed> {
    let (mut tests, mut counted, mut failed) = (Vec::new(), None, Vec::new());
    // In what failed tests said, which may be the output of another cargo.
    let mut is_quoted = false;
    for line in text.lines() {
        is_quoted = (is_quoted || line == "failures:") && !line.starts_with("test result: FAILED. ");
        let rerun = line.strip_prefix("error: test failed, to rerun pass `");
        if is_quoted {
            continue;
        }
        if line.trim_start().starts_with("Running ") || line.trim_start().starts_with("Doc-tests ") {
            (tests, counted) = (Vec::new(), None);
        } else if let Some(test) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            tests.push(test.to_owned());
        } else if let Some(summary) = line.strip_prefix("test result: FAILED. ") {
            let words = summary.split(' ').skip_while(|word| *word != "passed;").nth(1);
            counted = words.and_then(|count| count.parse::<usize>().ok());
        } else if let Some(target) = rerun.and_then(|rest| rest.split('`').next()) {
            let is_complete = counted == Some(tests.len()) && !tests.is_empty();
            failed.push(Failed { target: target.to_owned(), tests: std::mem::take(&mut tests), is_complete });
        }
    }
    failed
}

/// What a test said before it failed. From its heading to the next one; empty if the program
/// printed none.
fn log_of<'a>(text: &'a str, test: &str) -> &'a str {
    let head = format!("---- {test} stdout ----");
    let log = text.split_once(&head).map_or("", |(_, rest)| rest);
    let end = ["\n---- ", "\nfailures:\n"].iter().filter_map(|end| log.find(end)).min();
    log[..end.unwrap_or(log.len())].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "     Running unittests src/lib.rs (target/debug/deps/marram-1)\n\
        test a::b ... ok\n\
        test a::c ... FAILED\n\
        \n\
        failures:\n\
        \n\
        ---- a::c stdout ----\n\
        it broke\n\
        here\n\
        \n\
        failures:\n\
        \x20   a::c\n\
        \n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
        \n\
        error: test failed, to rerun pass `-p marram --lib`\n\
        \x20    Running tests/e2e/main.rs (target/debug/deps/e2e-1)\n\
        test cli::config::one ... ok\n\
        test sessions::exec::one has been running for over 60 seconds\n\
        test sessions::exec::one ... FAILED\n\
        \n\
        failures:\n\
        \n\
        ---- sessions::exec::one stdout ----\n\
        too late\n\
        \x20   test sessions::exec::one ... FAILED\n\
        \x20    Running unittests src/lib.rs (target/debug/deps/tally-1)\n\
        test tests::of_the_other ... ok\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
        \x20  Doc-tests tally\n\
        \n\
        failures:\n\
        \x20   sessions::exec::one\n\
        \n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
        \n\
        error: test failed, to rerun pass `-p marram --test e2e`\n\
        \x20    Running tests/edge/main.rs (target/debug/deps/edge-1)\n\
        test shared::two ... FAILED\n\
        error: test failed, to rerun pass `-p marram-shard --test edge`\n\
        \n\
        Caused by:\n\
        \x20 process didn't exit successfully: `edge-1` (signal: 9, SIGKILL: kill)\n";

    #[test]
    fn failed_tests_are_found_with_their_programs_and_logs() {
        let found = failures(TEXT);
        let names: Vec<_> =
            found.iter().map(|it| (&it.target[..], it.tests.join(" "), it.is_complete)).collect();
        let expected = [
            ("-p marram --lib", "a::c".to_owned(), true),
            ("-p marram --test e2e", "sessions::exec::one".to_owned(), true),
            ("-p marram-shard --test edge", "shared::two".to_owned(), false),
        ];
        assert_eq!(names, expected);
        assert_eq!(log_of(TEXT, "a::c"), "it broke\nhere");
        let log = log_of(TEXT, "sessions::exec::one");
        assert!(log.starts_with("too late\n    test sessions::exec::one ... FAILED\n"), "{log}");
        assert!(log.ends_with("Doc-tests tally"), "{log}");
        assert_eq!(log_of(TEXT, "one"), "", "a test has its whole path");
    }

    #[test]
    fn only_tests_of_real_processes_may_be_flaky() {
        let found = failures(TEXT);
        let programs: Vec<_> = found.iter().map(Failed::process_test).collect();
        assert_eq!(programs, [None, Some("e2e"), None]);
    }

    #[test]
    fn what_a_program_says_is_returned_with_whether_it_succeeded() {
        let (passed, text) = tee(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap();
        assert_eq!((passed, &text[..]), (false, "out\nerr\n"));
        assert!(tee(&mut Command::new("true")).unwrap().0);
    }

    #[test]
    fn a_process_that_is_left_behind_holds_nothing_up() {
        let mut command = Command::new("sh");
        let (passed, text) = tee(command.args(["-c", "sleep 600 & echo $!"])).unwrap();
        assert!(passed);
        assert!(Command::new("kill").arg(text.trim()).status().unwrap().success(), "it still runs");
    }
}
