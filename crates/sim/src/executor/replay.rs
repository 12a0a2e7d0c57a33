//! Runs recordings of fake cells, as `marram replay` runs those of real ones.
//!
//! The simulator replays each recording that a session made and compares the end with the session's
//! own state hash, in the middle of the world's run. The copy of [`Past`] keeps it from affecting
//! anything: a replay must not be seen.

use super::{Cell, Cells, Habits, Past, apply};
use crate::plan::Service;
use marram_session::{
    cell::{CellId, CellImage},
    replay::{PlayError, Player, ReplayStart, StepResult},
};
use marram_wire::recording::Recording;

/// The result of a recording's replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Played {
    /// State hash at the end of the recording; `None` if the cell was stopped there.
    pub(crate) state: Option<[u8; 32]>,
    /// Whether the cell was restored.
    pub(crate) restored: bool,
    /// Entries that the cell consumed.
    pub(crate) entries: u64,
}

impl Cells {
    /// Hashes a cell's state, for the recording that follows.
    pub(crate) fn hash(&mut self, id: CellId) {
        if let Some(cell) = self.cells.get(&id) {
            self.hashes.insert(id, cell.state());
        }
    }

    /// Takes the last result of [`Self::hash`].
    pub(crate) fn hashed(&mut self, id: CellId) -> Option<[u8; 32]> {
        self.hashes.remove(&id)
    }
}

impl Cell {
    /// What a recording's state hash means for a fake: a digest of all that a checkpoint would
    /// save.
    fn state(&self) -> [u8; 32] {
        *blake3::hash(&self.save()).as_bytes()
    }
}

impl Past {
    /// A copy for running a recording: all of its events have happened before.
    fn again(&self) -> Self {
        Self {
            hashes: self.hashes.clone(),
            struck: self.struck.clone(),
            lied_to: self.lied_to,
            poisoned: false,
            trapped: Vec::new(),
            clients: self.clients.clone(),
            timers: self.timers.clone(),
            cache: self.cache.clone(),
            #[cfg(feature = "wasm")]
            twins: None,
            violations: Vec::new(),
        }
    }
}

/// Replays a recording to its end.
///
/// # Errors
/// In words, if the recording cannot be followed, a handler behaves differently, or a check of the
/// fake's own fails.
pub(crate) fn play(recording: &Recording, habits: Habits, past: &Past) -> Result<Played, String> {
    const CELL: CellId = CellId(1);
    let mut past = past.again();
    let mut cells = Cells::new(habits);
    let mut player = Player::new(recording, CELL).map_err(|error| error.to_string())?;
    let restored = player.beginning() == ReplayStart::Checkpoints;
    let begun = begin(recording, player.beginning(), (player.image(), habits.has_memory))?;
    cells.cells.insert(CELL, begun);
    while let Some(next) = player.next_handler().map_err(|error| error.to_string())? {
        let (ran, _) = cells.run(&next.run, &mut past).ok_or("the cell is gone")?;
        match player.ran(&ran) {
            Ok(StepResult::Stopped(_)) => {
                return Ok(Played { state: None, restored, entries: player.entries() });
            }
            // The injected failure, which happened only once.
            Err(PlayError::Diverged { .. })
                if next.stopped && habits.poison.is_some_and(|poison| !poison.always) =>
            {
                return Ok(Played { state: None, restored, entries: player.entries() });
            }
            other => drop(other.map_err(|error| error.to_string())?),
        }
    }
    if let Some(violation) = past.violations.pop() {
        return Err(violation);
    }
    Ok(Played { state: cells.cells.get(&CELL).map(Cell::state), restored, entries: player.entries() })
}

/// Makes the cell from the seed, or from the checkpoints, each on the one before it.
fn begin(
    recording: &Recording,
    beginning: ReplayStart,
    (image, has_memory): (CellImage, bool),
) -> Result<Cell, String> {
    let ReplayStart::Seed(seed) = beginning else {
        let mut state: Option<Vec<u8>> = None;
        for sections in &recording.checkpoints {
            state = Some(apply(state.as_deref(), sections)?);
        }
        return Cell::load(recording.about.session, state.unwrap_or_default(), has_memory)
            .ok_or_else(|| "a cell that was not saved".to_string());
    };
    let shape = Service::shape_of(image).ok_or("no such image")?;
    Ok(Cell::new(recording.about.session, shape, seed, has_memory))
}
