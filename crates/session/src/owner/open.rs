//! Opening a generation: promises first, then what the ends keep (docs/protocol.md, "Opening a generation").

use super::{Now, Owner, OwnerEffect, OwnerPhase, end_state::Message};
use crate::replay::newest;
use crate::trace;
use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Channel, CheckpointMeta, Code, Input, Live, LogPart, Promise, Promised},
    id::{Generation, HostId, Port},
    limits::{CHECKPOINT_SIZE_MAX, DELTAS_MAX, INPUT_WINDOW, LOG_SIZE_MAX, RETAINED_MAX, charge},
    peer::Origin,
    seal::LOG_OFFSET_MAX,
};

/// One attempt to own the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt<'a> {
    /// The generation: unique to this attempt.
    pub generation: Generation,
    /// The attempt's channel to each end, client first.
    pub channels: &'a [Channel],
    /// The agents of the ends, client first.
    pub hosts: &'a [HostId],
    /// Whether an end that does not know the session may accept it as a new one.
    pub fresh: bool,
    /// Whether the requester has proved that it has the session's key.
    pub proven: bool,
    /// Where the client connected, as its agent says, if the session is new.
    pub origin: Option<&'a Origin>,
    /// The verified identity of the agent of the client's end, if it was verified.
    pub client_identity: Option<&'a str>,
}

