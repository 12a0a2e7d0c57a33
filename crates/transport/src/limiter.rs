//! Rate limits for log lines that a peer or a guest can trigger, so that they cannot fill a disk.

use std::time::{Duration, Instant};

/// Lines in a burst.
const BURST: u32 = 10;
/// The interval of further lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Admits some lines and counts the suppressed ones.
#[derive(Debug)]
pub struct LogLimiter {
    /// Lines that may be written now, at most `BURST`.
    tokens: u32,
    /// When tokens were last added; the fraction of an interval that was left over then is lost,
    /// which makes the limit a little stricter.
    refilled: Instant,
    /// Since the last line that passed. It is reported with the next line, so a flood that ends is
    /// reported only when another line comes.
    suppressed: u64,
}

impl LogLimiter {
    /// A limiter that admits a full burst.
    pub fn new(now: Instant) -> Self {
        Self { tokens: BURST, refilled: now, suppressed: 0 }
    }

    /// Whether a line may be written now: then the number of suppressed lines since the last one, if any. (A log field that is
    /// none is omitted.)
    pub fn pass(&mut self, now: Instant) -> Option<Option<u64>> {
        let earned = now.saturating_duration_since(self.refilled).as_secs() / INTERVAL.as_secs();
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(u32::try_from(earned).unwrap_or(BURST)).min(BURST);
            self.refilled = now;
        }
        if self.tokens == 0 {
            self.suppressed += 1;
            return None;
        }
        self.tokens -= 1;
        let suppressed = std::mem::take(&mut self.suppressed);
        Some((suppressed > 0).then_some(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_an_interval_and_none_is_forgotten() {
        let start = Instant::now();
        let mut limiter = LogLimiter::new(start);
        let passed = (0..100).filter_map(|_| limiter.pass(start)).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(limiter.pass(start + INTERVAL), Some(Some(90)));
        assert_eq!(limiter.pass(start + INTERVAL), None);
        assert_eq!(limiter.pass(start + 3 * INTERVAL), Some(Some(1)));
        assert_eq!(limiter.pass(start + 3 * INTERVAL), Some(None));
    }
}
