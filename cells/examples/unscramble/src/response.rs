//! Finds the heads and bodies in a stream of HTTP/1.1 responses, split anywhere.
//!
//! Reads only the status and `Content-Length`. Does not see requests, so it does not know which responses
//! answer a `HEAD`: no other request may follow on such a connection. After a framing that it does not support (chunked
//! bodies, an invalid length, not HTTP), everything passes unchanged to the end of the stream.

/// Only this many bytes of a line are read.
const LINE_BYTES_MAX: usize = 256;

/// The kind of a piece of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Part of a response's head.
    Head,
    /// Part of the body of a file, which the server stores scrambled.
    Scrambled,
    /// Part of anything else.
    Clear,
}

/// The position in the stream of responses.
#[derive(Default)]
pub(crate) struct Responses {
    place: Place,
    head: Head,
    line: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
enum Place {
    #[default]
    Head,
    /// This many bytes of a body are still to come.
    Body { left: u64, part: Part },
    /// Everything until the stream ends.
    Rest(Part),
}

/// The facts from the lines of one head.
#[derive(Clone, Copy, Default)]
struct Head {
    /// The status line was read; without one, this is not HTTP.
    status: Option<u16>,
    length: Option<u64>,
    /// The framing of its body is not supported.
    strange: bool,
}

impl Responses {
    /// What the first bytes of `bytes` are, and how many of them. At least one, unless `bytes` is empty.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> (Part, usize) {
        match &mut self.place {
            Place::Head => (Part::Head, self.head_bytes(bytes)),
            Place::Body { left, part } => {
                let len = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                let part = *part;
                *left -= len as u64;
                if *left == 0 {
                    self.place = Place::Head;
                }
                (part, len)
            }
            Place::Rest(part) => (*part, bytes.len()),
        }
    }

    /// Reads lines until the head ends or the bytes do; returns how many it read.
    fn head_bytes(&mut self, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' {
                if let Some(next) = self.line_ended() {
                    self.place = next;
                    self.head = Head::default();
                    return index + 1;
                }
            } else if self.line.len() < LINE_BYTES_MAX {
                self.line.push(*byte);
            }
        }
        bytes.len()
    }

    /// Handles one line; if it ends the head, returns what follows.
    fn line_ended(&mut self) -> Option<Place> {
        let line = self.line.trim_ascii();
        let next = if self.head.status.is_none() {
            self.head.status = status(line);
            self.head.status.is_none().then_some(Place::Rest(Part::Clear))
        } else if line.is_empty() {
            Some(self.head.body())
        } else {
            self.head.field(line);
            None
        };
        self.line.clear();
        next
    }
}

impl Head {
    /// Handles one header field.
    fn field(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            match number(value) {
                Some(length) => self.length = Some(length),
                None => self.strange = true,
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.strange = true;
        }
    }

    /// What follows this head.
    fn body(&self) -> Place {
        let part = if self.status == Some(200) { Part::Scrambled } else { Part::Clear };
        match (self.status, self.length) {
            (Some(100..=199 | 204 | 304), _) | (_, Some(0)) => Place::Head,
            _ if self.strange => Place::Rest(Part::Clear),
            (_, Some(left)) => Place::Body { left, part },
            (_, None) => Place::Rest(part),
        }
    }
}

/// The code in `HTTP/1.1 200 OK`.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(2..5)?;
    u16::try_from(number(digits)?).ok()
}

/// Decimal digits and nothing else.
fn number(digits: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(digits).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
