//! What exceeds a quota, and what a shared cell may send.

use crate::owner::bench::{Bench, CLIENT, SERVER, charged, message, policy, set};
use bytes::Bytes;
use marram_session::cell::CellOutput;
use marram_session::owner::{OwnerPhase, OwnerPolicy};
use marram_wire::{
    frame::Keeps,
    limits::{ENTRY_SIZE_MAX, OUTPUTS_MAX, TIMERS_MAX},
    seal::LOG_OFFSET_MAX,
};

#[test]
fn a_second_has_its_quota_of_messages() {
    let quota = OwnerPolicy { messages_per_s: 3, ..policy() };
    let mut bench = Bench::begun(quota.clone());
    for (at_ns, outputs, over) in [
        (0, 3, false),
        (999_999_999, 0, false),
        (1_000_000_000, 2, false),
        (1_999_999_999, 1, false),
        (1_999_999_999, 1, true),
    ] {
        bench.now.mono_ns = 1_500_000_000 + at_ns;
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| ran.outputs = vec![message(SERVER, Bytes::new()); outputs]);
        assert_eq!(bench.look().contains(&"over Guest".into()), over, "{at_ns}");
    }
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.outputs = vec![message(SERVER, Bytes::new()); 100]);
    assert_eq!(bench.phase(), OwnerPhase::Running, "0 is no limit");
}

#[test]
fn a_second_has_its_quota_of_log() {
    // The first entry has 42 bytes, a message without a time has one.
    let mut bench = Bench::begun(OwnerPolicy { log_bytes_per_s: 44, ..policy() });
    bench.consume(CLIENT, "a", 0);
    bench.consume(CLIENT, "b", 0);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    bench.look();
    bench.consume(CLIENT, "c", 0);
    let over = ["run c of client", "client: ended Guest", "server: ended Guest", "remove 1", "over Guest"];
    assert_eq!(bench.look(), over);
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    assert_eq!(bench.phase(), OwnerPhase::Running, "0 is no limit");
}

#[test]
fn a_handler_has_its_limits() {
    for (outputs, timers, over) in
        [(OUTPUTS_MAX, TIMERS_MAX, false), (OUTPUTS_MAX + 1, 0, true), (0, TIMERS_MAX + 1, true)]
    {
        let mut bench = Bench::begun(policy());
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| {
            ran.outputs = vec![message(SERVER, Bytes::new()); outputs];
            ran.timers = (0..timers as u64).map(|token| set(token, 1 << 40)).collect();
        });
        let lines = bench.look();
        assert_eq!(lines.last().is_some_and(|line| line == "over Guest"), over, "{outputs} {timers}");
    }
}

#[test]
fn a_shared_cell_speaks_to_a_session_unasked() {
    let shared = OwnerPolicy { keeps: Keeps::Nothing, shared: true, messages_per_s: 2, ..policy() };
    let mut bench = Bench::begun(shared);
    let texts = |texts: &[&'static str]| -> Vec<CellOutput> {
        texts.iter().map(|text| message(CLIENT, Bytes::from_static(text.as_bytes()))).collect()
    };
    bench.step(|owner, now, out| owner.deliver(now, texts(&["news", "more"]), out));
    assert_eq!(bench.look(), ["client: output news", "client: output more"]);
    assert_eq!(bench.owner.totals().produced, 2);
    bench.step(|owner, now, out| owner.deliver(now, texts(&["too much"]), out));
    assert_eq!(bench.look().last().map(String::as_str), Some("over Guest"));
}

#[test]
fn a_shared_cell_does_not_wait_for_a_slow_client() {
    const UNSENT_SHARED_MAX: u64 = 4 << 20;
    for (shared, more, over) in [(true, 0, false), (true, 1, true), (false, 1, false)] {
        let mut bench = Bench::new(OwnerPolicy { keeps: Keeps::Nothing, shared, ..policy() });
        bench.kept[0].window = 0;
        bench.begin();
        bench.look();
        let outputs = vec![message(CLIENT, charged(1 << 20)); 3];
        bench.step(|owner, now, out| owner.deliver(now, outputs, out));
        let rest = UNSENT_SHARED_MAX - (3 << 20) + more - (1 << 19);
        let last = vec![message(CLIENT, charged(1 << 19)), message(CLIENT, charged(rest))];
        bench.step(|owner, now, out| owner.deliver(now, last, out));
        assert_eq!(bench.look().last().is_some_and(|line| line == "over Guest"), over, "{shared} {more}");
    }
}

/// A log is at most as long as the keystream that seals it; the session ends before there is no room for an entry.
#[test]
fn a_log_ends_before_its_offsets_do() {
    let ends_at = LOG_OFFSET_MAX - ENTRY_SIZE_MAX as u64;
    for (log_end, over) in [(ends_at - 3, false), (ends_at - 1, true)] {
        let mut bench = Bench::begun(policy());
        bench.cover(b"sealed");
        bench.fail_over();
        for kept in &mut bench.kept {
            kept.log_start = log_end;
            kept.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.meta.log_offset = log_end);
        }
        for header in &mut bench.headers {
            header.log_offset = log_end;
        }
        bench.ask();
        bench.restored(log_end);
        bench.say(CLIENT, "b");
        bench.ran(&[(SERVER, "B")]);
        let lines = bench.look();
        assert_eq!(lines.contains(&"over Guest".into()), over, "{log_end}: {lines:?}");
    }
}
