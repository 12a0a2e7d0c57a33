//! Games as a client sees them, with a list of their own.

use super::*;
use marram_play::double::say;
use marram_scrabble::{player, tiles::Rack};
use marram_sdk::double::Session;

const LIST: &str =
    "at\ncat\ncats\nact\nta\nto\nso\nit\nis\non\nno\none\nten\nnet\ntin\nin\nran\near\nare\nera\nquiz\naa";

fn open() -> Session<Scrabble> {
    let mut session = Session::of(Talk::of(Game::of(Words::new(LIST))));
    session.open_client();
    session
}

/// A game with these racks: the client's, then the edge's.
fn round(racks: [&str; 2]) -> (Round, Words) {
    let mut round = Round::new(1);
    for (seat, rack) in round.seats.iter_mut().zip(racks) {
        seat.rack = Rack::new(rack.as_bytes());
    }
    (round, Words::new(LIST))
}

fn turn(round: &mut Round, words: &Words, line: &str) -> Result<String, String> {
    turn::take(round, words, command(&line.split(' ').collect::<Vec<_>>())?)
}

#[test]
fn a_turn_is_the_clients_and_then_the_edges() {
    let (mut round, words) = round(["catiiii", "ssovvvv"]);
    let said = turn(&mut round, &words, "play cat h8 across").unwrap();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "you play cat h8 across 10");
    // `so` and `cats` at once.
    assert_eq!(lines[1], "edge play so k8 down 8");
    // Both drew: three tiles and two.
    assert!(lines[2].starts_with("score 10 8 bag 81 rack "), "{said}");
    assert_eq!(round.seats.each_ref().map(|seat| seat.rack.tiles.len()), [7, 7]);
    assert!(turn::board(&round).contains(" c a t s"));
}

#[test]
fn what_may_not_be_laid_is_refused_and_changes_nothing() {
    let (mut round, words) = round(["catiiii", "ssovvvv"]);
    let before = turn::board(&round);
    for (line, why) in [
        ("play tac h8 across", "tac is not in the list"),
        ("play cats h8 across", "you have not got these tiles"),
        ("play cat a1 across", "the first word has two letters or more and covers h8"),
        ("play c4t h8 across", "a word is letters from a to z, each after ? if it is a blank"),
        ("play cat? h8 across", "a word is letters from a to z, each after ? if it is a blank"),
        ("play cat p8 across", "a square is a column from a to o and a row from 1 to 15"),
        ("play cat h8 up", "a word goes across or down"),
        ("exchange x", "you have not got these tiles"),
        ("exchange 1", "tiles are letters from a to z, and ?"),
        ("shout", "say start, play, exchange, pass, board or quit"),
    ] {
        assert_eq!(turn(&mut round, &words, line), Err(why.to_owned()), "{line}");
        assert_eq!(turn::board(&round), before, "{line}");
    }
}

#[test]
fn blanks_are_said_with_a_mark() {
    let (mut round, words) = round(["?atiiii", "vvvvvvv"]);
    let said = turn(&mut round, &words, "play ?cat h8 across").unwrap();
    assert!(said.starts_with("you play Cat h8 across 4\nedge exchange 7\nscore 4 0 "), "{said}");
}

#[test]
fn tiles_are_exchanged_while_the_bag_has_seven() {
    let (mut round, words) = round(["catiiii", "vvvvvvv"]);
    let said = turn(&mut round, &words, "exchange iii").unwrap();
    assert!(said.starts_with("you exchange 3\nedge exchange 7\nscore 0 0 bag 86 rack "), "{said}");
    round.bag.empty();
    assert_eq!(
        turn(&mut round, &words, "exchange c"),
        Err("fewer than seven tiles are in the bag".to_owned())
    );
    // The edge cannot play a word or exchange, so it passes.
    round.seats[1].rack = Rack::new(b"vvv");
    assert!(turn(&mut round, &words, "pass").unwrap().starts_with("you pass\nedge pass\n"));
}

#[test]
fn whichever_goes_out_has_the_others_tiles_too() {
    let (mut round, words) = round(["cat", "vq"]);
    round.bag.empty();
    let said = turn(&mut round, &words, "play cat h8 across").unwrap();
    // v and q: 4 and 10.
    assert_eq!(said, "you play cat h8 across 10\nscore 24 -14 bag 0 rack none\nover you win 24 : -14\n");
    assert_eq!(turn(&mut round, &words, "pass"), Err("the game is over: start another".to_owned()));
    let (mut round, words) = self::round(["catv", "so"]);
    round.bag.empty();
    let said = turn(&mut round, &words, "play cat h8 across").unwrap();
    let expected = "you play cat h8 across 10\nedge play so k8 down 8\nscore 6 12 bag 0 rack v\nover the edge wins 6 : 12\n";
    assert_eq!(said, expected);
}

#[test]
fn six_turns_without_a_point_are_the_end() {
    let (mut round, words) = round(["q", "vv"]);
    round.bag.empty();
    for _ in 0..2 {
        assert!(!turn(&mut round, &words, "pass").unwrap().contains("over"));
    }
    let said = turn(&mut round, &words, "pass").unwrap();
    assert!(said.ends_with("score -10 -8 bag 0 rack q\nover the edge wins -10 : -8\n"), "{said}");
}

#[test]
fn a_point_between_them_counts_turns_again() {
    let (mut round, words) = round(["catq", "vv"]);
    round.bag.empty();
    turn(&mut round, &words, "pass").unwrap();
    turn(&mut round, &words, "pass").unwrap();
    turn(&mut round, &words, "play cat h8 across").unwrap();
    for _ in 0..2 {
        assert!(!turn(&mut round, &words, "pass").unwrap().contains("over"));
    }
    assert!(turn(&mut round, &words, "pass").unwrap().contains("over"));
}

#[test]
fn a_client_plays_by_lines_and_chance_is_the_cells() {
    let mut session = open();
    assert_eq!(say(&mut session, "pass"), "error say start\n");
    let first = say(&mut session, "start 3");
    assert!(first.starts_with("score 0 0 bag 86 rack "), "{first}");
    assert_eq!(say(&mut session, "start 3"), first);
    assert_ne!(say(&mut session, "start 4"), first);
    let by_chance = say(&mut session, "start");
    assert_ne!(say(&mut session, "start"), by_chance);
    assert!(say(&mut session, "pass").starts_with("you pass\nedge "));
    assert!(say(&mut session, "board").contains(" = . . "));
    assert_eq!(say(&mut session, "start x"), "error a seed is a number\n");
}

#[test]
fn a_whole_game_ends_with_the_scores_that_were_sent() {
    let mut session = open();
    let mut said = say(&mut session, "start 11");
    let mut turns = 0;
    while !said.contains("over ") {
        let rack = said.lines().find_map(|line| line.rsplit_once("rack ")).unwrap().1.to_owned();
        let round = session.cell().game().round.as_ref().unwrap();
        let line =
            player::best(&round.board, &Words::new(LIST), &Rack::new(rack.as_bytes())).map(|(play, _)| {
                let letter = |byte: &u8| {
                    format!("{}{}", if byte.is_ascii_uppercase() { "?" } else { "" }, char::from(*byte))
                };
                let word: String = play.letters.iter().map(letter).collect();
                format!("play {word} {} {}", play.at, if play.is_down { "down" } else { "across" })
            });
        said = say(&mut session, &line.unwrap_or_else(|| "pass".to_owned()));
        assert!(!said.starts_with("error"), "{said}");
        turns += 1;
        assert!(turns < 200);
    }
    assert!(turns > 5, "{turns}");
}
