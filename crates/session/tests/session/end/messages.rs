//! The program's messages: numbered, kept, and sent within credit.

use crate::end::bench::{Bench, CHANNEL, promise};
use bytes::Bytes;
use marram_wire::{
    frame::{Credit, Keeps, Promise},
    limits::{DATAGRAMS_WAITING_MAX, MESSAGE_SIZE_MAX, RETAINED_MAX, STREAM_CUT, charge},
};

#[test]
fn messages_wait_for_an_owner() {
    let mut bench = Bench::new();
    bench.say("a");
    assert_eq!((bench.look().len(), bench.end.kept_bytes()), (0, charge(1)));
    bench.promise(&promise(1)).expect("the first promise");
    assert_eq!(bench.look()[1..], ["input a"], "what was said before the promise goes with it");
    bench.say("b");
    assert_eq!(bench.look(), [""; 0]);
    bench.chosen(0, "", charge(1));
    assert_eq!(bench.look(), ["input b"]);
    assert_eq!(bench.end.kept_bytes(), 2 * charge(1), "until a checkpoint covers them");
}

#[test]
fn messages_go_while_a_byte_of_credit_is_left() {
    let mut bench = Bench::owned(charge(3) + 1);
    bench.say("one");
    bench.say("two");
    bench.say("three");
    assert_eq!(bench.look(), ["input one", "input two"], "the last one exceeds the credit");
    bench.credit(charge(3) - 1);
    assert_eq!(bench.look(), [""; 0], "that is what it owed");
    bench.credit(1);
    assert_eq!(bench.look(), ["input three"]);
    bench.credit(u64::MAX - 2 * charge(3) - 1);
    let more = Credit { channel: CHANNEL, received: 0, bytes: 1 };
    assert_eq!(bench.try_frame(more), Err("the owner grants more credit than can be counted"));
    bench.say("four");
    assert_eq!(bench.look(), ["input four"]);
}

#[test]
fn a_program_closes_once() {
    let mut bench = Bench::owned(1_000);
    bench.close();
    bench.close();
    assert_eq!(bench.look(), ["close"]);
    assert_eq!(bench.end.kept_bytes(), charge(0));
    assert!(!bench.end.complete());
    bench.output_close();
    assert!(bench.end.complete());
}

#[test]
fn messages_wait_while_the_end_drifts() {
    let mut bench = Bench::owned(1_000);
    bench.end.drift();
    bench.say("a");
    bench.close();
    assert_eq!(bench.look(), [""; 0]);
}

#[test]
fn covered_messages_are_forgotten() {
    let mut bench = Bench::owned(1_000);
    bench.say("a");
    bench.say("b");
    bench.truncate(0, 1).expect("one was consumed");
    assert_eq!(bench.end.kept_bytes(), charge(1));
    bench.truncate(0, 1).expect("told twice");
    assert_eq!(bench.end.kept_bytes(), charge(1));
    bench.look();
    bench.say("c");
    assert_eq!(bench.look(), ["input c"]);
    bench.promise(&promise(2)).expect("a newer one");
    let lines = bench.look();
    assert!(lines[0].ends_with("sent 1..3"), "{lines:?}");
    assert_eq!(lines[1..], ["input b", "input c"]);
}

#[test]
fn no_more_is_covered_than_was_said() {
    let mut bench = Bench::owned(1_000);
    bench.say("a");
    assert_eq!(bench.truncate(0, 1), Ok(()));
    assert_eq!(bench.truncate(0, 2), Err("a checkpoint covers more than was sent"));
}

#[test]
fn a_full_buffer_stops_reading() {
    let room = RETAINED_MAX - charge(STREAM_CUT);
    let mut bench = Bench::new();
    let big = Bytes::from(vec![0; MESSAGE_SIZE_MAX]);
    while bench.end.kept_bytes() + charge(MESSAGE_SIZE_MAX) < room {
        bench.say(big.clone());
    }
    let rest = usize::try_from(room - bench.end.kept_bytes() - charge(0)).expect("less than a message");
    bench.say(big.slice(..rest));
    assert_eq!((bench.end.kept_bytes(), bench.end.readable()), (room, true));
    bench.say("");
    assert!(!bench.end.readable());
}

#[test]
fn a_datagram_without_a_place_is_not_taken() {
    let mut bench = Bench::new();
    // A session that has not begun keeps few, since any sender can cause a session.
    let room = usize::try_from(DATAGRAMS_WAITING_MAX - charge(0)).expect("small");
    assert!(bench.end.has_place(room) && !bench.end.has_place(room + 1));
    bench.say("a");
    assert!(!bench.end.has_place(room));
    let mut bench = Bench::owned(0);
    bench.say(vec![0; MESSAGE_SIZE_MAX]);
    bench.end.drift();
    let room = usize::try_from(RETAINED_MAX - charge(MESSAGE_SIZE_MAX) - charge(0)).expect("small");
    assert!(bench.end.has_place(room) && !bench.end.has_place(room + 1));
    bench.close();
    assert!(!bench.end.has_place(1), "the last one was said");
}

#[test]
fn a_datagram_without_credit_is_not_taken() {
    let mut bench = Bench::owned(charge(10));
    assert!(bench.end.has_place(11), "any credit is enough");
    bench.say(vec![0; 10]);
    assert!(!bench.end.has_place(0), "the cell has paused its port, or does not come to it");
    bench.credit(charge(0));
    assert!(bench.end.has_place(0));
    bench.say(vec![0; 10]);
    assert!(!bench.end.has_place(0), "one waits already");
}

#[test]
fn the_end_of_a_stream_needs_no_credit_but_waits_for_what_was_said_before_it() {
    let mut bench = Bench::owned(0);
    bench.look();
    bench.say("a");
    bench.close();
    assert_eq!(bench.look(), [""; 0]);
    bench.credit(charge(1));
    assert_eq!(bench.look(), ["input a", "close"]);
}

#[test]
fn without_protection_messages_are_forgotten_when_they_are_sent() {
    let mut bench = Bench::new();
    bench.say("before");
    bench.promise(&Promise { keeps: Keeps::Nothing, ..promise(1) }).expect("the first promise");
    bench.chosen(0, "", charge(1));
    assert_eq!(bench.end.kept_bytes(), 0);
    bench.say("a");
    bench.say("b");
    assert_eq!(bench.end.kept_bytes(), charge(1), "one waits for credit");
    bench.look();
    bench.credit(charge(1));
    assert_eq!((bench.look(), bench.end.kept_bytes()), (vec!["input b".into()], 0));
}

#[test]
fn acknowledgements_travel_with_messages() {
    let mut bench = Bench::owned(1_000);
    bench.output("A");
    bench.output("B");
    bench.look();
    bench.say("a");
    bench.say("b");
    assert_eq!(bench.look(), ["input a ack 2", "input b"]);
    bench.output("C");
    bench.promise(&promise(2)).expect("a newer one");
    let lines = bench.look();
    assert_eq!(lines[2..], ["input a", "input b"], "the promise has said what was received");
}
