//! Promises: to which requests, what is sent with them, and what they end.

use crate::end::bench::{Bench, CHANNEL, KEY, SESSION, TAG, generation, increment, meta, promise};
use bytes::Bytes;
use marram_session::end::{End, EndEffect, EndPhase, PromiseRefusal};
use marram_wire::{
    codec::Last,
    frame::{Chosen, Code, Failed, Failure, Finish, Frame, Keeps, Live, Output, Promise, RunsAhead},
    id::{Generation, HostId, ImageHash},
    limits::{CHECKPOINT_WINDOW, OUTPUT_WINDOW, PART_SIZE, charge},
    seal,
};

const WINDOW: u64 = OUTPUT_WINDOW;

#[test]
fn an_end_promises_itself_to_ever_newer_generations() {
    let mut bench = Bench::new();
    assert_eq!((bench.end.promised(), bench.end.phase()), (Generation::NONE, EndPhase::Detached));
    bench.promise(&promise(3)).expect("the first one");
    assert_eq!(bench.look(), [format!("promised after 0 log 0..0 received 0 window {WINDOW} sent 0..0")]);
    assert_eq!((bench.end.promised(), bench.end.phase()), (generation(3), EndPhase::Promised));
    let opener = |opener| Promise { generation: Generation { count: 3, opener }, ..promise(3) };
    for older in [promise(2), opener(39), opener(40)] {
        assert_eq!(bench.promise(&older), Err(PromiseRefusal::Superseded(generation(3))));
    }
    assert_eq!((bench.look().len(), bench.end.promised()), (0, generation(3)));
    bench.promise(&opener(41)).expect("newer by its opener");
    bench.promise(&promise(4)).expect("newer by its count");
    assert_eq!(bench.look().len(), 2);
}

#[test]
fn a_promise_is_refused_for_a_reason() {
    type Change = fn(&mut Promise);
    // The request, the answer of an end that has not begun, and that of one that has.
    type Answer = Result<(), PromiseRefusal>;
    let cases: [(&str, Change, Answer, Answer); 4] = [
        ("nothing strange", |_| {}, Ok(()), Ok(())),
        ("without the key", |ask| ask.proven = false, Ok(()), Err(PromiseRefusal::Unproven)),
        ("another image", |ask| ask.image = ImageHash([9; 32]), Ok(()), Err(PromiseRefusal::Image)),
        ("another end", |ask| ask.peer = None, Err(PromiseRefusal::Ends), Err(PromiseRefusal::Ends)),
    ];
    for (what, change, waiting, begun) in cases {
        let mut ask = promise(2);
        change(&mut ask);
        let mut bench = Bench::new();
        bench.promise(&promise(1)).expect("the first promise");
        assert_eq!(bench.promise(&ask), waiting, "{what}");
        let mut bench = Bench::owned(0);
        assert_eq!(bench.promise(&ask), begun, "{what}");
        let (promised, phase) = if begun.is_ok() {
            (generation(2), EndPhase::Promised)
        } else {
            (generation(1), EndPhase::Owned)
        };
        assert_eq!((bench.end.promised(), bench.end.phase()), (promised, phase), "{what}");
        assert_eq!(bench.look().is_empty(), begun.is_err(), "{what}");
    }
}

#[test]
fn an_end_that_keeps_nothing_has_one_owner() {
    let mut bench = Bench::new();
    let unprotected = |count| Promise { keeps: Keeps::Nothing, ..promise(count) };
    bench.promise(&unprotected(1)).expect("the first promise");
    assert_eq!(bench.promise(&unprotected(2)), Err(PromiseRefusal::Lost));
}

#[test]
fn the_first_promise_contains_the_terms() {
    let mut bench = Bench::new();
    assert!(bench.end.terms().is_none());
    bench.promise(&promise(1)).expect("the first promise");
    let terms = bench.end.terms().expect("told");
    assert_eq!((terms.image, terms.key, terms.peer), (ImageHash([8; 32]), KEY, Some(HostId([2; 16]))));
    assert_eq!((terms.keeps, terms.linger_ms), (Keeps::All, 77));
    assert_eq!((bench.end.session(), bench.end.app()), (SESSION, "app"));
}

