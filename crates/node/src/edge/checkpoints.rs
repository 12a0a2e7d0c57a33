//! Converts sealed bytes that an end kept to what the sandbox can put into a cell. The end may be a client's: nothing is
//! used before its seal was verified, and nothing that belongs to another session, image or position is used at all.
//!
//! ```text
//! sealed parts ─▶ Opener (verify, decrypt) ─▶ header::front ─▶ Header::check ─▶ CheckpointReader ─▶ Filling
//! full, delta, delta, ...: one after the other                session, image,    pages of the cell
//!                                                             base, offset
//! ```
//!
//! Large ones are opened on the worker's thread, so that 512 MiB do not stop the shard. Pages may be
//! copied into the new cell before the last part is verified, but the cell does not run before: a
//! checkpoint that turns out to be altered costs time and has no effect.

use bytes::{Bytes, BytesMut};
use marram_sandbox::{CellStartError, CheckpointReader, Decoded, Filling, RestoreError};
use marram_shard::api::CellError;
use marram_wire::{
    frame::{CheckpointMeta, Code},
    header::{self, Header},
    id::{ImageHash, SessionId},
    seal::{Opener, SessionKeys},
};
use std::collections::VecDeque;

/// Opened checkpoints.
#[derive(Debug)]
pub(super) struct Restored {
    /// The session's state in the last checkpoint.
    pub(super) header: Box<Header>,
    /// The state of the cell, except for the parts that were taken before.
    pub(super) decoded: Decoded,
}

/// Arriving checkpoints, opened and decoded as their bytes come: a full one and its deltas, or the next one of a standby cell.
#[derive(Debug)]
pub(super) struct Arriving {
    session: SessionId,
    /// The image that they must belong to.
    pub(super) image: ImageHash,
    keys: SessionKeys,
    /// Those that are not complete; the first one is being opened.
    expected: VecDeque<CheckpointMeta>,
    /// Whether the full one may name another full one, that of the ends.
    may_be_apart: bool,
    /// Of the checkpoint that is arriving now; none between two.
    opener: Option<Opener>,
    front: Front,
    /// The header of the checkpoint that the next one builds on. A merged delta follows the full one directly: an end has
    /// dropped what was between.
    last: Option<Box<Header>>,
    /// Takes the pages of all of them.
    reading: CheckpointReader,
}

/// The header of the checkpoint that is being opened.
#[derive(Debug, Default)]
enum Front {
    /// The bytes of it that have arrived.
    #[default]
    Missing,
    Part(BytesMut),
    /// It is complete and is the expected one.
    Here(Box<Header>),
}

impl Arriving {
    /// For a full checkpoint and its deltas.
    pub(super) fn new(
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        expected: Vec<CheckpointMeta>,
    ) -> Self {
        let (expected, reading) = (expected.into(), CheckpointReader::opened());
        let (opener, front, last) = (None, Front::Missing, None);
        Self { session, image, keys, expected, may_be_apart: false, opener, front, last, reading }
    }

    /// For a standby, whose full checkpoint may be one that is none of the ends' list.
    pub(super) fn may_be_apart(self) -> Self {
        Self { may_be_apart: true, ..self }
    }

    /// For a delta on the checkpoint with this header.
    /// A standby cell has its state already, so the header of that state stands for the chain
    /// before.
    pub(super) fn next(
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        (meta, on): (CheckpointMeta, Header),
    ) -> Self {
        Self { last: Some(Box::new(on)), ..Self::new(session, image, keys, vec![meta]) }
    }

    /// Bytes of the checkpoints that are not complete.
    pub(super) fn missing(&self) -> u64 {
        self.expected.iter().map(|meta| meta.size).fold(0, u64::saturating_add)
    }

    /// Takes the next bytes, which are all of one checkpoint. True when nothing is missing.
    ///
    /// # Errors
    /// If a checkpoint was altered, or is not the expected one. Then further bytes are of no use.
    pub(super) fn push(&mut self, sealed: &[u8]) -> Result<bool, CellError> {
        let Some(meta) = self.expected.front() else {
            return Err(tampered("more arrives than was announced"));
        };
        let begin = || self.keys.seal(meta.generation).opener(meta.number, meta.size);
        let opener = self.opener.get_or_insert_with(begin);
        let mut texts = Vec::new();
        opener.push(sealed, |text| texts.push(Bytes::from(text))).map_err(tampered)?;
        texts.into_iter().try_for_each(|text| self.text(text))?;
        let Some(opener) = self.opener.take_if(|opener| opener.is_whole()) else { return Ok(false) };
        opener.finish().map_err(tampered)?;
        let Front::Here(header) = std::mem::take(&mut self.front) else {
            return Err(tampered("it ends within its header"));
        };
        self.reading.end().map_err(|error| unrestorable(&error))?;
        self.expected.pop_front();
        self.last = Some(header);
        Ok(self.expected.is_empty())
    }

