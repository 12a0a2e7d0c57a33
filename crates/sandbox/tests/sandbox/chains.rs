//! Chains: several stages behind one pair of ports, run until all are quiet for each input, each stage isolated.

use crate::support::{
    self, CELL, SEED, ask_at, cells, chain_with, deploy_chain, guest, message, payloads, run, start,
    start_in, stop, twice, words,
};
use marram_sandbox::{
    CellStartError, Cells, CellsConfig, CheckpointReader, Decoded, Image, Progress, Quotas, RestoreError,
    Tracking,
};
use marram_session::cell::{
    CellId, CellInput, CellStop, CheckpointBase, PortKind, Run, RunOutcome, TimerChange,
};
use marram_wire::id::Port;
use std::sync::Arc;

/// Adds its letter to each message and passes it on; also passes on a close.
fn relay(letter: char) -> Vec<u8> {
    let letter = u32::from(letter);
    guest(&format!(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (i32.store8 (i32.add (local.get $ptr) (local.get $len)) (i32.const {letter}))
             (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr)
                         (i32.add (local.get $len) (i32.const 1))))
           (func (export "marram_close") (param $port i32)
             (call $close (i32.sub (i32.const 1) (local.get $port))))"#
    ))
}

/// Pauses its ports on both sides for each message that it passes on to the server.
fn brake() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (call $pause (i32.const 0))
             (call $pause (i32.const 1))
             (call $resume (i32.const 0))
             (call $send (i32.const 1) (local.get $ptr) (local.get $len)))"#,
    )
}

#[test]
fn a_stage_pauses_by_its_own_number_and_what_is_on_its_way_arrives() {
    twice(|| {
        let mut cells = start(&deploy_chain(&[("a", relay('a')), ("b", brake()), ("c", relay('c'))]));
        let expected = ["stage 1 pauses c", "stage 1 pauses s", "stage 1 resumes c", "s:xac"];
        assert_eq!(words(&run(&mut cells, CELL, message(b"x"), 0)), expected);
    });
}

fn from_server(payload: &'static [u8]) -> CellInput {
    CellInput::Message { port: Port::SERVER, payload: payload.into() }
}

fn relays() -> Arc<Image> {
    deploy_chain(&[("a", relay('a')), ("b", relay('b')), ("c", relay('c'))])
}

#[test]
fn messages_and_closes_pass_every_stage_in_order() {
    twice(|| {
        let mut cells = start(&relays());
        for (input, expected) in [
            (message(b"x"), "s:xabc"),
            (from_server(b"y"), "c:ycba"),
            (CellInput::Close { port: Port::CLIENT }, "s ends"),
            (from_server(b""), "c:cba"),
            (CellInput::Close { port: Port::SERVER }, "c ends"),
        ] {
            assert_eq!(words(&run(&mut cells, CELL, input, 0)), [expected]);
        }
    });
}

#[test]
fn what_a_close_handler_sends_goes_before_the_close() {
    let farewell = || {
        guest(
            r#"(data (i32.const 0) "bye")
               (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))
               (func (export "marram_close") (param $port i32)
                 (call $send (local.get $port) (i32.const 0) (i32.const 2))
                 (call $send (i32.sub (i32.const 1) (local.get $port)) (i32.const 0) (i32.const 3))
                 (call $close (i32.sub (i32.const 1) (local.get $port))))"#,
        )
    };
    twice(|| {
        let mut cells = start(&deploy_chain(&[("a", farewell()), ("b", farewell()), ("c", farewell())]));
        assert_eq!(words(&run(&mut cells, CELL, message(b"x"), 0)), ["s:x"]);
        // Each passes on what the ones before it sent, and answers the close of its adjacent stage.
        let ran = run(&mut cells, CELL, CellInput::Close { port: Port::CLIENT }, 0);
        assert_eq!(words(&ran), ["c:by", "s:bye", "c:by", "s:bye", "s:bye", "s ends", "c:by"]);
    });
}

