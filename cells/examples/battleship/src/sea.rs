//! A sea with its ships and the shots at it. Does not know clients or turns.

use core::fmt;

use marram_play::{Dice, square};

/// Columns, and rows.
pub(crate) const SIZE: u8 = 10;

/// A kind of ship; a fleet has one of each.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Ship {
    pub(crate) name: &'static str,
    pub(crate) length: u8,
}

/// A fleet.
pub(crate) static FLEET: [Ship; 5] = [
    Ship { name: "carrier", length: 5 },
    Ship { name: "battleship", length: 4 },
    Ship { name: "cruiser", length: 3 },
    Ship { name: "submarine", length: 3 },
    Ship { name: "destroyer", length: 2 },
];

impl Ship {
    pub(crate) fn from_name(name: &str) -> Option<&'static Self> {
        FLEET.iter().find(|ship| ship.name == name)
    }

    /// The names of all ships, with their lengths.
    pub(crate) fn names() -> String {
        FLEET.each_ref().map(|ship| format!("{} ({})", ship.name, ship.length)).join(", ")
    }
}

/// A square of the sea, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Square {
    pub(crate) column: u8,
    pub(crate) row: u8,
}

impl Square {
    /// Parses a name such as `b7`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let (column, row) = square(name, SIZE)?;
        Some(Self { column, row })
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..SIZE).flat_map(|row| (0..SIZE).map(move |column| Self { column, row }))
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.row) * usize::from(SIZE) + usize::from(self.column)
    }
}

impl fmt::Display for Square {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", char::from(b'a' + self.column), self.row + 1)
    }
}

/// The squares of a ship in this position; `None` if it would reach out of the sea.
pub(crate) fn squares(ship: &Ship, at: Square, is_down: bool) -> Option<Vec<Square>> {
    let square = |step: u8| {
        let (right, down) = if is_down { (0, step) } else { (step, 0) };
        Square { column: at.column + right, row: at.row + down }
    };
    let last = square(ship.length - 1);
    (last.column < SIZE && last.row < SIZE).then(|| (0..ship.length).map(square).collect())
}

/// The result of a shot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shot {
    Miss,
    Hit,
    Sunk(&'static Ship),
}

/// What the shooter knows of a square.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Nothing,
    Miss,
    Hit,
    Sunk,
}

/// A ship in the sea.
struct Placed {
    ship: &'static Ship,
    squares: Vec<Square>,
}

/// A sea.
#[derive(Default)]
pub(crate) struct Sea {
    fleet: Vec<Placed>,
    shots: Vec<Square>,
}

impl Sea {
    /// Places a ship; across, or down if `is_down`.
    pub(crate) fn place(&mut self, ship: &'static Ship, at: Square, is_down: bool) -> Result<(), String> {
        if self.fleet.iter().any(|placed| placed.ship == ship) {
            return Err(format!("the {} is placed already", ship.name));
        }
        let squares = squares(ship, at, is_down).ok_or("it would reach out of the sea")?;
        if let Some(other) = squares.iter().find_map(|square| self.at(*square)) {
            return Err(format!("the {} is there", other.ship.name));
        }
        self.fleet.push(Placed { ship, squares });
        Ok(())
    }

