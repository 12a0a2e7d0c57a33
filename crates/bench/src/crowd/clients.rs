//! A crowd of HTTP clients on one thread: each sends its next request when it has its answer.
//!
//! ```text
//! turn(): waits for sockets --> reads --> Answer (checks) --> Waits (times) --> the next request
//! ```
//! The thread sleeps when nothing has arrived, since it shares the cores with the servers. Faults
//! run on a thread of their own while the clients go on.

use super::answer::{self, Answer, Number, Wrong};
use super::wait::Waits;
use crate::cpu;
use anyhow::{Context, anyhow};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take: an answer, or a fault with the recovery behind it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the thread sleeps at most.
const TURN: Duration = Duration::from_millis(5);
/// Connections that are opened at a time. More would not fit into the queue of a listener that has not accepted them yet.
const OPENING: usize = 64;
const EVENTS: usize = 1024;
/// Bytes of the read buffer.
const READ: usize = 64 << 10;

/// A file at a server.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) path: &'static str,
    pub(super) file: Arc<[u8]>,
}

/// What a client does when it has its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Connections {
    /// The next request is on the same connection.
    Keep,
    /// The next request is on a new connection (`Connection: close`).
    New,
}

/// One client, on one connection at a time.
struct Client {
    stream: TcpStream,
    asked: Number,
    request: Vec<u8>,
    /// Bytes of the request that the socket has taken.
    written: usize,
    answer: Answer,
    /// With a connection for each request: the answer is complete, and the connection's end is not there yet.
    ending: bool,
    waits: Waits,
    /// Its connection failed, or an answer was wrong. Such a client asks no more.
    failed: bool,
}

/// All clients of one server or proxy.
pub(super) struct Crowd {
    poll: Poll,
    events: Events,
    target: Target,
    connections: Connections,
    clients: Vec<Client>,
    /// Shared by all clients: each read is processed before the next.
    buffer: Vec<u8>,
    answers: u64,
    /// Whether an answer is followed by a request.
    is_busy: bool,
    /// Answers that did not arrive, and that arrived twice.
    wrong: (u64, u64),
    /// The first of them.
    failure: Option<anyhow::Error>,
}

/// Results of a closed loop.
pub(super) struct Pace {
    /// Answers a second.
    pub(super) per_s: f64,
    /// All answers.
    pub(super) answers: f64,
    /// Processor time of the clients' thread over the time: near 1, the clients were the limit.
    pub(super) clients_busy: f64,
}

