//! `marram bench NAME`, a program of its own: every figure that docs/benchmarks.md claims; its baseline is measured in the same run.
//!
//! ```text
//! BenchOptions --> Plan --> one module's run(&plan) --> Report --> text, JSON or Markdown; exit status
//!                             |-- TestCluster: edges and agents as real processes (marram-cluster)
//!                             |-- baseline: HAProxy, nginx, memcached, plain processes
//!                             '-- workers: this program again, for parts that need a process of their own
//! ```
//! Rules that all benchmarks keep. Variants alternate in short blocks, so that a disturbance of the
//! machine affects all. Open loops have an absolute schedule, and an answer's time counts from when
//! its request was due: otherwise a slow server would lower the load that it is measured with
//! (coordinated omission). Every answer is compared with the expected one. A 99th percentile needs
//! a hundred values; with fewer the figure is a maximum, and its name says so. A bar that is missed
//! is an exit status of its own.
//!
//! This crate measures and does not decide what is good: the bars are claims of docs/benchmarks.md.

mod apps;
mod ballast;
mod baseline;
mod chain;
mod checkpoint;
mod classify;
mod cpu;
mod crowd;
mod density;
mod epoch;
mod faults;
mod forward;
mod groups;
mod large;
mod load;
mod log_or_pages;
mod machine;
mod many;
mod mass;
mod memcached;
mod memory;
mod middlebox;
mod moves;
mod nginx;
mod noisy;
mod peer;
mod pinger;
mod plan;
mod rebalance;
mod received;
mod recover;
mod replay;
mod report;
mod standby;
mod start;
mod stats;
mod takeover;
mod tls;

use anyhow::Context;
use clap::{Parser, Subcommand};
use marram_cluster::{CellFiles, end_on_interrupt};
use plan::{Plan, Wires, progress};
use report::Report;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure what docs/benchmarks.md claims.
#[derive(Parser)]
#[command(name = "marram bench", bin_name = "marram bench", version, max_term_width = 110, args_conflicts_with_subcommands = true, after_help = HELP)]
struct Arguments {
    #[command(flatten)]
    options: Option<BenchOptions>,
    #[command(subcommand)]
    worker: Option<WorkerCommand>,
}

#[derive(Subcommand)]
enum WorkerCommand {
    /// One part of a benchmark; started by the others.
    #[command(hide = true, subcommand)]
    Worker(Worker),
}

/// Appended to the help. The numbers are those of `main`, which takes them from [`Failure`].
const HELP: &str = "Exit status:
  0  every check held, and every bar
  1  something could not be run; the message says what
  2  the command line is wrong
  5  bytes were lost, repeated or changed
  6  everything was measured, and a figure misses its bar";

/// Why a benchmark failed.
///
/// The order of the variants is not their rank: see [`verdict`].
#[derive(Debug)]
enum Failure {
    /// It could not be run, or not all of it.
    NotRun(anyhow::Error),
    /// Bytes were lost, repeated or changed.
    Wrong(anyhow::Error),
    /// A figure misses its bar.
    Missed(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::NotRun(error)
    }
}

/// Runs what the command line says, and reports a failure on standard error.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match (&arguments.worker, &arguments.options) {
        (Some(WorkerCommand::Worker(worker)), _) => worker.run().map_err(Failure::from),
        (None, Some(options)) => run(options),
        (None, None) => {
            Err(Failure::NotRun(anyhow::anyhow!("no benchmark is named; `marram bench --help` lists them")))
        }
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let (code, error) = match failure {
        Failure::NotRun(error) => (1, error),
        Failure::Wrong(error) => (5, error),
        Failure::Missed(error) => (6, error),
    };
    // Written at once, since other processes may write at the same time. An error is ignored.
    let _ = std::io::stderr().write_all(format!("marram bench: {error:#}\n").as_bytes());
    ExitCode::from(code)
}

/// Which benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum BenchName {
    /// What protection adds to a message.
    Forward,
    /// How long clients wait when an edge dies.
    Recover,
    /// How long a session is without an owner when another edge stands by, and what a standby costs.
    Standby,
    /// What clients see of every fault, under every policy, at every moment: the table of docs/faults.md.
    Faults,
    /// How fast a recorded session runs again.
    Replay,
    /// How long a checkpoint pauses a cell.
    Checkpoint,
    /// How long cells with much memory stop their shard, and how long their clients wait when an edge dies.
    Large,
    /// How soon a new client has a cell of its own.
    Start,
    /// What a stage costs a message, compared with one process for each stage.
    Chain,
    /// Long computations: one cell for each client, compared with one process for each client.
    Classify,
    /// How much many small tenants affect one another, compared with one memcached process for each tenant.
    Density,
    /// What a client's own firewall, and a monitor behind it, add to a message, for up to 2,000 clients.
    Middlebox,
    /// What clients notice when their sessions are moved to another edge while they run, one or a thousand at once.
    Move,
    /// How much hostile tenants affect a quiet one on the same shard.
    Noisy,
    /// How long many busy clients wait when their edge dies, how fast they are served, compared with HAProxy, and what agents keep for them.
    Crowd,
    /// What it costs to terminate TLS in one cell for each connection, compared with a proxy.
    Tls,
    /// What it costs to hold outputs until another edge has what produced them, at several numbers of epochs a second.
    Epoch,
    /// What one cell with many clients delivers to them, with a backup and without.
    Many,
    /// How flows whose policies replicate them at different intervals affect one another, and what many groups cost.
    Groups,
    /// How long it takes until an edge that joins four others has its share of their sessions.
    Rebalance,
    /// How long flows wait when the edge that runs them is lost, and two others are their backups.
    Takeover,
    /// How many bytes an epoch is as log, as pages, and as whichever the edge chooses.
    #[value(name = "log_or_pages")]
    LogOrPages,
    /// What protection costs whole applications, and what they gain from an edge.
    Apps,
}

