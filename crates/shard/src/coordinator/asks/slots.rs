//! Questions about slots: the slot's record, then the claim of the group that it names. A slot without a record can be taken. A record
//! is replaced or removed only by a question that names it.

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
        let Ask::Slot { name, take, from } = &pending.ask else { return };
        let (expect, value) = entry.map_or((0, None), |entry| (entry.revision, Some(entry.value)));
        if let Some(record) = pending.slot.clone() {
            let claim = read(value, AskAnswer::Holder);
            let AskAnswer::Holder(holder) = claim else { return answer(&pending, claim, out) };
            return answer(&pending, AskAnswer::Slot(Some(SlotHeld { record, holder })), out);
        }
        let there = match value.map(|value| decode::<SlotRecord>(&value)).transpose() {
            Ok(there) => there,
            Err(error) => return answer(&pending, unreadable(&error), out),
        };
        let is_change = take.is_some() || from.is_some();
        let request = match there {
            // An earlier attempt was written, and its answer got lost.
            there if is_change && there == *take => return answer(&pending, AskAnswer::Won, out),
            // A record that is not named by the question is never overwritten.
            there if is_change && (there.is_none() || there == *from) => {
                let Deciding::May(store, least) = self.deciding.clone() else {
                    return self.held.push_back(pending);
                };
                let (key, value) = (name.key(), take.as_ref().map(encode));
                if !pending.tries_again(out) {
                    return;
                }
                pending.under = Some(store.clone());
                StoreRequest::Decide { key, expect, value, store, least }
            }
            None => return answer(&pending, AskAnswer::Slot(None), out),
            Some(there) => {
                let key = Subject::of_slot_group(there.group).generation_key();
                pending.slot = Some(there);
                StoreRequest::Get { key }
            }
        };
        self.sent.insert(tag, pending);
        out.push(CoordinatorOutput::Send { tag, request });
    }
}
