//! The layout of pages in a section: runs of page numbers, what differences are made against, then the pages that are not
//! zero, in chunks that are compressed if that makes them smaller.

use super::zero_runs;
use crate::bytes_io::{Reader, put_u32};
use crate::limits::PAGE;
use bytes::Bytes;
use std::borrow::Cow;
use std::ops::Range;

/// Bytes that are compressed together.
const CHUNK: usize = 16 * PAGE;
/// Marks a chunk that is stored uncompressed.
const RAW: u32 = 1 << 31;
/// Marks a chunk in which zeros are counted, before it is compressed.
const ZERO_RUNS: u32 = 1 << 30;

/// What a section has of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum PageKind {
    /// Nothing: it is zero.
    Zero = 0,
    /// Its contents.
    Whole = 1,
    /// Its contents XOR those that the reader's page has, whose digest is given.
    Difference = 2,
}

/// Bytes of the digest of a page that a difference is made against.
pub(crate) const PAGE_DIGEST_BYTES: usize = 8;
/// The first bytes of BLAKE3 over a page. It detects that the reader has another page; the seal detects manipulation.
pub(crate) type PageDigest = [u8; PAGE_DIGEST_BYTES];

/// The digest of a page.
pub(crate) fn page_digest(page: &[u8]) -> PageDigest {
    let mut digest = PageDigest::default();
    digest.copy_from_slice(&blake3::hash(page).as_bytes()[..PAGE_DIGEST_BYTES]);
    digest
}

/// Pages that were read from a file section: their numbers, and the contents of those that are not zero.
#[derive(Default, Debug)]
pub(crate) struct Pages {
    runs: Vec<Run>,
    /// Contents, one page after the other, several pages per chunk. A chunk that was not compressed is not copied.
    chunks: Vec<Bytes>,
}

/// Consecutive pages of one kind.
pub(super) type Run = (Range<u32>, PageKind);

impl Pages {
    /// Every page with its contents; `None` for zero.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Option<&[u8]>)> {
        let mut contents = self.chunks.iter().flat_map(|chunk| chunk.chunks_exact(PAGE));
        self.runs
            .iter()
            .flat_map(|(run, kind)| run.clone().map(move |page| (page, *kind)))
            .map(move |(page, kind)| (page, if kind == PageKind::Zero { None } else { contents.next() }))
    }
}

/// Collects pages in order, then writes them.
#[derive(Default)]
pub(super) struct Writer<'a> {
    runs: Vec<Run>,
    /// Of differences: what each is made against.
    bases: Vec<PageDigest>,
    data: Vec<(PageKind, Cow<'a, [u8]>)>,
}

impl<'a> Writer<'a> {
    /// Adds a page; `None` for zero. Numbers must be ascending.
    pub(super) fn page(&mut self, index: u32, contents: Option<&'a [u8]>) {
        match contents.filter(|page| *page != [0; PAGE]) {
            Some(page) => self.data(index, PageKind::Whole, Cow::Borrowed(page)),
            None => self.run(index, PageKind::Zero),
        }
    }

    /// Adds a page that is this XOR the page with that digest.
    pub(super) fn difference(&mut self, index: u32, difference: Vec<u8>, base: PageDigest) {
        self.bases.push(base);
        self.data(index, PageKind::Difference, Cow::Owned(difference));
    }

    fn data(&mut self, index: u32, kind: PageKind, contents: Cow<'a, [u8]>) {
        self.run(index, kind);
        self.data.push((kind, contents));
    }

    fn run(&mut self, index: u32, kind: PageKind) {
        match self.runs.last_mut() {
            Some((run, of)) if run.end == index && *of == kind => run.end += 1,
            _ => self.runs.push((index..index + 1, kind)),
        }
    }

