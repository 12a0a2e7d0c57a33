//! Edges that are in no configuration: what others say of them, where to dial them, and for how long they are remembered. Knows
//! no wire, and believes nothing: the machine that dials such an edge compares what it proves with the entry.
//!
//! ```text
//! told(teller, entries) ─▶ a place after the configured edges ─▶ dialled at one address after the other
//! gone(teller) ─▶ no teller left ─▶ FORGET_NS later: forgotten, and the place is free
//! ```

use crate::{holds, invariant::BrokenInvariant};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_wire::{
    frame::EdgeEntry,
    limits::{
        EDGE_ADDRESS_SIZE_MAX, EDGE_ADDRESSES_MAX, EDGE_FORGET_NS, EDGES_LEARNED_MAX, EDGES_TOLD_MAX,
        TEXT_MAX,
    },
};

/// Addresses of one edge that are dialled in turn, from all that tell of it.
const DIALLED_MAX: usize = 2 * EDGE_ADDRESSES_MAX;
/// A learned edge that is to be forgotten and is still in use is looked at again after this time.
const IN_USE_NS: u64 = 1_000_000_000;

/// Tellers that are remembered of one edge: a shard may have thousands of agents. Others are not needed as long as these are there.
const TELLERS_MAX: usize = 8;

/// What tells of edges: an edge, or a wire. The caller chooses the numbers.
pub type Teller = u64;

/// One edge.
#[derive(Debug)]
struct LearnedEdge {
    name: String,
    domain: [u8; 8],
    /// What each of those that tell of it now says.
    told: BTreeMap<Teller, Vec<String>>,
    /// One address of each in turn. They stay when nothing tells of the edge any more.
    addresses: Vec<String>,
    /// The address that is dialled next, counted on.
    turn: usize,
    /// Since when nothing tells of it.
    unnamed_ns: Option<u64>,
    /// Whether it has proved to be what its name says.
    proved: bool,
}

impl LearnedEdge {
    /// Brings the addresses up to date. If none is told, the last ones stay.
    fn merge(&mut self) {
        if self.told.is_empty() {
            return;
        }
        let current = self.address().map(String::from);
        let (mut merged, mut seen) = (Vec::new(), BTreeSet::new());
        // One teller that lies about the edge does not displace what another one says.
        for nth in 0..EDGE_ADDRESSES_MAX {
            for address in self.told.values().filter_map(|all| all.get(nth)) {
                if merged.len() < DIALLED_MAX && seen.insert(address) {
                    merged.push(address.clone());
                }
            }
        }
        self.addresses = merged;
        // An address that works is kept.
        let same = self.addresses.iter().position(|address| Some(address) == current.as_ref());
        self.turn = same.unwrap_or(0);
    }

    fn address(&self) -> Option<&str> {
        let nth = self.turn.checked_rem(self.addresses.len())?;
        self.addresses.get(nth).map(|address| &address[..])
    }
}

/// All learned edges of an agent or a shard, by their places in its list of edges.
#[derive(Debug)]
pub struct LearnedEdges {
    /// The number of configured edges: learned ones have the places after them.
    first: u16,
    by_place: BTreeMap<u16, LearnedEdge>,
    /// When to look for edges to forget.
    look_ns: u64,
}

impl LearnedEdges {
    /// None yet, beside so many configured edges.
    #[must_use]
    pub fn new(configured: u16) -> Self {
        Self { first: configured, by_place: BTreeMap::new(), look_ns: u64::MAX }
    }

    /// Whether an edge of the list is a learned one, or was.
    #[must_use]
    pub fn is_learned(&self, edge: u16) -> bool {
        edge >= self.first
    }

    /// The name and the domain that an edge must have.
    #[must_use]
    pub fn expected(&self, edge: u16) -> Option<(&str, [u8; 8])> {
        self.by_place.get(&edge).map(|learned| (&learned.name[..], learned.domain))
    }

    /// Where to dial it now.
    #[must_use]
    pub fn address(&self, edge: u16) -> Option<&str> {
        self.by_place.get(&edge)?.address()
    }

    /// The edges, by place.
    pub fn edges(&self) -> impl Iterator<Item = u16> {
        self.by_place.keys().copied()
    }