#[test]
fn many_inputs_wait_between_stages_and_keep_their_order() {
    // Counts a message's first byte down, and sends each number on.
    let count = guest(
        r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32) (local $n i32)
             (local.set $n (i32.load8_u (local.get $ptr)))
             (loop $l
               (i32.store8 (local.get $ptr) (local.get $n))
               (call $send (i32.const 1) (local.get $ptr) (i32.add (local.get $n) (i32.const 1)))
               (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"#,
    );
    twice(|| {
        let mut cells = start(&deploy_chain(&[("many", count.clone()), ("few", count.clone())]));
        for most in [1_u8, 100, 2, 40] {
            let expected = (1..=most).rev().flat_map(|n| (1..=n).rev());
            let sent = payloads(&run(&mut cells, CELL, message(&[most]), 0));
            let first = |payload: &Vec<u8>| (payload[0], payload.len());
            assert_eq!(
                sent.iter().map(first).collect::<Vec<_>>(),
                expected.map(|n| (n, usize::from(n) + 1)).collect::<Vec<_>>()
            );
        }
    });
}

#[test]
fn what_waits_between_stages_is_first_in_first_out() {
    twice(|| {
        // Doubles what comes from the client, passes on what comes from the server.
        let double = guest(
            r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (if (local.get $port)
               (then (call $send (i32.const 0) (local.get $ptr) (local.get $len)))
               (else
                 (call $send (i32.const 1) (local.get $ptr) (local.get $len))
                 (i32.store8 (local.get $ptr) (i32.add (i32.load8_u (local.get $ptr)) (i32.const 1)))
                 (call $send (i32.const 1) (local.get $ptr) (local.get $len)))))"#,
        );
        // Sends it to both sides.
        let both = guest(
            r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32)
             (call $send (i32.const 0) (local.get $ptr) (local.get $len))
             (call $send (i32.const 1) (local.get $ptr) (local.get $len)))"#,
        );
        let mut cells = start(&deploy_chain(&[("double", double), ("both", both)]));
        // The second stage gets both messages before the first one gets an answer.
        let ran = run(&mut cells, CELL, message(b"1"), 0);
        assert_eq!(words(&ran), ["s:1", "s:2", "c:1", "c:2"]);
        // All is quiet before the next input.
        assert_eq!(words(&run(&mut cells, CELL, message(b"5"), 0)), ["s:5", "s:6", "c:5", "c:6"]);
    });
}

/// Reports to its client at once which of its ports has opened, and of what kind.
fn herald(letter: char) -> Vec<u8> {
    let letter = u32::from(letter);
    let relay = r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
         (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))"#;
    guest(&format!(
        r#"(func (export "marram_open") (param $port i32) (param $kind i32)
             (i32.store8 (i32.const 0) (i32.const {letter}))
             (i32.store8 (i32.const 1) (i32.add (local.get $port) (i32.const 48)))
             (i32.store8 (i32.const 2) (i32.add (local.get $kind) (i32.const 48)))
             (call $print (i32.const 2) (i32.const 0) (i32.const 3))
             (call $send (local.get $port) (i32.const 0) (i32.const 3)))
           {relay}"#
    ))
}

#[test]
fn every_stage_has_its_ports_before_its_first_message() {
    let stages = [("a", herald('a')), ("b", herald('b'))];
    let open = |port, kind| CellInput::Open { port, kind, peer: None };
    let (client, server) = (open(Port::CLIENT, PortKind::Client), open(Port::SERVER, PortKind::Server));
    let mut cells = cells();
    cells.start(CELL, &chain_with(true, &Quotas::default(), &stages), SEED).unwrap();
    // The greetings of stages reach each other, and through them the peers, only when all ports are open.
    assert_eq!(words(&run(&mut cells, CELL, client.clone(), 0)), ["c:a00"]);
    assert_eq!(words(&run(&mut cells, CELL, server, 0)), ["s:b11", "s:a11", "c:b00"]);
    let prints = |cells: &mut Cells| -> Vec<_> {
        cells.take_prints(CELL).into_iter().map(|print| (print.stage, print.text)).collect()
    };
    let text = |stage, text: &str| (stage, text.to_owned());
    assert_eq!(prints(&mut cells), [text(0, "a00"), text(0, "a11"), text(1, "b00"), text(1, "b11")]);
    cells.remove(CELL);
    // Without a server the last stage has no server port, and messages that only the server could get are not sent.
    let quiet = guest(r#"(func (export "marram_recv") (param i32 i32 i32))"#);
    let stages = [("a", herald('a')), ("b", quiet)];
    cells.start(CELL, &chain_with(false, &Quotas::default(), &stages), SEED).unwrap();
    assert_eq!(words(&run(&mut cells, CELL, client, 0)), ["c:a00"]);
    assert_eq!(prints(&mut cells), [text(0, "a00"), text(0, "a11")]);
}

/// Computes for so many rounds, of about a nanosecond, before it passes a message on; forever if the message begins with
/// `!`.
fn busy(rounds: u32) -> Vec<u8> {
    guest(&format!(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32) (local $n i32)
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 33)) (then (loop $forever (br $forever))))
             (local.set $n (i32.const {rounds}))
             (loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
             (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))"#,
    ))
}

