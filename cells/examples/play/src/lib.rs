//! Shared by the games among the cells: lines and keys from a stream that is split anywhere, randomness from a seed, an arcade
//! for real-time games at 60 ticks a second, and a talk for turn-based games. Knows no game's rules.

mod arcade;
mod beat;
mod board;
mod dice;
#[cfg(not(target_arch = "wasm32"))]
pub mod double;
mod input;
mod screen;
mod talk;

pub use arcade::{Arcade, Game};
pub use beat::{Beat, TICKS_PER_S};
pub use board::square;
pub use dice::Dice;
pub use input::{Key, Keys, LINE_BYTES_MAX, Lines, Press};
pub use screen::Screen;
pub use talk::{Talk, Turns, seed};
