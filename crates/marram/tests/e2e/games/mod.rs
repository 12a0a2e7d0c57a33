//! The games among the cells: played in a terminal, by two, and in a browser.
//! Their edges die in mid-game, and no player notices.

mod single;
mod two;
mod web;
