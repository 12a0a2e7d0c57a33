//! nginx, as a file server and as a proxy that compresses, for `apps` and `crowd`.
//!
//! One process each, without a master, in the foreground: so that it is pinned, measured and ended
//! like any other process of a benchmark. All of its files are in the benchmark's own directory.

use anyhow::Context;
use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long nginx may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections at a time; nginx's own default is 512.
const CONNECTIONS: u32 = 12_000;

/// A running nginx, and the address at which it listens.
pub(super) struct Nginx {
    pub(super) process: TestProcess,
    pub(super) address: SocketAddr,
}

impl Nginx {
    /// Serves the files below `www` without compression. `settings` are those of the server besides.
    pub(super) fn files(program: &Path, place: &TempDir, settings: &str) -> anyhow::Result<Self> {
        let www = place.path().join("www").display().to_string();
        Self::start(program, place, "files", "", &format!("root {www};\n{settings}"))
    }

    /// Starts a proxy before another server, which compresses that server's answers at this level.
    ///
    /// Connections to the server are kept, as the cell keeps its own; otherwise the proxy would pay
    /// for a connection per request.
    pub(super) fn proxy(
        program: &Path,
        place: &TempDir,
        level: u32,
        server: SocketAddr,
    ) -> anyhow::Result<Self> {
        let before = format!("upstream files {{ server {server}; keepalive 4; }}");
        let within = format!(
            "gzip on; gzip_types *; gzip_comp_level {level}; gzip_proxied any;\nlocation / {{ proxy_pass http://files; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; }}"
        );
        Self::start(program, place, &format!("proxy{level}"), &before, &within)
    }

    /// `before` is put before the `server` block, `within` into it.
    fn start(
        program: &Path,
        place: &TempDir,
        name: &str,
        before: &str,
        within: &str,
    ) -> anyhow::Result<Self> {
        let (address, root) = (free_address()?, place.path().display().to_string());
        // Even paths of modules that are not used must be writable, or nginx does not start.
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {root}/{name}-{kind};\n"))
            .concat();
        let config = format!(
            "daemon off; master_process off; pid {root}/{name}.pid; error_log {root}/{name}.error;\nevents {{ worker_connections {CONNECTIONS}; }}\n\
             http {{\ninclude /etc/nginx/mime.types;\naccess_log off;\nkeepalive_requests 100000000;\nkeepalive_timeout 1h;\n\
             {temporary}{before}\nserver {{ listen {address} backlog=4096;\n{within} }}\n}}\n"
        );
        let config = place.write(&format!("{name}.conf"), config)?;
        let (errors, mut command) = (place.path().join(format!("{name}.stderr")), Command::new(program));
        command.arg("-e").arg(place.path().join(format!("{name}.error"))).arg("-c").arg(config);
        let mut process = TestProcess::start(name, &mut command, &LogCollector::default(), &errors)?;
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let said = || std::fs::read_to_string(&errors).context("it printed nothing").unwrap_or_default();
            anyhow::ensure!(
                !process.ended() && Instant::now() < deadline,
                "nginx does not listen: {}",
                said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { process, address })
    }
}
