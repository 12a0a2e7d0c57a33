//! The cell `compress` between unmodified programs: nginx and a Python server on one side, curl, Python's requests and a real
//! browser on the other, while edges die.

use crate::support::{
    self,
    browser::Browser,
    site::{self, Site},
};
use marram_cluster::{AgentSide, LogCollector, LogEvent, TestCluster, TestProcess, free_address};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Two edges with the cell before each of these servers; returns the addresses for clients of each.
fn cluster(purpose: &'static str, servers: &[(&str, SocketAddr)]) -> (TestCluster, Vec<SocketAddr>) {
    let layout = support::layout(purpose, |layout| layout.edges = 2);
    let mut cluster = TestCluster::new(layout, |place| {
        let manifest = |(name, _): &(&str, SocketAddr)| {
            let rest = format!("protect = \"endpoints\"\nserver = {name:?}\n[quotas]\nmemory = \"16MiB\"\n");
            support::cells().manifest(place, name, "compress", &rest)
        };
        servers.iter().map(manifest).collect()
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, servers).unwrap();
    let names: Vec<&str> = servers.iter().map(|(name, _)| *name).collect();
    let listens = cluster.start_client_agent(&edges, &names).unwrap();
    (cluster, listens.iter().map(|listen| listen.address).collect())
}

/// Kills the edge of the newest session; returns when both edges run again.
fn kill_the_owner(cluster: &mut TestCluster) {
    let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
    cluster.edges[owner].kill();
    cluster.wait_for_owner(start).unwrap();
    cluster.respawn(owner).unwrap();
}

/// What curl prints, with any head first.
fn curl(arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "240"]).args(arguments);
    let output = command.output().expect("`cargo xtask setup` installs curl");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The same with the head; returns head and body.
fn curl_with_head(arguments: &[&str]) -> (String, Vec<u8>) {
    let mut all = curl(&[arguments, &["--include"]].concat());
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let body = all.split_off(end);
    (String::from_utf8(all).unwrap(), body)
}

#[test]
fn curl_gets_what_nginx_has_however_it_asks() {
    let Some(program) = site::nginx() else { return };
    let page = site::text(200_000);
    let site = Site::start(program, "compress-curl", &[("page.html", page.clone())], Vec::new());
    let (cluster, at) = cluster("compress-curl-lab", &[("packed", site.packed), ("plain", site.plain)]);
    let [packed, plain] = [at[0], at[1]].map(|address| format!("http://{address}/page.html"));
    let says = |head: &str, words: &str| head.to_ascii_lowercase().contains(words);

    // curl does not accept gzip, and nginx sends a fraction of the size to the cell.
    let (head, body) = curl_with_head(&[&packed]);
    assert!(body == page && !says(&head, "content-encoding"), "{head}");
    let line = site.logged("/page.html", 1).pop().unwrap();
    assert_eq!(&line[..3], ["200", "gzip", "gzip"]);
    assert!(line[3].parse::<usize>().unwrap() < page.len() / 2, "{line:?}");

    // nginx does not compress here, and curl accepts gzip.
    let (head, body) = curl_with_head(&["--compressed", &plain]);
    assert!(
        body == page && says(&head, "content-encoding: gzip") && says(&head, "vary: accept-encoding"),
        "{head}"
    );
    assert!(says(&head, "etag: w/"), "{head}");
    let raw = curl(&["-H", "Accept-Encoding: gzip", &plain]);
    assert!(raw.starts_with(b"\x1f\x8b") && raw.len() < page.len() / 2);

    // A body that the client already has is not sent again.
    let etag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
    let (head, body) = curl_with_head(&["--compressed", "-H", &format!("If-None-Match: {etag}"), &plain]);
    assert!(head.starts_with("HTTP/1.1 304 ") && body.is_empty(), "{head}");

    // Only a head, a range, an older protocol version.
    for url in [&packed, &plain] {
        for more in [&["--head"][..], &["--head", "--compressed"]] {
            let head = String::from_utf8(curl(&[more, &[url]].concat())).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 ") && says(&head, "content-type: text/html"), "{head}");
        }
        let (head, body) = curl_with_head(&["--range", "1000-1999", url]);
        assert!(head.starts_with("HTTP/1.1 206 ") && body == page[1000..2000], "{head}");
        for more in [&["--http1.0"][..], &["--http1.0", "--compressed"]] {
            assert!(curl(&[more, &[url]].concat()) == page, "{more:?}");
        }
    }
    let (head, _) = curl_with_head(&[&plain.replace("page", "nothing")]);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    drop(cluster);
}

