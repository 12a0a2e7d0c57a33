//! Wires that others dialled: the agent or keeper at the other side, and the channels on each. Only this file changes
//! them, so an agent's entry and its wires agree (I36 of docs/protocol.md).

use super::servers::ServerAgents;
use crate::api::ShardWireId;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{
    frame::Channel,
    id::{Generation, HostId, Port, SessionId},
    limits::HAND_GROUP_VERSION,
    rights::Verified,
};

/// A wire without any frame for so long is closed; agents send pings many times a second.
const SILENCE_MAX_NS: u64 = 30_000_000_000;
/// How often all wires are looked through for silent ones. A wire is closed at most so much later.
const SILENCE_CHECK_NS: u64 = 5_000_000_000;

/// What the greeting on a wire said about its keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Role {
    /// The recorder's or the edge's name: unique in a domain.
    pub(crate) name: String,
    /// A recorder; else an edge that can stand by.
    pub(crate) recorder: bool,
    /// The edge's shard that dialled, and how many the edge has (at least 1).
    pub(crate) shard: u8,
    pub(crate) shards: u8,
    /// Another shard of this edge, which takes sessions over only if an operator says so: it would be lost with this one.
    pub(crate) own: bool,
}

/// The attempt that a channel belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    pub(crate) session: SessionId,
    pub(crate) port: Port,
    pub(crate) generation: Generation,
}

/// A wire from one agent or keeper. Others read it; [`Wires`] changes it.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Which agent it is and what it may do, as verified by the shell.
    pub(crate) verified: Verified,
    /// The remote address; none for the edge's own gate.
    pub(crate) address: Option<String>,
    /// Set by its greeting. Before that nothing else is accepted.
    pub(crate) host: Option<HostId>,
    /// The wire's version, from its greeting on.
    version: u8,
    /// Servers that its agent reaches, as far as its rights allow.
    pub(crate) servers: Vec<String>,
    /// Set once it has proved that it leads to a keeper.
    pub(crate) role: Option<Role>,
    /// Proofs on this wire are for this number only, so that none can be replayed on another wire.
    pub(crate) challenge: [u8; 16],
    channels: BTreeMap<Channel, Bound>,
    next_channel: Channel,
    heard_ns: u64,
}

impl Wire {
    /// A channel number that is unused on this wire: odd, since this shard opens the channel. After billions of
    /// attempts the numbers start again, and old channels may be bound.
    fn channel(&mut self) -> Channel {
        loop {
            self.next_channel = self.next_channel.wrapping_add(2);
            if !self.channels.contains_key(&self.next_channel) {
                return self.next_channel;
            }
        }
    }

    /// The version that both sides use, once it has greeted.
    pub(crate) fn version(&self) -> u8 {
        self.version
    }

    /// Whether no end of a session is reached over it.
    pub(crate) fn is_unbound(&self) -> bool {
        self.channels.is_empty()
    }

    /// The attempt that a channel belongs to.
    pub(crate) fn bound(&self, channel: Channel) -> Option<Bound> {
        self.channels.get(&channel).copied()
    }

    /// Channels that lead to ends of servers.
    fn server_ends(&self) -> impl Iterator<Item = &Bound> {
        self.channels.values().filter(|bound| is_of_server(bound.port))
    }

    /// All channels, in the order of their numbers.
    pub(crate) fn channels(&self) -> impl Iterator<Item = (Channel, Bound)> {
        self.channels.iter().map(|(channel, bound)| (*channel, *bound))
    }
}

/// All wires that others dialled.
#[derive(Debug, Default)]
pub(crate) struct Wires {
    by_id: BTreeMap<ShardWireId, Wire>,
    /// The newest greeted wire of each agent. An agent may have several, with different credentials.
    hosts: BTreeMap<HostId, ShardWireId>,
    servers: ServerAgents,
    silence_checked_ns: u64,
}

/// Whether a server's end is at this port.
fn is_of_server(port: Port) -> bool {
    port == Port::SERVER || port.is_from_connect()
}

impl Wires {
    pub(crate) fn get(&self, id: ShardWireId) -> Option<&Wire> {
        self.by_id.get(&id)
    }

    pub(crate) fn has(&self, id: ShardWireId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All wires, the oldest first: the shell counts their ids up.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ShardWireId, &Wire)> {
        self.by_id.iter().map(|(id, wire)| (*id, wire))
    }

    /// A wire is up. `challenge` must be unpredictable.
    pub(crate) fn up(
        &mut self,
        now_ns: u64,
        id: ShardWireId,
        (verified, address): (Verified, Option<String>),
        challenge: [u8; 16],
    ) {
        let wire = Wire {
            verified,
            address,
            host: None,
            version: 0,
            servers: Vec::new(),
            role: None,
            challenge,
            channels: BTreeMap::new(),
            // The first number is 1.
            next_channel: u32::MAX,
            heard_ns: now_ns,
        };
        self.by_id.insert(id, wire);
    }