#[test]
fn an_end_that_sends_a_hello_may_begin_a_session() {
    let challenge = [5; 16];
    let mut bench = Bench::new();
    let hello = bench.end.hello(2, &challenge);
    assert!(hello.fresh && !hello.server && hello.proof.is_none() && hello.image.is_none());
    bench.promise(&promise(1)).expect("the first promise");
    let hello = bench.end.hello(2, &challenge);
    assert!(hello.fresh, "no log was chosen yet");
    assert_eq!(hello.proof, Some(seal::proof(&KEY, &challenge, SESSION)));
    bench.chosen(0, "", 0);
    let hello = bench.end.hello(2, &challenge);
    assert!(!hello.fresh && bench.end.begun());
    assert_eq!((hello.promised, hello.peer), (generation(1), Some(HostId([2; 16]))));
    let server = End::new(SESSION, true, "app".into()).hello(2, &challenge);
    assert!(server.server && !server.fresh, "a server's end begins nothing");
}

#[test]
fn everything_kept_is_handed_over() {
    let mut bench = Bench::owned(1_000);
    bench.say("a");
    bench.say("b");
    bench.frame(Output { channel: CHANNEL, increment: increment(b"log"), close: false, payload: "A".into() });
    bench.checkpoint(meta(1, 1, true, 3, 4)).expect("a full one");
    bench.part("full").expect("its bytes");
    bench.checkpoint(meta(1, 2, false, 3, 5)).expect("a delta");
    bench.part("delta").expect("its bytes");
    bench.close();
    bench.look();
    bench.promise(&promise(2)).expect("a newer one");
    let window = WINDOW - charge(1);
    let all = [
        &format!("promised after 1 log 0..3 received 1 window {window} sent 0..3 checkpoint 1 checkpoint 2"),
        "checkpoint 1 of 4",
        "part full",
        "checkpoint 2 of 5",
        "part delta",
        "log of 1 at 0 log",
        "input a",
        "input b",
        "close",
    ];
    assert_eq!(bench.look(), all);
    // The next owner's log follows under its own seal.
    bench.chosen(3, "more", 1_000);
    assert_eq!(bench.look(), [""; 0], "nothing is sent twice");
    bench.promise(&promise(3)).expect("a newer one");
    let lines = bench.look();
    assert_eq!(lines[0].split(" received").next(), Some("promised after 2 log 0..7"));
    assert_eq!(lines[5..7], ["log of 1 at 0 log", "log of 2 at 3 more"]);
    let sealed: Vec<&[u8]> = bench.end.kept_sealed().collect();
    assert_eq!(sealed, [&b"log"[..], b"more", b"full", b"delta"]);
}

#[test]
fn what_is_large_is_handed_over_in_parts() {
    let size = 2 * PART_SIZE as u64 + 1;
    let mut bench = Bench::owned(0);
    bench.log("log");
    bench.log(vec![0xff; 2 * PART_SIZE + 1]);
    bench.checkpoint(meta(1, 1, true, 0, size)).expect("it fits");
    bench.part(vec![0xff; 2 * PART_SIZE + 1]).expect("it fits");
    bench.look();
    bench.promise(&promise(2)).expect("a newer one");
    let parts = ["65536 bytes", "65536 bytes"];
    let expected = [
        format!("checkpoint 1 of {size}"),
        format!("part {}", parts[0]),
        format!("part {}", parts[1]),
        "part 1 bytes".into(),
        format!("log of 1 at 0 {}", parts[0]),
        format!("log of 1 at 65536 {}", parts[1]),
        "log of 1 at 131072 4 bytes".into(),
    ];
    assert_eq!(bench.look()[1..], expected);
}

