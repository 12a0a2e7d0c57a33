//! An HTTP client that keeps its connection and sends one request after another, with little overhead of its own.
//!
//! Understands what the servers of these benchmarks answer: status 200, `Content-Length` or chunks,
//! and gzip or nothing. Anything else is an error, because it would not be what is measured. It
//! does not decompress.

use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take before the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    /// Reused for each line of a head.
    line: String,
    /// Body of the last answer.
    pub(super) body: Vec<u8>,
}

impl Client {
    pub(super) fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("nothing listens on {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream), line: String::new(), body: Vec::new() })
    }

    /// Requests a path, with or without gzip, and reads the whole answer. Returns whether it is compressed.
    pub(super) fn get(&mut self, path: &str, gzip: bool) -> anyhow::Result<bool> {
        let accept = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
        let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n");
        self.stream.get_mut().write_all(ask.as_bytes())?;
        let (mut length, mut is_gzip) = (None, false);
        let status = self.line()?.to_owned();
        anyhow::ensure!(status.starts_with("HTTP/1.1 200"), "{path}: {status}");
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                None => break,
                Some(("content-length", value)) => length = Some(value.parse()?),
                Some(("content-encoding", value)) => is_gzip = value == "gzip",
                Some(_) => {}
            }
        }
        self.body.clear();
        match length {
            Some(length) => self.take(length)?,
            None => {
                while let size @ 1.. = usize::from_str_radix(self.line()?, 16)? {
                    self.take(size)?;
                    self.line()?;
                }
                self.line()?;
            }
        }
        Ok(is_gzip)
    }

    /// The next line without its end; the connection must not end here.
    fn line(&mut self) -> anyhow::Result<&str> {
        self.line.clear();
        if self.stream.read_line(&mut self.line)? == 0 {
            bail!("the connection ended");
        }
        Ok(self.line.trim_end())
    }

    /// Appends exactly `len` bytes to the body.
    fn take(&mut self, len: usize) -> anyhow::Result<()> {
        let start = self.body.len();
        self.body.resize(start + len, 0);
        Ok(self.stream.read_exact(&mut self.body[start..])?)
    }
}
