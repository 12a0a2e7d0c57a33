//! Deflate as it is used here: an encoder that takes everything, and a decoder that never gives more than there is room for.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The window that all formats have.
const WINDOW_BITS: u8 = 15;
/// Room that an encoder is given at least.
const ROOM: usize = 4096;
/// What a gzip member begins with.
const GZIP_MAGIC: u8 = 0x1f;

/// What is around the deflated bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Zlib,
    /// Nothing: RFC 1951.
    Deflate,
}

/// From plain to compressed.
pub struct Encoder {
    compress: Compress,
    /// Something was written since the last flush.
    has_more: bool,
    /// Something was written since it was new.
    is_used: bool,
}

impl Encoder {
    /// At a level of 1 to 9.
    #[must_use]
    pub fn new(format: Format, level: u32) -> Self {
        let level = Compression::new(level);
        let compress = match format {
            Format::Gzip => Compress::new_gzip(level, WINDOW_BITS),
            Format::Zlib => Compress::new_with_window_bits(level, true, WINDOW_BITS),
            Format::Deflate => Compress::new_with_window_bits(level, false, WINDOW_BITS),
        };
        Self { compress, has_more: false, is_used: false }
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        if self.is_used {
            self.compress.reset();
        }
        (self.has_more, self.is_used) = (false, false);
    }

    /// Takes all of the input; what comes of it may still be within.
    pub fn write(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if !input.is_empty() {
            self.has_more = true;
            self.run(input, out, FlushCompress::None);
        }
    }

    /// Gives out everything that was written.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_more) {
            self.run(&[], out, FlushCompress::Sync);
        }
    }

    /// Gives out everything, and the end. Of use again after [`Encoder::reset`].
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.run(&[], out, FlushCompress::Finish);
        self.has_more = false;
    }

    fn run(&mut self, mut input: &[u8], out: &mut Vec<u8>, flush: FlushCompress) {
        self.is_used = true;
        loop {
            out.reserve(ROOM.max(input.len() / 4));
            let before = self.compress.total_in();
            let status = self.compress.compress_vec(input, out, flush);
            let took = usize::try_from(self.compress.total_in() - before).unwrap_or(input.len());
            input = &input[took.min(input.len())..];
            let has_room = out.len() < out.capacity();
            match status.expect("an encoder that is not misused has no errors") {
                Status::StreamEnd => return,
                // There was nothing to do.
                Status::BufError if has_room => return,
                _ if matches!(flush, FlushCompress::Finish) => {}
                _ if input.is_empty() && has_room => return,
                _ => {}
            }
        }
    }
}

/// From compressed to plain.
pub struct Decoder {
    decompress: Decompress,
    format: Format,
    at: At,
    /// There was no room for all that was decoded.
    is_full: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Middle,
    End,
    /// Behind the end came what is nothing.
    Behind,
}

impl Decoder {
    /// Of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { decompress: decompress(format), format, at: At::Start, is_full: false }
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        if self.at != At::Start {
            match self.format {
                // The library cannot begin anew and still expect a gzip header.
                Format::Gzip => self.decompress = decompress(self.format),
                Format::Zlib => self.decompress.reset(true),
                Format::Deflate => self.decompress.reset(false),
            }
        }
        (self.at, self.is_full) = (At::Start, false);
    }

    /// There is more to read, without further input.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The input so far is whole, or there was none.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.at != At::Middle
    }

    /// There was something behind the end that does not belong to it.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.at == At::Behind
    }

    /// Decodes some of the input, and appends at most `room` bytes. Returns how much of the input was taken: all of it, unless it
    /// is full. Several gzip members in a row are one stream; everything from what is none on is ignored.
    ///
    /// # Errors
    /// If the input is not of the format.
    pub fn read(&mut self, input: &[u8], out: &mut Vec<u8>, room: usize) -> Result<usize, String> {
        let (mut took, end) = (0, out.len() + room);
        self.is_full = false;
        loop {
            let rest = &input[took..];
            if self.at == At::End && !rest.is_empty() {
                if self.format == Format::Gzip && rest[0] == GZIP_MAGIC {
                    self.reset();
                } else {
                    self.at = At::Behind;
                }
            }
            if self.at == At::Behind {
                return Ok(input.len());
            }
            if matches!(self.at, At::Start | At::End) && rest.is_empty() {
                return Ok(took);
            }
            self.at = At::Middle;
            let start = out.len();
            out.resize(end.min(start + CHUNK), 0);
            let (read, written) = (self.decompress.total_in(), self.decompress.total_out());
            let status = self.decompress.decompress(rest, &mut out[start..], FlushDecompress::None);
            let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            let was_full = out.len() == start + moved(self.decompress.total_out(), written);
            out.truncate(start + moved(self.decompress.total_out(), written));
            took += moved(self.decompress.total_in(), read);
            match status.map_err(|error| format!("the compressed bytes make no sense: {error}"))? {
                Status::StreamEnd => self.at = At::End,
                _ if was_full && out.len() >= end => {
                    self.is_full = true;
                    return Ok(took);
                }
                _ if was_full => {}
                _ if took == input.len() => return Ok(took),
                Status::BufError => return Err("the compressed bytes cannot be read on".to_owned()),
                Status::Ok => {}
            }
        }
    }
}

