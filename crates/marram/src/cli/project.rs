//! `marram new` and `marram dev`: creating a cell, and running it during development.
//!
//! A mistake in the arguments or in the project is found by `dev::check` and has status 2; what
//! fails later, such as a build, has status 1.

use super::{Failure, emit};
use crate::project::{self, Language, Template, dev};
use clap::Args;
use marram_config::units::{Address, ListenAddress, Name};
use std::path::PathBuf;

/// `marram new`
#[derive(Args)]
pub(super) struct New {
    /// The app's name.
    name: Name,
    /// The cell's language.
    #[arg(long, value_enum, default_value = "rust")]
    lang: Language,
    /// What the cell is at first.
    #[arg(long, value_enum, default_value = "lines")]
    template: Template,
    /// The project's directory; one with the app's name if left out.
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// `marram dev`
#[derive(Args)]
pub(super) struct Dev {
    /// The project: the directory of marram.toml.
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Where clients connect; as often as there are listeners. With `ws://`, browsers, also from pages that the app's listeners
    /// without it serve.
    #[arg(long, value_name = "[udp://|ws://]ADDRESS", default_value = "127.0.0.1:8088")]
    listen: Vec<ListenAddress>,
    /// The server that the app's sessions connect to.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<Address>,
    /// The shell command that builds it; if left out, `cargo build` or `make`, by the project's files.
    #[arg(long, value_name = "COMMAND")]
    build: Option<String>,
    /// Build and deploy once, then stop: a check that both work.
    #[arg(long)]
    once: bool,
}

pub(super) fn new(arguments: &New) -> Result<(), Failure> {
    let directory = arguments.directory.clone().unwrap_or_else(|| PathBuf::from(&arguments.name.0));
    project::create(&arguments.name, arguments.lang, arguments.template, &directory)
        .map_err(Failure::Usage)?;
    let shown = directory.display();
    emit(&format!(
        "{shown} is created; the next steps are in {shown}/README.md, in short:\n\n    cd {shown} && marram dev\n"
    ));
    Ok(())
}

pub(super) fn dev(arguments: &Dev) -> Result<(), Failure> {
    let options = dev::DevOptions {
        directory: arguments.directory.clone(),
        listen: arguments.listen.clone(),
        server: arguments.server.clone(),
        build: arguments.build.clone(),
        once: arguments.once,
    };
    dev::check(&options).map_err(Failure::Usage)?;
    dev::run(&options).map_err(Failure::Other)
}
