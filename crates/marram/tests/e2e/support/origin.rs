//! An origin for caches: a web server with given answers, which counts the requests for each path.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// The answer for a path.
#[derive(Clone, Debug)]
pub(crate) enum Thing {
    /// An object with these additional header lines; its ETag contains its length and first bytes.
    Object(Vec<u8>, &'static str),
    /// Exactly these bytes, and then the end of the connection.
    Raw(Vec<u8>),
    /// No answer, and the connection stays open.
    Silence,
}

#[derive(Default)]
struct State {
    things: BTreeMap<String, Thing>,
    /// By path: the number of requests, and of those answered with 304.
    asked: BTreeMap<String, (usize, usize)>,
    /// Paths for which answers are held back.
    held: Vec<String>,
}

/// The server. Its thread ends with the process.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Origin {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = Self { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let serving = origin.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(stream));
            }
        });
        origin
    }

    /// Sets the answer for `/objects/KEY`.
    pub(crate) fn put(&self, key: &str, thing: Thing) {
        self.shared.0.lock().unwrap().things.insert(path(key), thing);
    }

    pub(crate) fn put_text(&self, key: &str, text: &str) {
        self.put(key, Thing::Object(text.into(), ""));
    }

    pub(crate) fn remove(&self, key: &str) {
        self.shared.0.lock().unwrap().things.remove(&path(key));
    }

    /// Holds back the answers to requests for this key until [`Self::release`].
    pub(crate) fn hold(&self, key: &str) {
        self.shared.0.lock().unwrap().held.push(path(key));
    }

    pub(crate) fn release(&self) {
        self.shared.0.lock().unwrap().held.clear();
        self.shared.1.notify_all();
    }

    /// The number of requests for this key, and of answers with 304.
    pub(crate) fn asked(&self, key: &str) -> (usize, usize) {
        self.shared.0.lock().unwrap().asked.get(&path(key)).copied().unwrap_or_default()
    }

    fn serve(&self, stream: TcpStream) {
        let mut head = Vec::new();
        for line in BufReader::new(&stream).lines().map_while(Result::ok) {
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let tag = head.iter().find_map(|line| line.strip_prefix("if-none-match: ")).map(str::to_owned);
        let mut state = self.shared.0.lock().unwrap();
        state.asked.entry(path.clone()).or_default().0 += 1;
        state = self.shared.1.wait_while(state, |state| state.held.contains(&path)).unwrap();
        let answer = match state.things.get(&path) {
            None => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
            Some(Thing::Raw(bytes)) => bytes.clone(),
            Some(Thing::Silence) => {
                drop(state);
                // Until the client closes the connection.
                let _ = std::io::Read::read(&mut (&stream), &mut [0]);
                return;
            }
            Some(Thing::Object(bytes, lines)) => {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(9)]);
                let own = format!("\"{}-{start}\"", bytes.len());
                let unchanged = tag.as_ref() == Some(&own);
                let status = if unchanged { "304 Not Modified" } else { "200 OK" };
                let body = if unchanged { &[][..] } else { &bytes[..] };
                let length =
                    if unchanged { String::new() } else { format!("content-length: {}\r\n", body.len()) };
                let mut answer =
                    format!("HTTP/1.1 {status}\r\netag: {own}\r\n{length}{lines}\r\n").into_bytes();
                answer.extend_from_slice(body);
                if unchanged {
                    state.asked.entry(path).or_default().1 += 1;
                }
                answer
            }
        };
        drop(state);
        let _ = (&stream).write_all(&answer);
    }
}

fn path(key: &str) -> String {
    format!("/objects/{key}")
}
