//! Changes of frames that an end sends. Nothing is opened or forged: sealed bytes are moved, cut or damaged.
//!
//! Values are changed to ones that are near the true one or at a limit, since checks fail at their
//! edges. Sizes of frames stay legal: a frame that is too long would be refused by the codec and
//! reach no check behind it.

use crate::{random::Random, world::lies::other_kind};
use bytes::Bytes;
use marram_wire::{
    codec::Last,
    frame::{
        Allowance, Channel, CheckpointBegin, CheckpointKind, CheckpointMeta, CheckpointPart, Chosen, Credit,
        Failure, Finished, Frame, Hello, Input, Kept, KeptInput, LogPart, Promised, Protected, Recalled,
        Reject, Replayed, Sender, Stored, Superseded, Truncate,
    },
    id::{Generation, HostId, ImageHash},
};

/// The channel of a frame that an end sends.
pub(super) fn channel_of(frame: &Frame) -> Option<Channel> {
    match frame {
        Frame::Hello(hello) => Some(hello.channel),
        other => other.channel(Sender::End),
    }
}

/// Says the same on another channel.
pub(super) fn set_channel(frame: &mut Frame, channel: Channel) {
    match frame {
        Frame::Hello(it) => it.channel = channel,
        Frame::Promised(it) => it.channel = channel,
        Frame::LogPart(it) => it.channel = channel,
        Frame::CheckpointBegin(it) => it.channel = channel,
        Frame::CheckpointPart(it) => it.channel = channel,
        Frame::Input(it) => it.channel = channel,
        Frame::Credit(it) => it.channel = channel,
        Frame::Stored(it) => it.channel = channel,
        Frame::Allowance(it) => it.channel = channel,
        Frame::Protected(it) => it.channel = channel,
        Frame::Kept(it) => it.channel = channel,
        Frame::KeptInput(it) => it.channel = channel,
        Frame::Superseded(it) => it.channel = channel,
        Frame::Ended(it) => it.channel = channel,
        Frame::Finished(it) => it.channel = channel,
        _ => {}
    }
}

/// Hides a part of what an end keeps, in an answer that is consistent: log behind some place, with the checkpoints there, and
/// perhaps messages and outputs.
pub(super) fn hide(chance: &mut Random, answer: &mut Vec<Frame>) {
    let Some(Frame::Promised(said)) = answer.first_mut() else { return };
    let kept_end = said.log_start + chance.below(said.log_end - said.log_start + 1);
    let sent_end = if chance.percent(50) { said.sent_end } else { said.sent_start };
    (said.log_end, said.sent_end) = (kept_end, sent_end);
    said.received = if chance.percent(50) { said.received } else { chance.below(said.received + 1) };
    let checkpoints = chance.percent(50) && said.checkpoints.iter().all(|meta| meta.log_offset <= kept_end);
    if !checkpoints {
        said.checkpoints.clear();
    }
    let messages = sent_end > said.sent_start;
    answer.retain_mut(|frame| match frame {
        Frame::LogPart(part) => {
            let size = usize::try_from(kept_end.saturating_sub(part.offset)).unwrap_or(0);
            part.bytes.truncate(size);
            size > 0
        }
        Frame::CheckpointBegin(_) | Frame::CheckpointPart(_) => checkpoints,
        Frame::Input(_) => messages,
        _ => true,
    });
}

/// A number that is near the true one, or far from any.
fn count(chance: &mut Random, real: u64) -> u64 {
    match chance.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << chance.below(64),
        3 => real.wrapping_add(1),
        4 => real.wrapping_sub(1),
        5 => chance.below(real.saturating_mul(2).saturating_add(2)),
        _ => chance.below(real.saturating_add(1).max(1)),
    }
}

/// Another generation: of another opener, the last possible one, none, or with another count.
fn generation(chance: &mut Random, of: &mut Generation) {
    match chance.below(4) {
        0 => of.opener ^= 1,
        1 => of.count = u64::MAX - chance.below(2),
        2 => *of = Generation::NONE,
        _ => of.count = count(chance, of.count),
    }
}

