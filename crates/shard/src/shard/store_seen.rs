//! Edges tell each other how far they have seen the coordinator's store come (`coordinator::memory` says why). A shard only carries
//! it: to every edge that it has a wire to, and from each of them to its control.

use super::Shard;
use crate::{
    api::{FromShard, ShardOutput, ShardWireId},
    coordinator::contents::EdgeStoreSeen,
};
use alloc::vec::Vec;
use marram_wire::frame::StoreSeen;

impl Shard {
    /// This edge remembers more than before. Another identity: an operator has accepted that the store lost decisions. The slots of cells
    /// that run here may be among these, and another edge would begin a second cell.
    pub(super) fn store_seen(&mut self, seen: StoreSeen, out: &mut Vec<ShardOutput>) {
        if self.store_seen.as_ref().is_some_and(|before| before.mark.identity != seen.mark.identity) {
            for group in self.groups.renew_slots() {
                self.slots.again(group, self.random.bytes());
            }
        }
        let of_edge = |wire: &super::state::wires::Wire| {
            wire.role.as_ref().is_some_and(|role| !role.recorder && !role.own)
        };
        let accepted = self.wires.iter().filter(|(_, wire)| of_edge(wire)).map(|(id, _)| id);
        let own = self.config.edge.as_str();
        let dialled = self.peers.iter().flat_map(|peers| {
            let name = |wire: &ShardWireId| peers.get(*wire).map_or("", |peer| peer.name());
            peers.wires().filter(move |wire| !["", own].contains(&name(wire)))
        });
        for wire in accepted.chain(dialled) {
            out.push(ShardOutput::Send { wire, frame: seen.clone().into() });
        }
        self.store_seen = Some(seen);
    }

    /// The other side of this wire has proved to be an edge of the domain, or was proved to by this one.
    pub(super) fn tell_store_seen(&self, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        out.extend(self.store_seen.clone().map(|seen| ShardOutput::Send { wire, frame: seen.into() }));
    }

    /// An edge tells what it remembers; an agent or a recorder is not listened to.
    pub(super) fn store_seen_on(&mut self, wire: ShardWireId, seen: StoreSeen, out: &mut Vec<ShardOutput>) {
        let accepted = self.wires.get(wire).and_then(|wire| wire.role.as_ref());
        let accepted = accepted.filter(|role| !role.recorder).map(|role| role.name.as_str());
        let dialled = self.peers.as_ref().and_then(|peers| peers.get(wire)).map(|peer| peer.name());
        if let Some(edge) = accepted.or(dialled).filter(|name| !name.is_empty() && *name != self.config.edge)
        {
            let told = EdgeStoreSeen { edge: edge.into(), mark: seen.mark };
            out.push(ShardOutput::Control(FromShard::StoreSeen(told)));
        }
    }
}
