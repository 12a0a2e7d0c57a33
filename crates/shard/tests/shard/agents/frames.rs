//! Agents that send any frame in any state, with the largest possible numbers.

use super::world::{World, client, greet, keeper, serving};
use bytes::Bytes;
use marram_shard::api::ShardWireId;
use marram_wire::{
    codec::Last,
    frame::{
        Acknowledged, Allowance, AskMove, Base, CanMove, Channel, CheckpointBegin, CheckpointKind,
        CheckpointMeta, CheckpointPart, Chosen, Code, Credit, Drain, EdgeEntry, Edges, Ended, Failed,
        Failure, Fed, Fetch, Finish, Finished, Frame, Goodbye, HandGroup, HandOver, Input, Keep, KeepOn,
        Keeps, Kept, KeptInput, Lead, Live, LogOnly, LogPart, Output, Ping, Pong, Promise, Promised,
        ProtectNow, Protected, Recall, Recalled, Received, Reject, Renewed, RunsAhead, Standby, Stored,
        Superseded, Truncate, Unprotect, Welcome,
    },
    header::Many,
    id::{Generation, HostId, ImageHash, Port, SessionId},
    rights::Rights,
};

const BYTES: Bytes = Bytes::from_static(&[7; 300]);
const REASON: &str = "because";
const APP: &str = "web";
const IMAGE: ImageHash = ImageHash([7; 32]);

/// Every kind of frame on this channel, filled with this number.
fn frames(world: &mut World, channel: Channel, n: u64) -> Vec<Frame> {
    let session = world.session;
    [
        about_a_wire(world, n),
        that_open_a_session(channel, session, n),
        of_a_running_session(channel, n),
        that_end_a_session(channel, n),
        of_standbys(channel, session, n),
        of_messages(channel, n),
    ]
    .concat()
}

fn generation(n: u64) -> Generation {
    Generation { count: n, opener: n }
}

fn meta(n: u64) -> CheckpointMeta {
    CheckpointMeta {
        generation: generation(n),
        number: n as u32,
        kind: [CheckpointKind::Full, CheckpointKind::Delta, CheckpointKind::Merged][n as usize % 3],
        log_offset: n,
        size: n,
    }
}

fn failure(n: u64) -> Failure {
    Failure { log_offset: n, input: n as u8, reason: REASON.into() }
}

/// Of no session, or with a channel of their own.
fn about_a_wire(world: &mut World, n: u64) -> Vec<Frame> {
    vec![
        greet(&[]).into(),
        Welcome {
            version: 1,
            edge: APP.into(),
            shard: 0,
            shards: 1,
            challenge: [0; 16],
            draining: true,
            domain: [0; 8],
        }
        .into(),
        Ping { stamp: n }.into(),
        Pong { stamp: n, load: 0 }.into(),
        Drain { leave: true }.into(),
        Edges { edges: vec![EdgeEntry { name: "k".into(), addresses: vec!["127.0.0.1:1".into()] }; 2] }
            .into(),
        keeper(&[0; 16], "k", 0).into(),
        Frame::Hello(world.hello(world.session, "web")),
        Goodbye { reason: REASON.into() }.into(),
    ]
}

fn that_open_a_session(channel: Channel, session: SessionId, n: u64) -> Vec<Frame> {
    let live = Live { generation: generation(n), log_end: n, took: n, produced: n };
    vec![
        Promise {
            channel,
            session,
            generation: generation(n),
            app: APP.into(),
            image: IMAGE,
            server: "origin".into(),
            peer: None,
            key: [0; 16],
            fresh: true,
            proven: true,
            keeps: Keeps::All,
            shared: false,
            assigned: false,
            linger_ms: u32::MAX,
            live: Some(live),
            origin: None,
            promoted: Last(Some(true)),
        }
        .into(),
        Promised {
            channel,
            previous: generation(n),
            live: n.is_multiple_of(2),
            log_start: n,
            log_end: n,
            tag: [7; 8],
            received: n,
            window: n,
            sent_start: n,
            sent_end: n,
            checkpoints: vec![meta(n); 3],
            checkpoints_max: n,
            partial: None,
            failed: Some(failure(n)),
            datagrams: true,
            origin: None,
            session_ns: Some(7),
        }
        .into(),
        LogPart { channel, generation: generation(n), offset: n, bytes: BYTES }.into(),
        CheckpointPart { channel, bytes: BYTES }.into(),
        Chosen {
            channel,
            log_offset: n,
            log: BYTES,
            tag: [7; 8],
            credit: n,
            session_ns: 7,
            runs_ahead: Last(Some(true)),
        }
        .into(),
    ]
}

fn of_a_running_session(channel: Channel, n: u64) -> Vec<Frame> {
    vec![
        Credit { channel, received: n, bytes: n }.into(),
        LogOnly { channel, entries: BYTES, tag: [7; 8] }.into(),
        CheckpointBegin { channel, meta: meta(n) }.into(),
        Stored { channel, bytes: n, complete: Some(n as u32) }.into(),
        Allowance { channel, bytes: n }.into(),
        RunsAhead { channel, is_so: n.is_multiple_of(2) }.into(),
        ProtectNow { channel, log_offset: n, tag: [7; 8] }.into(),
        Protected { channel, sent_start: n, received: n }.into(),
        Unprotect { channel }.into(),
        Truncate { channel, log_offset: n, tag: [7; 8], sent: n }.into(),
        Fetch { channel }.into(),
        Kept { channel, sent_start: n, sent_end: n, checkpoints: vec![meta(n); 3] }.into(),
        KeptInput { channel, close: false, payload: BYTES }.into(),
    ]
}

