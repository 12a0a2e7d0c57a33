//! A recorder's process: wires to edges, and files, around `marram_session::recorder::Recorder`, which makes all decisions.
//!
//! ```text
//! edges ◀── wires ── shell.rs: Recorder::step ── FileOperation ──▶ disk.rs (thread) ── file.rs ──▶ SESSION.kept
//!                          ▲ asking.rs                                     at the start: load ◀──┘
//!                      admin API
//! ```
//!
//! It dials edges, as an agent does. No session needs it: what is lost here makes a recovery
//! slower (`docs/protocol-keepers.md`, chapter 17).

mod asking;
mod disk;
mod error;
pub mod file;
mod shell;

pub use asking::{Questions, RecorderHandle, RecorderMetric, Unanswered};
pub use disk::QUEUE_MAX;
pub use error::RecorderError;

use marram_agent::{self as agent, Timeouts};
use marram_transport::{Security, StopSignal};
use marram_wire::seal::KeeperKey;
use std::{path::PathBuf, time::Duration};

/// The configuration of a recorder, resolved.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// Its name.
    pub name: String,
    /// Edges as `host:port`; each address that a name has when the recorder starts counts as an edge of its own.
    pub edges: Vec<String>,
    /// The key that proves that it is a keeper of the domain.
    pub key: KeeperKey,
    /// How its wires are protected.
    pub security: Security,
    /// Its timeouts; with edges the same as an agent's.
    pub timeouts: Timeouts,
    /// How long a session is kept that no edge feeds any more.
    pub linger: Duration,
    /// Most bytes that it keeps of all sessions.
    /// Beyond it the session that was silent for longest is forgotten.
    pub memory: u64,
    /// Most sessions that it keeps.
    pub sessions: usize,
    /// The directory of the sessions' files; none if they are only in memory.
    pub directory: Option<PathBuf>,
}

/// Default of `linger`.
pub const LINGER: Duration = Duration::from_secs(300);
/// Default of `memory`, in bytes.
pub const MEMORY: u64 = 1 << 30;
/// Default of `sessions`.
pub const SESSIONS: usize = 65_536;

/// The asking side for operators, and the answering side for [`run`].
#[must_use]
pub fn questions() -> (RecorderHandle, Questions) {
    asking::pair()
}

/// Runs a recorder until `stop`; then it closes its wires to edges, writes what is queued, and returns.
///
/// # Errors
/// If it cannot start, with what to change in its configuration; afterwards only if a system call fails.
pub fn run(options: &RecorderOptions, questions: Questions, stop: StopSignal) -> Result<(), RecorderError> {
    let transport = agent::edge_transport(&options.security, &options.edges)?;
    shell::Shell::new(options, questions, stop, transport)?.run()
}
