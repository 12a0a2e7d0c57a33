//! The commands that run one of the workspace's own programs, with the caller's arguments.
//!
//! These are thin: build what is needed, start the program, and pass on its result. Options are
//! those of the programs, so they are documented there and not parsed here, except where xtask must
//! know what to install or to build first.

use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    cells, figures, project, setup,
    shell::{reserve_stdout, run, say},
    stamp::Stamp,
};

/// The demo's exit status if bytes are wrong. `--sabotage` flips a bit on purpose: the demo must
/// find it.
const BIT: i32 = 5;

/// `cargo xtask sim [SEED] [--from SEED --count N]`: passes the arguments to the simulator unchanged. In the tests' profile, which
/// optimises it.
pub(crate) fn sim(arguments: &[String]) -> Result<()> {
    run(program("marram-sim", &[]).args(arguments))
}

/// `cargo xtask demo`: with nginx and curl if they can be installed.
pub(crate) fn demo(arguments: &[String]) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    setup::want(setup::DEMO);
    cells::build()?;
    if !project::target().join("release/marram").is_file() {
        say("building marram: the first time takes some minutes");
    }
    run(project::cargo("build").args(["--release", "--locked", "--package", "marram"]))?;
    let mut demo = program("marram", &["--release"]);
    demo.arg("demo").args(arguments);
    if !arguments.iter().any(|argument| argument == "--sabotage") {
        return run(&mut demo);
    }
    let status = demo.status().context("cannot start the demo")?;
    verdict(status.code()).map(say)
}

/// The meaning of the demo's exit status after a bit was flipped.
///
/// A demo that ends well after a sabotage is the failure: its check would miss real damage as well.
fn verdict(code: Option<i32>) -> Result<&'static str> {
    match code {
        Some(BIT) => Ok("the check found the flipped bit"),
        Some(0) => bail!("a bit was flipped, and the check did not find it"),
        _ => bail!("the demo failed before its check"),
    }
}

/// The benchmarks, each with the programs that it is compared with or needs.
const BENCHES: [(&str, &[setup::Program]); 23] = [
    ("forward", setup::HAPROXY),
    ("recover", &[]),
    ("standby", &[]),
    ("faults", setup::NAMESPACES),
    ("replay", &[]),
    ("checkpoint", &[]),
    ("large", &[]),
    ("start", &[]),
    ("chain", &[]),
    ("classify", &[]),
    ("density", setup::COMPARE),
    ("middlebox", setup::COMPARE),
    ("move", setup::NAMESPACES),
    ("noisy", &[]),
    ("crowd", setup::CROWD),
    ("tls", setup::HAPROXY),
    ("apps", setup::APPS),
    ("epoch", &[]),
    ("many", setup::REDIS),
    ("groups", &[]),
    ("rebalance", &[]),
    ("takeover", &[]),
    ("log_or_pages", &[]),
];

