//! The cell `compress`: what protection adds to a request through it, and how it compares with nginx, which compresses the same
//! files at the same level as a proxy before the same server.
//!
//! ```text
//! cell:   client -- agent -- edge (cell `compress`) -- agent -- nginx (files)
//! proxy:  client -- nginx (gzip on, level N) ----------------- nginx (files)
//! ```
//! Both compress on the fly; nothing is cached. The files are texts of this repository, included at
//! build time, so that the plain bytes are known and each answer can be checked.

use super::super::baseline::require;
use super::super::nginx::Nginx;
use super::super::report::Report;
use super::super::{Plan, cpu, progress, stats};
use super::added;
use super::client::Client;
use anyhow::Context;
use marram_cluster::{TempDir, TestCluster};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The object that is requested to measure what protection adds.
const SMALL: &str = "/small.html";
const SMALL_BYTES: usize = 2_000;
/// Compression levels, the same for both; the first is the cell's default.
const LEVELS: [u32; 3] = [3, 1, 6];
/// Text of several kinds: files of this repository that seldom change. They are part of the build,
/// so the expected bytes are known also if a checkout has changed since.
const FILES: [(&str, &str); 6] = [
    ("/licence.txt", include_str!("../../../../LICENSE")),
    ("/abi.html", include_str!("../../../../docs/abi.md")),
    ("/manifest.css", include_str!("../../../config/src/manifest.sample.toml")),
    ("/report.js", include_str!("../report.rs")),
    ("/cluster.js", include_str!("../../../cluster/src/cluster.rs")),
    ("/middlebox.js", include_str!("../middlebox.rs")),
];

/// How much is measured.
struct Extent {
    repeats: usize,
    /// Requests in each repeat for the small object; the large files are measured by time.
    requests: usize,
    block: Duration,
}

/// Measures and adds the figures to the report.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let program = require("nginx", "nginx")?;
    let extent = if plan.quick {
        Extent { repeats: 2, requests: 200, block: Duration::from_millis(300) }
    } else {
        Extent { repeats: 9, requests: 3_000, block: Duration::from_secs(2) }
    };
    let place = TempDir::new("bench-compress")?;
    place.write(&format!("www{SMALL}"), &FILES[1].1[..SMALL_BYTES])?;
    for (path, text) in FILES {
        place.write(&format!("www{path}"), text)?;
    }
    let serving = cpu::OneCore::enter()?;
    let files = Nginx::files(&program, &place, "")?;
    let proxies = LEVELS
        .iter()
        .map(|level| Nginx::proxy(&program, &place, *level, files.address))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (mut cluster, addresses) = edge(plan, files.address)?;
    drop(serving);
    let _core = cpu::OneCore::enter_other()?;
    added(&extent, addresses[0], addresses[1], report)
        .with_context(|| format!("the last lines of edge and agents:\n{}", cluster.logs.tail(10)))?;
    for (index, level) in LEVELS.iter().enumerate() {
        progress(&format!("apps: compress at level {level}"));
        let cell = Side::new(addresses[index + 1], cluster.groups())?;
        let proxy = Side::new(proxies[index].address, vec![proxies[index].process.id()])?;
        compare(&extent, [cell, proxy], *level, report)?;
    }
    report.baseline(
        "nginx",
        "a proxy with `gzip on; gzip_comp_level N`, one process, before the nginx that serves the files",
    );
    report.note("compress: ratio is plain by compressed bytes of bodies; throughput is plain bytes, over one connection; both ways end at \
                 the same nginx, and all that serves shares one core. The cell's way has an edge and two agents in it, and is protected.");
    Ok(())
}

/// Starts an edge and both agents before the server, with the cell unprotected, and protected at each level. Returns the
/// addresses for clients of each.
///
/// One cluster for all levels: each level is an app of its own, with its setting in a file.
fn edge(plan: &Plan, server: SocketAddr) -> anyhow::Result<(TestCluster, Vec<SocketAddr>)> {
    let mut apps = vec![("bare".to_owned(), "none", LEVELS[0])];
    apps.extend(LEVELS.iter().map(|level| (format!("level{level}"), "endpoints", *level)));
    let manifest = |place: &TempDir, (name, protect, level): &(String, &str, u32)| {
        place.write(&format!("apps/{name}/conf"), format!("level {level}\n"))?;
        let mut rest = format!("protect = {protect:?}\nserver = \"web\"\n[quotas]\nmemory = \"16MiB\"\n");
        write!(rest, "[[files]]\npath = \"/etc/compress\"\nsource = \"conf\"\n")?;
        plan.cells.manifest(place, name, "compress", &rest)
    };
    let mut cluster = TestCluster::new(plan.layout("bench-apps-compress", 1, ""), |place| {
        apps.iter().map(|app| manifest(place, app)).collect()
    })?;
    cluster.start_edges("")?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("web", server)])?;
    let names: Vec<&str> = apps.iter().map(|(name, ..)| name.as_str()).collect();
    let listens = cluster.start_client_agent(&edges, &names)?;
    Ok((cluster, listens.iter().map(|listen| listen.address).collect()))
}