    /// A wire is gone. Returns it, so that its sessions can be told.
    pub(crate) fn down(&mut self, id: ShardWireId) -> Option<Wire> {
        let wire = self.by_id.remove(&id)?;
        let Some(host) = wire.host else { return Some(wire) };
        wire.servers.iter().for_each(|server| self.servers.withdrawn(server, host, id));
        wire.server_ends().for_each(|_| self.servers.unbound(host));
        if self.hosts.get(&host) == Some(&id) {
            self.hosts.remove(&host);
            let other = self.by_id.iter().find(|(_, other)| other.host == Some(host)).map(|(id, _)| *id);
            self.hosts.extend(other.map(|other| (host, other)));
        }
        if !self.hosts.contains_key(&host) {
            self.servers.left(host);
        }
        Some(wire)
    }

    /// A frame has arrived on a wire: it is not silent.
    pub(crate) fn heard(&mut self, now_ns: u64, id: ShardWireId) -> Option<&Wire> {
        let wire = self.by_id.get_mut(&id)?;
        wire.heard_ns = now_ns;
        Some(wire)
    }

    /// An agent has greeted, and reaches these servers. No other agent can have its id, which is the digest of its key.
    pub(crate) fn greeted(&mut self, id: ShardWireId, version: u8, servers: &[String]) {
        let Some(wire) = self.by_id.get_mut(&id) else { return };
        wire.version = version;
        let host = wire.verified.host;
        wire.host = Some(host);
        wire.servers = servers.to_vec();
        servers.iter().for_each(|server| self.servers.announced(server, host, id));
        self.hosts.insert(host, id);
    }

    /// A wire has proved that it leads to a keeper.
    pub(crate) fn introduced(&mut self, id: ShardWireId, role: Role) {
        if let Some(wire) = self.by_id.get_mut(&id) {
            wire.role = Some(role);
        }
    }

    /// Whether the edge at the other end can be handed a group whose backup keeps its copies, or be that backup.
    pub(crate) fn may_hand_group(&self, id: ShardWireId) -> bool {
        self.by_id.get(&id).is_some_and(|wire| wire.version >= HAND_GROUP_VERSION)
    }

    /// A new channel on a keeper's wire, which is bound to no end. Keepers' channels are in
    /// [`super::keepers::Keepers`].
    pub(crate) fn open(&mut self, id: ShardWireId) -> Option<Channel> {
        self.by_id.get_mut(&id).map(Wire::channel)
    }

    /// Binds a channel, the given one or a new one. None if the wire is gone.
    pub(crate) fn bind(
        &mut self,
        id: ShardWireId,
        channel: Option<Channel>,
        bound: Bound,
    ) -> Option<Channel> {
        let wire = self.by_id.get_mut(&id)?;
        let channel = channel.unwrap_or_else(|| wire.channel());
        let former = wire.channels.insert(channel, bound);
        let host = wire.host.unwrap_or_default();
        if is_of_server(bound.port) {
            self.servers.bound(host);
        }
        if former.is_some_and(|former| is_of_server(former.port)) {
            self.servers.unbound(host);
        }
        Some(channel)
    }

    pub(crate) fn unbind(&mut self, (wire, channel): (ShardWireId, Channel)) {
        let Some(wire) = self.by_id.get_mut(&wire) else { return };
        let former = wire.channels.remove(&channel);
        if former.is_some_and(|former| is_of_server(former.port)) {
            self.servers.unbound(wire.host.unwrap_or_default());
        }
    }

    /// The wire over which an agent is asked: its newest one that `admits`.
    pub(crate) fn of_agent(&self, host: HostId, admits: impl Fn(&Wire) -> bool) -> Option<ShardWireId> {
        let newest = *self.hosts.get(&host)?;
        if self.by_id.get(&newest).is_some_and(&admits) {
            return Some(newest);
        }
        let is_its_own = |wire: &Wire| wire.host == Some(host) && admits(wire);
        self.by_id.iter().find(|(_, wire)| is_its_own(wire)).map(|(id, _)| *id)
    }

    /// The agents of a server in the order in which to ask them for a new session.
    pub(crate) fn agents_of(&self, now_ns: u64, server: &str) -> Vec<HostId> {
        self.servers.in_order(now_ns, server)
    }

    /// The same in an order that does not change when one of them refuses.
    pub(crate) fn agents_in_turn(&self, server: &str) -> Vec<HostId> {
        self.servers.by_ends(server)
    }

    /// The agent at the other side has no room for a new session.
    pub(crate) fn had_no_room(&mut self, now_ns: u64, id: ShardWireId) {
        let host = self.by_id.get(&id).and_then(|wire| wire.host);
        host.into_iter().for_each(|host| self.servers.had_no_room(now_ns, host));
    }

    /// The servers that an agent is connected for, each once.
    pub(crate) fn servers(&self) -> BTreeSet<&String> {
        self.by_id.values().flat_map(|wire| &wire.servers).collect()
    }

