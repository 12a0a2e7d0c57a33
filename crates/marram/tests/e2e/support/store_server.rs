//! The coordinator's store in a process of its own.

use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use rustix::process::Signal;
use std::{net::SocketAddr, process::Command, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);
const STORE_PROCESS: &str = "store";

/// The program that was built with the tests.
pub(crate) fn marram() -> Command {
    Command::new(env!("CARGO_BIN_EXE_marram"))
}

/// `marram coordinator serve`, on loopback.
pub(crate) struct StoreServer {
    pub(crate) address: SocketAddr,
    process: Option<TestProcess>,
}

impl StoreServer {
    pub(crate) fn start(place: &TempDir, logs: &LogCollector) -> Self {
        let mut store = Self { address: free_address().unwrap(), process: None };
        store.start_again(place, logs);
        store
    }

    pub(crate) fn start_again(&mut self, place: &TempDir, logs: &LogCollector) {
        let text = format!("serve = \"{}\"\ndirectory = \"store\"\n[log]\nformat = \"json\"\n", self.address);
        let config = place.write("store.toml", text).unwrap();
        let checked = marram().args(["config", "check", "coordinator"]).arg(&config).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
        let start = logs.end();
        let mut command = marram();
        command.args(["coordinator", "serve", "--config"]).arg(&config);
        let errors = place.path().join("store.stderr");
        let process = TestProcess::start(STORE_PROCESS, &mut command, logs, &errors).unwrap();
        let serves = |event: &marram_cluster::LogEvent| {
            event.text("message").contains("serving the coordinator's store")
        };
        process.wait_ready(logs, start, PATIENCE, serves).unwrap();
        self.process = Some(process);
    }

    /// Ends in order.
    pub(crate) fn stop(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.signal(Signal::TERM);
        assert!(process.wait().unwrap().success());
    }

    /// Ends at once.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }
}
