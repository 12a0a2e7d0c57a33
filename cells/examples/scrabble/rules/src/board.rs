//! The board: legal plays and their scores. Does not know turns or players.

use core::fmt;

use crate::{
    tiles::{RACK, Rack, value},
    words::Words,
};

/// Columns, and rows.
pub const SIZE: u8 = 15;
const SQUARES: usize = SIZE as usize * SIZE as usize;

/// Bonus for laying all tiles of a rack in one play.
const BINGO: u32 = 50;

/// The premium squares of the upper left quarter; the others mirror it. `W` and `w` multiply the word by 3 and 2, `L` and `l`
/// the letter.
const PREMIUMS: [&[u8; 8]; 8] = [
    b"W..l...W", //
    b".w...L..",
    b"..w...l.",
    b"l..w...l",
    b"....w...",
    b".L...L..",
    b"..l...l.",
    b"W..l...w",
];

/// A square of the board, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Square {
    /// From the left.
    pub column: u8,
    /// From the top.
    pub row: u8,
}

/// The first word must cover it.
pub const CENTRE: Square = Square { column: SIZE / 2, row: SIZE / 2 };

impl Square {
    /// Parses a name such as `h8`: column and row.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let (column, row) = marram_play::square(name, SIZE)?;
        Some(Self { column, row })
    }

    /// Its index, row by row.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.row) * usize::from(SIZE) + usize::from(self.column)
    }

    /// The next square, to the right or down.
    #[must_use]
    pub fn next(self, is_down: bool) -> Option<Self> {
        let Self { column, row } = self;
        let square = if is_down { Self { column, row: row + 1 } } else { Self { column: column + 1, row } };
        (square.column < SIZE && square.row < SIZE).then_some(square)
    }

    /// The previous square, to the left or up.
    #[must_use]
    pub fn before(self, is_down: bool) -> Option<Self> {
        let Self { column, row } = self;
        if is_down {
            Some(Self { column, row: row.checked_sub(1)? })
        } else {
            Some(Self { column: column.checked_sub(1)?, row })
        }
    }

    fn premium(self) -> u8 {
        let mirror = |n: u8| usize::from(n.min(SIZE - 1 - n));
        PREMIUMS[mirror(self.row)][mirror(self.column)]
    }
}

impl fmt::Display for Square {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", char::from(b'a' + self.column), self.row + 1)
    }
}

/// A word to be laid, including its tiles that are already on the board; blanks in upper case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Play {
    /// Its letters, blanks in upper case.
    pub letters: Vec<u8>,
    /// The square of its first letter.
    pub at: Square,
    /// Whether it goes down instead of across.
    pub is_down: bool,
}

/// The effect of a legal play.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Laid {
    /// The new tiles, in order.
    pub tiles: Vec<(Square, u8)>,
    /// Its score.
    pub score: u32,
    /// The player's remaining tiles.
    pub rack: Rack,
}

/// Why a play is illegal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It reaches beyond the board.
    Out,
    /// Another tile is directly before or after it.
    GoesOn,
    /// Another letter lies there.
    Taken(Square),
    /// It lays no tile.
    Nothing,
    /// The player does not have these tiles.
    NotThere,
    /// The first word misses the centre, or is a single letter.
    First,
    /// It touches no tile.
    Apart,
    /// This word is not in the list.
    NoWord(Vec<u8>),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Out => f.write_str("it reaches beyond the board"),
            Self::GoesOn => f.write_str("another tile stands before or behind it: say the whole word"),
            Self::Taken(square) => write!(f, "another letter lies on {square}"),
            Self::Nothing => f.write_str("it lays no tile"),
            Self::NotThere => f.write_str("you have not got these tiles"),
            Self::First => write!(f, "the first word has two letters or more and covers {CENTRE}"),
            Self::Apart => f.write_str("it touches no other word"),
            Self::NoWord(word) => write!(f, "{} is not in the list", String::from_utf8_lossy(word)),
        }
    }
}

/// The board: on each square a tile, or 0.
pub struct Board {
    tiles: [u8; SQUARES],
}

impl Default for Board {
    fn default() -> Self {
        Self { tiles: [0; SQUARES] }
    }
}

impl Board {
    /// The tile on a square.
    #[must_use]
    pub fn tile(&self, square: Square) -> Option<u8> {
        Some(self.tiles[square.index()]).filter(|tile| *tile != 0)
    }

