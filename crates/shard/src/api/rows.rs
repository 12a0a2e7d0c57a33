//! What listings show of sessions: who keeps each, and where it moves.

use super::{BackupForm, Destination, Protect};
use crate::byte_enum::byte_enum;
use alloc::{string::String, vec::Vec};
use marram_session::owner::OwnerPhase;
use marram_wire::{
    id::{Generation, HostId, ImageHash, SessionId},
    record,
};

/// The kind of a session's replica other than its ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum KeeperKind {
    /// A recorder: it keeps log, messages and checkpoints.
    Recorder = 0,
    /// An edge that has the last checkpoint in a cell, and the log behind it.
    Warm = 1,
    /// An edge that replays the log as it comes.
    Hot = 2,
    /// The edge to which the session moves.
    Moving = 3,
    /// An edge that replays the log, or holds log and pages, and for which outputs wait.
    Backup = 4,
}
byte_enum!(KeeperKind { Recorder, Warm, Hot, Moving, Backup });

impl KeeperKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Recorder, Self::Warm, Self::Hot, Self::Moving, Self::Backup];

    /// Its name, in listings and in the admin API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorder => "recorder",
            Self::Warm => "warm",
            Self::Hot => "hot",
            Self::Moving => "moving",
            Self::Backup => "backup",
        }
    }
}

record! {
    /// How much a replica has.
    KeeperProgress {
        /// Whether it has all that a takeover needs.
        ready: bool,
        /// Bytes that were sent to it and that it has not confirmed.
        behind: u64,
        /// Log entries that it has and has not replayed, if they are many.
        unreplayed: Option<u64>,
    }
}

record! {
    /// A replica of a session other than its ends.
    KeeperRow {
        /// The edge's or recorder's name.
        name: String,
        /// Its kind.
        kind: KeeperKind,
        /// What it has; none before it was sent anything.
        progress: Option<KeeperProgress>,
    }
}

impl KeeperRow {
    /// Whether this is an edge that can take the session over without a rebuild.
    #[must_use]
    pub fn can_take_over(&self) -> bool {
        self.kind != KeeperKind::Recorder && self.progress.as_ref().is_none_or(|progress| progress.ready)
    }
}

impl core::fmt::Display for KeeperRow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({}", self.name, self.kind.name())?;
        match &self.progress {
            None => {}
            Some(progress) if !progress.ready => f.write_str(", not ready")?,
            Some(progress) => {
                write!(f, ", {} B behind", progress.behind)?;
                if let Some(entries) = progress.unreplayed {
                    write!(f, ", {entries} entries to replay")?;
                }
            }
        }
        f.write_str(")")
    }
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MoveStage {
    /// Other moves come first.
    Waiting = 0,
    /// The other edge is sent the session's state, and replays what it does meanwhile.
    Copying = 1,
    /// The other edge was told to take the session over.
    HandedOver = 2,
}
byte_enum!(MoveStage { Waiting, Copying, HandedOver });

impl MoveStage {
    /// Its name, in listings and in the admin API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Copying => "copying",
            Self::HandedOver => "handed over",
        }
    }
}

record! {
    /// How far the copy of a cell's state is.
    Copied {
        /// Bytes that were sent.
        sent: u64,
        /// All of its bytes.
        size: u64,
    }
}

record! {
    /// The move of a session.
    MoveRow {
        /// Where it moves.
        to: Destination,
        /// Whether the session stays, and its backup moves there.
        backup: bool,
        /// How far it is.
        stage: MoveStage,
        /// Bytes of the cell's state that were sent to the edge, and all of them; none before they are known and after they were sent.
        copied: Option<Copied>,
        /// Whether the copy waits for its part of the bandwidth of moves.
        limited: bool,
    }
}

record! {
    /// What has passed between a session's owner and one of its ends.
    EndRow {
        /// Whether it is the client's.
        client: bool,
        /// Whether the end's agent has a connection for the session.
        linked: bool,
        /// Messages of the end that the cell consumed.
        consumed: u64,
        /// Messages of the end that wait for the cell.
        waiting: u64,
        /// Bytes of the consumed messages that no checkpoint covers.
        uncovered: u64,
        /// Outputs for the end.
        produced: u64,
        /// Those that the end has not acknowledged.
        unacknowledged: u64,
        /// Those of them that were not sent yet.
        unsent: u64,
        /// Bytes that the end still takes.
        credit: u64,
    }
}

record! {
    /// A client of a shared cell.
    ClientRow {
        /// The client's session.
        session: SessionId,
        /// Its agent.
        agent: HostId,
        /// Whether its agent is the edge's own gate.
        in_gate: bool,
        /// Its port.
        port: u32,
        /// What has passed between the cell and its end.
        end: EndRow,
    }
}

/// How far a shared cell's connection to a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ServerRowState {
    /// No agent has taken it yet.
    Connecting = 0,
    /// It is open.
    Connected = 1,
    /// It is open, and its agent is away.
    Away = 2,
    /// It is over, which the log is to say.
    Leaving = 3,
}
byte_enum!(ServerRowState { Connecting, Connected, Away, Leaving });

impl ServerRowState {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Away => "away",
            Self::Leaving => "leaving",
        }
    }
}

