//! A token bucket over virtual time, and the notation of rates. For the cells `limiter` and `firewall`; knows neither
//! messages nor clocks.
//!
//! ```text
//! level
//! burst |---.          .------
//!       |   | take(n) /
//!       |   |        /  per_second
//!     0 |...'-------'........
//!       +---------------------> session time
//! ```
//!
//! The level is computed from the time of the last call, not counted up by a timer: an idle bucket
//! costs nothing. Session time is an input that is logged, so a replay takes the same decisions.
#![no_std]

use core::time::Duration;

/// A rate with a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Tokens per second in the long run; at least 1.
    pub per_second: u64,
    /// Tokens available at once after a pause; at least 1.
    pub burst: u64,
}

impl Rate {
    /// Parses `100/s burst 20`, or `100/s`, whose burst is one second's tokens.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let per_second = positive(words.next()?.strip_suffix("/s")?)?;
        let burst = match words.next() {
            None => per_second,
            Some("burst") => positive(words.next()?)?,
            Some(_) => return None,
        };
        words.next().is_none().then_some(Self { per_second, burst })
    }
}

/// 0 is refused: nothing would ever pass, and [`Bucket::take`] divides by the rate.
fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number > 0)
}

/// One bucket. It starts full.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    /// In billionths of a token; negative while something larger than the burst is being paid off.
    /// More bits than 64, since a second of a high rate would not fit.
    level: i128,
    /// The latest time seen; time that runs backwards adds nothing.
    filled_ns: i64,
}

/// Levels per token, so that a rate in tokens per second adds whole units in a nanosecond.
const NANO: i128 = 1_000_000_000;

impl Bucket {
    /// A full bucket. Time may start at any value.
    #[must_use]
    pub fn new(rate: Rate, now_ns: i64) -> Self {
        Self { rate, level: i128::from(rate.burst) * NANO, filled_ns: now_ns }
    }

    /// Takes tokens. A message larger than the burst waits for a full bucket and is paid off afterwards, so that it
    /// can pass at all. After an error the bucket has been filled up, and no token taken. The wait
    /// is rounded up, so that a timer of that length does not fire too early.
    ///
    /// # Errors
    /// How long to wait before there are enough.
    pub fn take(&mut self, tokens: u64, now_ns: i64) -> Result<(), Duration> {
        let burst = i128::from(self.rate.burst) * NANO;
        let elapsed_ns = i128::from(now_ns.saturating_sub(self.filled_ns).max(0));
        self.level = burst.min(self.level + elapsed_ns * i128::from(self.rate.per_second));
        self.filled_ns = self.filled_ns.max(now_ns);
        let price = i128::from(tokens) * NANO;
        let missing = price.min(burst) - self.level;
        if missing <= 0 {
            self.level -= price;
            return Ok(());
        }
        let per_second = i128::from(self.rate.per_second);
        let wait_ns = (missing + per_second - 1) / per_second;
        Err(Duration::from_nanos(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
    }

    /// How long to wait before that many tokens could be taken; takes none. For a caller that must
    /// know that several buckets agree before it charges one.
    #[must_use]
    pub fn wait(&self, tokens: u64, now_ns: i64) -> Duration {
        self.clone().take(tokens, now_ns).err().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bucket = Bucket::new(Rate { per_second: 10, burst: 3 }, 1_000);
        for _ in 0..3 {
            assert_eq!(bucket.take(1, 1_000), Ok(()));
        }
        assert_eq!(bucket.take(1, 1_000), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(1, 50_001_000), Err(Duration::from_millis(50)));
        assert_eq!(bucket.take(1, 100_001_000), Ok(()));
        // A long pause fills it only to the burst.
        assert_eq!(bucket.take(3, 1_000_000_000_000), Ok(()));
        assert_eq!(bucket.wait(2, 1_000_000_000_000), Duration::from_millis(200));
    }

    #[test]
    fn what_is_larger_than_the_burst_is_paid_for_afterwards() {
        let mut bucket = Bucket::new(Rate { per_second: 1000, burst: 100 }, 0);
        assert_eq!(bucket.take(1100, 0), Ok(()));
        assert_eq!(bucket.take(1, 0), Err(Duration::from_millis(1001)));
        assert_eq!(bucket.take(1, 1_001_000_000), Ok(()));
    }

    #[test]
    fn a_rate_is_written_in_one_way() {
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        let cases = [
            ("100/s", rate(100, 100)),
            ("100/s  burst 5", rate(100, 5)),
            ("100", None),
            ("0/s", None),
            ("1/s burst 0", None),
            ("1/s burst", None),
            ("1/s burst 1 1", None),
            ("-1/s", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Rate::parse(text), expected, "{text}");
        }
    }
}
