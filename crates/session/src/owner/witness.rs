//! The witness of a session without a server (docs/protocol-keepers.md, "Witness"): an external service that stores how much of
//! the session the client was seen to have, so that a client cannot go back to an older state of its own.
//!
//! While an owner waits for the ends' promises, it also asks the witness. It chooses no log that ends before the witnessed
//! position or has another digest there. It reports what the client has *acknowledged*, never what was only sent to it: an
//! honest end keeps what it has acknowledged. Nothing waits for a report, so a client can still go back by what it received
//! since the last report.

use super::{Now, Owner, OwnerEffect};
use crate::{
    invariant::{BrokenInvariant, holds},
    replay::{LogReplayError, follow},
    trace,
};
use alloc::{format, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::Code,
    id::{Generation, Port},
    log::Cursor,
    seal::Digest,
};

/// Minimum interval between reports, in nanoseconds.
pub const REPORT_NS: u64 = 1_000_000_000;

/// What to do with a session while the witness is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Witnessing {
    /// Recoveries wait until the witness is available.
    Strict,
    /// Recoveries continue without the witness, and are counted.
    Lenient,
}

/// What the client was seen to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientProgress {
    /// The generation of the owner that saw it.
    pub generation: Generation,
    /// Bytes of log.
    pub log_end: u64,
    /// Tag of the running digest there.
    pub tag: [u8; 8],
}

/// The witness's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WitnessReply {
    /// The last reported progress; none if there never was a report.
    Seen(Option<ClientProgress>),
    /// The witness is unavailable, with the reason for people.
    Away(String),
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Asked {
    #[default]
    NotNeeded,
    Waiting,
    Answered(Option<ClientProgress>),
}

/// What the client has once it has acknowledged this many outputs: the log that was sent before the last of them.
#[derive(Clone, Copy, Debug)]
struct Mark {
    outputs: u64,
    seen: ClientProgress,
}

/// The owner's state for the witness.
#[derive(Debug, Default)]
pub(super) struct Witness {
    asked: Asked,
    /// The next mark to be acknowledged, and the newest one after it.
    marks: [Option<Mark>; 2],
    /// What the client has acknowledged and the witness was not told yet.
    unreported: Option<ClientProgress>,
    next_ns: u64,
}

impl Witness {
    /// I37 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        if let [first, Some(second)] = self.marks {
            holds!("I37", first.is_some_and(|first| first.outputs <= second.outputs));
            holds!("I37", first.is_some_and(|first| first.seen.log_end <= second.seen.log_end));
        }
        Ok(())
    }
}

/// Why a log cannot be followed to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogMismatch {
    /// It cannot be read.
    Unreadable,
    /// A message that it consumed is missing.
    Missing,
    /// It ends before this position.
    Short,
    /// The running digest at this position is a different one.
    Altered(u64),
}

impl From<LogReplayError> for LogMismatch {
    fn from(lost: LogReplayError) -> Self {
        match lost {
            LogReplayError::Missing => Self::Missing,
            // Nothing runs here that could read the time or a cache.
            LogReplayError::Unreadable | LogReplayError::Clock | LogReplayError::Reads => Self::Unreadable,
        }
    }
}

impl Owner {
    /// A generation is being opened: the witness is asked together with the ends, unless the session is new.
    pub(super) fn ask_witness(&mut self, fresh: bool, out: &mut Vec<OwnerEffect>) {
        self.witness.marks = [None; 2];
        self.witness.asked = Asked::NotNeeded;
        if !fresh {
            self.need_witness(out);
        }
    }

    /// Asks the witness if it was not asked yet: an end has shown that the session is not new.
    pub(super) fn need_witness(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.policy.witness.is_some() && self.witness.asked == Asked::NotNeeded {
            self.witness.asked = Asked::Waiting;
            out.push(OwnerEffect::AskWitness(self.generation));
        }
    }

    /// Whether the client was seen with a later owner than this one, or with more log than there is here. Then a live cell of
    /// this owner does not belong to the session any more, even if the ends accept it.
    pub(super) fn was_overtaken(&self, live: Generation) -> bool {
        let Asked::Answered(Some(seen)) = self.witness.asked else { return false };
        seen.generation > live || (self.follow.is_none() && seen.log_end > self.log.end())
    }

    /// The answer to [`OwnerEffect::AskWitness`].
    pub fn witnessed(
        &mut self,
        now: Now,
        generation: Generation,
        testimony: WitnessReply,
        out: &mut Vec<OwnerEffect>,
    ) {
        if generation != self.generation || self.witness.asked != Asked::Waiting {
            return trace!(self.context(), "ignores the witness's answer to generation {generation}");
        }
        self.witness.asked = match (testimony, self.policy.witness) {
            (WitnessReply::Seen(seen), _) => Asked::Answered(seen),
            (WitnessReply::Away(why), Some(Witnessing::Strict)) => {
                let reason = format!(
                    "cannot check whether this client goes back to an older state: the witness is unreachable ({why})"
                );
                return self.abort_attempt(Code::Waiting, &reason, out);
            }
            (WitnessReply::Away(_), _) => {
                out.push(OwnerEffect::WitnessMissing);
                Asked::Answered(None)
            }
        };
        self.choose_if_complete(now, out);
    }

