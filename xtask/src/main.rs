//! The project's only tool. `cargo xtask` lists its commands; each command announces what it installs.
//!
//! Everything that a developer or CI does with the project is a command here, so that no script has
//! to be kept in step. It depends on few crates and on nothing of Marram, so that it compiles in
//! seconds and can check a tree that does not build.
//!
//! The exit status is 0, or 1 if something failed, or 2 for an unknown command; `bench` passes on
//! the status of the benchmark.

mod c;
mod cells;
mod ci;
mod deny;
mod dist;
mod figures;
mod flaky;
mod fuzz;
mod metadata;
mod options;
mod programs;
mod project;
mod purity;
mod setup;
mod shell;
mod soak;
mod stamp;
mod suite;
mod tidy;
mod toolchain;
mod wrapper;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// One command: its name, its arguments as the usage shows them, its purpose, and its function.
struct Task(&'static str, &'static str, &'static str, Action);

/// Most commands take no arguments, and then refuse any.
enum Action {
    Plain(fn() -> Result<()>),
    WithArguments(fn(&[String]) -> Result<()>),
}

use Action::{Plain, WithArguments};

/// In the order in which the usage shows them.
const TASKS: &[Task] = &[
    Task("setup", "", "install what the other commands need", Plain(setup::everything)),
    Task("demo", "[OPTIONS]", "the demo: a download that survives its edges", WithArguments(programs::demo)),
    Task("test", "[--fuzz-seconds N]", "all tests", WithArguments(suite::test)),
    Task(
        "ci",
        "[--keep-going]",
        "all checks that a change must pass; ends in `test`",
        WithArguments(ci::all),
    ),
    Task("cells", "", "build the cells to target/cells/NAME.wasm", Plain(cells::build)),
    Task(
        "sim",
        "[SEED] [--from SEED --count N]",
        "simulate histories of faults",
        WithArguments(programs::sim),
    ),
    Task(
        "mutants",
        "[--file TEXT] [--quick] [--every N] ...",
        "mutate the protocol's code: the tests must fail",
        WithArguments(programs::mutants),
    ),
    Task(
        "bench",
        "[NAME ...] [--write] [OPTIONS] | --render",
        "measure what docs/benchmarks.md claims, and write it there",
        WithArguments(programs::bench),
    ),
    Task("soak", "[NAME ...]", "long runs, for hours, that do not fit CI", WithArguments(soak::command)),
    Task(
        "dist",
        "",
        "build a release: a stripped binary, with debug information beside it",
        Plain(dist::build),
    ),
    Task("fuzz", "[TARGET] [--seconds N]", "fuzz the decoders", WithArguments(fuzz::command)),
    Task("tidy", "", "check rules that the compiler cannot check", Plain(tidy::check)),
    Task("deny", "", "check licences and sources of dependencies", Plain(deny::check)),
    Task("purity", "", "build the pure crates for Wasm", Plain(purity::check)),
];

impl Task {
    /// A word too many is an error and is not ignored: it may be an option that the user relies on.
    fn run(&self, arguments: &[String]) -> Result<()> {
        match (&self.3, arguments.first()) {
            (Plain(run), None) => run(),
            (Plain(_), Some(word)) => bail!("it takes no arguments, but got `{word}`"),
            (WithArguments(run), _) => run(arguments),
        }
    }
}

/// Called by cargo as a compiler's wrapper too: see [`wrapper`].
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(wrapper) = wrapper::Wrapper::from_environment() {
        return wrapper.call(&words);
    }
    let (name, arguments) = match words.split_first() {
        Some((name, arguments)) if !["help", "--help", "-h"].contains(&name.as_str()) => (name, arguments),
        _ => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
    };
    let Some(task) = TASKS.iter().find(|task| task.0 == name) else {
        eprint!("xtask: there is no command `{name}`\n\n{}", usage());
        return ExitCode::from(2);
    };
    match project::find_root().and_then(|()| task.run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            let status = error.downcast_ref::<programs::Ended>().map(|ended| ended.status);
            ExitCode::from(status.unwrap_or(1))
        }
    }
}

/// One line per command.
fn usage() -> String {
    let line =
        |Task(name, arguments, help, _): &Task| format!("  {:<48}{help}\n", format!("{name} {arguments}"));
    format!("usage: cargo xtask COMMAND\n\n{}", TASKS.iter().map(line).collect::<String>())
}
