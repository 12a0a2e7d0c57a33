//! The body of `POST /v1/apps`: a manifest and the files that it names, in its order: for each stage its module, then its files.
//! Each part has its length before it.
//!
//! ```text
//! +-------------+----------+     +-------------+--------+   +-------------+------+
//! | len: u32 LE | manifest | ( ( | len: u32 LE | module | ( | len: u32 LE | file | )* )*
//! +-------------+----------+     +-------------+--------+   +-------------+------+
//! ```
//!
//! No names and no types: the manifest says how many files each stage has, so the sequence is
//! unambiguous. A disagreement between both is found by `all_came` in `chains.rs`. The parts of a
//! decoded body are slices of it and not copies.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use marram_config::source::TEXT_BYTES_MAX;
use marram_sandbox::limits::{IMAGE_FILES_BYTES_MAX, IMAGE_FILES_MAX, MODULE_BYTES_MAX, STAGES_MAX};
use std::fmt;

/// Bytes of a whole body. The limit also holds for an app that one edge sends to another: file paths are in the manifest.
pub const SIZE_MAX: usize = marram_http::BODY_BYTES_MAX;

const _: () = assert!(
    SIZE_MAX as u64
        >= (MODULE_BYTES_MAX + IMAGE_FILES_BYTES_MAX + 4 * IMAGE_FILES_MAX) as u64 + 2 * TEXT_BYTES_MAX,
    "the largest app of one stage fits"
);

/// Most parts after the manifest.
const PARTS_MAX: usize = STAGES_MAX * (1 + IMAGE_FILES_MAX);

/// An app as it is sent to an edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// The manifest's text.
    pub manifest: String,
    /// The contents of the files that it names, in its order: modules, each followed by its files.
    pub parts: Vec<Bytes>,
}

/// An app that is larger than an edge accepts; its author makes it smaller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLarge {
    /// Bytes of its body.
    bytes: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the app has {} bytes; an edge takes at most {SIZE_MAX}", self.bytes)
    }
}

impl std::error::Error for TooLarge {}

impl Upload {
    /// The body to send.
    ///
    /// # Errors
    /// If it is larger than an edge accepts.
    pub fn encode(&self) -> Result<Bytes, TooLarge> {
        let parts =
            || std::iter::once(self.manifest.as_bytes()).chain(self.parts.iter().map(|part| &part[..]));
        let size = parts().map(|part| 4 + part.len()).sum();
        if size > SIZE_MAX {
            return Err(TooLarge { bytes: size });
        }
        let mut out = BytesMut::with_capacity(size);
        for part in parts() {
            out.put_u32_le(u32::try_from(part.len()).expect("SIZE_MAX fits in 32 bits"));
            out.put_slice(part);
        }
        Ok(out.freeze())
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it is truncated, has more parts than an app can have, or its manifest is not UTF-8. The number of parts is not compared
    /// with the manifest here.
    pub fn decode(mut body: Bytes) -> Result<Self, &'static str> {
        let manifest = part(&mut body).ok_or("the body ends within the manifest")?;
        let mut parts = Vec::new();
        while !body.is_empty() {
            if parts.len() == PARTS_MAX {
                return Err("there are more modules and files than an app can have");
            }
            parts.push(part(&mut body).ok_or("the body ends within a module or a file")?);
        }
        let manifest = String::from_utf8(manifest.to_vec()).map_err(|_| "the manifest is not UTF-8")?;
        Ok(Self { manifest, parts })
    }
}

/// Takes the next part; `None` if the body ends before. The length is compared before anything is
/// split off, so a wrong length costs no memory.
fn part(body: &mut Bytes) -> Option<Bytes> {
    let len = body.try_get_u32_le().ok()? as usize;
    (len <= body.len()).then(|| body.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_survives_and_a_damaged_one_is_refused() {
        let upload = |parts: &[&'static [u8]]| Upload {
            manifest: "name = \"a\"".into(),
            parts: parts.iter().copied().map(Bytes::from_static).collect(),
        };
        let parts = [&b"\0asm"[..], b"one", b""];
        let body = upload(&parts).encode().unwrap();
        assert_eq!(Upload::decode(body.clone()), Ok(upload(&parts)));
        let cut: Vec<_> = (0..body.len()).filter_map(|len| Upload::decode(body.slice(..len)).ok()).collect();
        // A body that is cut between two parts decodes as fewer parts; the manifest shows that some are missing.
        assert_eq!(cut, [upload(&[]), upload(&parts[..1]), upload(&parts[..2])]);
        assert!(Upload::decode([&body[..], b"x"].concat().into()).is_err());
        let many = vec![&b""[..]; PARTS_MAX + 1];
        assert!(Upload::decode(upload(&many).encode().unwrap()).is_err());
    }
}
