//! What a cell runs next without a message: its timers and its tasks, and the order of these kinds of input.
//!
//! Below the owner, because a shared cell and the player of a recording schedule in the same way. Everything here
//! follows from the log alone: nothing reads a clock, so a replay makes the same choices.

mod tasks;
mod timers;

pub use tasks::TaskCounts;
pub(crate) use tasks::Tasks;
pub(crate) use timers::Timers;

/// What an entry can consume. Timers come before tasks, and tasks before messages. But no kind comes twice in a row
/// while another waits: a cell with timers that are always due, or which spawns tasks forever, still gets its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Timer,
    Task,
    Message,
}

impl Kind {
    /// The order in which the next input is looked for after this kind.
    pub(crate) fn others_first(self) -> [Self; 3] {
        match self {
            Self::Timer => [Self::Task, Self::Message, Self::Timer],
            Self::Task => [Self::Message, Self::Timer, Self::Task],
            Self::Message => [Self::Timer, Self::Task, Self::Message],
        }
    }
}
