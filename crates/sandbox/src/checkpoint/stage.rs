//! Reads one stage's checkpoint as its bytes arrive: memory contents can be taken while the rest is in flight.

use super::decode::{Envelope, Fields};
use super::pages::{self, BASE_DIGEST_BYTES, BaseDigest, CHUNK_HEADER_BYTES, Chunk};
use super::pieces::Pieces;
use super::runs::{self, COUNT_BYTES, PageKind, Run};
use super::{
    CHECKSUM_BYTES, CheckpointId, HEADER_BYTES, Kind, Layout, MAGIC, RestoreError, SHORT_LENGTH_BYTES,
};
use crate::bytes_io::Reader;
use crate::limits::{CHECKPOINT_BYTES_MAX, PAGE};
use bytes::Bytes;
use marram_session::cell::CheckpointBase as Base;
use marram_wire::id::ImageHash;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes before the sections: image hash, base id, own id, and whether there is a base.
const BODY_HEADER_BYTES: usize = 32 + 16 + 16 + 1;

/// Contiguous contents of at least this many bytes are announced, so that the receiver can prepare all of their pages.
const LONG: usize = 4 << 20;

/// A change to a cell's memory.
pub(crate) enum Write {
    Zeros(Range<usize>),
    /// Bytes from this offset on.
    Bytes(usize, Bytes),
    /// Whole pages from these offsets on, each XOR what memory has there, and the digest of what it must have at all of them.
    Difference(Vec<(usize, Bytes)>, BaseDigest),
    /// No bytes yet: contents for this range come later.
    Awaited(Range<usize>),
}

impl Write {
    /// Bytes of memory that it changes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Zeros(range) => range.len(),
            Self::Bytes(_, bytes) => bytes.len(),
            Self::Difference(pages, _) => pages.iter().map(|(_, bytes)| bytes.len()).sum(),
            Self::Awaited(_) => 0,
        }
    }

    /// Whether memory has what this is a difference to. Anything may be overwritten.
    pub(crate) fn fits(&self, memory: &[u8]) -> Result<(), RestoreError> {
        let Self::Difference(pages, base) = self else { return Ok(()) };
        let bases: Option<Vec<_>> =
            pages.iter().map(|(at, bytes)| memory.get(*at..*at + bytes.len())).collect();
        if bases.is_some_and(|bases| pages::base_digest(bases) == *base) {
            return Ok(());
        }
        Err(RestoreError::Page { page: pages.first().map_or(0, |(at, _)| at / PAGE) })
    }
}

/// What to read next.
enum Awaited {
    Header,
    BodyHeader,
    Section,
    /// The payload of a section that is read as a whole.
    Payload(Kind, u64),
    RunCount,
    /// So many bytes of runs.
    Runs(usize),
    /// What the differences among the pages are made against.
    Bases,
    ChunkHeader,
    /// This many bytes of uncompressed pages.
    Raw(usize),
    /// A chunk that is taken as a whole.
    Whole(Chunk),
    Nothing,
}

/// A memory range of which contents are still to come.
struct Target {
    range: Range<usize>,
    are_differences: bool,
}

/// A stage's checkpoint that is arriving.
pub(super) struct StageReading {
    come: Pieces,
    awaited: Awaited,
    layout: Layout,
    /// Bytes of the body that were not taken yet.
    left: usize,
    /// Bytes of the current section that were not taken yet.
    section: usize,
    /// The checksum so far and the expected value, if the checksum is verified.
    checksum: Option<(blake3::Hasher, [u8; CHECKSUM_BYTES])>,
    envelope: Option<(ImageHash, CheckpointId, CheckpointId, Base)>,
    fields: Fields,
    /// Runs of pages, until the digests behind them are here.
    runs: Vec<Run>,
    /// The digests of what differences that are still to come are made against.
    bases: Bytes,
    /// Where contents that are still to come belong.
    targets: VecDeque<Target>,
    /// Total bytes of these ranges.
    contents: usize,
}

impl StageReading {
    /// `is_checked`: whether the checksum must be verified; otherwise the bytes are already authenticated.
    pub(super) fn new(is_checked: bool) -> Self {
        Self {
            come: Pieces::default(),
            awaited: Awaited::Header,
            layout: Layout::Plain,
            left: 0,
            section: 0,
            checksum: is_checked.then(|| (blake3::Hasher::new(), [0; CHECKSUM_BYTES])),
            envelope: None,
            fields: Fields::default(),
            runs: Vec::new(),
            bases: Bytes::new(),
            targets: VecDeque::new(),
            contents: 0,
        }
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: Bytes) -> Result<(), RestoreError> {
        self.come.push(bytes);
        while self.step()? {}
        Ok(())
    }

