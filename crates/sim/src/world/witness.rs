//! The witness of sessions without a server: a memory of what clients were seen to have, which is slow, or away for a time.

use super::{Event, World};
use crate::plan::{MS, US};
use crate::watch::Rare;
use marram_edge::api::{Saw, Seek, Testified};
use marram_edge::control;
use marram_edge::coordinator::contents::Witnessed;
use marram_wire::id::SessionId;
use std::collections::BTreeMap;

/// What is remembered.
pub(crate) type Memory = BTreeMap<SessionId, Witnessed>;

impl World {
    fn witness_is_away(&self) -> bool {
        let now_ns = self.queue.now_ns();
        let absences = self.plan.witness.as_ref().map_or(&[][..], |witness| &witness.away);
        absences.iter().any(|(from_ns, for_ns)| (*from_ns..from_ns + for_ns).contains(&now_ns))
    }

    /// A question arrives at once; the answer takes its time.
    pub(crate) fn ask_witness(&mut self, edge: usize, shard: u8, seek: Seek) {
        let Seek { session, generation } = seek;
        let away = self.witness_is_away();
        self.watch.count_if(Rare::WitnessAway, away);
        let seen = self.witness.get(&session).cloned();
        self.watch.count_if(Rare::WitnessVouched, !away && seen.is_some());
        let away = away.then(|| "it is away".to_string());
        let seen = seen.filter(|_| away.is_none());
        self.trace.say(self.queue.now_ns(), || {
            format!("E{edge}.{shard} asks the witness about {session} for {generation:?}: {seen:?}, {away:?}")
        });
        let testified = Testified { session, generation, seen, away };
        let (life, after_ns) = (self.edges[edge].life, self.witness_chance.magnitude(10 * US, 20 * MS));
        let input = control::In::Testified { shard, testified };
        self.queue.after(after_ns, Event::Control(edge, life, input));
    }

    /// A report takes its time, is overtaken, or waits until the witness is back.
    pub(crate) fn tell_witness(&mut self, saw: Saw) {
        let after_ns = self.witness_chance.magnitude(10 * US, 200 * MS);
        self.queue.after(after_ns, Event::Saw(saw));
    }

    pub(crate) fn saw(&mut self, saw: Saw) {
        if self.witness_is_away() {
            return self.queue.after(50 * MS, Event::Saw(saw));
        }
        let Saw { session, seen } = saw;
        let older = |there: &Witnessed| (there.generation, there.log_end) < (seen.generation, seen.log_end);
        if self.witness.get(&session).is_none_or(older) {
            self.witness.insert(session, seen);
        }
    }
}
