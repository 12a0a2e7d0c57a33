//! A Redis server, and clients of one channel of it: publish and subscribe, which keeps nothing.
//!
//! ```text
//! said:   *3 $7 PUBLISH $3 hub $64 message        answered with the number of subscribers, an integer
//! heard:  *3 $7 message $3 hub $64 message        a line each
//! ```

use super::crowd::SIZE;
use crate::baseline::require;
use crate::{cpu, peer};
use anyhow::Context;
use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the server may take until it listens, and answers.
const PATIENCE: Duration = Duration::from_secs(10);
const HEARD: &[u8] = b"*3\r\n$7\r\nmessage\r\n$3\r\nhub\r\n$64\r\n";
const SAID: &[u8] = b"*3\r\n$7\r\nPUBLISH\r\n$3\r\nhub\r\n$64\r\n";
const END: &[u8] = b"\r\n";
/// Bytes before and behind a message that a subscriber hears.
pub(super) const AROUND: [usize; 2] = [HEARD.len(), END.len()];
const _: () = assert!(SIZE == 64, "the lines say how long a message is");

/// A running server, which keeps nothing and cuts off no subscriber.
pub(super) struct Redis {
    pub(super) address: SocketAddr,
    /// The command that has started it.
    pub(super) command: String,
    _process: TestProcess,
    _place: TempDir,
}

impl Redis {
    /// # Errors
    /// If it is not installed, or does not listen.
    pub(super) fn start(logs: &LogCollector) -> anyhow::Result<Self> {
        let (program, place, address) =
            (require("redis-server", "redis-server")?, TempDir::new("bench-redis")?, free_address()?);
        let settings = "--save \"\" --appendonly no --maxclients 10000 --protected-mode no --client-output-buffer-limit \"pubsub 0 0 0\"";
        let mut command = Command::new(program);
        command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--maxclients", "10000", "--protected-mode", "no"]);
        command.args(["--client-output-buffer-limit", "pubsub 0 0 0", "--dir"]).arg(place.path());
        let errors = place.path().join("stderr");
        let mut process = TestProcess::start("redis", &mut command, logs, &errors)?;
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let is_over = process.ended() || Instant::now() >= deadline;
            anyhow::ensure!(!is_over, "redis-server does not listen at {address}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // As the shards and agents.
        let _ = cpu::lets_run_first(process.id());
        Ok(Self { address, command: format!("redis-server {settings}"), _process: process, _place: place })
    }
}

/// A connection that has subscribed.
pub(super) fn subscribe(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = peer::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$3\r\nhub\r\n")?;
    let expected = b"*3\r\n$9\r\nsubscribe\r\n$3\r\nhub\r\n:1\r\n";
    let mut answer = [0; 37];
    let answer = &mut answer[..expected.len()];
    stream.read_exact(answer).context("redis does not answer")?;
    anyhow::ensure!(*answer == *expected, "redis answers {:?}", String::from_utf8_lossy(answer));
    Ok(stream)
}

/// A connection that speaks: one that has subscribed cannot.
pub(super) struct Publisher(TcpStream);

impl Publisher {
    pub(super) fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = peer::connect(address)?;
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// Says one message; the answers to those before are dropped. One message is under way: the socket has room for it.
    pub(super) fn say(&mut self, message: &[u8; SIZE]) -> anyhow::Result<()> {
        let mut answers = [0; 256];
        loop {
            match self.0.read(&mut answers) {
                Ok(0) => anyhow::bail!("redis has closed a connection"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("a connection to redis broke"),
            }
        }
        self.0.write_all(&[SAID, message, END].concat()).context("a publisher cannot send")
    }
}
