//! The frames that agents and edges send to each other on one wire, and their encoding.
//!
//! ```text
//! frame   := length (LEB128, of what follows) | kind (1) | body
//! input   := kind 0x40 | flags (bit 0 close, bit 1 ack)          | channel | [ack]             | payload
//! output  := kind 0x60 | flags (bit 0 close, bit 1 increment)    | channel | [size | entries | tag (8)] | payload
//! others  := kind | the fields below, in order
//! ```
//!
//! A channel is one attempt of one end to take part in one session on one wire. It is bound to a generation by
//! [`Promise`], so no later frame needs to name the session, the generation or a sequence number: channels are ordered,
//! and [`Promised`] and [`Chosen`] say where each numbering starts.

mod channel;
mod code;
mod hot;
mod reader;
#[cfg(test)]
mod tests;

pub use channel::Sender;
pub use code::Code;
pub use hot::{Increment, Input, Output};
pub use reader::{ReadError, Reader};

use crate::{
    codec::{Error, Field, Last, Many},
    id::{Generation, HostId, ImageHash, Port, SessionId},
    key::CellKey,
    peer::Origin,
    record,
};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::{Bytes, BytesMut};

/// Names a channel on its wire: even when the agent opened it (with [`Hello`]), odd when the edge did (with [`Promise`]).
pub type Channel = u32;

/// The kind of [`CheckpointPart`], whose bytes are not copied when it is written.
const CHECKPOINT_PART: u8 = 20;

macro_rules! frames {
    ($($(#[$meta:meta])* $kind:literal $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(record! { $(#[$meta])* $name { $($(#[$field_meta])* $field: $type,)* } })*

        /// Any frame of a wire.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "each variant is documented on the struct of its name")]
        pub enum Frame { $($name($name),)* Input(Input), Output(Output) }

        $(impl From<$name> for Frame {
            fn from(frame: $name) -> Self {
                Self::$name(frame)
            }
        })*

        impl Frame {
            /// The frame's kind, for logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                    Self::Input(_) => "Input",
                    Self::Output(_) => "Output",
                }
            }

            fn put_body(&self, out: &mut BytesMut) -> Bytes {
                match self {
                    $(Self::$name(frame) => { out.extend_from_slice(&[$kind]); frame.put(out); Bytes::new() })*
                    Self::Input(frame) => frame.put_head(out),
                    Self::Output(frame) => frame.put_head(out),
                }
            }

            /// Decodes the body of one frame, without its length prefix.
            ///
            /// # Errors
            /// If the bytes are not exactly one frame of this version.
            pub fn decode(mut body: Bytes) -> Result<Self, Error> {
                let kind = u8::take(&mut body)?;
                let frame = match kind {
                    $($kind => Self::$name(Field::take(&mut body)?),)*
                    0x40..=0x43 => return Input::take(kind, body).map(Self::Input),
                    0x60..=0x63 => return Output::take(kind, body).map(Self::Output),
                    _ => return Err(Error::Unknown),
                };
                if body.is_empty() { Ok(frame) } else { Err(Error::Trailing) }
            }
        }
    };
}

