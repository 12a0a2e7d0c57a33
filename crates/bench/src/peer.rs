//! The unmodified programs at both ends: servers that echo, and clients that know the expected answers.
//!
//! These know nothing of Marram: sockets, bytes and time. Everything is on loopback and with
//! `TCP_NODELAY`, as programs that care for latency set it.

use anyhow::Context;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long an answer may take before the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts an echo server for any number of connections, which runs until the program ends.
pub(super) fn echo_server() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The thread ends when its client disconnects.
            std::thread::spawn(move || _ = echo(stream));
        }
    });
    Ok(address)
}

/// Sends back what it reads, in whatever pieces it comes.
fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            len => stream.write_all(&buffer[..len])?,
        }
    }
}

/// A client's connection. With a time limit for every read and write, so that a session that hangs
/// fails the measurement instead of stopping it.
pub(super) fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends `message` and waits until as many bytes have come back, `count` times; returns the times in microseconds.
///
/// # Errors
/// If an answer does not come or differs: a wrong byte is found at the message in which it is.
pub(super) fn round_trips(stream: &mut TcpStream, message: &[u8], count: usize) -> anyhow::Result<Vec<f64>> {
    let mut answer = vec![0; message.len()];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        stream.write_all(message)?;
        stream.read_exact(&mut answer).context("the answer did not arrive")?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        anyhow::ensure!(answer == message, "the answer is not what was sent");
    }
    Ok(times)
}

/// Sends `count` messages without waiting for answers, while another thread reads them; returns MB a second.
///
/// `count` times the message must come back; its contents are not compared here.
pub(super) fn throughput(stream: &mut TcpStream, message: &[u8], count: usize) -> anyhow::Result<f64> {
    let (mut reading, total) = (stream.try_clone()?, message.len() * count);
    let start = Instant::now();
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut buffer, mut left) = (vec![0; 256 << 10], total);
        while left > 0 {
            let room = left.min(buffer.len());
            match reading.read(&mut buffer[..room])? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                len => left -= len,
            }
        }
        Ok(())
    });
    for _ in 0..count {
        stream.write_all(message)?;
    }
    reader
        .join()
        .map_err(|_| anyhow::anyhow!("the reader panicked"))?
        .context("the answers did not arrive")?;
    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    Ok(total as f64 / 1e6 / start.elapsed().as_secs_f64())
}
