//! The coordinator's store in a process of its own, `marram coordinator serve`, on loopback.

use super::log_collector::{LogCollector, LogEvent};
use super::process::TestProcess;
use super::temp_dir::{TempDir, free_address};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long it may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A store, which ends when it is dropped.
pub struct TestStore {
    address: SocketAddr,
    _process: TestProcess,
    // The process ends before its directory is removed.
    _place: TempDir,
}

impl TestStore {
    /// Starts it with an empty file, and waits until it serves.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(program: &Path, logs: &LogCollector) -> anyhow::Result<Self> {
        let (address, place) = (free_address()?, TempDir::new("store")?);
        let text = format!("serve = \"{address}\"\ndirectory = \"store\"\n[log]\nformat = \"json\"\n");
        let config: PathBuf = place.write("store.toml", text)?;
        let start = logs.end();
        let mut command = Command::new(program);
        command.args(["coordinator", "serve", "--config"]).arg(&config);
        let process = TestProcess::start("store", &mut command, logs, &place.path().join("store.stderr"))?;
        let serves = |event: &LogEvent| event.text("message").contains("serving the coordinator's store");
        process.wait_ready(logs, start, START_PATIENCE, serves)?;
        Ok(Self { address, _process: process, _place: place })
    }

    /// A field of an edge's configuration, by which it uses this store.
    #[must_use]
    pub fn field(&self) -> String {
        format!("coordinator = {{ urls = [\"http://{}\"], lease = \"5s\" }}", self.address)
    }
}
