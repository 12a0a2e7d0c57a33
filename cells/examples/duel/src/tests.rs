//! Two cells at a table, and lying servers and players.

use super::*;
use marram_scrabble::{
    board::{Board, Play, Square},
    player,
    tiles::Rack,
};
use marram_sdk::double::{Output, Session};
use scrabble_table::Hall;

const LIST: &str = "at\ncat\ncats\nact\nta\nto\nso\nit\nis\non\nno\none\nten\nnet\ntin\nin\nran\near\nare\nera\nquiz\naa\nid\nod\nor\nre\nhe\nha";

/// A cell, and the lines that its player received.
struct Player {
    session: Session<Duel>,
    told: Vec<String>,
    is_closed: bool,
}

impl Player {
    fn new() -> Self {
        let mut session = Session::of(Duel::of(Words::new(LIST)));
        session.open_client();
        session.open_server();
        Self { session, told: Vec::new(), is_closed: false }
    }

    /// Gives the cell a line; returns its lines to the server.
    fn hear(&mut self, port: Port, line: &str) -> Vec<String> {
        let mut asked = Vec::new();
        for output in self.session.message(port, format!("{line}\n").as_bytes()) {
            match output {
                Output::Message { port, payload } => {
                    let text = String::from_utf8(payload).unwrap();
                    let lines = text.lines().map(str::to_owned);
                    if port == Port::CLIENT { self.told.extend(lines) } else { asked.extend(lines) }
                }
                Output::Close { .. } => self.is_closed = true,
                Output::Connect { server, .. } => panic!("it connects to {server}"),
            }
        }
        asked
    }

    fn last(&self) -> &str {
        self.told.last().map_or("", |line| line)
    }
}

/// Two players and their table.
struct Evening {
    hall: Hall,
    players: [Player; 2],
}

impl Evening {
    fn new() -> Self {
        let mut evening = Self { hall: Hall::default(), players: [Player::new(), Player::new()] };
        evening.say(0, "sit t 11");
        assert_eq!(evening.players[0].told, ["wait at t for another"]);
        evening.say(1, "sit t");
        evening
    }

    fn say(&mut self, index: usize, line: &str) {
        for asked in self.players[index].hear(Port::CLIENT, line) {
            for (player, said) in self.hall.hear(index as u64, &asked, 1) {
                let answers = self.players[usize::try_from(player).unwrap()].hear(Port::SERVER, &said);
                assert!(answers.is_empty(), "{answers:?}");
            }
        }
    }

    /// The line of a greedy player that knows what the player with this index received.
    fn best(&self, index: usize) -> String {
        let mut board = Board::default();
        let told = &self.players[index].told;
        for line in told {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, "play", word, at, way, _] = words[..] else { continue };
            let letters = word.as_bytes().to_vec();
            let play = Play { letters, at: Square::from_name(at).unwrap(), is_down: way == "down" };
            let tiles: Vec<u8> =
                word.bytes().map(|b| if b.is_ascii_uppercase() { b'?' } else { b }).collect();
            board.lay(&board.check(&Words::all(), &Rack::new(&tiles), &play).unwrap());
        }
        let rack = told.iter().rev().find_map(|line| line.split_once(" rack ")).unwrap().1;
        match player::best(&board, &Words::new(LIST), &Rack::new(rack.as_bytes())) {
            Some((play, _)) => format!("play {}", play.said()),
            None => "pass".to_owned(),
        }
    }
}

