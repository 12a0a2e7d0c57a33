//! When an edge that was told to stop does, and what its log says meanwhile. Knows neither sessions nor sockets.

use crate::config::units::counted;
use marram_edge::control::ControlAnswer;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the answer to a drain has to reach whoever asked for it, and how long shards have to say what they have.
pub(super) const ANSWER_TIME: Duration = Duration::from_millis(500);

/// What the supervisor asks of itself while it stops; operators' questions count from [`FIRST_TAG`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// To move everything away.
    Drain = 0,
    /// What is here when that begins.
    Begun = 1,
    /// What is here when the time is over.
    Left = 2,
}

/// The first question that is an operator's.
pub(super) const FIRST_TAG: u64 = Own::Left as u64 + 1;

/// An edge that stops.
pub(super) struct Drain {
    /// When it does if no session is left.
    earliest: Instant,
    /// When it gives up waiting for the others.
    latest: Instant,
    limit: Duration,
    drained: bool,
    /// Whether it asks what is left.
    asks: bool,
    reported: bool,
}

impl Drain {
    pub(super) fn begin(now: Instant, at_least: Duration, limit: Duration) -> Self {
        info!("stopping: agents are asked to move their sessions");
        let (earliest, latest) = (now + at_least, now + limit.max(at_least));
        Self { earliest, latest, limit, drained: false, asks: false, reported: false }
    }

    pub(super) fn drained(&mut self) {
        info!("drained: no session is left");
        self.drained = true;
    }

    /// When it goes on; once it asks what is left, with the answer.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.drained { Some(self.earliest) } else { (!self.asks).then_some(self.latest) }
    }

    /// Whether it is time to ask what is left: once.
    pub(super) fn gives_up(&mut self, now: Instant) -> bool {
        let over = !self.drained && !self.asks && now >= self.latest;
        self.asks |= over;
        over
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.reported || self.drained && now >= self.earliest
    }

    /// What one of its own questions was answered.
    pub(super) fn answered(&mut self, tag: u64, answer: &ControlAnswer) {
        let ControlAnswer::Sessions(rows, _) = answer else { return };
        let sessions = counted(rows.len() as u64, "session");
        if tag == Own::Left as u64 {
            warn!(
                "stops with {sessions} left; what is left goes on elsewhere if its ends reach another edge"
            );
            self.reported = true;
        } else if !rows.is_empty() {
            let limit = self.limit;
            info!(
                "{sessions} to move; waits {limit:?} for that at most (`limits.drain`), and stops at once at a second signal"
            );
        }
    }
}
