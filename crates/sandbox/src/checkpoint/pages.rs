//! The layout of pages in a section: runs of page numbers, then the pages that are not zero, in chunks that are compressed
//! if that makes them smaller.

use crate::bytes_io::{Reader, put_u32};
use crate::limits::PAGE;
use bytes::Bytes;
use std::ops::Range;

/// Bytes that are compressed together.
const CHUNK: usize = 16 * PAGE;
/// Marks a chunk that is stored uncompressed.
const RAW: u32 = 1 << 31;
const ZERO: u8 = 0;
const DATA: u8 = 1;

/// Pages that were read from a file section: their numbers, and the contents of those that are not zero.
#[derive(Default, Debug)]
pub(crate) struct Pages {
    runs: Vec<Run>,
    /// Contents, one page after the other, several pages per chunk. A chunk that was not compressed is not copied.
    chunks: Vec<Bytes>,
}

/// Consecutive pages, and whether they have contents.
pub(super) type Run = (Range<u32>, bool);

impl Pages {
    /// Every page with its contents; `None` for zero.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Option<&[u8]>)> {
        let mut contents = self.chunks.iter().flat_map(|chunk| chunk.chunks_exact(PAGE));
        self.runs
            .iter()
            .flat_map(|(run, data)| run.clone().map(move |page| (page, *data)))
            .map(move |(page, data)| (page, if data { contents.next() } else { None }))
    }
}

/// Collects pages in order, then writes them.
#[derive(Default)]
pub(super) struct Writer<'a> {
    runs: Vec<(Range<u32>, bool)>,
    data: Vec<&'a [u8]>,
}

impl<'a> Writer<'a> {
    /// Adds a page; `None` for zero. Numbers must be ascending.
    pub(super) fn page(&mut self, index: u32, contents: Option<&'a [u8]>) {
        let contents = contents.filter(|page| *page != [0; PAGE]);
        match self.runs.last_mut() {
            Some((run, data)) if run.end == index && *data == contents.is_some() => run.end += 1,
            _ => self.runs.push((index..index + 1, contents.is_some())),
        }
        self.data.extend(contents);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// ```text
    /// | run count 4 | (first page 4 | pages 4 | 0 zero, 1 data)* | (stored length 4, bit 31 = as it is | chunk)* |
    /// ```
    pub(super) fn write(self, out: &mut Vec<u8>) {
        put_u32(out, u32::try_from(self.runs.len()).expect("fewer runs than pages"));
        for (run, data) in &self.runs {
            put_u32(out, run.start);
            put_u32(out, run.end - run.start);
            out.push(if *data { DATA } else { ZERO });
        }
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut packed = vec![0; lz4_flex::block::get_maximum_output_size(CHUNK)];
        for pages in self.data.chunks(CHUNK / PAGE) {
            // One page decides whether the others are compressed: this makes data that is already compressed or encrypted cost a
            // sixteenth of the time.
            let worth = shrinks(pages[0], &mut packed);
            chunk.clear();
            for page in pages {
                chunk.extend_from_slice(page);
            }
            match worth.then(|| lz4_flex::block::compress_into(&chunk, &mut packed)) {
                Some(Ok(len)) if len < chunk.len() => {
                    put_u32(out, u32::try_from(len).expect("less than a chunk"));
                    out.extend_from_slice(&packed[..len]);
                }
                _ => {
                    put_u32(out, RAW | u32::try_from(chunk.len()).expect("at most a chunk"));
                    out.extend_from_slice(&chunk);
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

/// Reads `count` runs of pages below `end`.
pub(super) fn read_runs(mut reader: Reader<'_>, count: u32, end: u64) -> Result<Vec<Run>, &'static str> {
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
        match kind {
            ZERO => runs.push((first..last, false)),
            DATA => runs.push((first..last, true)),
            _ => return Err("a run of pages is of unknown kind"),
        }
    }
    Ok(runs)
}

/// Bytes of contents that follow these runs.
pub(super) fn data_bytes(runs: &[Run]) -> usize {
    runs.iter().filter(|(_, data)| *data).map(|(run, _)| run.len() * PAGE).sum()
}

/// How a chunk is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    /// Bytes that follow its header.
    pub(super) stored: usize,
    /// Bytes of pages that it holds.
    pub(super) unpacked: usize,
    pub(super) is_packed: bool,
}

impl Chunk {
    /// Reads a chunk header; `left` bytes of contents are still to come.
    pub(super) fn read(header: u32, left: usize) -> Result<Self, &'static str> {
        let (stored, is_packed) = ((header & !RAW) as usize, header & RAW == 0);
        let unpacked = left.min(CHUNK);
        if !is_packed && stored != unpacked {
            return Err("a chunk of pages has a wrong length");
        }
        Ok(Self { stored, unpacked, is_packed })
    }

    /// The pages of a compressed chunk.
    pub(super) fn unpack(self, stored: &[u8]) -> Result<Bytes, &'static str> {
        let mut pages = vec![0; self.unpacked];
        match lz4_flex::block::decompress_into(stored, &mut pages) {
            Ok(len) if len == self.unpacked => Ok(pages.into()),
            _ => Err("a chunk of pages does not decompress"),
        }
    }
}

/// Reads what [`Writer::write`] wrote, for pages below `end`.
pub(super) fn read(section: &Bytes, end: u64) -> Result<Pages, &'static str> {
    let cut = "a page section is truncated";
    let mut reader = Reader::new(section);
    let count = reader.u32().ok_or(cut)?;
    let runs = reader.take((count as usize).saturating_mul(RUN_BYTES)).ok_or(cut)?;
    let runs = read_runs(Reader::new(runs), count, end)?;
    let (mut left, mut chunks) = (data_bytes(&runs), Vec::new());
    while left > 0 {
        let cut = "a chunk of pages is truncated";
        let chunk = Chunk::read(reader.u32().ok_or(cut)?, left)?;
        let stored = reader.take(chunk.stored).ok_or(cut)?;
        left -= chunk.unpacked;
        chunks.push(if chunk.is_packed { chunk.unpack(stored)? } else { section.slice_ref(stored) });
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
