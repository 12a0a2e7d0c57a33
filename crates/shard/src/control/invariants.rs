//! The control's local invariants, by their number in docs/protocol.md.

use super::{Control, FETCHES_MAX, Question};
use alloc::collections::BTreeSet;
use marram_session::{holds, invariant::BrokenInvariant};

impl Control {
    /// Checks I40 of docs/protocol.md.
    ///
    /// # Errors
    /// If it does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        let exists = |shard: &u8| *shard < self.config.shards;
        holds!("I40", self.up.iter().chain(&self.drained).all(exists));
        holds!("I40", self.drained.is_empty() || self.draining);
        for (version, app) in &self.versions {
            holds!("I40", app.version() == *version);
        }
        for (name, app) in &self.apps {
            // A session may name the version of any deployed app, here or on a shard that starts later.
            holds!("I40", app.name == *name && self.versions.contains_key(&app.version()));
        }
        holds!("I40", self.fetching.len() <= FETCHES_MAX);
        for shards in self.fetching.values() {
            holds!("I40", !shards.is_empty() && shards.iter().all(exists));
        }
        self.questions.values().try_for_each(|question| self.question_invariants(question))?;
        self.moves.invariants()?;
        self.placements.invariants(self.config.shards)
    }

    /// A question waits for shards that can still answer it, for each once. So none waits for ever.
    fn question_invariants(&self, question: &Question) -> Result<(), BrokenInvariant> {
        let waiting: BTreeSet<u8> = question.waiting.iter().copied().collect();
        holds!("I40", !waiting.is_empty() && waiting.len() == question.waiting.len());
        holds!("I40", waiting.is_subset(&self.up));
        Ok(())
    }
}
