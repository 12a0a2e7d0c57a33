//! Records of groups that a former life of this edge has left in the store (docs/protocol-epochs.md, "Groups").
//!
//! A primary that runs alone and dies takes its sessions with it, and no other edge may claim their group: its record would stay for
//! ever. So an edge that has used the store before reads the groups once. A record that names this edge and no backup is of a former
//! life, unless a shard of this one has asked for a claim of that group. It is removed by compare, and not before the ends of those
//! sessions have ended them: until then it keeps out edges that know less of them.
//!
//! A slot's group is left if the edge died before it took the slot, or if it had the only copy of the slot's cell. Whether a slot names it
//! is read just before the removal: what a former life had sent is written by then. Such a slot is removed, too, if it still has that
//! record: no client has asked for the cell since, so nothing has replaced it ([`super::slots`]).

use super::contents::{Claimed, Subject, decode, group_of, slot_group_of};
use super::slots::{SlotName, SlotRecord};
use super::{Ask, StoreEntry};
use alloc::{collections::BTreeSet, string::String, vec::Vec};
use marram_wire::frame::GroupId;

/// Records that one life of an edge removes at most: as many as a shard has slots.
pub const LEFTOVERS_MAX: usize = 16_384;
/// How long after they were read, in nanoseconds: longer than ends linger, if nothing else is asked for.
pub const LEFTOVERS_AFTER_NS: u64 = 3_600_000_000_000;

/// What is known of them.
#[derive(Debug)]
enum Phase {
    /// They are to be read; the keys of groups that were claimed since this life began.
    Unread { is_asked: bool, claimed: BTreeSet<String> },
    /// They are to be removed at this time.
    Read { at_ns: u64, records: Vec<(Subject, Claimed)> },
    /// They are to be removed, except for those of which a slot names the group.
    Due { records: Vec<(Subject, Claimed)> },
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

    /// What is to be read now, if anything is: the groups at first, the slots once it is time to remove something.
    pub(super) fn next_ask(&mut self, now_ns: u64) -> Option<Ask> {
        if let Phase::Unread { is_asked, .. } = &mut self.phase {
            return (!core::mem::replace(is_asked, true)).then_some(Ask::Groups);
        }
        if self.due_ns() > now_ns {
            return None;
        }
        let Phase::Read { records, .. } = core::mem::replace(&mut self.phase, Phase::Over) else {
            return None;
        };
        self.phase = Phase::Due { records };
        Some(Ask::Slots)
    }

