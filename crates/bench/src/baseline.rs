//! Programs that serve as baselines; and what a user would put between client and server today, with as many hops as Marram:
//! HAProxy.
//!
//! A figure without something to compare it with says little, so each benchmark runs its baseline
//! in the same run, on the same cores and alternating with what is measured. A baseline that is not
//! installed is an error and not a skipped figure.

use anyhow::Context;
use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// As many hops as Marram has: client's agent, edge, server's agent.
pub(super) const HOPS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// A running chain of relays.
pub(super) struct Chain {
    /// Where clients connect.
    pub(super) address: SocketAddr,
    /// The command that starts a relay, for the report.
    pub(super) command: String,
    /// The relays end with the chain.
    processes: Vec<TestProcess>,
}

impl Chain {
    /// Starts a chain of `hops` relays to `server`.
    ///
    /// Each relay is a process with one thread, as the agents and the edge's shard are. They are
    /// started on the core that this thread is pinned to, if it is.
    pub(super) fn start(
        hops: usize,
        server: SocketAddr,
        place: &TempDir,
        logs: &LogCollector,
    ) -> anyhow::Result<Self> {
        let program = require("haproxy", "haproxy")?;
        let (mut address, mut processes) = (server, Vec::new());
        for hop in 0..hops {
            let listen = free_address()?;
            let file = place.write(&format!("relay-{hop}.conf"), haproxy(listen, address))?;
            let mut command = Command::new(&program);
            command.arg("-db").arg("-f").arg(&file);
            let errors = place.path().join("relay.stderr");
            processes.push(TestProcess::start(&format!("relay {hop}"), &mut command, logs, &errors)?);
            wait_for(listen)?;
            address = listen;
        }
        let command = format!("{hops} x haproxy -f relay.conf (one thread, tcp, listen -> next hop)");
        Ok(Self { address, command, processes })
    }

    /// The relays' process groups.
    pub(super) fn groups(&self) -> Vec<u32> {
        self.processes.iter().map(TestProcess::id).collect()
    }
}

/// Path of a program that serves as a baseline.
///
/// # Errors
/// If it is not installed: nothing is measured without its baseline.
pub(super) fn require(program: &str, package: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs servers in a directory that is not in an ordinary user's `PATH`.
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")]);
    let found = folders.map(|folder| folder.join(program)).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "`{program}` is missing, and without it there is no baseline: run this by `cargo xtask bench`, which installs it, or install \
             Debian's package {package}"
        )
    })
}

/// Tries until it connects: a program that is started needs some milliseconds until it listens.
fn wait_for(address: SocketAddr) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        anyhow::ensure!(Instant::now() < deadline, "the relay at {address} does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The configuration of one relay: TCP in, TCP out, no timeouts that a benchmark could meet.
fn haproxy(listen: SocketAddr, next: SocketAddr) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 2000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  \
         timeout server 1h\nlisten relay\n  bind {listen}\n  server next {next}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_baseline_is_an_error_that_names_its_package() {
        assert!(require("sh", "dash").is_ok());
        let error = require("marram-no-such-program", "some-package").unwrap_err().to_string();
        assert!(
            error.contains("`marram-no-such-program` is missing") && error.contains("package some-package"),
            "{error}"
        );
    }
}
