//! Outputs: strictly in order, acknowledged in time, granted again when the program has read them.

use crate::end::bench::{Bench, CHANNEL, TAG, increment, meta, promise};
use bytes::Bytes;
use marram_session::end::{EndPhase, Share};
use marram_wire::{
    codec::Last,
    frame::{Chosen, Failed, Failure, Finish, Frame, LogOnly, LogPart, Output, Pong},
    id::Generation,
    limits::{MESSAGE_SIZE_MAX, OUTPUT_WINDOW, OUTPUT_WINDOW_MIN, charge},
};

const ACK_CHARGE: u64 = OUTPUT_WINDOW / 16;

/// A payload with this charge.
fn charged(bytes: u64) -> Bytes {
    vec![0xff; usize::try_from(bytes - charge(0)).expect("small")].into()
}

#[test]
fn outputs_are_delivered_and_acknowledged_by_the_sixty_fourth() {
    let mut bench = Bench::owned(0);
    for _ in 0..63 {
        bench.output("A");
    }
    let lines = bench.look();
    assert_eq!((lines.len(), lines[0].as_str()), (63, "deliver A"));
    assert!(bench.end.owes());
    bench.output("B");
    assert_eq!(bench.look(), ["deliver B", "credit received 64 bytes 0"]);
    assert!(!bench.end.owes());
}

#[test]
fn what_the_program_takes_is_granted_again() {
    let mut bench = Bench::owned(0);
    bench.output(charged(ACK_CHARGE));
    bench.output("A");
    bench.look();
    bench.taken(ACK_CHARGE - 1);
    assert_eq!(bench.look(), [""; 0]);
    bench.taken(1);
    assert_eq!(bench.look(), [format!("credit received 2 bytes {ACK_CHARGE}")]);
    bench.taken(1_000);
    assert!(bench.end.owes(), "what it was given, not what it says");
    bench.step(|end, out| end.acknowledge(out));
    assert_eq!(bench.look(), [format!("credit received 0 bytes {}", charge(1))]);
    bench.taken(1);
    assert!(!bench.end.owes());
    bench.step(|end, out| end.acknowledge(out));
    assert_eq!(bench.look(), [""; 0]);
}

#[test]
fn an_output_beyond_the_window_is_refused() {
    let mut bench = Bench::owned(0);
    let output = |payload| Output { channel: CHANNEL, increment: None, close: false, payload };
    let largest = charge(MESSAGE_SIZE_MAX);
    bench.output(charged(largest));
    bench.output(charged(OUTPUT_WINDOW - largest - 1));
    let refused = Err("an output came that the owner had no credit for");
    bench.output(charged(largest));
    assert_eq!(bench.try_frame(output(Bytes::new())), refused, "the last one may exceed it");
    let too_large = Bytes::from(vec![0; MESSAGE_SIZE_MAX + 1]);
    let refused_at_once = Err("an output is larger than a message can be");
    assert_eq!(Bench::owned(0).try_frame(output(too_large)), refused_at_once);
    // What the program has read makes room, once the owner has been told.
    bench.taken(OUTPUT_WINDOW + largest);
    bench.output("A");
}

/// The program takes outputs of this charge; returns the credit that its owner gets.
fn takes(bench: &mut Bench, bytes: u64) -> Vec<String> {
    bench.look();
    bench.taken(bytes);
    bench.look()
}

#[test]
fn where_many_sessions_share_the_memory_less_is_on_its_way_and_each_goes_on() {
    let least = OUTPUT_WINDOW_MIN;
    for (share, of_all) in [(Share::of(u64::MAX), least), (Share::of(0), u64::MAX), (Share::of(u64::MAX), 0)]
    {
        let mut bench = Bench::new();
        bench.end.limit(share, of_all);
        bench.promise(&promise(1)).expect("the first promise");
        let window = share.room().min(of_all.max(least));
        assert!(window < 2 * least && bench.look()[0].contains(&format!(" window {window} ")));
        bench.chosen(0, "", 0);
        // The largest message fits a window that is smaller, whatever the program did before.
        for _ in 0..10 {
            bench.output(charged(charge(MESSAGE_SIZE_MAX)));
            let more = Output { channel: CHANNEL, increment: None, close: false, payload: "A".into() };
            assert!(bench.try_frame(more).is_err(), "no more than that");
            let lines = takes(&mut bench, charge(MESSAGE_SIZE_MAX));
            assert_eq!(lines, [format!("credit received 1 bytes {}", charge(MESSAGE_SIZE_MAX))]);
            assert_eq!(bench.end.invariants(), Ok(()));
        }
    }
}