/// Failed benchmarks.
///
/// An error that keeps the exit status, which `main` passes on: scripts tell a missed bar from a
/// benchmark that could not run.
#[derive(Debug)]
pub(crate) struct Ended {
    what: String,
    /// The exit status of the first that failed; if all others passed, that of a missed bar. Same meaning as in `marram bench`.
    pub(crate) status: u8,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Ended {}

/// Exit status of `marram bench` if everything was measured and a figure misses its bar.
const MISSED: u8 = 6;

/// `cargo xtask bench [NAME ...] [OPTIONS]`: one after another, all if none is named. With `--json` only they write to standard
/// output.
///
/// With `--write` the result of each goes to `docs/figures` and into the pages as soon as it is there; of `faults` also a part. `--render` alone writes the
/// pages again and runs nothing.
///
/// Programs to compare with are installed for the named benchmarks only. All of them run, also
/// after one has failed.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--render") {
        ensure!(arguments.len() == 1, "--render runs no benchmark: leave out everything else");
        return figures::render();
    }
    let (names, mut flags) = bench_arguments(arguments)?;
    // The tree may change while they run.
    let stamp = take_write(&names, &mut flags)?.then(Stamp::now).transpose()?;
    if flags.iter().any(|flag| flag == "--json") {
        reserve_stdout();
    }
    setup::ensure(setup::BUILD)?;
    for (_, programs) in BENCHES.iter().filter(|(name, _)| names.contains(name)) {
        setup::ensure(programs)?;
    }
    cells::build()?;
    if names.contains(&"classify") {
        cells::build_classify_process()?;
    }
    run(project::cargo("build").args([
        "--release",
        "--locked",
        "--package",
        "marram",
        "--package",
        "marram-bench",
    ]))?;
    let mut failed = Vec::new();
    for name in names {
        // Not with `run`: the standard output is the requested result.
        let mut command = program("marram", &["--release"]);
        command.args(["bench", name]).args(&flags);
        let status = match &stamp {
            None => command.status().map(code),
            Some(stamp) => command.arg("--json").stderr(Stdio::inherit()).output().map(|output| {
                keep(name, code(output.status), &String::from_utf8_lossy(&output.stdout), stamp)
            }),
        };
        let status = status.with_context(|| format!("cannot start `marram bench {name}`"))?;
        if status != 0 {
            failed.push((name, status));
        }
    }
    ended(&failed)
}

/// The exit status of a program; one that was ended by a signal is treated like any error.
fn code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Writes the result of a benchmark into the pages, unless it is incomplete or wrong. Such a result is printed, so that it is
/// not lost. Returns the status of the benchmark, or 1 if its result could not be written.
fn keep(name: &str, status: u8, printed: &str, stamp: &Stamp) -> u8 {
    if ![0, MISSED].contains(&status) {
        print!("{printed}");
        say(format!("{name} failed, so its figures are not written"));
        return status;
    }
    match figures::write(name, printed, stamp) {
        Ok(()) => status,
        Err(error) => {
            print!("{printed}");
            eprintln!("xtask bench {name}: {error:#}");
            1
        }
    }
}

/// Removes `--write`, and returns whether it was there.
///
/// # Errors
/// If another option makes a result that is no whole one, except for a part of `faults` alone, or that is printed.
fn take_write(names: &[&str], flags: &mut Vec<String>) -> Result<bool> {
    const UNFIT: [&str; 4] = ["--quick", "--json", "--markdown", "--only"];
    let unfit = if names == ["faults"] { &UNFIT[..3] } else { &UNFIT };
    let count = flags.len();
    flags.retain(|flag| flag != "--write");
    if flags.len() == count {
        return Ok(false);
    }
    // A value may follow after `=`.
    match flags.iter().find(|flag| flag.split('=').next().is_some_and(|option| unfit.contains(&option))) {
        Some(flag) => bail!("--write keeps whole results: leave out {flag}"),
        None => Ok(true),
    }
}

/// The names, or all benchmarks if there are none; and the options with their values.
///
/// # Errors
/// If a name is unknown, with the list of those that there are.
fn bench_arguments(arguments: &[String]) -> Result<(Vec<&'static str>, Vec<String>)> {
    const WITH_VALUE: [&str; 2] = ["--only", "--cells"];
    let known = || BENCHES.iter().map(|(name, _)| *name);
    let (mut names, mut flags) = (Vec::new(), Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word.starts_with('-') {
            flags.push(word.clone());
            if WITH_VALUE.contains(&word.as_str()) {
                flags.push(words.next().with_context(|| format!("{word} needs a value after it"))?.clone());
            }
            continue;
        }
        let Some(name) = known().find(|name| name == word) else {
            bail!("there is no benchmark `{word}`: they are {}", known().collect::<Vec<_>>().join(", "));
        };
        names.push(name);
    }
    if names.is_empty() {
        names.extend(known());
    }
    Ok((names, flags))
}

