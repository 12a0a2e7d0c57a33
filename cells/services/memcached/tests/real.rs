//! The same random requests to this cache and to a real memcached: the replies must be the same bytes, except for the
//! versions, which each counts in its own way. Skipped without memcached, but not in CI
//! (Debian: `apt install memcached`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../../crates/marram/tests/e2e/support/skip.rs"]
mod skip;
mod traffic;

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use marram_sdk::double::Random;
use memcached::{clock::Seconds, connection::Connection, server::Server};
use traffic::{Naive, Request, request, store_bytes};

/// Sent after every request: a request of the meta protocol that does nothing, and its reply. It marks the end of the reply
/// before it.
const FENCE: (&[u8], &[u8]) = (b"mn\r\n", b"MN\r\n");

/// A memcached process that is ended with the test.
struct Real {
    process: Child,
    /// Not a port: the kernel could give a free port to the very connection that is tried, and then memcached could not listen on
    /// it.
    socket: PathBuf,
    stream: UnixStream,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Real {
    /// `None` where it is not installed.
    fn start() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let socket = std::env::temp_dir().join(format!("marram-memcached-{process}-{count}"));
        let mut command = Command::new("memcached");
        command.args(["-u", "nobody", "-t", "1", "-s"]).arg(&socket);
        // Without the background threads: `decr` does not pad a value while such a thread looks at the item.
        command.args(["-o", "no_modern"]);
        let mut process = match command.stdin(Stdio::null()).spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            started => started.expect("memcached can be started"),
        };
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                break stream;
            }
            assert_eq!(process.try_wait().unwrap(), None, "memcached ended");
            std::thread::yield_now();
        };
        Some(Self { process, socket, stream })
    }

    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.stream.write_all(&[bytes, FENCE.0].concat()).unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; 1 << 16]);
        while !answer.ends_with(FENCE.1) {
            let len = self.stream.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "memcached hung up on {:?}", String::from_utf8_lossy(bytes));
            answer.extend_from_slice(&buffer[..len]);
        }
        answer.truncate(answer.len() - FENCE.1.len());
        answer
    }
}

/// The versions that one side's client has seen, by key.
type Seen = BTreeMap<String, u64>;

/// Removes the versions from the reply to a `gets`, and records them.
fn without_versions(answer: &[u8], seen: &mut Seen) -> Vec<u8> {
    let (mut rest, mut out) = (answer, Vec::new());
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let text = String::from_utf8_lossy(line).into_owned();
        let words: Vec<&str> = text.trim_end().split(' ').collect();
        let ["VALUE", key, _, len, cas] = words.as_slice() else {
            out.extend_from_slice(line);
            continue;
        };
        seen.insert((*key).to_owned(), cas.parse().unwrap());
        out.extend_from_slice(text.trim_end().trim_end_matches(|c: char| c.is_ascii_digit()).as_bytes());
        let (value, after) = rest.split_at(len.parse::<usize>().unwrap() + 2);
        out.extend_from_slice(value);
        rest = after;
    }
    out
}

/// The bytes of one request on each side: only versions differ.
fn sent(request: &Request, naive: &mut Naive, seen: &Seen) -> Vec<u8> {
    let (bytes, _) = naive.exchange(request);
    match request {
        Request::Store { name: "cas", key, .. } => {
            store_bytes(request, seen.get(key).copied().unwrap_or(1 << 60))
        }
        _ => bytes,
    }
}

/// Numbers from 2^63 on: memcached refuses them if the memory after them happens to contain a minus sign.
fn is_huge(request: &Request) -> bool {
    match request {
        Request::Count { delta, .. } => *delta > i64::MAX as u64,
        Request::Store { value, .. } => value.starts_with(b"18446744073709551615"),
        _ => false,
    }
}

