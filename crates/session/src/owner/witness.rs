//! The witness of a session without a server (docs/protocol-keepers.md, "Witness"): somebody outside who remembers how much of it
//! the client was seen to have, so that a client cannot go back to an older state of its own.
//!
//! An owner asks the witness as it asks the ends, while it waits for their promises, and chooses no log that ends before what
//! was seen or has another digest there. It reports what the client has *acknowledged*, never what it was only sent: an end that
//! tells the truth has that much for good. Nothing waits for a report, so a client can still go back by what it received since the
//! last one.

use super::{Now, Owner, OwnerEffect};
use crate::replay::{LogReplayError, follow};
use alloc::{format, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::Code,
    id::{Generation, Port},
    log::Cursor,
    seal::Digest,
};

/// How often an owner reports at most, in nanoseconds.
pub const REPORT_NS: u64 = 1_000_000_000;

/// Whether a session that nobody vouches for may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Witnessing {
    /// No: while the witness cannot be asked, recoveries wait.
    Strict,
    /// Yes, and it is counted.
    Lenient,
}

/// What the client was seen to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientProgress {
    /// The generation of the owner that saw it.
    pub generation: Generation,
    /// Bytes of log.
    pub log_end: u64,
    /// Of the running digest there.
    pub tag: [u8; 8],
}

/// What the witness says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WitnessReply {
    /// This much was seen; none if nothing ever was.
    Seen(Option<ClientProgress>),
    /// It cannot be asked; for people.
    Away(String),
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Asked {
    #[default]
    NotNeeded,
    Waiting,
    Answered(Option<ClientProgress>),
}

/// What the client has once it has acknowledged so many outputs: all that was sent before the last of them.
#[derive(Clone, Copy, Debug)]
struct Mark {
    outputs: u64,
    seen: ClientProgress,
}

/// What an owner knows of the witness, and it of the session.
#[derive(Debug, Default)]
pub(super) struct Witness {
    asked: Asked,
    /// The mark that is waited for, and the last one behind it.
    marks: [Option<Mark>; 2],
    /// What the client has acknowledged and the witness was not told.
    unreported: Option<ClientProgress>,
    next_ns: u64,
}

/// Why a log cannot be followed to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogMismatch {
    /// It cannot be read.
    Unreadable,
    /// A message that it consumed is not there.
    Missing,
    /// It ends before this place.
    Short,
    /// The running digest at this place is another one.
    Altered(u64),
}

impl From<LogReplayError> for LogMismatch {
    fn from(lost: LogReplayError) -> Self {
        match lost {
            LogReplayError::Missing => Self::Missing,
            // Nothing runs here that could read the time, or a cache.
            LogReplayError::Unreadable | LogReplayError::Clock | LogReplayError::Reads => Self::Unreadable,
        }
    }
}

impl Owner {
    /// A generation is being asked for: the witness is asked beside the ends, unless the session begins.
    pub(super) fn ask_witness(&mut self, fresh: bool, out: &mut Vec<OwnerEffect>) {
        self.witness.marks = [None; 2];
        self.witness.asked = Asked::NotNeeded;
        if !fresh {
            self.need_witness(out);
        }
    }

    /// Asks it if it was not asked yet: an end has a past, whatever it said.
    pub(super) fn need_witness(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.policy.witness.is_some() && self.witness.asked == Asked::NotNeeded {
            self.witness.asked = Asked::Waiting;
            out.push(OwnerEffect::AskWitness(self.generation));
        }
    }

    /// Whether the client was seen with an owner behind this one, or further than the log here: then a cell that lives here is not
    /// the session's any more, whatever its ends say.
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
            return;
        }
        self.witness.asked = match (testimony, self.policy.witness) {
            (WitnessReply::Seen(seen), _) => Asked::Answered(seen),
            (WitnessReply::Away(why), Some(Witnessing::Strict)) => {
                let reason = format!(
                    "nobody can say whether this client goes back to an older state: the witness is away ({why})"
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

    /// Whether a log that ends here may be chosen; ends the session if it may not.
    pub(super) fn reaches_what_was_seen(&mut self, log_end: u64, out: &mut Vec<OwnerEffect>) -> bool {
        let Asked::Answered(Some(seen)) = self.witness.asked else { return true };
        if log_end >= seen.log_end {
            return true;
        }
        let reason = format!(
            "the client shows {log_end} bytes of log and was seen to have {}: it went back to an older state of the session",
            seen.log_end
        );
        self.terminate(Code::Tampered, reason, out);
        false
    }

    /// Where the chosen log must have which digest, because it was seen there. Nothing if a checkpoint covers that place: what an
    /// edge sealed is an edge's word too.
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

    /// The client has acknowledged outputs, or time has passed: reports what it has by now, if a report is due.
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

    /// When a report is due.
    pub(super) fn report_due_ns(&self) -> Option<u64> {
        self.witness.unreported.map(|_| self.witness.next_ns)
    }

    /// Follows the log here from one place on, with the messages that it consumed, to its end. At each of `places`, in order, the
    /// running digest must be the one that is named.
    pub(super) fn follow_through(
        &self,
        (mut at, mut digest, mut cursor): (u64, Digest, Cursor),
        places: &[(u64, [u8; 8])],
    ) -> Result<(Digest, Cursor), LogMismatch> {
        let mut consumed = [0usize; 2];
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