    /// Whether some pages are differences.
    pub(super) fn has_differences(&self) -> bool {
        !self.bases.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// ```text
    /// | run count 4 | (first page 4 | pages 4 | kind 1)* | (digest 8, of a difference)*
    ///   | (stored length 4, bit 31: not compressed, bit 30: as runs of zeros | chunk)* |
    /// ```
    /// A chunk with a difference is stored as [`zero_runs`], which are compressed as other chunks are.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put_u32(out, u32::try_from(self.runs.len()).expect("fewer runs than pages"));
        for (run, kind) in &self.runs {
            put_u32(out, run.start);
            put_u32(out, run.end - run.start);
            out.push(*kind as u8);
        }
        out.extend(self.bases.iter().flatten());
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut packed = vec![0; lz4_flex::block::get_maximum_output_size(CHUNK)];
        let mut runs = Vec::new();
        for pages in self.data.chunks(CHUNK / PAGE) {
            // One page decides whether the others are compressed: this makes data that is already compressed or encrypted cost a
            // sixteenth of the time. Differences are mostly zeros.
            let has_difference = pages.iter().any(|(kind, _)| *kind == PageKind::Difference);
            let worth = has_difference || shrinks(&pages[0].1, &mut packed);
            chunk.clear();
            for (_, page) in pages {
                chunk.extend_from_slice(page);
            }
            runs.clear();
            if has_difference {
                zero_runs::encode(&chunk, &mut runs);
            }
            let are_runs = has_difference && runs.len() < chunk.len();
            let (contents, coding) = if are_runs { (&runs, ZERO_RUNS) } else { (&chunk, 0) };
            match worth.then(|| lz4_flex::block::compress_into(contents, &mut packed)) {
                Some(Ok(len)) if len < contents.len() => {
                    put_u32(out, coding | u32::try_from(len).expect("less than a chunk"));
                    out.extend_from_slice(&packed[..len]);
                }
                _ => {
                    put_u32(out, RAW | coding | u32::try_from(contents.len()).expect("at most a chunk"));
                    out.extend_from_slice(contents);
                }
            }
        }
    }
}

fn shrinks(page: &[u8], buffer: &mut [u8]) -> bool {
    lz4_flex::block::compress_into(page, buffer).is_ok_and(|len| len < PAGE - PAGE / 16)
}

/// Bytes of the run count.
pub(super) const COUNT_BYTES: usize = 4;
/// Bytes of a run.
pub(super) const RUN_BYTES: usize = 4 + 4 + 1;
/// Bytes before a chunk.
pub(super) const CHUNK_HEADER_BYTES: usize = 4;

/// Reads `count` runs of pages below `end`. Only some sections may have differences.
pub(super) fn read_runs(
    mut reader: Reader<'_>,
    (count, end): (u32, u64),
    may_differ: bool,
) -> Result<Vec<Run>, &'static str> {
    let mut runs = Vec::new();
    let mut next = 0;
    for _ in 0..count {
        let (Some(first), Some(len), Some(kind)) = (reader.u32(), reader.u32(), reader.u8()) else {
            return Err("a page section is truncated");
        };
        let last = first.checked_add(len).ok_or("a page number is too large")?;
        if first < next || len == 0 || u64::from(last) > end {
            return Err("page numbers are out of order or beyond the end");
        }
        next = last;
        let kind = [PageKind::Zero, PageKind::Whole, PageKind::Difference]
            .into_iter()
            .find(|known| *known as u8 == kind && (may_differ || *known != PageKind::Difference));
        runs.push((first..last, kind.ok_or("a run of pages is of unknown kind")?));
    }
    Ok(runs)
}

/// Bytes of contents that follow these runs.
pub(super) fn data_bytes(runs: &[Run]) -> usize {
    runs.iter().filter(|(_, kind)| *kind != PageKind::Zero).map(|(run, _)| run.len() * PAGE).sum()
}

/// Bytes of digests that follow these runs.
pub(super) fn digest_bytes(runs: &[Run]) -> usize {
    let differences = runs.iter().filter(|(_, kind)| *kind == PageKind::Difference);
    differences.map(|(run, _)| run.len() * PAGE_DIGEST_BYTES).sum()
}

/// How a chunk is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    /// Bytes that follow its header.
    pub(super) stored: usize,
    /// Bytes of pages that it holds.
    pub(super) unpacked: usize,
    /// Whether these are not the bytes that follow: they are compressed, or its zeros are counted, or both.
    pub(super) is_packed: bool,
    is_compressed: bool,
    are_runs: bool,
}

impl Chunk {
    /// Reads a chunk header; `left` bytes of contents are still to come. Only some sections may have runs of zeros.
    pub(super) fn read(header: u32, left: usize, may_be_runs: bool) -> Result<Self, &'static str> {
        let stored = (header & !(RAW | ZERO_RUNS)) as usize;
        let (is_compressed, are_runs) = (header & RAW == 0, header & ZERO_RUNS != 0);
        let (unpacked, is_packed) = (left.min(CHUNK), is_compressed || are_runs);
        // Runs that are as long as what they stand for are not written.
        let is_wrong =
            if are_runs { !may_be_runs || stored >= unpacked } else { !is_packed && stored != unpacked };
        if is_wrong {
            return Err("a chunk of pages has a wrong length");
        }
        Ok(Self { stored, unpacked, is_packed, is_compressed, are_runs })
    }

    /// The pages of a chunk.
    pub(super) fn unpack(self, stored: Bytes) -> Result<Bytes, &'static str> {
        let mut contents = stored;
        if self.is_compressed {
            let mut unpacked = vec![0; self.unpacked];
            let len = lz4_flex::block::decompress_into(&contents, &mut unpacked).unwrap_or(0);
            if len == 0 || (len != self.unpacked && !self.are_runs) {
                return Err("a chunk of pages does not decompress");
            }
            unpacked.truncate(len);
            contents = unpacked.into();
        }
        if self.are_runs { Ok(zero_runs::decode(&contents, self.unpacked)?.into()) } else { Ok(contents) }
    }
}

