//! What a shard and the control are told and what they ask for: the seam between the pure edge and everything around it.

use crate::coordinator::contents::{Stands, Witnessed};
use crate::run_queue::{Class, Tenant};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::Bytes;
use marram_session::cell::{CellId, CheckpointBase, Ran, Run, Seed};
use marram_session::replay::Gathered;
pub use marram_session::{
    agent::Target,
    cell::CellError,
    owner::{Now, RecordRequest},
};
use marram_wire::{
    frame::{CheckpointMeta, Frame},
    header::Header,
    id::{Generation, HostId, ImageHash, SessionId},
    record,
    rights::Verified,
    seal::{Seal, SessionKeys},
};

/// A wire from one agent to this shard; named by the shell, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardWireId(pub u64);

/// Something happened to a shard.
#[derive(Clone, PartialEq, Debug)]
pub enum ShardInput {
    /// An agent's wire is there: encrypted and authenticated as configured. Its first frame is its greeting.
    WireUp {
        /// Its name from now on.
        wire: ShardWireId,
        /// Which agent it is and what its credential allows. Decided by the shell; the shard holds agents to it.
        verified: Box<Verified>,
        /// Where it comes from, for people; absent for the edge's own gate.
        address: Option<String>,
    },
    /// A wire broke or was closed.
    WireDown {
        /// Which.
        wire: ShardWireId,
    },
    /// A frame arrived.
    Frame {
        /// On which wire.
        wire: ShardWireId,
        /// What.
        frame: Frame,
    },
    /// The answer to [`ShardOutput::Start`].
    Started {
        /// Which cell.
        cell: CellId,
        /// Whether it is there.
        result: Result<(), CellError>,
    },
    /// The answer to [`ShardOutput::Run`].
    Ran(Ran),
    /// The answer to [`ShardOutput::Checkpoint`].
    Checkpointed {
        /// Which cell.
        cell: CellId,
        /// The checkpoint's number.
        number: u32,
        /// Sealed bytes, or why there are none; the session runs on without.
        result: Result<Bytes, String>,
    },
    /// A wire that was asked for by [`ShardOutput::Dial`] is there: encrypted and authenticated as configured. This shard greets.
    Dialled {
        /// Its name from now on.
        wire: ShardWireId,
        /// Where it leads.
        target: Target,
    },
    /// A wire could not be made.
    DialFailed {
        /// Where it would have led.
        target: Target,
        /// For people.
        reason: String,
    },
    /// The answer to [`ShardOutput::Restore`] and [`ShardOutput::Advance`].
    Restored {
        /// Which cell.
        cell: CellId,
        /// The last checkpoint's header.
        result: Result<Box<Header>, CellError>,
    },
    /// The answer to [`ShardOutput::Record`].
    Recorded {
        /// Which session.
        session: SessionId,
        /// As asked; none if nobody did.
        tag: Option<u64>,
        /// The file's name, or why there is none.
        result: Result<String, String>,
    },
    /// A word from control.
    Control(ToShard),
    /// A time asked for by [`ShardOutput::WakeAt`] has come.
    Wake,
}

