//! Counts of one direction: messages, bytes, and message sizes. Gets the time from its caller.

use std::fmt;

/// Sizes by their number of bits: 0, 1, 2 to 3, 4 to 7, and so on to 1 MiB.
const SIZES: usize = 22;

/// Counts of one direction.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Bytes of the longest message.
    pub longest: usize,
    /// By the number of significant bits of a message's length. The last also counts all longer
    /// ones.
    sizes: [u64; SIZES],
}

impl Tally {
    /// Adds a message.
    pub fn count(&mut self, len: usize) {
        self.messages += 1;
        self.bytes += len as u64;
        self.longest = self.longest.max(len);
        let bits = (usize::BITS - len.leading_zeros()) as usize;
        self.sizes[bits.min(SIZES - 1)] += 1;
    }

    /// Messages and bytes since an earlier tally. `earlier` must be an earlier state of this tally.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> (u64, u64) {
        (self.messages - earlier.messages, self.bytes - earlier.bytes)
    }
}

impl fmt::Display for Tally {
    /// In one line: totals, and the number of messages for each range of sizes, from that many bytes on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages, {} bytes", self.messages, self.bytes)?;
        if self.messages == 0 {
            return Ok(());
        }
        write!(f, ", longest {}, by size", self.longest)?;
        for (bits, count) in self.sizes.iter().enumerate().filter(|(_, count)| **count > 0) {
            let from = if bits == 0 { 0 } else { 1_usize << (bits - 1) };
            write!(f, " {from}:{count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_by_powers_of_two() {
        let mut tally = Tally::default();
        assert_eq!(tally.to_string(), "0 messages, 0 bytes");
        [0, 1, 2, 3, 4, 7, 8, 1000, 1 << 20].into_iter().for_each(|len| tally.count(len));
        let expected =
            "9 messages, 1049601 bytes, longest 1048576, by size 0:1 1:1 2:2 4:2 8:1 512:1 1048576:1";
        assert_eq!(tally.to_string(), expected);
    }
}
