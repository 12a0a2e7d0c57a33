//! What deployment refuses, with messages that say how to fix it, and what happens to damaged image files.

use crate::support::{self, CELL, Dir, ask, cells, deploy, echo, guest, module, start_in, try_deploy};
use marram_sandbox::{AppParts, Chain, Images, LoadError, Quotas};
use marram_wire::id::ImageHash;

const RECV: &str = r#"(func (export "marram_recv") (param i32 i32 i32))"#;

fn refusal(module: &[u8]) -> String {
    match try_deploy(module, &Quotas::default()) {
        Ok(_) => panic!("it was deployed"),
        Err(error) => error.to_string(),
    }
}

/// What every module has.
const HANDLERS: &str = r#"(memory (export "memory") 1)
    (func (export "marram_alloc") (param i32) (result i32) i32.const 0)
    (func (export "marram_recv") (param i32 i32 i32))"#;

/// A module with something after its handlers.
fn after(extra: &str) -> Vec<u8> {
    module(&format!("(module {HANDLERS} {extra})"))
}

/// Checks that each module is refused with all of the words.
fn check_refusals(cases: Vec<(Vec<u8>, &[&str])>) {
    for (module, words) in cases {
        let text = refusal(&module);
        for word in words {
            assert!(text.contains(word), "{text:?} does not say {word:?}");
        }
    }
}

