//! Uncompressed video as the cell `background` reads it: any split gives the same parts and the same error, and the parts
//! joined again are the input. The first byte selects the length of the pieces.
#![no_main]

// Only this module: the cell's crate would also bring its image processing.
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../cells/services/background/src/y4m.rs"]
mod y4m;

use libfuzzer_sys::fuzz_target;
use y4m::{Header, PIXELS_MAX, Part, Reader, Refused};

/// The parts of a stream.
#[derive(Default, PartialEq, Eq, Debug)]
struct Parts {
    header: Option<Header>,
    frames: usize,
    /// All parts, encoded again.
    again: Vec<u8>,
    refused: Option<Refused>,
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Parts {
    let (mut reader, mut parts) = (Reader::default(), Parts::default());
    for mut piece in pieces {
        loop {
            match reader.next(&mut piece) {
                Ok(None) => break assert!(piece.is_empty(), "it wants more, and leaves some"),
                Ok(Some(Part::Header(header))) => {
                    assert!(parts.header.is_none() && parts.frames == 0, "it comes first, once");
                    assert!((1..=PIXELS_MAX).contains(&header.luma()) && header.planes <= 3 * header.luma());
                    parts.again.extend_from_slice(header.line.as_bytes());
                    parts.header = Some(header);
                }
                Ok(Some(Part::Frame { parameters, planes, luma })) => {
                    let header = parts.header.as_ref().expect("a frame comes behind the header");
                    assert!(planes.len() == header.planes && luma == header.luma());
                    parts.again.extend_from_slice(b"FRAME");
                    parts.again.extend_from_slice(parameters.as_bytes());
                    parts.again.push(b'\n');
                    parts.again.extend_from_slice(planes);
                    parts.frames += 1;
                }
                Err(refused) => {
                    parts.refused = Some(refused);
                    return parts;
                }
            }
        }
    }
    parts
}

fuzz_target!(|data: &[u8]| {
    let Some((size, stream)) = data.split_first() else { return };
    let cut = read(stream.chunks(usize::from(*size) + 1));
    assert_eq!(cut, read(std::iter::once(stream)));
    assert!(stream.starts_with(&cut.again));
});
