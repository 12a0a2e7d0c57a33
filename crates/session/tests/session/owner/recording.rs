//! Recording a session without disturbing it, and playing the recording.

use crate::owner::bench::{Bench, CLIENT, SERVER, keys, message, policy, set};
use bytes::Bytes;
use marram_session::{
    cell::{CellId, CellInput, CellOutput, CellStop, Ran, Run, RunOutcome, Seed},
    owner::{OwnerPolicy, RECORD_NS, RECORD_STOPPED_NS},
    replay::{Gathered, PlayError, Player, ReplayStart, StepResult},
};
use marram_wire::{
    frame::{CheckpointPart, Frame, Keeps, Kept, KeptInput},
    recording::{RecordedStop, Recording},
    seal::Digest,
};

fn recorded_stops() -> OwnerPolicy {
    OwnerPolicy { record_stops: true, ..policy() }
}

fn assemble(gathered: Gathered) -> Result<Recording, String> {
    gathered.assemble("edge-a".into(), 5, Some([6; 32])).map_err(|error| error.to_string())
}

fn made(bench: &mut Bench) -> Recording {
    let it = assemble(bench.gathered.take().expect("a recording")).expect("it fits together");
    assert_eq!(Recording::decode(&it.encode()), Ok(it.clone()), "and can be kept in a file");
    it
}

/// Records the session; both ends show what they keep.
fn record_whole(bench: &mut Bench, tag: u64) {
    bench.record(tag);
    bench.show(CLIENT);
    bench.show(SERVER);
}

/// The handlers that a recording runs, with a cell like the one of these tests: it sets a timer for every "tick" of the server.
fn handlers(recording: &Recording) -> Vec<(u64, CellInput)> {
    let mut player = Player::new(recording, CellId(77)).expect("it can be run");
    let mut handlers = Vec::new();
    while let Some(next) = player.next_handler().expect("it fits together") {
        let mut ran = idle(&next.run);
        if next.run.input == text(SERVER, "tick") {
            ran.timers.push(set(5, 100));
            ran.clock_read = true;
        }
        handlers.push((next.entry, next.run.input));
        player.ran(&ran).expect("it goes the same way");
    }
    handlers
}

fn idle(run: &Run) -> Ran {
    let outcome = RunOutcome::Idle;
    Ran {
        cell: run.cell,
        outcome,
        clock_read: false,
        outputs: Vec::new(),
        timers: Vec::new(),
        tasks: Vec::new(),
        reads: Vec::new(),
        cost_ns: 0,
    }
}

fn text(port: marram_wire::id::Port, text: &'static str) -> CellInput {
    CellInput::Message { port, payload: Bytes::from_static(text.as_bytes()) }
}

/// The server sends a message for which the cell sets a timer, which fires.
fn timer(bench: &mut Bench) {
    bench.say(SERVER, "tick");
    bench.ran_with(|ran| {
        ran.clock_read = true;
        ran.timers.push(set(5, 100));
    });
    bench.now.mono_ns += 100;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.ran(&[]);
}

#[test]
fn a_session_is_recorded_from_its_beginning_and_goes_on() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    timer(&mut bench);
    bench.look();
    bench.record(9);
    assert_eq!(bench.look(), ["hash 1", "client: fetch", "server: fetch"]);
    // The session continues; what it consumes from here on is not part of the recording.
    bench.say(CLIENT, "b");
    bench.ran(&[(SERVER, "B")]);
    assert_eq!(bench.look(), ["run b of client", "server: output B with log 0..47"]);
    bench.show(SERVER);
    assert_eq!(bench.look(), [""; 0], "not before both ends have");
    bench.show(CLIENT);
    assert_eq!(bench.look(), ["recorded for Some(9)"]);
    let recording = made(&mut bench);
    assert_eq!(
        (recording.about.log_offset, recording.log.len(), recording.about.state),
        (0, 46, Some([6; 32]))
    );
    let handlers: Vec<CellInput> = handlers(&recording).into_iter().map(|(_, input)| input).skip(2).collect();
    let timer = CellInput::Timer { stage: 0, token: 5 };
    assert_eq!(handlers, [text(CLIENT, "a"), text(SERVER, "tick"), timer]);
    assert_eq!(
        Player::new(&recording, CellId(1)).map(|it| it.beginning()),
        Ok(ReplayStart::Seed(Seed([9; 32])))
    );
    // Again, after more messages.
    record_whole(&mut bench, 10);
    assert_eq!(made(&mut bench).inputs[0].messages.0.len(), 2);
}