frames! {
    // The wire itself.
    /// Agent to edge, first on a wire. The agent's id is not in it: the handshake has proved that already.
    1 Greet {
        /// Oldest version that the agent supports.
        version_oldest: u8,
        /// Newest version that the agent supports.
        version_newest: u8,
        /// Servers that this agent can reach, by the names that manifests use.
        servers: Vec<String>,
    }
    /// Edge to agent, the answer to [`Greet`].
    2 Welcome {
        /// The version that both use from now on.
        version: u8,
        /// The edge's name, for people.
        edge: String,
        /// The number of the shard that this wire leads to.
        shard: u8,
        /// How many shards the edge has.
        shards: u8,
        /// Proofs of session keys on this wire must contain it.
        challenge: [u8; 16],
        /// Whether the edge refuses new sessions.
        draining: bool,
        /// Identifies the edge's domain ([`DomainSecret::fingerprint`](crate::seal::DomainSecret::fingerprint)): an edge with
        /// another fingerprint cannot continue this edge's sessions.
        domain: [u8; 8],
    }
    /// Either way: the wire closes, with the reason.
    3 Goodbye {
        /// For people: what happened and what to do.
        reason: String,
    }
    /// Either way: a heartbeat. The [`Pong`] repeats `stamp`.
    4 Ping {
        /// The sender's clock, opaque to the receiver.
        stamp: u64,
    }
    /// The answer to [`Ping`].
    5 Pong {
        /// As received.
        stamp: u64,
        /// From a shard: the sessions that it has. From others 0.
        load: u32,
    }
    /// Edge to agent: the edge is shutting down and takes no new session.
    6 Drain {
        /// Whether sessions of this shard are to ask another edge. If not, the edge hands them over as far as it can, and says this
        /// later for the rest.
        leave: bool,
    }
    /// Keeper to edge, after [`Welcome`]: this wire leads to a keeper of the edge's domain.
    7 Keeper {
        /// Proves knowledge of the domain's secret, bound to the wire's challenge and the name.
        proof: [u8; 16],
        /// The recorder's name, or the edge's.
        name: String,
        /// 0 a recorder, 1 an edge that stands by.
        role: u8,
        /// The shard of that edge.
        shard: u8,
        /// How many shards it has.
        shards: u8,
    }
    /// Either way, after [`Welcome`] and again after each change: edges of the domain and how to reach them. It replaces what this
    /// side has told before. From an edge: itself and the edges that it knows; from an agent: those that it has wires to; from an
    /// edge that stands by: itself.
    8 Edges {
        /// At most [`EDGES_TOLD_MAX`](crate::limits::EDGES_TOLD_MAX) are read.
        edges: Vec<EdgeEntry>,
    }
    /// Edge to edge, after [`Keeper`] and its answer, and again after each change: how far the sender has seen its coordinator's
    /// store come. One that sees less uses a store that lost something.
    9 StoreSeen {
        /// The newest that the sender remembers.
        mark: StoreMark,
    }

    // Opening a generation.
    /// End to edge, first on a channel: open a generation of this session.
    16 Hello {
        /// New on this wire, even.
        channel: Channel,
        /// The session to open.
        session: SessionId,
        /// True for the server's end, false for the client's.
        server: bool,
        /// The name of the app.
        app: String,
        /// Whether the session begins. Otherwise it is resumed.
        fresh: bool,
        /// The newest generation that the end has promised.
        promised: Generation,
        /// The image that the session runs, from [`Promise`]; absent when fresh.
        image: Option<ImageHash>,
        /// Proves knowledge of the session's key, bound to the wire's challenge; absent when fresh.
        proof: Option<[u8; 16]>,
        /// The agent of the session's other end, if known: the edge invites it.
        peer: Option<HostId>,
        /// Where the client connected, for the server's end; absent unless fresh.
        origin: Option<Box<Origin>>,
        /// Whether the program at this end sent or received something shortly before the session lost its owner, or has sent
        /// something since, or the session has had no owner for two seconds: then it is recovered before others.
        active: bool,
        /// Which of the app's shared cells the client is for, if the app has one for each key.
        key: Last<Box<CellKey>>,
    }
    /// Edge to end: promise this generation. Opens the channel at the end that did not send [`Hello`].
    17 Promise {
        /// Odd when it opens the channel.
        channel: Channel,
        /// The session to promise.
        session: SessionId,
        /// The attempt that asks.
        generation: Generation,
        /// The name of the app.
        app: String,
        /// The image that the session runs.
        image: ImageHash,
        /// The server's name, for the server's end; empty for the client's end.
        server: String,
        /// The agent of the session's other end, if there is one.
        peer: Option<HostId>,
        /// The session's key, which is required to resume.
        key: [u8; 16],
        /// Whether an end that does not know the session may begin it.
        fresh: bool,
        /// Whether the sender of the [`Hello`] has proved the session's key.
        proven: bool,
        /// What ends keep.
        keeps: Keeps,
        /// Whether the app's sessions share a cell, so that those of one agent should meet at one edge.
        shared: bool,
        /// Whether an operator has moved the session to this shard: it does not fail back to its home.
        assigned: bool,
        /// How long the end keeps a session that cannot be resumed, in milliseconds.
        linger_ms: u32,
        /// Set by an owner that still has its cell, or has a standby's: its generation, the end of its log, how many of this
        /// end's messages the cell consumed, and how many outputs it produced for it. If the end has promised nothing else since, it
        /// sends no checkpoint, and log and messages only from there on. An end that keeps messages alone promises only an owner that
        /// covers what it has received and forgotten.
        live: Option<Live>,
        /// Where the client connected, as its agent reports it, for a server's end that begins now.
        origin: Option<Box<Origin>>,
        /// Set by an owner that was the backup, and has claimed its group: no other edge has more of the history of [`Promise::live`]. An end
        /// whose owner ran ahead promises it although it may be behind.
        promoted: Last<bool>,
    }
    /// End to edge: promised. The checkpoints, log and messages that it announces follow on the channel.
    18 Promised {
        /// As in [`Promise`].
        channel: Channel,
        /// What the end had promised before.
        previous: Generation,
        /// Whether [`Promise::live`] still holds, so that only messages follow.
        live: bool,
        /// Offset of the first byte of log that the end has.
        log_start: u64,
        /// Offset after the last byte of log that the end has.
        log_end: u64,
        /// Keyed digest of the session up to `log_end`.
        tag: [u8; 8],
        /// Outputs that the end has received.
        received: u64,
        /// Bytes of outputs that the edge may send before credit comes back. The last one may exceed them.
        window: u64,
        /// Sequence number of the first message that follows.
        sent_start: u64,
        /// Sequence number after the last message that follows.
        sent_end: u64,
        /// The checkpoints that the end has: a full one and its deltas, in order.
        checkpoints: Vec<CheckpointMeta>,
        /// Bytes of checkpoints that the end keeps at most, one that arrives included.
        checkpoints_max: u64,
        /// The checkpoint that the end received in part, if `live`: the owner may continue it.
        partial: Option<PartialCheckpoint>,
        /// Where a handler was stopped before, if one was.
        failed: Option<Failure>,
        /// Whether the program at this end uses datagrams. Decides how its port opens, if the session begins now.
        datagrams: bool,
        /// Where the client connected; only from the client's end, and only if the session has not begun.
        origin: Option<Box<Origin>>,
        /// The session time now, in nanoseconds, as this end knows it from [`Chosen::session_ns`] and its own monotonic clock; none if no log
        /// was chosen yet.
        session_ns: Option<i64>,
    }
    /// End to edge, or after [`Chosen`]: a part of the log as one generation sealed it.
    19 LogPart {
        /// The channel.
        channel: Channel,
        /// The generation that sealed it.
        generation: Generation,
        /// Offset of the first byte.
        offset: u64,
        /// Sealed entries.
        bytes: Bytes,
    }
    /// Either way: bytes of the last announced checkpoint, in order.
    20 CheckpointPart {
        /// The channel.
        channel: Channel,
        /// Sealed bytes.
        bytes: Bytes,
    }
    /// Edge to end: the log that the new owner chose. Outputs follow, numbered from what the end had received.
    21 Chosen {
        /// The channel.
        channel: Channel,
        /// Where the chosen log begins, including its parts: the end of this end's log, or a later offset if a checkpoint covers
        /// what is between.
        log_offset: u64,
        /// The last part of the chosen log that this end lacks, sealed by this generation.
        log: Bytes,
        /// Keyed digest of the session up to the end of `log`.
        tag: [u8; 8],
        /// Bytes of new messages that the end may send before credit comes back.
        credit: u64,
        /// The session time now, in nanoseconds.
        session_ns: i64,
        /// As in [`RunsAhead`]; absent if it does not.
        runs_ahead: Last<bool>,
    }

    // While it runs.
    /// Either way: credit, cumulative since the last one.
    32 Credit {
        /// The channel.
        channel: Channel,
        /// To an edge: outputs received since.
        received: u64,
        /// Bytes that may be sent in addition to earlier credit.
        bytes: u64,
    }
    /// Edge to end: log without an output.
    33 LogOnly {
        /// The channel.
        channel: Channel,
        /// Sealed entries.
        entries: Bytes,
        /// Keyed digest of the session up to the last of them.
        tag: [u8; 8],
    }
    /// Either way: a checkpoint follows in parts.
    34 CheckpointBegin {
        /// The channel.
        channel: Channel,
        /// The checkpoint that follows.
        meta: CheckpointMeta,
    }
    /// End to edge: so many bytes of checkpoint parts stored since the last one.
    35 Stored {
        /// The channel.
        channel: Channel,
        /// Bytes of parts.
        bytes: u64,
        /// Set when the checkpoint of that number is complete.
        complete: Option<u32>,
    }
    /// Edge to end: a checkpoint covers log and messages up to here; they need not be kept.
    36 Truncate {
        /// The channel.
        channel: Channel,
        /// Log before this offset.
        log_offset: u64,
        /// Keyed digest of the session up to there, for an end that has not received all of it.
        tag: [u8; 8],
        /// This end's messages with lower sequence numbers.
        sent: u64,
    }

    /// End to edge: the end's agent is short of memory, so a checkpoint is due once this much is uncovered. Replaces the earlier
    /// allowance; without one it is [`CHECKPOINT_AFTER_BYTES`](crate::limits::CHECKPOINT_AFTER_BYTES).
    40 Allowance {
        /// The channel.
        channel: Channel,
        /// Bytes of the end's consumed messages, or of the log, that no checkpoint covers.
        bytes: u64,
    }

    /// Edge to end: the session moves. If its app has no protection, keep what an end of a protected app keeps from here on. Answered by
    /// [`Protected`], also by an end that keeps it already.
    41 ProtectNow {
        /// The channel.
        channel: Channel,
        /// Offset at which the log begins. An end that keeps the session already ignores it.
        log_offset: u64,
        /// Keyed digest of the session there.
        tag: [u8; 8],
    }
    /// End to edge, the answer to [`ProtectNow`].
    42 Protected {
        /// The channel.
        channel: Channel,
        /// Sequence number of the first message that the end keeps.
        sent_start: u64,
        /// Outputs that the end has received.
        received: u64,
    }
    /// Edge to end: the session has moved, or stays: keep nothing from here on.
    43 Unprotect {
        /// The channel.
        channel: Channel,
    }

    /// Edge to end: whether outputs leave, or have left, before the owner's backup has what produced them. Before the first such output, and
    /// again when all that has left is at the backup.
    44 RunsAhead {
        /// The channel.
        channel: Channel,
        /// Whether they do.
        is_so: bool,
    }

    // For inspection.
    /// Edge to end: send what you keep, as for a promise, and continue. Answered by [`Kept`].
    37 Fetch {
        /// The channel.
        channel: Channel,
    }
    /// End to edge, the answer to [`Fetch`]. The checkpoints and messages that it announces follow, all of them behind other
    /// frames.
    38 Kept {
        /// The channel.
        channel: Channel,
        /// Sequence number of the first message that follows.
        sent_start: u64,
        /// Sequence number after the last message: everything that was sent on this channel follows again.
        sent_end: u64,
        /// The checkpoints that the end has: a full one and its deltas, in order.
        checkpoints: Vec<CheckpointMeta>,
    }
    /// End to edge: a message that the end has kept, after [`Kept`].
    39 KeptInput {
        /// The channel.
        channel: Channel,
        /// Whether it is the close; then it has no payload.
        close: bool,
        /// Its payload.
        payload: Bytes,
    }

    // Keepers.
    /// Owner to keeper: keep this session from here on. Opens the channel.
    72 Keep {
        /// New on this wire, odd.
        channel: Channel,
        /// The session to keep.
        session: SessionId,
        /// The generation of its owner.
        generation: Generation,
        /// The name of the app.
        app: String,
        /// The image that the session runs.
        image: ImageHash,
        /// The agents of its ends, client first.
        hosts: Vec<HostId>,
        /// Whether to replay the log while the cell runs. Otherwise the keeper restores the last announced checkpoint and stores
        /// the rest.
        hot: bool,
        /// Whether the owner means to hand the session over to this keeper once it has what it needs.
        moves: bool,
        /// Offset of the first log entry that follows: 0, or the offset of the checkpoint that follows.
        log_offset: u64,
        /// Keyed digest of the session up to there, in full length.
        head: [u8; 32],
        /// The last logged time there.
        last_ns: i64,
        /// Messages consumed up to there, by port.
        took: Vec<u64>,
        /// The replication group of the session, under `epoch`: this keeper is its backup.
        group: Option<GroupId>,
        /// Where the client connected, under `epoch`, if its agent has said so: policies may ask for it.
        origin: Option<Box<Origin>>,
        /// Of a shared cell: which of its app's cells it is, if the app has one for each key.
        key: Last<Box<CellKey>>,
    }
    /// Owner to keeper: a checkpoint follows in parts, behind other frames.
    73 Base {
        /// The channel.
        channel: Channel,
        /// The checkpoint that follows.
        meta: CheckpointMeta,
        /// Messages consumed up to there, by port.
        took: Vec<u64>,
    }
    /// Owner to keeper: the next log entry, and what it consumed.
    74 Fed {
        /// The channel.
        channel: Channel,
        /// The entry, sealed.
        entry: Bytes,
        /// Keyed digest of the session up to it.
        tag: [u8; 8],
        /// The sender of the consumed message: 0 the client, 1 the server, 2 none, n + 1 port n from 2 on.
        from: u32,
        /// Whether it was the close; then it has no payload.
        close: bool,
        /// The payload.
        payload: Bytes,
    }
    /// Owner to keeper: outputs that the ends have received since the session began.
    75 Acknowledged {
        /// The channel.
        channel: Channel,
        /// By port; of ports that are not here nothing new is known.
        received: Many<Received>,
    }
    /// Owner to keeper: the owner starts a new generation with its cell alive. What follows belongs to it.
    76 Renewed {
        /// The channel.
        channel: Channel,
        /// The new generation.
        generation: Generation,
    }
    /// Owner to a hot standby: take the session over, as soon as all that was fed is replayed. The owner goes on until the ends
    /// promise that.
    85 HandOver {
        /// The channel.
        channel: Channel,
        /// Session time, in nanoseconds: it goes on from here at the new owner, whatever that machine's clock says.
        session_ns: i64,
    }
    /// Owner's edge to an edge that can stand by: would it take this session over? An operator asks. Nothing is kept or fed.
    86 AskMove {
        /// What it would be sent first if the session moved there. The channel, which is new, is for the answer.
        keep: Keep,
    }
    /// The answer to [`AskMove`]: it would, as far as it knows before it is fed; [`Reject`] is the other answer.
    87 CanMove {
        /// The channel.
        channel: Channel,
    }
    /// Primary's edge to backup: an epoch of a replication group ends here. Everything that was sent before on this wire for its
    /// sessions belongs to it. Answered by [`Confirmed`] once it is kept.
    88 Epoch {
        /// The group.
        group: GroupId,
        /// Counts the epochs of the group that its primary has ended; never reused.
        number: u64,
    }
    /// The answer to [`Epoch`]: this epoch, and every earlier one, is kept. A session that the backup does not keep any more was
    /// refused on its channel before.
    89 Confirmed {
        /// The group.
        group: GroupId,
        /// The epoch.
        number: u64,
    }
    /// Primary's edge to backup, before the claim is asked for: with this claim the receiver becomes the backup of the group. It has a
    /// complete base of every session that was fed, and everything since.
    90 Backup {
        /// The group.
        group: GroupId,
        /// The generation of the claim, from which alone the receiver may claim the next one.
        generation: Generation,
    }
    /// Backup to owner, on the channel of a feed: an end of the session reaches only the backup. Hand the session over.
    91 AskHandOver {
        /// The channel.
        channel: Channel,
    }
    /// A session's owner to the edge that handed it over: the copy there is not needed any more. The owner has a backup, which the
    /// claim of its group names and which has confirmed this generation, or it may run alone.
    92 ForgetCopy {
        /// The session.
        session: SessionId,
        /// The owner's generation: every end has promised it. A copy of a newer one stays.
        generation: Generation,
    }
    /// Owner to its backup, or the one that is to be the next: the session is in this group from now on. The backup has a complete base of
    /// it, and everything since.
    93 JoinGroup {
        /// The channel.
        channel: Channel,
        /// The group.
        group: GroupId,
    }
    /// Primary's edge to the edge that is to go on with a slot's cells, which is in their group: it has all that has left, and nothing leaves
    /// any more. It may claim the group from this claim alone, and names the same backup, which keeps its copies.
    94 HandGroup {
        /// The group.
        group: GroupId,
        /// The generation of the sender's claim.
        generation: Generation,
        /// The edge that it names.
        backup: String,
        /// How many cells the sender has in the group. Unless the receiver has as many, it does not claim it.
        cells: u32,
    }
    /// Owner to the backup that its claim names: go on with the copy that it has, which is at this position. Opens the channel.
    95 KeepOn {
        /// As for a backup that begins.
        keep: Keep,
    }
    /// Hot standby to owner: this many more of the fed entries have run through its cell.
    84 Replayed {
        /// The channel.
        channel: Channel,
        /// Since the last such frame.
        entries: u64,
    }
    /// Edge to recorder: send what you keep of this session. Opens the channel.
    77 Recall {
        /// New on this wire, odd.
        channel: Channel,
        /// The session to recover.
        session: SessionId,
    }
    /// Recorder to edge, the answer to [`Recall`]; [`Ended`] is the other answer. The checkpoints, log and messages that it
    /// announces follow.
    78 Recalled {
        /// The channel.
        channel: Channel,
        /// The generation of its last owner.
        generation: Generation,
        /// Offset of the first byte of log that follows.
        log_start: u64,
        /// Offset after the last byte.
        log_end: u64,
        /// Keyed digest of the session up to there.
        tag: [u8; 8],
        /// Sequence number of the first message that follows, by port.
        sent_start: Vec<u64>,
        /// Sequence number after the last one, by port: the client's messages follow first.
        sent_end: Vec<u64>,
        /// The checkpoints: a full one and its deltas, in order.
        checkpoints: Vec<CheckpointMeta>,
    }
    /// Owner to end: this edge stands by; try it first when the owner is gone.
    79 Standby {
        /// The channel.
        channel: Channel,
        /// The edge's name; empty if there is no standby.
        edge: String,
        /// The shard of that edge.
        shard: u8,
    }

    // Its end.
    /// End to edge: a newer generation has the promise; this channel is closed.
    48 Superseded {
        /// The channel.
        channel: Channel,
        /// The promised generation.
        promised: Generation,
    }
    /// Edge to end: no generation was opened, and nothing has changed.
    49 Reject {
        /// The channel.
        channel: Channel,
        /// The reason, which decides what the end does next.
        code: Code,
        /// The reason, for people.
        reason: String,
    }
    /// Edge to end, in place of [`Reject`]: no generation was opened here. The session's cell exists once in the domain, and is
    /// elsewhere: ask there.
    50 Lead {
        /// The channel.
        channel: Channel,
        /// The name of the edge that has the cell.
        edge: String,
        /// The shard of that edge.
        shard: u8,
        /// The edge that goes on with the cell if the other one is lost; empty if there is none.
        backup: String,
        /// The shard of the backup.
        backup_shard: u8,
    }
    /// Edge to end: a handler was stopped; the session can be retried once.
    51 Failed {
        /// The channel.
        channel: Channel,
        /// The position and the reason.
        failure: Failure,
    }
    /// Either way: the session is over; forget it.
    52 Ended {
        /// The channel.
        channel: Channel,
        /// The reason.
        code: Code,
        /// The reason, for people.
        reason: String,
    }
    /// Edge to end: everything was received in both directions; prepare to forget the session.
    53 Finish {
        /// The channel.
        channel: Channel,
    }
    /// End to edge: ready to forget.
    54 Finished {
        /// The channel.
        channel: Channel,
    }
}

