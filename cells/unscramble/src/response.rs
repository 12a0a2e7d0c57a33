//! Finds the heads and bodies in a stream of HTTP/1.1 responses, however it is cut into pieces.
//!
//! Reads the status and `Content-Length`, nothing else. Does not see requests, so it does not know which responses
//! answer a `HEAD`: on such a connection nothing may follow. A framing that it does not understand (chunked bodies, a
//! length that is no number, no HTTP at all) passes in clear to the end of the stream.

/// Of a longer line, only the beginning is looked at.
const LINE_BYTES_MAX: usize = 256;

/// What a piece of the stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Of a response's head.
    Head,
    /// Of the body of a file, which the server keeps scrambled.
    Scrambled,
    /// Of anything else.
    Clear,
}

/// Where in the stream of responses we are.
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

/// What the lines of one head have said.
#[derive(Clone, Copy, Default)]
struct Head {
    /// The status line was read; without one, this is not HTTP.
    status: Option<u16>,
    length: Option<u64>,
    /// Its body is framed in a way that is not understood.
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

    /// Takes in one line; where it ends the head, says what follows.
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
    /// Takes in one header field.
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
