//! The project's one tool. `cargo xtask` lists what it can do; each command says what it installs before it does.

mod cells;
mod project;
mod purity;
mod shell;
mod toolchain;

use std::process::ExitCode;

use anyhow::Result;

/// A command: its name, its arguments as the usage shows them, what it does, and the function that does it.
struct Task {
    name: &'static str,
    arguments: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<()>,
}

const TASKS: &[Task] = &[
    Task {
        name: "cells",
        arguments: "",
        help: "build the cells to target/cells/NAME.wasm",
        run: |_| cells::build(),
    },
    Task { name: "purity", arguments: "", help: "build the pure crates for Wasm", run: |_| purity::check() },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, arguments)) = words.split_first() else {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    };
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprint!("xtask: there is no command `{name}`\n\n{}", usage());
        return ExitCode::from(2);
    };
    match (task.run)(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let line = |task: &Task| format!("  {:<28}{}\n", format!("{} {}", task.name, task.arguments), task.help);
    format!("usage: cargo xtask COMMAND\n\n{}", TASKS.iter().map(line).collect::<String>())
}
