//! When a checkpoint is taken, of which kind, and its contents.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, SERVER, message, policy, set, zeros};
use marram_session::cell::{CellId, CheckpointBase};
use marram_wire::limits::{CHECKPOINT_AFTER_BYTES, COVER_LOG, DELTAS_MAX, MESSAGE_SIZE_MAX, charge};

#[test]
fn a_checkpoint_is_taken_when_replay_would_take_longer_than_the_target() {
    let mut bench = Bench::begun(policy());
    for (cost_ns, lines) in [(600, &[""; 0][..]), (400, &[]), (1, &["copy full", "seal 1 at 45"])] {
        bench.consume(CLIENT, "a", cost_ns);
        assert_eq!(bench.look()[1..], *lines);
    }
    // The count restarts at the copy, whether or not the checkpoint is stored yet.
    bench.consume(CLIENT, "a", 1_000);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    assert!(!bench.look().iter().any(|line| line.starts_with("copy")));
    bench.consume(CLIENT, "a", 1);
    assert_eq!(bench.look()[1..], ["copy delta", "seal 2 at 47"]);
}

#[test]
fn a_checkpoint_is_taken_when_an_end_keeps_too_much() {
    let one = charge(MESSAGE_SIZE_MAX);
    let rest = usize::try_from(CHECKPOINT_AFTER_BYTES - 3 * one - charge(0)).expect("less than a message");
    for (last, taken) in [(rest - 1, false), (rest, true)] {
        let mut bench = Bench::begun(policy());
        let big = zeros(MESSAGE_SIZE_MAX as u64);
        (0..3).for_each(|_| bench.consume(CLIENT, big.clone(), 0));
        // Each end keeps its own messages.
        (0..3).for_each(|_| bench.consume(SERVER, big.clone(), 0));
        bench.consume(CLIENT, zeros(last as u64), 0);
        assert_eq!(bench.taken.is_some(), taken, "{last}");
    }
}

#[test]
fn a_checkpoint_is_taken_when_the_log_is_long() {
    let mut bench = Bench::begun(policy());
    bench.fill_log(COVER_LOG - 8);
    while bench.log_end() < COVER_LOG - 1 {
        bench.consume(CLIENT, "", 0);
    }
    assert!(bench.taken.is_none());
    bench.consume(CLIENT, "", 0);
    assert!(bench.taken.is_some());
}

#[test]
fn a_large_cell_is_copied_when_its_copy_is_prepared_and_runs_meanwhile() {
    let mut bench = Bench::begun(policy());
    let cell = bench.owner.cell().expect("it runs");
    // Another cell's size is of no concern.
    bench.step(|owner, _, _| owner.large(CellId(77)));
    bench.step(|owner, _, _| owner.large(cell));
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(bench.look().last().map(String::as_str), Some("prepare full"));
    // It is asked for once, and the cell goes on.
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    assert!(bench.look().iter().all(|line| !line.starts_with("prepare") && !line.starts_with("copy")));
    // Ready in the middle of an entry: the copy waits for its end, and covers it.
    bench.say(CLIENT, "c");
    bench.step(|owner, _, out| owner.prepared(cell, out));
    assert!(bench.taken.is_none());
    bench.ran_with(|ran| ran.cost_ns = 1);
    let header = bench.taken.as_ref().expect("between two entries");
    assert_eq!((header.log_offset, header.ports[0].took), (bench.log_end(), 3));
    assert_eq!(bench.copied, Some(CheckpointBase::Image));
    // An answer that comes twice changes nothing.
    bench.look();
    bench.step(|owner, _, out| owner.prepared(cell, out));
    assert_eq!(bench.look(), [""; 0]);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    bench.look();
    bench.consume(CLIENT, "d", EXPENSIVE_NS);
    assert_eq!(bench.look().last().map(String::as_str), Some("prepare delta"));
    bench.step(|owner, _, out| owner.prepared(cell, out));
    assert_eq!(bench.look()[0], "copy delta");
}

