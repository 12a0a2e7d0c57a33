//! How a checkpoint is sent, and what is deleted once an end holds it.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, SERVER, policy, zeros};
use bytes::Bytes;
use marram_session::owner::{Holder, OwnerPolicy};
use marram_wire::limits::{CHECKPOINT_WINDOW, CHECKPOINTS_SIZE, PART_SIZE};

fn kept_by(holder: Holder) -> OwnerPolicy {
    OwnerPolicy { holder, ..policy() }
}

/// A session with an expensive first message, and the owner's effects then.
fn due(policy: OwnerPolicy) -> Bench {
    let mut bench = Bench::begun(policy);
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(bench.look(), ["run a of client", "copy full", "seal 1 at 43"]);
    bench
}

#[test]
fn nothing_is_forgotten_before_a_checkpoint_is_held() {
    let mut bench = due(policy());
    bench.consume(CLIENT, "b", 0);
    bench.look();
    assert_eq!(bench.checkpointed("sealed"), None);
    // The log that it covers is sent first, and nothing to the server.
    let sent = ["client: log 0..44", "client: checkpoint 1 full at 43 of 6", "client: part of 6"];
    assert_eq!(bench.look(), sent);
    assert_eq!(bench.owner.held_bytes(), 44 + 6);
    bench.stored(SERVER, 6, Some(1));
    bench.stored(CLIENT, 6, None);
    assert_eq!(bench.look(), [""; 0], "not whole, for all that its holder says");
    assert_eq!(bench.owner.totals().checkpoints, 0);
    bench.stored(CLIENT, 0, Some(1));
    // The positions of the copy, not the present ones.
    assert_eq!(bench.look(), ["client: forget log 43 sent 1", "server: forget log 43 sent 0"]);
    assert_eq!((bench.owner.log_bytes(), bench.owner.held_bytes()), ((44, 1), 1));
    let totals = bench.owner.totals();
    assert_eq!((totals.checkpoints, totals.checkpoint_bytes), (1, 6));
    // An end that has deleted a part of the log is not sent it any more.
    bench.say(CLIENT, "c");
    bench.ran(&[(SERVER, "C")]);
    assert_eq!(bench.look(), ["run c of client", "server: output C with log 43..45"]);
    assert_eq!(bench.kept[1].log, [0, 0]);
}

#[test]
fn a_checkpoint_is_whole_when_its_last_byte_and_its_number_are_there() {
    for (bytes, complete, whole) in
        [(5, Some(1), false), (6, Some(2), false), (6, None, false), (6, Some(1), true)]
    {
        let mut bench = due(policy());
        bench.checkpointed("sealed");
        bench.look();
        bench.stored(CLIENT, bytes, complete);
        assert_eq!(!bench.look().is_empty(), whole, "{bytes} {complete:?}");
    }
}

#[test]
fn an_end_stores_no_more_than_it_was_sent() {
    for (first, second) in [(7, None), (6, Some(1)), (1, Some(u64::MAX))] {
        let mut bench = due(kept_by(Holder::Both));
        bench.checkpointed("sealed");
        bench.look();
        bench.stored(CLIENT, first, None);
        second.into_iter().for_each(|bytes| bench.stored(CLIENT, bytes, None));
        let over = ["client: ended Protocol", "server: ended Protocol", "remove 1", "over Protocol"];
        assert_eq!(bench.look(), over);
    }
    let mut bench = due(policy());
    bench.stored(CLIENT, 1, None);
    assert_eq!(bench.look(), [""; 0], "late word of another one");
}

#[test]
fn two_holders_must_both_have_it() {
    for first in [CLIENT, SERVER] {
        let second = if first == CLIENT { SERVER } else { CLIENT };
        let mut bench = due(kept_by(Holder::Both));
        bench.checkpointed("sealed");
        let sent = ["log 0..43", "checkpoint 1 full at 43 of 6"];
        let both = [CLIENT, SERVER]
            .map(|port| sent.map(|line| format!("{}: {line}", crate::owner::show::port(port))));
        assert_eq!(
            bench.look(),
            [&both.concat()[..], &["client: part of 6".into(), "server: part of 6".into()]].concat()
        );
        bench.stored(first, 6, Some(1));
        assert_eq!(bench.look(), [""; 0]);
        bench.stored(second, 6, Some(1));
        assert_eq!(bench.look(), ["client: forget log 43 sent 1", "server: forget log 43 sent 0"]);
    }
}

