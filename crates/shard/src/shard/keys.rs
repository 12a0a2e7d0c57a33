//! Apps with one shared cell for each key (docs/protocol-epochs.md, "Keys"): which cell a client is for, and when a cell is over.
//!
//! The cells of a slot are in one group, which has a cell as long as its version is deployed: so its backup knows of it. A cell whose last
//! client has left is over. It ends if its slot has another one; else it stays, until a cell begins in the slot.

use super::{
    Shard,
    hello::{Refusal, refuse},
    state::{groups::Group, sessions::Session},
};
use crate::{
    api::{App, Now, ShardOutput},
    coordinator::SlotName,
};
use alloc::{format, string::ToString, vec::Vec};
use marram_session::owner::OwnerPhase;
use marram_wire::{
    frame::{Code, GroupId, Hello},
    id::SessionId,
    key::CellKey,
};

/// Cells of one slot. More of them would be many of one backup, and one claim.
pub const CELLS_PER_SLOT_MAX: usize = 1_024;

/// How long a cell that runs waits for its first client.
pub const UNUSED_NS: u64 = 10_000_000_000;

/// The shared cell that a client asks for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) app: &'a App,
    /// Which of the app's cells; none if it has one.
    pub(super) key: Option<&'a CellKey>,
}

impl<'a> Wanted<'a> {
    /// What this hello is for.
    ///
    /// # Errors
    /// If it has no key and the app has one cell for each, or the other way round.
    pub(super) fn by(hello: &'a Hello, app: &'a App) -> Result<Self, Refusal> {
        let key = hello.key.0.as_deref();
        match (app.has_keys(), key) {
            (true, None) => refuse(
                Code::Protocol,
                format!(
                    "app `{}` has one cell for each key, and its clients come without one; write `key` at the listener, gate or rule \
                     that leads there",
                    app.name
                ),
            ),
            (false, Some(_)) => Err(no_keys(app)),
            _ => Ok(Self { app, key }),
        }
    }

    /// The number of its slot.
    pub(super) fn number(&self) -> u32 {
        SlotName::number(self.key, self.app.slots)
    }

    pub(super) fn slot(&self) -> SlotName {
        SlotName::of(&self.app.version(), self.number())
    }
}

fn no_keys(app: &App) -> Refusal {
    let reason = format!(
        "app `{}` has no keys; remove `key` at the listener, gate or rule that leads there, or write `key = \"required\"` in its manifest",
        app.name
    );
    Refusal::Rejected(Code::Protocol, reason)
}

impl Shard {
    /// Whether a client may begin a session of an app with a cell for each client, or one on each edge: it comes without a key.
    pub(super) fn may_begin_without_key(hello: &Hello, app: &App) -> Result<(), Refusal> {
        if hello.fresh && hello.key.0.is_some() { Err(no_keys(app)) } else { Ok(()) }
    }

    /// The number of the slot that a shared cell is in.
    pub(super) fn slot_number(&self, session: &Session) -> u32 {
        let slots = self.apps.of_image_of(&session.owner).map_or(0, |app| app.slots);
        SlotName::number(session.owner.key(), slots)
    }

    /// The slot that a shared cell is in.
    pub(super) fn slot_of(&self, cell: SessionId) -> Option<SlotName> {
        let session = self.sessions.get(cell)?;
        let app = self.apps.of_image_of(&session.owner)?;
        Some(SlotName::of(&app.version(), self.slot_number(session)))
    }

    /// The cell that is wanted, if it is here, running or not.
    pub(super) fn cell_here(&self, wanted: Wanted<'_>) -> Option<SessionId> {
        let cells = self.sessions.cells_of(wanted.app.image, wanted.key);
        let cells =
            cells.filter(|cell| self.sessions.get(*cell).is_some_and(|it| it.app() == wanted.app.name));
        // A copy of one that is over may wait to be dropped.
        cells.min_by_key(|cell| self.sessions.is_following(*cell))
    }

    /// Notes from when on a cell is over, if no client comes: not if it has one, or is one for all clients and nothing is on its way to a
    /// server.
    pub(super) fn note_unused(&mut self, now: Now, cell: SessionId) {
        let Some(session) = self.sessions.get_mut(cell) else { return };
        let owner = &session.owner;
        let is_unused = owner.phase() == OwnerPhase::Running && owner.client_count() == 0;
        // What it has told a server is to arrive, as long as its agent takes some of it in the linger time.
        let owed = owner.owed_to_servers().filter(|_| is_unused);
        let has_changed = core::mem::replace(&mut session.owed, owed) != owed;
        let unused_ns = if session.had_clients { 0 } else { UNUSED_NS };
        let wait_ns = if owed.is_some() { session.linger_ns().max(unused_ns) } else { unused_ns };
        let is_held = owed.is_some_and(|owed| owed.is_held);
        let is_over = is_unused && !is_held && (owner.key().is_some() || owed.is_some());
        if has_changed {
            self.sessions.note_unused(cell, None);
        }
        self.sessions.note_unused(cell, is_over.then(|| now.mono_ns.saturating_add(wait_ns)));
    }

    /// Whether a group may have one more cell.
    pub(super) fn has_room_in_slot(&self, group: GroupId) -> Result<(), Refusal> {
        let cells = self.groups.get(group).map_or(0, Group::member_count);
        if cells < CELLS_PER_SLOT_MAX {
            return Ok(());
        }
        refuse(
            Code::Busy,
            format!(
                "the slot of the client's key has {CELLS_PER_SLOT_MAX} cells, which is the maximum; deploy a version of the app with more \
                 `slots`"
            ),
        )
    }

    /// Tells groups which of their cells have become over.
    pub(super) fn cells_over(&mut self, now: Now) {
        while let Some(cell) = self.sessions.next_over(now.mono_ns) {
            let name = self.groups.of_session(cell);
            self.groups_idle.extend(name);
            if let Some(group) = name.and_then(|name| self.groups.get_mut(name)) {
                group.is_over_now(cell);
            }
        }
    }

    /// Ends the cells of a group that are over, except for its last one.
    pub(super) fn end_unused_cells(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        // Its backup may go on with those that were handed over.
        let is_handed_over = self.handed_over_to(name).is_some();
        if is_handed_over || !self.groups.get(name).is_some_and(Group::may_end_one) {
            return;
        }
        while let Some(cell) = self.groups.get_mut(name).and_then(Group::next_over) {
            if self.sessions.is_over(now.mono_ns, cell) {
                self.end_unused(now, cell, out);
            }
        }
    }

    /// Ends a cell that has no clients.
    pub(super) fn end_unused(&mut self, now: Now, cell: SessionId, out: &mut Vec<ShardOutput>) {
        self.tell_of_full_servers(cell, out);
        self.with_owner(now, cell, out, |owner, effects| {
            owner.terminate(Code::Finished, "the last client has left".to_string(), effects);
        });
    }
}
