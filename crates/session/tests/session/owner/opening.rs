//! Opening a generation: the requests to the ends, and the answers that an owner accepts.

use crate::owner::bench::{Bench, CLIENT, SERVER, keys, policy};
use bytes::Bytes;
use marram_session::owner::{OwnerPhase, OwnerPolicy};
use marram_wire::{
    frame::{
        CheckpointBegin, CheckpointKind, CheckpointMeta, CheckpointPart, Code, Input, LogPart, Promised,
    },
    id::Generation,
    limits::{
        CHECKPOINTS_SIZE, DELTAS_MAX, INPUT_WINDOW, INPUTS_MAX, LOG_SIZE_MAX, MESSAGE_SIZE_MAX, RETAINED_MAX,
        charge,
    },
    seal::LOG_OFFSET_MAX,
};

const BROKEN: [&str; 3] = ["client: ended Protocol", "server: ended Protocol", "over Protocol"];

/// An owner that has asked both ends.
fn asking() -> Bench {
    let mut bench = Bench::new(policy());
    bench.open();
    bench.look();
    bench
}

fn meta(number: u32, full: bool, size: u64) -> CheckpointMeta {
    let kind = if full { CheckpointKind::Full } else { CheckpointKind::Delta };
    CheckpointMeta { generation: Generation::NONE, number, kind, log_offset: 0, size }
}

#[test]
fn a_session_begins_when_both_ends_have_promised() {
    let mut bench = Bench::new(policy());
    assert_eq!(bench.phase(), OwnerPhase::Detached);
    bench.open();
    assert_eq!(bench.look(), ["client: promise 1 beside 2", "server: promise 1 beside 1 to database"]);
    assert_eq!(bench.phase(), OwnerPhase::Promising);
    bench.hand_over_of(0);
    assert_eq!(bench.look(), [""; 0]);
    bench.hand_over_of(1);
    assert_eq!(bench.look(), ["start"]);
    assert_eq!(bench.phase(), OwnerPhase::Restoring);
    bench.started();
    let chosen = format!("chosen 0..0 credit {INPUT_WINDOW}");
    let begins =
        [format!("client: {chosen}"), format!("server: {chosen}"), "run open client as Client".into()];
    assert_eq!(bench.look(), begins);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    bench.ran(&[]);
    assert_eq!(bench.look(), ["run open server as Server"]);
    assert_eq!(bench.log_end(), 0);
    bench.ran(&[(CLIENT, "hello")]);
    // Kind, seed, whether there is a server, and when.
    assert_eq!(bench.look(), ["client: output hello with log 0..42"]);
    let totals = bench.owner.totals();
    assert_eq!((totals.generations, totals.consumed, totals.produced, totals.replayed), (1, 1, 1, 0));
}

#[test]
fn an_app_without_a_server_has_one_end() {
    let mut bench = Bench::new(OwnerPolicy { server: None, ..policy() });
    bench.open();
    bench.hand_over();
    bench.started();
    bench.ran(&[(CLIENT, "hello"), (SERVER, "no one hears this")]);
    let chosen = format!("client: chosen 0..0 credit {INPUT_WINDOW}");
    let expected = [
        "client: promise 1",
        "start",
        &chosen,
        "run open client as Client",
        "client: output hello with log 0..42",
    ];
    assert_eq!(bench.look(), expected);
    // The start entry records that there is no server.
    assert_eq!(bench.kept[0].log[33], 0);
    let mut both = Bench::begun(policy());
    both.consume(CLIENT, "message", 0);
    both.say(CLIENT, "and");
    both.ran(&[(CLIENT, "an answer")]);
    assert_eq!(both.kept[0].log[33], 1);
}

#[test]
fn a_port_opens_as_its_program_speaks() {
    for (client, server) in [(true, false), (false, true)] {
        let mut bench = Bench::new(policy());
        (bench.kept[0].datagrams, bench.kept[1].datagrams) = (client, server);
        bench.ask();
        bench.started();
        bench.ran(&[]);
        let kind = |datagrams| if datagrams { "Datagrams" } else { "" };
        let opens = [
            format!("run open client as Client{}", kind(client)),
            format!("run open server as Server{}", kind(server)),
        ];
        assert_eq!(bench.look()[3..], opens);
    }
}

#[test]
fn an_attempt_before_the_choice_leaves_nothing_to_the_next() {
    let mut bench = asking();
    bench.hand_over();
    assert_eq!(bench.look(), ["start"]);
    bench.open();
    let asked = ["remove 1", "client: promise 2 beside 2", "server: promise 2 beside 1 to database"];
    assert_eq!(bench.look(), asked);
    // The first attempt's cell may still start.
    bench.started();
    assert_eq!(bench.look(), [""; 0]);
    bench.hand_over();
    assert_eq!(bench.look(), ["start"]);
}

