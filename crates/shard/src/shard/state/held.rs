//! Hellos of clients that wait for their shared cell (docs/protocol-epochs.md, "Shared cells"), by slot and key: what changes of one cell
//! is looked at for its own clients only. When many keys begin at once, nearly all clients wait for other cells.

use crate::{api::ShardWireId, coordinator::SlotName};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::Hello, id::SessionId, key::CellKey};

/// A cell, by its slot and its key.
type Cell = (SlotName, Option<CellKey>);

/// One hello.
#[derive(Debug)]
struct HeldHello {
    wire: ShardWireId,
    slot: SlotName,
    hello: Hello,
}

impl HeldHello {
    fn cell(&self) -> Cell {
        (self.slot, self.hello.key.0.as_deref().cloned())
    }
}

/// All of them: at most one of each client, so one that asks again does not fill it.
#[derive(Debug, Default)]
pub(crate) struct HeldHellos {
    /// By the place in the queue.
    by_place: BTreeMap<u64, HeldHello>,
    place_of: BTreeMap<SessionId, u64>,
    by_cell: BTreeSet<(Cell, u64)>,
    by_wire: BTreeSet<(ShardWireId, u64)>,
    given: u64,
    /// Places of those that may be answered now.
    changed: BTreeSet<u64>,
}

impl HeldHellos {
    /// A client waits for its cell in this slot. It keeps its place if it waits already.
    pub(crate) fn push(&mut self, wire: ShardWireId, slot: SlotName, hello: Hello) {
        let session = hello.session;
        let place = match self.place_of.get(&session) {
            Some(place) => *place,
            None => {
                self.given += 1;
                self.given
            }
        };
        self.take(place);
        let held = HeldHello { wire, slot, hello };
        self.by_cell.insert((held.cell(), place));
        self.by_wire.insert((wire, place));
        self.place_of.insert(session, place);
        self.by_place.insert(place, held);
    }

    fn take(&mut self, place: u64) -> Option<(ShardWireId, Hello)> {
        let held = self.by_place.remove(&place)?;
        self.by_cell.remove(&(held.cell(), place));
        self.by_wire.remove(&(held.wire, place));
        self.place_of.remove(&held.hello.session);
        self.changed.remove(&place);
        Some((held.wire, held.hello))
    }

    /// Something is known of this slot: its clients look again.
    pub(crate) fn slot_changed(&mut self, slot: SlotName) {
        let of_slot = self.by_cell.range(((slot, None), 0)..).take_while(|((of, _), _)| *of == slot);
        self.changed.extend(of_slot.map(|(_, place)| *place));
    }

    /// The cell of this key has changed: its clients look again.
    pub(crate) fn cell_changed(&mut self, slot: SlotName, key: Option<CellKey>) {
        let cell = (slot, key);
        let of_cell = self.by_cell.range((cell.clone(), 0)..=(cell, u64::MAX));
        self.changed.extend(of_cell.map(|(_, place)| *place));
    }

    /// Those that may be answered now, the oldest first.
    pub(crate) fn take_changed(&mut self) -> Vec<(ShardWireId, Hello)> {
        let places = core::mem::take(&mut self.changed);
        places.into_iter().filter_map(|place| self.take(place)).collect()
    }

    /// Those of this slot, the oldest first.
    pub(crate) fn take_slot(&mut self, slot: SlotName) -> Vec<(ShardWireId, Hello)> {
        let others = core::mem::take(&mut self.changed);
        self.slot_changed(slot);
        let taken = self.take_changed();
        self.changed = others.into_iter().filter(|place| self.by_place.contains_key(place)).collect();
        taken
    }

    /// A wire is gone, with the ends that asked over it.
    pub(crate) fn drop_wire(&mut self, wire: ShardWireId) {
        let of_wire = self.by_wire.range((wire, 0)..=(wire, u64::MAX));
        for place in of_wire.map(|(_, place)| *place).collect::<Vec<_>>() {
            self.take(place);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they concern these. `is_up` is true for wires that there are.
    pub(crate) fn invariants(&self, is_up: impl Fn(ShardWireId) -> bool) -> Result<(), BrokenInvariant> {
        for (place, held) in &self.by_place {
            holds!("I36", is_up(held.wire) && self.by_wire.contains(&(held.wire, *place)));
            holds!("I39", self.place_of.get(&held.hello.session) == Some(place));
            holds!("I39", self.by_cell.contains(&(held.cell(), *place)));
        }
        let counts = [self.place_of.len(), self.by_cell.len(), self.by_wire.len()];
        holds!("I39", counts == [self.by_place.len(); 3]);
        holds!("I39", self.changed.iter().all(|place| self.by_place.contains_key(place)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{boxed::Box, string::String, vec};
    use marram_wire::{codec::Last, id::Generation};

    const A: ShardWireId = ShardWireId(1);
    const B: ShardWireId = ShardWireId(2);

    fn slot(number: u8) -> SlotName {
        SlotName([number; 16])
    }

    fn key(text: &str) -> Option<CellKey> {
        CellKey::new(text.as_bytes().to_vec()).ok()
    }

    fn hello(session: u8, of: &str) -> Hello {
        Hello {
            channel: 2,
            session: SessionId([session; 16]),
            server: false,
            app: String::new(),
            image: None,
            promised: Generation::NONE,
            peer: None,
            fresh: false,
            proof: None,
            origin: None,
            active: false,
            key: Last(key(of).map(Box::new)),
        }
    }

    fn taken(held: &mut HeldHellos) -> Vec<u8> {
        assert_eq!(held.invariants(|_| true), Ok(()));
        let taken = held.take_changed().into_iter().map(|(_, hello)| hello.session.0[0]).collect();
        assert_eq!(held.invariants(|_| true), Ok(()));
        taken
    }

    #[test]
    fn only_clients_of_what_has_changed_look_again_the_oldest_first() {
        let mut held = HeldHellos::default();
        for (session, of, number) in [(9, "a", 1), (1, "b", 1), (2, "a", 1), (3, "a", 2), (4, "", 3)] {
            held.push(A, slot(number), hello(session, of));
        }
        assert_eq!(taken(&mut held), []);
        held.cell_changed(slot(1), key("a"));
        // One that asks again keeps its place.
        held.push(B, slot(1), hello(9, "a"));
        held.cell_changed(slot(1), key("a"));
        assert_eq!(taken(&mut held), [9, 2]);
        held.slot_changed(slot(1));
        assert_eq!(taken(&mut held), [1]);
        held.slot_changed(slot(3));
        held.cell_changed(slot(2), key("x"));
        assert_eq!(taken(&mut held), [4]);
        held.push(A, slot(5), hello(5, "a"));
        held.slot_changed(slot(5));
        assert_eq!(held.take_slot(slot(2)).len(), 1);
        assert_eq!(taken(&mut held), [5]);
        held.push(A, slot(5), hello(6, "a"));
        assert_eq!(held.take_slot(slot(5)).len(), 1);
        assert!(held.is_empty());
    }

    #[test]
    fn those_behind_a_wire_that_is_gone_do_not_wait() {
        let mut held = HeldHellos::default();
        held.push(A, slot(1), hello(1, "a"));
        held.push(B, slot(1), hello(2, "a"));
        held.push(A, slot(1), hello(3, "b"));
        held.slot_changed(slot(1));
        held.drop_wire(A);
        assert_eq!(held.invariants(|wire| wire == B), Ok(()));
        assert_eq!(taken(&mut held), vec![2]);
        assert!(held.is_empty());
    }
}
