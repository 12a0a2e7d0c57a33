//! The deltas that go to one backup: pages as differences from what the backup has, and pages that are not sent at all.

use crate::support::{
    CELL, ask_at, cells, deploy,
    files::{CREATE, READ, WRITE, open, write},
    guest, mixer, start_in,
    wasi::proxy,
};
use bytes::Bytes;
use marram_sandbox::{
    Cells, CellsConfig, CheckpointReader, Decoded, Image, PageCounts, RestoreError, Tracking, limits::PAGE,
};
use marram_session::cell::{CellId, CheckpointBase};
use std::sync::Arc;

/// The backup's cell.
const BACKUP: CellId = CellId(2);

/// Writes bytes: a message is `| page 1 | byte 1 |` for each, and is in another page. Page 255 stands for noise in the pages 32 to 39.
fn writer() -> Arc<Image> {
    deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $i i32)
             (block $done (loop $next
               (br_if $done (i32.ge_u (local.get $i) (local.get $len)))
               (if (i32.eq (i32.load8_u (i32.add (local.get $ptr) (local.get $i))) (i32.const 255))
                 (then (call $random (i32.const 131072) (i32.const 32768)))
                 (else (i32.store8 offset=1000
                   (i32.mul (i32.load8_u (i32.add (local.get $ptr) (local.get $i))) (i32.const 4096))
                   (i32.load8_u offset=1 (i32.add (local.get $ptr) (local.get $i))))))
               (local.set $i (i32.add (local.get $i) (i32.const 2)))
               (br $next))))"#,
    ))
}

/// A cell, and its backup's, which has all that was sent.
struct Pair {
    image: Arc<Image>,
    cells: Cells,
    now: i64,
    sent: Vec<Vec<u8>>,
}

impl Pair {
    fn new(image: Arc<Image>, tracking: Tracking) -> Self {
        let config = CellsConfig { slots: 8, tracking, ..CellsConfig::default() };
        let mut cells = Cells::new(config).unwrap();
        start_in(&mut cells, CELL, &image);
        let mut pair = Self { image, cells, now: 0, sent: vec![] };
        pair.begin();
        pair
    }

    /// The backup begins with a full checkpoint.
    fn begin(&mut self) {
        self.cells.remove(BACKUP);
        self.sent = vec![self.take(CheckpointBase::Image)];
        let full = Decoded::decode(&self.sent).unwrap();
        self.cells.restore(BACKUP, &self.image, &full).unwrap();
    }

    fn take(&mut self, base: CheckpointBase) -> Vec<u8> {
        self.cells.snapshot(CELL, base).unwrap().encode()
    }

    fn ask(&mut self, message: &[u8]) {
        self.now += 1;
        ask_at(&mut self.cells, CELL, message, self.now);
    }

    /// The next delta, which the backup applies. Returns how many bytes it has.
    fn send(&mut self) -> usize {
        let delta = self.take(CheckpointBase::Backup);
        let len = delta.len();
        self.sent.push(delta);
        let decoded = Decoded::decode(&self.sent[self.sent.len() - 1..]).unwrap();
        self.cells.advance(BACKUP, &decoded).unwrap();
        assert_eq!(self.cells.state_hash(BACKUP), self.cells.state_hash(CELL), "delta {}", self.sent.len());
        len
    }

    fn counts_of(&mut self, step: impl FnOnce(&mut Self)) -> PageCounts {
        let before = self.cells.page_counts();
        step(self);
        let after = self.cells.page_counts();
        PageCounts {
            written: after.written - before.written,
            whole: after.whole - before.whole,
            differences: after.differences - before.differences,
            unchanged: after.unchanged - before.unchanged,
        }
    }
}

/// The version of an encoded checkpoint of one stage.
fn version(checkpoint: &[u8]) -> u8 {
    checkpoint[4]
}

