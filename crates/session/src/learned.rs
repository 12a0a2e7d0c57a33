//! Edges that are in no configuration: what others say of them, where to dial them, and for how long they are remembered. Knows
//! no wire, and believes nothing: an edge that answers is used only if it is what was told. For agents and for shards.
//!
//! ```text
//! told(teller, entries) ─▶ a place after the configured edges ─▶ dialled at one address after the other ─▶ answered
//! gone(teller) ─▶ no teller left ─▶ FORGET_NS later: forgotten, and the place is free
//! ```
//!
//! An address that is dialled anyway is never dialled a second time: what is there answers in its own place. An edge that restarts
//! under another name is told of under both for a while.

mod room;

use crate::{holds, invariant::BrokenInvariant};
use alloc::{
    borrow::ToOwned,
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;
use marram_wire::{
    frame::{EdgeEntry, Welcome},
    limits::{
        EDGE_ADDRESS_SIZE_MAX, EDGE_ADDRESSES_MAX, EDGE_FORGET_NS, EDGES_LEARNED_MAX, EDGES_TOLD_MAX,
        TEXT_MAX,
    },
};
use room::Evicted;

/// Addresses of one edge that are dialled in turn, from all that tell of it.
const DIALLED_MAX: usize = 2 * EDGE_ADDRESSES_MAX;
/// A learned edge that is to be forgotten and is still in use is looked at again after this time.
const IN_USE_NS: u64 = 1_000_000_000;

/// Tellers that are remembered of one edge: a shard may have thousands of agents. Others are not needed as long as these are there.
const TELLERS_MAX: usize = 8;

/// What tells of edges: an edge, or a wire. The caller chooses the numbers.
pub type Teller = u64;

/// The name of an edge, and its domain.
type Name = (String, [u8; 8]);

/// One edge.
#[derive(Debug)]
struct LearnedEdge {
    name: Name,
    /// What each of those that tell of it now says.
    told: BTreeMap<Teller, Vec<String>>,
    /// One address of each in turn. They stay when nothing tells of the edge any more.
    addresses: Vec<String>,
    /// The address that is dialled next, counted on.
    turn: usize,
    /// The address that the caller was given last.
    dialled: Option<String>,
    /// Since when nothing tells of it.
    unnamed_ns: Option<u64>,
    /// Whether it has proved to be what its name says.
    proved: bool,
    /// Whether it could not be reached, or another edge was there, since it last proved its name.
    failed: bool,
}

impl LearnedEdge {
    fn new(name: Name) -> Self {
        Self {
            name,
            told: BTreeMap::new(),
            addresses: Vec::new(),
            turn: 0,
            dialled: None,
            unnamed_ns: None,
            proved: false,
            failed: false,
        }
    }

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

/// What follows from what was told.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Told {
    /// The edges in these places are forgotten: they have made room.
    pub evicted: Vec<u16>,
    /// The places of new edges, which are to be dialled. Some of the above may be among them.
    pub new: Vec<u16>,
}

/// Why an edge that has answered cannot be used in its place of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotAsTold {
    /// The reason, for people.
    pub reason: String,
    /// Whether the list has the edge that has answered in another place.
    pub is_known: bool,
}

/// All learned edges of an agent or a shard, by their places in its list of edges.
#[derive(Debug)]
pub struct LearnedEdges {
    /// Whether any is learned.
    enabled: bool,
    /// The number of configured edges: learned ones have the places after them.
    first: u16,
    /// Addresses at which no edge is learned, in their usual form: those of the configured edges, and of this machine.
    taken: BTreeSet<String>,
    /// What this machine is itself, if it is an edge.
    itself: Option<Name>,
    /// What the configured edges have answered with.
    configured: BTreeMap<u16, Name>,
    by_place: BTreeMap<u16, LearnedEdge>,
    evicted: Evicted,
    /// When to look for edges to forget.
    look_ns: u64,
}