/// What to measure and how to show it.
#[derive(Clone, Debug, clap::Args)]
struct BenchOptions {
    /// Which benchmark.
    pub name: BenchName,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Measure little: checks that the benchmark works; the figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    /// Of `apps`, `classify`, `crowd`, `density`, `epoch`, `faults`, `forward`, `groups`, `large`, `log_or_pages`, `many`, `middlebox`, `move`, `recover`, `standby`, `start`, `takeover` and `tls`, only the
    /// parts whose name contains this, as compress, c500, n300, sigkill.mid-message, throughput, state_10mib, drain_1000, ping or encrypted.
    #[arg(long, value_name = "PART")]
    pub only: Option<String>,
    /// Of `faults`, print only the table for docs/faults.md.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Directory of the built cells.
    #[arg(long, value_name = "DIR")]
    pub cells: Option<PathBuf>,
}

/// One part of a benchmark, which `marram bench` starts in a separate process.
#[derive(Clone, Debug, clap::Subcommand)]
enum Worker {
    /// A part of `start`.
    #[command(flatten)]
    Start(start::Worker),
    /// A part of `chain`.
    #[command(flatten)]
    Chain(chain::Worker),
    /// A part of `classify`.
    #[command(flatten)]
    Classify(classify::Worker),
    /// A part of `noisy`.
    #[command(flatten)]
    Noisy(noisy::Worker),
}

impl Worker {
    /// Runs the part.
    ///
    /// # Errors
    /// If the machine lacks a resource for it, or the process that started it is gone.
    fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Start(worker) => worker.run(),
            Self::Chain(worker) => worker.run(),
            Self::Classify(worker) => worker.run(),
            Self::Noisy(worker) => worker.run(),
        }
    }
}

/// Runs one benchmark and prints what it found.
///
/// Prints the report also if it is void, because the rest of it may still help.
///
/// # Errors
/// If a process cannot be started or does not do its part, or a baseline is missing; [`Failure::Wrong`] if bytes were lost or
/// repeated; [`Failure::Missed`] if a figure misses its bar.
fn run(options: &BenchOptions) -> Result<(), Failure> {
    end_on_interrupt()?;
    let own = std::env::current_exe().context("the program's own path is unknown")?;
    let program = own.with_file_name("marram");
    if !program.is_file() {
        return Err(anyhow::anyhow!("there is no {}: build it, or copy it there", program.display()).into());
    }
    let plan = Plan {
        program,
        own,
        cells: CellFiles::find(options.cells.as_deref())?,
        quick: options.quick,
        only: options.only.clone(),
        wires: Wires::Plain,
    };
    let report: Report = match options.name {
        BenchName::Forward => forward::run(&plan)?,
        BenchName::Recover => recover::run(&plan)?,
        BenchName::Standby => standby::run(&plan)?,
        BenchName::Faults => faults::run(&plan)?,
        BenchName::Replay => replay::run(&plan)?,
        BenchName::Checkpoint => checkpoint::run(&plan)?,
        BenchName::Large => large::run(&plan)?,
        BenchName::Start => start::run(&plan)?,
        BenchName::Crowd => crowd::run(&plan)?,
        BenchName::Tls => tls::run(&plan)?,
        BenchName::Apps => apps::run(&plan)?,
        BenchName::Epoch => epoch::run(&plan)?,
        BenchName::Many => many::run(&plan)?,
        BenchName::Groups => groups::run(&plan)?,
        BenchName::Rebalance => rebalance::run(&plan)?,
        BenchName::Takeover => takeover::run(&plan)?,
        BenchName::LogOrPages => log_or_pages::run(&plan)?,
        BenchName::Move => moves::run(&plan)?,
        BenchName::Noisy => noisy::run(&plan)?,
        BenchName::Density => density::run(&plan)?,
        BenchName::Middlebox => middlebox::run(&plan)?,
        BenchName::Chain => chain::run(&plan)?,
        BenchName::Classify => classify::run(&plan)?,
    };
    if options.markdown {
        let markdown =
            report.markdown().context("only `marram bench faults` has a table for docs/faults.md")?;
        print!("{markdown}");
    } else if options.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    verdict(&report)
}

/// Lost bytes take precedence, then what could not be run, then figures that miss their bars.
///
/// A report with lost bytes is wrong whatever its figures say.
fn verdict(report: &Report) -> Result<(), Failure> {
    if let Some(wrong) = report.wrong() {
        return Err(Failure::Wrong(anyhow::anyhow!(wrong)));
    }
    if let Some(not_run) = report.not_run() {
        return Err(Failure::NotRun(anyhow::anyhow!(not_run)));
    }
    report
        .missed()
        .map_or(Ok(()), |missed| Err(Failure::Missed(anyhow::anyhow!("a bar is missed: {missed}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::Bar;

    #[test]
    fn a_missed_bar_and_a_lost_answer_have_failures_of_their_own() {
        let mut report = Report::new("sample");
        report.metric_with_bar("ratio", 1.0, Bar::Most(1.0));
        assert!(verdict(&report).is_ok());
        report.metric_with_bar("other", 2.0, Bar::Most(1.0));
        assert!(matches!(verdict(&report), Err(Failure::Missed(_))));
        report.add_not_run("a scene needs something");
        assert!(matches!(verdict(&report), Err(Failure::NotRun(_))));
        report.add_lost(1, 0);
        assert!(matches!(verdict(&report), Err(Failure::Wrong(_))));
    }
}
