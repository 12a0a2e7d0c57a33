//! A chain as a peer or a disk may provide it: decoding and encoding give the same bytes, and its name is its digest.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_sandbox::Chain;

fuzz_target!(|data: &[u8]| {
    let Ok(chain) = Chain::decode(data) else { return };
    assert!(Chain::is_chain(data));
    assert_eq!(chain.hash().0, blake3::derive_key("marram chain hash 1", data));
    assert!((2..=16).contains(&chain.stages().len()));
});
