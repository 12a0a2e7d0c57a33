//! The session's log in plaintext, from the end of what a checkpoint covers, and the digest of all that was consumed.
//!
//! Nothing is trusted that comes from elsewhere: log and messages of ends, recorders and other owners must lead to the
//! running digest that came with them before any of it runs (I20 and I21 of docs/protocol.md).

use super::{about::About, end_state::Message, ends::Ends};
use crate::replay::{Consumed, LogReplayError, follow};
use alloc::vec::Vec;
use bytes::{Bytes, BytesMut};
use marram_wire::{
    id::{Port, SessionId},
    limits::{ENTRY_SIZE_MAX, LOG_SIZE_MAX},
    log::{Cursor, Entry, Event, Known, Read},
    seal::{Digest, LOG_OFFSET_MAX, Seal, SessionKeys},
};

/// The session ends when this much is left of the log's offsets, so that the next entry always has a place.
const LOG_ROOM: u64 = ENTRY_SIZE_MAX as u64;

/// An offset of the log, and the tag of the running digest that must be there.
pub(super) type Checkmark = (u64, [u8; 8]);

/// A position between two entries: where it is, the running digest there, and the last time that was logged before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) offset: u64,
    pub(super) digest: Digest,
    pub(super) cursor: Cursor,
}

/// Why a log cannot be followed to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogMismatch {
    /// It cannot be read.
    Unreadable,
    /// A message that it consumed is missing.
    Missing,
    /// It ends before this position.
    Short,
    /// The running digest at this position is a different one.
    Altered(u64),
}

impl From<LogReplayError> for LogMismatch {
    fn from(lost: LogReplayError) -> Self {
        match lost {
            LogReplayError::Missing => Self::Missing,
            // Nothing runs here that could read the time or a cache.
            LogReplayError::Unreadable | LogReplayError::Clock | LogReplayError::Reads => Self::Unreadable,
        }
    }
}

/// The log. Offsets count its bytes from the session's start.
#[derive(Debug)]
pub(super) struct Log {
    floor: u64,
    bytes: BytesMut,
    cursor: Cursor,
    /// Objects read from the cache that the log contains, since the cell was last copied. An entry names an object that
    /// is in an earlier one, so a replay from a checkpoint must find it behind that checkpoint.
    known: Known,
    /// The running digest at the end, unless the log came from a recorder and is not verified yet.
    digest: Digest,
}

impl Log {
    /// An empty log.
    pub(super) fn new(session: SessionId) -> Self {
        Self::at(Position { offset: 0, digest: Digest::start(session), cursor: Cursor::default() })
    }

    /// An empty log that continues from a position.
    pub(super) fn at(position: Position) -> Self {
        let Position { offset, digest, cursor } = position;
        Self { floor: offset, bytes: BytesMut::new(), cursor, known: Known::default(), digest }
    }

