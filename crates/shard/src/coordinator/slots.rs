//! Slots: where in the domain the one cell of a protected shared app is (docs/protocol-epochs.md, "Slots"). A slot's record says which
//! group has its cell; the group's claim says which edge runs that.
//!
//! A record is written once, by a decision that expects none, and has no lease. Only an operator changes it.

use super::contents::{Claimed, id_of_digits};
use crate::app_version::AppVersion;
use alloc::{format, string::String};
use bytes::{Bytes, BytesMut};
use core::fmt;
use marram_wire::{
    codec::{self, Field},
    frame::GroupId,
    id::SessionId,
    record,
};

/// The prefix of the keys of slots' records.
pub const SLOTS: &str = "/marram/v1/slots/";

/// Names a slot: a digest of the app's name, its image and the slot's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotName(pub [u8; 16]);

impl SlotName {
    /// The slot with this number of a version of an app. A new version has slots, and cells, of its own.
    #[must_use]
    pub fn of(app: &AppVersion, number: u32) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("marram 2026 slot name");
        hasher.update(&app.image.0).update(&number.to_le_bytes()).update(app.app.as_bytes());
        Self(first_half(&hasher))
    }

    /// The slot of a version of an app whose clients all share one cell.
    #[must_use]
    pub fn only(app: &AppVersion) -> Self {
        Self::of(app, 0)
    }

    /// The key of its record.
    #[must_use]
    pub fn key(self) -> String {
        format!("{SLOTS}{self}")
    }

    /// The slot that a key is the record of.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        id_of_digits(key.strip_prefix(SLOTS)?).map(Self)
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Field for SlotName {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, codec::Error> {
        Field::take(from).map(Self)
    }
}

record! {
    /// What a slot's record has.
    SlotRecord {
        /// Random, drawn by the edge that took the slot: no two lives of a slot's cell have one.
        incarnation: [u8; 16],
        /// The group that has the cell.
        group: GroupId,
    }
}

impl SlotRecord {
    /// The session id of the slot's cell with this key; a slot with one cell has the empty key. No client is told it.
    #[must_use]
    pub fn cell(&self, key: &[u8]) -> SessionId {
        let mut hasher = blake3::Hasher::new_derive_key("marram 2026 cell id");
        hasher.update(&self.incarnation).update(key);
        SessionId(first_half(&hasher))
    }
}

fn first_half(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    half
}

record! {
    /// A slot that is taken.
    SlotHeld {
        /// Its record.
        record: SlotRecord,
        /// The newest claim of its group; none if the group has no record.
        holder: Option<Claimed>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::contents::{GROUPS, PREFIX, Subject, decode, encode, group_of, slot_group_of};
    use alloc::vec::Vec;
    use marram_wire::id::{Generation, ImageHash};

    fn version(app: &str, image: u8) -> AppVersion {
        AppVersion { app: app.into(), image: ImageHash([image; 32]) }
    }

    #[test]
    fn a_slot_is_named_by_app_image_and_number() {
        let mut names: Vec<_> = [("hall", 1, 0), ("hall", 2, 0), ("hall", 1, 1), ("room", 1, 0), ("", 1, 0)]
            .map(|(app, image, number)| SlotName::of(&version(app, image), number))
            .into();
        assert_eq!(names[0], SlotName::of(&version("hall", 1), 0), "at every edge");
        assert_eq!(names[0].key(), format!("{PREFIX}slots/{}", names[0]));
        assert_eq!(SlotName::of_key(&names[0].key()), Some(names[0]));
        assert_eq!(SlotName::of_key("/marram/v1/slots/x"), None);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn a_cell_is_named_by_incarnation_and_key() {
        let [first, again] =
            [1, 2].map(|incarnation| SlotRecord { incarnation: [incarnation; 16], group: [3; 16] });
        assert_ne!(first.cell(b""), again.cell(b""));
        assert_ne!(first.cell(b""), first.cell(b"a"));
        assert_eq!(first.cell(b""), SlotRecord { group: [4; 16], ..first.clone() }.cell(b""));
    }

    #[test]
    fn a_slots_group_is_no_group_of_sessions() {
        let group = [0xa5; 16];
        let (own, other) = (Subject::of_slot_group(group), Subject::of_group(group));
        assert_eq!(slot_group_of(&own.generation_key()), Some(group));
        assert_eq!(group_of(&own.generation_key()), None);
        assert_eq!(slot_group_of(&other.generation_key()), None);
        assert_eq!(group_of(&other.generation_key()), Some(other));
        for name in ["slot-", "slot-a5", "slot-A5A5A5A5A5A5A5A5A5A5A5A5A5A5A5A5", "slot-payments"] {
            assert_eq!(slot_group_of(&format!("{GROUPS}{name}")), None, "{name}");
        }
        let digits = "é5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";
        assert_eq!((digits.len(), slot_group_of(&format!("{GROUPS}slot-{digits}"))), (32, None));
    }

    #[test]
    fn records_survive_and_each_cut_is_refused() {
        let record = SlotRecord { incarnation: [1; 16], group: [2; 16] };
        let generation = Generation { count: 3, opener: 4 };
        let holder = Some(Claimed { generation, primary: "a".into(), backup: Some("b".into()) });
        let held = SlotHeld { record: record.clone(), holder };
        let (short, long) = (encode(&record), encode(&held));
        assert_eq!((short.len(), decode(&short), decode(&long)), (32, Ok(record), Ok(held)));
        for cut in 0..short.len() {
            assert!(decode::<SlotRecord>(&short.slice(..cut)).is_err());
        }
        for cut in 0..long.len() {
            assert!(decode::<SlotHeld>(&long.slice(..cut)).is_err());
        }
    }
}
