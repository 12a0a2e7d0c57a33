//! Recorders that lie: about counts, offsets, generations, kinds and order, in their announcement and in their data. None of it
//! may reach the cell.

use super::*;
use marram_wire::frame::{CheckpointBegin, CheckpointKind, KeptInput, Recalled};
use marram_wire::limits::{CHECKPOINTS_SIZE_MAX, DELTAS_MAX, LOG_SIZE_MAX};

/// A recorder of the session: its answer, and its data.
struct Lying {
    history: History,
    said: Recalled,
    /// Its checkpoint was taken before this entry.
    first: usize,
    log: Vec<LogPart>,
    inputs: Vec<KeptInput>,
    checkpoints: Vec<Frame>,
}

fn input(text: &'static str) -> KeptInput {
    KeptInput { channel: 9, close: false, payload: Bytes::from_static(text.as_bytes()) }
}

/// An honest recorder of these entries; with a checkpoint before the first of them, unless that is the session's first.
fn recorder(entries: Range<usize>) -> Lying {
    let history = History::new(&SAID);
    let (first, last) = (entries.start, entries.end);
    let (from, to) = (first.saturating_sub(1), last - 1);
    let metas = if first > 0 { vec![history.meta(first)] } else { Vec::new() };
    let said = Recalled {
        channel: 9,
        generation: OLD,
        log_start: history.offset(first),
        log_end: history.offset(last),
        tag: history.digests[last].tag(),
        sent_start: vec![from as u64, 0],
        sent_end: vec![to as u64, 0],
        checkpoints: metas.clone(),
    };
    let bytes = history.sealed(entries);
    let log = vec![LogPart { channel: 9, generation: OLD, offset: said.log_start, bytes }];
    let inputs = SAID[from..to].iter().map(|text| input(text)).collect();
    let checkpoints = metas.into_iter().flat_map(|meta| {
        let bytes = Bytes::from_static(&[0; 8]);
        [CheckpointBegin { channel: 9, meta }.into(), CheckpointPart { channel: 9, bytes }.into()]
    });
    let checkpoints = checkpoints.collect();
    Lying { history, said, first, log, inputs, checkpoints }
}

impl Lying {
    /// The recovering owner has asked the recorder, and is given everything.
    fn recalled(self) -> Result<Standby, StandbyError> {
        let owner = Owner::new(SESSION, IMAGE, keys(), policy(), &HOSTS, Seed([4; 32]));
        let mut out = Vec::new();
        let owner = owner.recalled(self.said, OLD, &mut out)?;
        let (history, restoring) = (self.history, Some(self.first));
        let mut standby =
            Standby { history, owner, out, done: 0, restoring, consumed: Vec::new(), late: None };
        standby.settle();
        let log = self.log.into_iter().map(Frame::from);
        let inputs = self.inputs.into_iter().map(Frame::from);
        for frame in log.chain(inputs).chain(self.checkpoints) {
            standby.feed(frame);
        }
        Ok(standby)
    }

    /// Then the ends are asked, which have these entries and messages.
    fn tried(self, client: &Says) -> Standby {
        let mut standby = self.recalled().expect("its answer makes sense");
        standby.opens(client, &Says { log: client.log.clone(), tag_of: client.tag_of, ..level(1, 0) });
        standby
    }
}

impl Standby {
    /// Whether the owner failed before it owned any session.
    fn is_refused(&self, code: Code) -> bool {
        self.out.iter().any(|effect| matches!(effect, OwnerEffect::Done(why, _) if *why == code))
            && self.consumed.is_empty()
    }
}

#[test]
fn what_an_honest_recorder_gives_is_taken() {
    let standby = recorder(0..4).tried(&level(4, 1));
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!((standby.heard(), standby.echoes()), (SAID[..3].to_vec(), SAID[1..3].to_vec()));
    let standby = recorder(3..5).tried(&level(5, 3));
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!((standby.heard(), standby.echoes()), (SAID[2..4].to_vec(), vec![SAID[3]]));
    // A message that no owner consumed comes from its end.
    let standby = recorder(0..3).tried(&Says { sent: 2..4, ..level(3, 2) });
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!(standby.heard(), SAID[..4]);
}

