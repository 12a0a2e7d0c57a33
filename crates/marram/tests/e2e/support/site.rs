//! A web site of several files, served by nginx without compression and by nginx with its own gzip. One page comes from a server
//! that sends it in parts, each when the test allows it.

use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use marram_wire::seeded::Seeded;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// The path of nginx, if it is installed.
pub(crate) fn nginx() -> Option<&'static str> {
    let found = ["nginx", "/usr/sbin/nginx"]
        .into_iter()
        .find(|program| Command::new(program).arg("-v").output().is_ok_and(|output| output.status.success()));
    if found.is_none() {
        super::skip::skip("there is no nginx on this machine");
    }
    found
}

/// nginx, in front of the files and the live page.
pub(crate) struct Site {
    pub(crate) directory: TempDir,
    /// Address of the server without compression.
    pub(crate) plain: SocketAddr,
    /// Address of the server that compresses for clients that accept it.
    pub(crate) packed: SocketAddr,
    pub(crate) live: Live,
    _process: TestProcess,
}

impl Site {
    /// Serves these files.
    pub(crate) fn start(program: &str, purpose: &str, files: &[(&str, Vec<u8>)], live: Vec<String>) -> Self {
        let directory = TempDir::new(purpose).unwrap();
        for (name, contents) in files {
            directory.write(&format!("www/{name}"), contents).unwrap();
        }
        let live = Live::start(live);
        let (plain, packed) = (free_address().unwrap(), free_address().unwrap());
        let root = directory.path().display();
        let mut config = format!(
            "daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/nginx.error;\nevents {{ }}\nhttp {{\n\
             include /etc/nginx/mime.types;\nlog_format all '$request|$status|$http_accept_encoding|\
             $sent_http_content_encoding|$body_bytes_sent|$connection';\naccess_log {root}/nginx.log all;\n"
        );
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            writeln!(config, "{kind}_temp_path {root}/nginx-{kind};").unwrap();
        }
        for (address, gzip) in [(plain, "off"), (packed, "on")] {
            writeln!(
                config,
                "server {{ listen {address}; root {root}/www; gzip {gzip}; gzip_types *; gzip_proxied any;\nlocation /live \
                 {{ proxy_pass http://{}; proxy_http_version 1.1; proxy_buffering off; }} }}",
                live.address
            )
            .unwrap();
        }
        let config = directory.write("nginx.conf", config + "}\n").unwrap();
        let mut command = Command::new(program);
        command.arg("-e").arg(directory.path().join("nginx.error")).arg("-c").arg(config);
        let errors = directory.path().join("nginx.stderr");
        let process = TestProcess::start("nginx", &mut command, &LogCollector::default(), &errors).unwrap();
        for address in [plain, packed] {
            wait_for(address, &errors);
        }
        Self { directory, plain, packed, live, _process: process }
    }

    /// nginx's log of requests for this path: status, accepted encodings, encoding, bytes, connection.
    pub(crate) fn log(&self, path: &str) -> Vec<Vec<String>> {
        let log = std::fs::read_to_string(self.directory.path().join("nginx.log")).unwrap_or_default();
        let of_path = |line: &&str| line.split([' ', '?']).nth(1) == Some(path);
        log.lines().filter(of_path).map(|line| line.split('|').skip(1).map(str::to_owned).collect()).collect()
    }

    /// The same, once it has `count` lines: nginx writes a line when it has sent the last byte of the answer.
    pub(crate) fn logged(&self, path: &str, count: usize) -> Vec<Vec<String>> {
        let begun = Instant::now();
        loop {
            let log = self.log(path);
            if log.len() >= count || begun.elapsed() > PATIENCE {
                return log;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits until a server listens at the address.
pub(crate) fn wait_for(address: SocketAddr, errors: &Path) {
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        let said = || std::fs::read_to_string(errors).unwrap_or_default();
        assert!(begun.elapsed() < PATIENCE, "nothing listens on {address}: {}", said());
        thread::sleep(Duration::from_millis(5));
    }
}

/// The number of parts that may be sent, and of those that were sent.
#[derive(Default)]
struct Parts {
    allowed: usize,
    said: usize,
}

/// A server of one page, sent in parts with chunked encoding. For an upgrade request it echoes instead.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) address: SocketAddr,
    page: Arc<Vec<String>>,
    parts: Arc<(Mutex<Parts>, Condvar)>,
}

impl Live {
    pub(crate) fn start(page: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let live =
            Self { address: listener.local_addr().unwrap(), page: Arc::new(page), parts: Arc::default() };
        let serving = live.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = serving.clone();
                // The thread ends when its client disconnects.
                thread::spawn(move || _ = serving.serve(stream));
            }
        });
        live
    }

    /// Starts again, with this number of parts allowed.
    pub(crate) fn rewind(&self, allowed: usize) {
        *self.parts.0.lock().unwrap() = Parts { allowed, said: 0 };
    }

    /// Allows one more part.
    pub(crate) fn go_on(&self) {
        self.parts.0.lock().unwrap().allowed += 1;
        self.parts.1.notify_all();
    }

    /// Waits until this number of parts were sent.
    pub(crate) fn wait_until_said(&self, count: usize) {
        let parts = self.parts.0.lock().unwrap();
        let wait = self.parts.1.wait_timeout_while(parts, PATIENCE, |parts| parts.said < count);
        assert!(!wait.unwrap().1.timed_out(), "part {count} was not asked for in time");
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut is_upgrade, mut line) = (false, String::new());
        while reader.read_line(&mut line)? > 2 {
            is_upgrade |= line.to_ascii_lowercase().starts_with("upgrade:");
            line.clear();
        }
        if is_upgrade {
            stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n",
            )?;
            let mut buffer = [0; 4096];
            loop {
                match reader.read(&mut buffer)? {
                    0 => return Ok(()),
                    len => stream.write_all(&buffer[..len])?,
                }
            }
        }
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        )?;
        for (index, part) in self.page.iter().enumerate() {
            let parts = self.parts.0.lock().unwrap();
            let mut parts = self.parts.1.wait_while(parts, |parts| parts.allowed <= index).unwrap();
            write!(stream, "{:x}\r\n{part}\r\n", part.len())?;
            parts.said = index + 1;
            self.parts.1.notify_all();
        }
        stream.write_all(b"0\r\n\r\n")
    }
}

