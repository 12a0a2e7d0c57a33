//! What is remembered of edges that others tell of.

use super::*;
use alloc::{format, string::ToString, vec};

const DOMAIN: [u8; 8] = [1; 8];
const S: u64 = 1_000_000_000;

fn entry(name: &str, addresses: &[&str]) -> EdgeEntry {
    EdgeEntry { name: name.to_string(), addresses: addresses.iter().map(ToString::to_string).collect() }
}

/// Two configured edges; the first one has answered.
fn learned() -> LearnedEdges {
    let mut edges = LearnedEdges::new(true, 2, &["listed:1".into(), "10.0.0.2:1".into()]);
    assert_eq!(answered(&mut edges, 0, "configured"), Ok(()));
    edges
}

/// What is new, if nothing has to make room.
fn told(edges: &mut LearnedEdges, now_ns: u64, teller: Teller, entries: &[EdgeEntry]) -> Vec<u16> {
    let Told { evicted, new } = told_all(edges, now_ns, teller, entries);
    assert_eq!(evicted, [0; 0]);
    new
}

fn told_all(edges: &mut LearnedEdges, now_ns: u64, teller: Teller, entries: &[EdgeEntry]) -> Told {
    let told = edges.told(now_ns, (teller, DOMAIN), entries, |_| false);
    edges.invariants().expect("it holds");
    told
}

/// An edge answers in a place.
fn answered(edges: &mut LearnedEdges, place: u16, name: &str) -> Result<(), NotAsTold> {
    let welcome = Welcome {
        version: 1,
        shard: 0,
        shards: 1,
        draining: false,
        domain: DOMAIN,
        challenge: [0; 16],
        edge: name.into(),
    };
    let answered = edges.answered(0, place, &welcome);
    edges.invariants().expect("it holds");
    answered
}

/// `a0` and so on, where nothing is.
fn dead(first: &str, count: usize) -> Vec<EdgeEntry> {
    (0..count).map(|nth| entry(&format!("{first}{nth}"), &["dead:1"])).collect()
}