impl Crowd {
    /// Connects `count` clients; each has had one answer.
    ///
    /// # Errors
    /// If one cannot connect, or gets no answer.
    pub(super) fn connect(target: Target, connections: Connections, count: usize) -> anyhow::Result<Self> {
        let mut crowd = Self {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS),
            target,
            connections,
            clients: Vec::with_capacity(count),
            buffer: vec![0; READ],
            answers: 0,
            is_busy: false,
            wrong: (0, 0),
            failure: None,
        };
        let deadline = Instant::now() + PATIENCE;
        while crowd.clients.len() < count {
            for _ in 0..OPENING.min(count - crowd.clients.len()) {
                crowd.add_client()?;
            }
            crowd.finish(deadline)?;
            if let Some(failure) = crowd.failure.take() {
                return Err(failure.context("a client cannot begin"));
            }
        }
        Ok(crowd)
    }

    fn add_client(&mut self) -> anyhow::Result<()> {
        let index = self.clients.len();
        let asked = Number { connection: u64::try_from(index)?, request: 0 };
        let client = Client {
            stream: open(&self.poll, self.target.address, index)?,
            asked,
            request: Vec::new(),
            written: 0,
            answer: Answer::default(),
            ending: false,
            waits: Waits::default(),
            failed: false,
        };
        self.clients.push(client);
        self.ask(index, Instant::now());
        Ok(())
    }

    /// How many answers a second there are if every client asks again when it has its answer.
    ///
    /// # Errors
    /// If some clients get no answers.
    pub(super) fn pace(&mut self, time: Duration) -> anyhow::Result<Pace> {
        let (begun, before) = (Instant::now(), self.answers);
        let busy = cpu::of_this_thread_ns();
        self.pace_for(time)?;
        let seconds = begun.elapsed().as_secs_f64();
        let busy = Duration::from_nanos(cpu::of_this_thread_ns().saturating_sub(busy)).as_secs_f64();
        let answers = float(self.answers - before);
        self.is_busy = false;
        self.finish(Instant::now() + PATIENCE)?;
        Ok(Pace {
            per_s: answers / seconds,
            answers: float(self.answers - before),
            clients_busy: busy / seconds,
        })
    }

    /// Runs `work` on another thread while the clients go on, and stops them afterwards.
    ///
    /// # Errors
    /// Those of the clients. The work is waited for in any case.
    pub(super) fn during<R: Send>(&mut self, work: impl FnOnce() -> R + Send) -> anyhow::Result<R> {
        self.ask_all(Instant::now());
        let result = std::thread::scope(|scope| {
            let work = scope.spawn(work);
            let mut turned = Ok(());
            while !work.is_finished() && turned.is_ok() {
                turned = self.turn();
            }
            let result = work.join().map_err(|_| anyhow!("what ran beside the clients panicked"));
            turned.and(result)
        })?;
        self.is_busy = false;
        self.finish(Instant::now() + PATIENCE)?;
        Ok(result)
    }

    /// Busy clients meet a fault: how long each of them waited, in milliseconds.
    ///
    /// They are busy for `settle` before the fault, and for `settle` after the last of them has an
    /// answer to a request that it sent after the fault.
    ///
    /// # Errors
    /// If a client gets no answer in time.
    pub(super) fn gaps_ms(
        &mut self,
        settle: Duration,
        fault: impl FnOnce() + Send,
    ) -> anyhow::Result<Vec<f64>> {
        self.pace_for(settle)?;
        std::thread::scope(|scope| {
            self.clients.iter_mut().for_each(|client| client.waits.strike(Instant::now()));
            scope.spawn(fault);
            self.until_back()
        })?;
        self.pace_for(settle)?;
        self.is_busy = false;
        let gaps = self.gaps();
        self.finish(Instant::now() + PATIENCE)?;
        Ok(gaps)
    }

    /// Idle clients meet a fault and ask at once: how long after it each of them has its answer, in milliseconds.
    ///
    /// # Errors
    /// If a client gets no answer in time.
    pub(super) fn idle_gaps_ms(&mut self, fault: impl FnOnce() + Send) -> anyhow::Result<Vec<f64>> {
        std::thread::scope(|scope| {
            let now = Instant::now();
            scope.spawn(fault);
            for index in 0..self.clients.len() {
                self.clients[index].waits.strike(now);
                self.ask(index, now);
            }
            self.until_back()
        })?;
        Ok(self.gaps())
    }

    /// The number of answers that did not arrive, and of answers that arrived twice, with the first failure.
    pub(super) fn wrong(&self) -> ((u64, u64), Option<String>) {
        (self.wrong, self.failure.as_ref().map(|failure| format!("{failure:#}")))
    }

    fn pace_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.ask_all(begun);
        // What goes on after a failure is not worth measuring.
        while begun.elapsed() < time && self.failure.is_none() {
            self.turn()?;
        }
        Ok(())
    }

    /// Until every client that has not failed is back from the fault.
    fn until_back(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.clients.iter().any(|client| !client.failed && client.waits.gap().is_none()) {
            self.turn()?;
            if Instant::now() > deadline {
                self.lose_waiting();
            }
        }
        Ok(())
    }

    fn gaps(&self) -> Vec<f64> {
        self.clients
            .iter()
            .filter_map(|client| client.waits.gap())
            .map(|gap| gap.as_secs_f64() * 1e3)
            .collect()
    }

    /// Every client asks that waits for nothing, and goes on asking.
    fn ask_all(&mut self, now: Instant) {
        self.is_busy = true;
        for index in 0..self.clients.len() {
            self.ask(index, now);
        }
    }

    /// Until no client waits. Those that wait for too long have lost their answers.
    fn finish(&mut self, deadline: Instant) -> anyhow::Result<()> {
        while self.clients.iter().any(|client| client.waits.is_waiting() && !client.failed) {
            self.turn()?;
            if Instant::now() > deadline {
                self.lose_waiting();
            }
        }
        Ok(())
    }

    fn lose_waiting(&mut self) {
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if !client.failed && client.waits.is_waiting() {
                let asked = client.asked;
                self.fail(index, Wrong::Lost(anyhow!("no answer to {asked} in {PATIENCE:?}")));
            }
        }
    }

    /// Sends a client's next request, if it waits for nothing.
    fn ask(&mut self, index: usize, now: Instant) {
        let client = &mut self.clients[index];
        if client.failed || client.waits.is_waiting() {
            return;
        }
        if let Err(error) = client.ask(&self.target, self.connections, now) {
            self.fail(index, error.into());
        }
    }

    /// Processes what has arrived, and waits for it if nothing has.
    fn turn(&mut self) -> anyhow::Result<()> {
        match self.poll.poll(&mut self.events, Some(TURN)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let Token(index) = event.token();
            if self.clients[index].failed {
                continue;
            }
            let ended = event.is_read_closed();
            if let Err(wrong) = self.serve(index, ended) {
                self.fail(index, wrong);
            }
        }
        self.events = events;
        Ok(())
    }

    /// Writes and reads what one client's socket takes and has.
    fn serve(&mut self, index: usize, ended: bool) -> Result<(), Wrong> {
        self.clients[index].flush()?;
        // Edge-triggered: reads go on until the socket has nothing more.
        loop {
            let client = &mut self.clients[index];
            let len = match client.stream.read(&mut self.buffer) {
                Ok(0) => return self.ended(index),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(anyhow!(error).context("a client cannot read").into()),
            };
            if !client.waits.is_waiting() || client.ending {
                return Err(Wrong::Repeated(anyhow!("{len} bytes that were not asked for")));
            }
            let complete = client.answer.take(&self.buffer[..len], client.asked, &self.target.file)?;
            if self.connections == Connections::New {
                client.ending = complete;
            } else if complete {
                self.answered(index)?;
                // A short read has emptied the socket, unless it ends.
                if !ended && len < READ {
                    return Ok(());
                }
            }
        }
    }

    fn answered(&mut self, index: usize) -> anyhow::Result<()> {
        let now = Instant::now();
        self.answers += 1;
        let client = &mut self.clients[index];
        client.waits.answered(now);
        if self.is_busy { client.ask(&self.target, self.connections, now) } else { Ok(()) }
    }

    /// A connection ended: in order, if it was for one request and this is answered.
    fn ended(&mut self, index: usize) -> Result<(), Wrong> {
        let client = &mut self.clients[index];
        answer::may_end(&client.answer, client.asked)?;
        if !client.ending {
            return Err(anyhow!("the server ended a connection before the answer to {}", client.asked).into());
        }
        client.ending = false;
        client.stream = open(&self.poll, self.target.address, index)?;
        Ok(self.answered(index)?)
    }

    /// Counts what is wrong; the client asks no more.
    fn fail(&mut self, index: usize, wrong: Wrong) {
        self.clients[index].failed = true;
        let error = match wrong {
            Wrong::Lost(error) => {
                self.wrong.0 += 1;
                error
            }
            Wrong::Repeated(error) => {
                self.wrong.1 += 1;
                error
            }
        };
        self.failure.get_or_insert(error);
    }
}