/// Room that the decoder is given at a time.
const CHUNK: usize = 16 << 10;

fn decompress(format: Format) -> Decompress {
    match format {
        Format::Gzip => Decompress::new_gzip(WINDOW_BITS),
        Format::Zlib => Decompress::new_with_window_bits(true, WINDOW_BITS),
        Format::Deflate => Decompress::new_with_window_bits(false, WINDOW_BITS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Format; 3] = [Format::Gzip, Format::Zlib, Format::Deflate];

    fn decode(decoder: &mut Decoder, mut input: &[u8], room: usize) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        while !input.is_empty() || decoder.is_full() {
            let before = out.len();
            let took = decoder.read(input, &mut out, room)?;
            assert!(out.len() - before <= room);
            assert!(took == input.len() || decoder.is_full());
            input = &input[took..];
        }
        Ok(out)
    }

    #[test]
    fn what_is_flushed_can_be_read_at_once_in_any_room() {
        let words: Vec<Vec<u8>> =
            (0..60_u8).map(|n| vec![b'a' + n % 23; usize::from(n).pow(2) * 7]).collect();
        for format in FORMATS {
            let (mut encoder, mut decoder) = (Encoder::new(format, 6), Decoder::new(format));
            for round in 0..2 {
                for (n, word) in words.iter().enumerate() {
                    let mut wire = Vec::new();
                    encoder.write(word, &mut wire);
                    encoder.flush(&mut wire);
                    assert_eq!(
                        decode(&mut decoder, &wire, 1 + n * 100).unwrap(),
                        *word,
                        "{format:?} {n} {round}"
                    );
                }
                let mut end = Vec::new();
                encoder.finish(&mut end);
                assert!(!decoder.is_whole());
                assert_eq!(decode(&mut decoder, &end, 1).unwrap(), b"");
                assert!(decoder.is_whole());
                encoder.reset();
                decoder.reset();
            }
        }
    }

    #[test]
    fn several_members_are_one_stream_and_what_is_behind_is_ignored() {
        let member = |word: &[u8]| {
            let (mut encoder, mut out) = (Encoder::new(Format::Gzip, 1), Vec::new());
            encoder.write(word, &mut out);
            encoder.finish(&mut out);
            out
        };
        // What begins like a member behind what is none is no member, wherever it is cut.
        let members = [member(b"one"), member(b"two")].concat();
        let wire = [&members[..], b"\0\0\x1fno\x1f"].concat();
        for piece in 1..=wire.len() {
            let mut decoder = Decoder::new(Format::Gzip);
            let plain = wire.chunks(piece).flat_map(|piece| decode(&mut decoder, piece, 2).unwrap());
            assert_eq!(plain.collect::<Vec<u8>>(), b"onetwo");
            assert!(decoder.is_whole() && decoder.is_overrun());
            decoder.reset();
            assert!(decode(&mut decoder, &members, 9).unwrap() == b"onetwo" && !decoder.is_overrun());
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for format in FORMATS {
            assert!(decode(&mut Decoder::new(format), &[0xff; 100], 50).is_err());
        }
    }
}
