//! Cells that many sessions share: starts them, and carries the effects of one member's input to the owners of the
//! others.

use super::Shard;
use crate::api::{App, CellError, Configure, Now, SchedulingParams, ShardOutput};
use alloc::{collections::VecDeque, vec::Vec};
use marram_session::{
    cell::{CellId, Seed},
    shared::{SharedCell, SharedEffect},
};
use marram_wire::{frame::Code, id::ImageHash};

/// The shard of an edge that has the shared cells of an app, or those in its slot with this number.
pub(super) fn home(app: &str, slot: u32, shards: u8) -> u8 {
    // FNV-1a: distributes names evenly and is the same in every build.
    let hash = app.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Slots of one app are on its shards in turn.
    let place = hash % u64::from(shards.max(1)) + u64::from(slot);
    u8::try_from(place % u64::from(shards.max(1))).unwrap_or(0)
}

/// The other shard that has the app's shared cell in this slot, if it is not this one.
pub(super) fn elsewhere(app: &App, slot: u32, config: &Configure) -> Option<u8> {
    let home = home(&app.name, slot, config.shards);
    (app.shared && home != config.shard).then_some(home)
}

impl Shard {
    /// A session of an app with a shared cell begins: `member` is its owner's id for the cell.
    pub(super) fn join_shared(
        &mut self,
        now: Now,
        app: &str,
        member: CellId,
        (image, seed, place): (ImageHash, Seed, SchedulingParams),
        out: &mut Vec<ShardOutput>,
    ) {
        // A session of an older image does not join the cell of a newer one.
        let cell = match self.shared.current(app, image) {
            Some(cell) => cell,
            None => {
                let cell = self.sessions.new_cell();
                out.push(ShardOutput::Start { cell, image, seed, app: app.into(), session: None, place });
                let unused = self.shared.begin(now, cell, app, image);
                out.extend(unused.map(|cell| ShardOutput::Remove { cell }));
                cell
            }
        };
        // Before the call: its effects may concern the new member already.
        self.shared.add_member(member, cell);
        self.with_shared(now, cell, out, |shared, effects| shared.join(member, effects));
    }

    /// A member's session is over.
    pub(super) fn leave_shared(&mut self, now: Now, member: CellId, out: &mut Vec<ShardOutput>) {
        if let Some(cell) = self.shared.of_member(member) {
            self.with_shared(now, cell, out, |shared, effects| shared.leave(now, member, effects));
        }
        let unused = self.shared.remove_member(member);
        out.extend(unused.map(|cell| ShardOutput::Remove { cell }));
    }

    /// The answer to [`ShardOutput::Start`] for a shared cell.
    pub(super) fn shared_started(
        &mut self,
        now: Now,
        cell: CellId,
        result: Result<(), CellError>,
        out: &mut Vec<ShardOutput>,
    ) {
        let Err(error) = result else {
            return self.with_shared(now, cell, out, |shared, effects| shared.started(now, effects));
        };
        // The cell does not exist. The members' owners end their sessions, with the reason; a new session starts
        // another cell.
        let members = self.shared.members(cell);
        self.shared.forget(cell);
        for member in members {
            let error = error.clone();
            self.with_cell(now, member, out, |owner, effects| {
                owner.started(now, member, Err(error), effects);
            });
        }
    }

    /// Runs due timers of shared cells.
    pub(super) fn shared_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        while let Some(cell) = self.shared.due(now.mono_ns) {
            self.with_shared(now, cell, out, |shared, effects| shared.tick(now, effects));
        }
    }

    /// Calls a shared cell and carries out what it wants. The effects of one member's input on another's owner can
    /// cause further effects: a queue runs them in order, not nested.
    pub(super) fn with_shared(
        &mut self,
        now: Now,
        id: CellId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut SharedCell, &mut Vec<SharedEffect>),
    ) {
        let mut todo = VecDeque::from(self.shared.call(id, call));
        while let Some(effect) = todo.pop_front() {
            match effect {
                SharedEffect::Run(run) => {
                    self.counters.runs += 1;
                    out.push(ShardOutput::Run(run));
                }
                SharedEffect::Started(member) => {
                    self.with_cell(now, member, out, |owner, effects| {
                        owner.started(now, member, Ok(()), effects);
                    });
                }
                SharedEffect::Ran(ran) => {
                    let member = ran.cell;
                    self.with_cell(now, member, out, |owner, effects| owner.ran(now, ran, effects));
                }
                SharedEffect::Deliver(member, outputs) => {
                    self.with_cell(now, member, out, |owner, effects| owner.deliver(now, outputs, effects));
                }
                SharedEffect::Stopped(members, reason) => {
                    // What was stopped cannot run again, for any member.
                    self.shared.forget(id);
                    for member in members {
                        let reason = alloc::format!("the session's shared cell was stopped: {reason}");
                        self.with_cell(now, member, out, |owner, effects| {
                            owner.terminate(Code::Guest, reason, effects);
                        });
                    }
                }
            }
        }
    }
}
