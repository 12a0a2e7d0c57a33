//! Attacks on the host's functions: every import with every pointer and length that is easily forgotten. The result is an
//! errno or a trap, the host continues, and another cell is unchanged.

use super::witness::Witness;
use crate::support::wasi::{CALLS, DATA, SIGN, request, signing_proxy};
use crate::support::{CELL, certificate_verify, deploy_signing, message, run, signing_cells, start_in};
use marram_sandbox::{Cells, Image};
use marram_session::cell::{CellStop, RunOutcome};
use std::sync::Arc;

const AT: u64 = DATA as u64;
const END: u64 = 40 * 65_536;

/// Pointers, lengths, descriptors and numbers: zero, small, page boundaries, memory's end, and the limits of 31, 32 and 64 bits.
const EXTREMES: &[u64] = &[
    0,
    1,
    3,
    4,
    4_095,
    4_096,
    65_535,
    65_536,
    65_537,
    AT,
    AT + 1,
    1 << 20,
    (1 << 20) + 1,
    END - 8,
    END - 4,
    END - 1,
    END,
    END + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 8,
    (1 << 32) - 1,
    1 << 33,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// Makes calls in a new cell until it traps; returns whether it did.
fn attack(cells: &mut Cells, image: &Arc<Image>, name: &str, calls: &[Vec<u64>], data: &[u8]) -> bool {
    start_in(cells, CELL, image);
    for arguments in calls {
        match run(cells, CELL, message(&request(name, arguments, data)), 0).outcome {
            RunOutcome::Idle => assert_eq!(cells.memory_bytes(CELL), Some(40 * 65_536)),
            RunOutcome::Stopped(CellStop::Trap(_)) => return true,
            RunOutcome::Stopped(CellStop::Kill(reason)) => panic!("{name} {arguments:?}: killed: {reason}"),
        }
    }
    cells.remove(CELL);
    false
}

#[test]
fn every_import_survives_every_extreme_in_every_argument() {
    assert_eq!(CALLS.iter().filter(|call| call.0 == "wasi_snapshot_preview1").count(), 46, "all of WASI");
    let image = deploy_signing(&signing_proxy());
    let mut cells = signing_cells();
    let mut witness = Witness::beside(&mut cells);
    let (mut trapped, mut returned) = (0, 0);
    // Two buffers of eight bytes, a name, and at 128 a message that can be signed.
    let mut data: Vec<u8> =
        [DATA + 64, 8, DATA + 72, 8].iter().flat_map(|number| number.to_le_bytes()).chain(*b"name").collect();
    data.resize(128, 0);
    data.extend(certificate_verify(32));
    for (_, name, params, _) in CALLS.iter().chain([&SIGN]) {
        for at in 0..params.len() {
            // The other arguments are valid for a call on the root, on a new file, and on standard output.
            for others in [
                [3, AT, 4, AT, 1, AT, AT, AT, AT],
                [4, AT, 1, AT + 64, 1, 66, 66, 0, AT + 64],
                [1, AT, 2, AT, 0, 0, 0, 0, 0],
                // Something to sign.
                [0, AT + 128, 130, AT + 512, 64, 0, 0, 0, 0],
            ] {
                for extreme in EXTREMES {
                    let mut arguments = others[..params.len()].to_vec();
                    arguments[at] = *extreme;
                    match attack(&mut cells, &image, name, &[arguments.clone(), arguments], &data) {
                        true => trapped += 1,
                        false => returned += 1,
                    }
                }
            }
        }
        witness.is_untouched(&mut cells, name);
    }
    witness.answers(&mut cells);
    assert!(trapped > 1_000 && returned > 1_000, "{trapped} trapped, {returned} returned");
}

#[test]
fn every_import_survives_mixtures_and_buffers_that_point_anywhere() {
    let image = deploy_signing(&signing_proxy());
    let mut cells = signing_cells();
    let mut witness = Witness::beside(&mut cells);
    let (mut trapped, mut returned) = (0, 0);
    for (_, name, params, _) in CALLS.iter().chain([&SIGN]) {
        for seed in 0..120_usize {
            // First every value in every place, then combinations.
            let arguments: Vec<u64> = (0..params.len())
                .map(|n| match seed.checked_sub(EXTREMES.len()) {
                    None => EXTREMES[seed],
                    Some(rest) => EXTREMES[(rest * 7 + n * (rest / 5 + 1) * 3 + n) % EXTREMES.len()],
                })
                .collect();
            // Buffers that point out of memory, at themselves, or nowhere.
            let data: Vec<u8> =
                (0..64).flat_map(|n| [DATA, u32::MAX, 0, 16][(n + seed) % 4].to_le_bytes()).collect();
            match attack(&mut cells, &image, name, &[arguments.clone(), arguments], &data) {
                true => trapped += 1,
                false => returned += 1,
            }
        }
        witness.is_untouched(&mut cells, name);
    }
    witness.answers(&mut cells);
    assert!(trapped > 500 && returned > 500, "{trapped} trapped, {returned} returned");
}