#[test]
fn a_window_becomes_smaller_when_the_owner_has_used_what_it_was_granted() {
    let mut bench = Bench::owned(0);
    bench.end.limit(Share::of(u64::MAX), 0);
    // As much is on its way as before, until the program has taken all but a least window.
    bench.output(charged(OUTPUT_WINDOW - OUTPUT_WINDOW_MIN));
    assert_eq!(takes(&mut bench, OUTPUT_WINDOW - OUTPUT_WINDOW_MIN), [""; 0]);
    bench.step(|end, out| end.acknowledge(out));
    assert_eq!(bench.look(), ["credit received 1 bytes 0"]);
    bench.output(charged(OUTPUT_WINDOW_MIN));
    let lines = takes(&mut bench, OUTPUT_WINDOW_MIN);
    assert_eq!(lines, [format!("credit received 1 bytes {OUTPUT_WINDOW_MIN}")]);
    // And larger with the next grant.
    bench.end.limit(Share::of(u64::MAX), u64::MAX);
    bench.output("A");
    let granted = OUTPUT_WINDOW - OUTPUT_WINDOW_MIN;
    assert_eq!(bench.look(), ["deliver A".to_owned(), format!("credit received 1 bytes {granted}")]);
}

#[test]
fn a_new_generation_gets_no_credit_for_what_the_program_has_not_taken() {
    let mut bench = Bench::owned(0);
    bench.output(charged(100_000));
    bench.end.limit(Share::of(u64::MAX), 0);
    bench.look();
    bench.promise(&promise(2)).expect("a newer one");
    assert!(bench.look()[0].contains(" window 0 "), "more waits than a least window");
    bench.chosen(0, "", 0);
    assert_eq!(takes(&mut bench, 100_000), [format!("credit received 0 bytes {OUTPUT_WINDOW_MIN}")]);
    bench.output("A");
}

#[test]
fn an_output_brings_along_what_is_granted() {
    let mut bench = Bench::owned(0);
    bench.output(charged(ACK_CHARGE - charge(0)));
    bench.taken(ACK_CHARGE - charge(0));
    bench.look();
    // A close takes no room at the program.
    bench.output_close();
    assert_eq!(bench.look(), ["deliver close".to_owned(), format!("credit received 2 bytes {ACK_CHARGE}")]);
    let mut bench = Bench::owned(0);
    bench.output(charged(ACK_CHARGE - charge(0) - 1));
    bench.taken(ACK_CHARGE - charge(0) - 1);
    bench.look();
    bench.output_close();
    assert_eq!(bench.look(), ["deliver close"]);
}

#[test]
fn the_last_word_is_acknowledged_at_once() {
    let mut bench = Bench::owned(1_000);
    bench.close();
    bench.output("A");
    bench.look();
    bench.output_close();
    assert_eq!(bench.look(), ["deliver close".to_owned(), format!("credit received 2 bytes {}", charge(0))]);
}

#[test]
fn nothing_is_owed_while_the_end_is_detached() {
    let mut bench = Bench::owned(0);
    bench.output("A");
    bench.end.drift();
    assert!(!bench.end.owes());
    bench.look();
    bench.step(|end, out| end.acknowledge(out));
    assert_eq!(bench.look(), [""; 0]);
}

#[test]
fn outputs_end_with_the_close() {
    let mut bench = Bench::owned(0);
    bench.output_close();
    let more = Output { channel: CHANNEL, increment: None, close: false, payload: "A".into() };
    assert_eq!(bench.try_frame(more), Err("an output arrived after the close"));
}

