//! Copies that an edge keeps of sessions which it has handed over to their backups (docs/protocol-epochs.md, "Going over to the
//! backup"). The new owner has no backup at first, so that a copy is worth keeping; later it keeps a draining edge from stopping.

use super::{SHARD, Shard, state::sessions::Session};
use crate::api::{Now, ShardOutput, ShardWireId};
use alloc::{string::ToString, vec::Vec};
use marram_session::{
    owner::{EpochRelease, OwnerPhase},
    trace,
};
use marram_wire::{
    frame::{Code, ForgetCopy},
    id::{Generation, SessionId},
};

impl Shard {
    /// Tells the edge that handed a session over that its copy is not needed, once this edge has a backup for the session or may run
    /// it alone. While it runs, that backup has confirmed its generation.
    pub(super) fn release_giver(&mut self, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.owner.phase() != OwnerPhase::Running {
            return;
        }
        debug_assert!(match session.owner.epoch_release() {
            EpochRelease::Held => false,
            EpochRelease::Confirmed => session.placing.has_ready_backup(&session.owner),
            EpochRelease::Alone => true,
        });
        let (wire, generation) = (session.taken_from.take(), session.owner.generation());
        self.tell_giver(id, (wire, generation), out);
    }

    /// A session that was handed over is kept where it went, or by the backup there.
    pub(super) fn forget_copy(&mut self, now: Now, forget: &ForgetCopy, out: &mut Vec<ShardOutput>) {
        let ForgetCopy { session: id, generation } = *forget;
        let is_older = |session: &Session| session.owner.generation() < generation;
        if !self.sessions.get(id).is_some_and(|session| !session.is_following() && is_older(session)) {
            return trace!(SHARD, "keeps {id}: there is no copy of an older generation");
        }
        self.with_owner(now, id, out, |owner, effects| {
            owner.step_down(Code::Superseded, "the session is kept where it went".to_string(), effects);
        });
    }

    /// Tells the edge that handed this session over that its copy is not needed. If the wire broke, the copy stays until the linger time
    /// is over.
    pub(super) fn tell_giver(
        &self,
        session: SessionId,
        (wire, generation): (Option<ShardWireId>, Generation),
        out: &mut Vec<ShardOutput>,
    ) {
        let is_up = |wire: &ShardWireId| self.peers.as_ref().is_some_and(|peers| peers.has(*wire));
        if let Some(wire) = wire.filter(is_up) {
            out.push(ShardOutput::Send { wire, frame: ForgetCopy { session, generation }.into() });
        }
    }
}