/// A shard wants something done.
#[derive(Clone, Debug)]
pub enum ShardOutput {
    /// Send a frame; those for which [`Frame::is_bulk`] holds may wait behind others of their wire.
    Send {
        /// On which wire.
        wire: ShardWireId,
        /// What.
        frame: Frame,
    },
    /// Close a wire after what was sent; answered by [`ShardInput::WireDown`].
    CloseWire {
        /// Which.
        wire: ShardWireId,
    },
    /// Make a wire to a shard of a peer; answered by [`ShardInput::Dialled`] or [`ShardInput::DialFailed`].
    Dial {
        /// Where: a place in the list of peers, and a shard of that edge.
        target: Target,
    },
    /// Start a cell from an image; answered by [`ShardInput::Started`].
    Start {
        /// Its name from now on.
        cell: CellId,
        /// From which image.
        image: ImageHash,
        /// Seeds its generator.
        seed: Seed,
        /// Whose it is: what its handlers read comes from that app's cache.
        app: String,
        /// For which session; none if many share it.
        session: Option<SessionId>,
        /// Whose turn its handlers take.
        place: SchedulingParams,
    },
    /// Start a cell from an image and checkpoints, whose bytes follow: open each, split it, check that its header names this
    /// session, image and its place in the list (`meta` and base), apply its sections in order. What has been authenticated may be
    /// applied before the rest is here; answered by [`ShardInput::Restored`] with the last header once every bit of all of them has been,
    /// or with a refusal as soon as something is wrong.
    Restore {
        /// Its name from now on.
        cell: CellId,
        /// Which session.
        session: SessionId,
        /// From which image.
        image: ImageHash,
        /// Opens the checkpoints.
        keys: SessionKeys,
        /// A full one and its deltas, in order.
        checkpoints: Vec<CheckpointMeta>,
        /// Whether [`ShardOutput::Advance`] may follow.
        stands_by: bool,
        /// Whose it is, as in [`ShardOutput::Start`].
        app: String,
        /// Whose turn its handlers take.
        place: SchedulingParams,
    },
    /// Bring a cell that was restored, stands by and has not run since to its next checkpoint, a delta on the last one. Its bytes
    /// follow as [`ShardOutput::Part`]s, checked as those of [`ShardOutput::Restore`]; the cell is as before until all of them are there. Answered by
    /// [`ShardInput::Restored`]. A run of the cell in between, or another of these, drops what has arrived.
    Advance {
        /// Which cell.
        cell: CellId,
        /// What follows.
        meta: CheckpointMeta,
    },
    /// The next bytes of the checkpoints that a cell is restored from. No piece is of two of them.
    Part {
        /// Which cell.
        cell: CellId,
        /// Sealed.
        bytes: Bytes,
    },
    /// Run one handler; answered by [`ShardInput::Ran`], at once or after other steps.
    Run(Run),
    /// Copy what changed, now, before any later run of this cell. Kept until [`ShardOutput::Checkpoint`] or the next copy. Not answered.
    Copy {
        /// Of which cell.
        cell: CellId,
        /// What to copy.
        base: CheckpointBase,
    },
    /// In no hurry: encode what was copied last, join it with the header, seal it. Answered by [`ShardInput::Checkpointed`].
    Checkpoint {
        /// Of which cell.
        cell: CellId,
        /// What goes in front.
        header: Box<Header>,
        /// Seals it under the header's number.
        seal: Seal,
    },
    /// Hash the cell's state, now, before any later run of this cell. Kept until [`ShardOutput::Record`] names the cell, or the next one
    /// of this cell. Not answered.
    Hash {
        /// Of which cell.
        cell: CellId,
    },
    /// In no hurry: make a recording of what was gathered, with the cell's hash if it names one, and keep it in a file. Answered
    /// by [`ShardInput::Recorded`].
    Record {
        /// Who wants it.
        request: RecordRequest,
        /// What there is.
        gathered: Box<Gathered>,
        /// The edge's name.
        edge: String,
        /// When, in nanoseconds since the Unix epoch.
        unix_ns: i64,
    },
    /// The cell is not needed any more. Not answered; answers still due for it may be dropped.
    Remove {
        /// Which.
        cell: CellId,
    },
    /// Call again with [`ShardInput::Wake`] at this time (monotonic) at the latest. The last one counts.
    WakeAt {
        /// In nanoseconds.
        mono_ns: u64,
    },
    /// A word to control.
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
    /// As `Endpoints`, and another edge holds the cell as its last checkpoint has it, with the log at hand.
    Warm = 2,
    /// As `Endpoints`, and another edge replays as the cell goes.
    Hot = 3,
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

/// Whether somebody outside remembers how much of a session its client has ([`marram_session::owner::Witnessing`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WitnessMode {
    /// Nobody.
    None = 0,
    /// The coordinator; while it is away sessions go on without its word.
    Lenient = 1,
    /// The coordinator; while it is away recoveries wait.
    Strict = 2,
}

