//! What a client of each service says, and what it must hear.

use super::{
    Service,
    servers::{self, HEIGHT, PAGES, WIDTH},
};
use crate::support::{caches, digits};
use marram_wire::seeded::Seeded;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Most bytes of one message that is echoed.
const PIECE_MAX: u64 = 12_000;

/// A session of one service.
pub(super) trait Talk {
    /// Asks once, and compares the answer.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String>;
    /// Ends the session; where the server ends its side, too, that must come.
    fn end(self: Box<Self>) -> Result<(), String>;
    /// Whether it failed because its connection did, and that is right.
    fn may_have_ended(&self) -> bool {
        false
    }
}

/// Begins a session; no answer may take longer than `patience`.
pub(super) fn open(
    service: Service,
    address: SocketAddr,
    patience: Duration,
    tls: &Arc<ClientConfig>,
    random: &mut Seeded,
) -> std::io::Result<Box<dyn Talk>> {
    if service == Service::Datagrams {
        return Ok(Box::new(Flow::new(address, patience, random.below(256))?));
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(match service {
        Service::Forward | Service::Limiter | Service::Firewall | Service::Monitor | Service::Chain => {
            Box::new(Echo(stream))
        }
        Service::Unprotected => Box::new(Unprotected { stream, is_broken: false }),
        Service::Snake => {
            let mut stream = BufReader::new(stream);
            // What it takes.
            stream.read_line(&mut String::new())?;
            Box::new(Snake { stream, at: 0 })
        }
        Service::Datagrams => unreachable!("it has no stream"),
        Service::Tls => {
            let name = ServerName::try_from("localhost").expect("a valid name");
            let connection = ClientConnection::new(Arc::clone(tls), name).map_err(std::io::Error::other)?;
            Box::new(Tls(StreamOwned::new(connection, stream)))
        }
        Service::Compress => Box::new(Web(BufReader::new(stream))),
        Service::Background => {
            let mut stream = BufReader::new(stream);
            let header = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 Ip A1:1 Cmono\n");
            stream.get_mut().write_all(header.as_bytes())?;
            Box::new(Camera { stream, frames: 0 })
        }
        Service::Memcached => {
            Box::new(Cache(caches::Client::new(stream, random.word()).map_err(std::io::Error::other)?))
        }
        Service::Classify => Box::new(Images(stream)),
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Sends a piece of letters, and expects it back.
fn echoed(stream: &mut (impl Read + Write), random: &mut Seeded) -> Result<(), String> {
    let piece = piece(random);
    let back = sent(stream, &piece).map_err(text)?;
    same(&piece, &back)
}

fn piece(random: &mut Seeded) -> Vec<u8> {
    let largest = if random.below(8) == 0 { PIECE_MAX } else { 200 };
    let len = usize::try_from(1 + random.below(largest)).expect("a piece fits in memory");
    (0..len).map(|_| b'a' + random.below(26).to_le_bytes()[0]).collect()
}

/// Sends a piece; returns as many bytes as come back.
fn sent(stream: &mut (impl Read + Write), piece: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(piece).and_then(|()| stream.flush())?;
    let mut back = vec![0; piece.len()];
    stream.read_exact(&mut back)?;
    Ok(back)
}

fn same(piece: &[u8], back: &[u8]) -> Result<(), String> {
    let (len, wrong) = (piece.len(), (0..piece.len()).find(|at| back[*at] != piece[*at]));
    wrong.map_or(Ok(()), |at| Err(format!("byte {at} of {len} is wrong")))
}

/// The other direction ends, with nothing more.
fn ended(mut stream: impl Read) -> Result<(), String> {
    match stream.read(&mut [0; 64]) {
        Ok(0) => Ok(()),
        Ok(more) => Err(format!("{more} bytes that were not expected")),
        Err(error) => Err(text(error)),
    }
}

struct Echo(TcpStream);

impl Talk for Echo {
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        echoed(&mut self.0, random)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.shutdown(Shutdown::Write).map_err(text)?;
        ended(&self.0)
    }
}

/// As [`Echo`], and its connection may end with its edge. What it hears before that is right.
struct Unprotected {
    stream: TcpStream,
    is_broken: bool,
}

impl Talk for Unprotected {
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        let piece = piece(random);
        let back = sent(&mut self.stream, &piece);
        // No answer at all is no end.
        self.is_broken = back.as_ref().is_err_and(|error| {
            !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        });
        same(&piece, &back.map_err(text)?)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        Box::new(Echo(self.stream)).end()
    }

    fn may_have_ended(&self) -> bool {
        self.is_broken
    }
}

/// Datagrams with numbers, few ahead of their answers so that no socket's buffer overflows.
struct Flow {
    socket: UdpSocket,
    client: u8,
    number: u32,
}

impl Flow {
    fn new(address: SocketAddr, patience: Duration, client: u64) -> std::io::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(patience))?;
        Ok(Self { socket, client: client.to_le_bytes()[0], number: 0 })
    }

    /// Two consecutive ones differ in length.
    fn datagram(&self, number: u32) -> Vec<u8> {
        let len = usize::try_from(number.wrapping_mul(7_919) % 600).expect("small");
        [&number.to_le_bytes()[..], &vec![self.client; len]].concat()
    }
}

