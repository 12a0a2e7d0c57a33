//! The framing of a received body: where its data is and where it ends, however it is split. Does not interpret the data.

/// Most digits of a chunk's size: more would exceed any real number of bytes.
const SIZE_DIGITS_MAX: u32 = 15;
/// Bytes after a chunk's size: extensions, which are not used in practice, and spaces.
const EXTENSION_BYTES_MAX: u32 = 256;
/// Bytes of trailers.
const TRAILER_BYTES_MAX: usize = 8 << 10;

/// How long a body is, as its head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    /// This many bytes; may be 0.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Until the connection ends.
    UntilClose,
}

/// A body that is being received.
pub(super) struct Reader {
    place: Place,
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// This many bytes of the body are left.
    Length(u64),
    UntilClose,
    /// In a chunk's size; this many digits were read.
    Size {
        size: u64,
        digits: u32,
    },
    /// After the digits.
    Extension {
        size: u64,
        bytes: u32,
        after_cr: bool,
        is_named: bool,
    },
    /// In a chunk's data.
    Data(u64),
    /// At the line end after the data.
    DataEnd {
        after_cr: bool,
    },
    /// After the last chunk.
    Trailers,
    End,
}

/// The next part of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// This many bytes of framing, to be skipped.
    Framing(usize),
    /// This many bytes of data. The caller reports used bytes with [`Reader::took`].
    Data(usize),
    /// More input is needed.
    Wait,
    /// The body has ended.
    End,
}

impl Reader {
    pub(super) fn new(framing: Framing) -> Self {
        let place = match framing {
            Framing::Length(left) => Place::Length(left),
            Framing::UntilClose => Place::UntilClose,
            Framing::Chunked => Place::Size { size: 0, digits: 0 },
        };
        Self { place, trailers: Vec::new() }
    }

    /// The lines after the last chunk, with their line ends.
    pub(super) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Reports that this many bytes of data were used.
    pub(super) fn took(&mut self, len: usize) {
        match &mut self.place {
            Place::Length(left) => *left = left.saturating_sub(len as u64),
            Place::Data(left) => {
                *left = left.saturating_sub(len as u64);
                if *left == 0 {
                    self.place = Place::DataEnd { after_cr: false };
                }
            }
            _ => {}
        }
    }

    /// What the first bytes of `input` are. `is_ended`: no more input will follow.
    ///
    /// # Errors
    /// If the framing is invalid.
    pub(super) fn look(&mut self, input: &[u8], is_ended: bool) -> Result<Look, &'static str> {
        let within = |left: u64| usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
        match self.place {
            Place::End | Place::Length(0) => return Ok(Look::End),
            Place::UntilClose if input.is_empty() && is_ended => return Ok(Look::End),
            _ if input.is_empty() => return Ok(Look::Wait),
            Place::Length(left) | Place::Data(left) => return Ok(Look::Data(within(left))),
            Place::UntilClose => return Ok(Look::Data(input.len())),
            _ => {}
        }
        for (index, byte) in input.iter().enumerate() {
            self.place = self.next(*byte)?;
            if matches!(self.place, Place::Data(_) | Place::End) {
                return Ok(Look::Framing(index + 1));
            }
        }
        Ok(Look::Framing(input.len()))
    }

    /// The state after one more byte of framing.
    fn next(&mut self, byte: u8) -> Result<Place, &'static str> {
        match self.place {
            Place::Size { size, digits } => match char::from(byte).to_digit(16) {
                Some(_) if digits == SIZE_DIGITS_MAX => Err("a chunk's size has too many digits"),
                Some(digit) => Ok(Place::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }),
                None if digits == 0 => Err("a chunk has no size"),
                None => {
                    self.place = Place::Extension { size, bytes: 0, after_cr: false, is_named: false };
                    self.next(byte)
                }
            },
            Place::Extension { after_cr: true, size, .. } => match byte {
                b'\n' if size == 0 => Ok(Place::Trailers),
                b'\n' => Ok(Place::Data(size)),
                _ => Err("a line of a chunked body ends in CR alone"),
            },
            Place::Extension { size, bytes, is_named, .. } => {
                match byte {
                    b'\n' => return Err("a line of a chunked body ends in LF alone"),
                    0 => return Err("a chunk's extension holds a zero byte"),
                    b'\r' | b' ' | b'\t' | b';' => {}
                    _ if is_named => {}
                    _ => return Err("a chunk's size is no hexadecimal number"),
                }
                if bytes == EXTENSION_BYTES_MAX {
                    return Err("a chunk's extensions are too long");
                }
                let (after_cr, is_named) = (byte == b'\r', is_named || byte == b';');
                Ok(Place::Extension { size, bytes: bytes + 1, after_cr, is_named })
            }
            Place::DataEnd { after_cr: false } if byte == b'\r' => Ok(Place::DataEnd { after_cr: true }),
            Place::DataEnd { after_cr: true } if byte == b'\n' => Ok(Place::Size { size: 0, digits: 0 }),
            Place::DataEnd { .. } => Err("a chunk is longer than its size"),
            Place::Trailers => self.trailer(byte),
            other => Ok(other),
        }
    }
}

