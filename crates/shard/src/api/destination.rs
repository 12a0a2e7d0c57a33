//! Where a session is to move, as an operator names it: `EDGE`, or `EDGE/SHARD`.

use alloc::string::{String, ToString};
use core::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};
use marram_wire::record;

/// The longest name of an edge.
const NAME_BYTES_MAX: usize = 64;

record! {
    /// An edge, or one shard of it.
    Destination {
        /// The edge's name.
        edge: String,
        /// The shard; none for the one that the session's id names.
        shard: Option<u8>,
    }
}

/// Why a text is no destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoDestination;

impl Display for NoDestination {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected an edge's name (at most 64 letters, digits, '-', '_' or '.', and no '.' in front), or a name and the number of a \
             shard: `edge-1` or `edge-1/0`",
        )
    }
}

impl core::error::Error for NoDestination {}

impl Destination {
    /// An edge, whichever shard it is.
    #[must_use]
    pub fn edge(name: &str) -> Self {
        Self { edge: name.to_string(), shard: None }
    }
}

impl Display for Destination {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.shard {
            Some(shard) => write!(f, "{}/{shard}", self.edge),
            None => f.write_str(&self.edge),
        }
    }
}

/// Whether an edge can have this name: the rule of its configuration (`Name` in `marram-config`), which also keeps it a part of a path.
fn is_name(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_legal) && !text.starts_with('.')
}

impl FromStr for Destination {
    type Err = NoDestination;

    fn from_str(text: &str) -> Result<Self, NoDestination> {
        let (edge, shard) = match text.split_once('/') {
            Some((edge, shard)) => (edge, Some(shard.parse().map_err(|_| NoDestination)?)),
            None => (text, None),
        };
        if !is_name(edge) {
            return Err(NoDestination);
        }
        Ok(Self { edge: edge.to_string(), shard })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_an_edge_or_a_shard_of_it() {
        for (text, shard) in [("a", None), ("a/0", Some(0)), ("edge-1/255", Some(255))] {
            let to: Destination = text.parse().unwrap();
            assert_eq!((to.shard, to.to_string().as_str()), (shard, text));
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(long[1..].parse::<Destination>(), Ok(Destination::edge(&long[1..])));
        for text in [
            "", "/1", "a/", "a/b", "a/256", "a/-1", "a/1/2", "..", ".a", "a b", "a?b", "a%2f", "a\n", "é",
            &long,
        ] {
            assert_eq!(text.parse::<Destination>(), Err(NoDestination), "{text}");
        }
    }
}
