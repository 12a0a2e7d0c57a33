//! The error numbers of WASI preview 1 that this crate returns.

/// Why a file operation failed, by its number in WASI preview 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Errno {
    BadDescriptor = 8,
    Exists = 20,
    TooBig = 22,
    IllegalBytes = 25,
    Invalid = 28,
    IsDirectory = 31,
    TooManyOpen = 33,
    NameTooLong = 37,
    NoEntry = 44,
    NoSpace = 51,
    NotDirectory = 54,
    NotEmpty = 55,
    NotSupported = 58,
    ReadOnly = 69,
    NoSeek = 70,
    OutsideTree = 76,
}
