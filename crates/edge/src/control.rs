//! The control of one edge: apps, shards, questions about sessions. Knows no HTTP and no process.

use crate::api::{App, FromShard, Row, ToShard};
use alloc::{string::String, vec::Vec};
use marram_wire::id::{HostId, SessionId};

/// Something happened to the control.
#[derive(Clone, PartialEq, Debug)]
pub enum In {
    /// A shard process is there and connected (again).
    ShardUp {
        /// Which.
        shard: u8,
    },
    /// A shard process died; the supervisor starts another.
    ShardDown {
        /// Which.
        shard: u8,
    },
    /// A word from a shard.
    FromShard {
        /// Which.
        shard: u8,
        /// What it says.
        message: FromShard,
    },
    /// The gate's agent in this edge has this name.
    Gate {
        /// Its name.
        host: HostId,
    },
    /// An operator asks.
    Request {
        /// Names the answer.
        tag: u64,
        /// What is asked.
        request: Request,
    },
    /// An answer is overdue: give what is there. Sent by the shell some time after a request.
    Overdue {
        /// Of which request.
        tag: u64,
    },
}

/// What an operator can ask.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// The image is on disk: let sessions run it.
    Deploy(App),
    /// No new sessions of this app.
    Undeploy(String),
    /// The apps deployed now.
    Apps,
    /// All sessions.
    Sessions,
    /// One session.
    Inspect(SessionId),
    /// End one session.
    Kill(SessionId, String),
    /// Counters of all shards, summed.
    Counters,
    /// Move everything away and take nothing new.
    Drain,
}

/// What an operator is told.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// No such app or session.
    NotFound,
    /// The manifest promises more than this edge can keep; says what to change.
    Refused(String),
    /// Apps.
    Apps(Vec<App>),
    /// Sessions.
    Sessions(Vec<Row>),
    /// One session and, in words, what it survives and why (DESIGN.md section 5.11).
    Session(Row, Vec<String>),
    /// Name, value, whether it may fall.
    Counters(Vec<(String, u64, bool)>),
}

/// The control wants something done.
#[derive(Clone, PartialEq, Debug)]
pub enum Out {
    /// A word to a shard.
    ToShard {
        /// Which.
        shard: u8,
        /// What to say.
        message: ToShard,
    },
    /// The answer to a request.
    Answer {
        /// As asked.
        tag: u64,
        /// The answer.
        answer: Answer,
    },
    /// A line for the log: 0 error, 1 warning, 2 info, 3 debug.
    Log(u8, String),
    /// Every shard is empty after a drain: the process can stop.
    Drained,
}

/// What the control needs to know of its edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The edge's name.
    pub edge: String,
    /// How many shards it has.
    pub shards: u8,
    /// Sessions at a time on one shard; 0 for no limit.
    pub sessions_max: u32,
    /// Recoveries at a time on one shard; 0 for no limit.
    pub recoveries_max: u32,
    /// See [`crate::api::Configure::sabotage`].
    pub sabotage: u64,
}

/// The control. Feed it what happens; do what it says.
#[derive(Debug)]
pub struct Control {
    config: Config,
}

impl Control {
    /// An edge without apps.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes one event and appends what is to be done.
    pub fn step(&mut self, input: In, out: &mut Vec<Out>) {
        let _ = (input, out, &self.config);
    }
}