#[test]
fn the_header_says_where_the_session_stands() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A"), (CLIENT, "B")]);
    bench.credit(CLIENT, 1, 0);
    bench.close(SERVER);
    bench.ran_with(|ran| {
        (ran.cost_ns, ran.clock_read) = (EXPENSIVE_NS, true);
        ran.timers = vec![set(6, 50)];
    });
    bench.credit(CLIENT, 1, 0);
    let header = bench.taken.take().expect("a checkpoint is due");
    assert_eq!(bench.copied, Some(CheckpointBase::Image));
    assert_eq!((header.session, header.image), (bench.owner.session(), bench.owner.image()));
    assert_eq!((header.generation, header.number, header.base_number), (bench.generation, 1, 0));
    assert_eq!((header.log_offset, header.last_ns), (bench.log_end(), 1_000_000));
    assert_eq!((header.timers_set, header.timers.0[0].token, header.timers.0[0].due_ns), (1, 6, 1_000_050));
    let [client, server] = header.ports.try_into().expect("two ports");
    assert_eq!(
        (client.took, client.input_closed, client.produced, client.output_closed),
        (1, false, 2, false)
    );
    assert_eq!(client.outbox.0, [], "what is acknowledged is in no checkpoint");
    assert_eq!((server.took, server.input_closed, server.produced), (1, true, 0));
}

#[test]
fn outputs_that_no_end_has_acknowledged_are_in_the_checkpoint() {
    let mut bench = Bench::begun(policy());
    bench.kept[0].window = 0;
    bench.fail_over();
    bench.begin();
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.cost_ns = EXPENSIVE_NS;
        ran.outputs = vec![message(CLIENT, "A"), message(CLIENT, "B"), message(SERVER, "C")];
    });
    assert!(bench.taken.is_none(), "the server may be about to acknowledge");
    bench.say(CLIENT, "b");
    bench.ran(&[(CLIENT, "later")]);
    bench.credit(SERVER, 1, 0);
    let header = bench.taken.take().expect("all that was on its way has arrived");
    let outbox: Vec<&[u8]> = header.ports[0].outbox.0.iter().map(|output| &output.payload[..]).collect();
    assert_eq!(outbox, [b"A", b"B"], "as of the copy");
    assert_eq!(header.ports[0].produced, 2);
    assert_eq!(header.ports[1].outbox.0, []);
}

#[test]
fn a_copy_does_not_wait_for_ever() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.cost_ns = EXPENSIVE_NS;
        ran.outputs = vec![message(SERVER, "A")];
    });
    bench.consume(CLIENT, "b", EXPENSIVE_NS - 1);
    assert!(bench.taken.is_none());
    bench.consume(CLIENT, "c", 1);
    let header = bench.taken.take().expect("as much was done since as calls for a checkpoint");
    assert_eq!((header.log_offset, header.ports[1].outbox.0.len()), (43, 1));
}

#[test]
fn a_copy_waits_for_log_and_messages_within_bounds() {
    let quiet = |bench: &mut Bench| {
        bench.fill_log(COVER_LOG * 3 / 4);
        bench.consume(CLIENT, zeros(MESSAGE_SIZE_MAX as u64), 0);
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| {
            ran.cost_ns = EXPENSIVE_NS;
            ran.outputs = vec![message(SERVER, "A")];
        });
        assert!(bench.copied.is_some() && bench.taken.is_none());
    };
    let mut log = Bench::begun(policy());
    quiet(&mut log);
    let copied_at = log.log_end();
    log.fill_log(copied_at + COVER_LOG - 8);
    assert!(log.taken.is_none());
    log.fill_log(copied_at + COVER_LOG);
    assert!(log.taken.is_some());
    let mut messages = Bench::begun(policy());
    quiet(&mut messages);
    (0..3).for_each(|_| messages.consume(CLIENT, zeros(MESSAGE_SIZE_MAX as u64), 0));
    assert!(messages.taken.is_none());
    messages.consume(CLIENT, zeros(MESSAGE_SIZE_MAX as u64), 0);
    assert!(messages.taken.is_some());
}