#[test]
fn learned_edges_come_after_the_configured_ones_and_never_instead_of_them() {
    let mut edges = learned();
    let entries = [entry("configured", &["x:1"]), entry("b", &["b:1"]), entry("c", &["c:1"])];
    assert_eq!(told(&mut edges, 0, 0, &entries), [2, 3]);
    assert_eq!(told(&mut edges, 0, 1, &entries), [0; 0], "they are known");
    assert_eq!((edges.address(2), edges.address(3)), (Some("b:1"), Some("c:1")));
    assert!(edges.is_learned(2) && !edges.is_learned(1));
    assert_eq!((answered(&mut edges, 2, "b"), edges.is_unproved(2)), (Ok(()), false));
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
fn an_address_of_the_list_is_not_dialled_under_another_name() {
    let mut edges = learned().of_edge("itself", DOMAIN, &["here:1".into()]);
    // An edge that has restarted under another name, and one that dials itself.
    let entries = [
        entry("old", &["LISTED:1"]),
        entry("older", &["10.0.0.2:1", "listed:1"]),
        entry("itself", &["x:1"]),
        entry("itself-before", &["here:1"]),
    ];
    assert_eq!(told(&mut edges, 0, 0, &entries), [0; 0]);
    assert_eq!(told(&mut edges, 0, 0, &[entry("b", &["listed:1", "b:1"])]), [2]);
    assert_eq!((edges.moved(2).as_deref(), edges.moved(2)), (Some("b:1"), None));
    edges.failed(2);
    assert_eq!(edges.address(2), Some("b:1"), "it is the only one");
}

#[test]
fn an_edge_that_is_not_what_was_told_is_not_used() {
    let mut edges = learned();
    told(&mut edges, 0, 0, &[entry("b", &["b:1"]), entry("c", &["c:1"])]);
    assert_eq!(answered(&mut edges, 2, "b"), Ok(()));
    let known = |answered: Result<(), NotAsTold>| answered.map_err(|why| why.is_known);
    assert_eq!(known(answered(&mut edges, 3, "configured")), Err(true));
    assert_eq!(known(answered(&mut edges, 3, "b")), Err(true));
    assert_eq!(known(answered(&mut edges, 3, "d")), Err(false));
    assert_eq!(known(answered(&mut edges, 2, "c")), Err(false), "nothing else has proved to be that one");
    assert!(edges.is_unproved(2), "not any more");
    assert_eq!(answered(&mut edges, 3, "c"), Ok(()));
}

#[test]
fn the_number_of_edges_is_limited_and_names_without_an_edge_make_room() {
    let mut edges = learned();
    assert_eq!(told(&mut edges, 0, 0, &dead("a", 2 * EDGES_TOLD_MAX)).len(), EDGES_TOLD_MAX);
    assert_eq!(told(&mut edges, 0, 1, &dead("b", EDGES_TOLD_MAX)).len(), EDGES_LEARNED_MAX - EDGES_TOLD_MAX);
    for place in edges.by_place.keys().copied().collect::<Vec<_>>() {
        let name = edges.by_place[&place].name.0.clone();
        assert_eq!(answered(&mut edges, place, &name), Ok(()));
    }
    assert_eq!(told(&mut edges, 0, 3, &[entry("c", &["c:1"])]), [0; 0], "the list is full");
    let place = edges.place_of(&("a1".into(), DOMAIN)).expect("it is there");
    answered(&mut edges, place, "another").expect_err("it is not what was told");
    edges.gone(S, 0);
    assert_eq!(edges.expired(S, |_| false), [place], "the others have proved their names");
    edges.forget(place);
    assert_eq!(told(&mut edges, S, 3, &[entry("c", &["c:1"])]), [place]);
}

/// Two hostile edges name so many that the list is full.
fn full_of_dead() -> LearnedEdges {
    let mut edges = learned();
    told(&mut edges, 0, 0, &dead("a", EDGES_TOLD_MAX));
    told(&mut edges, 0, 1, &dead("b", EDGES_TOLD_MAX));
    assert_eq!(edges.by_place.len(), EDGES_LEARNED_MAX);
    edges
}

#[test]
fn two_edges_that_name_dead_ones_do_not_keep_out_those_that_exist() {
    let mut edges = full_of_dead();
    // One was dialled in vain.
    edges.failed(7);
    let Told { evicted, new } = told_all(&mut edges, S, 3, &[entry("c", &["c:1"]), entry("d", &["d:1"])]);
    assert_eq!((evicted.len(), &evicted), (2, &new));
    assert_eq!(new[0], 7, "it gives way first");
    // The others had not been dialled yet, but their tellers have more than their share.
    assert_eq!(edges.address(new[1]), Some("d:1"));
    new.iter().zip(["c", "d"]).for_each(|(place, name)| answered(&mut edges, *place, name).expect("as told"));
    for at_ns in 0..100 {
        let other = told_all(&mut edges, S + at_ns, at_ns % 2, &dead(&format!("x{at_ns}-"), EDGES_TOLD_MAX));
        assert!(!other.evicted.contains(&new[0]) && !other.evicted.contains(&new[1]));
    }
    assert_eq!((edges.address(new[0]), edges.address(new[1])), (Some("c:1"), Some("d:1")));
}

#[test]
fn an_edge_that_has_made_room_does_not_displace_others_at_once() {
    let mut edges = full_of_dead();
    edges.by_place.keys().copied().collect::<Vec<_>>().into_iter().for_each(|place| edges.failed(place));
    let Told { evicted, .. } = told_all(&mut edges, S, 3, &[entry("c", &["c:1"])]);
    assert_eq!(evicted.len(), 1);
    // The hostile ones say the same again.
    assert_eq!(told(&mut edges, 2 * S, 0, &dead("a", EDGES_TOLD_MAX)), [0; 0]);
    assert_eq!(told(&mut edges, 2 * S, 1, &dead("b", EDGES_TOLD_MAX)), [0; 0]);
    let (later_ns, all) = (120 * S, [dead("a", EDGES_TOLD_MAX), dead("b", EDGES_TOLD_MAX)]);
    let again: usize =
        (0..2).map(|nth| told_all(&mut edges, later_ns, nth, &all[usize::from(nth > 0)]).new.len()).sum();
    assert_eq!(again, 1, "in place of another one of them that was dialled in vain");
    assert!(edges.place_of(&("c".into(), DOMAIN)).is_some());
}

#[test]
fn an_edge_in_use_does_not_make_room() {
    let mut edges = full_of_dead();
    let told = edges.told(S, (3, DOMAIN), &[entry("c", &["c:1"])], |place| place != 9);
    assert_eq!(told, Told { evicted: vec![9], new: vec![9] });
    assert_eq!(edges.told(S, (3, DOMAIN), &dead("d", 3), |_| true), Told::default());
}

#[test]
fn a_list_that_is_not_to_learn_stays_empty() {
    let mut edges = LearnedEdges::new(false, 1, &[]);
    assert_eq!(told(&mut edges, 0, 0, &[entry("b", &["b:1"])]), [0; 0]);
}

#[test]
fn an_edge_that_is_configured_after_all_is_forgotten_at_once() {
    let mut edges = learned();
    told(&mut edges, 0, 0, &[entry("b", &["b:1"])]);
    assert_eq!(answered(&mut edges, 1, "b"), Ok(()));
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