    /// The other edges that can stand by, one entry for each of their wires.
    pub(crate) fn standbys(&self) -> impl Iterator<Item = &Role> {
        let roles = self.by_id.values().filter_map(|wire| wire.role.as_ref());
        roles.filter(|role| !role.recorder && !role.own)
    }

    /// How many shards an edge has that is connected.
    pub(crate) fn shards_of(&self, edge: &str) -> Option<u8> {
        self.standbys().find(|role| role.name == edge).map(|role| role.shards)
    }

    /// The wire to an edge that can take a session over: that of this shard, or of the one which agents ask first.
    pub(crate) fn of_standby(
        &self,
        name: &str,
        shard: Option<u8>,
        session: SessionId,
    ) -> Option<(ShardWireId, Role)> {
        let of_shard = |role: &&Role| role.shard == shard.unwrap_or(session.0[0] % role.shards);
        let leads = |role: &&Role| !role.recorder && role.name == name;
        let role = |wire: &Wire| wire.role.as_ref().filter(leads).filter(of_shard).cloned();
        // The newest one: an older one to the same shard may be broken, unheard.
        self.by_id.iter().rev().find_map(|(id, wire)| role(wire).map(|role| (*id, role)))
    }

    /// The recorder with the first name, so that all shards of a domain that see the same ones choose alike.
    pub(crate) fn of_recorder(&self) -> Option<(ShardWireId, Role)> {
        let role = |wire: &Wire| wire.role.clone().filter(|role| role.recorder);
        let recorders = self.by_id.iter().filter_map(|(id, wire)| role(wire).map(|role| (*id, role)));
        recorders.min_by(|a, b| a.1.name.cmp(&b.1.name))
    }

    /// The wires that have been silent for too long, if it is time to look for them.
    pub(crate) fn silent(&mut self, now_ns: u64) -> impl Iterator<Item = ShardWireId> {
        let is_time = now_ns >= self.silence_checked_ns + SILENCE_CHECK_NS;
        if is_time {
            self.silence_checked_ns = now_ns;
        }
        let silent = move |wire: &Wire| is_time && wire.heard_ns + SILENCE_MAX_NS < now_ns;
        // Usually the filter is not even asked: a step must not go through a thousand wires.
        let wires = is_time.then_some(&self.by_id).into_iter().flatten();
        wires.filter(move |(_, wire)| silent(wire)).map(|(id, _)| *id)
    }

    /// When to look for silent wires again.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        (!self.by_id.is_empty()).then_some(self.silence_checked_ns + SILENCE_CHECK_NS)
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they relate wires and their agents.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for wire in self.by_id.values() {
            holds!("I36", wire.host.is_none_or(|host| self.hosts.contains_key(&host)));
            // Sessions and replicas do not share a wire: a keeper can hold no end.
            holds!("I39", wire.role.is_none() || wire.channels.is_empty());
            holds!("I39", wire.host.is_some() || (wire.role.is_none() && wire.channels.is_empty()));
        }
        for (host, wire) in &self.hosts {
            holds!("I36", self.by_id.get(wire).is_some_and(|wire| wire.host == Some(*host)));
        }
        let greeted = || self.by_id.iter().filter_map(|(id, wire)| Some((*id, wire.host?, wire)));
        let announced = greeted()
            .flat_map(|(id, host, wire)| wire.servers.iter().map(move |server| (&server[..], host, id)));
        self.servers.invariants(
            announced,
            greeted().flat_map(|(_, host, wire)| wire.server_ends().map(move |_| host)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn of_two_wires_to_a_shard_of_an_edge_the_newest_one_is_used() {
        let mut wires = Wires::default();
        let role = |shard| Role { name: "there".into(), recorder: false, shard, shards: 2, own: false };
        for (id, shard) in [(1, 0), (2, 1), (7, 0), (9, 1)] {
            let (id, verified) = (ShardWireId(id), Verified::trusted(HostId([shard; 16])));
            wires.up(0, id, (verified, None), [0; 16]);
            wires.greeted(id, 1, &[]);
            wires.introduced(id, role(shard));
        }
        let of_shard = |wires: &Wires, shard| {
            let named = wires.of_standby("there", Some(shard), SessionId::default());
            let chosen = wires.of_standby("there", None, SessionId([shard; 16]));
            assert_eq!(named, chosen);
            named.map(|(wire, role)| (wire.0, role.shard))
        };
        let found = |wires: &Wires| vec![of_shard(wires, 0), of_shard(wires, 1)];
        assert_eq!(found(&wires), [Some((7, 0)), Some((9, 1))]);
        wires.down(ShardWireId(9));
        assert_eq!(found(&wires), [Some((7, 0)), Some((2, 1))]);
        wires.down(ShardWireId(7));
        wires.down(ShardWireId(1));
        assert_eq!(found(&wires), [None, Some((2, 1))]);
        assert_eq!(wires.of_standby("elsewhere", Some(1), SessionId::default()), None);
    }
}
