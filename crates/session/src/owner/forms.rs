//! Log or pages: which form was fewer bytes for the last epochs of a session.
//!
//! While pages are sent both costs are known: the log that they stand for waits at the owner. While the log is sent, the cost of pages is
//! not; so after so much log that it hardly counts, pages are sent for two epochs. The first of these has all that changed since
//! the last pages, so only the second one says what an epoch costs.

/// Pages are tried when they cost a twentieth of the log that was sent since, as far as the last trial says.
const TRIAL_SHARE: u64 = 20;
/// Each trial in a row that the log wins doubles what is sent until the next one, so many times at most.
const DOUBLED_MAX: u32 = 2;
/// What the first trial counts as, in bytes.
const FIRST_TRIAL: u64 = 16 << 10;

/// What both forms cost one session, in bytes.
#[derive(Debug, Default)]
pub(super) struct FormChoice {
    /// Pages, and the log that they stood for, of the last epochs: each counts half of the one behind it.
    pages: u64,
    log: u64,
    /// Epochs of pages since these were begun, for which the log is known.
    compared: u32,
    /// Pages of the first epochs since the session went over to them.
    trial: u64,
    /// Log that was sent since it went back.
    log_since: u64,
    /// What the last trial cost.
    last_trial: Option<u64>,
    /// Trials in a row that the log has won.
    lost: u32,
}

impl FormChoice {
    /// An epoch ended that was sent as log. True if pages are to be tried.
    pub(super) fn log_sent(&mut self, bytes: u64) -> bool {
        self.log_since = self.log_since.saturating_add(bytes);
        let share = TRIAL_SHARE << self.lost.min(DOUBLED_MAX);
        let is_due = self.log_since >= self.last_trial.unwrap_or(FIRST_TRIAL).saturating_mul(share);
        if is_due {
            *self = Self { last_trial: self.last_trial, lost: self.lost, ..Self::default() };
        }
        is_due
    }

    /// Pages were sent, instead of this much log if all of that waited.
    pub(super) fn pages(&mut self, bytes: u64, instead_of: Option<u64>) {
        if self.compared < 2 {
            self.trial = self.trial.saturating_add(bytes);
        }
        if let Some(log) = instead_of {
            (self.pages, self.log) = (self.pages / 2 + bytes, self.log / 2 + log);
            self.compared += 1;
        }
    }

    /// Whether the log would be fewer bytes. Pages are tried again later.
    pub(super) fn wants_log(&mut self) -> bool {
        let wants = self.compared > 0 && self.log < self.pages;
        if wants {
            // If pages were sent for longer, what the session does has changed, and may change again.
            let lost = if self.compared == 1 { self.lost + 1 } else { 0 };
            *self = Self { last_trial: Some(self.trial), lost, ..Self::default() };
        }
        wants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are sent for `epochs` of a session whose log and pages cost so much an epoch, and the cheaper form alone.
    fn sent(epochs: u64, log: u64, pages: u64, backlog: u64) -> (u64, u64) {
        let (mut choice, mut sends_pages, mut is_first, mut total) = (FormChoice::default(), false, true, 0);
        for _ in 0..epochs {
            if sends_pages {
                let size = if is_first { pages + backlog } else { pages };
                total += size;
                choice.pages(size, (!is_first).then_some(log));
                is_first = false;
                sends_pages = !choice.wants_log();
            } else {
                total += log;
                sends_pages = choice.log_sent(log);
                is_first = true;
            }
        }
        (total, epochs * log.min(pages))
    }

    #[test]
    fn the_cheaper_form_is_found_and_the_other_one_costs_little() {
        for (log, pages, backlog) in
            [(100, 5_000, 0), (100, 5_000, 100_000), (1_400, 600, 0), (9_000, 400, 64 << 10)]
        {
            let (total, cheaper) = sent(100_000, log, pages, backlog);
            let percent = total * 100 / cheaper;
            assert!(percent <= 105, "log {log}, pages {pages}: {percent} % of the cheaper form");
        }
    }

    #[test]
    fn a_session_that_changes_goes_over() {
        let mut choice = FormChoice::default();
        while !choice.log_sent(1_000) {}
        choice.pages(900, None);
        assert!(!choice.wants_log(), "the first one says nothing");
        for _ in 0..100 {
            choice.pages(900, Some(1_000));
            assert!(!choice.wants_log());
        }
        let until = (0..20).take_while(|_| {
            choice.pages(900, Some(10));
            !choice.wants_log()
        });
        assert!(until.count() < 3);
    }
}
