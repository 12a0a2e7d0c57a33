//! A cell that survives while its owner asks the ends again: kept if no other owner can have chosen, otherwise rebuilt.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, HOSTS, SERVER, message, policy, set};
use crate::owner::kept::Kept;
use bytes::Bytes;
use marram_session::cell::SealedCheckpoint;
use marram_session::owner::{Attempt, Holder, Now, OwnerPhase, OwnerPolicy};
use marram_wire::frame::{Credit, Finished};
use marram_wire::id::{Generation, HostId};
use marram_wire::limits::{CHECKPOINT_AFTER_BYTES, INPUT_WINDOW, MESSAGE_SIZE_MAX, charge};

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

fn charged(bytes: u64) -> Bytes {
    Bytes::from_static(&ZEROS[..usize::try_from(bytes - charge(0)).expect("small")])
}

/// The client has received `A`, the server nothing; then both links break.
fn detached() -> Bench {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A")]);
    break_links(&mut bench);
    bench
}

fn break_links(bench: &mut Bench) {
    bench.unlinked(CLIENT);
    bench.unlinked(SERVER);
    bench.look();
}

/// The owner asks again, and its generation is still both ends' last one; `took` of their messages were consumed.
fn ask_live(bench: &mut Bench, took: [u64; 2]) {
    bench.open();
    bench.look();
    bench.kept.iter_mut().zip(took).for_each(|(kept, took)| kept.live_at(took));
    bench.hand_over();
}

#[test]
fn a_copy_is_prepared_again_in_another_generation() {
    let mut bench = Bench::begun(policy());
    let cell = bench.owner.cell().expect("it runs");
    bench.step(|owner, _, _| owner.large(cell));
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(bench.look().last().map(String::as_str), Some("prepare full"));
    // The same edge opens another generation. Until that has begun, an answer belongs to the one before.
    bench.open();
    bench.look();
    bench.step(|owner, _, out| owner.prepared(cell, out));
    assert_eq!(bench.look(), [""; 0]);
    // It continues with the cell, which is as large as before.
    bench.kept[0].live_at(1);
    bench.kept[1].live_at(0);
    bench.hand_over();
    assert_eq!(bench.look().last().map(String::as_str), Some("prepare full"));
    bench.step(|owner, _, out| owner.prepared(cell, out));
    assert_eq!(bench.look()[0], "copy full");
}

#[test]
fn a_live_cell_goes_on_where_it_was() {
    let mut bench = detached();
    bench.open();
    let asked = [
        "client: promise 2 beside 2 live since 1 took 1",
        "server: promise 2 beside 1 to database live since 1 took 0",
    ];
    assert_eq!(bench.look(), asked);
    bench.kept[0].live_at(1);
    bench.kept[1].live_at(0);
    bench.hand_over();
    let chosen = ["client: chosen 43..43 credit 1114112", "server: chosen 0..43 credit 1114112"];
    assert_eq!(bench.look(), chosen);
    bench.say(SERVER, "b");
    bench.ran(&[(CLIENT, "B")]);
    assert_eq!(bench.look(), ["run b of server", "client: output B with log 43..44"]);
    let totals = bench.owner.totals();
    assert_eq!((totals.generations, totals.replayed, totals.consumed), (2, 0, 3));
    assert_eq!(bench.owner.held_bytes(), 44 + charge(1));
}

#[test]
fn credit_of_the_channel_before_is_not_given_on_the_next() {
    let piece = INPUT_WINDOW - charge(MESSAGE_SIZE_MAX);
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, charged(piece - charge(0)), 0);
    break_links(&mut bench);
    ask_live(&mut bench, [1, 0]);
    bench.look();
    bench.consume(CLIENT, charged(piece - charge(0)), 0);
    assert!(!bench.look().iter().any(|line| line.contains("credit")));
    bench.consume(CLIENT, "", 0);
    assert_eq!(bench.look().last(), Some(&format!("client: credit {piece}")));
}