#[test]
fn a_paused_stage_pauses_its_chain_and_no_other() {
    twice(|| {
        let image = deploy_chain(&[("a", relay('a')), ("busy", busy(40_000_000)), ("c", relay('c'))]);
        let (mut cells, other) = (start(&image), CellId(2));
        start_in(&mut cells, other, &relays());
        let mut progress = cells.run(Run { cell: CELL, input: message(b"x"), now_ns: 0, logged: None });
        let mut slices = 0;
        let ran = loop {
            match progress {
                Progress::Done(ran) => break ran,
                Progress::Pending => {
                    assert_eq!(cells.state_hash(CELL), None, "it is not quiet");
                    assert_eq!(ask_at(&mut cells, other, b"y", 0), [b"yabc"]);
                    slices += 1;
                    progress = cells.poll(CELL);
                }
            }
        };
        assert!(slices > 0, "it was preempted");
        assert_eq!(words(&ran), ["s:xac"]);
    });
}

#[test]
fn many_short_handlers_are_preempted_too() {
    twice(|| {
        // Counts messages down, back and forth.
        let down = |to: u32| {
            guest(&format!(
                r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (i32.store (local.get $ptr) (i32.sub (i32.load (local.get $ptr)) (i32.const 1)))
                 (if (i32.load (local.get $ptr))
                   (then (call $send (i32.const {to}) (local.get $ptr) (local.get $len)))))"#
            ))
        };
        let mut cells = start(&deploy_chain(&[("there", down(1)), ("back", down(0))]));
        let mut progress =
            cells.run(Run { cell: CELL, input: message(&60_000_u32.to_le_bytes()), now_ns: 0, logged: None });
        let mut slices = 0;
        while let Progress::Pending = progress {
            slices += 1;
            progress = cells.poll(CELL);
        }
        let Progress::Done(ran) = progress else { panic!("it is done") };
        assert_eq!((ran.outcome, ran.outputs.len()), (RunOutcome::Idle, 0));
        assert!(slices > 0, "60,000 handlers take longer than a slice");
    });
}

#[test]
fn a_stage_that_computes_too_long_is_named() {
    twice(|| {
        // So long that no other stage is killed because its machine stood still for a moment.
        let quotas = Quotas { handler_time_ns: 200_000_000, ..Quotas::default() };
        let image = chain_with(true, &quotas, &[("a", relay('a')), ("busy", busy(u32::MAX))]);
        let mut cells = start(&image);
        let CellStop::Kill(reason) = stop(&mut cells, message(b"!")) else { panic!("a kill") };
        assert_eq!(reason, "stage 1 (busy): a handler ran longer than handler_time, 200 ms");
        // A stage has this much time for one input, in one handler or in several.
        let stages = [("three", relay('a')), ("busy", busy(u32::MAX))];
        let mut cells = start(&chain_with(true, &quotas, &stages));
        let CellStop::Kill(reason) = stop(&mut cells, message(b"x")) else { panic!("a kill") };
        assert!(reason.contains("stage 1 (busy)"), "{reason}");
    });
}

