//! Attacks on the edges and agents that store and restore a cell: state as large and as unusual as a guest can make it.

use super::witness::Witness;
use crate::support::files::{CREATE, OK, READ, WRITE, on_path, open, rename, write};
use crate::support::wasi::{call, proxy};
use crate::support::{CELL, ask, cells, deploy_with, guest, start_in};
use marram_sandbox::limits::{NODE_BYTES, PAGE};
use marram_sandbox::{Cells, Decoded, Image, Quotas};
use marram_session::cell::{CellId, CheckpointBase};
use std::sync::Arc;

/// Takes a checkpoint, restores it elsewhere, and checks that the cell is the same; returns the checkpoint's size.
fn travels(cells: &mut Cells, image: &Arc<Image>, list: &mut Vec<Vec<u8>>) -> usize {
    let base = if list.is_empty() { CheckpointBase::Image } else { CheckpointBase::Previous };
    list.push(cells.snapshot(CELL, base).unwrap().encode());
    let other = CellId(2);
    cells.restore(other, image, &Decoded::decode(list).unwrap()).unwrap();
    assert_eq!(cells.state_hash(other), cells.state_hash(CELL));
    cells.remove(other);
    list.last().unwrap().len()
}

#[test]
fn state_that_cannot_be_compressed_is_no_larger_than_its_quota() {
    let quotas = Quotas { memory_max: 16 << 20, ..Quotas::default() };
    let noise = guest(
        r#"(func (export "marram_recv") (param i32 i32 i32) (local $at i32)
             (drop (memory.grow (i32.const 216)))
             (loop $l
               (call $random (local.get $at) (i32.const 65536))
               (br_if $l (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 65536))) (i32.const 0x1000000)))))"#,
    );
    let image = deploy_with(&noise, &quotas, &[]);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let mut witness = Witness::beside(&mut cells);
    let mut list = Vec::new();
    for _ in 0..3 {
        ask(&mut cells, b"");
        // A full checkpoint, and deltas in which every page changes.
        let size = travels(&mut cells, &image, &mut list);
        assert!(size > 16 << 20 && size < (16 << 20) * 11 / 10, "{size}");
        witness.is_untouched(&mut cells, "a checkpoint");
    }
    witness.answers(&mut cells);
}

#[test]
fn as_many_files_as_the_quota_allows_travel_whole_however_deep_they_lie() {
    let quotas = Quotas { scratch_max: 512 * NODE_BYTES, ..Quotas::default() };
    let image = deploy_with(&proxy(), &quotas, &[]);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let mut list = Vec::new();
    let mut deep = String::from("d");
    let mut made = 0;
    while on_path(&mut cells, "path_create_directory", &deep) == OK {
        made += 1;
        deep.push_str("/d");
    }
    assert_eq!(made, 512);
    travels(&mut cells, &image, &mut list);
    // The tree is turned upside down, without a cycle.
    assert_ne!(rename(&mut cells, "d", "d/d/d/d"), OK);
    assert_eq!(rename(&mut cells, "d/d", "e"), OK);
    assert_ne!(rename(&mut cells, "e", "e/d"), OK);
    let size = travels(&mut cells, &image, &mut list);
    assert!(size < 64 << 10, "{size}");
}

#[test]
fn files_without_names_long_holes_and_pages_that_come_and_go_travel_in_what_they_hold() {
    let quotas = Quotas { scratch_max: 64 << 10, ..Quotas::default() };
    let image = deploy_with(&proxy(), &quotas, &[]);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let c = &mut cells;
    let mut list = Vec::new();
    let ghost = open(c, "ghost", CREATE, READ | WRITE).unwrap();
    assert_eq!(write(c, ghost, &[1; 3000]), Ok(3000));
    assert_eq!(on_path(c, "path_unlink_file", "ghost"), OK);
    let hole = open(c, "hole", CREATE, READ | WRITE).unwrap();
    assert_eq!(call(c, "fd_filestat_set_size", &[hole, 1 << 32], &[]).0, OK);
    travels(c, &image, &mut list);
    for page in 0..2_000_u64 {
        let (at, data) = (page * 500 * PAGE as u64, crate::support::files::buffer(b"x", 1));
        let at_buffers = crate::support::files::AT;
        assert_eq!(call(c, "fd_pwrite", &[hole, at_buffers, 1, at, at_buffers + 8], &data).0, OK, "{page}");
        assert_eq!(call(c, "fd_filestat_set_size", &[hole, 0], &[]).0, OK);
    }
    assert_eq!(call(c, "fd_filestat_set_size", &[hole, 1 << 32], &[]).0, OK);
    let size = travels(c, &image, &mut list);
    assert!(size < 16 << 10, "{size}: 2,000 pages came and went, and none is there");
    // The unlinked file, which is still open, cannot be opened by its old name.
    assert_eq!(open(c, "ghost", 0, READ), Err(44));
}
