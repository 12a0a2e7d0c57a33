//! Recovery from a checkpoint: which one, what it restores, and what is not needed any more.

use crate::owner::bench::{Bench, CLIENT, SERVER, TAMPERED, message, policy, set};
use marram_session::cell::{CellError, CellId, CellOutput};
use marram_session::owner::{Holder, Now, OwnerPhase, OwnerPolicy};
use marram_wire::frame::Code;
use marram_wire::header::{ClientState, Header, Many};
use marram_wire::id::HostId;
use marram_wire::limits::{DELTAS_MAX, charge};
use marram_wire::log::Client;

/// The client holds a checkpoint at 43; one message follows it, and all ends have deleted what it covers.
fn covered(policy: OwnerPolicy) -> Bench {
    let mut bench = Bench::begun(policy);
    bench.cover(b"sealed");
    bench.say(CLIENT, "b");
    bench.ran(&[(CLIENT, "B"), (SERVER, "C")]);
    assert_eq!((bench.log_end(), bench.kept[0].log_start), (44, 43));
    bench.fail_over();
    bench
}

#[test]
fn a_checkpoint_spares_the_replay_of_what_it_covers() {
    let mut bench = covered(policy());
    bench.ask();
    assert_eq!(bench.look(), ["restore 1"]);
    bench.restored(43);
    bench.ran(&[(CLIENT, "B"), (SERVER, "C")]);
    let expected = [
        "run b of client",
        "client: chosen 44..44 credit 1114112",
        "server: chosen 44..44 credit 1114112",
        // Repeated for an end that was disconnected.
        "client: forget log 43 sent 1",
        "server: forget log 43 sent 0",
    ];
    assert_eq!(bench.look(), expected);
    assert_eq!((bench.owner.totals().replayed, bench.owner.log_bytes()), (1, (44, 1)));
    assert_eq!(bench.owner.held_bytes(), 1, "all outputs were received");
}

#[test]
fn an_end_that_lacks_more_than_a_checkpoint_covers_gets_the_log_behind_it() {
    let mut bench = covered(policy());
    let server = &mut bench.kept[1];
    (server.log_start, server.received) = (0, 0);
    server.log.clear();
    bench.ask();
    bench.restored(43);
    bench.ran(&[(CLIENT, "B"), (SERVER, "C")]);
    let lines = bench.look();
    let server: Vec<&String> = lines.iter().filter(|line| line.starts_with("server")).collect();
    assert_eq!(
        server,
        ["server: chosen 0..44 credit 1114112", "server: forget log 43 sent 0", "server: output C"]
    );
    assert_eq!((bench.kept[1].log_start, bench.kept[1].log.len()), (43, 1));
}

#[test]
fn messages_that_a_checkpoint_covers_are_not_needed_but_may_come() {
    // The client has not deleted its first message.
    let mut bench = covered(policy());
    bench.kept[0].sent_start = 0;
    bench.kept[0].sent.insert(0, Some("dear".into()));
    bench.ask();
    bench.restored(43);
    assert_eq!(bench.look(), ["restore 1", "run b of client"]);
    bench.ran(&[]);
    assert_eq!(bench.look().last().map(String::as_str), Some("over Tampered"), "it did receive an answer");
    let mut bench = covered(policy());
    bench.kept[0].sent_start = 0;
    bench.kept[0].sent.insert(0, Some("dear".into()));
    bench.ask();
    bench.restored(43);
    bench.ran(&[(CLIENT, "B"), (SERVER, "C")]);
    assert_eq!((bench.phase(), bench.owner.held_bytes()), (OwnerPhase::Running, 1));
    // It has fewer than the checkpoint covers.
    let mut bench = covered(policy());
    bench.kept[0].sent_start = 0;
    bench.kept[0].sent.clear();
    bench.ask();
    bench.restored(43);
    assert_eq!(bench.look()[1..], TAMPERED);
    // It has deleted more than the checkpoint covers.
    let mut bench = covered(policy());
    bench.kept[0].sent_start = 2;
    bench.ask();
    bench.restored(43);
    assert_eq!(bench.look()[1..], TAMPERED);
}

