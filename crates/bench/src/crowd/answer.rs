//! One HTTP answer, checked byte by byte as it arrives. Pure: no socket and no clock.
//!
//! ```text
//! GET /small?17-4 HTTP/1.1     -->   HTTP/1.1 200 OK
//!                                    Content-Length: 1024
//!                                    X-Asked: 17-4           which request this answers
//!
//!                                    the file
//! ```
//! The server repeats each request's own number in a field of the answer's head. An answer that
//! arrives twice, or on another connection, is therefore found although all bodies are equal.

use anyhow::{Context, bail, ensure};

/// A longer head is not one of these servers'.
const HEAD_MAX: usize = 4 << 10;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Why an answer is not the expected one.
#[derive(Debug)]
pub(super) enum Wrong {
    /// It is the answer to an earlier request of this connection, or there was no request.
    Repeated(anyhow::Error),
    /// It is short, changed, or the answer to another connection's request.
    Lost(anyhow::Error),
}

impl From<anyhow::Error> for Wrong {
    fn from(error: anyhow::Error) -> Self {
        Self::Lost(error)
    }
}

/// Which request an answer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number {
    pub(super) connection: u64,
    /// Counts the connection's requests, from 1.
    pub(super) request: u64,
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.connection, self.request)
    }
}

impl std::str::FromStr for Number {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (connection, request) = text.split_once('-').context("no number")?;
        Ok(Self { connection: connection.parse()?, request: request.parse()? })
    }
}

/// What has arrived of one answer.
#[derive(Default)]
pub(super) struct Answer {
    /// The head, if it has not arrived as a whole yet.
    head: Vec<u8>,
    /// Bytes of the body so far, behind a whole head.
    body: Option<usize>,
}

impl Answer {
    /// Whether nothing of it has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_empty() && self.body.is_none()
    }

    /// Takes what arrived next. Returns whether the answer is complete; then it is ready for the next one.
    ///
    /// # Errors
    /// If the bytes differ from the expected ones, or go on behind the answer: no connection here
    /// asks before it has its answer.
    pub(super) fn take(&mut self, mut bytes: &[u8], asked: Number, file: &[u8]) -> Result<bool, Wrong> {
        let at = if let Some(at) = self.body {
            at
        } else {
            let Some(head) = self.head(&mut bytes)? else { return Ok(false) };
            check_head(&head, asked, file.len())?;
            0
        };
        let end = at + bytes.len();
        let expected = file.get(at..end.min(file.len())).unwrap_or_default();
        if end > file.len() {
            return Err(Wrong::Repeated(anyhow::anyhow!(
                "{} bytes follow the answer to {asked}",
                end - file.len()
            )));
        }
        if bytes != expected {
            return Err(Wrong::Lost(anyhow::anyhow!("a byte of the answer to {asked} is wrong")));
        }
        self.body = (end < file.len()).then_some(end);
        Ok(end == file.len())
    }

    /// The whole head, once it is there. `bytes` then starts with the body.
    fn head(&mut self, bytes: &mut &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        // The head's end may have begun in the bytes that came before.
        let from = before.saturating_sub(HEAD_END.len() - 1);
        let found = self.head[from..].windows(HEAD_END.len()).position(|window| window == HEAD_END);
        let Some(found) = found else {
            ensure!(self.head.len() <= HEAD_MAX, "{} bytes without the end of a head", self.head.len());
            return Ok(None);
        };
        let len = from + found + HEAD_END.len();
        self.head.truncate(len);
        *bytes = &bytes[len - before..];
        Ok(Some(std::mem::take(&mut self.head)))
    }
}

/// Whether a head announces the expected file, and answers this request.
fn check_head(head: &[u8], asked: Number, file_bytes: usize) -> Result<(), Wrong> {
    let head = std::str::from_utf8(head).context("a head that is no text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(Wrong::Lost(anyhow::anyhow!("the answer to {asked} is {status:?}")));
    }
    let (mut length, mut answered) = (None, None);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().context("a length that is no number")?);
        } else if name.eq_ignore_ascii_case("x-asked") {
            answered = Some(value.parse::<Number>()?);
        }
    }
    let answered = answered.context("an answer that does not say to which request")?;
    if answered.connection == asked.connection && answered.request < asked.request {
        return Err(Wrong::Repeated(anyhow::anyhow!("{answered} was answered again instead of {asked}")));
    }
    if answered != asked || length != Some(file_bytes) {
        let why = anyhow::anyhow!("an answer to {answered} of {length:?} bytes instead of one to {asked}");
        return Err(Wrong::Lost(why));
    }
    Ok(())
}

/// Whether a connection may end here.
///
/// # Errors
/// If it ends within an answer.
pub(super) fn may_end(answer: &Answer, asked: Number) -> anyhow::Result<()> {
    if !answer.is_empty() {
        bail!("the connection ended within the answer to {asked}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Number = Number { connection: 17, request: 4 };
    const FILE: &[u8] = b"0123456789";

    fn answer(number: &str, body: &str) -> Vec<u8> {
        format!(
            "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: {}\r\nX-Asked: {number}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    fn outcome(bytes: &[u8]) -> Result<bool, Wrong> {
        Answer::default().take(bytes, ASKED, FILE)
    }

    #[test]
    fn an_answer_is_complete_at_its_last_byte_however_it_is_cut() {
        let bytes = answer("17-4", "0123456789");
        for first in 1..bytes.len() {
            for second in first..bytes.len() {
                let mut answer = Answer::default();
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let complete = pieces.map(|piece| answer.take(piece, ASKED, FILE).unwrap());
                assert_eq!(complete, [false, false, true], "{first} {second}");
                assert!(answer.is_empty());
            }
        }
    }

    #[test]
    fn an_answer_to_an_earlier_request_is_repeated() {
        for bytes in [answer("17-3", "0123456789"), [answer("17-4", "0123456789"), b"H".to_vec()].concat()] {
            assert!(
                matches!(outcome(&bytes), Err(Wrong::Repeated(_))),
                "{}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }

    #[test]
    fn what_is_short_changed_or_of_another_connection_is_lost() {
        let long = vec![b'x'; HEAD_MAX + 1];
        let wrong = [
            answer("17-5", "0123456789"),
            answer("18-3", "0123456789"),
            answer("17-4", "012345678"),
            answer("17-4", "0123456788"),
            answer("", "0123456789"),
            b"HTTP/1.1 502 Bad Gateway\r\nX-Asked: 17-4\r\n\r\n".to_vec(),
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789".to_vec(),
            long,
        ];
        for bytes in wrong {
            assert!(matches!(outcome(&bytes), Err(Wrong::Lost(_))), "{}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_connection_may_end_between_answers_only() {
        let (mut answer_so_far, bytes) = (Answer::default(), answer("17-4", "0123456789"));
        assert!(may_end(&answer_so_far, ASKED).is_ok());
        for cut in [1, bytes.len() - 1] {
            let mut cut_off = Answer::default();
            assert!(!cut_off.take(&bytes[..cut], ASKED, FILE).unwrap());
            assert!(may_end(&cut_off, ASKED).is_err());
        }
        assert!(answer_so_far.take(&bytes, ASKED, FILE).unwrap());
        assert!(may_end(&answer_so_far, ASKED).is_ok());
    }
}
