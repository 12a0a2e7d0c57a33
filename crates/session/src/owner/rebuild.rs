//! Rebuilds a shared cell from what its owner keeps for itself: the memory of the cell, with its timers, tasks and pauses.
//!
//! Beside the owner's own state, which stands: nothing of the entry that was stopped is logged, and clients come, go and acknowledge
//! meanwhile. Replays, and compares; what follows from that is in [`super::traps`].

use super::{about::About, end_state::EndState, ends::Ends, state::CellState, tape::Tape};
use crate::{
    cell::{CellStop, Ran, RunOutcome, Seed},
    replay::{Handler, LogReplayError, ReplayCursor, Step},
};
use alloc::string::{String, ToString};
use bytes::Bytes;
use marram_wire::{header::Header, id::SessionId, log::Cursor};

/// A cell that is rebuilt, with the state that follows from the log: beside that of the owner, which goes on.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// Why the cell was stopped.
    reason: String,
    has_begun: bool,
    ends: Ends,
    state: CellState,
    /// Once the cell can run.
    cursor: Option<ReplayCursor>,
    /// Entries that were replayed.
    entries: u64,
}

impl Rebuild {
    /// Of this cell, which had this seed, and was stopped for this reason.
    pub(super) fn new(cell: SessionId, seed: Seed, reason: String) -> Self {
        let mut state = CellState::new(seed);
        state.is_opened = true;
        Self { reason, has_begun: false, ends: Ends::of_shared_cell(cell), state, cursor: None, entries: 0 }
    }

    /// The cell is started or restored; these messages are consumed again.
    pub(super) fn begin(&mut self, tape: Tape) {
        self.has_begun = true;
        if let Some(list) = &mut self.ends.ports {
            list.tape = tape;
        }
    }

    /// Why the cell was stopped, while it is not started or restored yet.
    pub(super) fn waits(&self) -> Option<&str> {
        (!self.has_begun).then_some(&self.reason)
    }

    /// The cell can run, as at its start, or as in the checkpoint with this header: this log follows. False if the header is of another cell.
    pub(super) fn stands(&mut self, header: Option<&mut Header>, log: Bytes) -> bool {
        let mut cursor = Cursor::default();
        if let Some(header) = header {
            cursor.last_ns = header.last_ns;
            if !self.ends.are_in(header) || !self.ends.restore_clients(header) {
                return false;
            }
            self.state.restore(header);
        }
        self.cursor = Some(ReplayCursor::new(log, cursor));
        true
    }

    /// The next handler; none at the end of the log.
    pub(super) fn next(&mut self, about: &About) -> Result<Option<Handler>, LogReplayError> {
        let cursor = self.cursor.as_mut().ok_or(LogReplayError::Missing)?;
        loop {
            match cursor.next_step(|event| self.state.inputs_of(event, &mut self.ends))? {
                Step::Run(handler) => return Ok(Some(handler)),
                Step::End => return Ok(None),
                Step::Entry => end_entry(&mut self.ends, &mut self.state, about),
            }
            self.entries += 1;
        }
    }

    /// A handler has done what the log says, or an error.
    pub(super) fn ran(&mut self, about: &About, ran: &Ran) -> Result<(), String> {
        let cursor = self.cursor.as_mut().ok_or("it has no log")?;
        let now_ns = cursor.now_ns();
        if let RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)) = &ran.outcome {
            return Err(reason.clone());
        }
        let whole = cursor
            .ran(ran.clock_read, &ran.reads)
            .map_err(|_| "a handler read something else".to_string())?;
        self.state.apply(&mut self.ends, about.context(), now_ns, ran)?;
        // What is sent is what the owner has.
        self.ends.iter_mut().for_each(EndState::drop_outbox);
        if whole {
            end_entry(&mut self.ends, &mut self.state, about);
            self.entries += 1;
        }
        Ok(())
    }

    /// Entries that were replayed.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// What follows from the log beside the cell's memory.
    pub(super) fn into_state(self) -> CellState {
        self.state
    }

    /// Whether its clients are those of the owner, and as far.
    pub(super) fn is_as(&self, ends: &Ends) -> bool {
        let place = |side: &EndState| {
            let client = side.client.as_ref().map(|it| (it.client.clone(), it.expelled));
            (side.port, client, [side.took, side.produced], [side.input_closed, side.output_closed])
        };
        self.ends.iter().map(place).eq(ends.iter().map(place))
    }
}

/// All handlers of an entry have run again.
fn end_entry(ends: &mut Ends, state: &mut CellState, about: &About) {
    ends.port_entry_ended(None);
    state.end_entry(ends, about);
}

impl EndState {
    /// Its outputs are the owner's to send.
    fn drop_outbox(&mut self) {
        self.outbox.clear();
        (self.outbox_charge, self.unsent_charge, self.sent) = (0, 0, 0);
    }
}
