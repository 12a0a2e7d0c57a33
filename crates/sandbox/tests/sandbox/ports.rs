//! Ports that come and go in the middle of a cell's life, over checkpoints.

use crate::support::{CELL, SEED, ask_at, cells, deploy, guest, message, run};
use marram_sandbox::{Cells, Decoded, Image, limits::PORTS_MAX};
use marram_session::cell::{CellId, CellInput, CellStop, CheckpointBase, PortKind, RunOutcome};
use marram_wire::id::Port;
use std::sync::Arc;

const FOLLOWER: CellId = CellId(2);

/// Sends each message to the port that is its first byte, and to where it came from.
fn sender() -> Arc<Image> {
    deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (call $send (i32.load8_u (local.get $ptr)) (local.get $ptr) (local.get $len))
             (call $send (local.get $port) (local.get $ptr) (local.get $len)))"#,
    ))
}

fn open(cells: &mut Cells, port: Port) {
    let ran = run(cells, CELL, CellInput::Open { port, kind: PortKind::Client, peer: None }, 0);
    assert_eq!(ran.outcome, RunOutcome::Idle);
}

fn gone(cells: &mut Cells, port: Port) {
    assert_eq!(run(cells, CELL, CellInput::Gone { port }, 0).outcome, RunOutcome::Idle);
}

/// A cell with the ports 0, 2 and 3.
fn started(image: &Arc<Image>) -> Cells {
    let mut cells = cells();
    cells.start(CELL, image, SEED).unwrap();
    for port in [Port::CLIENT, Port(2), Port(3)] {
        open(&mut cells, port);
    }
    cells
}

/// What a cell answers that sends to a port which is gone: its messages there are dropped.
fn answers(cells: &mut Cells, cell: CellId) -> [Vec<Vec<u8>>; 2] {
    [2, 3].map(|port| ask_at(cells, cell, &[port], 0))
}

#[test]
fn a_port_that_is_gone_is_gone_after_a_restore() {
    let image = sender();
    let mut first = started(&image);
    let mut list = vec![first.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
    let mut follower = cells();
    follower.restore(FOLLOWER, &image, &Decoded::decode(&list).unwrap()).unwrap();
    for port in [Port(2), Port(3)] {
        gone(&mut first, port);
        list.push(first.snapshot(CELL, CheckpointBase::Previous).unwrap().encode());
        follower.advance(FOLLOWER, &Decoded::decode(&list[list.len() - 1..]).unwrap()).unwrap();
        assert_eq!(follower.state_hash(FOLLOWER), first.state_hash(CELL));
    }
    let full = first.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    let hash = first.state_hash(CELL);
    let expected = answers(&mut first, CELL);
    assert_eq!(expected, [2, 3].map(|port| vec![vec![port]]));
    assert_eq!(answers(&mut follower, FOLLOWER), expected);
    for list in [list, vec![full]] {
        let mut again = cells();
        again.restore(CELL, &image, &Decoded::decode(&list).unwrap()).unwrap();
        assert_eq!(again.state_hash(CELL), hash);
        assert_eq!(answers(&mut again, CELL), expected);
        let RunOutcome::Stopped(CellStop::Trap(reason)) = run(&mut again, CELL, message(&[4]), 0).outcome
        else {
            panic!("port 4 was never opened");
        };
        assert!(reason.contains("port 4 was never opened"), "{reason}");
    }
}

#[test]
fn the_last_port_may_be_gone_and_a_cell_knows_whether_it_had_any() {
    let image = sender();
    let hash = |ports: &[Port]| {
        let mut cells = cells();
        cells.start(CELL, &image, SEED).unwrap();
        for port in ports {
            open(&mut cells, *port);
            gone(&mut cells, *port);
        }
        let list = [cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
        let mut again = self::cells();
        again.restore(CELL, &image, &Decoded::decode(&list).unwrap()).unwrap();
        assert_eq!(again.state_hash(CELL), cells.state_hash(CELL));
        cells.state_hash(CELL)
    };
    let last = Port(u32::try_from(PORTS_MAX).unwrap());
    let [none, client, further, far] =
        [&[][..], &[Port::CLIENT], &[Port::CLIENT, Port(2)], &[last]].map(hash);
    assert!(none != client && client != further && further != far);
}
