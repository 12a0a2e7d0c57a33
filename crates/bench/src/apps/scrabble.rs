//! The game `scrabble`: what protection adds to a move, and how a move at a nearby edge compares with one at a distant server.
//!
//! A move is legal under the rules of the board and a real word list. It is over when the edge has found and laid its own word
//! and has sent the answer. The games are first played in this process, with the same rules, seed and words, so every answer is
//! known.
//!
//! The edge searches for its own word after each move, so most of a move's time is the game's.

use super::super::report::{Bar, Report};
use super::super::{Plan, progress, stats};
use super::added::ADDED_US_MAX;
use super::talk::Player;
use anyhow::Context;
use marram_cluster::{TempDir, TestCluster};
use marram_scrabble::player::best;
use marram_scrabble::round::{Move, Round};
use marram_scrabble::tiles::RACK;
use marram_scrabble::words::Words;
use marram_testbed::Relay;
use std::net::SocketAddr;
use std::time::Duration;

/// The largest share of the distant server's time that a move at the nearby edge may take.
const RATIO_MAX: f64 = 0.05;
/// Delay to the distant server, one way.
const FAR: Duration = Duration::from_millis(20);
/// The path in the cell's own manifest: Debian's `wamerican`, or another word list at this place.
const WORDS: &str = "/usr/share/dict/words";
/// Seats of a round.
const CLIENT: usize = 0;
const EDGE: usize = 1;

/// Measures and adds the figures to the report.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (repeats, games) = if plan.quick { (1, 2) } else { (9, 8) };
    let words = std::fs::read_to_string(WORDS).with_context(|| {
        format!("there is no list of words as {WORDS}: run this by `cargo xtask bench apps`, or install Debian's package wamerican")
    })?;
    let words = Words::new(&words);
    let games = (1..=games).map(|seed| Game::play(&words, seed)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut cluster = TestCluster::new(plan.layout("bench-apps-scrabble", 1, ""), |place| {
        [("bare", "none"), ("guarded", "endpoints")]
            .into_iter()
            .map(|(name, protect)| manifest(plan, place, name, protect))
            .collect()
    })?;
    cluster.start_edges("")?;
    let edge = cluster.edge_addresses();
    let near = cluster.start_client_agent(&edge, &["bare", "guarded"])?;
    let edge_us = added(&games, repeats, [near[0].address, near[1].address], report)?;

    // The same cell beside the server: everything takes the long path.
    progress("apps: scrabble, far away");
    let relay = Relay::start(edge[0], FAR)?;
    let distant = cluster.start_client_agent(&[relay.address()], &["bare"])?;
    let mut player = Player::connect(distant[0].address)?;
    let mut times = Vec::new();
    for game in &games {
        player.say(&game.start)?;
        while !player.hear()?.0.starts_with("score ") {}
        for turn in &game.turns {
            let us = turn.take(&mut player)?;
            times.extend(turn.is_play.then_some(us));
        }
    }
    let far_us = stats::median(&times);
    report.metric("scrabble_far_server_p50_us", far_us);
    report.metric_with_bar("scrabble_edge_vs_far_server", edge_us / far_us, Bar::Most(RATIO_MAX));
    report.metric("scrabble_moves", times.len());
    report.baseline(
        "far server",
        "the same games with `protect = \"none\"`, the wire held back for 20 ms each way by a relay",
    );
    report.note(format!(
        "scrabble: {} whole games; each move lays what counts most of the words in {WORDS}, and is over when the edge has laid its own \
         word; every answer is what the same rules say here",
        games.len()
    ));
    Ok(())
}

fn manifest(plan: &Plan, place: &TempDir, name: &str, protect: &str) -> anyhow::Result<std::path::PathBuf> {
    let rest = format!(
        "protect = {protect:?}\n[quotas]\nhandler_time = \"5s\"\n[[files]]\npath = \"/etc/words\"\nsource = \"{WORDS}\"\n\
         absolute = true\n"
    );
    plan.cells.manifest(place, name, "scrabble", &rest)
}