    /// Whether it has no tiles.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tiles.iter().all(|tile| *tile == 0)
    }

    /// Whether the square exists and has a tile.
    #[must_use]
    pub fn has_tile(&self, square: Option<Square>) -> bool {
        square.is_some_and(|square| self.tile(square).is_some())
    }

    /// The effect that a play would have.
    ///
    /// # Errors
    /// Why it is illegal.
    pub fn check(&self, words: &Words, rack: &Rack, play: &Play) -> Result<Laid, Wrong> {
        let Play { letters, at, is_down } = play;
        let (mut tiles, mut square, mut last) = (Vec::with_capacity(RACK), Some(*at), *at);
        for letter in letters {
            last = square.ok_or(Wrong::Out)?;
            match self.tile(last) {
                None => tiles.push((last, *letter)),
                Some(tile) if tile.eq_ignore_ascii_case(letter) => {}
                Some(_) => return Err(Wrong::Taken(last)),
            }
            square = last.next(*is_down);
        }
        if self.has_tile(at.before(*is_down)) || self.has_tile(square) {
            return Err(Wrong::GoesOn);
        }
        if tiles.is_empty() {
            return Err(Wrong::Nothing);
        }
        let new: Vec<u8> = tiles.iter().map(|(_, tile)| *tile).collect();
        let rack = rack.without(&new).ok_or(Wrong::NotThere)?;
        if self.is_empty() {
            if letters.len() < 2 || !tiles.iter().any(|(square, _)| *square == CENTRE) {
                return Err(Wrong::First);
            }
        } else if tiles.len() == letters.len() {
            let beside = |square: Square| [square.before(!is_down), square.next(!is_down)];
            if !tiles.iter().any(|(square, _)| beside(*square).iter().any(|square| self.has_tile(*square))) {
                return Err(Wrong::Apart);
            }
        }
        let mut score =
            self.word(words, &tiles, last, *is_down)?.ok_or_else(|| Wrong::NoWord(letters.clone()))?;
        for (square, _) in &tiles {
            score += self.word(words, &tiles, *square, !is_down)?.unwrap_or(0);
        }
        if tiles.len() == RACK {
            score += BINGO;
        }
        Ok(Laid { tiles, score, rack })
    }

    /// The score of the word through a square, with new tiles; `None` if it has only one letter.
    fn word(
        &self,
        words: &Words,
        new: &[(Square, u8)],
        through: Square,
        is_down: bool,
    ) -> Result<Option<u32>, Wrong> {
        let tile = |square: Square| {
            let laid = new.iter().find(|(other, _)| *other == square).map(|(_, tile)| *tile);
            laid.map(|tile| (tile, true)).or_else(|| self.tile(square).map(|tile| (tile, false)))
        };
        let mut first = through;
        while let Some(before) = first.before(is_down).filter(|before| tile(*before).is_some()) {
            first = before;
        }
        let (mut letters, mut sum, mut times, mut square) =
            (Vec::with_capacity(SIZE.into()), 0, 1, Some(first));
        while let Some((at, (tile, is_new))) = square.and_then(|at| Some((at, tile(at)?))) {
            letters.push(tile.to_ascii_lowercase());
            let premium = if is_new { at.premium() } else { b'.' };
            sum += value(tile)
                * [(b'l', 2), (b'L', 3)].iter().find(|(it, _)| *it == premium).map_or(1, |(_, n)| *n);
            times *= [(b'w', 2), (b'W', 3)].iter().find(|(it, _)| *it == premium).map_or(1, |(_, n)| *n);
            square = at.next(is_down);
        }
        if letters.len() < 2 {
            return Ok(None);
        }
        if words.contains(&letters) { Ok(Some(sum * times)) } else { Err(Wrong::NoWord(letters)) }
    }

    /// Lays a checked play.
    pub fn lay(&mut self, laid: &Laid) {
        laid.tiles.iter().for_each(|(square, tile)| self.tiles[square.index()] = *tile);
    }

    /// The board as text; blanks are in upper case, and free squares as in the manual.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("    a b c d e f g h i j k l m n o\n");
        for row in 0..SIZE {
            text += &format!("{:>3}", row + 1);
            for column in 0..SIZE {
                let square = Square { column, row };
                let free = match square.premium() {
                    b'W' => '=',
                    b'w' => '-',
                    b'L' => '"',
                    b'l' => '\'',
                    _ => '.',
                };
                text.extend([' ', self.tile(square).map_or(free, char::from)]);
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests;
