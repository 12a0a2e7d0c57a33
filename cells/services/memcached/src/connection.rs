//! Turns one client's stream, split anywhere, into requests to the server. Finds the boundaries of lines and values;
//! does not know ports or what requests do.
//!
//! ```text
//!           get                       last key
//!    +--> Keys ---------------------------------------+
//!    |                                                v
//!  Line -- set, memory -----> Value -- CR LF -----> Line
//!    |                                                ^
//!    +--- set, no memory --> Unwanted (value, CR LF) -+        quit, too long: Closed
//! ```
//!
//! A step consumes a whole command, one key, or a piece of a value. Keys are steps of their own,
//! because one line may ask for gigabytes: after each key the length of the reply is looked at.

use crate::{
    clock::{Expiry, Seconds},
    command::{self, Incoming, Request},
    reply::Reply,
    server::{Next, Server},
    store::{Draft, Mode},
};

/// A longer line than this is no command, unless it is one that names keys.
const LINE_BYTES_MAX: usize = 2048;

/// The longest line that names keys.
const KEYS_LINE_BYTES_MAX: usize = 1 << 20;

/// If a reply is longer than this, later requests wait until it is sent: a short request can ask for much.
/// A reply has at most this length plus one item.
pub const REPLY_BYTES_PAUSE: usize = 256 << 10;

/// Most bytes that wait behind a reply that is too long. A client that continues to send is disconnected.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// An empty buffer with a larger capacity than this is freed.
const BUFFER_KEPT_BYTES_MAX: usize = 4 << 10;

/// What a connection needs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More bytes from its client.
    Waiting,
    /// Its reply must be sent; then resume it.
    Paused,
    /// Nothing: it has ended.
    Closed,
}

/// The parser state of a client's stream.
#[derive(Default)]
pub struct Connection {
    place: Place,
    /// Bytes that have arrived and were not processed.
    unread: Vec<u8>,
    /// Of the first bytes of `unread`, this many hold no end of a line. Without this, a line that
    /// arrives byte by byte would be searched from its start each time.
    searched: usize,
}

/// Where in the stream the next unread byte is.
#[derive(Default)]
enum Place {
    /// Before a command.
    #[default]
    Line,
    /// Within the line of a `get`: bytes before its end, and bytes of its end. A `get` stays unread
    /// until its whole line is there, and is consumed key by key from there: `left` shrinks from
    /// the front.
    Keys { left: usize, end: usize, with_cas: bool, touch: Option<Expiry> },
    /// Within a value, or its end. The value goes straight to the store's memory, and not through
    /// `unread`; `left` does not count the line end.
    Value { draft: Draft, left: usize, mode: Mode, noreply: bool },
    /// Within a value that is dropped, or its end. `left` counts the line end. The reply was given
    /// when the line was read.
    Unwanted { left: usize },
    /// After everything.
    Closed,
}

/// The result of a step.
enum Step {
    /// It used this many bytes.
    Took(usize),
    /// It needs more bytes.
    Starved,
    /// The connection has ended.
    Over,
}

