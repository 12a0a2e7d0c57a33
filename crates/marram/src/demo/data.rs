//! The file that is downloaded: incompressible bytes, stored scrambled.
//!
//! Incompressible, so that no layer can hide a difference; the same in every run, so that runs can
//! be compared. It is written in pieces: 4 GiB need not fit in memory.

use marram_cluster::TempDir;
use marram_codec::{DEMO_KEY, RunningKey};
use marram_wire::seeded::Seeded;
use sha2::{Digest, Sha256};
use std::io::Write;

/// The file's name.
pub(super) const FILE: &str = "file.bin";
/// Bytes made at a time.
const PIECE: usize = 1 << 20;

/// The data that curl must receive.
pub(super) struct Data {
    pub(super) size: u64,
    pub(super) sha256: [u8; 32],
}

impl Data {
    /// Writes the file below `www/`, scrambled, and keeps the digest of its unscrambled contents.
    pub(super) fn write(place: &TempDir, size: u64) -> anyhow::Result<Self> {
        let path = place.write(&format!("www/{FILE}"), [])?;
        let mut file = std::fs::File::options().write(true).open(path)?;
        let (mut plain, mut key) = (Sha256::new(), RunningKey::new(DEMO_KEY));
        let (mut left, mut numbers) = (size, Seeded::new(0x6d61_7272_616d));
        let mut piece = vec![0; PIECE];
        while left > 0 {
            let len = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
            let piece = &mut piece[..len];
            numbers.fill(piece);
            plain.update(&piece);
            key.encode(piece);
            file.write_all(piece)?;
            left -= len as u64;
        }
        Ok(Self { size, sha256: plain.finalize().into() })
    }
}
