//! What an end keeps: its own messages, the log as owners sealed it, a chain of checkpoints. Each has a limit.

use crate::invariant::{BrokenInvariant, holds};
use alloc::{collections::VecDeque, vec::Vec};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    frame::{CheckpointKind, CheckpointMeta, PartialCheckpoint},
    id::Generation,
    limits::{CHECKPOINTS_SIZE, DELTAS_MAX, LOG_SIZE_MAX, charge},
    seal::LOG_OFFSET_MAX,
};

/// One message of this end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// Marks the end of the stream; the payload is empty.
    pub(crate) close: bool,
    pub(crate) payload: Bytes,
}

/// Places of messages that are kept even if no message needs them.
const PLACES_MIN: usize = 64;

/// This end's messages, from the oldest one that a recovery may need.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    start: u64,
    messages: VecDeque<Message>,
    charge: u64,
    /// Sequence number of the next message to send on the current channel.
    next: u64,
    closed: bool,
}

impl Sent {
    /// No messages yet; the next one has this sequence number.
    pub(crate) fn starting(start: u64) -> Self {
        Self { start, next: start, ..Self::default() }
    }

    /// All messages that are kept.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter()
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.messages.len() as u64
    }

    /// Sequence number of the first message that was not sent on the current channel.
    pub(crate) fn sent_end(&self) -> u64 {
        self.next
    }

    pub(crate) fn charge(&self) -> u64 {
        self.charge
    }

    pub(crate) fn closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn push(&mut self, close: bool, payload: Bytes) {
        self.closed |= close;
        self.charge += charge(payload.len());
        self.messages.push_back(Message { close, payload });
    }

    /// Sends again from `from` on, on a new channel.
    pub(crate) fn rewind(&mut self, from: u64) {
        self.next = from;
    }

    /// Whether everything was sent on the channel.
    pub(crate) fn all_sent(&self) -> bool {
        self.next == self.end()
    }

    /// The next message to send, if any may be sent. The mark that ends the stream always may.
    pub(crate) fn next(&mut self, may_send: bool) -> Option<Message> {
        let index = usize::try_from(self.next.checked_sub(self.start)?).ok()?;
        let message = self.messages.get(index)?;
        if !may_send && !message.close {
            return None;
        }
        self.next += 1;
        Some(message.clone())
    }

    /// The kept messages that were sent on the current channel, or that need not be sent.
    pub(crate) fn shown(&self) -> impl ExactSizeIterator<Item = &Message> {
        let count = usize::try_from(self.next - self.start).unwrap_or(usize::MAX);
        self.messages.iter().take(count)
    }

    /// Drops messages below `upto`.
    pub(crate) fn truncate(&mut self, upto: u64) {
        while self.start < upto {
            let Some(message) = self.messages.pop_front() else { return };
            self.charge -= charge(message.payload.len());
            self.start += 1;
        }
        // A checkpoint covers thousands of messages at a time: their places would stay.
        if self.messages.capacity() > PLACES_MIN && self.messages.len() < self.messages.capacity() / 4 {
            self.messages.shrink_to(PLACES_MIN.max(2 * self.messages.len()));
        }
    }

    /// Drops what was sent on the channel: no owner will ask for it again.
    pub(crate) fn forget_sent(&mut self) {
        self.truncate(self.next);
    }

    /// I8 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        let charges = self.messages.iter().map(|message| charge(message.payload.len()));
        let mut closes = self.messages.iter().map(|message| message.close).rev().skip(1);
        holds!("I8", self.start <= self.next && self.next <= self.end());
        holds!("I8", self.charge == charges.sum::<u64>());
        holds!("I8", !closes.any(|close| close));
        holds!("I8", self.closed || !self.messages.iter().any(|message| message.close));
        Ok(())
    }
}

/// The log as this end received it: segments, each sealed by the generation that sent it.
#[derive(Debug, Default)]
pub(crate) struct Log {
    start: u64,
    end: u64,
    tag: [u8; 8],
    segments: VecDeque<(Generation, u64, BytesMut)>,
    /// Parts of a chosen log that is not complete yet.
    chosen: Vec<(u64, Bytes)>,
}