#[test]
fn a_checkpoint_restores_closed_ports_and_unacknowledged_outputs() {
    let mut bench = Bench::begun(policy());
    bench.close(CLIENT);
    bench.ran_with(|ran| ran.timers = vec![set(1, 1)]);
    bench.say(SERVER, "a");
    bench.ran_with(|ran| {
        let text = |text: &'static str| message(SERVER, text);
        ran.outputs = vec![text("A"), text("B"), CellOutput::Close { port: CLIENT }];
    });
    bench.consume(SERVER, "dear", 1_001);
    bench.credit(SERVER, 1, 0);
    assert!(bench.taken.is_none());
    bench.consume(SERVER, "dear", 1_001);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    bench.fail_over();
    // The last two were lost in flight.
    bench.kept[1].received = 1;
    bench.kept[0].received = 0;
    bench.ask();
    bench.restored(bench.kept[0].checkpoints[0].meta.log_offset);
    bench.ran(&[(CLIENT, "there is no client any more")]);
    let lines = bench.look();
    assert_eq!(lines[lines.len() - 2..], ["client: close", "server: output B"]);
    let log = bench.owner.log_bytes().1;
    assert_eq!(bench.owner.held_bytes(), log + charge(0) + charge(1));
    bench.credit(CLIENT, 1, 0);
    bench.credit(SERVER, 1, 0);
    assert_eq!(bench.owner.held_bytes(), log);
    // The client's close was consumed before. With the server's close and no timer left, the cell can never run again.
    bench.now.mono_ns += 1;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.idle();
    bench.close(SERVER);
    bench.look();
    bench.idle();
    assert_eq!(bench.look().len(), 1);
}

#[test]
fn a_checkpoint_lies_within_the_longest_log() {
    for (log_start, log_size, taken) in [(43, 0, true), (42, 2, true), (44, 0, false), (42, 0, false)] {
        let mut bench = covered(policy());
        bench.kept[1] = crate::owner::kept::Kept::default();
        let client = &mut bench.kept[0];
        client.log_start = log_start;
        client.log = vec![0; log_size];
        bench.ask();
        let lines = bench.look();
        assert_eq!(lines == ["restore 1"], taken, "{log_start} {log_size}: {lines:?}");
        if !taken {
            assert_eq!(lines, ["client: ended Tampered", "server: ended Tampered", "over Tampered"]);
        }
    }
}

#[test]
fn a_session_without_log_behind_its_checkpoint_goes_on() {
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    bench.fail_over();
    bench.ask();
    bench.restored(43);
    let lines = bench.look();
    assert_eq!(lines[..2], ["restore 1", "client: chosen 43..43 credit 1114112"]);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    bench.say(CLIENT, "b");
    assert_eq!(bench.look().last().map(String::as_str), Some("run b of client"), "its ports are open");
}

#[test]
fn a_restored_checkpoint_must_be_of_this_session_and_place() {
    type Alter = fn(&mut Header);
    let cases: [(&str, Alter); 3] = [
        ("session", |header| header.session.0[0] ^= 1),
        ("position", |header| header.log_offset += 1),
        ("ports", |header| header.ports.truncate(1)),
    ];
    for (what, alter) in cases {
        let mut first = Bench::begun(policy());
        first.consume(CLIENT, "dear", 1_001);
        let mut header = first.taken.as_ref().expect("a checkpoint").clone();
        alter(&mut header);
        let mut bench = covered(policy());
        bench.ask();
        bench.look();
        bench.restored_as(header);
        assert_eq!(bench.look(), TAMPERED, "{what}");
    }
}

#[test]
fn parts_go_to_the_executor_as_they_come_and_of_one_end_only() {
    let mut bench = Bench::begun(OwnerPolicy { holder: Holder::Both, ..policy() });
    bench.cover(b"sealed");
    bench.cover(b"delta");
    bench.fail_over();
    bench.kept[0].checkpoints.truncate(1);
    bench.open();
    bench.look();
    bench.hand_over_of(0);
    assert_eq!((bench.look().len(), bench.parts.len()), (0, 0), "the server's end may have a newer one");
    let mut frames = bench.kept[1].handed_over(2).into_iter();
    frames.by_ref().take(2).for_each(|frame| bench.frame(SERVER, frame));
    assert_eq!((bench.look(), bench.parts.len()), (vec!["restore 1 2".to_string()], 0));
    bench.frame(SERVER, frames.next().expect("the first checkpoint's only part"));
    assert_eq!(bench.parts, b"sealed");
    frames.for_each(|frame| bench.frame(SERVER, frame));
    assert_eq!(bench.parts, b"sealeddelta");
}

#[test]
fn an_executor_may_be_faster_than_the_other_ends_log() {
    let mut bench = covered(policy());
    bench.open();
    bench.look();
    bench.hand_over_of(0);
    let mut frames = bench.kept[1].handed_over(2).into_iter();
    bench.frame(SERVER, frames.next().expect("a promise"));
    assert_eq!(bench.look(), ["restore 1"]);
    bench.restored(43);
    assert_eq!((bench.look().len(), bench.phase()), (0, OwnerPhase::Promising), "nothing is chosen yet");
    frames.for_each(|frame| bench.frame(SERVER, frame));
    assert_eq!(bench.look(), ["run b of client"]);
}

