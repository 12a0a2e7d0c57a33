//! A wire's byte stream: any split gives the same frames and the same error. The first byte selects the split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_wire::frame::{Frame, ReadError, Reader};

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<ReadError>) {
    let (mut reader, mut frames) = (Reader::default(), Vec::new());
    for piece in pieces {
        reader.buffer.extend_from_slice(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((size, stream)) = data.split_first() else { return };
    let cut = read(stream.chunks(usize::from(*size).max(1)));
    assert_eq!(cut, read(std::iter::once(stream)));
});