#[test]
fn an_answer_that_no_recorder_can_give_is_refused() {
    type Lie = fn(&mut Recalled);
    let cases: [(&str, usize, Lie); 19] = [
        ("an older generation", 0, |said| said.generation = Generation { count: 2, opener: 7 }),
        ("a newer generation", 0, |said| said.generation = Generation { count: u64::MAX, opener: 7 }),
        ("another attempt's generation", 0, |said| said.generation.opener += 1),
        ("a checkpoint of a later generation", 3, |said| said.checkpoints[0].generation.count += 1),
        ("log that begins later and no checkpoint", 0, |said| said.log_start = 42),
        ("log that ends before it begins", 3, |said| said.log_end = said.log_start - 1),
        ("a checkpoint before the log", 3, |said| said.checkpoints[0].log_offset -= 1),
        ("a checkpoint behind the log", 3, |said| said.checkpoints[0].log_offset = said.log_end + 1),
        ("log behind all logs", 3, |said| {
            (said.log_start, said.log_end) = (LOG_OFFSET_MAX - 1, LOG_OFFSET_MAX);
            said.checkpoints[0].log_offset = said.log_start;
        }),
        ("more log than a recorder keeps", 3, |said| said.log_end = said.log_start + LOG_SIZE_MAX + 1),
        ("too many checkpoints", 3, |said| {
            let delta =
                |number| CheckpointMeta { kind: CheckpointKind::Delta, number, ..said.checkpoints[0] };
            let deltas: Vec<_> = (2..).map(delta).take(DELTAS_MAX + 1).collect();
            said.checkpoints.extend(deltas);
        }),
        ("a checkpoint of no bytes", 3, |said| said.checkpoints[0].size = 0),
        ("checkpoints in another order", 3, |said| {
            let delta = CheckpointMeta { kind: CheckpointKind::Delta, number: 2, ..said.checkpoints[0] };
            said.checkpoints[0].log_offset = said.log_end;
            said.checkpoints.push(delta);
        }),
        ("checkpoints that are too large together", 3, |said| {
            said.checkpoints[0].size = CHECKPOINTS_SIZE_MAX;
            let delta =
                CheckpointMeta { kind: CheckpointKind::Delta, number: 2, size: 1, ..said.checkpoints[0] };
            said.checkpoints.push(delta);
        }),
        ("messages that begin later and no checkpoint", 0, |said| said.sent_start[0] = 1),
        ("messages that end before they begin", 3, |said| said.sent_end[0] = 1),
        ("a port too few", 0, |said| said.sent_end.truncate(1)),
        ("a port too many", 0, |said| said.sent_start.push(0)),
        ("a delta on nothing", 3, |said| said.checkpoints[0].kind = CheckpointKind::Delta),
    ];
    for (what, first, lie) in cases {
        let mut lying = recorder(first..5);
        lie(&mut lying.said);
        assert!(lying.recalled().is_err(), "{what}");
    }
}

/// What is verified runs: nothing can be added to it.
#[test]
fn what_comes_after_the_data_is_verified_is_refused() {
    let mut standby = recorder(0..4).recalled().expect("its answer makes sense");
    // As an owner would feed it: outputs that the client has, which would not be sent again.
    let received = received(&[(0, 2), (1, 0)]);
    standby.late = Some(Acknowledged { channel: 9, received }.into());
    standby.opens(&level(4, 1), &level(1, 0));
    assert!(standby.starts_again(), "{:?}", standby.out);
    assert!(standby.heard().is_empty() && standby.late.is_none(), "{:?}", standby.consumed);
}

#[test]
fn what_was_not_announced_is_refused() {
    type Lie = fn(&mut Lying);
    let cases: [(&str, Lie); 8] = [
        ("log from elsewhere", |lying| lying.log[0].offset += 1),
        ("more log", |lying| {
            let offset = lying.said.log_end;
            lying.log.push(LogPart { offset, bytes: Bytes::from_static(&[0]), ..lying.log[0].clone() });
        }),
        ("more messages", |lying| lying.inputs.push(input("invented"))),
        ("another checkpoint", |lying| {
            let meta = CheckpointMeta { number: 2, ..lying.history.meta(3) };
            lying.checkpoints[0] = CheckpointBegin { channel: 9, meta }.into();
        }),
        ("a checkpoint more", |lying| lying.checkpoints.insert(1, lying.checkpoints[0].clone())),
        ("a part of no checkpoint", |lying| lying.checkpoints = lying.checkpoints.split_off(1)),
        ("a longer checkpoint", |lying| {
            lying.checkpoints[1] = CheckpointPart { channel: 9, bytes: Bytes::from_static(&[0; 9]) }.into();
        }),
        ("its answer once more", |lying| lying.checkpoints.push(lying.said.clone().into())),
    ];
    for (what, lie) in cases {
        let mut lying = recorder(3..5);
        lie(&mut lying);
        let standby = lying.recalled().expect("its answer makes sense");
        assert!(standby.is_refused(Code::Protocol), "{what}: {:?}", standby.out);
    }
}

#[test]
fn a_recorder_has_no_word_in_what_is_an_owners() {
    let (log_offset, tag) = (42, [1; 8]);
    let frames: [Frame; 5] = [
        Truncate { channel: 9, log_offset, tag, sent: 1 }.into(),
        Acknowledged { channel: 9, received: received(&[(0, 1), (1, 0)]) }.into(),
        marram_wire::frame::Renewed { channel: 9, generation: NEW }.into(),
        Base { channel: 9, meta: History::new(&SAID).meta(3), took: Vec::new() }.into(),
        History::new(&SAID).fed(4),
    ];
    for frame in frames {
        let mut standby = recorder(0..4).recalled().expect("it is honest so far");
        standby.feed(frame.clone());
        assert!(standby.is_refused(Code::Protocol), "{frame:?}: {:?}", standby.out);
    }
}

