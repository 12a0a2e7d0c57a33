//! What happens to a shard and to the control, and what they ask for: the interface between the pure edge and everything around
//! it.

mod claims;
mod configure;
mod destination;
mod epochs;
mod moves;
mod parts;
mod rows;

pub use crate::app_version::AppVersion;
pub use crate::note_level::NoteLevel;
pub use crate::policies::{POLICIES_MAX, PolicyList, PortRange, ReplicationPolicy};
pub use crate::traffic::{RATE_AVERAGED_NS, RATE_LOOK_NS, RATE_OUTSIDE_NS, RATE_WITHIN_NS, TrafficCondition};
use crate::{
    byte_enum::byte_enum,
    coordinator::contents::{EdgeStoreSeen, Stands, Witnessed},
    run_queue::{Class, Tenant},
};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::Bytes;
pub use claims::{ClaimAnswer, GroupClaim, SlotAnswer, SlotQuery};
pub use configure::Configure;
pub use destination::{Destination, NoDestination};
pub use epochs::EpochSettings;
use marram_session::cell::{CellId, CheckpointBase, Ran, Run, Seed};
pub use marram_session::owner::BackupForm;
use marram_session::replay::Gathered;
pub use marram_session::{
    agent::Target,
    cell::CellError,
    owner::{Now, OwnerPhase, RecordRequest},
};
use marram_wire::{
    frame::{CheckpointMeta, Edges, Frame, StoreSeen},
    header::Header,
    id::{Generation, ImageHash, SessionId},
    record,
    rights::Verified,
    seal::{Seal, SessionKeys},
};
pub use moves::{MovePlan, MoveWish, PlanMoves, Planned};
pub use rows::{
    Backing, CLIENTS_LISTED, CellRow, ClientRow, Copied, DrainRow, EndRow, KeeperKind, KeeperProgress,
    KeeperRow, MoveRow, MoveStage, ReplicationRow, ServerRow, ServerRowState, SessionRow,
};

/// The place of this edge itself among the edges that a shard dials: its other shards can take sessions over, too.
pub const OWN_EDGE: u16 = u16::MAX;

/// A wire from one agent to this shard. The shell chooses the number and never uses it twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardWireId(pub u64);

/// Something happened to a shard.
#[derive(Clone, PartialEq, Debug)]
pub enum ShardInput {
    /// An agent's wire is connected: encrypted and authenticated as configured. Its first frame is its greeting.
    WireUp {
        /// Its name from now on.
        wire: ShardWireId,
        /// Which agent it is and what its credential allows. The shell verifies it; the shard enforces it.
        verified: Box<Verified>,
        /// The remote address, for people; absent for the edge's own gate.
        address: Option<String>,
    },
    /// A wire broke or was closed.
    WireDown {
        /// The wire, which is not used again.
        wire: ShardWireId,
    },
    /// A frame arrived.
    Frame {
        /// The wire that it arrived on.
        wire: ShardWireId,
        /// The decoded frame.
        frame: Frame,
    },
    /// The answer to [`ShardOutput::Start`].
    Started {
        /// The cell that [`ShardOutput::Start`] named.
        cell: CellId,
        /// Whether the cell runs.
        result: Result<(), CellError>,
    },
    /// The answer to [`ShardOutput::Run`].
    Ran(Ran),
    /// A cell's memory has become so large that a copy of it takes long. Once for a cell, after it was started or restored.
    Large {
        /// The cell.
        cell: CellId,
    },
    /// The answer to [`ShardOutput::Prepare`]: [`ShardOutput::Copy`] on that base takes a short time now. Also if the copy
    /// cannot be prepared, or cannot be made: [`ShardInput::Checkpointed`] says why.
    Prepared {
        /// The cell.
        cell: CellId,
    },
    /// The answer to [`ShardOutput::Checkpoint`].
    Checkpointed {
        /// The cell that was copied.
        cell: CellId,
        /// The checkpoint's number.
        number: u32,
        /// The sealed bytes, or why there are none; the session continues without this checkpoint.
        result: Result<Bytes, String>,
    },
    /// A wire that [`ShardOutput::Dial`] asked for is connected: encrypted and authenticated as configured. This shard greets.
    Dialled {
        /// Its name from now on.
        wire: ShardWireId,
        /// Where it leads.
        target: Target,
    },
    /// A wire could not be connected.
    DialFailed {
        /// Where it should have led.
        target: Target,
        /// The reason, for people.
        reason: String,
    },
    /// The answer to [`ShardOutput::Restore`] and [`ShardOutput::Advance`].
    Restored {
        /// The cell that was restored.
        cell: CellId,
        /// The last checkpoint's header.
        result: Result<Box<Header>, CellError>,
    },
    /// The answer to [`ShardOutput::Record`].
    Recorded {
        /// The session that was recorded.
        session: SessionId,
        /// As in the request; none if the shard made the recording because a handler was stopped.
        tag: Option<u64>,
        /// The file's name, or why there is none.
        result: Result<String, String>,
    },
    /// A message from control.
    Control(ToShard),
    /// A time asked for by [`ShardOutput::WakeAt`] has come. The shell gives this behind all that came together, and before it writes:
    /// epochs that are due end here.
    Wake,
}

