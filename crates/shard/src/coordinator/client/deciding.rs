//! Whether the store has lost decisions, as the client learns it with everything else (see `memory.rs`).

use super::{CoordinatorClient, CoordinatorOutput, CoordinatorState};
use crate::{
    coordinator::{
        AskAnswer, SlotHeld, StoreEntry, StoreFailure, StoreReply,
        asks::Said,
        contents::{STORE, StoreRecord, encode},
        memory::Deciding,
    },
    note_level::NoteLevel,
};
use alloc::{format, vec::Vec};
use bytes::Bytes;

impl CoordinatorClient {
    /// The answer to a question of this edge, or to a report.
    pub(super) fn ask_answered(
        &mut self,
        now_ns: u64,
        tag: u64,
        result: Result<StoreReply, StoreFailure>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if result.is_ok() {
            // The store is reachable: what the client itself waits to ask is asked now.
            self.failures = 0;
            if matches!(self.state, CoordinatorState::Away { .. }) {
                self.retry_ns = now_ns;
            }
        }
        // What a decision makes true must be remembered before its answer is used.
        let mut said = Vec::new();
        match self.asks.answered(now_ns, tag, result, &mut said) {
            Some(Said::Failed(StoreFailure::Unreachable(why))) => self.go_away(now_ns, why, out),
            Some(Said::Decided(record, decisions, revision)) => {
                self.memory.decided(&record, decisions, revision);
                self.remember(now_ns, true, out);
            }
            // Its record is read again, with everything else.
            Some(Said::OtherStore) => self.watch = None,
            Some(Said::Failed(StoreFailure::Refused(_))) | None => {}
        }
        out.append(&mut said);
    }

    /// A read has shown the store's record, or that there is none.
    pub(super) fn store_read(
        &mut self,
        read: u64,
        entry: Option<&StoreEntry>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let there = entry.map(|entry| (&entry.value, entry.version, entry.revision));
        if !self.memory.read(read, there) {
            self.unreadable(STORE, out);
        }
        self.tell_doubt(out);
    }

    /// A watch, or the answer to a write, shows the store's record: value, version, revision.
    pub(super) fn shown(
        &mut self,
        revision: u64,
        there: Option<(&Bytes, u64, u64)>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if !self.memory.shown(revision, there) {
            self.unreadable(STORE, out);
        }
        self.tell_doubt(out);
    }

    /// Logs once that the store has lost decisions, and once that this is over.
    pub(super) fn tell_doubt(&mut self, out: &mut Vec<CoordinatorOutput>) {
        let text = match self.memory.deciding() {
            Deciding::Not(why) if !self.is_doubt_told => {
                Some((NoteLevel::Error, format!("no decision is taken: {why}")))
            }
            Deciding::May(..) if self.is_doubt_told => {
                let text = "the loss of the coordinator's store is accepted: decisions are taken again";
                Some((NoteLevel::Info, text.into()))
            }
            _ => None,
        };
        if let Some((level, text)) = text {
            self.is_doubt_told = level == NoteLevel::Error;
            out.push(CoordinatorOutput::Log(level, text));
        }
    }

    /// With another edge of its name, this one cannot tell whether a cell that is said to be its own has run in a former life, and is lost,
    /// or runs at the other edge.
    pub(super) fn answer_no_own_slot(&self, out: &mut [CoordinatorOutput]) {
        for out in out {
            if let CoordinatorOutput::Asked { answer, .. } = out
                && let AskAnswer::Slot(Some(SlotHeld { holder: Some(holder), .. })) = answer
                && holder.primary == self.config.edge
            {
                *answer = AskAnswer::Refused(format!(
                    "the app's cell is at edge `{}`, and two edges register themselves with that name: give each its own `name`",
                    holder.primary
                ));
            }
        }
    }

    pub(super) fn remember(&mut self, now_ns: u64, is_urgent: bool, out: &mut Vec<CoordinatorOutput>) {
        out.extend(self.memory.due_to_save(now_ns, is_urgent).map(CoordinatorOutput::Remember));
    }

    /// A record of a store that this edge begins; no two that it begins have one identity.
    pub(super) fn new_store(&self) -> Bytes {
        let mut identity = self.config.identity;
        for (byte, count) in identity.iter_mut().zip(self.tags.to_le_bytes()) {
            *byte ^= count;
        }
        encode(&StoreRecord { identity, accepted: Vec::new() })
    }
}
