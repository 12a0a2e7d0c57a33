//! Copies that an edge keeps of sessions which it has handed over to their backups (docs/protocol-epochs.md, "Going over to the
//! backup"). The new owner has no backup at first, so that a copy is worth keeping; later it keeps a draining edge from stopping.

use super::{
    SHARD, Shard,
    state::{sessions::Session, unneeded::UnneededCopy},
};
use crate::api::{Now, ShardOutput, ShardWireId};
use alloc::{string::ToString, vec::Vec};
use marram_session::{
    owner::{EpochRelease, OwnerPhase},
    trace,
};
use marram_wire::{
    frame::{Code, ForgetCopy},
    id::SessionId,
};

impl Shard {
    /// The former owner of a session, which handed it over to this edge, may drop its copy once this edge has a backup for the session
    /// or may run it alone. While it runs, that backup has confirmed its generation.
    pub(super) fn release_copy(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let has_another = match session.owner.epoch_release() {
            EpochRelease::Held => false,
            EpochRelease::Confirmed | EpochRelease::Ahead => session.placing.has_ready_backup(&session.owner),
            EpochRelease::Alone => true,
        };
        let is_safe = has_another && session.owner.phase() == OwnerPhase::Running;
        if !is_safe {
            return;
        }
        let copy = session.take_unneeded_copy(now.mono_ns);
        self.send_forget_copy(now, copy, out);
    }

    /// A session that was handed over is kept where it went, or by the backup there.
    pub(super) fn forget_copy(
        &mut self,
        now: Now,
        (wire, forget): (ShardWireId, &ForgetCopy),
        out: &mut Vec<ShardOutput>,
    ) {
        let ForgetCopy { session: id, generation } = *forget;
        let is_older = |session: &Session| session.owner.generation() < generation;
        if !self.sessions.get(id).is_some_and(|session| !session.is_following() && is_older(session)) {
            return trace!(SHARD, "keeps {id}: there is no copy of an older generation");
        }
        let edge = self.wires.get(wire).and_then(|wire| wire.role.as_ref()).map(|role| role.name.clone());
        edge.into_iter().for_each(|edge| self.taken_by(id, &edge));
        self.with_owner(now, id, out, |owner, effects| {
            owner.step_down(Code::Superseded, "the session is kept where it went".to_string(), effects);
        });
    }

    /// Tells the former owner that its copy is not needed: now, if there is a wire to it, and again on each new wire until it has certainly
    /// got that.
    pub(super) fn send_forget_copy(
        &mut self,
        now: Now,
        copy: Option<UnneededCopy>,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some((peers, copy)) = self.peers.as_mut().zip(copy) else { return };
        let frame = copy.frame.clone();
        if let Some(wire) = peers.unneeded(now.mono_ns, copy) {
            out.push(ShardOutput::Send { wire, frame: frame.into() });
        }
    }
}
