//! The shard processes of an edge: started from this program's own file, watched through the socket that each holds, and
//! restarted when they die.
//!
//! ```text
//! Due(at) ─ start ─▶ Running ─ the socket closed, or a message makes no sense ─▶ kill, wait ─▶ Due(at)
//! ```
//!
//! A shard gets everything again after each start (`Setup`, then what the control knows): no
//! state is expected to survive. Its sessions are recovered by their ends, on any shard.

use super::{
    EdgeOptions,
    setup::{FromProcess, Setup, ToProcess},
};
use crate::logging::{self, Receiver};
use bytes::Bytes;
use marram_transport::{IpcChannel, Security};
use mio::{Interest, Registry, Token, net::UnixStream};
use std::{
    io,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{error, info, warn};

/// First wait before a shard that died soon after its start is restarted; doubles.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait before a shard is restarted.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A shard that lived this long did not die of its start; it is restarted at once.
const MATURE: Duration = Duration::from_secs(5);

struct Running {
    child: Child,
    channel: IpcChannel,
    /// When it was started.
    since: Instant,
}

enum State {
    Running(Box<Running>),
    /// It will be started at this time.
    Due(Instant),
}

/// One shard's process, or the time of its next start.
pub(super) struct Process {
    /// Encoded once; it holds secrets and never leaves this machine.
    setup: Bytes,
    shard: u8,
    token: Token,
    /// Where its log lines go, if they are kept.
    lines: Option<Arc<Receiver>>,
    state: State,
    /// Deaths in a row, each but the first soon after a start.
    early_deaths: u32,
}

impl Process {
    /// A process to start at once.
    ///
    /// The process starts with the next [`Self::start_if_due`].
    pub(super) fn new(
        (options, security): (&EdgeOptions, &Security),
        (shard, token): (u8, Token),
        lines: Option<&Arc<Receiver>>,
        now: Instant,
    ) -> Self {
        let setup = ToProcess::Setup(Box::new(Setup::new(options, security, shard))).encode();
        Self { setup, shard, token, lines: lines.cloned(), state: State::Due(now), early_deaths: 0 }
    }

    /// When the process must be started, if it does not run.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Running(_) => None,
            State::Due(at) => Some(at),
        }
    }

    /// Starts the process if it is time; true if it was started.
    pub(super) fn start_if_due(&mut self, registry: &Registry, now: Instant) -> bool {
        if self.due().is_none_or(|at| at > now) {
            return false;
        }
        match self.spawn(registry, now) {
            Ok(running) => {
                info!(shard = self.shard, pid = running.child.id(), "shard started");
                self.state = State::Running(Box::new(running));
                true
            }
            Err(error) => {
                error!(shard = self.shard, %error, "cannot start a shard");
                self.state = State::Due(now + self.backoff());
                false
            }
        }
    }

    /// The setup is the first message in the socket. The child's end of it exists only in the
    /// child, so its death closes it.
    fn spawn(&self, registry: &Registry, now: Instant) -> io::Result<Running> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut ours = UnixStream::from_std(ours);
        registry.register(&mut ours, self.token, Interest::READABLE | Interest::WRITABLE)?;
        // The link names this very file even if another one has replaced it on disk. The socket is the child's standard
        // input: the one descriptor that a child can get without unsafe code.
        let child = Command::new("/proc/self/exe")
            .arg("shard")
            .envs(logging::environment())
            .envs(huge_pages())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("cannot start this program again: {error}"))
            })?;
        let mut channel = IpcChannel::new(ours);
        let lines = self.lines.as_ref().map(|lines| lines.sender()).transpose()?;
        channel.send(&self.setup, lines);
        Ok(Running { child, channel, since: now })
    }

    fn backoff(&self) -> Duration {
        BACKOFF_MAX.min(BACKOFF_MIN * 2u32.saturating_pow(self.early_deaths.min(16)))
    }

    /// Whether one more message fits.
    pub(super) fn has_room(&self) -> bool {
        matches!(&self.state, State::Running(running) if running.channel.has_room())
    }

    /// Queues a message. Messages for a dead process are dropped: the control sends everything to its successor.
    pub(super) fn send(&mut self, message: &ToProcess, descriptor: Option<OwnedFd>) {
        if let State::Running(running) = &mut self.state {
            running.channel.send(&message.encode(), descriptor);
        }
    }

    /// Writes queued messages. A dead process is noticed by reading.
    pub(super) fn flush(&mut self) {
        if let State::Running(running) = &mut self.state {
            let _ = running.channel.flush();
        }
    }

    /// Appends the messages that it sent, with their descriptors; false if it is dead. It is then restarted later.
    ///
    /// What a dying shard sent before its end still counts: the messages are appended in either
    /// case.
    pub(super) fn read(&mut self, messages: &mut Vec<(FromProcess, Option<OwnedFd>)>, now: Instant) -> bool {
        let State::Running(running) = &mut self.state else { return true };
        let alive = running.channel.read().unwrap_or(false);
        let mut sane = true;
        while let Some((body, descriptor)) = running.channel.next_message() {
            match FromProcess::decode(body) {
                Ok(message) => messages.push((message, descriptor)),
                Err(_) => sane = false,
            }
        }
        if alive && sane {
            return true;
        }
        self.bury(now);
        false
    }

    /// Blocks until the process is gone, which after SIGKILL is soon: two processes never have one
    /// shard's number.
    fn bury(&mut self, now: Instant) {
        let State::Running(running) = &mut self.state else { return };
        // It is dead, or it has closed its only link to the supervisor and is useless.
        let killed = running.child.kill();
        let status = running.child.wait();
        let how = killed.and(status).map_or_else(|error| error.to_string(), |status| status.to_string());
        // A single death is an accident; a further one soon after a start may have its cause in the start.
        let early = now.duration_since(running.since) < MATURE;
        let wait = if early && self.early_deaths > 0 { self.backoff() } else { Duration::ZERO };
        self.early_deaths = if early { self.early_deaths + 1 } else { 1 };
        warn!(shard = self.shard, %how, wait_ms = wait.as_millis(), "shard died, starting another");
        self.state = State::Due(now + wait);
    }

    /// Ends the process, which has no more work.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if let State::Running(running) = &mut self.state {
            running.child.kill()?;
            running.child.wait()?;
        }
        Ok(())
    }
}

/// Turns on huge pages in glibc's allocator. Checkpoints are large buffers that are filled once: with pages of 4 KiB, the page
/// faults cost more than the bytes. With another allocator, this has no effect.
///
/// The allocator reads its tunables when a process starts. An operator's own setting stays.
fn huge_pages() -> Option<(&'static str, &'static str)> {
    const VARIABLE: &str = "GLIBC_TUNABLES";
    std::env::var_os(VARIABLE).is_none().then_some((VARIABLE, "glibc.malloc.hugetlb=1"))
}
