//! Every limit that two machines must agree on, and the relations between the limits.

/// The newest wire version that this build supports.
pub const WIRE_VERSION: u8 = 2;
/// The first wire version in which shared cells are handed over with a backup.
pub const HAND_GROUP_VERSION: u8 = 2;
/// The oldest wire version that this build supports.
pub const WIRE_VERSION_OLDEST: u8 = 1;
/// The version of everything that replay depends on to give the same bytes: part of every image hash.
pub const DETERMINISM_VERSION: u32 = 1;

/// Largest message that a cell can receive or send, in bytes.
pub const MESSAGE_SIZE_MAX: usize = 1 << 20;
/// Largest frame, its length prefix not counted, in bytes.
pub const FRAME_SIZE_MAX: usize = MESSAGE_SIZE_MAX + READS_SIZE_MAX + (1 << 16);
/// Longest key of an object in an edge's cache, in bytes.
pub const CACHE_KEY_MAX: usize = 256;
/// Largest object that a cell can read from its edge's cache, in bytes.
pub const CACHED_SIZE_MAX: usize = 512 << 10;
/// Most reads from the cache for one input of a cell.
pub const READS_MAX: usize = 1024;
/// Total size of the different objects that a cell can read from the cache for one input, in bytes.
pub const READS_SIZE_MAX: usize = 1 << 20;
/// Largest log entry, in bytes: everything that one input can read, plus at least a dozen bytes for each read.
pub const ENTRY_SIZE_MAX: usize = READS_SIZE_MAX + (1 << 15);
/// Largest message that an agent cuts from a byte stream, in bytes.
pub const STREAM_CUT: usize = 64 << 10;
/// Largest datagram that a cell can send to a datagram peer: what fits into an IPv4 packet, in bytes.
pub const DATAGRAM_SIZE_MAX: usize = 65_507;
/// Bytes of datagrams that an end keeps for a session that has not begun. Further ones are dropped before they get a number.
pub const DATAGRAMS_WAITING_MAX: u64 = 256 << 10;
/// Payload of one part of a checkpoint or log on the wire, in bytes.
pub const PART_SIZE: usize = 64 << 10;
/// Plaintext bytes under one authentication tag of a sealed checkpoint.
pub const SEAL_CHUNK: usize = 64 << 10;

/// Bytes of messages in flight from an end to an edge that the cell has not consumed. An end sends while it has credit left, so the
/// last message may exceed it.
pub const INPUT_WINDOW: u64 = (1 << 20) + (64 << 10);
/// The same where the edge's memory is full, or where it has very many sessions: one read of a stream.
pub const INPUT_WINDOW_MIN: u64 = charge(STREAM_CUT);
/// The most that an end may have in flight, in bytes: with one byte of credit left it sends the largest message.
pub const INPUTS_MAX: u64 = INPUT_WINDOW + charge(MESSAGE_SIZE_MAX);
/// Bytes of messages in flight from an edge to an end that the application has not taken. An owner sends while it has credit left, so
/// the last message may exceed it.
pub const OUTPUT_WINDOW: u64 = (1 << 20) + (64 << 10);
/// The same where the agent's memory is full, or where it has very many sessions.
pub const OUTPUT_WINDOW_MIN: u64 = charge(STREAM_CUT);
/// The most that an application has not taken of one session, in bytes: with one byte of credit left it is sent the largest message.
pub const UNTAKEN_MAX: u64 = OUTPUT_WINDOW + charge(MESSAGE_SIZE_MAX);
/// Bytes of checkpoint parts in flight to an end that it has not stored.
pub const CHECKPOINT_WINDOW: u64 = 256 << 10;
/// The same to a keeper: a standby, a backup, a recorder, the edge to which a session moves. It begins with [`CHECKPOINT_WINDOW`], and grows
/// while parts do not wait for one another: 100 MB/s at a round trip of 40 ms.
pub const COPY_WINDOW_MAX: u64 = 4 << 20;
/// Bytes of its own messages that an end keeps for one session before it stops reading from the application.
pub const RETAINED_MAX: u64 = 16 << 20;
/// A keeper with more than this many unacknowledged bytes of consumed messages is dropped, and starts again later.
pub const FEED_WINDOW: u64 = 8 << 20;
/// Entries by which a hot standby may be behind its owner. If it is further behind, a takeover would be slow, and it is dropped.
pub const REPLAY_LAG_MAX: u64 = 4_096;
/// A hot standby reports its progress to its owner after this many replayed entries.
pub const REPLAYED_EVERY: u64 = 64;
const _: () =
    assert!(2 * REPLAYED_EVERY < REPLAY_LAG_MAX, "one that keeps up has said so before it would be dropped");