record! {
    /// An edge of the domain, as others reach it.
    EdgeEntry {
        /// Its name, which its [`Welcome`] must contain.
        name: String,
        /// Where agents and edges connect to it, `host:port` each, the best first. At most
        /// [`EDGE_ADDRESSES_MAX`](crate::limits::EDGE_ADDRESSES_MAX) are used.
        addresses: Vec<String>,
    }
}

record! {
    /// How far a coordinator's store had come.
    StoreMark {
        /// Names the store. Random, drawn when the store was begun.
        identity: [u8; 16],
        /// How often its record was written: once for each decision.
        decisions: u64,
    }
}

record! {
    /// What the end at a port has received.
    Received {
        /// The port.
        port: Port,
        /// Outputs since the session began.
        count: u64,
    }
}

record! {
    /// See [`Promise::live`].
    Live {
        /// The generation of the owner that asks.
        generation: Generation,
        /// How many of this end's messages its cell consumed.
        took: u64,
        /// How many outputs it produced for this end.
        produced: u64,
        /// The end of its log: an end sends only its log after this offset, behind its promise.
        log_end: u64,
    }
}

/// The name of a replication group: random.
pub type GroupId = [u8; 16];

/// What the ends of a session keep, so that another owner can continue it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Keeps {
    /// Nothing (`none`).
    #[default]
    Nothing = 0,
    /// Messages, log and checkpoints (`endpoints`).
    All = 1,
    /// Messages, until a backup has what consumed them (`epoch`).
    Messages = 2,
}

