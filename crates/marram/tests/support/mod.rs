//! What the tests with real processes share: a run, and traffic that knows every byte that must arrive.

pub mod traffic;

use marram::harness::{Cells, Lab, Layout};
use std::path::{Path, PathBuf};

/// How much to do: small by default, so that everybody runs these tests; the environment asks for more.
pub fn amount(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("the variable holds a number"))
}

/// The built cells.
pub fn cells() -> Cells {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells");
    Cells::find(Some(&root)).expect("`cargo xtask cells` builds them")
}

/// Edges in namespaces of their own where that is possible, wires encrypted, and `forward` between client and server.
pub fn lab(purpose: &'static str, edges: usize, shards: u8) -> Lab {
    let layout = Layout {
        purpose,
        program: PathBuf::from(env!("CARGO_BIN_EXE_marram")),
        edges,
        shards,
        encrypted: true,
        namespaces: true,
        edge_tables: String::new(),
        agent_tables: String::new(),
    };
    let manifest = "server = \"peer\"\nprotect = \"endpoints\"\n";
    Lab::new(layout, |place| Ok(vec![cells().manifest(place, "forward", "forward", manifest)?])).unwrap()
}