#[test]
fn none_is_taken_for_a_holder_that_is_away() {
    let mut bench = Bench::begun(policy());
    bench.unlinked(CLIENT);
    bench.consume(SERVER, "a", EXPENSIVE_NS);
    assert_eq!(bench.look(), ["run a of server"]);
    let mut bench = Bench::begun(policy());
    bench.unlinked(SERVER);
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(bench.look(), ["run a of client", "copy full", "seal 1 at 43"]);
}

#[test]
fn deltas_follow_a_full_one_up_to_their_number() {
    let mut bench = Bench::begun(policy());
    let mut kinds = Vec::new();
    for _ in 0..DELTAS_MAX + 3 {
        bench.cover(b"sealed");
        let lines = bench.look();
        kinds.extend(lines.into_iter().filter(|line| line.starts_with("copy")));
    }
    let expected: Vec<bool> = (0..DELTAS_MAX + 3).map(|at| at % (DELTAS_MAX + 1) == 0).collect();
    let full: Vec<bool> = kinds.iter().map(|line| line == "copy full").collect();
    assert_eq!(full, expected, "{kinds:?}");
    assert_eq!(bench.kept[0].checkpoints.len(), 2);
    let totals = bench.owner.totals();
    assert_eq!(
        (totals.checkpoints, totals.checkpoint_bytes),
        (DELTAS_MAX as u64 + 3, 6 * (DELTAS_MAX as u64 + 3))
    );
}

#[test]
fn deltas_name_what_they_build_on() {
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    let taken = bench.taken.as_ref().expect("a checkpoint is due");
    assert_eq!(bench.copied, Some(CheckpointBase::Previous));
    assert_eq!((taken.base_generation, taken.base_number), (bench.generation, 1));
    assert_eq!((taken.number, taken.log_offset), (2, 44));
}

#[test]
fn deltas_that_outgrow_the_full_one_end_with_a_full_one() {
    const KIB: usize = 1 << 10;
    for (full, deltas, next) in [
        // The estimate for the next delta is the size of the last one. One that is hardly smaller saves nothing.
        (6, vec![512], "copy delta"),
        (6, vec![513], "copy full"),
        (256 * KIB, vec![192 * KIB], "copy delta"),
        (256 * KIB, vec![192 * KIB + 1], "copy full"),
        // A small one may have up to 64 KiB of deltas, or 4 times its own size, up to 1 MiB.
        (10 * KIB, vec![7 * KIB; 8], "copy delta"),
        (10 * KIB, vec![7 * KIB; 9], "copy full"),
        (128 * KIB, vec![64 * KIB; 7], "copy delta"),
        (128 * KIB, vec![64 * KIB; 8], "copy full"),
        (512 * KIB, vec![256 * KIB; 3], "copy delta"),
        (512 * KIB, vec![256 * KIB; 4], "copy full"),
    ] {
        let mut bench = Bench::begun(policy());
        for size in [full].into_iter().chain(deltas) {
            bench.look();
            bench.consume(CLIENT, "b", EXPENSIVE_NS);
            let number = bench.taken.as_ref().expect("a checkpoint is due").number;
            bench.checkpointed(vec![0; size]);
            while bench.owner.totals().checkpoints < u64::from(number) {
                let step = bench.kept[0].unstored.min(1 << 16);
                bench.stored(CLIENT, step, Some(number));
            }
        }
        bench.look();
        bench.consume(CLIENT, "c", EXPENSIVE_NS);
        let lines = bench.look();
        assert_eq!(lines[1], next, "{full}");
    }
}

#[test]
fn what_a_checkpoint_covers_does_not_call_for_the_next() {
    let half = zeros(CHECKPOINT_AFTER_BYTES / 8 - charge(0));
    let mut bench = Bench::begun(policy());
    (0..7).for_each(|_| bench.consume(CLIENT, half.clone(), 0));
    bench.consume(CLIENT, half.clone(), 0);
    assert_eq!(bench.look().last().map(String::as_str), Some("seal 1 at 50"));
    bench.consume(CLIENT, half.clone(), 0);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    // One was consumed while the checkpoint was taken: seven more make eight.
    (0..6).for_each(|_| bench.consume(CLIENT, half.clone(), 0));
    assert!(bench.taken.is_none());
    bench.consume(CLIENT, half, 0);
    assert!(bench.taken.is_some());
}
