//! A consistent hash ring over edges: it decides which edge stands by for a session. All edges that know the same edges, in any
//! order, get the same result. The ring knows neither addresses nor liveness: it is rebuilt when the list of edges changes.
//!
//! Each edge has many points on the ring, so the sessions of a dead edge are spread over all others, and no other session moves.

use alloc::{string::String, vec::Vec};
use marram_wire::id::SessionId;

/// Edges of one domain on the ring. If there are more, those with the last names are omitted, the same ones everywhere.
pub const EDGES_MAX: usize = 256;
/// Points of one edge. The shares of the edges differ by about one part in the square root of this number.
const POINTS: u32 = 256;
/// Part of every hash. Another version of this ring uses another context and places the points elsewhere.
const CONTEXT: &str = "marram 2026 standby ring 1";

const _: () = assert!(EDGES_MAX <= u16::MAX as usize, "an edge's index fits into a point");

/// The ring.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// Sorted, without duplicates.
    edges: Vec<String>,
    /// The position on the ring, and an index into `edges`; sorted.
    points: Vec<(u64, u16)>,
}

impl Ring {
    /// A ring of these edges, by their names, which are unique in a domain. Duplicates count once.
    #[must_use]
    pub fn new(edges: impl Iterator<Item = String>) -> Self {
        let mut edges: Vec<String> = edges.collect();
        edges.sort_unstable();
        edges.dedup();
        edges.truncate(EDGES_MAX);
        let mut points: Vec<(u64, u16)> = (0u16..)
            .zip(&edges)
            .flat_map(|(index, edge)| {
                (0..POINTS).map(move |point| (place(&[edge.as_bytes(), &point.to_le_bytes()]), index))
            })
            .collect();
        points.sort_unstable();
        Self { edges, points }
    }

    /// The edges on the ring, sorted.
    #[must_use]
    pub fn edges(&self) -> &[String] {
        &self.edges
    }

    /// The first edge after the session's position, whatever owns it. None if there is no edge.
    #[must_use]
    pub fn first_of(&self, session: SessionId) -> Option<&str> {
        self.round(&session.0).next()
    }

    /// The standby of a session: the first edge after the session's position that is not its owner. None if the owner is the only
    /// edge.
    #[must_use]
    pub fn standby_of(&self, session: SessionId, owner: &str) -> Option<&str> {
        self.after(&session.0, owner)
    }

    /// The same for any other key, such as a replication group.
    #[must_use]
    pub fn after(&self, key: &[u8], owner: &str) -> Option<&str> {
        // Ends after a few points, unless the owner is the only edge.
        self.round(key).find(|edge| *edge != owner)
    }

    /// All edges but the owner, in the order in which they would stand by for a session if those before them were not there. The ring is
    /// walked as far as they are asked for.
    pub fn in_order<'a>(&'a self, session: SessionId, owner: &'a str) -> impl Iterator<Item = &'a str> {
        let others = self.edges.iter().filter(|edge| *edge != owner).count();
        let mut seen = Vec::new();
        let is_next = move |edge: &&'a str| {
            let is_next = *edge != owner && !seen.contains(edge);
            seen.extend(is_next.then_some(*edge));
            is_next
        };
        self.round(&session.0).filter(is_next).take(others)
    }

    /// The edges of all points, from a key's position on.
    fn round<'a>(&'a self, key: &[u8]) -> impl Iterator<Item = &'a str> + use<'a> {
        let at = place(&[key]);
        let first = self.points.partition_point(|(point, _)| *point < at);
        let (before, behind) = self.points.split_at(first);
        behind.iter().chain(before).map(|(_, index)| self.edges[usize::from(*index)].as_str())
    }
}