#[test]
fn an_owner_with_a_live_cell_is_sent_only_what_it_lacks() {
    let live = |count: u64, took: u64| Promise {
        live: Some(Live { generation: generation(count), took, produced: 0, log_end: u64::MAX }),
        ..promise(2)
    };
    // The request, with the number of messages that its owner consumed; the promise; and what follows.
    let cases: [(Promise, &str, &[&str]); 4] = [
        (live(1, 1), "promised after 1 live log 3..3 received 0 window 1114112 sent 1..2", &["input b"]),
        (live(1, 2), "promised after 1 live log 3..3 received 0 window 1114112 sent 2..2", &[]),
        (live(1, 7), "promised after 1 live log 3..3 received 0 window 1114112 sent 2..2", &[]),
        (
            live(0, 1),
            "promised after 1 log 0..3 received 0 window 1114112 sent 0..2",
            &["log of 1 at 0 log", "input a", "input b"],
        ),
    ];
    for (ask, promised, rest) in cases {
        let mut bench = Bench::owned(1_000);
        bench.log("log");
        bench.say("a");
        bench.say("b");
        bench.look();
        bench.promise(&ask).expect("a newer one");
        assert_eq!(bench.look(), [&[promised], rest].concat());
        bench.chosen(3, "", 1_000);
        bench.say("c");
        assert_eq!(bench.look(), ["input c"]);
    }
}

#[test]
fn a_part_of_a_checkpoint_is_kept_for_an_owner_with_a_live_cell_only() {
    for (live, said) in [(1, " 3 bytes of checkpoint 1"), (0, "")] {
        let mut bench = Bench::owned(1_000);
        bench.log("log");
        bench.checkpoint(meta(1, 1, true, 3, 6)).expect("it fits");
        bench.part("sea").expect("it fits");
        let live = Some(Live { generation: generation(live), took: 0, produced: 0, log_end: u64::MAX });
        bench.promise(&Promise { live, ..promise(2) }).expect("a newer one");
        let promised = bench.look()[0].clone();
        assert_eq!(promised.split("sent 0..0").nth(1), Some(said), "{promised}");
        bench.chosen(3, "", 1_000);
        bench.look();
        if said.is_empty() {
            assert_eq!(bench.part("led"), Err("a part does not belong to a checkpoint"));
            continue;
        }
        bench.part("led").expect("it fits");
        assert_eq!(bench.look(), ["stored 3 complete 1"]);
        // Another checkpoint takes the place of what is here of one.
        for number in [2, 3] {
            bench.checkpoint(meta(2, number, true, 3, 6)).expect("it fits");
            bench.part("sea").expect("it fits");
        }
        assert_eq!(bench.end.kept_bytes(), 3 + 6 + 3);
    }
}

#[test]
fn an_end_that_keeps_messages_alone_promises_an_owner_that_covers_it() {
    let asks = |count: u64, live: Option<(u64, u64, u64)>| Promise {
        keeps: Keeps::Messages,
        live: live.map(|(of, took, produced)| Live {
            generation: generation(of),
            took,
            produced,
            log_end: 9,
        }),
        ..promise(count)
    };
    let mut bench = Bench::new();
    bench.promise(&asks(1, None)).expect("the first promise");
    bench.chosen(0, "", 1_000);
    bench.say("a");
    bench.say("b");
    assert!(bench.end.hello(2, &[5; 16]).fresh, "any edge may begin it: nothing was received or forgotten");
    bench.output("one");
    bench.truncate(0, 1).expect("it was sent");
    assert!(!bench.end.hello(2, &[5; 16]).fresh);
    bench.look();
    // Each lacks one thing: a history, the message that is forgotten, the output that was received, the last chosen generation.
    for live in [None, Some((1, 0, 1)), Some((1, 1, 0)), Some((0, 1, 1))] {
        assert_eq!(bench.promise(&asks(2, live)), Err(PromiseRefusal::Behind), "{live:?}");
        assert_eq!(bench.end.promised(), generation(1), "to ask changes nothing");
    }
    bench.promise(&asks(2, Some((1, 1, 1)))).expect("it covers the end");
    assert_eq!(
        bench.look(),
        ["promised after 1 live log 0..0 received 1 window 1114045 sent 1..2", "input b"]
    );
    bench.promise(&asks(3, Some((1, 2, 5)))).expect("no log was chosen since, and it has more");
}

