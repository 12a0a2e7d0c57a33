//! Builds the bytes for one client, unless it wants no reply. Knows the format of lines, numbers and values.

/// Destination of the reply to one request.
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// `noreply`: the request is carried out, and its errors are lost as well.
    silent: bool,
}

impl<'a> Reply<'a> {
    /// A reply to be added to `out`; nothing is added if it is silent.
    pub(crate) fn new(out: &'a mut Vec<u8>, silent: bool) -> Self {
        Self { out, silent }
    }

    /// The only function that heeds `silent`.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if !self.silent {
            self.out.extend_from_slice(bytes);
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Text and the line end.
    pub(crate) fn line(&mut self, text: &str) {
        self.text(text);
        self.bytes(b"\r\n");
    }

    /// In decimal. Written by hand, since every hit writes two or three numbers.
    pub(crate) fn number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(number % 10).expect("one digit");
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.bytes(&digits[start..]);
    }

    /// The line before a value. `VALUE key flags len[ cas]`, the form of memcached's replies to
    /// `get` and, with the version, to `gets`.
    pub(crate) fn value_head(&mut self, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
        self.text("VALUE ");
        self.bytes(key);
        for number in [Some(u64::from(flags)), Some(len as u64), cas].into_iter().flatten() {
            self.bytes(b" ");
            self.number(number);
        }
        self.bytes(b"\r\n");
    }

    /// One line of statistics.
    pub(crate) fn stat(&mut self, name: &str, value: impl std::fmt::Display) {
        self.line(&format!("STAT {name} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for number in [0, 9, 10, 99, 100, 12_345, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            Reply::new(&mut out, false).number(number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn a_silent_reply_says_nothing() {
        let mut out = Vec::new();
        Reply::new(&mut out, true).value_head(b"k", 1, 2, Some(3));
        assert!(out.is_empty());
        Reply::new(&mut out, false).value_head(b"k", 1, 2, Some(3));
        assert_eq!(out, b"VALUE k 1 2 3\r\n");
    }
}
