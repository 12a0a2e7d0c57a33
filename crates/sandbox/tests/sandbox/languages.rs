//! The same cell in Rust and in C: the same answers to everything, from any checkpoint on. `cargo xtask cells` builds both.

#[path = "../../../marram/tests/e2e/support/skip.rs"]
mod skip;

use crate::support::{self, CELL, SEED, cells, deploy_with, message, run};
use marram_sandbox::{Cells, Decoded, Image, ImageFile, Quotas};
use marram_session::cell::{
    CellInput, CellOutput, CellStop, CheckpointBase, PortKind, Ran, RunOutcome, TimerChange,
};
use marram_wire::id::Port;
use marram_wire::seeded::Seeded;
use std::path::Path;
use std::sync::Arc;

/// Both images, or `None` without a compiler for C.
fn both() -> Option<[Arc<Image>; 2]> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells");
    let rust = std::fs::read(built.join("counter.wasm")).expect("`cargo xtask cells` has built the cells");
    let Ok(c) = std::fs::read(built.join("c/counter.wasm")) else {
        skip::skip("cells in C are not built here: there is no C compiler for Wasm");
        return None;
    };
    let quotas = Quotas { handler_time_ns: 300_000_000, ..Quotas::default() };
    let words = ImageFile { path: "etc/words".into(), contents: b"one\ntwo\n\nfour\nfive".to_vec() };
    Some([rust, c].map(|module| deploy_with(&module, &quotas, std::slice::from_ref(&words))))
}

fn start(image: &Arc<Image>) -> Cells {
    let mut cells = cells();
    cells.start(CELL, image, SEED).unwrap();
    for (port, kind) in [(Port::CLIENT, PortKind::Client), (Port::SERVER, PortKind::Server)] {
        assert_eq!(
            run(&mut cells, CELL, CellInput::Open { port, kind, peer: None }, 0).outcome,
            RunOutcome::Idle
        );
    }
    cells
}

/// The effects of a handler that others can see.
fn seen(ran: Ran) -> (Vec<CellOutput>, Vec<TimerChange>, bool) {
    (ran.outputs, ran.timers, ran.outcome == RunOutcome::Idle)
}

/// Continues the cell in another pool, from a checkpoint.
fn moved(cells: &mut Cells, image: &Arc<Image>) -> Cells {
    let checkpoint = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    let mut there = support::cells();
    there.restore(CELL, image, &Decoded::decode(&[checkpoint]).unwrap()).unwrap();
    there
}

#[test]
fn rust_and_c_answer_alike_also_when_they_are_moved_in_between() {
    let Some(images) = both() else { return };
    for seed in 0..20 {
        let (mut numbers, mut all) = (Seeded::new(seed), images.each_ref().map(start));
        for n in 0..60 {
            let payload: Vec<u8> =
                (0..numbers.below(6)).map(|_| b"fnrctTxswpm?"[numbers.index(12)]).collect();
            let input = match numbers.below(8) {
                0 => CellInput::Timer { stage: 0, token: 1 },
                1 => CellInput::Message { port: Port::SERVER, payload: payload.clone().into() },
                _ => message(&payload),
            };
            let now_ns = i64::from(n) * 1_000_003;
            let [rust, c] = all.each_mut().map(|cells| seen(run(cells, CELL, input.clone(), now_ns)));
            assert_eq!(rust, c, "seed {seed}, step {n}: {input:?}");
            if numbers.below(5) == 0 {
                for (cells, image) in all.iter_mut().zip(&images) {
                    *cells = moved(cells, image);
                }
            }
        }
        let close = CellInput::Close { port: Port::CLIENT };
        let [rust, c] = all.each_mut().map(|cells| seen(run(cells, CELL, close.clone(), i64::MAX)));
        assert_eq!(rust, c);
    }
}

#[test]
fn what_breaks_a_cell_in_rust_breaks_it_in_c() {
    let Some(images) = both() else { return };
    for (command, is_kill) in [(b'!', false), (b'@', true)] {
        for image in &images {
            let mut cells = start(image);
            let stop = support::stop(&mut cells, message(&[b'f', command]));
            assert_eq!(matches!(stop, CellStop::Kill(_)), is_kill, "{stop:?}");
        }
    }
}
