//! A conversation in which every answer is known: each question changes the cell's state, and sends bytes through it to the
//! server and back.
//!
//! ```text
//! question:  T pages n | F len | len bytes of the stream        to the cell
//! cell:      changes its pages, answers T; passes the bytes on to the server
//! server:    compares them with the stream, sends them back
//! answer:    T pages digest | len bytes                          compared by the client
//! ```
//! So each question checks the state (the digest), the way to the server, and the way back. After a
//! fault all later digests would be wrong if the cell had missed or repeated one message. A cell that clients share sends the bytes to
//! all of them: to this one, and to a [`Listener`].

use super::listener::Listener;
use super::model::{Model, Wrong, compare, stream};
use crate::{peer, pinger};
use anyhow::Context;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pages of the cell's state: 4 MiB.
const PAGES: usize = 1024;
/// Of the generator that fills the state.
const SEED: u64 = 0x5eed;
/// Bytes of the server's stream in a question.
const PIECE: usize = 40;
/// Bytes of a long message.
const LONG: usize = 256 << 10;
/// Bytes of a command, and of its answer.
const HEADER: usize = 17;

/// An echo server that checks what it receives.
#[derive(Clone, Default)]
pub(super) struct Server {
    /// What all connections have received wrong since the last look.
    heard: Arc<Mutex<Wrong>>,
}

impl Server {
    /// Starts it, on every address of this machine, until the program ends.
    pub(super) fn start(&self) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
        let address = listener.local_addr()?;
        let server = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = server.clone();
                // The thread ends when its client disconnects.
                std::thread::spawn(move || _ = server.serve(stream));
            }
        });
        Ok(address)
    }

    /// One connection: the stream begins at 0 with each.
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut buffer, mut at) = (vec![0; 64 << 10], 0);
        loop {
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            if let Some(wrong) = compare(at, &buffer[..len]) {
                self.lock().add(wrong);
            }
            at += len as u64;
            stream.write_all(&buffer[..len])?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Wrong> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The differences since the last call.
    pub(super) fn take(&self) -> Wrong {
        std::mem::take(&mut *self.lock())
    }
}

/// A client's connection, and the data that it must receive.
pub(super) struct Talk {
    stream: TcpStream,
    model: Model,
    /// Position in the stream to the server and back.
    at: u64,
    /// Numbers the questions; part of what each changes.
    questions: u64,
    /// Of this client alone; the server has its own.
    wrong: Wrong,
    /// Why the conversation cannot continue.
    broken: Option<String>,
    /// The cell's other client, if it has one.
    listener: Option<Listener>,
}

impl Talk {
    /// Bytes of the cell's state, at least.
    pub(super) const STATE_BYTES: u64 = (PAGES as u64) << 12;

    /// Connects, and fills the cell with state. Where another client's address is given, that one is there before.
    pub(super) fn start(address: SocketAddr, other: Option<SocketAddr>) -> anyhow::Result<Self> {
        let listener = other.map(Listener::join).transpose()?;
        let model = Model::filled(PAGES, SEED);
        let mut stream = peer::connect(address)?;
        let answer = pinger::ask(&mut stream, b'B', model.bytes(), SEED)?;
        anyhow::ensure!(answer == (model.bytes(), model.checksum()), "the cell does not hold what it should");
        Ok(Self { stream, model, at: 0, questions: 0, wrong: Wrong::default(), broken: None, listener })
    }

    /// Whether the connection is still there and all received data was correct.
    pub(super) fn is_whole(&self) -> bool {
        self.broken.is_none() && !self.wrong().any() && self.listener_lost().is_none()
    }

    /// Why the other client has lost its connection, if it has.
    pub(super) fn listener_lost(&self) -> Option<String> {
        self.listener.as_ref().and_then(Listener::why)
    }

