//! Scrabble: a client against the edge. The word list is the image's file `/etc/words`, one word a line.
//!
//! | line | does |
//! |---|---|
//! | `start [SEED]` | a new game; the bag is shaken by the seed or by the cell's own chance |
//! | `play WORD SQUARE across`, or `down` | lays a word: all of it, with the tiles that lie there, from its first square; `?x` is a blank as x |
//! | `exchange TILES` | for others, while the bag has seven or more; `?` is a blank |
//! | `pass` | lays nothing |
//! | `board` | shows it |
//!
//! Each turn is answered with what the client did, what the edge did, and `score N N bag N rack TILES`; the last with `over` and
//! who won. A word that is not in the list is refused, and the client's turn goes on.

mod board;
mod player;
mod round;
mod tiles;
mod words;

use marram_play::{Talk, Turns, seed};
use marram_sdk::{Context, cell};

use board::{Play, Square};
use round::{Move, Round};
use words::Words;

/// Where the image has its words.
const WORDS: &str = "/etc/words";

/// The cell.
pub type Scrabble = Talk<Game>;

/// The words, and a game if there is one.
pub struct Game {
    words: Words,
    round: Option<Round>,
}

impl Default for Game {
    /// Reads the words, so that an app without them is refused at deployment.
    fn default() -> Self {
        let list = std::fs::read_to_string(WORDS);
        let list = list.unwrap_or_else(|error| panic!("the app brings no word list as {WORDS}: {error}"));
        let game = Self::new(&list);
        assert!(!game.words.is_empty(), "{WORDS} has no words of 2 to 15 letters from a to z");
        game
    }
}

impl Game {
    fn new(list: &str) -> Self {
        Self { words: Words::new(list), round: None }
    }
}

/// The letters of a word as it is said, with blanks in upper case.
fn letters(word: &str) -> Option<Vec<u8>> {
    let mut letters = Vec::new();
    let mut is_blank = false;
    for byte in word.bytes() {
        match byte {
            b'?' if !is_blank => is_blank = true,
            b'a'..=b'z' if core::mem::take(&mut is_blank) => letters.push(byte.to_ascii_uppercase()),
            b'a'..=b'z' => letters.push(byte),
            _ => return None,
        }
    }
    (!is_blank).then_some(letters)
}

/// The move that a line says.
fn parse(words: &[&str]) -> Result<Move, String> {
    match words {
        ["play", word, at, way] => {
            let letters =
                letters(word).ok_or("a word is letters from a to z, each after ? if it is a blank")?;
            let at =
                Square::from_name(at).ok_or("a square is a column from a to o and a row from 1 to 15")?;
            let is_down = match *way {
                "down" => true,
                "across" => false,
                _ => return Err("a word goes across or down".to_owned()),
            };
            Ok(Move::Play(Play { letters, at, is_down }))
        }
        ["exchange", tiles] => {
            let is_tile = |byte: u8| byte.is_ascii_lowercase() || byte == tiles::BLANK;
            let tiles =
                Some(tiles.as_bytes().to_vec()).filter(|tiles| tiles.iter().all(|byte| is_tile(*byte)));
            Ok(Move::Exchange(tiles.ok_or("tiles are letters from a to z, and ?")?))
        }
        ["pass"] => Ok(Move::Pass),
        _ => Err("say start, play, exchange, pass, board or quit".to_owned()),
    }
}

impl Turns for Game {
    const HELLO: &'static str =
        "scrabble: start [SEED], play WORD SQUARE across|down, exchange TILES, pass, board, quit\n";

    fn say(&mut self, context: &mut Context, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let Some(seed) = seed(context, &words)? {
            return Ok(self.round.insert(Round::new(seed)).score());
        }
        let round = self.round.as_mut().ok_or("say start")?;
        if words == ["board"] {
            return Ok(round.board());
        }
        round.turn(&self.words, parse(&words)?)
    }
}

cell!(Scrabble);

#[cfg(test)]
mod tests;
