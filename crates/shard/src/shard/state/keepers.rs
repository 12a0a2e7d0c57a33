//! What the shard knows of keepers as a whole: the ring that chooses standbys, and the session behind each keeper's
//! channel.

use super::{placing::Placed, sessions::At};
use crate::{api::ShardWireId, ring::Ring};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_session::{holds, invariant::BrokenInvariant, owner::KeeperId};
use marram_wire::{frame::Channel, id::SessionId};

/// A channel to a keeper: the session, and its replica; none for a recall.
pub(crate) type Kept = (SessionId, Option<KeeperId>);

/// The channels to keepers, and the edges that can stand by.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    /// Counts the replicas that were placed: no id is used twice.
    made: u64,
    ring: Ring,
    channels: BTreeMap<At, Kept>,
}

impl Keepers {
    /// The edges that are connected have changed: these, and the own one.
    pub(crate) fn rebuild(&mut self, edges: impl Iterator<Item = String>) {
        self.ring = Ring::new(edges);
    }

    /// The edge at which a session belongs.
    pub(crate) fn first_of(&self, session: SessionId) -> Option<&str> {
        self.ring.first_of(session)
    }

    /// The edge that should stand by for a session of the edge `own`.
    pub(crate) fn standby_of(&self, session: SessionId, own: &str) -> Option<&str> {
        self.ring.standby_of(session, own)
    }

    /// All edges that could stand by for a session of the edge `own`, the one that should first.
    pub(crate) fn edges_for<'a>(&'a self, session: SessionId, own: &'a str) -> impl Iterator<Item = &'a str> {
        self.ring.in_order(session, own)
    }

    /// A new replica of a session, on this channel.
    pub(crate) fn place(&mut self, at: At, session: SessionId) -> KeeperId {
        self.made += 1;
        let keeper = KeeperId(self.made);
        self.channels.insert(at, (session, Some(keeper)));
        keeper
    }

    /// A recorder is asked for a session on this channel.
    pub(crate) fn recall(&mut self, at: At, session: SessionId) {
        self.channels.insert(at, (session, None));
    }

    /// What comes on this channel from now on is of no use.
    pub(crate) fn close(&mut self, at: At) {
        self.channels.remove(&at);
    }

    pub(crate) fn of_channel(&self, at: At) -> Option<Kept> {
        self.channels.get(&at).copied()
    }

    /// A wire is gone: closes its channels, and returns what they were for.
    pub(crate) fn drop_wire(&mut self, wire: ShardWireId) -> Vec<Kept> {
        let of_wire = (wire, 0)..=(wire, Channel::MAX);
        self.channels.extract_if(of_wire, |_, _| true).map(|(_, kept)| kept).collect()
    }

    /// Checks I36 of docs/protocol.md, as far as it relates channels to replicas and recalls. `placed` has the replicas
    /// of all sessions, `asked` and `owed` the recalls; `is_keeper` is true for wires of keepers.
    pub(crate) fn invariants<'a>(
        &self,
        placed: impl Iterator<Item = (SessionId, &'a Placed)>,
        (asked, owed): (impl Iterator<Item = (SessionId, At)>, impl Iterator<Item = (SessionId, At)>),
        is_keeper: impl Fn(ShardWireId) -> bool,
    ) -> Result<(), BrokenInvariant> {
        let mut found = 0;
        for (id, placed) in placed {
            holds!("I36", self.of_channel(placed.at) == Some((id, Some(placed.id))));
            found += 1;
        }
        for (id, at) in asked {
            holds!("I36", self.of_channel(at) == Some((id, None)));
            found += 1;
        }
        // A recorder may have ended the channel of a recall that still waits for a checkpoint.
        for (id, at) in owed {
            let kept = self.of_channel(at);
            holds!("I36", kept.is_none_or(|kept| kept == (id, None)));
            found += usize::from(kept.is_some());
        }
        // Each channel was found once, so there is no other.
        holds!("I36", found == self.channels.len());
        holds!("I36", self.channels.keys().all(|(wire, _)| is_keeper(*wire)));
        Ok(())
    }
}
