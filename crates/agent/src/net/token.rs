//! Names of sources within a poll: a kind, which says whose they are, and a number.

use mio::Token;

/// Room for kinds. Kind 0 holds the two that every loop has, its numbers 0 and 1.
const KINDS: u64 = 8;

/// Work has come back from another thread.
pub const WAKER: Token = Token(0);
/// Somebody wants the loop to stop, or, in a shard, the supervisor has something to say.
pub const CONTROL: Token = Token(8);

const _: () = assert!(CONTROL.0 as u64 == KINDS, "number 1 of kind 0");

/// The name of source `number` of a kind from 1 to 7.
pub fn token(kind: u64, number: u64) -> Token {
    debug_assert!(0 < kind && kind < KINDS, "kind 0 is taken, and there are {KINDS}");
    Token(usize::try_from(number * KINDS + kind).expect("64-bit machines only"))
}

/// Kind and number of a name.
pub fn split(Token(token): Token) -> (u64, u64) {
    (token as u64 % KINDS, token as u64 / KINDS)
}
