//! A player who lays what counts most and thinks no further.

use crate::{
    board::{Board, CENTRE, Laid, Play, SIZE, Square},
    tiles::{BLANK, Rack},
    words::{self, Words},
};

/// The play that counts most, the first of those that count the same; none if nothing can be laid.
#[must_use]
pub fn best(board: &Board, words: &Words, rack: &Rack) -> Option<(Play, Laid)> {
    let blanks = rack.tiles.iter().filter(|tile| **tile == BLANK).count();
    let letters: Vec<u8> = rack.tiles.iter().copied().filter(|tile| *tile != BLANK).collect();
    let rack_mask = words::mask(&letters);
    let mut best: Option<(Play, Laid)> = None;
    for (is_down, line) in
        [false, true].into_iter().flat_map(|is_down| (0..SIZE).map(move |line| (is_down, line)))
    {
        let square =
            |n: u8| if is_down { Square { column: line, row: n } } else { Square { column: n, row: line } };
        if !(0..SIZE).any(|n| is_anchor(board, square(n))) {
            continue;
        }
        let there: Vec<u8> = (0..SIZE).filter_map(|n| board.tile(square(n))).collect();
        let mask = rack_mask | words::mask(&there);
        for (word, needed) in words.iter() {
            if (needed & !mask).count_ones() as usize > blanks {
                continue;
            }
            let length = u8::try_from(word.len()).expect("a word is no longer than the board");
            for start in 0..=SIZE - length {
                let Some(letters) = fit(board, rack, word, square(start), is_down) else { continue };
                let play = Play { letters, at: square(start), is_down };
                let Ok(laid) = board.check(words, rack, &play) else { continue };
                if best.as_ref().is_none_or(|(_, other)| laid.score > other.score) {
                    best = Some((play, laid));
                }
            }
        }
    }
    best
}

/// Whether a word may hang on this square: a free one beside a tile, or the centre.
fn is_anchor(board: &Board, square: Square) -> bool {
    let beside = [square.before(false), square.next(false), square.before(true), square.next(true)];
    let touches = beside.iter().any(|square| board.has_tile(*square));
    board.tile(square).is_none() && (touches || (square == CENTRE && board.is_empty()))
}

/// The word with blanks for the letters that the rack has not got, if it fits there by its letters alone.
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
        // Nothing of the list hangs on that.
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

    #[test]
    fn what_it_lays_may_be_laid_whatever_the_tiles_are() {
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
        // Every run of two letters or more, either way, is in the list.
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
