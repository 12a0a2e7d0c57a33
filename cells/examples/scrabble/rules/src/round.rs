//! Moves, scores and the end of a game. `board` defines the legal plays. Does not know who controls a seat.

use marram_play::Dice;

use crate::{
    board::{Board, Play, Square},
    tiles::{self, Bag, RACK, Rack},
    words::Words,
};

/// Consecutive turns without a point that end a game.
pub const IDLE_MAX: u32 = 6;

/// A player's move in a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Move {
    /// Lays a word.
    Play(Play),
    /// Exchanges these tiles for others.
    Exchange(Vec<u8>),
    /// Lays nothing.
    Pass,
}

/// The letters of a word in a line, each after `?` if it is a blank; blanks in upper case in the result.
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

impl Play {
    /// In the form of a line: `?cat h8 across`.
    #[must_use]
    pub fn said(&self) -> String {
        let blank = |letter: &u8| if letter.is_ascii_uppercase() { "?" } else { "" };
        let letter = |letter: &u8| format!("{}{}", blank(letter), char::from(letter.to_ascii_lowercase()));
        let word: String = self.letters.iter().map(letter).collect();
        format!("{word} {} {}", self.at, self.way())
    }

    /// In the form for people: `Cat h8 across`, the blank in upper case.
    #[must_use]
    pub fn told(&self) -> String {
        format!("{} {} {}", String::from_utf8_lossy(&self.letters), self.at, self.way())
    }

    const fn way(&self) -> &'static str {
        if self.is_down { "down" } else { "across" }
    }
}

/// The tiles in a word of a line; `None` if it contains anything else.
#[must_use]
pub fn tiles(word: &str) -> Option<Vec<u8>> {
    let is_tile = |byte: u8| byte.is_ascii_lowercase() || byte == tiles::BLANK;
    Some(word.as_bytes().to_vec()).filter(|tiles| tiles.iter().all(|byte| is_tile(*byte)))
}

/// The move in a line; `None` if it is another command.
///
/// # Errors
/// What is wrong with the move.
pub fn parse(words: &[&str]) -> Result<Option<Move>, String> {
    Ok(Some(match words {
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
            Move::Play(Play { letters, at, is_down })
        }
        ["exchange", word] => Move::Exchange(tiles(word).ok_or("tiles are letters from a to z, and ?")?),
        ["pass"] => Move::Pass,
        _ => return Ok(None),
    }))
}

/// A player.
pub struct Seat {
    /// Its tiles.
    pub rack: Rack,
    /// Its points.
    pub score: i64,
}

impl Seat {
    fn new(bag: &mut Bag) -> Self {
        let mut rack = Rack::new(&[]);
        rack.fill(bag);
        Self { rack, score: 0 }
    }
}

/// A game.
pub struct Round {
    dice: Dice,
    /// The tiles that no player has.
    pub bag: Bag,
    /// The board with the tiles that were laid.
    pub board: Board,
    /// The players; the first one begins.
    pub seats: [Seat; 2],
    idle: u32,
    is_over: bool,
}

impl Round {
    /// The state before the first move.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut bag = Bag::new(&mut dice);
        let seats = [Seat::new(&mut bag), Seat::new(&mut bag)];
        Self { dice, bag, board: Board::default(), seats, idle: 0, is_over: false }
    }

    /// Whether a player has used all tiles, or no player scored for too many turns.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Makes one player's move, with its consequences; returns it as text for people. A refused move changes nothing.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn act(&mut self, words: &Words, seat: usize, action: Move) -> Result<String, String> {
        let mut points = 0;
        let said = match action {
            Move::Play(play) => {
                let laid = self
                    .board
                    .check(words, &self.seats[seat].rack, &play)
                    .map_err(|wrong| wrong.to_string())?;
                points = laid.score;
                self.board.lay(&laid);
                self.seats[seat].score += i64::from(points);
                self.seats[seat].rack = laid.rack;
                self.seats[seat].rack.fill(&mut self.bag);
                format!("play {} {points}", play.told())
            }
            Move::Exchange(tiles) => {
                if self.bag.len() < RACK {
                    return Err("fewer than seven tiles are in the bag".to_owned());
                }
                let rack = self.seats[seat].rack.without(&tiles);
                self.seats[seat].rack = rack.ok_or("you have not got these tiles")?;
                // Draws before the tiles are put back, so that the player cannot get them back.
                self.seats[seat].rack.fill(&mut self.bag);
                self.bag.put_back(&tiles, &mut self.dice);
                format!("exchange {}", tiles.len())
            }
            Move::Pass => "pass".to_owned(),
        };
        self.idle = if points == 0 { self.idle + 1 } else { 0 };
        if self.seats[seat].rack.tiles.is_empty() {
            // The player used all tiles: it also scores the other's tiles.
            let rest = i64::from(self.seats[1 - seat].rack.value());
            self.seats[seat].score += rest;
            self.seats[1 - seat].score -= rest;
            self.is_over = true;
        } else if self.idle == IDLE_MAX {
            self.seats.iter_mut().for_each(|seat| seat.score -= i64::from(seat.rack.value()));
            self.is_over = true;
        }
        Ok(said)
    }
}
