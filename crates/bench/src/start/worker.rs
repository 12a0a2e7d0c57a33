//! Measurements that need a separate process: forks from a small process, and starting cells while another process does.
//!
//! Forks are timed in a small process, because a fork copies page tables: the benchmark's own
//! process would make them look slow.

use anyhow::Context;
use marram_sandbox::{Images, bench::Nursery};
use std::hint::black_box;
use std::io::{BufRead, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Pages that a forked child writes.
const PAGES: usize = 8;
/// Bytes of a page.
const PAGE: usize = 4096;

/// One part of a benchmark, which `marram bench` starts.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Worker {
    /// Forks children that write eight pages and end; prints microseconds, one a line.
    Forks {
        /// Number of forks.
        rounds: usize,
    },
    /// Forks a child for each connection, which sends back what it gets; prints its address.
    Serve,
    /// Starts a program and waits for its end; prints microseconds, one a line.
    Execs {
        /// Number of starts.
        rounds: usize,
        /// The program.
        program: PathBuf,
    },
    /// Takes connections from standard input, and reports the time at which it has read each one's first bytes.
    Handover,
    /// Starts and ends cells, after it has read a line from standard input; prints how many.
    Activations {
        /// Duration in milliseconds.
        ms: u64,
        /// Directory for images.
        place: PathBuf,
    },
}

impl Worker {
    /// Runs the part.
    ///
    /// # Errors
    /// If the machine lacks a resource for it.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Forks { rounds } => forks(*rounds),
            Self::Serve => serve(),
            Self::Execs { rounds, program } => execs(*rounds, program),
            Self::Handover => super::handover::take(),
            Self::Activations { ms, place } => activations(Duration::from_millis(*ms), place),
        }
    }
}

/// `fork`, write to eight pages that were shared, `_exit`, `waitpid`: printed in microseconds.
fn forks(rounds: usize) -> anyhow::Result<()> {
    let mut memory = vec![1_u8; PAGES * PAGE];
    for _ in 0..rounds {
        let begun = Instant::now();
        // SAFETY: this process has one thread, and the child only writes to its copy of `memory` and ends at once,
        // without running destructors. There is no safe interface to a fork without an exec.
        let child = unsafe { libc::fork() };
        if child == 0 {
            memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 2);
            black_box(&memory);
            // SAFETY: ends the child as a fork without an exec should end.
            unsafe { libc::_exit(0) };
        }
        anyhow::ensure!(child > 0, "cannot fork: {}", std::io::Error::last_os_error());
        // SAFETY: waits for the child that was just made; no status is asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        println!("{}", begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(())
}

/// From now on this process ends when the benchmark that started it ends, for any reason.
pub(in super::super) fn end_with_benchmark() {
    std::thread::spawn(|| {
        // The input never has bytes; a read returns only at its end.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0)
    });
}

/// The process for each client of `ping`: one fork for each connection, and no exec.
fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
    println!("{}", listener.local_addr()?);
    end_with_benchmark();
    // SAFETY: sets how this process, which starts nothing else, treats children that end: they leave nothing to wait for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    for stream in listener.incoming() {
        let mut stream = stream?;
        // SAFETY: the other thread waits for its input and holds no lock; the child only serves its connection and ends.
        if unsafe { libc::fork() } == 0 {
            let mut buffer = [0; 256];
            while let Ok(len) = stream.read(&mut buffer)
                && len > 0
                && stream.write_all(&buffer[..len]).is_ok()
            {}
            // SAFETY: ends the child as a fork without an exec should end.
            unsafe { libc::_exit(0) };
        }
    }
    Ok(())
}

/// The program runs with an empty environment, and its end is awaited.
fn execs(rounds: usize, program: &PathBuf) -> anyhow::Result<()> {
    for _ in 0..rounds {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.env_clear().stdin(Stdio::null());
        let status = command.status().with_context(|| format!("cannot start {}", program.display()))?;
        let spent = begun.elapsed();
        anyhow::ensure!(status.success(), "the program failed");
        println!("{}", spent.as_secs_f64() * 1e6);
    }
    Ok(())
}

/// Whole lives of cells until the time is over; the warm-up is before the signal.
fn activations(time: Duration, place: &Path) -> anyhow::Result<()> {
    let mut nursery = Nursery::new(&Images::open(place)?, 1, 1, 64)?;
    for _ in 0..100 {
        nursery.live(0)?;
    }
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let begun = Instant::now();
    let mut count = 0_u64;
    while begun.elapsed() < time {
        nursery.live(0)?;
        count += 1;
    }
    println!("{count}");
    Ok(())
}