    /// Takes decrypted bytes.
    fn text(&mut self, text: Bytes) -> Result<(), CellError> {
        let text = match std::mem::take(&mut self.front) {
            Front::Here(header) => {
                self.front = Front::Here(header);
                return self.reading.push(text).map_err(|error| unrestorable(&error));
            }
            Front::Missing => text,
            Front::Part(mut part) => {
                part.extend_from_slice(&text);
                part.freeze()
            }
        };
        // The header is of variable size, and may end in any of the decrypted pieces.
        let Some((header, body)) = header::front(text.clone()).map_err(tampered)? else {
            self.front = Front::Part(text.into());
            return Ok(());
        };
        let meta = self.expected.front().ok_or_else(|| tampered("more arrives than was announced"))?;
        let before = (self.last.as_deref(), self.may_be_apart);
        header.check(meta, self.session, self.image, before).map_err(tampered)?;
        self.front = Front::Here(Box::new(header));
        self.reading.push(body).map_err(|error| unrestorable(&error))
    }

    /// The decoded parts, if they are at least `least` bytes. The caller must put them into the cell's memory before later parts.
    pub(super) fn take(&mut self, least: usize) -> Option<Vec<Filling>> {
        (self.reading.ready() >= least).then(|| self.reading.take())
    }

    /// The parts that were not taken, when nothing is missing.
    ///
    /// # Errors
    /// If a checkpoint is missing.
    pub(super) fn finish(self) -> Result<Box<Restored>, CellError> {
        let header = self.last.filter(|_| self.expected.is_empty());
        let header = header.ok_or_else(|| tampered("a checkpoint is missing"))?;
        let decoded = self.reading.finish().map_err(|error| unrestorable(&error))?;
        Ok(Box::new(Restored { header, decoded }))
    }
}

/// Final: asking another edge would show it the same bytes.
fn tampered(reason: impl ToString) -> CellError {
    CellError { code: Code::Tampered, reason: reason.to_string() }
}

/// The error for a session if its cell could not be started.
pub(super) fn unstartable(error: &CellStartError) -> CellError {
    let code = match error {
        // Another edge may hold the key.
        CellStartError::Image { .. } | CellStartError::Key { .. } => Code::UnknownImage,
        CellStartError::Pool(_) | CellStartError::Taken(_) | CellStartError::Slot(_) => Code::Busy,
    };
    CellError { code, reason: error.to_string() }
}

