//! The handler time of one session that no checkpoint covers, which is what a recovery has to replay: when it is too
//! much for the session, and how much of it counts for the shard's replay budget.
//!
//! Counts and compares; knows neither the checkpoints nor the shard's other sessions.

use marram_wire::id::SessionId;

/// A shard's replay budget makes no session take a checkpoint before its handlers have run for this long since the last
/// one, in nanoseconds. A checkpoint of a small cell costs the machines about 20 us (copy, seal, send, store): a third of the
/// handlers' time at most, which is itself about a twentieth of what a message costs in all.
pub const REPLAY_SHARE_MIN_NS: u64 = 60_000;

/// As much more for each byte of the session's last checkpoint, in nanoseconds: to copy, seal, send and store a byte
/// takes 3 to 4. So the budget causes at most 83 MB of checkpoints in a second of handlers' time, and none for a cell
/// of which a checkpoint costs more than the replay that it saves.
pub const REPLAY_SHARE_NS_PER_BYTE: u64 = 12;

/// Uncovered handler time.
#[derive(Debug, Default)]
pub(super) struct Uncovered {
    /// Since the last copy.
    since_copy_ns: u64,
    /// Before the last copy. Covered as soon as the holders have the checkpoint of that copy; it stays uncovered if the
    /// checkpoint fails.
    before_copy_ns: u64,
    /// Sealed bytes of the last checkpoint that every holder has.
    last_size: u64,
    /// Whether a copy was made since the cell was started or restored.
    has_begun: bool,
    /// Whether the shard's budget requires a checkpoint, until the cell is copied.
    is_required: bool,
}

impl Uncovered {
    /// The cell was restored from checkpoints; the last of them has this size.
    pub(super) fn restored(last_size: u64) -> Self {
        Self { last_size, ..Self::default() }
    }

    /// A handler took this long: a replay takes as long again.
    pub(super) fn spent(&mut self, cost_ns: u64) {
        self.since_copy_ns = self.since_copy_ns.saturating_add(cost_ns);
    }

    /// The cell was copied.
    pub(super) fn copied(&mut self) {
        self.before_copy_ns = self.ns();
        self.since_copy_ns = 0;
        self.has_begun = true;
        self.is_required = false;
    }

    /// Every holder has the checkpoint of the last copy.
    pub(super) fn held(&mut self, size: u64) {
        self.before_copy_ns = 0;
        self.last_size = size;
    }

    /// The checkpoint that was under way is lost with its generation, and the cell lives. The next one covers it all.
    pub(super) fn abandoned(&mut self) {
        self.since_copy_ns = self.ns();
        self.before_copy_ns = 0;
        self.is_required = false;
    }

    /// The shard's budget requires a checkpoint.
    pub(super) fn require(&mut self) {
        self.is_required = true;
    }

    /// Whether the shard's budget requires a checkpoint.
    pub(super) fn is_required(&self) -> bool {
        self.is_required
    }

    /// What a recovery has to replay.
    pub(super) fn ns(&self) -> u64 {
        self.before_copy_ns.saturating_add(self.since_copy_ns)
    }

    /// Whether the session must take a checkpoint whatever the shard's other sessions do.
    pub(super) fn is_much(&self, session: SessionId, target_ns: u64) -> bool {
        self.since_copy_ns > self.max_ns(session, target_ns)
    }

    /// The longest replay that this session may need, for a recovery target of the app.
    fn max_ns(&self, session: SessionId, target_ns: u64) -> u64 {
        if self.has_begun { target_ns } else { target_ns - head_start_ns(session, target_ns) }
    }

    /// How long handlers have run since the last copy beyond the session's own share, which the budget does not limit.
    /// What precedes a copy that is under way does not count: nothing more can be done about it.
    pub(super) fn above_share_ns(&self, session: SessionId, target_ns: u64) -> u64 {
        let share_ns = REPLAY_SHARE_MIN_NS
            .saturating_add(self.last_size.saturating_mul(REPLAY_SHARE_NS_PER_BYTE))
            .min(self.max_ns(session, target_ns));
        self.since_copy_ns.saturating_sub(share_ns)
    }
}

/// How much earlier than the target the first checkpoint of a session is due: 0 to 6 eighths of the target. Otherwise
/// sessions that began or were recovered together, and that do the same work, would all be checkpointed at the same
/// time, repeatedly, and delay everything else.
fn head_start_ns(session: SessionId, target_ns: u64) -> u64 {
    target_ns / 8 * u64::from(session.0[15] % 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A session of which the first checkpoint is due without a head start.
    const SESSION: SessionId = SessionId([0; 16]);

    #[test]
    fn first_checkpoints_of_sessions_that_begin_together_are_spread_over_the_target() {
        let due_ns = |last: u8| {
            let mut id = [0; 16];
            id[15] = last;
            80_000 - head_start_ns(SessionId(id), 80_000)
        };
        let all: alloc::collections::BTreeSet<u64> = (0..=u8::MAX).map(due_ns).collect();
        assert_eq!(all, (2..=8).map(|eighths| eighths * 10_000).collect());
    }

    #[test]
    fn a_checkpoint_counts_only_once_it_is_held() {
        let mut uncovered = Uncovered::default();
        uncovered.spent(3 * MS);
        uncovered.copied();
        uncovered.spent(MS);
        assert_eq!(uncovered.ns(), 4 * MS, "the edge may still die with the copy");
        assert!(!uncovered.is_much(SESSION, 2 * MS), "another copy would not help");
        uncovered.held(0);
        assert_eq!(uncovered.ns(), MS);
    }

    #[test]
    fn what_a_lost_checkpoint_was_to_cover_is_due_again() {
        let mut uncovered = Uncovered::default();
        uncovered.spent(3 * MS);
        uncovered.copied();
        uncovered.abandoned();
        assert!(uncovered.is_much(SESSION, 2 * MS));
        assert_eq!(uncovered.above_share_ns(SESSION, 5 * MS), 3 * MS - REPLAY_SHARE_MIN_NS);
    }

    #[test]
    fn a_failed_checkpoint_is_not_tried_again_at_once() {
        let mut uncovered = Uncovered::default();
        uncovered.spent(3 * MS);
        uncovered.copied();
        assert_eq!(uncovered.above_share_ns(SESSION, 2 * MS), 0);
        // The next copy covers what the failed one was to cover.
        uncovered.spent(MS);
        uncovered.copied();
        assert_eq!(uncovered.ns(), 4 * MS);
        uncovered.held(0);
        assert_eq!(uncovered.ns(), 0);
    }

    #[test]
    fn a_share_grows_with_what_a_checkpoint_costs_and_ends_at_the_target() {
        let spent_ns = 9 * MS;
        let share_ns = |last_size: u64, target_ns: u64| {
            let mut uncovered = Uncovered::restored(last_size);
            uncovered.spent(spent_ns);
            spent_ns - uncovered.above_share_ns(SESSION, target_ns)
        };
        assert_eq!(share_ns(0, 5 * MS), REPLAY_SHARE_MIN_NS);
        assert_eq!(share_ns(10_000, 5 * MS), REPLAY_SHARE_MIN_NS + 10_000 * REPLAY_SHARE_NS_PER_BYTE);
        assert_eq!(share_ns(1 << 30, 5 * MS), 5 * MS);
        assert_eq!(share_ns(u64::MAX, 5 * MS), 5 * MS);
        assert_eq!(share_ns(0, 1_000), 1_000);
    }
}
