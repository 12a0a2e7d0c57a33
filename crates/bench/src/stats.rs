//! Medians, percentiles, and the interval of a paired difference.
//!
//! Nothing here knows what is measured. Values are `f64` in whatever unit the caller has; a sample
//! of none gives 0, so that an empty block shows up as an impossible figure and not as a crash at
//! the end of a long run.

use marram_wire::seeded::Seeded;

/// Number of resamples for an interval.
const RESAMPLES: usize = 2_000;

/// The value below which `percent` of the values lie (nearest rank); 0 for none.
///
/// Nearest rank: the result is always one of the values. Values that are not numbers sort last.
#[must_use]
pub(super) fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "counts of measurements are small")]
    let rank = (percent / 100.0 * sorted.len() as f64).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank between 0 and the count"
    )]
    let index = (rank as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(index).copied().unwrap_or(0.0)
}

/// The middle value; 0 for none.
#[must_use]
pub(super) fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// Fewer values than this have no 99th percentile: it would be close to their maximum, or equal to it.
const P99_SAMPLES_MIN: usize = 100;

/// The 99th percentile.
///
/// # Errors
/// If there are fewer than 100.
pub(super) fn p99(values: &[f64]) -> anyhow::Result<f64> {
    let count = values.len();
    anyhow::ensure!(count >= P99_SAMPLES_MIN, "{count} measurements are too few for a 99th percentile");
    Ok(percentile(values, 99.0))
}

/// The tail of one or more blocks: the median of the blocks' 99th percentiles or, if any block has fewer than 100 values, the
/// largest value of all.
///
/// The median over blocks keeps one bad block from being the result; the maximum has no such
/// protection, which its name shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    /// One per block.
    p99: Vec<f64>,
    /// Over all blocks.
    max: f64,
    /// Whether any block has too few values.
    is_short: bool,
}

impl Tail {
    /// The tail of one block.
    pub(super) fn of(values: &[f64]) -> Self {
        let mut tail = Self::default();
        tail.add(values);
        tail
    }

    /// Adds a block.
    pub(super) fn add(&mut self, values: &[f64]) {
        self.p99.push(percentile(values, 99.0));
        self.max = values.iter().copied().fold(self.max, f64::max);
        self.is_short |= values.len() < P99_SAMPLES_MIN;
    }

    /// The figure.
    #[must_use]
    pub(super) fn value(&self) -> f64 {
        if self.is_short { self.max } else { median(&self.p99) }
    }

    /// The figure's name: `p99` if it is a 99th percentile; otherwise with `max` in place of `p99`.
    #[must_use]
    pub(super) fn name(&self, p99: &str) -> String {
        if self.is_short { p99.replace("p99", "max") } else { p99.to_owned() }
    }

    /// The ratio of this tail to `other`, with the name of that figure. A percentile is not compared with a maximum.
    #[must_use]
    pub(super) fn over(&self, other: &Self, p99: &str) -> (String, f64) {
        if self.is_short || other.is_short {
            (p99.replace("p99", "max"), self.max / other.max)
        } else {
            (p99.to_owned(), self.value() / other.value())
        }
    }
}

/// An estimate with the limits of its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Estimate {
    /// The median.
    pub(super) middle: f64,
    /// 2.5 % of the resampled medians lie below.
    pub(super) low: f64,
    /// 2.5 % lie above.
    pub(super) high: f64,
}

/// The median of a sample with a bootstrap interval, which says how much another run with as many blocks would differ.
///
/// Each resample draws as many values as there are, with replacement; the interval is that of the
/// resamples' medians. Blocks are the unit, because values within a block are not independent.
#[must_use]
pub(super) fn estimate(values: &[f64]) -> Estimate {
    let mut numbers = Seeded::new(1);
    let mut draw = || {
        // Resampling needs spread, not secrecy: a fixed generator makes the interval a function of the sample.
        let index = numbers.index(values.len().max(1));
        values.get(index).copied().unwrap_or(0.0)
    };
    let medians: Vec<f64> =
        (0..RESAMPLES).map(|_| median(&(0..values.len()).map(|_| draw()).collect::<Vec<_>>())).collect();
    Estimate { middle: median(values), low: percentile(&medians, 2.5), high: percentile(&medians, 97.5) }
}

/// The slope of the least-squares line through the points; 0 for fewer than two different `x`. For
/// figures such as microseconds for each further client, where the cost of the first is not of
/// interest.
#[must_use]
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of measurements are small")]
    let count = points.len().max(1) as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let together: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let alone: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    if alone > 0.0 { together / alone } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope() {
        let points: Vec<(f64, f64)> = (0..10).map(|x| (f64::from(x), 7.0 - 0.5 * f64::from(x))).collect();
        assert!((slope(&points) + 0.5).abs() < 1e-9);
        assert!(slope(&points[..1]).abs() < 1e-9);
        assert!(slope(&[]).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        for (percent, value) in [(0.0, 1.0), (1.0, 1.0), (50.0, 50.0), (99.0, 99.0), (100.0, 100.0)] {
            assert!((percentile(&values, percent) - value).abs() < 1e-9, "{percent}");
        }
        assert!(percentile(&[], 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_hundred_values_have_a_p99_and_fewer_a_maximum() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let (long, short) = (Tail::of(&values), Tail::of(&values[1..]));
        assert_eq!(
            (long.name("x.wait_p99_ms"), short.name("x.wait_p99_ms")),
            ("x.wait_p99_ms".into(), "x.wait_max_ms".into())
        );
        assert_eq!((long.value().to_string(), short.value().to_string()), ("99".into(), "100".into()));
        let (name, ratio) = long.over(&short, "p99_vs_short");
        assert_eq!((name.as_str(), ratio.to_string()), ("max_vs_short", "1".to_owned()));
        assert_eq!(long.over(&long, "p99_vs_long").0, "p99_vs_long");
    }

    #[test]
    fn one_short_block_leaves_the_maximum_of_all() {
        let mut tail = Tail::of(&[7.0; 100]);
        tail.add(&[3.0; 100]);
        assert_eq!((tail.name("p99"), tail.value().to_string()), ("p99".into(), "3".into()));
        tail.add(&[5.0; 10]);
        assert_eq!((tail.name("p99"), tail.value().to_string()), ("max".into(), "7".into()));
    }

    #[test]
    fn an_interval_holds_the_middle() {
        let values: Vec<f64> = (0..41).map(|n| f64::from(n % 7)).collect();
        let estimate = estimate(&values);
        assert!(estimate.low <= estimate.middle && estimate.middle <= estimate.high, "{estimate:?}");
        assert!(estimate.high - estimate.low <= 2.0, "{estimate:?}");
    }
}
