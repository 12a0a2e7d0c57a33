//! What an owner knows of its session from the start, and the generation under which it acts.

use super::{Owner, OwnerPolicy, ends::Ends, log::Log, protection::Protection};
use crate::{
    cell::CellImage,
    trace::{TraceContext, TraceRole},
};
use alloc::boxed::Box;
use marram_wire::{
    codec::Last,
    frame::{Keep, Keeps},
    id::{Generation, Port, SessionId},
    key::CellKey,
    peer::Origin,
    seal::{Seal, SessionKeys},
};

/// The session's identity and settings, which never change, and the newest generation with its seal, which change
/// together.
#[derive(Debug)]
pub(super) struct About {
    pub(super) session: SessionId,
    pub(super) image: CellImage,
    pub(super) policy: OwnerPolicy,
    pub(super) keys: SessionKeys,
    /// Where its client connected, if its agent has said so when it began.
    pub(super) origin: Option<Box<Origin>>,
    /// Of a shared cell: which of its app's cells it is, if the app has several.
    pub(super) key: Option<CellKey>,
    /// Of a session whose app has none, while it moves.
    pub(super) protection: Protection,
    /// The last generation that was opened to end it.
    pub(super) protected_in: Generation,
    generation: Generation,
    /// Encrypts log and checkpoints of this generation. Log of an earlier one has the seal of its own generation.
    seal: Seal,
}

impl About {
    /// Of an owner that has opened no generation yet.
    pub(super) fn new(session: SessionId, image: CellImage, keys: SessionKeys, policy: OwnerPolicy) -> Self {
        let seal = keys.seal(Generation::NONE);
        Self {
            session,
            image,
            policy,
            keys,
            origin: None,
            key: None,
            protection: Protection::Off,
            protected_in: Generation::NONE,
            generation: Generation::NONE,
            seal,
        }
    }

    /// Whether ends keep messages, because of the app's settings or while the session moves. Then there is a log.
    pub(super) fn keeps(&self) -> bool {
        self.policy.keeps.anything() || self.is_protected_for_now()
    }

    /// Whether they keep the log as well.
    pub(super) fn keeps_log(&self) -> bool {
        self.keeps() && !self.has_backup()
    }

    /// Whether they keep checkpoints as well.
    pub(super) fn keeps_checkpoints(&self) -> bool {
        self.policy.keeps == Keeps::All
    }

    /// Whether a backup has what ends do not keep, and outputs wait for it (`epoch`).
    pub(super) fn has_backup(&self) -> bool {
        self.policy.keeps == Keeps::Messages
    }

    /// Whether it is a cell of many clients, which come and go as ports of it: it has no end of its own, and its group's claim alone
    /// decides which edge runs it.
    pub(super) fn is_shared_cell(&self) -> bool {
        self.policy.shared && self.has_backup()
    }

    /// Whether a client is at this port, and no server.
    pub(super) fn is_client(&self, port: Port) -> bool {
        if self.is_shared_cell() { !port.is_from_connect() } else { port == Port::CLIENT }
    }

    /// Whether ends keep messages and log, and only because the session moves.
    pub(super) fn is_protected_for_now(&self) -> bool {
        !self.policy.keeps.anything() && matches!(self.protection, Protection::On | Protection::Ending)
    }

    /// The newest generation that the owner opened, or that its feed is of.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// The seal of [`Self::generation`].
    pub(super) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Another generation is opened, or followed.
    pub(super) fn renew(&mut self, generation: Generation) {
        self.generation = generation;
        self.seal = self.keys.seal(generation);
    }

    /// What a keeper is told when it begins: the session, and the position up to which the cell consumed. The channel
    /// is that of each keeper.
    pub(super) fn keep_frame(&self, ends: &Ends, log: &Log) -> Keep {
        Keep {
            channel: 0,
            session: self.session,
            generation: self.generation,
            app: self.policy.app.clone(),
            image: self.image,
            hosts: ends.lasting().map(|side| side.host).collect(),
            hot: false,
            moves: false,
            log_offset: log.end(),
            head: log.digest().0,
            last_ns: log.last_ns(),
            took: ends.took(),
            group: None,
            origin: self.origin.clone().filter(|_| self.has_backup()),
            key: Last(self.key.clone().map(Box::new)),
        }
    }

    /// What the owner is in traces.
    pub(super) fn context(&self) -> TraceContext {
        TraceContext::of_session(TraceRole::Owner, self.session, self.generation)
    }
}

impl Owner {
    /// The client's agent says where it connected, which the server's end and policies may ask for.
    pub fn came_from(&mut self, origin: Option<Box<Origin>>) {
        if origin.is_some() {
            self.about.origin = origin;
        }
    }

    /// The cell is that of this key. Called once, before anything is fed.
    pub fn has_key(&mut self, key: Option<CellKey>) {
        self.about.key = key;
    }

    /// Of a shared cell: which of its app's cells it is, if the app has several.
    #[must_use]
    pub fn key(&self) -> Option<&CellKey> {
        self.about.key.as_ref()
    }

    /// Where the client connected, if it is known here.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.about.origin.as_deref()
    }
}
