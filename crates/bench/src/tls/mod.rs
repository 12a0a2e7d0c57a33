//! `marram bench tls`: HTTPS with a new connection for each page, a TLS cell for each connection compared with HAProxy.
//!
//! ```text
//! ""      client -- agent -- edge: cell `tls` -- agent -- HTTP server       protected
//! bare    client -- gate of the edge: cell `tls` -- HTTP server             unprotected, as the proxy is
//! proxy   client -- HAProxy, one thread -- HTTP server
//! ```
//! The certificate's key is ECDSA P-256 for all three; the cell asks the host to sign with it
//! (docs/decisions/signing.md).

mod clients;

use super::baseline::require;
use super::report::Report;
use super::{Plan, cpu, progress, stats};
use anyhow::Context;
use clients::Clients;
use marram_cluster::{LogCollector, TempDir, TestCluster, TestProcess, free_address};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many clients there are.
const CLIENTS: [usize; 3] = [100, 350, 700];
/// Rate of the open loop, as a fraction of the slowest variant's capacity.
const LOAD: f64 = 0.5;
/// Bytes of the page, without its head.
const PAGE_BYTES: usize = 1024;
/// Length of the queue of connections that the server or the proxy has not accepted yet.
const BACKLOG: i32 = 4096;
/// How long a program may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);
/// The app between agents, protected; and the app between the edge's own gates, as unprotected as the proxy.
const APPS: [(&str, &str, &str); 2] = [("tls", "endpoints", "origin"), ("bare", "none", "direct")];
/// Prefixes of the variants: the app between agents, the bare one, the proxy.
const SIDES: [&str; 3] = ["", "bare_", "proxy_"];

/// A certificate and its key, each in a file. A new one in each run.
struct Site {
    certificate: String,
    place: TempDir,
}

impl Site {
    fn new() -> anyhow::Result<Self> {
        let place = TempDir::new("bench-tls-site")?;
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])?.self_signed(&key)?.pem();
        place.write("certificate.pem", &certificate)?;
        // HAProxy requires both in one file.
        for (name, text) in
            [("site.key", key.serialize_pem()), ("both.pem", key.serialize_pem() + &certificate)]
        {
            let path = place.write(name, text)?;
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
        }
        Ok(Self { certificate, place })
    }

    /// The path of one of the files, quoted for TOML.
    fn file(&self, name: &str) -> String {
        format!("{:?}", self.place.path().join(name).display().to_string())
    }
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    require("haproxy", "haproxy")?;
    let mut report = Report::new("tls");
    plan.over_all_wires(&mut report, over)?;
    report.baseline("proxy", "haproxy -f tls.conf (one thread, mode tcp, bind ... ssl, TLS 1.3, no tickets)");
    report.note(
        "a page of 1 KiB, each over a new TCP and TLS connection with a P-256 certificate; every page is read to the \
         end of the connection",
    );
    report.note(
        "cells: through agents on both sides and an edge with one shard, protected by endpoints; bare: through the edge's own \
         gates, unprotected, as the proxy is. Servers have one core, the clients, one thread, the other",
    );
    report.note(
        "rps: every client asks again when it has its page; clients_busy: near 1, that was the clients' limit; p99: open loop \
         at half of what the slowest side can do, from when a page was due; cpu_us: processor time of a page, of edge and \
         agents or of the proxy",
    );
    report.note("encrypted: the same with TLS on the wires between agents and edge too; bare and the proxy have no such wires");
    Ok(report)
}

