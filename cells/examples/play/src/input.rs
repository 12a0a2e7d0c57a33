//! A client's bytes as lines, or as a terminal's keys. Both parsers take one byte at a time, so that the split has no effect, and
//! keep no more than a line.

/// The longest line that is kept.
pub const LINE_BYTES_MAX: usize = 128;

/// Splits bytes into lines.
#[derive(Default, Debug)]
pub struct Lines {
    line: Vec<u8>,
    is_too_long: bool,
}

impl Lines {
    /// Takes one byte; returns the line that it ends, without its end, in lower case and with invalid UTF-8 replaced. A line that
    /// is too long is returned as an empty `Err` when it ends.
    pub fn take(&mut self, byte: u8) -> Option<Result<String, ()>> {
        if byte != b'\n' {
            self.is_too_long |= self.line.len() == LINE_BYTES_MAX;
            if !self.is_too_long {
                self.line.push(byte);
            }
            return None;
        }
        let line = String::from_utf8_lossy(&self.line).trim().to_ascii_lowercase();
        self.line.clear();
        Some(if core::mem::take(&mut self.is_too_long) { Err(()) } else { Ok(line) })
    }
}

/// A direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Arrow up, `w`.
    Up,
    /// Arrow down, `s`.
    Down,
    /// Arrow left, `a`.
    Left,
    /// Arrow right, `d`.
    Right,
}

impl Key {
    /// The key for a word of a line.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "up" | "w" => Some(Self::Up),
            "down" | "s" => Some(Self::Down),
            "left" | "a" => Some(Self::Left),
            "right" | "d" => Some(Self::Right),
            _ => None,
        }
    }
}

/// What a key of a terminal means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Press {
    /// A direction.
    Key(Key),
    /// Space or return.
    Start,
    /// `q` or Control-C.
    Quit,
}

/// How many of an arrow key's three bytes have arrived.
#[derive(Default, Debug)]
enum Arrow {
    #[default]
    No,
    Escape,
    Bracket,
}

/// Parses a terminal's bytes into keys. Ignores other keys.
#[derive(Default, Debug)]
pub struct Keys {
    arrow: Arrow,
}

impl Keys {
    /// Takes one byte; returns the key that it completes.
    pub fn take(&mut self, byte: u8) -> Option<Press> {
        match (core::mem::take(&mut self.arrow), byte) {
            (_, 0x1b) => self.arrow = Arrow::Escape,
            (Arrow::Escape, b'[' | b'O') => self.arrow = Arrow::Bracket,
            (Arrow::Bracket, b'A') => return Some(Press::Key(Key::Up)),
            (Arrow::Bracket, b'B') => return Some(Press::Key(Key::Down)),
            (Arrow::Bracket, b'C') => return Some(Press::Key(Key::Right)),
            (Arrow::Bracket, b'D') => return Some(Press::Key(Key::Left)),
            (Arrow::Bracket, _) => {}
            (_, b'w' | b'W') => return Some(Press::Key(Key::Up)),
            (_, b's' | b'S') => return Some(Press::Key(Key::Down)),
            (_, b'a' | b'A') => return Some(Press::Key(Key::Left)),
            (_, b'd' | b'D') => return Some(Press::Key(Key::Right)),
            (_, b' ' | b'\r' | b'\n') => return Some(Press::Start),
            (_, b'q' | b'Q' | 0x03) => return Some(Press::Quit),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Result<String, ()>> {
        let mut lines = Lines::default();
        bytes.iter().filter_map(|byte| lines.take(*byte)).collect()
    }

    #[test]
    fn lines_end_at_line_feeds_and_are_kept_up_to_their_limit() {
        assert_eq!(lines(b"Up\r\n\n at 3 up \nrest"), ["up", "", "at 3 up"].map(|line| Ok(line.to_owned())));
        let longest = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(lines(format!("{longest}\n").as_bytes()), [Ok(longest.clone())]);
        assert_eq!(lines(format!("{longest}y\nup\n").as_bytes()), [Err(()), Ok("up".to_owned())]);
        let mut endless = Lines::default();
        (0..1_000_000).for_each(|_| assert_eq!(endless.take(b'x'), None));
        assert_eq!(endless.line.len(), LINE_BYTES_MAX);
    }

    #[test]
    fn arrows_letters_and_nothing_else_are_keys() {
        let mut keys = Keys::default();
        let bytes = b"w\x1b[A\x1bOD\x1b[5~sx\x1b\x1b[Bd A\x03";
        let found: Vec<_> = bytes.iter().filter_map(|byte| keys.take(*byte)).collect();
        use Key::{Down, Left, Right, Up};
        let key = Press::Key;
        let expected = [
            key(Up),
            key(Up),
            key(Left),
            key(Down),
            key(Down),
            key(Right),
            Press::Start,
            key(Left),
            Press::Quit,
        ];
        assert_eq!(found, expected);
    }
}
