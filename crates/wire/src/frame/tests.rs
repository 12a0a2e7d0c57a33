//! Every frame can be encoded and decoded, and nothing else decodes.

use super::*;
use alloc::{string::ToString, vec};

fn received(port: u32) -> Received {
    Received { port: Port(port), count: 1 << (port % 64) }
}

fn samples() -> Vec<Frame> {
    // The last one is cut.
    [of_feeds(), of_sessions()].concat()
}

fn of_feeds() -> Vec<Frame> {
    vec![
        Acknowledged { channel: 5, received: Many((0..2_000).map(received).collect()) }.into(),
        Fed {
            channel: 5,
            entry: Bytes::from_static(&[5; 9]),
            tag: [2; 8],
            from: u32::MAX,
            close: false,
            payload: Bytes::from_static(&[4; 64]),
        }
        .into(),
    ]
}

fn of_sessions() -> Vec<Frame> {
    let generation = Generation { count: 3, opener: 7 };
    let meta =
        CheckpointMeta { generation, number: 9, kind: CheckpointKind::Merged, log_offset: 77, size: 1 << 33 };
    let failure = Failure { log_offset: 5, input: 1, reason: "unreachable".to_string() };
    vec![
        Greet { version_oldest: 1, version_newest: 2, servers: vec!["web".into()] }.into(),
        Drain { leave: true }.into(),
        Edges { edges: vec![EdgeEntry { name: "a".into(), addresses: vec!["a.example.org:7400".into()] }] }
            .into(),
        Hello {
            channel: 300,
            session: SessionId([9; 16]),
            server: false,
            app: "forward".into(),
            fresh: false,
            promised: generation,
            image: Some(ImageHash([3; 32])),
            proof: Some([1; 16]),
            peer: None,
            origin: None,
            active: true,
            key: Last(None),
        }
        .into(),
        Promised {
            channel: 1,
            previous: Generation::NONE,
            live: false,
            log_start: 0,
            log_end: 1 << 40,
            tag: [5; 8],
            received: 2,
            window: 9,
            sent_start: 3,
            sent_end: 4,
            checkpoints: vec![meta.clone(), meta.clone()],
            checkpoints_max: 1 << 29,
            partial: Some(PartialCheckpoint { meta: meta.clone(), bytes: 1 << 20 }),
            failed: Some(failure),
            datagrams: true,
            origin: Some(Box::new(Origin {
                client: Some(([192, 0, 2, 1], 40_000).into()),
                local: Some(([1, 0, 0, 0, 0, 0, 0, 2], 443).into()),
                listener: "web".into(),
            })),
            session_ns: Some(-5),
        }
        .into(),
        Fetch { channel: 1 }.into(),
        CanMove { channel: 3 }.into(),
        Kept { channel: 1, sent_start: 3, sent_end: 1 << 40, checkpoints: vec![meta] }.into(),
        KeptInput { channel: 1, close: false, payload: Bytes::from_static(&[4; 64]) }.into(),
        Input { channel: 1, ack: 0, close: false, payload: Bytes::from_static(&[4; 64]) }.into(),
        Input { channel: 1, ack: 500, close: true, payload: Bytes::new() }.into(),
        Output {
            channel: 1,
            increment: Some(Increment { entries: Bytes::from_static(&[1, 2]), tag: [8; 8] }),
            close: false,
            payload: Bytes::from_static(&[4; 70_000]),
        }
        .into(),
        CheckpointPart { channel: 7, bytes: Bytes::from_static(&[6; 100]) }.into(),
        Lead { channel: 4, edge: "a".into(), shard: 3, backup: String::new(), backup_shard: 0 }.into(),
        Lead { channel: 300, edge: "a".into(), shard: 255, backup: "b".into(), backup_shard: 1 }.into(),
        Ended { channel: 4, code: Code::Guest, reason: "x".repeat(600) }.into(),
    ]
}

#[test]
fn frames_survive_in_any_cut() {
    let frames = samples();
    let mut stream = BytesMut::new();
    frames.iter().for_each(|frame| stream.extend_from_slice(&frame.to_bytes()));
    for cut in [1, 2, 3, 7, 64, 4_096, stream.len()] {
        let mut reader = Reader::default();
        let mut got = Vec::new();
        for bytes in stream.chunks(cut) {
            reader.buffer.extend_from_slice(bytes);
            while let Some(frame) = reader.next_frame().expect("well-formed") {
                got.push(frame);
            }
        }
        assert_eq!(got.len(), frames.len());
        assert_eq!(got[..frames.len() - 1], frames[..frames.len() - 1]);
    }
}