#[test]
fn a_live_cell_is_given_up_if_anything_else_can_have_been_chosen() {
    type Change = fn(&mut Bench);
    let cases: [(&str, Change); 5] = [
        ("an end promised itself to another meanwhile", |bench| bench.kept[1].live = false),
        ("an end has more of the log", |bench| bench.kept[0].log.push(0)),
        ("an end begins behind what was consumed", |bench| bench.kept[1].sent_start += 1),
        ("an end begins before what was consumed", |bench| {
            bench.kept[0].sent_start -= 1;
            bench.kept[0].sent.insert(0, Some("a".into()));
        }),
        ("an end has received what was never sent", |bench| bench.kept[1].received += 1),
    ];
    for (what, change) in cases {
        let mut bench = detached();
        bench.open();
        bench.look();
        bench.kept[0].live_at(1);
        bench.kept[1].live_at(0);
        change(&mut bench);
        bench.hand_over();
        assert_eq!(bench.look(), ["remove 1", "again 2"], "{what}");
        assert_eq!(bench.owner.cell(), None, "{what}");
    }
}

#[test]
fn what_the_cell_does_meanwhile_is_released_with_the_next_choice() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    break_links(&mut bench);
    bench.open();
    bench.look();
    bench.ran(&[(CLIENT, "A"), (SERVER, "B")]);
    assert_eq!(bench.look(), [""; 0]);
    bench.kept[0].live_at(0);
    bench.kept[0].live_at(1);
    bench.kept[1].live_at(0);
    // The owner reported that it had consumed the message.
    bench.hand_over();
    let all = [
        "client: chosen 0..43 credit 1114112",
        "server: chosen 0..43 credit 1114112",
        "client: output A",
        "server: output B",
    ];
    assert_eq!(bench.look(), all);
}

#[test]
fn an_owner_that_gives_its_cell_up_begins_again_from_what_the_ends_keep() {
    let timers = |ran: &mut marram_session::cell::Ran| {
        (ran.clock_read, ran.cost_ns) = (true, 600);
        ran.timers = vec![set(1, 1_000)];
        ran.outputs = vec![message(CLIENT, "A")];
    };
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(timers);
    // A handler runs when the links break; its result is lost with its cell.
    bench.say(CLIENT, "b");
    break_links(&mut bench);
    bench.open();
    bench.hand_over();
    assert_eq!(bench.look()[2..], ["remove 1", "again 2"]);
    bench.open();
    assert_eq!(bench.look(), ["client: promise 3 beside 2", "server: promise 3 beside 1 to database"]);
    bench.hand_over();
    bench.started();
    bench.opened();
    bench.look();
    bench.ran_with(timers);
    // No checkpoint is due: the cost of the first cell's handlers does not count any more.
    let chosen =
        ["client: chosen 44..44 credit 1114112", "server: chosen 0..44 credit 1114112", "run b of client"];
    assert_eq!(bench.look(), chosen);
    bench.ran(&[(CLIENT, "B")]);
    assert_eq!(bench.look(), ["client: output B with log 44..45"]);
    assert_eq!(bench.owner.due_ns(), Some(bench.now.mono_ns + 1_000));
    bench.now.mono_ns += 1_000;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.idle();
    assert_eq!(bench.look(), ["run timer 1"], "once");
    assert_eq!((bench.kept[0].received, bench.owner.held_bytes()), (2, 46 + charge(1)));
}

#[test]
fn an_owner_that_begins_again_lets_ends_forget_nothing_that_it_does_not_know_covered() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A")]);
    let before = bench.kept.clone();
    bench.credit(CLIENT, 1, 0);
    bench.cover(b"sealed");
    break_links(&mut bench);
    // As if the ends had never stored it.
    bench.kept = before;
    bench.open();
    bench.hand_over();
    bench.begin();
    bench.look();
    bench.ran(&[(CLIENT, "A")]);
    assert_eq!(bench.look(), ["client: chosen 43..43 credit 1114112", "server: chosen 0..43 credit 1114112"]);
}

#[test]
fn a_session_that_no_end_has_seen_starts_again() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| (ran.clock_read, ran.timers) = (true, vec![set(1, 10)]));
    break_links(&mut bench);
    bench.open();
    bench.hand_over();
    bench.now.unix_ns -= 1_000;
    bench.ask();
    bench.started();
    let lines = ["start", "client: chosen 0..0 credit 1114112", "server: chosen 0..0 credit 1114112"];
    assert_eq!(bench.look()[..3], lines);
    assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(999_000), "no one has seen a later time");
    bench.opened();
    bench.ran(&[]);
    assert_eq!(bench.owner.due_ns(), None);
}

