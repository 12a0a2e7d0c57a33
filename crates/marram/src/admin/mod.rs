//! The admin API: HTTP for operators, beside the edge and never in a session's way.

mod desk;

pub use desk::Desk;
