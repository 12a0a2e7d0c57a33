//! Restores simulated cells: gathers the parts of checkpoints as they arrive, and opens each checkpoint, when it is whole, on the
//! state to which those before it led.
//!
//! ```text
//! Part, Part --take--> whole --open--> List: first, last state --> Cell::load
//!                                       '-- a standby's next checkpoint goes on from here
//! ```

use super::{
    APART, DELTA, FULL,
    memory::{self, PAGES},
};
use bytes::Bytes;
use marram_session::cell::SealedCheckpoint;
use marram_shard::api::CellError;
use marram_wire::{
    frame::{CheckpointKind, CheckpointMeta, Code},
    header::{self, Header},
    id::{Generation, ImageHash, SessionId},
    seal::SessionKeys,
};
use std::collections::VecDeque;

/// Identifies a checkpoint.
type Name = (Generation, u32);

/// A checkpoint that cannot be used.
pub(super) fn tampered(reason: &str) -> CellError {
    CellError { code: Code::Tampered, reason: reason.into() }
}

/// A cell whose checkpoints are arriving.
#[derive(Clone, Debug)]
pub(crate) struct Restoring {
    pub(crate) session: SessionId,
    image: ImageHash,
    pub(super) keys: SessionKeys,
    /// Those that are still to come, in order: the parts have no names, so only the sizes tell
    /// where one ends.
    pub(super) expected: VecDeque<CheckpointMeta>,
    /// Parts of the first expected checkpoint.
    pub(super) arriving: Vec<u8>,
    /// Checkpoints that have arrived.
    checkpoints: Vec<SealedCheckpoint>,
    /// What was restored before: of a standby.
    before: Option<List>,
}

/// A cell that was restored, with what more checkpoints may follow on.
#[derive(Clone, Debug)]
pub(super) struct Restored {
    session: SessionId,
    image: ImageHash,
    keys: SessionKeys,
    list: List,
}

/// What a list of checkpoints leads to.
#[derive(Clone, Debug)]
struct List {
    /// The first one, on which merged ones build, and the last one, each with the state to which it leads.
    first: (Name, Vec<u8>),
    last: (Name, Vec<u8>),
    /// The state on which the cell's own merged ones would build.
    full: Vec<u8>,
    count: usize,
    #[cfg(feature = "wasm")]
    twin_parts: Vec<Bytes>,
}

impl Restoring {
    /// No checkpoint has arrived.
    pub(crate) fn new(
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        expected: Vec<CheckpointMeta>,
    ) -> Self {
        let (expected, arriving, checkpoints) = (expected.into(), Vec::new(), Vec::new());
        Self { session, image, keys, expected, arriving, checkpoints, before: None }
    }

    /// The next checkpoint of a cell that was restored is on its way.
    pub(super) fn after(restored: Restored, meta: CheckpointMeta) -> Self {
        let Restored { session, image, keys, list } = restored;
        Self { before: Some(list), ..Self::new(session, image, keys, vec![meta]) }
    }

    /// How many checkpoints lead to the state.
    pub(crate) fn count(&self) -> usize {
        self.before.as_ref().map_or(0, |before| before.count) + self.checkpoints.len()
    }

    /// Takes a part; true when all parts have arrived.
    pub(super) fn take(&mut self, bytes: &[u8]) -> bool {
        self.arriving.extend_from_slice(bytes);
        let arrived = self.arriving.len() as u64;
        if let Some(meta) = self.expected.pop_front_if(|meta| meta.size == arrived) {
            let bytes = std::mem::take(&mut self.arriving).into();
            if meta.kind == CheckpointKind::Merged {
                self.checkpoints.truncate(usize::from(self.before.is_none()));
                self.before.iter_mut().for_each(List::merge);
            }
            self.checkpoints.push(SealedCheckpoint { meta, bytes });
        }
        self.expected.is_empty()
    }