macro_rules! byte_enum {
    ($name:ident { $($variant:ident),* }) => {
        impl marram_wire::codec::Field for $name {
            fn put(&self, out: &mut bytes::BytesMut) {
                (*self as u8).put(out);
            }
            fn take(from: &mut Bytes) -> Result<Self, marram_wire::codec::Error> {
                let byte = u8::take(from)?;
                [$(Self::$variant),*].get(usize::from(byte)).copied().ok_or(marram_wire::codec::Error::Unknown)
            }
        }
    };
}
byte_enum!(Protect { None, Endpoints, Warm, Hot });
byte_enum!(CheckpointHolder { Client, Server, Both });
byte_enum!(WitnessMode { None, Lenient, Strict });

record! {
    /// An app as deployed: what its manifest says, resolved.
    App {
        /// The name that clients ask for.
        name: String,
        /// What it runs.
        image: ImageHash,
        /// How its sessions are protected.
        protect: Protect,
        /// The server's name, where the app has one.
        server: Option<String>,
        /// Which end keeps checkpoints.
        keep: CheckpointHolder,
        /// Replaying what is not covered by a checkpoint should not take longer, in nanoseconds.
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
        /// On whose account its cells run; several apps may be one tenant's.
        tenant: String,
        /// 0 for the fair class; else its priority, the highest first, before all that is fair.
        priority: u8,
        /// Whether its clients could go back to an older state unseen. For apps without a server.
        witness: WitnessMode,
        /// Where its cells read objects from, if they may.
        cache: Option<crate::cache::CachePolicy>,
    }
}

record! {
    /// What an edge's operator grants a tenant. Those that are not named have the defaults.
    Grant {
        /// The tenant.
        tenant: String,
        /// Its share of processor time, relative to others'; 100 is the default.
        weight: u32,
        /// Its sessions on one shard at a time; 0 for no limit.
        sessions_max: u32,
        /// Whether its apps may have a priority; else they run as fair.
        priority: bool,
    }
}

/// Where a cell's handlers queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulingParams {
    /// On whose account.
    pub tenant: Tenant,
    /// What that tenant's time is worth.
    pub weight: u32,
    /// How urgent.
    pub class: Class,
}

record! {
    /// One session on one shard, for listings.
    SessionRow {
        /// Which.
        session: SessionId,
        /// Its app.
        app: String,
        /// What its cell began from.
        image: ImageHash,
        /// Its generation here.
        generation: Generation,
        /// `opening`, `restoring`, `replaying`, `running`, `finishing`.
        phase: String,
        /// The client's agent.
        client: HostId,
        /// The server's agent, where there is one.
        server: Option<HostId>,
        /// How it is protected.
        protect: Protect,
        /// Who keeps it beside its ends: names, what they are, whether they are ready, bytes behind. For people.
        keepers: Vec<String>,
        /// Where the ends run: whether the client's agent is the edge's own gate.
        client_in_gate: bool,
        /// As above, for the server's.
        server_in_gate: bool,
        /// Messages consumed.
        consumed: u64,
        /// Outputs produced.
        produced: u64,
        /// Log bytes since the session began.
        log_bytes: u64,
        /// Log bytes that no checkpoint covers.
        uncovered_bytes: u64,
        /// Tasks that wait for their turn.
        tasks: u64,
        /// Tasks that wait for a lock.
        tasks_locked_out: u64,
        /// Locks that tasks hold.
        locks: u64,
        /// Ports that the cell has paused: `client`, `server`.
        paused: Vec<String>,
        /// Checkpoints that an end has stored.
        checkpoints: u64,
        /// Generations opened for it before this one, anywhere.
        recoveries: u64,
        /// When it was opened here, Unix time in milliseconds.
        since_ms: u64,
    }
}