    /// The cell's other client, if it has one.
    pub(super) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// `None` while the conversation can continue.
    pub(super) fn why(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// What was wrong with what the clients of this conversation received.
    pub(super) fn wrong(&self) -> Wrong {
        let mut wrong = self.wrong;
        wrong.add(self.listener.as_ref().map(Listener::wrong).unwrap_or_default());
        wrong
    }

    /// Asks a small question; returns how long the answer took.
    pub(super) fn ask(&mut self) -> Duration {
        self.question(1, PIECE)
    }

    /// Changes the whole state; returns how long the answer took.
    pub(super) fn churn(&mut self) -> Duration {
        self.question(self.model.pages(), PIECE)
    }

    /// After a loss of the connection it does nothing, and takes no time.
    fn question(&mut self, pages: u64, piece: usize) -> Duration {
        let begun = Instant::now();
        if self.broken.is_none() {
            self.questions += 1;
            let touch = pinger::command(b'T', pages, self.questions);
            let forward = pinger::command(b'F', piece as u64, 0);
            let message = [&touch[..], &forward, &stream(self.at, piece)].concat();
            let said = self.stream.write_all(&message);
            let heard = said.and_then(|()| self.hear_touch(pages)).and_then(|()| self.hear(piece));
            self.note(heard);
        }
        begun.elapsed()
    }

    /// The answer depends on all questions before it, through the state.
    fn hear_touch(&mut self, pages: u64) -> std::io::Result<()> {
        let expected = pinger::command(b'T', pages, self.model.touch(pages, self.questions));
        let mut answer = [0; HEADER];
        self.stream.read_exact(&mut answer)?;
        // A message lost or repeated on the way to the cell leaves it in another state than its client's.
        self.wrong.changed += u64::from(answer != expected);
        Ok(())
    }

    /// Receives `len` bytes of the server's and checks them.
    fn hear(&mut self, len: usize) -> std::io::Result<()> {
        let mut heard = vec![0; len];
        self.stream.read_exact(&mut heard)?;
        self.wrong.add(compare(self.at, &heard).unwrap_or_default());
        self.at += len as u64;
        Ok(())
    }

    ///
    /// After an error the stream's position is unknown, so the conversation is over.
    fn note(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            // The question has no answer.
            self.wrong.lost += 1;
            self.broken = Some(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer arrived in time".into(),
                _ => error.to_string(),
            });
        }
    }

    /// Sends the first half of a long message.
    pub(super) fn begin_long(&mut self) {
        if self.broken.is_none() {
            let forward = pinger::command(b'F', LONG as u64, 0);
            let said = self.stream.write_all(&[&forward[..], &stream(self.at, LONG / 2)].concat());
            self.note(said);
        }
    }

    /// Sends the rest, and waits until all of it has come back; returns how long that took.
    pub(super) fn finish_long(&mut self) -> Duration {
        let begun = Instant::now();
        if self.broken.is_none() {
            let rest = stream(self.at + (LONG / 2) as u64, LONG - LONG / 2);
            let heard = self.stream.try_clone().and_then(|mut writing| {
                std::thread::scope(|scope| {
                    let writer = scope.spawn(move || writing.write_all(&rest));
                    let heard = self.hear(LONG);
                    let said =
                        writer.join().unwrap_or_else(|_| Err(std::io::Error::other("a writer panicked")));
                    heard.and(said)
                })
            });
            self.note(heard);
        }
        begun.elapsed()
    }

    /// Checks whether the cell's whole state is as expected.
    ///
    /// Reads all of it in the cell: after a recovery this also finds a page that no later question
    /// touches.
    pub(super) fn check_state(&mut self) {
        if self.broken.is_some() {
            return;
        }
        if let Some(listener) = &self.listener {
            listener.wait_for(self.at);
        }
        match pinger::ask(&mut self.stream, b'S', 0, 0) {
            Ok(answer) => {
                self.wrong.changed += u64::from(answer != (self.model.bytes(), self.model.checksum()))
            }
            Err(error) => self.note(Err(std::io::Error::other(format!("{error:#}")))),
        }
    }
}
