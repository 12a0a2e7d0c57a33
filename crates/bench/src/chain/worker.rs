//! The processes of `marram bench chain`: each reads messages from a socket that is its standard input, and writes them to its
//! standard output.

use bytes::Bytes;
use marram_sandbox::{Images, bench::BenchChain};
use rustix::io::{read, write};
use std::io::{stdin, stdout};
use std::path::{Path, PathBuf};

/// Largest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// One part of a benchmark; started by `marram bench`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Worker {
    /// Copies messages from its input to its output, one by one.
    Stage,
    /// Passes messages through a chain of cells, one by one.
    Line {
        /// Number of stages.
        stages: usize,
        /// The module of every stage.
        module: PathBuf,
        /// Directory for images.
        place: PathBuf,
    },
}

impl Worker {
    /// Runs until its input ends.
    pub(in super::super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Stage => stage(),
            Self::Line { stages, module, place } => line(*stages, module, place),
        }
    }
}

fn stage() -> anyhow::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match read(stdin(), &mut buffer)? {
            0 => return Ok(()),
            len => write(stdout(), &buffer[..len])?,
        };
    }
}

fn line(stages: usize, module: &Path, place: &Path) -> anyhow::Result<()> {
    let mut line = BenchChain::new(&Images::open(place)?, &std::fs::read(module)?, stages)?;
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match read(stdin(), &mut buffer)? {
            0 => return Ok(()),
            len => write(stdout(), &line.pass(Bytes::copy_from_slice(&buffer[..len]))?)?,
        };
    }
}
