//! The layout of pages in a section: runs of page numbers, what differences are made against, then the pages that are not
//! zero, in chunks that are compressed if that makes them smaller.

use super::runs::{self, PageKind, Run};
use super::{Layout, zero_runs};
use crate::bytes_io::{Reader, put_u32};
use crate::limits::PAGE;
use bytes::{Bytes, BytesMut};
use std::borrow::Cow;

/// Pages that are compressed together.
const CHUNK_PAGES: usize = 16;
/// Bytes of these.
const CHUNK: usize = CHUNK_PAGES * PAGE;
/// Marks a chunk that is stored uncompressed.
const RAW: u32 = 1 << 31;
/// Marks a chunk in which zeros are counted, before it is compressed.
const ZERO_RUNS: u32 = 1 << 30;

/// Bytes of the digest of pages that differences are made against.
pub(crate) const BASE_DIGEST_BYTES: usize = 8;
/// The first bytes of BLAKE3 over the pages. It detects that the reader has another page; the seal detects manipulation.
pub(crate) type BaseDigest = [u8; BASE_DIGEST_BYTES];

/// The digest of pages, one behind the other.
pub(crate) fn base_digest<'a>(pages: impl IntoIterator<Item = &'a [u8]>) -> BaseDigest {
    let mut hasher = blake3::Hasher::new();
    for page in pages {
        hasher.update(page);
    }
    let mut digest = BaseDigest::default();
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..BASE_DIGEST_BYTES]);
    digest
}

