//! Opening a generation: promises first, then what the ends keep (docs/protocol.md, "Opening a generation").

use super::{
    Now, Owner, OwnerEffect, OwnerPhase, about::About, end_state::Message, ends::Ends, opening::Opening,
    phase::Phase,
};
use crate::{credit::MessageCredit, trace};
use alloc::vec::Vec;
use marram_wire::{
    codec::Last,
    frame::{Channel, CheckpointMeta, Code, Frame, Input, Live, Promise, Promised},
    id::{Generation, HostId, Port},
    limits::{CHECKPOINTS_SIZE_MAX, DELTAS_MAX, INPUTS_MAX, LOG_SIZE_MAX, RETAINED_MAX, charge},
    seal::LOG_OFFSET_MAX,
};

/// One attempt to own the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt<'a> {
    /// The generation: unique to this attempt.
    pub generation: Generation,
    /// The attempt's channels to the ends.
    pub channels: &'a [(Port, Channel)],
    /// The agents of the ends.
    pub hosts: &'a [(Port, HostId)],
    /// Whether an end that does not know the session may accept it as a new one.
    pub fresh: bool,
    /// Whether the requester has proved that it has the session's key.
    pub proven: bool,
    /// Whether an operator has moved the session to this shard.
    pub assigned: bool,
    /// The verified identity of the agent of the client's end, if it was verified.
    pub client_identity: Option<&'a str>,
}

impl Owner {
    /// Asks every end for its promise. From here on nothing is released until all have promised and a log is chosen
    /// **\[M\]**.
    pub fn open(&mut self, now: Now, attempt: &Attempt<'_>, out: &mut Vec<OwnerEffect>) {
        // Before the generation changes: a standby asks as the owner of the generation that fed it.
        self.begin_takeover(out);
        self.about.renew(attempt.generation);
        self.enter(Phase::Promising(Opening::new(self.ends.len())), "this generation was requested");
        self.totals.generations += 1;
        self.recordings.give_up("a new generation of the session is being opened", out);
        self.recordings.renew();
        let is_fed = self.follow.is_some();
        let has_cell = self.live.is_some() && !is_fed;
        let is_fresh = self.log.end() == 0 && !self.state.is_opened;
        // A keeper goes on only from the very history that it was fed.
        self.replicas.renew(&self.about, has_cell || is_fresh, out);
        self.backup_changed(out);
        self.checkpointer.interrupt(has_cell);
        self.keep.iter_mut().for_each(|keep| keep.lose_copy());
        self.replicas.pages_lost();
        // A cell of an attempt that failed before a log was chosen: it may stand at a position that is not chosen now.
        if self.live.is_none() {
            self.remove_cell(out);
        }
        for side in self.ends.iter_mut() {
            side.ask(of_port(attempt.channels, side.port), is_fed);
            if let Some(host) = of_port(attempt.hosts, side.port) {
                side.host = host;
            }
            let identity = attempt.client_identity.filter(|_| side.port == Port::CLIENT);
            side.identity = identity.map(Into::into);
        }
        self.witness.ask(&self.about, attempt.fresh, out);
        let log_end = self.log.end();
        let live = self.live.map(|live| (live, log_end));
        ask_ends((&self.ends, &self.about), attempt, live, self.epochs.was_promoted(), out);
        // A shared cell has no end to wait for.
        if self.ends.decide_nothing() {
            self.choose_if_complete(now, out);
        }
    }

    /// An end has promised this generation, and says what it keeps.
    pub(super) fn promised(
        &mut self,
        now: Now,
        index: usize,
        promised: Promised,
        out: &mut Vec<OwnerEffect>,
    ) {
        let asked_live = self.live.is_some();
        trace!(
            self.context(),
            "the end at index {index} promised: log {}..{}, messages {}..{}, {} received, live {}",
            promised.log_start,
            promised.log_end,
            promised.sent_start,
            promised.sent_end,
            promised.received,
            promised.live
        );
        let side = &mut self.ends[index];
        let log = promised.log_end.checked_sub(promised.log_start);
        let sound = (asked_live || !promised.live)
            && log.is_some_and(|size| size <= LOG_SIZE_MAX)
            && promised.log_end < LOG_OFFSET_MAX
            && promised.sent_start <= promised.sent_end
            && is_chain(&promised.checkpoints, promised.checkpoints_max);
        // All that follows relies on these bounds: sizes of buffers, offsets that are subtracted, and one answer an
        // end.
        if !sound || side.promised.is_some() {
            return self.terminate(Code::Protocol, "an end's promise is inconsistent".into(), out);
        }
        if let Some(session_ns) = promised.session_ns {
            self.runner.tell_clock(now, side.port, session_ns);
        }
        if self.follow.is_some() && !promised.live {
            // The end has promised another generation since: the fed state is useless.
            return self.restart_from_ends("an end has promised another generation since", out);
        }
        let taken = self.about.policy.checkpoints_max;
        let kept = total_size(&promised.checkpoints);
        (side.checkpoint_bytes, side.checkpoints_max) = (kept, promised.checkpoints_max.min(taken));
        if kept > taken {
            let reason = alloc::format!(
                "its checkpoints have {kept} bytes, and this edge takes {taken}: raise limits.checkpoints of the edge"
            );
            return self.abort_attempt(Code::Busy, &reason, out);
        }
        let side = &mut self.ends[index];
        let has_past = promised.log_end > 0 || !promised.checkpoints.is_empty();
        side.next = promised.sent_start;
        // An end that keeps nothing does not promise again.
        side.kept_from = Some(promised.sent_start).filter(|_| self.about.is_protected_for_now());
        // What was consumed before, on an earlier channel or as a standby, was not sent on the initial credit of this
        // channel.
        (side.credited_from, side.input_credit) = (promised.sent_end, MessageCredit::default());
        side.promised = Some(promised);
        if has_past {
            self.witness.need(&self.about, out);
        }
        // An owner with a live cell needs no checkpoints: it asks for them in another generation, if it cannot
        // continue.
        if self.live.is_none()
            && self.ends.have_all_promised()
            && let Phase::Promising(opening) = &mut self.phase
            && !opening.gather(self.about.image, &self.ends, out)
        {
            return self.tampered("a part of the log is missing at both ends", out);
        }
        self.choose_if_complete(now, out);
    }

