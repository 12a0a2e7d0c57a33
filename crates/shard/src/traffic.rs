//! How much passes between a session's client and its cell, and whether that is within what a policy asks for.
//!
//! The owner counts bytes, and nothing else is done for a message. About once a second a meter sees the count. A policy that begins
//! or ends to hold for a session may cost a copy of its state, so a session at the limit must not go back and forth: it is to be within
//! the limits for some time, and then stays until it has been clearly outside for a longer one. Knows no clock and no policy.

use alloc::vec::Vec;
use marram_wire::record;

const S: u64 = 1_000_000_000;
/// What is so old counts for about a third in the rate. Long enough for the pauses of a transfer that reads and writes in turn, and short
/// enough that a bulk transfer is known for one in seconds.
pub const RATE_AVERAGED_NS: u64 = 5 * S;
/// The pause between two looks at the count of a session, if the shard has time.
pub const RATE_LOOK_NS: u64 = S;
/// How long a rate is to be within the limits before a policy holds.
pub const RATE_WITHIN_NS: u64 = 3 * S;
/// How long it is to be outside of them, by a quarter or more, before the policy holds no more. Longer than the pauses between the
/// pieces of a video, which players fetch every few seconds.
pub const RATE_OUTSIDE_NS: u64 = 10 * S;

/// Binary digits of a rate behind the point: without them an average would stop some bytes below the rate that it is of.
const DIGITS: u32 = 10;

record! {
    /// What a session is to be measured at: all of it must hold. Of a session that is not measured, nothing of it does.
    #[derive(Copy, Default)]
    TrafficCondition {
        /// The lowest rate, in bytes a second.
        rate_min: Option<u64>,
        /// The highest rate, in bytes a second.
        rate_max: Option<u64>,
        /// Bytes since this edge began to run the session.
        bytes_min: Option<u64>,
    }
}

impl TrafficCondition {
    /// Whether it asks for anything.
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// Whether a session with this rate, which has had so many bytes, is within the limits.
    fn has_within(&self, rate: u64, bytes: u64) -> bool {
        self.rate_min.is_none_or(|min| rate >= min)
            && self.rate_max.is_none_or(|max| rate <= max)
            && self.bytes_min.is_none_or(|min| bytes >= min)
    }

    /// Whether a session with this rate is outside by a quarter of a limit or more. The bytes only grow.
    fn has_clearly_outside(&self, rate: u64) -> bool {
        self.rate_min.is_some_and(|min| rate < min - min / 4)
            || self.rate_max.is_some_and(|max| rate > max.saturating_add(max / 4))
    }

    /// Whether its rate is asked for: then it takes time until it holds.
    fn is_of_rate(&self) -> bool {
        self.rate_min.is_some() || self.rate_max.is_some()
    }
}

/// Whether a condition holds for a session.
#[derive(Clone, Debug)]
struct Judged {
    condition: TrafficCondition,
    holds: bool,
    /// Since when the opposite would hold, if that lasts.
    since_ns: Option<u64>,
}

impl Judged {
    /// The session has this rate now, and has had so many bytes. Whether that changes something.
    fn look(&mut self, now_ns: u64, rate: u64, bytes: u64) -> bool {
        let is_opposite = if self.holds {
            self.condition.has_clearly_outside(rate)
        } else {
            self.condition.has_within(rate, bytes)
        };
        if !is_opposite {
            self.since_ns = None;
            return false;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let wait_ns = match (self.holds, self.condition.is_of_rate()) {
            (true, _) => RATE_OUTSIDE_NS,
            (false, true) => RATE_WITHIN_NS,
            (false, false) => 0,
        };
        let changes = now_ns.saturating_sub(since_ns) >= wait_ns;
        if changes {
            (self.holds, self.since_ns) = (!self.holds, None);
        }
        changes
    }
}

/// The rate of one session, and which conditions hold for it. Begins with a rate of 0.
#[derive(Clone, Debug)]
pub(crate) struct TrafficMeter {
    /// The count at the last look, and when that was.
    bytes: u64,
    looked_ns: u64,
    /// Bytes a second, with [`DIGITS`] digits behind the point.
    rate: u64,
    /// Of how much time that is the average: of all since it began, at first, and then of [`RATE_AVERAGED_NS`].
    averaged_ns: u64,
    judged: Vec<Judged>,
}

impl TrafficMeter {
    /// Of a session of which so many bytes are counted.
    pub(crate) fn new(now_ns: u64, bytes: u64) -> Self {
        Self { bytes, looked_ns: now_ns, rate: 0, averaged_ns: 0, judged: Vec::new() }
    }

