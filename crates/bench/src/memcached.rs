//! Real memcached processes.
//!
//! Several servers share a process group, so that they can be stopped, measured and ended together.
//! Each has one thread, as the shard that is compared with them has, and an address of its own.

use super::baseline::require;
use super::memory;
use marram_cluster::{LogCollector, TempDir, TestProcess};
use rustix::process::Signal;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the processes may take until they listen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Port of the memcached servers, each of which has its own address.
const PORT: u16 = 11_211;

/// Distinct loopback addresses that no other listener and no connection of this machine uses. With a thousand free ports of one
/// address instead, some would be in use again by the time they are needed.
///
/// The block of a process is fixed by its id: two benchmarks at the same time rarely have the same
/// six bits. Each call of a process gets the next block.
pub(super) fn addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    static BLOCKS: AtomicU32 = AtomicU32::new(0);
    let block = BLOCKS.fetch_add(1, Ordering::Relaxed) % 32;
    // 127.64.0.0 to 127.127.255.255: the process selects the second octet, and a counter selects blocks of 2,048 addresses.
    let first = 0x7f40_0000 | (std::process::id() & 0x3f) << 16 | block << 11;
    anyhow::ensure!(count <= 2_048, "there are addresses for 2,048 tenants");
    let address = |number| Ok((Ipv4Addr::from(first + u32::try_from(number)?), PORT).into());
    (0..count).map(address).collect()
}

/// Running processes.
pub(super) struct Processes {
    /// The shell's process group.
    all: TestProcess,
    /// Address of each process.
    pub(super) addresses: Vec<SocketAddr>,
    _place: TempDir,
}

impl Processes {
    /// Starts `count` processes, each for up to `connections` at a time, on the core that this thread runs on.
    ///
    /// # Errors
    /// If the program is missing, or a server does not listen within [`PATIENCE`]; then with what
    /// it printed.
    pub(super) fn start(count: usize, connections: usize) -> anyhow::Result<Self> {
        let (place, addresses) = (TempDir::new("bench-memcached")?, addresses(count)?);
        let program = require("memcached", "memcached")?.display().to_string();
        let mut script = String::new();
        for (number, address) in addresses.iter().enumerate() {
            // The last process replaces the shell, so that there are exactly `count` processes.
            let (before, after) = if number + 1 < count { ("", " &") } else { ("exec ", "") };
            let ip = address.ip();
            writeln!(
                script,
                "{before}{program} -l {ip} -p {PORT} -t 1 -m 64 -c {connections} -u nobody{after}"
            )?;
        }
        let script = place.write("start.sh", script)?;
        let mut command = Command::new("sh");
        command.arg(script);
        let errors = place.path().join("stderr");
        let mut all = TestProcess::start("memcached", &mut command, &LogCollector::default(), &errors)?;
        let deadline = Instant::now() + PATIENCE;
        for address in &addresses {
            while TcpStream::connect(address).is_err() {
                let said = || std::fs::read_to_string(&errors).unwrap_or_default();
                let ended = all.ended() || Instant::now() >= deadline;
                anyhow::ensure!(!ended, "memcached does not listen: {}", said());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Self { all, addresses, _place: place })
    }

    /// Stops or continues them. A stopped process keeps its memory and its connections, and takes
    /// no time from the other side.
    pub(super) fn rest(&self, rests: bool) {
        self.all.signal(if rests { Signal::STOP } else { Signal::CONT });
    }

    /// Memory of all of them.
    pub(super) fn memory_kib(&self) -> u64 {
        memory::proportional_kib(self.all.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_tenants_have_one_address() {
        let all: BTreeSet<SocketAddr> = (0..3).flat_map(|_| addresses(1_000).unwrap()).collect();
        assert_eq!(all.len(), 3_000);
        assert!(all.iter().all(|address| address.ip().is_loopback()));
        assert!(addresses(2_049).is_err());
    }
}
