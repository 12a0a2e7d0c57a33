//! Scrabble as it ships: its own manifest, with Debian's word list.

use super::Player;
use crate::support::{self, skip::skip};
use marram_cluster::TestCluster;
use marram_scrabble::{
    board::{Board, Play, Square},
    player,
    tiles::Rack,
    words::Words,
};
use std::path::Path;

/// The path in the manifest.
const LIST: &str = "/usr/share/dict/words";
const TURNS: usize = 3;

/// Lays the word that a line of the game reports.
fn follow(board: &mut Board, words: &Words, line: &str) {
    if let [_, "play", word, at, way, _] = line.split(' ').collect::<Vec<_>>()[..] {
        let letters = word.as_bytes().to_vec();
        let play = Play { letters, at: Square::from_name(at).unwrap(), is_down: way == "down" };
        let tile = |byte: u8| if byte.is_ascii_uppercase() { b'?' } else { byte };
        let rack = Rack::new(&word.bytes().map(tile).collect::<Vec<_>>());
        board.lay(&board.check(words, &rack, &play).unwrap());
    }
}

#[test]
fn scrabble_is_played_with_the_words_of_its_own_manifest() {
    if !Path::new(LIST).is_file() {
        return skip(format_args!("there is no {LIST} on this machine"));
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cells/examples/scrabble/marram.toml");
    let layout = support::layout("scrabble-words", |layout| layout.edges = 2);
    let mut player = Player::at(TestCluster::new(layout, |_| Ok(vec![manifest])).unwrap(), "scrabble");
    let words = Words::new(&std::fs::read_to_string(LIST).unwrap());
    let mut board = Board::default();
    let is_last = |line: &str| line.starts_with("score ") || line.starts_with("error ");
    player.ask("start 8", is_last);
    for turn in 0..TURNS {
        let score = player.told.last().unwrap().clone();
        let rack = score.rsplit(' ').next().unwrap();
        let (play, _) = player::best(&board, &words, &Rack::new(rack.as_bytes())).expect("something fits");
        // The play is named by its first square; a blank is written as the game's protocol has it.
        let blank = |letter: u8| match char::from(letter) {
            letter if letter.is_ascii_uppercase() => format!("?{}", letter.to_ascii_lowercase()),
            letter => letter.to_string(),
        };
        let word: String = play.letters.iter().map(|letter| blank(*letter)).collect();
        let (column, row) = (char::from(b'a' + play.at.column), play.at.row + 1);
        let way = if play.is_down { "down" } else { "across" };
        let heard = player.told.len();
        let killed = (turn == 1).then(|| player.kill());
        player.ask(&format!("play {word} {column}{row} {way}"), is_last);
        if let Some(start) = killed {
            player.cluster.wait_for_owner(start).unwrap();
        }
        let told = &player.told[heard..];
        assert!(told[0].starts_with("you play ") && told.last().unwrap().starts_with("score "), "{told:?}");
        told.iter().for_each(|line| follow(&mut board, &words, line));
    }
    let laid = player.told.iter().filter(|line| line.starts_with("edge play ")).count();
    assert!(laid > 0, "the edge finds words in it, too: {:?}", player.told);
    player.ask("play zzxq a1 across", is_last);
    assert!(player.told.last().unwrap().starts_with("error "), "{:?}", player.told.last());
}