#[test]
fn two_players_receive_the_same_game() {
    let mut evening = Evening::new();
    assert!(evening.players[0].told[1..] != [""; 0] && evening.players[0].told[1] == "begin you are first");
    let mut turn = 0;
    while !evening.players[0].last().starts_with("over ") {
        let line = evening.best(turn % 2);
        evening.say(turn % 2, &line);
        turn += 1;
        assert!(turn < 200, "{:?}", evening.players[0].told);
    }
    let [one, two] = &evening.players;
    assert!(turn > 10 && two.last().starts_with("over "), "{:?}", two.told);
    // The same moves, seen from both sides; the same scores, in the other order.
    let moves = |player: &Player, names: [&str; 2]| -> Vec<String> {
        let line = |line: &String| {
            let (who, what) = line.split_once(' ')?;
            names
                .contains(&who)
                .then(|| format!("{} {what}", names.iter().position(|name| *name == who).unwrap()))
        };
        player.told.iter().filter_map(line).collect()
    };
    assert_eq!(moves(one, ["you", "other"]), moves(two, ["other", "you"]));
    let scores = |player: &Player| -> Vec<i64> {
        player.last().split(' ').filter_map(|word| word.parse().ok()).collect()
    };
    let (mut mine, theirs) = (scores(one), scores(two));
    mine.reverse();
    assert_eq!(mine, theirs);
    assert!(!one.told.iter().chain(&two.told).any(|line| line.starts_with("error")));
    // They can sit down again.
    evening.say(1, "sit again");
    assert_eq!(evening.players[1].last(), "wait at again for another");
}

#[test]
fn a_move_that_is_not_allowed_is_refused_with_the_reason_without_asking_the_server() {
    let mut player = Player::new();
    for (line, why) in [
        ("pass", "say sit and the name of a table"),
        ("sit", "say sit and the name of a table"),
        ("board", "say sit and the name of a table"),
    ] {
        assert!(player.hear(Port::CLIENT, line).is_empty());
        assert_eq!(player.last(), format!("error {why}"));
    }
    assert_eq!(player.hear(Port::CLIENT, "sit t"), ["sit t"]);
    player.hear(Port::SERVER, "wait t");
    player.hear(Port::CLIENT, "pass");
    assert_eq!(player.last(), "error you sit alone there: wait");
    player.hear(Port::SERVER, "begin 1 catiiii 86");
    for (line, why) in [
        ("sit u", "you sit at a table"),
        ("play tac h8 across", "tac is not in the list"),
        ("play cats h8 across", "you have not got these tiles"),
        ("play cat a1 across", "the first word has two letters or more and covers h8"),
        ("exchange x", "you have not got these tiles"),
        ("yours catiiii 86", "say play, exchange, pass, board or quit"),
        ("end - 1 0", "say play, exchange, pass, board or quit"),
        (&"x".repeat(200), "that line is too long"),
    ] {
        assert!(player.hear(Port::CLIENT, line).is_empty());
        assert_eq!(player.last(), format!("error {why}"), "{line}");
    }
    assert_eq!(player.hear(Port::CLIENT, "play cat h8 across"), ["play cat h8 across"]);
    assert!(player.hear(Port::CLIENT, "pass").is_empty());
    assert_eq!(player.last(), "error your last move is not answered yet");
    player.hear(Port::SERVER, "yours iiiixyz 83");
    assert_eq!(
        player.told[player.told.len() - 2..],
        ["you play cat h8 across 10", "score 10 0 bag 83 rack iiiixyz"]
    );
    assert!(player.hear(Port::CLIENT, "pass").is_empty());
    assert_eq!(player.last(), "error it is not your turn");
    assert!(!player.is_closed);
}

/// The player to move first, which may already have asked to lay `cat`.
fn playing(has_asked: bool, seat: u8) -> Player {
    let mut player = Player::new();
    player.hear(Port::CLIENT, "sit t");
    player.hear(Port::SERVER, &format!("begin {seat} catiiii 86"));
    if has_asked {
        player.hear(Port::CLIENT, "play cat h8 across");
    }
    player
}

/// A player, and lines that its server must not send.
type Case = (fn() -> Player, &'static [&'static str]);

