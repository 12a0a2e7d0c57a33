//! The witness of a session without a server (docs/protocol-keepers.md, "Witness"): an external service that stores how
//! much of the session the client was seen to have, so that a client cannot go back to an older state of its own.
//!
//! While an owner waits for the ends' promises, it also asks the witness. It chooses no log that ends before the
//! witnessed position or has another digest there. It reports what the client has *acknowledged*, never what was only
//! sent to it: an honest end keeps what it has acknowledged. Nothing waits for a report, so a client can still go back
//! by what it received since the last report.
//!
//! An owner to which a session was handed over asks a strict witness first, and the ends only if it has answered: if it
//! is unavailable, the session stays where it runs.

use super::{
    Now, Owner, OwnerEffect, OwnerPhase, StandbyError, about::About, end_state::EndState, ends::Ends,
    log::Checkmark,
};
use crate::{
    invariant::{BrokenInvariant, holds},
    trace,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::Code,
    id::{Generation, Port},
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
    /// Answered before the generation that is about to be opened.
    AnsweredFirst(Option<ClientProgress>),
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
    /// A session was handed over, and a strict witness is asked before the ends. False if there is none.
    pub(super) fn ask_first(&mut self, about: &About, out: &mut Vec<OwnerEffect>) -> bool {
        let is_strict = about.policy.witness == Some(Witnessing::Strict);
        if is_strict {
            self.asked = Asked::Waiting;
            out.push(OwnerEffect::AskWitness(about.generation()));
        }
        is_strict
    }

    /// A generation is being opened: the witness is asked together with the ends, unless the session is new, or it was
    /// asked first.
    pub(super) fn ask(&mut self, about: &About, fresh: bool, out: &mut Vec<OwnerEffect>) {
        self.marks = [None; 2];
        self.asked = match self.asked {
            Asked::AnsweredFirst(seen) => Asked::Answered(seen),
            _ => Asked::NotNeeded,
        };
        if !fresh {
            self.need(about, out);
        }
    }

    /// Asks the witness if it was not asked yet: an end has shown that the session is not new.
    pub(super) fn need(&mut self, about: &About, out: &mut Vec<OwnerEffect>) {
        if about.policy.witness.is_some() && self.asked == Asked::NotNeeded {
            self.asked = Asked::Waiting;
            out.push(OwnerEffect::AskWitness(about.generation()));
        }
    }

    /// Whether no log may be chosen yet, because the witness has not answered.
    pub(super) fn is_awaited(&self) -> bool {
        self.asked == Asked::Waiting
    }

    /// What the client was seen to have, if the witness said so in this attempt.
    fn seen(&self) -> Option<ClientProgress> {
        match self.asked {
            Asked::Answered(seen) | Asked::AnsweredFirst(seen) => seen,
            Asked::NotNeeded | Asked::Waiting => None,
        }
    }

    /// Whether the client was seen with a later owner than this one, or with more log than there is here up to
    /// `log_end`. Then a live cell of this owner does not belong to the session any more, even if the ends accept it. A
    /// standby may have less log than its owner had: none is the end of its log.
    pub(super) fn was_overtaken(&self, live: Generation, log_end: Option<u64>) -> bool {
        self.seen().is_some_and(|seen| {
            seen.generation > live || log_end.is_some_and(|log_end| seen.log_end > log_end)
        })
    }

    /// Why a log that ends here may not be chosen, if that is so.
    pub(super) fn refuses(&self, log_end: u64) -> Option<String> {
        let seen = self.seen().filter(|seen| log_end < seen.log_end)?;
        Some(format!(
            "the client has {log_end} bytes of log, and the witness has seen {}: the client went back to an older \
             state of the session",
            seen.log_end
        ))
    }

    /// The position and digest that the chosen log must have, because the client was seen with them. None if a
    /// checkpoint covers that position: an edge has sealed the checkpoint, and its word counts as much as the
    /// witness's.
    pub(super) fn seen_behind(&self, base: u64) -> Option<Checkmark> {
        self.seen().filter(|seen| seen.log_end > base).map(|seen| (seen.log_end, seen.tag))
    }

    /// An output was sent to an end, with the log that it depends on.
    pub(super) fn mark_sent(&mut self, about: &About, side: &EndState) {
        if about.policy.witness.is_none() || side.port != Port::CLIENT {
            return;
        }
        let seen =
            ClientProgress { generation: about.generation(), log_end: side.known, tag: side.known_tag };
        let mark = Some(Mark { outputs: side.settled(), seen });
        let place = usize::from(self.marks[0].is_some());
        self.marks[place] = mark;
    }

    /// The client has acknowledged outputs, or time has passed: reports the client's progress, if a report is due.
    pub(super) fn report(&mut self, now: Now, ends: &Ends, out: &mut Vec<OwnerEffect>) {
        if self.marks[0].is_none() && self.unreported.is_none() {
            return;
        }
        let Some(side) = ends.at(Port::CLIENT) else { return };
        let acknowledged = side.acknowledged();
        while let Some(mark) = self.marks[0].take_if(|mark| acknowledged >= mark.outputs) {
            self.unreported = Some(mark.seen);
            self.marks[0] = self.marks[1].take();
        }
        if now.mono_ns >= self.next_ns
            && let Some(seen) = self.unreported.take()
        {
            self.next_ns = now.mono_ns + REPORT_NS;
            out.push(OwnerEffect::Report(seen));
        }
    }

    /// When the next report is due, in monotonic nanoseconds.
    pub(super) fn report_due_ns(&self) -> Option<u64> {
        self.unreported.map(|_| self.next_ns)
    }

    /// I37 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        if let [first, Some(second)] = self.marks {
            holds!("I37", first.is_some_and(|first| first.outputs <= second.outputs));
            holds!("I37", first.is_some_and(|first| first.seen.log_end <= second.seen.log_end));
        }
        Ok(())
    }
}