#[test]
fn parts_that_came_before_the_last_promise_are_not_lost() {
    let mut bench = covered(policy());
    bench.open();
    bench.hand_over_of(0);
    assert_eq!((bench.parts.len(), bench.owner.held_bytes()), (0, 6 + 1 + charge(1)));
    bench.hand_over_of(1);
    assert_eq!(bench.parts, b"sealed");
}

#[test]
fn what_was_opened_for_an_attempt_is_opened_again_for_the_next() {
    let mut bench = covered(policy());
    bench.open();
    bench.hand_over_of(0);
    let promised = bench.kept[1].promised(2);
    bench.frame(SERVER, promised);
    bench.restored(43);
    assert_eq!(bench.parts, b"sealed");
    bench.parts.clear();
    bench.open();
    bench.hand_over_of(0);
    assert_eq!(bench.parts, b"", "the server's end may have a newer one by now");
    bench.hand_over_of(1);
    assert_eq!((&bench.parts[..], bench.phase()), (&b"sealed"[..], OwnerPhase::Restoring));
    bench.look();
    bench.restored(43);
    assert_eq!(bench.look(), ["run b of client"]);
}

#[test]
fn a_cell_that_was_to_be_restored_goes_with_its_attempt() {
    let mut bench = covered(policy());
    bench.open();
    bench.look();
    bench.hand_over_of(0);
    let promised = bench.kept[1].promised(2);
    bench.frame(SERVER, promised);
    assert_eq!(bench.look(), ["restore 1"]);
    bench.ask();
    assert_eq!(bench.look(), ["restore 1"]);
    bench.step(|owner, now, out| {
        let gone = CellError { code: Code::Tampered, reason: "an answer of the attempt before".into() };
        owner.restored(now, CellId(1), Err(gone), out);
    });
    bench.restored(43);
    assert_eq!(bench.look(), ["run b of client"]);
}

#[test]
fn the_newest_checkpoint_counts_whichever_holds_it() {
    let mut bench = Bench::begun(OwnerPolicy { holder: Holder::Both, ..policy() });
    bench.cover(b"sealed");
    bench.cover(b"delta");
    bench.fail_over();
    // The client missed the second.
    bench.kept[0].checkpoints.truncate(1);
    bench.ask();
    assert_eq!(bench.look(), ["restore 1 2"]);
    bench.restored(44);
    bench.look();
    bench.consume(CLIENT, "dear", 1_001);
    assert_eq!(bench.look()[1], "copy full", "a delta would not find its base at the client");
}

#[test]
fn deltas_go_on_where_every_holder_has_the_same() {
    let mut bench = Bench::begun(OwnerPolicy { holder: Holder::Both, ..policy() });
    bench.cover(b"sealed");
    bench.cover(b"delta");
    let first = bench.generation;
    bench.fail_over();
    bench.ask();
    bench.restored(44);
    bench.look();
    bench.consume(CLIENT, "dear", 1_001);
    assert_eq!(bench.look()[1], "copy delta");
    let header = &bench.taken.as_ref().expect("a checkpoint");
    assert_eq!((header.base_generation, header.base_number), (first, 2));
    assert_eq!(bench.owner.held_bytes(), 1, "what the ends handed over is not kept");
}

#[test]
fn a_chain_goes_on_counting_its_deltas() {
    let mut bench = Bench::begun(policy());
    (0..DELTAS_MAX).for_each(|_| bench.cover(b"sealed"));
    bench.fail_over();
    bench.ask();
    bench.restored(bench.kept[0].checkpoints[DELTAS_MAX - 1].meta.log_offset);
    let mut kinds = Vec::new();
    for _ in 0..2 {
        bench.look();
        bench.cover(b"sealed");
        kinds
            .extend(bench.look().into_iter().filter_map(|line| Some(line.strip_prefix("copy ")?.to_owned())));
    }
    assert_eq!(kinds, ["delta", "full"]);
}

#[test]
fn a_chain_goes_on_counting_its_bytes() {
    let bytes = |size: usize| -> &'static [u8] { Vec::leak(vec![0; size]) };
    // Sizes of a full checkpoint and its delta, and the copy in the next generation.
    for (full, delta, next) in [
        (256 << 10, 192 << 10, "copy delta"),
        (256 << 10, (192 << 10) + 1, "copy full"),
        (3 << 20, 1 << 20, "copy delta"),
        (3 << 20, (1 << 20) + 1, "copy full"),
    ] {
        let mut bench = Bench::begun(policy());
        for size in [full, delta] {
            bench.consume(CLIENT, "dear", 1_001);
            let number = bench.taken.as_ref().expect("a checkpoint is due").number;
            bench.checkpointed(bytes(size));
            while bench.owner.totals().checkpoints < u64::from(number) {
                let step = bench.kept[0].unstored.min(1 << 16);
                bench.stored(CLIENT, step, Some(number));
            }
        }
        bench.fail_over();
        bench.ask();
        bench.restored(bench.kept[0].log_end());
        bench.look();
        bench.consume(CLIENT, "dear", 1_001);
        assert_eq!(bench.look()[1], next, "{full} {delta}");
    }
}

