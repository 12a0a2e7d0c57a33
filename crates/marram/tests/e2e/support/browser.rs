//! A real headless browser, driven by WebDriver: it opens pages, runs scripts in them, presses keys and takes screenshots. Also a
//! server of the files of a directory.

use data_encoding::BASE64;
use marram_cluster::TempDir;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of a script in the page before it is started again; it limits the time of a single request.
const ASKED_MS: u64 = 10_000;

/// Attempts to start the driver. It takes a free port of IPv4 and ends if another program has the same one of IPv6.
const STARTS: usize = 5;

/// A browser with one page. Dropping it ends it.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _place: TempDir,
}

/// Starts the driver: `Some(None)` if this machine has none, `None` if it ended before it had a port.
fn start_driver(place: &TempDir) -> Option<Option<(Child, u16)>> {
    let mut command = Command::new("chromedriver");
    // A separate process group, so that the browser's processes can be ended together. Their files are in a directory that is
    // removed with this.
    command
        .env("TMPDIR", place.path())
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let Ok(mut driver) = command.spawn() else { return Some(None) };
    let mut said = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port = said.find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse::<u16>().ok()
    });
    let Some(port) = port else {
        driver.wait().unwrap();
        return None;
    };
    // Its later output does not matter, but must be read.
    thread::spawn(move || said.for_each(drop));
    Some(Some((driver, port)))
}

impl Browser {
    /// Starts a browser; `None` if this machine has none, which it reports.
    pub(crate) fn start(width: u32, height: u32) -> Option<Self> {
        let place = TempDir::new("browser").unwrap();
        let Some((driver, port)) = (0..STARTS).find_map(|_| start_driver(&place)).unwrap_or_else(|| {
            panic!("chromedriver ended {STARTS} times before it had a port");
        }) else {
            super::skip::skip("there is no chromedriver on this machine");
            return None;
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut browser = Self { driver, address, session: String::new(), _place: place };
        let size = format!("--window-size={width},{height}");
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &size];
        let options = json!({ "args": arguments });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let made = browser.call("POST", "", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = format!("/{}", made["sessionId"].as_str().unwrap());
        let patience = json!({ "script": PATIENCE.as_millis() });
        browser.call("POST", "/timeouts", &patience);
        Some(browser)
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    /// Runs the body of a function in the page; returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression in the page is true; a script in the page checks it every few milliseconds.
    pub(crate) fn wait(&self, expression: &str) {
        let script = format!(
            "const done = arguments[0], until = performance.now() + {ASKED_MS};
             (function look() {{
                 if ({expression}) done(true);
                 else if (performance.now() > until) done(false);
                 else setTimeout(look, 5);
             }})();"
        );
        let deadline = Instant::now() + PATIENCE;
        while self.call("POST", "/execute/async", &json!({ "script": script, "args": [] })) != true {
            let said = self.call("POST", "/se/log", &json!({ "type": "browser" }));
            assert!(
                Instant::now() < deadline,
                "it did not become true that {expression}; the page said {said}"
            );
        }
    }

    /// Presses and releases a key: a letter, or its WebDriver code.
    pub(crate) fn press(&self, key: char) {
        let key = key.to_string();
        let action = |kind: &str| json!({ "type": kind, "value": key });
        let keys = json!({ "type": "key", "id": "keys", "actions": [action("keyDown"), action("keyUp")] });
        self.call("POST", "/actions", &json!({ "actions": [keys] }));
    }

    /// Clicks on the element that a selector names.
    pub(crate) fn click(&self, selector: &str) {
        self.run(&format!("document.querySelector({selector:?}).click()"));
    }

    /// A screenshot as PNG.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        BASE64.decode(self.call("GET", "/screenshot", &Value::Null).as_str().unwrap().as_bytes()).unwrap()
    }

    /// Writes a screenshot, for people, if `MARRAM_SCREENSHOTS` names a directory.
    pub(crate) fn show(&self, name: &str) {
        if let Some(directory) = std::env::var_os("MARRAM_SCREENSHOTS") {
            std::fs::write(Path::new(&directory).join(format!("{name}.png")), self.screenshot()).unwrap();
        }
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        let (session, len) = (&self.session, body.len());
        let head = "Host: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json";
        write!(
            stream,
            "{method} /session{session}{path} HTTP/1.1\r\n{head}\r\nContent-Length: {len}\r\n\r\n{body}"
        )
        .unwrap();
        let mut lines = BufReader::new(stream);
        let (mut line, mut len) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "chromedriver has gone");
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                len = text.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; len];
        lines.read_exact(&mut answer).unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{method} {path}: {value}");
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The whole process group, so that the browser's processes end even if the test fails.
        let group = rustix::process::Pid::from_child(&self.driver);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.driver.wait();
    }
}

/// Serves the files of a directory; returns the address.
pub(crate) fn serve(directory: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let directory = directory.clone();
            // The thread ends when its client disconnects.
            thread::spawn(move || _ = answer(stream, &directory));
        }
    });
    address
}

fn answer(mut stream: TcpStream, directory: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(line) = lines.next().transpose()? {
        let path = line.split(' ').nth(1).unwrap_or_default();
        let name = path.split('?').next().unwrap_or_default().trim_start_matches('/');
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let file =
            Some(name).filter(|name| !name.contains("..")).map(|name| std::fs::read(directory.join(name)));
        let (status, body) = match file {
            Some(Ok(body)) => ("200 OK", body),
            _ => ("404 Not Found", Vec::new()),
        };
        let kind = match Path::new(name).extension().and_then(|end| end.to_str()) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css",
            Some("js") => "text/javascript",
            _ => "application/octet-stream",
        };
        let len = body.len();
        write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\r\n")?;
        stream.write_all(&body)?;
    }
    Ok(())
}