    /// A teller of this domain names these edges and, from now on, no others. Returns the places of new ones. `known` is true for
    /// names of edges that the list has without learning them.
    pub fn told(
        &mut self,
        now_ns: u64,
        (teller, domain): (Teller, [u8; 8]),
        edges: &[EdgeEntry],
        known: impl Fn(&str) -> bool,
    ) -> Vec<u16> {
        let (mut new, mut named) = (Vec::new(), BTreeSet::new());
        for EdgeEntry { name, addresses } in edges.iter().take(EDGES_TOLD_MAX) {
            let usable = |address: &&String| !address.is_empty() && address.len() <= EDGE_ADDRESS_SIZE_MAX;
            let addresses: Vec<String> =
                addresses.iter().filter(usable).take(EDGE_ADDRESSES_MAX).cloned().collect();
            if name.is_empty() || name.len() > TEXT_MAX || addresses.is_empty() || known(name) {
                continue;
            }
            let place = self.place_of(name, domain).or_else(|| {
                let place = self.free_place()?;
                let edge = LearnedEdge {
                    name: name.clone(),
                    domain,
                    told: BTreeMap::new(),
                    addresses: Vec::new(),
                    turn: 0,
                    unnamed_ns: None,
                    proved: false,
                };
                self.by_place.insert(place, edge);
                new.push(place);
                Some(place)
            });
            // Without a free place it is told again with the next change, at the latest when the teller's wire is new.
            let Some(learned) = place.and_then(|place| self.by_place.get_mut(&place)) else { continue };
            named.extend(place);
            if learned.told.len() >= TELLERS_MAX && !learned.told.contains_key(&teller) {
                continue;
            }
            learned.told.insert(teller, addresses);
            learned.unnamed_ns = None;
            learned.merge();
        }
        self.retract(now_ns, teller, &named);
        new
    }

    /// A teller is gone, or believed no more.
    pub fn gone(&mut self, now_ns: u64, teller: Teller) {
        self.retract(now_ns, teller, &BTreeSet::new());
    }

    /// A teller names only these.
    fn retract(&mut self, now_ns: u64, teller: Teller, named: &BTreeSet<u16>) {
        for (place, learned) in &mut self.by_place {
            if !named.contains(place) && learned.told.remove(&teller).is_some() {
                learned.merge();
                if learned.told.is_empty() {
                    learned.unnamed_ns = Some(now_ns);
                }
                self.look_ns = now_ns;
            }
        }
    }

    /// The edge is what its name says.
    pub fn proved(&mut self, edge: u16) {
        if let Some(learned) = self.by_place.get_mut(&edge) {
            learned.proved = true;
        }
    }

    /// It cannot be reached where it was dialled, or another edge is there: the next address has its turn.
    pub fn failed(&mut self, edge: u16) {
        if let Some(learned) = self.by_place.get_mut(&edge) {
            learned.turn = learned.turn.wrapping_add(1);
        }
    }

    /// The place of an edge.
    #[must_use]
    pub fn place_of(&self, name: &str, domain: [u8; 8]) -> Option<u16> {
        let is_it = |learned: &LearnedEdge| learned.name == name && learned.domain == domain;
        self.by_place.iter().find(|(_, learned)| is_it(learned)).map(|(place, _)| *place)
    }

    fn free_place(&self) -> Option<u16> {
        let end = self.first.saturating_add(u16::try_from(EDGES_LEARNED_MAX).unwrap_or(u16::MAX));
        (self.first..end).find(|place| !self.by_place.contains_key(place))
    }

    /// The list has this edge without having learned it: it is forgotten as soon as it is not in use.
    pub fn retire(&mut self, now_ns: u64, edge: u16) {
        self.look_ns = now_ns;
        if let Some(learned) = self.by_place.get_mut(&edge) {
            learned.told.clear();
            learned.unnamed_ns = Some(0);
        }
    }

    /// Whether to call [`LearnedEdges::expired`] now.
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.look_ns <= now_ns
    }

    /// The edges to forget now, unless they are in use. They are remembered until [`LearnedEdges::forget`]. An edge that never
    /// proved what it is makes room at once when the list is full.
    pub fn expired(&mut self, now_ns: u64, in_use: impl Fn(u16) -> bool) -> Vec<u16> {
        let full = self.by_place.len() >= EDGES_LEARNED_MAX;
        let (mut expired, mut next_ns) = (Vec::new(), u64::MAX);
        for (place, learned) in &self.by_place {
            let Some(since_ns) = learned.unnamed_ns else { continue };
            let kept_ns = if since_ns == 0 || (full && !learned.proved) { 0 } else { EDGE_FORGET_NS };
            let due_ns = since_ns.saturating_add(kept_ns);
            match due_ns <= now_ns {
                true if in_use(*place) => next_ns = next_ns.min(now_ns + IN_USE_NS),
                true => expired.push(*place),
                false => next_ns = next_ns.min(due_ns),
            }
        }
        self.look_ns = next_ns;
        expired
    }

    /// Forgets an edge: its place may get another one.
    pub fn forget(&mut self, edge: u16) {
        self.by_place.remove(&edge);
    }

    /// When to look for edges to forget.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        (self.look_ns < u64::MAX).then_some(self.look_ns)
    }

    /// Checks I48 of docs/protocol.md, as far as it concerns what is learned.
    ///
    /// # Errors
    /// If it does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I48", self.by_place.len() <= EDGES_LEARNED_MAX);
        for (place, learned) in &self.by_place {
            holds!("I48", *place >= self.first);
            holds!("I48", !learned.addresses.is_empty() && learned.addresses.len() <= DIALLED_MAX);
            holds!("I48", learned.told.len() <= TELLERS_MAX);
            holds!("I48", learned.told.is_empty() == learned.unnamed_ns.is_some());
            holds!("I48", self.place_of(&learned.name, learned.domain) == Some(*place));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
