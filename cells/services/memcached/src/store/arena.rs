//! Memory in chunks of one size, so that freed memory always fits a new item: there is no fragmentation, and the
//! bytes in use are exactly the chunks in use. Knows the fields of an item's first chunk; does not know the meaning of keys,
//! their order or age.
//!
//! ```text
//! every chunk    next:4 | ...
//! first of item  next:4 | hash:4 | bucket:4 | newer:4 | older:4 | expiry:4 | flags:4 | value_len:4 | cas:8 | key_len:1 | data:87
//! further ones   next:4 | data:124
//! ```
//!
//! Numbers are little-endian. The data of an item is its key, then its value.
//!
//! An item's number is that of its first chunk. All links are such numbers: they take 4 bytes and
//! need no `unsafe`. Chunks are never moved or returned to the allocator, so the cell's memory
//! grows to its limit and stays there; a page that is not written is not part of the next
//! checkpoint.

/// Bytes of a chunk. An item of a 20-byte key and a 135-byte value takes two.
pub(crate) const CHUNK_BYTES: usize = 128;

/// Where the data of an item's first chunk begins.
pub(crate) const FIRST_DATA: usize = 41;

/// Where the data of any further chunk begins.
pub(crate) const NEXT_DATA: usize = 4;

/// Number of chunks per allocation: 64 KiB, by which the cell's address space grows. A chunk is written for the first time when
/// it is taken: a small tenant pays for the pages that its items use, and not for all 16 of a segment.
pub(crate) const SEGMENT_CHUNKS: usize = 512;

/// Marks that there is no chunk.
pub(crate) const NONE: u32 = u32::MAX;

/// A 32-bit field of an item's first chunk, by its offset.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Field {
    /// The next chunk of the same item, or of the free list.
    Next = 0,
    /// The key's hash.
    Hash = 4,
    /// The next item in the same bucket of the index.
    Bucket = 8,
    /// The next more recently used item.
    Newer = 12,
    /// The next less recently used item.
    Older = 16,
    /// The second from which on the item has expired.
    Expiry = 20,
    /// The client's flags.
    Flags = 24,
    /// Bytes of the value.
    ValueLen = 28,
}

/// Offset of the 64-bit version of an item.
const CAS: usize = 32;

/// Offset of the key's length.
const KEY_LEN: usize = 40;

/// Grows up to [`SEGMENT_CHUNKS`], and is allocated for as many.
type Segment = Vec<[u8; CHUNK_BYTES]>;

/// All chunks.
pub(crate) struct Arena {
    /// All but the last are complete.
    segments: Vec<Segment>,
    segments_max: usize,
    /// Chunks that were taken at least once.
    made: usize,
    /// The first of the chunks that were taken and given back.
    free: u32,
    /// The length of that list.
    free_count: usize,
}

impl Arena {
    /// Grows to this many segments; allocates none yet.
    pub(crate) fn new(segments_max: usize) -> Self {
        Self { segments: Vec::with_capacity(segments_max), segments_max, made: 0, free: NONE, free_count: 0 }
    }

    /// Number of chunks in use.
    pub(crate) fn used(&self) -> usize {
        self.made - self.free_count
    }

    /// Number of chunks that could still be taken.
    pub(crate) fn available(&self) -> usize {
        self.capacity() - self.used()
    }

    /// Most chunks that there can be.
    pub(crate) fn capacity(&self) -> usize {
        self.segments_max * SEGMENT_CHUNKS
    }

    /// Takes a chunk, which is zero except for data of its last use. Only [`Field::Next`] is set,
    /// to [`NONE`]. `None` if the arena is full.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.free == NONE {
            return self.make();
        }
        let chunk = self.free;
        self.free = self.get(chunk, Field::Next);
        self.free_count -= 1;
        self.set(chunk, Field::Next, NONE);
        Some(chunk)
    }

    /// Frees a chunk and all that follow it.
    pub(crate) fn give_back(&mut self, first: u32) {
        let mut last = first;
        self.free_count += 1;
        loop {
            match self.get(last, Field::Next) {
                NONE => break,
                next => last = next,
            }
            self.free_count += 1;
        }
        self.set(last, Field::Next, self.free);
        self.free = first;
    }

    /// A chunk that was never taken; `None` if there are as many as there may be. In order of address, so that items stored
    /// one after another are adjacent.
    fn make(&mut self) -> Option<u32> {
        if self.made == self.capacity() {
            return None;
        }
        if self.made.is_multiple_of(SEGMENT_CHUNKS) {
            self.segments.push(Vec::with_capacity(SEGMENT_CHUNKS));
        }
        let chunk = u32::try_from(self.made).ok()?;
        self.segments.last_mut()?.push([0; CHUNK_BYTES]);
        self.made += 1;
        self.set(chunk, Field::Next, NONE);
        Some(chunk)
    }

    /// The field of an item, whose first chunk this is; of any chunk for [`Field::Next`].
    pub(crate) fn get(&self, chunk: u32, field: Field) -> u32 {
        u32::from_le_bytes(self.array(chunk, field as usize))
    }

    pub(crate) fn set(&mut self, chunk: u32, field: Field, value: u32) {
        self.bytes_mut(chunk)[field as usize..][..4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn cas(&self, item: u32) -> u64 {
        u64::from_le_bytes(self.array(item, CAS))
    }

    pub(crate) fn set_cas(&mut self, item: u32, cas: u64) {
        self.bytes_mut(item)[CAS..][..8].copy_from_slice(&cas.to_le_bytes());
    }

    pub(crate) fn key_len(&self, item: u32) -> usize {
        usize::from(self.bytes(item)[KEY_LEN])
    }

    pub(crate) fn set_key_len(&mut self, item: u32, len: u8) {
        self.bytes_mut(item)[KEY_LEN] = len;
    }

    pub(crate) fn bytes(&self, chunk: u32) -> &[u8; CHUNK_BYTES] {
        let chunk = chunk as usize;
        &self.segments[chunk / SEGMENT_CHUNKS][chunk % SEGMENT_CHUNKS]
    }

    pub(crate) fn bytes_mut(&mut self, chunk: u32) -> &mut [u8; CHUNK_BYTES] {
        let chunk = chunk as usize;
        &mut self.segments[chunk / SEGMENT_CHUNKS][chunk % SEGMENT_CHUNKS]
    }

    fn array<const N: usize>(&self, chunk: u32, at: usize) -> [u8; N] {
        self.bytes(chunk)[at..][..N].try_into().expect("a field lies within its chunk")
    }
}

/// A position in the data of an item: the next byte to be read or written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    chunk: u32,
    /// From [`FIRST_DATA`] or [`NEXT_DATA`] to [`CHUNK_BYTES`]. At the end it stays in the chunk:
    /// the next one, which the item may not have, is looked up when a byte of it is needed.
    at: usize,
}

