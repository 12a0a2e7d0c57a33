//! Log or pages: which form was fewer bytes for the last epochs of a session.
//!
//! While pages are sent both costs are known: the log that they stand for waits at the owner. While the log is sent, the cost of pages is
//! not; so after so much log that it hardly counts, pages are sent for two epochs. The first of these has all that changed since
//! the last pages, so only the second one says what an epoch costs. It says little if it is much shorter than epochs usually are: pages
//! cost about as much for one message as for many. Then up to two more epochs are sent as pages.

/// Pages are tried when they cost a twentieth of the log that was sent since, as far as the last trial says.
const TRIAL_SHARE: u64 = 20;
/// Each trial in a row that the log wins doubles what is sent until the next one, so many times at most.
const DOUBLED_MAX: u32 = 2;
/// What the first trial counts as, in bytes.
const FIRST_TRIAL: u64 = 16 << 10;
/// A trial is over after so many epochs that were compared.
const COMPARED_MAX: u32 = 3;
/// What the first epoch of a trial costs beyond this many of the others is not expected again: those pages had not been sent before.
const EXPECTED_EPOCHS: u64 = 4;

/// What both forms cost one session, in bytes.
#[derive(Debug, Default)]
pub(super) struct FormChoice {
    /// Pages, and the log that they stood for, of the last epochs: each counts half of the one behind it.
    pages: u64,
    log: u64,
    /// Epochs of pages since these were begun, for which the log is known.
    compared: u32,
    /// Pages of the first epochs since the session went over to them: all of them, and those of epochs that were compared.
    trial: u64,
    trial_compared: u64,
    /// Log that was sent since it went back, and the epochs which had any.
    log_since: u64,
    log_epochs: u64,
    /// The log of an epoch, on average, before it went over to pages.
    usual: u64,
    /// Log to be sent before the next trial, by what the last one cost.
    until_trial: Option<u64>,
    /// Trials in a row that the log has won.
    lost: u32,
}

impl FormChoice {
    /// An epoch ended that was sent as log. True if pages are to be tried.
    pub(super) fn log_sent(&mut self, bytes: u64) -> bool {
        self.log_since = self.log_since.saturating_add(bytes);
        self.log_epochs += u64::from(bytes > 0);
        let is_due = self.log_since >= self.until_trial.unwrap_or(TRIAL_SHARE * FIRST_TRIAL);
        if is_due {
            let usual = self.log_since / self.log_epochs.max(1);
            *self = Self { usual, until_trial: self.until_trial, lost: self.lost, ..Self::default() };
        }
        is_due
    }

    /// Pages were sent, instead of this much log if that says what an epoch costs.
    pub(super) fn pages(&mut self, bytes: u64, instead_of: Option<u64>) {
        if self.compared < COMPARED_MAX {
            self.trial = self.trial.saturating_add(bytes);
        }
        if let Some(log) = instead_of {
            if self.compared < COMPARED_MAX {
                self.trial_compared += bytes;
            }
            (self.pages, self.log) = (self.pages / 2 + bytes, self.log / 2 + log);
            self.compared += 1;
        }
    }

    /// Whether the log would be fewer bytes. Pages are tried again later.
    pub(super) fn wants_log(&mut self) -> bool {
        let says_little = self.compared < COMPARED_MAX && self.log < self.usual / 2;
        let wants = self.compared > 0 && self.log < self.pages && !says_little;
        if wants {
            // If pages were sent for longer, what the session does has changed, and may change again.
            let lost = if self.compared <= COMPARED_MAX { self.lost + 1 } else { 0 };
            *self = Self { until_trial: Some(self.next_trial(lost)), lost, ..Self::default() };
        }
        wants
    }

    /// The log to be sent before the next trial. What the last one cost is a twentieth of it in any case, so that trials never cost
    /// more; what is not expected again is doubled once less.
    fn next_trial(&self, lost: u32) -> u64 {
        let epoch = self.trial_compared / u64::from(self.compared.clamp(1, COMPARED_MAX));
        let expected = self.trial.min(EXPECTED_EPOCHS * epoch);
        let doubled = lost.min(DOUBLED_MAX);
        let of_all = self.trial.saturating_mul(TRIAL_SHARE << doubled.saturating_sub(1));
        of_all.max(expected.saturating_mul(TRIAL_SHARE << doubled))
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

    /// As measured: ten messages of 4 KiB an epoch, each of which writes to 64 pages.
    const EPOCH: u64 = 41_400;
    const PAGES: u64 = 6_360;
    const FIRST_PAGES: u64 = 270_000;

    fn trial() -> FormChoice {
        let mut choice = FormChoice::default();
        while !choice.log_sent(EPOCH) {}
        choice.pages(FIRST_PAGES, None);
        assert!(!choice.wants_log());
        choice
    }

    #[test]
    fn an_epoch_that_is_much_shorter_than_usual_decides_nothing() {
        let mut choice = trial();
        for log in [EPOCH / 10, EPOCH / 10, EPOCH, EPOCH / 10, EPOCH / 10, EPOCH] {
            choice.pages(PAGES, Some(log));
            assert!(!choice.wants_log());
        }
    }

    #[test]
    fn a_session_with_short_epochs_from_now_on_goes_back_soon() {
        let mut choice = trial();
        let until = (0..20).take_while(|_| {
            choice.pages(PAGES, Some(EPOCH / 10));
            !choice.wants_log()
        });
        assert_eq!(until.count(), 2, "the third one decides");
        assert_eq!(choice.lost, 1);
    }

    #[test]
    fn what_is_not_expected_again_is_not_doubled_at_once() {
        let log = EPOCH / 10 * 6;
        let mut choice = trial();
        choice.pages(log + 1, Some(log));
        assert!(choice.wants_log());
        assert_eq!(choice.until_trial, Some(TRIAL_SHARE * (FIRST_PAGES + log + 1)));
        // Pages that cost as much each time are.
        let mut choice = trial();
        choice.pages(FIRST_PAGES, Some(log));
        assert!(choice.wants_log());
        assert_eq!(choice.until_trial, Some(2 * TRIAL_SHARE * 2 * FIRST_PAGES));
    }

    #[test]
    fn epochs_of_all_lengths_cost_hardly_more() {
        // The numbers of messages of epochs, and what one is as log and the pages of an epoch are.
        for (lengths, log, pages) in [
            ([10, 10, 1], 4_140, PAGES),
            ([1, 10, 19], 4_140, PAGES),
            ([10, 1, 1], 50, 600),
            ([1, 1, 10], 50, 600),
        ] {
            for shift in 0..3 {
                let (mut choice, mut behind, mut total, mut alone) = (FormChoice::default(), None, 0, [0, 0]);
                for at in 0..60_000 {
                    let log = log * lengths[(at + shift) % 3];
                    (alone[0], alone[1]) = (alone[0] + log, alone[1] + pages);
                    if let Some(backlog) = behind.take() {
                        total += pages + backlog;
                        choice.pages(pages + backlog, (backlog == 0).then_some(log));
                        behind = (!choice.wants_log()).then_some(0);
                    } else {
                        total += log;
                        behind = choice.log_sent(log).then_some(50 * pages);
                    }
                }
                let percent = total * 100 / alone[0].min(alone[1]);
                assert!(percent <= 105, "{lengths:?} of {log}, {pages}: {percent} % of the cheaper form");
            }
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