impl Log {
    /// An empty log that begins at `offset`, where the digest's tag is `tag`.
    pub(crate) fn starting(offset: u64, tag: [u8; 8]) -> Self {
        Self { start: offset, end: offset, tag, ..Self::default() }
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn tag(&self) -> [u8; 8] {
        self.tag
    }

    pub(crate) fn size(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = (Generation, u64, &BytesMut)> {
        self.segments.iter().map(|(generation, start, bytes)| (*generation, *start, bytes))
    }

    /// Appends what one generation sealed. False if the log would be too large.
    pub(crate) fn append(&mut self, generation: Generation, bytes: &[u8], tag: [u8; 8]) -> bool {
        if self.size() + bytes.len() as u64 > LOG_SIZE_MAX {
            return false;
        }
        self.tag = tag;
        if bytes.is_empty() {
            return true;
        }
        match self.segments.back_mut() {
            Some((last, _, segment)) if *last == generation => segment.extend_from_slice(bytes),
            _ => self.segments.push_back((generation, self.end, BytesMut::from(bytes))),
        }
        self.end += bytes.len() as u64;
        true
    }

    /// Holds a part of a chosen log until all of it is here. False if it does not fit. The first part may begin after the end
    /// of the kept log: a checkpoint covers the gap.
    pub(crate) fn hold(&mut self, offset: u64, bytes: Bytes) -> bool {
        let held: usize = self.chosen.iter().map(|(_, part)| part.len()).sum();
        let follows = match self.chosen.last() {
            Some((at, part)) => offset == at + part.len() as u64,
            None => offset >= self.end,
        };
        // A peer chooses the offset; a sum that is too large is refused below.
        let end = offset.saturating_add(bytes.len() as u64);
        let fits = follows && end <= LOG_OFFSET_MAX && (held + bytes.len()) as u64 <= LOG_SIZE_MAX;
        if fits {
            self.chosen.push((offset, bytes));
        }
        fits
    }

    /// Appends the chosen log: the held parts and the last one. False if it does not fit.
    pub(crate) fn choose(&mut self, generation: Generation, offset: u64, last: Bytes, tag: [u8; 8]) -> bool {
        if !self.hold(offset, last) {
            return false;
        }
        let parts = core::mem::take(&mut self.chosen);
        if let Some((first, _)) = parts.first().filter(|(first, _)| *first > self.end) {
            self.jump(*first, tag);
        }
        parts.iter().all(|(_, part)| self.append(generation, part, tag))
    }

    /// Drops parts of a chosen log that was never complete.
    pub(crate) fn abandon(&mut self) {
        self.chosen.clear();
    }

    /// A checkpoint covers everything up to `offset`, and this end was not sent all of it.
    fn jump(&mut self, offset: u64, tag: [u8; 8]) {
        self.segments.clear();
        (self.start, self.end, self.tag) = (offset, offset, tag);
    }

    /// Drops everything before `offset`, which a checkpoint covers; `tag` is that of the digest there.
    pub(crate) fn truncate(&mut self, offset: u64, tag: [u8; 8]) {
        if offset >= self.end {
            return self.jump(offset, tag);
        }
        while let Some((_, start, bytes)) = self.segments.front_mut() {
            // 0 if all of the segment is behind the offset.
            let covered =
                usize::try_from(offset.saturating_sub(*start)).unwrap_or(usize::MAX).min(bytes.len());
            if covered < bytes.len() {
                if covered > 0 {
                    // Copies the rest, so that the memory of the covered bytes is freed.
                    *bytes = BytesMut::from(&bytes[covered..]);
                    *start += covered as u64;
                }
                break;
            }
            self.segments.pop_front();
        }
        self.start = self.start.max(offset);
    }

    /// I7 of docs/protocol.md.
    pub(super) fn invariants(&self, promised: Generation, owned: bool) -> Result<(), BrokenInvariant> {
        holds!("I7", self.start <= self.end && self.size() <= LOG_SIZE_MAX);
        let (mut at, mut last) = (self.start, Generation::NONE);
        for (generation, start, bytes) in self.segments() {
            holds!("I7", start == at && !bytes.is_empty());
            holds!("I7", last <= generation && generation <= promised);
            (at, last) = (at + bytes.len() as u64, generation);
        }
        holds!("I7", at == self.end);
        holds!("I7", !owned || self.chosen.is_empty());
        Ok(())
    }
}

/// A full checkpoint and its deltas, and one that is still arriving.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    chain: Vec<(CheckpointMeta, Bytes)>,
    /// Bytes of the chain.
    chain_size: u64,
    incoming: Option<(CheckpointMeta, Vec<u8>)>,
    /// Bytes of all of them, at most.
    size_max: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { chain: Vec::new(), chain_size: 0, incoming: None, size_max: CHECKPOINTS_SIZE }
    }
}

