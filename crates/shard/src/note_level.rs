//! How important a line for the log is.

use crate::byte_enum::byte_enum;

/// The level of a line for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NoteLevel {
    /// Something that an operator has to repair.
    Error = 0,
    /// Something that an operator should know.
    Warning = 1,
    /// What happens every day.
    Info = 2,
    /// For a closer look.
    Debug = 3,
}
byte_enum!(NoteLevel { Error, Warning, Info, Debug });
