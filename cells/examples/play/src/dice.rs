//! Randomness that depends only on a seed, so that a game is determined by its seed and its players' moves.

/// A generator. Not for secrets: a few of its numbers reveal the others.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// The same seed gives the same numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// `SplitMix64`.
    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number from 0 to `count - 1`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        assert_ne!(count, 0, "there is no number below 0");
        // The bias is less than one in 2^44 for the counts in games.
        let product = u128::from(self.word()) * count as u128;
        usize::try_from(product >> 64).expect("it is less than `count`")
    }

    /// Shuffles things.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_seed_and_all_of_them_come() {
        let throw = |seed| {
            let mut dice = Dice::new(seed);
            (0..100).map(|_| dice.below(6)).collect::<Vec<_>>()
        };
        assert_eq!(throw(1), throw(1));
        assert_ne!(throw(1), throw(2));
        assert!((0..6).all(|face| throw(1).contains(&face)));
        assert!(throw(1).iter().all(|face| *face < 6));
    }

    #[test]
    fn shuffling_keeps_what_is_there() {
        let mut things: Vec<usize> = (0..50).collect();
        Dice::new(3).shuffle(&mut things);
        assert_ne!(things[..5], [0, 1, 2, 3, 4]);
        things.sort_unstable();
        assert!(things.iter().copied().eq(0..50));
    }
}