#[test]
fn a_handler_that_runs_comes_to_its_end_first() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.look();
    bench.record(9);
    assert_eq!(bench.look(), [""; 0]);
    bench.say(CLIENT, "b");
    bench.ran(&[(CLIENT, "A")]);
    let wanted =
        ["client: output A with log 0..43", "hash 1", "client: fetch", "server: fetch", "run b of client"];
    assert_eq!(bench.look(), wanted, "and the cell is hashed before the next one runs");
}

#[test]
fn what_no_checkpoint_covers_is_recorded_behind_it() {
    let mut bench = Bench::begun(policy());
    timer(&mut bench);
    let header = bench_header(&mut bench);
    bench.consume(SERVER, "tock", 0);
    bench.consume(CLIENT, "z", 0);
    record_whole(&mut bench, 1);
    let recording = made(&mut bench);
    let first: Vec<u64> = recording.inputs.iter().map(|inputs| inputs.first).collect();
    assert_eq!((first, recording.log.len()), (vec![1, 1], 2));
    assert_eq!(recording.about.log_offset, header);
    assert_eq!(recording.checkpoints, [&b"state"[..]]);
    let player = Player::new(&recording, CellId(1)).expect("it can be run");
    assert_eq!((player.beginning(), player.entries()), (ReplayStart::Checkpoints, 0));
    assert_eq!(handlers(&recording), [(0, text(SERVER, "tock")), (1, text(CLIENT, "z"))]);
}

/// Takes and stores a checkpoint that is sealed as edges do it; returns its log offset.
fn bench_header(bench: &mut Bench) -> u64 {
    bench.consume(CLIENT, "dear", 1_001);
    let header = bench.taken.clone().expect("a checkpoint is due");
    let plain = marram_wire::header::join(&header, b"state");
    let sealed = Bytes::from(keys().seal(header.generation).seal_checkpoint(header.number, plain));
    let size = sealed.len() as u64;
    assert_eq!(bench.checkpointed(sealed), None);
    bench.stored(CLIENT, size, Some(header.number));
    header.log_offset
}

#[test]
fn what_an_end_altered_is_found_out() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    bench_header(&mut bench);
    bench.consume(CLIENT, "b", 0);
    record_whole(&mut bench, 1);
    let gathered = bench.gathered.take().expect("a recording");
    assert!(assemble(gathered.clone()).is_ok());
    type Change = fn(&mut Gathered);
    let changes: [(Change, &str); 5] = [
        (|it| it.ends[0].messages[0].payload = Bytes::from_static(b"c"), "altered"),
        (|it| it.ends[0].messages[0].close = true, "altered"),
        (|it| drop(it.ends[0].messages.pop()), "does not have the messages"),
        (|it| it.ends[0].sent_start += 1, "does not have the messages"),
        (|it| it.ends[0].checkpoints.clear(), "outside the owner's log"),
    ];
    for (change, says) in changes {
        let mut changed = gathered.clone();
        change(&mut changed);
        let why = assemble(changed).expect_err("it was altered");
        assert!(why.contains(says), "{why}, not {says}");
    }
    let mut flipped = gathered;
    let mut bytes = flipped.ends[0].checkpoints[0].bytes.to_vec();
    bytes[9] ^= 1;
    flipped.ends[0].checkpoints[0].bytes = bytes.into();
    assert!(assemble(flipped).expect_err("it was altered").contains("altered"));
}