#[test]
fn refused_modules_name_the_fix() {
    let with = |extra: &str| module(&format!("(module {extra} {HANDLERS})"));
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (b"(module)".to_vec(), &["not a WebAssembly module", ".wasm"]),
        (vec![], &["not a WebAssembly module"]),
        (b"\0asm\x0d\0\x01\0".to_vec(), &["component", "wasip1"]),
        (module("(module)"), &["`memory`"]),
        (module(r#"(module (memory (export "memory") 1))"#), &["`marram_alloc`"]),
        (
            module(
                r#"(module (memory (export "memory") 1) (func (export "marram_alloc") (param i32) (result i32) i32.const 0))"#,
            ),
            &["`marram_recv`"],
        ),
        (
            module(&format!(
                r#"(module (memory (export "memory") 1) {RECV} (func (export "marram_alloc") (param i64) (result i32) i32.const 0))"#
            )),
            &["`marram_alloc`", "(i64) -> (i32)", "(i32) -> (i32)"],
        ),
        (
            after(r#"(global (export "marram_timer") i32 (i32.const 0))"#),
            &["`marram_timer`", "not a function"],
        ),
        (after(r#"(func (export "_start"))"#), &["`_start`", "cdylib"]),
        (after(r#"(func (export "marram:x"))"#), &["`marram:x`", "rename"]),
        (with(r#"(import "env" "f" (func))"#), &["`env.f`", "marram_v1"]),
        (with(r#"(import "marram_v1" "fly" (func))"#), &["`marram_v1.fly`", "no such function"]),
        (with(r#"(import "marram_v1" "cache_read" (func (param i32)))"#), &["cache_read"]),
        (with(r#"(import "wasi_snapshot_preview1" "fd_fly" (func))"#), &["fd_fly", "no such function"]),
        (with(r#"(import "marram_v1" "now" (func (result i32)))"#), &["now"]),
        (with(r#"(import "marram_v1" "g" (global i32))"#), &["only functions"]),
        (with(r#"(import "marram_v1" "t" (table 1 funcref))"#), &["only functions"]),
        (
            module(&format!(r#"(module (import "marram_v1" "memory" (memory 1)) {RECV})"#)),
            &["only functions", "--import-memory"],
        ),
    ];
    check_refusals(cases);
}

#[test]
fn refused_features_are_named() {
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (module(r#"(module (memory (export "memory") 1 1 shared))"#), &["shared", "atomics"]),
        (after("(memory 1)"), &["several memories"]),
        (module(&format!(r#"(module (memory (export "memory") i64 1) {RECV})"#)), &["memory64"]),
        (after("(table 1 funcref) (func (table.set (i32.const 0) (ref.null func)))"), &["table.set"]),
        (
            after("(table 1 funcref) (func (drop (table.grow (ref.null func) (i32.const 1))))"),
            &["table.grow"],
        ),
        (
            after("(table 1 funcref) (func (table.fill (i32.const 0) (ref.null func) (i32.const 1)))"),
            &["table.fill"],
        ),
        (
            after("(table 1 funcref) (func (table.copy (i32.const 0) (i32.const 0) (i32.const 1)))"),
            &["table.copy"],
        ),
        (
            after(
                "(table 1 funcref) (elem $e func 0) (func (table.init $e (i32.const 0) (i32.const 0) (i32.const 0)))",
            ),
            &["table.init"],
        ),
        (after("(elem $e func 0) (func (elem.drop $e))"), &["elem.drop"]),
        (after(r#"(data $d "x") (func (data.drop $d))"#), &["data.drop"]),
        (after("(global (mut funcref) (ref.null func))"), &["mutable", "reference"]),
        (
            after("(func (param v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) (local.get 0)))"),
            &["relaxed"],
        ),
        (after("(func (param i32) (result i32) (i32.atomic.load (local.get 0)))"), &["threads"]),
        (after("(tag)"), &["exceptions"]),
    ];
    check_refusals(cases);
}

#[test]
fn initialisation_may_not_touch_what_differs_between_sessions() {
    let calls = [
        ("send", "(call $send (i32.const 0) (i32.const 0) (i32.const 0))"),
        ("close", "(call $close (i32.const 0))"),
        ("pause", "(call $pause (i32.const 0))"),
        ("resume", "(call $resume (i32.const 0))"),
        ("now", "(drop (call $now))"),
        ("random", "(call $random (i32.const 0) (i32.const 8))"),
        ("timer", "(call $timer (i64.const 0) (i64.const 0))"),
        ("timer_cancel", "(call $timer_cancel (i64.const 0))"),
    ];
    for (name, call) in calls {
        for body in [
            format!(r#"(func (export "_initialize") {call}) {RECV}"#),
            format!("(func $begin {call}) (start $begin) {RECV}"),
        ] {
            let text = refusal(&guest(&body));
            assert!(text.contains(&format!("`{name}`")) && text.contains("handler"), "{text:?}");
        }
    }
}

#[test]
fn initialisation_that_traps_or_loops_is_refused() {
    let text = refusal(&guest(&format!(r#"(func (export "_initialize") unreachable) {RECV}"#)));
    assert!(text.contains("initialisation failed") && text.contains("unreachable"), "{text:?}");
    let text = refusal(&guest(&format!(r#"(func (export "_initialize") (loop $l (br $l))) {RECV}"#)));
    assert!(text.contains("200 ms"), "{text:?}");
    let text = refusal(&guest(&format!(r#"(func $f (loop $l (br $l))) (start $f) {RECV}"#)));
    assert!(text.contains("200 ms"), "{text:?}");
}

#[test]
fn quotas_that_do_not_fit_are_refused() {
    let quotas = Quotas { memory_max: 65_536, ..Quotas::default() };
    let text = try_deploy(&echo(), &quotas).unwrap_err().to_string();
    assert!(text.contains("memory_max") && text.contains("raise it"), "{text:?}");
    let quotas = Quotas { memory_max: 3, ..Quotas::default() };
    assert!(try_deploy(&echo(), &quotas).unwrap_err().to_string().contains("multiple of 65536"));
}

#[test]
fn initialisation_is_frozen_into_the_image() {
    // Memory grown, written and a global set by `_initialize`, a passive segment that must survive, one start function.
    let image = deploy(&guest(
        r#"(global $g (mut i64) (i64.const 1))
           (global $f (mut f32) (f32.const 0))
           (data (i32.const 8) "active")
           (data $late "passive")
           (func $begin (i32.store8 (i32.const 100) (i32.const 7)))
           (start $begin)
           (func (export "_initialize")
             (drop (memory.grow (i32.const 2)))
             (i32.store8 (i32.const 0x290000) (i32.const 9))
             (i32.store8 (i32.const 8) (i32.const 65))
             (global.set $f (f32.reinterpret_i32 (i32.const 0x7fa00001)))
             (global.set $g (i64.add (global.get $g) (i64.load8_u (i32.const 100)))))
           (func (export "marram_recv") (param $port i32) (param i32 i32)
             (memory.init $late (i32.const 16) (i32.const 0) (i32.const 7))
             (i64.store (i32.const 32) (global.get $g))
             (i32.store8 (i32.const 40) (i32.load8_u (i32.const 0x290000)))
             (i32.store8 (i32.const 41) (memory.size))
             (i32.store (i32.const 42) (i32.reinterpret_f32 (global.get $f)))
             (call $send (local.get $port) (i32.const 8) (i32.const 38)))"#,
    ));
    assert_eq!(image.info().next().unwrap().globals, 2);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let mut expected = [0; 38];
    expected[..6].copy_from_slice(b"Active");
    expected[8..15].copy_from_slice(b"passive");
    expected[24] = 8;
    expected[32] = 9;
    expected[33] = 42;
    expected[34..38].copy_from_slice(&0x7fa0_0001_u32.to_le_bytes());
    assert_eq!(ask(&mut cells, b""), [expected]);
}

#[test]
fn apps_travel_between_machines_and_prove_themselves() {
    let (here, there) = (Dir::new(), Dir::new());
    let here = Images::open(&here.0).unwrap();
    let there = Images::open(&there.0).unwrap();
    let hash = here.deploy(&echo(), &[], &Quotas::default()).unwrap().hash;
    assert!(matches!(there.load(hash), Err(LoadError::Unknown(unknown)) if unknown == hash));
    let app = here.app(hash).unwrap();
    assert!(matches!(there.insert(ImageHash([0; 32]), &app), Err(LoadError::App { .. })));
    assert!(matches!(there.insert(hash, &app[..app.len() - 1]), Err(LoadError::App { .. })));
    assert_eq!(there.insert(hash, &app).unwrap().hash(), hash);
    assert_eq!(there.load(hash).unwrap().hash(), hash);
    there.remove(hash).unwrap();
    assert!(there.load(hash).is_err());
}

#[test]
fn the_hash_names_module_and_quotas() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let plain = images.deploy(&echo(), &[], &Quotas::default()).unwrap().hash;
    assert_eq!(images.deploy(&echo(), &[], &Quotas::default()).unwrap().hash, plain);
    let quotas = Quotas { nan_canonicalization: false, ..Quotas::default() };
    let fast = images.deploy(&echo(), &[], &quotas).unwrap().hash;
    assert_ne!(fast, plain);
    // Code with and without canonical NaNs runs in one pool.
    let mut cells = cells();
    for (n, hash) in [plain, fast].into_iter().enumerate() {
        let cell = marram_session::cell::CellId(n as u64);
        start_in(&mut cells, cell, &images.load(hash).unwrap());
        assert_eq!(support::ask_at(&mut cells, cell, b"x", 0), [b"x"]);
    }
}

#[test]
fn the_hash_names_the_number_of_slots() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let made = |slots| {
        let (module, quotas) = (echo(), Quotas::default());
        let parts = AppParts { module: &module, files: &[], keys: &[], quotas: &quotas, slots, servers: &[] };
        images.deploy_app(&parts).unwrap().hash
    };
    let plain = images.deploy(&echo(), &[], &Quotas::default()).unwrap().hash;
    let [none, some, more] = [0, 64, 128].map(made);
    assert_eq!(none, plain, "an app without keys has the image that it had before");
    assert!(some != plain && more != plain && some != more);
    assert!(images.has_slots(some, 64).unwrap() && !images.has_slots(some, 128).unwrap());
    let stages = [("first", some), ("second", plain)].map(|(name, stage)| (name.to_owned(), stage));
    let chain = images.deploy_chain(&Chain::new(false, stages.into()).unwrap()).unwrap();
    assert!(images.has_slots(chain, 64).unwrap() && !images.has_slots(chain, 128).unwrap());
    // Another machine makes the same of it.
    let dir = Dir::new();
    let there = Images::open(&dir.0).unwrap();
    there.insert(more, &images.app(more).unwrap()).unwrap();
    assert!(there.has_slots(more, 128).unwrap());
    let mut cells = cells();
    start_in(&mut cells, CELL, &there.load(more).unwrap());
    assert_eq!(ask(&mut cells, b"x"), [b"x"]);
}
