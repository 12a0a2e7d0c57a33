//! Carries out the owners' effects over this shard's wires and executor.

use super::{
    Session, Shard,
    report::note,
    state::{sessions::At, wires::Wires},
    witness,
};
use crate::api::{FromShard, Note, NoteLevel, Now, Placed, ShardOutput};
use alloc::{string::String, string::ToString, vec::Vec};
use bytes::Bytes;
use marram_session::{
    cell::{CellId, CellImage, Seed},
    owner::{KeeperId, OwnerEffect, OwnerPhase},
};
use marram_wire::{
    frame::{Code, Ended, Frame, Reject},
    id::{Port, SessionId},
};

/// Effects that call owners again or end the session: carried out when all others are, in the order of the fields.
#[derive(Default)]
struct Later {
    lost: Vec<(KeeperId, Code, String)>,
    takes_over: bool,
    over: Option<(Code, String)>,
    joins: Option<(CellId, CellImage, Seed)>,
    again: Option<u64>,
    /// Clients whose ends are to be asked, with what they have promised.
    asks: Vec<(SessionId, u64)>,
}

/// Tells operators that such a checkpoint is not taken, and why.
fn not_taken(id: SessionId, what: &str, reason: &str, out: &mut Vec<ShardOutput>) {
    let text = alloc::format!("no {what} of session {id} is taken: {reason}");
    note(NoteLevel::Warning, None, text, out);
}

