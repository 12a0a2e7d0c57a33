//! The phases of an owner, as listings show them, and with the data that only one of them needs.

use super::{follow::Follow, opening::Opening, recordings::Stopped};
use crate::replay::ReplayCursor;
use alloc::boxed::Box;
use bytes::{Bytes, BytesMut};
use marram_wire::codec::{Error, Field};

/// The owner's phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerPhase {
    /// Standing by: fed by the session's owner.
    Following,
    /// Waiting for promises and for what the ends keep.
    Promising,
    /// Waiting for the cell to be started or restored.
    Restoring,
    /// Running the chosen log through the cell.
    Replaying,
    /// Messages flow.
    Running,
    /// A handler was stopped. Before the ends are informed, they send what they keep.
    Recording,
    /// Every end has received everything. The owner waits until the ends are ready to delete the session.
    Finishing,
    /// The cell lives, but no end is linked.
    Detached,
    /// All ends have promised. The backup must confirm the generation before anything leaves under it.
    Confirming,
}

impl OwnerPhase {
    /// In the order of their encoding.
    const ALL: [Self; 9] = [
        Self::Following,
        Self::Promising,
        Self::Restoring,
        Self::Replaying,
        Self::Running,
        Self::Recording,
        Self::Finishing,
        Self::Detached,
        Self::Confirming,
    ];

    /// The phase in listings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Following => "standing by",
            Self::Promising => "opening",
            Self::Restoring => "restoring",
            Self::Replaying => "replaying",
            Self::Running => "running",
            Self::Recording => "recording",
            Self::Finishing => "finishing",
            Self::Detached => "detached",
            Self::Confirming => "waiting for its backup",
        }
    }
}

impl Field for OwnerPhase {
    fn put(&self, out: &mut BytesMut) {
        (*self as u8).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Self::ALL.get(usize::from(u8::take(from)?)).copied().ok_or(Error::Unknown)
    }
}

/// [`OwnerPhase`] with the data that only this phase has: it cannot be used in another one, and is dropped with the
/// phase.
///
/// What an owner was fed ([`super::follow::Follow`]) and the handler of a live cell ([`super::runner::Runner`]) outlive
/// phases: a takeover asks for promises, restores and replays with the fed data, and a handler that was begun while an
/// end was linked may finish when none is.
#[derive(Debug)]
pub(super) enum Phase {
    Following,
    /// The attempt: what arrived of the ends' logs and checkpoints.
    Promising(Opening),
    Restoring,
    /// The rest of the chosen log. A hot standby replays before a log is chosen, with a cursor of its own.
    Replaying(Box<ReplayCursor>),
    Running,
    /// The stopped handler, which is reported to the ends when the recording is complete.
    Recording(Stopped),
    Finishing,
    Detached,
    Confirming,
}

impl Phase {
    /// The phase in listings and traces.
    pub(super) fn public(&self) -> OwnerPhase {
        match self {
            Self::Following => OwnerPhase::Following,
            Self::Promising(_) => OwnerPhase::Promising,
            Self::Restoring => OwnerPhase::Restoring,
            Self::Replaying(_) => OwnerPhase::Replaying,
            Self::Running => OwnerPhase::Running,
            Self::Recording(_) => OwnerPhase::Recording,
            Self::Finishing => OwnerPhase::Finishing,
            Self::Detached => OwnerPhase::Detached,
            Self::Confirming => OwnerPhase::Confirming,
        }
    }

    /// Bytes that the phase's data holds in memory.
    pub(super) fn held_bytes(&self) -> u64 {
        match self {
            Self::Promising(opening) => opening.held_bytes(),
            Self::Replaying(cursor) => cursor.held_bytes(),
            _ => 0,
        }
    }
}

/// The replay that an owner is in: of the phase, or that of a standby before a log is chosen.
pub(super) fn replay_of<'a>(
    phase: &'a mut Phase,
    follow: &'a mut Option<Box<Follow>>,
) -> Option<&'a mut ReplayCursor> {
    match phase {
        Phase::Replaying(cursor) => Some(cursor),
        _ => follow.as_mut().and_then(|follow| follow.replay()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_encoded_in_their_order() {
        for (number, phase) in (0..).zip(OwnerPhase::ALL) {
            let mut bytes = BytesMut::new();
            phase.put(&mut bytes);
            assert_eq!(bytes[..], [number]);
            assert_eq!(OwnerPhase::take(&mut bytes.freeze()), Ok(phase));
        }
        assert!(OwnerPhase::take(&mut Bytes::from_static(&[9])).is_err());
    }
}
