//! The file of one session in a recorder's directory, byte by byte. Knows no directory.
//!
//! ```text
//! file   := "MRRK" | version (4) | session (16) | checksum (8) | record*
//! record := length (4) | the same, inverted (4) | checksum (8) | frame, as on a wire
//! ```
//!
//! Integers are little-endian. A checksum is a prefix of BLAKE3 over session, offset and bytes. A truncated end was not written
//! completely; every other mismatch is damage.
//!
//! Each checksum covers session and offset, so a record of another file, or in another place, is
//! not accepted. The length is written twice because it is needed before the checksum can be
//! computed: a flipped bit in it must not be mistaken for an incomplete end. Checksums are against
//! accidents; what a session may use is proved by the seals and digests inside the frames (I32).

use bytes::{Buf, Bytes, BytesMut};
use marram_wire::{
    codec::Field,
    frame::{Frame, Reader},
    id::SessionId,
    limits::FRAME_SIZE_MAX,
};
use std::fmt;

/// Bytes of a file's header.
pub const HEAD: usize = 32;
/// A larger file is not read, and nothing is appended to it.
/// It is read into memory as a whole.
pub const SIZE_MAX: u64 = 2 << 30;

const MAGIC: [u8; 4] = *b"MRRK";
const VERSION: u32 = 1;
/// Bytes of a record's header.
const RECORD: usize = 16;
/// Most bytes of a frame's length prefix.
const PREFIX: usize = 4;

/// The content of a file.
#[derive(Debug)]
pub struct Content {
    /// The session that the file belongs to.
    pub session: SessionId,
    /// Its frames, each with its offset.
    pub frames: Vec<(u64, Frame)>,
    /// The offset after the last complete record; less than the file's size if the end was not written completely.
    pub end: u64,
}

/// Why a file was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptFileError {
    /// The offset of the damage.
    pub offset: u64,
    /// What is wrong, and what to do about it.
    pub what: String,
}

impl fmt::Display for KeptFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at offset {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for KeptFileError {}

/// Eight bytes of BLAKE3. The header counts as the bytes at offset 0.
fn checksum(session: SessionId, offset: u64, bytes: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&session.0).update(&offset.to_le_bytes()).update(bytes);
    let mut sum = [0; 8];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    sum
}

/// Appends the header of a session's file.
pub fn put_head(session: SessionId, out: &mut BytesMut) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    session.put(out);
    let sum = checksum(session, 0, &out[start..]);
    out.extend_from_slice(&sum);
}

/// Appends one frame, which will be at `offset` of its file.
///
/// The payload of a frame is appended behind its header, so `out` holds the frame as on a wire.
pub fn put_frame(session: SessionId, offset: u64, frame: &Frame, out: &mut BytesMut) {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD]);
    let payload = frame.encode(out);
    out.extend_from_slice(&payload);
    let bytes = &out[start + RECORD..];
    let length = u32::try_from(bytes.len()).expect("a frame is far below 4 GiB");
    let sum = checksum(session, offset, bytes);
    let head = &mut out[start..start + RECORD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&(!length).to_le_bytes());
    head[8..].copy_from_slice(&sum);
}

/// Reads a file, without an end that was not written completely.
///
/// # Errors
/// If it is of another version, or damaged.
pub fn decode(bytes: &[u8]) -> Result<Content, KeptFileError> {
    let session = head(bytes)?;
    let (mut frames, mut at) = (Vec::new(), HEAD);
    while let Some((frame, end)) = record(bytes, session, at)? {
        frames.push((at as u64, frame));
        at = end;
    }
    Ok(Content { session, frames, end: at as u64 })
}

fn broken<T>(offset: usize, what: &str) -> Result<T, KeptFileError> {
    Err(KeptFileError { offset: offset as u64, what: what.to_owned() })
}

fn head(bytes: &[u8]) -> Result<SessionId, KeptFileError> {
    let Some(head) = bytes.get(..HEAD) else { return broken(0, "it is shorter than its head; remove it") };
    if head[..4] != MAGIC {
        return broken(0, "it is not a recorder's file; it does not belong in this directory");
    }
    let mut version = [0; 4];
    version.copy_from_slice(&head[4..8]);
    let version = u32::from_le_bytes(version);
    if version != VERSION {
        let what = format!(
            "it is of version {version}, and this build reads {VERSION}; remove it, or use that build"
        );
        return Err(KeptFileError { offset: 4, what });
    }
    let mut session = [0; 16];
    session.copy_from_slice(&head[8..24]);
    let session = SessionId(session);
    if checksum(session, 0, &head[..24]) != head[24..] {
        return broken(0, "its head is damaged; remove it");
    }
    Ok(session)
}

