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
//! | `F` | forwards the `a` bytes that follow to the server; without one, to all clients | none |
//!
//! Data from the server passes to the client unchanged. An unknown op closes its client's port, since the stream is out of step.
//! Clients that share the cell share its state; each has a stream of commands of its own.
//!
//! What a measurement needs: state of a chosen size that does not compress, of which a chosen share
//! is dirty, and answers that prove that a recovered cell has the same bytes.

use marram_sdk::{Cell, Context, Level, Port, PortKind, cell};
use std::collections::BTreeMap;

mod state;

use state::State;

/// Bytes before the payload of `D`, `E` and `F`.
const HEADER_SIZE: usize = 17;

/// The ballast and the streams of its clients.
#[derive(Default)]
pub struct Ballast {
    state: State,
    clients: BTreeMap<Port, Commands>,
    has_server: bool,
}

/// Where a client's stream of commands is.
#[derive(Default)]
struct Commands {
    /// The first bytes of a header that is still incomplete. Shorter than [`HEADER_SIZE`] between
    /// handlers.
    header: Vec<u8>,
    /// The purpose of the bytes after a header, and how many are still to come.
    tail: Option<Tail>,
}

/// Bytes that follow a header and are not held: they pass on as they come, so `a` may exceed the
/// memory.
struct Tail {
    to: Target,
    /// At least 1.
    left: u64,
}

/// Where the bytes behind a header go.
#[derive(Clone, Copy)]
enum Target {
    Nowhere,
    /// Back to their client.
    Back,
    /// To the server, or to all clients.
    On,
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

impl Commands {
    /// Takes the beginning of `bytes`: what is to be done next, and the rest. Nothing is to be done yet within a header.
    fn next<'a>(&mut self, bytes: &'a [u8]) -> (Option<Step<'a>>, &'a [u8]) {
        if let Some(tail) = &mut self.tail {
            let len = usize::try_from(tail.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (piece, rest) = bytes.split_at(len);
            let to = tail.to;
            tail.left -= len as u64;
            if tail.left == 0 {
                self.tail = None;
            }
            return (Some(Step::Pass(to, piece)), rest);
        }
        let (piece, rest) = bytes.split_at(bytes.len().min(HEADER_SIZE - self.header.len()));
        self.header.extend_from_slice(piece);
        let Ok(header) = self.header.as_slice().try_into() else { return (None, rest) };
        let command = Command::parse(header);
        self.header.clear();
        let to = match command.op {
            b'E' => Some(Target::Back),
            b'D' => Some(Target::Nowhere),
            b'F' => Some(Target::On),
            _ => None,
        };
        // A tail of no bytes is none: there would be no byte that ends it.
        self.tail = to.filter(|_| command.a > 0).map(|to| Tail { to, left: command.a });
        (Some(Step::Obey(command)), rest)
    }
}

/// What a piece of a stream asks for.
enum Step<'a> {
    Obey(Command),
    Pass(Target, &'a [u8]),
}

impl Ballast {
    /// Carries out a command and answers it.
    fn obey(&mut self, context: &mut Context, port: Port, command: &Command) {
        let Command { op, a, b } = *command;
        let answer = match op {
            b'B' => {
                self.state = State::filled(a, b);
                Command { op, a: self.state.size(), b: self.state.checksum() }
            }
            b'T' => Command { op, a, b: self.state.touch(a, b) },
            b'W' => Command { op, a, b: self.state.write_back(a, b) },
            b'S' => Command { op, a: self.state.size(), b: self.state.checksum() },
            b'E' => Command { op, a, b },
            b'D' | b'F' => return,
            _ => {
                context.print(Level::Error, format_args!("no such command: {op:#04x}; see the cell ballast"));
                return context.close(port);
            }
        };
        context.send(port, &answer.to_bytes());
    }

    fn pass(&self, context: &mut Context, port: Port, to: Target, piece: &[u8]) {
        match to {
            Target::Nowhere => {}
            Target::Back => context.send(port, piece),
            Target::On if self.has_server => context.send(Port::SERVER, piece),
            Target::On => self.clients.keys().for_each(|client| context.send(*client, piece)),
        }
    }
}

impl Cell for Ballast {
    fn opened(&mut self, _: &mut Context, port: Port, kind: PortKind) {
        match kind {
            PortKind::Server => self.has_server = true,
            _ => drop(self.clients.insert(port, Commands::default())),
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if self.has_server && port == Port::SERVER {
            return context.send_to_client(payload);
        }
        let mut rest = payload;
        while !rest.is_empty() {
            let (step, left) = self.clients.entry(port).or_default().next(rest);
            rest = left;
            match step {
                Some(Step::Obey(command)) => self.obey(context, port, &command),
                Some(Step::Pass(to, piece)) => self.pass(context, port, to, piece),
                None => {}
            }
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if self.has_server {
            return context.close(port.opposite());
        }
        self.clients.remove(&port);
        context.close(port);
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
        session.open_client();
        session.open_server();
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
    fn clients_share_the_state_and_what_is_forwarded_but_no_stream() {
        let mut session = Session::<Ballast>::new();
        let (one, other) = (Port::CLIENT, Port(2));
        for port in [one, other] {
            session.open(port, PortKind::Client);
        }
        let mut state = State::filled(9_000, 7);
        let filled = command(b'B', 9_000, state.checksum());
        let (forward, rest) = (command(b'F', 3, 0), command(b'T', 1, 0));
        let heard: Vec<Output> = [
            (one, command(b'B', 9_000, 7)),
            (other, rest[..5].to_vec()),
            (one, forward),
            (one, b"abc".to_vec()),
            (other, rest[5..].to_vec()),
        ]
        .into_iter()
        .flat_map(|(port, piece)| session.message(port, &piece))
        .collect();
        let message = |port, payload: &[u8]| Output::Message { port, payload: payload.to_vec() };
        let touched = command(b'T', 1, state.touch(1, 0));
        let expected =
            [message(one, &filled), message(one, b"abc"), message(other, b"abc"), message(other, &touched)];
        assert_eq!(heard, expected);
        assert_eq!(session.close(other), [Output::close(other)]);
    }

    #[test]
    fn an_unknown_command_closes() {
        assert_eq!(received(&command(b'?', 0, 0), 100)[0], b"closed");
    }
}
