//! The server: Debian's nginx or, without nginx, a small file server, which says that it is one.
//!
//! The server must be unmodified software to prove anything; the bundled one only makes the demo
//! run where nginx is not installed, and the table names it.

use super::timeline::Timeline;
use anyhow::Context;
use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long nginx may take until it listens, and until it has logged a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks of files, which send no events.
const LOOK: Duration = Duration::from_millis(10);

/// A running server.
pub(super) struct Web {
    address: SocketAddr,
    kind: Kind,
}

/// How the number of requests is learned differs: nginx writes a log.
enum Kind {
    Nginx { _process: TestProcess, log: PathBuf },
    Bundled { requests: Arc<AtomicUsize> },
}

impl Web {
    /// Serves `www/`; `bundled` means without nginx.
    pub(super) fn start(
        bundled: bool,
        place: &TempDir,
        logs: &LogCollector,
        timeline: &Timeline,
    ) -> anyhow::Result<Self> {
        let program = ["nginx", "/usr/sbin/nginx"].into_iter().filter(|_| !bundled).find(|program| {
            Command::new(program).arg("-v").output().is_ok_and(|output| output.status.success())
        });
        let web = match program {
            Some(program) => Self::nginx(program, place, logs)?,
            None => Self::bundled(place.path().join("www"))?,
        };
        timeline.say(&format!("{} serves on {}", web.name(), web.address));
        Ok(web)
    }

    /// In the foreground, as a single process, with all its files below the demo's directory: it
    /// needs no rights and leaves nothing behind.
    fn nginx(program: &str, place: &TempDir, logs: &LogCollector) -> anyhow::Result<Self> {
        let address = free_address()?;
        let root = place.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("  {kind}_temp_path {root}/nginx-{kind};\n"))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {root}/nginx.error;\n\
             events {{ }}\nhttp {{\n  access_log {root}/nginx.log;\n{temporary}  \
             server {{ listen {address}; root {root}/www; }}\n}}\n"
        );
        let config = place.write("nginx.conf", config)?;
        let mut command = Command::new(program);
        command
            .arg("-p")
            .arg(place.path())
            .arg("-e")
            .arg(place.path().join("nginx.error"))
            .arg("-c")
            .arg(config);
        let process = TestProcess::start("nginx", &mut command, logs, &place.path().join("nginx.stderr"))?;
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            anyhow::ensure!(Instant::now() < deadline, "nginx does not listen: {}", errors(place.path()));
            std::thread::sleep(LOOK);
        }
        Ok(Self { address, kind: Kind::Nginx { _process: process, log: place.path().join("nginx.log") } })
    }

    fn bundled(root: PathBuf) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).context("no free port for the bundled file server")?;
        let address = listener.local_addr()?;
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (root, counter) = (root.clone(), Arc::clone(&counter));
                // The thread ends when its client disconnects.
                std::thread::spawn(move || _ = serve(&stream, &root, &counter));
            }
        });
        Ok(Self { address, kind: Kind::Bundled { requests } })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Nginx { .. } => "nginx",
            Kind::Bundled { .. } => "the bundled file server (not nginx)",
        }
    }

    /// Number of requests that the server has answered; waits until the first one is logged.
    pub(super) fn requests(&self) -> usize {
        let Kind::Nginx { log, .. } = &self.kind else { return self.bundled_requests() };
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Without the file, no line was logged yet.
            let lines = std::fs::read_to_string(log).unwrap_or_default().lines().count();
            if lines > 0 || Instant::now() > deadline {
                return lines;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn bundled_requests(&self) -> usize {
        match &self.kind {
            Kind::Bundled { requests } => requests.load(Ordering::Relaxed),
            Kind::Nginx { .. } => 0,
        }
    }
}

fn errors(root: &Path) -> String {
    std::fs::read_to_string(root.join("nginx.error")).unwrap_or_else(|error| error.to_string())
}

/// Answers one request on a connection: GET of a file, nothing else.
/// Names with other characters are refused, so no path leads out of the directory.
fn serve(mut stream: &TcpStream, root: &Path, requests: &AtomicUsize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.take(16 << 10)).lines();
    let line = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    requests.fetch_add(1, Ordering::Relaxed);
    let name = line.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let legal = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    let file = if legal { std::fs::File::open(root.join(name)).ok() } else { None };
    let Some(mut file) = file else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let size = file.metadata()?.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    std::io::copy(&mut file, &mut stream).map(drop)
}
