//! Attacks on the host's keys: signatures of messages that must not be signed, and with keys of other apps.

use super::witness::Witness;
use crate::support::wasi::{DATA, SIGN, request, signing_proxy};
use crate::support::{
    CELL, Dir, KEYS, Stamp, ask, cells, certificate_verify, deploy, deploy_signing, message, module,
    signing_cells, start_in, stop, try_deploy,
};
use marram_sandbox::limits::{KEYS_MAX, SIGNATURES_PER_HANDLER_MAX};
use marram_sandbox::{CellStartError, Images, KeyId, Keyring, Quotas};
use marram_session::cell::CellStop;
use std::sync::Arc;

/// Signs its message with the key in the first byte, as often as the next byte says, and sends the last signature.
fn signer() -> Vec<u8> {
    module(
        r#"(module
             (import "marram_v1" "send" (func $send (param i32 i32 i32)))
             (import "marram_v1" "sign" (func $sign (param i32 i32 i32 i32 i32) (result i32)))
             (memory (export "memory") 40)
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0x100000))
             (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32) (local $n i32) (local $out i32)
               (local.set $n (i32.load8_u offset=1 (local.get $ptr)))
               (loop $again
                 (local.set $out (call $sign (i32.load8_u (local.get $ptr)) (i32.add (local.get $ptr) (i32.const 2))
                   (i32.sub (local.get $len) (i32.const 2)) (i32.const 64) (i32.const 128)))
                 (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
               (call $send (local.get $port) (i32.const 64) (local.get $out))))"#,
    )
}

fn order(key: u8, times: u8, what: &[u8]) -> Vec<u8> {
    [&[key, times], what].concat()
}

#[test]
fn nothing_but_a_tls_servers_proof_is_signed() {
    let image = deploy_signing(&signer());
    let good = certificate_verify(32);
    let mut bad: Vec<Vec<u8>> = vec![vec![], b"a message".to_vec(), good[64..].to_vec()];
    bad.extend([0, 20, 31, 33, 47, 49, 64].map(certificate_verify));
    bad.push(String::from_utf8(good.clone()).unwrap().replace("server", "client").into_bytes());
    bad.push(good.iter().map(|byte| if *byte == b' ' { b'\t' } else { *byte }).collect());
    for what in bad {
        let mut cells = signing_cells();
        start_in(&mut cells, CELL, &image);
        let mut witness = Witness::beside(&mut cells);
        let CellStop::Trap(reason) = stop(&mut cells, message(&order(0, 1, &what))) else { panic!("a trap") };
        assert!(reason.contains("nothing else can be signed"), "{what:?}: {reason}");
        witness.is_untouched(&mut cells, "a request for a signature");
        witness.answers(&mut cells);
    }
    let mut cells = signing_cells();
    start_in(&mut cells, CELL, &image);
    for (key, digest) in [(0, 32), (1, 32), (0, 48)] {
        let what = certificate_verify(digest);
        let signature = [&[key + 1], &what[98..]].concat();
        assert_eq!(ask(&mut cells, &order(key, 1, &what)), [signature]);
    }
}

#[test]
fn a_key_that_was_not_granted_cannot_be_named() {
    let image = deploy_signing(&signer());
    for key in [2, 3, 255] {
        let mut cells = signing_cells();
        start_in(&mut cells, CELL, &image);
        let CellStop::Trap(reason) = stop(&mut cells, message(&order(key, 1, &certificate_verify(32))))
        else {
            panic!("a trap")
        };
        assert!(reason.contains(&format!("there is no key {key}; the manifest names 2")), "{reason}");
    }
    let error = try_deploy(&signer(), &Quotas::default()).err().unwrap().to_string();
    assert!(error.contains("marram_v1.sign") && error.contains("granted no key"), "{error}");
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let error = images.deploy_with_keys(&signer(), &[], &[KeyId([1; 32]); KEYS_MAX + 1], &Quotas::default());
    assert!(error.unwrap_err().to_string().contains("the maximum is 8"));
}

#[test]
fn a_cell_with_a_key_that_this_machine_lacks_does_not_start() {
    let image = deploy_signing(&signer());
    let mut half = Keyring::default();
    half.add(KEYS[0], Arc::new(Stamp(1)));
    for (mut cells, missing) in [(cells(), KEYS[0]), (cells().with_keys(half), KEYS[1])] {
        let error = cells.start(CELL, &image, crate::support::SEED).unwrap_err();
        assert_eq!(error, CellStartError::Key { hash: image.hash(), key: missing });
        assert!(error.to_string().contains("does not have the key"), "{error}");
        start_in(&mut cells, CELL, &deploy(&crate::support::echo()));
    }
}

#[test]
fn pointers_that_lead_out_of_memory_are_a_trap_and_nothing_is_written() {
    let image = deploy_signing(&signing_proxy());
    let (at, end) = (u64::from(DATA), 40 * 65_536);
    for (arguments, words) in [
        ([0, end - 129, 130, at + 512, 64], "outside memory"),
        ([0, u64::from(u32::MAX), 130, at + 512, 64], "outside memory"),
        ([0, at, u64::from(u32::MAX), at + 512, 64], "outside memory"),
        ([0, at, 130, end - 63, 64], "outside memory"),
        ([0, at, 130, u64::from(u32::MAX), u64::from(u32::MAX)], "outside memory"),
        ([0, at, 130, at + 512, 32], "room for 32 bytes"),
        ([0, at, 130, at + 512, 0], "room for 0 bytes"),
        ([u64::from(u32::MAX), at, 130, at + 512, 64], "there is no key"),
    ] {
        let mut cells = signing_cells();
        start_in(&mut cells, CELL, &image);
        let mut witness = Witness::beside(&mut cells);
        let asked = request(SIGN.1, &arguments, &certificate_verify(32));
        let CellStop::Trap(reason) = stop(&mut cells, message(&asked)) else { panic!("a trap") };
        assert!(reason.contains(words), "{arguments:?}: {reason}");
        witness.is_untouched(&mut cells, "a signature out of memory");
        witness.answers(&mut cells);
    }
}

#[test]
fn a_storm_of_signatures_passes_up_to_the_limit_and_one_more_is_a_trap() {
    let image = deploy_signing(&signer());
    let mut cells = signing_cells();
    start_in(&mut cells, CELL, &image);
    let most = u8::try_from(SIGNATURES_PER_HANDLER_MAX).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&mut cells, &order(0, most, &certificate_verify(32))).len(), 1);
    }
    let CellStop::Trap(reason) = stop(&mut cells, message(&order(0, most + 1, &certificate_verify(32))))
    else {
        panic!("a trap")
    };
    assert!(reason.contains("more than 8 signatures"), "{reason}");
}

#[test]
fn a_signature_at_initialisation_is_refused() {
    let at_start = module(
        r#"(module (import "marram_v1" "sign" (func $sign (param i32 i32 i32 i32 i32) (result i32)))
             (memory (export "memory") 1)
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
             (func (export "marram_recv") (param i32 i32 i32))
             (func (export "_initialize")
               (drop (call $sign (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))))"#,
    );
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let error = images.deploy_with_keys(&at_start, &[], &KEYS, &Quotas::default()).unwrap_err().to_string();
    assert!(error.contains("initialisation called `sign`"), "{error}");
}