#[test]
fn ends_that_are_not_there_are_not_asked() {
    let mut bench = Bench::new(policy());
    bench.open_with(&[1]);
    assert_eq!(bench.look(), ["client: promise 1 beside 2"]);
    assert!(bench.owner.recovering() && !bench.owner.incomplete());
}

#[test]
fn a_promise_is_taken_within_the_limits_only() {
    let (last, size_max) = (LOG_OFFSET_MAX - 1, CHECKPOINTS_SIZE);
    let chain = |count: usize| (0..count).map(|at| meta(7, at == 0, 1)).collect::<Vec<_>>();
    type Edit<'a> = &'a dyn Fn(&mut Promised);
    let cases: [(&str, bool, Edit); 12] = [
        ("a log of the largest size", true, &|p| p.log_end = LOG_SIZE_MAX),
        ("a longer log", false, &|p| p.log_end = LOG_SIZE_MAX + 1),
        ("a log that ends before it starts", false, &|p| p.log_start = 1),
        ("the last offset", true, &|p| (p.log_start, p.log_end) = (last, last)),
        ("an offset beyond", false, &|p| (p.log_start, p.log_end) = (last + 1, last + 1)),
        ("messages that end before they start", false, &|p| p.sent_start = 1),
        ("the longest chain", true, &|p| p.checkpoints = chain(DELTAS_MAX + 1)),
        ("a longer chain", false, &|p| p.checkpoints = chain(DELTAS_MAX + 2)),
        ("the largest checkpoint", true, &|p| p.checkpoints = vec![meta(1, true, size_max)]),
        ("a larger one", false, &|p| p.checkpoints = vec![meta(1, true, size_max), meta(2, false, 1)]),
        ("a delta on nothing", false, &|p| p.checkpoints = vec![meta(1, false, 1)]),
        ("a living cell that is not here", false, &|p| p.live = true),
    ];
    for (what, taken, edit) in cases {
        let mut bench = asking();
        let mut promised = bench.kept[0].promised(1);
        edit(&mut promised);
        bench.frame(CLIENT, promised);
        let lines = bench.look();
        assert_eq!(lines.is_empty(), taken, "{what}: {lines:?}");
        assert!(taken || lines == BROKEN, "{what}: {lines:?}");
    }
}

#[test]
fn an_end_promises_once() {
    let mut bench = asking();
    bench.hand_over_of(0);
    bench.hand_over_of(0);
    assert_eq!(bench.look(), BROKEN);
}

#[test]
fn a_log_comes_whole_and_without_a_hole() {
    let part = |offset: u64, size: usize| LogPart {
        channel: 1,
        generation: Generation::NONE,
        offset,
        bytes: vec![0; size].into(),
    };
    let cases: [(&str, bool, &[LogPart]); 5] = [
        ("two parts in order", true, &[part(100, 10), part(110, 20)]),
        ("the second twice", false, &[part(100, 10), part(100, 10)]),
        ("one that begins too late", false, &[part(101, 10)]),
        ("a byte too many", false, &[part(100, 10), part(110, 21)]),
        ("no end of it", false, &[part(u64::MAX, 10)]),
    ];
    for (what, taken, parts) in cases {
        let mut bench = asking();
        let promised = Promised { log_start: 100, log_end: 130, ..bench.kept[0].promised(1) };
        bench.frame(CLIENT, promised);
        parts.iter().for_each(|part| bench.frame(CLIENT, part.clone()));
        assert_eq!(bench.look(), if taken { &BROKEN[..0] } else { &BROKEN }, "{what}");
    }
    let mut bench = asking();
    bench.frame(CLIENT, part(0, 0));
    assert_eq!(bench.look(), BROKEN, "a log before the promise");
}