#[test]
fn timers_and_clock_come_back_with_a_checkpoint() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.clock_read = true;
        ran.timers = vec![set(5, 500)];
    });
    bench.cover(b"sealed");
    bench.fail_over();
    bench.now = Now { mono_ns: 70, unix_ns: 1_000_100 };
    bench.ask();
    bench.restored(bench.kept[0].log_start);
    assert_eq!(bench.owner.due_ns(), Some(470));
    bench.now.mono_ns = 470;
    bench.look();
    bench.step(|owner, now, out| owner.tick(now, out));
    assert_eq!(bench.look(), ["run timer 5"]);
    assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(1_000_500));
}

#[test]
fn session_time_goes_on_and_never_back() {
    // The wall clock of the second edge, and the session time then.
    for (unix_ns, session_ns) in [(3_000_000, 3_000_000), (1_000_900, 1_000_900), (5, 1_000_800)] {
        let mut bench = Bench::begun(policy());
        bench.now.mono_ns += 800;
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| {
            ran.clock_read = true;
            ran.outputs = vec![CellOutput::Close { port: CLIENT }];
        });
        bench.fail_over();
        bench.now = Now { mono_ns: 40, unix_ns };
        bench.ask();
        bench.started();
        bench.opened();
        assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(1_000_800), "as logged");
        bench.ran_with(|ran| {
            ran.clock_read = true;
            ran.outputs = vec![CellOutput::Close { port: CLIENT }];
        });
        bench.now.mono_ns += 10;
        bench.say(CLIENT, "b");
        assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(session_ns + 10));
        bench.ran(&[]);
        bench.cover(b"sealed");
        bench.fail_over();
        bench.now = Now { mono_ns: 40, unix_ns };
        bench.ask();
        bench.restored(bench.kept[0].log_end());
        bench.say(CLIENT, "b");
        assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(session_ns));
    }
}

#[test]
fn an_image_that_is_not_here_is_tried_elsewhere() {
    let error = |code| CellError { code, reason: "so".into() };
    for (code, lines) in [
        (
            Code::UnknownImage,
            ["client: reject UnknownImage", "server: reject UnknownImage", "remove 1", "over UnknownImage"],
        ),
        (Code::Guest, ["client: ended Guest", "server: ended Guest", "remove 1", "over Guest"]),
    ] {
        let mut bench = crate::owner::recovery::interrupted();
        bench.ask();
        bench.look();
        bench.step(|owner, now, out| owner.started(now, CellId(2), Err(error(code)), out));
        assert_eq!(bench.look(), [""; 0], "of another cell");
        bench.step(|owner, now, out| owner.started(now, CellId(1), Err(error(code)), out));
        assert_eq!(bench.look(), lines, "and what was to be the cell goes too");
        let mut bench = covered(policy());
        bench.ask();
        bench.look();
        bench.step(|owner, now, out| owner.restored(now, CellId(2), Err(error(code)), out));
        assert_eq!(bench.look(), [""; 0], "of another cell");
        bench.step(|owner, now, out| owner.restored(now, CellId(1), Err(error(code)), out));
        assert_eq!(bench.look(), lines, "and what was to be the cell goes too");
    }
}

#[test]
fn an_answer_that_comes_twice_changes_nothing() {
    let mut bench = Bench::begun(policy());
    bench.started();
    assert_eq!(bench.look(), [""; 0]);
    let mut bench = covered(policy());
    bench.ask();
    bench.restored(43);
    bench.look();
    bench.restored(43);
    assert_eq!(bench.look(), [""; 0]);
}

#[test]
fn a_checkpoint_with_other_ports_than_the_ends_is_refused() {
    type Change = fn(&mut Header);
    let changes: [Change; 2] = [
        |header| drop(header.ports.pop()),
        |header| {
            let (state, host) = (header.ports[0].clone(), HostId([3; 16]));
            let client = Client { session: header.session, host, generation: header.generation };
            header.clients = Many(vec![ClientState { state, client, expelled: false }]);
        },
    ];
    for change in changes {
        let mut bench = covered(policy());
        bench.ask();
        let mut header = bench.headers[0].clone();
        change(&mut header);
        bench.restored_as(header);
        assert_eq!(bench.look()[1..], TAMPERED);
    }
}