/// Answers with the request's headers that matter here, and with the digest of its body.
const PYTHON_SERVER: &str = r"
import hashlib, http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        body, chunks = b'', self.headers.get('Transfer-Encoding') == 'chunked'
        while chunks:
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if size == 0: break
        body += self.rfile.read(int(self.headers.get('Content-Length', 0)))
        says = [len(body), hashlib.sha256(body).hexdigest(), chunks, self.headers.get('Accept-Encoding'), self.headers.get('Expect')]
        answer = ' '.join(map(str, says)).encode() + b'\n' + b'.' * 1000 + b'\n'
        self.send_response(200)
        self.send_header('Content-Type', 'text/plain')
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    do_PUT = do_GET = do_POST
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

/// A client that keeps its connection.
const PYTHON_CLIENT: &str = r"
import hashlib, requests, sys
url, session = sys.argv[1], requests.Session()
for n in range(30):
    body = bytes([n]) * (n * 5000)
    wanted = f'{len(body)} {hashlib.sha256(body).hexdigest()} {n % 2 == 1} gzip, deflate'
    data = (body[i:i + 7000] for i in range(0, len(body), 7000)) if n % 2 else body
    answer = session.post(url, data=data, headers={'Accept-Encoding': 'gzip, deflate'}, timeout=60)
    assert answer.text.startswith(wanted) and answer.text.endswith('.\n'), (wanted, answer.text)
    assert answer.headers['Content-Encoding'] == 'gzip', answer.headers
    if n in (9, 19):
        print(n, flush=True)
        sys.stdin.readline()
print('all')
";

/// A program that ends with the test, even if the test fails.
struct Program(Child);

