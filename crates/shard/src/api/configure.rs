//! The configuration of a shard, which control gives it before anything else.

use super::{Grant, ReplicationPolicy};
use alloc::{string::String, vec::Vec};
use marram_wire::{id::HostId, limits::CHECKPOINTS_SIZE, record};

record! {
    /// A shard's configuration.
    Configure {
        /// The edge's name.
        edge: String,
        /// The number of this shard, from 0.
        shard: u8,
        /// How many shards the edge has.
        shards: u8,
        /// The gate's agent in this edge, if it has one: sessions with an end there do not survive the edge.
        gate: Option<HostId>,
        /// Sessions at a time; 0 for no limit.
        sessions_max: u32,
        /// Recoveries at a time (docs/protocol.md, "Opening a generation"); 0 for no limit.
        recoveries_max: u32,
        /// How long the replays of all sessions may take, beyond each session's own share, in nanoseconds (docs/protocol.md,
        /// "The replay budget"); 0 for no limit.
        replay_ns_max: u64,
        /// Bytes that the shard may keep for all sessions, without their cells (docs/protocol.md, "A shard's memory"); 0 for
        /// no limit.
        memory_max: u64,
        /// What tenants are granted.
        grants: Vec<Grant>,
        /// Whether there are peers to ask for images that are missing.
        peers: bool,
        /// Whether a session is recorded when a handler of it is stopped.
        record_stops: bool,
        /// Bytes of checkpoints of one session that the edge takes, or has an end keep, at most.
        checkpoints_max: u64,
        /// Where agents and other edges reach the edge, `host:port` each, the best first; empty if it is not known.
        addresses: Vec<String>,
        /// The addresses of the peers that this shard dials to stand by for their sessions.
        dials: Vec<String>,
        /// Whether it also dials edges of the domain that agents, peers and the coordinator tell it of.
        learns: bool,
        /// How long sessions may take to move to other edges when this edge stops, until agents are asked to have them opened
        /// elsewhere, in milliseconds.
        hand_over_ms: u32,
        /// Bytes in a second that moves may copy from this shard to other edges, in all; 0 for no limit.
        move_bytes_per_s: u64,
        /// How long an edge must have been connected before sessions are rebalanced onto it, in milliseconds. One that was away for less does
        /// not join again.
        settle_ms: u32,
        /// The interval of heartbeats to a peer, in milliseconds.
        heartbeat_interval_ms: u32,
        /// A peer without any message for so long is suspected, in milliseconds.
        heartbeat_timeout_ms: u32,
        /// Flip one bit of the n-th output, counted from 1; 0 for never. For `marram demo --sabotage`.
        sabotage: u64,
        /// How sessions under `epoch` are replicated for which another interval or backup is wanted than their app's: the first policy that
        /// matches.
        policies: Vec<ReplicationPolicy>,
        /// Copy all sessions of a group at one moment, and release their outputs together, where an app's backup gets pages. For
        /// benchmarks, whose baseline it is.
        whole: bool,
    }
}

impl Default for Configure {
    /// The only shard of an edge without limits.
    fn default() -> Self {
        Self {
            edge: "edge".into(),
            shard: 0,
            shards: 1,
            gate: None,
            sessions_max: 0,
            recoveries_max: 0,
            replay_ns_max: 0,
            memory_max: 0,
            grants: Vec::new(),
            peers: false,
            record_stops: false,
            checkpoints_max: CHECKPOINTS_SIZE,
            addresses: Vec::new(),
            dials: Vec::new(),
            learns: false,
            hand_over_ms: 0,
            move_bytes_per_s: 0,
            settle_ms: 5_000,
            heartbeat_interval_ms: 50,
            heartbeat_timeout_ms: 200,
            sabotage: 0,
            policies: Vec::new(),
            whole: false,
        }
    }
}
