//! The baseline server of `marram bench classify`: forks a process for each client, which runs the cell's module without an edge.
//!
//! ```text
//! parent: deploys the module, listens; accept -> fork -> child: one cell, one connection, ends with it
//! ```
//! The fork happens after compiling, so that a child shares the compiled code with its siblings, as
//! cells of an edge do. It is a cheap way to give each client a process of its own with the same
//! module.

use crate::start;
use anyhow::{Context, bail};
use bytes::Bytes;
use marram_sandbox::{Cells, CellsConfig, Image, Images, Progress, Quotas};
use marram_session::cell::{CellId, CellInput, CellOutput, PortKind, Ran, Run, RunOutcome, Seed};
use marram_wire::id::Port;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The id of the only cell of a process.
const CELL: CellId = CellId(1);

/// One part of a benchmark; started by `marram bench`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Worker {
    /// Forks a child for each connection, which classifies images; prints its address.
    Classify {
        /// The cell's module.
        module: PathBuf,
        /// Directory for images.
        place: PathBuf,
        /// Whether children have a thread that advances the engine's epoch every millisecond while they work, as an edge's shard has.
        #[arg(long)]
        ticks: bool,
    },
}

impl Worker {
    /// Runs until it is ended.
    pub(in super::super) fn run(&self) -> anyhow::Result<()> {
        let Self::Classify { module, place, ticks } = self;
        serve(module, place, *ticks)
    }
}

/// Prints its address once it listens, for the benchmark to read.
fn serve(module: &Path, place: &Path, ticks: bool) -> anyhow::Result<()> {
    let images = Images::open(place)?;
    // The quotas of the cell's manifest.
    let quotas = Quotas { memory_max: 16 << 20, nan_canonicalization: false, ..Quotas::default() };
    let image = images.load(images.deploy(&std::fs::read(module)?, &[], &quotas)?.hash)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
    println!("{}", listener.local_addr()?);
    start::end_with_benchmark();
    // SAFETY: sets how this process treats children that end: they leave nothing to wait for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    for stream in listener.incoming() {
        let stream = stream?;
        // SAFETY: other threads of this process wait for its input, or compiled the module; they are idle, hold no lock, and the
        // child compiles nothing. It serves its connection and ends. There is no safe interface to a fork without an exec.
        if unsafe { libc::fork() } == 0 {
            let failed = client(stream, &image, ticks)
                .inspect_err(|error| eprintln!("a client's process: {error:#}"))
                .is_err();
            // SAFETY: ends the child as a fork without an exec should end.
            unsafe { libc::_exit(i32::from(failed)) };
        }
    }
    Ok(())
}

/// The child's life: starts its cell, opens the port, and answers until the client leaves.
fn client(mut stream: TcpStream, image: &Arc<Image>, ticks: bool) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut cells = Cells::new(CellsConfig { slots: 1, slices: ticks, ..CellsConfig::default() })?;
    cells.start(CELL, image, Seed([4; 32]))?;
    handle(&mut cells, CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None })?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        let payload = Bytes::copy_from_slice(&buffer[..len]);
        for output in handle(&mut cells, CellInput::Message { port: Port::CLIENT, payload })?.outputs {
            let CellOutput::Message { payload, .. } = output else { return Ok(()) };
            stream.write_all(&payload)?;
        }
    }
}

/// Runs a handler to its end; no other cell waits.
fn handle(cells: &mut Cells, input: CellInput) -> anyhow::Result<Ran> {
    let mut progress = cells.run(Run { cell: CELL, input, now_ns: 0, logged: None });
    loop {
        match progress {
            Progress::Pending => progress = cells.poll(CELL),
            Progress::Done(ran) if ran.outcome == RunOutcome::Idle => return Ok(ran),
            Progress::Done(ran) => bail!("the cell stopped: {:?}", ran.outcome),
        }
    }
}
