//! One player's view of a game: the board, the player's rack, the scores, the number of the other's tiles. Takes lines of the
//! player and of the server, split into words.

use core::cmp::Ordering;

use marram_scrabble::{
    board::{Board, Laid, Play},
    round::{IDLE_MAX, Move, parse, tiles},
    tiles::{BLANK, RACK, Rack},
    words::Words,
};

/// Tiles in the bag when both have drawn.
const BAG_FIRST: usize = 86;

/// The effect of a line.
pub(crate) enum Answer {
    /// A line for the player.
    Tell(String),
    /// A line for the server.
    Ask(String),
    /// A line for the player; then the session ends.
    End(String),
}

/// Why the game cannot continue with this server.
pub(crate) fn impossible(what: &str) -> String {
    format!("error the server of the table said what cannot be: {what}\n")
}

/// A move of the player that the server has not confirmed.
enum Asked {
    Play(Play, Laid),
    /// What is left on the rack, and how many tiles were given back.
    Exchange(Rack, usize),
    Pass,
}

/// A game in progress.
struct Round {
    board: Board,
    rack: Rack,
    /// Number of the other's tiles.
    others: usize,
    bag: usize,
    /// The player's score, then the other's.
    scores: [i64; 2],
    is_turn: bool,
    /// Consecutive turns without a point.
    idle: u32,
    asked: Option<Asked>,
}

enum Stage {
    /// Sits at no table.
    Idle,
    /// Has asked for a seat, or sits and waits.
    Sitting,
    Playing(Box<Round>),
}

/// The words, and the state of the player.
pub(crate) struct Game {
    words: Words,
    stage: Stage,
    /// The other left while a move was in flight: the server will refuse that move before anything else.
    owes_refusal: bool,
}

fn rack_of(text: &str) -> Result<Rack, String> {
    if text == "-" {
        return Ok(Rack::new(&[]));
    }
    let tiles = tiles(text).filter(|tiles| tiles.len() <= RACK);
    tiles.map(|tiles| Rack::new(&tiles)).ok_or_else(|| "a rack that is none".to_owned())
}

fn number<T: core::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a number that is none".to_owned())
}

impl Game {
    pub(crate) const fn new(words: Words) -> Self {
        Self { words, stage: Stage::Idle, owes_refusal: false }
    }

    /// Handles a line of the player.
    pub(crate) fn hear_player(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        self.command(&words).unwrap_or_else(|why| Answer::Tell(format!("error {why}\n")))
    }

    fn command(&mut self, said: &[&str]) -> Result<Answer, String> {
        match (said, &mut self.stage) {
            (["quit"], _) => Ok(Answer::End(String::new())),
            (["sit", _] | ["sit", _, _], Stage::Idle) => {
                self.stage = Stage::Sitting;
                Ok(Answer::Ask(said.join(" ")))
            }
            (["sit", ..], Stage::Idle) => Err("say sit and the name of a table".to_owned()),
            (["sit", ..], _) => Err("you sit at a table".to_owned()),
            (["board"], Stage::Playing(round)) => {
                Ok(Answer::Tell(format!("{}{}", round.board.text(), round.score())))
            }
            (_, Stage::Playing(round)) => {
                let action = parse(said)?.ok_or("say play, exchange, pass, board or quit")?;
                let asked = round.check(&self.words, action)?;
                round.asked = Some(asked);
                Ok(Answer::Ask(said.join(" ")))
            }
            (_, Stage::Idle) => Err("say sit and the name of a table".to_owned()),
            (_, Stage::Sitting) => Err("you sit alone there: wait".to_owned()),
        }
    }

    /// Handles a line of the server.
    pub(crate) fn hear_server(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match self.told(&words) {
            Ok(text) => Answer::Tell(text),
            Err(what) => Answer::End(impossible(&what)),
        }
    }