/// The record at `at` and its end; `None` if the file ends there or within the record.
fn record(bytes: &[u8], session: SessionId, at: usize) -> Result<Option<(Frame, usize)>, KeptFileError> {
    let Some(head) = bytes.get(at..at + RECORD) else { return Ok(None) };
    let word = |from: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&head[from..from + 4]);
        u32::from_le_bytes(word)
    };
    let (length, inverted) = (word(0), word(4));
    if length != !inverted {
        // If the machine stops, the file may be longer than the written data, filled with zeros.
        if bytes[at..].iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        return broken(at, "the length of a record is damaged; remove the file");
    }
    let size = usize::try_from(length).unwrap_or(usize::MAX);
    if size > FRAME_SIZE_MAX + PREFIX {
        return broken(at, "a record is larger than a frame can be; remove the file");
    }
    let end = at + RECORD + size;
    let Some(body) = bytes.get(at + RECORD..end) else { return Ok(None) };
    // The last record may be there in full length and in part content, since sizes can reach the
    // disk before data.
    if checksum(session, at as u64, body) != head[8..] {
        if end == bytes.len() {
            return Ok(None);
        }
        return broken(at, "a record is damaged; remove the file");
    }
    // Copied, so that what is kept of one frame does not keep the whole file in memory.
    let mut reader = Reader { buffer: BytesMut::from(body) };
    match reader.next_frame() {
        Ok(Some(frame)) if !reader.buffer.has_remaining() => Ok(Some((frame, end))),
        Ok(_) => broken(at, "a record is not one frame; remove the file"),
        Err(error) => Err(KeptFileError { offset: at as u64, what: format!("{error}; remove the file") }),
    }
}

/// A file with these frames.
#[must_use]
pub fn encode(session: SessionId, frames: &[Frame]) -> Bytes {
    let mut out = BytesMut::new();
    put_head(session, &mut out);
    for frame in frames {
        let offset = out.len() as u64;
        put_frame(session, offset, frame, &mut out);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::frame::{CheckpointPart, Ping, Truncate};

    const SESSION: SessionId = SessionId([7; 16]);

    fn frames() -> Vec<Frame> {
        let part = |size: usize| CheckpointPart { channel: 3, bytes: vec![5; size].into() };
        vec![
            Ping { stamp: 1 }.into(),
            part(0).into(),
            part(70_000).into(),
            Truncate { channel: 3, log_offset: 4, tag: [1; 8], sent: 0 }.into(),
            Ping { stamp: 2 }.into(),
        ]
    }

    fn read(bytes: &[u8]) -> Result<Vec<Frame>, KeptFileError> {
        decode(bytes).map(|content| content.frames.into_iter().map(|(_, frame)| frame).collect())
    }

    #[test]
    fn frames_are_read_as_they_were_written_and_a_torn_end_is_cut() {
        let bytes = encode(SESSION, &frames());
        let whole = decode(&bytes).expect("its own");
        assert_eq!((whole.session, whole.end), (SESSION, bytes.len() as u64));
        let ends: Vec<u64> = whole.frames.iter().skip(1).map(|(at, _)| *at).chain([whole.end]).collect();
        assert_eq!(read(&bytes), Ok(frames()));
        let interesting =
            (0..bytes.len()).filter(|cut| cut % 1_001 == 0 || *cut < 200 || *cut + 200 > bytes.len());
        for cut in interesting {
            let read = read(&bytes[..cut]);
            if cut < HEAD {
                assert_eq!(read.expect_err("no head").offset, 0);
                continue;
            }
            let count = ends.iter().filter(|end| **end <= cut as u64).count();
            assert_eq!(read.expect("torn"), frames()[..count], "{cut}");
            let mut longer = bytes[..cut].to_vec();
            longer.resize(bytes.len() + 5_000, 0);
            let zeroed = decode(&longer);
            if ends.contains(&(cut as u64)) || cut == HEAD {
                assert_eq!(zeroed.expect("never written").frames.len(), count);
            }
        }
    }

    #[test]
    fn damage_and_other_versions_are_refused_with_their_place() {
        let bytes = encode(SESSION, &frames());
        let starts: Vec<u64> = decode(&bytes).expect("its own").frames.iter().map(|(at, _)| *at).collect();
        let last = starts[starts.len() - 1];
        for at in (0..200).chain([50_000, bytes.len() - 60]) {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x20;
            let error = decode(&damaged).expect_err("damaged");
            let place = starts.iter().rev().find(|start| **start <= at as u64).copied().unwrap_or(0);
            assert!(error.offset == place || at < HEAD, "{at}: {error}");
            assert!(place < last);
        }
        let mut newer = bytes.to_vec();
        newer[4] = 2;
        let error = decode(&newer).expect_err("another version");
        assert!(error.to_string().contains("version 2") && error.offset == 4, "{error}");
        // Two records in the wrong order, and one that occurs twice.
        let record = |index: usize| {
            let at = usize::try_from(starts[index]).expect("small");
            bytes[at..usize::try_from(starts[index + 1]).expect("small")].to_vec()
        };
        let swapped = [&bytes[..HEAD], &record(1), &record(0), &record(2)].concat();
        assert_eq!(decode(&swapped).expect_err("swapped").offset, HEAD as u64);
    }
}
