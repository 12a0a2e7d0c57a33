//! Records of groups that a former life of this edge has left in the store (docs/protocol-epochs.md, "Groups").
//!
//! A primary that runs alone and dies takes its sessions with it, and no other edge may claim their group: its record would stay for
//! ever. So an edge that has used the store before reads the groups once. A record that names this edge and no backup is of a former
//! life, unless a shard of this one has asked for a claim of that group. It is removed by compare, and not before the ends of those
//! sessions have ended them: until then it keeps out edges that know less of them.

use super::contents::{Claimed, Subject, decode, group_of};
use super::{Ask, StoreEntry};
use alloc::{collections::BTreeSet, string::String, vec::Vec};

/// Records that one life of an edge removes at most.
pub const LEFTOVERS_MAX: usize = 1_024;
/// How long after they were read, in nanoseconds: longer than ends linger, if nothing else is asked for.
pub const LEFTOVERS_AFTER_NS: u64 = 3_600_000_000_000;

/// What is known of them.
#[derive(Debug)]
enum Phase {
    /// They are to be read; the keys of groups that were claimed since this life began.
    Unread { is_asked: bool, claimed: BTreeSet<String> },
    /// They are to be removed at this time.
    Read { at_ns: u64, records: Vec<(Subject, Claimed)> },
    /// There is nothing to do.
    Over,
}

/// The records that a former life has left.
#[derive(Debug)]
pub(super) struct Leftovers {
    edge: String,
    after_ns: u64,
    phase: Phase,
    removed: u64,
}

impl Default for Leftovers {
    fn default() -> Self {
        Self { edge: String::new(), after_ns: 0, phase: Phase::Over, removed: 0 }
    }
}

impl Leftovers {
    /// Of an edge that has used the store in a former life.
    pub(super) fn new(edge: String, after_ns: u64) -> Self {
        let phase = Phase::Unread { is_asked: false, claimed: BTreeSet::new() };
        Self { edge, after_ns, phase, removed: 0 }
    }

    /// A claim of this life is sent.
    pub(super) fn claims(&mut self, subject: &Subject) {
        if let Phase::Unread { claimed, .. } = &mut self.phase {
            claimed.insert(subject.generation_key());
        }
    }

    /// Whether the groups are to be read now. True once.
    pub(super) fn must_read(&mut self) -> bool {
        match &mut self.phase {
            Phase::Unread { is_asked, .. } => !core::mem::replace(is_asked, true),
            Phase::Read { .. } | Phase::Over => false,
        }
    }

    /// All groups that the store has.
    pub(super) fn read(&mut self, now_ns: u64, entries: &[StoreEntry]) {
        let Phase::Unread { claimed, .. } = core::mem::replace(&mut self.phase, Phase::Over) else { return };
        let left = |entry: &StoreEntry| {
            let subject = group_of(&entry.key)?;
            let record = decode::<Claimed>(&entry.value).ok()?;
            let is_left =
                record.primary == self.edge && record.backup.is_none() && !claimed.contains(&entry.key);
            is_left.then_some((subject, record))
        };
        let records: Vec<_> = entries.iter().filter_map(left).take(LEFTOVERS_MAX).collect();
        if !records.is_empty() {
            self.phase = Phase::Read { at_ns: now_ns.saturating_add(self.after_ns), records };
        }
    }

    /// They cannot be read: the next life tries again.
    pub(super) fn unread(&mut self) {
        self.phase = Phase::Over;
    }

    /// What removes them, once it is time.
    pub(super) fn due(&mut self, now_ns: u64) -> Vec<Ask> {
        if self.due_ns() > now_ns {
            return Vec::new();
        }
        let Phase::Read { records, .. } = core::mem::replace(&mut self.phase, Phase::Over) else {
            return Vec::new();
        };
        let remove = |(subject, record)| Ask::Claim { subject, from: Some(record), to: None };
        records.into_iter().map(remove).collect()
    }

    /// When some are to be removed.
    pub(super) fn due_ns(&self) -> u64 {
        match &self.phase {
            Phase::Read { at_ns, .. } => *at_ns,
            Phase::Unread { .. } | Phase::Over => u64::MAX,
        }
    }

    /// One is removed.
    pub(super) fn removed(&mut self) {
        self.removed += 1;
    }

    /// How many were removed.
    pub(super) fn count(&self) -> u64 {
        self.removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::contents::{GROUPS, encode};
    use alloc::format;
    use marram_wire::id::Generation;

    fn record(primary: &str, backup: Option<&str>) -> Claimed {
        let generation = Generation { count: 3, opener: 9 };
        Claimed { generation, primary: primary.into(), backup: backup.map(Into::into) }
    }

    fn name(digit: char) -> String {
        core::iter::repeat_n(digit, 32).collect()
    }

    fn entry(name: &str, record: &Claimed) -> StoreEntry {
        StoreEntry { key: format!("{GROUPS}{name}"), value: encode(record), version: 1, revision: 7 }
    }

    #[test]
    fn only_what_a_former_life_had_alone_is_removed_and_not_before_it_is_time() {
        let alone = record("a", None);
        let mut left = Leftovers::new("a".into(), 100);
        assert!(left.must_read() && !left.must_read());
        left.claims(&Subject::Group(name('b')));
        left.read(
            5,
            &[
                entry(&name('a'), &alone),
                // This life has it.
                entry(&name('b'), &alone),
                // Its backup may claim it.
                entry(&name('c'), &record("a", Some("x"))),
                // Another edge may live.
                entry(&name('d'), &record("x", None)),
                // No shard names a group so.
                entry("payments", &alone),
            ],
        );
        assert_eq!((left.due_ns(), left.due(104)), (105, Vec::new()));
        let (subject, from) = (Subject::Group(name('a')), Some(alone));
        assert_eq!(left.due(105), [Ask::Claim { subject, from, to: None }]);
        assert_eq!((left.due_ns(), left.due(u64::MAX)), (u64::MAX, Vec::new()), "once");
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_next_life() {
        let mut left = Leftovers::new("a".into(), 0);
        assert!(left.must_read());
        left.unread();
        left.read(0, &[entry(&name('a'), &record("a", None))]);
        assert!(!left.must_read() && left.due(u64::MAX - 1).is_empty());
        assert!(!Leftovers::default().must_read(), "the first life has nothing to read");
    }
}
