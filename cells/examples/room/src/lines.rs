//! A client's bytes as lines. A stream may be cut anywhere, so this takes one byte at a time; and it keeps no more than a line,
//! whatever a client sends.

use core::fmt;

/// Bytes of the longest line, without its end.
pub(crate) const LINE_BYTES_MAX: usize = 512;
/// Bytes that may follow a line which is too long before it ends.
const SKIPPED_BYTES_MAX: usize = 16 << 10;

/// Splits bytes into lines.
#[derive(Default, Debug)]
pub(crate) struct Lines {
    line: Vec<u8>,
    /// Bytes skipped since the line was too long.
    skipped: usize,
}

/// Why a line is refused. Each costs its client something and no other client anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LineError {
    /// Its rest is skipped.
    TooLong,
    /// Its rest does not end either.
    Endless,
    /// It is not UTF-8.
    NotUtf8,
    /// It would move the cursor, ring the bell or change colours in the terminals of others.
    Control,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "that line is longer than {LINE_BYTES_MAX} bytes"),
            Self::Endless => f.write_str("that line does not end"),
            Self::NotUtf8 => f.write_str("that line is not UTF-8"),
            Self::Control => f.write_str("that line has control characters"),
        }
    }
}

impl Lines {
    /// Takes one byte; returns the line that it ends, without spaces around it. A line that is too long is an error at once.
    pub(crate) fn take(&mut self, byte: u8) -> Option<Result<String, LineError>> {
        if byte == b'\n' {
            let was_too_long = core::mem::take(&mut self.skipped) > 0;
            let line = core::mem::take(&mut self.line);
            return (!was_too_long).then(|| checked(line));
        }
        // A line's end may be two bytes.
        let has_room = self.line.len() < LINE_BYTES_MAX || self.line.len() == LINE_BYTES_MAX && byte == b'\r';
        if has_room && self.skipped == 0 {
            self.line.push(byte);
            return None;
        }
        self.skipped += 1;
        match self.skipped {
            1 => Some(Err(LineError::TooLong)),
            SKIPPED_BYTES_MAX => Some(Err(LineError::Endless)),
            _ => None,
        }
    }
}

fn checked(line: Vec<u8>) -> Result<String, LineError> {
    let line = String::from_utf8(line).map_err(|_| LineError::NotUtf8)?.replace('\t', " ");
    let line = line.trim();
    if line.contains(char::is_control) { Err(LineError::Control) } else { Ok(line.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Result<String, LineError>> {
        let mut lines = Lines::default();
        bytes.iter().filter_map(|byte| lines.take(*byte)).collect()
    }

    fn fine(line: &str) -> Result<String, LineError> {
        Ok(line.to_owned())
    }

    #[test]
    fn lines_end_at_line_feeds_and_have_no_spaces_around_them() {
        assert_eq!(lines(b"hi\r\n\n  a\tb \nrest"), ["hi", "", "a b"].map(fine));
        assert_eq!(lines("gr\u{fc}n \u{2603}\n".as_bytes()), [fine("gr\u{fc}n \u{2603}")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_once_and_the_next_is_read() {
        let longest = "x".repeat(LINE_BYTES_MAX);
        for end in ["\n", "\r\n"] {
            assert_eq!(lines(format!("{longest}{end}").as_bytes()), [fine(&longest)]);
            let long = format!("{longest}yz{end}hi{end}");
            assert_eq!(lines(long.as_bytes()), [Err(LineError::TooLong), fine("hi")]);
        }
        let mut endless = Lines::default();
        let errors: Vec<_> = (0..1_000_000).filter_map(|_| endless.take(b'x')).collect();
        assert_eq!(errors, [Err(LineError::TooLong), Err(LineError::Endless)]);
        assert!(endless.line.len() <= LINE_BYTES_MAX);
        let returns = [&[b'x'; LINE_BYTES_MAX][..], &[b'\r'; 2]].concat();
        assert_eq!(lines(&returns), [Err(LineError::TooLong)]);
    }

    #[test]
    fn what_a_terminal_should_not_get_is_refused() {
        for (line, error) in [
            (&b"a\xff"[..], LineError::NotUtf8),
            (b"\xff\xf4\xff\xfd\x06", LineError::NotUtf8),
            (b"\x1b[2Jhello", LineError::Control),
            (b"a\rb", LineError::Control),
            (b"ring \x07", LineError::Control),
            ("\u{9b}31m".as_bytes(), LineError::Control),
        ] {
            assert_eq!(lines(&[line, b"\nhi\n"].concat()), [Err(error), fine("hi")], "{line:?}");
        }
    }
}