    fn told(&mut self, said: &[&str]) -> Result<String, String> {
        let text = match (said, &mut self.stage) {
            // The player already knows why that move failed.
            (["refused", ..], _) if self.owes_refusal => {
                self.owes_refusal = false;
                String::new()
            }
            _ if self.owes_refusal => return Err("something else than the answer to a move".to_owned()),
            (["refused", why @ ..], stage) => {
                match stage {
                    Stage::Sitting => *stage = Stage::Idle,
                    Stage::Playing(round) if round.asked.is_some() => round.asked = None,
                    _ => return Err("a refusal of what no one asked".to_owned()),
                }
                // In the player's terms, limited to the words of one line.
                format!("error {}\n", why.join(" "))
            }
            (["wait", name], Stage::Sitting) => format!("wait at {name} for another\n"),
            (["begin", seat @ ("1" | "2"), rack, bag], Stage::Sitting) => {
                let (rack, is_turn) = (rack_of(rack)?, *seat == "1");
                if rack.tiles.len() != RACK || number(bag) != Ok(BAG_FIRST) {
                    return Err("a game that begins otherwise".to_owned());
                }
                let round = Round::new(rack, is_turn);
                let text = format!(
                    "begin {}\n{}",
                    if is_turn { "you are first" } else { "the other is first" },
                    round.score()
                );
                self.stage = Stage::Playing(Box::new(round));
                text
            }
            (["yours", rack, bag], Stage::Playing(round)) => round.yours(rack_of(rack)?, number(bag)?)?,
            (["other", action @ .., bag], Stage::Playing(round)) => {
                round.others(&self.words, action, number(bag)?)?
            }
            (["end", rack, mine, theirs], Stage::Playing(round)) => {
                let text = round.end(&rack_of(rack)?, [number(mine)?, number(theirs)?])?;
                self.stage = Stage::Idle;
                text
            }
            (["left"], Stage::Playing(round)) => {
                self.owes_refusal = round.asked.is_some();
                self.stage = Stage::Idle;
                "over you win, the other has left\n".to_owned()
            }
            _ => return Err("a line that means nothing now".to_owned()),
        };
        Ok(text)
    }
}

impl Round {
    fn new(rack: Rack, is_turn: bool) -> Self {
        let (board, scores) = (Board::default(), [0; 2]);
        Self { board, rack, others: RACK, bag: BAG_FIRST, scores, is_turn, idle: 0, asked: None }
    }

    /// The state of the game, as far as the player may know it.
    fn score(&self) -> String {
        let rack = if self.rack.tiles.is_empty() { "none".to_owned() } else { self.rack.text() };
        format!("score {} {} bag {} rack {rack}\n", self.scores[0], self.scores[1], self.bag)
    }

    fn is_over(&self) -> bool {
        self.rack.tiles.is_empty() || self.others == 0 || self.idle == IDLE_MAX
    }

    /// Whether the player may make this move.
    fn check(&self, words: &Words, action: Move) -> Result<Asked, String> {
        if self.asked.is_some() {
            return Err("your last move is not answered yet".to_owned());
        }
        if !self.is_turn || self.is_over() {
            return Err("it is not your turn".to_owned());
        }
        match action {
            Move::Play(play) => {
                let laid = self.board.check(words, &self.rack, &play).map_err(|wrong| wrong.to_string())?;
                Ok(Asked::Play(play, laid))
            }
            Move::Exchange(_) if self.bag < RACK => Err("fewer than seven tiles are in the bag".to_owned()),
            Move::Exchange(tiles) => {
                let left = self.rack.without(&tiles).ok_or("you have not got these tiles")?;
                Ok(Asked::Exchange(left, tiles.len()))
            }
            Move::Pass => Ok(Asked::Pass),
        }
    }

    fn count(&mut self, seat: usize, points: u32) {
        self.scores[seat] += i64::from(points);
        self.idle = if points == 0 { self.idle + 1 } else { 0 };
        self.is_turn = seat == 1;
    }