#[test]
fn a_chosen_log_continues_what_is_there() {
    // The end has three bytes of log. Parts, the last one, and whether it fits.
    type Part = (u64, &'static [u8]);
    let cases: [(&[Part], Part, bool, &str); 8] = [
        (&[], (3, b""), true, "log 0..3"),
        (&[], (3, b"de"), true, "log 0..5"),
        (&[(3, b"d"), (4, b"ef")], (6, b"g"), true, "log 0..7"),
        (&[(3, b"d")], (5, b"f"), false, ""),
        (&[(3, b"d")], (3, b"d"), false, ""),
        (&[], (2, b"cd"), false, ""),
        // A checkpoint covers the gap.
        (&[], (9, b"jk"), true, "log 9..11"),
        (&[(9, b"j")], (10, b"k"), true, "log 9..11"),
    ];
    for (parts, (offset, last), fits, log) in cases {
        let mut bench = Bench::owned(0);
        bench.log("abc");
        bench.promise(&promise(2)).expect("a newer one");
        let held: Result<Vec<()>, _> = parts.iter().map(|(at, bytes)| bench.log_part(*at, bytes)).collect();
        let chosen = Chosen {
            channel: CHANNEL,
            log_offset: offset,
            log: last.into(),
            tag: TAG,
            credit: 0,
            session_ns: 0,
            runs_ahead: Last(None),
        };
        assert_eq!(held.and_then(|_| bench.try_frame(chosen)).is_ok(), fits, "{parts:?} {offset}");
        assert_eq!(bench.end.phase() == EndPhase::Owned, fits);
        if fits {
            bench.look();
            bench.promise(&promise(3)).expect("a newer one");
            let lines = bench.look();
            assert!(lines[0].contains(log), "{lines:?}");
        }
    }
}

#[test]
fn frames_out_of_turn_are_refused() {
    let waiting: [Frame; 2] = [
        LogPart { channel: CHANNEL, generation: Generation::NONE, offset: 0, bytes: Bytes::new() }.into(),
        Chosen {
            channel: CHANNEL,
            log_offset: 0,
            log: Bytes::new(),
            tag: TAG,
            credit: 0,
            session_ns: 0,
            runs_ahead: Last(None),
        }
        .into(),
    ];
    let owned: [Frame; 2] = [
        Frame::Output(Output { channel: CHANNEL, increment: None, close: false, payload: Bytes::new() }),
        LogOnly { channel: CHANNEL, entries: Bytes::new(), tag: TAG }.into(),
    ];
    for (bench, frames) in [(Bench::owned(0), waiting), (promised(), owned)] {
        let mut bench = bench;
        for frame in frames {
            assert_eq!(bench.try_frame(frame), Err("a frame is not allowed in this phase"));
        }
        assert_eq!(bench.try_frame(Pong { stamp: 0, load: 0 }), Err("a frame is not allowed in this phase"));
    }
    // A handler can be stopped in replay, before a log is chosen.
    let failure = Failure { log_offset: 3, input: 4, reason: "unreachable".into() };
    assert_eq!(promised().try_frame(Failed { channel: CHANNEL, failure }), Ok(()));
}

fn promised() -> Bench {
    let mut bench = Bench::new();
    bench.promise(&promise(1)).expect("the first promise");
    bench
}

#[test]
fn a_session_finishes_when_both_directions_are_closed() {
    let mut bench = Bench::owned(1_000);
    bench.close();
    bench.output_close();
    bench.look();
    bench.frame(Finish { channel: CHANNEL });
    assert_eq!(bench.look(), ["finished"]);
    assert!(bench.end.finishing());
    for open in ["output", "input"] {
        let mut bench = Bench::owned(1_000);
        if open == "output" {
            bench.close()
        } else {
            bench.output_close()
        }
        let early = Err("the session finishes before its ends are closed");
        assert_eq!(bench.try_frame(Finish { channel: CHANNEL }), early, "{open}");
    }
}

#[test]
fn a_place_that_is_filled_is_not_offered_again() {
    let mut bench = Bench::owned(0);
    bench.output("A");
    bench.frame(Output { channel: CHANNEL, increment: increment(b"log"), close: false, payload: "B".into() });
    bench.look();
    bench.promise(&promise(2)).expect("a newer one");
    let window = OUTPUT_WINDOW - 2 * charge(1);
    let lines = bench.look();
    assert_eq!(lines[0], format!("promised after 1 log 0..3 received 2 window {window} sent 0..0"));
    bench.chosen(3, "", 0);
    bench.checkpoint(meta(2, 1, true, 3, 1)).expect("it is this owner's");
}
