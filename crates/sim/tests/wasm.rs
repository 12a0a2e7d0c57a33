//! The fake cell of the simulation and the Wasm machine behave the same for every session.
#![cfg(feature = "wasm")]

use marram_sim::{batch, twin};
use std::path::Path;

const SEEDS: u64 = 200;

#[test]
fn two_hundred_histories_go_alike_with_wasm_cells() {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells");
    twin::deploy(&module).expect("`cargo xtask cells` has built the cells");
    let seeds: Vec<u64> = (0..SEEDS).collect();
    let tally = batch::run_all(&seeds, 1);
    let failures: Vec<_> = tally.failures.iter().map(|failure| (failure.seed, &failure.violations)).collect();
    assert!(failures.is_empty(), "{failures:?}");
    assert!(tally.compared > SEEDS, "{} answers were compared", tally.compared);
}
