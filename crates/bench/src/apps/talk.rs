//! A player of a game with a line-based protocol.
//!
//! For the games of `cells/examples`, which speak lines over TCP. It does not know any game.

use anyhow::Context;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a line may take before the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection.
pub(super) struct Player {
    stream: BufReader<TcpStream>,
    line: String,
}

impl Player {
    pub(super) fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("nothing listens on {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), line: String::new() })
    }

    pub(super) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    /// The next line, and when it arrived.
    pub(super) fn hear(&mut self) -> anyhow::Result<(&str, Instant)> {
        self.line.clear();
        let count = self.stream.read_line(&mut self.line)?;
        anyhow::ensure!(count > 0, "the connection ended");
        Ok((self.line.trim_end(), Instant::now()))
    }
}
