//! Cells that many sessions share: which sessions are members of which cell, and the effects of one member on the others.

use super::Shard;
use crate::api::{App, CellError, Now, SchedulingParams, ShardOutput};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};
use marram_session::{
    cell::{CellId, Ran, Run, Seed},
    holds,
    invariant::BrokenInvariant,
    shared::{SharedCell, SharedEffect},
};
use marram_wire::{
    frame::Code,
    id::{ImageHash, SessionId},
};

/// The shared cells of one shard.
#[derive(Debug, Default)]
pub(super) struct SharedCells {
    cells: BTreeMap<CellId, Cell>,
    /// The cell that new sessions of an app join.
    by_app: BTreeMap<String, CellId>,
    /// The shared cell of each member, by the cell id that the member's owner uses.
    members: BTreeMap<CellId, CellId>,
    timers: BTreeSet<(u64, CellId)>,
}

#[derive(Debug)]
struct Cell {
    shared: SharedCell,
    image: ImageHash,
    app: String,
    /// In [`SharedCells::timers`].
    timer_ns: Option<u64>,
}

impl SharedCells {
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// When the next timer of a shared cell is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// Whether this is a member's id for a shared cell.
    pub(super) fn has_member(&self, cell: CellId) -> bool {
        self.members.contains_key(&cell)
    }

    /// Whether this is the id of a shared cell.
    pub(super) fn has(&self, cell: CellId) -> bool {
        self.cells.contains_key(&cell)
    }
}

impl SharedCells {
    /// Checks I36 and I39 of docs/protocol.md, as far as they concern shared cells. `owned` has the owner's id of each session's cell.
    pub(super) fn invariants(&self, owned: &BTreeMap<CellId, SessionId>) -> Result<(), BrokenInvariant> {
        for (app, id) in &self.by_app {
            holds!("I36", self.cells.get(id).is_some_and(|cell| cell.app == *app));
        }
        for (member, id) in &self.members {
            holds!("I36", owned.contains_key(member) && self.cells.contains_key(id));
        }
        for (due_ns, id) in &self.timers {
            holds!("I36", self.cells.get(id).is_some_and(|cell| cell.timer_ns == Some(*due_ns)));
        }
        let mut members = 0;
        for (id, cell) in &self.cells {
            // The two kinds of ids come from one counter: an executor cannot mistake one for the other.
            holds!("I39", cell.shared.cell() == *id && !owned.contains_key(id));
            holds!("I39", !cell.shared.is_empty() || self.by_app.get(&cell.app) == Some(id));
            holds!("I36", cell.timer_ns.is_none_or(|due_ns| self.timers.contains(&(due_ns, *id))));
            members += cell.shared.len();
        }
        holds!("I36", members == self.members.len());
        Ok(())
    }
}

