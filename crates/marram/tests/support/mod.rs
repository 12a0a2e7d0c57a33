//! What the tests with real processes share: a run, and traffic that knows every byte that must arrive.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod browser;
pub(crate) mod caches;
pub(crate) mod counting;
pub(crate) mod etcd;
pub(crate) mod machine;
pub(crate) mod mistaken;
pub(crate) mod modules;
pub(crate) mod origin;
pub(crate) mod site;
pub(crate) mod skip;
pub(crate) mod traffic;

use marram::harness::{CellFiles, Layout, TestCluster};
use skip::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Of a configuration: who dies is noticed at once, since its connections are reset; who is only slow, as on a machine with other work,
/// keeps its sessions where a test has left them.
/// The beginning of a table, to which more can be added.
pub(crate) const PATIENT: &str = "[timeouts]\nsuspect_after = \"2s\"\n";

/// As [`PATIENT`], where a test says which edge has a session: an edge that is killed is noticed at once, and none is replaced because the
/// machine has other work.
pub(crate) const UNSUSPECTING: &str = "[timeouts]\nsuspect_after = \"90s\"\n";

/// How much to do: small by default, so that everybody runs these tests; the environment asks for more.
pub(crate) fn amount(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("the variable holds a number"))
}

/// A Python that has this module: the first of the path, or the system's. Where there is none the calling test is skipped.
pub(crate) fn python_with(module: &str) -> Option<&'static str> {
    let has = |python: &&str| {
        let tried =
            Command::new(python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has);
    if found.is_none() {
        skip(format_args!("there is no python3 with the module {module} on this machine"));
    }
    found
}

/// Whether a program is on the path or at this absolute path. Where it is missing the calling test is skipped.
pub(crate) fn is_here(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = program.starts_with('/') && Path::new(program).is_file()
        || std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !here {
        skip(format_args!("there is no {program} on this machine"));
    }
    here
}

/// The built cells.
pub(crate) fn cells() -> CellFiles {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells");
    CellFiles::find(Some(&root)).expect("`cargo xtask cells` builds them")
}

/// Edges on loopback, wires encrypted, and `forward` between client and server.
pub(crate) fn cluster(purpose: &'static str, edges: usize, shards: u8) -> TestCluster {
    cluster_with(purpose, |layout| (layout.edges, layout.shards) = (edges, shards))
}

/// As [`lab`], with one edge of one shard, changed by `change`.
pub(crate) fn cluster_with(purpose: &'static str, change: impl FnOnce(&mut Layout)) -> TestCluster {
    let manifest = "server = \"peer\"\nprotect = \"endpoints\"\n";
    TestCluster::new(layout(purpose, change), |place| {
        Ok(vec![cells().manifest(place, "forward", "forward", manifest)?])
    })
    .unwrap()
}

/// Before its edges start: they are of one domain with another run's, and so may read its apps.
pub(crate) fn same_domain(cluster: &TestCluster, other: &TestCluster) {
    std::fs::copy(other.directory.path().join("secret"), cluster.directory.path().join("secret")).unwrap();
}

/// One edge of one shard and patient agents, changed by `change`.
pub(crate) fn layout(purpose: &'static str, change: impl FnOnce(&mut Layout)) -> Layout {
    let mut layout = Layout {
        purpose,
        program: PathBuf::from(env!("CARGO_BIN_EXE_marram")),
        edges: 1,
        shards: 1,
        encrypted: true,
        namespaces: false,
        admin: String::new(),
        edge_tables: String::new(),
        agent_tables: PATIENT.into(),
    };
    change(&mut layout);
    layout
}