#[test]
fn what_is_consumed_again_is_kept_once() {
    let mut bench = Bench::begun(policy());
    let eighth = charged(CHECKPOINT_AFTER_BYTES / 8);
    (0..6).for_each(|_| bench.consume(CLIENT, eighth.clone(), 0));
    break_links(&mut bench);
    bench.open();
    bench.hand_over();
    bench.open();
    bench.hand_over();
    bench.started();
    bench.idle();
    bench.consume(CLIENT, eighth.clone(), 0);
    assert!(!bench.look().contains(&"copy full".into()));
    bench.consume(CLIENT, eighth, 0);
    assert!(bench.look().contains(&"copy full".into()));
}

#[test]
fn an_end_cannot_acknowledge_what_an_owner_that_begins_again_has_not_sent() {
    let mut bench = detached();
    bench.open();
    bench.hand_over();
    bench.open();
    bench.hand_over();
    bench.look();
    bench.frame(CLIENT, Credit { channel: 1, received: 1, bytes: 0 });
    assert_eq!(bench.look().last().map(String::as_str), Some("over Protocol"));
}

#[test]
fn an_attempt_forgets_what_the_one_before_was_handed() {
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    bench.cover(b"delta");
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A")]);
    bench.fail_over();
    // Of the first attempt everything arrives except the last message.
    bench.open();
    let mut frames = bench.kept[0].handed_over(1);
    frames.pop();
    frames.into_iter().for_each(|frame| bench.frame(CLIENT, frame));
    assert_eq!(bench.owner.held_bytes(), 6 + 5 + 1);
    // Of the second, the promise and half a checkpoint.
    bench.open();
    assert_eq!(bench.owner.held_bytes(), 0);
    for frame in bench.kept[0].handed_over(1).into_iter().take(2) {
        bench.frame(CLIENT, frame);
    }
    let half = marram_wire::frame::CheckpointPart { channel: 1, bytes: "sea".into() };
    bench.frame(CLIENT, half);
    assert_eq!(bench.owner.held_bytes(), 3);
    bench.open();
    assert_eq!(bench.owner.held_bytes(), 0);
    bench.look();
    bench.hand_over();
    assert_eq!(bench.look(), ["restore 1 2"]);
    bench.restored(44);
    bench.ran(&[(CLIENT, "A")]);
    assert_eq!((bench.phase(), bench.owner.held_bytes()), (OwnerPhase::Running, 1));
}

#[test]
fn messages_of_an_attempt_that_failed_come_once() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.say(CLIENT, "b");
    bench.fail_over();
    bench.open();
    bench.hand_over_of(0);
    assert_eq!(bench.owner.held_bytes(), 2 * charge(1));
    bench.open();
    assert_eq!(bench.owner.held_bytes(), 0);
    bench.hand_over();
    bench.started();
    bench.opened();
    bench.look();
    bench.idle();
    assert_eq!(bench.look(), ["run b of client"]);
}

#[test]
fn an_end_is_ready_to_forget_again_on_each_channel() {
    let mut bench = Bench::begun(policy());
    bench.close(CLIENT);
    bench.close(SERVER);
    bench.idle();
    bench.credit(CLIENT, 1, 0);
    bench.credit(SERVER, 1, 0);
    bench.frame(CLIENT, Finished { channel: 1 });
    assert_eq!(bench.phase(), OwnerPhase::Finishing);
    break_links(&mut bench);
    ask_live(&mut bench, [1, 1]);
    assert_eq!(bench.look()[2..], ["client: finish", "server: finish"]);
    bench.frame(SERVER, Finished { channel: 2 });
    assert_eq!((bench.look().len(), bench.phase()), (0, OwnerPhase::Finishing));
    bench.frame(CLIENT, Finished { channel: 1 });
    assert_eq!(bench.look().last().map(String::as_str), Some("over Finished"));
}

#[test]
fn a_new_channel_has_its_whole_credit_at_once() {
    let quarter = INPUT_WINDOW / 4;
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, charged(quarter - charge(0)), 0);
    break_links(&mut bench);
    ask_live(&mut bench, [1, 0]);
    bench.look();
    bench.consume(CLIENT, "", 0);
    assert_eq!(bench.look(), ["run  of client"], "what was due before is in the window");
}

#[test]
fn an_end_that_takes_nothing_after_a_break_stops_the_cell() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.outputs = vec![message(SERVER, charged(257 << 10))];
    });
    break_links(&mut bench);
    bench.kept[1].window = 0;
    bench.kept[1].received = 0;
    ask_live(&mut bench, [1, 0]);
    bench.look();
    bench.say(CLIENT, "b");
    assert_eq!(bench.look(), [""; 0]);
    bench.credit(SERVER, 0, 1 << 20);
    assert_eq!(bench.look(), ["server: output 263104 bytes", "run b of client"]);
}

