//! What a cell can ask about its clients: by port, in every stage, and again after a restore.

use crate::support::{
    self, CELL, SEED, ask, ask_at, cells, chain_with, deploy, guest, message, module, run, stop,
};
use marram_sandbox::{Cells, Decoded, Image, Quotas};
use marram_session::cell::{CellId, CellInput, CellStop, CheckpointBase, PortKind, RunOutcome};
use marram_wire::{
    id::Port,
    peer::{Origin, Peer},
};
use std::sync::Arc;

/// A message's bytes are a port, a field and the size of the buffer, at most 64 bytes; the answer is the result of `peer`, then
/// the buffer, which is full of dots before.
fn asker() -> Vec<u8> {
    module(
        r#"(module
             (import "marram_v1" "send" (func $send (param i32 i32 i32)))
             (import "marram_v1" "peer" (func $peer (param i32 i32 i32 i32) (result i32)))
             (memory (export "memory") 17)
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0x100000))
             (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
               (memory.fill (i32.const 12) (i32.const 46) (i32.const 64))
               (i32.store (i32.const 8)
                 (call $peer
                   (i32.load8_u (local.get $ptr))
                   (i32.load8_u offset=1 (local.get $ptr))
                   (i32.const 12)
                   (i32.load8_u offset=2 (local.get $ptr))))
               (call $send (local.get $port) (i32.const 8) (i32.const 68))))"#,
    )
}

fn peer(last: u8) -> Arc<Peer> {
    let client = Some(([192, 0, 2, last], 40_000).into());
    let origin = Origin { client, local: None, listener: "web".into() };
    Arc::new(Peer::new(Some(&origin), (last == 1).then_some("edge-of-the-sea")).unwrap())
}

fn open(cells: &mut Cells, cell: CellId, port: Port, peer: Option<Arc<Peer>>) {
    let kind = if port == Port::SERVER { PortKind::Server } else { PortKind::Client };
    assert_eq!(run(cells, cell, CellInput::Open { port, kind, peer }, 0).outcome, RunOutcome::Idle);
}

/// A cell whose first client is known, and of whose further clients one is known and one is not.
fn started(image: &Arc<Image>) -> Cells {
    let mut cells = cells();
    cells.start(CELL, image, SEED).unwrap();
    open(&mut cells, CELL, Port::CLIENT, Some(peer(1)));
    open(&mut cells, CELL, Port::SERVER, None);
    open(&mut cells, CELL, Port(2), Some(peer(2)));
    open(&mut cells, CELL, Port(3), None);
    cells
}

/// The result of the call, and the text that was written.
fn asked(cells: &mut Cells, port: u8, field: u8, room: u8) -> (i32, String) {
    let answer = ask(cells, &[port, field, room]).pop().unwrap();
    let written = String::from_utf8(answer[4..68].to_vec()).unwrap();
    (i32::from_le_bytes(answer[..4].try_into().unwrap()), written.trim_end_matches('.').to_owned())
}

fn known(text: &str) -> (i32, String) {
    (i32::try_from(text.len()).unwrap(), text.to_owned())
}

fn unknown() -> (i32, String) {
    (-1, String::new())
}

/// Everything that the cell of [`started`] knows.
fn check(cells: &mut Cells) {
    assert_eq!(asked(cells, 0, 0, 64), known("192.0.2.1:40000"));
    assert_eq!(asked(cells, 0, 1, 64), known("web"));
    assert_eq!(asked(cells, 0, 2, 64), known("edge-of-the-sea"));
    assert_eq!(asked(cells, 2, 0, 64), known("192.0.2.2:40000"));
    assert_eq!(asked(cells, 2, 2, 64), unknown());
    for (port, field) in [(1, 0), (3, 0), (3, 1), (4, 0), (0, 3), (0, 255)] {
        assert_eq!(asked(cells, port, field, 64), unknown(), "field {field} of port {port}");
    }
}

