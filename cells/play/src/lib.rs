//! What the games among the cells share: lines and keys out of a stream that is cut anywhere, chance that follows a seed, and
//! an arcade that plays a real-time game at 60 ticks a second, and a talk by turns. Knows no game's rules.

mod arcade;
mod beat;
mod board;
mod dice;
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