#[test]
fn a_backup_that_gets_differences_has_the_cell_after_each_of_them() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let mut pair = Pair::new(deploy(&mixer()), tracking);
        let inputs: [&[u8]; 12] =
            [b"one", b"two", b"grow", b"z1", b"", b"grow again", b"zero", b"x", b"g", b"zz", b"f", b"last"];
        for input in inputs.iter().cycle().take(48) {
            pair.ask(input);
            pair.send();
        }
        assert!(pair.sent.iter().any(|delta| version(delta) == 4), "{tracking:?}");
        assert!(pair.cells.page_counts().differences > 40, "{tracking:?}");
        // All of them at once, and filled as they arrive, in any pieces.
        let hash = pair.cells.state_hash(CELL);
        for piece in [61, 5000, usize::MAX] {
            let other = CellId(3);
            pair.cells.begin(other, &pair.image).unwrap();
            let mut reading = CheckpointReader::opened();
            for checkpoint in &pair.sent {
                for bytes in checkpoint.chunks(piece.min(checkpoint.len())) {
                    reading.push(Bytes::copy_from_slice(bytes)).unwrap();
                    reading.take().iter().for_each(|filling| pair.cells.fill(other, filling).unwrap());
                }
                reading.end().unwrap();
            }
            pair.cells.complete(other, &pair.image, &reading.finish().unwrap()).unwrap();
            assert_eq!(pair.cells.state_hash(other), hash, "{tracking:?} {piece}");
            pair.cells.remove(other);
        }
    }
}

#[test]
fn files_are_sent_beside_differences() {
    let mut pair = Pair::new(deploy(&proxy()), Tracking::Auto);
    let files = ["a", "b"].map(|name| open(&mut pair.cells, name, CREATE, READ | WRITE).unwrap());
    for contents in 1..5 {
        for file in files {
            assert_eq!(write(&mut pair.cells, file, &[contents; 5000]), Ok(5000));
        }
        pair.send();
    }
    assert!(pair.sent[2..].iter().all(|delta| version(delta) == 4));
}

#[test]
fn what_was_written_once_is_sent_once_and_what_was_written_back_is_not_sent() {
    let mut pair = Pair::new(writer(), Tracking::Auto);
    let is_kernel = pair.cells.tracking().starts_with("userfaultfd");
    pair.ask(&[255, 0, 20, 1]);
    let whole = pair.send();
    assert!(whole > 8 * PAGE, "noise: {whole}");
    // And the page with the message.
    let counts = pair.counts_of(|pair| {
        pair.ask(&[32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8]);
        assert!(pair.send() < whole / 20);
    });
    assert_eq!(counts, PageCounts { written: 9, whole: 0, differences: 9, unchanged: 0 });
    let counts = pair.counts_of(|pair| {
        pair.ask(&[20, 2, 20, 1, 33, 9, 33, 2]);
        assert!(pair.send() < 600);
    });
    let unchanged = if is_kernel { 2 } else { 0 };
    assert_eq!(counts, PageCounts { written: 1 + unchanged, whole: 0, differences: 1, unchanged });
    // Nothing was written, and there is nothing to send.
    let counts = pair.counts_of(|pair| assert!(pair.send() < 600));
    assert_eq!(counts, PageCounts::default());
}

#[test]
fn a_full_copy_and_a_delta_for_others_make_pages_whole_again() {
    let mut pair = Pair::new(writer(), Tracking::Auto);
    pair.ask(&[255, 0]);
    pair.send();
    assert!(pair.cells.version_bytes() > 8 * PAGE);
    pair.begin();
    assert_eq!(pair.cells.version_bytes(), 0);
    for lost in [false, true] {
        pair.ask(&[32, 1]);
        let counts = pair.counts_of(|pair| assert!(pair.send() > 0));
        assert_eq!((counts.whole, counts.differences), (2, 0), "{lost}");
        pair.ask(&[32, 2]);
        let counts = pair.counts_of(|pair| assert!(pair.send() > 0));
        assert_eq!((counts.whole, counts.differences), (0, 2), "{lost}");
        // A copy that is lost before it is encoded, and the full one that follows.
        pair.ask(&[32, 3]);
        drop(pair.cells.snapshot(CELL, CheckpointBase::Backup).unwrap());
        pair.begin();
    }
    // A delta that anything may build on has whole pages.
    pair.ask(&[32, 4]);
    pair.send();
    pair.ask(&[32, 5]);
    let delta = pair.take(CheckpointBase::Previous);
    assert_eq!((version(&delta), pair.cells.version_bytes()), (1, 0));
    pair.cells.advance(BACKUP, &Decoded::decode(&[delta]).unwrap()).unwrap();
    pair.ask(&[32, 6]);
    let counts = pair.counts_of(|pair| assert!(pair.send() > 0));
    assert_eq!((counts.whole, counts.differences), (2, 0));
    pair.cells.remove(CELL);
    pair.cells.remove(BACKUP);
    assert_eq!(pair.cells.version_bytes(), 0);
}

