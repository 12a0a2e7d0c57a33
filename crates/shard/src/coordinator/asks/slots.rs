//! Questions about slots: the slot's record, then the claim of the group that it names. A slot without a record can be taken.

use super::{Asks, Deciding, Pending, answer, read, unreadable};
use crate::coordinator::{
    Ask, AskAnswer, CoordinatorOutput, SlotHeld, SlotRecord, StoreEntry, StoreRequest,
    contents::{Subject, decode, encode},
};
use alloc::vec::Vec;

impl Asks {
    /// Handles what the store has: the slot's record, or the claim of the group that it names.
    pub(super) fn look_at_slot(
        &mut self,
        tag: u64,
        mut pending: Pending,
        entry: Option<StoreEntry>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let Ask::Slot { name, take } = &pending.ask else { return };
        let value = entry.map(|entry| entry.value);
        if let Some(record) = pending.slot.clone() {
            let claim = read(value, AskAnswer::Holder);
            let AskAnswer::Holder(holder) = claim else { return answer(&pending, claim, out) };
            return answer(&pending, AskAnswer::Slot(Some(SlotHeld { record, holder })), out);
        }
        let there = match value.map(|value| decode::<SlotRecord>(&value)).transpose() {
            Ok(there) => there,
            Err(error) => return answer(&pending, unreadable(&error), out),
        };
        let request = match (there, take) {
            (None, None) => return answer(&pending, AskAnswer::Slot(None), out),
            // An earlier attempt was written, and its answer got lost.
            (Some(there), Some(take)) if there == *take => return answer(&pending, AskAnswer::Won, out),
            (Some(there), _) => {
                let key = Subject::of_slot_group(there.group).generation_key();
                pending.slot = Some(there);
                StoreRequest::Get { key }
            }
            (None, Some(take)) => {
                let Deciding::May(store, least) = self.deciding.clone() else {
                    return self.held.push_back(pending);
                };
                let (key, value) = (name.key(), Some(encode(take)));
                if !pending.tries_again(out) {
                    return;
                }
                pending.under = Some(store.clone());
                // A record that exists is never overwritten.
                StoreRequest::Decide { key, expect: 0, value, store, least }
            }
        };
        self.sent.insert(tag, pending);
        out.push(CoordinatorOutput::Send { tag, request });
    }
}
