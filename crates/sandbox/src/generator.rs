//! A cell's random numbers: a keyed stream that depends only on its seed, so that a replay draws the same numbers.
//!
//! The stream is BLAKE3 in its extendable-output mode, keyed by the seed. Any position can be read
//! directly, so the whole state of a generator is 40 bytes, the seed and a position, and a
//! checkpoint has no more than that.
//!
//! The seed comes from the session's owner, with the start of the cell.
//!
//! This module does not choose seeds.

use marram_session::cell::Seed;

/// The seed of a stage of a chain: no stage can compute what another stage draws. The first stage, often the only one, has the
/// cell's own seed.
/// Two stages of a chain do not trust each other: with one stream for both, a stage could predict
/// the other's keys and nonces.
pub(crate) fn of_stage(seed: Seed, stage: u8) -> Seed {
    if stage == 0 {
        return seed;
    }
    let mut hasher = blake3::Hasher::new_keyed(&seed.0);
    hasher.update(b"marram stage seed 1").update(&[stage]);
    Seed(*hasher.finalize().as_bytes())
}

/// The generator of one stage of a cell: the stream and the number of bytes drawn from it.
#[derive(Clone)]
pub(crate) struct Generator {
    seed: Seed,
    /// Bytes, from the start of the stream. At most `GENERATOR_BYTES_MAX` when it comes from a
    /// checkpoint, so it does not overflow.
    position: u64,
}

impl Generator {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { seed, position: 0 }
    }

    /// Continues a saved stream: the same seed and position give the same bytes.
    pub(crate) fn resume(seed: Seed, position: u64) -> Self {
        Self { seed, position }
    }

    pub(crate) fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Bytes drawn so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Fills `out` with the next bytes of the stream.
    /// How the bytes are divided over calls has no effect on them: two calls of 4 bytes give the
    /// same as one of 8.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let mut hasher = blake3::Hasher::new_keyed(&self.seed.0);
        hasher.update(b"marram cell generator 1");
        let mut stream = hasher.finalize_xof();
        stream.set_position(self.position);
        stream.fill(out);
        self.position += out.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_does_not_depend_on_how_it_is_cut() {
        let seed = Seed([7; 32]);
        let mut whole = [0; 100];
        Generator::new(seed).fill(&mut whole);
        let mut parts = [0; 100];
        let mut generator = Generator::new(seed);
        for chunk in parts.chunks_mut(7) {
            let mut resumed = Generator::resume(*generator.seed(), generator.position());
            resumed.fill(chunk);
            generator = resumed;
        }
        assert_eq!(whole, parts);
        let mut other = [0; 100];
        Generator::new(Seed([8; 32])).fill(&mut other);
        assert_ne!(whole, other);
    }
}
