//! A WebSocket client that implements the protocol itself, so that tests see and send every byte.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client's request for this path, with these additional header lines.
pub(crate) fn request(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: gate\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}

/// A client, with its connection.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Connects.
    pub(crate) fn new(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Sends a request, and returns the head of the answer.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.0.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    }

    /// Everything up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        rest
    }

    /// Sends a frame with this first byte.
    pub(crate) fn send(&mut self, first: u8, payload: &[u8]) {
        let mut frame = vec![first];
        match u8::try_from(payload.len()) {
            Ok(len @ 0..126) => frame.push(0x80 | len),
            _ => {
                frame.push(0xff);
                frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        self.0.write_all(&frame).unwrap();
    }

    /// The next frame: its first byte and its payload.
    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let mut len = u64::from(head[1]);
        if len >= 126 {
            let mut more = [0; 8];
            let at = if len == 126 { 6 } else { 0 };
            self.0.read_exact(&mut more[at..]).unwrap();
            len = u64::from_be_bytes(more);
        }
        let mut payload = vec![0; usize::try_from(len).unwrap()];
        self.0.read_exact(&mut payload).unwrap();
        (head[0], payload)
    }

    /// Receives a close frame, its code and its reason; no bytes may follow it.
    pub(crate) fn closed(&mut self) -> (u16, String) {
        let (first, payload) = self.frame();
        assert_eq!(first, 0x88, "{payload:?}");
        let code = u16::from_be_bytes([payload[0], payload[1]]);
        self.send(0x88, &payload[..2]);
        assert_eq!(self.rest(), [0; 0]);
        (code, String::from_utf8(payload[2..].to_vec()).unwrap())
    }
}
