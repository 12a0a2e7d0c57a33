//! Battleship: a client against the edge, each with a fleet on a sea of 10 x 10, shot for shot.
//!
//! | line | does |
//! |---|---|
//! | `start [SEED]` | a new game; the edge places its fleet at random, from the seed or from the cell's generator |
//! | `place SHIP SQUARE across`, or `down` | places one of the client's ships, its first square given, as `b7`: column and row |
//! | `place all` | places the remaining ships at random |
//! | `fire SQUARE` | a shot; the edge shoots back |
//! | `board` | shows both seas |
//!
//! A shot is answered as `SQUARE miss`, `SQUARE hit` or `SQUARE sunk SHIP`, and then with the edge's: `edge` and the same. The
//! game ends with `over` and the winner.

mod gunner;
mod sea;

use marram_play::{Dice, Talk, Turns, seed};
use marram_sdk::{Context, cell};

use sea::{Sea, Ship, Shot, Square};

/// The cell.
pub type Battleship = Talk<Game>;

/// A game, or none yet.
#[derive(Default)]
pub struct Game {
    round: Option<Round>,
}

/// Two seas.
struct Round {
    dice: Dice,
    client: Sea,
    edge: Sea,
    shots: u32,
    is_over: bool,
}

impl Round {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut edge = Sea::default();
        edge.place_all(&mut dice);
        Self { dice, client: Sea::default(), edge, shots: 0, is_over: false }
    }

    fn place(&mut self, ship: &str, at: &str, way: &str) -> Result<String, String> {
        let ship = Ship::from_name(ship).ok_or_else(|| format!("a ship is one of {}", Ship::names()))?;
        let at = Square::from_name(at).ok_or("a square is a column from a to j and a row from 1 to 10")?;
        let is_down = match way {
            "down" => true,
            "across" => false,
            _ => return Err("a ship lies across or down".to_owned()),
        };
        self.client.place(ship, at, is_down)?;
        Ok(format!("placed {}\n{}", ship.name, self.ready()))
    }

    fn place_all(&mut self) -> Result<String, String> {
        if self.client.is_complete() {
            return Err("all are placed".to_owned());
        }
        self.client.place_all(&mut self.dice);
        Ok(self.ready().to_owned())
    }

    fn ready(&self) -> &'static str {
        if self.client.is_complete() { "ready\n" } else { "" }
    }

    fn fire(&mut self, at: &str) -> Result<String, String> {
        let at = Square::from_name(at).ok_or("a square is a column from a to j and a row from 1 to 10")?;
        if !self.client.is_complete() {
            return Err("place your ships first".to_owned());
        }
        if self.is_over {
            return Err("the game is over: start another".to_owned());
        }
        let shot = self.edge.fire(at)?;
        self.shots += 1;
        let mut said = format!("{at} {}\n", told(shot));
        if self.edge.is_lost() {
            self.is_over = true;
            said += &format!("over you win with {} shots\n", self.shots);
            return Ok(said);
        }
        let back = gunner::aim(&self.client, &mut self.dice);
        let shot = self.client.fire(back)?;
        said += &format!("edge {back} {}\n", told(shot));
        if self.client.is_lost() {
            self.is_over = true;
            said += &format!("over the edge wins with {} shots\n", self.shots);
        }
        Ok(said)
    }

    /// Both seas; the edge's shows only what the client knows.
    fn board(&self) -> String {
        let mut text = String::from(
            "    edge                      you\n    a b c d e f g h i j       a b c d e f g h i j\n",
        );
        for row in 0..sea::SIZE {
            let line = |sea: &Sea, all: bool| {
                (0..sea::SIZE).map(|column| sea.look(Square { column, row }, all)).fold(
                    String::new(),
                    |mut line, look| {
                        line.extend([' ', look]);
                        line
                    },
                )
            };
            let edge = line(&self.edge, self.is_over);
            text += &format!("{:>3}{edge}   {:>3}{}\n", row + 1, row + 1, line(&self.client, true));
        }
        text
    }
}

fn told(shot: Shot) -> String {
    match shot {
        Shot::Miss => "miss".to_owned(),
        Shot::Hit => "hit".to_owned(),
        Shot::Sunk(ship) => format!("sunk {}", ship.name),
    }
}

impl Turns for Game {
    const HELLO: &'static str =
        "battleship: start [SEED], place SHIP SQUARE across|down, place all, fire SQUARE, board, quit\n";

    fn say(&mut self, context: &mut Context, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let Some(seed) = seed(context, &words)? {
            self.round = Some(Round::new(seed));
            return Ok(format!("place {}\n", Ship::names()));
        }
        let round = self.round.as_mut().ok_or("say start")?;
        match words[..] {
            ["place", "all"] => round.place_all(),
            ["place", ship, at, way] => round.place(ship, at, way),
            ["fire", at] => round.fire(at),
            ["board"] => Ok(round.board()),
            _ => Err("say start, place, fire, board or quit".to_owned()),
        }
    }
}

cell!(Battleship);

#[cfg(test)]
mod tests;
