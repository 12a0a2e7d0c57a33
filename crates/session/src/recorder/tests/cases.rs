//! One case each: what is refused, what replaces what, what files hold.

use super::*;

#[test]
fn what_does_not_fit_is_refused_and_nothing_else_suffers() {
    let meta = |full, log_offset, size| CheckpointMeta {
        generation: Generation { count: 1, opener: 5 },
        number: 1,
        kind: if full { CheckpointKind::Full } else { CheckpointKind::Delta },
        log_offset,
        size,
    };
    let base = |channel, meta, took: &[u64]| Frame::from(Base { channel, meta, took: took.to_vec() });
    let bad = |model: &Model| {
        let channel = model.channel;
        let closed = Fed { close: true, ..fed(model, 0, b"x") };
        let part = Bytes::from_static(b"part");
        vec![
            fed(model, 1, b"").into(),
            fed(model, 3, b"").into(),
            fed(model, u32::MAX, b"").into(),
            fed(model, 2, b"from no one").into(),
            closed.into(),
            Fed { entry: Bytes::new(), ..fed(model, 0, b"") }.into(),
            base(channel, meta(false, 1, 5), &[1]),
            base(channel, meta(true, 2, 5), &[1]),
            base(channel, meta(true, 1, 0), &[1]),
            base(channel, meta(true, 1, 5), &[2]),
            base(channel, meta(true, 1, 5), &[1, 0]),
            base(channel, meta(true, 1, u64::MAX), &[1]),
            base(
                channel,
                CheckpointMeta { generation: Generation { count: 2, opener: 0 }, ..meta(true, 1, 5) },
                &[1],
            ),
            CheckpointPart { channel, bytes: part }.into(),
            Truncate { channel, log_offset: 2, tag: [0; 8], sent: 0 }.into(),
            Renewed { channel, generation: model.generation }.into(),
            Input { channel, ack: 0, close: false, payload: Bytes::new() }.into(),
        ]
    };
    let count = bad(&Model::new(0, 1)).len();
    for index in 0..count {
        let mut world = World::new(1 << 20, true);
        let wire = world.wire();
        let (mut model, mut other) = (Model::new(0, 1), Model::new(1, 1));
        model.keep(&mut world, wire);
        other.keep(&mut world, wire);
        world.hear(wire, fed(&model, 0, b"m"));
        world.said();
        let frame = bad(&model).swap_remove(index);
        let of_ends = frame.channel(Sender::Edge).is_none();
        world.hear(wire, frame.clone());
        let said = world.said();
        if of_ends {
            assert!(matches!(said[0], Frame::Goodbye(_)), "{frame:?}: {said:?}");
            continue;
        }
        assert!(matches!(said[0], Frame::Reject(_)), "{frame:?}: {said:?}");
        // A frame that is still in flight is not the peer's fault.
        world.hear(wire, fed(&model, 0, b"m"));
        assert_eq!(world.recall(wire, model.session), None);
        assert!(!world.files.contains_key(&model.session));
        assert_eq!(world.recall(wire, other.session), other.expected());
    }
}

#[test]
fn a_session_that_consumed_more_messages_than_its_log_has_entries_is_refused() {
    let mut world = World::new(1 << 20, false);
    let wire = world.wire();
    for (channel, took, refused) in [(1, 0, false), (3, 7, false), (5, 8, true), (7, u64::MAX, true)] {
        let model = Model::new(0, 1);
        world.hear(wire, Keep { channel, took: vec![took], log_offset: 7, ..model.announcement() });
        assert_eq!(
            matches!(&world.said()[..], [Frame::Reject(it)] if it.code == Code::Protocol),
            refused,
            "{took}"
        );
    }
}

#[test]
fn an_older_generation_is_refused_and_a_newer_one_takes_over() {
    let mut world = World::new(1 << 20, false);
    let (first, second) = (world.wire(), world.wire());
    let (mut old, mut new) = (Model::new(0, 1), Model::new(0, 1));
    new.generation.count = 2;
    old.keep(&mut world, first);
    new.keep(&mut world, second);
    let said = core::mem::take(&mut world.sent);
    let told = |frame: &Frame| matches!(frame, Frame::Superseded(it) if it.promised == new.generation);
    assert!(said.iter().any(|(wire, frame)| *wire == first && told(frame)), "{said:?}");
    old.keep(&mut world, first);
    let said = world.said();
    assert!(matches!(&said[..], [Frame::Reject(it)] if it.code == Code::Busy), "{said:?}");
    assert_eq!(world.recall(first, new.session), new.expected());
}

#[test]
fn a_session_without_a_feed_is_kept_for_its_linger_time() {
    for (code, kept_ns) in [
        (None, LINGER_NS),
        (Some(Code::Superseded), GRACE_NS),
        (Some(Code::Busy), GRACE_NS),
        (Some(Code::Finished), 0),
        (Some(Code::Killed), 0),
    ] {
        let mut world = World::new(1 << 20, true);
        let (wire, other) = (world.wire(), world.wire());
        let mut model = Model::new(0, 1);
        model.keep(&mut world, wire);
        world.hear(wire, fed(&model, 2, b""));
        match code {
            None => world.step(RecorderInput::WireDown { wire, reason: "test".into() }),
            Some(code) => world.hear(wire, Ended { channel: model.channel, code, reason: "test".into() }),
        }
        let start_ns = world.now_ns;
        if kept_ns > 0 {
            world.now_ns = start_ns + kept_ns - 1;
            world.step(RecorderInput::Wake);
            assert!(world.recall(other, model.session).is_some(), "{code:?}");
        }
        world.now_ns = start_ns + kept_ns;
        world.step(RecorderInput::Wake);
        assert_eq!(world.recall(other, model.session), None, "{code:?}");
        assert!(world.files.is_empty());
    }
}

