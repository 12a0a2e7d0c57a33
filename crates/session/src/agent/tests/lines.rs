//! An agent's outputs as lines of text.

use super::super::{AgentOutput, AgentReport, ConnectionId};
use alloc::{
    format,
    string::{String, ToString},
};
use bytes::Bytes;
use marram_wire::{frame::Frame, id::SessionId};

/// Connections that the agent requested have the top bit set.
const ASKED_FOR: u64 = 1 << 63;

/// `p1` for an accepted connection, `q1` for one that the agent requested.
fn program(connection: ConnectionId) -> String {
    match connection.0 & ASKED_FOR {
        0 => format!("p{}", connection.0),
        _ => format!("q{}", connection.0 ^ ASKED_FOR),
    }
}

/// The text of short payloads, the size of long ones.
fn payload(bytes: &Bytes) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if text.len() < 20 => format!("'{text}'"),
        _ => format!("{} bytes", bytes.len()),
    }
}

/// One line for each output; `name` names sessions.
pub(super) fn line(out: &AgentOutput, name: &mut impl FnMut(SessionId) -> String) -> String {
    match out {
        AgentOutput::Dial { target } => format!("dial {}.{}", target.edge, target.shard),
        AgentOutput::Learn { edge, address } => format!("edge {edge} is at {address}"),
        AgentOutput::Forget { edge } => format!("edge {edge} is forgotten"),
        AgentOutput::Free { bytes } => format!("free {} bytes", bytes.len()),
        AgentOutput::CloseWire { wire, reason } => format!("w{} closes: {reason}", wire.0),
        AgentOutput::Send { wire, frame } => format!("w{} {}", wire.0, sent(frame, name)),
        AgentOutput::Connect { connection, server, .. } => {
            format!("{} connects to {server}", program(*connection))
        }
        AgentOutput::Write { connection, bytes } => {
            format!("{} is given {}", program(*connection), payload(bytes))
        }
        AgentOutput::Shutdown { connection } => format!("{} will be given no more", program(*connection)),
        AgentOutput::Close { connection, failure: None } => format!("{} is closed", program(*connection)),
        AgentOutput::Close { connection, failure: Some(_) } => format!("{} is reset", program(*connection)),
        AgentOutput::Reading { connection, on: true } => format!("{} is read", program(*connection)),
        AgentOutput::Reading { connection, on: false } => format!("{} is not read", program(*connection)),
        AgentOutput::WakeAt { now_ns } => format!("wake at {now_ns}"),
        AgentOutput::Report(report) => reported(report, name),
    }
}

fn sent(frame: &Frame, name: &mut impl FnMut(SessionId) -> String) -> String {
    match frame {
        Frame::Greet(f) => {
            format!("greet versions {} to {}, servers {:?}", f.version_oldest, f.version_newest, f.servers)
        }
        Frame::Edges(f) => {
            let told = f.edges.iter().map(|edge| format!(" {} at {}", edge.name, edge.addresses.join(", ")));
            format!("edges{}", told.collect::<String>())
        }
        Frame::Goodbye(f) => format!("goodbye: {}", f.reason),
        Frame::Ping(_) => "ping".to_string(),
        Frame::Pong(f) => format!("pong {}", f.stamp),
        Frame::Hello(f) => {
            let who = if f.server { " by the server's end" } else { "" };
            let what = if f.fresh { "fresh".to_string() } else { format!("after g{}", f.promised.count) };
            format!("hello c{} {}{who} {what}", f.channel, name(f.session))
        }
        Frame::Promised(f) => format!("promised c{} after g{}", f.channel, f.previous.count),
        Frame::Superseded(f) => format!("superseded c{} by g{}", f.channel, f.promised.count),
        Frame::Ended(f) => format!("ended c{} {:?}: {}", f.channel, f.code, f.reason),
        Frame::Finished(f) => format!("finished c{}", f.channel),
        Frame::Allowance(f) => format!("allowance c{} {}", f.channel, f.bytes),
        Frame::Credit(f) => format!("credit c{} received {} taken {}", f.channel, f.received, f.bytes),
        Frame::Input(f) => {
            let what = if f.close { "close".to_string() } else { payload(&f.payload) };
            let ack = if f.ack > 0 { format!(" ack {}", f.ack) } else { String::new() };
            format!("input c{} {what}{ack}", f.channel)
        }
        other => format!("{other:?}"),
    }
}

fn reported(report: &AgentReport, name: &mut impl FnMut(SessionId) -> String) -> String {
    match report {
        AgentReport::EdgeUp { target, name } => format!("edge {}.{} is {name}", target.edge, target.shard),
        AgentReport::OtherDomain { target, name, other } => {
            format!("edge {}.{} {name} is of another domain than {other}", target.edge, target.shard)
        }
        AgentReport::EdgeDown { target, reason, suspected } => {
            let how = if *suspected { "suspected" } else { "down" };
            format!("edge {}.{} {how}: {reason}", target.edge, target.shard)
        }
        AgentReport::EdgeNotFound { target, reason } => {
            format!("edge {}.{} not found: {reason}", target.edge, target.shard)
        }
        AgentReport::EdgeNotAsTold { target, reason, known } => {
            let known = if *known { ", known" } else { "" };
            format!("edge {}.{} not as told{known}: {reason}", target.edge, target.shard)
        }
        AgentReport::EdgeForgotten { target, .. } => {
            format!("edge {}.{} is not used any more", target.edge, target.shard)
        }
        AgentReport::Owned { session, app, generation, target, gap_ns } => {
            let (session, gap) = (name(*session), super::stage::milliseconds(*gap_ns));
            let at = format!("{}.{}", target.edge, target.shard);
            format!("{session} of {app} owned by g{} at {at} after {gap} ms", generation.count)
        }
        AgentReport::Waiting { session, target, code, reason, left_ns, .. } => {
            let (session, left) = (name(*session), super::stage::milliseconds(*left_ns));
            format!("{session} waits at {}.{}, {code:?}: {reason}, {left} ms left", target.edge, target.shard)
        }
        AgentReport::FailingBack { session, target } => {
            format!("{} goes home to {}.{}", name(*session), target.edge, target.shard)
        }
        AgentReport::Orphaned { session, reason } => format!("{} orphaned: {reason}", name(*session)),
        AgentReport::ZombieRefused { session, generation } => {
            format!("{} refused g{}", name(*session), generation.count)
        }
        AgentReport::MemoryFull { sessions, .. } => format!("memory is full, {sessions} sessions"),
        AgentReport::MemoryFree { sessions, .. } => format!("memory is free, {sessions} sessions"),
        AgentReport::Ended { session, code, reason, lingered } => {
            let how = if *lingered { " (lingered)" } else { "" };
            format!("{} over, {code:?}: {reason}{how}", name(*session))
        }
    }
}