#[test]
fn a_trap_ends_the_chain_and_names_the_stage() {
    twice(|| {
        let trap = guest(r#"(func (export "marram_recv") (param i32 i32 i32) unreachable)"#);
        let mut cells = Cells::new(CellsConfig { slots: 3, ..CellsConfig::default() }).unwrap();
        let image = deploy_chain(&[("a", relay('a')), ("bad", trap), ("c", relay('c'))]);
        for _ in 0..3 {
            // Each time all three slots are free again.
            start_in(&mut cells, CELL, &image);
            let RunOutcome::Stopped(CellStop::Trap(reason)) = run(&mut cells, CELL, message(b"x"), 0).outcome
            else {
                panic!("a trap")
            };
            assert!(reason.starts_with("stage 1 (bad): ") && reason.contains("unreachable"), "{reason}");
            assert!(cells.is_empty());
        }
    });
}

#[test]
fn all_stages_start_or_none() {
    twice(|| {
        let mut cells = Cells::new(CellsConfig { slots: 3, ..CellsConfig::default() }).unwrap();
        start_in(&mut cells, CELL, &relays());
        let short = deploy_chain(&[("a", relay('a')), ("b", relay('b'))]);
        assert!(matches!(cells.start(CellId(2), &short, SEED), Err(CellStartError::Slot(_))));
        cells.remove(CELL);
        assert!(cells.is_empty());
        start_in(&mut cells, CellId(2), &short);
        assert_eq!(ask_at(&mut cells, CellId(2), b"x", 0), [b"xab"]);
    });
}

#[test]
fn each_stage_draws_its_own_randomness_and_all_see_one_time() {
    twice(|| {
        // Adds eight random bytes and the time to a message and passes it on.
        let draw = || {
            guest(
                r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (local $end i32)
                 (local.set $end (i32.add (local.get $ptr) (local.get $len)))
                 (call $random (local.get $end) (i32.const 8))
                 (i64.store (i32.add (local.get $end) (i32.const 8)) (call $now))
                 (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr)
                             (i32.add (local.get $len) (i32.const 16))))"#,
            )
        };
        let image = deploy_chain(&[("a", draw()), ("b", draw()), ("c", draw())]);
        let ran = run(&mut start(&image), CELL, message(b""), 77);
        assert!(ran.clock_read);
        let words: Vec<i64> =
            payloads(&ran)[0].as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        let [a, 77, b, 77, c, 77] = words[..] else { panic!("{words:?}") };
        assert!(a != b && a != c && b != c, "{words:?}");
        // A cell of one stage and the first stage of a chain draw the same, and so does a second run.
        let mut alone = start(&support::deploy(&draw()));
        assert_eq!(payloads(&run(&mut alone, CELL, message(b""), 77))[0][..8], a.to_le_bytes());
        assert_eq!(payloads(&run(&mut start(&image), CELL, message(b""), 77)), payloads(&ran));
    });
}

#[test]
fn a_timer_is_its_stage_s_own() {
    twice(|| {
        // Sets a timer with the token that it gets; sends the token to the server when the timer fires.
        let clock = || {
            guest(
                r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32)
                 (call $timer (i64.const 5) (i64.load8_u (local.get $ptr)))
                 (if (i32.eqz (i64.eqz (i64.load8_u (local.get $ptr))))
                   (then (call $send (i32.const 1) (local.get $ptr) (local.get $len)))))
               (func (export "marram_timer") (param $token i64)
                 (i64.store8 (i32.const 0) (local.get $token))
                 (call $send (i32.const 0) (i32.const 0) (i32.const 1)))"#,
            )
        };
        let mut cells = start(&deploy_chain(&[("a", clock()), ("b", clock())]));
        let ran = run(&mut cells, CELL, message(b"7"), 0);
        let set = |stage| TimerChange::Set { stage, token: 55, delay_ns: 5 };
        assert_eq!(ran.timers, [set(0), set(1)]);
        assert_eq!(words(&run(&mut cells, CELL, CellInput::Timer { stage: 0, token: 55 }, 5)), ["c:7"]);
        // The second stage's client is the first stage, which sets its timer again and passes the message back.
        let ran = run(&mut cells, CELL, CellInput::Timer { stage: 1, token: 0 }, 5);
        assert_eq!(
            (ran.outputs.len(), &ran.timers[..]),
            (0, &[TimerChange::Set { stage: 0, token: 0, delay_ns: 5 }][..])
        );
        let CellStop::Kill(reason) = stop(&mut cells, CellInput::Timer { stage: 2, token: 1 }) else {
            panic!("a kill")
        };
        assert!(reason.contains("stage 2") && reason.contains("does not have"), "{reason}");
    });
}