/// A shard wants something done. The shell does it.
#[derive(Clone, Debug)]
pub enum ShardOutput {
    /// Send a frame. Frames for which [`Frame::is_bulk`] holds may wait behind others of their wire.
    Send {
        /// The wire to send it on.
        wire: ShardWireId,
        /// The frame.
        frame: Frame,
    },
    /// Close a wire after everything that was sent on it; answered by [`ShardInput::WireDown`].
    CloseWire {
        /// The wire to close.
        wire: ShardWireId,
    },
    /// Connect a wire to a shard of a peer; answered by [`ShardInput::Dialled`] or [`ShardInput::DialFailed`].
    Dial {
        /// The index of the peer in the list of peers, and a shard of that edge.
        target: Target,
    },
    /// From now on, dial this peer at this address. It is not one of the configured ones.
    Learn {
        /// Its place in the list of peers.
        edge: u16,
        /// The address, `host:port`.
        address: String,
    },
    /// This peer is not dialled any more; its place may get another one.
    Forget {
        /// Its place in the list of peers.
        edge: u16,
    },
    /// Start a cell from an image; answered by [`ShardInput::Started`].
    Start {
        /// Its name from now on.
        cell: CellId,
        /// The image of the app that the session began with.
        image: ImageHash,
        /// Seeds its generator.
        seed: Seed,
        /// The app that the cell belongs to: its handlers read from that app's cache.
        app: String,
        /// The session of the cell; none if several sessions share it.
        session: Option<SessionId>,
        /// How its handlers are scheduled.
        place: SchedulingParams,
    },
    /// Start a cell from an image and the checkpoints in the bytes that follow: open each checkpoint, split it, check that its
    /// header names this session, this image and its place in the list (`meta` and base), and apply its sections in order.
    /// Authenticated parts may be applied before the rest arrives. Answered by [`ShardInput::Restored`]: with the last header
    /// once all of them are verified and applied, or with a refusal as soon as one check fails.
    Restore {
        /// Its name from now on.
        cell: CellId,
        /// The session that the checkpoints must name.
        session: SessionId,
        /// The image that the checkpoints must name.
        image: ImageHash,
        /// Opens the checkpoints.
        keys: SessionKeys,
        /// A full one and its deltas, in order.
        checkpoints: Vec<CheckpointMeta>,
        /// Whether [`ShardOutput::Advance`] may follow.
        stands_by: bool,
        /// The app that the cell belongs to, as in [`ShardOutput::Start`].
        app: String,
        /// How its handlers are scheduled.
        place: SchedulingParams,
    },
    /// Bring a standby cell, which was restored and has not run since, to its next checkpoint, a delta on the last one. Its bytes
    /// follow as [`ShardOutput::Part`]s and are checked as those of [`ShardOutput::Restore`]; the cell does not change until all
    /// of them have arrived. Answered by [`ShardInput::Restored`]. If the cell runs in between, or another of these comes, the
    /// bytes that arrived are dropped.
    Advance {
        /// The standby cell.
        cell: CellId,
        /// The delta that follows.
        meta: CheckpointMeta,
    },
    /// The next bytes of the checkpoints that a cell is restored from. One piece never holds bytes of two checkpoints.
    Part {
        /// The cell that is restored.
        cell: CellId,
        /// Sealed bytes.
        bytes: Bytes,
    },
    /// Run one handler; answered by [`ShardInput::Ran`], in the same step or after other steps.
    Run(Run),
    /// At low priority, between the cell's handlers: copy what a later [`ShardOutput::Copy`] on this base needs. The cell goes on;
    /// what it writes meanwhile is copied again. Answered by [`ShardInput::Prepared`]. Only for cells that were named in
    /// [`ShardInput::Large`].
    Prepare {
        /// The cell to copy.
        cell: CellId,
        /// As in [`ShardOutput::Copy`].
        base: CheckpointBase,
    },
    /// Copy the cell's changes now, before any later run of this cell. The copy is kept until [`ShardOutput::Checkpoint`] or the
    /// next copy. Not answered.
    Copy {
        /// The cell to copy.
        cell: CellId,
        /// What the changes are relative to: the image or the previous checkpoint.
        base: CheckpointBase,
    },
    /// At background priority: encode what was copied last, join it with the header, seal it. Answered by
    /// [`ShardInput::Checkpointed`].
    Checkpoint {
        /// The cell that was copied.
        cell: CellId,
        /// The header, which comes first.
        header: Box<Header>,
        /// Seals the checkpoint under the header's number.
        seal: Seal,
    },
    /// Hash the cell's state now, before any later run of this cell. The hash is kept until [`ShardOutput::Record`] names the
    /// cell, or until its next hash. Not answered.
    Hash {
        /// The cell to hash.
        cell: CellId,
    },
    /// At background priority: make a recording of what was gathered, with the cell's hash if it names one, and store it in a
    /// file. Answered by [`ShardInput::Recorded`].
    Record {
        /// What asked for the recording.
        request: RecordRequest,
        /// What the owner gathered of the session.
        gathered: Box<Gathered>,
        /// The edge's name.
        edge: String,
        /// The time of the recording, in nanoseconds since the Unix epoch.
        unix_ns: i64,
    },
    /// The cell is not needed any more. Not answered; answers still due for it may be dropped.
    Remove {
        /// The cell to remove.
        cell: CellId,
    },
    /// Call again with [`ShardInput::Wake`] at this monotonic time at the latest. Only the last request counts.
    WakeAt {
        /// Monotonic time, in nanoseconds.
        mono_ns: u64,
    },
    /// A message to control.
    Control(FromShard),
}

