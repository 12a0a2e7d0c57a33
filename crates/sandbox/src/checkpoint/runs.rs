//! Which pages a section has, as runs of one kind. Does not know contents.

use super::Layout;
use crate::bytes_io::{Reader, put_bytes, put_u32};
use crate::limits::PAGE;
use bytes::{Buf, Bytes, BytesMut};
use marram_wire::codec::Field;
use std::ops::Range;

/// Bytes of the run count, or of the size of runs.
pub(super) const COUNT_BYTES: usize = 4;
/// Bytes of a run that is not short.
const RUN_BYTES: usize = 4 + 4 + 1;
/// Bits of the kind in a short run.
const KIND_BITS: u32 = 2;

/// What a section has of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum PageKind {
    /// Nothing: it is zero.
    Zero = 0,
    /// Its contents.
    Whole = 1,
    /// Its contents XOR those that the reader's page has, of which a digest is given.
    Difference = 2,
}

/// Consecutive pages of one kind.
pub(super) type Run = (Range<u32>, PageKind);

/// Appends runs. Plain ones have no differences.
///
/// ```text
/// plain   | run count 4     | (first page 4 | pages 4 | kind 1)* |
/// short   | bytes of runs 4 | (pages between it and the last run | pages * 4 + kind)* |
/// ```
pub(super) fn put(runs: &[Run], layout: Layout, out: &mut Vec<u8>) {
    if layout == Layout::Short {
        return put_short(runs, out);
    }
    put_u32(out, u32::try_from(runs.len()).expect("fewer runs than pages"));
    for (run, kind) in runs {
        put_u32(out, run.start);
        put_u32(out, run.end - run.start);
        out.push(*kind as u8);
    }
}

fn put_short(runs: &[Run], out: &mut Vec<u8>) {
    let (mut short, mut next) = (BytesMut::new(), 0);
    for (run, kind) in runs {
        (run.start - next).put(&mut short);
        (u64::from(run.end - run.start) << KIND_BITS | *kind as u64).put(&mut short);
        next = run.end;
    }
    put_bytes(out, &short);
}

/// Bytes of the runs behind this count.
pub(super) fn size(count: u32, layout: Layout) -> usize {
    (count as usize).saturating_mul(if layout == Layout::Short { 1 } else { RUN_BYTES })
}

/// Reads runs of pages below `end` until nothing is left. Plain sections have no differences.
pub(super) fn read(mut left: Bytes, end: u64, layout: Layout) -> Result<Vec<Run>, &'static str> {
    let mut runs = Vec::new();
    let mut next = 0;
    while !left.is_empty() {
        let read = if layout == Layout::Short { take_short(&mut left, next) } else { take_plain(&mut left) };
        let (first, len, kind) = read.ok_or("a page section is truncated")?;
        let last = first.checked_add(len).ok_or("a page number is too large")?;
        if first < next || len == 0 || u64::from(last) > end {
            return Err("page numbers are out of order or beyond the end");
        }
        next = last;
        let kind = [PageKind::Zero, PageKind::Whole, PageKind::Difference].into_iter().find(|known| {
            *known as u8 == kind && (layout != Layout::Plain || *known != PageKind::Difference)
        });
        runs.push((first..last, kind.ok_or("a run of pages is of unknown kind")?));
    }
    Ok(runs)
}

/// The first page, the number of pages, and the kind.
fn take_plain(left: &mut Bytes) -> Option<(u32, u32, u8)> {
    let mut run = Reader::new(left);
    let read = (run.u32()?, run.u32()?, run.u8()?);
    left.advance(RUN_BYTES);
    Some(read)
}

/// The same, of a run behind the page before `next`.
fn take_short(left: &mut Bytes, next: u32) -> Option<(u32, u32, u8)> {
    let (skipped, both) = (u32::take(left).ok()?, u64::take(left).ok()?);
    let kind = both.to_le_bytes()[0] & ((1 << KIND_BITS) - 1);
    Some((next.checked_add(skipped)?, u32::try_from(both >> KIND_BITS).ok()?, kind))
}

/// Bytes of contents that follow these runs.
pub(super) fn data_bytes(runs: &[Run]) -> usize {
    runs.iter().filter(|(_, kind)| *kind != PageKind::Zero).map(|(run, _)| run.len() * PAGE).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(runs: &[Run], layout: Layout) -> Result<Vec<Run>, &'static str> {
        let mut out = Vec::new();
        put(runs, layout, &mut out);
        let (count, runs) = out.split_at(COUNT_BYTES);
        let count = u32::from_le_bytes(count.try_into().unwrap());
        assert_eq!(size(count, layout), runs.len());
        read(Bytes::copy_from_slice(runs), 1 << 20, layout)
    }

    #[test]
    fn runs_come_back_and_those_that_overlap_or_end_too_late_are_refused() {
        let runs: Vec<Run> = vec![
            (0..1, PageKind::Zero),
            (1..300, PageKind::Whole),
            (70_000..70_001, PageKind::Zero),
            (70_002..1 << 20, PageKind::Whole),
        ];
        let different = [(5..6, PageKind::Difference), (6..9, PageKind::Whole)];
        for layout in [Layout::Plain, Layout::ZeroRuns, Layout::Short] {
            assert_eq!(read_back(&runs, layout).as_ref(), Ok(&runs));
            assert_eq!(read_back(&different, layout).is_ok(), layout != Layout::Plain);
            assert!(read_back(&[((1 << 20) - 1..(1 << 20) + 1, PageKind::Zero)], layout).is_err());
            assert!(read_back(&[(3..3, PageKind::Zero)], layout).is_err());
        }
        assert!(read_back(&[(3..5, PageKind::Zero), (4..6, PageKind::Whole)], Layout::Plain).is_err());
        // Page numbers and counts that overflow, and a kind that there is not.
        for short in [&[255, 255, 255, 255, 15, 255, 255, 255, 255, 63][..], &[255; 12], &[0, 7], &[0]] {
            assert!(read(Bytes::copy_from_slice(short), u64::MAX, Layout::Short).is_err(), "{short:?}");
        }
    }
}
