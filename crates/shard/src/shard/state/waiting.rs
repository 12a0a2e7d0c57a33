//! Hellos that wait until a recovery is allowed (docs/protocol.md, "Opening a generation"): those of active programs first, and
//! of these the oldest.

use crate::api::ShardWireId;
use alloc::collections::BTreeMap;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::Hello, id::SessionId};

/// An end: its session, and whether it is the server's.
type End = (SessionId, bool);

fn end_of(hello: &Hello) -> End {
    (hello.session, hello.server)
}

/// One of so many recoveries is that of the end that has waited longest, active or not, so that every end has its turn.
const OLDEST_EVERY: u64 = 8;

/// The queue. It holds at most one hello of each end, so an end that asks again does not fill it. When an edge dies, all
/// of its sessions may wait here at once: only what a wire's end drops is searched for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// By the place in the queue: of ends whose program is active, and of others.
    active: BTreeMap<u64, (ShardWireId, Hello)>,
    idle: BTreeMap<u64, (ShardWireId, Hello)>,
    /// The place of each end that waits.
    places: BTreeMap<End, u64>,
    /// Places that were given, and hellos that were taken.
    given: u64,
    taken: u64,
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
        let (own, other) = if hello.active {
            (&mut self.active, &mut self.idle)
        } else {
            (&mut self.idle, &mut self.active)
        };
        other.remove(&place);
        own.insert(place, (wire, hello));
    }

    /// The next one: the oldest of an active program mostly, and the oldest of all now and then.
    pub(crate) fn pop(&mut self) -> Option<(ShardWireId, Hello)> {
        let oldest = |queue: &BTreeMap<u64, _>| queue.first_key_value().map(|(place, _)| *place);
        let is_turn_of_oldest = (self.taken + 1).is_multiple_of(OLDEST_EVERY);
        let is_active_first = match (oldest(&self.active), oldest(&self.idle)) {
            (Some(active), Some(idle)) => active < idle || !is_turn_of_oldest,
            (active, _) => active.is_some(),
        };
        let queue = if is_active_first { &mut self.active } else { &mut self.idle };
        let (_, (wire, hello)) = queue.pop_first()?;
        self.taken += 1;
        self.places.remove(&end_of(&hello));
        Some((wire, hello))
    }

    /// A wire is gone, with the ends that asked over it.
    pub(crate) fn drop_wire(&mut self, wire: ShardWireId) {
        let places = &mut self.places;
        for queue in [&mut self.active, &mut self.idle] {
            queue.retain(|_, (other, hello)| {
                let stays = *other != wire;
                if !stays {
                    places.remove(&end_of(hello));
                }
                stays
            });
        }
    }

    /// Whether an end of this session waits.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        [false, true].iter().any(|server| self.places.contains_key(&(session, *server)))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they concern this queue. `is_up` is true for wires that there
    /// are.
    pub(crate) fn invariants(&self, is_up: impl Fn(ShardWireId) -> bool) -> Result<(), BrokenInvariant> {
        for (place, (wire, hello)) in self.active.iter().chain(&self.idle) {
            holds!("I36", is_up(*wire));
            holds!("I39", self.places.get(&end_of(hello)) == Some(place));
        }
        holds!("I39", self.places.len() == self.active.len() + self.idle.len());
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
            active: false,
            key: Default::default(),
        }
    }

    fn active(session: u8) -> Hello {
        Hello { active: true, ..hello(session, false) }
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

    #[test]
    fn active_programs_are_first_and_the_oldest_has_every_eighth_turn() {
        let mut waiting = Waiting::default();
        for session in 1..=3 {
            waiting.push(A, hello(session, false));
        }
        for session in 4..=20 {
            waiting.push(A, active(session));
        }
        let order: Vec<u8> = waiting.order().into_iter().map(|(_, session, _)| session).collect();
        let expected: Vec<u8> =
            [(4..=10).collect(), vec![1], (11..=17).collect(), vec![2], (18..=20).collect(), vec![3]]
                .concat();
        assert_eq!(order, expected);
    }

    #[test]
    fn an_end_whose_program_becomes_active_keeps_its_place_among_those() {
        let mut waiting = Waiting::default();
        waiting.push(A, hello(1, false));
        waiting.push(A, active(2));
        waiting.push(A, hello(3, false));
        waiting.push(A, active(1));
        assert_eq!(waiting.len(), 3);
        assert_eq!(waiting.order(), vec![(A, 1, false), (A, 2, false), (A, 3, false)]);
    }
}