/// About this many bytes of text: compressible, and all lines differ.
pub(crate) fn text(bytes: usize) -> Vec<u8> {
    const WORDS: [&str; 8] = ["grass", "shore", "dune", "tide", "sand", "root", "gull", "reef"];
    let mut text = String::with_capacity(bytes + 100);
    let mut line = 0_u64;
    while text.len() < bytes {
        let mixed = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        write!(text, "{line:08x}").unwrap();
        for n in 0..8 {
            write!(text, " {}", WORDS[usize::from((mixed >> (20 + 5 * n)).to_le_bytes()[0] % 8)]).unwrap();
        }
        text.push('\n');
        line += 1;
    }
    text.into_bytes()
}

/// A PNG file of noise, stored and not deflated.
pub(crate) fn png(width: u16, height: u16, seed: u64) -> Vec<u8> {
    let mut numbers = Seeded::new(seed);
    let mut rows = Vec::new();
    for _ in 0..height {
        // Each row's filter: none.
        rows.extend_from_slice(&[0]);
        for _ in 0..width * 3 {
            rows.push(numbers.word().to_be_bytes()[0] | 0x40);
        }
    }
    let mut zlib = vec![0x78, 1];
    let blocks: Vec<&[u8]> = rows.chunks(0xffff).collect();
    for (index, block) in blocks.iter().enumerate() {
        let len = u16::try_from(block.len()).unwrap();
        zlib.push(u8::from(index + 1 == blocks.len()));
        zlib.extend_from_slice(&len.to_le_bytes());
        zlib.extend_from_slice(&(!len).to_le_bytes());
        zlib.extend_from_slice(block);
    }
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in &rows {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    zlib.extend_from_slice(&(b << 16 | a).to_be_bytes());
    let mut head = Vec::new();
    head.extend_from_slice(&u32::from(width).to_be_bytes());
    head.extend_from_slice(&u32::from(height).to_be_bytes());
    head.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", &head[..]), (b"IDAT", &zlib), (b"IEND", &[])] {
        file.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
        let body = [&kind[..], data].concat();
        file.extend_from_slice(&body);
        file.extend_from_slice(&crc32(&body).to_be_bytes());
    }
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}