/// Control to shard. Serialisable: a shard is another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToShard {
    /// This shard's place, the edge's name, whether draining.
    Configure(Configure),
    /// Sessions may name this app, and new ones run this image.
    Deploy(App),
    /// Sessions that began with this app's image may go on here; new ones may not begin with it.
    Know(App),
    /// The answer to [`FromShard::Want`], if the image cannot be had; [`ToShard::Know`] is the other one.
    Missing(Missing),
    /// New sessions of this app are refused; old ones run on.
    Undeploy(Name),
    /// Take no new sessions; ask agents to move the others.
    Drain,
    /// End a session for good.
    Kill(Kill),
    /// Answer with [`FromShard::Rows`] and [`FromShard::Counted`].
    List(Tag),
    /// The answer to [`FromShard::WitnessQuery`].
    WitnessAnswer(WitnessAnswer),
    /// Make a recording of a session; answer with [`FromShard::Recorded`], at once if it is not here.
    Record(Record),
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
    /// No session is left, after a drain.
    Drained,
    /// A session names an image that is not here: peers may have it.
    Want(Want),
    /// What was the client of a session seen to have?
    WitnessQuery(WitnessQuery),
    /// A client has this. Nobody waits for it.
    WitnessReport(WitnessReport),
    /// Who stands by for a session has changed. Nobody waits for it.
    Placed(Placed),
}

record! {
    /// A shard's place.
    Configure {
        /// The edge's name.
        edge: String,
        /// Which shard.
        shard: u8,
        /// Of how many.
        shards: u8,
        /// The gate's agent in this edge, if it has one: sessions with an end there do not survive the edge.
        gate: Option<HostId>,
        /// Sessions at a time; 0 for no limit.
        sessions_max: u32,
        /// Recoveries at a time (docs/protocol.md, "Opening a generation"); 0 for no limit.
        recoveries_max: u32,
        /// What tenants are granted.
        grants: Vec<Grant>,
        /// Whether there are peers to ask for images that are missing.
        peers: bool,
        /// Whether a session is recorded when a handler of it is stopped.
        record_stops: bool,
        /// Peers that this shard dials to stand by for their sessions.
        dials: u32,
        /// How often a peer is asked whether it is there, in milliseconds.
        heartbeat_interval_ms: u32,
        /// After how long without a word a peer is suspected, in milliseconds.
        heartbeat_timeout_ms: u32,
        /// Flip one bit of the n-th output (counting from 1); 0 for never. For `marram demo --sabotage`.
        sabotage: u64,
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
            grants: Vec::new(),
            peers: false,
            record_stops: false,
            dials: 0,
            heartbeat_interval_ms: 50,
            heartbeat_timeout_ms: 200,
            sabotage: 0,
        }
    }
}

record! {
    /// An image that a session names.
    Want {
        /// Which.
        image: ImageHash,
        /// The session's app, for people.
        app: String,
    }
}
record! {
    /// Why an image cannot be had from peers.
    Missing {
        /// Which.
        image: ImageHash,
        /// For people.
        why: String,
    }
}
record! {
    /// Whose witness is asked.
    WitnessQuery {
        /// Which session.
        session: SessionId,
        /// The attempt that waits for the answer.
        generation: Generation,
    }
}
record! {
    /// What the client of a session has.
    WitnessReport {
        /// Which session.
        session: SessionId,
        /// How much.
        seen: Witnessed,
    }
}
record! {
    /// Who stands by for a session of this shard.
    Placed {
        /// Which session.
        session: SessionId,
        /// Who; none if nobody could take over, or the session is not here any more.
        at: Option<Stands>,
    }
}
record! {
    /// What the witness says.
    WitnessAnswer {
        /// As asked.
        session: SessionId,
        /// As asked.
        generation: Generation,
        /// What was seen; none if nothing ever was.
        seen: Option<Witnessed>,
        /// Why it cannot be asked, if it cannot; for people.
        away: Option<String>,
    }
}
record! {
    /// An app's name.
    Name {
        /// The name.
        name: String,
    }
}
record! {
    /// Whom to kill.
    Kill {
        /// The asker's tag.
        tag: u64,
        /// Which session.
        session: SessionId,
        /// For people.
        reason: String,
    }
}
record! {
    /// Whether it was here.
    Killed {
        /// As asked.
        tag: u64,
        /// Whether the session was on this shard.
        found: bool,
    }
}
record! {
    /// What to record.
    Record {
        /// The asker's tag.
        tag: u64,
        /// Which session.
        session: SessionId,
        /// Whether what was said is to be left out.
        redact: bool,
    }
}
record! {
    /// What came of it.
    Recorded {
        /// As asked.
        tag: u64,
        /// Whether the session was on this shard.
        found: bool,
        /// The name of the file.
        file: Option<String>,
        /// Why there is none; for people.
        why: String,
    }
}
record! {
    /// Names a question.
    Tag {
        /// The asker's.
        tag: u64,
    }
}
record! {
    /// Part of an answer.
    Rows {
        /// As asked.
        tag: u64,
        /// At most [`marram_wire::limits::LIST_MAX`].
        rows: Vec<SessionRow>,
    }
}
record! {
    /// The end of an answer.
    Counted {
        /// As asked.
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
        /// As in `/metrics`, without the prefix.
        name: String,
        /// What it is of; none for the whole shard.
        label: Option<Label>,
        /// Its value.
        value: u64,
        /// Whether it may fall.
        gauge: bool,
    }
}
record! {
    /// A part of a shard that has counters of its own.
    Label {
        /// What kind of part: `app`, `tenant`, or a `server` that agents reach.
        name: String,
        /// Which one.
        value: String,
    }
}