/// Measures with all numbers of clients, over one kind of wires.
fn over(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let wanted: Vec<usize> = CLIENTS.into_iter().filter(|count| plan.wants(&format!("c{count}"))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let site = Site::new()?;
    let (mut cluster, proxy, addresses) = {
        let _core = cpu::OneCore::enter()?;
        let origin = origin()?;
        let (cluster, cells) = cells(plan, &site, origin)?;
        let (proxy, address) = haproxy(&site, origin)?;
        (cluster, proxy, [cells[0], cells[1], address])
    };
    let _core = cpu::OneCore::enter_other()?;
    let (ours, theirs) = (cluster.groups(), [proxy.id()]);
    for count in wanted {
        progress(&format!("tls: {}{count} clients", plan.wires.prefix()));
        let groups = [&ours[..], &ours[..], &theirs[..]];
        compare(plan, &site, count, addresses, groups, report)
            .with_context(|| format!("the last lines of edge and agents:\n{}", cluster.logs.tail(10)))?;
    }
    Ok(())
}

/// Results of one variant, by block.
#[derive(Default)]
struct Found {
    per_s: Vec<f64>,
    cpu_us: Vec<f64>,
    clients_busy: Vec<f64>,
    waits_ms: Vec<f64>,
}

/// Measures with one number of clients; the variants alternate by block.
///
/// `addresses` and `groups` are in the order of [`SIDES`].
fn compare(
    plan: &Plan,
    site: &Site,
    count: usize,
    addresses: [SocketAddr; 3],
    groups: [&[u32]; 3],
    report: &mut Report,
) -> anyhow::Result<()> {
    let (blocks, block) =
        if plan.quick { (1, Duration::from_millis(700)) } else { (3, Duration::from_secs(2)) };
    let clients = addresses.map(|address| Clients::new(address, &site.certificate, count));
    let mut sides = Vec::new();
    for (clients, groups) in clients.into_iter().zip(groups) {
        sides.push((clients?, groups, Found::default()));
    }
    for _ in 0..blocks {
        for (clients, groups, found) in &mut sides {
            let (begun, before, busy) = (Instant::now(), cpu::spent_ns(groups), cpu::of_this_thread_ns());
            let per_s = clients.throughput(block)?;
            let seconds = begun.elapsed().as_secs_f64();
            found.per_s.push(per_s);
            found.cpu_us.push(micros(cpu::spent_ns(groups).saturating_sub(before)) / (per_s * seconds));
            found.clients_busy.push(micros(cpu::of_this_thread_ns().saturating_sub(busy)) / (seconds * 1e6));
        }
    }
    let slowest = sides.iter().map(|(_, _, found)| stats::median(&found.per_s)).fold(f64::MAX, f64::min);
    for _ in 0..blocks {
        for (clients, _, found) in &mut sides {
            found.waits_ms.extend(clients.waits_ms(slowest * LOAD, block)?);
        }
    }
    let found: Vec<Found> = sides.into_iter().map(|(_, _, found)| found).collect();
    show(report, count, &found);
    Ok(())
}

/// Ratios to the proxy first, then each side's figures.
fn show(report: &mut Report, count: usize, found: &[Found]) {
    let mut metric = |name: &str, figure: f64| report.metric(&format!("c{count}.{name}"), figure);
    let per_s = |found: &Found| stats::median(&found.per_s);
    let tail = |found: &Found| stats::Tail::of(&found.waits_ms);
    if let [cells, bare, proxy] = found {
        for (name, side) in [("", cells), ("bare_", bare)] {
            metric(&format!("{name}rps_vs_proxy"), per_s(side) / per_s(proxy));
            let (ratio, figure) = tail(side).over(&tail(proxy), &format!("{name}p99_vs_proxy"));
            metric(&ratio, figure);
        }
    }
    for (name, side) in SIDES.iter().zip(found) {
        metric(&format!("{name}rps"), per_s(side));
        metric(&format!("{name}p50_ms"), stats::median(&side.waits_ms));
        metric(&tail(side).name(&format!("{name}p99_ms")), tail(side).value());
        metric(&format!("{name}cpu_us"), stats::median(&side.cpu_us));
        metric(&format!("{name}clients_busy"), stats::median(&side.clients_busy));
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of one block")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Starts an edge with both apps, and agents for the first. Returns the addresses for clients of each.
///
/// The second app is reached through a gate, and its server through the edge itself, so no agent is
/// on its way.
fn cells(plan: &Plan, site: &Site, origin: SocketAddr) -> anyhow::Result<(TestCluster, [SocketAddr; 2])> {
    let gate = free_address()?;
    let mut layout = plan.layout("bench-tls", 1, "");
    let names = APPS.map(|(name, ..)| name);
    writeln!(layout.edge_tables, "[[gate]]\nlisten = \"{gate}\"\napp = {:?}", names[1])?;
    writeln!(
        layout.edge_tables,
        "[[key]]\nname = \"site\"\nfile = {}\napps = {names:?}",
        site.file("site.key")
    )?;
    let manifest = |place: &TempDir, (name, protect, server): (&str, &str, &str)| {
        let rest = format!(
            "protect = {protect:?}\nserver = {server:?}\nkeys = [\"/etc/tls/certificate.pem\"]\n[quotas]\nmemory = \
             \"8MiB\"\n[[files]]\npath = \"/etc/tls/certificate.pem\"\nsource = {}\nabsolute = true\n",
            site.file("certificate.pem")
        );
        plan.cells.manifest(place, name, "tls", &rest)
    };
    let mut cluster =
        TestCluster::new(layout, |place| APPS.iter().map(|app| manifest(place, *app)).collect())?;
    cluster.start_edges(&format!("servers = {{ {} = \"{origin}\" }}", APPS[1].2))?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(APPS[0].2, origin)])?;
    let listens = cluster.start_client_agent(&edges, &[names[0]])?;
    let agent = listens.first().context("one app has one listener")?.address;
    Ok((cluster, [agent, gate]))
}

/// A server that speaks plain HTTP and answers each connection's only request with the page.
fn origin() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
    // All clients may connect at once; a connection that is dropped for lack of room is retried after a second.
    rustix::net::listen(&listener, BACKLOG)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The thread ends when its client disconnects.
            std::thread::spawn(move || _ = answer(stream));
        }
    });
    Ok(address)
}

/// Reads one request, whatever it is, and answers with the page.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut request, mut buffer) = (Vec::new(), [0; 2048]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            len => request.extend_from_slice(&buffer[..len]),
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {PAGE_BYTES}\r\nConnection: close\r\n\r\n");
    stream.write_all(&[head.as_bytes(), &[b'x'; PAGE_BYTES]].concat())
}

/// The proxy, with one thread, as the edge has one shard.
fn haproxy(site: &Site, origin: SocketAddr) -> anyhow::Result<(TestProcess, SocketAddr)> {
    let address = free_address()?;
    let config = format!(
        "global\n  nbthread 1\n  maxconn 8000\n  tune.ssl.cachesize 0\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
         timeout client 1h\n  timeout server 1h\nlisten tls\n  bind {address} backlog {BACKLOG} ssl crt {} ssl-min-ver TLSv1.3 \
         no-tls-tickets\n  server origin {origin}\n",
        Path::new(site.place.path()).join("both.pem").display()
    );
    let config = site.place.write("tls.conf", config)?;
    let mut command = Command::new(require("haproxy", "haproxy")?);
    command.arg("-db").arg("-f").arg(config);
    let errors = site.place.path().join("haproxy.stderr");
    let mut process = TestProcess::start("haproxy", &mut command, &LogCollector::default(), &errors)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        let said = || std::fs::read_to_string(&errors).unwrap_or_default();
        anyhow::ensure!(!process.ended() && Instant::now() < deadline, "haproxy does not listen: {}", said());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((process, address))
}