/// Damages, cuts or lengthens bytes; they are not longer than before unless they were empty.
fn alter(chance: &mut Random, bytes: &mut Bytes) {
    let mut altered = bytes.to_vec();
    if altered.is_empty() || chance.percent(10) {
        altered.push(0);
    } else if chance.percent(20) {
        altered.truncate(chance.index(altered.len()));
    } else {
        let at = chance.index(altered.len());
        altered[at] ^= 1 << chance.below(8);
    }
    // Not more than a frame may carry.
    altered.truncate(bytes.len().max(1));
    *bytes = Bytes::from(altered);
}

/// Changes one property of an announced checkpoint.
fn meta(chance: &mut Random, meta: &mut CheckpointMeta) {
    match chance.below(5) {
        0 => generation(chance, &mut meta.generation),
        1 => meta.number ^= 1,
        2 => meta.kind = other_kind(chance, meta.kind),
        3 => meta.log_offset = count(chance, meta.log_offset),
        _ => meta.size = count(chance, meta.size),
    }
}

/// Changes a list of announced checkpoints: adds one, leaves one out, reorders them, or changes
/// one.
fn metas(chance: &mut Random, metas: &mut Vec<CheckpointMeta>) {
    let invented = CheckpointMeta {
        generation: Generation { count: 1, opener: chance.draw() },
        number: 1,
        kind: if chance.percent(70) { CheckpointKind::Full } else { CheckpointKind::Delta },
        log_offset: chance.magnitude(1, 1 << 40),
        size: chance.magnitude(1, 1 << 40),
    };
    match metas.len() {
        0 => metas.push(invented),
        len => match chance.below(5) {
            0 => metas.push(invented),
            1 => _ = metas.pop(),
            2 => metas.reverse(),
            _ => {
                let at = chance.index(len);
                meta(chance, &mut metas[at]);
            }
        },
    }
}

/// Changes something in a frame.
pub(super) fn change(chance: &mut Random, frame: &mut Frame) {
    match frame {
        Frame::Hello(hello) => in_hello(chance, hello),
        Frame::Promised(said) => in_promise(chance, said),
        Frame::LogPart(part) => match chance.below(4) {
            0 => part.offset = count(chance, part.offset),
            1 => generation(chance, &mut part.generation),
            _ => alter(chance, &mut part.bytes),
        },
        Frame::Input(input) => match chance.below(3) {
            0 => input.ack = count(chance, input.ack),
            1 => (input.close, input.payload) = (!input.close, Bytes::new()),
            _ if input.close => input.ack = 1,
            _ => alter(chance, &mut input.payload),
        },
        Frame::Credit(credit) => match chance.below(2) {
            0 => credit.received = count(chance, credit.received),
            _ => credit.bytes = count(chance, credit.bytes),
        },
        Frame::Stored(stored) => match chance.below(2) {
            0 => stored.bytes = count(chance, stored.bytes),
            _ => stored.complete = chance.percent(70).then(|| stored.complete.map_or(1, |number| number ^ 1)),
        },
        Frame::Allowance(allowance) => allowance.bytes = count(chance, allowance.bytes),
        Frame::Protected(protected) => match chance.below(2) {
            0 => protected.sent_start = count(chance, protected.sent_start),
            _ => protected.received = count(chance, protected.received),
        },
        Frame::CheckpointBegin(begin) => meta(chance, &mut begin.meta),
        Frame::CheckpointPart(part) => alter(chance, &mut part.bytes),
        Frame::Kept(kept) => match chance.below(3) {
            0 => kept.sent_start = count(chance, kept.sent_start),
            1 => kept.sent_end = count(chance, kept.sent_end),
            _ => metas(chance, &mut kept.checkpoints),
        },
        Frame::KeptInput(input) if !input.close => alter(chance, &mut input.payload),
        Frame::Superseded(superseded) => generation(chance, &mut superseded.promised),
        other => {
            if let Some(channel) = channel_of(other) {
                *other = invent(chance, channel);
            }
        }
    }
}

/// What an end asks for: every field that an edge takes into account.
fn in_hello(chance: &mut Random, hello: &mut Hello) {
    match chance.below(9) {
        0 | 1 => generation(chance, &mut hello.promised),
        2 => hello.fresh ^= true,
        3 => hello.image = hello.image.filter(|_| chance.percent(50)).map(|_| ImageHash([7; 32])),
        4 => hello.proof = hello.proof.filter(|_| chance.percent(50)).map(|proof| proof.map(|byte| byte ^ 1)),
        5 => hello.peer = chance.percent(50).then(|| HostId(chance.bytes())),
        6 => hello.server ^= true,
        7 => hello.session.0[chance.index(16)] ^= 1,
        _ => hello.app = chance.pick(&["alone", "bare", "paired", "no such app"]).into(),
    }
}