    /// The session's rate, in bytes a second.
    pub(crate) fn rate(&self) -> u64 {
        (self.rate + (1 << (DIGITS - 1))) >> DIGITS
    }

    /// Whether this condition holds. One that it was not asked for at the last look does not.
    pub(crate) fn meets(&self, condition: &TrafficCondition) -> bool {
        self.judged.iter().any(|judged| judged.holds && judged.condition == *condition)
    }

    /// So many bytes are counted now. Returns whether another one of these conditions holds than before.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        bytes: u64,
        conditions: impl Iterator<Item = TrafficCondition> + Clone,
    ) -> bool {
        self.count(now_ns, bytes);
        let is_asked = |judged: &Judged| conditions.clone().any(|condition| condition == judged.condition);
        let before = self.judged.len();
        self.judged.retain(is_asked);
        let mut changes = self.judged.len() != before;
        for condition in conditions.clone() {
            if self.judged.iter().all(|judged| judged.condition != condition) {
                self.judged.push(Judged { condition, holds: false, since_ns: None });
            }
        }
        let rate = self.rate();
        for judged in &mut self.judged {
            changes |= judged.look(now_ns, rate, bytes);
        }
        changes
    }

    /// The average is weighted by time, whenever the look is: `rate' = (rate * averaged + bytes) / (averaged + passed)`.
    fn count(&mut self, now_ns: u64, bytes: u64) {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        if passed_ns == 0 {
            return;
        }
        let added = u128::from(bytes.saturating_sub(self.bytes)) << DIGITS;
        let sum = u128::from(self.rate) * u128::from(self.averaged_ns) + added * u128::from(S);
        let rate = sum / (u128::from(self.averaged_ns) + u128::from(passed_ns));
        // No machine moves so many bytes in a second.
        self.rate = u64::try_from(rate).unwrap_or(u64::MAX).min(u64::MAX >> 1);
        self.averaged_ns = self.averaged_ns.saturating_add(passed_ns).min(RATE_AVERAGED_NS);
        (self.bytes, self.looked_ns) = (bytes, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const KIB: u64 = 1 << 10;

    /// A session with a meter, at a time.
    struct Measured {
        meter: TrafficMeter,
        now_ns: u64,
        bytes: u64,
        conditions: Vec<TrafficCondition>,
        /// How often something has changed.
        changes: usize,
    }

    impl Measured {
        fn by(conditions: &[TrafficCondition]) -> Self {
            let (now_ns, bytes) = (7 * S, 100);
            let meter = TrafficMeter::new(now_ns, bytes);
            Self { meter, now_ns, bytes, conditions: conditions.to_vec(), changes: 0 }
        }

        /// For so many looks, each this time after the last one, it has this rate.
        fn has_had(&mut self, rate: u64, (looks, pause_ns): (u64, u64)) {
            for _ in 0..looks {
                self.now_ns += pause_ns;
                self.bytes += u64::try_from(u128::from(rate) * u128::from(pause_ns) / u128::from(S)).unwrap();
                let conditions = self.conditions.clone();
                self.changes +=
                    usize::from(self.meter.look(self.now_ns, self.bytes, conditions.iter().copied()));
            }
        }

        fn has(&mut self, rate: u64, seconds: u64) {
            self.has_had(rate, (seconds, S));
        }

        fn holds(&self) -> Vec<bool> {
            self.conditions.iter().map(|condition| self.meter.meets(condition)).collect()
        }
    }

    fn at_least(rate: u64) -> TrafficCondition {
        TrafficCondition { rate_min: Some(rate), ..TrafficCondition::default() }
    }

    fn at_most(rate: u64) -> TrafficCondition {
        TrafficCondition { rate_max: Some(rate), ..TrafficCondition::default() }
    }

    #[test]
    fn a_rate_is_what_passes_in_a_second_and_follows_within_seconds() {
        for pause_ns in [S / 7, S, 3 * S] {
            let mut it = Measured::by(&[]);
            assert_eq!(it.meter.rate(), 0);
            it.has_had(700, (1, pause_ns));
            let near = |rate: u64, expected: u64| rate.abs_diff(expected) <= expected / 100 + 7;
            assert!(near(it.meter.rate(), 700), "from the first look on: {}", it.meter.rate());
            it.has_had(70_000, (300 * S / pause_ns, pause_ns));
            assert!(near(it.meter.rate(), 70_000), "{pause_ns}: {}", it.meter.rate());
            it.has_had(0, (RATE_AVERAGED_NS.div_ceil(pause_ns), pause_ns));
            let third = it.meter.rate();
            assert!((70_000 / 4..70_000 / 2).contains(&third), "{pause_ns}: {third}");
            it.has_had(0, (200 * S / pause_ns, pause_ns));
            assert_eq!(it.meter.rate(), 0, "nothing remains of it");
        }
    }

    #[test]
    fn a_rate_that_is_just_the_limit_is_reached_and_kept() {
        let mut it = Measured::by(&[at_least(KIB), at_most(KIB)]);
        it.has(KIB, 60);
        assert_eq!((it.meter.rate(), it.holds(), it.changes), (KIB, vec![true, true], 1));
    }

    #[test]
    fn a_condition_holds_after_seconds_within_and_until_it_is_clearly_outside_for_long() {
        let mut it = Measured::by(&[at_least(100 * KIB)]);
        it.has(200 * KIB, 3);
        assert_eq!(it.holds(), [false], "it has been within for two seconds");
        it.has(200 * KIB, 1);
        assert_eq!(it.holds(), [true]);
        // A little below the limit is not outside.
        it.has(80 * KIB, 100);
        assert_eq!((it.holds(), it.meter.rate()), (vec![true], 80 * KIB));
        // Neither is a pause.
        it.has(0, 9);
        it.has(300 * KIB, 2);
        it.has(0, 9);
        assert_eq!(it.holds(), [true]);
        it.has(70 * KIB, 30);
        assert_eq!((it.holds(), it.changes), (vec![false], 2));
        // And above it, but not for long, is not within.
        it.has(70 * KIB, 30);
        it.has(600 * KIB, 1);
        it.has(0, 1);
        assert!(it.meter.rate() > 100 * KIB);
        it.has(0, 10);
        assert_eq!((it.holds(), it.changes), (vec![false], 2));
    }

    #[test]
    fn a_session_at_the_limit_does_not_go_back_and_forth() {
        let mut it = Measured::by(&[at_least(100 * KIB), at_most(100 * KIB)]);
        for _ in 0..200 {
            it.has(120 * KIB, 2);
            it.has(82 * KIB, 3);
        }
        assert!(it.changes <= 2, "{}", it.changes);
        // Pieces of 6 seconds, as of a video.
        let mut it = Measured::by(&[at_least(100 * KIB)]);
        for _ in 0..200 {
            it.has(1_000 * KIB, 2);
            it.has(0, 4);
        }
        assert_eq!((it.holds(), it.changes), (vec![true], 1));
    }

    #[test]
    fn bytes_hold_at_once_and_for_good_and_all_limits_must() {
        let much = TrafficCondition { bytes_min: Some(10 * KIB), ..TrafficCondition::default() };
        let slow = TrafficCondition { rate_max: Some(KIB), ..much };
        let mut it = Measured::by(&[much, slow, at_most(KIB)]);
        it.has(0, 1);
        assert_eq!(it.holds(), [false, false, false]);
        it.has(20 * KIB, 1);
        assert_eq!(it.holds(), [true, false, false]);
        it.has(0, 60);
        assert_eq!((it.holds(), it.changes), (vec![true, true, true], 2));
        it.has(KIB * 5, 60);
        assert_eq!(it.holds(), [true, false, false]);
    }

    #[test]
    fn other_conditions_do_not_change_what_is_known_of_those_that_stay() {
        let mut it = Measured::by(&[at_least(KIB), at_most(KIB)]);
        it.has(2 * KIB, 10);
        assert_eq!(it.holds(), [true, false]);
        it.conditions = vec![at_least(3 * KIB), at_least(KIB)];
        assert_eq!(it.holds(), [false, true]);
        it.has(2 * KIB, 1);
        assert_eq!(it.holds(), [false, true]);
        assert!(!it.meter.meets(&at_most(KIB)) && !it.meter.meets(&TrafficCondition::default()));
    }

    #[test]
    fn the_largest_values_are_no_mistake() {
        let most = TrafficCondition {
            rate_min: Some(u64::MAX),
            rate_max: Some(u64::MAX),
            bytes_min: Some(u64::MAX),
        };
        let mut meter = TrafficMeter::new(0, 0);
        for _ in 0..3 {
            meter.look(1, u64::MAX, [most].into_iter());
            meter.look(u64::MAX, 0, [most].into_iter());
        }
        assert!(!meter.meets(&most));
    }
}
