//! Cells that many sessions share: which cell new sessions of an app join, the members of each, and their timers.

use crate::api::Now;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_session::{
    cell::CellId,
    holds,
    invariant::BrokenInvariant,
    shared::{SharedCell, SharedEffect},
};
use marram_wire::id::ImageHash;

/// The shared cells of one shard.
#[derive(Debug, Default)]
pub(crate) struct SharedCells {
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
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// When the next timer of a shared cell is due.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// Whether this is a member's id for a shared cell.
    pub(crate) fn has_member(&self, cell: CellId) -> bool {
        self.members.contains_key(&cell)
    }

    /// Whether this is the id of a shared cell.
    pub(crate) fn has(&self, cell: CellId) -> bool {
        self.cells.contains_key(&cell)
    }

    /// The shared cell of a member.
    pub(crate) fn of_member(&self, member: CellId) -> Option<CellId> {
        self.members.get(&member).copied()
    }

    /// The cell that new sessions of an app join, if it runs this image.
    pub(crate) fn current(&self, app: &str, image: ImageHash) -> Option<CellId> {
        let cell = self.by_app.get(app).copied();
        cell.filter(|cell| self.cells.get(cell).is_some_and(|cell| cell.image == image))
    }

    /// A new cell for the sessions of an app from now on. Returns the app's former cell if nothing uses it any more.
    #[must_use]
    pub(crate) fn begin(&mut self, now: Now, cell: CellId, app: &str, image: ImageHash) -> Option<CellId> {
        let shared = SharedCell::new(now, cell);
        self.cells.insert(cell, Cell { shared, image, app: app.into(), timer_ns: None });
        let former = self.by_app.insert(app.into(), cell)?;
        self.forget_if_unused(former)
    }

    /// No new session joins the app's cell any more, unless it runs `image`. Returns the cell if nothing uses it any
    /// more.
    #[must_use]
    pub(crate) fn retire(&mut self, app: &str, image: Option<ImageHash>) -> Option<CellId> {
        let cell = self.by_app.get(app).copied()?;
        if self.cells.get(&cell).is_none_or(|cell| Some(cell.image) == image) {
            return None;
        }
        self.by_app.remove(app);
        self.forget_if_unused(cell)
    }

    /// A member of a cell; its owner uses the id `member`.
    pub(crate) fn add_member(&mut self, member: CellId, cell: CellId) {
        self.members.insert(member, cell);
    }

    /// A member's session is over. Returns its cell if nothing uses it any more.
    #[must_use]
    pub(crate) fn remove_member(&mut self, member: CellId) -> Option<CellId> {
        let cell = self.members.remove(&member)?;
        self.forget_if_unused(cell)
    }

    /// Forgets a cell that has no members and that no session can join, and returns it.
    fn forget_if_unused(&mut self, id: CellId) -> Option<CellId> {
        let cell = self.cells.get(&id)?;
        if !cell.shared.is_empty() || self.by_app.get(&cell.app) == Some(&id) {
            return None;
        }
        self.forget(id);
        Some(id)
    }

    /// A cell does not exist any more. Its members leave as their sessions end.
    pub(crate) fn forget(&mut self, id: CellId) {
        let Some(cell) = self.cells.remove(&id) else { return };
        self.timers.extract_if(.., |(_, timer)| *timer == id).for_each(drop);
        if self.by_app.get(&cell.app) == Some(&id) {
            self.by_app.remove(&cell.app);
        }
    }

    pub(crate) fn members(&self, cell: CellId) -> Vec<CellId> {
        let shares = self.members.iter().filter(|(_, shared)| **shared == cell);
        shares.map(|(member, _)| *member).collect()
    }

    /// Calls a cell and rearms its timer. Returns the effects, in order; none if there is no such cell.
    pub(crate) fn call(
        &mut self,
        id: CellId,
        call: impl FnOnce(&mut SharedCell, &mut Vec<SharedEffect>),
    ) -> Vec<SharedEffect> {
        let mut effects = Vec::new();
        let Some(cell) = self.cells.get_mut(&id) else { return effects };
        call(&mut cell.shared, &mut effects);
        let due_ns = cell.shared.due_ns();
        if due_ns != cell.timer_ns {
            if let Some(timer_ns) = cell.timer_ns {
                self.timers.remove(&(timer_ns, id));
            }
            self.timers.extend(due_ns.map(|due_ns| (due_ns, id)));
            cell.timer_ns = due_ns;
        }
        effects
    }

    /// The next cell with a due timer. Its timer is not armed any more.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<CellId> {
        let (_, id) = *self.timers.first().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        self.timers.pop_first();
        if let Some(cell) = self.cells.get_mut(&id) {
            cell.timer_ns = None;
        }
        Some(id)
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they concern shared cells. `is_owned` is true for the cell ids
    /// that owners use.
    pub(crate) fn invariants(&self, is_owned: impl Fn(CellId) -> bool) -> Result<(), BrokenInvariant> {
        for (app, id) in &self.by_app {
            holds!("I36", self.cells.get(id).is_some_and(|cell| cell.app == *app));
        }
        for (member, id) in &self.members {
            holds!("I36", is_owned(*member) && self.cells.contains_key(id));
        }
        for (due_ns, id) in &self.timers {
            holds!("I36", self.cells.get(id).is_some_and(|cell| cell.timer_ns == Some(*due_ns)));
        }
        let mut members = 0;
        for (id, cell) in &self.cells {
            // The two kinds of ids come from one counter: an executor cannot mistake one for the other.
            holds!("I39", cell.shared.cell() == *id && !is_owned(*id));
            holds!("I39", !cell.shared.is_empty() || self.by_app.get(&cell.app) == Some(id));
            holds!("I36", cell.timer_ns.is_none_or(|due_ns| self.timers.contains(&(due_ns, *id))));
            members += cell.shared.len();
        }
        holds!("I36", members == self.members.len());
        Ok(())
    }
}