impl Program {
    /// Its output, line by line, so that the receiver can have a timeout.
    fn lines(&mut self) -> Receiver<String> {
        let (lines, (said, heard)) = (BufReader::new(self.0.stdout.take().unwrap()).lines(), channel());
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| said.send(line)));
        heard
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn uploads_reach_a_server_in_python_and_a_connection_is_kept_while_its_edge_dies() {
    let place = marram_cluster::TempDir::new("compress-python").unwrap();
    let Some(python) = support::python_with("requests") else { return };
    let (program, address) = (place.write("server.py", PYTHON_SERVER).unwrap(), free_address().unwrap());
    let mut command = Command::new(python);
    command.arg(program).arg(address.port().to_string());
    let errors = place.path().join("server.stderr");
    let _server = TestProcess::start("python", &mut command, &LogCollector::default(), &errors).unwrap();
    site::wait_for(address, &errors);
    let (mut cluster, at) = cluster("compress-python-lab", &[("python", address)]);
    let url = format!("http://{}/", at[0]);

    let body = site::text(300_000);
    let file = place.write("body", &body).unwrap();
    let upload = |more: &[&str]| {
        let data = format!("@{}", file.display());
        String::from_utf8(curl(&[&["--data-binary", &data, &url], more].concat())).unwrap()
    };
    let digest = |answer: &str| answer.split(' ').nth(1).unwrap().to_owned();
    let plain = upload(&["-H", "Expect:"]);
    assert!(
        plain.starts_with(&format!("{} ", body.len())) && plain.contains(" False gzip None\n"),
        "{plain}"
    );
    let waited = upload(&["-H", "Expect: 100-continue", "--compressed"]);
    assert!(waited.contains(" 100-continue\n") && digest(&waited) == digest(&plain), "{waited}");
    let chunked = upload(&["-H", "Transfer-Encoding: chunked"]);
    assert!(chunked.contains(" True gzip") && digest(&chunked) == digest(&plain), "{chunked}");

    let program = place.write("client.py", PYTHON_CLIENT).unwrap();
    let mut command = Command::new(python);
    command.arg(program).arg(&url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Program(command.spawn().unwrap());
    let lines = client.lines();
    let next = || lines.recv_timeout(2 * PATIENCE).expect("the client goes on");
    for n in ["9", "19"] {
        assert_eq!(next(), n);
        kill_the_owner(&mut cluster);
        client.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    assert_eq!(next(), "all");
    assert!(client.0.wait().unwrap().success());
}

/// Removes the first response from the bytes; returns its head and body.
fn response(bytes: &mut Vec<u8>) -> (String, Vec<u8>) {
    let line = |bytes: &mut Vec<u8>| {
        let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a line has an end") + 2;
        String::from_utf8(bytes.drain(..end).collect()).unwrap()
    };
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head += &line(bytes);
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    if let Some(length) = length {
        return (head.clone(), bytes.drain(..length.parse::<usize>().unwrap()).collect());
    }
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(line(bytes).trim_end(), 16).unwrap();
        body.extend(bytes.drain(..size));
        assert_eq!(line(bytes), "\r\n");
        if size == 0 {
            return (head, body);
        }
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let Some(program) = site::nginx() else { return };
    let files: Vec<(String, Vec<u8>)> =
        (0..8_usize).map(|n| (format!("{n}.html"), site::text(100 + n * n * 1000))).collect();
    let named: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
    let site = Site::start(program, "compress-pipeline", &named, Vec::new());
    let (_cluster, at) = cluster("compress-pipeline-lab", &[("packed", site.packed), ("plain", site.plain)]);
    for address in at {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = |n: usize| {
            let more = if n == 79 { "Connection: close\r\n" } else { "" };
            format!("GET /{}.html HTTP/1.1\r\nHost: a\r\n{more}\r\n", n % 8)
        };
        stream.write_all((0..80).map(ask).collect::<String>().as_bytes()).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        for n in 0..80 {
            let (head, body) = response(&mut heard);
            assert!(head.starts_with("HTTP/1.1 200 ") && body == files[n % 8].1, "{n}: {head}");
        }
        assert!(heard.is_empty());
    }
}

#[test]
fn an_upgraded_connection_speaks_what_it_likes_while_its_edge_dies() {
    let live = site::Live::start(Vec::new());
    let (mut cluster, at) = cluster("compress-upgrade", &[("live", live.address)]);
    let mut stream = TcpStream::connect(at[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    for round in 0..4_u8 {
        let words = [&[round, 0, 0xff][..], &site::text(20_000), b"\r\n\r\n"].concat();
        stream.write_all(&words).unwrap();
        let mut heard = vec![0; words.len()];
        stream.read_exact(&mut heard).unwrap();
        assert!(heard == words);
        if round < 3 {
            kill_the_owner(&mut cluster);
        }
    }
}

#[test]
fn a_download_goes_on_when_its_edge_dies_and_every_byte_is_right() {
    const KILLS: usize = 3;
    let Some(program) = site::nginx() else { return };
    let text = site::text(40_000_000);
    let site = Site::start(program, "compress-kill", &[("long.html", text.clone())], Vec::new());
    let (mut cluster, at) = cluster("compress-kill-lab", &[("packed", site.packed), ("plain", site.plain)]);
    // The cell decodes for the first curl, and encodes for the second.
    for (address, more) in [(at[0], None), (at[1], Some("--compressed"))] {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "240", "--limit-rate"]);
        // A rate of the compressed or plain bytes from the edge, low enough that the cell has to wait.
        command.arg(if more.is_some() { "4M" } else { "20M" }).args(more);
        command.arg(format!("http://{address}/long.html")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = Program(command.spawn().unwrap());
        let (mut pipe, mut at, mut buffer) = (client.0.stdout.take().unwrap(), 0, vec![0; 64 << 10]);
        let mut read = |until: usize| {
            while at < until {
                let len = pipe.read(&mut buffer).unwrap();
                assert!(len > 0, "curl ended after {at} bytes");
                assert!(buffer[..len] == text[at..at + len], "something is wrong from byte {at} on");
                at += len;
            }
            pipe.read(&mut buffer[..usize::from(at == text.len())]).unwrap()
        };
        for kill in 0..KILLS {
            read(text.len() / (KILLS + 1) * (kill + 1));
            kill_the_owner(&mut cluster);
        }
        assert_eq!(read(text.len()), 0, "nothing comes behind the last byte");
        let mut errors = String::new();
        client.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(client.0.wait().unwrap().success(), "{errors}");
    }
    for line in site.logged("/long.html", 2) {
        assert_eq!(line[0], "200");
    }
}

/// A site with a page in parts, and the paths that each part refers to.
fn gallery() -> (Vec<(String, Vec<u8>)>, Vec<String>) {
    let mut files = Vec::new();
    let style = "body { background: #fdf6e3; font: 18px sans-serif; margin: 20px } h2 { color: #268bd2; border-bottom: 3px dashed }
        .part { display: flex; flex-wrap: wrap; gap: 10px; padding: 6px; background: linear-gradient(90deg, #eee8d5, #93a1a1) }\n";
    files.push(("style.css".to_owned(), style.repeat(40).into_bytes()));
    let script = "function bars(id, seed) { const c = document.getElementById(id), g = c.getContext('2d');
        for (let x = 0; x < c.width; x += 4) { seed = (seed * 1103515245 + 12345) % 2147483648; g.fillStyle = `hsl(${seed % 360} 70% 50%)`;
        g.fillRect(x, c.height - seed % c.height, 3, c.height) } }\n";
    files.push(("script.js".to_owned(), format!("{script}{}", "// nothing\n".repeat(3000)).into_bytes()));
    let mut parts = vec![
        "<!doctype html><html><head><meta charset=utf-8><title>Marram</title><link rel=stylesheet href=/style.css>\
         <script src=/script.js></script></head><body><h1>What grows back</h1>"
            .to_owned(),
    ];
    for part in 0..3_u16 {
        let mut html =
            format!("<h2>Part {part}</h2><div class=part><canvas id=c{part} width=200 height=120></canvas>");
        html += &format!("<script>bars('c{part}', {})</script>", part + 7);
        for n in 0..4_u16 {
            let name = format!("noise-{part}-{n}.png");
            html += &format!("<img src=/{name} width=100 height=75>");
            files.push((name, site::png(100, 75, u64::from(part * 4 + n))));
            let circles: String = (0..60)
                .map(|k| {
                    let (x, y) = ((k * 37 + n * 11) % 120, (k * 53 + part * 29) % 120);
                    format!(
                        "<circle cx='{x}' cy='{y}' r='{}' fill='#{:03x}'/>\n",
                        3 + k % 9,
                        (k * 91 + n * 500) % 4096
                    )
                })
                .collect();
            let name = format!("circles-{part}-{n}.svg");
            html += &format!("<img src=/{name} width=120 height=120>");
            let svg =
                format!("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 120 120'>{circles}</svg>");
            files.push((name, svg.into_bytes()));
        }
        parts.push(html + "</div>");
    }
    parts.push("<p>The end.</p></body></html>".to_owned());
    (files, parts)
}

/// A picture of a page in a browser with an empty cache, once all of the page has loaded.
fn shown(browser: &Browser, url: &str) -> Vec<u8> {
    browser.open(url);
    browser.screenshot()
}

#[test]
fn a_browser_shows_the_same_pixels_while_edges_die() {
    let browser_of_its_own = || Browser::start(1000, 1400);
    let (Some(nginx), Some(browser)) = (site::nginx(), browser_of_its_own()) else { return };
    let (files, parts) = gallery();
    let named: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, contents)| (name.as_str(), contents.clone())).collect();
    let count = parts.len();
    let site = Site::start(nginx, "compress-browser", &named, parts);
    site.live.rewind(count);
    let straight = shown(&browser, &format!("http://{}/live", site.plain));
    // The page contains a dozen pictures of noise.
    assert!(straight.len() > 12 * 100 * 75 * 2, "a picture of {} bytes", straight.len());

    let (mut cluster, at) =
        cluster("compress-browser-lab", &[("packed", site.packed), ("plain", site.plain)]);
    for (name, address) in [("packed", at[0]), ("plain", at[1])] {
        site.live.rewind(1);
        let start = cluster.logs.end();
        let browser = browser_of_its_own().unwrap();
        let picture = thread::spawn(move || shown(&browser, &format!("http://{address}/live")));
        // The server is sending the page, and the browser is fetching the objects in its parts. Each edge is killed in turn, so
        // the page's own session is affected.
        for said in 1..count {
            site.live.wait_until_said(said);
            let edge = said % 2;
            cluster.edges[edge].kill();
            cluster.respawn(edge).unwrap();
            site.live.go_on();
        }
        let picture = picture.join().unwrap();
        let mut recovered = 0;
        let enough = |event: &LogEvent| {
            let owned = TestCluster::is_report(AgentSide::Client, "owned", event);
            recovered += usize::from(owned && event.number("gap_us") > 0);
            recovered >= count - 2
        };
        assert!(cluster.logs.wait(start, PATIENCE, enough).is_some(), "{}", cluster.logs.tail(40));
        assert!(picture == straight, "{name}: {} and {} bytes", picture.len(), straight.len());
    }
    for (name, _) in &files {
        let log = site.logged(&format!("/{name}"), 3);
        assert!(log.len() == 3 && log.iter().all(|line| line[0] == "200"), "{name}: {log:?}");
    }
}
