//! What goes into an edge's client and what comes out of it: events, questions, and their answers.

use super::contents::{Claimed, EdgeStoreSeen, Registration, Stands, Subject, Witnessed};
use super::placements::Parts;
use super::slots::{SlotHeld, SlotName, SlotRecord};
use super::store::StoreChange;
use super::{StoreFailure, StoreReply, StoreRequest};
use crate::app_version::AppVersion;
use crate::note_level::NoteLevel;
use crate::policies::ReplicationPolicy;
use alloc::{string::String, vec::Vec};
use marram_wire::{frame::StoreMark, id::SessionId};

/// Something happened to a client.
#[derive(Clone, PartialEq, Debug)]
pub enum CoordinatorInput {
    /// A time that [`CoordinatorOutput::WakeAt`] asked for has come. Spurious calls are allowed.
    Wake,
    /// The edge's registration, as of now.
    Here(Registration),
    /// The images that the edge has.
    Holds(Vec<AppVersion>),
    /// The parts of the list of standbys that changed.
    Listed(Parts),
    /// The answer to [`CoordinatorOutput::Send`].
    Answered {
        /// As sent.
        tag: u64,
        /// The reply, or why there is none.
        result: Result<StoreReply, StoreFailure>,
    },
    /// Changes that [`CoordinatorOutput::Watch`] reports, in order.
    Watched {
        /// The watch's number.
        watch: u64,
        /// What changed.
        changes: Vec<StoreChange>,
    },
    /// The watch broke, or the store does not keep changes that old.
    WatchEnded {
        /// The watch's number.
        watch: u64,
        /// The reason, for people.
        why: String,
    },
    /// A question from this edge.
    Ask {
        /// Names the answer.
        tag: u64,
        /// The question.
        ask: Ask,
    },
    /// The edge stops: the client revokes its lease, so that other edges need not wait until it expires.
    Leave,
}

/// The edge that has the only copy of the coordinator's store in it: nothing is decided while it is away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreEdge {
    /// This one.
    This,
    /// Another one, by name.
    Other(String),
}

/// A client wants something done.
#[derive(Clone, PartialEq, Debug)]
pub enum CoordinatorOutput {
    /// Send a request to the store. [`CoordinatorInput::Answered`] always answers, after a bounded time.
    Send {
        /// Names the answer.
        tag: u64,
        /// The request.
        request: StoreRequest,
    },
    /// Start a watch. It replaces the previous one.
    Watch {
        /// The watch's number.
        watch: u64,
        /// The prefix of the watched keys.
        prefix: String,
        /// Changes of revisions above this one.
        since: u64,
    },
    /// The answer to [`CoordinatorInput::Ask`].
    Asked {
        /// As in the question.
        tag: u64,
        /// The answer.
        answer: AskAnswer,
    },
    /// The known edges or their images have changed.
    Changed,
    /// Write this to the disk, before any later output is carried out, and tell other edges.
    Remember(StoreMark),
    /// A line for the log.
    Log(NoteLevel, String),
    /// Call again with [`CoordinatorInput::Wake`] at this time (monotonic) at the latest. The last one counts.
    WakeAt {
        /// In nanoseconds.
        mono_ns: u64,
    },
    /// The edge is not registered any more.
    Left,
}

/// A question or write of an edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Claim a generation. Of all claims with the same `from`, exactly one succeeds. A retry is harmless. It waits while it is not
    /// known whether the store has lost decisions, and is refused if it has.
    Claim {
        /// The session or group.
        subject: Subject,
        /// The last record that the asker knows of; none if there never was one.
        from: Option<Claimed>,
        /// The new record; none removes it, which is for a group that has no cell any more.
        to: Option<Claimed>,
    },
    /// Accept that the store has lost what these marks stand for: it goes on under another identity.
    Accept {
        /// Random.
        identity: [u8; 16],
        /// What edges remember.
        lost: Vec<StoreMark>,
    },
    /// The records of all groups. Only the client itself asks for them.
    Groups,
    /// The records of all slots. Only the client itself asks for them.
    Slots,
    /// Which group has a slot's cell, and the newest claim of that group.
    Slot {
        /// The slot.
        name: SlotName,
        /// Its new record, if it has none or `from`: of all such questions exactly one succeeds. A retry is harmless. As a claim, it waits
        /// while it is not known whether the store has lost decisions, and is refused if it has.
        take: Option<SlotRecord>,
        /// The record that may be replaced; without `take`, the one that is to be removed.
        from: Option<SlotRecord>,
    },
    /// The holder of the newest generation.
    Holder {
        /// The session or group.
        subject: Subject,
    },
    /// The standby of a session, as its owner listed it last.
    Standby {
        /// The session.
        session: SessionId,
    },
    /// Store what a client has. An older report never replaces a newer one.
    Witness {
        /// The session.
        session: SessionId,
        /// What its client has.
        seen: Witnessed,
    },
    /// What a client was seen to have.
    Witnessed {
        /// The session.
        session: SessionId,
    },
    /// Set the policies of the domain, or remove them. The last one that asks has set them.
    SetPolicies(Option<Vec<ReplicationPolicy>>),
    /// Take the policy with this name out of those of the domain, whatever else is in the list when that is written.
    RemovePolicy(String),
    /// A report: what another edge remembers of its store. It is not sent to the store.
    StoreSeen(EdgeStoreSeen),
}

/// The standby of a session, and the edge that says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StandsBy {
    /// The last known owner of the session.
    pub owner: String,
    /// The standby that it lists.
    pub at: Stands,
}

impl AskAnswer {
    /// Whether the generation, or the slot, is the asker's.
    #[must_use]
    pub fn is_won(&self) -> bool {
        matches!(self, Self::Won | Self::WonIn(_))
    }
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AskAnswer {
    /// The generation, or the slot, is the asker's.
    Won,
    /// The same, of a slot's group, by a decision of the store with this identity.
    WonIn([u8; 16]),
    /// Another edge holds it; none if there is no holder.
    Lost(Option<Claimed>),
    /// The holder, if there is one.
    Holder(Option<Claimed>),
    /// The slot's record with its group's claim, if it has one.
    Slot(Option<SlotHeld>),
    /// The standby, if one is listed.
    Standby(Option<StandsBy>),
    /// What was seen.
    Witnessed(Option<Witnessed>),
    /// So many policies of the domain are left; none if it has none with that name.
    PoliciesLeft(Option<usize>),
    /// Done.
    Done,
    /// The coordinator is away, and why. The write may have been done or not: retry.
    Away(String),
    /// The coordinator refused, and why.
    Refused(String),
}
