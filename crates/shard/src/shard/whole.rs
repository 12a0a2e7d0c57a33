//! Groups whose sessions are copied at one moment, as the replication of a virtual machine copies all of it: the baseline of benchmarks
//! (`Configure::whole`).
//!
//! ```text
//! epoch ends ─▶ all halt ─▶ no handler runs: all are copied, in one step ─▶ all go on ─▶ the backup has stored the pages of all
//!     ▲                                                                                     │
//!     └──────────────── `every` since the last one, and something happened ◀── all release ─┘
//! ```

use super::{Shard, state::snapshot::Snapshot};
use crate::api::{Now, ShardOutput};
use alloc::vec::Vec;
use marram_session::owner::Owner;
use marram_wire::{frame::GroupId, id::SessionId};

impl Shard {
    /// An epoch of a group is to end.
    pub(super) fn epoch_ends(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.get_mut(name) else { return };
        if !group.kind().pace.whole {
            return self.end_epoch(now, name, false, out);
        }
        let halted: Vec<SessionId> = group.members().collect();
        group.snapshot = Snapshot::Halting { running: halted.clone(), halted: halted.clone() };
        self.halt(&halted);
    }

    fn halt(&mut self, members: &[SessionId]) {
        for id in members {
            self.sessions.get_mut(*id).into_iter().for_each(|session| session.owner.halt());
        }
    }

    /// Goes on with the copies of whole groups.
    pub(super) fn snapshots_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for name in self.groups.copied_together() {
            self.snapshot_due(now, name, out);
        }
    }

    fn snapshot_due(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let (groups, sessions) = (&mut self.groups, &mut self.sessions);
        let Some(group) = groups.get_mut(name) else { return };
        let mut is = |id: SessionId, what: fn(&mut Owner) -> bool| {
            sessions.get_mut(id).is_some_and(|session| what(&mut session.owner))
        };
        match &mut group.snapshot {
            Snapshot::None => {}
            Snapshot::Halting { halted, running } => {
                while running.pop_if(|id| !is(*id, |owner| owner.is_busy())).is_some() {}
                if running.is_empty() {
                    let halted = core::mem::take(halted);
                    self.copy_together(now, name, halted, out);
                }
            }
            Snapshot::Sent { missing } => {
                while missing.pop_if(|id| !is(*id, Owner::has_pages_under_way)).is_some() {}
                if missing.is_empty() {
                    group.snapshot = Snapshot::None;
                    for id in group.members().collect::<Vec<_>>() {
                        self.with_owner(now, id, out, |owner, effects| owner.release_stored(now, effects));
                    }
                }
            }
        }
    }

    /// No handler of the group runs.
    fn copy_together(&mut self, now: Now, name: GroupId, halted: Vec<SessionId>, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.get(name) else { return };
        let members: Vec<SessionId> = group.members().collect();
        // Those that have joined meanwhile too. One of these that runs a handler is copied at its end.
        self.halt(&members);
        self.end_epoch(now, name, false, out);
        for id in halted.into_iter().chain(members.iter().copied()) {
            self.with_owner(now, id, out, |owner, effects| owner.resume(now, effects));
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.snapshot = Snapshot::Sent { missing: members };
        }
    }
}