/// What an end says that it keeps: every number, and the reason why it failed before.
fn in_promise(chance: &mut Random, said: &mut Promised) {
    match chance.below(11) {
        0 => generation(chance, &mut said.previous),
        1 => said.live ^= true,
        2 => said.log_start = count(chance, said.log_start),
        3 => said.log_end = count(chance, said.log_end),
        4 => said.tag[chance.index(8)] ^= 1,
        5 => said.received = count(chance, said.received),
        6 => said.window = count(chance, said.window),
        7 => said.sent_start = count(chance, said.sent_start),
        8 => said.sent_end = count(chance, said.sent_end),
        9 => metas(chance, &mut said.checkpoints),
        _ => {
            let (log_offset, input) = (count(chance, said.log_end), chance.pick(&[0, 1, 2, 3, 4, 5, 9]));
            said.failed = Some(Failure { log_offset, input, reason: "a lie".into() });
        }
    }
}

/// A frame that nothing asked for; some of them only edges and keepers send.
pub(super) fn invent(chance: &mut Random, channel: Channel) -> Frame {
    let payload = Bytes::from_static(b"invented");
    let number = chance.magnitude(1, 1 << 40);
    let generation = Generation { count: chance.below(5), opener: chance.draw() };
    match chance.below(20) {
        0 | 1 => Credit { channel, received: chance.below(4), bytes: number }.into(),
        2 => Stored { channel, bytes: number, complete: chance.percent(50).then_some(1) }.into(),
        3 if chance.percent(50) => Allowance { channel, bytes: number }.into(),
        3 if chance.percent(50) => Protected { channel, sent_start: number, received: 0 }.into(),
        3 => Stored { channel, bytes: 0, complete: Some(1) }.into(),
        4 => Frame::Superseded(Superseded { channel, promised: generation }),
        5 => Finished { channel }.into(),
        6 => Frame::Kept(Kept { channel, sent_start: 0, sent_end: chance.below(3), checkpoints: Vec::new() }),
        7 => KeptInput { channel, close: chance.percent(30), payload: Bytes::new() }.into(),
        8 => {
            let mut list = Vec::new();
            metas(chance, &mut list);
            CheckpointBegin { channel, meta: list.remove(0) }.into()
        }
        9 => CheckpointPart { channel, bytes: payload }.into(),
        10 => LogPart { channel, generation, offset: chance.below(100), bytes: payload }.into(),
        11 | 12 => Input { channel, ack: chance.below(3), close: false, payload }.into(),
        13 => Input { channel, ack: 0, close: true, payload: Bytes::new() }.into(),
        14 => {
            let tag = chance.bytes();
            Truncate { channel, log_offset: number, tag, sent: 1 }.into()
        }
        15 => {
            let (tag, session_ns) = (chance.bytes(), number.cast_signed());
            let (log_offset, runs_ahead) = (0, Last(None));
            Chosen { channel, log_offset, log: payload, tag, credit: number, session_ns, runs_ahead }.into()
        }
        16 => Frame::Recalled(Recalled {
            channel,
            generation,
            log_start: 0,
            log_end: number,
            tag: chance.bytes(),
            sent_start: vec![0, 0],
            sent_end: vec![1, 1],
            checkpoints: Vec::new(),
        }),
        17 => Frame::Replayed(Replayed { channel, entries: number }),
        18 => Reject { channel, code: marram_wire::frame::Code::Busy, reason: "a lie".into() }.into(),
        _ => {
            let mut said = Promised {
                channel,
                previous: generation,
                live: chance.percent(50),
                log_start: 0,
                log_end: chance.below(100),
                tag: chance.bytes(),
                received: chance.below(10),
                window: number,
                sent_start: 0,
                sent_end: chance.below(10),
                checkpoints: Vec::new(),
                checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
                partial: None,
                failed: None,
                datagrams: false,
                origin: None,
                session_ns: chance.percent(50).then(|| number.cast_signed()),
            };
            in_promise(chance, &mut said);
            Frame::Promised(said)
        }
    }
}
