//! The lies of a recorder: about everything that it sends, in what it announces and in what it returns, one lie per answer, so
//! that each check meets lies that no other check would detect. It cannot open sealed data or forge a digest; it can do all else.
//!
//! An answer of a recorder is `Recalled`, which announces counts, log and checkpoints, and then the
//! frames that it has announced. The edge must find each lie by the digests of ends and witness, or
//! the lie must change nothing (I32).

use crate::random::Random;
use bytes::Bytes;
use marram_session::recorder::RecorderOutput;
use marram_wire::frame::{Channel, CheckpointKind, CheckpointMeta, Credit, Frame, KeptInput, Recalled};
use std::ops::Range;

/// Puts lies into what the recorder is about to send. Returns how many.
///
/// In 70 of 100 answers there is one lie; other frames are changed in 20 of 100 cases.
pub(super) fn lie(chance: &mut Random, out: &mut Vec<RecorderOutput>) -> u64 {
    let mut lies = 0;
    let mut at = 0;
    while at < out.len() {
        let answer = frame(out, at).and_then(|frame| match frame {
            Frame::Recalled(recalled) => Some(recalled.channel),
            _ => None,
        });
        let size =
            answer.map_or(1, |channel| out[at..].iter().take_while(|out| of_channel(out, channel)).count());
        let (told, now) = if answer.is_some() && chance.percent(70) {
            in_answer(chance, out, at..at + size)
        } else {
            (u64::from(chance.percent(20) && in_frame(chance, out, at)), 1)
        };
        lies += told;
        at += now;
    }
    lies
}

/// The frame that is sent at this place; `None` for another kind of output.
fn frame(out: &[RecorderOutput], at: usize) -> Option<&Frame> {
    match out.get(at) {
        Some(RecorderOutput::Send { frame, .. }) => Some(frame),
        _ => None,
    }
}

fn frame_mut(out: &mut [RecorderOutput], at: usize) -> Option<&mut Frame> {
    match out.get_mut(at) {
        Some(RecorderOutput::Send { frame, .. }) => Some(frame),
        _ => None,
    }
}

/// Whether this belongs to the answer on `channel`.
fn of_channel(out: &RecorderOutput, channel: Channel) -> bool {
    match out {
        RecorderOutput::Send { frame: Frame::Recalled(it), .. } => it.channel == channel,
        RecorderOutput::Send { frame: Frame::LogPart(it), .. } => it.channel == channel,
        RecorderOutput::Send { frame: Frame::KeptInput(it), .. } => it.channel == channel,
        RecorderOutput::Send { frame: Frame::CheckpointBegin(it), .. } => it.channel == channel,
        RecorderOutput::Send { frame: Frame::CheckpointPart(it), .. } => it.channel == channel,
        _ => false,
    }
}

/// Puts one lie into an answer to a recall of a session. Also returns the answer's size.
fn in_answer(chance: &mut Random, out: &mut Vec<RecorderOutput>, range: Range<usize>) -> (u64, usize) {
    let (behind, size) = (out.len() - range.end, range.len());
    let start = range.start;
    let told = match chance.below(10) {
        0..3 => counts(chance, out, range),
        3..6 => announced(chance, out, range.start),
        6 | 7 => {
            let at = range.start + chance.index(size);
            in_frame(chance, out, at)
        }
        8 => order(chance, out, range),
        _ => missing_or_twice(chance, out, range),
    };
    (u64::from(told), out.len() - behind - start)
}

/// Counts and messages that are consistent with each other, but not with the log.
fn counts(chance: &mut Random, out: &mut Vec<RecorderOutput>, range: Range<usize>) -> bool {
    let Some(RecorderOutput::Send { wire, .. }) = out.get(range.start) else { return false };
    let wire = *wire;
    let inputs: Vec<usize> =
        range.clone().filter(|at| matches!(frame(out, *at), Some(Frame::KeptInput(_)))).collect();
    let Some(Frame::Recalled(said)) = frame_mut(out, range.start) else { return false };
    let port = chance.index(said.sent_end.len());
    let channel = said.channel;
    let of = |said: &Recalled, port: usize| {
        usize::try_from(said.sent_end[port] - said.sent_start[port]).expect("a short history")
    };
    // After the last message of that port.
    let behind: usize = (0..=port).map(|port| of(said, port)).sum();
    let invented = KeptInput { channel, close: false, payload: Bytes::from_static(b"\x08\0\0\0evil") };
    match chance.below(4) {
        // Adds one message.
        0 => {
            said.sent_end[port] += 1;
            let at =
                inputs.get(behind).copied().unwrap_or_else(|| inputs.last().map_or(range.end, |at| at + 1));
            out.insert(at, RecorderOutput::Send { wire, frame: invented.into() });
        }
        // Removes one message.
        1 if of(said, port) > 0 => {
            said.sent_end[port] -= 1;
            out.remove(inputs[behind - 1]);
        }
        // The same number, but all one later: the next message of the end would be skipped.
        _ => {
            said.sent_start[port] += 1;
            said.sent_end[port] += 1;
        }
    }
    true
}

