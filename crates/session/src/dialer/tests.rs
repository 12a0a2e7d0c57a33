//! When wires are dialled, asked, suspected and closed.

use super::*;

const MS: u64 = 1_000_000;
const FIRST: Target = Target { edge: 0, shard: 0 };
const SECOND: Target = Target { edge: 0, shard: 1 };

fn dialer() -> Dialer {
    let config = DialerConfig {
        edges: 1,
        heartbeat_interval_ns: 50 * MS,
        heartbeat_timeout_ns: 200 * MS,
        backoff_min_ns: 10 * MS,
        backoff_max_ns: 80 * MS,
    };
    Dialer::new(config, 0)
}

fn due(dialer: &mut Dialer, now_ns: u64) -> Vec<DialerAction> {
    let mut out = Vec::new();
    dialer.due(now_ns, &mut out);
    out
}

/// Runs the dialer until this time, with each timeout handled exactly when it is due.
fn until(dialer: &mut Dialer, end_ns: u64) -> Vec<DialerAction> {
    let mut acts = Vec::new();
    while let Some(now_ns) = dialer.wake_ns().filter(|now_ns| *now_ns <= end_ns) {
        dialer.due(now_ns, &mut acts);
        if matches!(acts.last(), Some(DialerAction::Close { .. })) {
            break;
        }
    }
    acts
}

/// Dials the only edge eight times, each time with this failure. Returns how long it waits until each retry.
fn waits(mut fail: impl FnMut(&mut Dialer, &mut Random, u64, u64)) -> (Vec<u64>, Dialer) {
    let (mut dialer, mut random) = (dialer(), Random::new([1; 32]));
    let (mut now_ns, mut waits) = (0, Vec::new());
    for wire in 0..8 {
        assert_eq!(due(&mut dialer, now_ns), [DialerAction::Dial(FIRST)]);
        fail(&mut dialer, &mut random, now_ns, wire);
        let wake_ns = dialer.wake_ns().expect("it is tried again");
        waits.push(wake_ns - now_ns);
        now_ns = wake_ns;
    }
    (waits, dialer)
}

#[test]
fn every_shard_is_dialled_once_and_again_when_its_wire_breaks() {
    let (mut dialer, mut random) = (dialer(), Random::new([1; 32]));
    assert_eq!(due(&mut dialer, 0), [DialerAction::Dial(FIRST)]);
    assert_eq!(due(&mut dialer, MS), []);
    dialer.up(MS, 7, FIRST);
    dialer.welcomed(MS, 7, 2);
    assert_eq!(due(&mut dialer, MS), [DialerAction::Dial(SECOND)]);
    assert_eq!(dialer.down(2 * MS, 7, &mut random), Some(FIRST));
    assert_eq!(due(&mut dialer, 2 * MS), [DialerAction::Dial(FIRST)]);
    assert_eq!(dialer.down(2 * MS, 7, &mut random), None);
}

#[test]
fn an_unreachable_edge_is_dialled_ever_less_often() {
    let (waits, _) = waits(|dialer, random, now_ns, _| dialer.failed(now_ns, FIRST, random));
    assert!(waits[0] <= 10 * MS && waits[7] >= 40 * MS && waits[7] <= 80 * MS, "{waits:?}");
}

#[test]
fn an_edge_that_closes_new_wires_is_not_dialled_in_a_loop() {
    let (waits, _) = waits(|dialer, random, now_ns, wire| {
        dialer.up(now_ns, wire, FIRST);
        dialer.down(now_ns, wire, random);
    });
    let now_ns: u64 = waits.iter().sum();
    assert!(now_ns > 100 * MS, "{now_ns}");
}

#[test]
fn an_edge_that_closes_welcomed_wires_is_dialled_at_once_only_the_first_time() {
    let (waits, mut dialer) = waits(|dialer, random, now_ns, wire| {
        dialer.up(now_ns, wire, FIRST);
        dialer.welcomed(now_ns, wire, 1);
        dialer.down(now_ns, wire, random);
    });
    assert_eq!(waits[0], 0);
    assert!((5 * MS..=10 * MS).contains(&waits[1]) && waits[7] >= 40 * MS, "{waits:?}");
    let now_ns = waits.iter().sum();
    due(&mut dialer, now_ns);
    dialer.up(now_ns, 9, FIRST);
    dialer.welcomed(now_ns, 9, 1);
    let broke_ns = now_ns + LASTS_NS;
    dialer.down(broke_ns, 9, &mut Random::new([1; 32]));
    assert_eq!(dialer.wake_ns(), Some(broke_ns), "it lasted");
}

