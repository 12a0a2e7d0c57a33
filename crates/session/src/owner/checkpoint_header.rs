//! The header of a checkpoint: what follows from the log besides the cell's memory.

use super::{about::About, end_state::EndState, ends::Ends, log::Log, state::CellState};
use marram_wire::{header::Header, id::Generation};

/// The header of a checkpoint at the end of the log. Its outputs are added when it is sealed.
pub(super) fn header_of(
    (generation, number): (Generation, u32),
    (base_generation, base_number): (Generation, u32),
    about: &About,
    ends: &Ends,
    log: &Log,
    state: &CellState,
) -> Header {
    let ((timers_set, timers), (tasks, locks)) = (state.timers().to_header(), state.tasks().to_header());
    Header {
        session: about.session,
        image: about.image,
        generation,
        number,
        base_generation,
        base_number,
        log_offset: log.end(),
        head: log.digest().0,
        last_ns: log.last_ns(),
        timers_set,
        timers,
        ports: ends.lasting().map(EndState::to_header).collect(),
        tasks,
        locks,
        paused: state.pauses().to_header(),
        clients: ends.to_clients(),
        servers: ends.to_servers(),
    }
}
