//! Plans of moves: an operator asks which sessions could move to an edge. What would refuse a move is asked in the order in which it
//! would: first this shard (`moves.rs`), then the other edge (`peers.rs`). Nothing is begun.

use super::{
    SHARD, Shard,
    state::{plans::PlanQuestion, sessions::At},
};
use crate::api::{Destination, FromShard, MovePlan, Now, PlanMoves, Planned, ShardOutput, ShardWireId};
use alloc::{format, string::ToString, vec::Vec};
use marram_session::{
    cell::Seed,
    owner::{Owner, StandbyError},
    trace,
};
use marram_wire::{
    frame::{AskMove, CanMove, Frame, Keep, Reject},
    id::SessionId,
    seal::SessionKeys,
};

impl Shard {
    /// An operator asks which sessions could move.
    pub(super) fn plan_moves(&mut self, now: Now, asked: PlanMoves, out: &mut Vec<ShardOutput>) {
        let PlanMoves { tag, wish } = asked;
        let here = self.sessions.iter().filter(|(_, session)| !session.is_following());
        let plan = |id: SessionId| {
            let why = self.check_move(id, &wish).err().unwrap_or_default();
            let app = self.sessions.get(id).map(|session| session.app().to_string()).unwrap_or_default();
            MovePlan { session: id, app, bytes: self.move_bytes(id, &wish.to), why }
        };
        let plans = here.map(|(id, _)| plan(id)).collect();
        self.plans.add(PlanQuestion::new(now.mono_ns, tag, wish, plans));
        self.plans_due(now, out);
    }

    /// How many bytes of its state a session would be copied with. None if that is not known.
    fn move_bytes(&self, id: SessionId, to: &Destination) -> Option<u64> {
        let session = self.sessions.get(id)?;
        let is_kept = session.placing.is_kept_at(to, &session.owner);
        if is_kept { Some(0) } else { session.owner.state_bytes() }
    }

    /// Asks the other edges, and answers questions to which all is known.
    pub(super) fn plans_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for question in self.plans.iter_mut() {
            while let Some(plan) = question.next() {
                let to = &question.wish.to;
                let owner = self.sessions.get(plan.session).map(|session| &session.owner);
                let Some(owner) = owner else {
                    question.know(plan, "the session ended");
                    continue;
                };
                let wire = self.wires.of_standby(&to.edge, to.shard, plan.session).map(|(wire, _)| wire);
                let Some((wire, channel)) = wire.and_then(|wire| Some((wire, self.wires.open(wire)?))) else {
                    let why = format!("`{to}` is not connected to this edge any more");
                    question.know(plan, &why);
                    continue;
                };
                question.ask((wire, channel), plan);
                // A backup needs no agents of the session's ends before it takes that over.
                let keep = Keep { moves: !question.wish.backup, ..owner.move_frame(channel) };
                out.push(ShardOutput::Send { wire, frame: AskMove { keep }.into() });
            }
        }
        for (tag, plans) in self.plans.take_over(now.mono_ns) {
            let messages = Planned::messages(tag, plans);
            out.extend(messages.map(|planned| ShardOutput::Control(FromShard::Planned(planned))));
        }
    }

    /// The other edge has answered.
    pub(super) fn plan_answered(&mut self, now: Now, at: At, frame: &Frame, out: &mut Vec<ShardOutput>) {
        let why = match frame {
            Frame::CanMove(_) => "",
            Frame::Reject(reject) => reject.reason.as_str(),
            other => {
                return trace!(
                    SHARD,
                    "ignores {} on wire {}: it was asked about a move",
                    other.name(),
                    at.0.0
                );
            }
        };
        self.plans.answered(at, why);
        self.plans_due(now, out);
    }

    /// The owner's edge asks whether this shard would take a session over.
    pub(super) fn asked_about_move(&self, wire: ShardWireId, keep: &Keep, out: &mut Vec<ShardOutput>) {
        let channel = keep.channel;
        let frame = match self.would_take(wire, keep) {
            Ok(()) => CanMove { channel }.into(),
            Err(StandbyError(code, reason)) => Reject { channel, code, reason }.into(),
        };
        out.push(ShardOutput::Send { wire, frame });
    }

    /// Does all that is done when a session is fed, up to the owner that would stand by for it, and forgets that.
    fn would_take(&self, wire: ShardWireId, keep: &Keep) -> Result<(), StandbyError> {
        let app = self.may_stand_by(wire, keep)?;
        let keys = SessionKeys::derive(&self.secret, keep.session);
        Owner::standby(keys, super::policy(app, &self.config), keep, Seed([0; 32])).map(drop)
    }
}