/// How a session is protected (docs/protocol.md, "The release rule").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Protect {
    /// Not at all.
    None = 0,
    /// Log and checkpoints at both ends.
    Endpoints = 1,
    /// As `Endpoints`, and another edge holds the cell as of its last checkpoint, and the log after it.
    Warm = 2,
    /// As `Endpoints`, and another edge replays the log while the cell runs.
    Hot = 3,
    /// Outputs wait until another edge, the backup, has what produced them. Ends keep messages until then, and nothing else.
    Epoch = 4,
}

/// Which end keeps checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CheckpointHolder {
    /// The client's.
    Client = 0,
    /// The server's; needs one.
    Server = 1,
    /// Both.
    Both = 2,
}

/// Whether a witness remembers how much of a session its client has ([`marram_session::owner::Witnessing`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WitnessMode {
    /// No witness.
    None = 0,
    /// The coordinator; while it is away, sessions continue and recover without its answer.
    Lenient = 1,
    /// The coordinator; while it is away recoveries wait.
    Strict = 2,
}

impl Protect {
    /// The value of `protect` in manifests.
    #[must_use]
    pub fn written(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Endpoints => "endpoints",
            Self::Warm | Self::Hot => "standby",
            Self::Epoch => "epoch",
        }
    }
}

byte_enum!(Protect { None, Endpoints, Warm, Hot, Epoch });
byte_enum!(CheckpointHolder { Client, Server, Both });
byte_enum!(WitnessMode { None, Lenient, Strict });