/// A checkpoint of 200 KiB is on its way to both ends when their links break.
fn sending() -> Bench {
    let mut bench = Bench::begun(OwnerPolicy { holder: Holder::Both, ..policy() });
    bench.consume(CLIENT, "dear", 1_001);
    bench.checkpointed(Bytes::from_static(&ZEROS[..200 << 10]));
    break_links(&mut bench);
    bench
}

/// Has only the first bytes of the last checkpoint.
fn keep_a_part(kept: &mut Kept, bytes: usize) {
    let SealedCheckpoint { meta, bytes: whole } = kept.checkpoints.pop().expect("all of it arrived");
    kept.arriving = Some((meta, whole[..bytes].to_vec()));
}

#[test]
fn a_checkpoint_that_is_not_sent_yet_is_taken_again() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "dear", 1_001);
    break_links(&mut bench);
    ask_live(&mut bench, [1, 0]);
    assert_eq!(bench.owner.held_bytes(), 43);
    // At once: what it was to cover is uncovered still.
    let lines = bench.look();
    assert_eq!(lines[lines.len() - 2..], ["copy full", "seal 2 at 43"]);
}

#[test]
fn a_checkpoint_on_its_way_goes_on_behind_what_each_end_has() {
    let mut bench = sending();
    keep_a_part(&mut bench.kept[0], 64 << 10);
    keep_a_part(&mut bench.kept[1], 0);
    ask_live(&mut bench, [1, 0]);
    let lines = bench.look();
    let part = |to: &str, size: usize| format!("{to}: part of {size}");
    let client = [65_536, 65_536, 8_192].map(|size| part("client", size));
    let server = [65_536, 65_536, 65_536, 8_192].map(|size| part("server", size));
    assert_eq!(lines[lines.len() - 7..], [&client[..], &server].concat());
    bench.stored(CLIENT, 136 << 10, Some(1));
    assert_eq!(bench.look(), [""; 0]);
    bench.stored(SERVER, 200 << 10, Some(1));
    assert_eq!(bench.look(), ["client: forget log 43 sent 1", "server: forget log 43 sent 0"]);
    assert_eq!(bench.owner.totals().checkpoints, 1);
}

#[test]
fn a_checkpoint_that_arrived_whole_before_the_links_broke_counts() {
    let mut bench = sending();
    ask_live(&mut bench, [1, 0]);
    let lines = bench.look();
    assert_eq!(lines[lines.len() - 2..], ["client: forget log 43 sent 1", "server: forget log 43 sent 0"]);
    assert_eq!(bench.owner.totals().checkpoints, 1);
    // A delta on it fits, and is counted once.
    bench.consume(CLIENT, "dear", 1_001);
    assert_eq!(bench.look(), ["run dear of client", "copy delta", "seal 2 at 44"]);
}

#[test]
fn a_checkpoint_is_taken_again_if_an_end_has_nothing_of_it() {
    for index in [0, 1] {
        for other in [false, true] {
            let mut bench = sending();
            keep_a_part(&mut bench.kept[index], 64 << 10);
            if other {
                bench.kept[index].arriving.as_mut().expect("a part").0.number += 1;
            } else {
                bench.kept[index].arriving = None;
            }
            ask_live(&mut bench, [1, 0]);
            assert_eq!(bench.owner.held_bytes(), 43);
            let lines = bench.look();
            assert_eq!(lines[lines.len() - 2..], ["copy full", "seal 2 at 43"]);
        }
    }
}

#[test]
fn a_checkpoint_is_not_continued_by_a_cell_that_is_rebuilt() {
    let mut bench = sending();
    keep_a_part(&mut bench.kept[0], 64 << 10);
    keep_a_part(&mut bench.kept[1], 64 << 10);
    bench.open();
    bench.kept[0].live_at(1);
    // The server's end has promised another owner meanwhile.
    bench.hand_over();
    bench.look();
    bench.kept[0].live = false;
    bench.open();
    assert_eq!(bench.owner.held_bytes(), 43, "only the log");
}

