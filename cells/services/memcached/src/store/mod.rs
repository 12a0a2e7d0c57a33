//! The cache: items by key; the least recently used are evicted when memory is full. Knows the protocol's rules about
//! replacing items; does not know its text, connections, or the source of time.
//!
//! ```text
//!  index: hash -> bucket -> item -> item          by Field::Bucket
//!  age:   newest <-> ... <-> oldest               by Field::Newer, Field::Older
//!  draft: in neither, until it is committed       so it cannot be found or evicted
//! ```
//!
//! An item is in both lists or in none. Versions (`cas`) count up by one for each change in the
//! whole store, and double as the clock of `flush_all`: everything below a version is gone, without
//! a walk over the items. What is over is removed when it is found, or when its memory is needed;
//! there is no timer.

mod arena;
mod index;

use std::hash::{DefaultHasher, Hasher};

use self::{
    arena::{Arena, CHUNK_BYTES, Cursor, Field, NONE, SEGMENT_CHUNKS, chunks_for},
    index::{BUCKET_BYTES, Index},
};
use crate::clock::{Expiry, Seconds};

/// The longest key.
pub const KEY_BYTES_MAX: usize = 250;

/// Most bytes of key, value and the store's own data about them together.
pub const ITEM_BYTES_MAX: usize = 1 << 20;

/// What the store counts towards [`ITEM_BYTES_MAX`] in addition to key and value.
pub const ITEM_OWN_BYTES: usize = 48;

/// The digits of the largest number that a counter can hold.
const NUMBER_BYTES_MAX: usize = 20;

/// An item that was just looked up. Valid until the store changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item(u32);

/// An item that is being received. It is invisible until it is committed, and its memory is freed only by
/// [`Store::commit`] or [`Store::discard`].
#[derive(Debug)]
#[must_use = "a draft holds memory until it is committed or discarded"]
pub struct Draft {
    /// The first chunk of its memory, as in [`Item`].
    item: u32,
    /// Bytes of the value that are still to come.
    cursor_left: usize,
    cursor: Cursor,
}

/// Why there is no memory for an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is longer than any item may be.
    TooLarge,
    /// Nothing more can be evicted for it.
    OutOfMemory,
}

/// How an item is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Unconditionally.
    Set,
    /// Only if there is no such item.
    Add,
    /// Only if there is such an item.
    Replace,
    /// After the existing value.
    Append,
    /// Before the existing value.
    Prepend,
    /// Only if the existing item still has this version.
    Cas(u64),
}

/// The result of committing a draft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// It is in the store.
    Stored,
    /// Its condition did not hold.
    NotStored,
    /// The item has another version.
    Exists,
    /// There is no such item, so no version to compare.
    NotFound,
}

/// How a counter changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Wraps at 2^64.
    Up(u64),
    /// Stops at 0.
    Down(u64),
}

/// Why a counter did not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCount {
    /// There is no such item.
    NotFound,
    /// The value is not a number of 64 bits.
    NotANumber,
    /// The new number is longer and nothing can be evicted for it.
    OutOfMemory,
}

/// Statistics of the store.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Census {
    /// Items ever stored.
    pub items_total: u64,
    /// Items evicted before they expired.
    pub evictions: u64,
    /// Items removed to make room after they expired or were flushed.
    pub reclaimed: u64,
}

/// The cache.
pub struct Store {
    arena: Arena,
    index: Index,
    /// Secret, and drawn by the cell that created the store: a client that knew it could put all
    /// items into one bucket.
    hash_key: [u8; 16],
    /// The ends of the list of ages, or [`NONE`] if the store is empty.
    newest: u32,
    oldest: u32,
    /// The version given last; 0 before the first.
    cas_last: u64,
    /// Items with an older version than this were flushed.
    flushed_below: u64,
    /// A flush that is still to happen. It happens in the first look-up after that time, before the
    /// look-up sees any item; since storing looks up too, no item that is newer than the flush is
    /// lost to it.
    flush_at: Option<Expiry>,
    census: Census,
}

impl Store {
    /// A store that never takes more than `memory_bytes` for items and their index (and never less than 64 KiB).
    /// The key keeps clients from choosing keys that collide.
    #[must_use]
    pub fn new(memory_bytes: usize, hash_key: [u8; 16]) -> Self {
        let segments_max = (memory_bytes / ((CHUNK_BYTES + BUCKET_BYTES) * SEGMENT_CHUNKS)).max(1);
        let arena = Arena::new(segments_max);
        let index = Index::new(arena.capacity());
        Self {
            arena,
            index,
            hash_key,
            newest: NONE,
            oldest: NONE,
            cas_last: 0,
            flushed_below: 0,
            flush_at: None,
            census: Census::default(),
        }
    }