/// A failure counts more than a missed bar, whatever the order.
fn ended(failed: &[(&str, u8)]) -> Result<()> {
    let Some((_, first)) = failed.iter().find(|(_, status)| *status != MISSED).or_else(|| failed.first())
    else {
        return Ok(());
    };
    let each = failed.iter().map(|(name, status)| match *status {
        MISSED => format!("{name} misses a bar"),
        status => format!("{name} failed with status {status}"),
    });
    Err(Ended { what: each.collect::<Vec<_>>().join(", "), status: *first }.into())
}

/// `cargo xtask mutants`: minutes for a sample, hours for all, so it is not part of CI.
pub(crate) fn mutants(arguments: &[String]) -> Result<()> {
    let mut command = project::cargo("run");
    command.args(["--release", "--locked", "--quiet", "--manifest-path", "xtask/mutants/Cargo.toml"]);
    command.arg("--target-dir").arg(project::target().join("mechanical/tool"));
    run(command.arg("--").args(arguments))
}

/// A program of the workspace, built if necessary. The manifest's folder is not in its environment, so it finds the
/// cells by its working directory.
///
/// Through `cargo run`, so that it is built with the flags of the workspace, in the given profile, and is never out of date.
fn program(package: &str, profile: &[&str]) -> Command {
    let mut command = project::cargo("run");
    command.args(profile).args(["--locked", "--quiet", "--package", package, "--"]);
    command
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_flipped_bit_that_is_found_is_what_was_wanted() {
        assert!(super::verdict(Some(5)).is_ok());
        for code in [Some(0), Some(1), None] {
            assert!(super::verdict(code).is_err(), "{code:?}");
        }
    }

    fn arguments(line: &str) -> anyhow::Result<(Vec<&'static str>, Vec<String>)> {
        super::bench_arguments(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn benchmarks_are_named_and_a_value_is_no_name() {
        let (names, flags) = arguments("classify --only c500 --json density").unwrap();
        assert_eq!(names, ["classify", "density"]);
        assert_eq!(flags, ["--only", "c500", "--json"]);
        assert_eq!(arguments("--quick").unwrap().0.len(), super::BENCHES.len());
        let error = arguments("classfy").unwrap_err().to_string();
        assert!(error.contains("`classfy`") && error.contains("classify"), "{error}");
        assert!(arguments("--only").is_err());
    }

    #[test]
    fn whole_results_and_parts_of_the_fault_table_alone_are_written() {
        let taken = |line: &str| {
            let (names, mut flags) = arguments(line).unwrap();
            super::take_write(&names, &mut flags).map(|is_written| (is_written, flags.len()))
        };
        assert_eq!(taken("forward recover --write").unwrap(), (true, 0));
        assert_eq!(taken("--write --cells elsewhere").unwrap(), (true, 2));
        assert_eq!(taken("--quick").unwrap(), (false, 1));
        assert_eq!(taken("faults --only epoch --write").unwrap(), (true, 2));
        for line in [
            "--write --quick",
            "forward --only latency --write",
            "--only=latency --write",
            "faults --write --markdown",
            "faults --only epoch --quick --write",
            "faults move --only epoch --write",
            "--only epoch --write",
        ] {
            assert!(taken(line).is_err(), "{line}");
        }
    }

    #[test]
    fn rendering_runs_no_benchmark() {
        let error = super::bench(&["chain".to_owned(), "--render".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--render"), "{error}");
    }

    #[test]
    fn the_page_names_every_benchmark_and_no_other() {
        let mut known = super::BENCHES.map(|(name, _)| name);
        known.sort_unstable();
        assert_eq!(crate::figures::benchmarks(), known);
    }

    #[test]
    fn a_failure_counts_more_than_a_missed_bar() {
        let status = |failed: &[(&str, u8)]| {
            super::ended(failed).err().and_then(|error| Some(error.downcast_ref::<super::Ended>()?.status))
        };
        assert_eq!(status(&[]), None);
        assert_eq!(status(&[("chain", 6)]), Some(6));
        assert_eq!(status(&[("chain", 6), ("tls", 5), ("start", 1)]), Some(5));
    }
}
