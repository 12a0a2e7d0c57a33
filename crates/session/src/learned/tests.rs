//! What is remembered of edges that others tell of.

use super::*;
use alloc::{format, string::ToString};

const DOMAIN: [u8; 8] = [1; 8];
const S: u64 = 1_000_000_000;

fn entry(name: &str, addresses: &[&str]) -> EdgeEntry {
    EdgeEntry { name: name.to_string(), addresses: addresses.iter().map(ToString::to_string).collect() }
}

/// Two configured edges.
fn learned() -> LearnedEdges {
    LearnedEdges::new(2)
}

fn told(edges: &mut LearnedEdges, now_ns: u64, teller: Teller, entries: &[EdgeEntry]) -> Vec<u16> {
    let new = edges.told(now_ns, (teller, DOMAIN), entries, |name| name == "configured");
    edges.invariants().expect("it holds");
    new
}

#[test]
fn learned_edges_come_after_the_configured_ones_and_never_instead_of_them() {
    let mut edges = learned();
    let entries = [entry("configured", &["x:1"]), entry("b", &["b:1"]), entry("c", &["c:1"])];
    assert_eq!(told(&mut edges, 0, 0, &entries), [2, 3]);
    assert_eq!(told(&mut edges, 0, 1, &entries), [0; 0], "they are known");
    assert_eq!((edges.address(2), edges.address(3)), (Some("b:1"), Some("c:1")));
    assert_eq!(edges.expected(2), Some(("b", DOMAIN)));
    assert!(edges.is_learned(2) && !edges.is_learned(1));
}

#[test]
fn entries_without_a_name_or_a_usable_address_are_not_learned() {
    let mut edges = learned();
    let long = "x".repeat(EDGE_ADDRESS_SIZE_MAX + 1);
    let entries = [entry("", &["b:1"]), entry("b", &[]), entry("c", &["", &long])];
    assert_eq!(told(&mut edges, 0, 0, &entries), [0; 0]);
    assert_eq!(told(&mut edges, 0, 0, &[entry("d", &["", &long, "d:1"])]), [2]);
    assert_eq!(edges.address(2), Some("d:1"));
}

#[test]
fn a_wrong_address_does_not_displace_what_another_edge_says() {
    let mut edges = learned();
    told(&mut edges, 0, 0, &[entry("b", &["dead:1", "dead:2", "dead:3", "dead:4", "dead:5"])]);
    told(&mut edges, 0, 1, &[entry("b", &["b:1"])]);
    assert_eq!(edges.address(2), Some("dead:1"));
    edges.failed(2);
    assert_eq!(edges.address(2), Some("b:1"), "the first address of each comes before the second ones");
    told(&mut edges, 0, 3, &[entry("b", &["dead:7"])]);
    assert_eq!(edges.address(2), Some("b:1"), "the address in use stays");
    edges.failed(2);
    assert_eq!(edges.address(2), Some("dead:7"));
}

#[test]
fn an_edge_is_forgotten_some_time_after_nothing_names_it() {
    let mut edges = learned();
    told(&mut edges, 0, 0, &[entry("b", &["b:1"])]);
    told(&mut edges, 0, 1, &[entry("b", &["b:1"])]);
    edges.gone(S, 0);
    assert_eq!(edges.expired(S, |_| false), [0; 0], "the other one still names it");
    assert_eq!(edges.wake_ns(), None);
    told(&mut edges, 2 * S, 1, &[]);
    assert_eq!(edges.expired(2 * S, |_| false), [0; 0]);
    assert_eq!(edges.wake_ns(), Some(2 * S + EDGE_FORGET_NS));
    assert_eq!(edges.address(2), Some("b:1"), "it may still be used");
    let over_ns = 2 * S + EDGE_FORGET_NS;
    assert_eq!(edges.expired(over_ns, |_| true), [0; 0]);
    assert_eq!(edges.wake_ns(), Some(over_ns + IN_USE_NS), "it is in use");
    assert_eq!(edges.expired(over_ns + IN_USE_NS, |_| false), [2]);
    edges.forget(2);
    assert_eq!((edges.address(2), edges.wake_ns()), (None, None));
    assert_eq!(told(&mut edges, over_ns, 0, &[entry("c", &["c:1"])]), [2], "the place is free");
}

#[test]
fn an_edge_that_is_named_again_stays() {
    let mut edges = learned();
    told(&mut edges, 0, 0, &[entry("b", &["b:1"])]);
    edges.gone(S, 0);
    assert_eq!(told(&mut edges, 2 * S, 1, &[entry("b", &["b:2"])]), [0; 0]);
    assert_eq!(edges.expired(S + EDGE_FORGET_NS, |_| false), [0; 0]);
    assert_eq!(edges.address(2), Some("b:2"));
}

#[test]
fn the_number_of_edges_is_limited_and_names_without_an_edge_make_room() {
    let mut edges = learned();
    let many = |who: &str| {
        (0..LIST).map(|nth| entry(&format!("{who}{nth}"), &["dead:1"])).collect::<Vec<EdgeEntry>>()
    };
    assert_eq!(told(&mut edges, 0, 0, &many("a")).len(), EDGES_TOLD_MAX);
    assert_eq!(told(&mut edges, 0, 1, &many("b")).len(), EDGES_LEARNED_MAX - EDGES_TOLD_MAX);
    assert_eq!(told(&mut edges, 0, 3, &[entry("c", &["c:1"])]), [0; 0], "the list is full");
    edges.proved(2);
    edges.gone(S, 0);
    let expired = edges.expired(S, |_| false);
    assert_eq!(expired.len(), EDGES_TOLD_MAX - 1, "all that never answered");
    expired.into_iter().for_each(|edge| edges.forget(edge));
    assert_eq!(told(&mut edges, S, 3, &[entry("c", &["c:1"])]), [3]);
    assert_eq!(edges.expected(2), Some(("a0", DOMAIN)));
}

const LIST: usize = 2 * EDGES_TOLD_MAX;

#[test]
fn an_edge_that_is_configured_after_all_is_forgotten_at_once() {
    let mut edges = learned();
    told(&mut edges, 0, 0, &[entry("b", &["b:1"])]);
    edges.retire(S, 2);
    assert!(edges.is_due(S));
    assert_eq!(edges.expired(S, |_| false), [2]);
}

#[test]
fn of_many_that_name_an_edge_some_are_remembered() {
    let mut edges = learned();
    for teller in 0..100 {
        told(&mut edges, 0, teller, &[entry("b", &[&format!("b:{teller}")])]);
    }
    for teller in 0..100 {
        edges.gone(S, teller);
    }
    assert_eq!(edges.wake_ns(), Some(S));
    edges.invariants().expect("it holds");
}