#[test]
fn the_server_may_be_the_one_to_hold_it() {
    let mut bench = due(kept_by(Holder::Server));
    bench.checkpointed("sealed");
    assert_eq!(
        bench.look(),
        ["server: log 0..43", "server: checkpoint 1 full at 43 of 6", "server: part of 6"]
    );
    bench.stored(SERVER, 6, Some(1));
    assert_eq!(bench.look(), ["client: forget log 43 sent 1", "server: forget log 43 sent 0"]);
}

#[test]
fn parts_travel_within_the_window() {
    let window = usize::try_from(CHECKPOINT_WINDOW).expect("small") / PART_SIZE;
    let mut bench = due(policy());
    bench.checkpointed(zeros(CHECKPOINT_WINDOW + 3 * PART_SIZE as u64 + 5));
    let parts = |bench: &mut Bench| -> Vec<String> {
        bench
            .look()
            .into_iter()
            .filter_map(|line| line.strip_prefix("client: part of ").map(Into::into))
            .collect()
    };
    let whole = PART_SIZE.to_string();
    assert_eq!(parts(&mut bench), vec![whole.clone(); window]);
    bench.stored(CLIENT, 1, None);
    assert_eq!(parts(&mut bench), [&*whole], "a byte of room lets a part through");
    bench.stored(CLIENT, PART_SIZE as u64 - 1, None);
    assert_eq!(parts(&mut bench), [""; 0]);
    bench.stored(CLIENT, CHECKPOINT_WINDOW, None);
    assert_eq!(parts(&mut bench), [whole.clone(), whole, "5".into()]);
    assert_eq!(bench.owner.held_bytes(), 43 + CHECKPOINT_WINDOW + 3 * PART_SIZE as u64 + 5);
}

#[test]
fn one_checkpoint_at_a_time() {
    let mut bench = due(policy());
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    assert_eq!(bench.look(), ["run b of client"], "while it is encoded");
    bench.checkpointed("sealed");
    bench.look();
    bench.consume(CLIENT, "c", EXPENSIVE_NS);
    assert_eq!(bench.look(), ["run c of client"], "while it travels");
    bench.say(CLIENT, "d");
    bench.look();
    bench.stored(CLIENT, 6, Some(1));
    assert_eq!(bench.look().len(), 2, "while a handler runs");
    bench.ran(&[]);
    assert_eq!(bench.look(), ["copy delta", "seal 2 at 46"]);
}

#[test]
fn the_next_one_follows_when_the_first_is_stored() {
    let mut bench = due(policy());
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    bench.checkpointed("sealed");
    bench.look();
    bench.stored(CLIENT, 6, Some(1));
    assert_eq!(bench.look()[2..], ["copy delta", "seal 2 at 44"]);
}

#[test]
fn a_checkpoint_that_fails_is_followed_by_a_full_one() {
    type Encode = fn() -> Result<Bytes, String>;
    let fails: [(Encode, &str); 2] = [
        (|| Err("no memory".into()), "no memory"),
        (
            || Ok(zeros(CHECKPOINTS_SIZE + 1)),
            "a checkpoint has 536870913 bytes, and an end has room for 536870906 beside those that it keeps; raise \
             limits.checkpoints of the agents and edges",
        ),
    ];
    for (result, complaint) in fails {
        let mut bench = Bench::begun(policy());
        bench.cover(b"sealed");
        bench.consume(CLIENT, "b", EXPENSIVE_NS);
        bench.look();
        let cell = bench.owner.cell().expect("a cell");
        let said = bench.answer_checkpoint(cell, 2, result());
        assert_eq!((said.as_deref(), bench.look().len()), (Some(complaint), 1));
        bench.consume(CLIENT, "c", EXPENSIVE_NS);
        assert_eq!(bench.look()[1..], ["copy full", "seal 3 at 45"]);
    }
}

#[test]
fn a_checkpoint_of_the_largest_size_travels() {
    let mut bench = due(policy());
    assert_eq!(bench.checkpointed(zeros(CHECKPOINTS_SIZE)), None);
    assert_eq!(bench.look()[1], format!("client: checkpoint 1 full at 43 of {CHECKPOINTS_SIZE}"));
}

#[test]
fn late_checkpoints_are_dropped() {
    let mut bench = due(policy());
    let cell = bench.owner.cell().expect("a cell");
    let other = marram_session::cell::CellId(cell.0 + 1);
    for (cell, number) in [(cell, 2), (other, 1)] {
        assert_eq!(bench.answer_checkpoint(cell, number, Ok("late".into())), None);
        assert_eq!(bench.look(), [""; 0]);
    }
    // The ends are asked again: the session may continue at another edge.
    bench.open();
    bench.look();
    assert_eq!(bench.answer_checkpoint(cell, 1, Ok("late".into())), None);
    assert_eq!(bench.look(), [""; 0]);
}
