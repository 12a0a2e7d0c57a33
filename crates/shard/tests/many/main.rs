//! Apps with very many keys. What takes longer with each cell that there is, or was, shows here: so the machines do not check their
//! invariants after each step, which takes as long.

#[path = "../shard/support.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod settings;
#[path = "../shard/cells/world.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod world;

/// What the world begins with.
mod support {
    pub(crate) use crate::settings::{agent_config, app};

    /// A bug panics.
    pub(crate) fn be_strict() {
        marram_session::bug::panic_on_bugs();
        marram_session::invariant::check_no_step();
    }
}

use marram_session::owner::BackupForm;
use marram_wire::frame::Code;
use world::{LONG_MS, World};

/// Most cells of a slot.
const CELLS: usize = 1_024;

/// Connections that are opened, or shut, at a time.
const BATCH: usize = 256;

/// Opens a connection to an agent for each of these numbers, each with a key of its own.
fn opens(world: &mut World, agent: usize, numbers: core::ops::Range<usize>) {
    for number in numbers {
        world.opens(agent, number as u64, &format!("key {number}"));
    }
}

#[test]
fn a_full_slot_refuses_the_next_key_and_a_cell_that_ends_makes_room() {
    let mut world = World::with_keys(2, BackupForm::Log, 1);
    // Its first connection has the first key.
    let agent = world.joins_cell(0, "key 1");
    for first in (2..=CELLS).step_by(BATCH) {
        opens(&mut world, agent, first..(first + BATCH).min(CELLS + 1));
        world.runs(100);
    }
    let at = world.runs_at()[0];
    assert_eq!(world.cells_at(at).len(), CELLS);
    assert_eq!(world.refusals(agent), []);

    let late = world.joins_cell(1, "one more");
    let refused = world.refusals(late);
    let is_told = |(code, why): &(Code, String)| {
        *code == Code::Busy
            && why.contains("1024 cells")
            && why.contains("maximum")
            && why.contains("`slots`")
    };
    assert!(refused.iter().any(is_told), "{refused:?}");
    assert!(world.heard(late).is_empty());
    // A client of a key that has a cell is refused by nothing.
    let other = world.joins_cell(1, "key 7");
    assert!(world.heard(other).contains(&"4 hi"), "{:?}", world.heard(other));

    world.shuts(agent, 9);
    world.runs(LONG_MS);
    assert_eq!(world.heard(late), ["1 joins", "2 hi"], "it has asked again");
    assert_eq!(world.cells_at(at).len(), CELLS);
    // All of them outlive their edge.
    world.kills(at);
    world.runs(LONG_MS);
    let next = world.runs_at()[0];
    assert_ne!(next, at);
    assert_eq!(world.cells_at(next).len(), CELLS);
    world.says(late, "after");
    world.runs(100);
    assert_eq!(world.heard(late).last(), Some(&"3 after"));
}

#[test]
fn a_hundred_thousand_keys_leave_nothing() {
    const KEYS: usize = 100_000;
    const SLOTS: usize = 64;
    let mut world = World::with_keys(2, BackupForm::Log, 64);
    world.takes_batches();
    let agent = world.joins_cell(0, "key 1");
    let (mut opened, mut most) = (1, 0);
    let mut after_first = None;
    while opened < KEYS {
        let next = (opened + BATCH).min(KEYS);
        opens(&mut world, agent, opened + 1..next + 1);
        world.runs(50);
        for number in opened.max(2)..=next {
            world.shuts(agent, number as u64);
        }
        opened = next;
        world.runs(50);
        let sessions = world.held_at(0).0.max(world.held_at(1).0);
        most = most.max(sessions);
        if opened == BATCH + 1 {
            after_first = Some(world.held_at(0).1 + world.held_at(1).1);
        }
    }
    world.runs(LONG_MS);
    assert_eq!(world.refusals(agent), []);
    assert_eq!(world.ends(agent), KEYS - 1, "the first one has not closed");
    // A record and a claim of each slot, however many keys there were.
    assert_eq!((world.store.slots.len(), world.store.groups.len()), (SLOTS, SLOTS));
    // The last cell of each slot is left, at its edge and at that one's backup.
    let left: usize = (0..2).map(|edge| world.cells_at(edge).len()).sum();
    assert!((SLOTS..=SLOTS + 1).contains(&left), "{left} cells");
    for edge in 0..2 {
        assert!(world.held_at(edge).0 <= SLOTS + 1 && world.instances_at(edge) <= SLOTS + 1);
    }
    let held = world.held_at(0).1 + world.held_at(1).1;
    let after_first = after_first.expect("there was a first batch");
    assert!(held <= 2 * after_first, "{held} bytes now, {after_first} after the first keys");
    assert!(most <= 2 * BATCH + SLOTS, "{most} sessions at a time");
}