#[test]
fn the_digest_goes_on_behind_a_recording_as_without_one() {
    let consumed = |with: bool| {
        let mut bench = Bench::begun(policy());
        bench.consume(CLIENT, "a", 0);
        if with {
            record_whole(&mut bench, 1);
        }
        bench.say(CLIENT, "b");
        bench.ran(&[(CLIENT, "B")]);
        bench.kept[0].clone()
    };
    let [with, without] = [true, false].map(consumed);
    assert_eq!((with.tag, with.log), (without.tag, without.log));
    assert_ne!(with.tag, Digest::start(crate::owner::bench::SESSION).tag());
}

#[test]
fn what_cannot_be_recorded_is_said() {
    let mut bench = Bench::begun(OwnerPolicy { keeps: Keeps::Nothing, ..policy() });
    bench.look();
    bench.record(1);
    assert!(bench.look()[0].contains("protect = \"none\""));
    let mut bench = Bench::new(policy());
    bench.record(1);
    assert!(bench.look()[0].contains("try again"));
    let mut bench = Bench::begun(policy());
    bench.record(1);
    bench.look();
    bench.record(2);
    assert_eq!(
        bench.look(),
        ["not recorded for Some(2): the session is being recorded already; try again when that is done"]
    );
}

#[test]
fn a_recording_comes_to_nothing_when_its_session_does_and_is_answered_anyway() {
    type Fault = fn(&mut Bench);
    let faults: [(Fault, &str); 4] = [
        (|bench| bench.unlinked(SERVER), "connection"),
        (Bench::open, "new generation"),
        (
            |bench| {
                bench.step(|owner, _, out| owner.step_down(marram_wire::frame::Code::Busy, "".into(), out))
            },
            "left",
        ),
        (
            |bench| {
                bench.step(|owner, _, out| owner.terminate(marram_wire::frame::Code::Killed, "".into(), out))
            },
            "ended",
        ),
    ];
    for (fault, says) in faults {
        let mut bench = Bench::begun(policy());
        bench.record(1);
        bench.show(CLIENT);
        bench.look();
        fault(&mut bench);
        let lines = bench.look();
        let answers: Vec<&String> = lines.iter().filter(|line| line.starts_with("not recorded")).collect();
        assert!(answers.len() == 1 && answers[0].contains(says), "{lines:?}");
        assert_eq!(bench.owner.held_bytes(), bench.owner.log_bytes().1, "nothing of it is held");
    }
}

#[test]
fn ends_that_take_too_long_are_not_waited_for_and_their_late_answer_is_dropped() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    bench.record(1);
    assert_eq!(bench.owner.due_ns(), Some(bench.now.mono_ns + RECORD_NS));
    bench.show(SERVER);
    let late = bench.kept[0].shown(1);
    bench.look();
    bench.now.mono_ns += RECORD_NS;
    bench.step(|owner, now, out| owner.tick(now, out));
    assert_eq!(
        bench.look(),
        ["not recorded for Some(1): the session's ends took too long to show what they keep"]
    );
    assert_eq!(bench.owner.due_ns(), None);
    // The end is asked again, and then answers twice.
    bench.consume(CLIENT, "b", 0);
    bench.record(2);
    bench.look();
    late.into_iter().for_each(|frame| bench.frame(CLIENT, frame));
    bench.show(CLIENT);
    assert_eq!(bench.look(), [""; 0]);
    bench.show(SERVER);
    assert_eq!(bench.look(), ["recorded for Some(2)"]);
    assert_eq!(made(&mut bench).inputs[0].messages.0.len(), 2);
}

#[test]
fn a_recording_that_waits_for_a_handler_is_not_lost_to_a_late_answer() {
    let mut bench = Bench::begun(policy());
    bench.record(1);
    bench.show(SERVER);
    let late = bench.kept[0].shown(1);
    bench.now.mono_ns += RECORD_NS;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.say(CLIENT, "a");
    bench.record(2);
    bench.look();
    late.into_iter().for_each(|frame| bench.frame(CLIENT, frame));
    assert_eq!((bench.look(), bench.owner.is_recording()), (Vec::new(), true));
    bench.ran(&[]);
    bench.show(CLIENT);
    bench.show(SERVER);
    assert!(bench.look().contains(&"recorded for Some(2)".to_string()));
}