#[test]
fn messages_that_the_log_does_not_consume_are_refused() {
    type Lie = fn(&mut Lying);
    // What the client has after the messages that the recorder claims. It never sent the invented one.
    let cases: [(&str, usize, usize, Lie); 6] = [
        ("one is inserted", 0, 4, |lying| {
            lying.said.sent_end[0] += 1;
            lying.inputs.push(input("invented"));
        }),
        ("one of the other end is inserted", 0, 3, |lying| {
            lying.said.sent_end[1] += 1;
            lying.inputs.push(input("invented"));
        }),
        ("one is inserted behind a checkpoint", 3, 4, |lying| {
            lying.said.sent_end[0] += 1;
            lying.inputs.push(input("invented"));
        }),
        ("one is left to its end", 0, 2, |lying| {
            lying.said.sent_end[0] -= 1;
            lying.inputs.pop();
        }),
        ("the log is cut in front of one", 0, 3, |lying| {
            lying.said.log_end = lying.history.offset(3);
            lying.said.tag = lying.history.digests[3].tag();
            lying.log[0].bytes = lying.history.sealed(0..3);
            lying.inputs[2] = input("altered");
        }),
        ("they are another end's", 0, 0, |lying| lying.said.sent_end.swap(0, 1)),
    ];
    for (what, first, sent, lie) in cases {
        let mut lying = recorder(first..4);
        lie(&mut lying);
        let ends = lying.said.sent_end.clone();
        let entries = if what.contains("cut") { 3 } else { 4 };
        let mut standby = lying.recalled().expect("its answer makes sense");
        let server = usize::try_from(ends[1]).expect("a short history");
        let client = Says { sent: sent..sent.max(4), ..level(entries, 1) };
        standby.opens(&client, &Says { sent: server..server, ..level(entries, 0) });
        assert!(standby.starts_again(), "{what}: {:?}", standby.out);
        assert_eq!(standby.heard(), [""; 0], "{what}");
    }
}

#[test]
fn messages_that_do_not_begin_at_the_checkpoint_are_refused() {
    for (what, start) in [("too few are covered", 1), ("too many are covered", 3)] {
        let mut lying = recorder(3..5);
        lying.said.sent_start[0] = start;
        let from = usize::try_from(start).expect("small");
        lying.inputs = SAID[from..4].iter().map(|text| input(text)).collect();
        let standby = lying.recalled().expect("its answer makes sense");
        assert!(standby.is_refused(Code::Tampered), "{what}: {:?}", standby.out);
    }
}

#[test]
fn ends_that_do_not_go_on_where_the_recorder_ends_make_it_start_again() {
    for (what, sent) in [("it never sent so many", 2..2), ("it has forgotten the next one", 4..5)] {
        let standby = recorder(0..4).tried(&Says { sent, ..level(4, 1) });
        assert!(standby.starts_again(), "{what}: {:?}", standby.out);
        assert_eq!(standby.heard(), [""; 0]);
    }
}

#[test]
fn what_was_altered_does_not_give_the_digest() {
    type Lie = fn(&mut Lying);
    let cases: [(&str, Lie); 8] = [
        ("the tag", |lying| lying.said.tag[0] ^= 1),
        ("a message", |lying| lying.inputs[1] = input("altered")),
        ("the order of messages", |lying| lying.inputs.swap(0, 2)),
        ("a message's kind", |lying| lying.inputs[1].close = true),
        ("a message's kind and payload", |lying| {
            lying.inputs[2] = KeptInput { channel: 9, close: true, payload: Bytes::new() };
        }),
        ("a bit of the log", |lying| {
            let mut bytes = lying.log[0].bytes.to_vec();
            bytes[10] ^= 1;
            lying.log[0].bytes = bytes.into();
        }),
        ("the generation that sealed the log", |lying| lying.log[0].generation.count -= 1),
        ("where the log ends", |lying| {
            let bytes = &mut lying.log[0].bytes;
            bytes.truncate(bytes.len() - 1);
            lying.said.log_end -= 1;
        }),
    ];
    for (what, lie) in cases {
        let mut lying = recorder(0..4);
        lie(&mut lying);
        let standby = lying.tried(&level(4, 1));
        // Or, if not even the start can be read, the owner asked as one without any data.
        let asked_for_all = standby
            .sent(Port::CLIENT)
            .any(|frame| matches!(frame, Frame::Promise(promise) if promise.live.is_none()));
        assert!(standby.starts_again() || asked_for_all, "{what}: {:?}", standby.out);
        assert_eq!(standby.heard(), [""; 0], "{what}");
    }
}
