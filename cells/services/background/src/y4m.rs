//! YUV4MPEG2, a format for uncompressed video between programs (`ffmpeg -f yuv4mpegpipe`): a header line, then frames, each a
//! line and its planes. Takes pieces of a stream and returns whole parts. Existing crates read from a blocking source.

use std::fmt;

/// Longest header or frame line.
pub const LINE_MAX: usize = 1024;
/// Most pixels in a frame.
pub const PIXELS_MAX: usize = 1 << 22;

/// Why a stream is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It does not begin with the format's signature.
    NotVideo,
    /// A line does not end.
    LongLine,
    /// The header lacks the width or height, or they are invalid.
    Size(String),
    /// Samples of more than 8 bits, or unknown planes.
    Colour(String),
    /// There are other bytes instead of a frame.
    NotFrame,
    /// There is not enough memory for frames of this size.
    Memory {
        /// Pixels.
        width: u32,
        /// Pixels.
        height: u32,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotVideo => write!(f, "this is no YUV4MPEG2 stream: `ffmpeg -f yuv4mpegpipe` makes one"),
            Self::LongLine => write!(f, "a line of the stream has more than {LINE_MAX} bytes"),
            Self::Size(size) => write!(f, "no size of a frame: {size:?}; at most {PIXELS_MAX} pixels"),
            Self::Colour(tag) => write!(f, "colour {tag:?} is not known: mono, 420*, 422 or 444 with 8 bits"),
            Self::Memory { width, height } => write!(
                f,
                "frames of {width} x {height} need more memory than the app has: raise its quota or lower `frames`"
            ),
            Self::NotFrame => write!(f, "something else stands where a frame should"),
        }
    }
}

/// The stream's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The line, with its end.
    pub line: String,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Bytes of a frame's planes.
    pub planes: usize,
}

impl Header {
    /// Bytes of the first plane: the brightness of pixels.
    #[must_use]
    pub fn luma(&self) -> usize {
        self.width as usize * self.height as usize
    }

    fn parse(line: &str) -> Result<Self, Refused> {
        let mut words = line.trim_end_matches('\n').split(' ');
        if words.next() != Some("YUV4MPEG2") {
            return Err(Refused::NotVideo);
        }
        let (mut width, mut height, mut colour) = (0u32, 0u32, "420");
        for word in words.filter(|word| !word.is_empty()) {
            let (tag, value) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
            match tag {
                "W" => width = value.parse().map_err(|_| Refused::Size(word.to_owned()))?,
                "H" => height = value.parse().map_err(|_| Refused::Size(word.to_owned()))?,
                "C" => colour = value,
                _ => {}
            }
        }
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || pixels > PIXELS_MAX as u64 {
            return Err(Refused::Size(format!("W{width} H{height}")));
        }
        let (w, h) = (width as usize, height as usize);
        let half = |length: usize| length.div_ceil(2);
        let chroma = match colour {
            "mono" => 0,
            "420" | "420jpeg" | "420mpeg2" | "420paldv" => half(w) * half(h),
            "422" => half(w) * h,
            "444" => w * h,
            other => return Err(Refused::Colour(other.to_owned())),
        };
        Ok(Self { line: line.to_owned(), width, height, planes: w * h + 2 * chroma })
    }
}

/// A part of a stream.
#[derive(PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// The header: first, and once.
    Header(Header),
    /// A frame.
    Frame {
        /// The rest of its line after `FRAME`, with the leading space.
        parameters: &'a str,
        /// All planes, brightness first.
        planes: &'a [u8],
        /// Bytes of the brightness plane.
        luma: usize,
    },
}

/// Assembles parts from a stream's pieces.
#[derive(Default)]
pub struct Reader {
    header: Option<Header>,
    line: Vec<u8>,
    line_is_whole: bool,
    planes: Vec<u8>,
    /// Whether the last frame was returned.
    given: bool,
}

