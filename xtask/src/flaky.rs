//! Tests of real processes that fail on a busy machine and pass alone right after. CI prints them as FLAKY, with their log, and does
//! not fail for one or two of them; `cargo xtask soak suite` fails for each.

use std::{
    io::{BufRead, BufReader, Write, pipe, stdout},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{project, shell::say};

/// More than so many are no accident.
const FLAKY_MAX: usize = 2;
/// Where the tests of real processes are.
const PROCESS_TESTS: &str = "crates/marram/tests";

/// A test that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Failure {
    /// Its program, as cargo names it: `tests/NAME.rs`, or `unittests src/lib.rs`.
    program: String,
    test: String,
}

impl Failure {
    /// The name of the program if it starts real processes.
    fn process_test(&self) -> Option<&str> {
        let name = self.program.strip_prefix("tests/")?.split(['.', '/']).next()?;
        let folder = project::root().join(PROCESS_TESTS);
        let is_there = folder.join(format!("{name}.rs")).is_file() || folder.join(name).is_dir();
        is_there.then_some(name)
    }
}

/// Where the names of flaky tests are kept for the last line.
pub(crate) fn file() -> PathBuf {
    project::target().join("flaky-tests")
}

/// Runs tests, and alone those that failed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let (passed, text) = tee(command)?;
    if passed {
        return Ok(());
    }
    let failures = failures(&text);
    let alone: Vec<&str> = failures.iter().filter_map(Failure::process_test).collect();
    if failures.is_empty() || alone.len() < failures.len() || failures.len() > FLAKY_MAX {
        let names: Vec<&str> = failures.iter().map(|failure| &failure.test[..]).collect();
        bail!("{} tests failed: {}", names.len(), names.join(", "));
    }
    for (failure, name) in failures.iter().zip(alone) {
        say(format!("{} failed; once more, alone", failure.test));
        let flags = ["--release", "--locked", "--workspace", "--features", "marram-sim/wasm", "--test", name];
        let mut again = project::cargo("test");
        let (passed, _) = tee(again.args(flags).args(["--", "--exact", &failure.test]))?;
        if !passed {
            bail!("{} failed again, alone", failure.test);
        }
        say(format!("FLAKY: {}: {}\n{}", failure.program, failure.test, log_of(&text, &failure.test)));
        let mut all = std::fs::read_to_string(file()).unwrap_or_default();
        all.push_str(&format!("{}\n", failure.test));
        std::fs::write(file(), all).context("cannot write the list of flaky tests")?;
    }
    Ok(())
}

/// Runs a program, shows what it says, and returns that, whether it succeeded first.
fn tee(command: &mut Command) -> Result<(bool, String)> {
    let (reader, writer) = pipe()?;
    let errors = writer.try_clone()?;
    let mut child = command.stdout(writer).stderr(errors).spawn().context("cannot start cargo")?;
    // The command holds the other ends of the pipe.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut text = String::new();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        stdout().write_all(&line)?;
        text.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok((child.wait()?.success(), text))
}

/// What failed, by the words of cargo and of the test programs.
fn failures(text: &str) -> Vec<Failure> {
    let (mut program, mut failures) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("Running ") {
            rest.split(" (").next().unwrap_or_default().clone_into(&mut program);
        } else if let Some(test) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            failures.push(Failure { program: program.clone(), test: test.to_owned() });
        }
    }
    failures
}

/// What a test said before it failed.
fn log_of<'a>(text: &'a str, test: &str) -> &'a str {
    let head = format!("---- {test} stdout ----");
    let log = text.split_once(&head).map_or("", |(_, rest)| rest);
    let end = ["\n---- ", "\nfailures:\n"].iter().filter_map(|end| log.find(end)).min();
    log[..end.unwrap_or(log.len())].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "     Running unittests src/lib.rs (target/release/deps/marram-1)\n\
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
        \x20    Running tests/exec.rs (target/release/deps/exec-1)\n\
        test one ... FAILED\n";

    #[test]
    fn failed_tests_are_found_with_their_programs_and_logs() {
        let found = failures(TEXT);
        let names: Vec<_> = found.iter().map(|it| (&it.program[..], &it.test[..])).collect();
        assert_eq!(names, [("unittests src/lib.rs", "a::c"), ("tests/exec.rs", "one")]);
        assert_eq!(log_of(TEXT, "a::c"), "it broke\nhere");
        assert_eq!(log_of(TEXT, "one"), "");
    }

    #[test]
    fn only_tests_of_real_processes_may_be_flaky() {
        let found = failures(TEXT);
        assert_eq!(found[0].process_test(), None);
        assert_eq!(found[1].process_test(), Some("exec"));
        let gone = Failure { program: "tests/gone.rs".into(), test: "a".into() };
        assert_eq!(gone.process_test(), None);
    }

    #[test]
    fn what_a_program_says_is_returned_with_whether_it_succeeded() {
        let (passed, text) = tee(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap();
        assert_eq!((passed, &text[..]), (false, "out\nerr\n"));
        assert!(tee(&mut Command::new("true")).unwrap().0);
    }
}
