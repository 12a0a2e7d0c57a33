//! The channel on which the admin thread asks the control, which runs on the supervisor's thread. Knows no HTTP.
//!
//! ```text
//! any thread ── Question (256) ──▶ supervisor ── Request ──▶ control ─▶ shards
//!            ◀── ControlAnswer (1) ─────────────────────────────────────┘ all answered, or `patience` is over
//! ```
//!
//! Only the asking thread waits. The supervisor never does: a full queue is an error of the asker,
//! and an answer that is not awaited any more is dropped.

use marram_shard::control::{ControlAnswer, ControlRequest};
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    time::Duration,
};

/// Most questions that wait for the supervisor; further ones are refused.
const QUESTIONS_MAX: usize = 256;
/// After the patience of a question is over, the control answers with what it has; this is how much longer the caller waits.
const GRACE: Duration = Duration::from_secs(2);

/// One question and where its answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    /// The question.
    pub(crate) request: ControlRequest,
    /// How long shards may take to answer before the control gives what is there.
    pub(crate) patience: Duration,
    /// Where the answer goes; if it is full or closed, no thread waits for the answer any more.
    pub(crate) reply: SyncSender<ControlAnswer>,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskError {
    /// Too many questions are waiting: ask again later.
    Busy,
    /// The supervisor did not answer in time: it is overloaded, or stopped.
    Overdue,
    /// The supervisor has stopped.
    Stopped,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "the edge has too many questions waiting; try again",
            Self::Overdue => "the edge did not answer in time; it is overloaded or stopped, try again",
            Self::Stopped => "the edge is shutting down",
        })
    }
}

impl std::error::Error for AskError {}

/// The asking side; clone it for each thread.
///
/// The waker exists once the supervisor has its poll. Questions before that are found when its loop
/// starts.
#[derive(Clone, Debug)]
pub struct AdminClient {
    questions: SyncSender<Question>,
    waker: Arc<OnceLock<mio::Waker>>,
}

/// The answering side, for [`super::run_supervisor`].
#[derive(Debug)]
pub struct AdminChannel {
    pub(crate) questions: Receiver<Question>,
    pub(crate) waker: Arc<OnceLock<mio::Waker>>,
}

/// Makes both sides. Questions asked before the supervisor runs wait for it.
#[must_use]
pub fn admin_channel() -> (AdminClient, AdminChannel) {
    let (sender, questions) = mpsc::sync_channel(QUESTIONS_MAX);
    let waker = Arc::new(OnceLock::new());
    (AdminClient { questions: sender, waker: Arc::clone(&waker) }, AdminChannel { questions, waker })
}

impl AdminClient {
    /// Asks, and blocks until the answer. It lacks the data of shards that have not answered after `patience`.
    ///
    /// # Errors
    /// If there is no answer at all.
    pub fn ask(&self, request: ControlRequest, patience: Duration) -> Result<ControlAnswer, AskError> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.questions.try_send(Question { request, patience, reply }).map_err(|error| match error {
            TrySendError::Full(_) => AskError::Busy,
            TrySendError::Disconnected(_) => AskError::Stopped,
        })?;
        if let Some(waker) = self.waker.get() {
            // A waker fails only when its poll is gone, and then the receiver below is as well.
            let _ = waker.wake();
        }
        answer.recv_timeout(patience + GRACE).map_err(|error| match error {
            RecvTimeoutError::Timeout => AskError::Overdue,
            RecvTimeoutError::Disconnected => AskError::Stopped,
        })
    }
}
