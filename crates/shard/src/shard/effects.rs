//! Carries out the owners' effects over this shard's wires and executor.

use super::{Shard, index};
use crate::api::{FromShard, Note, NoteLevel, Now, ShardOutput};
use alloc::{string::ToString, vec::Vec};
use bytes::Bytes;
use marram_session::{
    cell::CellId,
    owner::{OwnerEffect, OwnerPhase},
};
use marram_wire::{
    frame::{Code, Ended, Frame, Reject},
    id::{Port, SessionId},
};

impl Shard {
    pub(super) fn perform(
        &mut self,
        now: Now,
        id: SessionId,
        mut effects: Vec<OwnerEffect>,
        out: &mut Vec<ShardOutput>,
    ) {
        let mut over = None;
        let mut again = None;
        let mut joins = None;
        let mut lost = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                OwnerEffect::Send(port, frame) => self.send(id, port, frame, out),
                OwnerEffect::Start(image, seed) => {
                    let cell = self.name_cell(id);
                    if self.sessions.get(&id).is_some_and(|session| session.owner.policy().shared) {
                        joins = Some((cell, image, seed));
                    } else {
                        let (app, place) = (self.cells_app(id), self.place_of(id));
                        let session = Some(id);
                        out.push(ShardOutput::Start { cell, image, seed, app, session, place });
                    }
                }
                OwnerEffect::Restore(image, checkpoints) => {
                    let cell = self.name_cell(id);
                    if let Some(session) = self.sessions.get(&id) {
                        let keys = session.owner.keys().clone();
                        let (place, stands_by) = (session.place, session.feeder.is_some());
                        let (session, app) = (id, self.cells_app(id));
                        let restore = ShardOutput::Restore {
                            cell,
                            session,
                            image,
                            keys,
                            checkpoints,
                            stands_by,
                            app,
                            place,
                        };
                        out.push(restore);
                    }
                }
                OwnerEffect::Advance(cell, meta) => out.push(ShardOutput::Advance { cell, meta }),
                OwnerEffect::ToKeeper(keeper, frame) => self.send_keeper(id, keeper, frame, out),
                OwnerEffect::StandbySlow(_) => self.counters.standbys_slow += 1,
                OwnerEffect::KeeperLost(keeper, code, reason) => lost.push((keeper, code, reason)),
                OwnerEffect::ToFeeder(frame) => {
                    let feeder = self.sessions.get(&id).and_then(|session| session.feeder);
                    out.extend(feeder.map(|(wire, _)| ShardOutput::Send { wire, frame }));
                }
                OwnerEffect::Run(run) if self.shared.has_member(run.cell) => self.run_shared(now, run, out),
                OwnerEffect::Run(run) => {
                    self.counters.runs += 1;
                    out.push(ShardOutput::Run(run));
                }
                OwnerEffect::Part(bytes) => {
                    let cell = self.sessions.get(&id).and_then(|session| session.owner.cell());
                    out.extend(cell.map(|cell| ShardOutput::Part { cell, bytes }));
                }
                OwnerEffect::Copy(cell, base) => out.push(ShardOutput::Copy { cell, base }),
                OwnerEffect::Checkpoint(cell, header, seal) => {
                    out.push(ShardOutput::Checkpoint { cell, header, seal })
                }
                OwnerEffect::Hash(cell) => out.push(ShardOutput::Hash { cell }),
                OwnerEffect::Recorded(request, Ok(gathered)) => {
                    let (edge, unix_ns) = (self.config.edge.clone(), now.unix_ns);
                    out.push(ShardOutput::Record { request, gathered, edge, unix_ns });
                }
                OwnerEffect::Recorded(request, Err(why)) => self.recorded(id, request.tag, Err(why), out),
                OwnerEffect::Remove(cell) => self.remove_cell(now, cell, out),
                OwnerEffect::AskWitness(generation) => self.ask_witness(id, generation, out),
                OwnerEffect::Report(seen) => self.report(id, seen, out),
                OwnerEffect::WitnessMissing => self.witness_missing(id, out),
                OwnerEffect::Reopen(count) => again = Some(count),
                OwnerEffect::Done(code, reason) => over = Some((code, reason)),
            }
        }
        self.effects = effects;
        self.recount(id);
        for (keeper, code, reason) in lost {
            self.keeper_lost(now, id, (keeper, code, &reason), out);
        }
        if let Some((code, reason)) = over {
            return self.forget(now, id, code, &reason, out);
        }
        if let Some((cell, image, seed)) = joins
            && let Some(app) = self.sessions.get(&id).map(|session| session.owner.policy().app.clone())
        {
            // If the cell is there, this answers at once; so the owner must have finished the previous step.
            let place = self.place_of(id);
            self.join_shared(now, &app, cell, (image, seed, place), out);
        }
        if let Some(count) = again {
            return self.again(now, id, count, out);
        }
        if self.sessions.get(&id).is_some_and(|session| session.owner.phase() == OwnerPhase::Detached) {
            self.tell_former(id, Code::Superseded, "the new attempt to own the session failed", out);
        }
        self.count_recovery(now, id);
        self.rearm(now, id);
        self.place_if_chosen(now, id, out);
        self.list_standby(id, out);
    }

    /// Tells ends that have not answered the last attempt, and still have an owner on another channel, that this owner is gone.
    fn tell_former(&mut self, id: SessionId, code: Code, reason: &str, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        for (_, wire, channel) in core::mem::take(&mut session.former) {
            if self.wires.contains_key(&wire) {
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

    /// Counts an attempt that has just led to a release, unless the session begins with it.
    fn count_recovery(&mut self, now: Now, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.owner.recovering() {
            return;
        }
        if let Some(asked_ns) = session.asked_ns.take()
            && !session.fresh
        {
            self.counters.recoveries += 1;
            self.counters.takeovers += u64::from(core::mem::take(&mut session.stood));
            self.counters.recovery_us += now.mono_ns.saturating_sub(asked_ns) / 1_000;
        }
    }

    fn name_cell(&mut self, id: SessionId) -> CellId {
        self.cells_made += 1;
        let cell = CellId(self.cells_made);
        self.cells.insert(cell, id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.owner.name_cell(cell);
            session.cells.push(cell);
        }
        cell
    }

    fn send(&mut self, id: SessionId, port: Port, mut frame: Frame, out: &mut Vec<ShardOutput>) {
        let Some((wire, _)) = self.sessions.get(&id).and_then(|session| session.links[index(port)]) else {
            return;
        };
        let last = matches!(frame, Frame::Reject(_) | Frame::Ended(_) | Frame::Failed(_));
        if self.config.sabotage > 0 {
            self.sabotage(&mut frame);
        }
        out.push(ShardOutput::Send { wire, frame });
        if last {
            self.unlink(id, port);
        }
    }

    /// Flips one bit of one output, so that a demo can show that its check detects it.
    fn sabotage(&mut self, frame: &mut Frame) {
        if let Frame::Output(output) = frame
            && !output.payload.is_empty()
        {
            self.counters.sabotage_seen += 1;
            if self.counters.sabotage_seen == self.config.sabotage {
                let mut payload = output.payload.to_vec();
                let middle = payload.len() / 2;
                payload[middle] ^= 1;
                output.payload = Bytes::from(payload);
            }
        }
    }

    fn remove_cell(&mut self, now: Now, cell: CellId, out: &mut Vec<ShardOutput>) {
        let session = self.cells.remove(&cell).and_then(|id| self.sessions.get_mut(&id));
        if let Some(session) = session {
            session.cells.retain(|other| *other != cell);
        }
        if self.shared.has_member(cell) {
            self.leave_shared(now, cell, out);
        } else {
            out.push(ShardOutput::Remove { cell });
        }
    }

    /// The owner has ended the session.
    fn forget(&mut self, now: Now, id: SessionId, code: Code, reason: &str, out: &mut Vec<ShardOutput>) {
        self.tell_former(id, code, reason, out);
        self.unlink(id, Port::CLIENT);
        self.unlink(id, Port::SERVER);
        let Some(session) = self.sessions.remove(&id) else { return };
        Self::unlist_standby(id, &session, out);
        if session.counted {
            self.tenants.went(session.place, &session.owner.policy().app);
        }
        self.recoveries -= usize::from(session.recovering);
        if let Some(timer_ns) = session.timer_ns {
            self.timers.remove(&(timer_ns, id));
        }
        for cell in session.cells {
            self.remove_cell(now, cell, out);
        }
        self.counters.add(&session.owner.totals());
        if session.owner.phase() == OwnerPhase::Following {
            return self.note(
                NoteLevel::Debug,
                Some(id),
                alloc::format!("no longer stands by: {reason}"),
                out,
            );
        }
        self.counters.count_end(code);
        let level = match code {
            Code::Guest | Code::Tampered | Code::Protocol | Code::WrongKey => NoteLevel::Warning,
            Code::Finished => NoteLevel::Debug,
            _ => NoteLevel::Info,
        };
        let (text, guest) = (alloc::format!("{code:?}: {reason}"), code == Code::Guest);
        out.push(ShardOutput::Control(FromShard::Note(Note { level, session: Some(id), guest, text })));
    }
}