#[test]
fn the_silent_are_suspected_and_given_up_much_later() {
    let mut dialer = dialer();
    due(&mut dialer, 0);
    dialer.up(0, 7, FIRST);
    assert_eq!(due(&mut dialer, 50 * MS), [DialerAction::Ping(7)]);
    assert!(!dialer.heard(60 * MS, 7, Some(50 * MS)));
    let acts = until(&mut dialer, 260 * MS);
    assert_eq!(acts.last(), Some(&DialerAction::Suspect { wire: 7, silent_ns: 200 * MS }));
    assert!(dialer.is_suspected(7));
    assert!(dialer.heard(270 * MS, 7, None) && !dialer.heard(270 * MS, 7, None), "once");
    let dead_ns = 270 * MS + 200 * MS * GIVE_UP;
    let acts = until(&mut dialer, dead_ns);
    assert_eq!(acts.last(), Some(&DialerAction::Close { wire: 7, silent_ns: 200 * MS * GIVE_UP }));
}

/// A wire on which `count` heartbeats were answered after this delay, the last one `delay_ns` before the returned time.
fn answered(count: u32, delay_ns: u64) -> (Dialer, u64) {
    let mut dialer = dialer();
    due(&mut dialer, 0);
    dialer.up(0, 7, FIRST);
    let mut now_ns = 0;
    for _ in 0..count {
        now_ns = dialer.wake_ns().expect("a heartbeat is due");
        assert_eq!(due(&mut dialer, now_ns), [DialerAction::Ping(7)]);
        now_ns += delay_ns;
        dialer.heard(now_ns, 7, Some(now_ns - delay_ns));
    }
    (dialer, now_ns)
}

/// How long after the last frame the edge is suspected.
fn patience(dialer: &mut Dialer, heard_ns: u64) -> u64 {
    let mut acts = Vec::new();
    while !dialer.is_suspected(7) {
        dialer.due(dialer.wake_ns().expect("an end of the patience"), &mut acts);
    }
    let Some(DialerAction::Suspect { silent_ns, .. }) = acts.last() else { panic!("{acts:?}") };
    assert!(
        acts.len() as u64 <= 2 + silent_ns / (50 * MS),
        "it is asked at intervals: {acts:?} since {heard_ns}"
    );
    *silent_ns
}

#[test]
fn who_always_answers_soon_is_suspected_soon_after_a_heartbeat() {
    let (mut dialer, now_ns) = answered(8, 2 * MS);
    // A heartbeat each 50 ms, of which 2 had passed; the floor is three eighths of 200 ms.
    assert_eq!(patience(&mut dialer, now_ns), 48 * MS + 75 * MS);
}

#[test]
fn after_few_answers_the_timeout_alone_counts() {
    let (mut dialer, now_ns) = answered(7, 2 * MS);
    assert_eq!(patience(&mut dialer, now_ns), 200 * MS);
}

#[test]
fn one_slow_answer_of_many_is_normal_for_a_while() {
    for (slow_ns, expected_ns) in [(30 * MS, 50 * MS + 120 * MS), (60 * MS, 200 * MS)] {
        let (mut dialer, mut now_ns) = answered(20, MS);
        now_ns += 49 * MS;
        assert_eq!(due(&mut dialer, now_ns), [DialerAction::Ping(7)]);
        let acts = until(&mut dialer, now_ns + slow_ns - 1);
        assert!(!dialer.is_suspected(7), "{acts:?}");
        dialer.heard(now_ns + slow_ns, 7, Some(now_ns));
        now_ns = dialer.wake_ns().expect("a heartbeat is due");
        assert_eq!(due(&mut dialer, now_ns), [DialerAction::Ping(7)]);
        dialer.heard(now_ns, 7, Some(now_ns));
        assert_eq!(patience(&mut dialer, now_ns), expected_ns);
    }
}

#[test]
fn a_slow_answer_is_forgotten_in_time() {
    let (mut dialer, mut now_ns) = answered(8, 40 * MS);
    let long_after_ns = now_ns + 3 * 30_000 * MS;
    while now_ns < long_after_ns {
        now_ns = dialer.wake_ns().expect("a heartbeat is due");
        due(&mut dialer, now_ns);
        dialer.heard(now_ns, 7, Some(now_ns));
    }
    assert_eq!(patience(&mut dialer, now_ns), 50 * MS + 75 * MS);
}

#[test]
fn any_frame_after_a_heartbeat_counts_as_a_sign_of_life() {
    let (mut dialer, mut now_ns) = answered(8, 2 * MS);
    now_ns += 48 * MS;
    assert_eq!(due(&mut dialer, now_ns), [DialerAction::Ping(7)]);
    // No answer, but other frames all the while: the answer may wait behind them.
    for _ in 0..20 {
        now_ns += 30 * MS;
        dialer.heard(now_ns, 7, None);
        due(&mut dialer, now_ns);
    }
    assert!(!dialer.is_suspected(7));
}