/// Reads what [`Writer::write`] wrote, for pages below `end`. There are no differences of files.
pub(super) fn read(section: &Bytes, end: u64) -> Result<Pages, &'static str> {
    let cut = "a page section is truncated";
    let mut reader = Reader::new(section);
    let count = reader.u32().ok_or(cut)?;
    let runs = reader.take((count as usize).saturating_mul(RUN_BYTES)).ok_or(cut)?;
    let runs = read_runs(Reader::new(runs), (count, end), false)?;
    let (mut left, mut chunks) = (data_bytes(&runs), Vec::new());
    while left > 0 {
        let cut = "a chunk of pages is truncated";
        let chunk = Chunk::read(reader.u32().ok_or(cut)?, left, false)?;
        let stored = reader.take(chunk.stored).ok_or(cut)?;
        left -= chunk.unpacked;
        chunks.push(chunk.unpack(section.slice_ref(stored))?);
    }
    if reader.is_empty() { Ok(Pages { runs, chunks }) } else { Err("a page section is too long") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u8) -> Vec<u8> {
        let mut out = vec![0; PAGE];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
        out
    }

    fn written(pages: &[(u32, Option<&[u8]>)]) -> Vec<u8> {
        let mut writer = Writer::default();
        for (index, contents) in pages {
            writer.page(*index, *contents);
        }
        let mut out = Vec::new();
        writer.write(&mut out);
        out
    }

    #[test]
    fn pages_round_trip_compressed_or_not() {
        let (noise, text, zero) = (noise(1), vec![7; PAGE], vec![0; PAGE]);
        let mut pages: Vec<(u32, Option<&[u8]>)> =
            vec![(0, Some(&noise)), (1, Some(&text)), (5, None), (6, Some(&zero))];
        pages.extend((8..40).map(|index| (index, Some(if index % 3 == 0 { &noise[..] } else { &text[..] }))));
        let read = read(&written(&pages).into(), 40).unwrap();
        let expected: Vec<_> =
            pages.iter().map(|(index, page)| (*index, page.filter(|page| *page != zero))).collect();
        assert_eq!(read.iter().collect::<Vec<_>>(), expected);
        assert!(written(&[(0, Some(&text))]).len() < 100);
        assert!(written(&[(0, Some(&noise))]).len() < PAGE + 32);
    }

    /// A chunk of pages of which each had one byte changed, as it is stored.
    fn stored(pages: u32) -> Vec<u8> {
        let mut writer = Writer::default();
        for index in 0..pages {
            let mut difference = vec![0; PAGE];
            difference[100 + index as usize] = 7;
            writer.difference(index, difference, [1; PAGE_DIGEST_BYTES]);
        }
        let mut out = Vec::new();
        writer.write(&mut out);
        out.split_off(COUNT_BYTES + RUN_BYTES + pages as usize * PAGE_DIGEST_BYTES)
    }

    #[test]
    fn differences_cost_a_few_bytes_and_are_read_in_their_version_alone() {
        let stored = stored(16);
        assert!(stored.len() < 16 * 8, "{}", stored.len());
        let header = u32::from_le_bytes(stored[..4].try_into().unwrap());
        assert!(Chunk::read(header, CHUNK, false).is_err());
        let chunk = Chunk::read(header, CHUNK, true).unwrap();
        let bytes = chunk.unpack(Bytes::copy_from_slice(&stored[4..])).unwrap();
        let places: Vec<usize> = (0..CHUNK).filter(|at| bytes[*at] == 7).collect();
        assert_eq!((bytes.len(), places.len(), places[1] - places[0]), (CHUNK, 16, PAGE + 1));
        for end in 4..stored.len() - 1 {
            assert!(chunk.unpack(Bytes::copy_from_slice(&stored[4..end])).is_err(), "{end}");
        }
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let (noise, text) = (noise(2), vec![7; PAGE]);
        let bytes = written(&[(1, Some(&noise)), (2, Some(&text)), (9, None)]);
        for end in 0..bytes.len() {
            assert!(read(&Bytes::copy_from_slice(&bytes[..end]), 10).is_err(), "{end}");
        }
        assert!(read(&bytes.clone().into(), 9).is_err());
        for at in 0..60.min(bytes.len()) {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                // Either refused, or other pages of the right number: the checksum of the checkpoint detects that.
                let _ = read(&flipped.into(), 10);
            }
        }
    }
}
