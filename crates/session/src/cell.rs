//! What the session logic asks of whatever runs cells, and what it is told back.
//!
//! A cell is a deterministic machine `(state, input) -> (state', outputs)`. Everything here is plain data: no Wasm, no
//! memory pages, no clock. An executor answers these requests; the simulator's executor is a hash chain.
//!
//! What is called a cell here may be a chain: several stages wired one behind the other, run to quiescence for each
//! input. Only its outside is seen here, and nothing but a timer or a task names a stage: stage 0 is next to the client, and the
//! only one of a cell that is no chain.

use alloc::{string::String, sync::Arc, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointMeta, Code},
    id::{ImageHash, Port},
    log::Read,
    peer::Peer,
};

/// Names a cell within one shard. Never reused while the shard lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CellId(pub u64);

/// Seeds a cell's random generator; sealed wherever it travels.
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
    /// The session's client, which speaks in datagrams: each is one message, and so is each message sent to it.
    ClientDatagrams = 2,
    /// The session's server, which does.
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

    /// Whether it is a client, however it speaks.
    #[must_use]
    pub fn is_client(self) -> bool {
        matches!(self, Self::Client | Self::ClientDatagrams)
    }
}

/// One input event. Together with the image and the seed, the sequence of these determines the cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellInput {
    /// A peer is there: `marram_open(port, kind)`.
    Open {
        /// The peer's port.
        port: Port,
        /// What it is.
        kind: PortKind,
        /// What is known of it, if it is a client.
        peer: Option<Arc<Peer>>,
    },
    /// A message from a peer: `marram_alloc` for its bytes, then `marram_recv(port, ptr, len)`.
    Message {
        /// Where it came from.
        port: Port,
        /// Its bytes.
        payload: Bytes,
    },
    /// The peer will send no more: `marram_close(port)`.
    Close {
        /// Whose input ended.
        port: Port,
    },
    /// The peer of a shared cell's port is gone and its number may be another's from now on. Runs nothing in the guest; what
    /// is sent there meanwhile reaches nobody.
    Gone {
        /// Whose port.
        port: Port,
    },
    /// A timer fired: `marram_timer(token)`.
    Timer {
        /// The stage that set it.
        stage: u8,
        /// The token it was set with.
        token: u64,
    },
    /// A task has its turn: `marram_task(token)`.
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
    /// Whose handler.
    pub cell: CellId,
    /// What it is given.
    pub input: CellInput,
    /// What every `now()` inside this handler returns, in nanoseconds of session time. Replay passes the logged value.
    pub now_ns: i64,
    /// In replay, what the handler's reads from the cache find, in order, and no cache is asked; it may leave some for the
    /// handlers of its entry that follow. None when it is run for the first time.
    pub logged: Option<Vec<Read>>,
}

/// What a handler does to its ports, in call order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellOutput {
    /// `send(port, ptr, len)`.
    Message {
        /// To whom.
        port: Port,
        /// Its bytes.
        payload: Bytes,
    },
    /// `close(port)`: nothing more will be sent there.
    Close {
        /// To whom.
        port: Port,
    },
    /// `pause(port)`: the peer is granted no more credit until the stage resumes it.
    Pause {
        /// Whose pause it is.
        stage: u8,
        /// The port, as that stage knows it.
        port: Port,
    },
    /// `resume(port)`.
    Resume {
        /// Whose pause ends.
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
}

/// A change to the cell's timers, in call order. There is one timer a stage and token: setting it again replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerChange {
    /// `timer(delay_ns, token)`: fire `delay_ns` after this handler's `now_ns`. Negative delays count as 0.
    Set {
        /// Whose it is.
        stage: u8,
        /// The guest's name for it.
        token: u64,
        /// From the handler's `now_ns`.
        delay_ns: i64,
    },
    /// `timer_cancel(token)`; unknown tokens are ignored.
    Cancel {
        /// Whose it is.
        stage: u8,
        /// The guest's name for it.
        token: u64,
    },
}

/// A change to the cell's tasks and locks, in call order. There is one task a stage and token: queueing it again while it
/// waits changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskChange {
    /// `spawn(token)`: the task is run, behind those that wait for their turn.
    Spawn {
        /// Whose it is.
        stage: u8,
        /// The guest's name for it.
        token: u64,
    },
    /// `lock(id, token)`: the task is run as soon as it has the lock.
    Lock {
        /// Whose both are.
        stage: u8,
        /// The guest's name for the lock.
        id: u64,
        /// The guest's name for the task.
        token: u64,
    },
    /// `unlock(id)`: the task that runs gives the lock back; the first one that waits for it has it.
    Unlock {
        /// Whose both are.
        stage: u8,
        /// The guest's name for the lock.
        id: u64,
        /// The task that runs.
        token: u64,
    },
}

/// Why a handler did not come to its end. The cell's instance is gone: it stopped in the middle of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CellStop {
    /// The guest trapped (unreachable, out of bounds, stack overflow, bad pointer to an import, ...).
    Trap(String),
    /// The host ended it for breaking a quota: handler time, memory.
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
    /// Whose handler.
    pub cell: CellId,
    /// How it ended.
    pub outcome: RunOutcome,
    /// Whether the handler observed `now_ns` (by `now`, a WASI clock, or by setting a timer): then it must be logged.
    pub clock_read: bool,
    /// What it sent, in order.
    pub outputs: Vec<CellOutput>,
    /// What it did to its timers, in order.
    pub timers: Vec<TimerChange>,
    /// What it did to its tasks and locks, in order.
    pub tasks: Vec<TaskChange>,
    /// What it read from the cache, in order, also if it was stopped. It has to be logged.
    pub reads: Vec<Read>,
    /// How long it ran, for bounding the time that replay would take. Not part of the cell's behaviour.
    pub cost_ns: u64,
}

/// Which state a checkpoint's sections build on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointBase {
    /// The app's image: the checkpoint stands alone.
    Image,
    /// The checkpoint taken or restored last on this cell: only what changed since.
    Previous,
}

/// Names the image that a cell starts from.
pub type CellImage = ImageHash;

/// A sealed checkpoint as an end kept it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedCheckpoint {
    /// What the end knew of it.
    pub meta: CheckpointMeta,
    /// Sealed bytes.
    pub bytes: Bytes,
}

/// Why a cell could not be started or restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellError {
    /// What the ends are told: [`Code::UnknownImage`], [`Code::Busy`], [`Code::Tampered`] or [`Code::Guest`].
    pub code: Code,
    /// For people.
    pub reason: String,
}
