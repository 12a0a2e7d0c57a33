//! The client: Debian's curl, which writes what it receives into a pipe; this module counts and hashes the bytes as they arrive.
//!
//! ```text
//! curl ── pipe ──▶ thread: read, hash, count ──Progress──▶ faults.rs waits for bytes, holds, goes on
//! ```

use anyhow::Context;
use sha2::{Digest, Sha256};
use std::io::{BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running download.
pub(super) struct Curl {
    child: Child,
    progress: Arc<Progress>,
    /// Returns the digest of all that was read.
    reader: Option<JoinHandle<[u8; 32]>>,
}

#[derive(Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    bytes: u64,
    ended: bool,
    /// Whether reading from curl is paused.
    held: bool,
}

/// A finished download.
pub(super) struct Download {
    pub(super) bytes: u64,
    pub(super) sha256: [u8; 32],
    /// Connections that curl made, by its own count.
    pub(super) connections: u64,
    /// The meaning of curl's exit status.
    pub(super) status: String,
    pub(super) success: bool,
}

impl Curl {
    /// Starts the download of one URL at `rate` MiB a second.
    pub(super) fn start(url: &str, rate: u64) -> anyhow::Result<Self> {
        let mut child = Command::new("curl")
            // No retry and no resume: one connection must be enough.
            .args(["--silent", "--show-error", "--no-keepalive", "--limit-rate", &format!("{rate}M")])
            .args(["--write-out", "%{stderr}connections=%{num_connects}\n", url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start curl; install it (Debian: apt-get install curl)")?;
        let mut pipe = child.stdout.take().expect("it is piped");
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        let reader = std::thread::spawn(move || {
            let (mut digest, mut buffer) = (Sha256::new(), vec![0; 256 << 10]);
            loop {
                shared.wait_while_held();
                let Ok(len @ 1..) = pipe.read(&mut buffer) else { break };
                digest.update(&buffer[..len]);
                shared.update(|state| state.bytes += len as u64);
            }
            shared.update(|state| state.ended = true);
            digest.finalize().into()
        });
        Ok(Self { child, progress, reader: Some(reader) })
    }

    /// Waits until `bytes` bytes have arrived; fails if the download ends before.
    pub(super) fn wait_for(&self, bytes: u64, patience: Duration) -> anyhow::Result<u64> {
        let deadline = Instant::now() + patience;
        let mut state = self.progress.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.bytes < bytes {
            anyhow::ensure!(!state.ended, "curl ended after {} bytes", state.bytes);
            let left = deadline.saturating_duration_since(Instant::now());
            anyhow::ensure!(
                !left.is_zero(),
                "curl has {} bytes after {patience:?}, not {bytes}",
                state.bytes
            );
            let waited = self.progress.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.bytes)
    }

    /// Pauses reading: curl and its senders have to wait once the pipes are full.
    pub(super) fn hold(&self) {
        self.progress.update(|state| state.held = true);
    }

    /// Continues reading.
    pub(super) fn go_on(&self) {
        self.progress.update(|state| state.held = false);
    }

    /// Bytes received so far.
    pub(super) fn bytes(&self) -> u64 {
        self.progress.state.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// Whether curl has ended.
    pub(super) fn ended(&self) -> bool {
        self.progress.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Waits for the end.
    ///
    /// Releases a pause first, or curl would never end.
    pub(super) fn finish(mut self) -> anyhow::Result<Download> {
        self.go_on();
        let reader = self.reader.take().expect("it exists until the end");
        let sha256 = reader.join().map_err(|_| anyhow::anyhow!("reading from curl panicked"))?;
        let mut words = String::new();
        let errors = self.child.stderr.take().expect("it is piped");
        BufReader::new(errors).read_to_string(&mut words)?;
        let exit = self.child.wait()?;
        let connections = words.lines().find_map(|line| line.strip_prefix("connections=")?.parse().ok());
        let said = words.lines().find(|line| line.starts_with("curl:")).unwrap_or("no complaint");
        Ok(Download {
            bytes: self.bytes(),
            sha256,
            connections: connections.unwrap_or(0),
            status: format!("{exit}, {said}"),
            success: exit.success(),
        })
    }
}

impl Progress {
    fn wait_while_held(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that panicked has left a plain value in the mutex.
        drop(self.changed.wait_while(state, |state| state.held).unwrap_or_else(PoisonError::into_inner));
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Drop for Curl {
    fn drop(&mut self) {
        // Both fail if curl has ended and was waited for, which is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
