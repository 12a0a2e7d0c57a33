//! `marram config`: prints samples and the recorders' key, and checks a configuration without starting anything.
//!
//! A check reads what the program would read at its start, overrides of the environment included,
//! so that a unit's `ExecStartPre` sees the same errors. It does not connect, bind or lock
//! anything.

use super::Failure;
use clap::{Subcommand, ValueEnum};
use marram_config::agent::AgentRole;
use marram_config::manifest::{self, Manifest};
use marram_config::source::{Problem, Source};
use marram_config::{agent, edge, recorder, store};
use std::borrow::Cow;
use std::path::PathBuf;

/// The kind of a configuration.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Kind {
    /// `marram edge`
    Edge,
    /// `marram agent client`
    AgentClient,
    /// `marram agent server`
    AgentServer,
    /// `marram recorder`
    Recorder,
    /// `marram coordinator serve`
    Coordinator,
    /// An app's manifest
    Manifest,
}

#[derive(Subcommand)]
pub(super) enum Config {
    /// Print a commented sample with every field.
    Sample {
        /// The program that it configures.
        kind: Kind,
    },
    /// Print the key with which a recorder proves that it belongs to the domain, for its `keeper_key_file`.
    KeeperKey {
        /// The domain's secret, the file that the edges' `secret_file` names.
        secret_file: PathBuf,
    },
    /// Read a file as the program would, and report errors; for a manifest, also in the files that it names.
    Check {
        /// The program that the file configures.
        kind: Kind,
        /// The file; for a manifest, its directory is also possible.
        file: PathBuf,
    },
}

/// Every error is one of usage: nothing else can go wrong here.
pub(super) fn run(command: &Config) -> Result<(), Failure> {
    match command {
        Config::Sample { kind } => {
            super::emit(&sample(*kind));
            Ok(())
        }
        Config::KeeperKey { secret_file } => {
            let key = recorder::keeper_key(secret_file).map_err(|problem| Failure::Usage(problem.into()))?;
            super::emit(&format!("{}\n", key.to_text()));
            Ok(())
        }
        Config::Check { kind, file } => {
            // Warnings go to standard error, and the status stays 0: the program would start.
            let warnings = check(*kind, file).map_err(|problem| Failure::Usage(problem.into()))?;
            warnings.iter().for_each(|problem| eprintln!("warning: {problem}"));
            if matches!(kind, Kind::Manifest) {
                // Compiles the module, in a temporary directory: an edge would find these errors
                // only at the deployment.
                marram_admin::check(file).map_err(|error| Failure::Usage(error.into()))?;
            }
            super::emit(&format!("{}: in order\n", file.display()));
            Ok(())
        }
    }
}

fn sample(kind: Kind) -> Cow<'static, str> {
    match kind {
        Kind::Edge => edge::SAMPLE.into(),
        Kind::AgentClient => agent::SAMPLE.into(),
        Kind::AgentServer => agent::sample_for_servers().into(),
        Kind::Recorder => recorder::SAMPLE.into(),
        Kind::Coordinator => store::SAMPLE.into(),
        Kind::Manifest => manifest::SAMPLE.into(),
    }
}

/// The warnings for a file, or its error.
fn check(kind: Kind, file: &std::path::Path) -> Result<Vec<Problem>, Problem> {
    let manifest = file.join(manifest::FILE_NAME);
    let file = if matches!(kind, Kind::Manifest) && file.is_dir() { &manifest } else { file };
    let source = Source::read(file)?.with_own_environment();
    match kind {
        Kind::Edge => edge::EdgeSettings::parse(&source).map(drop),
        Kind::AgentClient => agent::AgentSettings::parse(&source, AgentRole::Client).map(drop),
        Kind::AgentServer => agent::AgentSettings::parse(&source, AgentRole::Server).map(drop),
        Kind::Recorder => recorder::RecorderSettings::parse(&source).map(drop),
        Kind::Coordinator => store::StoreSettings::parse(&source).map(drop),
        Kind::Manifest => Manifest::parse(&source).map(drop),
    }
    .map(|()| source.warnings())
}
