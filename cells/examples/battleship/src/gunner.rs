//! Where the edge shoots: at the square that the largest number of possible positions of the remaining ships cover. Knows of
//! the other's sea only what shots have shown.

use marram_play::Dice;

use crate::sea::{self, Known, Sea, Square};

/// Extra weight of a position for each of its squares that is a hit: a ship that was found is sunk first.
const HIT_WEIGHT: u64 = 100;

/// The next shot; random among the best.
pub(crate) fn aim(sea: &Sea, dice: &mut Dice) -> Square {
    let mut weights = [0_u64; sea::SIZE as usize * sea::SIZE as usize];
    for ship in sea.afloat() {
        for (at, is_down) in Square::all().flat_map(|at| [(at, false), (at, true)]) {
            let Some(squares) = sea::squares(ship, at, is_down) else { continue };
            let known: Vec<Known> = squares.iter().map(|square| sea.known(*square)).collect();
            if known.iter().any(|known| matches!(known, Known::Miss | Known::Sunk)) {
                continue;
            }
            let hits = known.iter().filter(|known| **known == Known::Hit).count();
            let weight = (0..hits).fold(1, |weight, _| weight * HIT_WEIGHT);
            for (square, _) in squares.iter().zip(&known).filter(|(_, known)| **known == Known::Nothing) {
                weights[square.index()] += weight;
            }
        }
    }
    let best = weights.iter().max().copied().unwrap_or(0);
    let free = |square: &Square| sea.known(*square) == Known::Nothing && weights[square.index()] == best;
    let squares: Vec<Square> = Square::all().filter(free).collect();
    squares[dice.below(squares.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sinks_every_fleet_and_faster_than_chance() {
        let shots = |seed| {
            let mut dice = Dice::new(seed);
            let mut sea = Sea::default();
            sea.place_all(&mut dice);
            let mut shots = 0;
            while !sea.is_lost() {
                let at = aim(&sea, &mut dice);
                sea.fire(at).unwrap();
                shots += 1;
            }
            shots
        };
        let all: Vec<u32> = (0..100).map(shots).collect();
        // Random shots take 95 on average.
        assert!(all.iter().sum::<u32>() < 5_000, "{all:?}");
    }

    #[test]
    fn a_ship_that_was_found_is_sunk_first() {
        let mut dice = Dice::new(1);
        let mut sea = Sea::default();
        sea.place(&sea::FLEET[1], Square { column: 3, row: 0 }, true).unwrap();
        sea.fire(Square { column: 3, row: 1 }).unwrap();
        let aside = aim(&sea, &mut dice);
        assert_eq!(aside.column.abs_diff(3) + aside.row.abs_diff(1), 1);
        sea.fire(Square { column: 3, row: 2 }).unwrap();
        let along = aim(&sea, &mut dice);
        assert_eq!((along.column, along.row == 0 || along.row == 3), (3, true));
    }
}
