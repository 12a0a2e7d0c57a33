//! A greedy player: it makes the play with the highest score, without looking ahead.

use crate::{
    board::{Board, CENTRE, Laid, Play, SIZE, Square},
    tiles::{BLANK, Rack},
    words::{self, Words},
};

/// The play with the highest score, the first of equal ones; `None` if there is no legal play.
#[must_use]
pub fn best(board: &Board, words: &Words, rack: &Rack) -> Option<(Play, Laid)> {
    let mut best: Option<(Play, Laid)> = None;
    let hand = Hand::new(rack);
    for (is_down, across) in
        [false, true].into_iter().flat_map(|is_down| (0..SIZE).map(move |line| (is_down, line)))
    {
        let square = |n: u8| {
            if is_down { Square { column: across, row: n } } else { Square { column: n, row: across } }
        };
        let line = Line::new(board, square);
        if line.anchors == 0 {
            continue;
        }
        for word in words.of(hand.mask | line.mask, hand.blanks.into()) {
            for start in 0..=usize::from(SIZE) - word.len() {
                if !line.may_take(word, start, &hand) {
                    continue;
                }
                let at = square(u8::try_from(start).expect("a line is short"));
                let Some(letters) = fit(board, rack, word, at, is_down) else { continue };
                let play = Play { letters, at, is_down };
                let Ok(laid) = board.check(words, rack, &play) else { continue };
                if best.as_ref().is_none_or(|(_, other)| laid.score > other.score) {
                    best = Some((play, laid));
                }
            }
        }
    }
    best
}

/// A rack, by letters.
struct Hand {
    /// How many of each letter there are.
    letters: [u8; 26],
    blanks: u8,
    mask: u32,
}

impl Hand {
    fn new(rack: &Rack) -> Self {
        let mut hand = Self { letters: [0; 26], blanks: 0, mask: 0 };
        for tile in &rack.tiles {
            if *tile == BLANK {
                hand.blanks += 1;
            } else {
                hand.letters[usize::from(*tile - b'a')] += 1;
                hand.mask |= words::mask(&[*tile]);
            }
        }
        hand
    }
}

/// A row or a column.
struct Line {
    /// The letter on each square, 0 on a free one.
    tiles: [u8; SIZE as usize],
    /// A bit for each taken square, and for each free square of which a word must cover at least one.
    taken: u16,
    anchors: u16,
    /// Its letters.
    mask: u32,
}

impl Line {
    fn new(board: &Board, square: impl Fn(u8) -> Square) -> Self {
        let mut line = Self { tiles: [0; SIZE as usize], taken: 0, anchors: 0, mask: 0 };
        for n in 0..SIZE {
            if let Some(tile) = board.tile(square(n)) {
                line.tiles[usize::from(n)] = tile.to_ascii_lowercase();
                line.taken |= 1 << n;
                line.mask |= words::mask(&[tile]);
            } else if is_anchor(board, square(n)) {
                line.anchors |= 1 << n;
            }
        }
        line
    }

    /// Whether a word fits there, considering only this line and the tiles in hand: it does not check crossing words and does not
    /// allocate, since nearly all words are refused.
    fn may_take(&self, word: &[u8], start: usize, hand: &Hand) -> bool {
        let end = start + word.len();
        let squares = ((1_u16 << word.len()) - 1) << start;
        let is_cut_out = (start == 0 || self.taken & 1 << (start - 1) == 0) && self.taken & 1 << end == 0;
        if self.anchors & squares == 0 || !is_cut_out {
            return false;
        }
        let (mut letters, mut blanks) = (hand.letters, hand.blanks);
        word.iter().zip(&self.tiles[start..end]).all(|(letter, there)| {
            let left = &mut letters[usize::from(letter - b'a')];
            match *there {
                0 if *left > 0 => *left -= 1,
                0 if blanks > 0 => blanks -= 1,
                0 => return false,
                tile => return tile == *letter,
            }
            true
        })
    }
}

/// Whether a word may be attached at this square: a free one next to a tile, or the centre.
fn is_anchor(board: &Board, square: Square) -> bool {
    let beside = [square.before(false), square.next(false), square.before(true), square.next(true)];
    let touches = beside.iter().any(|square| board.has_tile(*square));
    board.tile(square).is_none() && (touches || (square == CENTRE && board.is_empty()))
}