    pub(super) fn waits_for_witness(&self) -> bool {
        self.witness.asked == Asked::Waiting
    }

    /// Whether a log that ends here may be chosen. If not, ends the session.
    pub(super) fn reaches_what_was_seen(&mut self, log_end: u64, out: &mut Vec<OwnerEffect>) -> bool {
        let Asked::Answered(Some(seen)) = self.witness.asked else { return true };
        if log_end >= seen.log_end {
            return true;
        }
        let reason = format!(
            "the client has {log_end} bytes of log, and the witness has seen {}: the client went back to an older \
             state of the session",
            seen.log_end
        );
        self.terminate(Code::Tampered, reason, out);
        false
    }

    /// The position and digest that the chosen log must have, because the client was seen with them. None if a checkpoint
    /// covers that position: an edge has sealed the checkpoint, and its word counts as much as the witness's.
    pub(super) fn seen_behind(&self, base: u64) -> Option<(u64, [u8; 8])> {
        match self.witness.asked {
            Asked::Answered(Some(seen)) if seen.log_end > base => Some((seen.log_end, seen.tag)),
            _ => None,
        }
    }

    /// An output was sent to the client, with the log that it depends on.
    pub(super) fn mark_sent(&mut self, index: usize) {
        let side = &self.sides[index];
        if self.policy.witness.is_none() || side.port != Port::CLIENT {
            return;
        }
        let seen = ClientProgress { generation: self.generation, log_end: side.known, tag: side.known_tag };
        let mark = Some(Mark { outputs: side.settled(), seen });
        let place = usize::from(self.witness.marks[0].is_some());
        self.witness.marks[place] = mark;
    }

    /// The client has acknowledged outputs, or time has passed: reports the client's progress, if a report is due.
    pub(super) fn report(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.witness.marks[0].is_none() && self.witness.unreported.is_none() {
            return;
        }
        let Some(side) = self.sides.iter().find(|side| side.port == Port::CLIENT) else { return };
        let acknowledged = side.acknowledged();
        while let Some(mark) = self.witness.marks[0].take_if(|mark| acknowledged >= mark.outputs) {
            self.witness.unreported = Some(mark.seen);
            self.witness.marks[0] = self.witness.marks[1].take();
        }
        if now.mono_ns >= self.witness.next_ns
            && let Some(seen) = self.witness.unreported.take()
        {
            self.witness.next_ns = now.mono_ns + REPORT_NS;
            out.push(OwnerEffect::Report(seen));
        }
    }

    /// When the next report is due.
    pub(super) fn report_due_ns(&self) -> Option<u64> {
        self.witness.unreported.map(|_| self.witness.next_ns)
    }

    /// The position and digest of each end's log, from `base` on. An end that lies may have log of another history than the
    /// other end received, so the chosen log must lead through all of them. What a checkpoint covers cannot be compared.
    pub(super) fn held_behind(&self, base: u64) -> Vec<(u64, [u8; 8])> {
        let held = self.sides.iter().filter_map(|side| side.promised.as_ref());
        let held = held.filter(|held| self.policy.keep && held.log_end >= base.max(1));
        let mut places: Vec<_> = held.map(|held| (held.log_end, held.tag)).collect();
        places.sort_unstable();
        places
    }

    /// Follows the log from one position to its end, with the messages that it consumed; `consumed` of those that wait were
    /// consumed before. At each of `places`, in order, the running digest must be the given one.
    pub(super) fn follow_through(
        &self,
        (mut at, mut digest, mut cursor): (u64, Digest, Cursor),
        mut consumed: [usize; 2],
        places: &[(u64, [u8; 8])],
    ) -> Result<(Digest, Cursor), LogMismatch> {
        let stages = places.iter().map(|(offset, tag)| (*offset, Some(*tag)));
        for (offset, tag) in stages.chain([(self.log.end(), None)]) {
            let size = offset.checked_sub(at).and_then(|size| usize::try_from(size).ok());
            let log = size.and_then(|size| self.log.since(at).get(..size)).ok_or(LogMismatch::Short)?;
            let before = consumed;
            let furthest = core::cell::Cell::new(consumed);
            let message = |index: usize, number: usize| {
                let mut reached = furthest.get();
                reached[index] = before[index] + number + 1;
                furthest.set(reached);
                self.sides.get(index)?.inputs.get(before[index] + number)
            };
            let log = Bytes::copy_from_slice(log);
            (digest, cursor) =
                follow(&self.keys, (digest, cursor), &log, message).map_err(LogMismatch::from)?;
            consumed = furthest.get();
            at = offset;
            if tag.is_some_and(|tag| digest.tag() != tag) {
                return Err(LogMismatch::Altered(offset));
            }
        }
        Ok((digest, cursor))
    }
}