/// Bytes of consumed messages without a checkpoint that covers them at which an edge takes one.
pub const CHECKPOINT_AFTER_BYTES: u64 = 4 << 20;
/// The least allowance that counts, in bytes ([`Allowance`](crate::frame::Allowance)): an end cannot ask for a checkpoint after
/// each message.
pub const ALLOWANCE_MIN: u64 = 4 << 10;
/// Bytes of its own messages that an end may always keep, however full its agent's memory is: one read of a stream beside an
/// allowance. A session is slowed, and never stopped.
pub const RETAINED_MIN: u64 = charge(STREAM_CUT) + ALLOWANCE_MIN;
/// Bytes of outputs that may wait for one client of a shared cell, so that it does not delay the others.
pub const UNSENT_SHARED_MAX: u64 = 4 << 20;
/// Bytes of log that an end keeps for one session.
pub const LOG_SIZE_MAX: u64 = 4 << 20;
/// Bytes of log at which an edge takes a checkpoint.
pub const COVER_LOG: u64 = 256 << 10;
/// Bytes of cached objects in the log at which an edge takes a checkpoint. The log has each object only once between two
/// checkpoints, however often it is read, so this limit is higher than for the rest of the log.
pub const COVER_READS: u64 = 3 << 19;
/// If an end lacks more log than this, in bytes, the log is sent before the next output.
pub const LOG_AHEAD: u64 = 16 << 10;
/// Bytes of checkpoints (a full one, its deltas, and one that arrives) that an end keeps for one session, and that an edge takes
/// of one, unless it is configured otherwise.
pub const CHECKPOINTS_SIZE: u64 = 512 << 20;
/// The largest value that this limit can be configured to, in bytes.
pub const CHECKPOINTS_SIZE_MAX: u64 = 4 << 30;
/// Most deltas on one full checkpoint.
pub const DELTAS_MAX: usize = 16;
/// Longest text in a frame (names, reasons), in bytes.
pub const TEXT_MAX: usize = 512;
/// Longest key of a shared cell, in bytes.
pub const CELL_KEY_MAX: usize = 256;
/// Most items in a list in a frame.
pub const LIST_MAX: usize = 1024;
/// Most edges of one list in a frame ([`Edges`](crate::frame::Edges)) that are read.
pub const EDGES_TOLD_MAX: usize = 32;
/// Most addresses of one edge there that are used.
pub const EDGE_ADDRESSES_MAX: usize = 4;
/// Longest of these addresses, in bytes; longer ones are not used.
pub const EDGE_ADDRESS_SIZE_MAX: usize = 264;
/// Most edges that an agent, or a shard that dials others, learns beside those of its configuration.
pub const EDGES_LEARNED_MAX: usize = 64;
/// A learned edge that nothing names any more is forgotten after this time, in nanoseconds.
pub const EDGE_FORGET_NS: u64 = 600_000_000_000;
/// Most servers that a shared cell can be connected to, or connect to, at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a shared cell waits for a server to which it connects, in nanoseconds. Time in which its owner may not ask does not count.
pub const CONNECT_NS: u64 = 10_000_000_000;
/// How long a shared cell waits for an agent that it asks for its server's end, in nanoseconds. Then it asks another one.
pub const CONNECT_ANSWER_NS: u64 = 2_000_000_000;
/// Most timers that a cell can have set.
pub const TIMERS_MAX: usize = 1024;
/// Most tasks of a cell that can be in the queue or wait for a lock.
pub const TASKS_MAX: usize = 1024;
/// Most locks that the tasks of a cell can hold.
pub const LOCKS_MAX: usize = 256;
/// Most outputs of one handler.
pub const OUTPUTS_MAX: usize = 65_536;

/// The size of a message for all limits in bytes: an empty message has a cost too.
#[must_use]
pub const fn charge(payload: usize) -> u64 {
    payload as u64 + 64
}

const _: () = assert!(
    FRAME_SIZE_MAX as u64 > (MESSAGE_SIZE_MAX + ENTRY_SIZE_MAX) as u64 + LOG_AHEAD,
    "a frame holds a whole message and its increment, and a whole message and the entry that consumed it"
);
const _: () = assert!(CACHED_SIZE_MAX * 2 <= READS_SIZE_MAX, "an input can read any two objects");
const _: () = assert!(CACHED_SIZE_MAX <= MESSAGE_SIZE_MAX, "an object fits a message");
const _: () =
    assert!(READS_MAX * 32 <= ENTRY_SIZE_MAX - READS_SIZE_MAX, "an entry holds what one input can read");
const _: () = assert!(
    COVER_LOG + COVER_READS + 2 * ENTRY_SIZE_MAX as u64 <= LOG_SIZE_MAX,
    "a checkpoint is begun before the log is full, and the cell goes on while it is on its way"
);
const _: () = assert!(DATAGRAM_SIZE_MAX <= STREAM_CUT, "every datagram is a legal message");
const _: () = assert!(STREAM_CUT <= MESSAGE_SIZE_MAX, "every cut of a stream is a legal message");
const _: () = assert!(
    CHECKPOINT_AFTER_BYTES + INPUT_WINDOW < RETAINED_MAX,
    "an edge covers what an end keeps before the end has to stop reading"
);
const _: () = assert!(
    ALLOWANCE_MIN.is_power_of_two() && CHECKPOINT_AFTER_BYTES.is_power_of_two() && ALLOWANCE_MIN < COVER_LOG,
    "allowances are powers of two from the least to the usual one"
);
const _: () = assert!(
    RETAINED_MIN < RETAINED_MAX && CHECKPOINT_AFTER_BYTES * 4 <= RETAINED_MAX,
    "an allowance is a quarter of what an end may keep of its messages"
);
const _: () = assert!(COVER_LOG * 4 < LOG_SIZE_MAX, "a checkpoint is taken long before an end's log is full");
const _: () = assert!(OUTPUT_WINDOW_MIN < OUTPUT_WINDOW, "a full memory makes windows smaller");
const _: () = assert!(DELTAS_MAX + 1 < LIST_MAX, "a promise can list every checkpoint of a chain");
const _: () = assert!(EDGES_TOLD_MAX < LIST_MAX, "a frame holds every edge that is told");
const _: () = assert!(EDGE_ADDRESS_SIZE_MAX <= TEXT_MAX, "an address is told whole");
const _: () = assert!(
    2 * EDGES_TOLD_MAX <= EDGES_LEARNED_MAX,
    "one edge that names edges which do not exist leaves room for those of another one"
);
