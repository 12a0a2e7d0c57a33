//! Maps a key's hash to the items that may have it: linear hashing, which grows by one bucket at a time, so that no
//! request pays for doubling a table. Knows hashes, not keys.
//!
//! Linear hashing (Litwin, 1980): buckets are split in order of number, whichever of them is full.
//! With 6 buckets, of 4 to 8:
//!
//! ```text
//!  bucket      0   1   2   3   4   5  (6) (7)
//!  bits used   3   3   2   2   3   3            split so far: 0 into 0 and 4, 1 into 1 and 5
//!                      ^ next to be split, into 2 and 6
//! ```
//!
//! There may be as many buckets as chunks, hence as items: a chain never has more than one item on
//! average.

use super::arena::{Arena, Field, NONE};

/// Number of buckets per allocation: 4 KiB.
const SEGMENT_BUCKETS: usize = 1024;

/// Bytes of a bucket: the first of its items.
pub(crate) const BUCKET_BYTES: usize = size_of::<u32>();

/// The buckets. Items of one bucket are chained through [`Field::Bucket`].
pub(crate) struct Index {
    /// A part of the last may be unused.
    segments: Vec<Box<[u32; SEGMENT_BUCKETS]>>,
    /// In use. The number never falls.
    buckets: usize,
    /// Of all chunks that there can be, one bucket each: their memory is set aside by
    /// [`super::Store::new`].
    buckets_max: usize,
    /// For the decision to split, and for the statistics.
    items: usize,
}

impl Index {
    /// Grows to this many buckets; never smaller than one segment. `buckets_max` is rounded up to a
    /// whole segment.
    pub(crate) fn new(buckets_max: usize) -> Self {
        let segments_max = buckets_max.div_ceil(SEGMENT_BUCKETS).max(1);
        let mut segments = Vec::with_capacity(segments_max);
        segments.push(Box::new([NONE; SEGMENT_BUCKETS]));
        Self { segments, buckets: SEGMENT_BUCKETS, buckets_max: segments_max * SEGMENT_BUCKETS, items: 0 }
    }

    /// Number of items.
    pub(crate) fn items(&self) -> usize {
        self.items
    }

    /// The first item with this hash for which `is_it` holds.
    pub(crate) fn find(&self, arena: &Arena, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut item = self.head(self.bucket(hash));
        while item != NONE {
            if arena.get(item, Field::Hash) == hash && is_it(item) {
                return Some(item);
            }
            item = arena.get(item, Field::Bucket);
        }
        None
    }

    /// Adds an item whose hash is set.
    pub(crate) fn insert(&mut self, arena: &mut Arena, item: u32) {
        self.items += 1;
        if self.items > self.buckets && self.buckets < self.buckets_max {
            self.split(arena);
        }
        self.push(arena, item);
    }

    /// Removes an existing item.
    pub(crate) fn remove(&mut self, arena: &mut Arena, item: u32) {
        let after = arena.get(item, Field::Bucket);
        let bucket = self.bucket(arena.get(item, Field::Hash));
        self.items -= 1;
        if self.head(bucket) == item {
            *self.head_mut(bucket) = after;
            return;
        }
        let mut before = self.head(bucket);
        while arena.get(before, Field::Bucket) != item {
            before = arena.get(before, Field::Bucket);
        }
        arena.set(before, Field::Bucket, after);
    }

    /// Puts an item at the beginning of its bucket's chain.
    fn push(&mut self, arena: &mut Arena, item: u32) {
        let bucket = self.bucket(arena.get(item, Field::Hash));
        arena.set(item, Field::Bucket, self.head(bucket));
        *self.head_mut(bucket) = item;
    }

    /// Adds a bucket, and moves its items there from the bucket that had their hashes until now.
    fn split(&mut self, arena: &mut Arena) {
        let new = self.buckets;
        let old = new - (new + 1).next_power_of_two() / 2;
        if new == self.segments.len() * SEGMENT_BUCKETS {
            self.segments.push(Box::new([NONE; SEGMENT_BUCKETS]));
        }
        self.buckets += 1;
        let mut item = std::mem::replace(self.head_mut(old), NONE);
        while item != NONE {
            let next = arena.get(item, Field::Bucket);
            self.push(arena, item);
            item = next;
        }
    }

    /// With 2^k to 2^(k+1) buckets: the hash's low k + 1 bits where that bucket exists already, else k.
    fn bucket(&self, hash: u32) -> usize {
        let size = self.buckets.next_power_of_two();
        let bucket = hash as usize & (size - 1);
        if bucket < self.buckets { bucket } else { bucket - size / 2 }
    }

    /// The bucket's first item, or [`NONE`].
    fn head(&self, bucket: usize) -> u32 {
        self.segments[bucket / SEGMENT_BUCKETS][bucket % SEGMENT_BUCKETS]
    }

    fn head_mut(&mut self, bucket: usize) -> &mut u32 {
        &mut self.segments[bucket / SEGMENT_BUCKETS][bucket % SEGMENT_BUCKETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_found_while_buckets_split_and_until_it_is_removed() {
        let mut arena = Arena::new(16);
        let mut index = Index::new(arena.capacity());
        let mut items = Vec::new();
        for n in 0..5000_u32 {
            let item = arena.take().unwrap();
            arena.set(item, Field::Hash, n.wrapping_mul(0x9e37_79b1) >> 3);
            index.insert(&mut arena, item);
            items.push(item);
        }
        assert_eq!((index.items(), index.buckets), (5000, 5000));
        let (gone, kept) = items.split_at(2500);
        gone.iter().for_each(|item| index.remove(&mut arena, *item));
        for (items, expected) in [(gone, false), (kept, true)] {
            for item in items {
                let found = index.find(&arena, arena.get(*item, Field::Hash), |other| other == *item);
                assert_eq!(found.is_some(), expected);
            }
        }
        assert_eq!(index.items(), 2500);
    }

    #[test]
    fn hashes_that_are_all_alike_only_make_one_bucket_long() {
        let mut arena = Arena::new(4);
        let mut index = Index::new(1);
        let items: Vec<u32> = (0..2000).map(|_| arena.take().unwrap()).collect();
        for item in &items {
            arena.set(*item, Field::Hash, 7);
            index.insert(&mut arena, *item);
        }
        items.iter().for_each(|item| index.remove(&mut arena, *item));
        assert_eq!((index.items(), index.find(&arena, 7, |_| true)), (0, None));
    }
}