/// Plays all games against both instances at once, move by move alternately, and reports how much longer the protected one takes.
/// Returns the median of its moves.
///
/// Only moves that lay a word count: an exchange or a pass costs next to nothing.
fn added(
    games: &[Game],
    repeats: usize,
    addresses: [SocketAddr; 2],
    report: &mut Report,
) -> anyhow::Result<f64> {
    let mut players = [Player::connect(addresses[0])?, Player::connect(addresses[1])?];
    let (mut added, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    for repeat in 0..repeats {
        progress(&format!("apps: scrabble, {} of {repeats}", repeat + 1));
        for game in games {
            for player in &mut players {
                player.say(&game.start)?;
                while !player.hear()?.0.starts_with("score ") {}
            }
            for (number, turn) in game.turns.iter().enumerate() {
                let mut us = [0.0; 2];
                // The first of the two finds other caches than the second, so the order alternates.
                for index in if (repeat + number) % 2 == 0 { [0, 1] } else { [1, 0] } {
                    us[index] = turn.take(&mut players[index])?;
                }
                if turn.is_play {
                    added.push(us[1] - us[0]);
                    times[0].push(us[0]);
                    times[1].push(us[1]);
                }
            }
        }
    }
    let estimate = stats::estimate(&added);
    report.metric_with_bar("scrabble_added_p50_us", estimate.middle, Bar::Most(ADDED_US_MAX));
    report.metric("scrabble_added_p50_us_low", estimate.low);
    report.metric("scrabble_added_p50_us_high", estimate.high);
    let [bare, guarded] = times.map(|times| stats::median(&times));
    report.metric("scrabble_none_p50_us", bare);
    report.metric("scrabble_edge_p50_us", guarded);
    Ok(guarded)
}

/// A game of a player that always lays the best word, and the expected answers of the edge. Known
/// before it is played, since the rules have no randomness but the seed's.
struct Game {
    /// The line that begins it.
    start: String,
    turns: Vec<Turn>,
}

/// A turn of the client, and all lines of its answer.
struct Turn {
    line: String,
    answer: Vec<String>,
    /// Whether a word is laid; only these turns are measured.
    is_play: bool,
}

impl Game {
    /// Both sides choose the best word, so the game is the same each time.
    fn play(words: &Words, seed: u64) -> anyhow::Result<Self> {
        let (mut round, mut turns) = (Round::new(seed), Vec::new());
        while !round.is_over() {
            let action = choose(&round, words, CLIENT);
            let is_play = matches!(action, Move::Play(_));
            let line = said(&action);
            let told = round.act(words, CLIENT, action).map_err(anyhow::Error::msg)?;
            let mut answer = vec![format!("you {told}")];
            if !round.is_over() {
                let action = choose(&round, words, EDGE);
                let told = round.act(words, EDGE, action).map_err(anyhow::Error::msg)?;
                answer.push(format!("edge {told}"));
            }
            let scores = [CLIENT, EDGE].map(|seat| round.seats[seat].score);
            answer.push(format!("score {} {} bag {} ", scores[0], scores[1], round.bag.len()));
            if round.is_over() {
                answer.push("over ".to_owned());
            }
            turns.push(Turn { line, answer, is_play });
        }
        anyhow::ensure!(turns.iter().any(|turn| turn.is_play), "no word of the list can be laid");
        Ok(Self { start: format!("start {seed}"), turns })
    }
}

/// Chooses as the cell chooses its own moves.
fn choose(round: &Round, words: &Words, seat: usize) -> Move {
    let rack = &round.seats[seat].rack;
    match best(&round.board, words, rack) {
        Some((play, _)) => Move::Play(play),
        None if round.bag.len() >= RACK => Move::Exchange(rack.tiles.clone()),
        None => Move::Pass,
    }
}

/// A move as the line that a player types.
fn said(action: &Move) -> String {
    match action {
        Move::Play(play) => format!("play {}", play.said()),
        Move::Exchange(tiles) => format!("exchange {}", String::from_utf8_lossy(tiles)),
        Move::Pass => "pass".to_owned(),
    }
}

impl Turn {
    /// Sends the line and reads all of the answer; returns how long that took, in microseconds. The
    /// time of the last line of the answer counts, since the edge's own move comes with it.
    fn take(&self, player: &mut Player) -> anyhow::Result<f64> {
        let begun = std::time::Instant::now();
        player.say(&self.line)?;
        let mut last = begun;
        for expected in &self.answer {
            let (heard, at) = player.hear()?;
            anyhow::ensure!(
                heard.starts_with(expected.as_str()),
                "{:?} was answered with {heard:?}, not {expected:?}",
                self.line
            );
            last = at;
        }
        Ok((last - begun).as_secs_f64() * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_is_played_to_its_end_with_words_of_the_list() {
        let list = "at\ncat\ncats\nact\nta\nto\nso\nit\nis\non\nno\none\nten\nnet\ntin\nin\nran\near\nare\nera\nre\nae\noe";
        let game = Game::play(&Words::new(list), 7).unwrap();
        let plays: Vec<&str> =
            game.turns.iter().filter(|turn| turn.is_play).map(|turn| turn.line.as_str()).collect();
        assert!(!plays.is_empty());
        for line in plays {
            let word = line.split(' ').nth(1).unwrap().replace('?', "");
            assert!(list.lines().any(|known| known == word), "{line}");
        }
        let last = game.turns.last().unwrap();
        assert_eq!(last.answer.last().map(String::as_str), Some("over "));
        assert!(game.turns.iter().all(|turn| turn.answer[0].starts_with("you ")));
    }
}