impl Label {
    /// Of one app.
    #[must_use]
    pub fn app(name: &str) -> Self {
        Self { name: "app".into(), value: name.into() }
    }

    /// Of one server, by the name that its agents use.
    #[must_use]
    pub fn server(name: &str) -> Self {
        Self { name: "server".into(), value: name.into() }
    }

    /// Of one tenant.
    #[must_use]
    pub fn tenant(name: &str) -> Self {
        Self { name: "tenant".into(), value: name.into() }
    }
}

impl Counter {
    /// Something that only grows.
    #[must_use]
    pub fn count(name: &str, value: u64) -> Self {
        Self { name: name.into(), label: None, value, gauge: false }
    }

    /// Something that may fall.
    #[must_use]
    pub fn gauge(name: &str, value: usize) -> Self {
        Self { name: name.into(), label: None, value: value as u64, gauge: true }
    }

    /// The same, of a part of the shard.
    #[must_use]
    pub fn of(self, label: Label) -> Self {
        Self { label: Some(label), ..self }
    }
}

/// Counters in one message: apps and tenants have some each, and there may be thousands of them.
const COUNTERS: usize = 512;
const _: () = assert!(COUNTERS <= marram_wire::limits::LIST_MAX, "a message of counters can be read");

impl Counted {
    /// The whole answer, in as many messages as it takes.
    pub fn messages(tag: u64, counters: Vec<Counter>) -> impl Iterator<Item = FromShard> {
        let count = counters.len().div_ceil(COUNTERS).max(1);
        let mut rest = counters.into_iter();
        (1..=count).map(move |n| {
            let counters = rest.by_ref().take(COUNTERS).collect();
            FromShard::Counted(Self { tag, counters, last: n == count })
        })
    }
}
record! {
    /// A line for the log.
    Note {
        /// 0 error, 1 warning, 2 info, 3 debug.
        level: u8,
        /// What it is about.
        session: Option<SessionId>,
        /// Whether the session is over for what its cell did.
        guest: bool,
        /// For people.
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
    2u8 Undeploy(Name),
    3u8 Drain,
    4u8 Kill(Kill),
    5u8 List(Tag),
    6u8 Know(App),
    7u8 Missing(Missing),
    8u8 Record(Record),
    9u8 WitnessAnswer(WitnessAnswer),
});
messages!(FromShard {
    0u8 Ready,
    1u8 Rows(Rows),
    2u8 Counted(Counted),
    3u8 Note(Note),
    4u8 Killed(Killed),
    5u8 Drained,
    6u8 Want(Want),
    7u8 Recorded(Recorded),
    8u8 WitnessQuery(WitnessQuery),
    9u8 WitnessReport(WitnessReport),
    10u8 Placed(Placed),
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
        }
    }
}
