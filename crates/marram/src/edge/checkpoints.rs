//! From sealed bytes that an end kept to sections that the sandbox can restore. An end may be a client's: nothing in here
//! is believed before the seal has been checked, and nothing of another session, image or place afterwards.

use bytes::Bytes;
use marram_edge::api::{CellError, SealedCheckpoint};
use marram_wire::{
    frame::{CheckpointMeta, Code},
    header::{self, Header},
    id::{Generation, ImageHash, SessionId},
    seal::SessionKeys,
};

/// Opened checkpoints: the last one's header, and the sections of each, a full one and its deltas.
#[derive(Debug)]
pub(super) struct Opened {
    /// The session as the last one has it.
    pub(super) header: Box<Header>,
    /// What the sandbox made of each cell.
    pub(super) sections: Vec<Bytes>,
}

fn tampered(reason: impl Into<String>) -> CellError {
    CellError { code: Code::Tampered, reason: reason.into() }
}

/// Opens a full checkpoint and its deltas.
///
/// # Errors
/// If one of them was altered, or is not the one that belongs in its place.
pub(super) fn open(
    session: SessionId,
    image: ImageHash,
    keys: &SessionKeys,
    checkpoints: Vec<SealedCheckpoint>,
) -> Result<Opened, CellError> {
    let mut sections = Vec::with_capacity(checkpoints.len());
    let mut last: Option<Header> = None;
    for SealedCheckpoint { meta, bytes } in checkpoints {
        let plain = keys.seal(meta.generation).open_checkpoint(meta.number, bytes.into());
        let plain = plain.map_err(|error| tampered(error.to_string()))?;
        let (header, body) = header::split(plain.into()).map_err(|error| tampered(error.to_string()))?;
        let base = last.as_ref().map_or((Generation::NONE, 0), |last| (last.generation, last.number));
        check(&header, &meta, session, image, base).map_err(tampered)?;
        sections.push(body);
        last = Some(header);
    }
    let header = last.ok_or_else(|| tampered("there is no checkpoint to restore"))?;
    Ok(Opened { header: Box::new(header), sections })
}

/// Whether a header is for this session, this image and this place in the chain.
fn check(
    header: &Header,
    meta: &CheckpointMeta,
    session: SessionId,
    image: ImageHash,
    base: (Generation, u32),
) -> Result<(), &'static str> {
    if header.session != session {
        return Err("the checkpoint is another session's");
    }
    if header.image != image {
        return Err("the checkpoint is of another image");
    }
    if (header.generation, header.number) != (meta.generation, meta.number) {
        return Err("the checkpoint is another one than it was announced as");
    }
    if header.log_offset != meta.log_offset || meta.full != (base.0 == Generation::NONE) {
        return Err("the checkpoint is announced as covering something else");
    }
    if (header.base_generation, header.base_number) != base {
        return Err("the checkpoint builds on another one than the one before it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::{header::Many, seal::DomainSecret};

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

    fn refusal(checkpoints: Vec<SealedCheckpoint>) -> String {
        let error = open(SESSION, IMAGE, &keys(), checkpoints).expect_err("refused");
        assert_eq!(error.code, Code::Tampered);
        error.reason
    }

    #[test]
    fn a_chain_opens_across_generations() {
        let delta = sealed((FIRST, 2), (FIRST, 1), |_| {});
        let later = sealed((SECOND, 1), (FIRST, 2), |_| {});
        let opened = open(SESSION, IMAGE, &keys(), vec![full(), delta, later]).expect("untouched");
        assert_eq!(opened.sections, [&[1u8][..], &[2], &[1]]);
        assert_eq!((opened.header.generation, opened.header.number), (SECOND, 1));
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
            (vec![], "no checkpoint"),
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
}
