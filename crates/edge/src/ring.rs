//! A consistent hash ring over edges: which one stands by for a session. Whoever knows the same edges, in whatever order,
//! finds the same one. Knows neither addresses nor who is alive: it is made anew when that changes.
//!
//! Each edge has many points on the ring, so that what a dead edge held is spread over all others, and nothing else moves.

use alloc::{string::String, vec::Vec};
use marram_wire::id::SessionId;

/// Edges of one domain that take part. With more, those whose names come last are left out, the same ones everywhere.
pub const EDGES_MAX: usize = 256;
/// Points of one edge. Shares of the whole differ by about one in the square root of it.
const POINTS: u32 = 256;
/// Part of every hash: another version of this ring would put the points elsewhere.
const CONTEXT: &str = "marram 2026 standby ring 1";

const _: () = assert!(EDGES_MAX <= u16::MAX as usize, "an edge's index fits into a point");

/// The ring.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// In order, each once.
    edges: Vec<String>,
    /// Where on the ring, and an index into `edges`; in order.
    points: Vec<(u64, u16)>,
}

impl Ring {
    /// A ring of these edges, by their names, which are unique in a domain. One that is named twice counts once.
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

    /// The edges that take part, in order.
    #[must_use]
    pub fn edges(&self) -> &[String] {
        &self.edges
    }

    /// Who stands by for a session: the first edge after the session's place that is not its owner. None if there is no
    /// other edge than the owner.
    #[must_use]
    pub fn standby_of(&self, session: SessionId, owner: &str) -> Option<&str> {
        self.after(&session.0, owner)
    }

    /// The same for anything else that has a name, such as a replication group.
    #[must_use]
    pub fn after(&self, key: &[u8], owner: &str) -> Option<&str> {
        let at = place(&[key]);
        let first = self.points.partition_point(|(point, _)| *point < at);
        let (before, behind) = self.points.split_at(first);
        let round = behind.iter().chain(before).map(|(_, index)| self.edges[usize::from(*index)].as_str());
        // Ends after a handful of points, unless nobody else is there.
        round.into_iter().find(|edge| *edge != owner)
    }
}

/// Where on the ring something is.
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
    fn nobody_stands_by_for_itself_and_the_shares_are_even() {
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
        // A ninth of the sessions in eight shares: few enough that chance is seen in them.
        let mean = moved.values().sum::<u32>() / 8;
        assert_eq!(moved.len(), 8, "all but the owner and the dead one take some: {moved:?}");
        assert!(moved.values().all(|share| *share * 2 > mean && *share < mean * 2), "{moved:?}");
    }

    #[test]
    fn the_order_and_repetitions_of_the_edges_do_not_matter() {
        let ring = Ring::new((0..5).map(edge));
        assert_eq!(Ring::new((0..5).rev().chain(0..5).map(edge)), ring);
        assert_eq!(ring.edges().len(), 5);
    }

    #[test]
    fn alone_there_is_nobody_and_an_owner_that_takes_no_part_is_no_matter() {
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