    /// An end sends the log and the checkpoints that it announced, while other ends may not have promised yet. It
    /// decides nothing before all have.
    pub(super) fn arrived(&mut self, now: Now, index: usize, frame: Frame, out: &mut Vec<OwnerEffect>) {
        let Phase::Promising(opening) = &mut self.phase else { return };
        let side = &self.ends[index];
        let (taken, reason) = match frame {
            Frame::LogPart(part) => {
                let seal = self.about.keys.seal(part.generation);
                (opening.take_log(index, &part, &seal, side).then_some(true), "an end's log has a gap")
            }
            Frame::CheckpointBegin(begin) => (
                opening.begin_checkpoint(index, &begin.meta, side).then_some(false),
                "an end sends a checkpoint that it did not announce",
            ),
            Frame::CheckpointPart(part) => (
                opening.take_part(index, part.bytes, &self.ends, out),
                "an end sends more of a checkpoint than it announced",
            ),
            _ => (None, "an end sends what it did not announce"),
        };
        match taken {
            None => self.terminate(Code::Protocol, reason.into(), out),
            Some(true) => self.choose_if_complete(now, out),
            Some(false) => {}
        }
    }

    /// A message from an end: kept while promises are awaited, otherwise for the cell.
    pub(super) fn input(&mut self, now: Now, index: usize, input: Input, out: &mut Vec<OwnerEffect>) {
        let promising = self.phase() == OwnerPhase::Promising;
        let side = &mut self.ends[index];
        // A standby may have messages that the end has deleted since, because a checkpoint covers them, beside those it
        // still has.
        let others = if side.fed { 2 * RETAINED_MAX } else { 0 };
        let bound = others + RETAINED_MAX + INPUTS_MAX + charge(0);
        // Until a log is chosen, an end sends what it announced and no more.
        let announced = side.promised.as_ref().is_some_and(|it| !promising || side.next < it.sent_end);
        if side.inputs_charge + charge(input.payload.len()) > bound || !announced {
            return self.terminate(Code::Protocol, "an end sends more than it was granted".into(), out);
        }
        side.push_input(Message { close: input.close, payload: input.payload });
        if promising {
            return self.choose_if_complete(now, out);
        }
        if input.ack > 0 {
            self.credit(now, index, input.ack, 0, out);
        }
        self.pump(now, out);
    }

    /// Chooses a log once every end has promised and sent what it announced, and the witness has answered if it was
    /// asked **\[M\]**.
    pub(super) fn choose_if_complete(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if let Phase::Promising(opening) = &self.phase
            && opening.is_complete(&self.ends)
            && !self.witness.is_awaited()
        {
            self.choose(now, out);
        }
    }
}

/// What is given for this port.
fn of_port<T: Copy>(given: &[(Port, T)], port: Port) -> Option<T> {
    given.iter().find(|(at, _)| *at == port).map(|(_, value)| *value)
}

/// Asks every linked end for its promise. `live` is the generation of this owner's cell that lives, and the end of its
/// log.
fn ask_ends(
    (ends, about): (&Ends, &About),
    attempt: &Attempt<'_>,
    live: Option<(Generation, u64)>,
    was_promoted: bool,
    out: &mut Vec<OwnerEffect>,
) {
    for side in ends.iter() {
        let Some(channel) = side.channel else { continue };
        let peer = ends.iter().find(|other| other.port != side.port).map(|other| other.host);
        let server = about.policy.server.clone().filter(|_| side.port == Port::SERVER);
        let (took, produced) = (side.fed_end(), side.produced);
        let origin = about.origin.clone().filter(|_| attempt.fresh && side.port == Port::SERVER);
        let promise = Promise {
            channel,
            session: about.session,
            generation: about.generation(),
            app: about.policy.app.clone(),
            image: about.image,
            server: server.unwrap_or_default(),
            peer,
            key: about.keys.resume(),
            fresh: attempt.fresh,
            proven: attempt.proven,
            keeps: about.policy.keeps,
            shared: about.policy.shared,
            assigned: attempt.assigned,
            linger_ms: about.policy.linger_ms,
            live: live.map(|(generation, log_end)| Live { generation, took, produced, log_end }),
            origin,
            promoted: Last(was_promoted.then_some(true)),
        };
        out.push(OwnerEffect::Send(side.port, promise.into()));
    }
}

/// Whether this is a valid list of checkpoints: a full one and its deltas, within the limits.
pub(super) fn is_chain(checkpoints: &[CheckpointMeta], size_max: u64) -> bool {
    checkpoints.len() <= DELTAS_MAX + 1
        && size_max <= CHECKPOINTS_SIZE_MAX
        && total_size(checkpoints) <= size_max
        && checkpoints.first().is_none_or(CheckpointMeta::is_full)
}

/// Bytes of all of them.
fn total_size(checkpoints: &[CheckpointMeta]) -> u64 {
    checkpoints.iter().map(|meta| meta.size).fold(0, u64::saturating_add)
}
