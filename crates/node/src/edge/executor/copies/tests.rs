//! A large cell, copied between the handlers of others and of its own.

use super::super::tests::{executor, keys, open};
use super::*;
use bytes::Bytes;
use marram_sandbox::{Decoded, Images, Quotas};
use marram_session::cell::{CellInput, PortKind, Seed};
use marram_shard::{
    api::SchedulingParams,
    run_queue::{Class, Tenant, WEIGHT},
};
use marram_wire::{
    header::Many,
    id::{Generation, Port, SessionId},
};
use mio::{Events, Poll};
use std::{env, fs, path::PathBuf, process};

const LARGE: CellId = CellId(1);
const SMALL: CellId = CellId(2);
const STATE_BYTES: u64 = 24 << 20;
/// More than the memory of a cell with that state, and less than that of two.
const LARGE_BYTES: usize = 40 << 20;

/// A cell with 24 MiB of state, and a small neighbour.
struct World {
    executor: Executor,
    poll: Poll,
    inputs: VecDeque<ShardInput>,
    directory: PathBuf,
    commands: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl World {
    fn new(name: &str) -> Self {
        let directory = env::temp_dir().join(format!("marram-copies-{name}-{}", process::id()));
        let images = Images::open(&directory).unwrap();
        let module = marram_cluster::CellFiles::find(None).unwrap().module("ballast");
        let info = images.deploy(&fs::read(module).unwrap(), &[], &Quotas::default()).unwrap();
        let (executor, poll) = executor(&directory);
        // Enough that no copy waits for one.
        (0..4).for_each(|_| executor.cells.copy_buffers().warm());
        let mut world = Self { executor, poll, inputs: VecDeque::new(), directory, commands: 0 };
        for cell in [LARGE, SMALL] {
            let place = SchedulingParams { tenant: Tenant::default(), weight: WEIGHT, class: Class::Fair };
            let session = SessionId([u8::try_from(cell.0).unwrap(); 16]);
            world.executor.scheduling(cell, (String::new(), Some(session)), place);
            world.executor.start_cell(cell, info.hash, Seed([7; 32]), &mut world.inputs);
        }
        for _ in 0..2 {
            assert!(matches!(world.answer(), ShardInput::Started { result: Ok(()), .. }));
        }
        for cell in [LARGE, SMALL] {
            let kind = PortKind::Client;
            world.run(cell, CellInput::Open { port: Port::CLIENT, kind, peer: None });
        }
        assert!(world.inputs.is_empty(), "both are small");
        world.command(LARGE, b'B', STATE_BYTES);
        assert!(matches!(world.answer(), ShardInput::Large { cell: LARGE }));
        world
    }

    /// The next input for the shard.
    fn answer(&mut self) -> ShardInput {
        loop {
            self.executor.take_answers(&mut self.inputs);
            if let Some(input) = self.inputs.pop_front() {
                return input;
            }
            self.poll.poll(&mut Events::with_capacity(8), None).unwrap();
        }
    }

    /// Runs a handler to its end.
    fn run(&mut self, cell: CellId, input: CellInput) {
        self.executor.run(Run { cell, input, now_ns: 5, logged: None });
        while self.turn() != Some(cell) {}
    }

    /// Gives a turn; the cell whose handler has ended.
    fn turn(&mut self) -> Option<CellId> {
        let (ran, _) = self.executor.next_turn()?;
        let cell = ran?.cell;
        self.inputs.extend(self.executor.notice_size(cell));
        Some(cell)
    }

    fn input(&mut self, op: u8, a: u64) -> CellInput {
        self.commands += 1;
        let payload = [&[op][..], &a.to_le_bytes(), &(self.commands * 700).to_le_bytes()].concat();
        CellInput::Message { port: Port::CLIENT, payload: Bytes::from(payload) }
    }

    fn command(&mut self, cell: CellId, op: u8, a: u64) {
        let input = self.input(op, a);
        self.run(cell, input);
    }

    /// Copies until a cell is ready to be completed.
    fn prepared(&mut self) -> CellId {
        while self.inputs.is_empty() {
            while self.executor.is_copying() && self.inputs.is_empty() {
                self.executor.copy_pieces(&mut self.inputs);
            }
            self.executor.take_answers(&mut self.inputs);
        }
        match self.inputs.pop_front() {
            Some(ShardInput::Prepared { cell }) => cell,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for the checkpoint of the copy, and opens it.
    fn sealed(&mut self) -> Decoded {
        let seal = keys().seal(Generation { count: 1, opener: 9 });
        self.executor.checkpoint(LARGE, header(), seal.clone(), &mut self.inputs);
        while self.executor.is_copying() {
            self.executor.copy_pieces(&mut self.inputs);
        }
        match self.answer() {
            ShardInput::Checkpointed { cell: LARGE, number: 4, result: Ok(bytes) } => open(&seal, 4, &bytes),
            other => panic!("{other:?}"),
        }
    }

    /// The state of a cell that is restored from this.
    fn restored(&mut self, decoded: &Decoded) -> Option<[u8; 32]> {
        let image = self.executor.images.values().find_map(|loaded| match loaded {
            super::super::Loaded::Here(image) => Some(std::sync::Arc::clone(image)),
            super::super::Loaded::Underway(_) => None,
        });
        let other = CellId(9);
        self.executor.cells.restore(other, &image.unwrap(), decoded).unwrap();
        let hash = self.executor.cells.state_hash(other);
        self.executor.cells.remove(other);
        hash
    }
}

fn header() -> Box<Header> {
    Box::new(Header {
        session: SessionId([1; 16]),
        image: marram_wire::id::ImageHash([0; 32]),
        generation: Generation { count: 1, opener: 9 },
        number: 4,
        base_generation: Generation::NONE,
        base_number: 0,
        log_offset: 100,
        head: [0; 32],
        last_ns: 5,
        timers_set: 0,
        timers: Many::default(),
        tasks: Many::default(),
        locks: Many::default(),
        paused: Many::default(),
        clients: Many::default(),
        servers: Many::default(),
        ports: Vec::new(),
    })
}

#[test]
fn a_large_cell_and_its_neighbour_run_between_the_pieces_of_its_copy() {
    let mut world = World::new("prepared");
    world.executor.prepare_copy(LARGE, CheckpointBase::Image);
    let mut pieces = 0;
    while world.executor.is_copying() {
        world.executor.copy_pieces(&mut world.inputs);
        pieces += 1;
        world.command(SMALL, b'S', 0);
        if pieces % 7 == 0 {
            world.command(LARGE, b'T', 5);
        }
    }
    assert!(pieces > 24, "{pieces}");
    assert!(matches!(world.answer(), ShardInput::Prepared { cell: LARGE }));
    world.command(LARGE, b'T', 5);
    let expected = world.executor.cells.state_hash(LARGE);
    world.executor.copy(LARGE, CheckpointBase::Image);
    let decoded = world.sealed();
    assert_eq!(world.restored(&decoded), expected);
}

#[test]
fn a_large_cell_that_is_not_prepared_waits_for_its_copy_and_its_neighbour_does_not() {
    let mut world = World::new("held");
    let expected = world.executor.cells.state_hash(LARGE);
    world.executor.copy(LARGE, CheckpointBase::Image);
    let input = world.input(b'T', 50);
    world.executor.run(Run { cell: LARGE, input, now_ns: 5, logged: None });
    assert!(world.turn().is_none(), "its handler waits");
    world.executor.copy_pieces(&mut world.inputs);
    assert!(world.executor.is_copying());
    world.command(SMALL, b'S', 0);
    // The checkpoint may be asked for before the copy is whole.
    let decoded = world.sealed();
    // It may take more than one slice.
    while world.turn() != Some(LARGE) {}
    assert_ne!(world.executor.cells.state_hash(LARGE), expected);
    assert_eq!(world.restored(&decoded), expected, "the copy is that of the moment when it was asked for");
}

#[test]
fn a_cell_that_is_removed_takes_its_copies_with_it() {
    let mut world = World::new("removed");
    world.executor.prepare_copy(LARGE, CheckpointBase::Image);
    world.executor.copy_pieces(&mut world.inputs);
    world.executor.copy(LARGE, CheckpointBase::Image);
    world.executor.copy_pieces(&mut world.inputs);
    world.executor.remove(LARGE);
    assert!(!world.executor.is_copying());
    world.executor.copy_pieces(&mut world.inputs);
    assert!(world.inputs.is_empty());
}

#[test]
fn a_delta_without_a_base_is_prepared_in_vain_and_reported_when_it_is_copied() {
    let mut world = World::new("no-base");
    world.executor.prepare_copy(LARGE, CheckpointBase::Previous);
    world.executor.copy_pieces(&mut world.inputs);
    assert!(matches!(world.answer(), ShardInput::Prepared { cell: LARGE }));
    world.executor.copy(LARGE, CheckpointBase::Previous);
    let seal = keys().seal(Generation { count: 1, opener: 9 });
    world.executor.checkpoint(LARGE, header(), seal, &mut world.inputs);
    while world.executor.is_copying() {
        world.executor.copy_pieces(&mut world.inputs);
    }
    let ShardInput::Checkpointed { result: Err(why), .. } = world.answer() else { panic!("refused") };
    assert!(why.contains("no checkpoint to build on"), "{why}");
}

#[test]
fn a_prepared_copy_that_is_not_used_is_freed() {
    let mut world = World::new("kept");
    world.executor.prepare_copy(LARGE, CheckpointBase::Image);
    while world.executor.is_copying() {
        world.executor.copy_pieces(&mut world.inputs);
    }
    let now = Instant::now();
    world.executor.tend_copies(now);
    assert_eq!(world.executor.preparing.len(), 1);
    world.executor.tend_copies(now + PREPARED_KEPT);
    assert!(world.executor.preparing.is_empty());
}

#[test]
fn beyond_their_limit_copies_are_made_one_after_the_other() {
    for (copies_max, are_at_once) in [(2 * LARGE_BYTES, true), (LARGE_BYTES, false)] {
        let mut world = World::new("limit");
        world.command(SMALL, b'B', STATE_BYTES);
        assert!(matches!(world.answer(), ShardInput::Large { cell: SMALL }));
        world.executor.copies_max = copies_max;
        let buffers = world.executor.cells.copy_buffers();
        assert_eq!(buffers.in_copies(), 0);
        for cell in [LARGE, SMALL] {
            world.executor.prepare_copy(cell, CheckpointBase::Image);
        }
        let first = world.prepared();
        assert_eq!(first, LARGE);
        let half = usize::try_from(STATE_BYTES).unwrap() * 3 / 2;
        assert_eq!(buffers.in_copies() > half, are_at_once, "{} bytes", buffers.in_copies());
        // The second one is not held up by the first, which is ready and kept.
        assert_eq!(world.prepared(), SMALL);
        for cell in [LARGE, SMALL] {
            world.executor.remove(cell);
        }
        assert_eq!(buffers.in_copies(), 0);
    }
}

#[test]
fn a_copy_waits_for_buffers_that_the_worker_makes() {
    let mut world = World::new("buffers");
    let buffers = world.executor.cells.copy_buffers();
    drop((0..buffers.ready()).map(|_| buffers.take()).collect::<Vec<_>>());
    world.executor.prepare_copy(LARGE, CheckpointBase::Image);
    assert!(world.executor.is_copying());
    while world.inputs.is_empty() {
        while world.executor.is_copying() {
            let ready = buffers.ready();
            world.executor.copy_pieces(&mut world.inputs);
            assert!(ready > 0 || world.executor.warming, "nothing is copied, and buffers are made");
        }
        if world.inputs.is_empty() {
            world.poll.poll(&mut Events::with_capacity(8), None).unwrap();
            world.executor.take_answers(&mut world.inputs);
        }
    }
    assert!(matches!(world.answer(), ShardInput::Prepared { cell: LARGE }));
}

#[test]
fn what_the_backup_gets_is_sealed_before_other_checkpoints_that_wait() {
    let mut world = World::new("backup-first");
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    world.executor.sealer.urgent(move |()| {
        let _ = waits.recv();
        None
    });
    let seal = keys().seal(Generation { count: 1, opener: 9 });
    for (number, base) in [(4, CheckpointBase::Image), (5, CheckpointBase::Backup)] {
        world.command(LARGE, b'T', 100);
        world.executor.copy(LARGE, base);
        let header = Box::new(Header { number, ..*header() });
        world.executor.checkpoint(LARGE, header, seal.clone(), &mut world.inputs);
        while world.executor.is_copying() {
            world.executor.copy_pieces(&mut world.inputs);
        }
        assert!(world.inputs.is_empty(), "it is large");
    }
    drop(go_on);
    let numbers = [world.answer(), world.answer()].map(|answer| match answer {
        ShardInput::Checkpointed { cell: LARGE, number, result: Ok(_) } => number,
        other => panic!("{other:?}"),
    });
    assert_eq!(numbers, [5, 4]);
}