#[test]
fn checkpoints_come_as_they_were_announced() {
    enum Frame {
        Begin(CheckpointMeta),
        Part(&'static [u8]),
    }
    use Frame::{Begin, Part};
    let (first, second) = (meta(1, true, 4), meta(2, false, 3));
    let begin = || Begin(first.clone());
    let cases: [(&str, bool, Vec<Frame>); 10] = [
        ("one part each", true, vec![begin(), Part(b"1234"), Begin(second.clone()), Part(b"567")]),
        ("in smaller parts", true, vec![begin(), Part(b"12"), Part(b"3")]),
        ("another number", false, vec![Begin(meta(3, true, 4))]),
        ("another size", false, vec![Begin(meta(1, true, 5))]),
        ("the second first", false, vec![Begin(second.clone())]),
        ("the first once more", false, vec![begin(), Part(b"1234"), begin()]),
        ("the first before it is whole", false, vec![begin(), Part(b"12"), begin()]),
        ("a byte too many", false, vec![begin(), Part(b"12345")]),
        ("the next without its name", true, vec![begin(), Part(b"1234"), Part(b"567")]),
        ("one more than announced", false, vec![begin(), Part(b"1234"), Part(b"567"), Part(b"8")]),
    ];
    for (what, taken, frames) in cases {
        let mut bench = asking();
        let checkpoints = vec![first.clone(), second.clone()];
        bench.frame(CLIENT, Promised { checkpoints, ..bench.kept[0].promised(1) });
        for frame in frames {
            match frame {
                Begin(meta) => bench.frame(CLIENT, CheckpointBegin { channel: 1, meta }),
                Part(bytes) => {
                    bench.frame(CLIENT, CheckpointPart { channel: 1, bytes: Bytes::from_static(bytes) });
                }
            }
        }
        let lines = bench.look();
        assert_eq!(lines.is_empty(), taken, "{what}: {lines:?}");
        assert!(taken || lines[..3] == BROKEN, "{what}: {lines:?}");
    }
}

#[test]
fn a_checkpoint_of_no_bytes_is_none() {
    let mut bench = asking();
    let empty = meta(1, true, 0);
    bench.frame(CLIENT, Promised { checkpoints: vec![empty.clone()], ..bench.kept[0].promised(1) });
    bench.frame(CLIENT, CheckpointBegin { channel: 1, meta: empty });
    assert_eq!(bench.look(), BROKEN);
}

fn input(size: usize) -> Input {
    static ZEROS: [u8; MESSAGE_SIZE_MAX] = [0; MESSAGE_SIZE_MAX];
    Input { channel: 1, ack: 0, close: false, payload: Bytes::from_static(&ZEROS[..size]) }
}

#[test]
fn messages_come_after_the_promise_and_as_many_as_it_says() {
    let mut bench = asking();
    bench.frame(CLIENT, input(1));
    assert_eq!(bench.look(), BROKEN);
    for first in [0, u64::MAX - 2] {
        let mut bench = asking();
        let promised = bench.kept[0].promised(1);
        bench.frame(CLIENT, Promised { sent_start: first, sent_end: first + 2, log_end: 1, ..promised });
        bench.frame(CLIENT, input(1));
        bench.frame(CLIENT, input(1));
        assert_eq!(bench.look(), [""; 0]);
        bench.frame(CLIENT, input(1));
        assert_eq!(bench.look(), BROKEN);
    }
}

#[test]
fn an_owner_takes_as_many_bytes_of_messages_as_an_end_keeps() {
    let mut rest = RETAINED_MAX + INPUTS_MAX + charge(0);
    let mut bench = asking();
    bench.frame(CLIENT, Promised { sent_end: 1_000, ..bench.kept[0].promised(1) });
    while rest > charge(MESSAGE_SIZE_MAX) {
        bench.frame(CLIENT, input(MESSAGE_SIZE_MAX));
        rest -= charge(MESSAGE_SIZE_MAX);
    }
    let size = usize::try_from(rest - charge(0)).expect("less than a message");
    bench.frame(CLIENT, input(size));
    assert_eq!(bench.look(), [""; 0]);
    assert_eq!(bench.owner.held_bytes(), RETAINED_MAX + INPUTS_MAX + charge(0));
    bench.frame(CLIENT, input(0));
    assert_eq!(bench.look(), BROKEN);
}

#[test]
fn an_attempt_that_is_let_down_says_so() {
    let mut bench = asking();
    bench.hand_over();
    bench.look();
    bench.step(|owner, _, out| owner.abort_attempt(Code::Waiting, "no one came", out));
    assert_eq!(
        bench.look(),
        ["client: reject Waiting", "server: reject Waiting", "remove 1", "over Waiting"]
    );
}

#[test]
fn a_live_cell_outlasts_an_attempt_that_is_let_down() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "one", 0);
    bench.open();
    bench.look();
    bench.step(|owner, _, out| owner.abort_attempt(Code::Waiting, "no one came", out));
    assert_eq!(bench.look(), ["client: reject Waiting", "server: reject Waiting"]);
    assert_eq!((bench.phase(), bench.owner.cell().is_some()), (OwnerPhase::Detached, true));
    bench.open();
    let asked = [
        "client: promise 3 beside 2 live since 1 took 1",
        "server: promise 3 beside 1 to database live since 1 took 0",
    ];
    assert_eq!(bench.look(), asked);
}

#[test]
fn an_owner_answers_for_the_session_it_has() {
    let bench = Bench::begun(policy());
    let owner = &bench.owner;
    assert_eq!(owner.session(), crate::owner::bench::SESSION);
    assert_eq!(owner.image(), crate::owner::bench::IMAGE);
    assert_eq!(owner.keys().resume(), keys().resume());
    assert_eq!(owner.policy(), &policy());
    assert_eq!(owner.generation(), bench.generation);
    assert_eq!([CLIENT, SERVER].map(|port| owner.host(port)), crate::owner::bench::HOSTS.map(Some));
    assert_eq!(owner.log_bytes(), (42, 42));
    assert_eq!(owner.held_bytes(), 42);
}