/// The seal was valid, so an edge sealed what cannot be decoded: an edge of another build, or a faulty one. A retry elsewhere
/// helps only if this machine was full.
pub(super) fn unrestorable(error: &RestoreError) -> CellError {
    match error {
        RestoreError::Start(error) => unstartable(error),
        // The code is that of the first error; the text says that the cell is lost as well.
        RestoreError::Lost(why) => CellError { code: unrestorable(why).code, reason: error.to_string() },
        other => CellError { code: Code::Tampered, reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_session::cell::SealedCheckpoint;
    use marram_wire::{frame::CheckpointKind, header::Many, id::Generation, seal::DomainSecret};

    const SESSION: SessionId = SessionId([1; 16]);
    const IMAGE: ImageHash = ImageHash([2; 32]);
    const FIRST: Generation = Generation { count: 1, opener: 9 };
    const SECOND: Generation = Generation { count: 2, opener: 4 };

    fn keys() -> SessionKeys {
        SessionKeys::derive(&DomainSecret::from_material(b"a domain"), SESSION)
    }

    /// A cell's state in the sandbox's format: memory of one page with this number, and nothing else.
    fn body(number: u32, base: u32) -> Vec<u8> {
        let number = u8::try_from(number).expect("small");
        let section = |kind: u8, payload: &[u8]| {
            let (page_size, len) = (4096_u32.to_le_bytes(), (payload.len() as u64).to_le_bytes());
            [&[kind][..], &[0; 8], &page_size, &len, payload].concat()
        };
        let count = |count: u32| count.to_le_bytes();
        let page =
            [&count(1)[..], &count(0), &count(1), &[1], &count(4096 | 1 << 31), &[number; 4096]].concat();
        let is_delta = base > 0;
        let base = if is_delta { [u8::try_from(base).expect("small"); 16] } else { [IMAGE.0[0]; 16] };
        let body = [
            &IMAGE.0[..],
            &base,
            &[number; 16],
            &[u8::from(is_delta)],
            &section(1, &65_536_u64.to_le_bytes()),
            &section(2, &page),
            &section(3, &count(0)),
            &section(4, &count(0)),
            &section(5, &[0; 40]),
        ];
        let body = body.concat();
        [b"MRCK", &1_u32.to_le_bytes()[..], &(body.len() as u64).to_le_bytes(), &[0; 16], &body].concat()
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
            paused: Many::default(),
            clients: Many::default(),
            servers: Many::default(),
        };
        let log_offset = header.log_offset;
        change(&mut header);
        let plain = header::join(&header, &body(number, base.1));
        let bytes: Bytes = keys().seal(generation).seal_checkpoint(number, plain).into();
        let kind = if base.0 == Generation::NONE { CheckpointKind::Full } else { CheckpointKind::Delta };
        let size = bytes.len() as u64;
        SealedCheckpoint { meta: CheckpointMeta { generation, number, kind, log_offset, size }, bytes }
    }

    fn full() -> SealedCheckpoint {
        sealed((FIRST, 1), (Generation::NONE, 0), |_| {})
    }

    /// Passes the announced bytes, in pieces.
    fn open(checkpoints: Vec<SealedCheckpoint>, piece: usize) -> Result<Box<Restored>, CellError> {
        let metas = checkpoints.iter().map(|checkpoint| checkpoint.meta.clone()).collect();
        let mut arriving = Arriving::new(SESSION, IMAGE, keys(), metas);
        let mut whole = false;
        for bytes in checkpoints.iter().flat_map(|checkpoint| checkpoint.bytes.chunks(piece)) {
            assert!(!whole, "said to be whole before all of it is there");
            whole = arriving.push(bytes)?;
        }
        assert!(whole, "all of it was handed over");
        arriving.finish()
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
        for piece in [1, 50, 100_000] {
            let opened = open(vec![full(), delta.clone(), later.clone()], piece).expect("untouched");
            assert_eq!((opened.header.generation, opened.header.number), (SECOND, 1));
            assert_eq!(opened.decoded.image(), IMAGE);
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
        promoted.meta.kind = CheckpointKind::Full;
        let foreign = sealed((FIRST, 1), (Generation::NONE, 0), |header| header.session = SessionId([7; 16]));
        let other = sealed((FIRST, 1), (Generation::NONE, 0), |header| header.image = ImageHash([7; 32]));
        let skipping = sealed((FIRST, 3), (FIRST, 2), |_| {});
        for (checkpoints, says) in [
            (vec![flipped], "altered"),
            (vec![full(), renamed], "does not cover what was announced"),
            (vec![promoted], "does not build on"),
            (vec![delta()], "does not cover what was announced"),
            (vec![full(), skipping], "does not build on"),
            (vec![full(), full()], "does not cover what was announced"),
            (vec![foreign], "another session's"),
            (vec![other], "another image"),
        ] {
            let reason = refusal(checkpoints);
            assert!(reason.contains(says), "{reason}");
        }
    }

    #[test]
    fn a_delta_opens_on_what_the_cell_has_and_on_nothing_else() {
        let has = |checkpoint: SealedCheckpoint| *open(vec![checkpoint], 50).expect("opens").header;
        let next = |on: &Header, delta: &SealedCheckpoint| {
            let mut arriving = Arriving::next(SESSION, IMAGE, keys(), (delta.meta.clone(), on.clone()));
            assert!(arriving.push(&delta.bytes)?, "all of it was handed over");
            arriving.finish()
        };
        let delta = sealed((FIRST, 2), (FIRST, 1), |_| {});
        let later = sealed((SECOND, 1), (FIRST, 2), |_| {});
        let first = has(full());
        let opened = next(&first, &delta).expect("it is the next one");
        let second = *opened.header;
        assert_eq!(next(&second, &later).expect("it is the next one").header.generation, SECOND);
        for (on, delta, says) in [
            (&first, &later, "does not build on"),
            (&second, &delta, "does not build on"),
            (&first, &full(), "does not cover what was announced"),
        ] {
            let error = next(on, delta).expect_err("refused");
            assert!(error.code == Code::Tampered && error.reason.contains(says), "{error:?}");
        }
    }

    #[test]
    fn what_is_given_out_early_is_what_the_seal_vouches_for() {
        let list = [full(), sealed((FIRST, 2), (FIRST, 1), |_| {})];
        let metas = list.iter().map(|one| one.meta.clone()).collect();
        let mut arriving = Arriving::new(SESSION, IMAGE, keys(), metas);
        assert!(arriving.take(1).is_none());
        assert_eq!(arriving.push(&list[0].bytes), Ok(false));
        assert_eq!(arriving.take(4097).map(|it| it.len()), None);
        assert_eq!(arriving.take(4096).map(|it| it.len()), Some(1));
        let (front, rest) = list[1].bytes.split_at(list[1].bytes.len() - 1);
        assert_eq!(arriving.push(front), Ok(false));
        assert!(arriving.take(1).is_none(), "a chunk that is not whole is not known to be unaltered");
        assert_eq!(arriving.push(rest), Ok(true));
        assert!(arriving.finish().is_ok());
    }
}