/// The position of a key on the ring.
fn place(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeMap, format, vec};

    const SESSIONS: u32 = 20_000;

    fn session(number: u32) -> SessionId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_le_bytes());
        SessionId(id)
    }

    fn edge(number: u32) -> String {
        format!("edge-{number}")
    }

    /// How many sessions of this owner each edge stands by for.
    fn shares<'a>(ring: &'a Ring, owner: &str) -> BTreeMap<&'a str, u32> {
        let mut shares = BTreeMap::new();
        for number in 0..SESSIONS {
            let standby = ring.standby_of(session(number), owner).unwrap();
            *shares.entry(standby).or_default() += 1;
        }
        shares
    }

    fn assert_even<'a>(shares: impl Iterator<Item = &'a u32> + Clone, edges: u32) {
        let mean = shares.clone().sum::<u32>() / edges;
        assert_eq!(shares.clone().count(), edges as usize, "each has a share");
        let (least, most) = (shares.clone().min().unwrap(), shares.max().unwrap());
        assert!(*least * 10 >= mean * 7 && *most * 10 <= mean * 13, "{least} to {most}, mean {mean}");
    }

    #[test]
    fn no_edge_stands_by_for_itself_and_the_shares_are_even() {
        let ring = Ring::new((0..10).map(edge));
        for owner in 0..10 {
            let shares = shares(&ring, &edge(owner));
            assert!(!shares.contains_key(edge(owner).as_str()));
            assert_even(shares.values(), 9);
        }
    }

    #[test]
    fn what_a_dead_edge_held_spreads_over_all_others_and_nothing_else_moves() {
        let (owner, dead) = (edge(0), edge(7));
        let before = Ring::new((0..10).map(edge));
        let after = Ring::new((0..10).map(edge).filter(|edge| *edge != dead));
        let mut moved = BTreeMap::new();
        for number in 0..SESSIONS {
            let old = before.standby_of(session(number), &owner).unwrap();
            let new = after.standby_of(session(number), &owner).unwrap();
            if old == dead {
                *moved.entry(new).or_insert(0u32) += 1;
            } else {
                assert_eq!(old, new, "a session whose standby lives keeps it");
            }
        }
        // A ninth of the sessions in eight shares: so few that they vary at random.
        let mean = moved.values().sum::<u32>() / 8;
        assert_eq!(moved.len(), 8, "all but the owner and the dead one take some: {moved:?}");
        assert!(moved.values().all(|share| *share * 2 > mean && *share < mean * 2), "{moved:?}");
    }

    #[test]
    fn all_others_are_in_order_and_the_standby_is_the_first() {
        let ring = Ring::new((0..5).map(edge));
        for number in 0..100 {
            let (session, owner) = (session(number), edge(number % 5));
            let mut order: Vec<&str> = ring.in_order(session, &owner).collect();
            assert_eq!(order.first().copied(), ring.standby_of(session, &owner));
            order.sort_unstable();
            let others: Vec<String> = (0..5).map(edge).filter(|edge| *edge != owner).collect();
            assert_eq!(order, others);
        }
        assert!(Ring::new(vec![String::from("a")].into_iter()).in_order(session(1), "a").next().is_none());
    }

    #[test]
    fn the_order_and_repetitions_of_the_edges_do_not_matter() {
        let ring = Ring::new((0..5).map(edge));
        assert_eq!(Ring::new((0..5).rev().chain(0..5).map(edge)), ring);
        assert_eq!(ring.edges().len(), 5);
    }

    #[test]
    fn a_single_edge_has_no_standby_and_an_owner_outside_the_ring_has_one() {
        assert_eq!(Ring::new(core::iter::empty()).standby_of(session(1), "a"), None);
        let ring = Ring::new(vec![String::from("a")].into_iter());
        assert_eq!(ring.standby_of(session(1), "a"), None);
        assert_eq!(ring.standby_of(session(1), "b"), Some("a"));
    }

    #[test]
    fn there_is_an_end_to_how_many_take_part() {
        let ring = Ring::new((0..1_000).map(edge));
        assert_eq!(ring.edges().len(), EDGES_MAX);
        assert!(ring.standby_of(session(1), &edge(999)).is_some());
    }

    #[test]
    fn this_version_s_ring_stays_where_it_is() {
        let ring = Ring::new((0..4).map(edge));
        let standbys: Vec<&str> =
            (0..6).filter_map(|number| ring.standby_of(session(number), "edge-0")).collect();
        assert_eq!(standbys, GOLDEN);
    }

    const GOLDEN: [&str; 6] = ["edge-3", "edge-2", "edge-1", "edge-3", "edge-1", "edge-1"];
}