    /// The player's move is confirmed, and this is its rack now.
    fn yours(&mut self, rack: Rack, bag: usize) -> Result<String, String> {
        let asked = self.asked.take().ok_or("an answer to no move")?;
        let (left, given, points, text) = match asked {
            Asked::Play(play, laid) => {
                let text = format!("play {} {}", play.told(), laid.score);
                self.board.lay(&laid);
                (laid.rack, 0, laid.score, text)
            }
            Asked::Exchange(left, given) => (left, given, 0, format!("exchange {given}")),
            Asked::Pass => (self.rack.clone(), 0, 0, "pass".to_owned()),
        };
        let drawn = (RACK - left.tiles.len()).min(self.bag);
        let drew = rack.without(&left.tiles).filter(|drew| drew.tiles.len() == drawn);
        if drew.is_none() || bag != self.bag - drawn + given {
            return Err("a rack that does not follow from your move".to_owned());
        }
        (self.rack, self.bag) = (rack, bag);
        self.count(0, points);
        Ok(format!("you {text}\n{}", self.shown()))
    }

    /// The other's move.
    fn others(&mut self, words: &Words, action: &[&str], bag: usize) -> Result<String, String> {
        if self.is_turn || self.asked.is_some() || self.is_over() {
            return Err("a move out of turn".to_owned());
        }
        let (points, laid, text) = match action {
            ["exchange", count] => {
                let count: usize = number(count)?;
                if !(1..=self.others).contains(&count) || self.bag < RACK {
                    return Err("an exchange of tiles that are not there".to_owned());
                }
                (0, 0, format!("exchange {count}"))
            }
            _ => match parse(action)? {
                Some(Move::Play(play)) => {
                    // The tiles of the other are unknown: all that the word needs.
                    let tile = |letter: &u8| if letter.is_ascii_uppercase() { BLANK } else { *letter };
                    let rack = Rack::new(&play.letters.iter().map(tile).collect::<Vec<_>>());
                    let laid = self.board.check(words, &rack, &play).map_err(|wrong| wrong.to_string())?;
                    if laid.tiles.len() > self.others {
                        return Err("a play of more tiles than there are".to_owned());
                    }
                    self.board.lay(&laid);
                    (laid.score, laid.tiles.len(), format!("play {} {}", play.told(), laid.score))
                }
                Some(Move::Pass) => (0, 0, "pass".to_owned()),
                _ => return Err("a move that is none".to_owned()),
            },
        };
        let drawn = laid.min(self.bag);
        if bag != self.bag - drawn {
            return Err("a bag that does not follow from the other's move".to_owned());
        }
        self.bag = bag;
        self.others = self.others - laid + drawn;
        self.count(1, points);
        Ok(format!("other {text}\n{}", self.shown()))
    }

    /// The state of the game; empty if it is over, since the result follows.
    fn shown(&self) -> String {
        if self.is_over() { String::new() } else { self.score() }
    }

    /// The game is over: the other's remaining tiles, and both scores.
    fn end(&mut self, others: &Rack, told: [i64; 2]) -> Result<String, String> {
        if !self.is_over() || others.tiles.len() != self.others {
            return Err("an end of a game that goes on".to_owned());
        }
        let [mine, theirs] = [&self.rack, others].map(|rack| i64::from(rack.value()));
        if self.rack.tiles.is_empty() {
            self.scores = [self.scores[0] + theirs, self.scores[1] - theirs];
        } else if self.others == 0 {
            self.scores = [self.scores[0] - mine, self.scores[1] + mine];
        } else {
            self.scores = [self.scores[0] - mine, self.scores[1] - theirs];
        }
        if self.scores != told {
            return Err("scores that do not follow from the game".to_owned());
        }
        let who = match self.scores[0].cmp(&self.scores[1]) {
            Ordering::Greater => "you win",
            Ordering::Equal => "nobody wins",
            Ordering::Less => "the other wins",
        };
        let [mine, theirs] = self.scores;
        Ok(format!("{}over {who} {mine} : {theirs}\n", self.score()))
    }
}
