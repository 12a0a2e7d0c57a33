//! Real memcached processes.

use super::memory;
use crate::harness::{Journal, Place, Process};
use anyhow::Context;
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long processes may take until they listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses on loopback that nobody uses, all different.
pub(super) fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let listener = |_| TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback");
    let listeners = (0..count).map(listener).collect::<anyhow::Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

/// Running processes.
pub(super) struct Processes {
    all: Process,
    /// Where each listens.
    pub(super) addresses: Vec<SocketAddr>,
    _place: Place,
}

impl Processes {
    /// Starts `count` of them, each for up to `connections` at a time, on the core that this thread runs on.
    pub(super) fn start(count: usize, connections: usize) -> anyhow::Result<Self> {
        let (place, addresses) = (Place::new("bench-memcached")?, free_addresses(count)?);
        let mut script = String::new();
        for (number, address) in addresses.iter().enumerate() {
            // The last takes the shell's place, so that there are as many processes as are asked for.
            let (before, after) = if number + 1 < count { ("", " &") } else { ("exec ", "") };
            let port = address.port();
            writeln!(
                script,
                "{before}memcached -l 127.0.0.1 -p {port} -t 1 -m 64 -c {connections} -u nobody{after}"
            )?;
        }
        let script = place.write("start.sh", script)?;
        let mut command = Command::new("sh");
        command.arg(script);
        let errors = place.path().join("stderr");
        let mut all = Process::start("memcached", &mut command, &Journal::default(), &errors)?;
        let deadline = Instant::now() + PATIENCE;
        for address in &addresses {
            while TcpStream::connect(address).is_err() {
                let said = || std::fs::read_to_string(&errors).unwrap_or_default();
                let ended = all.ended() || Instant::now() >= deadline;
                anyhow::ensure!(!ended, "memcached does not listen; is it installed? {}", said());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Self { all, addresses, _place: place })
    }

    /// Of all of them.
    pub(super) fn memory_kib(&self) -> u64 {
        memory::proportional_kib(self.all.id())
    }
}