impl LearnedEdges {
    /// None yet, beside so many configured edges, which are dialled at these addresses, as far as they are known.
    #[must_use]
    pub fn new(enabled: bool, configured: u16, addresses: &[String]) -> Self {
        Self {
            enabled,
            first: configured,
            taken: addresses.iter().map(|address| usual(address)).collect(),
            itself: None,
            configured: BTreeMap::new(),
            by_place: BTreeMap::new(),
            evicted: Evicted::default(),
            look_ns: u64::MAX,
        }
    }

    /// As the list of an edge of this name and domain, which others reach at these addresses: it does not learn of itself.
    #[must_use]
    pub fn of_edge(mut self, name: &str, domain: [u8; 8], addresses: &[String]) -> Self {
        self.taken.extend(addresses.iter().map(|address| usual(address)));
        self.itself = Some((name.to_owned(), domain));
        self
    }

    /// Whether any edge is learned.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether an edge of the list is a learned one, or was.
    #[must_use]
    pub fn is_learned(&self, edge: u16) -> bool {
        edge >= self.first
    }

    /// Whether an edge is a learned one that has not proved its name, or no longer has it.
    #[must_use]
    pub fn is_unproved(&self, edge: u16) -> bool {
        self.by_place.get(&edge).is_some_and(|learned| !learned.proved)
    }

    /// Where to dial it now.
    #[must_use]
    pub fn address(&self, edge: u16) -> Option<&str> {
        self.by_place.get(&edge)?.address()
    }

    /// Where a learned edge is dialled from now on, if that is new to the caller.
    pub fn moved(&mut self, edge: u16) -> Option<String> {
        let learned = self.by_place.get_mut(&edge)?;
        let address = learned.address()?.to_owned();
        (learned.dialled.as_ref() != Some(&address)).then(|| {
            learned.dialled = Some(address.clone());
            address
        })
    }

    /// A teller of this domain names these edges and, from now on, no others. If the list is full, an edge that has not proved its
    /// name may make room, unless it is `in_use`.
    pub fn told(
        &mut self,
        now_ns: u64,
        (teller, domain): (Teller, [u8; 8]),
        edges: &[EdgeEntry],
        in_use: impl Fn(u16) -> bool,
    ) -> Told {
        let mut told = Told::default();
        if !self.enabled {
            return told;
        }
        let edges: BTreeMap<&str, Vec<String>> =
            { edges.iter().take(EDGES_TOLD_MAX) }.filter_map(|entry| self.usable(entry, domain)).collect();
        self.retract(now_ns, teller, |(name, of)| *of == domain && edges.contains_key(&name[..]));
        for (name, addresses) in edges {
            let name = (name.to_owned(), domain);
            let place = self.place_of(&name);
            // Without a place it is told again with the next change, at the latest when the teller's wire is new.
            let Some(place) = place.or_else(|| self.admit(now_ns, teller, name, &in_use, &mut told)) else {
                continue;
            };
            let Some(learned) = self.by_place.get_mut(&place) else { continue };
            if learned.told.len() >= TELLERS_MAX && !learned.told.contains_key(&teller) {
                continue;
            }
            learned.told.insert(teller, addresses);
            learned.unnamed_ns = None;
            learned.merge();
        }
        told
    }

