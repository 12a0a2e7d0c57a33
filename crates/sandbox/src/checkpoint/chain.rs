//! The checkpoint of a whole cell: of its only stage, or of all stages of a chain at one moment.

use super::decode::{Checksum, StageDecoded};
use super::{RestoreError, StageSnapshot};
use crate::buffers::roomy;
use crate::bytes_io::{Reader, put_u64};
use crate::limits::{DELTAS_MAX, STAGES_MAX};
use bytes::Bytes;
use marram_wire::id::ImageHash;
use std::fmt;

/// Begins a checkpoint of a chain. That of a cell of one stage is the stage's.
const MAGIC: [u8; 4] = *b"MRCC";
/// Version of the layout below.
const VERSION: u8 = 1;
/// Bytes of a stage's length.
const LENGTH_BYTES: usize = 8;

/// A cell's state at one position, copied out and not yet encoded. Encode it on any thread.
pub struct Snapshot {
    image: ImageHash,
    stages: Vec<StageSnapshot>,
}

impl Snapshot {
    /// Of all stages of a cell, in order, taken at one moment. `image` is the cell's.
    pub(crate) fn new(image: ImageHash, stages: Vec<StageSnapshot>) -> Self {
        Self { image, stages }
    }

    /// Pages of linear memory that were copied.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.stages.iter().map(StageSnapshot::page_count).sum()
    }

    /// Writes the snapshot as a checkpoint. Takes a few milliseconds for ten mebibytes; do it off the cell's thread. That of
    /// a chain is
    ///
    /// ```text
    /// | magic 4 | version 1 | stage count 1 | image hash 32 | (length 8 | the stage's checkpoint)* |
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if let [only] = &self.stages[..] {
            return only.encode();
        }
        let stages: Vec<Vec<u8>> = self.stages.iter().map(StageSnapshot::encode).collect();
        let mut out = roomy(64 + stages.iter().map(|stage| LENGTH_BYTES + stage.len()).sum::<usize>());
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(u8::try_from(stages.len()).expect("checked against STAGES_MAX"));
        out.extend_from_slice(&self.image.0);
        for stage in &stages {
            put_u64(&mut out, stage.len() as u64);
            out.extend_from_slice(stage);
        }
        out
    }
}

impl fmt::Debug for Snapshot {
    /// Names and sizes only: the contents are a session's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("image", &self.image).field("stages", &self.stages).finish()
    }
}

/// Checkpoints read, checked and decompressed: a full one and the deltas on it, or deltas alone. Make it on any thread; applying
/// it is [`crate::Cells::restore`], or [`crate::Cells::advance`] if it begins with a delta.
#[derive(Debug)]
pub struct Decoded {
    image: ImageHash,
    /// In order; of each the same number of checkpoints.
    pub(crate) stages: Vec<StageDecoded>,
}

impl Decoded {
    /// Reads checkpoints, in order: each must be a delta on the one before it, and the first may be a full one.
    ///
    /// # Errors
    /// If any of them is damaged, of another version, or does not build on the one before.
    pub fn decode<B: AsRef<[u8]>>(checkpoints: &[B]) -> Result<Self, RestoreError> {
        let copies = checkpoints.iter().map(|bytes| Bytes::copy_from_slice(bytes.as_ref()));
        Self::read(&copies.collect::<Vec<_>>(), Checksum::Checked)
    }

    /// As [`Self::decode`], of bytes that a seal vouches for: contents stay where they are, and the checksum, which a seal
    /// is worth more than, is not looked at.
    ///
    /// # Errors
    /// As above. Whoever holds the keys can seal anything, so the rest is checked all the same.
    pub fn decode_opened(checkpoints: &[Bytes]) -> Result<Self, RestoreError> {
        Self::read(checkpoints, Checksum::Vouched)
    }

    fn read(checkpoints: &[Bytes], checksum: Checksum) -> Result<Self, RestoreError> {
        if checkpoints.len() > DELTAS_MAX {
            return Err(RestoreError::Corrupt("there are too many deltas"));
        }
        if !checkpoints.iter().any(|bytes| bytes.starts_with(&MAGIC)) {
            let only = StageDecoded::read(checkpoints, checksum)?;
            return Ok(Self { image: only.image, stages: vec![only] });
        }
        let mut chain: Option<(ImageHash, Vec<Vec<Bytes>>)> = None;
        for (index, bytes) in checkpoints.iter().enumerate() {
            let (image, parts) = split(bytes)?;
            match &mut chain {
                None => chain = Some((image, parts.into_iter().map(|part| vec![part]).collect())),
                Some((first, stages)) if *first == image && stages.len() == parts.len() => {
                    stages.iter_mut().zip(parts).for_each(|(stage, part)| stage.push(part));
                }
                Some(_) => return Err(RestoreError::Chain { index }),
            }
        }
        let (image, stages) = chain.ok_or(RestoreError::Empty)?;
        let stages: Result<_, _> =
            stages.iter().map(|checkpoints| StageDecoded::read(checkpoints, checksum)).collect();
        Ok(Self { image, stages: stages? })
    }

    /// The image that the cell needs.
    #[must_use]
    pub fn image(&self) -> ImageHash {
        self.image
    }
}

/// Takes a chain's checkpoint apart into those of its stages.
fn split(bytes: &Bytes) -> Result<(ImageHash, Vec<Bytes>), RestoreError> {
    let cut = RestoreError::Corrupt("it is cut short");
    let mut reader = Reader::new(bytes);
    if reader.take(4) != Some(&MAGIC) {
        return Err(RestoreError::Corrupt("it does not begin as a checkpoint of a chain"));
    }
    match reader.u8().ok_or(cut.clone())? {
        VERSION => {}
        version => return Err(RestoreError::Version(version.into())),
    }
    let count = usize::from(reader.u8().ok_or(cut.clone())?);
    if !(2..=STAGES_MAX).contains(&count) {
        return Err(RestoreError::Corrupt("it has an impossible number of stages"));
    }
    let image = ImageHash(reader.array().ok_or(cut.clone())?);
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let len = reader.u64().and_then(|len| usize::try_from(len).ok()).ok_or(cut.clone())?;
        parts.push(bytes.slice_ref(reader.take(len).ok_or(cut.clone())?));
    }
    if reader.is_empty() { Ok((image, parts)) } else { Err(RestoreError::Corrupt("it is too long")) }
}