record! {
    /// A deployed app: its manifest, resolved.
    App {
        /// The name that clients ask for.
        name: String,
        /// The image that its new sessions run.
        image: ImageHash,
        /// How its sessions are protected.
        protect: Protect,
        /// The server's name, if the app has one.
        server: Option<String>,
        /// Which end keeps checkpoints.
        keep: CheckpointHolder,
        /// The longest that a replay of the log after the last checkpoint should take, in nanoseconds.
        recovery_target_ns: u64,
        /// How long ends remember a session that cannot be resumed, in milliseconds.
        linger_ms: u32,
        /// Messages that one session may send to its cell in a second; 0 for no limit.
        messages_per_s: u32,
        /// Bytes of log that one session may write in a second; 0 for no limit.
        log_bytes_per_s: u32,
        /// Sessions of this app on one shard at a time; 0 for no limit.
        sessions_max: u32,
        /// Whether all its sessions on an edge share one cell.
        shared: bool,
        /// The tenant that its cells run for. One tenant may have several apps.
        tenant: String,
        /// 0 for the fair class; else its priority. The highest priority runs first, and all priorities run before the fair
        /// class.
        priority: u8,
        /// Whether a witness detects that a client returns to an older state. For apps without a server.
        witness: WitnessMode,
        /// Where its cells read objects from; none if they may not.
        cache: Option<crate::cache::CachePolicy>,
        /// When outputs leave, if they wait for a backup.
        epoch: Option<EpochSettings>,
        /// How many slots its keys are spread over, if its clients share one cell for each key; 0 if all share one cell.
        slots: u32,
    }
}

impl App {
    /// Its name and image.
    #[must_use]
    pub fn version(&self) -> AppVersion {
        AppVersion { app: self.name.clone(), image: self.image }
    }

    /// Whether outputs of its sessions wait for a backup. Those of a shared cell do so under every protection: no end can keep it.
    #[must_use]
    pub fn has_backup(&self) -> bool {
        match self.protect {
            Protect::Epoch => true,
            Protect::Warm | Protect::Hot => self.shared,
            Protect::None | Protect::Endpoints => false,
        }
    }

    /// Whether it has one cell for each key.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.slots > 0
    }

    /// The numbers of its slots, if its clients share cells that have a backup.
    #[must_use]
    pub fn slot_numbers(&self) -> core::ops::Range<u32> {
        0..self.slots.max(1)
    }

    /// Whether its clients share cells that have a backup.
    #[must_use]
    pub fn shares_protected_cells(&self) -> bool {
        self.shared && self.has_backup()
    }
}

record! {
    /// What an edge's operator grants a tenant. Tenants that are not named get the defaults.
    Grant {
        /// The tenant.
        tenant: String,
        /// Its share of CPU time, relative to the other tenants; 100 is the default.
        weight: u32,
        /// The limit of its sessions on one shard at a time; 0 for no limit.
        sessions_max: u32,
        /// Whether its apps may have a priority; else they run in the fair class.
        priority: bool,
    }
}

/// How a cell's handlers are scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulingParams {
    /// The tenant that is charged for their time.
    pub tenant: Tenant,
    /// The tenant's share of CPU time, relative to the others.
    pub weight: u32,
    /// A priority, or the fair class.
    pub class: Class,
}

/// Control to shard. Serialisable: a shard is another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToShard {
    /// This shard's number, the edge's name and the limits.
    Configure(Configure),
    /// Sessions may name this app, and new ones run this image.
    Deploy(App),
    /// Sessions that began with this app's image may continue here; new ones may not begin with it.
    Know(App),
    /// The answer to [`FromShard::Want`] if no peer has that version of the app; [`ToShard::Know`] is the other answer.
    Missing(Missing),
    /// New sessions of this app are refused; existing ones continue.
    Undeploy(AppName),
    /// Take no new sessions; move the others to other edges, and ask agents to look after the rest.
    /// The tag is in [`FromShard::Drained`].
    Drain(Tag),
    /// The edge stays after all; answered by [`FromShard::DrainCancelled`].
    CancelDrain(Tag),
    /// End a session for good.
    Kill(Kill),
    /// Answer with [`FromShard::Rows`] and [`FromShard::Counted`].
    List(Tag),
    /// The answer to [`FromShard::WitnessQuery`].
    WitnessAnswer(WitnessAnswer),
    /// Move a session to another edge or shard; answered by [`FromShard::MoveAnswer`], and later [`FromShard::MoveOver`].
    Move(MoveSession),
    /// Which sessions could move to another edge; answered by [`FromShard::Planned`].
    PlanMoves(PlanMoves),
    /// Stop a move, unless the session was handed over; answered by [`FromShard::MoveAnswer`].
    CancelMove(Tagged),
    /// Make a recording of a session; answer with [`FromShard::Recorded`], at once if it is not here.
    Record(Record),
    /// The edges that the coordinator knows.
    Edges(Edges),
    /// Other policies are in force.
    Policies(PolicyList),
    /// What this edge remembers of its coordinator's store: other edges are told.
    StoreSeen(StoreSeen),
    /// The answer to [`FromShard::Claim`].
    ClaimAnswer(ClaimAnswer),
    /// The answer to [`FromShard::Slot`].
    SlotAnswer(SlotAnswer),
}

