//! The events of a run as one number, which is equal for equal runs, and, if requested, as text.
//!
//! The hash covers every frame that was delivered and everything that programs did, so it differs
//! as soon as two runs differ. It is not cryptographic. Text is never hashed: a message may be
//! reworded without changing what a seed is.

use marram_session::trace::{self, TraceEvent, TraceHook};
use std::{cell::RefCell, collections::VecDeque, fmt::Write};

/// The last lines are the ones that explain a failure; a long seed has many times as many.
const LINES_KEPT: usize = 20_000;

thread_local! {
    /// What the machines of this thread have traced since it was last collected; none if this thread's seed has no text.
    static TRACED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Receives what the machines trace.
static HOOK: TraceHook = TraceHook(keep);

/// Called by the machines, on the thread that steps them. `switch` is for the whole process, so
/// threads without text get here too.
fn keep(event: TraceEvent<'_>) {
    TRACED.with_borrow_mut(|lines| {
        lines.iter_mut().for_each(|lines| lines.push(format!("{}: {}", event.context, event.text)));
    });
}

/// The trace of one seed.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    /// With text only if `verbose`: it costs more than the rest of the simulation.
    #[must_use]
    pub(crate) fn new(verbose: bool) -> Self {
        TRACED.set(verbose.then(Vec::new));
        if verbose {
            trace::set_hook(&HOOK);
            trace::switch(true);
        }
        Self { hash: 0, events: 0, lines: verbose.then(VecDeque::new) }
    }

    /// Records an event: some words that distinguish it from others, some bytes, and its text.
    // The number of events also bounds a seed: see `world::EVENTS_MAX`.
    pub(crate) fn note(&mut self, now_ns: u64, words: &[u64], bytes: &[u8], text: impl FnOnce() -> String) {
        self.count(now_ns, words, bytes);
        self.say(now_ns, text);
    }

    /// Records an event without text.
    pub(crate) fn count(&mut self, now_ns: u64, words: &[u64], bytes: &[u8]) {
        self.events += 1;
        self.mix(now_ns);
        words.iter().for_each(|word| self.mix(*word));
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// Adds text only: what the machines logged.
    pub(crate) fn say(&mut self, now_ns: u64, text: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        let mut line = String::new();
        let (ms, ns) = (now_ns / 1_000_000, now_ns % 1_000_000);
        write!(line, "{ms:>6}.{ns:06} {}", text()).expect("writing to a string");
        lines.push_back(line);
    }

    /// Adds what a machine has traced in its last step.
    ///
    /// Called after each step, while it is known which machine was stepped.
    pub(crate) fn collect(&mut self, now_ns: u64, machine: impl Fn() -> String) {
        if self.lines.is_some() {
            for line in
                TRACED.with_borrow_mut(|lines| lines.as_mut().map(std::mem::take)).into_iter().flatten()
            {
                self.say(now_ns, || format!("{} traces {line}", machine()));
            }
        }
    }

    /// One round of a multiply-and-shift hash, per word.
    fn mix(&mut self, word: u64) {
        let mixed = (self.hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Hash of all events: equal for equal runs.
    #[must_use]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events.
    #[must_use]
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// The last lines, if requested.
    #[must_use]
    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.map(Vec::from).unwrap_or_default()
    }
}
