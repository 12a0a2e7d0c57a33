//! Tables and the players at them. Pure: a line of a player comes in, lines for the players concerned go out. Trusts no player: a
//! player should be a cell, but any process that reaches the server can claim to be one.

use std::collections::BTreeMap;

use marram_scrabble::{
    round::{Round, parse},
    words::Words,
};

/// Tables at a time.
const TABLES_MAX: usize = 1_024;
/// The longest name of a table.
const NAME_MAX: usize = 32;

/// A connected player.
pub type Player = u64;
/// A line, and the player that gets it.
pub type Said = (Player, String);

/// Two seats; the game begins when both are taken.
struct Table {
    seed: u64,
    first: Player,
    game: Option<(Player, Round)>,
    turn: usize,
}

impl Table {
    fn players(&self) -> [Option<Player>; 2] {
        [Some(self.first), self.game.as_ref().map(|(second, _)| *second)]
    }
}

/// All tables.
pub struct Hall {
    tables: BTreeMap<String, Table>,
    /// The table of each player.
    seated: BTreeMap<Player, String>,
    /// Players' cells know the words; here every word is valid.
    words: Words,
}

impl Default for Hall {
    fn default() -> Self {
        Self { tables: BTreeMap::new(), seated: BTreeMap::new(), words: Words::all() }
    }
}

/// A rack in a line, which has no empty words.
fn rack(round: &Round, seat: usize) -> String {
    let text = round.seats[seat].rack.text();
    if text.is_empty() { "-".to_owned() } else { text }
}