    /// Where it begins. The log before it is not here any more.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn end(&self) -> u64 {
        self.floor + self.size()
    }

    /// Bytes that are here.
    pub(super) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The last logged time, in nanoseconds of session time.
    pub(super) fn last_ns(&self) -> i64 {
        self.cursor.last_ns
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// The tag of the running digest at the end.
    pub(super) fn tag(&self) -> [u8; 8] {
        self.digest.tag()
    }

    /// Bytes of the objects that entries since the last copy have read from the cache.
    pub(super) fn read_size(&self) -> u64 {
        self.known.size()
    }

    /// A checkpoint is taken at the end: entries from here on name nothing that was read before.
    pub(super) fn forget_reads(&mut self) {
        self.known.forget();
    }

    /// The log from `offset` on; empty past the end.
    pub(super) fn since(&self, offset: u64) -> &[u8] {
        debug_assert!(
            offset >= self.floor,
            "the log from {offset} on is asked for, and it begins at {}",
            self.floor
        );
        let at = usize::try_from(offset.saturating_sub(self.floor)).unwrap_or(usize::MAX);
        self.bytes.get(at..).unwrap_or_default()
    }

    /// As [`Self::since`], encrypted.
    pub(super) fn sealed(&self, offset: u64, seal: &Seal) -> Bytes {
        let mut entries = BytesMut::from(self.since(offset));
        seal.log(offset, &mut entries);
        entries.freeze()
    }

    /// Drops the log before `offset`, as far as it is here.
    pub(super) fn truncate(&mut self, offset: u64) {
        if let Ok(covered) = usize::try_from(offset.saturating_sub(self.floor)) {
            let covered = covered.min(self.bytes.len());
            let _ = self.bytes.split_to(covered);
            self.floor += covered as u64;
        }
    }

    /// Whether the next entry might exceed the log that ends keep: a checkpoint must come first.
    pub(super) fn is_full(&self) -> bool {
        (self.bytes.len() + ENTRY_SIZE_MAX) as u64 > LOG_SIZE_MAX
    }

    /// Whether the offsets of the session's log are used up.
    pub(super) fn is_at_last_offset(&self) -> bool {
        self.end() + LOG_ROOM >= LOG_OFFSET_MAX
    }

    /// Appends an entry with what it consumed, and returns its size. None if readers would refuse it: the reads of one
    /// handler are bounded, but an entry that opens ports has several handlers.
    pub(super) fn append(
        &mut self,
        keys: &SessionKeys,
        event: Event,
        now_ns: Option<i64>,
        reads: Vec<Read>,
        message: Option<&Message>,
    ) -> Option<usize> {
        let reads = self.known.write(reads);
        if !reads.is_in_bounds() {
            return None;
        }
        let before = self.bytes.len();
        self.cursor.put(&Entry { event, now_ns, reads }, &mut self.bytes);
        let message = message.map(|message| (message.close, &message.payload[..]));
        self.digest.absorb(keys, &self.bytes[before..], message);
        Some(self.bytes.len() - before)
    }

    /// The entry of a stopped handler, as a recording has it: it is read on its own, without earlier entries.
    pub(super) fn entry_apart(&self, event: Event, now_ns: i64, reads: Vec<Read>) -> Bytes {
        let (mut entry, mut cursor) = (BytesMut::new(), self.cursor);
        let reads = Known::default().write(reads);
        cursor.put(&Entry { event, now_ns: Some(now_ns), reads }, &mut entry);
        entry.freeze()
    }

    /// Reads what follows the end as an entry, without appending it; none if it is not exactly one.
    pub(super) fn read_next(&mut self, entry: &Bytes) -> Option<Event> {
        let mut rest = entry.clone();
        let read = self.cursor.take(&mut rest).ok()?;
        rest.is_empty().then_some(read.event)
    }

    /// Absorbs an entry that was read with [`Self::read_next`], and what it consumed. False, and it is not appended, if
    /// that does not lead to the digest with this tag.
    pub(super) fn take_read(
        &mut self,
        keys: &SessionKeys,
        entry: &Bytes,
        message: Option<&Message>,
        tag: [u8; 8],
    ) -> bool {
        let message = message.map(|message| (message.close, &message.payload[..]));
        self.digest.absorb(keys, entry, message);
        let matches = self.digest.tag() == tag;
        if matches {
            self.bytes.extend_from_slice(entry);
        }
        matches
    }

    /// Appends log that is verified later: neither the digest nor the time at the end belongs to it until
    /// [`Self::prove`].
    pub(super) fn append_unverified(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Replaces the log by a chosen one, in which nothing is verified yet.
    pub(super) fn choose(&mut self, session: SessionId, floor: u64, bytes: BytesMut) {
        (self.floor, self.bytes) = (floor, bytes);
        self.cursor = Cursor::default();
        self.known.forget();
        self.digest = Digest::start(session);
    }

    /// What leads to the log that is not verified yet: the digest and the time of the checkpoint before it.
    pub(super) fn verify_from(&mut self, digest: Digest, cursor: Cursor) {
        (self.digest, self.cursor) = (digest, cursor);
    }

    /// The log was followed to its end, and leads here.
    pub(super) fn prove(&mut self, (digest, cursor): (Digest, Cursor)) {
        (self.digest, self.cursor) = (digest, cursor);
    }

    /// The position at which the unverified log begins, if that is its beginning.
    pub(super) fn unverified_start(&self) -> Position {
        Position { offset: self.floor, digest: self.digest, cursor: self.cursor }
    }

    /// The end, as a position.
    pub(super) fn end_position(&self) -> Position {
        Position { offset: self.end(), digest: self.digest, cursor: self.cursor }
    }

    /// Appends the ends' log behind what was fed. False if log and messages do not lead to the digests of the ends.
    /// Each end's log from there on must be of this history, not only the longest one.
    pub(super) fn append_verified(&mut self, about: &About, ends: &Ends, behind: &[u8]) -> bool {
        let from = self.end_position();
        let places = ends.held_behind(from.offset, about.keeps_log());
        let Some(fed) = ends.fed_behind() else { return false };
        self.append_unverified(behind);
        let followed = self.follow_through(&about.keys, ends, from, fed, &places);
        followed.map(|end| self.prove(end)).is_ok()
    }

    /// The first entry, if the log begins with the session's start: the seed of its cell.
    pub(super) fn start_seed(&self) -> Option<[u8; 32]> {
        match Cursor::default().take(&mut self.bytes.clone().freeze()).ok()?.event {
            Event::Start { seed, .. } => Some(seed),
            _ => None,
        }
    }

    /// Follows the log from one position to its end, with the messages that it consumed; `consumed` of those that wait
    /// were consumed before. At each of `places`, in order, the running digest must be the given one.
    pub(super) fn follow_through(
        &self,
        keys: &SessionKeys,
        ends: &Ends,
        from: Position,
        mut consumed: Consumed,
        places: &[Checkmark],
    ) -> Result<(Digest, Cursor), LogMismatch> {
        let Position { offset: mut at, mut digest, mut cursor } = from;
        let stages = places.iter().map(|(offset, tag)| (*offset, Some(*tag)));
        for (offset, tag) in stages.chain([(self.end(), None)]) {
            let size = offset.checked_sub(at).and_then(|size| usize::try_from(size).ok());
            let log = size.and_then(|size| self.since(at).get(..size)).ok_or(LogMismatch::Short)?;
            let message = |port: Port, number: usize| ends.at(port)?.inputs.get(number);
            let log = Bytes::copy_from_slice(log);
            (digest, cursor) = follow(keys, (digest, cursor), &log, &mut consumed, message)?;
            at = offset;
            if tag.is_some_and(|tag| digest.tag() != tag) {
                return Err(LogMismatch::Altered(offset));
            }
        }
        Ok((digest, cursor))
    }
}
