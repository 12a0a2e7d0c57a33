//! Asks the coordinator, beside the supervisor's thread, how much of their sessions clients were seen to have, claims groups
//! and asks for slots.
//!
//! The answer names the generation that asked, or the claim, so one that comes late is recognised. A
//! question always has an answer, "away" if need be: an attempt, or a group, waits for it
//! (`docs/protocol-keepers.md`, chapter 18; `docs/protocol-epochs.md`).

use marram_shard::{
    api::{ClaimAnswer, GroupClaim, SlotAnswer, SlotQuery, WitnessAnswer, WitnessQuery, WitnessReport},
    control::ControlInput,
    coordinator::{Ask, AskAnswer, contents::EdgeStoreSeen},
};
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
};

/// A callback for an answer.
pub type Answered = Box<dyn FnOnce(AskAnswer) + Send>;

/// Asks the coordinator: does not block, and always answers after a bounded time.
pub type Coordinating = Arc<dyn Fn(Ask, Answered) + Send + Sync>;

/// Questions in progress.
pub(super) struct Witnesses {
    coordinator: Option<Coordinating>,
    sender: Sender<ControlInput>,
    answers: Receiver<ControlInput>,
    waker: Arc<OnceLock<mio::Waker>>,
}

impl Witnesses {
    /// `waker` is woken for each answer.
    pub(super) fn new(coordinator: Option<Coordinating>, waker: Arc<OnceLock<mio::Waker>>) -> Self {
        let (sender, answers) = channel();
        Self { coordinator, sender, answers, waker }
    }

    /// Whether there is a coordinator.
    pub(super) fn are_there(&self) -> bool {
        self.coordinator.is_some()
    }

    /// Asks, for a shard.
    pub(super) fn ask(&self, shard: u8, seek: WitnessQuery) {
        let WitnessQuery { session, .. } = seek;
        self.ask_then(Ask::Witnessed { session }, move |answer| {
            let WitnessQuery { session, generation } = seek;
            let (seen, away) = match answer {
                AskAnswer::Witnessed(seen) => (seen, None),
                AskAnswer::Away(why) | AskAnswer::Refused(why) => (None, Some(why)),
                other => (None, Some(format!("the coordinator answered {other:?}"))),
            };
            ControlInput::WitnessAnswer {
                shard,
                testified: WitnessAnswer { session, generation, seen, away },
            }
        });
    }

    /// Claims a group, for a shard.
    pub(super) fn claim(&self, shard: u8, claim: GroupClaim) {
        let tag = claim.tag;
        let answered =
            move |answer| ControlInput::ClaimAnswer { shard, answer: ClaimAnswer::of(tag, answer) };
        self.ask_then(claim.ask(), answered);
    }

    /// Asks for a slot, or takes it, for a shard.
    pub(super) fn slot(&self, shard: u8, query: SlotQuery) {
        let asked = query.clone();
        let answered =
            move |answer| ControlInput::SlotAnswer { shard, answer: SlotAnswer::of(asked, answer) };
        self.ask_then(query.ask(), answered);
    }

    fn ask_then(&self, ask: Ask, input: impl FnOnce(AskAnswer) -> ControlInput + Send + 'static) {
        let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
        let answered = move |answer| {
            // Fails only when the supervisor has stopped.
            let _ = sender.send(input(answer));
            if let Some(waker) = waker.get() {
                let _ = waker.wake();
            }
        };
        match &self.coordinator {
            Some(coordinator) => coordinator(ask, Box::new(answered)),
            None => answered(AskAnswer::Away("this edge has no coordinator: add [coordinator]".into())),
        }
    }

    /// Sends a report about a session.
    ///
    /// No answer is awaited: a report that is lost is replaced by the next one.
    pub(super) fn tell(&self, saw: WitnessReport) {
        if let Some(coordinator) = &self.coordinator {
            let WitnessReport { session, seen } = saw;
            coordinator(Ask::Witness { session, seen }, Box::new(drop));
        }
    }

    /// Another edge has told what it remembers of its store. It tells again after each change.
    pub(super) fn tell_store_seen(&self, seen: EdgeStoreSeen) {
        if let Some(coordinator) = &self.coordinator {
            coordinator(Ask::StoreSeen(seen), Box::new(drop));
        }
    }

    /// The next answer, if one is there.
    pub(super) fn take(&self) -> Option<ControlInput> {
        self.answers.try_recv().ok()
    }
}

impl fmt::Debug for Witnesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witnesses").field("are_there", &self.are_there()).finish_non_exhaustive()
    }
}
