//! Scrabble: a client against the edge. The word list is the image's file `/etc/words`, one word a line.
//!
//! | line | does |
//! |---|---|
//! | `start [SEED]` | a new game; the bag is shuffled by the seed or by the cell's generator |
//! | `play WORD SQUARE across`, or `down` | lays a word: all of it, with the tiles that lie there, from its first square; `?x` is a blank as x |
//! | `exchange TILES` | exchanges them for others, while the bag has seven or more; `?` is a blank |
//! | `pass` | lays nothing |
//! | `board` | shows it |
//!
//! Each turn is answered with the client's move, the edge's move, and `score N N bag N rack TILES`; the last with `over` and
//! the winner. A word that is not in the list is refused, and the client can try again.

mod turn;

use marram_play::{Talk, Turns, seed};
use marram_scrabble::{
    round::{Move, Round, parse},
    words::Words,
};
use marram_sdk::{Context, cell};

/// The cell.
pub type Scrabble = Talk<Game>;

/// The words, and the present game, if any.
pub struct Game {
    words: Words,
    round: Option<Round>,
}

impl Default for Game {
    fn default() -> Self {
        Self::of(Words::from_image())
    }
}

impl Game {
    const fn of(words: Words) -> Self {
        Self { words, round: None }
    }
}

/// Parses a line into a move.
fn command(words: &[&str]) -> Result<Move, String> {
    parse(words)?.ok_or_else(|| "say start, play, exchange, pass, board or quit".to_owned())
}

impl Turns for Game {
    const HELLO: &'static str =
        "scrabble: start [SEED], play WORD SQUARE across|down, exchange TILES, pass, board, quit\n";

    fn say(&mut self, context: &mut Context, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let Some(seed) = seed(context, &words)? {
            return Ok(turn::score(self.round.insert(Round::new(seed))));
        }
        let round = self.round.as_mut().ok_or("say start")?;
        if words == ["board"] {
            return Ok(turn::board(round));
        }
        turn::take(round, &self.words, command(&words)?)
    }
}

cell!(Scrabble);

#[cfg(test)]
mod tests;
