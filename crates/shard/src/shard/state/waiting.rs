//! Hellos that wait until a recovery is allowed (docs/protocol.md, "Opening a generation"), the oldest first.

use crate::api::ShardWireId;
use alloc::collections::{BTreeSet, VecDeque};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::Hello, id::SessionId};

/// The queue. It holds at most one hello of each end, so an end that asks again does not fill it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    hellos: VecDeque<(ShardWireId, Hello)>,
}

impl Waiting {
    /// Adds a hello at the end. It replaces one of the same end, which loses its place.
    pub(crate) fn push(&mut self, wire: ShardWireId, hello: Hello) {
        self.hellos.retain(|(_, other)| (other.session, other.server) != (hello.session, hello.server));
        self.hellos.push_back((wire, hello));
    }

    pub(crate) fn pop(&mut self) -> Option<(ShardWireId, Hello)> {
        self.hellos.pop_front()
    }

    /// A wire is gone, with the ends that asked over it.
    pub(crate) fn drop_wire(&mut self, wire: ShardWireId) {
        self.hellos.retain(|(other, _)| *other != wire);
    }

    /// Whether an end of this session waits.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.hellos.iter().any(|(_, hello)| hello.session == session)
    }

    pub(crate) fn len(&self) -> usize {
        self.hellos.len()
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they concern this queue. `is_up` is true for wires that there
    /// are.
    pub(crate) fn invariants(&self, is_up: impl Fn(ShardWireId) -> bool) -> Result<(), BrokenInvariant> {
        let mut ends = BTreeSet::new();
        for (wire, hello) in &self.hellos {
            holds!("I36", is_up(*wire));
            holds!("I39", ends.insert((hello.session, hello.server)));
        }
        Ok(())
    }
}
