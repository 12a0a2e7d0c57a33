//! Copies of sessions at other edges that are not needed any more: what has to be said to which edge (`ForgetCopy`), until that edge has
//! certainly got it (docs/protocol-epochs.md, "Going over to the backup"). Knows neither sessions nor sockets.
//!
//! ```text
//! added -> sent on a wire -> a heartbeat that was sent later on that wire is answered -> removed
//!             ^                        |
//!             '-- the wire has broken, and the next one to that edge is up
//! ```

use crate::api::ShardWireId;
use alloc::{collections::BTreeMap, vec::Vec};
use marram_session::agent::Target;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::ForgetCopy, id::SessionId};

/// Limit of the copies in this table. For a further one the frame is sent once.
pub const UNNEEDED_MAX: usize = 4_096;

/// A copy that is not needed any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnneededCopy {
    /// The shard that has it.
    pub(crate) at: Target,
    /// What to say there.
    pub(crate) frame: ForgetCopy,
    /// When the copy ends by itself, by this edge's clock.
    pub(crate) until_ns: u64,
}

/// Where and when a frame was sent last.
type Sent = (ShardWireId, u64);

/// The copies whose edges may not have got the frame yet.
#[derive(Debug, Default)]
pub(crate) struct UnneededCopies {
    copies: BTreeMap<(Target, SessionId), (UnneededCopy, Option<Sent>)>,
}

impl UnneededCopies {
    /// A copy is not needed any more. The frame is sent on this wire now, if there is one.
    pub(super) fn add(&mut self, now_ns: u64, copy: UnneededCopy, wire: Option<ShardWireId>) {
        if self.copies.len() >= UNNEEDED_MAX {
            self.copies.retain(|_, (copy, _)| now_ns < copy.until_ns);
        }
        if self.copies.len() < UNNEEDED_MAX {
            let sent = wire.map(|wire| (wire, now_ns));
            self.copies.insert((copy.at, copy.frame.session), (copy, sent));
        }
    }

    /// A new wire to this shard is up: what is sent on it now.
    pub(super) fn again(&mut self, now_ns: u64, at: Target, wire: ShardWireId) -> Vec<ForgetCopy> {
        self.copies.retain(|_, (copy, _)| now_ns < copy.until_ns);
        let there = self.copies.values_mut().filter(|(copy, _)| copy.at == at);
        let send = |(copy, sent): &mut (UnneededCopy, Option<Sent>)| {
            *sent = Some((wire, now_ns));
            copy.frame.clone()
        };
        there.map(send).collect()
    }

    /// A heartbeat of this time was answered on a wire: all that was sent there before has arrived.
    pub(super) fn answered(&mut self, wire: ShardWireId, stamp_ns: u64) {
        let has_arrived =
            |sent: &Option<Sent>| sent.is_some_and(|(on, at_ns)| on == wire && at_ns < stamp_ns);
        self.copies.retain(|_, (_, sent)| !has_arrived(sent));
    }

    /// This edge is not dialled any more; its number may soon be another edge's.
    pub(super) fn forget(&mut self, edge: u16) {
        self.copies.retain(|(at, _), _| at.edge != edge);
    }

    /// Checks I51 of docs/protocol.md, as far as it concerns copies that are not needed.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I51", self.copies.len() <= UNNEEDED_MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::id::Generation;

    const AT: Target = Target { edge: 1, shard: 2 };

    fn frame(session: u16) -> ForgetCopy {
        let mut id = [0; 16];
        id[..2].copy_from_slice(&session.to_le_bytes());
        ForgetCopy { session: SessionId(id), generation: Generation::NONE }
    }

    fn copy(session: u16) -> UnneededCopy {
        UnneededCopy { at: AT, frame: frame(session), until_ns: 1_000 }
    }

    #[test]
    fn it_is_said_again_on_each_new_wire_until_a_later_heartbeat_is_answered() {
        let mut copies = UnneededCopies::default();
        let [first, second, third] = [1, 2, 3].map(ShardWireId);
        copies.add(10, copy(1), Some(first));
        copies.add(20, copy(2), None);
        // A heartbeat that was sent before the frame, or on another wire, says nothing about it.
        copies.answered(first, 10);
        copies.answered(second, 15);
        assert_eq!(copies.again(30, Target { shard: 3, ..AT }, second), []);
        assert_eq!(copies.again(30, AT, second), [frame(1), frame(2)]);
        // The answer to a heartbeat of the former wire.
        copies.answered(first, 35);
        assert_eq!(copies.again(40, AT, third), [frame(1), frame(2)]);
        copies.answered(third, 41);
        assert_eq!(copies.again(50, AT, first), []);
    }

    #[test]
    fn it_is_not_said_for_ever() {
        let mut copies = UnneededCopies::default();
        copies.add(10, copy(1), None);
        copies.forget(AT.edge + 1);
        assert_eq!(copies.again(999, AT, ShardWireId(1)), [frame(1)]);
        assert_eq!(copies.again(1_000, AT, ShardWireId(2)), [], "the copy has ended by itself");
        for session in 0..=u16::try_from(UNNEEDED_MAX).unwrap() {
            copies.add(10, copy(session), None);
            assert!(copies.invariants().is_ok());
        }
        assert_eq!(copies.again(20, AT, ShardWireId(3)).len(), UNNEEDED_MAX);
        copies.add(1_000, copy(7), None);
        copies.forget(AT.edge);
        assert_eq!(copies.copies.len(), 0);
    }
}
