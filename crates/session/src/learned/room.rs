//! Which learned edge makes room for another one when the list is full, so that names without an edge keep out none that exists.
//!
//! Only an edge that has not proved its name gives way. Each teller has a fair share of the places of such edges: a teller that
//! names many loses places to one that names few. What was dialled in vain gives way before what was not dialled yet, and does not
//! displace others for a while.

use super::{LearnedEdge, LearnedEdges, Name, Teller, Told};
use crate::{holds, invariant::BrokenInvariant};
use alloc::collections::BTreeMap;
use marram_wire::limits::EDGES_LEARNED_MAX;

/// For so long an edge that has made room gets only places that are free.
const EVICTED_NS: u64 = 60_000_000_000;

/// Edges that have made room, and until when they displace no others. Of more than fit, those with the least time left are dropped.
#[derive(Debug, Default)]
pub(super) struct Evicted(BTreeMap<Name, u64>);

impl Evicted {
    fn add(&mut self, now_ns: u64, name: Name) {
        self.0.retain(|_, until_ns| now_ns < *until_ns);
        if self.0.len() >= EDGES_LEARNED_MAX
            && let Some(name) =
                self.0.iter().min_by_key(|(_, until_ns)| **until_ns).map(|(name, _)| name.clone())
        {
            self.0.remove(&name);
        }
        self.0.insert(name, now_ns.saturating_add(EVICTED_NS));
    }

    fn waits(&self, now_ns: u64, name: &Name) -> bool {
        self.0.get(name).is_some_and(|until_ns| now_ns < *until_ns)
    }

    /// Checks I48 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I48", self.0.len() <= EDGES_LEARNED_MAX);
        Ok(())
    }
}

impl LearnedEdges {
    /// Gives a new edge a place; none if there is none for it.
    pub(super) fn admit(
        &mut self,
        now_ns: u64,
        teller: Teller,
        name: Name,
        in_use: &impl Fn(u16) -> bool,
        told: &mut Told,
    ) -> Option<u16> {
        let place = match self.free_place() {
            Some(place) => place,
            None if self.evicted.waits(now_ns, &name) => return None,
            None => {
                let place = self.victim(teller, in_use)?;
                let evicted = self.by_place.remove(&place)?;
                self.evicted.add(now_ns, evicted.name);
                told.evicted.push(place);
                place
            }
        };
        self.by_place.insert(place, LearnedEdge::new(name));
        told.new.push(place);
        Some(place)
    }

    /// The edge that gives way to one that this teller names.
    fn victim(&self, teller: Teller, in_use: &impl Fn(u16) -> bool) -> Option<u16> {
        let mut named: BTreeMap<Teller, usize> = BTreeMap::new();
        let unproved = || self.by_place.iter().filter(|(_, learned)| !learned.proved);
        for (_, learned) in unproved() {
            learned.told.keys().for_each(|teller| *named.entry(*teller).or_default() += 1);
        }
        // The one of its tellers that names the fewest counts: what an honest one names is not lost because another one names it too.
        let least = |learned: &LearnedEdge| {
            learned.told.keys().filter_map(|teller| named.get(teller)).min().copied().unwrap_or(usize::MAX)
        };
        let own = named.get(&teller).copied().unwrap_or_default();
        let gives_way = |learned: &LearnedEdge| {
            if learned.failed { least(learned) >= own } else { least(learned) > own + 1 }
        };
        unproved()
            .filter(|(place, learned)| gives_way(learned) && !in_use(**place))
            .max_by_key(|(_, learned)| (learned.told.is_empty(), learned.failed, least(learned)))
            .map(|(place, _)| *place)
    }
}