impl Reader {
    /// Takes the bytes of the next part from `input`; returns the part if it is complete. If it returns `None`, all input was
    /// taken.
    ///
    /// # Errors
    /// If this is not such a stream, or not a supported one. The reader cannot continue then.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Part<'_>>, Refused> {
        if std::mem::take(&mut self.given) {
            self.line.clear();
            self.line_is_whole = false;
            self.planes.clear();
        }
        if !self.line_is_whole {
            let end = input.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(input.len(), |end| end + 1);
            if self.line.len() + count > LINE_MAX {
                return Err(if self.header.is_some() { Refused::LongLine } else { Refused::NotVideo });
            }
            self.line.extend_from_slice(&input[..count]);
            *input = &input[count..];
            if end.is_none() {
                return Ok(None);
            }
            self.line_is_whole = true;
        }
        let line = std::str::from_utf8(&self.line);
        let Some(header) = &self.header else {
            let header = Header::parse(line.map_err(|_| Refused::NotVideo)?)?;
            self.planes.reserve_exact(header.planes);
            self.header = Some(header.clone());
            self.given = true;
            return Ok(Some(Part::Header(header)));
        };
        let parameters = line.ok().and_then(|line| line.trim_end_matches('\n').strip_prefix("FRAME"));
        let parameters = parameters.filter(|rest| rest.is_empty() || rest.starts_with(' '));
        let parameters = parameters.ok_or(Refused::NotFrame)?;
        let count = input.len().min(header.planes - self.planes.len());
        self.planes.extend_from_slice(&input[..count]);
        *input = &input[count..];
        if self.planes.len() < header.planes {
            return Ok(None);
        }
        self.given = true;
        Ok(Some(Part::Frame { parameters, planes: &self.planes, luma: header.luma() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<String>, Refused> {
        let mut reader = Reader::default();
        let mut parts = Vec::new();
        for piece in pieces {
            let mut input = *piece;
            while let Some(part) = reader.next(&mut input)? {
                parts.push(match part {
                    Part::Header(header) => format!("{}x{} {}", header.width, header.height, header.planes),
                    Part::Frame { parameters, planes, luma } => format!("{parameters}|{planes:?}|{luma}"),
                });
            }
            assert!(input.is_empty());
        }
        Ok(parts)
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let stream = b"YUV4MPEG2 W2 H2 F25:1 Cmono\nFRAME\n\x01\x02\n\x04FRAME Ip XA=1\n\x05\x06\x07\x08FRA";
        let whole = read(&[stream]).unwrap();
        assert_eq!(whole, ["2x2 4", "|[1, 2, 10, 4]|4", " Ip XA=1|[5, 6, 7, 8]|4"]);
        for at in 0..stream.len() {
            assert_eq!(read(&[&stream[..at], &stream[at..]]).unwrap(), whole);
        }
        assert_eq!(read(&stream.chunks(1).collect::<Vec<_>>()).unwrap(), whole);
    }

    #[test]
    fn planes_are_counted_and_what_is_not_known_is_refused() {
        for (colour, bytes) in [("mono", 15), ("420jpeg", 27), ("422", 33), ("444", 45), ("420paldv", 27)] {
            let header = Header::parse(&format!("YUV4MPEG2 W5 H3 C{colour}\n")).unwrap();
            assert_eq!(header.planes, bytes, "{colour}");
        }
        assert_eq!(Header::parse("YUV4MPEG2 W4 H2\n").unwrap().planes, 12);
        for (stream, refused) in [
            (&b"RIFF....AVI \n"[..], Refused::NotVideo),
            (&[0xff; 2000], Refused::NotVideo),
            (b"YUV4MPEG2 W5\n", Refused::Size("W5 H0".into())),
            (b"YUV4MPEG2 W5 Hx\n", Refused::Size("Hx".into())),
            (b"YUV4MPEG2 W99999 H99999\n", Refused::Size("W99999 H99999".into())),
            (b"YUV4MPEG2 W4294967297 H1\n", Refused::Size("W4294967297".into())),
            (b"YUV4MPEG2 W2 H2 C420p10\n", Refused::Colour("420p10".into())),
            (b"YUV4MPEG2 W1 H1 Cmono\nFRAMED\n", Refused::NotFrame),
            (b"YUV4MPEG2 W1 H1 Cmono\nFRAME\n\x01GRAME\n", Refused::NotFrame),
        ] {
            assert_eq!(read(&[stream]), Err(refused));
        }
        let long = [&b"YUV4MPEG2 W1 H1 Cmono\nFRAME "[..], &[b'x'; 2000]].concat();
        assert_eq!(read(&[&long]), Err(Refused::LongLine));
    }
}