    /// Opens them, each on the one before it. Checks what each header says against what the owner announced (`expected`), so that a
    /// checkpoint in the wrong place is refused as a real one would be.
    pub(super) fn open(self) -> Result<(Restored, Box<Header>), CellError> {
        let Self { session, image, keys, checkpoints, before: mut list, .. } = self;
        let mut last = None;
        for SealedCheckpoint { meta, bytes } in checkpoints {
            let plain = keys.seal(meta.generation).open_checkpoint(meta.number, &bytes);
            let plain = plain.map_err(|error| tampered(&error.to_string()))?;
            let (header, sections) =
                header::split(plain.into()).map_err(|error| tampered(&error.to_string()))?;
            let fits = header.session == session
                && header.image == image
                && (header.generation, header.number) == (meta.generation, meta.number)
                && header.log_offset == meta.log_offset;
            if !fits {
                return Err(tampered("a checkpoint is not the one that its place names"));
            }
            list = Some(List::add(list, (&meta, &header), &sections).map_err(tampered)?);
            last = Some(header);
        }
        let (Some(list), Some(header)) = (list, last) else { return Err(tampered("no checkpoint")) };
        Ok((Restored { session, image, keys, list }, Box::new(header)))
    }
}

impl Restored {
    pub(super) fn state(&self) -> Vec<u8> {
        self.list.last.1.clone()
    }

    /// The state of the last full checkpoint, for merged deltas.
    pub(super) fn full(&self) -> Option<Vec<u8>> {
        Some(self.list.full.clone())
    }

    #[cfg(feature = "wasm")]
    pub(super) fn twin_parts(&self) -> &[Bytes] {
        &self.list.twin_parts
    }
}

impl List {
    /// A merged checkpoint replaces all but the first one.
    fn merge(&mut self) {
        (self.last, self.count) = (self.first.clone(), 1);
        #[cfg(feature = "wasm")]
        self.twin_parts.truncate(1);
    }

    /// Adds the next checkpoint, whose base must be the last one.
    fn add(
        before: Option<Self>,
        (meta, header): (&CheckpointMeta, &Header),
        sections: &Bytes,
    ) -> Result<Self, &'static str> {
        let base = before.as_ref().map(|list| (list.last.0, &list.last.1[..]));
        let named = (header.base_generation, header.base_number);
        if !meta.is_full() && base.is_none_or(|(name, _)| name != named) {
            return Err("a checkpoint is not the one that its place names");
        }
        let state = apply(base.map(|(_, state)| state), sections)?;
        let last = ((header.generation, header.number), state);
        #[cfg_attr(not(feature = "wasm"), expect(unused_mut, reason = "only a twin's part is added"))]
        let mut list = match before {
            Some(before) => Self { last, count: before.count + 1, ..before },
            None => Self {
                full: full_of(sections).unwrap_or(&last.1).to_vec(),
                first: last.clone(),
                last,
                count: 1,
                #[cfg(feature = "wasm")]
                twin_parts: Vec::new(),
            },
        };
        #[cfg(feature = "wasm")]
        list.twin_parts.push(sections.clone());
        Ok(list)
    }
}

/// What was copied for a checkpoint, by fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copied {
    /// The state.
    pub(crate) state: [u8; 8],
    /// The state on which it builds, if it is a delta.
    pub(crate) on: Option<[u8; 8]>,
}

/// Identifies the state that a delta builds on.
pub(super) fn fingerprint(state: &[u8]) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&blake3::hash(state).as_bytes()[..8]);
    bytes
}

/// Opens one checkpoint on the state before it. Fails rather than to guess: a wrong state would
/// show up much later, as a contradiction of the oracle's.
pub(super) fn apply(base: Option<&[u8]>, sections: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (kind, rest) = sections.split_first().ok_or("an empty checkpoint")?;
    let (len, rest) = rest.split_first_chunk::<8>().ok_or("a short checkpoint")?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| "a large checkpoint")?;
    match (*kind, base) {
        (FULL | APART, None) => Ok(rest.get(..len).ok_or("a short checkpoint")?.to_vec()),
        (PAGES, Some(base)) => {
            memory::advance(base, rest.get(..len).ok_or("short pages")?).ok_or("pages on another state")
        }
        (DELTA, Some(base)) => {
            let (wanted, delta) = rest.split_first_chunk::<8>().ok_or("a short delta")?;
            if *wanted != fingerprint(base) {
                return Err("a delta on another state");
            }
            let mut base = base.to_vec();
            base.resize(len, 0);
            base.iter_mut().zip(delta).for_each(|(byte, change)| *byte ^= change);
            Ok(base)
        }
        _ => Err("a full checkpoint on another, or a delta on nothing"),
    }
}

/// The state of the full checkpoint that one apart names.
fn full_of(sections: &[u8]) -> Option<&[u8]> {
    let (_, parts) = sections.split_first().filter(|(kind, _)| **kind == APART)?;
    let (_, parts) = split_part(parts)?;
    Some(split_part(parts)?.0)
}

/// Splits off bytes behind their length.
fn split_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}
