//! Handlers: their inputs, their outputs, and how they are stopped.

use crate::own_process;
use crate::support::{
    self, CELL, SEED, ask, ask_at, cells, deploy, deploy_with, echo, guest, message, mixer, run, start,
    start_in, stop,
};
use marram_sandbox::{CellsConfig, PrintLevel, Progress, Quotas, limits};
use marram_session::cell::{CellId, CellInput, CellOutput, CellStop, PortKind, Run, RunOutcome, TimerChange};
use marram_wire::id::Port;

#[test]
fn messages_of_every_size_come_back_as_they_went() {
    let mut cells = start(&deploy(&echo()));
    for len in [0, 1, 64, 4096, 65_536, limits::MESSAGE_BYTES_MAX] {
        let payload: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
        assert_eq!(ask(&mut cells, &payload), [payload]);
    }
}

#[test]
fn handlers_see_time_timers_and_ports_and_say_what_they_did() {
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 116)) (then
               (i64.store (i32.const 0) (call $now))
               (call $timer (i64.const -5) (i64.const 1))
               (call $timer (i64.const 7) (i64.const -1))
               (call $timer_cancel (i64.const 1))
               (call $send (i32.const 1) (i32.const 0) (i32.const 8))))
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 99)) (then
               (call $close (i32.const 1)) (call $close (i32.const 1)))))
           (func (export "marram_timer") (param $token i64)
             (i64.store (i32.const 0) (local.get $token))
             (call $send (i32.const 0) (i32.const 0) (i32.const 8)))
           (func (export "marram_close") (param $port i32)
             (call $send (local.get $port) (i32.const 16) (i32.const 0)))"#,
    ));
    let mut cells = start(&image);
    let ran = run(&mut cells, CELL, message(b"x"), 99);
    assert!(!ran.clock_read && ran.outputs.is_empty() && ran.timers.is_empty());
    let ran = run(&mut cells, CELL, message(b"t"), 99);
    assert!(ran.clock_read);
    assert_eq!(
        ran.outputs,
        [CellOutput::Message { port: Port::SERVER, payload: 99_i64.to_le_bytes().to_vec().into() }]
    );
    assert_eq!(
        ran.timers,
        [
            TimerChange::Set { stage: 0, token: 1, delay_ns: 0 },
            TimerChange::Set { stage: 0, token: u64::MAX, delay_ns: 7 },
            TimerChange::Cancel { stage: 0, token: 1 },
        ]
    );
    let ran = run(&mut cells, CELL, CellInput::Timer { stage: 0, token: 5 }, 100);
    assert_eq!(
        ran.outputs,
        [CellOutput::Message { port: Port::CLIENT, payload: 5_u64.to_le_bytes().to_vec().into() }]
    );
    assert!(!ran.clock_read);
    let ran = run(&mut cells, CELL, CellInput::Close { port: Port::CLIENT }, 100);
    assert_eq!(ran.outputs, [CellOutput::Message { port: Port::CLIENT, payload: Vec::new().into() }]);
    let ran = run(&mut cells, CELL, message(b"c"), 100);
    assert_eq!(ran.outputs, [CellOutput::Close { port: Port::SERVER }]);
    let CellStop::Trap(reason) = stop(&mut cells, message(b"t")) else { panic!("a trap") };
    assert!(reason.contains("has closed port 1"), "{reason:?}");
}

#[test]
fn pauses_are_in_call_order_with_outputs_even_for_closed_ports() {
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (call $pause (i32.const 1))
             (call $close (i32.const 1))
             (call $send (i32.const 0) (local.get $ptr) (local.get $len))
             (call $resume (i32.const 1))
             (call $pause (i32.const 0)))
           (func (export "marram_timer") (param i64) (call $pause (i32.const 7)))
           (func (export "marram_close") (param i32) (call $resume (i32.const 2)))"#,
    ));
    let mut cells = start(&image);
    let (client, server) = (Port::CLIENT, Port::SERVER);
    let pauses = |port| CellOutput::Pause { stage: 0, port };
    let answer = CellOutput::Message { port: client, payload: b"x".as_slice().into() };
    let resumes = CellOutput::Resume { stage: 0, port: server };
    let first =
        [pauses(server), CellOutput::Close { port: server }, answer.clone(), resumes.clone(), pauses(client)];
    assert_eq!(run(&mut cells, CELL, message(b"x"), 0).outputs, first);
    let again = [pauses(server), answer, resumes, pauses(client)];
    assert_eq!(run(&mut cells, CELL, message(b"x"), 0).outputs, again, "the other direction is still open");
    let CellStop::Trap(reason) = stop(&mut cells, CellInput::Timer { stage: 0, token: 1 }) else {
        panic!("a trap")
    };
    assert!(reason.contains("pause: port 7 was never opened"), "{reason:?}");
    let CellStop::Trap(reason) = stop(&mut start(&image), CellInput::Close { port: client }) else {
        panic!("a trap")
    };
    assert!(reason.contains("resume: port 2 was never opened"), "{reason:?}");
}

