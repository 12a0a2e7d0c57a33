//! A recorder's process: wires to edges and files around `marram_session::recorder::Recorder`, which decides everything.

mod asking;
mod disk;
pub mod file;
mod shell;

pub use asking::{Questions, RecorderHandle, RecorderMetric, Unanswered};
pub use disk::QUEUE_MAX;

use marram_agent::{
    self as agent, Timeouts,
    net::{Security, StopSignal},
};
use marram_wire::seal::KeeperKey;
use std::{path::PathBuf, time::Duration};

/// Everything that a recorder needs to know, resolved.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// Its name.
    pub name: String,
    /// Edges as `host:port`; each address that a name has when the recorder starts counts as an edge of its own.
    pub edges: Vec<String>,
    /// What it shows to be one of the domain's keepers.
    pub key: KeeperKey,
    /// How its wires are protected.
    pub security: Security,
    /// How patient it is: with edges as an agent.
    pub timeouts: Timeouts,
    /// How long a session is kept that nobody feeds any more.
    pub linger: Duration,
    /// Bytes that it keeps of all sessions.
    pub memory: u64,
    /// Sessions that it keeps.
    pub sessions: usize,
    /// Where sessions lie on disk, if they do.
    pub directory: Option<PathBuf>,
}

/// How long a session is kept that nobody feeds any more, unless configured.
pub const LINGER: Duration = Duration::from_secs(300);
/// Bytes that a recorder keeps, unless configured.
pub const MEMORY: u64 = 1 << 30;
/// Sessions that a recorder keeps, unless configured.
pub const SESSIONS: usize = 65_536;

/// The asking side for operators, and the answering side for [`run`].
#[must_use]
pub fn questions() -> (RecorderHandle, Questions) {
    asking::pair()
}

/// Runs a recorder until `stop`: then it says good-bye to its edges, writes what is to be written, and returns.
///
/// # Errors
/// If it cannot start, with what to change in its configuration; afterwards only if the operating system fails it.
pub fn run(options: &RecorderOptions, questions: Questions, stop: StopSignal) -> anyhow::Result<()> {
    let transport = agent::edge_transport(&options.security, &options.edges)?;
    shell::Shell::new(options, questions, stop, transport)?.run()
}