/// Shard to control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromShard {
    /// The shard is ready.
    Ready,
    /// Some of the sessions; `last` on the final one of an answer.
    Rows(Rows),
    /// Counters, by name; the answer to a list ends with it.
    Counted(Counted),
    /// Something for the log.
    Note(Note),
    /// The answer to [`ToShard::Kill`].
    Killed(Killed),
    /// The answer to [`ToShard::Record`].
    Recorded(Recorded),
    /// The answer to [`ToShard::Move`] and [`ToShard::CancelMove`].
    MoveAnswer(MoveAnswer),
    /// A part of the answer to [`ToShard::PlanMoves`].
    Planned(Planned),
    /// A move that was begun is over. Not answered.
    MoveOver(MoveOver),
    /// No session is left, after the drain of this tag.
    Drained(Tag),
    /// The answer to [`ToShard::CancelDrain`].
    DrainCancelled(DrainCancelled),
    /// A session names an image that this edge does not have. A peer may have it.
    Want(AppVersion),
    /// How much of a session was its client seen to have?
    WitnessQuery(WitnessQuery),
    /// What a client has of its session. Not answered.
    WitnessReport(WitnessReport),
    /// The standby of a session has changed. Not answered.
    Placed(Placed),
    /// Another edge tells what it remembers of its coordinator's store. Not answered.
    StoreSeen(EdgeStoreSeen),
    /// Claim a replication group at the coordinator. Always answered, by [`ToShard::ClaimAnswer`].
    Claim(GroupClaim),
    /// Ask the coordinator for a slot, or take it. Always answered, by [`ToShard::SlotAnswer`].
    Slot(SlotQuery),
}

