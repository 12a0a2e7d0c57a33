//! What programmers use: projects and the tutorial, cells in C, programs that embed their end, and recorded sessions
//! that are replayed and debugged.

mod c_cell;
mod debugger;
mod host;
mod project;
mod record;
mod tutorial;
