//! A cell with a configurable amount of state, for measuring checkpoints and recoveries.
//!
//! The client's stream is a sequence of commands, split anywhere. Each begins with 17 bytes, and each except `D` and `F` is
//! answered with 17 bytes in the same format (numbers are little-endian):
//!
//! ```text
//! 0        1                9                17
//! +--------+----------------+----------------+- - - - - - - -+
//! | op     | a: u64         | b: u64         | a bytes: D..F |
//! +--------+----------------+----------------+- - - - - - - -+
//! ```
//!
//! | op | does | answer |
//! |---|---|---|
//! | `B` | holds `a` bytes of incompressible state made from seed `b` | `a` held, `b` their checksum |
//! | `T` | changes one word in each of `a` pages of 4 KiB, from page `b` on, cyclically | `a` changed, `b` checksum of the new words |
//! | `W` | changes these words, and then makes them what they were | `a` changed, `b` checksum of the words |
//! | `S` | sums the state | `a` held, `b` checksum |
//! | `E` | echoes the `a` bytes that follow | the command and the bytes |
//! | `D` | drops the `a` bytes that follow | none |
//! | `F` | forwards the `a` bytes that follow to the server | none |
//!
//! Data from the server passes to the client unchanged. An unknown op closes the client's port, since the stream is out of step.
//!
//! What a measurement needs: state of a chosen size that does not compress, of which a chosen share
//! is dirty, and answers that prove that a recovered cell has the same bytes.

use marram_sdk::{Cell, Context, Level, Port, cell};

mod state;

use state::State;

/// Bytes before the payload of `D`, `E` and `F`.
const HEADER_SIZE: usize = 17;

/// The ballast and the client's stream.
#[derive(Default)]
pub struct Ballast {
    state: State,
    /// The first bytes of a header that is still incomplete. Shorter than [`HEADER_SIZE`] between
    /// handlers.
    header: Vec<u8>,
    /// The purpose of the bytes after a header, and how many are still to come.
    tail: Option<Tail>,
}

/// Bytes that follow a header and are not held: they pass on as they come, so `a` may exceed the
/// memory.
struct Tail {
    /// None if they are dropped.
    to: Option<Port>,
    /// At least 1.
    left: u64,
}

/// A header, of a command or of an answer.
struct Command {
    op: u8,
    a: u64,
    b: u64,
}

impl Command {
    /// Every 17 bytes are a command; whether its op is known is seen when it is obeyed.
    fn parse(header: &[u8; HEADER_SIZE]) -> Self {
        let word = |from: usize| {
            header[from..from + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Self { op: header[0], a: word(1), b: word(9) }
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&[self.op][..], &self.a.to_le_bytes(), &self.b.to_le_bytes()].concat()
    }
}

impl Ballast {
    /// Handles the beginning of `bytes` and returns the rest.
    fn consume<'a>(&mut self, context: &mut Context, bytes: &'a [u8]) -> &'a [u8] {
        if let Some(tail) = &mut self.tail {
            let len = usize::try_from(tail.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (piece, rest) = bytes.split_at(len);
            if let Some(to) = tail.to {
                context.send(to, piece);
            }
            tail.left -= len as u64;
            if tail.left == 0 {
                self.tail = None;
            }
            return rest;
        }
        let (piece, rest) = bytes.split_at(bytes.len().min(HEADER_SIZE - self.header.len()));
        self.header.extend_from_slice(piece);
        if let Ok(header) = self.header.as_slice().try_into() {
            let command = Command::parse(header);
            self.header.clear();
            self.obey(context, &command);
        }
        rest
    }

    /// Carries out a command and answers it; for `D`, `E` and `F`, from the next byte on.
    fn obey(&mut self, context: &mut Context, command: &Command) {
        let Command { op, a, b } = *command;
        let answer = match op {
            b'B' => {
                self.state = State::filled(a, b);
                Command { op, a: self.state.size(), b: self.state.checksum() }
            }
            b'T' => Command { op, a, b: self.state.touch(a, b) },
            b'W' => Command { op, a, b: self.state.write_back(a, b) },
            b'S' => Command { op, a: self.state.size(), b: self.state.checksum() },
            b'E' => {
                self.expect_tail(Some(Port::CLIENT), a);
                Command { op, a, b }
            }
            b'D' => return self.expect_tail(None, a),
            b'F' => return self.expect_tail(Some(Port::SERVER), a),
            _ => {
                context.print(Level::Error, format_args!("no such command: {op:#04x}; see the cell ballast"));
                return context.close(Port::CLIENT);
            }
        };
        context.send_to_client(&answer.to_bytes());
    }

    /// A tail of no bytes is none: there would be no byte that ends it.
    fn expect_tail(&mut self, to: Option<Port>, left: u64) {
        self.tail = (left > 0).then_some(Tail { to, left });
    }
}

impl Cell for Ballast {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if port == Port::SERVER {
            return context.send_to_client(payload);
        }
        let mut rest = payload;
        while !rest.is_empty() {
            rest = self.consume(context, rest);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port.opposite());
    }
}

cell!(Ballast);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    fn command(op: u8, a: u64, b: u64) -> Vec<u8> {
        Command { op, a, b }.to_bytes()
    }

    /// The bytes that each peer received, with the client's stream split into pieces of one size.
    fn received(stream: &[u8], piece: usize) -> [Vec<u8>; 2] {
        let mut session = Session::<Ballast>::new();
        let mut received = [Vec::new(), Vec::new()];
        for output in stream.chunks(piece).flat_map(|chunk| session.message(Port::CLIENT, chunk)) {
            match output {
                Output::Message { port, payload } => received[port.0 as usize].extend(payload),
                Output::Close { port } => received[port.0 as usize].extend(b"closed"),
                Output::Connect { server, .. } => panic!("it connects to {server}"),
            }
        }
        received
    }

    #[test]
    fn commands_are_obeyed_however_the_stream_is_cut() {
        let stream = [
            command(b'B', 100_000, 7),
            command(b'E', 5, 1),
            b"hello".to_vec(),
            command(b'T', 3, 24),
            command(b'D', 4, 0),
            b"gone".to_vec(),
            command(b'W', 2, 24),
            command(b'F', 2, 0),
            b"ok".to_vec(),
            command(b'S', 0, 0),
            command(b'E', 0, 9),
        ]
        .concat();
        let mut state = State::filled(100_000, 7);
        let filled = command(b'B', 100_000, state.checksum());
        let touched = command(b'T', 3, state.touch(3, 24));
        let back = command(b'W', 2, state.write_back(2, 24));
        let sum = command(b'S', 100_000, state.checksum());
        let echo = [command(b'E', 5, 1), b"hello".to_vec()].concat();
        let client = [filled, echo, touched, back, sum, command(b'E', 0, 9)].concat();
        for piece in [1, 16, 17, 18, stream.len()] {
            assert_eq!(received(&stream, piece), [client.clone(), b"ok".to_vec()], "pieces of {piece}");
        }
    }

    #[test]
    fn an_unknown_command_closes() {
        assert_eq!(received(&command(b'?', 0, 0), 100)[0], b"closed");
    }
}