impl Client {
    fn ask(&mut self, target: &Target, connections: Connections, now: Instant) -> anyhow::Result<()> {
        self.asked.request += 1;
        let close = if connections == Connections::New { "Connection: close\r\n" } else { "" };
        self.request.clear();
        let (path, asked) = (target.path, self.asked);
        write!(self.request, "GET {path}?{asked} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n")?;
        self.written = 0;
        self.waits.ask(now);
        self.flush()
    }

    /// Writes what the socket takes. A socket that is not connected yet takes nothing, and says so when it is.
    fn flush(&mut self) -> anyhow::Result<()> {
        while self.written < self.request.len() {
            match self.stream.write(&self.request[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(error) => return Err(error).context("a client cannot ask"),
            }
        }
        Ok(())
    }
}

/// A connection that begins.
fn open(poll: &Poll, address: SocketAddr, index: usize) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("a client cannot connect")?;
    stream.set_nodelay(true)?;
    poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
    Ok(stream)
}

/// As a number with which ratios can be computed.
pub(super) fn float(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "answers of some seconds, KiB of one process")]
    let float = count as f64;
    float
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    const FILE: &[u8] = b"a file";

    /// A server that answers each line that asks, as `answer` says for its number among all requests.
    fn server(answer: impl Fn(u32, &str) -> String + Send + 'static) -> Target {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut number = 0;
            for stream in listener.incoming().map_while(Result::ok) {
                let mut writer = stream.try_clone().unwrap();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if let Some(asked) = line.strip_prefix("GET /f?") {
                        let asked = asked.trim_end_matches(" HTTP/1.1");
                        number += 1;
                        writer.write_all(answer(number, asked).as_bytes()).unwrap();
                    }
                    if line == "Connection: close" {
                        break;
                    }
                }
            }
        });
        Target { address, path: "/f", file: FILE.into() }
    }

    fn right(asked: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Asked: {asked}\r\n\r\na file")
    }

    #[test]
    fn clients_go_on_during_other_work_and_count_right_answers_only() {
        for connections in [Connections::Keep, Connections::New] {
            let mut crowd = Crowd::connect(server(|_, asked| right(asked)), connections, 1).unwrap();
            let pace = crowd.pace(Duration::from_millis(1)).unwrap();
            assert!(pace.answers >= 1.0, "{connections:?}");
            assert_eq!(crowd.during(|| 7).unwrap(), 7);
            assert_eq!(crowd.wrong(), ((0, 0), None), "{connections:?}");
        }
    }

    #[test]
    fn a_repeated_answer_and_a_short_one_are_counted() {
        let twice = server(|number, asked| right(asked).repeat(if number == 2 { 2 } else { 1 }));
        let mut crowd = Crowd::connect(twice, Connections::Keep, 1).unwrap();
        // A failure ends it early.
        crowd.pace(PATIENCE).unwrap();
        assert_eq!(crowd.wrong().0, (0, 1));
        let short = server(|number, asked| {
            let mut answer = right(asked);
            answer.truncate(answer.len() - usize::from(number == 2));
            answer
        });
        let mut crowd = Crowd::connect(short, Connections::New, 1).unwrap();
        crowd.pace(Duration::from_millis(1)).unwrap();
        assert_eq!(crowd.wrong().0, (1, 0));
    }

    #[test]
    fn every_client_has_a_gap_around_a_fault() {
        let mut crowd = Crowd::connect(server(|_, asked| right(asked)), Connections::Keep, 1).unwrap();
        assert_eq!(crowd.gaps_ms(Duration::ZERO, || {}).unwrap().len(), 1);
        assert_eq!(crowd.idle_gaps_ms(|| {}).unwrap().len(), 1);
        assert_eq!(crowd.wrong().0, (0, 0));
    }
}
