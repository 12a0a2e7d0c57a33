//! Cells that were started ahead of their clients: equal to new ones, of no session until taken, and removed first.

use crate::own_process;
use crate::support::{self, SEED, ask_at, chain_with, deploy, echo, guest, start_in};
use marram_sandbox::{CellStartError, Cells, CellsConfig, Image, ReadyStats, WarmPoolStats};
use marram_session::cell::{CellId, Seed};
use std::sync::Arc;

/// Answers with sixteen bytes from its generator and the number of its messages.
fn diary() -> Arc<Image> {
    deploy(&guest(
        r#"(global $count (mut i32) (i32.const 0))
           (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (global.set $count (i32.add (global.get $count) (i32.const 1)))
             (call $random (i32.const 0) (i32.const 16))
             (i32.store (i32.const 16) (global.get $count))
             (call $send (local.get $port) (i32.const 0) (i32.const 20)))"#,
    ))
}

fn stocked(slots: u32, image: &Arc<Image>) -> Cells {
    let mut cells = Cells::new(CellsConfig { slots, ..CellsConfig::default() }).unwrap();
    cells.expect(image);
    while cells.prewarm_one() {}
    cells
}

#[test]
fn a_cell_from_the_shelf_is_the_same_as_one_that_was_started() {
    let image = diary();
    let (mut ahead, mut fresh) = (stocked(64, &image), stocked(64, &deploy(&echo())));
    for (number, seed) in [(1, SEED), (2, Seed([7; 32]))] {
        let cell = CellId(number);
        let said = [&mut ahead, &mut fresh].map(|cells| {
            cells.start(cell, &image, seed).unwrap();
            for (port, kind) in [
                (marram_wire::id::Port::CLIENT, marram_session::cell::PortKind::Client),
                (marram_wire::id::Port::SERVER, marram_session::cell::PortKind::Server),
            ] {
                support::run(
                    cells,
                    cell,
                    marram_session::cell::CellInput::Open { port, kind, peer: None },
                    0,
                );
            }
            let said = [ask_at(cells, cell, b"a", 1), ask_at(cells, cell, b"b", 2)];
            (said, cells.state_hash(cell).unwrap())
        });
        assert_eq!(said[0], said[1], "seed {seed:?}");
    }
    assert_eq!((ahead.ready_stats().found, fresh.ready_stats().found), (2, 0));
}

#[test]
fn an_empty_pool_grows_and_an_unused_pool_shrinks() {
    let image = diary();
    let mut cells = stocked(256, &image);
    let first = cells.ready_stats().ready;
    for number in 0..=first as u64 {
        start_in(&mut cells, CellId(number), &image);
    }
    let ReadyStats { ready, found, missed, .. } = cells.ready_stats();
    assert_eq!((ready, found, missed), (0, first as u64, 1));
    let pool = WarmPoolStats { ready: 0, wanted: 2 * first, found, missed };
    assert_eq!(cells.pool_stats(image.hash()), Some(pool));
    while cells.prewarm_one() {}
    assert_eq!(cells.ready_stats().ready, 2 * first);
    for _ in 0..8 {
        cells.tend();
    }
    assert_eq!(cells.ready_stats().ready, first);
    assert_eq!(cells.ready_stats().reclaimed, first as u64);
}

#[test]
fn clients_come_before_prewarmed_cells() {
    let image = diary();
    let mut cells = stocked(32, &image);
    assert_eq!(cells.ready_stats().ready, 8, "a quarter of the slots");
    // Another app's clients need all slots.
    let other = deploy(&echo());
    for number in 0..32 {
        start_in(&mut cells, CellId(number), &other);
    }
    assert_eq!((cells.len(), cells.ready_stats().ready), (32, 0));
    assert!(matches!(cells.start(CellId(99), &other, SEED), Err(CellStartError::Slot(_))));
    // None is started ahead while there is no room, and trying has no effect.
    while cells.prewarm_one() {}
    assert_eq!((cells.len(), cells.ready_stats().ready), (32, 0));
}

#[test]
fn a_chain_is_started_ahead_as_one() {
    let image = chain_with(false, &marram_sandbox::Quotas::default(), &[("a", echo()), ("b", echo())]);
    let mut cells = stocked(64, &image);
    cells.start(CellId(1), &image, SEED).unwrap();
    assert_eq!(cells.ready_stats().found, 1);
    cells.forget(&image);
    assert_eq!(cells.ready_stats().ready, 0);
    assert!(!cells.prewarm_one(), "no one asks for it any more");
    assert_eq!(cells.pool_stats(image.hash()), None);
}

/// Writes a megabyte.
fn spender() -> Arc<Image> {
    deploy(&guest(
        r#"(func (export "marram_recv") (param i32 i32 i32)
             (memory.fill (i32.const 0) (i32.const 7) (i32.const 0xf0000)))"#,
    ))
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
}

/// The only test of its process: it measures the memory of the whole process.
#[test]
fn what_used_slots_keep_can_be_had_back() {
    if !own_process::entered() {
        return;
    }
    let config = CellsConfig { slots: 64, keep_resident: 1 << 20, ..CellsConfig::default() };
    let mut cells = Cells::new(config).unwrap();
    let image = spender();
    for number in 0..64 {
        start_in(&mut cells, CellId(number), &image);
        ask_at(&mut cells, CellId(number), b"x", 0);
    }
    (1..64).for_each(|number| cells.remove(CellId(number)));
    let before = cells.state_hash(CellId(0));
    if cells.warm_slots() == 0 {
        // If the kernel cannot report which pages were written, a slot keeps none.
        return;
    }
    let full = resident_kib();
    assert_eq!(cells.reclaim(), (0, 63));
    let left = resident_kib();
    assert!(left + 63 * 700 < full, "{full} KiB before, {left} KiB after");
    assert_eq!(cells.state_hash(CellId(0)), before, "who lives is not touched");
    start_in(&mut cells, CellId(1), &image);
}