impl Keeps {
    /// Whether they keep anything.
    #[must_use]
    pub fn anything(self) -> bool {
        self != Self::Nothing
    }
}

impl Field for Keeps {
    fn put(&self, out: &mut BytesMut) {
        (*self as u8).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        match u8::take(from)? {
            0 => Ok(Self::Nothing),
            1 => Ok(Self::All),
            2 => Ok(Self::Messages),
            _ => Err(Error::Unknown),
        }
    }
}

record! {
    /// What an end knows of a checkpoint; the content is sealed.
    CheckpointMeta {
        /// The generation of the owner that took it.
        generation: Generation,
        /// Unique within the generation.
        number: u32,
        /// What it builds on, and replaces in the end's list.
        kind: CheckpointKind,
        /// It covers the log before this offset.
        log_offset: u64,
        /// Its sealed size in bytes.
        size: u64,
    }
}

record! {
    /// The beginning of a checkpoint. A live owner that still has the rest continues it.
    PartialCheckpoint {
        /// Which one it is.
        meta: CheckpointMeta,
        /// How many of its bytes the end has.
        bytes: u64,
    }
}

impl CheckpointMeta {
    /// Whether it builds on no other.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind == CheckpointKind::Full
    }
}

/// What a checkpoint builds on. An end's list begins with a full one; the others follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CheckpointKind {
    /// On the one before it in the end's list, which it extends.
    Delta = 0,
    /// On the app's image alone. It replaces the whole list.
    Full = 1,
    /// On the full one, with all that has changed since. It replaces the deltas on that.
    Merged = 2,
}