/// Changes one announced value.
fn announced(chance: &mut Random, out: &mut [RecorderOutput], at: usize) -> bool {
    let Some(Frame::Recalled(said)) = frame_mut(out, at) else { return false };
    let port = chance.index(said.sent_end.len());
    match chance.below(10) {
        0 => said.generation.count += 1,
        // No generation can follow the one after this.
        1 => said.generation.count = u64::MAX - 1,
        2 => said.generation.count = said.generation.count.saturating_sub(1),
        3 => said.generation.opener ^= 1,
        4 => said.log_start = chance.below(said.log_end + 2),
        5 => said.log_end = chance.below(said.log_end * 2 + 2),
        6 => said.sent_start[port] = chance.below(said.sent_end[port] + 2),
        7 => said.sent_end[port] = chance.below(said.sent_end[port] * 2 + 2),
        8 => said.sent_end.reverse(),
        _ if said.checkpoints.is_empty() => said.tag[chance.index(8)] ^= 1,
        _ => {
            let nth = chance.index(said.checkpoints.len());
            checkpoint(chance, &mut said.checkpoints[nth]);
        }
    }
    true
}

/// A kind of checkpoint that is not this one.
pub(super) fn other_kind(chance: &mut Random, kind: CheckpointKind) -> CheckpointKind {
    match (kind, chance.percent(50)) {
        (CheckpointKind::Full, true) | (CheckpointKind::Merged, false) => CheckpointKind::Delta,
        (CheckpointKind::Delta | CheckpointKind::Merged, true) => CheckpointKind::Full,
        (CheckpointKind::Full | CheckpointKind::Delta, false) => CheckpointKind::Merged,
    }
}

/// Changes one property of an announced checkpoint.
fn checkpoint(chance: &mut Random, meta: &mut CheckpointMeta) {
    match chance.below(5) {
        0 => meta.generation.count ^= 1,
        1 => meta.number ^= 1,
        2 => meta.kind = other_kind(chance, meta.kind),
        3 => meta.log_offset = chance.below(meta.log_offset * 2 + 2),
        _ => meta.size = chance.below(meta.size * 2 + 2),
    }
}

/// Changes one frame, of any kind.
fn in_frame(chance: &mut Random, out: &mut [RecorderOutput], at: usize) -> bool {
    let Some(frame) = frame_mut(out, at) else { return false };
    match frame {
        Frame::Recalled(_) => return announced(chance, out, at),
        Frame::LogPart(part) => match chance.below(4) {
            0 => part.offset ^= 1 << chance.below(12),
            1 => part.generation.count ^= 1,
            _ => return alter(chance, &mut part.bytes),
        },
        Frame::KeptInput(input) => match chance.below(4) {
            0 => (input.close, input.payload) = (!input.close, Bytes::new()),
            // Replaces it by a kind of frame that ends send.
            1 => *frame = Credit { channel: input.channel, received: 1, bytes: 1 }.into(),
            _ => return alter(chance, &mut input.payload),
        },
        Frame::CheckpointBegin(begin) => checkpoint(chance, &mut begin.meta),
        Frame::CheckpointPart(part) => return alter(chance, &mut part.bytes),
        // Its reply to the owner that sends to it.
        Frame::Credit(credit) => {
            (credit.received, credit.bytes) = (chance.magnitude(1, 1 << 40), chance.magnitude(1, 1 << 40));
        }
        Frame::Stored(stored) => {
            stored.bytes = chance.magnitude(1, 1 << 40);
            stored.complete = chance.percent(50).then(|| u32::try_from(chance.below(9)).unwrap_or(0));
        }
        _ => return false,
    }
    true
}

/// Two frames of the same kind change places.
fn order(chance: &mut Random, out: &mut [RecorderOutput], range: Range<usize>) -> bool {
    let at = range.start + chance.index(range.len());
    let kind = |at: usize| frame(out, at).map(std::mem::discriminant);
    let Some(other) = (at + 1..range.end).find(|other| kind(*other) == kind(at)) else { return false };
    out.swap(at, other);
    true
}

/// Repeats a frame, or leaves out any frame except the announcement: a receiver waits only a short time for a missing frame.
fn missing_or_twice(chance: &mut Random, out: &mut Vec<RecorderOutput>, range: Range<usize>) -> bool {
    let at = range.start + chance.index(range.len());
    // Everything announced may be left out; without the announcement there is no answer.
    let may_miss = !matches!(frame(out, at), Some(Frame::Recalled(_)) | None);
    if may_miss && chance.percent(50) {
        out.remove(at);
    } else if let Some(RecorderOutput::Send { wire, frame }) = out.get(at) {
        let twice = RecorderOutput::Send { wire: *wire, frame: frame.clone() };
        out.insert(at, twice);
    }
    true
}

/// Changes one bit.
fn alter(chance: &mut Random, bytes: &mut Bytes) -> bool {
    if bytes.is_empty() {
        return false;
    }
    let mut altered = bytes.to_vec();
    let at = chance.index(altered.len());
    altered[at] ^= 1 << chance.below(8);
    *bytes = Bytes::from(altered);
    true
}
