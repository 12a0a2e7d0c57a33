//! What protection adds to the response time of an app: an unprotected and a protected instance, asked alternately.
//!
//! The two instances run in one edge behind one agent. Questions alternate one by one, and the
//! order within a pair alternates too, because the second of two finds caches that the first has
//! filled.

use super::super::report::{Bar, Report};
use super::super::stats;

/// The most that protection may add to the median.
pub(super) const ADDED_US_MAX: f64 = 50.0;
/// Unmeasured questions to each instance at the start. Sessions, caches and the compiler's lazy
/// work are done by then.
const WARM_UP: usize = 100;

/// Asks both instances alternately, `questions` times in each of `repeats`, and reports under the app's name how much longer the
/// second one takes. `ask` takes the index of the instance and returns microseconds. Returns the median of each instance.
///
/// The estimate is over repeats: in each, the difference of the two medians.
pub(super) fn measure(
    name: &str,
    (repeats, questions): (usize, usize),
    mut ask: impl FnMut(usize) -> anyhow::Result<f64>,
    report: &mut Report,
) -> anyhow::Result<[f64; 2]> {
    for _ in 0..WARM_UP {
        ask(0)?;
        ask(1)?;
    }
    let (mut added, mut medians) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..repeats {
        let mut times = [Vec::new(), Vec::new()];
        for turn in 0..questions {
            for index in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
                times[index].push(ask(index)?);
            }
        }
        let [bare, guarded] = times.map(|times| stats::median(&times));
        added.push(guarded - bare);
        medians[0].push(bare);
        medians[1].push(guarded);
    }
    let (estimate, medians) = (stats::estimate(&added), medians.map(|medians| stats::median(&medians)));
    report.metric_with_bar(&format!("{name}_added_p50_us"), estimate.middle, Bar::Most(ADDED_US_MAX));
    report.metric(&format!("{name}_added_p50_us_low"), estimate.low);
    report.metric(&format!("{name}_added_p50_us_high"), estimate.high);
    report.metric(&format!("{name}_none_p50_us"), medians[0]);
    Ok(medians)
}
