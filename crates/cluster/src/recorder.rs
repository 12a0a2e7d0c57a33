//! A recorder that can be killed and restarted, with or without its previous directory.

use super::cluster::TestCluster;
use super::process::TestProcess;
use super::temp_dir::free_address;
use anyhow::anyhow;
use marram_admin::client::ApiClient;
use std::fmt::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// How long a recorder may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Its name in the collected logs.
pub const RECORDER: &str = "recorder";

/// A recorder: the address of its admin API, and its process.
pub struct TestRecorder {
    admin: SocketAddr,
    process: TestProcess,
}

impl TestRecorder {
    /// A client of its admin API.
    ///
    /// # Errors
    /// Never, for an address that was free once.
    pub fn client(&self) -> anyhow::Result<ApiClient> {
        ApiClient::new(&self.admin.to_string(), None).map_err(|why| anyhow!(why))
    }

    /// Its process.
    pub fn process(&mut self) -> &mut TestProcess {
        &mut self.process
    }
}

impl TestCluster {
    /// Starts a recorder for all edges, in place of a running one, and waits until every running edge is connected to it. `extra`
    /// contains additional fields before the first table of its configuration, `tables` additional tables.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_recorder(&mut self, extra: &str, tables: &str) -> anyhow::Result<()> {
        self.recorder = None;
        let admin = free_address()?;
        let edges: Vec<String> = self.edge_addresses().iter().map(SocketAddr::to_string).collect();
        let secret = self.directory.path().join("secret").display().to_string();
        let mut text = format!("name = \"lab\"\nedges = {edges:?}\nsecret_file = {secret:?}\n{extra}\n");
        writeln!(
            text,
            "[admin]\nlisten = \"{admin}\"\n[log]\nformat = \"json\"\nlevel = \"debug\"\n{tables}"
        )?;
        if self.is_encrypted() {
            let token = self.directory.path().join("token").display().to_string();
            writeln!(text, "[security]\ntoken_file = {token:?}")?;
        }
        let config = self.directory.write("recorder.toml", text)?;
        let mut command = Command::new(self.program());
        command.arg("recorder").arg("--config").arg(config);
        let errors = self.directory.path().join("recorder.stderr");
        let start = self.logs.end();
        let process = TestProcess::start(RECORDER, &mut command, &self.logs, &errors)?;
        let shards = self.edges.iter().filter(|edge| edge.is_running()).count() * self.shards();
        let mut up = 0;
        process.wait_ready(&self.logs, start, START_PATIENCE, |event| {
            up += usize::from(event.name() == "edge_up");
            up >= shards
        })?;
        self.recorder = Some(TestRecorder { admin, process });
        Ok(())
    }
}