#[test]
fn an_end_whose_owner_ran_ahead_promises_the_backup_that_has_claimed_although_it_is_behind() {
    let asks = |count: u64, live: Option<(u64, u64, u64)>, promoted: bool| Promise {
        keeps: Keeps::Messages,
        live: live.map(|(of, took, produced)| Live {
            generation: generation(of),
            took,
            produced,
            log_end: 9,
        }),
        promoted: Last(promoted.then_some(true)),
        ..promise(count)
    };
    let runs_ahead = |is_so| RunsAhead { channel: CHANNEL, is_so };
    let promised = |bench: &mut Bench| bench.look()[0].split(" window").next().map(str::to_owned);
    let mut bench = Bench::new();
    bench.promise(&asks(1, None, false)).expect("the first promise");
    bench.chosen(0, "", 1_000);
    bench.say("a");
    bench.say("b");
    for text in ["one", "two", "three"] {
        bench.output(text);
    }
    bench.look();
    // Its owner has not run ahead: even one with a claim must have all of it.
    let behind = Some((1, 1, 1));
    assert_eq!(bench.promise(&asks(2, behind, true)), Err(PromiseRefusal::Behind));
    bench.frame(runs_ahead(true));
    bench.truncate(0, 1).expect("it was sent");
    // An owner without a claim, one that lacks a message which is forgotten, and two of other histories.
    for (live, promoted) in [(behind, false), (Some((1, 0, 1)), true), (None, true), (Some((0, 1, 1)), true)]
    {
        assert_eq!(
            bench.promise(&asks(2, live, promoted)),
            Err(PromiseRefusal::Behind),
            "{live:?} {promoted}"
        );
    }
    bench.promise(&asks(2, behind, true)).expect("it has claimed the group");
    assert_eq!(promised(&mut bench).as_deref(), Some("promised after 1 live log 0..0 received 1"));
    // The attempt comes to nothing, and the former owner, which lives, goes on where it was.
    bench.promise(&asks(3, Some((1, 2, 3)), false)).expect("it covers the end");
    assert_eq!(promised(&mut bench).as_deref(), Some("promised after 2 live log 0..0 received 3"));
    bench.promise(&asks(4, behind, true)).expect("the other one again");
    bench.look();
    // It chose its log without this end, and another edge goes on behind that: what it produced meanwhile was not received.
    bench.promise(&asks(6, Some((4, 2, 9)), true)).expect("it follows from a log that was chosen since");
    assert_eq!(promised(&mut bench).as_deref(), Some("promised after 4 live log 0..0 received 1"));
    bench.chosen(0, "", 1_000);
    bench.look();
    for text in ["TWO", "THREE", "four"] {
        bench.output(text);
    }
    assert_eq!(bench.look(), ["deliver four"], "the others were delivered before, by their numbers");
    // From here on it follows this owner, which does not run ahead.
    assert_eq!(bench.promise(&asks(7, Some((6, 2, 3)), true)), Err(PromiseRefusal::Behind));
    bench.promise(&asks(7, Some((6, 2, 4)), false)).expect("it covers the end");
}

#[test]
fn a_close_is_delivered_once_whatever_the_next_history_says() {
    for (first, then) in [(vec!["a", "close"], vec!["b", "c", "d", "close"]), (vec!["a", "b"], vec!["close"])]
    {
        let mut bench = Bench::new();
        bench.promise(&Promise { keeps: Keeps::Messages, ..promise(1) }).expect("the first promise");
        bench.chosen(0, "", 1_000);
        bench.frame(RunsAhead { channel: CHANNEL, is_so: true });
        let says = |bench: &mut Bench, text: &'static str| match text {
            "close" => bench.output_close(),
            _ => bench.output(text),
        };
        first.iter().for_each(|text| says(&mut bench, text));
        let live = Some(Live { generation: generation(1), took: 0, produced: 0, log_end: 1 });
        let promoted = Last(Some(true));
        bench
            .promise(&Promise { keeps: Keeps::Messages, live, promoted, ..promise(2) })
            .expect("it has claimed");
        bench.chosen(0, "", 1_000);
        then.iter().for_each(|text| says(&mut bench, text));
        let given: Vec<_> = bench.look().into_iter().filter(|line| line.starts_with("deliver")).collect();
        let expected: Vec<_> = match first[1] {
            "close" => vec!["deliver a", "deliver close"],
            _ => vec!["deliver a", "deliver b", "deliver close"],
        };
        assert_eq!(given, expected);
        bench.close();
        assert!(bench.end.complete());
    }
}

