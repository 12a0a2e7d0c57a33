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
    key::CellKey,
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

    /// The number of the slot that the cell of a key is in, of an app with so many; 0 if all its clients share one cell.
    #[must_use]
    pub fn number(key: Option<&CellKey>, slots: u32) -> u32 {
        let Some(key) = key.filter(|_| slots > 1) else { return 0 };
        let mut hasher = blake3::Hasher::new_derive_key("marram 2026 slot number");
        hasher.update(key.bytes());
        let mut number = [0; 8];
        number.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u32::try_from(u64::from_le_bytes(number) % u64::from(slots)).unwrap_or_default()
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
    /// The session id of the slot's first cell with this key, if the app has one for each key. No client is told it.
    #[must_use]
    pub fn cell(&self, key: Option<&CellKey>) -> SessionId {
        let mut hasher = blake3::Hasher::new_derive_key("marram 2026 cell id");
        hasher.update(&self.incarnation).update(key.map_or(&[], CellKey::bytes));
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
    fn keys_are_spread_evenly_and_alike_at_every_edge() {
        let key = |number: u32| CellKey::new(number.to_le_bytes().to_vec()).ok();
        let mut counts = [0_u32; 64];
        for number in 0..100_000 {
            let slot = SlotName::number(key(number).as_ref(), 64);
            counts[slot as usize] += 1;
        }
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(least >= Some(&1_400) && most <= Some(&1_725), "{counts:?}");
        let known = CellKey::new(&b"/rooms/chess"[..]).ok();
        assert_eq!(SlotName::number(known.as_ref(), 1_024), 599);
        assert_eq!((SlotName::number(known.as_ref(), 1), SlotName::number(None, 64)), (0, 0));
    }

    #[test]
    fn a_cell_is_named_by_incarnation_and_key() {
        let [first, again] =
            [1, 2].map(|incarnation| SlotRecord { incarnation: [incarnation; 16], group: [3; 16] });
        let key = CellKey::new(&b"a"[..]).ok();
        assert_ne!(first.cell(None), again.cell(None));
        assert_ne!(first.cell(None), first.cell(key.as_ref()));
        assert_eq!(first.cell(None), SlotRecord { group: [4; 16], ..first.clone() }.cell(None));
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