#[test]
fn equal_inputs_leave_equal_chains() {
    twice(|| {
        let hash = |image: &Arc<Image>, inputs: &[CellInput]| {
            let mut cells = start(image);
            inputs.iter().for_each(|input| {
                run(&mut cells, CELL, input.clone(), 3);
            });
            cells.state_hash(CELL).unwrap()
        };
        let image = relays();
        let inputs = [message(b"x"), from_server(b"yy")];
        assert_eq!(hash(&image, &inputs), hash(&image, &inputs));
        assert_ne!(hash(&image, &inputs), hash(&image, &inputs[..1]));
        let other = deploy_chain(&[("a", relay('a')), ("c", relay('c')), ("b", relay('b'))]);
        assert_ne!(hash(&image, &inputs), hash(&other, &inputs));
    });
}

/// Counts in memory and a global, sometimes draws a number and reads the clock, and passes on the sum.
fn worker() -> Vec<u8> {
    guest(
        r#"(global $sum (mut i64) (i64.const 0))
           (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $cell i32)
             (local.set $cell (i32.add (i32.const 0x20000)
               (i32.and (i32.mul (i32.load8_u (local.get $ptr)) (i32.const 1024)) (i32.const 0x3fff0))))
             (i64.store (local.get $cell) (i64.add (i64.load (local.get $cell)) (i64.const 1)))
             (call $random (i32.const 0) (i32.const 8))
             (global.set $sum (i64.add (global.get $sum)
               (i64.add (i64.load (local.get $cell)) (i64.add (i64.load (i32.const 0)) (call $now)))))
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 9)) (then (drop (memory.grow (i32.const 1)))))
             (i64.store (i32.const 8) (global.get $sum))
             (i32.store8 (i32.const 8) (i32.load8_u (local.get $ptr)))
             (call $send (i32.sub (i32.const 1) (local.get $port)) (i32.const 8) (i32.const 8)))"#,
    )
}

/// The `n`th input of a history, with its time.
fn nth(n: u8) -> (CellInput, i64) {
    let payload = bytes::Bytes::copy_from_slice(&[n.wrapping_mul(37) % 17]);
    let port = if n.is_multiple_of(3) { Port::SERVER } else { Port::CLIENT };
    (CellInput::Message { port, payload }, i64::from(n) * 10)
}