#[test]
fn the_rest_of_a_checkpoint_is_dropped_when_its_recording_is_given_up_meanwhile() {
    let mut bench = Bench::begun(policy());
    bench_header(&mut bench);
    bench.record(1);
    let mut late = Vec::new();
    for frame in bench.kept[0].shown(1) {
        match frame {
            Frame::CheckpointPart(CheckpointPart { channel, mut bytes }) => {
                let half = bytes.split_to(bytes.len() / 2);
                late.push(CheckpointPart { channel, bytes: half }.into());
                late.push(CheckpointPart { channel, bytes }.into());
            }
            frame => late.push(frame),
        }
    }
    let rest = late.split_off(3);
    late.into_iter().for_each(|frame| bench.frame(CLIENT, frame));
    bench.now.mono_ns += RECORD_NS;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.look();
    rest.into_iter().for_each(|frame| bench.frame(CLIENT, frame));
    assert_eq!(bench.look(), [""; 0], "the end answers a question that was cancelled");
    bench.show(SERVER);
    record_whole(&mut bench, 2);
    assert_eq!(made(&mut bench).checkpoints, [&b"state"[..]]);
}

#[test]
fn an_end_that_shows_what_it_was_not_asked_for_breaks_the_protocol() {
    let kept = |start, end| Kept { channel: 1, sent_start: start, sent_end: end, checkpoints: Vec::new() };
    let input = || KeptInput { channel: 1, close: false, payload: Bytes::new() };
    let part = || CheckpointPart { channel: 1, bytes: Bytes::from_static(b"x") };
    for asked in [false, true] {
        for wrong in 0..5 {
            let mut bench = Bench::begun(policy());
            if asked {
                bench.record(1);
            }
            bench.look();
            match wrong {
                0 => bench.frame(CLIENT, input()),
                1 => bench.frame(CLIENT, part()),
                2 => bench.frame(CLIENT, kept(1, 0)),
                3 => bench.frame(CLIENT, kept(0, u64::MAX)),
                _ => {
                    bench.frame(CLIENT, kept(0, 0));
                    bench.frame(CLIENT, input());
                }
            }
            assert!(bench.look().contains(&"over Protocol".to_string()), "{asked} {wrong}");
        }
    }
}

#[test]
fn a_stopped_handler_is_recorded_before_the_ends_are_informed() {
    for killed in [false, true] {
        let mut bench = Bench::begun(recorded_stops());
        bench.consume(CLIENT, "a", 0);
        bench.say(CLIENT, "poison");
        bench.say(CLIENT, "never");
        bench.look();
        bench.ran_with(|ran| {
            let why = "unreachable".to_string();
            ran.outcome = RunOutcome::Stopped(if killed { CellStop::Kill(why) } else { CellStop::Trap(why) });
        });
        assert_eq!(bench.look(), ["remove 1", "client: fetch", "server: fetch"]);
        assert_eq!(bench.phase().name(), "recording");
        bench.show(CLIENT);
        bench.show(SERVER);
        let told = ["client: failed 0 at 43", "server: failed 0 at 43", "over Guest"];
        let lines = bench.look();
        assert_eq!(lines[0], "recorded for None, stopped by unreachable");
        assert_eq!(lines[1..], told);
        let recording = made(&mut bench);
        assert_eq!(recording.stop.as_ref().map(|stop| stop.killed), Some(killed));
        stops_again(&recording);
    }
}

/// Plays a recording of "a" and "poison", which is stopped, to its end.
fn stops_again(recording: &Recording) {
    let cell = CellId(3);
    let fresh = || {
        let mut player = Player::new(recording, cell).expect("it can be run");
        for _ in 0..3 {
            let next = player.next_handler().expect("it fits").expect("there is more");
            assert!(!next.stopped);
            player.ran(&idle(&next.run)).expect("the same way");
        }
        let last = player.next_handler().expect("it fits").expect("there is more");
        assert_eq!((last.entry, last.stopped, &last.run.input), (2, true, &text(CLIENT, "poison")));
        (player, last.run)
    };
    let (mut player, run) = fresh();
    let why = CellStop::Trap("unreachable".into());
    let ran = Ran { outcome: RunOutcome::Stopped(why), ..idle(&run) };
    assert_eq!(player.ran(&ran), Ok(StepResult::Stopped("unreachable".into())));
    // If the handler is not stopped there, the run has diverged.
    let (mut player, run) = fresh();
    assert!(matches!(player.ran(&idle(&run)), Err(PlayError::Diverged { entry: 2, .. })));
}