impl Owner {
    /// The answer to [`OwnerEffect::AskWitness`].
    pub fn witnessed(
        &mut self,
        now: Now,
        generation: Generation,
        testimony: WitnessReply,
        out: &mut Vec<OwnerEffect>,
    ) {
        if generation != self.about.generation() || !self.witness.is_awaited() {
            return trace!(self.context(), "ignores the witness's answer to generation {generation}");
        }
        if self.phase() == OwnerPhase::Following {
            return self.witnessed_first(testimony, out);
        }
        let seen = match (testimony, self.about.policy.witness) {
            (WitnessReply::Seen(seen), _) => seen,
            (WitnessReply::Away(why), Some(Witnessing::Strict)) => {
                let reason = format!(
                    "cannot check whether this client goes back to an older state: the witness is unreachable ({why})"
                );
                return self.abort_attempt(Code::Waiting, &reason, out);
            }
            (WitnessReply::Away(_), _) => {
                out.push(OwnerEffect::WitnessMissing);
                None
            }
        };
        self.witness.asked = Asked::Answered(seen);
        self.choose_if_complete(now, out);
    }

    /// The answer to [`Witness::ask_first`]: this owner takes over, or the session stays with the one that has handed it
    /// over. Without its feed it is a standby like any other.
    fn witnessed_first(&mut self, testimony: WitnessReply, out: &mut Vec<OwnerEffect>) {
        if self.follow.as_ref().is_none_or(|follow| follow.channel().is_none()) {
            self.witness.asked = Asked::NotNeeded;
            return trace!(self.context(), "ignores the witness's answer: its feed is lost");
        }
        let seen = match testimony {
            WitnessReply::Seen(seen) => seen,
            WitnessReply::Away(why) => {
                let reason = format!(
                    "the app has keep.witness = \"strict\", and the edge to which the session moves cannot ask the witness: {why}"
                );
                return self.fail_standby(StandbyError(Code::Waiting, reason), out);
            }
        };
        self.witness.asked = Asked::AnsweredFirst(seen);
        if self.witness.was_overtaken(self.about.generation(), None) {
            let reason = "the witness has seen a newer owner of the session".to_string();
            return self.fail_standby(StandbyError(Code::Superseded, reason), out);
        }
        out.push(OwnerEffect::TakeOver);
    }
}