#[test]
fn a_chain_saved_at_any_message_boundary_goes_on_as_it_would_have() {
    twice(|| {
        let image = deploy_chain(&[("a", worker()), ("b", worker()), ("c", relay('c'))]);
        for tracking in [Tracking::Auto, Tracking::Compare] {
            let config = CellsConfig { slots: 9, tracking, ..CellsConfig::default() };
            let mut cells = Cells::new(config).unwrap();
            start_in(&mut cells, CELL, &image);
            // After each input, a delta on the first checkpoint and all that followed it.
            let mut list = vec![cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
            let mut follower = Cells::new(config).unwrap();
            follower.restore(CELL, &image, &Decoded::decode(&list).unwrap()).unwrap();
            for n in 0..20 {
                let (input, now_ns) = nth(n);
                let ran = run(&mut cells, CELL, input, now_ns);
                // A backup's as well, which may have differences of pages.
                let base =
                    if n.is_multiple_of(5) { CheckpointBase::Previous } else { CheckpointBase::Backup };
                list.push(cells.snapshot(CELL, base).unwrap().encode());
                let other = CellId(2);
                let decoded = Decoded::decode(&list).unwrap();
                assert_eq!(decoded.image(), image.hash());
                cells.restore(other, &image, &decoded).unwrap();
                assert_eq!(cells.state_hash(other), cells.state_hash(CELL), "{tracking:?} {n}");
                assert_eq!(cells.memory_bytes(other), cells.memory_bytes(CELL));
                // Filled while it arrives, each stage gets its own contents.
                let filled = CellId(4);
                let mut reading = CheckpointReader::opened();
                cells.begin(filled, &image).unwrap();
                for checkpoint in &list {
                    for piece in checkpoint.chunks(997) {
                        reading.push(bytes::Bytes::copy_from_slice(piece)).unwrap();
                        reading.take().iter().for_each(|filling| cells.fill(filled, filling).unwrap());
                    }
                    reading.end().unwrap();
                }
                cells.complete(filled, &image, &reading.finish().unwrap()).unwrap();
                assert_eq!(cells.state_hash(filled), cells.state_hash(CELL), "{tracking:?} {n}");
                cells.remove(filled);
                follower.advance(CELL, &Decoded::decode(&list[list.len() - 1..]).unwrap()).unwrap();
                assert_eq!(follower.state_hash(CELL), cells.state_hash(CELL), "{tracking:?} {n}");
                // One input later they are still equal.
                let (next, now_ns) = nth(n + 1);
                let mut third = Cells::new(config).unwrap();
                third.restore(CELL, &image, &decoded).unwrap();
                let (here, there) =
                    (run(&mut cells, other, next.clone(), now_ns), run(&mut third, CELL, next, now_ns));
                assert_eq!(words(&here), words(&there));
                assert!(!words(&ran).is_empty());
                assert_eq!(cells.state_hash(other), third.state_hash(CELL));
                cells.remove(other);
            }
            for from in [&mut cells, &mut follower] {
                let full = from.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
                from.restore(CellId(3), &image, &Decoded::decode(&[full]).unwrap()).unwrap();
                assert_eq!(from.state_hash(CellId(3)), from.state_hash(CELL));
            }
            assert_eq!(follower.state_hash(CELL), cells.state_hash(CELL));
        }
    });
}

#[test]
fn a_chain_s_checkpoint_fits_that_chain_only_and_whole() {
    let stages = [("a", worker()), ("b", relay('b'))];
    let image = deploy_chain(&stages);
    let mut cells = start(&image);
    let full = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    run(&mut cells, CELL, message(b"1"), 5);
    let delta = cells.snapshot(CELL, CheckpointBase::Previous).unwrap().encode();
    for end in 0..full.len() {
        assert!(Decoded::decode(&[&full[..end]]).is_err(), "{end}");
    }
    for (list, says) in [
        (vec![&full[..], &full], "does not build"),
        (vec![&full[..], &delta, &delta], "does not build"),
        (vec![], "no checkpoint"),
    ] {
        let error = Decoded::decode(&list).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    for (at, byte) in [(4, 2), (5, 1), (5, 3), (5, 200)] {
        let mut other = full.clone();
        other[at] = byte;
        assert!(Decoded::decode(&[&other[..]]).is_err(), "byte {at} = {byte}");
    }
    let alone = Decoded::decode(&[&delta]).unwrap();
    assert_eq!(cells.restore(CellId(2), &image, &alone), Err(RestoreError::Chain { index: 0 }));
    let decoded = Decoded::decode(&[&full[..], &delta]).unwrap();
    let (mut fresh, before) = (support::cells(), cells.state_hash(CELL));
    for other in [deploy_chain(&[stages[1].clone(), stages[0].clone()]), support::deploy(&worker())] {
        assert!(matches!(fresh.restore(CELL, &other, &decoded), Err(RestoreError::Image { .. })));
        assert!(fresh.is_empty());
    }
    fresh.restore(CELL, &image, &decoded).unwrap();
    assert_eq!(fresh.state_hash(CELL), before);
}

/// The stages of a chain's checkpoint.
fn parts(checkpoint: &[u8]) -> Vec<&[u8]> {
    let mut rest = &checkpoint[4 + 1 + 1 + 32..];
    let mut parts = Vec::new();
    while let Some((len, behind)) = rest.split_first_chunk() {
        let (part, others) = behind.split_at(usize::try_from(u64::from_le_bytes(*len)).unwrap());
        parts.push(part);
        rest = others;
    }
    parts
}

#[test]
fn a_chain_goes_forward_in_all_of_its_stages_or_in_none() {
    let image = deploy_chain(&[("a", worker()), ("b", worker())]);
    let mut cells = start(&image);
    let mut list = vec![cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
    let mut hashes = Vec::new();
    for n in 1..3 {
        let (input, now_ns) = nth(n);
        run(&mut cells, CELL, input, now_ns);
        list.push(cells.snapshot(CELL, CheckpointBase::Previous).unwrap().encode());
        hashes.push(cells.state_hash(CELL));
    }
    let [full, first, second] = &list[..] else { panic!("three checkpoints") };
    let follower = CellId(2);
    cells.restore(follower, &image, &Decoded::decode(&[full]).unwrap()).unwrap();
    let before = cells.state_hash(follower);
    // The first stage's next delta, with a delta that is not the second stage's next.
    for stages in [[first, second], [second, first], [first, full]] {
        let mut mixed = full[..4 + 1 + 1 + 32].to_vec();
        for (at, checkpoint) in stages.iter().enumerate() {
            let part = parts(checkpoint)[at];
            mixed.extend_from_slice(&(part.len() as u64).to_le_bytes());
            mixed.extend_from_slice(part);
        }
        let mixed = Decoded::decode(&[mixed]).unwrap();
        assert_eq!(cells.advance(follower, &mixed), Err(RestoreError::Chain { index: 0 }));
        assert_eq!(cells.state_hash(follower), before);
    }
    // A handler of one stage is a run of the chain.
    cells.restore(CellId(3), &image, &Decoded::decode(&[full]).unwrap()).unwrap();
    run(&mut cells, CellId(3), CellInput::Timer { stage: 1, token: 1 }, 0);
    for (checkpoint, hash) in [first, second].into_iter().zip(hashes) {
        let delta = Decoded::decode(&[checkpoint]).unwrap();
        cells.advance(follower, &delta).unwrap();
        assert_eq!(cells.state_hash(follower), hash);
        assert!(matches!(cells.advance(CellId(3), &delta), Err(RestoreError::Misfit(_))));
    }
}

/// Every stage's state, the effects of each input, and the contents of a checkpoint, for a history that uses messages both
/// ways, timers, closes, growth, time and randomness.
fn history(image: &Arc<Image>, stages: u8) -> String {
    let config = CellsConfig { slots: 8, tracking: Tracking::Compare, ..CellsConfig::default() };
    let mut cells = Cells::new(config).unwrap();
    start_in(&mut cells, CELL, image);
    let mut hasher = blake3::Hasher::new();
    let mut note = |text: String| {
        hasher.update(text.as_bytes());
    };
    for n in 0..100 {
        let (input, now_ns) = match n % 10 {
            7 => (CellInput::Timer { stage: n % stages, token: u64::from(n) }, i64::from(n) * 10),
            8 => (CellInput::Gone { port: Port(7) }, i64::from(n) * 10),
            _ => nth(n),
        };
        let ran = run(&mut cells, CELL, input, now_ns);
        note(format!("{:?} {:?} {:?} {}", ran.outcome, ran.outputs, ran.timers, ran.clock_read));
        note(format!("{:?} {:?}", cells.state_hash(CELL), cells.memory_bytes(CELL)));
        let base = if n % 9 == 0 { CheckpointBase::Image } else { CheckpointBase::Previous };
        note(format!("{:?}", cells.snapshot(CELL, base).unwrap().encode()));
    }
    run(&mut cells, CELL, CellInput::Close { port: Port::CLIENT }, 2_000);
    note(format!("{:?}", cells.state_hash(CELL)));
    hasher.finalize().to_hex()[..16].to_owned()
}

#[test]
fn a_history_of_old_leads_to_what_it_led_to() {
    let chain = deploy_chain(&[("a", worker()), ("b", worker()), ("c", relay('c'))]);
    let histories = [history(&support::deploy(&worker()), 1), history(&chain, 3)];
    assert_eq!(histories, ["55c51bfdc8cf6366", "c1dc4103fcce3fb3"]);
}