#[test]
fn ends_are_informed_of_a_stop_even_if_its_recording_fails() {
    type Fault = fn(&mut Bench);
    let faults: [Fault; 2] = [
        |bench| {
            bench.now.mono_ns += RECORD_STOPPED_NS;
            bench.step(|owner, now, out| owner.tick(now, out));
        },
        |bench| bench.unlinked(SERVER),
    ];
    for fault in faults {
        let mut bench = Bench::begun(recorded_stops());
        bench.say(CLIENT, "poison");
        bench.ran_with(|ran| ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into())));
        bench.look();
        fault(&mut bench);
        let lines = bench.look();
        assert!(lines[0].starts_with("not recorded for None"), "{lines:?}");
        assert!(lines.contains(&"client: failed 0 at 42".to_string()), "{lines:?}");
        assert_eq!(lines.last().map(String::as_str), Some("over Guest"));
    }
}

#[test]
fn a_replay_that_takes_another_course_says_so() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    record_whole(&mut bench, 1);
    let recording = made(&mut bench);
    type Change = fn(&mut Ran);
    let changes: [(Change, &str); 2] = [
        (|ran| ran.clock_read = true, "clock"),
        (|ran| ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into())), "unreachable"),
    ];
    for (change, says) in changes {
        let mut player = Player::new(&recording, CellId(3)).expect("it can be run");
        let mut last = None;
        while let Some(next) = player.next_handler().expect("it fits") {
            let mut ran = idle(&next.run);
            if next.entry == 1 {
                change(&mut ran);
            }
            last = Some(player.ran(&ran));
            if last.as_ref().is_some_and(Result::is_err) {
                break;
            }
        }
        let error = last.expect("a handler").expect_err("another order").to_string();
        assert!(error.contains("entry 1") && error.contains(says), "{error}");
    }
}

#[test]
fn a_redacted_recording_is_not_run() {
    let mut bench = Bench::begun(policy());
    record_whole(&mut bench, 1);
    let redacted = made(&mut bench).redacted(&keys().redaction());
    assert_eq!(Player::new(&redacted, CellId(1)).map(|_| ()), Err(PlayError::Redacted));
}

#[test]
fn an_entry_that_runs_nothing_is_counted() {
    let mut bench = Bench::begun(policy());
    record_whole(&mut bench, 1);
    // The session has only begun; without ports that runs nothing.
    let recording = Recording { inputs: Vec::new(), ..made(&mut bench) };
    let mut player = Player::new(&recording, CellId(1)).expect("it can be run");
    assert_eq!((player.next_handler(), player.entries()), (Ok(None), 1));
    let stop = RecordedStop { entry: recording.log.clone(), killed: false, reason: "a trap".into() };
    let stopped = Recording { log: Bytes::new(), stop: Some(stop), ..recording };
    let mut player = Player::new(&stopped, CellId(1)).expect("it can be run");
    assert_eq!(player.next_handler(), Err(PlayError::Inconsistent), "there is no handler that was stopped");
}

#[test]
fn outputs_after_a_close_are_not_delivered() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    record_whole(&mut bench, 1);
    let recording = made(&mut bench);
    let mut player = Player::new(&recording, CellId(3)).expect("it can be run");
    while let Some(next) = player.next_handler().expect("it fits") {
        assert!(player.hears(CLIENT));
        let mut ran = idle(&next.run);
        if next.entry == 1 {
            ran.outputs = vec![message(CLIENT, "x"), CellOutput::Close { port: CLIENT }];
        }
        player.ran(&ran).expect("the same way");
    }
    assert!(!player.hears(CLIENT) && player.hears(SERVER));
}
