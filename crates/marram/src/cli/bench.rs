//! `marram bench`: a program of its own, `marram-bench`, which most machines do not need.
//!
//! It is replaced by `exec`, so signals and the exit status are the benchmark's own. A separate
//! program keeps load generators and their dependencies out of the binary that is deployed.

use super::Failure;
use anyhow::{Context, anyhow};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Arguments for `marram-bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Bench {
    /// A benchmark and its options; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Replaces this process with `marram-bench`. Returns only if that fails.
pub(super) fn run(bench: &Bench) -> Failure {
    match std::env::current_exe().context("the program's own path is unknown") {
        Err(error) => error.into(),
        Ok(own) => {
            let program = own.with_file_name("marram-bench");
            let error = anyhow!(Command::new(&program).args(&bench.arguments).exec());
            let what = format!(
                "cannot start {}: the benchmarks are a program of their own, beside `marram`",
                program.display()
            );
            // `exec` returns only with an error.
            error.context(what).into()
        }
    }
}
