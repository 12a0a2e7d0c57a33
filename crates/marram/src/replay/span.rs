//! A range of a stage's memory, as written on the command line.
//!
//! ```text
//! span := AT "+" LENGTH ["@" STAGE]      0x1000+64   4096+64@1
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A range of a stage's linear memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The stage; 0 for a cell that is no chain.
    pub stage: usize,
    /// The first byte.
    pub at: usize,
    /// The number of bytes.
    pub len: usize,
}

impl Span {
    /// The range of offsets in memory.
    ///
    /// It may lie beyond the memory; the reader checks.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.at..self.at.saturating_add(self.len)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.at, self.len)?;
        if self.stage > 0 { write!(f, "@{}", self.stage) } else { Ok(()) }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (place, stage) =
                text.split_once('@').map_or((text, Some(0)), |(place, stage)| (place, stage.parse().ok()));
            let (at, len) = place.split_once('+')?;
            Some(Self { stage: stage?, at: number(at)?, len: number(len).filter(|len| *len > 0)? })
        };
        parse().ok_or_else(|| {
            format!("{text:?} is not a range of memory; write AT+LENGTH, such as 0x1000+64, followed by @STAGE for a \
                chain")
        })
    }
}

/// A number in decimal, or in hexadecimal after 0x.
/// Without signs and separators.
fn number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_it_is_shown() {
        for (text, span) in [
            ("0x1000+64", Span { stage: 0, at: 4_096, len: 64 }),
            ("7+0x10@2", Span { stage: 2, at: 7, len: 16 }),
        ] {
            assert_eq!(text.parse(), Ok(span));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        for text in ["", "1", "+1", "1+", "1+0", "1+-1", "1+1@", "1+1@x", "0xg+1"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
