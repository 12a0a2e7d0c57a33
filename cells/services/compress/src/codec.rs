//! Deflate: an encoder that takes all input, and a decoder that never returns more bytes than it is allowed to.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The window size of all formats.
const WINDOW_BITS: u8 = 15;
/// Output room that an encoder gets at least.
const ROOM: usize = 4096;
/// First byte of a gzip member.
const GZIP_MAGIC: u8 = 0x1f;

/// The format around the deflated bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Zlib,
    /// Nothing: RFC 1951.
    Deflate,
}

/// Compresses.
pub struct Encoder {
    compress: Compress,
    /// Whether input was written since the last flush.
    has_more: bool,
    /// Whether input was written since the start or reset.
    is_used: bool,
}

impl Encoder {
    /// An encoder with a level from 1 to 9.
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

    /// Resets the encoder to its initial state.
    pub fn reset(&mut self) {
        if self.is_used {
            self.compress.reset();
        }
        (self.has_more, self.is_used) = (false, false);
    }

    /// Takes all of the input; some output may be held back.
    pub fn write(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if !input.is_empty() {
            self.has_more = true;
            self.run(input, out, FlushCompress::None);
        }
    }

    /// Writes out all held output.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_more) {
            self.run(&[], out, FlushCompress::Sync);
        }
    }

    /// Writes out all held output and the end of the stream. Call [`Encoder::reset`] before further use.
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
                // There was nothing to write.
                Status::BufError if has_room => return,
                _ if matches!(flush, FlushCompress::Finish) => {}
                _ if input.is_empty() && has_room => return,
                _ => {}
            }
        }
    }
}

/// Decompresses.
pub struct Decoder {
    decompress: Decompress,
    format: Format,
    at: At,
    /// Whether more output was decoded than there was room for.
    is_full: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Middle,
    End,
    /// After the end of the stream, something else followed.
    Behind,
}

impl Decoder {
    /// A decoder for this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { decompress: decompress(format), format, at: At::Start, is_full: false }
    }

    /// Resets the decoder to its initial state.
    pub fn reset(&mut self) {
        if self.at != At::Start {
            match self.format {
                // The library's reset cannot expect a gzip header again.
                Format::Gzip => self.decompress = decompress(self.format),
                Format::Zlib => self.decompress.reset(true),
                Format::Deflate => self.decompress.reset(false),
            }
        }
        (self.at, self.is_full) = (At::Start, false);
    }

    /// Whether there is more output, without further input.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether the input so far is a complete stream, or empty.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.at != At::Middle
    }

    /// Whether something followed the end that is not part of the stream.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.at == At::Behind
    }

    /// Decodes some of the input, and appends at most `room` bytes. Returns how many input bytes were taken: all of them, unless
    /// the output is full. Several consecutive gzip members are one stream; everything from the first non-member on is ignored.
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

/// Output room that the decoder gets at a time.
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
        // Something that looks like a member after a non-member is ignored, wherever it is split.
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