    /// The memory contents that have arrived and were not taken before, and the length of memory, once that is known.
    pub(super) fn take_writes(&mut self) -> Option<(usize, Vec<Write>)> {
        Some((self.fields.memory_len?, std::mem::take(&mut self.fields.writes)))
    }

    /// What [`Self::take_writes`] would return.
    pub(super) fn writes(&self) -> &[Write] {
        &self.fields.writes
    }

    /// The whole checkpoint, if all of it has arrived.
    pub(super) fn finish(self) -> Result<Envelope, RestoreError> {
        if !matches!(self.awaited, Awaited::Nothing) {
            return Err(RestoreError::Corrupt("it is truncated"));
        }
        if let Some((hasher, expected)) = self.checksum
            && hasher.finalize().as_bytes()[..CHECKSUM_BYTES] != expected
        {
            return Err(RestoreError::Corrupt("its checksum is wrong"));
        }
        let (image, base, id, kind) = self.envelope.ok_or(RestoreError::Corrupt("it is truncated"))?;
        if self.fields.since.is_some() && kind != Base::Image {
            return Err(RestoreError::Corrupt("a delta has a list of changed pages"));
        }
        let is_merged = kind == Base::Full;
        let parsed = self.fields.finish(id, is_merged).map_err(RestoreError::Corrupt)?;
        Ok((image, base, kind == Base::Image, parsed))
    }

    /// Makes one step. False if more bytes are needed first.
    fn step(&mut self) -> Result<bool, RestoreError> {
        match self.awaited {
            Awaited::Header => {
                let Some(header) = self.come.take(HEADER_BYTES) else { return Ok(false) };
                self.header(&header)?;
                self.awaited = Awaited::BodyHeader;
                Ok(true)
            }
            Awaited::Nothing if self.come.is_empty() => Ok(false),
            Awaited::Nothing => Err(RestoreError::Corrupt("its length is wrong")),
            _ => self.body().map_err(RestoreError::Corrupt),
        }
    }

    fn header(&mut self, header: &[u8]) -> Result<(), RestoreError> {
        let mut header = Reader::new(header);
        if header.take(4) != Some(&MAGIC) {
            return Err(RestoreError::Corrupt("it does not begin with the header of a checkpoint"));
        }
        let version = header.u32().unwrap_or(0);
        self.layout = Layout::from_number(version).ok_or(RestoreError::Version(version))?;
        let len = header.u64().and_then(|len| usize::try_from(len).ok()).unwrap_or(usize::MAX);
        if len > CHECKPOINT_BYTES_MAX - HEADER_BYTES {
            return Err(RestoreError::Corrupt("it is too large"));
        }
        self.left = len;
        if let (Some((_, expected)), Some(found)) = (&mut self.checksum, header.array()) {
            *expected = found;
        }
        Ok(())
    }

    /// Whether it may have differences of pages.
    fn may_differ(&self) -> bool {
        self.layout != Layout::Plain
    }

