//! One shard.

use crate::api::{In, Now, Out};
use alloc::vec::Vec;
use marram_wire::seal::DomainSecret;

/// One shard. Feed it what happens; do what it says.
#[derive(Debug)]
pub struct Shard {
    secret: DomainSecret,
}

impl Shard {
    /// `entropy` seeds openers, seeds and challenges: 32 random bytes.
    #[must_use]
    pub fn new(secret: DomainSecret, entropy: [u8; 32]) -> Self {
        let _ = entropy;
        Self { secret }
    }

    /// Takes one event and appends what is to be done.
    pub fn step(&mut self, now: Now, input: In, out: &mut Vec<Out>) {
        let _ = (now, input, out, &self.secret);
    }
}
