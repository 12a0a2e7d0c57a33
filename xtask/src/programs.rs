//! The commands that run one of the workspace's own programs, with the caller's arguments.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{
    cells, project, setup,
    shell::{run, say},
};

/// The demo's exit status when bytes are wrong.
const BIT: i32 = 5;

/// `cargo xtask sim [SEED] [--from SEED --count N]`: what the simulator is called with is the simulator's business.
pub(crate) fn sim(arguments: &[String]) -> Result<()> {
    run(release("marram-sim").args(arguments))
}

/// `cargo xtask demo`: with nginx and curl if they can be had.
pub(crate) fn demo(arguments: &[String]) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    setup::wish(setup::DEMO);
    cells::build()?;
    if !project::target().join("release/marram").is_file() {
        say("building marram: some minutes the first time");
    }
    run(project::cargo("build").args(["--release", "--locked", "--package", "marram"]))?;
    let mut demo = release("marram");
    demo.arg("demo").args(arguments);
    if !arguments.iter().any(|argument| argument == "--sabotage") {
        return run(&mut demo);
    }
    let status = demo.status().context("cannot start the demo")?;
    verdict(status.code()).map(say)
}

/// What the demo's exit status means where a bit was flipped.
fn verdict(code: Option<i32>) -> Result<&'static str> {
    match code {
        Some(BIT) => Ok("the flipped bit was found: the check bites"),
        Some(0) => bail!("a bit was flipped, and the check did not find it"),
        _ => bail!("the demo failed before its check"),
    }
}

/// `cargo xtask bench [NAME ...] [--json]`: one after the other, all if none is named.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    const ALL: [&str; 3] = ["forward", "recover", "checkpoint"];
    setup::ensure(setup::BUILD)?;
    setup::wish(setup::DEMO);
    setup::wish(setup::BENCH);
    cells::build()?;
    let (flags, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    let names = if names.is_empty() { ALL.to_vec() } else { names.into_iter().map(String::as_str).collect() };
    let mut failed = Vec::new();
    for name in names {
        if run(release("marram").args(["bench", name]).args(&flags)).is_err() {
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// `cargo xtask mutants`: minutes for a sample, hours for all of them, so no part of CI.
pub(crate) fn mutants(arguments: &[String]) -> Result<()> {
    let mut command = project::cargo("run");
    command.args(["--release", "--locked", "--quiet", "--manifest-path", "xtask/mutants/Cargo.toml"]);
    command.arg("--target-dir").arg(project::target().join("mechanical/tool"));
    run(command.arg("--").args(arguments))
}

/// A program of the workspace, built if need be. The manifest's folder is not in its environment, so it finds the
/// cells by the folder that it runs in.
fn release(package: &str) -> Command {
    let mut command = project::cargo("run");
    command.args(["--release", "--locked", "--quiet", "--package", package, "--"]);
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
}
