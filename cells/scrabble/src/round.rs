//! Turns, scores and the end of a game. Knows what may be laid from `board`.

use marram_play::Dice;

use crate::{
    board::{Board, Play},
    player,
    tiles::{Bag, RACK, Rack},
    words::Words,
};

/// Turns in a row without a point that end a game.
const IDLE_MAX: u32 = 6;

/// What a player does in a turn.
pub(crate) enum Move {
    Play(Play),
    Exchange(Vec<u8>),
    Pass,
}

/// A player: the client or the edge.
pub(crate) struct Seat {
    pub(crate) rack: Rack,
    pub(crate) score: i64,
}

impl Seat {
    fn new(bag: &mut Bag) -> Self {
        let mut rack = Rack::new(&[]);
        rack.fill(bag);
        Self { rack, score: 0 }
    }
}

/// A game.
pub(crate) struct Round {
    dice: Dice,
    pub(crate) bag: Bag,
    pub(crate) board: Board,
    /// The client, the edge.
    pub(crate) seats: [Seat; 2],
    idle: u32,
    is_over: bool,
}

const CLIENT: usize = 0;
const EDGE: usize = 1;

impl Round {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut bag = Bag::new(&mut dice);
        let seats = [Seat::new(&mut bag), Seat::new(&mut bag)];
        Self { dice, bag, board: Board::default(), seats, idle: 0, is_over: false }
    }

    /// The client's turn and, unless that was the end, the edge's.
    pub(crate) fn turn(&mut self, words: &Words, action: Move) -> Result<String, String> {
        if self.is_over {
            return Err("the game is over: start another".to_owned());
        }
        let mut said = format!("you {}\n", self.act(words, CLIENT, action)?);
        if !self.is_over {
            let action = self.choose(words);
            said += &format!("edge {}\n", self.act(words, EDGE, action)?);
        }
        said += &self.score();
        if self.is_over {
            let [client, edge] = [CLIENT, EDGE].map(|seat| self.seats[seat].score);
            let who = match client.cmp(&edge) {
                core::cmp::Ordering::Greater => "you win",
                core::cmp::Ordering::Equal => "nobody wins",
                core::cmp::Ordering::Less => "the edge wins",
            };
            said += &format!("over {who} {client} : {edge}\n");
        }
        Ok(said)
    }

    /// The edge's move: what counts most, other tiles if it can lay nothing, nothing if there are none.
    fn choose(&self, words: &Words) -> Move {
        let rack = &self.seats[EDGE].rack;
        match player::best(&self.board, words, rack) {
            Some((play, _)) => Move::Play(play),
            None if self.bag.len() >= RACK => Move::Exchange(rack.tiles.clone()),
            None => Move::Pass,
        }
    }

    /// One player's move, with its consequences. Nothing has changed if it is refused.
    fn act(&mut self, words: &Words, seat: usize, action: Move) -> Result<String, String> {
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
                let way = if play.is_down { "down" } else { "across" };
                format!("play {} {} {way} {points}", String::from_utf8_lossy(&play.letters), play.at)
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

    /// Where the game is, as the client may know it.
    pub(crate) fn score(&self) -> String {
        let [client, edge] = &self.seats;
        let rack = if client.rack.tiles.is_empty() { "none".to_owned() } else { client.rack.text() };
        format!("score {} {} bag {} rack {rack}\n", client.score, edge.score, self.bag.len())
    }

    pub(crate) fn board(&self) -> String {
        format!("{}{}", self.board.text(), self.score())
    }
}
