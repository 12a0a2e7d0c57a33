//! Flags, subcommands and exit codes. Each group of subcommands is one file: what it is called with, and what it does.

mod configure;
mod exit;
pub mod limits;
mod operate;
pub mod table;

use clap::{Parser, Subcommand};
pub use exit::Failure;
use std::process::ExitCode;

/// Stateful sessions at the network edge that outlive the machine they run on.
#[derive(Parser)]
#[command(name = "marram", version, max_term_width = 110, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send an app (manifest and module) to edges.
    Deploy(operate::Deploy),
    /// List the apps that edges have.
    Apps(operate::Edges),
    /// List sessions.
    Ps(operate::Edges),
    /// Show one session, and what it survives.
    Inspect(operate::One),
    /// End one session for good.
    Kill(operate::One),
    /// Let edges move their sessions away and take nothing new.
    Drain(operate::Edges),
    /// Print sample configurations, or check one.
    #[command(subcommand)]
    Config(configure::Config),
    /// Print every bound of this version.
    Limits,
}

/// Reads the command line, does what it says, and reports failures on standard error.
#[must_use]
pub fn main() -> ExitCode {
    exit::code(run(&Arguments::parse().command))
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Deploy(arguments) => operate::deploy(arguments),
        Command::Apps(edges) => operate::apps(edges),
        Command::Ps(edges) => operate::ps(edges),
        Command::Inspect(arguments) => operate::inspect(arguments),
        Command::Kill(arguments) => operate::kill(arguments),
        Command::Drain(edges) => operate::drain(edges),
        Command::Config(command) => configure::run(command),
        Command::Limits => {
            print!("{}", limits::page());
            Ok(())
        }
    }
}
