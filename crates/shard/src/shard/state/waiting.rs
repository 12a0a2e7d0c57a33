//! Hellos that wait until a recovery is allowed (docs/protocol.md, "Opening a generation"), the oldest first.

use crate::api::ShardWireId;
use alloc::collections::BTreeMap;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::Hello, id::SessionId};

/// An end: its session, and whether it is the server's.
type End = (SessionId, bool);

fn end_of(hello: &Hello) -> End {
    (hello.session, hello.server)
}

/// The queue. It holds at most one hello of each end, so an end that asks again does not fill it. When an edge dies, all
/// of its sessions may wait here at once: only what a wire's end drops is searched for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// By the place in the queue.
    hellos: BTreeMap<u64, (ShardWireId, Hello)>,
    /// The place of each end that waits.
    places: BTreeMap<End, u64>,
    /// Places that were given.
    given: u64,
}

impl Waiting {
    /// Adds a hello at the end. One of an end that waits already takes the place of the former one: that end has waited
    /// since then.
    pub(crate) fn push(&mut self, wire: ShardWireId, hello: Hello) {
        let given = &mut self.given;
        let place = *self.places.entry(end_of(&hello)).or_insert_with(|| {
            *given += 1;
            *given
        });
        self.hellos.insert(place, (wire, hello));
    }

    pub(crate) fn pop(&mut self) -> Option<(ShardWireId, Hello)> {
        let (_, (wire, hello)) = self.hellos.pop_first()?;
        self.places.remove(&end_of(&hello));
        Some((wire, hello))
    }

    /// A wire is gone, with the ends that asked over it.
    pub(crate) fn drop_wire(&mut self, wire: ShardWireId) {
        let places = &mut self.places;
        self.hellos.retain(|_, (other, hello)| {
            let stays = *other != wire;
            if !stays {
                places.remove(&end_of(hello));
            }
            stays
        });
    }

    /// Whether an end of this session waits.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        [false, true].iter().any(|server| self.places.contains_key(&(session, *server)))
    }

    pub(crate) fn len(&self) -> usize {
        self.hellos.len()
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they concern this queue. `is_up` is true for wires that there
    /// are.
    pub(crate) fn invariants(&self, is_up: impl Fn(ShardWireId) -> bool) -> Result<(), BrokenInvariant> {
        for (place, (wire, hello)) in &self.hellos {
            holds!("I36", is_up(*wire));
            holds!("I39", self.places.get(&end_of(hello)) == Some(place));
        }
        holds!("I39", self.places.len() == self.hellos.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::String, vec, vec::Vec};
    use marram_wire::id::Generation;

    const A: ShardWireId = ShardWireId(1);
    const B: ShardWireId = ShardWireId(2);

    fn hello(session: u8, server: bool) -> Hello {
        Hello {
            channel: 2,
            session: SessionId([session; 16]),
            server,
            app: String::new(),
            image: None,
            promised: Generation::NONE,
            peer: None,
            fresh: false,
            proof: None,
            origin: None,
        }
    }

    impl Waiting {
        fn order(mut self) -> Vec<(ShardWireId, u8, bool)> {
            assert_eq!(self.invariants(|_| true), Ok(()));
            let mut order = Vec::new();
            while let Some((wire, hello)) = self.pop() {
                order.push((wire, hello.session.0[0], hello.server));
                assert_eq!(self.invariants(|_| true), Ok(()));
            }
            order
        }
    }

    #[test]
    fn the_oldest_is_first_and_an_end_that_asks_again_keeps_its_place() {
        let mut waiting = Waiting::default();
        for (wire, session, server) in [(A, 3, false), (A, 1, true), (B, 2, false), (A, 1, false)] {
            waiting.push(wire, hello(session, server));
        }
        // Over another wire, since the first one broke.
        waiting.push(B, hello(3, false));
        assert_eq!(waiting.len(), 4);
        assert_eq!(waiting.order(), vec![(B, 3, false), (A, 1, true), (B, 2, false), (A, 1, false)]);
    }

    #[test]
    fn the_ends_behind_a_wire_that_is_gone_do_not_wait_and_lose_their_places() {
        let mut waiting = Waiting::default();
        waiting.push(A, hello(1, false));
        waiting.push(B, hello(2, false));
        waiting.push(A, hello(2, true));
        waiting.drop_wire(A);
        assert!(waiting.has(SessionId([2; 16])) && !waiting.has(SessionId([1; 16])));
        waiting.push(B, hello(1, false));
        assert_eq!(waiting.order(), vec![(B, 2, false), (B, 1, false)]);
    }
}
