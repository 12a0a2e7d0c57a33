//! The interface between the session logic and the executor that runs cells: requests and answers.
//!
//! A cell is a deterministic machine `(state, input) -> (state', outputs)`. Everything here is plain data: no Wasm, no memory
//! pages, no clock. An executor answers these requests; the simulator's executor is a hash chain.
//!
//! A cell may be a chain: several stages connected in sequence, run to quiescence for each input. Only the outside of a chain
//! is visible here. Only timers, tasks and pauses name a stage. Stage 0 is next to the client, and the only stage of a cell
//! that is not a chain.

use alloc::{string::String, sync::Arc, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointMeta, Code},
    id::{ImageHash, Port},
    log::Read,
    peer::Peer,
};

/// Identifies a cell within one shard. Never reused while the shard runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CellId(pub u64);

/// Seeds a cell's random generator; sealed in every frame and file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// What kind of peer a port leads to; the second argument of the guest's `marram_open`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PortKind {
    /// The session's client.
    Client = 0,
    /// The session's server.
    Server = 1,
    /// The session's client, which uses datagrams: each is one message, and so is each message sent to it.
    ClientDatagrams = 2,
    /// The session's server, which uses datagrams.
    ServerDatagrams = 3,
}

impl PortKind {
    /// The client's kind.
    #[must_use]
    pub fn client(datagrams: bool) -> Self {
        if datagrams { Self::ClientDatagrams } else { Self::Client }
    }

    /// The server's kind.
    #[must_use]
    pub fn server(datagrams: bool) -> Self {
        if datagrams { Self::ServerDatagrams } else { Self::Server }
    }

    /// Whether it is a client, with or without datagrams.
    #[must_use]
    pub fn is_client(self) -> bool {
        matches!(self, Self::Client | Self::ClientDatagrams)
    }
}

/// One input event. Together with the image and the seed, the sequence of these determines the cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellInput {
    /// A peer is present: `marram_open(port, kind)`.
    Open {
        /// The peer's port.
        port: Port,
        /// The peer's kind.
        kind: PortKind,
        /// Information about the peer, if it is a client.
        peer: Option<Arc<Peer>>,
    },
    /// A message from a peer: `marram_alloc` for its bytes, then `marram_recv(port, ptr, len)`.
    Message {
        /// The sender's port.
        port: Port,
        /// Its bytes.
        payload: Bytes,
    },
    /// The peer will send no more: `marram_close(port)`.
    Close {
        /// The port; its input has ended.
        port: Port,
    },
    /// The peer of a shared cell's port is gone, and the port's number may be reused from now on. Runs nothing in the guest.
    /// Messages that the cell sends there before the reuse are dropped.
    Gone {
        /// The port.
        port: Port,
    },
    /// A timer fired: `marram_timer(token)`.
    Timer {
        /// The stage that set it.
        stage: u8,
        /// The token it was set with.
        token: u64,
    },
    /// A task runs: `marram_task(token)`.
    Task {
        /// The stage that queued it.
        stage: u8,
        /// The token it was queued with.
        token: u64,
    },
}

/// Runs one handler to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The cell.
    pub cell: CellId,
    /// The input.
    pub input: CellInput,
    /// What every `now()` inside this handler returns, in nanoseconds of session time. Replay passes the logged value.
    pub now_ns: i64,
    /// In replay, the results of the handler's reads from the cache, in order; no cache is asked. Some may be left for the
    /// entry's later handlers. None when the input runs for the first time.
    pub logged: Option<Vec<Read>>,
}

/// A handler's action on its ports, in call order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellOutput {
    /// `send(port, ptr, len)`.
    Message {
        /// The port to send to.
        port: Port,
        /// Its bytes.
        payload: Bytes,
    },
    /// `close(port)`: the cell sends nothing more to this port.
    Close {
        /// The port.
        port: Port,
    },
    /// `pause(port)`: the peer is granted no more credit until the stage resumes it.
    Pause {
        /// The stage that pauses.
        stage: u8,
        /// The port, as that stage knows it.
        port: Port,
    },
    /// `connect(name)`, of a shared cell that has a backup: the port leads to this server from now on.
    Connect {
        /// The port: one that no connection of the cell had before.
        port: Port,
        /// The server's name.
        name: String,
    },
    /// `resume(port)`.
    Resume {
        /// The stage that resumes.
        stage: u8,
        /// The port, as that stage knows it.
        port: Port,
    },
}

impl CellOutput {
    /// How many of these are messages or closes, which an end receives and acknowledges.
    #[must_use]
    pub fn count_sent(outputs: &[Self]) -> usize {
        outputs.iter().filter(|output| matches!(output, Self::Message { .. } | Self::Close { .. })).count()
    }