#[test]
fn ends_receive_once_more_what_is_covered() {
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    break_links(&mut bench);
    ask_live(&mut bench, [1, 0]);
    assert_eq!(bench.look()[2..], ["client: forget log 43 sent 1", "server: forget log 43 sent 0"]);
}

#[test]
fn session_time_does_not_jump_while_the_cell_lives() {
    let mut bench = detached();
    bench.now = Now { mono_ns: bench.now.mono_ns + 10, unix_ns: 9_000_000 };
    ask_live(&mut bench, [1, 0]);
    bench.say(CLIENT, "b");
    assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(1_000_010));
}

#[test]
fn an_end_may_have_moved_to_another_agent() {
    let mut bench = Bench::new(OwnerPolicy { server: Some("database".into()), ..policy() });
    let hosts = [HOSTS[0], HostId([5; 16])];
    let generation = Generation { count: 1, opener: 1 };
    bench.step(|owner, now, out| {
        let attempt = Attempt {
            generation,
            channels: &[(CLIENT, 1), (SERVER, 2)],
            hosts: &[(CLIENT, hosts[0]), (SERVER, hosts[1])],
            fresh: false,
            proven: true,
            assigned: false,
            client_identity: None,
        };
        owner.open(now, &attempt, out);
    });
    assert_eq!(bench.look(), ["client: promise 1 beside 5", "server: promise 1 beside 1 to database"]);
    assert_eq!(bench.owner.host(SERVER), Some(hosts[1]));
}

/// The client's port has opened and its handler has greeted the client; the server's handler, of the same entry, still runs.
fn greeting() -> Bench {
    let mut bench = Bench::new(policy());
    bench.ask();
    bench.started();
    bench.ran(&[(CLIENT, "hello")]);
    assert_eq!(bench.look().last().map(String::as_str), Some("run open server as Server"));
    bench
}

#[test]
fn an_output_waits_for_its_entry_though_the_wire_came_back_before() {
    for broken in [&[CLIENT][..], &[SERVER], &[CLIENT, SERVER]] {
        let mut bench = greeting();
        broken.iter().for_each(|port| bench.unlinked(*port));
        ask_live(&mut bench, [0, 0]);
        let chosen = ["client: chosen 0..0 credit 1114112", "server: chosen 0..0 credit 1114112"];
        assert_eq!(bench.look(), chosen, "the entry is not logged");
        bench.ran(&[(SERVER, "query")]);
        let released = ["client: output hello with log 0..42", "server: output query with log 0..42"];
        assert_eq!(bench.look(), released);
        // The edge fails. The next one finds the entry, with the client's greeting in it.
        bench.fail_over();
        bench.ask();
        bench.started();
        bench.ran(&[(CLIENT, "hello")]);
        bench.ran(&[(SERVER, "query")]);
        assert_eq!(
            (bench.phase(), bench.look().iter().any(|line| line.contains("output"))),
            (OwnerPhase::Running, false)
        );
    }
}

#[test]
fn an_output_waits_for_its_entry_though_an_end_gives_credit_before() {
    let mut bench = greeting();
    bench.credit(CLIENT, 0, 10);
    bench.credit(SERVER, 0, 10);
    bench.say(CLIENT, "impatient");
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.stored(CLIENT, 0, None);
    bench.step(|owner, _, out| owner.tell_standby(None, out));
    assert_eq!(bench.look(), [""; 0], "the entry is not logged");
    bench.ran(&[]);
    assert_eq!(bench.look(), ["client: output hello with log 0..42", "run impatient of client"]);
    // An end cannot have received an output that was not sent.
    let mut bench = greeting();
    bench.credit(CLIENT, 1, 0);
    assert_eq!(bench.look()[0], "client: ended Protocol");
    let mut bench = greeting();
    bench.unlinked(CLIENT);
    bench.kept[0].received = 1;
    ask_live(&mut bench, [0, 0]);
    assert_eq!(bench.look(), ["remove 1", "again 2"]);
}

#[test]
fn an_output_waits_for_its_entry_while_no_end_is_linked() {
    let mut bench = greeting();
    break_links(&mut bench);
    bench.ran(&[(CLIENT, "again")]);
    assert_eq!(bench.look(), [""; 0]);
    ask_live(&mut bench, [0, 0]);
    let all = [
        "client: chosen 0..42 credit 1114112",
        "server: chosen 0..42 credit 1114112",
        "client: output hello",
        "client: output again",
    ];
    assert_eq!(bench.look(), all, "the chosen log has the entry");
}