    /// Looks an item up and makes it the most recently used. An item that is over is removed, and
    /// not found.
    pub fn get(&mut self, key: &[u8], now: Seconds) -> Option<Item> {
        let item = self.live(key, now)?;
        self.unlink_age(item);
        self.link_newest(item);
        Some(Item(item))
    }

    /// The client's flags.
    #[must_use]
    pub fn flags(&self, item: Item) -> u32 {
        self.arena.get(item.0, Field::Flags)
    }

    /// The version, which changes whenever the value does.
    #[must_use]
    pub fn cas(&self, item: Item) -> u64 {
        self.arena.cas(item.0)
    }

    /// The length of the value in bytes.
    #[must_use]
    pub fn value_len(&self, item: Item) -> usize {
        self.arena.get(item.0, Field::ValueLen) as usize
    }

    /// The value, chunk by chunk.
    pub fn value(&self, item: Item) -> impl Iterator<Item = &[u8]> {
        let mut cursor = Cursor::start(item.0);
        cursor.skip(&self.arena, self.arena.key_len(item.0));
        let mut left = self.value_len(item);
        std::iter::from_fn(move || {
            let piece = cursor.piece(&self.arena, left);
            left -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Sets an item's expiry time. The version stays: the value is the same.
    pub fn touch(&mut self, item: Item, expiry: Expiry) {
        self.arena.set(item.0, Field::Expiry, expiry.0);
    }

    /// Allocates memory for an item that will be received, evicting items if necessary.
    ///
    /// # Errors
    /// If there is no memory for it. For the semantics of [`Mode::Set`] the caller must then delete the old item.
    pub fn begin(
        &mut self,
        key: &[u8],
        flags: u32,
        expiry: Expiry,
        value_len: usize,
        now: Seconds,
    ) -> Result<Draft, Refusal> {
        self.draft(key, [flags, expiry.0], value_len, NONE, now)
    }

    /// Adds bytes to a draft's value, as many as it still needs; returns how many. The rest of
    /// `bytes` belongs to what follows the value.
    pub fn fill(&mut self, draft: &mut Draft, bytes: &[u8]) -> usize {
        let len = bytes.len().min(draft.cursor_left);
        draft.cursor.write(&mut self.arena, &bytes[..len]);
        draft.cursor_left -= len;
        len
    }

    /// Stores a draft, or discards it. The draft must be full. What is stored gets a version newer
    /// than any other, also if the value is the same. `NotStored` may also mean that there was no
    /// memory to join two values.
    pub fn commit(&mut self, draft: Draft, mode: Mode, now: Seconds) -> Stored {
        let key = self.key(draft.item);
        let old = self.live(&key, now);
        let refused = match (mode, old) {
            (Mode::Set | Mode::Append | Mode::Prepend | Mode::Replace, Some(_))
            | (Mode::Set | Mode::Add, None) => None,
            (Mode::Cas(cas), Some(old)) => (self.arena.cas(old) != cas).then_some(Stored::Exists),
            (Mode::Cas(_), None) => Some(Stored::NotFound),
            (Mode::Add, Some(_)) | (Mode::Replace | Mode::Append | Mode::Prepend, None) => {
                Some(Stored::NotStored)
            }
        };
        if let Some(refused) = refused {
            self.discard(draft);
            return refused;
        }
        let draft = match (mode, old) {
            (Mode::Append | Mode::Prepend, Some(old)) => {
                let joined = self.join(&key, old, &draft, mode == Mode::Prepend, now);
                self.discard(draft);
                match joined {
                    Ok(joined) => joined,
                    Err(_) => return Stored::NotStored,
                }
            }
            _ => draft,
        };
        if let Some(old) = old {
            self.remove(old);
        }
        self.link(draft.item);
        Stored::Stored
    }

    /// Discards a draft.
    pub fn discard(&mut self, draft: Draft) {
        self.arena.give_back(draft.item);
    }

    /// Removes an item; returns whether it existed.
    pub fn delete(&mut self, key: &[u8], now: Seconds) -> bool {
        let found = self.live(key, now);
        found.inspect(|item| self.remove(*item)).is_some()
    }

    /// Changes a counter and returns its new value. A number that became shorter is padded with
    /// spaces. The number is changed in place if it fits. The item becomes the most recently used
    /// in any case, and gets a new version if its number is stored.
    ///
    /// # Errors
    /// If there is no counter, or no memory for a longer one.
    pub fn count(&mut self, key: &[u8], delta: Delta, now: Seconds) -> Result<u64, NoCount> {
        let item = self.get(key, now).ok_or(NoCount::NotFound)?;
        let old: Vec<u8> = self.value(item).flatten().copied().take(ITEM_OWN_BYTES).collect();
        let old = number(&old).ok_or(NoCount::NotANumber)?;
        let new = match delta {
            Delta::Up(by) => old.wrapping_add(by),
            Delta::Down(by) => old.saturating_sub(by),
        };
        let mut text = new.to_string().into_bytes();
        let len = self.value_len(item);
        if text.len() <= len {
            text.resize(len, b' ');
            let mut cursor = Cursor::start(item.0);
            cursor.skip(&self.arena, key.len());
            cursor.write(&mut self.arena, &text);
            self.renew(item.0);
            return Ok(new);
        }
        debug_assert!(text.len() <= NUMBER_BYTES_MAX);
        let about = [self.flags(item), self.arena.get(item.0, Field::Expiry)];
        let mut draft = self.draft(key, about, text.len(), item.0, now).map_err(|_| NoCount::OutOfMemory)?;
        self.fill(&mut draft, &text);
        self.remove(item.0);
        self.link(draft.item);
        Ok(new)
    }

    /// Makes everything that exists now, or at that time, disappear. With `None`, at once. A later
    /// flush replaces one that is still to happen.
    pub fn flush(&mut self, at: Option<Expiry>) {
        match at {
            Some(at) => self.flush_at = Some(at),
            None => (self.flushed_below, self.flush_at) = (self.cas_last + 1, None),
        }
    }

    /// Bytes of memory that hold items, drafts included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.used() * CHUNK_BYTES
    }

    /// Bytes of memory that could hold items.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.arena.capacity() * CHUNK_BYTES
    }

    /// Number of items, including expired ones whose memory was not needed yet.
    #[must_use]
    pub fn items(&self) -> usize {
        self.index.items()
    }

    /// The statistics of the store.
    #[must_use]
    pub const fn census(&self) -> Census {
        self.census
    }

    /// The item with this key, unless it has expired. An expired item is removed.
    fn live(&mut self, key: &[u8], now: Seconds) -> Option<u32> {
        if self.flush_at.is_some_and(|at| at.is_past(now)) {
            self.flush(None);
        }
        let arena = &self.arena;
        let item = self.index.find(arena, self.hash(key), |item| has_key(arena, item, key))?;
        if self.is_over(item, now) {
            self.remove(item);
            return None;
        }
        Some(item)
    }

    /// Whether it has expired or was flushed.
    fn is_over(&self, item: u32, now: Seconds) -> bool {
        Expiry(self.arena.get(item, Field::Expiry)).is_past(now) || self.arena.cas(item) < self.flushed_below
    }

    /// SipHash with a secret before the key.
    #[expect(clippy::cast_possible_truncation, reason = "any 32 of its bits will do")]
    fn hash(&self, key: &[u8]) -> u32 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.hash_key);
        hasher.write(key);
        hasher.finish() as u32
    }

    /// Copies the key out of the chunks, for calls that need the store mutable.
    fn key(&self, item: u32) -> Vec<u8> {
        let (mut cursor, len) = (Cursor::start(item), self.arena.key_len(item));
        let mut key = Vec::with_capacity(len);
        while key.len() < len {
            key.extend_from_slice(cursor.piece(&self.arena, len - key.len()));
        }
        key
    }

    /// Allocates memory for an item without evicting `keep`, and writes all but its value. `about`: flags and expiry.
    fn draft(
        &mut self,
        key: &[u8],
        about: [u32; 2],
        value_len: usize,
        keep: u32,
        now: Seconds,
    ) -> Result<Draft, Refusal> {
        let data_len = key.len() + value_len;
        if data_len + ITEM_OWN_BYTES > ITEM_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        let key_len = u8::try_from(key.len()).ok().filter(|len| usize::from(*len) <= KEY_BYTES_MAX);
        let key_len = key_len.ok_or(Refusal::TooLarge)?;
        let chunks = chunks_for(data_len);
        self.make_room(chunks, keep, now).ok_or(Refusal::OutOfMemory)?;
        let item = self.take_chain(chunks);
        self.arena.set(item, Field::Hash, self.hash(key));
        self.arena.set(item, Field::Flags, about[0]);
        self.arena.set(item, Field::Expiry, about[1]);
        self.arena.set(item, Field::ValueLen, u32::try_from(value_len).expect("less than ITEM_BYTES_MAX"));
        self.arena.set_key_len(item, key_len);
        let mut cursor = Cursor::start(item);
        cursor.write(&mut self.arena, key);
        Ok(Draft { item, cursor_left: value_len, cursor })
    }

    /// Evicts the oldest items until there are this many free chunks. `None` if that is impossible.
    /// What is evicted stays evicted if there is not enough in the end. Drafts of other connections
    /// are not in the list of ages, so many large ones at once can make it fail. `keep` is an item
    /// whose value is still needed.
    fn make_room(&mut self, chunks: usize, keep: u32, now: Seconds) -> Option<()> {
        if chunks > self.arena.capacity() {
            return None;
        }
        while self.arena.available() < chunks {
            let mut victim = self.oldest;
            if victim == keep && victim != NONE {
                victim = self.arena.get(victim, Field::Newer);
            }
            if victim == NONE {
                return None;
            }
            if self.is_over(victim, now) {
                self.census.reclaimed += 1;
            } else {
                self.census.evictions += 1;
            }
            self.remove(victim);
        }
        Some(())
    }

    /// Takes chunks for an item, and links them.
    fn take_chain(&mut self, chunks: usize) -> u32 {
        let first = self.arena.take().expect("room was made");
        let mut last = first;
        for _ in 1..chunks {
            let next = self.arena.take().expect("room was made");
            self.arena.set(last, Field::Next, next);
            last = next;
        }
        first
    }

    /// A draft of an item's value with another value before or after it.
    fn join(
        &mut self,
        key: &[u8],
        old: u32,
        addition: &Draft,
        before: bool,
        now: Seconds,
    ) -> Result<Draft, Refusal> {
        let about = [self.arena.get(old, Field::Flags), self.arena.get(old, Field::Expiry)];
        let parts = if before { [addition.item, old] } else { [old, addition.item] };
        let len = parts.iter().map(|item| self.value_len(Item(*item))).sum();
        let mut draft = self.draft(key, about, len, old, now)?;
        for part in parts {
            let mut from = Cursor::start(part);
            from.skip(&self.arena, key.len());
            let mut left = self.value_len(Item(part));
            while left > 0 {
                // Through a buffer, because both ends are in the same arena.
                let mut buffer = [0; CHUNK_BYTES];
                let piece = from.piece(&self.arena, left);
                let buffer = &mut buffer[..piece.len()];
                buffer.copy_from_slice(piece);
                left -= buffer.len();
                self.fill(&mut draft, buffer);
            }
        }
        Ok(draft)
    }

    /// Makes a complete item visible, as the newest.
    fn link(&mut self, item: u32) {
        self.index.insert(&mut self.arena, item);
        self.link_newest(item);
        self.renew(item);
        self.census.items_total += 1;
    }

    /// Gives the item the next version.
    fn renew(&mut self, item: u32) {
        self.cas_last += 1;
        self.arena.set_cas(item, self.cas_last);
    }

    /// Takes an item out of both lists, and frees its memory: its number may belong to another item
    /// at once.
    fn remove(&mut self, item: u32) {
        self.index.remove(&mut self.arena, item);
        self.unlink_age(item);
        self.arena.give_back(item);
    }

    /// The item must be in no place of the list.
    fn link_newest(&mut self, item: u32) {
        self.arena.set(item, Field::Newer, NONE);
        self.arena.set(item, Field::Older, self.newest);
        match self.newest {
            NONE => self.oldest = item,
            newest => self.arena.set(newest, Field::Newer, item),
        }
        self.newest = item;
    }

    /// Leaves the item's own links as they are; the caller links or frees it.
    fn unlink_age(&mut self, item: u32) {
        let (newer, older) = (self.arena.get(item, Field::Newer), self.arena.get(item, Field::Older));
        match newer {
            NONE => self.newest = older,
            newer => self.arena.set(newer, Field::Older, older),
        }
        match older {
            NONE => self.oldest = newer,
            older => self.arena.set(older, Field::Newer, newer),
        }
    }
}

/// Compares the key chunk by chunk, without a copy.
fn has_key(arena: &Arena, item: u32, mut key: &[u8]) -> bool {
    if arena.key_len(item) != key.len() {
        return false;
    }
    let mut cursor = Cursor::start(item);
    while !key.is_empty() {
        let piece = cursor.piece(arena, key.len());
        let Some(rest) = key.strip_prefix(piece) else { return false };
        key = rest;
    }
    true
}

/// The number at the beginning of a value, as C's `strtoull` reads it: spaces before it, and anything after a space
/// that follows it, are ignored. `None` if there is no number, as in an empty value, or if it
/// exceeds 64 bits.
fn number(value: &[u8]) -> Option<u64> {
    let text = value.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let len = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let ends_well = text.get(len).is_none_or(|byte| byte.is_ascii_whitespace());
    if !ends_well {
        return None;
    }
    std::str::from_utf8(&text[..len]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
