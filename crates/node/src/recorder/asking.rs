//! How the admin thread asks the recorder, which runs on its own loop. Knows no HTTP.
//!
//! As `admin_channel` for an edge. The recorder answers from memory within a turn of its loop, so
//! one short timeout serves for all questions.

use marram_session::recorder::RecorderRow;
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

/// Most questions that wait; further ones are refused.
const WAITING_MAX: usize = 64;
/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecorderMetric {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// Whether its value can decrease.
    pub gauge: bool,
}

/// A question and the channel for its answer. If that is closed, no thread waits for the answer any more.
pub(crate) enum Question {
    Figures(SyncSender<Vec<RecorderMetric>>),
    /// Sessions, each with the configured address of the edge that feeds it.
    Sessions(SyncSender<Vec<(RecorderRow, Option<String>)>>),
}

/// There was no answer: the recorder is busy, or has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered;

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the recorder did not answer: it is overloaded, or stopping")
    }
}

impl std::error::Error for Unanswered {}

/// The asking side.
#[derive(Clone, Debug)]
pub struct RecorderHandle {
    questions: SyncSender<Question>,
    waker: Arc<OnceLock<Arc<mio::Waker>>>,
}

/// The answering side.
#[derive(Debug)]
pub struct Questions {
    pub(super) asked: Receiver<Question>,
    pub(super) waker: Arc<OnceLock<Arc<mio::Waker>>>,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Question")
    }
}

pub(super) fn pair() -> (RecorderHandle, Questions) {
    let (questions, asked) = sync_channel(WAITING_MAX);
    let waker = Arc::new(OnceLock::new());
    (RecorderHandle { questions, waker: Arc::clone(&waker) }, Questions { asked, waker })
}

impl RecorderHandle {
    /// The recorder's metrics.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn figures(&self) -> Result<Vec<RecorderMetric>, Unanswered> {
        self.ask(Question::Figures)
    }

    /// The sessions that it keeps, each with the address of the edge that feeds it, if one does.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn sessions(&self) -> Result<Vec<(RecorderRow, Option<String>)>, Unanswered> {
        self.ask(Question::Sessions)
    }

    fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Question) -> Result<T, Unanswered> {
        let (reply, answer) = sync_channel(1);
        self.questions.try_send(question(reply)).map_err(|_| Unanswered)?;
        if let Some(waker) = self.waker.get() {
            // Fails only if the poll is gone, and then there is no answer below.
            let _ = waker.wake();
        }
        answer.recv_timeout(PATIENCE).map_err(|_| Unanswered)
    }
}