record! {
    /// A server to which a shared cell has connected, or connects.
    ServerRow {
        /// The server's name.
        server: String,
        /// Its port.
        port: u32,
        /// How far it is.
        state: ServerRowState,
        /// Its agent; none before one has taken it.
        agent: Option<HostId>,
        /// Whether its agent is the edge's own gate.
        in_gate: bool,
        /// Bytes that its agent has not acknowledged.
        waiting_bytes: u64,
        /// What has passed between the cell and its end.
        end: EndRow,
    }
}

record! {
    /// A cell that clients share, and that has a backup.
    CellRow {
        /// Its key, if the app has one cell for each, as people read it.
        key: Option<String>,
        /// The number of its slot, if the app has one cell for each key.
        slot: Option<u32>,
        /// Number of its clients.
        clients: u64,
        /// The first of them, by their ports: [`CLIENTS_LISTED`] at most.
        listed: Vec<ClientRow>,
        /// The servers to which it has connected, or connects, by their ports.
        servers: Vec<ServerRow>,
    }
}

/// Clients of a shared cell that a listing names.
pub const CLIENTS_LISTED: usize = 32;

/// Whether a session that is protected by epochs has a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Backing {
    /// No claim names a backup, and no output leaves.
    Held = 0,
    /// A claim names a backup, and each output leaves when that has what produced it.
    Backed = 1,
    /// It runs without a backup: it is lost with this edge.
    Alone = 2,
}
byte_enum!(Backing { Held, Backed, Alone });

impl Backing {
    /// Its name, in listings and in the admin API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Backed => "backed",
            Self::Alone => "alone",
        }
    }
}

record! {
    /// How a session is replicated to its backup.
    ReplicationRow {
        /// In which form the app asks that the backup gets what the cell did.
        asked: BackupForm,
        /// What the backup gets now, log or pages; none while no edge is fed.
        now: Option<BackupForm>,
        /// Epochs end so often at most, in microseconds; 0 for one with each message.
        every_us: u32,
        /// Whether outputs wait until the backup has what produced them.
        waits: bool,
        /// The policy that the session follows, if there is one.
        policy: Option<String>,
        /// Its rate, in bytes a second, if a policy asks for what is measured of it. An average of some seconds.
        rate: Option<u64>,
        /// Whether the policies that are in force say otherwise: its group goes on as a former one has said, in all or with its backup and
        /// its members, until the session moves or the group looks for a backup.
        former: bool,
    }
}

record! {
    /// How a session would leave if the edge stopped.
    DrainRow {
        /// The edge to which it would move. None if its agents would be asked to have it opened elsewhere.
        to: Option<String>,
        /// Why it would not move, if it would not.
        why: String,
        /// Whether no edge is known that could be its standby or backup afterwards, though its app asks for one.
        unprotected: bool,
    }
}

record! {
    /// One session on one shard, for listings.
    SessionRow {
        /// The id of the session.
        session: SessionId,
        /// Its app.
        app: String,
        /// The image that its cell began from.
        image: ImageHash,
        /// Its generation here.
        generation: Generation,
        /// The shard.
        shard: u8,
        /// What its owner is doing.
        phase: OwnerPhase,
        /// The client's agent.
        client: HostId,
        /// The server's agent, where there is one.
        server: Option<HostId>,
        /// How it is protected.
        protect: Protect,
        /// Its replicas other than its ends.
        keepers: Vec<KeeperRow>,
        /// Whether it has a backup; none unless it is protected by epochs and runs here.
        backing: Option<Backing>,
        /// What that gets, and when; none unless it is protected by epochs and runs here.
        replication: Option<ReplicationRow>,
        /// Its move to another edge or shard, if it is being moved.
        moving: Option<MoveRow>,
        /// Its ends; none of a cell that clients share.
        ends: Vec<EndRow>,
        /// Its clients, if it is a cell that they share.
        cell: Option<CellRow>,
        /// Whether a handler runs, or waits for its turn.
        busy: bool,
        /// How it would leave if the edge stopped; none if this edge stands by for it.
        drain: Option<DrainRow>,
        /// Whether the client's agent is the edge's own gate.
        client_in_gate: bool,
        /// Whether the server's agent is the edge's own gate.
        server_in_gate: bool,
        /// Messages consumed.
        consumed: u64,
        /// Outputs produced.
        produced: u64,
        /// Bytes of the messages consumed from its client, and sent to it, since this edge began to run it.
        payload_bytes: u64,
        /// Log bytes since the session began.
        log_bytes: u64,
        /// Log bytes that no checkpoint covers.
        uncovered_bytes: u64,
        /// Tasks in the run queue.
        tasks: u64,
        /// Tasks that wait for a lock.
        tasks_locked_out: u64,
        /// Locks that tasks hold.
        locks: u64,
        /// Ports that the cell has paused: `client`, `server`.
        paused: Vec<String>,
        /// Checkpoints that an end has stored.
        checkpoints: u64,
        /// Generations that were opened before this one, on any edge.
        recoveries: u64,
        /// When it was opened here, Unix time in milliseconds.
        since_ms: u64,
    }
}
