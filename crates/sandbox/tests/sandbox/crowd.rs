//! Thousands of live cells in one process: each answers, and none uses much memory.

use crate::own_process;
use crate::support::{ask_at, deploy, guest, start_in};
use marram_sandbox::{Cells, CellsConfig};
use marram_session::cell::{CellId, CheckpointBase};

const CELLS: u64 = 2_000;

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
}

/// The only test of its process: it measures the memory of the whole process.
#[test]
fn two_thousand_cells_live_in_a_quarter_of_a_gibibyte_and_each_is_its_own() {
    if !own_process::entered() {
        return;
    }
    // Keeps its client's number on each of eight pages, and answers with the number on the last.
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $page i32)
             (if (local.get $len) (then
               (loop $pages
                 (i64.store (i32.mul (local.get $page) (i32.const 4096)) (i64.load (local.get $ptr)))
                 (local.set $page (i32.add (local.get $page) (i32.const 1)))
                 (br_if $pages (i32.lt_u (local.get $page) (i32.const 8))))))
             (call $send (local.get $port) (i32.const 28672) (i32.const 8)))"#,
    ));
    let slots = u32::try_from(CELLS + 16).unwrap();
    let mut cells = Cells::new(CellsConfig { slots, ..CellsConfig::default() }).unwrap();
    start_in(&mut cells, CellId(CELLS), &image);
    let before = resident_kib();
    for number in 0..CELLS {
        start_in(&mut cells, CellId(number), &image);
        ask_at(&mut cells, CellId(number), &number.to_le_bytes(), 0);
        // Protected, with its dirty pages tracked from here on.
        cells.snapshot(CellId(number), CheckpointBase::Image).unwrap();
    }
    let grown = resident_kib() - before;
    assert!(grown < 256 << 10, "{CELLS} cells take {grown} KiB");
    for number in 0..CELLS {
        assert_eq!(ask_at(&mut cells, CellId(number), b"", 0), [number.to_le_bytes()]);
    }
}
