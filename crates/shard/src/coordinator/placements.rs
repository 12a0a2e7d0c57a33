//! The standbys of an edge's sessions, as the edge reports them to its coordinator: a bounded list in a fixed number of parts,
//! chosen by the session's id. A part is one value of the store, so a thousand sessions that begin together need only a few
//! writes.

use super::contents::{Listed, NAME_BYTES_MAX, PART_SESSIONS_MAX, PARTS, Stands, encode, part_of};
use alloc::{collections::BTreeMap, vec::Vec};
use bytes::Bytes;
use marram_wire::id::SessionId;

/// The changed parts of an edge's list: number and value; the value is empty if the part has no session.
pub type Parts = Vec<(u8, Bytes)>;

/// One value of the store: the sessions of one part.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// With the shard that reported it.
    pub(super) sessions: BTreeMap<SessionId, (u8, Stands)>,
    /// The list's version when it changed last.
    pub(super) version: u64,
}

/// The list of one edge, over its shards.
#[derive(Debug)]
pub struct Placements {
    parts: Vec<Part>,
    version: u64,
    dropped: u64,
}

impl Default for Placements {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| Part::default()).collect();
        Self { parts, version: 0, dropped: 0 }
    }
}

impl Placements {
    /// A shard's report on one of its sessions: its standby, or none.
    pub fn placed(&mut self, shard: u8, session: SessionId, at: Option<Stands>) {
        let part = &mut self.parts[usize::from(part_of(session))];
        let there = part.sessions.get(&session);
        match at {
            // Another shard of this edge may own it by now.
            None if there.is_some_and(|(owner, _)| *owner == shard) => drop(part.sessions.remove(&session)),
            None => return,
            // A late report of the shard that owned it before.
            Some(at) if there.is_some_and(|(_, newer)| newer.generation > at.generation) => return,
            Some(at)
                if at.standby.len() > NAME_BYTES_MAX
                    || (there.is_none() && part.sessions.len() >= PART_SESSIONS_MAX) =>
            {
                self.dropped += 1;
                return;
            }
            Some(at) => drop(part.sessions.insert(session, (shard, at))),
        }
        self.version += 1;
        part.version = self.version;
    }

    /// A shard died and owns no sessions any more.
    pub fn shard_gone(&mut self, shard: u8) {
        self.version += 1;
        for part in &mut self.parts {
            let before = part.sessions.len();
            part.sessions.retain(|_, (owner, _)| *owner != shard);
            if part.sessions.len() < before {
                part.version = self.version;
            }
        }
    }

    /// The parts that changed after a version, and the newest version.
    #[must_use]
    pub fn since(&self, version: u64) -> (u64, Parts) {
        let changed = (0..PARTS).zip(&self.parts).filter(|(_, part)| part.version > version);
        let value = |part: &Part| {
            let listed = |(session, (_, at)): (&SessionId, &(u8, Stands))| Listed {
                session: *session,
                at: at.clone(),
            };
            let listed: Vec<Listed> = part.sessions.iter().map(listed).collect();
            if listed.is_empty() { Bytes::new() } else { encode(&listed) }
        };
        (self.version, changed.map(|(number, part)| (number, value(part))).collect())
    }

    /// All parts, in order.
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Counts the changes of the list. It does not go back.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Sessions on the list.
    #[must_use]
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| part.sessions.len()).sum()
    }

    /// How often a session was omitted because its part was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