impl Owner {
    /// Asks every end for its promise. From here on nothing is released until all have promised and a log is chosen **\[M\]**.
    pub fn open(&mut self, attempt: &Attempt<'_>, out: &mut Vec<OwnerEffect>) {
        self.begin_takeover(out);
        self.generation = attempt.generation;
        self.seal = self.keys.seal(attempt.generation);
        self.enter(OwnerPhase::Promising, "this generation was requested");
        self.totals.generations += 1;
        self.give_up_record("a new generation of the session is being opened", out);
        if self.follow.is_none() {
            self.replay = None;
        }
        self.renew_streams(out);
        self.source = None;
        self.early = None;
        self.checkpointer.abandon();
        if self.live.is_none() {
            out.extend(self.cell.take().map(OwnerEffect::Remove));
        }
        for (index, side) in self.sides.iter_mut().enumerate() {
            side.ask(attempt.channels.get(index).copied(), self.follow.is_some());
            if let Some(host) = attempt.hosts.get(index) {
                side.host = *host;
            }
        }
        self.client_identity = attempt.client_identity.map(Into::into);
        self.ask_witness(attempt.fresh, out);
        for index in 0..self.sides.len() {
            let side = &self.sides[index];
            let Some(channel) = side.channel else { continue };
            let peer = self.sides.iter().find(|other| other.port != side.port).map(|other| other.host);
            let server = self.policy.server.clone().filter(|_| side.port == Port::SERVER);
            let (took, log_end) = (side.fed_end(), self.log.end());
            let origin = attempt.origin.filter(|_| attempt.fresh && side.port == Port::SERVER);
            let origin = origin.cloned().map(Box::new);
            let live = self.live.map(|generation| Live { generation, took, log_end });
            let promise = Promise {
                channel,
                session: self.session,
                generation: self.generation,
                app: self.policy.app.clone(),
                image: self.image,
                server: server.unwrap_or_default(),
                peer,
                key: self.keys.resume(),
                fresh: attempt.fresh,
                proven: attempt.proven,
                keep: self.policy.keep,
                linger_ms: self.policy.linger_ms,
                live,
                origin,
            };
            out.push(OwnerEffect::Send(side.port, promise.into()));
        }
    }

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
        let side = &mut self.sides[index];
        let log = promised.log_end.checked_sub(promised.log_start);
        let sound = (asked_live || !promised.live)
            && log.is_some_and(|size| size <= LOG_SIZE_MAX)
            && promised.log_end < LOG_OFFSET_MAX
            && promised.sent_start <= promised.sent_end
            && is_chain(&promised.checkpoints);
        if !sound || side.promised.is_some() {
            return self.terminate(Code::Protocol, "an end's promise is inconsistent".into(), out);
        }
        if self.follow.is_some() && !promised.live {
            // The end has promised another generation since: the fed state is useless.
            trace!(self.context(), "the end at index {index} has promised another generation since");
            return self.restart_from_ends(out);
        }
        let has_past = promised.log_end > 0 || !promised.checkpoints.is_empty();
        side.next = promised.sent_start;
        // What was consumed before, on an earlier channel or as a standby, was not sent on the initial credit of this channel.
        (side.credited_from, side.credit_due) = (promised.sent_end, 0);
        side.promised = Some(promised);
        if has_past {
            self.need_witness(out);
        }
        if self.gather(out) {
            self.choose_if_complete(now, out);
        }
    }

    /// Once every end has promised, the source of the checkpoints is known. The executor gets their parts as they arrive, so
    /// that they are decrypted soon after the last part is here. They have no effect before a log is chosen. False if what the
    /// ends keep does not fit together.
    fn gather(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        if self.live.is_some() || self.sides.iter().any(|side| side.promised.is_none()) {
            return true;
        }
        self.source = self.best_holder();
        let base = self.source.and_then(|at| self.sides[at].announced().last()).map_or(0, |c| c.log_offset);
        let log = self.longest().and_then(|best| self.sides[best].promised.as_ref());
        if log.is_none_or(|log| log.log_start > base || base > log.log_end) {
            self.tampered("a part of the log is missing at both ends", out);
            return false;
        }
        if let Some(source) = self.source {
            out.push(OwnerEffect::Restore(self.image, self.sides[source].announced().to_vec()));
        }
        for (index, side) in self.sides.iter_mut().enumerate() {
            let parts = core::mem::take(&mut side.got_parts);
            if self.source == Some(index) {
                out.extend(parts.into_iter().map(OwnerEffect::Part));
            }
        }
        true
    }

    /// The end with the newest last checkpoint.
    fn best_holder(&self) -> Option<usize> {
        newest(self.sides.iter().map(super::EndState::announced))
    }

    pub(super) fn got_log(&mut self, now: Now, index: usize, part: &LogPart, out: &mut Vec<OwnerEffect>) {
        let seal = self.keys.seal(part.generation);
        let side = &mut self.sides[index];
        let expected = side.promised.as_ref().map(|promised| promised.log_start + side.got_log.len() as u64);
        // An end chooses the offset; a sum that is too large is refused below.
        let end = part.offset.saturating_add(part.bytes.len() as u64);
        let fits = side.promised.as_ref().is_some_and(|promised| end <= promised.log_end);
        if expected != Some(part.offset) || !fits {
            return self.terminate(Code::Protocol, "an end's log has a gap".into(), out);
        }
        let at = side.got_log.len();
        side.got_log.extend_from_slice(&part.bytes);
        seal.log(part.offset, &mut side.got_log[at..]);
        self.choose_if_complete(now, out);
    }

    pub(super) fn got_checkpoint(&mut self, index: usize, meta: CheckpointMeta, out: &mut Vec<OwnerEffect>) {
        let side = &self.sides[index];
        if side.arriving() != Some(&meta) || side.got_size > 0 || meta.size == 0 {
            self.terminate(Code::Protocol, "an end sends a checkpoint that it did not announce".into(), out);
        }
    }

    pub(super) fn got_part(&mut self, now: Now, index: usize, bytes: Bytes, out: &mut Vec<OwnerEffect>) {
        let gathered = self.sides.iter().all(|side| side.promised.is_some());
        let side = &mut self.sides[index];
        let size = side.arriving().map_or(0, |meta| meta.size);
        side.got_size += bytes.len() as u64;
        if size == 0 || side.got_size > size {
            let reason = "an end sends more of a checkpoint than it announced";
            return self.terminate(Code::Protocol, reason.into(), out);
        }
        let whole = side.got_size == size;
        if whole {
            side.got_size = 0;
            side.got_checkpoints += 1;
        }
        if self.source == Some(index) {
            out.push(OwnerEffect::Part(bytes));
        } else if !gathered {
            // The check of the promise bounds the size.
            side.got_parts.push(bytes);
        }
        if whole {
            self.choose_if_complete(now, out);
        }
    }

    /// A message from an end: kept while promises are awaited, otherwise for the cell.
    pub(super) fn input(&mut self, now: Now, index: usize, input: Input, out: &mut Vec<OwnerEffect>) {
        let promising = self.phase == OwnerPhase::Promising;
        let side = &mut self.sides[index];
        let others = if side.fed { 2 * RETAINED_MAX } else { 0 };
        let bound = others + RETAINED_MAX + INPUT_WINDOW + charge(0);
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

    pub(super) fn choose_if_complete(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let all = self.sides.iter().all(super::end_state::EndState::complete);
        if self.phase == OwnerPhase::Promising && all && !self.waits_for_witness() {
            self.choose(now, out);
        }
    }
}

/// Whether this is a valid list of checkpoints: a full one and its deltas, within the limits.
pub(super) fn is_chain(checkpoints: &[CheckpointMeta]) -> bool {
    checkpoints.len() <= DELTAS_MAX + 1
        && checkpoints.iter().map(|meta| meta.size).fold(0, u64::saturating_add) <= CHECKPOINT_SIZE_MAX
        && checkpoints.first().is_none_or(|meta| meta.full)
}
