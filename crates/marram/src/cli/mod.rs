//! Flags, subcommands and exit codes. Each group of subcommands is one file: what it is called with, and what it does.
//!
//! Doc comments of the structures below are the help text: they are for users. Comments for
//! programmers are written with two slashes there.

mod bench;
mod cells;
mod configure;
mod coordinator;
mod drain;
mod exec;
mod exit;
mod inspect;
mod install;
mod keeper;
pub mod limits;
mod logs;
mod moves;
mod operate;
mod output;
mod policy;
mod project;
mod ps;
mod record;
mod replay;
mod route;
mod serve;
mod wanted;

use crate::demo;
use crate::failure::Failure;
use clap::{Parser, Subcommand};
use output::emit;
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
    /// Run an edge: apps, wires from agents, gates, admin API.
    Edge(serve::Edge),
    /// Run an agent beside clients or beside servers.
    #[command(subcommand)]
    Agent(serve::Agent),
    /// Run a recorder: it keeps, near the edges, what their sessions need for a recovery.
    Recorder(serve::Recorder),
    /// One shard of an edge; started by `marram edge`.
    // Hidden: it reads its setup from a socket as its standard input.
    #[command(hide = true)]
    Shard,
    /// An edge that flips one bit on purpose, or copies all sessions together; started by `marram demo --sabotage` and `marram bench`.
    #[command(hide = true)]
    DemoEdge(serve::DemoEdge),
    /// Create the project of a cell.
    New(project::New),
    /// Work on a cell: build, run and deploy it on an edge of its own, and again whenever it changes.
    Dev(project::Dev),
    /// Send an app (manifest and module) to edges.
    Deploy(operate::Deploy),
    /// Stop new sessions of an app on edges; existing sessions continue.
    Undeploy(operate::Undeploy),
    /// List the apps that edges have.
    Apps(operate::Edges),
    /// List sessions.
    Ps(ps::Ps),
    /// Show what edges, recorders and agents log.
    Logs(logs::Logs),
    /// Show an edge with its shards and apps; or one session, and what it survives.
    Inspect(inspect::Inspect),
    /// End sessions for good.
    Kill(operate::Kill),
    /// Move running sessions to another edge: no message is lost or repeated, and clients wait for about one exchange of messages.
    Move(moves::Move),
    /// Write a session, from its last checkpoint on, to a file for `marram replay`.
    Record(record::Record),
    /// Run a recorded session again, on any machine, up to any point.
    Replay(replay::Replay),
    /// Run a program and redirect its connections to configured destinations to an agent.
    Exec(exec::Exec),
    /// Show whether edges' coordinator is reachable, and which edges it knows.
    Coordinator(coordinator::Coordinator),
    /// Shut edges down gracefully: they accept no new sessions, move their sessions away, and stop when none is left or after
    /// `limits.drain` (30s).
    Drain(drain::Drain),
    /// Show or change the rules by which an edge's gates choose the app.
    #[command(subcommand)]
    Route(route::Route),
    /// Show or change the replication policies of running edges.
    ///
    /// They say how often sessions under `protect = "epoch"` are replicated, and to which edges. What is set at an edge is in force until
    /// `reset` there or its next start. Else an edge follows what is set for its domain, and without that its configuration. Running
    /// sessions follow another interval at once. Sessions whose policy names another backup, or another number of groups, change over a
    /// few at a time; those with `waits = false` keep their backup.
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Print sample configurations, or check one.
    #[command(subcommand)]
    Config(configure::Config),
    /// Print every limit of this version.
    Limits,
    /// Print completions for a shell.
    Completions(install::Completions),
    /// Show the meaning of exit statuses.
    #[command(long_about = exit::HELP)]
    ExitCodes,
    /// Write manual pages, one for each command.
    Man(install::Manual),
    /// Print a unit for systemd.
    Unit(install::Unit),
    /// Download a file through a cell while its edges are killed, stopped and killed again.
    Demo(demo::DemoOptions),
    /// Measure what docs/benchmarks.md claims.
    Bench(bench::Bench),
}

/// Runs the command of the command line, and reports failures on standard error.
///
/// A wrong command line ends the process inside `clap`, with status 2 as well.
#[must_use]
pub fn main() -> ExitCode {
    exit::code(run(&Arguments::parse().command))
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Edge(arguments) => serve::edge(arguments),
        Command::Agent(arguments) => serve::agent(arguments),
        Command::Recorder(arguments) => serve::recorder(arguments),
        Command::Shard => serve::shard(),
        Command::DemoEdge(arguments) => serve::demo_edge(arguments),
        Command::New(arguments) => project::new(arguments),
        Command::Dev(arguments) => project::dev(arguments),
        Command::Deploy(arguments) => operate::deploy(arguments),
        Command::Undeploy(arguments) => operate::undeploy(arguments),
        Command::Apps(edges) => operate::apps(edges),
        Command::Ps(arguments) => ps::run(arguments),
        Command::Logs(arguments) => logs::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Kill(arguments) => operate::kill(arguments),
        Command::Move(arguments) => moves::run(arguments),
        Command::Record(arguments) => record::record(arguments),
        Command::Replay(arguments) => replay::replay(arguments),
        Command::Exec(arguments) => exec::run(arguments),
        Command::Coordinator(arguments) => coordinator::run(arguments),
        Command::Drain(arguments) => drain::run(arguments),
        Command::Route(command) => route::run(command),
        Command::Policy(command) => policy::run(command),
        Command::Config(command) => configure::run(command),
        Command::Limits => {
            emit(&limits::page());
            Ok(())
        }
        Command::ExitCodes => {
            emit(&format!("{}\n", exit::HELP));
            Ok(())
        }
        Command::Completions(arguments) => install::completions(arguments),
        Command::Man(arguments) => install::manual(arguments),
        Command::Unit(arguments) => install::unit(arguments),
        Command::Demo(options) => demo::run(options),
        Command::Bench(arguments) => Err(bench::run(arguments)),
    }
}
