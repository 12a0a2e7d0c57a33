//! Reads the checkpoints of a whole cell as their bytes arrive. Memory contents that have arrived can be put into the cell
//! while the rest is in flight: see [`crate::Cells::fill`].

use super::RestoreError;
use super::chain::{Decoded, LENGTH_BYTES, MAGIC, VERSION};
use super::decode::StageDecoded;
use super::pieces::Pieces;
use super::stage::{StageReading, Write};
use crate::bytes_io::Reader;
use crate::limits::{DELTAS_MAX, STAGES_MAX};
use bytes::Bytes;
use marram_wire::id::ImageHash;
use std::fmt;

/// Bytes before a chain's stages: magic, version, count, image.
const HEADER_BYTES: usize = 4 + 1 + 1 + 32;

/// Memory contents that have been read, for one stage.
pub struct Filling {
    pub(crate) stage: usize,
    /// Bytes of memory that the stage has after this.
    pub(crate) memory_len: usize,
    pub(crate) writes: Vec<Write>,
}

impl fmt::Debug for Filling {
    /// Sizes only: the contents are a session's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.writes.iter().map(Write::len).sum();
        f.debug_struct("Filling").field("stage", &self.stage).field("bytes", &bytes).finish_non_exhaustive()
    }
}

/// Checkpoints that are arriving, in order: each is a delta on the one before it, and the first may be a full one.
pub struct CheckpointReader {
    is_checked: bool,
    /// The checkpoints that are complete.
    whole: Option<(ImageHash, Vec<StageDecoded>)>,
    /// Their number.
    count: usize,
    one: One,
}

impl fmt::Debug for CheckpointReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("whole", &self.count).finish_non_exhaustive()
    }
}

impl CheckpointReader {
    /// For authenticated bytes: their checksums are weaker than the authentication and are not verified. A holder of the
    /// keys can authenticate any bytes, so everything else is still checked.
    #[must_use]
    pub fn opened() -> Self {
        Self::new(false)
    }

    /// `is_checked`: whether the checksums must be verified.
    pub(super) fn new(is_checked: bool) -> Self {
        Self { is_checked, whole: None, count: 0, one: One::default() }
    }

    /// Takes the next bytes of a checkpoint.
    ///
    /// # Errors
    /// If they are damaged, or of another version. Then the reader is unusable.
    pub fn push(&mut self, bytes: Bytes) -> Result<(), RestoreError> {
        self.one.push(bytes, self.is_checked)
    }

    /// Marks the checkpoint as complete; the next bytes belong to the one that builds on it.
    ///
    /// # Errors
    /// If it is incomplete, or does not build on the one before it.
    pub fn end(&mut self) -> Result<(), RestoreError> {
        let index = self.count;
        let (image, parts) = std::mem::take(&mut self.one).finish()?;
        let Some((first, stages)) = &mut self.whole else {
            let stages = parts.into_iter().map(StageDecoded::new).collect::<Result<Vec<_>, _>>()?;
            let only = stages.first().map(|stage| stage.image);
            self.count = 1;
            self.whole = image.or(only).map(|image| (image, stages));
            return Ok(());
        };
        let of = image.or(parts.first().map(|(image, ..)| *image));
        if of != Some(*first) || parts.len() != stages.len() {
            return Err(RestoreError::Chain { index });
        }
        if index >= DELTAS_MAX {
            return Err(RestoreError::Corrupt("there are too many deltas"));
        }
        self.count += 1;
        stages.iter_mut().zip(parts).try_for_each(|(stage, part)| stage.push(part))
    }

    /// Bytes of memory that [`Self::take`] would return.
    #[must_use]
    pub fn ready(&self) -> usize {
        let size = |writes: &[Write]| writes.iter().map(Write::len).sum::<usize>();
        let whole = self.whole.iter().flat_map(|(_, stages)| stages).flat_map(|stage| &stage.chain);
        let whole: usize = whole.map(|parsed| size(&parsed.writes)).sum();
        whole + self.one.stages.iter().map(|stage| size(stage.writes())).sum::<usize>()
    }

    /// The memory contents that have arrived and were not taken before. Put them into the cell before anything that is taken
    /// later; contents that are not taken come with [`Self::finish`].
    pub fn take(&mut self) -> Vec<Filling> {
        let mut fillings = Vec::new();
        let mut fill = |stage, memory_len, writes: Vec<Write>| {
            if !writes.is_empty() {
                fillings.push(Filling { stage, memory_len, writes });
            }
        };
        let whole = self.whole.iter_mut().flat_map(|(_, stages)| stages.iter_mut().enumerate());
        for (stage, decoded) in whole {
            for parsed in &mut decoded.chain {
                fill(stage, parsed.memory_len, std::mem::take(&mut parsed.writes));
            }
        }
        for (stage, reading) in self.one.stages.iter_mut().enumerate() {
            if let Some((memory_len, writes)) = reading.take_writes() {
                fill(stage, memory_len, writes);
            }
        }
        fillings
    }

