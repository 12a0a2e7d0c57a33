//! A Redis server, and clients of its channels: publish and subscribe, which keeps nothing. Each crowd has a channel of its own: on one
//! channel all of them would hear what one crowd says.
//!
//! ```text
//! said:   *3 $7 PUBLISH $3 001 $64 message        answered with the number of subscribers, an integer
//! heard:  *3 $7 message $3 001 $64 message        a line each
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
/// With the name of a channel that there is not.
const HEARD: &[u8] = b"*3\r\n$7\r\nmessage\r\n$3\r\n000\r\n$64\r\n";
const END: &[u8] = b"\r\n";
/// Bytes before and behind a message that a subscriber hears.
pub(super) const AROUND: [usize; 2] = [HEARD.len(), END.len()];
const _: () = assert!(SIZE == 64, "the lines say how long a message is");

/// The name of a channel: three bytes, as the lines say.
pub(super) struct Channel(String);

impl Channel {
    /// The channel of this crowd, of which there are less than a thousand.
    pub(super) fn of(crowd: usize) -> Self {
        Self(format!("{:03}", crowd + 1))
    }
}

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
pub(super) fn subscribe(address: SocketAddr, channel: &Channel) -> anyhow::Result<TcpStream> {
    let mut stream = peer::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = &channel.0;
    stream.write_all(format!("*2\r\n$9\r\nSUBSCRIBE\r\n$3\r\n{name}\r\n").as_bytes())?;
    let expected = format!("*3\r\n$9\r\nsubscribe\r\n$3\r\n{name}\r\n:1\r\n");
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).context("redis does not answer")?;
    anyhow::ensure!(answer == expected.as_bytes(), "redis answers {:?}", String::from_utf8_lossy(&answer));
    Ok(stream)
}

/// A connection that speaks: one that has subscribed cannot.
pub(super) struct Publisher {
    stream: TcpStream,
    /// What comes before each message.
    before: Vec<u8>,
}

impl Publisher {
    pub(super) fn connect(address: SocketAddr, channel: &Channel) -> anyhow::Result<Self> {
        let stream = peer::connect(address)?;
        stream.set_nonblocking(true)?;
        let before = format!("*3\r\n$7\r\nPUBLISH\r\n$3\r\n{}\r\n$64\r\n", channel.0).into_bytes();
        Ok(Self { stream, before })
    }

    /// Says one message; the answers to those before are dropped. One message is under way: the socket has room for it.
    pub(super) fn say(&mut self, message: &[u8; SIZE]) -> anyhow::Result<()> {
        let mut answers = [0; 256];
        loop {
            match self.stream.read(&mut answers) {
                Ok(0) => anyhow::bail!("redis has closed a connection"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("a connection to redis broke"),
            }
        }
        self.stream.write_all(&[&self.before, &message[..], END].concat()).context("a publisher cannot send")
    }
}