/// What protection adds to the time of a request for a small object: both apps are asked alternately.
///
/// The answer must be compressed and smaller than the object, or something else was measured.
fn added(extent: &Extent, bare: SocketAddr, guarded: SocketAddr, report: &mut Report) -> anyhow::Result<()> {
    let mut clients = [Client::connect(bare)?, Client::connect(guarded)?];
    let mut ask = |index: usize| {
        let begun = Instant::now();
        let is_gzip = clients[index].get(SMALL, true)?;
        anyhow::ensure!(is_gzip && clients[index].body.len() < SMALL_BYTES, "it was not compressed");
        anyhow::Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    let [_, guarded] = added::measure("compress", (extent.repeats, extent.requests), &mut ask, report)?;
    report.metric("compress_endpoints_p50_us", guarded);
    Ok(())
}

/// The cell or the proxy. A client of it, and what was found, block by block.
struct Side {
    client: Client,
    /// Whose CPU time counts: all of Marram's processes, or the one proxy.
    groups: Vec<u32>,
    /// Uncompressed megabytes a second, and milliseconds of CPU time for an uncompressed megabyte.
    mb_per_s: Vec<f64>,
    cpu_ms_per_mb: Vec<f64>,
    /// Uncompressed by compressed bytes of all files: the same in every block.
    ratio: f64,
}

impl Side {
    /// Checks each file's bytes, and computes the compression ratio.
    fn new(address: SocketAddr, groups: Vec<u32>) -> anyhow::Result<Self> {
        let mut client = Client::connect(address)?;
        let mut bytes = [0, 0];
        for (path, text) in FILES {
            let is_gzip = client.get(path, false)?;
            anyhow::ensure!(!is_gzip && client.body == text.as_bytes(), "{path} is not what was served");
            anyhow::ensure!(client.get(path, true)?, "{path} was not compressed");
            bytes = [bytes[0] + text.len(), bytes[1] + client.body.len()];
        }
        let ratio = float(bytes[0]) / float(bytes[1]);
        Ok(Self { client, groups, mb_per_s: Vec::new(), cpu_ms_per_mb: Vec::new(), ratio })
    }

    /// Requests all files in turn, for this long; counts their plain bytes.
    fn block(&mut self, time: Duration) -> anyhow::Result<()> {
        let (begun, before, mut plain) = (Instant::now(), cpu::spent_ns(&self.groups), 0);
        while begun.elapsed() < time {
            for (path, text) in FILES {
                self.client.get(path, true)?;
                plain += text.len();
            }
        }
        let (seconds, megabytes) = (begun.elapsed().as_secs_f64(), float(plain) / 1e6);
        let spent = cpu::spent_ns(&self.groups).saturating_sub(before);
        self.mb_per_s.push(megabytes / seconds);
        self.cpu_ms_per_mb.push(Duration::from_nanos(spent).as_secs_f64() * 1e3 / megabytes);
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of one block")]
fn float(bytes: usize) -> f64 {
    bytes as f64
}

/// Measures the cell and the proxy alternately, at one level.
fn compare(extent: &Extent, mut sides: [Side; 2], level: u32, report: &mut Report) -> anyhow::Result<()> {
    for _ in 0..extent.repeats {
        sides.iter_mut().try_for_each(|side| side.block(extent.block))?;
    }
    let [cell, proxy] = sides.each_ref().map(|side| stats::median(&side.mb_per_s));
    if level == LEVELS[0] {
        report.metric("compress_ratio", sides[0].ratio);
        report.metric("compress_ratio_vs_nginx", sides[0].ratio / sides[1].ratio);
        report.metric("compress_mb_per_s", cell);
        report.metric("compress_throughput_vs_nginx", cell / proxy);
    }
    for (name, side) in ["", "nginx_"].iter().zip(&sides) {
        let mut metric =
            |what: &str, figure: f64| report.metric(&format!("compress_level{level}.{name}{what}"), figure);
        metric("ratio", side.ratio);
        metric("mb_per_s", stats::median(&side.mb_per_s));
        metric("cpu_ms_per_mb", stats::median(&side.cpu_ms_per_mb));
    }
    Ok(())
}
