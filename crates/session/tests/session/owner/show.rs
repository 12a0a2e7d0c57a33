//! Frames and effects as lines that a test can compare: the relevant fields, without sealed bytes.

use bytes::Bytes;
use core::ops::Range;
use marram_session::{
    cell::{CellInput, CheckpointBase},
    owner::OwnerEffect,
};
use marram_wire::{
    frame::{CheckpointKind, Frame, Output, Promise},
    id::Port,
};

pub(crate) fn port(port: Port) -> &'static str {
    if port == Port::CLIENT { "client" } else { "server" }
}

/// Short text as it is, otherwise the size.
fn payload(bytes: &Bytes) -> String {
    match core::str::from_utf8(bytes) {
        Ok(text) if text.len() <= 20 => text.into(),
        _ => format!("{} bytes", bytes.len()),
    }
}

pub(crate) fn output(output: &Output, log: Range<u64>) -> String {
    let what = if output.close { "close".into() } else { format!("output {}", payload(&output.payload)) };
    if output.increment.is_some() { format!("{what} with log {}..{}", log.start, log.end) } else { what }
}

fn promise(promise: &Promise) -> String {
    let mut line = format!("promise {}", promise.generation.count);
    if let Some(peer) = &promise.peer {
        line += &format!(" beside {}", peer.0[0]);
    }
    if !promise.server.is_empty() {
        line += &format!(" to {}", promise.server);
    }
    if let Some(live) = &promise.live {
        line += &format!(" live since {} took {}", live.generation.count, live.took);
    }
    line
}

pub(crate) fn frame(frame: &Frame) -> String {
    match frame {
        Frame::Promise(frame) => promise(frame),
        Frame::CheckpointBegin(begin) => {
            let kind = match begin.meta.kind {
                CheckpointKind::Full => "full",
                CheckpointKind::Delta => "delta",
                CheckpointKind::Merged => "merged",
            };
            format!(
                "checkpoint {} {kind} at {} of {}",
                begin.meta.number, begin.meta.log_offset, begin.meta.size
            )
        }
        Frame::CheckpointPart(part) => format!("part of {}", part.bytes.len()),
        Frame::Truncate(truncate) => format!("forget log {} sent {}", truncate.log_offset, truncate.sent),
        Frame::Credit(credit) => format!("credit {}", credit.bytes),
        Frame::Reject(reject) => format!("reject {:?}", reject.code),
        Frame::Ended(ended) => format!("ended {:?}", ended.code),
        Frame::Failed(failed) => format!("failed {} at {}", failed.failure.input, failed.failure.log_offset),
        Frame::Finish(_) => "finish".into(),
        Frame::Fetch(_) => "fetch".into(),
        Frame::ProtectNow(_) => "protect".into(),
        Frame::Unprotect(_) => "unprotect".into(),
        other => panic!("an owner does not send {other:?}"),
    }
}

fn input(input: &CellInput) -> String {
    match input {
        CellInput::Open { port: at, kind, .. } => format!("open {} as {kind:?}", port(*at)),
        CellInput::Message { port: from, payload: bytes } => format!("{} of {}", payload(bytes), port(*from)),
        CellInput::Close { port: at } => format!("close {}", port(*at)),
        CellInput::Gone { port: at } => format!("gone {}", port(*at)),
        CellInput::Timer { token, .. } => format!("timer {token}"),
        CellInput::Task { token, .. } => format!("task {token}"),
    }
}

/// Effects other than frames.
pub(crate) fn effect(effect: &OwnerEffect) -> String {
    match effect {
        OwnerEffect::Send(..) => panic!("frames are shown by whom they reach"),
        OwnerEffect::Start(..) => "start".into(),
        OwnerEffect::EpochDue => "epoch due".into(),
        OwnerEffect::Restore(_, checkpoints) => {
            let numbers: Vec<String> = checkpoints.iter().map(|one| one.number.to_string()).collect();
            format!("restore {}", numbers.join(" "))
        }
        OwnerEffect::Part(_) => panic!("the bench keeps parts"),
        OwnerEffect::Run(run) => format!("run {}", input(&run.input)),
        OwnerEffect::Prepare(_, base) => {
            format!("prepare {}", name_of(*base))
        }
        OwnerEffect::Copy(_, base) => {
            format!("copy {}", name_of(*base))
        }
        OwnerEffect::NoCheckpoint(_) => "no checkpoint".into(),
        OwnerEffect::MergesDeltas(_) => "merges deltas".into(),
        OwnerEffect::Checkpoint(_, header, _) => format!("seal {} at {}", header.number, header.log_offset),
        OwnerEffect::Hash(cell) => format!("hash {}", cell.0),
        OwnerEffect::Recorded(request, Ok(gathered)) => {
            let stop = gathered.stop.as_ref().map(|stop| format!(", stopped by {}", stop.reason));
            format!("recorded for {:?}{}", request.tag, stop.unwrap_or_default())
        }
        OwnerEffect::Recorded(request, Err(why)) => format!("not recorded for {:?}: {why}", request.tag),
        OwnerEffect::Advance(cell, meta) => format!("advance {} to {}", cell.0, meta.number),
        OwnerEffect::ToKeeper(keeper, frame) => format!("to keeper {}: {frame:?}", keeper.0),
        OwnerEffect::StandbySlow(keeper) => format!("keeper {} replays too slowly", keeper.0),
        OwnerEffect::KeeperLost(keeper, code, _) => format!("keeper {} lost: {code:?}", keeper.0),
        OwnerEffect::ToFeeder(frame) => format!("to feeder: {frame:?}"),
        OwnerEffect::TakeOver => "take over".into(),
        OwnerEffect::AskWitness(generation) => format!("ask the witness for {}", generation.count),
        OwnerEffect::Report(seen) => format!("report {} of {}", seen.log_end, seen.generation.count),
        OwnerEffect::WitnessMissing => "witness missing".into(),
        OwnerEffect::Remove(cell) => format!("remove {}", cell.0),
        OwnerEffect::ConnectionOver(name, code, why) => {
            format!("connection to {name} is over: {code:?}: {why}")
        }
        OwnerEffect::Expelled(client, reason) => format!("expels {client}: {reason}"),
        OwnerEffect::AskPort(session, count) => format!("ask {session} beside {count}"),
        OwnerEffect::Reopen(count) => format!("again {count}"),
        OwnerEffect::Done(code, _) => format!("over {code:?}"),
    }
}

fn name_of(base: CheckpointBase) -> &'static str {
    match base {
        CheckpointBase::Image => "full",
        CheckpointBase::Previous => "delta",
        CheckpointBase::Backup => "backup",
        CheckpointBase::Full => "merged",
        CheckpointBase::Apart => "apart",
    }
}
