//! From sealed bytes that an end kept to sections that the sandbox can restore. An end may be a client's: nothing in here
//! is believed before the seal has been checked, and nothing of another session, image or place afterwards.

use bytes::Bytes;
use marram_edge::api::CellError;
use marram_wire::{
    frame::{CheckpointMeta, Code},
    header::{self, Header},
    id::{ImageHash, SessionId},
    seal::{Opener, SessionKeys},
};
use std::collections::VecDeque;

/// What is made room for at once, in bytes; an end can announce what it does not have.
const ROOM_MAX: u64 = 64 << 20;
/// Bytes of memory that wait for the next large checkpoint: a client waits for every page that has to be cleared first.
const READY_ROOM: usize = 12 << 20;
/// Checkpoints below this many bytes do without.
const READY_ROOM_MIN: u64 = 1 << 20;

/// Room for the next checkpoint that an end sends back.
#[derive(Default)]
pub(super) struct Room(Option<Vec<u8>>);

impl std::fmt::Debug for Room {
    /// Not what was in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Room").field(&self.0.as_ref().map(Vec::capacity)).finish()
    }
}

impl Room {
    /// Lays memory ready, if none is; takes milliseconds.
    pub(super) fn prepare(&mut self) {
        self.0.get_or_insert_with(|| marram_sandbox::warm(READY_ROOM));
    }

    /// Gives the memory back to the machine.
    pub(super) fn give_up(&mut self) {
        self.0 = None;
    }

    /// An empty buffer for `size` bytes, which may be more than there are.
    fn take(&mut self, size: u64) -> Vec<u8> {
        let fits = (READY_ROOM_MIN..=READY_ROOM as u64).contains(&size);
        let ready = if fits { self.0.take() } else { None };
        ready.unwrap_or_else(|| marram_sandbox::roomy(usize::try_from(size.min(ROOM_MAX)).unwrap_or(0)))
    }
}

/// Opened checkpoints: the last one's header, and the sections of each, in order.
#[derive(Debug)]
pub(super) struct Opened {
    /// The session as the last one has it.
    pub(super) header: Box<Header>,
    /// What the sandbox made of each cell.
    pub(super) sections: Vec<Bytes>,
}

/// A full checkpoint and its deltas on their way, or the next one of a cell that stands by, opened as they come.
#[derive(Debug)]
pub(super) struct Arriving {
    session: SessionId,
    /// The image that they must be of.
    pub(super) image: ImageHash,
    keys: SessionKeys,
    /// Those that are not whole; the first one is being opened.
    expected: VecDeque<CheckpointMeta>,
    opener: Option<Opener>,
    sections: Vec<Bytes>,
    /// What the next one builds on.
    last: Option<Header>,
}

impl Arriving {
    /// A full one and its deltas; nothing has arrived.
    pub(super) fn new(
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        expected: Vec<CheckpointMeta>,
    ) -> Self {
        let (expected, sections) = (expected.into(), Vec::new());
        Self { session, image, keys, expected, opener: None, sections, last: None }
    }

    /// A delta on the checkpoint with this header; nothing has arrived.
    pub(super) fn next(
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        (meta, on): (CheckpointMeta, Header),
    ) -> Self {
        Self { last: Some(on), ..Self::new(session, image, keys, vec![meta]) }
    }

    /// Takes the next bytes, all of them of one checkpoint, which may be put into `room`; gives the whole chain out when
    /// nothing is missing.
    ///
    /// # Errors
    /// If a checkpoint was altered, or is not the one that belongs in its place. The rest is of no use then.
    pub(super) fn push(&mut self, sealed: &[u8], room: &mut Room) -> Result<Option<Opened>, CellError> {
        self.take(sealed, room).map_err(|reason| CellError { code: Code::Tampered, reason })?;
        let header = self.last.take_if(|_| self.expected.is_empty());
        let opened =
            |header| Opened { header: Box::new(header), sections: std::mem::take(&mut self.sections) };
        Ok(header.map(opened))
    }

