//! Copies of a cell that runs between their pieces: each is that of the moment at which it was completed.

use crate::support::{CELL, ask_at, deploy_with, start_in};
use marram_sandbox::{
    Cells, CellsConfig, Decoded, Image, Quotas, Snapshot, SnapshotError, Tracking,
    limits::{COPY_PIECE_BYTES, PAGE},
};
use marram_session::cell::{CellId, CheckpointBase};
use std::sync::Arc;

/// Pages of the cell's memory at the start: more than the kernel is asked about at a time.
const PAGES: u32 = 272 * 16;

/// Stores pairs of a page and a value; a message of one byte grows the memory by sixteen pages.
fn pages() -> Arc<Image> {
    let module = wat::parse_str(
        r#"(module (memory (export "memory") 272)
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
             (func (export "marram_recv") (param $port i32) (param $at i32) (param $len i32)
               (if (i32.eq (local.get $len) (i32.const 1)) (then (drop (memory.grow (i32.const 1)))))
               (local.set $len (i32.add (local.get $at) (local.get $len)))
               (loop $next
                 (if (i32.le_u (i32.add (local.get $at) (i32.const 8)) (local.get $len))
                   (then
                     (i32.store
                       (i32.add (i32.mul (i32.load (local.get $at)) (i32.const 4096)) (i32.const 2048))
                       (i32.load offset=4 (local.get $at)))
                     (local.set $at (i32.add (local.get $at) (i32.const 8)))
                     (br $next))))))"#,
    );
    deploy_with(&module.unwrap(), &Quotas { memory_max: 64 << 20, ..Quotas::default() }, &[])
}

/// A generator of choices, the same in every run.
struct Choices(u64);

impl Choices {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}

struct World {
    image: Arc<Image>,
    cells: Cells,
    choices: Choices,
    pages: u32,
    now: i64,
    chain: Vec<Vec<u8>>,
    /// Whether the cell was made from a checkpoint apart: the next one of the chain builds on the full one.
    from_apart: bool,
}

impl World {
    fn new(seed: u64, tracking: Tracking) -> Self {
        let image = pages();
        let mut cells = Cells::new(CellsConfig { slots: 2, tracking, ..CellsConfig::default() }).unwrap();
        start_in(&mut cells, CELL, &image);
        Self {
            image,
            cells,
            choices: Choices(seed),
            pages: PAGES,
            now: 0,
            chain: Vec::new(),
            from_apart: false,
        }
    }

    /// Writes to this many pages, one in `far` of them anywhere and the others among the first hundred.
    fn write(&mut self, count: u32, far: u32) {
        let mut message = Vec::new();
        for _ in 0..count {
            let among = if self.choices.below(far) == 0 { self.pages - 1 } else { 100 };
            // The first page has the message.
            let page = 1 + self.choices.below(among);
            message.extend_from_slice(&page.to_le_bytes());
            message.extend_from_slice(&self.choices.below(u32::MAX).to_le_bytes());
        }
        for part in message.chunks(2000) {
            self.now += 1;
            ask_at(&mut self.cells, CELL, part, self.now);
        }
    }

    fn grow(&mut self) {
        self.now += 1;
        ask_at(&mut self.cells, CELL, b"g", self.now);
        self.pages += 16;
    }

    /// A cell that is restored from the checkpoints is in the state of this one.
    fn check(&mut self, why: &str) {
        let expected = self.cells.state_hash(CELL);
        let (other, decoded) = (CellId(9), Decoded::decode(&self.chain).unwrap());
        self.cells.restore(other, &self.image, &decoded).unwrap();
        assert_eq!(self.cells.state_hash(other), expected, "{why}");
        self.cells.remove(other);
    }

    /// Something that happens between two pieces.
    fn happen(&mut self) {
        match self.choices.below(12) {
            0 => self.grow(),
            1 => self.write(900, 2),
            2..6 => self.write(20, 3),
            _ => {}
        }
    }

    /// A cell that is restored from a checkpoint apart is in the state of this one, and may take its place.
    fn go_on_from(&mut self, apart: &Snapshot) {
        let (chain, expected) = (std::mem::take(&mut self.chain), self.cells.state_hash(CELL));
        self.chain.push(apart.encode());
        self.check("a checkpoint apart");
        if self.choices.below(2) == 0 {
            self.cells.remove(CELL);
            self.cells.restore(CELL, &self.image, &Decoded::decode(&self.chain).unwrap()).unwrap();
            assert_eq!(self.cells.state_hash(CELL), expected);
            self.from_apart = true;
        }
        self.chain = chain;
    }