#[test]
fn what_a_frame_lacks_is_known_from_its_length_on() {
    for frame in samples() {
        let bytes = frame.to_bytes();
        let prefix = 1 + bytes.iter().take_while(|byte| **byte & 0x80 != 0).count();
        for cut in (0..=bytes.len()).filter(|cut| *cut < 300 || *cut + 300 > bytes.len()) {
            let reader = Reader { buffer: BytesMut::from(&bytes[..cut]) };
            assert_eq!(reader.missing(), if cut < prefix { 0 } else { bytes.len() - cut });
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for frame in samples() {
        // A message's payload is the rest of the frame, so only other frames can be detected as short.
        if matches!(frame, Frame::Input(_) | Frame::Output(_)) {
            continue;
        }
        let mut reader = Reader { buffer: BytesMut::from(&frame.to_bytes()[..]) };
        assert!(reader.next_frame().is_ok());
        let body = {
            let whole = frame.to_bytes();
            whole.slice(if whole.len() > 128 { 2 } else { 1 }..)
        };
        for len in 0..body.len() {
            assert!(Frame::decode(body.slice(..len)).is_err(), "{frame:?} cut to {len}");
        }
    }
}

#[test]
fn oversized_and_unknown_frames_are_refused() {
    let mut reader = Reader { buffer: BytesMut::from(&[0xff, 0xff, 0xff, 0x7f][..]) };
    assert_eq!(reader.next_frame(), Err(ReadError::Length));
    assert_eq!(Frame::decode(Bytes::from_static(&[0xee])), Err(Error::Unknown));
    assert_eq!(Frame::decode(Bytes::new()), Err(Error::Truncated));
}

#[test]
fn a_small_message_costs_what_the_page_says() {
    let payload = Bytes::from_static(&[0; 64]);
    let input = Input { channel: 2, ack: 1, close: false, payload: payload.clone() };
    assert_eq!(Frame::from(input).to_bytes().len() - 64, 4);
    let increment = Some(Increment { entries: Bytes::from_static(&[0, 1]), tag: [0; 8] });
    let output = Output { channel: 2, increment, close: false, payload };
    assert_eq!(Frame::from(output).to_bytes().len() - 64, 14);
}

#[test]
fn a_frame_is_on_a_channel_only_where_its_speaker_may_say_it() {
    let generation = Generation::NONE;
    let meta = CheckpointMeta { generation, number: 1, kind: CheckpointKind::Full, log_offset: 0, size: 0 };
    let failure = Failure { log_offset: 0, input: 0, reason: "".into() };
    let (channel, tag, code) = (7, [0; 8], Code::Busy);
    let (end, edge, either, neither) = ((true, false), (false, true), (true, true), (false, false));
    let cases: [(Frame, (bool, bool)); 25] = [
        (Ping { stamp: 0 }.into(), neither),
        (Drain { leave: true }.into(), neither),
        (Edges { edges: Vec::new() }.into(), neither),
        (Goodbye { reason: "".into() }.into(), neither),
        (Input { channel, ack: 0, close: false, payload: Bytes::new() }.into(), end),
        (Stored { channel, bytes: 0, complete: None }.into(), end),
        (Allowance { channel, bytes: 0 }.into(), end),
        (ProtectNow { channel, log_offset: 1, tag }.into(), edge),
        (Protected { channel, sent_start: 0, received: 0 }.into(), end),
        (Unprotect { channel }.into(), edge),
        (RunsAhead { channel, is_so: true }.into(), edge),
        (Superseded { channel, promised: generation }.into(), end),
        (Finished { channel }.into(), end),
        (Output { channel, increment: None, close: false, payload: Bytes::new() }.into(), edge),
        (
            Chosen {
                channel,
                log_offset: 0,
                log: Bytes::new(),
                tag,
                credit: 0,
                session_ns: 0,
                runs_ahead: Last(None),
            }
            .into(),
            edge,
        ),
        (LogOnly { channel, entries: Bytes::new(), tag }.into(), edge),
        (Truncate { channel, log_offset: 0, tag, sent: 0 }.into(), edge),
        (Reject { channel, code, reason: "".into() }.into(), either),
        (Lead { channel, edge: "".into(), shard: 0, backup: "".into(), backup_shard: 0 }.into(), edge),
        (Failed { channel, failure }.into(), edge),
        (Finish { channel }.into(), edge),
        (LogPart { channel, generation, offset: 0, bytes: Bytes::new() }.into(), either),
        (CheckpointBegin { channel, meta }.into(), either),
        (Credit { channel, received: 0, bytes: 0 }.into(), either),
        (Ended { channel, code, reason: "".into() }.into(), either),
    ];
    for (frame, (by_end, by_edge)) in cases {
        assert_eq!(frame.channel(Sender::End), by_end.then_some(channel), "{frame:?}");
        assert_eq!(frame.channel(Sender::Edge), by_edge.then_some(channel), "{frame:?}");
    }
    // A hello and a promise open their channels; they do not belong to an open one.
    for frame in samples().into_iter().filter(|frame| matches!(frame, Frame::Hello(_))) {
        assert_eq!((frame.channel(Sender::End), frame.channel(Sender::Edge)), (None, None));
    }
}
