//! A test cell that computes a fixed amount for each message, and passes it on: a middlebox whose limit is the processor, as an intrusion
//! prevention system or an optimizer is.
//!
//! The client's stream is a sequence of messages, split anywhere (numbers are little-endian):
//!
//! ```text
//! 0          4          8                16               24
//! +----------+----------+----------------+----------------+- - - - - -+
//! | len: u32 | rounds:  | number: u64    | word: u64      | len bytes |
//! |          |  u32     |                |                |           |
//! +----------+----------+----------------+----------------+- - - - - -+
//! ```
//!
//! For each message the cell takes `rounds` steps of a generator, from its word before and the message's number, and sends the message to the
//! server with the new word in place of `word`. So the amount is set by the message; the word depends on every message before, and shows one that
//! was lost, repeated or handled in another state. A receiver can compute it without taking the steps.
//!
//! Data from the server passes to the client unchanged. A message of more than [`LEN_MAX`] bytes closes the client's port.

use core::hint::black_box;

use marram_sdk::{Cell, Context, Level, Port, cell};

/// Bytes before the payload.
pub const HEADER_SIZE: usize = 24;
/// Most bytes of a payload: the cell holds a message until it is complete.
pub const LEN_MAX: u32 = 64 << 10;
/// Where the word is in a header.
const WORD: core::ops::Range<usize> = 16..24;

/// Multiplier and increment of the generator (Knuth's MMIX).
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// The generator's word, and the client's stream.
#[derive(Default)]
pub struct Work {
    word: u64,
    /// The beginning of a message that is not complete yet.
    partial: Vec<u8>,
}

/// Takes the steps one by one: this is the work. The compiler does not know the multiplier, or it would take several steps as one.
fn compute(word: u64, rounds: u32) -> u64 {
    let multiplier = black_box(MULTIPLIER);
    (0..rounds).fold(word, |word, _| word.wrapping_mul(multiplier).wrapping_add(INCREMENT))
}

/// The numbers of a complete header: `len`, `rounds`, `number`.
fn parse(header: &[u8; HEADER_SIZE]) -> (u32, u32, u64) {
    let word = |from: usize, size: usize| {
        header[from..from + size].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let narrow = |word: u64| u32::try_from(word).expect("four bytes");
    (narrow(word(0, 4)), narrow(word(4, 4)), word(8, 8))
}

impl Work {
    /// Handles the first message of what has arrived, if it is complete.
    fn next(&mut self, context: &mut Context) -> bool {
        let Some(header) = self.partial.first_chunk::<HEADER_SIZE>() else { return false };
        let (len, rounds, number) = parse(header);
        if len > LEN_MAX {
            context.print(Level::Error, format_args!("a message of {len} bytes; see the cell work"));
            context.close(Port::CLIENT);
            self.partial.clear();
            return false;
        }
        let size = HEADER_SIZE + usize::try_from(len).expect("it is at most LEN_MAX");
        if self.partial.len() < size {
            return false;
        }
        self.word = compute(self.word ^ number, rounds);
        let mut message: Vec<u8> = self.partial.drain(..size).collect();
        message[WORD].copy_from_slice(&self.word.to_le_bytes());
        context.send(Port::SERVER, &message);
        true
    }
}

impl Cell for Work {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if port == Port::SERVER {
            return context.send_to_client(payload);
        }
        self.partial.extend_from_slice(payload);
        while self.next(context) {}
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port.opposite());
    }
}

cell!(Work);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    fn message(rounds: u32, number: u64, word: u64, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        let header =
            [&len.to_le_bytes()[..], &rounds.to_le_bytes(), &number.to_le_bytes(), &word.to_le_bytes()];
        [&header.concat()[..], payload].concat()
    }

    /// The bytes that the server received, and whether the client's port was closed.
    fn received(stream: &[u8], piece: usize) -> (Vec<u8>, bool) {
        let mut session = Session::<Work>::new();
        let (mut bytes, mut closed) = (Vec::new(), false);
        for output in stream.chunks(piece).flat_map(|chunk| session.message(Port::CLIENT, chunk)) {
            match output {
                Output::Message { port: Port::SERVER, payload } => bytes.extend(payload),
                Output::Close { port: Port::CLIENT } => closed = true,
                _ => {}
            }
        }
        (bytes, closed)
    }

    #[test]
    fn each_message_passes_with_the_word_after_it_however_the_stream_is_cut() {
        let stream =
            [message(3, 0, 9, b"hello"), message(0, 1, 0, b""), message(1_000, 2, 0, b"ok")].concat();
        let words = [compute(0, 3), compute(0, 3) ^ 1, compute(compute(0, 3) ^ 1 ^ 2, 1_000)];
        let expected = [
            message(3, 0, words[0], b"hello"),
            message(0, 1, words[1], b""),
            message(1_000, 2, words[2], b"ok"),
        ];
        for piece in [1, 23, 24, 25, stream.len()] {
            assert_eq!(received(&stream, piece), (expected.concat(), false), "pieces of {piece}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_closes() {
        let header = &message(1, 0, 0, b"")[4..];
        let stream = [&(LEN_MAX + 1).to_le_bytes()[..], header].concat();
        assert_eq!(received(&stream, 100), (Vec::new(), true));
    }
}