    fn checkpoint(&mut self, base: CheckpointBase) {
        // Given up, and begun again on another base.
        match self.choices.below(6) {
            0 => {
                self.cells.prepare_snapshot(CELL, CheckpointBase::Image).unwrap();
                self.happen();
            }
            1 => {
                self.cells.prepare_snapshot(CELL, CheckpointBase::Image).unwrap();
                self.happen();
                self.cells.forget_preparation(CELL);
                self.happen();
            }
            _ => {}
        }
        for _ in 0..self.choices.below(60) {
            self.cells.prepare_snapshot(CELL, base).unwrap();
            self.happen();
        }
        let snapshot = if self.choices.below(2) == 0 {
            self.cells.snapshot(CELL, base).unwrap()
        } else {
            loop {
                if let Some(snapshot) = self.cells.snapshot_piece(CELL, base).unwrap() {
                    break snapshot;
                }
            }
        };
        self.chain.truncate(match base {
            CheckpointBase::Image => 0,
            CheckpointBase::Full => 1,
            CheckpointBase::Previous | CheckpointBase::Backup => self.chain.len(),
            CheckpointBase::Apart => return self.go_on_from(&snapshot),
        });
        self.from_apart = false;
        let before = self.now;
        let expected = self.cells.state_hash(CELL);
        self.happen();
        // The copy does not change any more.
        self.chain.push(snapshot.encode());
        if self.now == before {
            assert_eq!(self.cells.state_hash(CELL), expected);
            self.check("right after the copy");
        }
    }
}

#[test]
fn a_copy_is_that_of_the_moment_of_its_completion_whatever_happens_between_its_pieces() {
    for (seed, tracking) in
        [(1, Tracking::Auto), (2, Tracking::Compare), (3, Tracking::Auto), (4, Tracking::Auto)]
    {
        let mut world = World::new(seed, tracking);
        for n in 0..25 {
            world.happen();
            let base = match n % 12 {
                0 => CheckpointBase::Image,
                5 | 8 => CheckpointBase::Full,
                3 | 6 | 10 => CheckpointBase::Apart,
                _ if world.from_apart => CheckpointBase::Full,
                1 | 9 => CheckpointBase::Previous,
                _ => CheckpointBase::Backup,
            };
            world.checkpoint(base);
        }
        assert!(!world.chain.is_empty());
    }
}

#[test]
fn a_prepared_copy_is_completed_by_few_pieces_and_a_delta_has_what_changed() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let mut world = World::new(7, tracking);
        world.write(4000, 1);
        let mut pieces = 0;
        while !world.cells.prepare_snapshot(CELL, CheckpointBase::Image).unwrap() {
            pieces += 1;
            world.write(3, 1);
        }
        assert!(pieces > 2000 * PAGE / COPY_PIECE_BYTES, "{pieces}");
        let piece = |_| world.cells.snapshot_piece(CELL, CheckpointBase::Image).unwrap();
        let whole = (0..4).find_map(piece);
        world.chain.push(whole.expect("little was left").encode());
        world.check("a full one");
        while !world.cells.prepare_snapshot(CELL, CheckpointBase::Previous).unwrap() {}
        world.write(5, 1);
        let delta = world.cells.snapshot(CELL, CheckpointBase::Previous).unwrap();
        // The message is in a page of its own.
        assert!((5..=6).contains(&delta.page_count()), "{}", delta.page_count());
        world.chain.push(delta.encode());
        world.check("a delta");
    }
}

#[test]
fn what_cannot_be_prepared_is_refused_and_the_cell_goes_on() {
    let mut world = World::new(8, Tracking::Auto);
    let no_base = world.cells.prepare_snapshot(CELL, CheckpointBase::Previous);
    assert_eq!(no_base.err(), Some(SnapshotError::NoBase));
    assert_eq!(world.cells.prepare_snapshot(CellId(5), CheckpointBase::Image), Err(SnapshotError::NotIdle));
    world.write(3, 1);
    world.cells.prepare_snapshot(CELL, CheckpointBase::Image).unwrap();
    // Its tracking and its copy go with it.
    world.cells.remove(CELL);
    assert_eq!(world.cells.prepare_snapshot(CELL, CheckpointBase::Image), Err(SnapshotError::NotIdle));
}

#[test]
fn the_next_cell_of_a_slot_finds_nothing_of_a_tracked_one_whose_memory_went_in_pieces() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let mut world = World::new(9, tracking);
        let new = world.cells.state_hash(CELL);
        // The other slot is taken.
        start_in(&mut world.cells, CellId(2), &world.image);
        for pieces in [0, 3, usize::MAX] {
            world.write(4000, 1);
            world.cells.snapshot(CELL, CheckpointBase::Image).unwrap();
            world.write(400, 1);
            assert_ne!(world.cells.state_hash(CELL), new);
            world.cells.remove(CELL);
            let mut freed = 0;
            while freed < pieces && world.cells.is_freeing() {
                world.cells.free_piece();
                freed += 1;
            }
            assert!(freed > 10 || pieces <= 3, "{freed}");
            start_in(&mut world.cells, CELL, &world.image);
            assert_eq!(world.cells.state_hash(CELL), new, "{pieces} pieces had gone");
        }
    }
}
