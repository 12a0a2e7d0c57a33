//! A recorder that can be killed and restarted, with or without its previous directory.

use super::process::TestProcess;
use marram_admin::client::ApiClient;
use std::net::SocketAddr;

/// Its name in the collected logs.
pub const RECORDER: &str = "recorder";

/// A recorder: the address of its admin API, and its process.
pub struct TestRecorder {
    pub(super) admin: SocketAddr,
    pub(super) process: TestProcess,
}

impl TestRecorder {
    /// A client of its admin API.
    ///
    /// # Errors
    /// Never, for an address that was free once.
    pub fn client(&self) -> anyhow::Result<ApiClient> {
        Ok(ApiClient::new(&self.admin.to_string(), None)?)
    }

    /// Its process.
    pub fn process(&mut self) -> &mut TestProcess {
        &mut self.process
    }
}
