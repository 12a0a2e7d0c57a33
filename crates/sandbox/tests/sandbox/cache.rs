//! Reads from the edge's cache: a handler waits for an object, and a replay reads what the log says.

use crate::support::{self, CELL, chain_with, deploy, message, module, start, start_in};
use bytes::Bytes;
use marram_sandbox::{Cells, Progress, Quotas, reads_cache};
use marram_session::cell::{CellInput, CellOutput, CellStop, PortKind, Ran, Run, RunOutcome};
use marram_wire::id::Port;
use marram_wire::limits::{CACHED_SIZE_MAX, READS_MAX};
use marram_wire::log::{Found, Read};

/// Takes a message as the key; its first byte says how often to read. Sends the result of the last read, then the buffer that
/// it read into. Objects of more than 16 bytes do not fit the buffer.
fn reader() -> Vec<u8> {
    module(
        r#"(module
          (import "marram_v1" "cache_read" (func $read (param i32 i32 i32 i32) (result i32)))
          (import "marram_v1" "send" (func $send (param i32 i32 i32)))
          (memory (export "memory") 17)
          (func (export "marram_alloc") (param i32) (result i32) (i32.const 1024))
          (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32) (local $n i32)
            (local.set $n (i32.load8_u (local.get $ptr)))
            (loop $again
              (i32.store (i32.const 0)
                (call $read (i32.add (local.get $ptr) (i32.const 1)) (i32.sub (local.get $len) (i32.const 1))
                  (i32.const 4) (i32.const 16)))
              (local.set $n (i32.sub (local.get $n) (i32.const 1)))
              (br_if $again (i32.gt_s (local.get $n) (i32.const 0))))
            (call $send (local.get $port) (i32.const 0) (i32.const 20))))"#,
    )
}

/// Runs a handler; `found` gives the result of each read.
fn run(
    cells: &mut Cells,
    payload: &[u8],
    logged: Option<Vec<Read>>,
    mut found: impl FnMut(&[u8]) -> Found,
) -> Ran {
    let mut progress = cells.run(Run { cell: CELL, input: message(payload), now_ns: 0, logged });
    loop {
        if let Progress::Done(ran) = progress {
            return ran;
        }
        if let Some(key) = cells.wanted(CELL) {
            // It does not continue before the object is there.
            assert!(matches!(cells.poll(CELL), Progress::Pending));
            assert_eq!((cells.wanted(CELL), cells.state_hash(CELL)), (None, None));
            cells.found(CELL, found(&key));
        }
        progress = cells.poll(CELL);
    }
}

fn never(key: &[u8]) -> Found {
    panic!("{key:?} is asked for")
}

/// The result of the last read, and the buffer.
fn answer(ran: &Ran) -> (i32, Vec<u8>) {
    let [CellOutput::Message { payload, .. }] = &ran.outputs[..] else { panic!("{ran:?}") };
    (i32::from_le_bytes(*payload.first_chunk().unwrap()), payload[4..].to_vec())
}

fn object(bytes: &'static [u8]) -> Found {
    Found::Object(Bytes::from_static(bytes))
}

fn room(bytes: &[u8]) -> Vec<u8> {
    let mut room = bytes.to_vec();
    room.resize(16, 0);
    room
}

#[test]
fn a_handler_waits_for_what_it_reads_and_a_replay_reads_the_same_without_a_cache() {
    let image = deploy(&reader());
    let (mut live, mut again) = (start(&image), start(&image));
    // Runs more handlers than a cell runs before it gets a driver.
    for n in 0..50_u8 {
        let (found, expected) = match n % 5 {
            0 => (object(b"sixteen bytes..."), 16),
            1 => (object(b""), 0),
            2 => (Found::Nothing, -1),
            3 => (Found::Away, -2),
            _ => (Found::Refused, -3),
        };
        let ran = run(&mut live, b"\x02a/key", None, |key| {
            assert_eq!(key, b"a/key");
            found.clone()
        });
        assert_eq!(answer(&ran).0, expected);
        assert_eq!(ran.reads.iter().map(|read| &read.found).collect::<Vec<_>>(), [&found, &found]);
        let replayed = run(&mut again, b"\x02a/key", Some(ran.reads.clone()), never);
        assert_eq!((&replayed.outputs, &replayed.reads), (&ran.outputs, &ran.reads));
    }
    assert_eq!(live.state_hash(CELL).unwrap(), again.state_hash(CELL).unwrap());
}