/// The word, with blanks for the letters that the rack does not have, if it fits there by its letters alone.
fn fit(board: &Board, rack: &Rack, word: &[u8], at: Square, is_down: bool) -> Option<Vec<u8>> {
    if board.has_tile(at.before(is_down)) {
        return None;
    }
    let mut used = [false; crate::tiles::RACK];
    let mut take = |tile: u8| {
        let index =
            rack.tiles.iter().enumerate().position(|(index, other)| *other == tile && !used[index])?;
        used[index] = true;
        Some(())
    };
    let (mut square, mut letters) = (Some(at), Vec::new());
    for letter in word {
        let here = square?;
        let tile = match board.tile(here) {
            Some(tile) if tile.eq_ignore_ascii_case(letter) => *letter,
            Some(_) => return None,
            None if take(*letter).is_some() => *letter,
            None => take(BLANK).map(|()| letter.to_ascii_uppercase())?,
        };
        letters.push(tile);
        square = here.next(is_down);
    }
    (!board.has_tile(square)).then_some(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lay(board: &mut Board, words: &Words, rack: &[u8]) -> Option<(String, u32)> {
        let (play, laid) = best(board, words, &Rack::new(rack))?;
        board.lay(&laid);
        Some((format!("{} {}", String::from_utf8_lossy(&play.letters), play.at), laid.score))
    }

    #[test]
    fn it_lays_what_counts_most() {
        let words = Words::new("at\ncat\ncats\nquiz\nso\nax");
        let mut board = Board::default();
        assert_eq!(lay(&mut board, &words, b"quizatc"), Some(("quiz e8".to_owned(), 44)));
        // No word of the list can be attached there.
        assert_eq!(lay(&mut board, &words, b"cat?sos"), None);
    }

    #[test]
    fn blanks_stand_for_what_is_missing() {
        let words = Words::new("quiz\nat");
        let mut board = Board::default();
        let (word, score) = lay(&mut board, &words, b"quz?").unwrap();
        assert_eq!((word.as_str(), score), ("quIz e8", 42));
        assert_eq!(lay(&mut board, &words, b"q"), None);
    }

    /// The same by brute force.
    fn best_by_trial(board: &Board, words: &Words, rack: &Rack) -> Option<(Play, Laid)> {
        let mut best: Option<(Play, Laid)> = None;
        for (is_down, line) in
            [false, true].into_iter().flat_map(|is_down| (0..SIZE).map(move |line| (is_down, line)))
        {
            for word in words.of(u32::MAX, 0) {
                for n in 0..SIZE {
                    let at = if is_down {
                        Square { column: line, row: n }
                    } else {
                        Square { column: n, row: line }
                    };
                    let Some(letters) = fit(board, rack, word, at, is_down) else { continue };
                    let play = Play { letters, at, is_down };
                    let Ok(laid) = board.check(words, rack, &play) else { continue };
                    if best.as_ref().is_none_or(|(_, other)| laid.score > other.score) {
                        best = Some((play, laid));
                    }
                }
            }
        }
        best
    }

    #[test]
    fn nothing_that_counts_more_is_overlooked() {
        let words = Words::new(
            "at\ncat\ncats\nact\nta\nto\nso\nit\nis\non\nno\none\nten\nnet\ntin\nin\nran\near\nare\nera",
        );
        let mut dice = marram_play::Dice::new(3);
        for _ in 0..20 {
            let mut board = Board::default();
            for _ in 0..8 {
                let rack: Vec<u8> = (0..7).map(|_| b"aeinorst?c"[dice.below(10)]).collect();
                let rack = Rack::new(&rack);
                let found = best(&board, &words, &rack);
                let play = |found: &Option<(Play, Laid)>| {
                    found.as_ref().map(|(play, laid)| (play.clone(), laid.score))
                };
                assert_eq!(play(&found), play(&best_by_trial(&board, &words, &rack)), "{}", board.text());
                if let Some((_, laid)) = found {
                    board.lay(&laid);
                }
            }
        }
    }

    #[test]
    fn its_moves_are_legal_with_any_tiles() {
        let words = Words::new(
            "at\ncat\ncats\nact\nta\nto\nso\nit\nis\non\nno\none\nten\nnet\ntin\nin\nran\near\nare\nera",
        );
        let mut dice = marram_play::Dice::new(1);
        let mut board = Board::default();
        let mut laid = 0;
        for _ in 0..40 {
            let rack: Vec<u8> = (0..7).map(|_| b"aeinorst?c"[dice.below(10)]).collect();
            laid += usize::from(lay(&mut board, &words, &rack).is_some());
        }
        assert!(laid > 10, "{laid}");
        // Every run of two letters or more, in both directions, is in the list.
        for is_down in [false, true] {
            for line in 0..SIZE {
                let square = |n| {
                    if is_down { Square { column: line, row: n } } else { Square { column: n, row: line } }
                };
                let tile =
                    |n| board.tile(square(n)).map_or(' ', |tile| char::from(tile.to_ascii_lowercase()));
                let text: String = (0..SIZE).map(tile).collect();
                let mut runs = text.split_ascii_whitespace().filter(|run| run.len() > 1);
                assert!(runs.all(|run| words.contains(run.as_bytes())), "{text}");
            }
        }
    }
}