#[test]
fn optional_handlers_may_be_missing() {
    let mut cells = start(&deploy(&echo()));
    for input in [CellInput::Timer { stage: 0, token: 1 }, CellInput::Close { port: Port::CLIENT }] {
        let ran = run(&mut cells, CELL, input, 0);
        assert_eq!((ran.outcome, ran.outputs.len()), (RunOutcome::Idle, 0));
    }
}

#[test]
fn a_cell_can_be_removed_in_the_middle_of_a_handler() {
    let image = deploy(&guest(r#"(func (export "marram_recv") (param i32 i32 i32) (loop $l (br $l)))"#));
    let mut cells = start(&image);
    assert!(matches!(
        cells.run(Run { cell: CELL, input: message(b"x"), now_ns: 0, logged: None }),
        Progress::Pending
    ));
    assert_eq!((cells.state_hash(CELL), cells.memory_bytes(CELL)), (None, None));
    cells.remove(CELL);
    assert!(cells.is_empty());
    start_in(&mut cells, CELL, &image);
}

#[test]
fn misdirected_inputs_are_answered_not_obeyed() {
    let mut cells = cells();
    let ran = run(&mut cells, CELL, message(b"x"), 0);
    assert_eq!(ran.outcome, RunOutcome::Stopped(CellStop::Kill("there is no such cell".into())));
    let spinner = deploy(&guest(r#"(func (export "marram_recv") (param i32 i32 i32) (loop $l (br $l)))"#));
    start_in(&mut cells, CELL, &spinner);
    assert!(cells.start(CELL, &spinner, SEED).is_err());
    assert!(matches!(
        cells.run(Run { cell: CELL, input: message(b"x"), now_ns: 0, logged: None }),
        Progress::Pending
    ));
    let RunOutcome::Stopped(CellStop::Kill(_)) = run(&mut cells, CELL, message(b"x"), 0).outcome else {
        panic!("a kill")
    };
}

#[test]
fn slots_run_out_with_an_error_and_come_back() {
    let image = deploy(&echo());
    let mut cells =
        marram_sandbox::Cells::new(CellsConfig { slots: 2, ..CellsConfig::default() }).expect("two slots");
    start_in(&mut cells, CellId(1), &image);
    start_in(&mut cells, CellId(2), &image);
    let error = cells.start(CellId(3), &image, SEED).unwrap_err().to_string();
    assert!(error.contains("`limits.cells`"), "{error:?}");
    cells.remove(CellId(1));
    start_in(&mut cells, CellId(3), &image);
}

#[test]
fn prints_are_kept_for_the_operator_and_cut() {
    let image = deploy(&guest(
        r#"(data (i32.const 0) "hello\ff")
           (func (export "marram_recv") (param i32 i32 i32)
             (call $print (i32.const 0) (i32.const 0) (i32.const 5))
             (call $print (i32.const 9) (i32.const 0) (i32.const 6))
             (call $print (i32.const 2) (i32.const 0) (i32.const 10000)))"#,
    ));
    let mut cells = start(&image);
    let before = cells.state_hash(CELL);
    run(&mut cells, CELL, message(b""), 0);
    let prints = cells.take_prints(CELL);
    assert_eq!((prints[0].level, prints[0].text.as_str()), (PrintLevel::Error, "hello"));
    assert_eq!((prints[1].level, prints[1].text.as_str()), (PrintLevel::Debug, "hello\u{fffd}"));
    assert!(prints[2].text.len() < 8_200);
    assert_eq!(cells.take_prints(CELL), []);
    assert_eq!(cells.state_hash(CELL), before);
}

#[test]
fn what_a_cell_printed_before_it_stopped_can_be_read() {
    let dying = |end: &str| {
        guest(&format!(
            r#"(data (i32.const 0) "help")
               (func (export "marram_recv") (param i32 i32 i32)
                 (call $print (i32.const 0) (i32.const 0) (i32.const 4)) {end})"#
        ))
    };
    let quotas = Quotas { handler_time_ns: 50_000_000, ..Quotas::default() };
    for end in ["unreachable", "(loop $l (br $l))"] {
        let mut cells = start(&deploy_with(&dying(end), &quotas, &[]));
        stop(&mut cells, message(b""));
        assert_eq!(cells.take_prints(CellId(7)), []);
        let prints = cells.take_prints(CELL);
        assert_eq!(prints.iter().map(|print| print.text.as_str()).collect::<Vec<_>>(), ["help"]);
        assert_eq!(cells.take_prints(CELL), []);
    }
}

#[test]
fn equal_inputs_make_equal_cells_even_with_other_events_between() {
    let image = deploy(&mixer());
    let inputs: [&[u8]; 6] = [b"one", b"grow", b"floats", b"zero", b"", b"g"];
    let mut cells = cells();
    let (plain, paused, other) = (CellId(1), CellId(2), CellId(3));
    start_in(&mut cells, plain, &image);
    start_in(&mut cells, paused, &image);
    cells.start(other, &image, marram_session::cell::Seed([1; 32])).unwrap();
    run(&mut cells, other, CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None }, 0);
    for (now, input) in (0..).zip(inputs) {
        let expected = ask_at(&mut cells, plain, input, now);
        // The same between slices of another cell, with checkpoints and hashes taken all the time.
        let mut progress = cells.run(Run { cell: paused, input: message(input), now_ns: now, logged: None });
        while matches!(progress, Progress::Pending) {
            ask_at(&mut cells, other, b"in between", now);
            progress = cells.poll(paused);
        }
        let Progress::Done(ran) = progress else { unreachable!("it was not pending") };
        assert_eq!(support::payloads(&ran), expected);
        cells.snapshot(paused, marram_session::cell::CheckpointBase::Image).unwrap();
        assert_eq!(cells.state_hash(paused), cells.state_hash(plain));
        assert_eq!(cells.state_hash(plain), cells.state_hash(plain));
    }
    assert_ne!(cells.state_hash(other), cells.state_hash(plain));
}

#[test]
fn a_trap_names_the_function_as_its_author_wrote_it() {
    let image = deploy(&guest(
        r#"(func $_ZN4shop4cart3add17h0123456789abcdefE unreachable)
           (func $plain (call $_ZN4shop4cart3add17h0123456789abcdefE))
           (func (export "marram_recv") (param i32 i32 i32) (call $plain))"#,
    ));
    let CellStop::Trap(reason) = stop(&mut start(&image), message(b"")) else { panic!("a trap") };
    assert!(reason.contains("unreachable") && reason.contains("in shop::cart::add < plain < "), "{reason:?}");

    let long = "ü".repeat(100_000);
    let image = deploy(&guest(&format!(
        r#"(func $"{long}" unreachable) (func (export "marram_recv") (param i32 i32 i32) (call $"{long}"))"#
    )));
    let CellStop::Trap(reason) = stop(&mut start(&image), message(b"")) else { panic!("a trap") };
    assert!(reason.len() <= limits::REASON_BYTES_MAX, "{}", reason.len());
}

/// The only test of its process: it counts the mappings of the whole process.
#[test]
fn a_full_house_lives_and_is_checkpointed() {
    if !own_process::entered() {
        return;
    }
    let image = deploy(&echo());
    let slots = 1500;
    let mut cells =
        marram_sandbox::Cells::new(CellsConfig { slots, ..CellsConfig::default() }).expect("room");
    for n in 0..u64::from(slots) {
        start_in(&mut cells, CellId(n), &image);
        assert_eq!(ask_at(&mut cells, CellId(n), &n.to_le_bytes(), 0), [n.to_le_bytes()]);
    }
    for n in 0..u64::from(slots) {
        cells.snapshot(CellId(n), marram_session::cell::CheckpointBase::Image).unwrap();
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let resident = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or_default().trim();
    println!("{maps} mappings, {resident} resident");
    assert!(maps < 5 * slots as usize + 1000, "{maps}");
    for n in 0..u64::from(slots) {
        assert_eq!(ask_at(&mut cells, CellId(n), &n.to_le_bytes(), 0), [n.to_le_bytes()]);
        cells.remove(CellId(n));
    }
}
