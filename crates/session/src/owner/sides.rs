//! The sides of a session, by port, and which of them have changed.
//!
//! A shared cell may have thousands of clients, and what happens concerns mostly one of them. So a change of a side is noted, and
//! what is done for all sides is done for those that have changed since. A session with two ends needs none of this: all of its sides
//! count as changed.

use super::{
    end_state::EndState,
    queues::{Queued, Queues},
};
use crate::invariant::{BrokenInvariant, holds};
use alloc::vec::Vec;
use core::{
    cell::Cell,
    ops::{Index, IndexMut, Range},
};
use marram_wire::id::{Port, SessionId};

/// What is done for each side that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Chore {
    /// The queues are brought up to date.
    Queue,
    /// The end of an entry says what has passed there.
    Mark,
    /// Its end is sent outputs.
    Send,
    /// Its end is granted credit.
    Grant,
    /// Its client may be done, or too slow.
    Look,
    /// Its end may keep so much that it is to forget some of it.
    Measure,
    /// Its end is told to forget.
    Forget,
    /// A backup drops what its end has received.
    Drop,
    /// A backup's entry is complete, and its outputs are logged.
    Log,
}

impl Chore {
    const ALL: [Self; 9] = [
        Self::Queue,
        Self::Mark,
        Self::Send,
        Self::Grant,
        Self::Look,
        Self::Measure,
        Self::Forget,
        Self::Drop,
        Self::Log,
    ];

    fn bit(self) -> u16 {
        1 << self as u8
    }

    fn bits() -> u16 {
        (1 << Self::ALL.len()) - 1
    }
}

/// A client of a shared cell, or a server, came or went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientChange {
    /// Its session.
    pub session: SessionId,
    /// Its port; none if it is gone.
    pub port: Option<Port>,
}

/// If more than one in so many sides have changed, all are visited.
const FEW: usize = 4;

/// The sides of a session, in ascending order of their ports.
#[derive(Debug, Default)]
pub(super) struct Sides {
    list: Vec<EndState>,
    /// Whether changes are noted.
    notes: bool,
    /// By chore, the ports that have changed since it was done. One that is gone may be there, or be there twice.
    changed: [Vec<Port>; Chore::ALL.len()],
    /// The chores for which all sides count as changed: a bitmap.
    all: u16,
    queues: Queues,
    /// Clients that came or went since that was asked for. One that came may be there already.
    news: ClientNews,
    /// How many sides were looked at so far, when all were or those that have changed.
    visits: Visits,
}

/// A count that is no state: what is shown of an owner does not have it.
#[derive(Default)]
struct Visits(Cell<u64>);

impl core::fmt::Debug for Visits {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        to.write_str("Visits")
    }
}

/// What was not asked for yet, and no state either.
#[derive(Default)]
struct ClientNews(Vec<ClientChange>);

impl core::fmt::Debug for ClientNews {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        to.write_str("ClientNews")
    }
}

/// Indices of sides.
pub(super) enum Visit {
    All(Range<usize>),
    Some(alloc::vec::IntoIter<usize>),
}

impl Iterator for Visit {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Self::All(all) => all.next(),
            Self::Some(some) => some.next(),
        }
    }
}

impl Index<usize> for Sides {
    type Output = EndState;

    fn index(&self, index: usize) -> &EndState {
        &self.list[index]
    }
}

/// The side counts as changed.
impl IndexMut<usize> for Sides {
    fn index_mut(&mut self, index: usize) -> &mut EndState {
        if self.notes {
            self.note(index);
        }
        &mut self.list[index]
    }
}

impl Sides {
    /// Those of a session with an end at each side.
    pub(super) fn new(list: Vec<EndState>) -> Self {
        assert!(list.is_sorted_by(|one, next| one.port < next.port), "ports ascend");
        Self { list, ..Self::default() }
    }

    /// Those of a shared cell that has no client.
    pub(super) fn of_clients() -> Self {
        Self { notes: true, ..Self::default() }
    }

    /// How many sides there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Index of the side at this port, if there is one.
    pub(super) fn index(&self, port: Port) -> Option<usize> {
        self.list.binary_search_by_key(&port, |side| side.port).ok()
    }

