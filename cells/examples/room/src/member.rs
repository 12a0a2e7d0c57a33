//! One client: its name, how fast it may speak, and when it is due for something because it was silent.

use crate::lines::Lines;
use core::time::Duration;
use marram_sdk::Time;

/// A client that is silent for so long is told what to do. Not at once: a browser that asks for the page must get nothing first.
pub(crate) const GREETED_AFTER: Duration = Duration::from_millis(500);
/// A client must have said its name by then.
pub(crate) const NAMED_WITHIN: Duration = Duration::from_secs(60);
/// A client that is silent for so long is away,
pub(crate) const AWAY_AFTER: Duration = Duration::from_secs(5 * 60);
/// and after so long leaves: its machine may be gone.
pub(crate) const LEAVES_AFTER: Duration = Duration::from_secs(2 * 3_600);

/// Lines that a client may send at once,
pub(crate) const LINES_AT_ONCE: i64 = 10;
/// and the time after which it may send one more.
pub(crate) const LINE_EVERY: Duration = Duration::from_millis(500);
/// Lines over that rate that are refused before the client is disconnected.
const REFUSED_MAX: u32 = 40;

/// Letters of the longest name.
const NAME_LETTERS_MAX: usize = 16;

/// A client, from its first byte on.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) lines: Lines,
    /// None until it has joined.
    pub(crate) name: Option<String>,
    /// Whether it has sent anything.
    pub(crate) has_spoken: bool,
    /// Whether it knows, or was told, what to do.
    pub(crate) is_greeted: bool,
    pub(crate) is_away: bool,
    opened: Time,
    /// When it was heard last.
    heard: Time,
    /// Nanoseconds of session time at which it may have sent all its lines, at one a [`LINE_EVERY`].
    paid_until: i64,
    refused: u32,
}

/// Whether a line may be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Fine,
    /// The line is dropped.
    TooFast,
    /// The client does not stop: it is disconnected.
    Flood,
}

impl Member {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            lines: Lines::default(),
            name: None,
            has_spoken: false,
            is_greeted: false,
            is_away: false,
            opened: now,
            heard: now,
            paid_until: now.nanoseconds,
            refused: 0,
        }
    }

    /// It sent something.
    pub(crate) fn hears(&mut self, now: Time) {
        self.heard = now;
        self.has_spoken = true;
        self.is_greeted = true;
    }

    /// Counts a line, whatever it says.
    pub(crate) fn pace(&mut self, now: Time) -> Pace {
        let paid_until = self.paid_until.max(now.nanoseconds);
        if paid_until - now.nanoseconds > (LINES_AT_ONCE - 1) * nanoseconds(LINE_EVERY) {
            self.refused += 1;
            return if self.refused > REFUSED_MAX { Pace::Flood } else { Pace::TooFast };
        }
        self.paid_until = paid_until + nanoseconds(LINE_EVERY);
        Pace::Fine
    }

    /// When something is to be done if it stays silent.
    pub(crate) fn due(&self) -> Time {
        let (since, after) = match (&self.name, self.is_greeted, self.is_away) {
            (None, false, _) => (self.opened, GREETED_AFTER),
            (None, true, _) => (self.opened, NAMED_WITHIN),
            (Some(_), _, false) => (self.heard, AWAY_AFTER),
            (Some(_), _, true) => (self.heard, LEAVES_AFTER),
        };
        Time { nanoseconds: since.nanoseconds.saturating_add(nanoseconds(after)) }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Checks a name. Others tell members apart by it, so it has no letters that look like others.
///
/// # Errors
/// If it is none.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let legal = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if (1..=NAME_LETTERS_MAX).contains(&name.len()) && name.chars().all(legal) {
        return Ok(());
    }
    Err(format!("a name is 1 to {NAME_LETTERS_MAX} of a-z, A-Z, 0-9, - and _"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time { nanoseconds: nanoseconds(Duration::from_secs_f64(seconds)) }
    }

    #[test]
    fn a_client_has_a_burst_then_a_rate_and_a_flood_ends() {
        let mut member = Member::new(at(9.0));
        let mut said = |now: f64| member.pace(at(now));
        assert!((0..LINES_AT_ONCE).all(|_| said(10.0) == Pace::Fine));
        assert_eq!([said(10.0), said(10.499)], [Pace::TooFast; 2]);
        assert_eq!([said(10.5), said(10.5)], [Pace::Fine, Pace::TooFast]);
        assert!((0..LINES_AT_ONCE).all(|_| said(60.0) == Pace::Fine));
        assert!((3..REFUSED_MAX).all(|_| said(60.0) == Pace::TooFast));
        assert_eq!(said(60.0), Pace::Flood);
    }

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "Ann-2", "x_y", "sixteen-letters-"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "seventeen-letters", "a b", "gr\u{fc}n", "a:", "*", "/who"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
