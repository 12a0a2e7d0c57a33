//! Copies of cells for checkpoints: at once if the cell is small, in pieces between handlers if it is large.
//!
//! ```text
//! Prepare ─▶ preparing: a piece a turn of the loop, the cell runs ─▶ Prepared
//! Copy ────▶ whole at once, or the rest in pieces while the cell is held back ─▶ copied
//! Checkpoint ─▶ sealer, when it is copied and not small ─▶ Checkpointed
//! ```
//! A piece takes about a tenth of a millisecond, so no cell of the shard waits for a copy of another one. A large cell
//! itself is held back only for what it wrote since the last round.

use super::{Answer, Executor};
use marram_sandbox::{Snapshot, SnapshotError, limits::COPY_AT_ONCE_BYTES};
use marram_session::cell::{CellId, CheckpointBase, Run};
use marram_shard::api::ShardInput;
use marram_transport::freed_elsewhere;
use marram_wire::{
    header::{self, Header},
    seal::Seal,
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long the cells that are held back are copied before other work has its turn.
const HELD_TURN: Duration = Duration::from_micros(500);
/// With fewer buffers ready, more are made.
const BUFFERS_AHEAD: usize = 2;
/// A checkpoint of about so many bytes at most is sealed at once: waking the sealer for it would take longer.
const SEAL_AT_ONCE_BYTES: usize = 32 << 10;
/// How long a prepared copy is kept for the session to use it.
const PREPARED_KEPT: Duration = Duration::from_secs(10);

/// A cell's copy.
pub(super) enum CellCopy {
    /// Its rest is being made, and the cell is held back.
    Underway(Box<Underway>),
    /// It is whole, or could not be made; the reason is reported with the checkpoint, for which the shard waits anyway.
    Done(CheckpointBase, Result<Snapshot, SnapshotError>),
}

/// A copy whose rest is being made.
pub(super) struct Underway {
    base: CheckpointBase,
    /// The header and the seal, if the checkpoint was already asked for.
    sealing: Option<(Box<Header>, Seal)>,
    /// The handler that waits for the copy.
    held: Option<Run>,
}

/// A cell that is copied while it runs.
pub(super) struct Preparing {
    cell: CellId,
    base: CheckpointBase,
    /// Whether its turn has come: there was room for its copy.
    begun: bool,
    /// Whether the next piece waits for the end of a handler.
    waits: bool,
    /// Since when the copy is ready to be completed.
    ready: Option<Instant>,
}

impl Preparing {
    fn has_work(&self) -> bool {
        self.begun && !self.waits && self.ready.is_none()
    }
}

impl Executor {
    /// A cell has run a handler, or has been created: what the shard must know, once, if its memory has become large.
    pub(in crate::edge) fn notice_size(&mut self, cell: CellId) -> Option<ShardInput> {
        for preparing in &mut self.preparing {
            preparing.waits &= preparing.cell != cell;
        }
        let slot = self.slots.get_mut(&cell)?;
        if slot.session.is_some()
            && !slot.is_large
            && self.cells.memory_bytes(cell).is_some_and(|bytes| bytes > COPY_AT_ONCE_BYTES)
        {
            slot.is_large = true;
            return Some(ShardInput::Large { cell });
        }
        None
    }

    /// Begins to copy a large cell while it runs.
    pub(in crate::edge) fn prepare_copy(&mut self, cell: CellId, base: CheckpointBase) {
        self.preparing.retain(|preparing| preparing.cell != cell);
        self.preparing.push_back(Preparing { cell, base, begun: false, waits: false, ready: None });
        self.begin_preparing();
    }

    /// Lets cells begin that wait for their turn, in order, as far as there is room for their copies. One may always be in
    /// progress, so that each has its turn however much others keep. What a copy will take is not known before it is whole, so the
    /// cell's memory counts until then.
    pub(super) fn begin_preparing(&mut self) {
        if self.preparing.iter().all(|preparing| preparing.begun) {
            return;
        }
        let memory = |preparing: &Preparing| self.cells.memory_bytes(preparing.cell).unwrap_or(0);
        let growing = self.preparing.iter().filter(|preparing| preparing.begun && preparing.ready.is_none());
        let mut bytes =
            growing.map(memory).fold(self.cells.copy_buffers().in_copies(), usize::saturating_add);
        let mut is_idle = !self.preparing.iter().any(Preparing::has_work);
        for preparing in self.preparing.iter_mut().filter(|preparing| !preparing.begun) {
            bytes = bytes.saturating_add(memory(preparing));
            if !is_idle && bytes > self.copies_max {
                break;
            }
            (preparing.begun, is_idle) = (true, false);
        }
    }

    /// Copies a cell's state as it is now. It must be between two handlers.
    pub(in crate::edge) fn copy(&mut self, cell: CellId, base: CheckpointBase) {
        self.preparing.retain(|preparing| preparing.cell != cell);
        let is_large = self.slots.get(&cell).is_some_and(|slot| slot.is_large);
        let copy = if is_large {
            CellCopy::Underway(Box::new(Underway { base, sealing: None, held: None }))
        } else {
            CellCopy::Done(base, self.cells.snapshot(cell, base))
        };
        self.copies.insert(cell, copy);
        if is_large {
            self.copying.push_back(cell);
        }
    }

    /// Whether a piece of a copy can be made now.
    pub(in crate::edge) fn is_copying(&self) -> bool {
        let lacks_buffer = || self.warming && self.cells.copy_buffers().ready() == 0;
        (!self.copying.is_empty() || self.preparing.iter().any(Preparing::has_work)) && !lacks_buffer()
    }

    /// Whether there is a buffer for the next piece. Has more made, which the worker reports, if few are left.
    fn has_buffer(&mut self) -> bool {
        let buffers = self.cells.copy_buffers();
        let ready = buffers.ready();
        if ready < BUFFERS_AHEAD && !self.warming {
            self.warming = true;
            self.worker.urgent(move |_| {
                buffers.warm();
                Some(Answer::Warmed)
            });
        }
        ready > 0
    }

    /// Makes pieces of copies: of cells that are held back first.
    pub(in crate::edge) fn copy_pieces(&mut self, inputs: &mut VecDeque<ShardInput>) {
        if self.copying.is_empty() && self.preparing.is_empty() {
            return;
        }
        self.make_pieces(inputs);
        // One that is ready leaves its turn to the next.
        self.begin_preparing();
    }

    fn make_pieces(&mut self, inputs: &mut VecDeque<ShardInput>) {
        let began = Instant::now();
        while let Some(cell) = self.copying.front().copied() {
            if !self.has_buffer() {
                return;
            }
            self.copy_rest(cell, inputs);
            if began.elapsed() >= HELD_TURN {
                return;
            }
        }
        if let Some(at) = self.preparing.iter().position(Preparing::has_work)
            && self.has_buffer()
        {
            self.prepare_piece(at, inputs);
        }
    }

    /// One piece of the copy of a cell that is held back.
    fn copy_rest(&mut self, cell: CellId, inputs: &mut VecDeque<ShardInput>) {
        let began = Instant::now();
        let (base, piece) = match self.copies.get(&cell) {
            Some(CellCopy::Underway(underway)) => {
                (underway.base, self.cells.snapshot_piece(cell, underway.base))
            }
            _ => (CheckpointBase::Image, Err(SnapshotError::NotIdle)),
        };
        self.charge_since(cell, Some(began));
        let Some(result) = piece.transpose() else { return };
        self.copying.pop_front();
        let done = CellCopy::Done(base, result);
        let Some(CellCopy::Underway(underway)) = self.copies.insert(cell, done) else { return };
        let Underway { sealing, held, .. } = *underway;
        if let Some((header, seal)) = sealing {
            self.checkpoint(cell, header, seal, inputs);
        }
        if let Some(run) = held {
            self.run(run);
        }
    }

    /// One piece of the copy of a cell that runs. It is tried again later if a handler is in progress.
    fn prepare_piece(&mut self, at: usize, inputs: &mut VecDeque<ShardInput>) {
        let Preparing { cell, base, .. } = self.preparing[at];
        let began = Instant::now();
        let piece = self.cells.prepare_snapshot(cell, base);
        self.charge_since(cell, Some(began));
        match piece {
            Ok(false) => {
                // The others have their turn.
                if let Some(preparing) = self.preparing.remove(at) {
                    self.preparing.push_back(preparing);
                }
            }
            Err(SnapshotError::NotIdle) if self.slots.contains_key(&cell) => self.preparing[at].waits = true,
            // What is wrong is found again, and reported, when it is copied.
            Ok(true) | Err(_) => {
                self.preparing[at].ready = Some(Instant::now());
                inputs.push_back(ShardInput::Prepared { cell });
            }
        }
    }

    /// Frees copies that were prepared, and that no session uses.
    pub(super) fn tend_copies(&mut self, now: Instant) {
        let cells = &mut self.cells;
        self.preparing.retain(|preparing| {
            let kept = preparing.ready.is_none_or(|ready| now < ready + PREPARED_KEPT);
            if !kept {
                cells.forget_preparation(preparing.cell);
            }
            kept
        });
        self.begin_preparing();
    }

    /// Holds a handler back while its cell is copied. Returns it otherwise.
    pub(super) fn hold_back(&mut self, run: Run) -> Option<Run> {
        match self.copies.get_mut(&run.cell) {
            Some(CellCopy::Underway(underway)) => {
                debug_assert!(underway.held.is_none(), "a session runs one handler at a time");
                underway.held = Some(run);
                None
            }
            _ => Some(run),
        }
    }

    /// Encodes and seals the copied state, when it is whole: at once if it is small, otherwise by the sealer.
    ///
    /// `header` is that of the copied moment. The sealer has a low priority: a checkpoint that
    /// takes longer only delays truncation. Outputs wait for what the backup gets, so that is sealed before all else.
    pub(in crate::edge) fn checkpoint(
        &mut self,
        cell: CellId,
        header: Box<Header>,
        seal: Seal,
        inputs: &mut VecDeque<ShardInput>,
    ) {
        let number = header.number;
        let (base, snapshot) = match self.copies.remove(&cell) {
            Some(CellCopy::Underway(mut underway)) => {
                underway.sealing = Some((header, seal));
                self.copies.insert(cell, CellCopy::Underway(underway));
                return;
            }
            Some(CellCopy::Done(base, result)) => (base, result),
            None => (CheckpointBase::Image, Err(SnapshotError::NotIdle)),
        };
        match snapshot {
            Ok(snapshot) => {
                let is_small = snapshot.size() + outputs_size(&header) <= SEAL_AT_ONCE_BYTES;
                let sealed = move || {
                    let plain = snapshot.encode_behind(&header::join(&header, &[]));
                    drop(snapshot);
                    freed_elsewhere(seal.seal_checkpoint(number, plain))
                };
                if is_small {
                    let began = Instant::now();
                    inputs.push_back(ShardInput::Checkpointed { cell, number, result: Ok(sealed()) });
                    self.charge_since(cell, Some(began));
                } else {
                    let job = move |_: &mut ()| Some(Answer::Sealed { cell, number, bytes: sealed() });
                    match base {
                        CheckpointBase::Backup => self.sealer.urgent(job),
                        _ => self.sealer.lazy(job),
                    }
                }
            }
            Err(error) => {
                let result = Err(error.to_string());
                inputs.push_back(ShardInput::Checkpointed { cell, number, result });
            }
        }
    }

    /// The cell is gone.
    pub(super) fn forget_copies(&mut self, cell: CellId) {
        self.copies.remove(&cell);
        self.preparing.retain(|preparing| preparing.cell != cell);
        self.copying.retain(|copying| *copying != cell);
        self.begin_preparing();
    }
}

/// Bytes of the outputs in a header.
fn outputs_size(header: &Header) -> usize {
    header.ports.iter().flat_map(|port| &port.outbox.0).map(|output| output.payload.len()).sum()
}

#[cfg(test)]
mod tests;
