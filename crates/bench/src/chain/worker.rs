//! The processes of `marram bench chain`: each reads messages from a socket that is its standard input, and writes them to its
//! standard output.

use bytes::Bytes;
use marram_sandbox::{Images, bench::BenchChain};
use rustix::io::{Errno, read, write};
use rustix::net::{RecvFlags, recv};
use std::io::{stdin, stdout};
use std::path::PathBuf;

/// Largest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Messages that a worker which takes what waits reads before it writes any of them.
const BATCH_MAX: usize = 64;

/// One part of a benchmark; started by `marram bench`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Worker {
    /// Copies messages from its input to its output, one by one.
    Stage {
        /// Read all messages that wait before the first is written.
        #[arg(long)]
        batches: bool,
    },
    /// Passes messages through a chain of cells, one by one.
    Line {
        /// Number of stages.
        stages: usize,
        /// The module of every stage.
        module: PathBuf,
        /// Directory for images.
        place: PathBuf,
        /// Read all messages that wait before the first is passed, and pass all before the first is written.
        #[arg(long)]
        batches: bool,
    },
}

impl Worker {
    /// Runs until its input ends.
    pub(in super::super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Stage { batches: false } => stage(),
            Self::Stage { batches: true } => in_batches(Ok),
            Self::Line { stages, module, place, batches } => {
                let line = BenchChain::new(&Images::open(place)?, &std::fs::read(module)?, *stages)?;
                if *batches { batched_line(line) } else { single_line(line) }
            }
        }
    }
}

/// One read and one write for each message, and no copy: the baseline does no more than it must. The loop ends when the writing
/// side of its input is closed.
fn stage() -> anyhow::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match read(stdin(), &mut buffer)? {
            0 => return Ok(()),
            len => write(stdout(), &buffer[..len])?,
        };
    }
}

/// As [`stage`], with a whole chain between the read and the write. The copy is part of what it is measured with: a cell gets
/// a message in memory of its own.
fn single_line(mut line: BenchChain) -> anyhow::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match read(stdin(), &mut buffer)? {
            0 => return Ok(()),
            len => write(stdout(), &line.pass(Bytes::copy_from_slice(&buffer[..len]))?)?,
        };
    }
}

fn batched_line(mut line: BenchChain) -> anyhow::Result<()> {
    in_batches(|message| Ok(line.pass(message)?))
}

/// Reads all messages that wait, passes each through `pass`, and writes what comes out, until its input ends.
fn in_batches(mut pass: impl FnMut(Bytes) -> anyhow::Result<Bytes>) -> anyhow::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut waiting = Vec::with_capacity(BATCH_MAX);
    loop {
        match read(stdin(), &mut buffer)? {
            0 => return Ok(()),
            len => waiting.push(Bytes::copy_from_slice(&buffer[..len])),
        }
        while waiting.len() < BATCH_MAX {
            match recv(stdin(), &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::AGAIN) => break,
                Ok((len, _)) => waiting.push(Bytes::copy_from_slice(&buffer[..len])),
                Err(error) => return Err(error.into()),
            }
        }
        for message in &mut waiting {
            *message = pass(core::mem::take(message))?;
        }
        for message in waiting.drain(..) {
            write(stdout(), &message)?;
        }
    }
}
