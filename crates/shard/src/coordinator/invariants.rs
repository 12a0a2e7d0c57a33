//! The local invariants of the embedded store, of an edge's questions and of its list of standbys, by their number in
//! docs/protocol.md.

use super::contents::{NAME_BYTES_MAX, PART_SESSIONS_MAX, PARTS, part_of};
use super::store::{Slot, Store};
use super::{
    ASKS_MAX, HISTORY_BYTES_MAX, HISTORY_MAX, KEY_BYTES_MAX, KEYS_MAX, LEASES_MAX, Lease, Placements,
    REPORTS_MAX, STORE_BYTES_MAX, VALUE_BYTES_MAX, asks::Asks,
};
use alloc::string::String;
use bytes::Bytes;
use marram_session::{holds, invariant::BrokenInvariant};

impl Store {
    /// Checks I41 of docs/protocol.md, as far as it concerns the store. Goes through all keys and changes.
    ///
    /// # Errors
    /// If it does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        let size = |key: &String, value: &Bytes| key.len() + value.len();
        let bytes = self.slots.iter().map(|(key, slot)| size(key, &slot.value)).sum::<usize>();
        holds!("I41", self.bytes == bytes && self.bytes <= STORE_BYTES_MAX);
        holds!("I41", self.slots.len() <= KEYS_MAX && self.leases.len() <= LEASES_MAX);
        for (key, slot) in &self.slots {
            self.slot_invariants(key, slot)?;
        }
        for (lease, term) in &self.leases {
            holds!("I41", lease.0 <= self.revision && self.deadlines.contains(&(term.until_ns, *lease)));
            let is_under = |key: &String| self.slots.get(key).is_some_and(|slot| slot.lease == Some(*lease));
            holds!("I41", term.keys.iter().all(is_under));
        }
        // With the above, deadlines and leases are one to one.
        holds!("I41", self.deadlines.len() == self.leases.len());
        self.history_invariants()
    }

    /// Cheap enough to be checked after each request in tests: stores of tests that fill it are checked once in
    /// a while.
    pub(super) fn check(&self) -> Result<(), BrokenInvariant> {
        let often = self.slots.len() + self.history.len() <= 256;
        if often || self.revision.is_multiple_of(1_024) { self.invariants() } else { Ok(()) }
    }

    fn slot_invariants(&self, key: &String, slot: &Slot) -> Result<(), BrokenInvariant> {
        holds!("I41", (1..=KEY_BYTES_MAX).contains(&key.len()) && slot.value.len() <= VALUE_BYTES_MAX);
        holds!("I41", slot.revision <= self.revision);
        let lists = |lease: Lease| self.leases.get(&lease).is_some_and(|term| term.keys.contains(key));
        holds!("I41", slot.lease.is_none_or(lists));
        Ok(())
    }

    /// The history goes on from `remembered` to the newest change, without two changes of one revision.
    fn history_invariants(&self) -> Result<(), BrokenInvariant> {
        let size = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        let bytes = self.history.iter().map(|change| change.key.len() + size(&change.value)).sum::<usize>();
        holds!("I41", self.history_bytes == bytes && self.history_bytes <= HISTORY_BYTES_MAX);
        holds!("I41", self.history.len() <= HISTORY_MAX);
        let mut last = self.remembered;
        for change in &self.history {
            holds!("I41", last < change.revision);
            last = change.revision;
        }
        holds!("I41", last <= self.revision);
        Ok(())
    }
}

impl Asks {
    /// Checks I41 of docs/protocol.md, as far as it concerns questions and reports. `tags` is the newest tag of a
    /// request.
    pub(super) fn invariants(&self, tags: u64, is_there: bool) -> Result<(), BrokenInvariant> {
        let (waiting, sent, lending) = self.counts();
        holds!("I41", sent <= ASKS_MAX);
        holds!("I41", self.held() == 0 || is_there);
        // Other questions wait only for others in flight: while the coordinator is away, all but one claim are answered at once.
        holds!("I41", waiting == 0 || (is_there && sent == ASKS_MAX));
        // Reports in flight are put back if their write fails.
        holds!("I41", self.reports_waiting() <= REPORTS_MAX + ASKS_MAX);
        holds!("I41", lending.is_none_or(|tag| tag <= tags && !self.waits_for(tag)));
        Ok(())
    }
}

impl Placements {
    /// Checks I40 of docs/protocol.md, as far as it concerns the list of standbys of an edge with so many shards.
    pub(crate) fn invariants(&self, shards: u8) -> Result<(), BrokenInvariant> {
        holds!("I40", self.parts().len() == usize::from(PARTS));
        for (number, part) in (0..PARTS).zip(self.parts()) {
            holds!("I40", part.sessions.len() <= PART_SESSIONS_MAX && part.version <= self.version());
            for (session, (shard, at)) in &part.sessions {
                holds!("I40", part_of(*session) == number && *shard < shards);
                holds!("I40", at.standby.len() <= NAME_BYTES_MAX);
            }
        }
        Ok(())
    }
}