/// Replaces the only occurrence of a text in a checkpoint's body, with a valid checksum.
fn forged(checkpoint: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let places: Vec<usize> = (0..checkpoint.len()).filter(|at| checkpoint[*at..].starts_with(from)).collect();
    let [at] = places[..] else { panic!("it is there {} times", places.len()) };
    let mut forged = checkpoint.to_vec();
    forged[at..at + from.len()].copy_from_slice(to);
    signed(forged)
}

fn signed(mut checkpoint: Vec<u8>) -> Vec<u8> {
    let digest = *blake3::hash(&checkpoint[32..]).as_bytes();
    checkpoint[16..32].copy_from_slice(&digest[..16]);
    checkpoint
}

#[test]
fn a_difference_to_another_page_is_refused_and_changes_nothing() {
    let mut pair = Pair::new(writer(), Tracking::Auto);
    pair.ask(&[32, 1, 40, 1]);
    pair.send();
    pair.ask(&[32, 2, 40, 2]);
    let before = pair.cells.state_hash(BACKUP);
    let delta = pair.take(CheckpointBase::Backup);
    assert_eq!(version(&delta), 4);
    // The pages as the backup has them: these two, and the one with the message.
    let (mut page, mut message) = ([0; PAGE], [0; PAGE]);
    page[1000] = 1;
    message[..4].copy_from_slice(&[32, 1, 40, 1]);
    let digest = blake3::hash(&[page, page, message].concat());
    let digest = &digest.as_bytes()[..8];
    let mut other = digest.to_vec();
    other[7] ^= 1;
    let wrong = Decoded::decode(&[forged(&delta, digest, &other)]).unwrap();
    let refused = pair.cells.advance(BACKUP, &wrong).unwrap_err();
    assert_eq!(refused, RestoreError::Page { page: 32 });
    assert!(refused.to_string().contains("fetch a full checkpoint"), "{refused}");
    assert_eq!(pair.cells.state_hash(BACKUP), before, "nothing was written");
    // In a list it is found only when the one before is applied: then the cell is gone.
    let list = [pair.sent[0].clone(), pair.sent[1].clone(), forged(&delta, digest, &other)];
    let refused = pair.cells.restore(CellId(3), &pair.image, &Decoded::decode(&list).unwrap());
    assert_eq!(refused, Err(RestoreError::Page { page: 32 }));
    assert_eq!(pair.cells.memory_bytes(CellId(3)), None);
    // The true one fits, once.
    let decoded = Decoded::decode(&[delta]).unwrap();
    pair.cells.advance(BACKUP, &decoded).unwrap();
    assert_eq!(pair.cells.state_hash(BACKUP), pair.cells.state_hash(CELL));
    assert_eq!(pair.cells.advance(BACKUP, &decoded), Err(RestoreError::Chain { index: 0 }));
}

#[test]
fn differences_are_refused_where_there_is_nothing_to_differ_from() {
    let mut pair = Pair::new(writer(), Tracking::Auto);
    pair.ask(&[32, 1]);
    pair.send();
    pair.ask(&[32, 2]);
    let delta = pair.take(CheckpointBase::Backup);
    let refusal = |checkpoint: Vec<u8>| Decoded::decode(&[checkpoint]).map(drop).unwrap_err();
    let kind_at = 32 + 32 + 16 + 16;
    for kind in [0, 2] {
        let mut other = delta.clone();
        other[kind_at] = kind;
        let why = refusal(signed(other));
        assert!(why.to_string().contains("only a delta"), "{why}");
    }
    // What has other versions is laid out otherwise.
    for version in 1..4 {
        let mut old = delta.clone();
        old[4] = version;
        assert!(matches!(refusal(old), RestoreError::Corrupt(_)), "version {version}");
    }
    let mut future = delta.clone();
    future[4] = 5;
    assert_eq!(refusal(future), RestoreError::Version(5));
    // Damage of each byte, with a valid checksum: refused, or another state. Never a panic.
    let mut cells = cells();
    let full = Decoded::decode(&pair.sent).unwrap();
    for at in 32..delta.len() {
        for bit in [0, 4, 7] {
            let mut damaged = delta.clone();
            damaged[at] ^= 1 << bit;
            if let Ok(decoded) = Decoded::decode(&[signed(damaged)]) {
                cells.restore(BACKUP, &pair.image, &full).unwrap();
                let _ = cells.advance(BACKUP, &decoded);
                cells.remove(BACKUP);
            }
        }
    }
    for end in 0..delta.len() {
        assert!(Decoded::decode(&[&delta[..end]]).is_err(), "{end}");
    }
}