impl Talk for Flow {
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        let first = self.number;
        self.number += 1 + u32::from(random.below(3).to_le_bytes()[0]);
        for number in first..self.number {
            self.socket.send(&self.datagram(number)).map_err(text)?;
        }
        let mut buffer = [0; 1_000];
        for number in first..self.number {
            let len = self.socket.recv(&mut buffer).map_err(|error| format!("datagram {number}: {error}"))?;
            if buffer[..len] != self.datagram(number) {
                let came = buffer.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                return Err(format!("datagram {came} of {len} bytes came in place of {number}"));
            }
        }
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// Plays the same game again and again: every session gets the same lines.
struct Snake {
    stream: BufReader<TcpStream>,
    /// Number of the next line.
    at: usize,
}

/// A game, its first and last line, and the number of its lines.
const GAME: &str = "start 8641\nat 87 down\nat 93 left\nat 255 down\n";
const GAME_FIRST: &str = "0 head 20 10 food 25 10 length 4\n";
const GAME_LAST: &str = "over length 7, hit the wall\n";
const GAME_LINES: usize = 53;

impl Talk for Snake {
    /// The game goes on whether or not its client reads.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        static LINES: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
        for _ in 0..=random.below(4) {
            if self.at == 0 {
                self.stream.get_mut().write_all(GAME.as_bytes()).map_err(text)?;
            }
            let mut line = String::new();
            self.stream.read_line(&mut line).map_err(text)?;
            let mut lines = LINES.lock().expect("no one panics with it");
            let expected = match self.at {
                0 => GAME_FIRST,
                at if at + 1 == GAME_LINES => GAME_LAST,
                at => lines.entry(at).or_insert_with(|| line.clone()),
            };
            if line != expected {
                return Err(format!("line {}: {line:?} in place of {expected:?}", self.at));
            }
            self.at = (self.at + 1) % GAME_LINES;
        }
        Ok(())
    }

    /// A client that leaves stays until the game is over.
    fn end(mut self: Box<Self>) -> Result<(), String> {
        self.stream.get_ref().shutdown(Shutdown::Write).map_err(text)?;
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest).map_err(text)?;
        let is_right = if self.at == 0 { rest.is_empty() } else { rest.ends_with(GAME_LAST) };
        if is_right { Ok(()) } else { Err(format!("at line {} the rest is {rest:?}", self.at)) }
    }
}

struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Talk for Tls {
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        echoed(&mut self.0, random)
    }

    fn end(mut self: Box<Self>) -> Result<(), String> {
        self.0.conn.send_close_notify();
        self.0.flush().map_err(text)?;
        self.0.sock.shutdown(Shutdown::Write).map_err(text)?;
        ended(&mut self.0)
    }
}

struct Web(BufReader<TcpStream>);

impl Web {
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(text)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| format!("a line ends early: {line:?}"))
    }
}

impl Talk for Web {
    /// The client takes no gzip, so the service decodes the page and sends it in chunks.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        let number = usize::try_from(random.below(PAGES as u64)).expect("few pages");
        let request = format!("GET /{number} HTTP/1.1\r\nHost: here\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).map_err(text)?;
        let status = self.line()?;
        if !status.starts_with("HTTP/1.1 200 ") {
            return Err(status);
        }
        while !self.line()?.is_empty() {}
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let len = usize::from_str_radix(&line, 16).map_err(|_| format!("no length: {line:?}"))?;
            let mut chunk = vec![0; len + 2];
            self.0.read_exact(&mut chunk).map_err(text)?;
            body.extend_from_slice(&chunk[..len]);
            if len == 0 {
                break;
            }
        }
        if body == servers::page(number) { Ok(()) } else { Err(format!("page {number} is wrong")) }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.get_ref().shutdown(Shutdown::Write).map_err(text)?;
        ended(self.0)
    }
}

struct Camera {
    stream: BufReader<TcpStream>,
    frames: u64,
}

impl Talk for Camera {
    /// A bright square is at another place in each frame, so each is forwarded, with its number.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        const SIDE: usize = 16;
        let mut place =
            |size: usize| usize::try_from(random.below((size - SIDE) as u64)).expect("it is small");
        let (left, top) = (place(WIDTH), place(HEIGHT));
        let mut frame = vec![60; WIDTH * HEIGHT];
        for row in frame.chunks_mut(WIDTH).skip(top).take(SIDE) {
            row[left..left + SIDE].fill(220);
        }
        self.stream.get_mut().write_all(&[&b"FRAME\n"[..], &frame].concat()).map_err(text)?;
        let (expected, mut answer) =
            (format!("{} {}\n", self.frames, servers::digest(&frame)), String::new());
        self.stream.read_line(&mut answer).map_err(text)?;
        self.frames += 1;
        if answer == expected { Ok(()) } else { Err(format!("{answer:?} in place of {expected:?}")) }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.stream.get_ref().shutdown(Shutdown::Write).map_err(text)?;
        ended(self.stream)
    }
}

struct Cache(caches::Client);

impl Talk for Cache {
    fn turn(&mut self, _: &mut Seeded) -> Result<(), String> {
        self.0.step()
    }

    fn end(mut self: Box<Self>) -> Result<(), String> {
        self.0.look_at_all()
    }
}

struct Images(TcpStream);

impl Talk for Images {
    /// The same image gets the same answer in every session, to the last bit.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        static ANSWERS: Mutex<BTreeMap<usize, [u8; digits::ANSWER_BYTES]>> = Mutex::new(BTreeMap::new());
        let number = usize::try_from(random.below(digits::IMAGES as u64)).expect("few images");
        self.0.write_all(&digits::image(number).1).map_err(text)?;
        let mut answer = [0; digits::ANSWER_BYTES];
        self.0.read_exact(&mut answer).map_err(text)?;
        let first = *ANSWERS.lock().expect("no one panics with it").entry(number).or_insert(answer);
        if answer == first {
            Ok(())
        } else {
            Err(format!("image {number}: {answer:?} in place of {first:?}"))
        }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}