#[test]
fn a_wire_that_falls_silent_after_traffic_is_asked_before_the_interval_is_over() {
    let (mut dialer, mut now_ns) = answered(8, 2 * MS);
    now_ns += 5 * MS;
    dialer.heard(now_ns, 7, None);
    assert_eq!(due(&mut dialer, now_ns + 12 * MS), []);
    assert_eq!(patience(&mut dialer, now_ns), 50 * MS / 4 + 75 * MS);
}

#[test]
fn traffic_does_not_add_heartbeats() {
    let (mut dialer, mut now_ns) = answered(8, 0);
    let mut heartbeats = 0;
    for _ in 0..1_000 {
        now_ns += MS;
        dialer.heard(now_ns, 7, None);
        heartbeats += due(&mut dialer, now_ns).len();
    }
    assert_eq!(heartbeats, 1_000 / 50);
}

#[test]
fn an_answer_with_a_time_to_come_says_nothing() {
    let (mut dialer, now_ns) = answered(8, 2 * MS);
    dialer.heard(now_ns, 7, Some(u64::MAX));
    assert_eq!(patience(&mut dialer, now_ns), 48 * MS + 75 * MS);
}

#[test]
fn silence_in_which_this_process_had_no_turn_itself_says_nothing() {
    let mut dialer = dialer();
    due(&mut dialer, 0);
    dialer.up(0, 7, FIRST);
    // The heartbeat was due after 50 ms; the process runs after 300.
    assert_eq!(due(&mut dialer, 300 * MS), [DialerAction::Ping(7)]);
    let acts = until(&mut dialer, 699 * MS);
    assert!(!dialer.is_suspected(7), "{acts:?}");
    until(&mut dialer, 700 * MS);
    assert!(dialer.is_suspected(7), "a timeout, and twice what it was late");
}

#[test]
fn a_process_that_was_stopped_for_long_suspects_again_soon() {
    let mut dialer = dialer();
    due(&mut dialer, 0);
    dialer.up(0, 7, FIRST);
    let woke_ns = 5_000 * MS;
    due(&mut dialer, woke_ns);
    assert!(!dialer.is_suspected(7));
    until(&mut dialer, woke_ns + 200 * MS * LATE_COUNTS + 50 * MS);
    assert!(dialer.is_suspected(7));
}

#[test]
fn lateness_is_forgotten_in_time() {
    let mut dialer = dialer();
    due(&mut dialer, 0);
    dialer.up(0, 7, FIRST);
    due(&mut dialer, 300 * MS);
    let long_after_ns = 300 * MS + 200 * MS * LATE_COUNTS;
    while dialer.wake_ns().is_some_and(|wake_ns| wake_ns <= long_after_ns) {
        let now_ns = dialer.wake_ns().expect("it is due");
        dialer.heard(now_ns, 7, None);
        due(&mut dialer, now_ns);
    }
    dialer.heard(long_after_ns, 7, None);
    until(&mut dialer, long_after_ns + 199 * MS);
    assert!(!dialer.is_suspected(7));
    until(&mut dialer, long_after_ns + 200 * MS);
    assert!(dialer.is_suspected(7));
}

#[test]
fn what_was_sent_may_take_as_long_as_the_timeout() {
    // The answers come at once, up to the last one; then this much is sent, before or after the heartbeat that is not answered.
    let suspected_after = |bytes: u64, is_before: bool| {
        let mut dialer = dialer();
        due(&mut dialer, 0);
        dialer.up(0, 1, FIRST);
        let mut now_ns;
        for _ in 0..20 {
            now_ns = dialer.wake_ns().expect("a heartbeat is due");
            assert!(due(&mut dialer, now_ns).contains(&DialerAction::Ping(1)));
            dialer.sent(1, 64 << 20);
            dialer.heard(now_ns, 1, Some(now_ns));
        }
        // What came after the last heartbeat is not known to have arrived; the next answer covers it.
        now_ns = dialer.wake_ns().expect("a heartbeat is due");
        due(&mut dialer, now_ns);
        dialer.heard(now_ns, 1, Some(now_ns));
        if is_before {
            dialer.sent(1, bytes);
        }
        let asked_ns = dialer.wake_ns().expect("a heartbeat is due");
        due(&mut dialer, asked_ns);
        if !is_before {
            dialer.sent(1, bytes);
        }
        let acts = until(&mut dialer, asked_ns + 1_000 * MS);
        let suspects = acts.iter().find_map(|act| match act {
            DialerAction::Suspect { silent_ns, .. } => Some(*silent_ns / MS),
            _ => None,
        });
        suspects.expect("it does not answer")
    };
    for is_before in [false, true] {
        assert!(suspected_after(1 << 20, is_before) < 150, "{is_before}");
        assert_eq!(suspected_after((1 << 20) + 1, is_before), 200, "{is_before}");
    }
}
