//! The checkpoint of a whole cell: of its only stage, or of all stages of a chain at the same moment.

use super::decode::StageDecoded;
use super::reading::CheckpointReader;
use super::{RestoreError, StageSnapshot};
use crate::buffers::roomy;
use crate::bytes_io::put_u64;
use crate::limits::PAGE;
use bytes::Bytes;
use marram_wire::id::ImageHash;
use std::fmt;

/// Begins the checkpoint of a chain. A cell with one stage has the stage's checkpoint.
pub(super) const MAGIC: [u8; 4] = *b"MRCC";
/// Version of the layout below.
pub(super) const VERSION: u8 = 1;
/// Bytes of the length field before a stage.
pub(super) const LENGTH_BYTES: usize = 8;

/// A cell's state at one position, copied out and not yet encoded. Encode it on any thread.
pub struct Snapshot {
    image: ImageHash,
    stages: Vec<StageSnapshot>,
}

impl Snapshot {
    /// Combines all stages of a cell, in order, taken at the same moment. `image` is the cell's.
    pub(crate) fn new(image: ImageHash, stages: Vec<StageSnapshot>) -> Self {
        Self { image, stages }
    }

    /// Pages of linear memory that were copied.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.stages.iter().map(|stage| stage.memory.len()).sum()
    }

    /// About how many bytes it has before it is encoded: pages of memory and files, and the lists of files.
    #[must_use]
    pub fn size(&self) -> usize {
        let files = self.stages.iter().map(|stage| &stage.files);
        let pages: usize = files.clone().flat_map(|files| &files.pages).map(|(_, pages)| pages.len()).sum();
        let lists = files.flat_map(|files| files.directory.iter().chain(&files.descriptors));
        (self.page_count() + pages) * PAGE + lists.map(Vec::len).sum::<usize>()
    }

    /// Writes the snapshot as a checkpoint. Takes a few milliseconds for 10 MiB; do it on another thread than the cell's. The
    /// checkpoint of a chain is
    ///
    /// ```text
    /// | magic 4 | version 1 | stage count 1 | image hash 32 | (length 8 | the stage's checkpoint)* |
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_behind(&[])
    }

    /// As [`Self::encode`], behind these bytes, in a buffer with room to be sealed: a large checkpoint is not moved again.
    #[must_use]
    pub fn encode_behind(&self, front: &[u8]) -> Vec<u8> {
        let bytes = self.size();
        let mut out = roomy(front.len() + bytes + bytes / 1024 + 1024 * self.stages.len());
        out.extend_from_slice(front);
        if let [only] = &self.stages[..] {
            only.encode(&mut out);
            return out;
        }
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(u8::try_from(self.stages.len()).expect("checked against STAGES_MAX"));
        out.extend_from_slice(&self.image.0);
        for stage in &self.stages {
            let at = out.len();
            put_u64(&mut out, 0);
            stage.encode(&mut out);
            let len = (out.len() - at - LENGTH_BYTES) as u64;
            out[at..at + LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
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

/// Checkpoints that were read, checked and decompressed: a full one and its deltas, or deltas alone. Any thread can make it.
/// Apply it with [`crate::Cells::restore`], or with [`crate::Cells::advance`] if it begins with a delta.
#[derive(Debug)]
pub struct Decoded {
    pub(super) image: ImageHash,
    /// In order; every stage has the same number of checkpoints.
    pub(crate) stages: Vec<StageDecoded>,
}

impl Decoded {
    /// Reads checkpoints, in order: each must be a delta on the one before it, and the first may be a full one.
    ///
    /// # Errors
    /// If any of them is damaged, of another version, or does not build on the one before.
    pub fn decode<B: AsRef<[u8]>>(checkpoints: &[B]) -> Result<Self, RestoreError> {
        let copies = checkpoints.iter().map(|bytes| Bytes::copy_from_slice(bytes.as_ref()));
        Self::read(copies, CheckpointReader::new(true))
    }

    /// As [`Self::decode`], for authenticated bytes: contents are not copied. See [`CheckpointReader::opened`].
    ///
    /// # Errors
    /// As above.
    pub fn decode_opened(checkpoints: &[Bytes]) -> Result<Self, RestoreError> {
        Self::read(checkpoints.iter().cloned(), CheckpointReader::opened())
    }

    fn read(
        checkpoints: impl Iterator<Item = Bytes>,
        mut reading: CheckpointReader,
    ) -> Result<Self, RestoreError> {
        for bytes in checkpoints {
            reading.push(bytes)?;
            reading.end()?;
        }
        reading.finish()
    }

    /// The image that the cell needs.
    #[must_use]
    pub fn image(&self) -> ImageHash {
        self.image
    }
}
