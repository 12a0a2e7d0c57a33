//! The same behaviours as processes: each loads the kernel's scheduler as its cell loads the shard's.
//!
//! The kernel gives each process its share by time; the shard does it by slices and weights. Each
//! behaviour here loads its scheduler in the same way: computing, writing, faulting pages in,
//! waking up, accepting connections.

use super::super::peer;
use super::Kind;
use anyhow::Context;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Limit of a cell's memory, unless its manifest sets another one.
const GROWTH: usize = 64 << 20;
const PAGE: usize = 4_096;
/// Number of threads, each of which sleeps for one nanosecond at a time.
const TIMERS: usize = 8;

/// One process of the benchmark, which `marram bench` starts.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Worker {
    /// Is as busy as a hostile cell; prints its address.
    Noisy {
        /// The behaviour.
        kind: Kind,
    },
}

impl Worker {
    /// Serves until it is killed.
    ///
    /// # Errors
    /// If no port is free.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::Noisy { kind } = self;
        serve(*kind)
    }
}

/// Serves one client at a time, except for the kinds that only echo.
fn serve(kind: Kind) -> anyhow::Result<()> {
    match kind {
        Kind::Echo | Kind::Connections => say(peer::echo_server()?),
        kind => {
            let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a process")?;
            say(listener.local_addr()?);
            for mut stream in listener.incoming().map_while(Result::ok) {
                // Like the cell, it begins at its first byte of input.
                if stream.read_exact(&mut [0]).is_ok() {
                    misbehave(kind, &mut stream);
                }
            }
        }
    }
    loop {
        std::thread::park();
    }
}

/// For the benchmark to read.
fn say(address: SocketAddr) {
    println!("{address}");
}

/// Begins what the kind does; most never return.
fn misbehave(kind: Kind, stream: &mut TcpStream) {
    match kind {
        Kind::Loop => loop {
            std::hint::spin_loop();
        },
        // Ends when the client has disconnected.
        Kind::Flood => while stream.write_all(&[0; PAGE]).is_ok() {},
        Kind::Growth => loop {
            let mut memory = vec![0_u8; GROWTH];
            memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
            black_box(&memory);
        },
        Kind::Timers => {
            for _ in 1..TIMERS {
                std::thread::spawn(wait_for_nothing);
            }
            wait_for_nothing();
        }
        Kind::Echo | Kind::Connections => {}
    }
}

/// One of the threads of [`Kind::Timers`].
fn wait_for_nothing() {
    loop {
        std::thread::sleep(Duration::from_nanos(1));
    }
}
