//! Where a session is to move, as an operator names it: `EDGE`, or `EDGE/SHARD`.

use alloc::string::{String, ToString};
use core::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};
use marram_wire::record;

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
        f.write_str("expected an edge's name, or a name and the number of a shard: `edge-1` or `edge-1/0`")
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

impl FromStr for Destination {
    type Err = NoDestination;

    fn from_str(text: &str) -> Result<Self, NoDestination> {
        let (edge, shard) = match text.split_once('/') {
            Some((edge, shard)) => (edge, Some(shard.parse().map_err(|_| NoDestination)?)),
            None => (text, None),
        };
        if edge.is_empty() {
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
        for text in ["", "/1", "a/", "a/b", "a/256", "a/-1", "a/1/2"] {
            assert_eq!(text.parse::<Destination>(), Err(NoDestination), "{text}");
        }
    }
}