    /// The side at this index, if there is one.
    pub(super) fn get(&self, index: usize) -> Option<&EndState> {
        self.list.get(index)
    }

    /// All of them, not counted as visited.
    pub(super) fn list(&self) -> &[EndState] {
        &self.list
    }

    /// Those from this port on.
    pub(super) fn at_and_behind(&self, port: Port) -> &[EndState] {
        &self.list[self.list.partition_point(|side| side.port < port)..]
    }

    /// All of them.
    pub(super) fn iter(&self) -> core::slice::Iter<'_, EndState> {
        self.count(self.list.len());
        self.list.iter()
    }

    /// All of them, which count as changed.
    pub(super) fn iter_mut(&mut self) -> core::slice::IterMut<'_, EndState> {
        self.count(self.list.len());
        self.all_for(Chore::bits());
        self.list.iter_mut()
    }

    /// The side at this index, of which nothing changes that a chore is done for.
    pub(super) fn quietly(&mut self, index: usize) -> &mut EndState {
        &mut self.list[index]
    }

    /// Adds one. Returns its index.
    pub(super) fn insert(&mut self, side: EndState) -> usize {
        self.came(&side);
        let at = self.list.partition_point(|other| other.port < side.port);
        self.list.insert(at, side);
        if self.notes {
            self.note(at);
        }
        at
    }

    /// Removes the one at this port.
    pub(super) fn remove(&mut self, port: Port) {
        let Some(index) = self.index(port) else { return };
        let side = self.list.remove(index);
        self.went(&side);
        self.queues.change(port, side.queued, Queued::default());
        self.push(Chore::Mark, port);
    }

    /// The client of this side is there, whether or not its port is open.
    pub(super) fn came(&mut self, side: &EndState) {
        let session = side.client.as_ref().map(|client| client.client.session);
        self.news.0.extend(session.map(|session| ClientChange { session, port: Some(side.port) }));
    }

    /// It is not there any more.
    pub(super) fn went(&mut self, side: &EndState) {
        let session = side.client.as_ref().map(|client| client.client.session);
        self.news.0.extend(session.map(|session| ClientChange { session, port: None }));
    }

    /// Clients that came or went since this was asked last, in this order.
    pub(super) fn take_client_changes(&mut self) -> Vec<ClientChange> {
        core::mem::take(&mut self.news.0)
    }

    /// Puts these in the place of all others.
    pub(super) fn replace(&mut self, list: Vec<EndState>) {
        core::mem::take(&mut self.list).iter().for_each(|side| self.went(side));
        list.iter().for_each(|side| self.came(side));
        self.list = list;
        self.all_for(Chore::bits());
    }

    /// Removes those that do not fit.
    pub(super) fn retain(&mut self, fits: impl FnMut(&EndState) -> bool) {
        self.count(self.list.len());
        let (stay, go): (Vec<_>, Vec<_>) = core::mem::take(&mut self.list).into_iter().partition(fits);
        go.iter().for_each(|side| self.went(side));
        self.list = stay;
        self.all_for(Chore::bits());
    }

    /// The side at this port counts as changed, if there is one.
    pub(super) fn changed(&mut self, port: Port) {
        if let Some(index) = self.index(port).filter(|_| self.notes) {
            self.note(index);
        }
    }

    /// Each side counts as changed for this chore.
    pub(super) fn all_changed(&mut self, chore: Chore) {
        self.all_for(chore.bit());
    }

    fn all_for(&mut self, bits: u16) {
        if self.notes {
            self.all |= bits;
        }
    }

    fn count(&self, sides: usize) {
        let Visits(count) = &self.visits;
        count.set(count.get() + sides as u64);
    }

    /// How many sides were looked at so far.
    pub(super) fn visits(&self) -> u64 {
        self.visits.0.get()
    }

    fn note(&mut self, index: usize) {
        let side = &mut self.list[index];
        let missing = Chore::bits() & !(side.noted | self.all);
        if missing == 0 {
            return;
        }
        side.noted |= missing;
        let port = side.port;
        for chore in Chore::ALL.into_iter().filter(|chore| missing & chore.bit() != 0) {
            self.push(chore, port);
        }
    }

    /// Clients may come and go while a chore is not done, such as one that only a backup does.
    fn push(&mut self, chore: Chore, port: Port) {
        let changed = &mut self.changed[chore as usize];
        if changed.len() <= 2 * self.list.len() {
            return changed.push(port);
        }
        changed.clear();
        self.all_for(chore.bit());
    }

    /// The ports at which something has changed since the chore was done, among them such that are gone: it is done for these now. None
    /// if it is done for all.
    pub(super) fn take_changed(&mut self, chore: Chore) -> Option<Vec<Port>> {
        if !self.notes {
            return None;
        }
        let bit = chore.bit();
        let mut ports = core::mem::take(&mut self.changed[chore as usize]);
        if self.all & bit != 0 || FEW * ports.len() > self.list.len() {
            self.all &= !bit;
            self.count(self.list.len());
            self.list.iter_mut().for_each(|side| side.noted &= !bit);
            return None;
        }
        ports.sort_unstable();
        ports.dedup();
        self.count(ports.len());
        for port in &ports {
            if let Some(index) = self.index(*port) {
                self.list[index].noted &= !bit;
            }
        }
        Some(ports)
    }

    /// The sides that have changed since the chore was done, which is done for these now.
    pub(super) fn visit(&mut self, chore: Chore) -> Visit {
        let Some(ports) = self.take_changed(chore) else { return Visit::All(0..self.list.len()) };
        let indices: Vec<usize> = ports.into_iter().filter_map(|port| self.index(port)).collect();
        Visit::Some(indices.into_iter())
    }

    /// Which sides of a shared cell wait for what.
    pub(super) fn queues(&mut self) -> &Queues {
        let is_all = self.all & Chore::Queue.bit() != 0;
        let visit = self.visit(Chore::Queue);
        if is_all {
            // A side may be gone.
            self.queues = Queues::default();
            self.list.iter_mut().for_each(|side| side.queued = Queued::default());
        }
        for index in visit {
            let side = &mut self.list[index];
            let now = Queued::of(side);
            self.queues.change(side.port, side.queued, now);
            side.queued = now;
        }
        &self.queues
    }

    /// The same, as they were when they were last asked for: nothing has changed since.
    pub(super) fn settled(&self) -> &Queues {
        &self.queues
    }

    /// Bytes held in memory for all.
    pub(super) fn held_bytes(&self) -> u64 {
        if !self.notes || self.all & Chore::Queue.bit() != 0 {
            return self.iter().map(EndState::held_bytes).sum();
        }
        let changed = &self.changed[Chore::Queue as usize];
        self.count(changed.len());
        // One that is gone and has come back may be there twice.
        let mut sides: Vec<usize> = changed.iter().filter_map(|port| self.index(*port)).collect();
        sides.sort_unstable();
        sides.dedup();
        sides
            .into_iter()
            .map(|index| &self.list[index])
            .fold(self.queues.held_bytes, |sum, side| sum + side.held_bytes() - side.queued.held_bytes)
    }
}

