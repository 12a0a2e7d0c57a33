//! A guest may pass anything to any import: the answer is an errno or a trap, and the next cell runs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use marram_session::cell::{Outcome, Stop};
use support::wasi::{CALLS, DATA, proxy, request};
use support::{CELL, cells, deploy, message, run, start_in};

#[test]
fn no_argument_of_any_import_hurts_the_host() {
    let image = deploy(&proxy());
    let mut cells = cells();
    let max = u64::MAX;
    let at = u64::from(DATA);
    let end = 40 * 65_536;
    let values =
        [0, 1, 3, 4, at, at + 1, end - 1, end, max >> 33, max >> 32, max >> 1, max, 65_536, 1 << 20, 1 << 33];
    let mut traps = 0;
    let mut runs = 0;
    for (_, name, params, _) in CALLS {
        for seed in 0..120_usize {
            start_in(&mut cells, CELL, &image);
            // First every value everywhere, then mixtures.
            let arguments: Vec<u64> = (0..params.len())
                .map(|n| match seed.checked_sub(values.len()) {
                    None => values[seed],
                    Some(rest) => values[(rest * 7 + n * (rest / 5 + 1) * 3 + n) % values.len()],
                })
                .collect();
            // Buffers that point out of memory, at themselves, or nowhere.
            let data: Vec<u8> =
                (0..64).flat_map(|n| [DATA, u32::MAX, 0, 16][(n + seed) % 4].to_le_bytes()).collect();
            for _ in 0..2 {
                match run(&mut cells, CELL, message(&request(name, &arguments, &data)), 0).outcome {
                    Outcome::Idle => runs += 1,
                    Outcome::Stopped(Stop::Trap(_)) => {
                        traps += 1;
                        break;
                    }
                    Outcome::Stopped(Stop::Kill(reason)) => panic!("{name} {arguments:?}: killed: {reason}"),
                }
                cells.state_hash(CELL).expect("the cell is idle");
            }
            cells.remove(CELL);
        }
    }
    assert!(traps > 500 && runs > 500, "{traps} traps, {runs} runs");
}
