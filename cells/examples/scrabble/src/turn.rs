//! A turn of a client against the edge: the client's move, then the edge's.

use marram_scrabble::{
    player,
    round::{Move, Round},
    tiles::RACK,
    words::Words,
};

const CLIENT: usize = 0;
const EDGE: usize = 1;

/// The client's turn and, unless the game ended, the edge's.
pub(crate) fn take(round: &mut Round, words: &Words, action: Move) -> Result<String, String> {
    if round.is_over() {
        return Err("the game is over: start another".to_owned());
    }
    let mut said = format!("you {}\n", round.act(words, CLIENT, action)?);
    if !round.is_over() {
        let action = choose(round, words);
        said += &format!("edge {}\n", round.act(words, EDGE, action)?);
    }
    said += &score(round);
    if round.is_over() {
        let [client, edge] = [CLIENT, EDGE].map(|seat| round.seats[seat].score);
        let who = match client.cmp(&edge) {
            core::cmp::Ordering::Greater => "you win",
            core::cmp::Ordering::Equal => "nobody wins",
            core::cmp::Ordering::Less => "the edge wins",
        };
        said += &format!("over {who} {client} : {edge}\n");
    }
    Ok(said)
}

/// The edge's move: the best play, else an exchange, else a pass if there are no tiles.
fn choose(round: &Round, words: &Words) -> Move {
    let rack = &round.seats[EDGE].rack;
    match player::best(&round.board, words, rack) {
        Some((play, _)) => Move::Play(play),
        None if round.bag.len() >= RACK => Move::Exchange(rack.tiles.clone()),
        None => Move::Pass,
    }
}

/// The state of the game, as far as the client may know it.
pub(crate) fn score(round: &Round) -> String {
    let [client, edge] = &round.seats;
    let rack = if client.rack.tiles.is_empty() { "none".to_owned() } else { client.rack.text() };
    format!("score {} {} bag {} rack {rack}\n", client.score, edge.score, round.bag.len())
}

pub(crate) fn board(round: &Round) -> String {
    format!("{}{}", round.board.text(), score(round))
}