    /// Bytes of the messages to ports of which this holds.
    #[must_use]
    pub fn payload_to(outputs: &[Self], is_meant: impl Fn(Port) -> bool) -> u64 {
        let bytes = |output: &Self| match output {
            Self::Message { port, payload } if is_meant(*port) => payload.len() as u64,
            _ => 0,
        };
        outputs.iter().map(bytes).sum()
    }
}

/// A change to the cell's timers, in call order. There is one timer for each stage and token: setting it again replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerChange {
    /// `timer(delay_ns, token)`: fire `delay_ns` after this handler's `now_ns`. Negative delays count as 0.
    Set {
        /// The stage that sets it.
        stage: u8,
        /// The guest's token for it.
        token: u64,
        /// From the handler's `now_ns`.
        delay_ns: i64,
    },
    /// `timer_cancel(token)`; unknown tokens are ignored.
    Cancel {
        /// The stage that cancels it.
        stage: u8,
        /// The guest's token for it.
        token: u64,
    },
}

/// A change to the cell's tasks and locks, in call order. There is one task for each stage and token: queueing it again while
/// it waits changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskChange {
    /// `spawn(token)`: appends the task to the run queue.
    Spawn {
        /// The stage of the task.
        stage: u8,
        /// The guest's token for it.
        token: u64,
    },
    /// `lock(id, token)`: the task runs as soon as it has the lock.
    Lock {
        /// The stage of the task and the lock.
        stage: u8,
        /// The guest's number for the lock.
        id: u64,
        /// The guest's token for the task.
        token: u64,
    },
    /// `unlock(id)`: the running task releases the lock; the first task that waits for it gets it.
    Unlock {
        /// The stage of the task and the lock.
        stage: u8,
        /// The guest's number for the lock.
        id: u64,
        /// The token of the running task.
        token: u64,
    },
}

/// Why a handler did not finish. The cell's instance is gone: it stopped in the middle of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellStop {
    /// The guest trapped (unreachable, out of bounds, stack overflow, bad pointer to an import, ...).
    Trap(String),
    /// The host ended it because it exceeded a quota: handler time, memory.
    Kill(String),
}

/// How a handler ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunOutcome {
    /// It returned; the cell waits for its next input.
    Idle,
    /// It was stopped. Its outputs are discarded.
    Stopped(CellStop),
}

/// The answer to a [`Run`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ran {
    /// The cell.
    pub cell: CellId,
    /// How the handler ended.
    pub outcome: RunOutcome,
    /// Whether the handler observed `now_ns` (by `now`, a WASI clock, or by setting a timer): then it must be logged.
    pub clock_read: bool,
    /// The messages and other port actions, in order.
    pub outputs: Vec<CellOutput>,
    /// The timer changes, in order.
    pub timers: Vec<TimerChange>,
    /// The task and lock changes, in order.
    pub tasks: Vec<TaskChange>,
    /// The reads from the cache, in order, also if the handler was stopped. They must be logged.
    pub reads: Vec<Read>,
    /// Duration of the handler, to bound the time of a replay. Not part of the cell's behaviour.
    pub cost_ns: u64,
}

/// The state that a checkpoint's sections build on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointBase {
    /// The app's image: the checkpoint is self-contained.
    Image,
    /// The checkpoint taken or restored last on this cell: only what changed since.
    Previous,
    /// As [`Self::Previous`], for one backup whose cell has exactly that checkpoint: pages may be differences from what they were
    /// in it.
    Backup,
    /// The last full checkpoint taken or restored: what changed since, also what deltas contain of it.
    Full,
    /// The app's image, and the cell's own checkpoints go on as if this one had not been taken. It says what changed since the last full
    /// one, so that a cell which is restored from it can go on with checkpoints on that one.
    Apart,
}

impl CheckpointBase {
    /// Whether it is the checkpoint taken or restored last.
    #[must_use]
    pub fn is_previous(self) -> bool {
        matches!(self, Self::Previous | Self::Backup)
    }
}

/// Identifies the image that a cell starts from.
pub type CellImage = ImageHash;

/// A sealed checkpoint as an end kept it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedCheckpoint {
    /// The end's metadata for it.
    pub meta: CheckpointMeta,
    /// Sealed bytes.
    pub bytes: Bytes,
}

/// Why a cell could not be started or restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellError {
    /// The code for the ends: [`Code::UnknownImage`], [`Code::Busy`], [`Code::Tampered`] or [`Code::Guest`].
    pub code: Code,
    /// The reason, for people.
    pub reason: String,
}
