//! Attacks by text: on people who read what a guest printed, why it stopped, or why it was not deployed.

use super::witness::Witness;
use crate::support::{CELL, deploy, guest, message, module, run, start, stop, try_deploy};
use marram_sandbox::limits::{PRINT_BYTES_MAX, PRINTS_PER_HANDLER_MAX, REASON_BYTES_MAX};
use marram_sandbox::{Image, Print, Quotas};
use marram_session::cell::{CellStop, RunOutcome};
use std::sync::Arc;

/// Text that would end a line and forge the next, colour or clear a terminal, set its title, or reverse text.
const TRICKS: &str =
    "ok\n2026-01-01T00:00:00Z ERROR forged\r\x1b[2J\x1b]0;title\x07\u{9b}31m\u{202e}txt\u{2028}\x7f\x08";

/// Escapes bytes for the text format.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:02x}")).collect()
}

/// What a cell of this image prints for a message.
fn prints(image: &Arc<Image>) -> Vec<Print> {
    let mut cells = start(image);
    let mut witness = Witness::beside(&mut cells);
    assert_eq!(run(&mut cells, CELL, message(b""), 0).outcome, RunOutcome::Idle);
    witness.is_untouched(&mut cells, "prints");
    witness.answers(&mut cells);
    cells.take_prints(CELL)
}

#[track_caller]
fn is_plain(text: &str) {
    let acts = |char: char| char.is_control() || ('\u{2028}'..='\u{202e}').contains(&char);
    assert!(!text.contains(acts), "{text:?}");
}

#[test]
fn lines_and_escapes_in_prints_are_written_out() {
    let len = TRICKS.len();
    let data = escaped(TRICKS.as_bytes());
    let printed = prints(&deploy(&guest(&format!(
        r#"(data (i32.const 0) "{data}")
           (func (export "marram_recv") (param i32 i32 i32)
             (call $print (i32.const 0) (i32.const 0) (i32.const {len})))"#
    ))));
    let [print] = &printed[..] else { panic!("one text: {printed:?}") };
    is_plain(&print.text);
    assert!(print.text.starts_with(r"ok\n2026-01-01T00:00:00Z ERROR forged\r\u{1b}[2J"), "{}", print.text);
}

#[test]
fn lines_and_escapes_in_standard_output_are_written_out() {
    let len = TRICKS.len();
    let data = escaped(TRICKS.as_bytes());
    let printed = prints(&deploy(&module(&format!(
        r#"(module
             (import "wasi_snapshot_preview1" "fd_write"
               (func $write (param i32 i32 i32 i32) (result i32)))
             (memory (export "memory") 1)
             (data (i32.const 0) "\10\00\00\00") (data (i32.const 4) "\{len:02x}") (data (i32.const 16) "{data}")
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0x8000))
             (func (export "marram_recv") (param i32 i32 i32)
               (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#
    ))));
    let texts: Vec<&str> = printed.iter().map(|print| print.text.as_str()).collect();
    texts.iter().for_each(|text| is_plain(text));
    // Each line is a separate text, and never looks like one of the host's.
    assert_eq!(texts[0], "ok");
    assert!(texts[1].starts_with(r"2026-01-01T00:00:00Z ERROR forged\r"), "{texts:?}");
}

#[test]
fn invalid_utf_8_in_prints_is_replaced() {
    for (bytes, text) in [
        (&b"\xff\xfe"[..], "\u{fffd}\u{fffd}"),
        (b"a\xc3", "a\u{fffd}"),
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
        (b"{} %s %n {0:x}", "{} %s %n {0:x}"),
    ] {
        let (data, len) = (escaped(bytes), bytes.len());
        let printed = prints(&deploy(&guest(&format!(
            r#"(data (i32.const 0) "{data}")
               (func (export "marram_recv") (param i32 i32 i32)
                 (call $print (i32.const 2) (i32.const 0) (i32.const {len})))"#
        ))));
        assert_eq!(printed[0].text, text);
    }
}

#[test]
fn a_flood_of_prints_is_dropped_and_what_is_long_is_cut() {
    // Bytes whose escapes are six times as long.
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param i32 i32 i32) (local $n i32)
             (memory.fill (i32.const 0) (i32.const 27) (i32.const 0x100000))
             (local.set $n (i32.const 3000))
             (loop $l
               (call $print (i32.const 0) (i32.const 0) (i32.const 0x100000))
               (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"#,
    ));
    let printed = prints(&image);
    assert_eq!(printed.len(), PRINTS_PER_HANDLER_MAX);
    assert!(printed.iter().all(|print| print.text.len() <= PRINT_BYTES_MAX));
}

#[test]
fn the_names_of_a_guests_functions_cannot_forge_the_reason_of_its_end() {
    let name = escaped(TRICKS.as_bytes());
    let image = deploy(&guest(&format!(
        r#"(func $f (@name "{name}") unreachable) (func (export "marram_recv") (param i32 i32 i32) (call $f))"#
    )));
    let CellStop::Trap(reason) = stop(&mut start(&image), message(b"")) else { panic!("a trap") };
    assert!(reason.contains(r"forged\r\u{1b}"), "{reason:?}");
    is_plain(&reason);
    assert!(reason.len() <= REASON_BYTES_MAX);
}

#[test]
fn the_names_in_a_refused_module_cannot_forge_its_refusal() {
    let name = escaped(TRICKS.as_bytes());
    let handlers = r#"(memory (export "memory") 1)
        (func (export "marram_alloc") (param i32) (result i32) i32.const 0)
        (func (export "marram_recv") (param i32 i32 i32))"#;
    for module in [
        module(&format!(r#"(module (import "{name}" "f" (func)) {handlers})"#)),
        module(&format!(r#"(module (import "marram_v1" "{name}" (func)) {handlers})"#)),
        module(&format!(r#"(module {handlers} (func (export "marram:{name}")))"#)),
        guest(&format!(
            r#"(data (i32.const 0) "{name}")
               (func (export "_initialize")
                 (call $print (i32.const 0) (i32.const 0) (i32.const {})) unreachable)
               (func (export "marram_recv") (param i32 i32 i32))"#,
            TRICKS.len()
        )),
    ] {
        let refusal = try_deploy(&module, &Quotas::default()).unwrap_err().to_string();
        assert!(refusal.contains(r"forged\r"), "{refusal:?}");
        is_plain(&refusal);
    }
}
