//! Moves, scores and the end of a game. Knows what may be laid from `board`, and not who plays.

use marram_play::Dice;

use crate::{
    board::{Board, Play, Square},
    tiles::{self, Bag, RACK, Rack},
    words::Words,
};

/// Turns in a row without a point that end a game.
pub const IDLE_MAX: u32 = 6;

/// What a player does in a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Move {
    /// Lays a word.
    Play(Play),
    /// Has these for others.
    Exchange(Vec<u8>),
    /// Lays nothing.
    Pass,
}

/// The letters of a word as it is said, each after `?` if it is a blank, with blanks in upper case.
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
    /// As a line says it: `?cat h8 across`.
    #[must_use]
    pub fn said(&self) -> String {
        let blank = |letter: &u8| if letter.is_ascii_uppercase() { "?" } else { "" };
        let letter = |letter: &u8| format!("{}{}", blank(letter), char::from(letter.to_ascii_lowercase()));
        let word: String = self.letters.iter().map(letter).collect();
        format!("{word} {} {}", self.at, self.way())
    }

    /// As people are told it: `Cat h8 across`, the blank in upper case.
    #[must_use]
    pub fn told(&self) -> String {
        format!("{} {} {}", String::from_utf8_lossy(&self.letters), self.at, self.way())
    }

    const fn way(&self) -> &'static str {
        if self.is_down { "down" } else { "across" }
    }
}

/// The tiles that a word says; none if it says anything else.
#[must_use]
pub fn tiles(word: &str) -> Option<Vec<u8>> {
    let is_tile = |byte: u8| byte.is_ascii_lowercase() || byte == tiles::BLANK;
    Some(word.as_bytes().to_vec()).filter(|tiles| tiles.iter().all(|byte| is_tile(*byte)))
}

/// The move that a line says; none if it is about something else.
///
/// # Errors
/// What is wrong with it.
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
    /// What it can lay.
    pub rack: Rack,
    /// What it has.
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
    /// The tiles that nobody has.
    pub bag: Bag,
    /// Those that were laid.
    pub board: Board,
    /// The players; who begins, first.
    pub seats: [Seat; 2],
    idle: u32,
    is_over: bool,
}

impl Round {
    /// Before the first move.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut bag = Bag::new(&mut dice);
        let seats = [Seat::new(&mut bag), Seat::new(&mut bag)];
        Self { dice, bag, board: Board::default(), seats, idle: 0, is_over: false }
    }

    /// Whether somebody went out, or nobody got a point for too long.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// One player's move, with its consequences; as people are told it. Nothing has changed if it is refused.
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
                // Drawn first: nobody gets back what was given.
                self.seats[seat].rack.fill(&mut self.bag);
                self.bag.put_back(&tiles, &mut self.dice);
                format!("exchange {}", tiles.len())
            }
            Move::Pass => "pass".to_owned(),
        };
        self.idle = if points == 0 { self.idle + 1 } else { 0 };
        if self.seats[seat].rack.tiles.is_empty() {
            // It went out: it has the other's tiles, too.
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
