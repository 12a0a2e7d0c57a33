//! Tiles: their counts and values, the bag and the racks. A tile is a letter in lower case or `?`, the blank; a blank on the
//! board is a letter in upper case.

use marram_play::Dice;

/// The blank.
pub const BLANK: u8 = b'?';

/// Tiles on a full rack.
pub const RACK: usize = 7;

/// How many tiles there are of a to z, of 100 with the two blanks.
const COUNTS: [usize; 26] = [9, 2, 2, 4, 12, 2, 3, 2, 9, 1, 1, 4, 2, 6, 8, 2, 1, 6, 4, 6, 4, 2, 2, 1, 2, 1];
const BLANKS: usize = 2;

/// Values of a to z.
const VALUES: [u32; 26] = [1, 3, 3, 2, 1, 4, 2, 4, 1, 8, 5, 1, 3, 1, 1, 3, 10, 1, 1, 1, 1, 4, 4, 8, 4, 10];

/// A tile's value; a blank has 0, also on the board.
#[must_use]
pub fn value(tile: u8) -> u32 {
    if tile.is_ascii_lowercase() { VALUES[usize::from(tile - b'a')] } else { 0 }
}

/// The tiles that no player has yet, in reverse order of drawing.
pub struct Bag {
    tiles: Vec<u8>,
}

impl Bag {
    /// All tiles, shuffled.
    pub fn new(dice: &mut Dice) -> Self {
        let letters =
            (b'a'..=b'z').zip(COUNTS).flat_map(|(letter, count)| core::iter::repeat_n(letter, count));
        let mut tiles: Vec<u8> = letters.chain([BLANK; BLANKS]).collect();
        dice.shuffle(&mut tiles);
        Self { tiles }
    }

    /// Number of tiles.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tiles.len()
    }

    /// Puts exchanged tiles back and shuffles.
    pub fn put_back(&mut self, tiles: &[u8], dice: &mut Dice) {
        self.tiles.extend_from_slice(tiles);
        dice.shuffle(&mut self.tiles);
    }

    /// Whether it has no tiles.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tiles.is_empty()
    }

    /// Removes all tiles: for tests of the end.
    pub fn empty(&mut self) {
        self.tiles.clear();
    }
}

/// A player's tiles, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rack {
    /// Sorted by byte.
    pub tiles: Vec<u8>,
}

impl Rack {
    /// A rack with these tiles.
    #[must_use]
    pub fn new(tiles: &[u8]) -> Self {
        let mut tiles = tiles.to_vec();
        tiles.sort_unstable();
        Self { tiles }
    }

    /// Removes tiles; `None` if some of them are not there.
    #[must_use]
    pub fn without(&self, tiles: &[u8]) -> Option<Self> {
        let mut left = self.clone();
        for tile in tiles {
            // A letter in upper case is a blank that will be laid.
            let tile = if tile.is_ascii_uppercase() { BLANK } else { *tile };
            let at = left.tiles.iter().position(|other| *other == tile)?;
            left.tiles.remove(at);
        }
        Some(left)
    }

    /// Draws until the rack is full or the bag is empty.
    pub fn fill(&mut self, bag: &mut Bag) {
        while self.tiles.len() < RACK
            && let Some(tile) = bag.tiles.pop()
        {
            self.tiles.push(tile);
        }
        self.tiles.sort_unstable();
    }

    /// The sum of its values.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.tiles.iter().map(|tile| value(*tile)).sum()
    }

    /// As text for people.
    #[must_use]
    pub fn text(&self) -> String {
        self.tiles.iter().map(|tile| char::from(*tile)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bag_has_a_hundred_tiles_that_count_187() {
        let bag = Bag::new(&mut Dice::new(1));
        assert_eq!(bag.len(), 100);
        assert_eq!(bag.tiles.iter().map(|tile| value(*tile)).sum::<u32>(), 187);
        assert_eq!(bag.tiles.iter().filter(|tile| **tile == BLANK).count(), 2);
        assert_ne!(bag.tiles, Bag::new(&mut Dice::new(2)).tiles);
    }

    #[test]
    fn racks_give_what_they_have_and_are_filled() {
        let rack = Rack::new(b"tca?");
        assert_eq!(rack.text(), "?act");
        assert_eq!(rack.without(b"caT").unwrap().text(), "t");
        assert_eq!(rack.without(b"caa"), None);
        assert_eq!(rack.without(b"CA"), None);
        assert_eq!(rack.value(), 5);
        let mut bag = Bag::new(&mut Dice::new(1));
        let mut full = rack.clone();
        full.fill(&mut bag);
        assert_eq!((full.tiles.len(), bag.len()), (7, 97));
        bag.put_back(b"abc", &mut Dice::new(1));
        assert_eq!(bag.len(), 100);
        bag.empty();
        let mut rest = rack.clone();
        rest.fill(&mut bag);
        assert_eq!(rest, rack);
    }
}
