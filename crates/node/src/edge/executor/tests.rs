//! Standby cells, from checkpoint to checkpoint.

use super::*;

use marram_sandbox::{Decoded, Progress, Quotas};
use marram_session::cell::{CellInput, CheckpointBase, PortKind, Ran};
use marram_shard::run_queue::{Class, WEIGHT};
use marram_wire::{
    frame::CheckpointKind,
    header::{self, Header, Many},
    id::{Generation, Port},
    seal::{DomainSecret, Seal},
};
use mio::{Events, Poll, Token};
use std::{
    env, fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

const CELL: CellId = CellId(1);
const SESSION: SessionId = SessionId([1; 16]);
const GENERATION: Generation = Generation { count: 1, opener: 9 };

pub(super) fn keys() -> SessionKeys {
    SessionKeys::derive(&DomainSecret::from_material(b"a domain"), SESSION)
}

/// A sealed checkpoint.
type Sealed = (CheckpointMeta, Bytes);

/// A cell that runs on one side (there), and its standby cell on the other (here).
struct Pair {
    there: Cells,
    image: Arc<Image>,
    /// How many checkpoints were taken.
    number: u32,
    here: Executor,
    poll: Poll,
    inputs: VecDeque<ShardInput>,
    /// Cells that are restored only to show that there is no other answer.
    fences: u64,
    full: Sealed,
    directory: PathBuf,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn setup(images: &std::path::Path) -> Setup {
    Setup {
        shard: 0,
        shards: 1,
        secret: Bytes::new(),
        token: None,
        credentials: Vec::new(),
        standby_token: None,
        ca: None,
        chain: None,
        key: None,
        insecure_plain: true,
        images: Bytes::copy_from_slice(images.as_os_str().as_bytes()),
        recordings: Bytes::new(),
        stops: None,
        cells_max: 16,
        keys: Vec::new(),
        standby: Vec::new(),
        standby_learns: false,
        handshake_ms: 0,
    }
}

fn message() -> CellInput {
    CellInput::Message { port: Port::CLIENT, payload: Bytes::from_static(b"r") }
}

fn finish(cells: &mut Cells, input: CellInput) -> Ran {
    let mut progress = cells.run(Run { cell: CELL, input, now_ns: 5, logged: None });
    loop {
        match progress {
            Progress::Done(ran) => return ran,
            Progress::Pending => progress = cells.poll(CELL),
        }
    }
}

impl Pair {
    /// The running cell has handled one message, and the standby has its checkpoint.
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("marram-executor-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = env::temp_dir().join(name);
        let images = Images::open(&directory).unwrap();
        let module = marram_cluster::CellFiles::find(None).unwrap().module("counter");
        let info = images.deploy(&fs::read(module).unwrap(), &[], &Quotas::default()).unwrap();
        let image = images.load(info.hash).unwrap();
        let mut there = Cells::new(CellsConfig { slots: 1, ..CellsConfig::default() }).unwrap();
        there.start(CELL, &image, Seed([7; 32])).unwrap();
        finish(&mut there, CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None });
        finish(&mut there, message());
        let (here, poll) = executor(&directory);
        let (inputs, full) = (VecDeque::new(), sealed(&mut there, &image, 0));
        let mut pair = Self { there, image, number: 1, here, poll, inputs, fences: 100, full, directory };
        pair.restore(CELL);
        assert_eq!(pair.answer(), (CELL, Ok(1)));
        pair.stand_alike();
        pair
    }

    fn restore(&mut self, cell: CellId) {
        self.expect(cell, &[&self.full.clone()]);
        self.here.part(cell, self.full.1.clone(), &mut self.inputs);
    }

    /// Begins to restore a cell from these checkpoints, without their bytes.
    fn expect(&mut self, cell: CellId, list: &[&Sealed]) {
        let image = self.image.hash();
        let place = SchedulingParams { tenant: Tenant::default(), weight: WEIGHT, class: Class::Fair };
        self.here.scheduling(cell, (String::new(), None), place);
        self.here.stand_by(cell, Standing::new(SESSION, image, keys()));
        let metas = list.iter().map(|(meta, _)| meta.clone()).collect();
        self.here.restore(cell, SESSION, image, keys(), metas);
    }

    /// Waits until a part of the bytes is in a cell's memory, or waits for its image.
    fn filled(&mut self, cell: CellId) {
        while self.here.expected.get(&cell) == Some(&Expected::Nothing) {
            self.wait();
        }
    }

    /// The running cell handles a message; returns its next checkpoint.
    fn next(&mut self) -> Sealed {
        finish(&mut self.there, message());
        self.number += 1;
        sealed(&mut self.there, &self.image, self.number - 1)
    }

    fn begin(&mut self, meta: &CheckpointMeta) {
        self.here.advance(CELL, meta.clone(), &mut self.inputs);
    }

    fn send(&mut self, (meta, bytes): &Sealed) {
        self.begin(meta);
        for at in (0..bytes.len()).step_by(1_000) {
            self.here.part(CELL, bytes.slice(at..bytes.len().min(at + 1_000)), &mut self.inputs);
        }
    }

    /// Waits until the bytes have been opened, without applying them.
    fn opened(&mut self) {
        while self.here.next.is_empty() {
            self.wait();
        }
    }

    /// The next answer: its cell, and the number of the checkpoint.
    fn answer(&mut self) -> (CellId, Result<u32, CellError>) {
        loop {
            match self.inputs.pop_front().or_else(|| self.here.next_advanced()) {
                Some(ShardInput::Restored { cell, result }) => {
                    return (cell, result.map(|header| header.number));
                }
                Some(other) => panic!("{other:?}"),
                None => self.wait(),
            }
        }
    }

    fn wait(&mut self) {
        self.here.take_answers(&mut self.inputs);
        if self.inputs.is_empty() && !self.here.is_busy() {
            self.poll.poll(&mut Events::with_capacity(8), None).unwrap();
            self.here.take_answers(&mut self.inputs);
        }
    }

    /// Asserts that earlier requests have no more answers: a later one is answered.
    fn nothing_is_answered(&mut self) {
        self.fences += 1;
        let fence = CellId(self.fences);
        self.restore(fence);
        assert_eq!(self.answer(), (fence, Ok(1)));
    }

    fn run_here(&mut self) -> Ran {
        self.here.run(Run { cell: CELL, input: message(), now_ns: 5, logged: None });
        loop {
            if let Some((Some(ran), _)) = self.here.next_turn() {
                return ran;
            }
        }
    }

    fn stand_alike(&self) {
        assert_eq!(self.here.cells.state_hash(CELL), self.there.state_hash(CELL));
    }
}

pub(super) fn executor(directory: &Path) -> (Executor, Poll) {
    let poll = Poll::new().unwrap();
    let waker = mio::Waker::new(poll.registry(), Token(0)).unwrap();
    (Executor::start(&setup(directory), Arc::new(waker)).unwrap(), poll)
}

/// Opens a sealed checkpoint: the state of the cell.
pub(super) fn open(seal: &Seal, number: u32, sealed: &[u8]) -> Decoded {
    let plain = seal.open_checkpoint(number, sealed).unwrap();
    let (_, body) = header::front(plain.into()).unwrap().unwrap();
    Decoded::decode_opened(&[body]).unwrap()
}

/// A checkpoint of the running cell, after this many others.
fn sealed(there: &mut Cells, image: &Image, before: u32) -> Sealed {
    let (full, number) = (before == 0, before + 1);
    let body = there
        .snapshot(CELL, if full { CheckpointBase::Image } else { CheckpointBase::Previous })
        .unwrap()
        .encode();
    let header = Header {
        session: SESSION,
        image: image.hash(),
        generation: GENERATION,
        number,
        base_generation: if full { Generation::NONE } else { GENERATION },
        base_number: before,
        log_offset: u64::from(number) * 100,
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
    };
    let bytes: Bytes = keys().seal(GENERATION).seal_checkpoint(number, header::join(&header, &body)).into();
    let size = bytes.len() as u64;
    let kind = if full { CheckpointKind::Full } else { CheckpointKind::Delta };
    let meta = CheckpointMeta { generation: GENERATION, number, kind, log_offset: header.log_offset, size };
    (meta, bytes)
}

#[test]
fn a_cell_that_stands_by_follows_until_it_runs() {
    let mut pair = Pair::new();
    for number in 2..6 {
        let next = pair.next();
        pair.send(&next);
        assert_eq!(pair.answer(), (CELL, Ok(number)));
        pair.stand_alike();
    }
    let ran = finish(&mut pair.there, message());
    assert!(ran.outcome == marram_session::cell::RunOutcome::Idle && !ran.outputs.is_empty());
    assert_eq!(pair.run_here().outputs, ran.outputs);
    pair.stand_alike();
    let next = pair.next();
    pair.send(&next);
    let (_, refused) = pair.answer();
    assert!(refused.unwrap_err().reason.contains("does not stand by"));
    pair.nothing_is_answered();
}

#[test]
fn another_attempt_drops_what_has_arrived_for_the_one_before_it() {
    let mut pair = Pair::new();
    let next = pair.next();
    // All of it arrived and was opened.
    pair.send(&next);
    pair.opened();
    pair.begin(&next.0);
    assert!(pair.here.next_advanced().is_none() && pair.here.next.is_empty());
    // Only a part of it arrived.
    pair.here.part(CELL, next.1.slice(..next.1.len() / 2), &mut pair.inputs);
    pair.send(&next);
    assert_eq!(pair.answer(), (CELL, Ok(2)));
    pair.stand_alike();
    pair.nothing_is_answered();
}

#[test]
fn small_checkpoints_are_opened_at_once() {
    const NEW: CellId = CellId(7);
    let mut pair = Pair::new();
    pair.here.open_at_once = 1 << 20;
    let (full, next, later) = (pair.full.clone(), pair.next(), pair.next());
    pair.expect(NEW, &[&full, &next]);
    pair.here.part(NEW, full.1.clone(), &mut pair.inputs);
    assert!(pair.inputs.is_empty());
    pair.here.part(NEW, next.1.clone(), &mut pair.inputs);
    assert!(
        matches!(pair.inputs.pop_front(), Some(ShardInput::Restored { result: Ok(header), .. }) if header.number == 2)
    );
    // As for a large one, a standby cell changes when all of it is there, and by the last attempt alone.
    pair.begin(&next.0);
    pair.here.part(CELL, next.1.slice(..next.1.len() / 2), &mut pair.inputs);
    pair.send(&next);
    assert_eq!(pair.here.next.len(), 1);
    assert_eq!(pair.answer(), (CELL, Ok(2)));
    let mut altered = later.1.to_vec();
    altered[40] ^= 1;
    pair.send(&(later.0.clone(), altered.into()));
    assert!(matches!(pair.answer(), (CELL, Err(error)) if error.code == Code::Tampered));
    // Large after small, and small after large.
    for (first, second) in [(1 << 20, 0), (0, 1 << 20)] {
        pair.here.open_at_once = first;
        pair.begin(&later.0);
        pair.here.part(CELL, later.1.slice(..later.1.len() / 2), &mut pair.inputs);
        pair.here.open_at_once = second;
        pair.begin(&later.0);
    }
    pair.send(&later);
    assert_eq!(pair.answer(), (CELL, Ok(3)));
    pair.stand_alike();
    assert!(pair.here.arrivals.is_empty() && pair.here.arrivals_at_worker.is_empty());
}

#[test]
fn a_cell_that_runs_or_is_removed_stays_what_it_was() {
    for half in [false, true] {
        let mut pair = Pair::new();
        let next = pair.next();
        let (front, rest) = (next.1.slice(..next.1.len() / 2), next.1.slice(next.1.len() / 2..));
        pair.begin(&next.0);
        pair.here.part(CELL, front, &mut pair.inputs);
        if !half {
            pair.here.part(CELL, rest.clone(), &mut pair.inputs);
            pair.opened();
        }
        // The running cell's result for the message that the checkpoint covers.
        pair.run_here();
        pair.here.part(CELL, rest, &mut pair.inputs);
        pair.nothing_is_answered();
        pair.stand_alike();
    }
    let mut pair = Pair::new();
    let next = pair.next();
    pair.begin(&next.0);
    pair.here.part(CELL, next.1.slice(..next.1.len() / 2), &mut pair.inputs);
    pair.here.remove(CELL);
    pair.here.part(CELL, next.1.slice(next.1.len() / 2..), &mut pair.inputs);
    pair.nothing_is_answered();
    assert_eq!(pair.here.cells.state_hash(CELL), None);
}

#[test]
fn a_machine_short_of_memory_is_given_spare_slots_and_then_images() {
    let mut pair = Pair::new();
    let mut now = Instant::now();
    let mut tend = |here: &mut Executor| {
        now += TEND_EVERY;
        here.tend(now);
        (here.loaded_count(), here.reclaims)
    };
    // A prewarmed cell, and a slot that a cell has used.
    pair.here.deployed("counter", Some(pair.image.hash()));
    let image = Arc::clone(&pair.image);
    pair.here.cells.expect(&image);
    while pair.here.cells.prewarm_one() {}
    pair.here.remove(CELL);
    assert!(pair.here.cells.ready_stats().ready > 0);
    pair.here.is_short = || true;
    assert_eq!(tend(&mut pair.here), (1, 1), "the image is still there");
    assert_eq!(pair.here.cells.ready_stats().ready, 0);
    assert_eq!(tend(&mut pair.here), (0, 2), "that was not enough");
    pair.here.is_short = || false;
    pair.restore(CELL);
    assert_eq!(pair.answer(), (CELL, Ok(1)), "what was given up is made again");
    pair.stand_alike();
    assert_eq!(tend(&mut pair.here), (1, 2));
    pair.here.is_short = || true;
    pair.here.remove(CELL);
    assert_eq!(tend(&mut pair.here), (1, 3), "short again, spare cells go first again");
}

#[test]
fn what_is_refused_leaves_the_cell_where_it_was() {
    let mut pair = Pair::new();
    let (next, later) = (pair.next(), pair.next());
    let mut altered = next.1.to_vec();
    altered[100] ^= 1;
    for (wrong, says) in [((next.0.clone(), altered.into()), "altered"), (later.clone(), "does not build on")]
    {
        pair.send(&wrong);
        let (cell, refused) = pair.answer();
        let error = refused.unwrap_err();
        assert!(cell == CELL && error.code == Code::Tampered && error.reason.contains(says), "{error:?}");
    }
    for (number, next) in [(2, next), (3, later)] {
        pair.send(&next);
        assert_eq!(pair.answer(), (CELL, Ok(number)));
    }
    pair.stand_alike();
}

#[test]
fn a_cell_is_filled_while_its_checkpoints_arrive() {
    const NEW: CellId = CellId(2);
    let mut pair = Pair::new();
    let (full, next, later) = (pair.full.clone(), pair.next(), pair.next());
    let list = [&full, &next, &later];
    for has_image in [true, false] {
        if !has_image {
            // The first parts wait for it.
            (pair.here, pair.poll) = executor(&pair.directory);
        }
        pair.expect(NEW, &list);
        list.iter().for_each(|(_, bytes)| pair.here.part(NEW, bytes.clone(), &mut pair.inputs));
        assert_eq!(pair.answer(), (NEW, Ok(3)));
        assert_eq!(pair.here.cells.state_hash(NEW), pair.there.state_hash(CELL));
        pair.here.remove(NEW);
    }
    assert_eq!(pair.here.cells.len(), 0);
}

#[test]
fn nothing_is_left_of_a_cell_that_was_filled_in_vain() {
    const NEW: CellId = CellId(2);
    let mut pair = Pair::new();
    let (full, next) = (pair.full.clone(), pair.next());
    let mut altered = next.1.to_vec();
    altered[100] ^= 1;
    // The rest of it was altered.
    pair.expect(NEW, &[&full, &next]);
    pair.here.part(NEW, full.1.clone(), &mut pair.inputs);
    pair.filled(NEW);
    pair.here.part(NEW, altered.into(), &mut pair.inputs);
    let (cell, refused) = pair.answer();
    assert_eq!((cell, refused.unwrap_err().code), (NEW, Code::Tampered));
    assert_eq!((pair.here.cells.state_hash(NEW), pair.here.cells.len()), (None, 1));
    // The cell is removed before the rest has arrived.
    pair.expect(NEW, &[&full, &next]);
    pair.here.part(NEW, full.1.clone(), &mut pair.inputs);
    pair.filled(NEW);
    pair.here.remove(NEW);
    pair.here.part(NEW, next.1, &mut pair.inputs);
    pair.nothing_is_answered();
    assert_eq!(pair.here.cells.state_hash(NEW), None);
    // The second checkpoint does not follow the first.
    pair.expect(NEW, &[&full, &full]);
    pair.here.cells.begin(NEW, &pair.image).unwrap();
    pair.here.part(NEW, full.1.clone(), &mut pair.inputs);
    let (cell, refused) = pair.answer();
    assert_eq!((cell, refused.unwrap_err().code), (NEW, Code::Busy));
    pair.here.part(NEW, full.1, &mut pair.inputs);
    pair.nothing_is_answered();
}
