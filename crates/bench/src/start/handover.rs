//! The cost of accepting connections in one process and serving them in another, as an edge's supervisor and its shards do.
//! Nothing else crosses between the processes of an edge on behalf of a session.
//!
//! ```text
//! client --connect, 8 bytes--> listener: accept() --SCM_RIGHTS--> other process: register, poll, read
//!                                        ^ begun                                                   ^ read
//! ```
//! The clock of both is the system's, so the two times can be subtracted. The baseline is the same
//! in one process, with the same poll.

use super::super::report::Report;
use super::super::{Plan, progress, stats};
use anyhow::Context;
use marram_transport::IpcChannel;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

/// A client's first bytes: as long as a preamble.
const FIRST: [u8; 8] = *b"preamble";
/// A message of the supervisor with a connection has about this length.
const WORD: [u8; 3] = [1, 0, 0];
/// What a poll reports: the channel between the processes, and the connection that is being read.
const CHANNEL: Token = Token(0);
const CONNECTION: Token = Token(1);
/// Unmeasured rounds at the start.
const WARM_UP: usize = 20;

/// Measures both ways alternately, so that a disturbance of the machine affects both.
pub(super) fn run(plan: &Plan, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    progress("start: connections handed from process to process");
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(&plan.own);
    command.args(["worker", "handover"]).stdin(Stdio::from(OwnedFd::from(theirs)));
    let other = Other(command.spawn().context("cannot start a worker of this benchmark")?);
    let mut acceptor = Acceptor::new(ours)?;
    let (mut handed, mut kept) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let (across, here) = (acceptor.hand_over()?, acceptor.keep()?);
        if round >= WARM_UP {
            handed.push(across);
            kept.push(here);
        }
    }
    drop((acceptor, other));
    report.metric("handover_p50_us", stats::median(&handed));
    report.tail("handover_p99_us", &stats::Tail::of(&handed));
    report.metric("no_handover_p50_us", stats::median(&kept));
    report.tail("no_handover_p99_us", &stats::Tail::of(&kept));
    report.baseline("no_handover", "the same connection, accepted and read in one process, by the same poll");
    report.note(
        "handover: from accept() in one process to the first bytes read in another, idle one; once a wire, \
        not a session",
    );
    Ok(())
}

/// A process that takes connections; dropping it ends it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // The process ends by itself when the channel is closed, or has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process that accepts connections. Where connections are accepted, and the channel to the
/// process that takes them.
struct Acceptor {
    listener: TcpListener,
    address: SocketAddr,
    /// To the other process.
    channel: IpcChannel,
    poll: Poll,
    events: Events,
}

impl Acceptor {
    fn new(channel: UnixStream) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        let address = listener.local_addr()?;
        let (channel, poll) = watched(channel)?;
        Ok(Self { listener, address, channel, poll, events: Events::with_capacity(8) })
    }

    /// A connected client that has sent its first bytes, the accepted connection, and the time of the accept.
    fn accept(&self) -> anyhow::Result<(TcpStream, TcpStream, Duration)> {
        let mut client = TcpStream::connect(self.address)?;
        client.write_all(&FIRST)?;
        let accepted = self.listener.accept()?.0;
        Ok((client, accepted, now()))
    }

    /// Microseconds until another process has read a connection's first bytes.
    ///
    /// The report with the other's time comes back over the same channel and is not part of the
    /// result.
    fn hand_over(&mut self) -> anyhow::Result<f64> {
        let (_client, accepted, begun) = self.accept()?;
        self.channel.send(&WORD, Some(accepted.into()));
        loop {
            self.channel.flush()?;
            anyhow::ensure!(self.channel.read()?, "the other process ended");
            if let Some((told, _)) = self.channel.next_message() {
                let read = <[u8; 8]>::try_from(&told[..]).context("it reports a time")?;
                return Ok(micros(Duration::from_nanos(u64::from_le_bytes(read)).saturating_sub(begun)));
            }
            wait(&mut self.poll, &mut self.events)?;
        }
    }

    /// Microseconds until this process has read a connection's first bytes.
    fn keep(&mut self) -> anyhow::Result<f64> {
        let (_client, accepted, begun) = self.accept()?;
        let read = read_first(&mut self.poll, &mut self.events, accepted)?;
        Ok(micros(read.saturating_sub(begun)))
    }
}

/// The other process: takes connections from standard input, reads each one's first bytes, and sends back the time of that read.
pub(super) fn take() -> anyhow::Result<()> {
    let (mut channel, mut poll) = watched(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    let mut events = Events::with_capacity(8);
    loop {
        wait(&mut poll, &mut events)?;
        let open = channel.read()?;
        while let Some((_, descriptor)) = channel.next_message() {
            let connection = TcpStream::from(descriptor.context("a connection comes with each word")?);
            let read = read_first(&mut poll, &mut events, connection)?;
            let nanos = u64::try_from(read.as_nanos()).context("it is not the year 2500")?;
            channel.send(&nanos.to_le_bytes(), None);
            channel.flush()?;
        }
        if !open {
            return Ok(());
        }
    }
}

/// A channel and the poll that reports when it can be read or written.
fn watched(socket: UnixStream) -> anyhow::Result<(IpcChannel, Poll)> {
    socket.set_nonblocking(true)?;
    let mut channel = IpcChannel::new(mio::net::UnixStream::from_std(socket));
    let poll = Poll::new()?;
    poll.registry().register(channel.socket(), CHANNEL, Interest::READABLE | Interest::WRITABLE)?;
    Ok((channel, poll))
}

/// Waits for the next event; an interruption is no error.
fn wait(poll: &mut Poll, events: &mut Events) -> anyhow::Result<()> {
    match poll.poll(events, Some(Duration::from_secs(10))) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        polled => Ok(polled?),
    }
}

/// Registers a connection as an event loop does, and reads its first bytes; returns the time of that read.
fn read_first(poll: &mut Poll, events: &mut Events, connection: TcpStream) -> anyhow::Result<Duration> {
    connection.set_nonblocking(true)?;
    let mut connection = mio::net::TcpStream::from_std(connection);
    poll.registry().register(&mut connection, CONNECTION, Interest::READABLE | Interest::WRITABLE)?;
    let mut first = [0; FIRST.len()];
    loop {
        wait(poll, events)?;
        match connection.read(&mut first) {
            Ok(count) => {
                anyhow::ensure!(first[..count] == FIRST, "the first bytes are another connection's");
                return Ok(now());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A clock with the same value in both processes.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
