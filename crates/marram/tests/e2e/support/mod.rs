//! Shared by the tests with real processes: a cluster, and traffic with known contents.

pub(crate) mod browser;
pub(crate) mod caches;
pub(crate) mod chat;
pub(crate) mod counting;
pub(crate) mod digits;
pub(crate) mod etcd;
pub(crate) mod figures;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod mistaken;
pub(crate) mod modules;
pub(crate) mod origin;
pub(crate) mod own_process;
pub(crate) mod serve;
pub(crate) mod services;
pub(crate) mod site;
pub(crate) mod skip;
pub(crate) mod stream;
pub(crate) mod traffic;
pub(crate) mod turns;
pub(crate) mod websocket;

use marram_cluster::{CellFiles, Layout, LogCollector, SharedImages, TestCluster, TestStore};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skip::skip;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The beginning of a configuration's `[timeouts]`, to which more can be added. A dead edge is still noticed at once, since its
/// connections are reset; an edge that is only slow, as on a busy machine, keeps its sessions.
pub(crate) const PATIENT: &str = "[timeouts]\nsuspect_after = \"2s\"\n";

/// As [`PATIENT`], for tests that determine which edge has a session: a killed edge is noticed at once, and no edge is replaced
/// because the machine is busy.
pub(crate) const UNSUSPECTING: &str = "[timeouts]\nsuspect_after = \"90s\"\n";

/// What a test does before it starts a process or runs a cell: it takes its turn ([`turns`]), and lets this process have as many
/// files open as it may, since those of all tests add up. Called by [`layout`] and [`cells`]. A second call does nothing.
pub(crate) fn begin() {
    turns::share();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// The amount of work: small by default, so that these tests can run everywhere; a variable sets more.
pub(crate) fn amount(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("the variable holds a number"))
}

/// A Python with this module: the first in the path, or the system's. Without one the calling test is skipped.
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

/// Whether a program is in the path or at this absolute path. Without it the calling test is skipped.
pub(crate) fn is_here(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = program.starts_with('/') && Path::new(program).is_file()
        || std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !here {
        skip(format_args!("there is no {program} on this machine"));
    }
    here
}

/// Writes a program, as a script. Another process writes it: a process that another test starts at this moment has all files of
/// this one open for a while, and no program can be executed that is open for writing.
pub(crate) fn write_program(path: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success(), "{} cannot be written", path.display());
}

/// The built cells.
pub(crate) fn cells() -> CellFiles {
    begin();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells");
    CellFiles::find(Some(&root)).expect("`cargo xtask cells` builds them")
}

/// A service's manifest as it ships, except for the path of the module.
pub(crate) fn shipped_manifest(service: &str) -> String {
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../cells/services/{service}/marram.toml"));
    let module = cells().module(service).display().to_string();
    let text = std::fs::read_to_string(manifest).unwrap();
    let wired = text.replace(&format!("../../../target/cells/{service}.wasm"), &module);
    assert_ne!(wired, text, "the manifest names its module");
    wired
}

/// Edges on loopback with encrypted wires, and the app `forward`.
pub(crate) fn cluster(purpose: &'static str, edges: usize, shards: u8) -> TestCluster {
    cluster_with(purpose, |layout| (layout.edges, layout.shards) = (edges, shards))
}

/// As [`cluster`], with one edge of one shard, changed by `change`.
pub(crate) fn cluster_with(purpose: &'static str, change: impl FnOnce(&mut Layout)) -> TestCluster {
    let manifest = "server = \"peer\"\nprotect = \"endpoints\"\n";
    TestCluster::new(layout(purpose, change), |place| {
        Ok(vec![cells().manifest(place, "forward", "forward", manifest)?])
    })
    .unwrap()
}

/// Puts a cluster into another one's domain before its edges start, so that they may fetch the other's apps.
pub(crate) fn same_domain(cluster: &TestCluster, other: &TestCluster) {
    std::fs::copy(other.directory.path().join("secret"), cluster.directory.path().join("secret")).unwrap();
}

/// The program that clusters run: `MARRAM_PROGRAM`, or the one that was built with the tests. A soak runs the optimised one: the
/// other spends most of its time where users' programs do not.
fn program() -> PathBuf {
    std::env::var_os("MARRAM_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_marram").into(), PathBuf::from)
}

/// A command of the program that was built with the tests.
pub(crate) fn marram() -> Command {
    Command::new(env!("CARGO_BIN_EXE_marram"))
}

/// The coordinator's store in a process of its own.
pub(crate) fn store(logs: &LogCollector) -> TestStore {
    TestStore::start(&program(), logs).unwrap()
}

/// What edges compile, for the edges of all tests of this build: compiling is most of what an edge does at its start.
pub(crate) fn images() -> Option<SharedImages> {
    static SHARED: OnceLock<SharedImages> = OnceLock::new();
    let open = || {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        SharedImages::open(parent, &program()).unwrap()
    };
    Some(SHARED.get_or_init(open).clone())
}

/// One edge with one shard and agents with [`PATIENT`] timeouts, changed by `change`.
pub(crate) fn layout(purpose: &'static str, change: impl FnOnce(&mut Layout)) -> Layout {
    begin();
    let mut layout = Layout {
        purpose,
        program: program(),
        edges: 1,
        shards: 1,
        encrypted: true,
        namespaces: false,
        admin: String::new(),
        edge_tables: String::new(),
        agent_tables: PATIENT.into(),
        images: images(),
    };
    change(&mut layout);
    layout
}