impl Reader {
    /// Takes one byte of the trailers; an empty line ends them.
    fn trailer(&mut self, byte: u8) -> Result<Place, &'static str> {
        let before = self.trailers.last().copied();
        if byte == b'\n' && before != Some(b'\r') || byte != b'\n' && before == Some(b'\r') {
            return Err("a line of the trailers does not end in CR and LF");
        }
        if self.trailers.len() == TRAILER_BYTES_MAX {
            return Err("the trailers are too long");
        }
        self.trailers.push(byte);
        let is_over = self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n");
        if is_over {
            self.trailers.truncate(self.trailers.len() - 2);
        }
        Ok(if is_over { Place::End } else { Place::Trailers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data, the trailers, and the rest, of a body that arrives in pieces of one size.
    fn read(wire: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>, usize), &'static str> {
        let (mut reader, mut data, mut at, mut here) =
            (Reader::new(Framing::Chunked), Vec::new(), 0, piece.min(wire.len()));
        loop {
            match reader.look(&wire[at..here], false)? {
                Look::Framing(len) => at += len,
                Look::Data(len) => {
                    // Like a decoder that has no room for more.
                    let len = len.div_ceil(2);
                    data.extend_from_slice(&wire[at..at + len]);
                    reader.took(len);
                    at += len;
                }
                Look::Wait if here == wire.len() => return Err("more"),
                Look::Wait => here = wire.len().min(here + piece),
                Look::End => return Ok((data, reader.trailers().to_vec(), wire.len() - at)),
            }
        }
    }

    fn check(wire: &str, expected: Result<(&str, &str, usize), &str>) {
        for piece in [1, 2, 3, 7, wire.len()] {
            let found = read(wire.as_bytes(), piece);
            let found = found.map(|(data, trailers, left)| {
                (String::from_utf8(data).unwrap(), String::from_utf8(trailers).unwrap(), left)
            });
            match (&found, &expected) {
                (Ok((data, trailers, left)), Ok(expected)) => {
                    assert_eq!((data.as_str(), trailers.as_str()), (expected.0, expected.1), "{wire:?}");
                    assert!(*left <= expected.2, "{wire:?}");
                }
                (Err(error), Err(words)) => {
                    assert!(error.contains(words), "{wire:?}: {error:?}, not {words:?}")
                }
                _ => panic!("{wire:?} in pieces of {piece}: {found:?}"),
            }
        }
    }

    #[test]
    fn chunks_are_read_however_they_are_cut() {
        check("0\r\n\r\n", Ok(("", "", 0)));
        check("5\r\nhello\r\n0\r\n\r\nGET", Ok(("hello", "", 3)));
        check(
            "00a ;x=\"y\"\r\n0123456789\r\n1\r\n!\r\n0000;last\r\nA: b\r\nC: d\r\n\r\n",
            Ok(("0123456789!", "A: b\r\nC: d\r\n", 0)),
        );
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for (wire, words) in [
            ("\r\n", "no size"),
            ("-1\r\n", "no size"),
            (" 5\r\n", "no size"),
            ("0x5\r\nhello", "no hexadecimal"),
            ("5\nhello", "LF alone"),
            ("5\rhello", "CR alone"),
            ("5;a\nb\r\n", "LF alone"),
            ("5 6\r\n", "no hexadecimal"),
            ("5\r\nhello!\r\n", "longer"),
            ("5\r\nhello\n", "longer"),
            ("fffffffffffffffff\r\n", "too many digits"),
            ("0\r\nA: b\n\r\n", "trailers"),
            ("0\r\nA\rb\r\n\r\n", "trailers"),
            ("5\r\nhel", "more"),
        ] {
            check(wire, Err(words));
        }
        check(&format!("5;{}\r\n", "x".repeat(300)), Err("extensions are too long"));
        check(&format!("0\r\nA: {}\r\n\r\n", "x".repeat(9000)), Err("too long"));
    }
}
