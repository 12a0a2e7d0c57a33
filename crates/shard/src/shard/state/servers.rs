//! The agents of servers that are connected here: how many ends of servers each has, and which had no room lately. A new session goes to the
//! one with the fewest (docs/protocol.md, "Step 0").
//!
//! Knows neither wires' channels nor rights: [`super::wires`] says what has changed, and its callers what an agent may do.

use crate::api::ShardWireId;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::id::HostId;

/// An agent that has no room for a new session, or whose server is down, is asked after the others for so long, in nanoseconds, and for
/// twice as long each time that it is so again soon: that it promises a session says nothing about its server.
const BUSY_NS_MIN: u64 = 250_000_000;
const BUSY_NS_MAX: u64 = 8_000_000_000;

/// An agent that had no room.
#[derive(Clone, Copy, Debug)]
struct Busy {
    until_ns: u64,
    wait_ns: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct ServerAgents {
    /// The agents of each server, with the wires over which they have announced it.
    by_server: BTreeMap<String, BTreeMap<HostId, BTreeSet<ShardWireId>>>,
    /// Ends of servers at each agent that has any.
    ends: BTreeMap<HostId, usize>,
    busy: BTreeMap<HostId, Busy>,
}

impl ServerAgents {
    /// An agent reaches this server.
    pub(super) fn announced(&mut self, server: &str, host: HostId, wire: ShardWireId) {
        self.by_server.entry(server.into()).or_default().entry(host).or_default().insert(wire);
    }

    /// A wire is gone over which this server was announced.
    pub(super) fn withdrawn(&mut self, server: &str, host: HostId, wire: ShardWireId) {
        let Some(agents) = self.by_server.get_mut(server) else { return };
        if let Some(wires) = agents.get_mut(&host) {
            wires.remove(&wire);
            if wires.is_empty() {
                agents.remove(&host);
            }
        }
        if agents.is_empty() {
            self.by_server.remove(server);
        }
    }

    /// An agent is connected no more.
    pub(super) fn left(&mut self, host: HostId) {
        self.busy.remove(&host);
    }

    /// An agent is asked for an end of a server.
    pub(super) fn bound(&mut self, host: HostId) {
        *self.ends.entry(host).or_default() += 1;
    }

    /// It has one end less.
    pub(super) fn unbound(&mut self, host: HostId) {
        if let Some(count) = self.ends.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&host);
            }
        }
    }

    /// An agent has no room for a new session, or does not reach its server.
    pub(super) fn had_no_room(&mut self, now_ns: u64, host: HostId) {
        let before = self.busy.get(&host);
        // One that was asked for several at once answers for each.
        if before.is_none_or(|busy| busy.until_ns <= now_ns) {
            let again = before.filter(|busy| now_ns - busy.until_ns < BUSY_NS_MAX);
            let wait_ns = again.map_or(BUSY_NS_MIN, |busy| (2 * busy.wait_ns).min(BUSY_NS_MAX));
            self.busy.insert(host, Busy { until_ns: now_ns.saturating_add(wait_ns), wait_ns });
        }
    }

    /// The agents of a server in the order in which to ask them for a new session: one without room after all others, then the one with the
    /// fewest ends of servers, then the one that has been connected for longest.
    pub(super) fn in_order(&self, now_ns: u64, server: &str) -> Vec<HostId> {
        let mut agents = self.by_ends(server);
        let until_ns = |host: &HostId| self.busy.get(host).map_or(0, |busy| busy.until_ns);
        agents.sort_by_key(|host| Some(until_ns(host)).filter(|until_ns| *until_ns > now_ns));
        agents
    }

    /// The same without regard to whether they have room: one that refuses is where it was, and the next one can be asked.
    pub(super) fn by_ends(&self, server: &str) -> Vec<HostId> {
        let agents = self.by_server.get(server).into_iter().flatten();
        let ends = |host: &HostId| self.ends.get(host).copied().unwrap_or(0);
        let mut ranked: Vec<_> =
            agents.map(|(host, wires)| (ends(host), wires.first().copied(), *host)).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., host)| host).collect()
    }

    /// Checks I36 of docs/protocol.md, as far as it concerns these: they are those of the wires, given as the server, agent and wire of each
    /// announcement, and the agent of each end.
    pub(super) fn invariants<'a>(
        &self,
        announced: impl Iterator<Item = (&'a str, HostId, ShardWireId)>,
        ends: impl Iterator<Item = HostId>,
    ) -> Result<(), BrokenInvariant> {
        let mut expected = Self::default();
        announced.for_each(|(server, host, wire)| expected.announced(server, host, wire));
        ends.for_each(|host| expected.bound(host));
        holds!("I36", self.by_server == expected.by_server && self.ends == expected.ends);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = HostId([9; 16]);
    const B: HostId = HostId([1; 16]);
    const MS: u64 = 1_000_000;

    /// Two agents of one server, and no ends.
    fn two() -> ServerAgents {
        let mut agents = ServerAgents::default();
        agents.announced("origin", A, ShardWireId(1));
        agents.announced("origin", B, ShardWireId(2));
        agents
    }

    #[test]
    fn the_agent_with_the_fewest_ends_is_first_and_of_equals_the_oldest() {
        let mut agents = two();
        assert_eq!(agents.in_order(0, "origin"), [A, B]);
        assert_eq!(agents.in_order(0, "other"), []);
        agents.bound(A);
        assert_eq!(agents.in_order(0, "origin"), [B, A]);
        agents.bound(B);
        assert_eq!(agents.in_order(0, "origin"), [A, B]);
        agents.unbound(B);
        assert_eq!(agents.in_order(0, "origin"), [B, A]);
    }

    #[test]
    fn an_agent_without_room_is_last_for_ever_longer_until_it_had_room_for_some_time() {
        let mut agents = two();
        let mut now_ns = 0;
        for wait_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000] {
            assert_eq!(agents.in_order(now_ns, "origin"), [A, B]);
            agents.had_no_room(now_ns, A);
            agents.had_no_room(now_ns + 1, A);
            now_ns += wait_ms * MS;
            assert_eq!(agents.in_order(now_ns - 1, "origin"), [B, A]);
        }
        now_ns += BUSY_NS_MAX;
        agents.had_no_room(now_ns, A);
        assert_eq!(agents.in_order(now_ns + 250 * MS, "origin"), [A, B]);
        // Both are without room: the one that said so first.
        agents.had_no_room(now_ns + 1, B);
        assert_eq!(agents.in_order(now_ns + 2, "origin"), [A, B]);
    }

    #[test]
    fn agents_that_are_asked_in_turn_stay_in_their_order() {
        let mut agents = two();
        agents.had_no_room(0, A);
        assert_eq!(
            (agents.in_order(1, "origin"), agents.by_ends("origin")),
            (alloc::vec![B, A], alloc::vec![A, B])
        );
    }

    #[test]
    fn an_agent_is_there_as_long_as_one_of_its_wires() {
        let mut agents = two();
        agents.announced("origin", A, ShardWireId(3));
        agents.withdrawn("origin", A, ShardWireId(1));
        assert_eq!(agents.in_order(0, "origin"), [B, A], "it is the younger one now");
        agents.withdrawn("origin", A, ShardWireId(3));
        agents.withdrawn("origin", B, ShardWireId(2));
        assert_eq!(agents.in_order(0, "origin"), []);
        assert_eq!(agents.invariants([].into_iter(), [].into_iter()), Ok(()));
    }
}