/// Lines that contradict what the player knows.
const IMPOSSIBLE: [Case; 4] = [
    (
        Player::new,
        &[
            "wait t",
            "begin 1 catiiii 86",
            "refused no",
            "yours cat 86",
            "left",
            "end - 0 0",
            "drop table",
            "\u{7}",
        ],
    ),
    (
        || playing(true, 1),
        &[
            "yours iiiixyz 84",
            "yours iiiixy 83",
            "yours xxxxxyz 83",
            "yours iiiixyz -1",
            "yours iiii!yz 83",
            "yours iiiixyzz 83",
            "begin 1 catiiii 86",
            "other pass 86",
            "end q 0 0",
        ],
    ),
    (
        || playing(false, 2),
        &[
            "other play tac h8 across 83",
            "other play cat a1 across 83",
            "other play cat h8 across 86",
            "other play cat h8 sideways 83",
            "other play ? h8 across 83",
            "other exchange 0 86",
            "other exchange 8 86",
            "other exchange x 86",
            "other dance 86",
            "other pass 85",
            "other pass",
            "yours catiiii 86",
            "refused out of thin air",
        ],
    ),
    (
        || {
            let mut player = Player::new();
            player.hear(Port::CLIENT, "sit t");
            player
        },
        &["begin 3 catiiii 86", "begin 1 cat 86", "begin 1 catiiii 85", "begin 1 catiiii"],
    ),
];

#[test]
fn a_server_that_says_what_cannot_be_ends_the_game_in_words() {
    for (make, lines) in IMPOSSIBLE {
        for line in lines {
            let mut player = make();
            let asked = player.hear(Port::SERVER, line);
            let last = player.last();
            assert!(
                last.starts_with("error the server of the table said what cannot be: "),
                "{line}: {last}"
            );
            assert!(asked.is_empty() && player.is_closed, "{line}");
        }
    }
    // Only consistent lines are accepted.
    let mut player = playing(false, 2);
    player.hear(Port::SERVER, "other play ?cat h8 across 83");
    assert_eq!(player.told[player.told.len() - 2], "other play Cat h8 across 4");
    player.hear(Port::SERVER, "left");
    assert_eq!(player.last(), "over you win, the other has left");
}

#[test]
fn a_move_that_crosses_the_leaving_of_the_other_costs_nothing() {
    for sits_at_once in [true, false] {
        let mut player = playing(false, 1);
        let mut hall = Hall::default();
        hall.hear(0, "sit t", 1);
        hall.hear(1, "sit t", 1);
        // The hall handles the leave first, and the player sends a move before it learns of it.
        assert_eq!(hall.leave(1), [(0, "left".to_owned())]);
        let mut asked = player.hear(Port::CLIENT, "play cat h8 across");
        player.hear(Port::SERVER, "left");
        assert_eq!(player.last(), "over you win, the other has left");
        let sit = |player: &mut Player| player.hear(Port::CLIENT, "sit u");
        if sits_at_once {
            asked.extend(sit(&mut player));
        }
        let answers: Vec<String> =
            asked.iter().flat_map(|line| hall.hear(0, line, 1)).map(|(_, line)| line).collect();
        assert_eq!(answers[0], "refused sit down first");
        for answer in answers {
            player.hear(Port::SERVER, &answer);
        }
        if !sits_at_once {
            assert_eq!(player.last(), "over you win, the other has left");
            assert_eq!(sit(&mut player), ["sit u"]);
            player.hear(Port::SERVER, "wait u");
        }
        assert_eq!(player.last(), "wait at u for another");
        assert!(!player.is_closed && !player.told.iter().any(|line| line.starts_with("error")));
    }
    // One refusal is expected, and before anything else.
    for lines in [&["left", "refused no", "refused no"][..], &["left", "wait t"]] {
        let mut player = playing(true, 1);
        lines.iter().for_each(|line| _ = player.hear(Port::SERVER, line));
        assert!(player.is_closed, "{lines:?}");
    }
}

#[test]
fn a_server_that_goes_is_missed() {
    let mut player = playing(false, 2);
    let said = player.session.close(Port::SERVER);
    assert_eq!(said[0], Output::message(Port::CLIENT, b"error the server of the table has gone\n"));
    assert_eq!(said.len(), 3);
}