#[test]
fn what_was_kept_is_there_until_what_replaces_it_is_whole() {
    let mut world = World::new(1 << 20, false);
    let wire = world.wire();
    let (mut model, mut random) = (Model::new(0, 1), Random::new([1; 32]));
    model.keep(&mut world, wire);
    model.feed(&mut world, &mut random, 10);
    let before = model.expected();
    // Its owner had dropped the recorder, and makes it keep the session again.
    model.keep(&mut world, wire);
    model.feed(&mut world, &mut random, 10);
    assert_eq!(world.recall(wire, model.session), before);
    model.part(&mut world, 1_000);
    assert_eq!(world.recall(wire, model.session), model.expected());
    assert!(model.expected() != before);
}

#[test]
fn entries_and_parts_are_acknowledged_as_they_come() {
    let mut world = World::new(64 << 20, false);
    let wire = world.wire();
    let mut model = Model::new(0, 1);
    model.keep(&mut world, wire);
    let (mut frames, mut bytes) = (0, 0);
    let cost = charge(32 << 10) + 1;
    for _ in 0..200 {
        let payload = Bytes::from(vec![1; 32 << 10]);
        world.hear(wire, Fed { payload, ..fed(&model, 0, b"") });
    }
    for frame in world.said() {
        if let Frame::Credit(credit) = frame {
            assert!(credit.bytes >= 512 << 10 && credit.bytes < (512 << 10) + cost);
            (frames, bytes) = (frames + credit.received, bytes + credit.bytes);
        }
    }
    assert!(frames > 180 && bytes == frames * cost, "{frames} {bytes}");
    (model.log, model.inputs[0]) = (vec![(0, model.generation); 200], vec![(false, Bytes::new()); 200]);
    model.base(&mut world, true, 200_000);
    for _ in 0..20 {
        model.part(&mut world, 10_000);
    }
    let stored = world.said().into_iter().filter_map(|frame| match frame {
        Frame::Stored(stored) => Some((stored.bytes, stored.complete)),
        _ => None,
    });
    assert_eq!(stored.collect::<Vec<_>>(), [(70_000, None), (70_000, None), (60_000, Some(1))]);
}

#[test]
fn it_proves_its_identity_and_dials_ever_less_often_after_refusals() {
    let mut world = World::new(1 << 20, false);
    assert_eq!(world.dials.len(), 2);
    let wire = world.wire();
    let said = world.said();
    let (key, name) = (world.recorder.config.key.clone(), "r");
    assert!(matches!(&said[0], Frame::Greet(_)));
    assert!(said.iter().any(|frame| {
        matches!(frame, Frame::Keeper(it) if it.proof == key.proof(&[9; 16], name) && it.role == 0)
    }));
    let mut waits = Vec::new();
    let mut id = wire.0 + 100;
    world.dials.clear();
    world.hear(wire, Goodbye { reason: "not one of ours".into() });
    for _ in 0..10 {
        let before = world.now_ns;
        while !world.dials.contains(&Target { edge: 0, shard: 0 }) {
            world.now_ns += 5 * MS;
            world.step(RecorderInput::Wake);
        }
        waits.push(world.now_ns - before);
        id += 1;
        world.wires = id;
        let wire = world.wire();
        world.dials.clear();
        world.step(RecorderInput::WireDown { wire, reason: "refused".into() });
    }
    assert!(waits[0] <= 20 * MS && waits[9] >= 500 * MS, "{waits:?}");
}

#[test]
fn a_file_that_breaks_off_holds_an_older_state_and_nonsense_is_refused() {
    let mut world = World::new(1 << 20, true);
    let wire = world.wire();
    let (mut model, mut random) = (Model::new(0, 2), Random::new([3; 32]));
    model.keep(&mut world, wire);
    for round in 0..4 {
        for _ in 0..5 {
            model.feed(&mut world, &mut random, 30);
        }
        model.base(&mut world, round == 0, 300);
        model.part(&mut world, 1_000);
        model.truncate(&mut world, &mut random);
    }
    let frames = world.files[&model.session].clone();
    let restore = |frames: Vec<Frame>| {
        let mut recorder = Recorder::new(config(1 << 20, true), 0, [8; 32]);
        let restored = recorder.restore(0, model.session, frames);
        (restored, recorder.session_count())
    };
    for cut in 0..=frames.len() {
        let (restored, count) = restore(frames[..cut].to_vec());
        assert_eq!(restored, Ok(count == 1), "{cut}");
    }
    // If any one required frame is missing, the file is refused or gives an older state; it never causes a panic.
    let mut refused = 0;
    for index in 0..frames.len() {
        let mut some = frames.clone();
        some.remove(index);
        refused += u32::from(restore(some).0.is_err());
    }
    assert!(refused > 4, "{refused}");
    let other = Recorder::new(config(1 << 20, true), 0, [8; 32]).restore(0, SessionId([9; 16]), frames);
    assert_eq!(other.map_err(|unfit| unfit.index), Err(0));
    assert!(format!("{:?}", world.reports).contains("Kept"));
}