impl Checkpoints {
    /// Keeps so many bytes at most.
    pub(crate) fn limit(&mut self, size_max: u64) {
        self.size_max = size_max;
    }

    pub(crate) fn size_max(&self) -> u64 {
        self.size_max
    }

    pub(crate) fn metas(&self) -> Vec<CheckpointMeta> {
        self.chain.iter().map(|(meta, _)| meta.clone()).collect()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &(CheckpointMeta, Bytes)> {
        self.chain.iter()
    }

    pub(crate) fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.chain.iter().map(|(_, bytes)| &bytes[..])
    }

    pub(crate) fn size(&self) -> u64 {
        let arriving = self.incoming.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
        self.chain_size + arriving
    }

    /// Begins to receive a checkpoint. False if it does not fit the present chain. One that arrived in part is dropped.
    pub(crate) fn begin(&mut self, meta: CheckpointMeta) -> bool {
        self.abandon();
        let deltas_fit = match meta.kind {
            CheckpointKind::Full => true,
            CheckpointKind::Merged => !self.chain.is_empty(),
            CheckpointKind::Delta => !self.chain.is_empty() && self.chain.len() <= DELTAS_MAX,
        };
        let goes_back =
            self.chain.last().is_some_and(|(last, _)| !meta.is_full() && meta.log_offset < last.log_offset);
        if !deltas_fit || goes_back || self.size().saturating_add(meta.size) > self.size_max {
            return false;
        }
        let mut bytes = Vec::new();
        // All at once: a buffer that grows is copied each time. Without so much memory it grows after all, part by part.
        let _ = usize::try_from(meta.size).map(|size| bytes.try_reserve_exact(size));
        self.incoming = Some((meta, bytes));
        true
    }

    /// Takes a part. `Some(true)` when the checkpoint is complete, `None` if it does not fit.
    pub(crate) fn part(&mut self, bytes: &[u8]) -> Option<bool> {
        let (meta, whole) = self.incoming.as_mut()?;
        whole.extend_from_slice(bytes);
        let missing = meta.size.checked_sub(whole.len() as u64)?;
        Some(missing == 0)
    }

    /// What is here of the checkpoint that arrives.
    pub(super) fn partial(&self) -> Option<PartialCheckpoint> {
        let (meta, bytes) = self.incoming.as_ref()?;
        Some(PartialCheckpoint { meta: meta.clone(), bytes: bytes.len() as u64 })
    }

    /// The checkpoint that arrives.
    pub(crate) fn arriving(&self) -> Option<&CheckpointMeta> {
        self.incoming.as_ref().map(|(meta, _)| meta)
    }

    /// Adds the checkpoint that arrived to the chain; a full one replaces the chain, and a merged delta all deltas. Those
    /// that it replaces are the result.
    pub(crate) fn complete(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        let mut replaced = Vec::new();
        if let Some((meta, bytes)) = self.incoming.take() {
            let kept = match meta.kind {
                CheckpointKind::Full => 0,
                CheckpointKind::Merged => 1,
                CheckpointKind::Delta => self.chain.len(),
            };
            replaced = self.chain.split_off(kept.min(self.chain.len()));
            self.chain_size = self.chain.iter().map(|(meta, _)| meta.size).sum::<u64>() + meta.size;
            self.chain.push((meta, bytes.into()));
        }
        replaced.into_iter().map(|(_, bytes)| bytes)
    }

    /// All of them, for the one that frees them.
    pub(crate) fn into_bytes(self) -> impl Iterator<Item = Bytes> {
        let incoming = self.incoming.into_iter().map(|(_, bytes)| bytes.into());
        self.chain.into_iter().map(|(_, bytes)| bytes).chain(incoming)
    }

    /// Drops a checkpoint that arrived incompletely.
    pub(crate) fn abandon(&mut self) {
        self.incoming = None;
    }

