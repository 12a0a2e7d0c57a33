//! When an edge that was asked to stop does so, and what it logs meanwhile. Knows neither sessions nor sockets.
//!
//! ```text
//! signal or POST /v1/drain ─▶ Begun: list what is here ─▶ wait ─┬─ drained ───────────────▶ over
//!                                                               └─ `latest` ─▶ Left: list ─▶ over
//! POST /v1/drain/cancel ─▶ as before, until it is over, unless a signal came
//! ```
//!
//! A session that is left is not lost: its ends treat the end of this edge as a crash, and ask
//! another edge (`docs/protocol.md`, chapter 14).

use crate::text::counted;
use marram_shard::control::ControlAnswer;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Time for the answer to a drain request to reach the requester, and for shards to report what they have.
pub(super) const ANSWER_TIME: Duration = Duration::from_millis(500);

/// Questions of the supervisor itself while it stops; operators' questions have numbers from [`FIRST_TAG`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// To move everything away.
    Drain = 0,
    /// To list what is here at the start.
    Begun = 1,
    /// To list what is left when the time is over.
    Left = 2,
}

/// The first number of an operator's question.
/// The control answers by tag and does not know the asker.
pub(super) const FIRST_TAG: u64 = Own::Left as u64 + 1;

/// The state of an edge that is stopping.
pub(super) struct Drain {
    /// When it stops if no session is left.
    earliest: Instant,
    /// When it stops waiting for sessions.
    latest: Instant,
    limit: Duration,
    drained: bool,
    /// Whether it has asked what is left.
    asks: bool,
    reported: bool,
}

impl Drain {
    /// `at_least`: the loop goes on for so long, also without sessions.
    pub(super) fn begin(now: Instant, at_least: Duration, limit: Duration) -> Self {
        info!("stopping: sessions move to other edges");
        let (earliest, latest) = (now + at_least, now + limit.max(at_least));
        Self { earliest, latest, limit, drained: false, asks: false, reported: false }
    }

    pub(super) fn drained(&mut self) {
        info!("drained: no session is left");
        self.drained = true;
    }

    /// When to continue; `None` once it has asked what is left: then with the answer.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.drained { Some(self.earliest) } else { (!self.asks).then_some(self.latest) }
    }

    /// Whether the time is over and it must ask what is left: true only once.
    pub(super) fn gives_up(&mut self, now: Instant) -> bool {
        let over = !self.drained && !self.asks && now >= self.latest;
        self.asks |= over;
        over
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.reported || self.drained && now >= self.earliest
    }

    /// Takes the answer to one of its own questions.
    pub(super) fn answered(&mut self, tag: u64, answer: &ControlAnswer) {
        let ControlAnswer::Sessions(rows, _) = answer else { return };
        let sessions = counted(rows.len() as u64, "session");
        // That of an earlier drain, which was cancelled, may come late.
        if tag == Own::Left as u64 && self.asks {
            warn!("stopping with {sessions} left, which continue elsewhere if their ends reach another edge");
            self.reported = true;
        } else if tag == Own::Begun as u64 && !rows.is_empty() {
            let limit = self.limit;
            info!(
                "{sessions} to move; waiting for at most {limit:?} (`limits.drain`); a second signal stops the edge \
                 at once"
            );
        }
    }
}