    /// Takes `len` bytes of the body, once they have arrived.
    fn take(&mut self, len: usize, cut: &'static str) -> Result<Option<Bytes>, &'static str> {
        if len > self.left {
            return Err(cut);
        }
        let taken = self.come.take(len);
        Ok(taken.inspect(|bytes| self.took(bytes)))
    }

    fn took(&mut self, bytes: &[u8]) {
        self.left -= bytes.len();
        if let Some((hasher, _)) = &mut self.checksum {
            hasher.update(bytes);
        }
    }

    /// As [`Self::take`], from the current section.
    fn take_of_section(&mut self, len: usize, cut: &'static str) -> Result<Option<Bytes>, &'static str> {
        if len > self.section {
            return Err(cut);
        }
        let taken = self.take(len, "a section is truncated")?;
        Ok(taken.inspect(|_| self.section -= len))
    }

    fn body(&mut self) -> Result<bool, &'static str> {
        let cut = "its fields are truncated";
        let pages_cut = "a page section is truncated";
        let chunk_cut = "a chunk of pages is truncated";
        self.awaited = match self.awaited {
            Awaited::Header | Awaited::Nothing => return Ok(false),
            Awaited::BodyHeader => {
                let Some(header) = self.take(BODY_HEADER_BYTES, cut)? else { return Ok(false) };
                self.body_header(&mut Reader::new(&header))?;
                self.behind_section()
            }
            Awaited::Section => {
                let Some(header) = self.section_header(cut)? else { return Ok(false) };
                self.section(&mut Reader::new(&header))?
            }
            Awaited::Payload(kind, index) => {
                let Some(payload) = self.take_of_section(self.section, "a section is truncated")? else {
                    return Ok(false);
                };
                self.fields.section(kind, index, &payload)?;
                self.behind_section()
            }
            Awaited::RunCount => {
                let Some(count) = self.take_of_section(COUNT_BYTES, pages_cut)? else { return Ok(false) };
                let count = Reader::new(&count).u32().ok_or(pages_cut)?;
                Awaited::Runs(runs::size(count, self.layout))
            }
            Awaited::Runs(size) => {
                let Some(come) = self.take_of_section(size, pages_cut)? else { return Ok(false) };
                let end = (self.fields.memory_len.unwrap_or(0) / PAGE) as u64;
                self.runs = runs::read(come, end, self.layout)?;
                self.contents = runs::data_bytes(&self.runs);
                Awaited::Bases
            }
            Awaited::Bases => {
                let size = pages::digest_bytes(&self.runs, self.layout);
                let Some(bases) = self.take_of_section(size, pages_cut)? else { return Ok(false) };
                self.bases = bases;
                self.place_runs();
                self.behind_chunk()?
            }
            Awaited::ChunkHeader => {
                let Some(header) = self.take_of_section(CHUNK_HEADER_BYTES, chunk_cut)? else {
                    return Ok(false);
                };
                let header = Reader::new(&header).u32().ok_or(chunk_cut)?;
                let chunk = Chunk::read(header, self.contents, self.layout)?;
                // Differences are put over whole pages.
                let is_whole = chunk.is_packed || self.may_differ();
                if is_whole { Awaited::Whole(chunk) } else { Awaited::Raw(chunk.stored) }
            }
            Awaited::Whole(chunk) => {
                let Some(stored) = self.take_of_section(chunk.stored, chunk_cut)? else { return Ok(false) };
                self.place(chunk.unpack(stored)?);
                self.behind_chunk()?
            }
            Awaited::Raw(missing) => {
                if missing > self.section || missing > self.left {
                    return Err(chunk_cut);
                }
                // Taken as they arrive: an incomplete page can also be written.
                let some = self.come.some(missing);
                if some.is_empty() {
                    return Ok(false);
                }
                let missing = missing - some.len();
                self.section -= some.len();
                self.took(&some);
                self.place(some);
                if missing > 0 { Awaited::Raw(missing) } else { self.behind_chunk()? }
            }
        };
        Ok(true)
    }

    fn body_header(&mut self, header: &mut Reader<'_>) -> Result<(), &'static str> {
        let cut = "its fields are truncated";
        let image = ImageHash(header.array().ok_or(cut)?);
        let (base, id) = (header.array().ok_or(cut)?, header.array().ok_or(cut)?);
        let kind = match header.u8() {
            Some(0) => Base::Image,
            Some(1) => Base::Previous,
            Some(2) => Base::Full,
            _ => return Err("it is neither full nor a delta"),
        };
        if self.may_differ() && kind != Base::Previous {
            return Err("only a delta can have differences of pages");
        }
        self.envelope = Some((image, base, id, kind));
        Ok(())
    }

    /// What comes before a section's payload, once it has arrived.
    fn section_header(&mut self, cut: &'static str) -> Result<Option<Bytes>, &'static str> {
        let Some([kind]) = self.come.peek() else { return Ok(None) };
        let size = match self.layout {
            Layout::Short if kind == Kind::FilePages as u8 => 1 + 8 + SHORT_LENGTH_BYTES,
            Layout::Short => 1 + SHORT_LENGTH_BYTES,
            _ => 1 + 8 + 4 + 8,
        };
        self.take(size, cut)
    }

    fn section(&mut self, header: &mut Reader<'_>) -> Result<Awaited, &'static str> {
        let cut = "its fields are truncated";
        let kind = header.u8().and_then(Kind::from_number).ok_or("it has a section of unknown kind")?;
        let is_short = self.layout == Layout::Short;
        let has_index = !is_short || kind == Kind::FilePages;
        let index = if has_index { header.u64().ok_or(cut)? } else { 0 };
        if !is_short && header.u32() != u32::try_from(PAGE).ok() {
            return Err("it has pages of another size");
        }
        // The rest of the header is the length.
        let mut len = [0; 8];
        header.rest().iter().zip(&mut len).for_each(|(from, to)| *to = *from);
        let len = usize::try_from(u64::from_le_bytes(len)).map_err(|_| cut)?;
        if len > self.left {
            return Err("a section is truncated");
        }
        self.section = len;
        if kind != Kind::MemoryPages {
            return Ok(Awaited::Payload(kind, index));
        }
        self.fields.memory_pages(index)?;
        Ok(Awaited::RunCount)
    }

    fn behind_section(&self) -> Awaited {
        if self.left == 0 { Awaited::Nothing } else { Awaited::Section }
    }

    fn behind_chunk(&self) -> Result<Awaited, &'static str> {
        match (self.contents, self.section) {
            (0, 0) => Ok(self.behind_section()),
            (0, _) => Err("a page section is too long"),
            _ => Ok(Awaited::ChunkHeader),
        }
    }

    fn place_runs(&mut self) {
        for (run, kind) in std::mem::take(&mut self.runs) {
            self.fields.pages.add(run.clone());
            let range = run.start as usize * PAGE..run.end as usize * PAGE;
            if kind == PageKind::Zero {
                self.fields.writes.push(Write::Zeros(range));
                continue;
            }
            let are_differences = kind == PageKind::Difference;
            if !are_differences && range.len() >= LONG {
                self.fields.writes.push(Write::Awaited(range.clone()));
            }
            self.targets.push_back(Target { range, are_differences });
        }
    }

    /// Schedules the next contents to be written to their ranges. Chunks hold no more than runs need, and whole pages where
    /// there are differences.
    fn place(&mut self, mut bytes: Bytes) {
        self.contents -= bytes.len();
        let mut differences = Vec::new();
        while let Some(Target { range, are_differences }) =
            self.targets.front_mut().filter(|_| !bytes.is_empty())
        {
            let now = bytes.split_to(bytes.len().min(range.len()));
            let at = range.start;
            range.start += now.len();
            if *are_differences {
                differences.push((at, now));
            } else {
                self.fields.writes.push(Write::Bytes(at, now));
            }
            if range.start == range.end {
                self.targets.pop_front();
            }
        }
        if !differences.is_empty() {
            self.place_differences(differences);
        }
    }

    /// The same, for the differences of a chunk: one digest is of them all, or each page has one.
    fn place_differences(&mut self, differences: Vec<(usize, Bytes)>) {
        if self.layout == Layout::Short {
            let base = self.next_base();
            self.fields.writes.push(Write::Difference(differences, base));
            return;
        }
        for (at, mut bytes) in differences {
            for offset in (0..bytes.len()).step_by(PAGE) {
                let base = self.next_base();
                let page = vec![(at + offset, bytes.split_to(PAGE))];
                self.fields.writes.push(Write::Difference(page, base));
            }
        }
    }

    fn next_base(&mut self) -> BaseDigest {
        let mut digest = BaseDigest::default();
        digest.copy_from_slice(&self.bases.split_to(BASE_DIGEST_BYTES));
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page with the messages, which was written too.
    const MESSAGE_AT: usize = 1 << 20;

    /// What a checkpoint of one stage writes to memory: places, and bytes or digests.
    fn writes(checkpoint: &'static [u8]) -> Vec<(usize, u8, Option<BaseDigest>)> {
        let mut reading = StageReading::new(true);
        reading.push(Bytes::from_static(checkpoint)).unwrap();
        let (memory_len, writes) = reading.take_writes().unwrap();
        assert_eq!(memory_len, 40 * 65_536);
        let (_, _, is_full, _) = reading.finish().unwrap();
        assert!(!is_full);
        let mut found = Vec::new();
        for write in writes {
            let (pages, base) = match write {
                Write::Bytes(at, bytes) => (vec![(at, bytes)], None),
                Write::Difference(pages, base) => (pages, Some(base)),
                Write::Zeros(_) | Write::Awaited(_) => panic!("there are none"),
            };
            for (at, bytes) in pages {
                assert_eq!(bytes.len(), PAGE);
                let set = bytes.iter().filter(|byte| **byte > 0).count();
                assert!(set == 1 || at == MESSAGE_AT, "at {at}");
                found.push((at / PAGE, bytes[1000], base));
            }
        }
        found
    }

    /// Two pages in which one byte became 1, and then 2.
    #[test]
    fn deltas_of_all_versions_are_read_as_they_were_written() {
        let first = writes(include_bytes!("golden/1-delta.bin"));
        let of = |page: usize| first.iter().find(|found| found.0 == page).copied();
        assert_eq!([of(32), of(40)], [Some((32, 1, None)), Some((40, 1, None))]);
        let mut page = [0; PAGE];
        page[1000] = 1;
        let base = Some(pages::base_digest([&page[..]]));
        for differences in
            [include_bytes!("golden/2-delta.bin").as_slice(), include_bytes!("golden/3-delta.bin")]
        {
            let second = writes(differences);
            assert_eq!(second[..2], [(32, 1 ^ 2, base), (40, 1 ^ 2, base)]);
        }
        // One digest of both pages and of the one with the message.
        let mut message = [0; PAGE];
        message[..4].copy_from_slice(&[32, 1, 40, 1]);
        let base = Some(pages::base_digest([&page[..], &page, &message]));
        let second = writes(include_bytes!("golden/4-delta.bin"));
        assert_eq!(second, [(32, 1 ^ 2, base), (40, 1 ^ 2, base), (MESSAGE_AT / PAGE, 0, base)]);
    }
}