    /// What can be learned of an entry: none if its edge is known without that.
    fn usable<'a>(&self, entry: &'a EdgeEntry, domain: [u8; 8]) -> Option<(&'a str, Vec<String>)> {
        let EdgeEntry { name, addresses } = entry;
        let fits = |address: &&String| {
            !address.is_empty() && address.len() <= EDGE_ADDRESS_SIZE_MAX && !self.is_taken(address)
        };
        let addresses: Vec<String> =
            addresses.iter().filter(fits).take(EDGE_ADDRESSES_MAX).cloned().collect();
        let is_it = |own: &Name| own.0 == *name && own.1 == domain;
        let has_it = self.itself.iter().chain(self.configured.values()).any(is_it);
        let is_new = !name.is_empty() && name.len() <= TEXT_MAX && !has_it;
        (is_new && !addresses.is_empty()).then_some((&name[..], addresses))
    }

    /// Whether an edge at this address answers without having been learned.
    fn is_taken(&self, address: &str) -> bool {
        self.taken.contains(&usual(address))
    }

    /// A teller is gone, or believed no more.
    pub fn gone(&mut self, now_ns: u64, teller: Teller) {
        self.retract(now_ns, teller, |_| false);
    }

    /// A teller names no others than these.
    fn retract(&mut self, now_ns: u64, teller: Teller, named: impl Fn(&Name) -> bool) {
        for learned in self.by_place.values_mut() {
            if !named(&learned.name) && learned.told.remove(&teller).is_some() {
                learned.merge();
                if learned.told.is_empty() {
                    learned.unnamed_ns = Some(now_ns);
                }
                self.look_ns = now_ns;
            }
        }
    }

    /// An edge has answered, with this name and domain.
    ///
    /// # Errors
    /// If it was learned, and is not what was told.
    pub fn answered(&mut self, now_ns: u64, edge: u16, welcome: &Welcome) -> Result<(), NotAsTold> {
        let name = (welcome.edge.clone(), welcome.domain);
        if !self.is_learned(edge) {
            self.place_of(&name).into_iter().for_each(|twice| self.retire(now_ns, twice));
            self.configured.insert(edge, name);
            return Ok(());
        }
        let is_known = self.itself.iter().chain(self.configured.values()).any(|known| *known == name)
            || self.place_of(&name).is_some_and(|place| place != edge && !self.is_unproved(place));
        // A place that is forgotten has no wire.
        let Some(learned) = self.by_place.get_mut(&edge) else { return Ok(()) };
        let is_it = learned.name == name;
        (learned.proved, learned.failed) = (is_it, !is_it);
        let (told, _) = &learned.name;
        let reason = if is_it {
            return Ok(());
        } else if *told == name.0 {
            format!("the edge `{told}` has another domain secret than the edge that had told of it")
        } else {
            let (is, _) = name;
            format!("the edge at this address is `{is}`, and another one had told that it is `{told}`")
        };
        Err(NotAsTold { reason, is_known })
    }

    /// It cannot be reached where it was dialled, or another edge is there: the next address has its turn.
    pub fn failed(&mut self, edge: u16) {
        if let Some(learned) = self.by_place.get_mut(&edge) {
            learned.turn = learned.turn.wrapping_add(1);
            learned.failed = true;
        }
    }

    /// The place of an edge.
    fn place_of(&self, name: &Name) -> Option<u16> {
        self.by_place.iter().find(|(_, learned)| learned.name == *name).map(|(place, _)| *place)
    }

    fn free_place(&self) -> Option<u16> {
        let end = self.first.saturating_add(u16::try_from(EDGES_LEARNED_MAX).unwrap_or(u16::MAX));
        (self.first..end).find(|place| !self.by_place.contains_key(place))
    }

    /// The list has this edge without having learned it: it is forgotten as soon as it is not in use.
    fn retire(&mut self, now_ns: u64, edge: u16) {
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
        holds!("I48", self.enabled || self.by_place.is_empty());
        holds!("I48", self.by_place.len() <= EDGES_LEARNED_MAX);
        holds!("I48", self.configured.keys().all(|edge| !self.is_learned(*edge)));
        for (place, learned) in &self.by_place {
            holds!("I48", *place >= self.first);
            holds!("I48", !learned.addresses.is_empty() && learned.addresses.len() <= DIALLED_MAX);
            holds!("I48", !learned.addresses.iter().any(|address| self.is_taken(address)));
            holds!("I48", learned.told.len() <= TELLERS_MAX);
            holds!("I48", learned.told.is_empty() == learned.unnamed_ns.is_some());
            holds!("I48", self.place_of(&learned.name) == Some(*place));
        }
        self.evicted.invariants()
    }
}

/// The usual form of an address, so that two spellings of one do not differ.
fn usual(address: &str) -> String {
    let numbers = address.parse().map(|address: SocketAddr| address.to_string());
    numbers.unwrap_or_else(|_| address.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