/// Pages that were read from a file section: their numbers, and the contents of those that are not zero.
#[derive(Default, Debug)]
pub(crate) struct Pages {
    runs: Vec<Run>,
    /// Contents, one page after the other, several pages per chunk. A chunk that was not compressed is not copied.
    chunks: Vec<Bytes>,
}

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
    data: Vec<(PageKind, Cow<'a, [u8]>)>,
    /// Of each chunk that is complete and has differences: what these are made against.
    digests: Vec<BaseDigest>,
    /// What the differences of the last chunk are made against.
    bases: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Adds a page; `None` for zero. Numbers must be ascending.
    pub(super) fn page(&mut self, index: u32, contents: Option<&'a [u8]>) {
        match contents.filter(|page| *page != [0; PAGE]) {
            Some(page) => self.data(index, PageKind::Whole, Cow::Borrowed(page)),
            None => self.run(index, PageKind::Zero),
        }
    }

    /// Adds a page that is this XOR `base`.
    pub(super) fn difference(&mut self, index: u32, difference: Vec<u8>, base: &[u8]) {
        self.bases.extend_from_slice(base);
        self.data(index, PageKind::Difference, Cow::Owned(difference));
    }

    fn data(&mut self, index: u32, kind: PageKind, contents: Cow<'a, [u8]>) {
        self.run(index, kind);
        self.data.push((kind, contents));
        if self.data.len().is_multiple_of(CHUNK_PAGES) {
            self.digests.extend(self.last_digest());
            self.bases.clear();
        }
    }

    /// Of the last chunk, if it has differences.
    fn last_digest(&self) -> Option<BaseDigest> {
        (!self.bases.is_empty()).then(|| base_digest([&self.bases[..]]))
    }

    fn run(&mut self, index: u32, kind: PageKind) {
        match self.runs.last_mut() {
            Some((run, of)) if run.end == index && *of == kind => run.end += 1,
            _ => self.runs.push((index..index + 1, kind)),
        }
    }

    /// Whether some pages are differences.
    pub(super) fn has_differences(&self) -> bool {
        !(self.digests.is_empty() && self.bases.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// ```text
    /// | runs | (digest 8, of what a chunk's differences are made against)* | chunks
    /// chunk: | stored length 4, bit 31: not compressed, bit 30: as runs of zeros | so many bytes |
    /// ```
    /// A chunk with a difference is stored as [`zero_runs`], which are compressed as other chunks are. Only short ones may have any.
    pub(super) fn write(&self, layout: Layout, out: &mut Vec<u8>) {
        runs::put(&self.runs, layout, out);
        out.extend(self.digests.iter().copied().chain(self.last_digest()).flatten());
        self.put_chunks(out);
    }

    fn put_chunks(&self, out: &mut Vec<u8>) {
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut packed = vec![0; lz4_flex::block::get_maximum_output_size(CHUNK)];
        let mut runs = BytesMut::new();
        for pages in self.data.chunks(CHUNK_PAGES) {
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
            let (contents, coding) = if are_runs { (&runs[..], ZERO_RUNS) } else { (&chunk[..], 0) };
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

/// Bytes before a chunk.
pub(super) const CHUNK_HEADER_BYTES: usize = 4;

/// Bytes of digests that follow these runs: one for each chunk with differences, or for each difference.
pub(super) fn digest_bytes(runs: &[Run], layout: Layout) -> usize {
    // Pages with contents before this run, and chunks up to the last difference.
    let (mut pages, mut chunks, mut digests) = (0, 0, 0);
    for (run, kind) in runs.iter().filter(|(_, kind)| *kind != PageKind::Zero) {
        let begin = pages;
        pages += run.len();
        if *kind == PageKind::Difference {
            let (first, end) = (begin / CHUNK_PAGES, pages.div_ceil(CHUNK_PAGES));
            digests += if layout == Layout::Short { end - first.max(chunks) } else { run.len() };
            chunks = end;
        }
    }
    digests * BASE_DIGEST_BYTES
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
    /// Of which layout its runs of zeros are.
    runs: Option<Layout>,
}

impl Chunk {
    /// Reads a chunk header; `left` bytes of contents are still to come. Not all layouts have runs of zeros.
    pub(super) fn read(header: u32, left: usize, layout: Layout) -> Result<Self, &'static str> {
        let stored = (header & !(RAW | ZERO_RUNS)) as usize;
        let (is_compressed, are_runs) = (header & RAW == 0, header & ZERO_RUNS != 0);
        let (unpacked, is_packed) = (left.min(CHUNK), is_compressed || are_runs);
        // Runs that are as long as what they stand for are not written.
        let is_wrong = if are_runs {
            layout < Layout::ZeroRuns || stored >= unpacked
        } else {
            !is_packed && stored != unpacked
        };
        if is_wrong {
            return Err("a chunk of pages has a wrong length");
        }
        Ok(Self { stored, unpacked, is_packed, is_compressed, runs: are_runs.then_some(layout) })
    }

    /// The pages of a chunk.
    pub(super) fn unpack(self, stored: Bytes) -> Result<Bytes, &'static str> {
        let mut contents = stored;
        if self.is_compressed {
            let mut unpacked = vec![0; self.unpacked];
            let len = lz4_flex::block::decompress_into(&contents, &mut unpacked).unwrap_or(0);
            if len == 0 || (len != self.unpacked && self.runs.is_none()) {
                return Err("a chunk of pages does not decompress");
            }
            unpacked.truncate(len);
            contents = unpacked.into();
        }
        match self.runs {
            Some(Layout::Short) => zero_runs::decode(contents, self.unpacked).map(Bytes::from),
            Some(_) => zero_runs::decode_wide(&contents, self.unpacked).map(Bytes::from),
            None => Ok(contents),
        }
    }
}

/// Reads what [`Writer::write`] wrote in the plain layout, for pages below `end`. There are no differences of files.
pub(super) fn read(section: &Bytes, end: u64) -> Result<Pages, &'static str> {
    let cut = "a page section is truncated";
    let mut reader = Reader::new(section);
    let count = reader.u32().ok_or(cut)?;
    let runs = reader.take(runs::size(count, Layout::Plain)).ok_or(cut)?;
    let runs = runs::read(section.slice_ref(runs), end, Layout::Plain)?;
    let (mut left, mut chunks) = (runs::data_bytes(&runs), Vec::new());
    while left > 0 {
        let cut = "a chunk of pages is truncated";
        let chunk = Chunk::read(reader.u32().ok_or(cut)?, left, Layout::Plain)?;
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
        writer.write(Layout::Plain, &mut out);
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

    /// Pages of which each had these bytes changed at this place.
    fn changed(pages: &[u32], place: impl Fn(u32) -> usize, bytes: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
        let mut writer = Writer::default();
        for index in pages {
            let (mut difference, at, bytes) = (vec![0; PAGE], place(*index), bytes(*index));
            difference[at..at + bytes.len()].copy_from_slice(&bytes);
            writer.difference(*index, difference, &[1; PAGE]);
        }
        let mut out = Vec::new();
        writer.write(Layout::Short, &mut out);
        out
    }

    /// A chunk of such pages with one byte each, as it is stored.
    fn stored(pages: u32) -> Vec<u8> {
        let all: Vec<u32> = (0..pages).collect();
        let mut out = changed(&all, |page| 100 + page as usize, |_| vec![7]);
        // One run, of two integers.
        assert_eq!(out[..runs::COUNT_BYTES], [2, 0, 0, 0]);
        out.split_off(runs::COUNT_BYTES + 2 + BASE_DIGEST_BYTES)
    }

    #[test]
    fn a_random_word_in_each_of_many_pages_costs_little_more_than_the_word() {
        let all: Vec<u32> = (300..364).collect();
        let word = |page: u32| noise(page.to_le_bytes()[0])[..8].to_vec();
        let size = changed(&all, |_| 16, word).len();
        assert!(size < 64 * 8 + 4 * 32, "{size}");
        let apart: Vec<u32> = (0..64).map(|page| page * 100).collect();
        let size = changed(&apart, |_| 16, word).len();
        assert!(size < 64 * (8 + 2) + 4 * 32, "{size}");
        // Counts do not compress if the places are random.
        let size = changed(&apart, |page| page as usize * 577 % 4_000, word).len();
        assert!(size < 64 * (8 + 2 + 3) + 4 * 16, "{size}");
    }

    #[test]
    fn differences_cost_a_few_bytes_and_are_read_in_their_version_alone() {
        let stored = stored(16);
        assert!(stored.len() < 16 * 2, "{}", stored.len());
        let header = u32::from_le_bytes(stored[..4].try_into().unwrap());
        for layout in [Layout::Plain, Layout::Differences] {
            assert!(Chunk::read(header, CHUNK, layout).is_err());
        }
        let chunk = Chunk::read(header, CHUNK, Layout::Short).unwrap();
        let bytes = chunk.unpack(Bytes::copy_from_slice(&stored[4..])).unwrap();
        let places: Vec<usize> = (0..CHUNK).filter(|at| bytes[*at] == 7).collect();
        assert_eq!((bytes.len(), places.len(), places[1] - places[0]), (CHUNK, 16, PAGE + 1));
        for end in 4..stored.len() - 1 {
            assert!(chunk.unpack(Bytes::copy_from_slice(&stored[4..end])).is_err(), "{end}");
        }
    }

    #[test]
    fn each_chunk_with_differences_has_a_digest_and_in_older_layouts_each_difference() {
        use PageKind::{Difference, Whole, Zero};
        let digests = |runs: &[(u32, PageKind)]| {
            let (mut writer, mut index) = (Writer::default(), 0);
            for (len, kind) in runs {
                for _ in 0..*len {
                    match kind {
                        Zero => writer.page(index, None),
                        Whole => writer.page(index, Some(&[1; PAGE])),
                        Difference => writer.difference(index, vec![2; PAGE], &[3; PAGE]),
                    }
                    index += 1;
                }
            }
            let of = |layout| digest_bytes(&writer.runs, layout) / BASE_DIGEST_BYTES;
            assert_eq!(of(Layout::Short), writer.digests.len() + usize::from(writer.last_digest().is_some()));
            (of(Layout::Short), of(Layout::ZeroRuns))
        };
        assert_eq!(digests(&[(40, Whole)]), (0, 0));
        assert_eq!(digests(&[(1, Difference)]), (1, 1));
        assert_eq!(digests(&[(16, Difference), (3, Zero), (1, Whole)]), (1, 16));
        assert_eq!(digests(&[(15, Whole), (9, Zero), (2, Difference)]), (2, 2));
        assert_eq!(digests(&[(3, Difference), (4, Whole), (5, Difference), (40, Whole)]), (1, 8));
        assert_eq!(digests(&[(33, Difference), (31, Whole), (1, Difference)]), (4, 34));
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