#[test]
fn a_client_is_known_until_it_is_gone_and_half_a_name_is_none() {
    let mut cells = started(&deploy(&asker()));
    check(&mut cells);
    for (room, written) in [(0, ""), (2, ""), (3, "web"), (4, "web")] {
        assert_eq!(asked(&mut cells, 0, 1, room), (3, written.to_owned()), "{room} bytes of room");
    }
    run(&mut cells, CELL, CellInput::Gone { port: Port(2) }, 0);
    assert_eq!(asked(&mut cells, 2, 0, 64), unknown());
    open(&mut cells, CELL, Port(2), Some(peer(9)));
    assert_eq!(asked(&mut cells, 2, 0, 64), known("192.0.2.9:40000"));
}

#[test]
fn a_restored_cell_knows_its_clients_from_every_checkpoint() {
    let image = deploy(&asker());
    let mut first = started(&image);
    let full = first.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    run(&mut first, CELL, CellInput::Gone { port: Port(2) }, 0);
    let delta = first.snapshot(CELL, CheckpointBase::Previous).unwrap().encode();
    let mut other = cells();
    other.restore(CELL, &image, &Decoded::decode(std::slice::from_ref(&full)).unwrap()).unwrap();
    check(&mut other);
    other.remove(CELL);
    other.restore(CELL, &image, &Decoded::decode(&[full, delta]).unwrap()).unwrap();
    assert_eq!(other.state_hash(CELL), first.state_hash(CELL));
    assert_eq!(asked(&mut other, 2, 0, 64), unknown());
    assert_eq!(asked(&mut other, 0, 0, 64), known("192.0.2.1:40000"));
}

#[test]
fn cells_of_other_clients_are_in_other_states() {
    let image = deploy(&asker());
    let mut cells = cells();
    let mut hash = |cell, peer| {
        cells.start(cell, &image, SEED).unwrap();
        open(&mut cells, cell, Port::CLIENT, peer);
        cells.state_hash(cell)
    };
    let (one, same) = (hash(CellId(1), Some(peer(1))), hash(CellId(2), Some(peer(1))));
    let (two, none) = (hash(CellId(3), Some(peer(2))), hash(CellId(4), None));
    assert_eq!(one, same);
    assert!(one != two && one != none && two != none);
}

#[test]
fn every_stage_of_a_chain_knows_the_client() {
    // Passes on each message.
    let relay = guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))"#,
    );
    for server in [true, false] {
        let stages = [("a", relay.clone()), ("b", relay.clone()), ("who", asker())];
        let image = chain_with(server, &Quotas::default(), &stages);
        let mut first = cells();
        first.start(CELL, &image, SEED).unwrap();
        open(&mut first, CELL, Port::CLIENT, Some(peer(1)));
        if server {
            open(&mut first, CELL, Port::SERVER, None);
        }
        let full = first.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
        let mut again = cells();
        again.restore(CELL, &image, &Decoded::decode(&[full]).unwrap()).unwrap();
        for cells in [&mut first, &mut again] {
            assert_eq!(asked(cells, 0, 0, 64), known("192.0.2.1:40000"));
            assert_eq!(asked(cells, 1, 0, 64), unknown(), "what is behind it is no client");
        }
    }
}

#[test]
fn room_outside_memory_ends_the_session_and_initialisation_has_no_client() {
    let body = |call: &str, how: &str| {
        module(&format!(
            r#"(module
                 (import "marram_v1" "peer" (func $peer (param i32 i32 i32 i32) (result i32)))
                 (memory (export "memory") 1)
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
                 (func (export "marram_recv") (param i32 i32 i32) {call})
                 (func (export "_initialize") {how}))"#
        ))
    };
    let outside = "(drop (call $peer (i32.const 0) (i32.const 0) (i32.const 65530) (i32.const 7)))";
    let inside = "(drop (call $peer (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 7)))";
    let mut cells = cells();
    cells.start(CELL, &deploy(&body(outside, "")), SEED).unwrap();
    let CellStop::Trap(reason) = stop(&mut cells, message(b"x")) else { panic!("it is no kill") };
    assert!(reason.contains("peer: the range 65530 + 7 is outside memory"), "{reason}");
    cells.start(CellId(2), &deploy(&body(inside, "")), SEED).unwrap();
    assert_eq!(ask_at(&mut cells, CellId(2), b"x", 0), [[0; 0]; 0]);
    let refused = support::try_deploy(&body("", inside), &Quotas::default()).err().unwrap().to_string();
    assert!(refused.contains("`peer`"), "{refused}");
}