impl Sides {
    /// All of them, for what checks them.
    pub(super) fn all(&self) -> core::slice::Iter<'_, EndState> {
        self.list.iter()
    }

    /// Whether this side has changed since the chore was done.
    pub(super) fn has_changed(&self, side: &EndState, chore: Chore) -> bool {
        (self.all | side.noted) & chore.bit() != 0
    }

    /// I52 of docs/protocol.md: the queues say what the sides do, and each change is noted once.
    pub(super) fn queue_invariants(&self) -> Result<(), BrokenInvariant> {
        for chore in Chore::ALL {
            let changed = &self.changed[chore as usize];
            let is_noted = |side: &EndState| side.noted & chore.bit() != 0;
            let is_all = self.all & chore.bit() != 0;
            holds!("I52", is_all || self.all().all(|side| !is_noted(side) || changed.contains(&side.port)));
        }
        if self.all & Chore::Queue.bit() != 0 {
            return Ok(());
        }
        let mut queues = Queues::default();
        for side in self.all() {
            let is_current = self.has_changed(side, Chore::Queue) || side.queued == Queued::of(side);
            holds!("I52", is_current);
            queues.change(side.port, Queued::default(), side.queued);
        }
        holds!("I52", queues == self.queues);
        let held: u64 = self.all().map(EndState::held_bytes).sum();
        holds!("I52", self.held_bytes() == held);
        Ok(())
    }
}