impl Cursor {
    /// At the first byte of an item's key.
    pub(crate) const fn start(item: u32) -> Self {
        Self { chunk: item, at: FIRST_DATA }
    }

    /// The bytes from here to the end of their chunk, at most `len`; advances past them. Empty only if `len` is 0.
    pub(crate) fn piece<'a>(&mut self, arena: &'a Arena, len: usize) -> &'a [u8] {
        let (chunk, at, len) = self.pass(arena, len);
        &arena.bytes(chunk)[at..at + len]
    }

    /// Writes into the item, which has room for the bytes; advances past them.
    pub(crate) fn write(&mut self, arena: &mut Arena, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (chunk, at, len) = self.pass(arena, bytes.len());
            let (now, later) = bytes.split_at(len);
            arena.bytes_mut(chunk)[at..at + len].copy_from_slice(now);
            bytes = later;
        }
    }

    /// Advances by `len` bytes.
    pub(crate) fn skip(&mut self, arena: &Arena, mut len: usize) {
        while len > 0 {
            len -= self.pass(arena, len).2;
        }
    }

    /// Advances past the bytes that lie in one chunk, at most `len`; returns the chunk, the offset in it, and how many.
    fn pass(&mut self, arena: &Arena, len: usize) -> (u32, usize, usize) {
        if self.at == CHUNK_BYTES && len > 0 {
            *self = Self { chunk: arena.get(self.chunk, Field::Next), at: NEXT_DATA };
        }
        let len = len.min(CHUNK_BYTES - self.at);
        let here = (self.chunk, self.at, len);
        self.at += len;
        here
    }
}

/// Number of chunks of an item with this many bytes of key and value.
pub(crate) const fn chunks_for(data_len: usize) -> usize {
    1 + data_len.saturating_sub(CHUNK_BYTES - FIRST_DATA).div_ceil(CHUNK_BYTES - NEXT_DATA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(arena: &mut Arena, count: usize) -> u32 {
        let first = arena.take().unwrap();
        let mut last = first;
        for _ in 1..count {
            let next = arena.take().unwrap();
            arena.set(last, Field::Next, next);
            last = next;
        }
        first
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_until_the_last_chunk() {
        let mut arena = Arena::new(2);
        assert_eq!((arena.used(), arena.available()), (0, 1024));
        let chains: Vec<u32> = (0..256).map(|_| chain(&mut arena, 4)).collect();
        assert_eq!((arena.used(), arena.available(), arena.take()), (1024, 0, None));
        chains[..100].iter().for_each(|first| arena.give_back(*first));
        assert_eq!((arena.used(), arena.available()), (624, 400));
        chain(&mut arena, 400);
        assert_eq!(arena.take(), None);
    }

    #[test]
    fn data_written_in_pieces_of_any_size_is_read_back() {
        for len in [0, 1, 86, 87, 88, 211, 212, 1000] {
            for piece in [1, 7, 124, 1000] {
                let mut arena = Arena::new(1);
                let item = chain(&mut arena, chunks_for(len));
                let data: Vec<u8> = (0..=255).cycle().take(len).collect();
                let mut cursor = Cursor::start(item);
                data.chunks(piece).for_each(|bytes| cursor.write(&mut arena, bytes));
                let (mut cursor, mut seen) = (Cursor::start(item), Vec::new());
                while seen.len() < len {
                    let bytes = cursor.piece(&arena, len - seen.len());
                    assert!(!bytes.is_empty());
                    seen.extend_from_slice(bytes);
                }
                assert!(seen == data, "{len} bytes in pieces of {piece}");
            }
        }
    }
}