impl Shard {
    /// Carries out the effects of one call of a session's owner. The list is kept for the next call.
    pub(super) fn perform(
        &mut self,
        now: Now,
        id: SessionId,
        mut effects: Vec<OwnerEffect>,
        out: &mut Vec<ShardOutput>,
    ) {
        let mut later = Later::default();
        for effect in effects.drain(..) {
            // Frames of one call leave in the order of its effects: an end relies on it (docs/protocol.md, chapter 3).
            self.perform_one(now, id, effect, &mut later, out);
        }
        // From here on owners may be called again, each with this list.
        self.effects = effects;
        // Before anything that may admit another recovery.
        self.sessions.recount(id);
        self.count_clients(now, id);
        for (keeper, code, reason) in later.lost {
            self.keeper_lost(now, id, (keeper, code, &reason), out);
        }
        if later.takes_over && later.over.is_none() {
            // The attempt ends in this function too, with the rest of what is below.
            return self.take_handed_over(now, id, out);
        }
        if let Some((code, reason)) = later.over {
            // Nothing else matters to a session that is over.
            return self.forget(now, id, code, &reason, out);
        }
        if let Some((cell, image, seed)) = later.joins
            && let Some(session) = self.sessions.get(id)
        {
            // If the cell is there, this answers at once; so the owner must have finished the previous step.
            let (app, place) = (session.app().to_string(), session.place);
            self.join_shared(now, &app, cell, (image, seed, place), out);
        }
        if let Some(count) = later.again {
            // The new attempt ends in this function too, with the rest of what is below.
            return self.again(now, id, count, out);
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.owner.phase() == OwnerPhase::Detached {
            tell_former(
                session,
                &self.wires,
                (Code::Waiting, "the new attempt to own the session failed"),
                out,
            );
        }
        let (moves, was_taken) = (session.moving.is_some(), session.former_owner.is_some());
        let is_copied = moves || session.placing.next().is_some();
        if let Some((asked_ns, stood)) = session.recovered() {
            self.counters.recovered(now.mono_ns.saturating_sub(asked_ns), stood);
        }
        self.sessions.rearm(now.mono_ns, id);
        if is_copied {
            self.copy_waits(now, id);
        }
        if moves {
            self.move_on(now, id, out);
        }
        // Last, since both look at the phase that the session is in now.
        self.place_if_chosen(now, id, out);
        self.list_standby(id, out);
        for known in later.asks {
            self.ask_known_client(now, id, known, out);
        }
        if was_taken {
            self.release_copy(now, id, out);
        }
    }

    /// Carries out one effect, or notes it in `later`. Effects that only the executor answers are sent on as they are.
    fn perform_one(
        &mut self,
        now: Now,
        id: SessionId,
        effect: OwnerEffect,
        later: &mut Later,
        out: &mut Vec<ShardOutput>,
    ) {
        match effect {
            OwnerEffect::Send(port, frame) => self.send(id, port, frame, out),
            OwnerEffect::Start(image, seed) => {
                let cell = self.sessions.name_cell(id);
                let Some(session) = self.sessions.get(id) else { return };
                // The executor knows a shared cell by an id of its own, and no member of it.
                if session.owner.policy().shared && !session.owner.is_shared_cell() {
                    later.joins = Some((cell, image, seed));
                } else {
                    let (app, place) = (session.app().to_string(), session.place);
                    out.push(ShardOutput::Start { cell, image, seed, app, session: Some(id), place });
                }
            }
            OwnerEffect::Restore(image, checkpoints) => {
                let cell = self.sessions.name_cell(id);
                let Some(session) = self.sessions.get(id) else { return };
                let (keys, app) = (session.owner.keys().clone(), session.app().to_string());
                // Only a standby's cell can be advanced by later checkpoints.
                let (place, stands_by, session) = (session.place, session.feeder.is_some(), id);
                let restore =
                    ShardOutput::Restore { cell, session, image, keys, checkpoints, stands_by, app, place };
                out.push(restore);
            }
            OwnerEffect::Advance(cell, meta) => out.push(ShardOutput::Advance { cell, meta }),
            OwnerEffect::ToKeeper(keeper, frame) => self.send_keeper(id, keeper, frame, out),
            OwnerEffect::EpochDue => self.epoch_due(id),
            // `KeeperLost` follows, which ends the replica.
            OwnerEffect::StandbySlow(_) => self.counters.standbys_slow += 1,
            OwnerEffect::KeeperLost(keeper, code, reason) => later.lost.push((keeper, code, reason)),
            OwnerEffect::ToFeeder(frame) => {
                let feeder = self.sessions.get(id).and_then(|session| session.feeder);
                out.extend(feeder.map(|(wire, _)| ShardOutput::Send { wire, frame }));
            }
            // A member runs in the shared cell, which decides whose turn it is.
            OwnerEffect::Run(run) => match self.shared.of_member(run.cell) {
                Some(cell) => {
                    self.with_shared(now, cell, out, |shared, effects| shared.run(now, run, effects));
                }
                None => {
                    self.counters.runs += 1;
                    out.push(ShardOutput::Run(run));
                }
            },
            OwnerEffect::Part(bytes) => {
                let cell = self.sessions.get(id).and_then(|session| session.owner.cell());
                out.extend(cell.map(|cell| ShardOutput::Part { cell, bytes }));
            }
            OwnerEffect::Prepare(cell, base) => out.push(ShardOutput::Prepare { cell, base }),
            OwnerEffect::Copy(cell, base) => out.push(ShardOutput::Copy { cell, base }),
            OwnerEffect::Checkpoint(cell, header, seal) => {
                out.push(ShardOutput::Checkpoint { cell, header, seal });
            }
            OwnerEffect::NoCheckpoint(reason) => not_taken(id, "checkpoint", &reason, out),
            OwnerEffect::MergesDeltas(reason) => not_taken(id, "full checkpoint", &reason, out),
            OwnerEffect::Hash(cell) => out.push(ShardOutput::Hash { cell }),
            OwnerEffect::Recorded(request, Ok(gathered)) => {
                let (edge, unix_ns) = (self.config.edge.clone(), now.unix_ns);
                out.push(ShardOutput::Record { request, gathered, edge, unix_ns });
            }
            OwnerEffect::Recorded(request, Err(why)) => self.recorded(id, request.tag, Err(why), out),
            OwnerEffect::Remove(cell) => self.remove_cell(now, cell, out),
            OwnerEffect::TakeOver => later.takes_over = true,
            OwnerEffect::AskWitness(generation) => witness::ask(&mut self.counters, id, generation, out),
            OwnerEffect::Report(seen) => witness::report(&mut self.counters, id, seen, out),
            OwnerEffect::WitnessMissing => witness::missing(&mut self.counters, id, out),
            OwnerEffect::AskPort(client, promised) => later.asks.push((client, promised)),
            OwnerEffect::ConnectionOver(name, code, reason) => {
                self.connection_over(id, &name, (code, &reason), out);
            }
            OwnerEffect::Expelled(client, reason) => self.client_expelled(client, &reason, out),
            OwnerEffect::Reopen(count) => later.again = Some(count),
            OwnerEffect::Done(code, reason) => later.over = Some((code, reason)),
        }
    }

    /// Sends an owner's frame to the end at this port. If the end is not linked, the frame is dropped: the owner sends
    /// what counts again in its next generation.
    fn send(&mut self, id: SessionId, port: Port, mut frame: Frame, out: &mut Vec<ShardOutput>) {
        let Some((wire, _)) = self.sessions.get(id).and_then(|session| session.link(port)) else {
            return;
        };
        // Nothing follows on the channel. Its number is free, and what the end still sends there is stale.
        let last = matches!(frame, Frame::Reject(_) | Frame::Ended(_) | Frame::Failed(_));
        if self.config.sabotage > 0 && self.counters.is_sabotaged(&frame, self.config.sabotage) {
            sabotage(&mut frame);
        }
        out.push(ShardOutput::Send { wire, frame });
        if last {
            self.unlink(id, port);
        }
    }

    /// Forgets the channel of a session's end.
    pub(super) fn unlink(&mut self, session: SessionId, port: Port) -> Option<At> {
        let link = self.sessions.get_mut(session)?.relink(port, None)?;
        self.wires.unbind(link);
        Some(link)
    }

    /// A cell of a session is of no use any more. Its id is never used again, so a late answer about it is ignored.
    fn remove_cell(&mut self, now: Now, cell: CellId, out: &mut Vec<ShardOutput>) {
        self.sessions.remove_cell(cell);
        if self.shared.has_member(cell) {
            self.leave_shared(now, cell, out);
        } else {
            out.push(ShardOutput::Remove { cell });
        }
    }

    /// The owner has ended the session.
    fn forget(&mut self, now: Now, id: SessionId, code: Code, reason: &str, out: &mut Vec<ShardOutput>) {
        if let Some(session) = self.sessions.get_mut(id) {
            tell_former(session, &self.wires, (code, reason), out);
        }
        if self.is_shared_cell(id) {
            self.cell_changed(id);
        }
        let Some(mut session) = self.sessions.remove(id) else { return };
        // The owner has told its ends. What they still send finds no channel.
        session.links().for_each(|(_, at)| self.wires.unbind(at));
        if code == Code::Finished {
            let copy = session.take_unneeded_copy(now.mono_ns);
            self.send_forget_copy(now, copy, out);
        }
        self.leave_groups(now, id);
        if session.placing.limit_ends() {
            self.moves.copies.forget(id);
        }
        if let Some(moving) = session.moving.take() {
            self.moved(now, id, &moving, (code, reason), out);
        }
        if session.placing.is_listed() {
            out.push(ShardOutput::Control(FromShard::Placed(Placed { session: id, at: None })));
        }
        (0..session.counts).for_each(|_| self.tenants.went(session.place, session.app()));
        let (totals, was_standby) = (session.owner.totals(), session.is_following());
        for cell in session.into_cells() {
            self.remove_cell(now, cell, out);
        }
        // A shard's totals never go back, so those of past sessions are kept.
        self.counters.add(&totals);
        if was_standby {
            // Its owner is elsewhere: the session has not ended.
            let text = alloc::format!("no longer stands by: {reason}");
            return note(NoteLevel::Debug, Some(id), text, out);
        }
        self.counters.count_end(code);
        // What the app's owner or the operator should look at is a warning. A retryable end is ordinary: the session
        // goes on elsewhere.
        let level = match code {
            Code::Guest | Code::Tampered | Code::Protocol | Code::WrongKey => NoteLevel::Warning,
            Code::Finished => NoteLevel::Debug,
            _ => NoteLevel::Info,
        };
        let (text, guest) = (alloc::format!("{code:?}: {reason}"), code == Code::Guest);
        out.push(ShardOutput::Control(FromShard::Note(Note { level, session: Some(id), guest, text })));
    }
}

/// Tells ends that have not answered the last attempt, and still have an owner on another channel, that this owner is
/// gone.
fn tell_former(
    session: &mut Session,
    wires: &Wires,
    (code, reason): (Code, &str),
    out: &mut Vec<ShardOutput>,
) {
    for (_, wire, channel) in core::mem::take(&mut session.former) {
        if wires.has(wire) {
            let reason = reason.to_string();
            let frame = if code.is_retryable() {
                Reject { channel, code, reason }.into()
            } else {
                Ended { channel, code, reason }.into()
            };
            out.push(ShardOutput::Send { wire, frame });
        }
    }
}

/// Flips one bit of an output, so that a demo can show that its check detects it.
fn sabotage(frame: &mut Frame) {
    if let Frame::Output(output) = frame {
        let mut payload = output.payload.to_vec();
        let middle = payload.len() / 2;
        payload[middle] ^= 1;
        output.payload = Bytes::from(payload);
    }
}
