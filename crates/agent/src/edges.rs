//! The configured edges of an agent, as dial targets.
//!
//! ```text
//! "edge.example.org:7400" ─▶ 192.0.2.1, 192.0.2.7 at the start ─▶ two edges: (name, 0), (name, 1)
//!                            at each dial: the addresses again, sorted; the nth of them
//! ```
//!
//! The number of configured edges is fixed at the start, since the state machine names edges by index. If a
//! name has fewer addresses later, two edges may be one machine, which only costs a wire; if it has
//! more, they are not used. Edges that the machine learns have the indices after them, one address each.

use super::resolver;
use std::{fmt, net::SocketAddr};

/// Most edges of one agent.
/// Each has a wire for each shard that is used, with heartbeats.
const EDGES_MAX: usize = 64;

/// One edge: an address of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EdgeAddress {
    /// `host:port`, as configured.
    pub(super) name: String,
    /// The index among the name's addresses; assigned again each time the name is resolved.
    nth: usize,
}

impl EdgeAddress {
    /// A learned edge. Of several addresses of its name the first one is dialled.
    pub(super) fn learned(name: &str) -> Self {
        Self { name: name.to_owned(), nth: 0 }
    }

    /// The name without its port: what the edge's certificate is for.
    pub(super) fn host(&self) -> &str {
        let host = self.name.rsplit_once(':').map_or(&*self.name, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// This edge's current address, from the addresses of its name.
    pub(super) fn choose(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        addresses.get(self.nth % addresses.len().max(1)).copied()
    }
}

/// Why a list of edges cannot be used; the operator corrects the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EdgesError {
    /// This edge has no port.
    NoPort(String),
    /// This is in the place of a port.
    NotAPort(String),
    /// The list is empty.
    None,
    /// The list, with all addresses of its names, is too long: so many edges.
    TooMany(usize),
}

impl fmt::Display for EdgesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort(name) => write!(f, "write an edge as host:port: {name}"),
            Self::NotAPort(port) => write!(f, "write an edge as host:port; {port} is not a port"),
            Self::None => f.write_str("no edge is configured: name at least one as host:port"),
            Self::TooMany(count) => write!(f, "{count} edges are configured; the maximum is {EDGES_MAX}"),
        }
    }
}

impl std::error::Error for EdgesError {}

/// Parses the list. A name with several addresses now counts as that many edges; a name that cannot be resolved now may be
/// resolved later.
///
/// Blocks on the system's resolver; called once, before the loop runs.
///
/// # Errors
/// If an entry is not `host:port`, or there are none or too many.
pub fn parse(names: &[String]) -> Result<Vec<EdgeAddress>, EdgesError> {
    let mut edges = Vec::new();
    for name in names {
        let port = name.rsplit_once(':').map(|(_, port)| port);
        let port = port.ok_or_else(|| EdgesError::NoPort(name.clone()))?;
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(EdgesError::NotAPort(port.to_owned()));
        }
        let count = resolver::resolve(name).map_or(1, |addresses| addresses.len());
        edges.extend((0..count).map(|nth| EdgeAddress { name: name.clone(), nth }));
    }
    match edges.len() {
        0 => Err(EdgesError::None),
        1..=EDGES_MAX => Ok(edges),
        count => Err(EdgesError::TooMany(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_edges_and_mistakes_are_named() {
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let edges = parse(&names(&["127.0.0.1:1", "[::1]:2", "localhost:3"])).expect("well-formed");
        assert_eq!(
            edges.iter().map(EdgeAddress::host).collect::<Vec<_>>(),
            ["127.0.0.1", "::1", "localhost"]
        );
        for (wrong, says) in [("edge", "host:port"), ("edge:http", "not a port"), ("edge:0", "not a port")] {
            let error = parse(&names(&[wrong])).expect_err(wrong).to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn an_edge_is_found_again_when_its_name_has_fewer_addresses() {
        let addresses: Vec<SocketAddr> = vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()];
        let edge = |nth| EdgeAddress { name: "edge:1".into(), nth };
        assert_eq!(edge(1).choose(&addresses), Some(addresses[1]));
        assert_eq!(edge(1).choose(&addresses[..1]), Some(addresses[0]));
        assert_eq!(edge(0).choose(&[]), None);
    }
}