    /// I9 of docs/protocol.md.
    pub(super) fn invariants(&self, log_end: u64) -> Result<(), BrokenInvariant> {
        holds!("I9", self.chain.len() <= 1 + DELTAS_MAX && self.size() <= self.size_max);
        holds!("I9", self.chain_size == self.chain.iter().map(|(meta, _)| meta.size).sum::<u64>());
        let mut covered = 0;
        for (index, (meta, bytes)) in self.chain.iter().enumerate() {
            holds!("I9", meta.is_full() == (index == 0) && meta.size == bytes.len() as u64);
            holds!("I9", covered <= meta.log_offset && meta.log_offset <= log_end);
            covered = meta.log_offset;
        }
        holds!("I9", self.incoming.as_ref().is_none_or(|(meta, bytes)| bytes.len() as u64 <= meta.size));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const FIRST: Generation = Generation { count: 1, opener: 1 };
    const SECOND: Generation = Generation { count: 2, opener: 1 };

    #[test]
    fn a_log_is_cut_at_any_offset() {
        for offset in 0..=12 {
            let mut log = Log::default();
            assert!(log.append(FIRST, b"abcde", [1; 8]));
            assert!(log.append(SECOND, b"fghij", [2; 8]));
            log.truncate(offset, [3; 8]);
            let kept: Vec<u8> = log.segments().flat_map(|(_, _, bytes)| bytes.to_vec()).collect();
            let cut = usize::try_from(offset.min(10)).expect("small");
            assert_eq!(log.tag(), if offset < 10 { [2; 8] } else { [3; 8] });
            assert_eq!(kept, b"abcdefghij"[cut..]);
            assert_eq!((log.start(), log.end()), (offset, offset.max(10)));
            let mut at = log.start();
            for (_, start, bytes) in log.segments() {
                assert_eq!(start, at);
                at += bytes.len() as u64;
            }
        }
    }

    #[test]
    fn broken_invariants_are_found_by_their_numbers() {
        let number = |result: Result<(), BrokenInvariant>| result.err().map(|broken| broken.number);
        let mut sent = Sent::default();
        sent.push(false, Bytes::from_static(b"one"));
        assert_eq!(number(sent.invariants()), None);
        sent.charge += 1;
        assert_eq!(number(sent.invariants()), Some("I8"));
        let mut log = Log::default();
        assert!(log.append(SECOND, b"ab", [1; 8]));
        assert_eq!(number(log.invariants(SECOND, true)), None);
        assert_eq!(
            number(log.invariants(FIRST, true)),
            Some("I7"),
            "sealed by a generation that was not promised"
        );
        log.start += 1;
        assert_eq!(number(log.invariants(SECOND, true)), Some("I7"));
        let meta = CheckpointMeta {
            generation: FIRST,
            number: 1,
            kind: CheckpointKind::Full,
            log_offset: 3,
            size: 2,
        };
        let chain = vec![(meta, Bytes::from_static(b"ab"))];
        let checkpoints = Checkpoints { chain, chain_size: 2, ..Checkpoints::default() };
        assert_eq!(number(checkpoints.invariants(3)), None);
        assert_eq!(number(checkpoints.invariants(2)), Some("I9"), "it covers log that is not here");
    }

    #[test]
    fn a_chosen_log_counts_only_when_whole() {
        let mut log = Log::default();
        assert!(log.append(FIRST, b"ab", [1; 8]));
        assert!(log.hold(2, Bytes::from_static(b"cd")));
        assert_eq!((log.end(), log.tag()), (2, [1; 8]));
        log.abandon();
        assert!(!log.choose(SECOND, 1, Bytes::new(), [2; 8]));
        assert!(log.hold(2, Bytes::from_static(b"cd")));
        assert!(log.choose(SECOND, 4, Bytes::from_static(b"e"), [2; 8]));
        assert_eq!((log.end(), log.tag()), (5, [2; 8]));
    }

    #[test]
    fn messages_are_sent_within_credit_and_again_after_a_rewind() {
        let mut sent = Sent::default();
        sent.push(false, Bytes::from_static(b"one"));
        sent.push(true, Bytes::new());
        assert_eq!(sent.next(false), None);
        assert!(sent.next(true).is_some_and(|message| !message.close));
        assert!(!sent.all_sent());
        assert!(sent.next(false).is_some_and(|message| message.close), "it needs no credit");
        assert!(sent.all_sent());
        assert_eq!(sent.next(true), None);
        sent.rewind(0);
        assert!(sent.next(true).is_some());
        sent.truncate(1);
        assert_eq!((sent.start(), sent.end(), sent.charge()), (1, 2, 64));
    }
}