record! {
    /// Why a version of an app cannot be had from peers.
    Missing {
        /// The version that no peer gave.
        version: AppVersion,
        /// The reason, for people.
        why: String,
    }
}
record! {
    /// A question to the witness of a session.
    WitnessQuery {
        /// The session that is recovered.
        session: SessionId,
        /// The attempt that waits for the answer.
        generation: Generation,
    }
}
record! {
    /// What the client of a session has, for the witness.
    WitnessReport {
        /// The session of the client.
        session: SessionId,
        /// How much it has.
        seen: Witnessed,
    }
}
record! {
    /// The standby of a session of this shard.
    Placed {
        /// The session that the standby is for.
        session: SessionId,
        /// The standby; none if no edge could take over, or if the session has left this shard.
        at: Option<Stands>,
    }
}
record! {
    /// The witness's answer.
    WitnessAnswer {
        /// As in the request.
        session: SessionId,
        /// As in the request.
        generation: Generation,
        /// What was seen; none if nothing was ever reported.
        seen: Option<Witnessed>,
        /// Why the witness cannot be asked, if so; for people.
        away: Option<String>,
    }
}
record! {
    /// An app's name.
    AppName {
        /// The name.
        name: String,
    }
}
record! {
    /// The session to end for good.
    Kill {
        /// The asker's tag.
        tag: u64,
        /// The session to end.
        session: SessionId,
        /// The reason, for people.
        reason: String,
    }
}
record! {
    /// Whether the session was on this shard.
    Killed {
        /// As in the request.
        tag: u64,
        /// Whether the session was on this shard.
        found: bool,
    }
}
record! {
    /// What was left of a drain on a shard when it was cancelled.
    DrainCancelled {
        /// As in the request.
        tag: u64,
        /// Sessions that stay.
        stay: u64,
        /// Moves to other edges that had begun or waited, and were stopped.
        moves: u64,
        /// Sessions that are handed over already, whose moves go on.
        handed_over: u64,
    }
}
record! {
    /// A request to move a session to another edge or shard.
    MoveSession {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
        /// The session to move.
        session: SessionId,
        /// How it is to move.
        wish: MoveWish,
    }
}
record! {
    /// A request about one session.
    Tagged {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
        /// The session.
        session: SessionId,
    }
}
record! {
    /// Whether a move was begun, or cancelled.
    MoveAnswer {
        /// As in the request.
        tag: u64,
        /// Whether the session was on this shard.
        found: bool,
        /// Why not; empty if it was.
        why: String,
    }
}
record! {
    /// The end of a move.
    MoveOver {
        /// The session.
        session: SessionId,
        /// Where it should move.
        to: Destination,
        /// Whether it stays, and its backup was to move there.
        backup: bool,
        /// Milliseconds since the move was asked for.
        ms: u64,
        /// Why the session stays, or its backup; empty if it has left.
        why: String,
    }
}
record! {
    /// A request to record a session.
    Record {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
        /// The session to record.
        session: SessionId,
        /// Whether messages, the cell's memory and its seed are left out.
        redact: bool,
    }
}
record! {
    /// The result of a recording.
    Recorded {
        /// As in the request.
        tag: u64,
        /// Whether the session was on this shard.
        found: bool,
        /// The name of the file.
        file: Option<String>,
        /// Why there is no file; for people.
        why: String,
    }
}
record! {
    /// The number of a question.
    Tag {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
    }
}
record! {
    /// Part of an answer.
    Rows {
        /// As in the request.
        tag: u64,
        /// At most [`marram_wire::limits::LIST_MAX`].
        rows: Vec<SessionRow>,
    }
}
record! {
    /// The end of an answer.
    Counted {
        /// As in the request.
        tag: u64,
        /// At most [`marram_wire::limits::LIST_MAX`].
        counters: Vec<Counter>,
        /// Whether nothing more comes.
        last: bool,
    }
}
record! {
    /// One counter.
    Counter {
        /// Its name in `/metrics`, without the prefix.
        name: String,
        /// The part of the shard that it counts; none for the whole shard.
        label: Option<Label>,
        /// Its value.
        value: u64,
        /// Whether the value may fall.
        gauge: bool,
    }
}
record! {
    /// A part of a shard that has its own counters.
    Label {
        /// What kind of part: `app`, `tenant`, a `server` that agents reach, or an `edge` onto which sessions are rebalanced.
        name: String,
        /// The name of the app, tenant, server or edge.
        value: String,
    }
}

impl Label {
    /// The label of one app.
    #[must_use]
    pub fn app(name: &str) -> Self {
        Self { name: "app".into(), value: name.into() }
    }

    /// The label of one edge.
    #[must_use]
    pub fn edge(name: &str) -> Self {
        Self { name: "edge".into(), value: name.into() }
    }

    /// The label of one server, by the name that its agents use.
    #[must_use]
    pub fn server(name: &str) -> Self {
        Self { name: "server".into(), value: name.into() }
    }

    /// The label of one tenant.
    #[must_use]
    pub fn tenant(name: &str) -> Self {
        Self { name: "tenant".into(), value: name.into() }
    }
}

/// The counter of the shards that are connected to another edge.
pub const EDGE_CONNECTED: &str = "edge_connected";
/// The counter of the sessions that belong at an edge which has joined, while they are moved there.
pub const REBALANCE_SESSIONS: &str = "rebalance_sessions";
/// The counter of those of them that are still to move.
pub const REBALANCE_LEFT: &str = "rebalance_sessions_left";

impl Counter {
    /// A counter that only grows.
    #[must_use]
    pub fn count(name: &str, value: u64) -> Self {
        Self { name: name.into(), label: None, value, gauge: false }
    }

    /// A gauge, which may fall.
    #[must_use]
    pub fn gauge(name: &str, value: usize) -> Self {
        Self { name: name.into(), label: None, value: value as u64, gauge: true }
    }

    /// The same counter, for one part of the shard.
    #[must_use]
    pub fn of(self, label: Label) -> Self {
        Self { label: Some(label), ..self }
    }
}

impl Counted {
    /// The whole answer, split into as many messages as necessary. There may be thousands: each app and each tenant has its own.
    pub fn messages(tag: u64, counters: Vec<Counter>) -> impl Iterator<Item = FromShard> {
        parts::parts(counters).map(move |(counters, last)| FromShard::Counted(Self { tag, counters, last }))
    }
}

