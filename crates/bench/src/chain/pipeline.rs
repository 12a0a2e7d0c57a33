//! Processes joined by Unix sockets that keep message boundaries, and this process, which feeds the first and reads from the
//! last.
//!
//! `SOCK_SEQPACKET` keeps message boundaries, so a stage needs no framing: one read, one write.
//! That is the least that a process for each stage can cost.

use crate::Plan;
use anyhow::Context;
use bytes::Bytes;
use rustix::io::{read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Messages in flight: enough that no stage waits for the others, few enough that no socket is full.
pub(super) const WINDOW: u32 = 64;

/// Running processes; dropping it ends them.
pub(super) struct Pipeline {
    children: Vec<Child>,
    /// Where this process writes, and where it reads.
    into: OwnedFd,
    out: OwnedFd,
}

impl Pipeline {
    /// Starts one process for each stage. With `batches`, each reads all messages that wait before it writes the first.
    pub(super) fn processes(plan: &Plan, stages: usize, batches: bool) -> anyhow::Result<Self> {
        Self::start(plan, &vec![with_batches(vec!["stage".into()], batches); stages])
    }

    /// Starts one process that runs a chain of cells. `batches` as above.
    pub(super) fn cell(plan: &Plan, images: &Path, stages: usize, batches: bool) -> anyhow::Result<Self> {
        let module = plan.cells.module("forward").display().to_string();
        let arguments = vec!["line".into(), stages.to_string(), module, images.display().to_string()];
        Self::start(plan, &[with_batches(arguments, batches)])
    }

    /// Each worker's output is the next one's input; the first reads from this process, the last
    /// writes to it.
    fn start(plan: &Plan, workers: &[Vec<String>]) -> anyhow::Result<Self> {
        let (into, mut reads) = pair()?;
        let mut children = Vec::new();
        for arguments in workers {
            let (writes, next) = pair()?;
            let mut command = Command::new(&plan.own);
            command.arg("worker").args(arguments).stdin(reads).stdout(writes);
            children.push(command.spawn().context("cannot start a worker of this benchmark")?);
            reads = next;
        }
        Ok(Self { children, into, out: reads })
    }

    /// Time for `count` messages, from the first that goes in to the last that comes out, with `window` of them in flight.
    ///
    /// # Errors
    /// If a message came out changed, or a worker has ended. All messages are equal, so an exchange
    /// of two is not noticed.
    pub(super) fn pass_many(&mut self, message: &Bytes, count: u32, window: u32) -> anyhow::Result<Duration> {
        let mut buffer = vec![0; message.len() + 1];
        let begun = Instant::now();
        for _ in 0..count.min(window) {
            write(&self.into, message)?;
        }
        for received in 0..count {
            let len = read(&self.out, &mut buffer)?;
            anyhow::ensure!(buffer[..len] == message[..], "a worker lost or changed a message");
            if received + window < count {
                write(&self.into, message)?;
            }
        }
        Ok(begun.elapsed())
    }
}

fn with_batches(mut arguments: Vec<String>, batches: bool) -> Vec<String> {
    arguments.extend(batches.then(|| "--batches".into()));
    arguments
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A pair of packet sockets: a read returns one message, so that no stage has to find message boundaries.
fn pair() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context("cannot join processes by a socket")
}