#[test]
fn the_answers_are_those_of_a_real_memcached() {
    let Some(mut real) = Real::start() else {
        skip::skip("there is no memcached to compare with (apt install memcached)");
        return;
    };
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let now = Seconds(u32::try_from(unix).unwrap());
    let (mut server, mut connection) = (Server::new(32 << 20, [1; 16], now), Connection::default());
    let (mut random, mut naive) = (Random::new(20_260), Naive::default());
    let (mut seen_here, mut seen_there) = (Seen::new(), Seen::new());
    for n in 0..20_000 {
        let request = request(&mut random);
        if is_huge(&request) {
            continue;
        }
        let there = real.ask(&sent(&request, &mut naive, &seen_there));
        let mut here = Vec::new();
        connection.receive(&sent(&request, &mut Naive::default(), &seen_here), &mut server, now, &mut here);
        let there = without_versions(&there, &mut seen_there);
        let here = without_versions(&here, &mut seen_here);
        assert!(
            here == there,
            "request {n}, {request:?}: {:?}, but memcached says {:?}",
            String::from_utf8_lossy(&here),
            String::from_utf8_lossy(&there)
        );
    }
}

#[test]
fn edges_of_the_protocol_are_those_of_a_real_memcached() {
    let Some(mut real) = Real::start() else {
        skip::skip("there is no memcached to compare with (apt install memcached)");
        return;
    };
    let now = Seconds(1_800_000_000);
    let (mut server, mut connection) = (Server::new(32 << 20, [1; 16], now), Connection::default());
    let large = "x".repeat(1_048_500);
    let long_key = "k".repeat(251);
    let scripts = [
        format!("set big 0 0 1048500\r\n{large}\r\n"),
        "append big 0 0 100\r\n".to_owned() + &"y".repeat(100) + "\r\n",
        format!("set big 0 0 1048700\r\n{large}{}\r\nget big\r\n", "y".repeat(200)),
        format!("add big 0 0 2000000 noreply\r\n{}\r\nget big\r\n", "x".repeat(2_000_000)),
        format!("set {long_key} 0 0 1\r\nx\r\n"),
        format!("get {long_key}\r\n"),
        format!("get a {long_key}\r\n"),
        format!("delete {long_key}\r\nincr {long_key} 1\r\ntouch {long_key} 1\r\n"),
        format!("get {}\r\n", "a ".repeat(3000)),
        "set  w  0  0  1 \nx\r\nget  w  w \n".to_owned(),
        "set w 0 0 +1\r\nx\r\nset w 0 0 0x1\r\nget w\r\n".to_owned(),
        "set w 4294967295 0 1\r\r\nx\r\nget w\r\nget w\r\r\n".to_owned(),
        "set n 0 0 2\r\n10\r\ndecr n 1\r\nget n\r\nincr n 5\r\nincr n 1000\r\ndecr n 5000\r\nget n\r\n"
            .to_owned(),
        "set s 0 0 30\r\n000000000000000000000000000005\r\nincr s 1\r\nget s\r\n".to_owned(),
        "set s 0 0 3\r\n+12\r\nincr s 1\r\nget s\r\nset s 0 0 0\r\n\r\nincr s 1\r\n".to_owned(),
        "set s 0 0 4\r\n12\tx\r\nincr s 18446744073709551615\r\nget s\r\n".to_owned(),
        "touch s -1\r\nget s\r\nset s 0 0 1\r\nx\r\ngat -1 s\r\nget s\r\n".to_owned(),
        "gat 100\r\nbget w\r\nverbosity noreply\r\nverbosity -1\r\nverbosity 1 2\r\n".to_owned(),
        "flush_all -1\r\nflush_all 0\r\nflush_all 1 noreply x\r\nflush_all noreply\r\n".to_owned(),
        "stats reset\r\nstats sizes\r\nstats nothing\r\nmx\r\nversion2\r\n".to_owned(),
    ];
    for script in scripts {
        let (mut here, there) = (Vec::new(), real.ask(script.as_bytes()));
        connection.receive(script.as_bytes(), &mut server, now, &mut here);
        let show = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        assert!(here == there, "{:.60}: {:?}, but memcached says {:?}", script, show(&here), show(&there));
    }
}
