//! A conversation through the cell, and a parser of HTTP messages that shares no code with it.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod plain;

use compress::Compress;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use marram_sdk::Port;
use marram_sdk::double::{Output, Session};
use std::fmt;
use std::io::{Read, Write};
use std::net::SocketAddr;

/// The cell between scripted peers.
pub(crate) struct Conversation {
    session: Session<Compress>,
    heard: [Vec<u8>; 2],
    closed: [bool; 2],
}

impl Conversation {
    pub(crate) fn new(config: &str) -> Self {
        Self::of(config, None)
    }

    /// A conversation of a client with this address.
    pub(crate) fn of(config: &str, client: Option<SocketAddr>) -> Self {
        let mut session = Session::of(Compress::with(config).unwrap());
        if let Some(client) = client {
            session.client(Port::CLIENT, client, None, None);
        }
        session.open_client();
        session.open_server();
        Self { session, heard: Default::default(), closed: [false; 2] }
    }

    fn note(&mut self, outputs: Vec<Output>) -> usize {
        let mut bytes = 0;
        for output in outputs {
            match output {
                Output::Message { port, payload } => {
                    assert!(!self.closed[port.0 as usize] && payload.len() <= 1 << 20);
                    bytes += payload.len();
                    self.heard[port.0 as usize].extend_from_slice(&payload);
                }
                Output::Close { port } => self.closed[port.0 as usize] = true,
                Output::Connect { server, .. } => panic!("it connects to {server}"),
            }
        }
        bytes
    }

    fn message(&mut self, port: Port, bytes: &[u8]) {
        let outputs = self.session.message(port, bytes);
        self.note(outputs);
        while let Some(outputs) = self.session.run_task() {
            self.note(outputs);
        }
    }

    /// The client sends bytes, in pieces of one size.
    pub(crate) fn client(&mut self, bytes: &[u8], piece: usize) {
        bytes.chunks(piece).for_each(|bytes| self.message(Port::CLIENT, bytes));
    }

    pub(crate) fn server(&mut self, bytes: &[u8], piece: usize) {
        bytes.chunks(piece).for_each(|bytes| self.message(Port::SERVER, bytes));
    }

    /// The server sends bytes; returns how many bytes the client gets, at most in one handler and in all.
    pub(crate) fn count_client(&mut self, bytes: &[u8]) -> (usize, usize) {
        let outputs = self.session.message(Port::SERVER, bytes);
        let mut counts = vec![self.note(outputs)];
        while let Some(outputs) = self.session.run_task() {
            counts.push(self.note(outputs));
            self.heard[0].clear();
        }
        self.heard[0].clear();
        (counts.iter().copied().max().unwrap_or(0), counts.iter().sum())
    }

    pub(crate) fn client_ends(&mut self) {
        let outputs = self.session.close(Port::CLIENT);
        self.note(outputs);
    }

    pub(crate) fn server_ends(&mut self) {
        let outputs = self.session.close(Port::SERVER);
        self.note(outputs);
    }

    pub(crate) fn take_client(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.heard[0])
    }

    pub(crate) fn take_server(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.heard[1])
    }

    pub(crate) fn server_heard(&mut self) -> String {
        String::from_utf8(self.take_server()).unwrap()
    }

    pub(crate) fn is_closed(&self, port: usize) -> bool {
        self.closed[port]
    }

    /// The printed texts.
    pub(crate) fn reasons(&self) -> String {
        self.session.lines().iter().map(|(_, line)| line.as_str()).collect()
    }
}

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(9));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

/// A message as a simple parser finds it, with its body decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// The first line, without `HTTP/1.1 ` if it begins so.
    pub(crate) status: String,
    /// Each followed by a bar.
    pub(crate) fields: String,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: String,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}{}", self.status, self.fields, String::from_utf8_lossy(&self.body))
    }
}

fn line(bytes: &mut Vec<u8>) -> String {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a line has an end");
    let line: Vec<u8> = bytes.drain(..end + 2).collect();
    String::from_utf8(line[..end].to_vec()).unwrap()
}

fn lines(bytes: &mut Vec<u8>) -> String {
    let mut lines = String::new();
    loop {
        let line = line(bytes);
        if line.is_empty() {
            return lines;
        }
        lines += &format!("{line}|");
    }
}

/// Removes the first message from the bytes.
pub(crate) fn read(bytes: &mut Vec<u8>, has_no_body: bool) -> Message {
    let status = line(bytes);
    let fields = lines(bytes);
    let value = |name: &str| {
        let mut values = fields.split('|').filter_map(|field| field.split_once(": "));
        values.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let bodiless = has_no_body
        || [" 1", " 204", " 304"].iter().any(|code| status.starts_with(&format!("HTTP/1.1{code}")));
    let (mut body, mut trailers) = (Vec::new(), String::new());
    if bodiless {
    } else if value("Transfer-Encoding").is_some() {
        loop {
            let size = usize::from_str_radix(&line(bytes), 16).unwrap();
            if size == 0 {
                break;
            }
            body.extend(bytes.drain(..size));
            assert_eq!(line(bytes), "");
        }
        trailers = lines(bytes);
    } else if let Some(length) = value("Content-Length") {
        body.extend(bytes.drain(..length.parse::<usize>().unwrap()));
    } else if status.starts_with("HTTP/") {
        body.append(bytes);
    }
    if value("Content-Encoding").as_deref() == Some("gzip") && !bodiless {
        body = gunzip(&body);
    }
    let status = status.strip_prefix("HTTP/1.1 ").unwrap_or(&status).to_owned();
    Message { status, fields, body, trailers }
}

/// The decoded part of the first message's body so far: chunked and compressed, and incomplete.
pub(crate) fn body_so_far(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    while !line(&mut bytes).is_empty() {}
    let mut body = Vec::new();
    while !bytes.is_empty() {
        let size = usize::from_str_radix(&line(&mut bytes), 16).unwrap();
        body.extend(bytes.drain(..size));
        line(&mut bytes);
    }
    let (mut plain, mut buffer) = (Vec::new(), [0; 1024]);
    let mut decoder = MultiGzDecoder::new(&body[..]);
    while let Ok(len @ 1..) = decoder.read(&mut buffer) {
        plain.extend_from_slice(&buffer[..len]);
    }
    plain
}