    fn take(&mut self, sealed: &[u8], room: &mut Room) -> Result<(), String> {
        let Some(meta) = self.expected.front() else { return Err("more arrives than was announced".into()) };
        let begin = || self.keys.seal(meta.generation).opener(meta.number, meta.size, room.take(meta.size));
        let opener = self.opener.get_or_insert_with(begin);
        opener.push(sealed).map_err(|error| error.to_string())?;
        if opener.is_whole()
            && let (Some(opener), Some(meta)) = (self.opener.take(), self.expected.pop_front())
        {
            let plain = opener.finish().map_err(|error| error.to_string())?;
            let (header, body) = header::split(plain.into()).map_err(|error| error.to_string())?;
            header.check(&meta, self.session, self.image, self.last.as_ref())?;
            self.sections.push(body);
            self.last = Some(header);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_session::cell::SealedCheckpoint;
    use marram_wire::{header::Many, id::Generation, seal::DomainSecret};

    const SESSION: SessionId = SessionId([1; 16]);
    const IMAGE: ImageHash = ImageHash([2; 32]);
    const FIRST: Generation = Generation { count: 1, opener: 9 };
    const SECOND: Generation = Generation { count: 2, opener: 4 };

    fn keys() -> SessionKeys {
        SessionKeys::derive(&DomainSecret::from_material(b"a domain"), SESSION)
    }

    /// A checkpoint as an edge makes it, after `change`.
    fn sealed(
        (generation, number): (Generation, u32),
        base: (Generation, u32),
        change: impl FnOnce(&mut Header),
    ) -> SealedCheckpoint {
        let mut header = Header {
            session: SESSION,
            image: IMAGE,
            generation,
            number,
            base_generation: base.0,
            base_number: base.1,
            log_offset: u64::from(number) * 100,
            head: [0; 32],
            last_ns: 5,
            timers_set: 0,
            timers: Many::default(),
            ports: Vec::new(),
            tasks: Many::default(),
            locks: Many::default(),
        };
        let log_offset = header.log_offset;
        change(&mut header);
        let plain = header::join(&header, &[u8::try_from(number).expect("small")]);
        let bytes: Bytes = keys().seal(generation).seal_checkpoint(number, &plain).into();
        let full = base.0 == Generation::NONE;
        let size = bytes.len() as u64;
        SealedCheckpoint { meta: CheckpointMeta { generation, number, full, log_offset, size }, bytes }
    }

    fn full() -> SealedCheckpoint {
        sealed((FIRST, 1), (Generation::NONE, 0), |_| {})
    }

    /// Hands over what was announced, in pieces.
    fn open(checkpoints: Vec<SealedCheckpoint>, piece: usize) -> Result<Option<Opened>, CellError> {
        let metas = checkpoints.iter().map(|checkpoint| checkpoint.meta.clone()).collect();
        let mut arriving = Arriving::new(SESSION, IMAGE, keys(), metas);
        let (mut opened, mut room) = (None, Room::default());
        for bytes in checkpoints.iter().flat_map(|checkpoint| checkpoint.bytes.chunks(piece)) {
            assert!(opened.is_none(), "given out before all of it is there");
            opened = arriving.push(bytes, &mut room)?;
        }
        Ok(opened)
    }

    fn refusal(checkpoints: Vec<SealedCheckpoint>) -> String {
        let error = open(checkpoints, 50).expect_err("refused");
        assert_eq!(error.code, Code::Tampered);
        error.reason
    }

    #[test]
    fn a_chain_opens_across_generations() {
        let delta = sealed((FIRST, 2), (FIRST, 1), |_| {});
        let later = sealed((SECOND, 1), (FIRST, 2), |_| {});
        for piece in [1, 50, 1_000] {
            let opened = open(vec![full(), delta.clone(), later.clone()], piece).expect("untouched");
            let opened = opened.expect("all of it was handed over");
            assert_eq!(opened.sections, [&[1u8][..], &[2], &[1]]);
            assert_eq!((opened.header.generation, opened.header.number), (SECOND, 1));
        }
    }

    #[test]
    fn what_an_end_altered_or_exchanged_is_refused() {
        let delta = || sealed((FIRST, 2), (FIRST, 1), |_| {});
        let mut flipped = full();
        let mut bytes = flipped.bytes.to_vec();
        bytes[3] ^= 1;
        flipped.bytes = bytes.into();
        let mut renamed = delta();
        renamed.meta.log_offset += 1;
        let mut promoted = delta();
        promoted.meta.full = true;
        let foreign = sealed((FIRST, 1), (Generation::NONE, 0), |header| header.session = SessionId([7; 16]));
        let other = sealed((FIRST, 1), (Generation::NONE, 0), |header| header.image = ImageHash([7; 32]));
        let skipping = sealed((FIRST, 3), (FIRST, 2), |_| {});
        for (checkpoints, says) in [
            (vec![flipped], "altered"),
            (vec![full(), renamed], "covering something else"),
            (vec![promoted], "builds on another"),
            (vec![delta()], "covering something else"),
            (vec![full(), skipping], "builds on another"),
            (vec![full(), full()], "covering something else"),
            (vec![foreign], "another session's"),
            (vec![other], "another image"),
        ] {
            let reason = refusal(checkpoints);
            assert!(reason.contains(says), "{reason}");
        }
    }

    #[test]
    fn a_delta_opens_on_what_the_cell_has_and_on_nothing_else() {
        let has =
            |checkpoint: SealedCheckpoint| *open(vec![checkpoint], 50).expect("whole").expect("opens").header;
        let next = |on: &Header, delta: &SealedCheckpoint| {
            let mut arriving = Arriving::next(SESSION, IMAGE, keys(), (delta.meta.clone(), on.clone()));
            let opened = arriving.push(&delta.bytes, &mut Room::default());
            opened.map(|opened| opened.expect("all of it was handed over"))
        };
        let delta = sealed((FIRST, 2), (FIRST, 1), |_| {});
        let later = sealed((SECOND, 1), (FIRST, 2), |_| {});
        let first = has(full());
        let opened = next(&first, &delta).expect("it is the next one");
        assert_eq!(opened.sections, [&[2u8][..]]);
        let second = *opened.header;
        assert_eq!(next(&second, &later).expect("it is the next one").header.generation, SECOND);
        for (on, delta, says) in [
            (&first, &later, "builds on another"),
            (&second, &delta, "builds on another"),
            (&first, &full(), "covering something else"),
        ] {
            let error = next(on, delta).expect_err("refused");
            assert!(error.code == Code::Tampered && error.reason.contains(says), "{error:?}");
        }
    }

    #[test]
    fn what_lies_ready_is_for_large_checkpoints_that_fit() {
        let mut room = Room::default();
        room.prepare();
        for size in [100, READY_ROOM as u64 + 1, u64::MAX] {
            assert!(room.take(size).is_empty());
            assert!(room.0.is_some(), "{size}");
        }
        assert!(room.take(READY_ROOM_MIN).capacity() >= READY_ROOM);
        assert!(room.0.is_none());
        assert!(room.take(READY_ROOM_MIN).capacity() < READY_ROOM);
    }
}