/// A standby learns of a generation when its owner asks for promises. Here another owner had the session in between. So the
/// standby's owner chose no log in that generation, and the standby's history differs from the client's.
#[test]
fn a_generation_in_which_no_log_was_chosen_leaves_no_cell_that_lives() {
    let asks = |count: u64, live: u64| Promise {
        live: Some(Live { generation: generation(live), took: 0, produced: 0, log_end: u64::MAX }),
        ..promise(count)
    };
    let promised = |bench: &mut Bench| bench.look()[0].split(" log").next().map(str::to_owned);
    let mut bench = Bench::owned(1_000);
    bench.promise(&promise(2)).expect("another owner");
    bench.chosen(0, "other", 1_000);
    bench.look();
    bench.promise(&asks(3, 1)).expect("the first one is back");
    assert_eq!(promised(&mut bench).as_deref(), Some("promised after 2"));
    bench.promise(&asks(4, 3)).expect("its standby");
    assert_eq!(promised(&mut bench).as_deref(), Some("promised after 3"));
    bench.chosen(5, "", 1_000);
    bench.promise(&asks(5, 4)).expect("an owner in whose generation a log was chosen");
    assert_eq!(promised(&mut bench).as_deref(), Some("promised after 4 live"));
}

#[test]
fn a_promise_ends_what_was_under_way() {
    let mut bench = Bench::owned(1_000);
    bench.output("A");
    bench.output("B");
    bench.taken(charge(1));
    assert!(bench.end.owes());
    bench.checkpoint(meta(1, 1, true, 0, 8)).expect("it fits");
    bench.part("half").expect("it fits");
    bench.promise(&promise(2)).expect("a newer one");
    let window = WINDOW - charge(1);
    assert_eq!(
        bench.look()[2..],
        [format!("promised after 1 log 0..0 received 2 window {window} sent 0..0")]
    );
    assert!(!bench.end.owes(), "the promise says it all");
    assert_eq!(bench.log_part(0, b"part"), Ok(()));
    bench.promise(&promise(3)).expect("a newer one");
    bench.chosen(0, "log", 1_000);
    bench.look();
    // No acknowledgement, credit, checkpoint part or log part is left over.
    bench.step(|end, out| end.acknowledge(out));
    bench.say("a");
    assert_eq!(bench.look(), ["input a"]);
    assert_eq!(bench.part("half"), Err("a part does not belong to a checkpoint"));
    assert_eq!(bench.end.kept_bytes(), 3 + charge(1));
    bench.checkpoint(meta(3, 1, true, 3, CHECKPOINT_WINDOW)).expect("it fits");
    bench.part(vec![0; PART_SIZE - 1]).expect("it fits");
    assert_eq!(bench.look(), [""; 0]);
    bench.part("1").expect("it fits");
    assert_eq!(bench.look(), ["stored 65536"]);
}

#[test]
fn a_promise_takes_back_credit_and_the_request_to_finish() {
    let mut bench = Bench::owned(1_000);
    bench.close();
    bench.output_close();
    bench.frame(Finish { channel: CHANNEL });
    assert!(bench.end.finishing() && bench.end.complete());
    bench.promise(&promise(2)).expect("a newer one");
    assert!(!bench.end.finishing() && bench.end.complete());
    let mut bench = Bench::owned(1_000);
    bench.promise(&promise(2)).expect("a newer one");
    bench.say("a");
    assert_eq!(bench.look().len(), 1, "there is no credit before the choice");
    bench.chosen(0, "", charge(1));
    assert_eq!(bench.look(), ["input a"]);
}

#[test]
fn a_stopped_handler_is_reported_to_the_next_owner() {
    let mut bench = Bench::owned(1_000);
    let failure = Failure { log_offset: 3, input: 1, reason: "unreachable".into() };
    bench.frame(Failed { channel: CHANNEL, failure });
    assert_eq!(bench.end.phase(), EndPhase::Detached);
    bench.promise(&promise(2)).expect("a newer one");
    let told = format!("promised after 1 log 0..0 received 0 window {WINDOW} sent 0..0 failed");
    assert_eq!(bench.look(), [told]);
}