impl Hall {
    /// Handles a line of a player. `chance` seeds the bag of a table that is opened without a seed.
    pub fn hear(&mut self, player: Player, line: &str, chance: u64) -> Vec<Said> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let done = match words[..] {
            ["sit", name] => self.sit(player, name, chance),
            ["sit", name, seed] => match seed.parse() {
                Ok(seed) => self.sit(player, name, seed),
                Err(_) => Err("a seed is a number".to_owned()),
            },
            _ => self.act(player, &words),
        };
        done.unwrap_or_else(|why| vec![(player, format!("refused {why}"))])
    }

    fn sit(&mut self, player: Player, name: &str, seed: u64) -> Result<Vec<Said>, String> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(legal) {
            return Err("a table's name is 1 to 32 letters, digits and -".to_owned());
        }
        if self.seated.contains_key(&player) {
            return Err("you sit at a table".to_owned());
        }
        let room = self.tables.len() < TABLES_MAX;
        match self.tables.get_mut(name) {
            None if !room => Err("all tables are taken".to_owned()),
            None => {
                self.tables.insert(name.to_owned(), Table { seed, first: player, game: None, turn: 0 });
                self.seated.insert(player, name.to_owned());
                Ok(vec![(player, format!("wait {name}"))])
            }
            Some(Table { game: Some(_), .. }) => Err("that table is taken".to_owned()),
            Some(table) => {
                let round = Round::new(table.seed);
                let begin =
                    |seat: usize| format!("begin {} {} {}", seat + 1, rack(&round, seat), round.bag.len());
                let said = vec![(table.first, begin(0)), (player, begin(1))];
                table.game = Some((player, round));
                self.seated.insert(player, name.to_owned());
                Ok(said)
            }
        }
    }

    fn act(&mut self, player: Player, words: &[&str]) -> Result<Vec<Said>, String> {
        let name = self.seated.get(&player).ok_or("sit down first")?;
        let table = self.tables.get_mut(name).ok_or("there is no such table")?;
        let first = table.first;
        let Some((second, round)) = &mut table.game else {
            return Err("you sit alone there".to_owned());
        };
        let seat = usize::from(player != first);
        let other = if seat == 0 { *second } else { first };
        if table.turn != seat {
            return Err("it is the other's turn".to_owned());
        }
        let action = parse(words)?.ok_or("say play, exchange or pass")?;
        // Exact words for the other's cell; texts for people show the blank in another way.
        let said = match &action {
            marram_scrabble::round::Move::Play(play) => format!("play {}", play.said()),
            marram_scrabble::round::Move::Exchange(tiles) => format!("exchange {}", tiles.len()),
            marram_scrabble::round::Move::Pass => "pass".to_owned(),
        };
        round.act(&self.words, seat, action)?;
        table.turn = 1 - seat;
        let bag = round.bag.len();
        let mut out = vec![
            (player, format!("yours {} {bag}", rack(round, seat))),
            (other, format!("other {said} {bag}")),
        ];
        if round.is_over() {
            for (player, seat) in [(player, seat), (other, 1 - seat)] {
                let (mine, theirs) = (round.seats[seat].score, round.seats[1 - seat].score);
                out.push((player, format!("end {} {mine} {theirs}", rack(round, 1 - seat))));
            }
            self.clear(player);
        }
        Ok(out)
    }

    /// Removes the table of a player; returns its players.
    fn clear(&mut self, player: Player) -> Vec<Player> {
        let Some(table) = self.seated.get(&player).and_then(|name| self.tables.remove(name)) else {
            return Vec::new();
        };
        let players: Vec<Player> = table.players().into_iter().flatten().collect();
        players.iter().for_each(|player| _ = self.seated.remove(player));
        players
    }

    /// Whether this player has to send something, and not another player to move.
    #[must_use]
    pub fn is_due(&self, player: Player) -> bool {
        match self.seated.get(&player).and_then(|name| self.tables.get(name)) {
            Some(table) if table.game.is_some() => table.players()[table.turn] == Some(player),
            _ => true,
        }
    }

    /// A player has left: the other, if there is one, wins.
    pub fn leave(&mut self, player: Player) -> Vec<Said> {
        let others = self.clear(player).into_iter().filter(|other| *other != player);
        others.map(|other| (other, "left".to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(hall: &mut Hall, player: Player, line: &str) -> Vec<String> {
        hall.hear(player, line, 7).into_iter().map(|(player, line)| format!("{player} {line}")).collect()
    }

    /// Two at a table with these racks, and nothing in the bag.
    fn table(racks: [&str; 2]) -> Hall {
        let mut hall = Hall::default();
        hear(&mut hall, 1, "sit t 3");
        hear(&mut hall, 2, "sit t");
        let (_, round) = hall.tables.get_mut("t").unwrap().game.as_mut().unwrap();
        for (seat, rack) in round.seats.iter_mut().zip(racks) {
            seat.rack = marram_scrabble::tiles::Rack::new(rack.as_bytes());
        }
        round.bag.empty();
        hall
    }

    #[test]
    fn two_players_with_the_same_table_name_sit_at_one_table() {
        let mut hall = Hall::default();
        assert_eq!(hear(&mut hall, 1, "sit dune 180"), ["1 wait dune"]);
        assert_eq!(hear(&mut hall, 1, "pass"), ["1 refused you sit alone there"]);
        let begun = hear(&mut hall, 2, "sit dune");
        assert!(begun[0].starts_with("1 begin 1 ") && begun[1].starts_with("2 begin 2 "), "{begun:?}");
        assert!(begun.iter().all(|line| line.ends_with(" 86")), "{begun:?}");
        for (player, line, why) in [
            (1, "sit dune", "you sit at a table"),
            (3, "sit dune", "that table is taken"),
            (3, "sit Dune!", "a table's name is 1 to 32 letters, digits and -"),
            (3, "sit a x", "a seed is a number"),
            (3, "pass", "sit down first"),
            (2, "pass", "it is the other's turn"),
            (1, "shout", "say play, exchange or pass"),
            (1, "play zzzzzzz h8 across", "you have not got these tiles"),
            (1, "exchange zzzzzzz", "you have not got these tiles"),
        ] {
            assert_eq!(hear(&mut hall, player, line), [format!("{player} refused {why}")], "{line}");
        }
        assert_eq!([1, 2, 3].map(|player| hall.is_due(player)), [true, false, true]);
        let passed = hear(&mut hall, 1, "pass");
        assert_eq!([1, 2, 3].map(|player| hall.is_due(player)), [false, true, true]);
        assert!(passed[0].starts_with("1 yours ") && passed[1] == "2 other pass 86", "{passed:?}");
    }

    #[test]
    fn a_player_without_tiles_ends_the_game_and_both_receive_the_scores() {
        let mut hall = table(["?at", "vq"]);
        let said = hear(&mut hall, 1, "play ?cat h8 across");
        let expected = ["1 yours - 0", "2 other play ?cat h8 across 0", "1 end qv 18 -14", "2 end - -14 18"];
        assert_eq!(said, expected);
        // The table is free again.
        assert_eq!(hear(&mut hall, 2, "sit t"), ["2 wait t"]);
    }

    #[test]
    fn a_player_that_leaves_loses() {
        let mut hall = table(["cat", "vq"]);
        assert_eq!(hall.leave(2), [(1, "left".to_owned())]);
        assert_eq!(hall.leave(1), []);
        hear(&mut hall, 3, "sit t");
        assert_eq!(hall.leave(3), []);
        assert_eq!(hear(&mut hall, 4, "sit t"), ["4 wait t"]);
    }
}