    /// All groups that the store has.
    pub(super) fn read(&mut self, now_ns: u64, entries: &[StoreEntry]) {
        let Phase::Unread { claimed, .. } = core::mem::replace(&mut self.phase, Phase::Over) else { return };
        let left = |entry: &StoreEntry| {
            let of_slot = || slot_group_of(&entry.key).map(Subject::of_slot_group);
            let subject = group_of(&entry.key).or_else(of_slot)?;
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

    /// All slots that the store has. Returns what removes the records, and the slots that name them.
    pub(super) fn read_slots(&mut self, entries: &[StoreEntry]) -> Vec<Ask> {
        let Phase::Due { records } = core::mem::replace(&mut self.phase, Phase::Over) else {
            return Vec::new();
        };
        let slots: Option<Vec<(SlotName, SlotRecord)>> = entries
            .iter()
            .map(|entry| Some((SlotName::of_key(&entry.key)?, decode(&entry.value).ok()?)))
            .collect();
        let Some(slots) = slots else {
            // A slot of another version may name any of them.
            let of_sessions = |subject: &Subject| slot_group_of(&subject.generation_key()).is_none();
            return records.into_iter().filter(|(subject, _)| of_sessions(subject)).map(removal).collect();
        };
        let is_left = |group: GroupId| {
            let subject = Subject::of_slot_group(group);
            records.iter().any(|(left, _)| *left == subject)
        };
        let lost = slots.into_iter().filter(|(_, record)| is_left(record.group));
        let lost = lost.map(|(name, record)| Ask::Slot { name, take: None, from: Some(record) });
        // The slots first: none names a group without a record.
        lost.collect::<Vec<_>>().into_iter().chain(records.into_iter().map(removal)).collect()
    }

    /// When some are to be removed.
    pub(super) fn due_ns(&self) -> u64 {
        match &self.phase {
            Phase::Read { at_ns, .. } => *at_ns,
            Phase::Unread { .. } | Phase::Due { .. } | Phase::Over => u64::MAX,
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

fn removal((subject, record): (Subject, Claimed)) -> Ask {
    Ask::Claim { subject, from: Some(record), to: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::contents::{GROUPS, encode};
    use alloc::{format, vec};
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
        assert_eq!((left.next_ask(0), left.next_ask(0)), (Some(Ask::Groups), None));
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
        assert_eq!((left.due_ns(), left.next_ask(104)), (105, None));
        assert_eq!((left.next_ask(105), left.next_ask(u64::MAX - 1)), (Some(Ask::Slots), None));
        let (subject, from) = (Subject::Group(name('a')), Some(alone));
        assert_eq!(left.read_slots(&[]), [Ask::Claim { subject, from, to: None }]);
        assert_eq!(left.due_ns(), u64::MAX);
        assert_eq!((left.next_ask(u64::MAX), left.read_slots(&[])), (None, Vec::new()), "once");
    }

    #[test]
    fn the_slot_that_names_a_group_is_removed_with_it() {
        let alone = record("a", None);
        let named = |group| SlotRecord { incarnation: [7; 16], group: [group; 16] };
        let slot = |group| {
            let (key, value) = (SlotName([group; 16]).key(), encode(&named(group)));
            StoreEntry { key, value, version: 1, revision: 9 }
        };
        let unnamed = |group| Ask::Slot { name: SlotName([group; 16]), take: None, from: Some(named(group)) };
        let foreign =
            StoreEntry { key: "/marram/v1/slots/y".into(), value: encode(&7_u64), version: 1, revision: 9 };
        let of_slot = |group| Subject::of_slot_group([group; 16]);
        let of_sessions = Subject::of_group([0xbb; 16]);
        let all = vec![of_sessions.clone(), of_slot(0xaa), of_slot(0xbb)];
        for (slots, unnames, removed) in [
            (vec![], vec![], all.clone()),
            // The group of sessions with the id of a slot's group is another one.
            (vec![slot(0xbb)], vec![unnamed(0xbb)], all.clone()),
            (vec![slot(0xaa), slot(0xbb), slot(0xcc)], vec![unnamed(0xaa), unnamed(0xbb)], all),
            (vec![slot(0xbb), foreign], vec![], vec![of_sessions.clone()]),
        ] {
            let mut left = Leftovers::new("a".into(), 0);
            left.next_ask(0);
            let mut entries = vec![entry(&name('b'), &alone)];
            entries.extend(['a', 'b'].map(|digit| entry(&format!("slot-{}", name(digit)), &alone)));
            left.read(0, &entries);
            assert_eq!(left.next_ask(0), Some(Ask::Slots));
            let asks = left.read_slots(&slots);
            assert_eq!(asks[..unnames.len()], unnames);
            let claims = asks[unnames.len()..].iter();
            let subjects: Vec<Subject> = claims
                .map(|ask| match ask {
                    Ask::Claim { subject, from: Some(from), to: None } if *from == alone => subject.clone(),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(subjects, removed);
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_next_life() {
        let mut left = Leftovers::new("a".into(), 0);
        assert_eq!(left.next_ask(0), Some(Ask::Groups));
        left.unread();
        left.read(0, &[entry(&name('a'), &record("a", None))]);
        assert_eq!(left.next_ask(u64::MAX - 1), None);
        assert_eq!(Leftovers::default().next_ask(0), None, "the first life has nothing to read");
    }
}