#[test]
fn the_tag_is_of_the_log_that_is_there() {
    let mut bench = Bench::owned(0);
    bench.log(Bytes::from_static(b"log"));
    let tag = |bench: &mut Bench, count| {
        let mut found = None;
        bench.step(|end, out| {
            end.promise(1, &promise(count), out).expect("a newer one");
            if let marram_session::end::EndEffect::Send(marram_wire::frame::Frame::Promised(promised)) =
                &out[0]
            {
                found = Some((promised.tag, promised.log_start, promised.log_end));
            }
        });
        found.expect("promised")
    };
    assert_eq!(tag(&mut bench, 2), (TAG, 0, 3));
    bench.chosen(3, "", 0);
    bench.truncate(2, 0).expect("covered");
    assert_eq!(tag(&mut bench, 3), (TAG, 2, 3));
    bench.chosen(3, "", 0);
    bench.truncate(5, 0).expect("covered, and more than this end was sent");
    assert_eq!(tag(&mut bench, 4), ([9; 8], 5, 5));
}

#[test]
fn an_end_tells_the_next_owner_the_session_time() {
    let mut bench = Bench::new();
    let told = |bench: &mut Bench, count: u64| {
        let mut effects = Vec::new();
        bench.end.promise(bench.now_ns, &promise(count), &mut effects).expect("a newer one");
        effects.into_iter().find_map(|effect| match effect {
            EndEffect::Send(Frame::Promised(promised)) => Some(promised.session_ns),
            _ => None,
        })
    };
    assert_eq!(told(&mut bench, 1), Some(None), "no log was chosen");
    let (log, tag) = (Bytes::new(), TAG);
    bench.frame(Chosen {
        channel: CHANNEL,
        log_offset: 0,
        log,
        tag,
        credit: 0,
        session_ns: 70_000,
        runs_ahead: Last(None),
    });
    bench.now_ns += 5_000;
    assert_eq!(told(&mut bench, 2), Some(Some(75_000)));
    bench.now_ns += 1;
    assert_eq!(told(&mut bench, 3), Some(Some(75_001)), "an owner that chose no log changes nothing");
}

/// Another agent of the server.
const OTHER: Option<HostId> = Some(HostId([5; 16]));

/// The end has promised, and its owner gives the session up.
fn given_up(bench: &mut Bench, ask: &Promise, code: Code) {
    assert_eq!(bench.promise(ask), Ok(()));
    bench.end.refused(code);
    bench.end.drift();
    assert_eq!(bench.end.invariants(), Ok(()));
}

#[test]
fn a_session_goes_to_another_agent_of_its_server_if_the_first_has_no_room() {
    let mut bench = Bench::new();
    given_up(&mut bench, &promise(1), Code::Busy);
    assert_eq!(bench.end.hello(2, &[0; 16]).peer, None, "the edge may choose");
    given_up(&mut bench, &Promise { peer: OTHER, ..promise(2) }, Code::Busy);
    assert_eq!(
        bench.promise(&Promise { peer: OTHER, ..promise(1) }),
        Err(PromiseRefusal::Superseded(generation(2)))
    );
    assert_eq!(bench.promise(&promise(3)), Ok(()), "and back");
    assert_eq!(bench.end.hello(2, &[0; 16]).peer, promise(3).peer);
    assert_eq!(bench.promise(&Promise { peer: OTHER, ..promise(4) }), Err(PromiseRefusal::Ends));
}

#[test]
fn a_session_stays_with_the_agent_of_its_server_while_an_owner_may_have_begun_it_there() {
    // The owner of the first promise is not known to have given it up.
    let mut bench = Bench::new();
    assert_eq!(bench.promise(&promise(1)), Ok(()));
    given_up(&mut bench, &promise(2), Code::Busy);
    assert_eq!(bench.end.hello(2, &[0; 16]).peer, promise(2).peer);
    assert_eq!(bench.promise(&Promise { peer: OTHER, ..promise(3) }), Err(PromiseRefusal::Ends));
    // The agent may have taken it.
    let mut bench = Bench::new();
    given_up(&mut bench, &promise(1), Code::Waiting);
    given_up(&mut bench, &promise(2), Code::Busy);
    assert_eq!(bench.promise(&Promise { peer: OTHER, ..promise(3) }), Err(PromiseRefusal::Ends));
    // It has begun.
    let mut bench = Bench::owned(0);
    bench.end.refused(Code::Busy);
    bench.end.drift();
    assert_eq!(bench.promise(&Promise { peer: OTHER, ..promise(2) }), Err(PromiseRefusal::Ends));
}
