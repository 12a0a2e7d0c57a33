//! The coordinator's store in a process of its own, `marram coordinator serve`.

use super::log_collector::{LogCollector, LogEvent};
use super::process::TestProcess;
use super::temp_dir::{TempDir, free_address};
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Its configuration, in a directory of its own.
const CONFIG: &str = "store.toml";
/// How long it may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A store, which ends when it is dropped.
pub struct TestStore {
    address: SocketAddr,
    /// Of its users, if it listens on more than loopback.
    token_file: Option<PathBuf>,
    program: PathBuf,
    logs: LogCollector,
    process: Option<TestProcess>,
    // The process ends before its directory is removed.
    place: TempDir,
}

impl TestStore {
    /// Starts it on loopback with an empty file, and waits until it serves.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(program: &Path, logs: &LogCollector) -> anyhow::Result<Self> {
        Self::start_at(free_address()?, None, program, logs)
    }

    /// As [`Self::start`], on all addresses of this machine, for those who show this token.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_for_all(token_file: PathBuf, program: &Path, logs: &LogCollector) -> anyhow::Result<Self> {
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), free_address()?.port());
        Self::start_at(address, Some(token_file), program, logs)
    }

    fn start_at(
        address: SocketAddr,
        token_file: Option<PathBuf>,
        program: &Path,
        logs: &LogCollector,
    ) -> anyhow::Result<Self> {
        let place = TempDir::new("store")?;
        let (program, logs) = (program.to_owned(), logs.clone());
        let mut store = Self { address, token_file, program, logs, process: None, place };
        store.restart()?;
        Ok(store)
    }

    /// Starts it with the file that it has, and waits until it serves.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.process = None;
        let token = self.token();
        let text =
            format!("serve = \"{}\"\n{token}directory = \"store\"\n[log]\nformat = \"json\"\n", self.address);
        let config = self.place.write(CONFIG, text)?;
        let start = self.logs.end();
        let mut command = Command::new(&self.program);
        command.args(["coordinator", "serve", "--config"]).arg(&config);
        let errors = self.place.path().join("store.stderr");
        let process = TestProcess::start("store", &mut command, &self.logs, &errors)?;
        let serves = |event: &LogEvent| event.text("message").contains("serving the coordinator's store");
        process.wait_ready(&self.logs, start, START_PATIENCE, serves)?;
        self.process = Some(process);
        Ok(())
    }

    fn token(&self) -> String {
        let line = |path: &PathBuf| format!("token_file = {:?}\n", path.display().to_string());
        self.token_file.as_ref().map_or_else(String::new, line)
    }

    /// A field of an edge's configuration, by which it uses this store.
    #[must_use]
    pub fn field(&self) -> String {
        self.field_at(Ipv4Addr::LOCALHOST)
    }

    /// The same for an edge in a namespace, which reaches this machine at `host`.
    #[must_use]
    pub fn field_at(&self, host: Ipv4Addr) -> String {
        let token = self.token().trim_end().to_owned();
        let token = if token.is_empty() { token } else { format!(", {token}") };
        let port = self.address.port();
        format!("coordinator = {{ urls = [\"http://{host}:{port}\"], lease = \"5s\"{token} }}")
    }

    /// Where it is reached on this machine.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.address.port())
    }

    /// Its configuration. The directory of its file is `store`, beside it.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.place.path().join(CONFIG)
    }

    /// Ends it in order. Its file stays.
    ///
    /// # Errors
    /// If it does not end well.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.signal(Signal::TERM);
        let status = process.wait()?;
        anyhow::ensure!(status.success(), "the store ended with {status}");
        Ok(())
    }

    /// Kills it. Its file stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops it, as on a machine that hangs.
    pub fn stop(&self) {
        self.process.iter().for_each(|process| process.signal(Signal::STOP));
    }

    /// Wakes what [`Self::stop`] stopped.
    pub fn wake(&self) {
        self.process.iter().for_each(|process| process.signal(Signal::CONT));
    }
}
