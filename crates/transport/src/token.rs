//! Poll tokens: a kind, which says what owns the source, and a number.
//!
//! ```text
//! token := number * 8 + kind        WAKER = (kind 0, number 0), CONTROL = (kind 0, number 1)
//! ```
//!
//! The loop can tell by the token alone which table to ask, without a map from tokens to sources.

use mio::Token;

/// Number of kinds. Kind 0 holds the two tokens that every loop has, its numbers 0 and 1.
const KINDS: u64 = 8;

/// Another thread has finished work.
pub const WAKER: Token = Token(0);
/// A stop request, or, in a shard, a message from the supervisor.
pub const CONTROL: Token = Token(8);

const _: () = assert!(CONTROL.0 as u64 == KINDS, "number 1 of kind 0");

/// The token of source `number` of a kind from 1 to 7.
pub fn token(kind: u64, number: u64) -> Token {
    debug_assert!(0 < kind && kind < KINDS, "kind 0 is taken, and there are {KINDS}");
    Token(usize::try_from(number * KINDS + kind).expect("64-bit machines only"))
}

/// The kind and number of a token.
pub fn split(Token(token): Token) -> (u64, u64) {
    (token as u64 % KINDS, token as u64 / KINDS)
}