impl Field for CheckpointKind {
    fn put(&self, out: &mut BytesMut) {
        (*self as u8).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        match u8::take(from)? {
            0 => Ok(Self::Delta),
            1 => Ok(Self::Full),
            2 => Ok(Self::Merged),
            _ => Err(Error::Unknown),
        }
    }
}

record! {
    /// A handler that was stopped.
    Failure {
        /// Log offset before the input that it was given.
        log_offset: u64,
        /// The kind of input: 0 client, 1 server, 2 timer, 3 start, 4 one in replay, 5 task.
        input: u8,
        /// The reason, for people.
        reason: String,
    }
}

impl Frame {
    /// Appends the frame without its payload, and returns the payload, which must be written directly after it: a large payload
    /// need not be copied.
    #[must_use = "the payload must follow"]
    pub fn encode(&self, out: &mut BytesMut) -> Bytes {
        // Most frames are short: reserve a length of one byte and move the body only when it needs more.
        let start = out.len();
        out.extend_from_slice(&[0]);
        let payload = match self {
            // It ends in its bytes, as a message does, and a recovery sends many of them.
            Self::CheckpointPart(part) => {
                out.extend_from_slice(&[CHECKPOINT_PART]);
                part.channel.put(out);
                (part.bytes.len() as u64).put(out);
                part.bytes.clone()
            }
            _ => self.put_body(out),
        };
        let len = (out.len() - start - 1 + payload.len()) as u64;
        match u8::try_from(len) {
            Ok(short) if short < 0x80 => out[start] = short,
            _ => {
                // The length is written after the body and rotated to its front, over the reserved byte. To split the buffer
                // instead would copy all bytes that wait in it, for every frame.
                let end = out.len();
                len.put(out);
                let prefix = out.len() - end;
                out[start..].rotate_right(prefix);
                out.copy_within(start + prefix + 1.., start + prefix);
                out.truncate(out.len() - 1);
            }
        }
        payload
    }

    /// The whole frame as one buffer.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        let payload = self.encode(&mut out);
        out.extend_from_slice(&payload);
        out.freeze()
    }

    /// The stamp of the heartbeat which this frame answers, if it is an answer.
    #[must_use]
    pub fn answers(&self) -> Option<u64> {
        match self {
            Self::Pong(pong) => Some(pong.stamp),
            _ => None,
        }
    }

    /// Whether the frame may wait behind others of the wire: checkpoint parts and similar frames have a lower priority than data.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        matches!(
            self,
            Self::CheckpointBegin(_)
                | Self::CheckpointPart(_)
                | Self::Kept(_)
                | Self::KeptInput(_)
                | Self::Base(_)
        )
    }
}
