//! The commands that run one of the workspace's own programs, with the caller's arguments.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    cells, project, setup,
    shell::{run, say},
};

/// `cargo xtask sim [SEED] [--from SEED --count N]`: what the simulator is called with is the simulator's business.
pub(crate) fn sim(arguments: &[String]) -> Result<()> {
    run(release("marram-sim").args(arguments))
}

/// `cargo xtask demo`: with nginx and curl if they can be had.
pub(crate) fn demo(arguments: &[String]) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    setup::wish(setup::DEMO);
    cells::build()?;
    say("building marram: some minutes the first time");
    run(project::cargo("build").args(["--release", "--locked", "--package", "marram"]))?;
    run(release("marram").arg("demo").args(arguments))
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
