//! `marram exec`: runs an unmodified program and redirects its connections to an agent.
//!
//! Destinations come from flags or from the agent's own configuration, so that the two do not have
//! to be kept alike. All errors are found before the program starts; afterwards this process is the
//! program.

use super::Failure;
use crate::exec;
use clap::Args;
use marram_config::agent;
use marram_config::agent::Redirect;
use marram_config::source::Source;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The default path of an agent's configuration.
const CONFIG: &str = "/etc/marram/agent.toml";

/// `marram exec`
#[derive(Args)]
pub(super) struct Exec {
    /// The agent's configuration: `redirect` of each `[[listen]]` names the destinations that are redirected to it.
    /// /etc/marram/agent.toml if neither this nor --redirect is given.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Redirect connections to HOST:PORT to the agent that listens on LISTENER; udp://HOST:PORT for datagrams.
    #[arg(long, value_name = "HOST:PORT=LISTENER", value_parser = exec::redirect)]
    redirect: Vec<Redirect>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &Exec) -> Result<(), Failure> {
    let mut redirects = arguments.redirect.clone();
    let config = match &arguments.config {
        Some(path) => Some(path.as_path()),
        None => redirects.is_empty().then_some(Path::new(CONFIG)),
    };
    if arguments.config.is_none() && redirects.is_empty() && !Path::new(CONFIG).exists() {
        return Err(Failure::Usage(anyhow::anyhow!(
            "no connections to redirect to an agent are named: write `--redirect HOST:PORT=LISTENER`, or name the \
             agent's configuration with --config (there is no {CONFIG})"
        )));
    }
    if let Some(path) = config {
        let source =
            Source::read(path).map_err(|problem| Failure::Usage(problem.into()))?.with_own_environment();
        redirects.extend(agent::redirects(&source).map_err(|problem| Failure::Usage(problem.into()))?);
    }
    let (program, rest) = arguments.command.split_first().expect("at least one is required");
    // Returns only if the program could not be started.
    Err(Failure::Usage(exec::exec(&redirects, program, rest)))
}
