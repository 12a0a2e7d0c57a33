//! A cell that connects to servers: their numbers, what is refused, and what a restored cell knows of them.

use crate::support::{CELL, Dir, SEED, cells, echo, message, module, run};
use marram_sandbox::{AppParts, Cells, Decoded, DeployError, Image, Images, Quotas};
use marram_session::cell::{CellInput, CellOutput, CellStop, CheckpointBase, PortKind, RunOutcome};
use marram_wire::{id::Port, limits::CONNECTIONS_MAX};
use std::sync::Arc;

/// `c`: connects to `store`. `x`: to a server that is not granted. `s`: sends to the first connection, and `e`: closes that port.
const GUEST: &str = r#"(module
    (import "marram_v1" "connect" (func $connect (param i32 i32) (result i32)))
    (import "marram_v1" "send" (func $send (param i32 i32 i32)))
    (import "marram_v1" "close" (func $close (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 100) "storeother")
    (func (export "marram_alloc") (param i32) (result i32) (i32.const 4096))
    (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
        (local $what i32)
        (local.set $what (i32.load8_u (local.get $ptr)))
        (if (i32.eq (local.get $what) (i32.const 99))
            (then (drop (call $connect (i32.const 100) (i32.const 5)))))
        (if (i32.eq (local.get $what) (i32.const 120))
            (then (drop (call $connect (i32.const 105) (i32.const 5)))))
        (if (i32.eq (local.get $what) (i32.const 115))
            (then (call $send (i32.const 0x80000000) (local.get $ptr) (local.get $len))))
        (if (i32.eq (local.get $what) (i32.const 101))
            (then (call $close (i32.const 0x80000000))))))"#;

fn port(nth: u32) -> Port {
    Port(Port::FIRST_CONNECTED.0 + nth)
}

fn image(servers: &[&str]) -> Result<Arc<Image>, DeployError> {
    let dir = Dir::new();
    let images = Images::open(&dir.0)?;
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let (module, quotas) = (module(GUEST), Quotas::default());
    let parts =
        AppParts { module: &module, files: &[], keys: &[], quotas: &quotas, slots: 0, servers: &servers };
    let info = images.deploy_app(&parts)?;
    // As another machine gets it, and as this one has stored it.
    let other = Dir::new();
    let there = Images::open(&other.0)?;
    there.insert(info.hash, &images.app(info.hash).unwrap()).unwrap();
    assert_eq!(there.load(info.hash).is_ok(), images.load(info.hash).is_ok());
    Ok(images.load(info.hash).expect("what was deployed can be loaded"))
}

/// What a message has the cell do, or why it trapped.
fn says(cells: &mut Cells, what: &[u8]) -> Result<Vec<CellOutput>, String> {
    let ran = run(cells, CELL, message(what), 0);
    match ran.outcome {
        RunOutcome::Idle => Ok(ran.outputs),
        RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)) => Err(reason),
    }
}

fn started(image: &Arc<Image>) -> Cells {
    let mut cells = cells();
    cells.start(CELL, image, SEED).unwrap();
    opens(&mut cells, Port::CLIENT, PortKind::Client);
    cells
}

fn opens(cells: &mut Cells, port: Port, kind: PortKind) {
    assert_eq!(run(cells, CELL, CellInput::Open { port, kind, peer: None }, 0).outcome, RunOutcome::Idle);
}

fn connect(nth: u32) -> Result<Vec<CellOutput>, String> {
    Ok(vec![CellOutput::Connect { port: port(nth), name: "store".into() }])
}

#[test]
fn connections_are_outputs_and_have_numbers_of_their_own() {
    let mut cells = started(&image(&["store"]).unwrap());
    assert_eq!([says(&mut cells, b"c"), says(&mut cells, b"c")], [connect(0), connect(1)]);
    assert_eq!(says(&mut cells, b"e"), Ok(vec![CellOutput::Close { port: port(0) }]), "it is cancelled");
    opens(&mut cells, port(0), PortKind::Server);
    let sent = CellOutput::Message { port: port(0), payload: b"s".as_slice().into() };
    assert_eq!(says(&mut cells, b"s"), Ok(vec![sent]));
    assert_eq!(says(&mut cells, b"e"), Ok(vec![CellOutput::Close { port: port(0) }]));
    for input in [
        CellInput::Close { port: port(1) },
        CellInput::Gone { port: port(1) },
        CellInput::Gone { port: port(0) },
    ] {
        assert_eq!(run(&mut cells, CELL, input, 0).outcome, RunOutcome::Idle);
    }
    assert_eq!(says(&mut cells, b"s"), Ok(vec![]), "what is sent to a server that is gone is dropped");
    assert_eq!(says(&mut cells, b"c"), connect(2));
}

#[test]
fn what_is_not_allowed_traps_with_the_name() {
    let image = image(&["store"]).unwrap();
    let mut all = started(&image);
    let why = says(&mut all, b"x").unwrap_err();
    assert!(why.contains("connect: the app is not granted the server `other`"), "{why}");
    let mut all = started(&image);
    says(&mut all, b"c").unwrap();
    let why = says(&mut all, b"s").unwrap_err();
    assert!(why.contains("send: port 2147483648 is not open yet"), "{why}");
    let mut all = started(&image);
    for _ in 0..CONNECTIONS_MAX {
        says(&mut all, b"c").unwrap();
    }
    let why = says(&mut all, b"c").unwrap_err();
    assert!(why.contains("connect: more than 64 servers"), "{why}");
}

#[test]
fn a_module_that_connects_is_refused_without_servers() {
    let why = image(&[]).unwrap_err().to_string();
    assert!(why.contains("marram_v1.connect") && why.contains("`servers`"), "{why}");
    // One that does not may be granted some.
    let dir = Dir::new();
    let (plain, quotas, servers) = (echo(), Quotas::default(), ["a".to_owned()]);
    let parts =
        AppParts { module: &plain, files: &[], keys: &[], quotas: &quotas, slots: 0, servers: &servers };
    assert!(Images::open(&dir.0).unwrap().deploy_app(&parts).is_ok());
}

#[test]
fn a_restored_cell_knows_its_connections() {
    let image = image(&["other", "store"]).unwrap();
    let mut first = started(&image);
    let mut list = vec![first.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
    for step in 0..4 {
        match step {
            0 => assert_eq!(says(&mut first, b"c"), connect(0)),
            1 => assert_eq!(says(&mut first, b"c"), connect(1)),
            2 => opens(&mut first, port(0), PortKind::Server),
            _ => _ = run(&mut first, CELL, CellInput::Gone { port: port(1) }, 0),
        }
        list.push(first.snapshot(CELL, CheckpointBase::Previous).unwrap().encode());
        let mut again = cells();
        again.restore(CELL, &image, &Decoded::decode(&list).unwrap()).unwrap();
        assert_eq!(again.state_hash(CELL), first.state_hash(CELL), "step {step}");
        let next = if step == 0 { 1 } else { 2 };
        assert_eq!(says(&mut again, b"c"), connect(next), "step {step}");
    }
}
