//! Scrabble's rules, for the cells that play it and for the server of a table for two: tiles, the board, words, moves. Does not
//! know clients or edges.

pub mod board;
pub mod player;
pub mod round;
pub mod tiles;
pub mod words;