record! {
    /// A line for the log.
    Note {
        /// Its level.
        level: NoteLevel,
        /// The session that it is about.
        session: Option<SessionId>,
        /// Whether the session ended because of what its cell did.
        guest: bool,
        /// The text of the line.
        text: String,
    }
}

macro_rules! messages {
    ($name:ident { $($byte:literal $variant:ident $(($body:ty))?,)* }) => {
        impl $name {
            /// The encoding, without a length.
            #[must_use]
            pub fn to_bytes(&self) -> Bytes {
                let mut out = bytes::BytesMut::new();
                match self {
                    $(messages!(@pattern $variant body $($body)?) => {
                        marram_wire::codec::Field::put(&$byte, &mut out);
                        messages!(@put body out $($body)?);
                    })*
                }
                out.freeze()
            }

            /// Reads one message.
            ///
            /// # Errors
            /// If the bytes are not exactly one message of this build.
            pub fn decode(mut bytes: Bytes) -> Result<Self, marram_wire::codec::Error> {
                let message = match <u8 as marram_wire::codec::Field>::take(&mut bytes)? {
                    $($byte => messages!(@take $variant bytes $($body)?),)*
                    _ => return Err(marram_wire::codec::Error::Unknown),
                };
                if bytes.is_empty() { Ok(message) } else { Err(marram_wire::codec::Error::Trailing) }
            }
        }
    };
    (@pattern $variant:ident $bind:ident $body:ty) => { Self::$variant($bind) };
    (@pattern $variant:ident $bind:ident) => { Self::$variant };
    (@put $bind:ident $out:ident $body:ty) => { marram_wire::codec::Field::put($bind, &mut $out) };
    (@put $bind:ident $out:ident) => {};
    (@take $variant:ident $bytes:ident $body:ty) => {
        Self::$variant(<$body as marram_wire::codec::Field>::take(&mut $bytes)?)
    };
    (@take $variant:ident $bytes:ident) => { Self::$variant };
}
messages!(ToShard {
    0u8 Configure(Configure),
    1u8 Deploy(App),
    2u8 Undeploy(AppName),
    3u8 Drain(Tag),
    4u8 Kill(Kill),
    5u8 List(Tag),
    6u8 Know(App),
    7u8 Missing(Missing),
    8u8 Record(Record),
    9u8 WitnessAnswer(WitnessAnswer),
    10u8 Move(MoveSession),
    11u8 CancelMove(Tagged),
    12u8 Edges(Edges),
    13u8 StoreSeen(StoreSeen),
    14u8 PlanMoves(PlanMoves),
    15u8 ClaimAnswer(ClaimAnswer),
    16u8 SlotAnswer(SlotAnswer),
    17u8 Policies(PolicyList),
    18u8 CancelDrain(Tag),
});
messages!(FromShard {
    0u8 Ready,
    1u8 Rows(Rows),
    2u8 Counted(Counted),
    3u8 Note(Note),
    4u8 Killed(Killed),
    5u8 Drained(Tag),
    6u8 Want(AppVersion),
    7u8 Recorded(Recorded),
    8u8 WitnessQuery(WitnessQuery),
    9u8 WitnessReport(WitnessReport),
    10u8 Placed(Placed),
    11u8 MoveAnswer(MoveAnswer),
    12u8 MoveOver(MoveOver),
    13u8 StoreSeen(EdgeStoreSeen),
    14u8 Planned(Planned),
    15u8 Claim(GroupClaim),
    16u8 Slot(SlotQuery),
    17u8 DrainCancelled(DrainCancelled),
});

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An app of this tenant.
    pub(crate) fn app(tenant: &str, priority: u8) -> App {
        App {
            name: tenant.into(),
            image: ImageHash([1; 32]),
            protect: Protect::Endpoints,
            server: None,
            keep: CheckpointHolder::Client,
            recovery_target_ns: 0,
            linger_ms: 0,
            messages_per_s: 0,
            log_bytes_per_s: 0,
            sessions_max: 0,
            shared: false,
            tenant: tenant.into(),
            priority,
            witness: WitnessMode::None,
            cache: None,
            epoch: None,
            slots: 0,
        }
    }
}
