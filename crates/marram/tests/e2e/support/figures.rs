//! What an edge's metrics say.

use hyper::Method;
use marram_cluster::TestEdge;

/// The text of its metrics.
pub(crate) fn metrics(edge: &TestEdge) -> String {
    let text = edge.client().unwrap().call(Method::GET, "/metrics", bytes::Bytes::new()).unwrap();
    String::from_utf8(text.to_vec()).unwrap()
}

/// The sum of a counter over its shards; `name` is without the program's.
pub(crate) fn counter(edge: &TestEdge, name: &str) -> u64 {
    let (text, begins) = (metrics(edge), format!("marram_{name}{{"));
    let lines = text.lines().filter(|line| line.starts_with(&begins));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}