    /// Everything that was read, except what was taken.
    ///
    /// # Errors
    /// If there is no checkpoint, or the last one is incomplete.
    pub fn finish(self) -> Result<Decoded, RestoreError> {
        if !self.one.is_empty() {
            return Err(RestoreError::Corrupt("it is truncated"));
        }
        let (image, stages) = self.whole.ok_or(RestoreError::Empty)?;
        Ok(Decoded { image, stages })
    }
}

/// One checkpoint of a cell.
#[derive(Default)]
struct One {
    come: Pieces,
    awaited: Awaited,
    /// The image, if the checkpoint is a chain's.
    image: Option<ImageHash>,
    /// Number of stages of the cell.
    count: usize,
    stages: Vec<StageReading>,
}

/// What to read next.
#[derive(Default, Clone, Copy)]
enum Awaited {
    #[default]
    Kind,
    ChainHeader,
    Length,
    /// A stage of this many bytes.
    Stage(usize),
    /// A cell's only stage.
    Only,
    Nothing,
}

impl One {
    fn is_empty(&self) -> bool {
        self.come.is_empty() && matches!(self.awaited, Awaited::Kind)
    }

    fn push(&mut self, bytes: Bytes, is_checked: bool) -> Result<(), RestoreError> {
        self.come.push(bytes);
        while self.step(is_checked)? {}
        Ok(())
    }

    /// Makes one step. False if more bytes are needed first.
    fn step(&mut self, is_checked: bool) -> Result<bool, RestoreError> {
        let cut = RestoreError::Corrupt("it is truncated");
        self.awaited = match self.awaited {
            Awaited::Kind => match self.come.peek() {
                None => return Ok(false),
                Some(MAGIC) => Awaited::ChainHeader,
                Some(_) => {
                    self.count = 1;
                    self.stages.push(StageReading::new(is_checked));
                    Awaited::Only
                }
            },
            Awaited::ChainHeader => {
                let Some(header) = self.come.take(HEADER_BYTES) else { return Ok(false) };
                let mut header = Reader::new(&header[MAGIC.len()..]);
                match header.u8().ok_or(cut.clone())? {
                    VERSION => {}
                    version => return Err(RestoreError::Version(version.into())),
                }
                self.count = usize::from(header.u8().ok_or(cut.clone())?);
                if !(2..=STAGES_MAX).contains(&self.count) {
                    return Err(RestoreError::Corrupt("it has an impossible number of stages"));
                }
                self.image = Some(ImageHash(header.array().ok_or(cut)?));
                Awaited::Length
            }
            Awaited::Length => {
                let Some(length) = self.come.take(LENGTH_BYTES) else { return Ok(false) };
                let length = Reader::new(&length).u64().and_then(|length| usize::try_from(length).ok());
                self.stages.push(StageReading::new(is_checked));
                Awaited::Stage(length.ok_or(cut)?)
            }
            Awaited::Stage(0) if self.stages.len() < self.count => Awaited::Length,
            Awaited::Stage(0) => Awaited::Nothing,
            Awaited::Stage(missing) => {
                let some = self.come.some(missing);
                if some.is_empty() {
                    return Ok(false);
                }
                let missing = missing - some.len();
                self.stage(some)?;
                Awaited::Stage(missing)
            }
            Awaited::Only => {
                let some = self.come.some(usize::MAX);
                if some.is_empty() {
                    return Ok(false);
                }
                self.stage(some)?;
                Awaited::Only
            }
            Awaited::Nothing if self.come.is_empty() => return Ok(false),
            Awaited::Nothing => return Err(RestoreError::Corrupt("it is too long")),
        };
        Ok(true)
    }

    fn stage(&mut self, bytes: Bytes) -> Result<(), RestoreError> {
        self.stages.last_mut().map_or(Ok(()), |stage| stage.push(bytes))
    }

    /// The chain's image, if it is a chain's checkpoint, and the contents of each stage.
    fn finish(self) -> Result<(Option<ImageHash>, Vec<super::decode::Envelope>), RestoreError> {
        let over =
            matches!(self.awaited, Awaited::Only | Awaited::Nothing) && self.stages.len() == self.count;
        if !over {
            return Err(RestoreError::Corrupt("it is truncated"));
        }
        let stages = self.stages.into_iter().map(StageReading::finish).collect::<Result<_, _>>()?;
        Ok((self.image, stages))
    }
}