#[test]
fn an_object_that_does_not_fit_says_how_large_it_is_and_writes_nothing() {
    let mut cells = start(&deploy(&reader()));
    let ran = run(&mut cells, b"\x01k", None, |_| object(b"seventeen bytes.."));
    assert_eq!(answer(&ran), (17, room(b"")));
    let ran = run(&mut cells, b"\x01k", None, |_| object(b"few"));
    assert_eq!(answer(&ran), (3, room(b"few")));
}

#[test]
fn a_key_that_is_not_a_path_is_refused_without_a_request() {
    let mut cells = start(&deploy(&reader()));
    for key in ["", "/a", "../a", "a/%2E./b", "a b", "a?b"] {
        let ran = run(&mut cells, format!("\x01{key}").as_bytes(), None, never);
        assert_eq!((answer(&ran).0, ran.reads.len()), (-3, 0), "{key}");
    }
}

#[test]
fn a_replay_that_reads_something_else_is_stopped() {
    let image = deploy(&reader());
    let mut live = start(&image);
    let reads = run(&mut live, b"\x01k", None, |_| object(b"x")).reads;
    for (payload, logged) in
        [(&b"\x01other"[..], reads.clone()), (b"\x02k", reads.clone()), (b"\x01k", Vec::new())]
    {
        let mut cells = start(&image);
        let RunOutcome::Stopped(CellStop::Trap(why)) = run(&mut cells, payload, Some(logged), never).outcome
        else {
            panic!("it goes on")
        };
        assert!(why.contains("the replay reads another object"), "{why}");
    }
}

#[test]
fn reads_are_bounded_and_reads_before_a_trap_are_reported() {
    let image = deploy(&module(
        r#"(module (import "marram_v1" "cache_read" (func $read (param i32 i32 i32 i32) (result i32)))
           (memory (export "memory") 1) (data (i32.const 0) "abcdefgh")
           (func (export "marram_alloc") (param i32) (result i32) (i32.const 1024))
           (func (export "marram_recv") (param i32 i32 i32) (local $n i32)
             (loop $l
               (drop (call $read (i32.and (local.get $n) (i32.const 3)) (i32.const 1) (i32.const 0) (i32.const 0)))
               (local.set $n (i32.add (local.get $n) (i32.const 1)))
               (br $l))))"#,
    ));
    let large = Bytes::from(vec![1; CACHED_SIZE_MAX]);
    for (found, reads, words) in [
        (Found::Nothing, READS_MAX, "more than 1024 reads"),
        (object(b"x"), READS_MAX, "more than 1024 reads"),
        // Two different objects are within the limit, and the third is not.
        (Found::Object(large), 2, "more than 1048576 bytes"),
    ] {
        let mut cells = start(&image);
        let ran = run(&mut cells, b"x", None, |_| found.clone());
        let RunOutcome::Stopped(CellStop::Trap(why)) = &ran.outcome else { panic!("it goes on") };
        assert!(why.contains(words), "{why}");
        assert_eq!(ran.reads.len(), reads);
    }
}

#[test]
fn a_cell_that_waits_can_be_removed_and_stages_of_a_chain_read_too() {
    let image = chain_with(false, &Quotas::default(), &[("front", reader()), ("back", support::echo())]);
    let mut cells = support::cells();
    for _ in 0..3 {
        cells.start(CELL, &image, support::SEED).unwrap();
        support::run(
            &mut cells,
            CELL,
            CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None },
            0,
        );
        let ran = run(&mut cells, b"\x01k", None, |_| object(b"few"));
        assert_eq!(answer(&ran), (3, room(b"few")));
        let mut progress = cells.run(Run { cell: CELL, input: message(b"\x01k"), now_ns: 0, logged: None });
        // Its slice may end before the read.
        while cells.wanted(CELL).is_none() {
            assert!(matches!(progress, Progress::Pending));
            progress = cells.poll(CELL);
        }
        cells.remove(CELL);
        assert!(cells.is_empty());
    }
    // Objects for a cell that is gone, or that waits for nothing, are dropped.
    cells.found(CELL, object(b"late"));
    start_in(&mut cells, CELL, &deploy(&reader()));
    cells.found(CELL, object(b"early"));
    assert_eq!(answer(&run(&mut cells, b"\x01k", None, |_| Found::Nothing)).0, -1);
}

#[test]
fn a_module_that_reads_is_known() {
    assert!(reads_cache(&reader()));
    assert!(!reads_cache(&support::echo()) && !reads_cache(b"") && !reads_cache(b"\0asm"));
}