    /// Places the remaining ships at random: each of the free positions of a ship is equally likely.
    pub(crate) fn place_all(&mut self, dice: &mut Dice) {
        for ship in &FLEET {
            if self.fleet.iter().any(|placed| placed.ship == ship) {
                continue;
            }
            let ways = Square::all().flat_map(|at| [(at, false), (at, true)]);
            let free: Vec<Vec<Square>> = ways
                .filter_map(|(at, is_down)| squares(ship, at, is_down))
                .filter(|squares| squares.iter().all(|square| self.at(*square).is_none()))
                .collect();
            // The placed ships occupy at most 15 squares: there is always a free position.
            let squares = free[dice.below(free.len())].clone();
            self.fleet.push(Placed { ship, squares });
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.fleet.len() == FLEET.len()
    }

    fn at(&self, square: Square) -> Option<&Placed> {
        self.fleet.iter().find(|placed| placed.squares.contains(&square))
    }

    fn is_sunk(&self, placed: &Placed) -> bool {
        placed.squares.iter().all(|square| self.shots.contains(square))
    }

    /// Whether all of its ships are sunk.
    pub(crate) fn is_lost(&self) -> bool {
        self.fleet.iter().all(|placed| self.is_sunk(placed))
    }

    pub(crate) fn fire(&mut self, at: Square) -> Result<Shot, String> {
        if self.shots.contains(&at) {
            return Err(format!("{at} was shot at before"));
        }
        self.shots.push(at);
        Ok(match self.at(at) {
            None => Shot::Miss,
            Some(placed) if self.is_sunk(placed) => Shot::Sunk(placed.ship),
            Some(_) => Shot::Hit,
        })
    }

    pub(crate) fn known(&self, square: Square) -> Known {
        match (self.shots.contains(&square), self.at(square)) {
            (false, _) => Known::Nothing,
            (true, None) => Known::Miss,
            (true, Some(placed)) if self.is_sunk(placed) => Known::Sunk,
            (true, Some(_)) => Known::Hit,
        }
    }

    /// The ships that are not known to be sunk.
    pub(crate) fn afloat(&self) -> impl Iterator<Item = &'static Ship> {
        self.fleet.iter().filter(|placed| !self.is_sunk(placed)).map(|placed| placed.ship)
    }

    /// The character for a square; `all`: as its owner sees it.
    pub(crate) fn look(&self, square: Square, all: bool) -> char {
        match self.known(square) {
            Known::Nothing if all && self.at(square).is_some() => 'o',
            Known::Nothing => '.',
            Known::Miss => '~',
            Known::Hit => 'x',
            Known::Sunk => '#',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(name: &str) -> Square {
        Square::from_name(name).unwrap()
    }

    #[test]
    fn squares_have_names() {
        assert!(Square::all().all(|square| Square::from_name(&square.to_string()) == Some(square)));
        assert_eq!(Square::all().count(), 100);
        for name in ["", "a", "a0", "a11", "k1", "1a", "a01", "a+1", "ä1", "a1x"] {
            assert_eq!(Square::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn ships_lie_in_the_sea_once_and_not_on_each_other() {
        let mut sea = Sea::default();
        let mut place = |ship: usize, at: &str, is_down| sea.place(&FLEET[ship], square(at), is_down);
        assert_eq!(place(0, "f1", false), Ok(()));
        assert_eq!(place(0, "a1", false), Err("the carrier is placed already".to_owned()));
        assert_eq!(place(1, "h1", false), Err("it would reach out of the sea".to_owned()));
        assert_eq!(place(1, "a8", true), Err("it would reach out of the sea".to_owned()));
        assert_eq!(place(2, "j1", true), Err("the carrier is there".to_owned()));
        // Ships may touch.
        assert_eq!(place(2, "j2", true), Ok(()));
        assert_eq!(place(1, "a7", true), Ok(()));
    }

    #[test]
    fn shots_miss_hit_and_sink_and_the_last_ship_is_the_end() {
        let mut sea = Sea::default();
        sea.place(&FLEET[4], square("c3"), false).unwrap();
        sea.place(&FLEET[3], square("a1"), true).unwrap();
        let mut fire = |at: &str| (sea.fire(square(at)), sea.is_lost());
        assert_eq!(fire("c4"), (Ok(Shot::Miss), false));
        assert_eq!(fire("c3"), (Ok(Shot::Hit), false));
        assert_eq!(fire("c3").0, Err("c3 was shot at before".to_owned()));
        assert_eq!(fire("d3"), (Ok(Shot::Sunk(&FLEET[4])), false));
        assert_eq!((fire("a1").1, fire("a3").1), (false, false));
        assert_eq!(fire("a2"), (Ok(Shot::Sunk(&FLEET[3])), true));
    }

    #[test]
    fn a_fleet_by_chance_is_whole_and_another_by_another_seed() {
        let fleet = |seed| {
            let mut sea = Sea::default();
            sea.place_all(&mut Dice::new(seed));
            assert!(sea.is_complete());
            Square::all().map(|square| sea.look(square, true)).collect::<String>()
        };
        for seed in 0..200 {
            assert_eq!(fleet(seed).matches('o').count(), 17);
        }
        assert_eq!(fleet(1), fleet(1));
        assert_ne!(fleet(1), fleet(2));
    }
}