impl Connection {
    /// Processes bytes that arrived; replies are added to `out`.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        server: &mut Server,
        now: Seconds,
        out: &mut Vec<u8>,
    ) -> Progress {
        server.counters.bytes_read += bytes.len() as u64;
        if self.unread.is_empty() {
            let (progress, took) = self.run(bytes, server, now, out);
            self.unread.extend_from_slice(&bytes[took..]);
            return self.checked(progress, server);
        }
        self.unread.extend_from_slice(bytes);
        self.resume(server, now, out)
    }

    /// Continues after the reply had become too long.
    pub fn resume(&mut self, server: &mut Server, now: Seconds, out: &mut Vec<u8>) -> Progress {
        let mut unread = std::mem::take(&mut self.unread);
        let (progress, took) = self.run(&unread, server, now, out);
        unread.drain(..took);
        if !unread.is_empty() || unread.capacity() <= BUFFER_KEPT_BYTES_MAX {
            self.unread = unread;
        }
        self.checked(progress, server)
    }

    /// Frees the server's memory that the connection holds.
    pub fn close(&mut self, server: &mut Server) {
        if let Place::Value { draft, .. } = std::mem::replace(&mut self.place, Place::Closed) {
            server.store.discard(draft);
        }
        self.unread = Vec::new();
    }

    /// Whether no request is incomplete.
    #[must_use]
    pub fn is_between_requests(&self) -> bool {
        matches!(self.place, Place::Line) && self.unread.is_empty()
    }

    /// Closes the connection if it has ended, or if too much waits. The limit counts what one
    /// client can make the cell hold beyond the store.
    fn checked(&mut self, progress: Progress, server: &mut Server) -> Progress {
        if progress == Progress::Closed || self.unread.len() > WAITING_BYTES_MAX {
            self.close(server);
            return Progress::Closed;
        }
        progress
    }

    /// Takes as many steps as there are bytes for; returns how many bytes they used. Pauses only
    /// between steps: a step adds at most one item to the reply.
    fn run(
        &mut self,
        bytes: &[u8],
        server: &mut Server,
        now: Seconds,
        out: &mut Vec<u8>,
    ) -> (Progress, usize) {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            if rest.is_empty() && !matches!(self.place, Place::Closed) {
                return (Progress::Waiting, at);
            }
            if out.len() >= REPLY_BYTES_PAUSE {
                return (Progress::Paused, at);
            }
            match self.step(rest, server, now, out) {
                Step::Took(count) => at += count,
                Step::Starved => return (Progress::Waiting, at),
                Step::Over => return (Progress::Closed, at),
            }
        }
    }

    /// `bytes` is all that is unread, and is not empty. A step that is starved used none of it.
    fn step(&mut self, bytes: &[u8], server: &mut Server, now: Seconds, out: &mut Vec<u8>) -> Step {
        match &mut self.place {
            Place::Line => self.line(bytes, server, now, out),
            Place::Keys { left, end, with_cas, touch } => {
                if bytes.len() < *left + *end {
                    return Step::Starved;
                }
                let line = &bytes[..*left];
                let Some(key) = command::words_of(line).next() else {
                    let took = *left + *end;
                    self.place = Place::Line;
                    Reply::new(out, false).line("END");
                    return Step::Took(took);
                };
                server.look_up(key, *touch, *with_cas, now, &mut Reply::new(out, false));
                let spaces = line.iter().take_while(|byte| **byte == b' ').count();
                *left -= spaces + key.len();
                Step::Took(spaces + key.len())
            }
            Place::Value { draft, left, .. } if *left > 0 => {
                let took = server.store.fill(draft, bytes);
                *left -= took;
                Step::Took(took)
            }
            Place::Value { .. } => self.value_end(bytes, server, now, out),
            Place::Unwanted { left } => {
                let took = bytes.len().min(*left);
                *left -= took;
                if *left == 0 {
                    self.place = Place::Line;
                }
                Step::Took(took)
            }
            Place::Closed => Step::Over,
        }
    }

    /// A command, if its line is complete.
    fn line(&mut self, bytes: &[u8], server: &mut Server, now: Seconds, out: &mut Vec<u8>) -> Step {
        let searched = std::mem::take(&mut self.searched);
        let Some(end) = bytes[searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = bytes.len();
            return if is_too_long(bytes) { Step::Over } else { Step::Starved };
        };
        let end = searched + end;
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let command::Line { request, noreply } = command::parse(line);
        let mut reply = Reply::new(out, noreply);
        match request {
            Err(error) => reply.line(error),
            Ok(Request::Get { with_cas, touch, keys }) => {
                let touch = touch.map(|exptime| Expiry::from_protocol(exptime, now));
                self.place =
                    Place::Keys { left: line.len() - keys, end: end + 1 - line.len(), with_cas, touch };
                return Step::Took(keys);
            }
            Ok(Request::Store(incoming)) => {
                let draft = server.receive(&incoming, now, &mut reply);
                self.place = Place::value(draft, &incoming, noreply);
            }
            Ok(request) => {
                if let Next::Close = server.execute(&request, now, &mut reply) {
                    return Step::Over;
                }
            }
        }
        Step::Took(end + 1)
    }

    /// The two bytes after a value, which complete it.
    fn value_end(&mut self, bytes: &[u8], server: &mut Server, now: Seconds, out: &mut Vec<u8>) -> Step {
        let Some(end) = bytes.get(..2) else { return Step::Starved };
        if let Place::Value { draft, mode, noreply, .. } = std::mem::take(&mut self.place) {
            let mut reply = Reply::new(out, noreply);
            if end == b"\r\n" {
                server.received(draft, mode, now, &mut reply);
            } else {
                server.store.discard(draft);
                reply.line("CLIENT_ERROR bad data chunk");
            }
        }
        Step::Took(2)
    }
}

impl Place {
    /// Where a value goes, if there is memory for it, or the same number of bytes to be skipped.
    /// The 2 are the line end.
    fn value(draft: Option<Draft>, incoming: &Incoming<'_>, noreply: bool) -> Self {
        match draft {
            Some(draft) => Self::Value { draft, left: incoming.len, mode: incoming.mode, noreply },
            None => Self::Unwanted { left: incoming.len + 2 },
        }
    }
}

/// Whether this beginning of a line cannot become a command.
fn is_too_long(line: &[u8]) -> bool {
    let start = line.iter().position(|byte| *byte != b' ').unwrap_or(line.len());
    let names_keys =
        [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| line[start..].starts_with(name));
    line.len() > if names_keys { KEYS_LINE_BYTES_MAX } else { LINE_BYTES_MAX }
}
