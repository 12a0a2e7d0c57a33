//! `marram new` and `marram dev`: a cell from its first line to its first session.

use super::{Failure, emit};
use crate::config::units::{Address, Name};
use crate::project::{self, Language, dev};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `marram new`
#[derive(Args)]
pub(super) struct New {
    /// What the app is called.
    name: Name,
    /// What the cell is written in.
    #[arg(long, value_enum, default_value = "rust")]
    lang: Language,
    /// Where the project goes; a directory of the app's name if left out.
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// `marram dev`
#[derive(Args)]
pub(super) struct Dev {
    /// The project: where marram.toml is.
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8088")]
    listen: SocketAddr,
    /// The server that the app's sessions talk to.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<Address>,
    /// How to build it, for the shell; `cargo build` or `make` by what lies there if left out.
    #[arg(long, value_name = "COMMAND")]
    build: Option<String>,
    /// Build, deploy, and stop: to see whether it can be done.
    #[arg(long)]
    once: bool,
}

pub(super) fn new(arguments: &New) -> Result<(), Failure> {
    let directory = arguments.directory.clone().unwrap_or_else(|| PathBuf::from(&arguments.name.0));
    project::create(&arguments.name, arguments.lang, &directory).map_err(Failure::Usage)?;
    let shown = directory.display();
    emit(&format!(
        "{shown} is made; what to do next is in {shown}/README.md, in short:\n\n    cd {shown} && marram dev\n"
    ));
    Ok(())
}

pub(super) fn dev(arguments: &Dev) -> Result<(), Failure> {
    let options = dev::DevOptions {
        directory: arguments.directory.clone(),
        listen: arguments.listen,
        server: arguments.server.clone(),
        build: arguments.build.clone(),
        once: arguments.once,
    };
    dev::check(&options).map_err(Failure::Usage)?;
    dev::run(&options).map_err(Failure::Other)
}