/// The shard of an edge that has the shared cell of an app.
pub(super) fn home(app: &str, shards: u8) -> u8 {
    // FNV-1a: distributes names evenly and is the same in every build.
    let hash = app.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u8::try_from(hash % u64::from(shards.max(1))).unwrap_or(0)
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
        let current = self.shared.by_app.get(app).copied();
        let current = current.filter(|cell| self.shared.cells.get(cell).is_some_and(|c| c.image == image));
        let cell = current.unwrap_or_else(|| {
            self.cells_made += 1;
            let cell = CellId(self.cells_made);
            out.push(ShardOutput::Start { cell, image, seed, app: app.into(), session: None, place });
            let shared = SharedCell::new(now, cell);
            self.shared.cells.insert(cell, Cell { shared, image, app: app.into(), timer_ns: None });
            let old = self.shared.by_app.insert(app.into(), cell);
            old.into_iter().for_each(|old| self.drop_if_unused(old, out));
            cell
        });
        self.shared.members.insert(member, cell);
        self.with_shared(now, cell, out, |shared, effects| shared.join(member, effects));
    }

    /// A member's owner runs a handler.
    pub(super) fn run_shared(&mut self, now: Now, run: Run, out: &mut Vec<ShardOutput>) {
        let member = run.cell;
        self.with_member(now, member, out, |shared, effects| shared.run(now, run, effects));
    }

    /// A member's session is over.
    pub(super) fn leave_shared(&mut self, now: Now, member: CellId, out: &mut Vec<ShardOutput>) {
        let cell = self.shared.members.get(&member).copied();
        self.with_member(now, member, out, |shared, effects| shared.leave(now, member, effects));
        self.shared.members.remove(&member);
        cell.into_iter().for_each(|cell| self.drop_if_unused(cell, out));
    }

    /// No new session joins the app's cell any more: another version was deployed, or none.
    pub(super) fn retire_shared(&mut self, app: &str, image: Option<ImageHash>, out: &mut Vec<ShardOutput>) {
        let Some(cell) = self.shared.by_app.get(app).copied() else { return };
        if self.shared.cells.get(&cell).is_some_and(|cell| Some(cell.image) != image) {
            self.shared.by_app.remove(app);
            self.drop_if_unused(cell, out);
        }
    }

    /// Removes a shared cell that has no members and that no session can join.
    fn drop_if_unused(&mut self, cell: CellId, out: &mut Vec<ShardOutput>) {
        let unused = self.shared.cells.get(&cell).is_some_and(|shared| {
            shared.shared.is_empty() && self.shared.by_app.get(&shared.app) != Some(&cell)
        });
        if unused {
            self.forget_shared(cell);
            out.push(ShardOutput::Remove { cell });
        }
    }

    fn forget_shared(&mut self, id: CellId) {
        let Some(cell) = self.shared.cells.remove(&id) else { return };
        self.shared.timers.extract_if(.., |(_, timer)| *timer == id).for_each(drop);
        if self.shared.by_app.get(&cell.app) == Some(&id) {
            self.shared.by_app.remove(&cell.app);
        }
    }

    /// The answer to [`ShardOutput::Start`] for a shared cell.
    pub(super) fn shared_started(
        &mut self,
        now: Now,
        cell: CellId,
        result: Result<(), CellError>,
        out: &mut Vec<ShardOutput>,
    ) {
        match result {
            Ok(()) => self.with_shared(now, cell, out, |shared, effects| shared.started(now, effects)),
            Err(error) => {
                let members: Vec<CellId> = self.shared_members(cell);
                self.forget_shared(cell);
                for member in members {
                    let error = error.clone();
                    self.with_cell(now, member, out, |owner, effects| {
                        owner.started(now, member, Err(error), effects);
                    });
                }
            }
        }
    }

    /// The answer to [`ShardOutput::Run`] for a shared cell.
    pub(super) fn shared_ran(&mut self, now: Now, ran: Ran, out: &mut Vec<ShardOutput>) {
        self.with_shared(now, ran.cell, out, |shared, effects| shared.ran(now, ran, effects));
    }

    /// Runs due timers of shared cells.
    pub(super) fn shared_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        while let Some((due_ns, cell)) = self.shared.timers.first().copied() {
            if due_ns > now.mono_ns {
                return;
            }
            self.shared.timers.pop_first();
            if let Some(cell) = self.shared.cells.get_mut(&cell) {
                cell.timer_ns = None;
            }
            self.with_shared(now, cell, out, |shared, effects| shared.tick(now, effects));
        }
    }

    fn shared_members(&self, cell: CellId) -> Vec<CellId> {
        let shares = self.shared.members.iter().filter(|(_, shared)| **shared == cell);
        shares.map(|(member, _)| *member).collect()
    }

    fn with_member(
        &mut self,
        now: Now,
        member: CellId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut SharedCell, &mut Vec<SharedEffect>),
    ) {
        if let Some(cell) = self.shared.members.get(&member).copied() {
            self.with_shared(now, cell, out, call);
        }
    }

    fn with_shared(
        &mut self,
        now: Now,
        id: CellId,
        out: &mut Vec<ShardOutput>,
        call: impl FnOnce(&mut SharedCell, &mut Vec<SharedEffect>),
    ) {
        let Some(cell) = self.shared.cells.get_mut(&id) else { return };
        let mut effects = Vec::new();
        call(&mut cell.shared, &mut effects);
        let due_ns = cell.shared.due_ns();
        if due_ns != cell.timer_ns {
            if let Some(timer_ns) = cell.timer_ns {
                self.shared.timers.remove(&(timer_ns, id));
            }
            self.shared.timers.extend(due_ns.map(|due_ns| (due_ns, id)));
            cell.timer_ns = due_ns;
        }
        self.perform_shared(now, id, effects, out);
    }

    /// The effects of one member's input on another's owner can cause further effects: a queue runs them in order, not nested.
    fn perform_shared(
        &mut self,
        now: Now,
        id: CellId,
        effects: Vec<SharedEffect>,
        out: &mut Vec<ShardOutput>,
    ) {
        let mut todo = VecDeque::from(effects);
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
                    self.forget_shared(id);
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

    /// The other shard that has the app's shared cell, if it is not this one.
    pub(super) fn is_elsewhere(&self, app: &App) -> Option<u8> {
        let home = home(&app.name, self.config.shards);
        (app.shared && home != self.config.shard).then_some(home)
    }
}