fn that_end_a_session(channel: Channel, n: u64) -> Vec<Frame> {
    let code = Code::Finished;
    vec![
        Superseded { channel, promised: generation(n) }.into(),
        Reject { channel, code, reason: REASON.into() }.into(),
        Lead { channel, edge: APP.into(), shard: n as u8, backup: APP.into(), backup_shard: 0 }.into(),
        Failed { channel, failure: failure(n) }.into(),
        Ended { channel, code, reason: REASON.into() }.into(),
        Finish { channel }.into(),
        Finished { channel }.into(),
    ]
}

fn keep(channel: Channel, session: SessionId, n: u64) -> Keep {
    Keep {
        channel,
        session,
        generation: generation(n),
        app: APP.into(),
        image: IMAGE,
        hosts: vec![HostId([1; 16]), HostId([2; 16])],
        hot: true,
        moves: true,
        log_offset: n,
        head: [7; 32],
        last_ns: i64::MAX,
        took: vec![n; 2],
        group: None,
        origin: None,
        key: Default::default(),
    }
}

/// Of standbys and recorders.
fn of_standbys(channel: Channel, session: SessionId, n: u64) -> Vec<Frame> {
    let received = |port| Received { port: Port(port), count: n };
    vec![
        Standby { channel, edge: APP.into(), shard: 0 }.into(),
        keep(channel, session, n).into(),
        Base { channel, meta: meta(n), took: vec![n; 2] }.into(),
        Fed { channel, entry: BYTES, tag: [7; 8], from: n as u32, close: true, payload: BYTES }.into(),
        Acknowledged { channel, received: Many([0, n as u32].map(received).to_vec()) }.into(),
        Renewed { channel, generation: generation(n) }.into(),
        HandOver { channel, session_ns: i64::MIN }.into(),
        Recall { channel, session }.into(),
        AskMove { keep: keep(channel, session, n) }.into(),
        KeepOn { keep: keep(channel, session, n) }.into(),
        HandGroup { group: [n as u8; 16], generation: generation(n), backup: APP.into(), cells: n as u32 }
            .into(),
        CanMove { channel }.into(),
        Recalled {
            channel,
            generation: generation(n),
            log_start: n,
            log_end: n,
            tag: [7; 8],
            sent_start: vec![n; 2],
            sent_end: vec![n; 2],
            checkpoints: vec![meta(n); 3],
        }
        .into(),
    ]
}

fn of_messages(channel: Channel, n: u64) -> Vec<Frame> {
    vec![
        Input { channel, ack: n, close: false, payload: BYTES }.into(),
        Input { channel, ack: n, close: true, payload: Bytes::new() }.into(),
        Output { channel, increment: None, close: false, payload: BYTES }.into(),
    ]
}

const NUMBERS: [u64; 4] = [0, 1, 1 << 40, u64::MAX];

/// A wire in this `state`, and the channel of its session, if it has one.
fn ready(world: &mut World, number: u64, state: usize) -> (ShardWireId, Channel) {
    let rights = match state {
        0 => serving("origin"),
        1 => Rights { recorder: true, edge: true, ..Rights::default() },
        _ => client(),
    };
    let wire = world.rogue(number, 9, rights, &[]);
    let challenge = world.challenge(wire);
    match state {
        1 => world.send(wire, keeper(&challenge, "k", (number % 2) as u8)),
        2 | 3 => {
            let mut id = [200; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            let hello = world.hello(SessionId(id), "alone");
            let channel = hello.channel;
            world.send(wire, hello);
            if state == 3 {
                world.send(wire, promised(channel));
            }
            return (wire, channel);
        }
        _ => {}
    }
    (wire, 1)
}

/// The answer of an honest end of a session that begins.
pub(crate) fn promised(channel: Channel) -> Promised {
    Promised {
        channel,
        previous: Generation::NONE,
        live: false,
        log_start: 0,
        log_end: 0,
        tag: [0; 8],
        received: 0,
        window: 1 << 20,
        sent_start: 0,
        sent_end: 0,
        checkpoints: Vec::new(),
        checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
        partial: None,
        failed: None,
        datagrams: false,
        origin: None,
        session_ns: None,
    }
}

#[test]
fn no_frame_out_of_turn_reaches_another_session() {
    let mut world = World::new();
    let owner = world.owner();
    let kinds = frames(&mut world, 0, 0).len();
    let mut number = 0;
    // A server's agent without a session, a keeper, a client with a session that is being opened, and one with a running session.
    for state in 0..4 {
        for kind in 0..kinds {
            for n in NUMBERS {
                number += 1;
                let (wire, own) = ready(&mut world, number, state);
                for channel in [own, 0, 1, 2, 3, Channel::MAX] {
                    let frame = frames(&mut world, channel, n).swap_remove(kind);
                    world.send(wire, frame);
                }
                world.shard(marram_shard::api::ShardInput::WireDown { wire });
            }
        }
        assert_eq!(world.owner(), owner);
        world.unharmed();
    }
}

#[test]
fn no_two_frames_in_any_order_reach_another_session() {
    let mut world = World::new();
    let owner = world.owner();
    let kinds = frames(&mut world, 0, 0).len();
    let mut number = 0;
    for state in [2, 3] {
        for first in 0..kinds {
            for second in 0..kinds {
                number += 1;
                let n = NUMBERS[(first + second) % NUMBERS.len()];
                let (wire, own) = ready(&mut world, number, state);
                for kind in [first, second, first] {
                    let frame = frames(&mut world, own, n).swap_remove(kind);
                    world.send(wire, frame);
                }
                world.shard(marram_shard::api::ShardInput::WireDown { wire });
            }
        }
        assert_eq!(world.owner(), owner);
        world.unharmed();
    }
}
