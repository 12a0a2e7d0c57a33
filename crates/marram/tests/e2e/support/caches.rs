//! Clients of the cell `memcached`, each with its own cache: they store, change and read items at random, and know the contents.
//! They detect a lost, repeated or older answer, and also state that was reset or missed a change.

use marram_wire::seeded::Seeded;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// How long any one answer may take: longer than any recovery.
const PATIENCE: Duration = Duration::from_secs(90);
/// Number of keys of a client, and the most bytes that are stored or appended at once.
const KEYS: u64 = 200;
const PIECE_MAX: u64 = 3_000;
/// A longer item is replaced at its next change.
const ITEM_MAX: usize = 50_000;
/// Delay between two requests, since applications also compute.
const PACE: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answers: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// Clients, each with one connection for the whole test.
pub(crate) struct Caches {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

impl Caches {
    pub(crate) fn start(address: SocketAddr, count: u64, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let client = |client| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if let Err(why) = converse(address, seed.wrapping_mul(1_000) + client, &shared) {
                    shared.wrong.lock().unwrap().push(format!("client {client}: {why}"));
                }
            })
        };
        let clients = (0..count).map(client).collect();
        Self { shared, clients }
    }

    /// Errors so far.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.shared.wrong.lock().unwrap().clone()
    }

    /// Answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Lets every client verify all of its items, and end. Returns the number of answers, all of which were correct.
    pub(crate) fn finish(mut self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().unwrap();
        }
        assert_eq!(self.wrong(), Vec::<String>::new());
        self.shared.answers.load(Ordering::Relaxed)
    }
}

/// A connection, and the expected contents of its cache.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    random: Seeded,
    items: BTreeMap<u64, Vec<u8>>,
    count: u64,
}

fn converse(address: SocketAddr, seed: u64, shared: &Shared) -> Result<(), String> {
    let connect = || {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        std::io::Result::Ok(stream)
    };
    let stream = connect().map_err(|error| format!("connecting: {error}"))?;
    let mut client = Client::new(stream, seed)?;
    while !shared.stop.load(Ordering::Relaxed) {
        client.step()?;
        shared.answers.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PACE);
    }
    client.look_at_all()?;
    client.stream.get_ref().shutdown(Shutdown::Both).map_err(|error| error.to_string())
}

impl Client {
    /// Its cache is empty but for a number; the stream has its timeouts.
    pub(crate) fn new(stream: TcpStream, seed: u64) -> Result<Self, String> {
        let stream = BufReader::with_capacity(1 << 16, stream);
        let mut client = Self { stream, random: Seeded::new(seed), items: BTreeMap::new(), count: 0 };
        client.ask(b"set count 0 0 1\r\n0\r\n", b"STORED\r\n")?;
        Ok(client)
    }

    /// Looks at every key.
    pub(crate) fn look_at_all(&mut self) -> Result<(), String> {
        (0..KEYS).try_for_each(|key| self.look(key))
    }

    /// Sends a random request.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        let key = self.random.below(KEYS);
        match self.random.below(8) {
            0 | 1 => self.store(key),
            2 | 3 => self.append(key),
            4 => {
                self.count += 1;
                let answer = format!("{}\r\n", self.count);
                self.ask(b"incr count 1\r\n", answer.as_bytes())
            }
            5 => {
                let answer: &[u8] =
                    if self.items.remove(&key).is_some() { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" };
                self.ask(format!("delete key{key}\r\n").as_bytes(), answer)
            }
            _ => self.look(key),
        }
    }

    /// Fewer than [`PIECE_MAX`] random bytes, which differ for each item.
    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::try_from(self.random.below(PIECE_MAX)).unwrap();
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.random.word().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    fn store(&mut self, key: u64) -> Result<(), String> {
        let value = self.bytes();
        let head = format!("set key{key} 0 0 {}\r\n", value.len());
        self.ask(&[head.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n")?;
        self.items.insert(key, value);
        Ok(())
    }

    fn append(&mut self, key: u64) -> Result<(), String> {
        if self.items.get(&key).is_some_and(|item| item.len() > ITEM_MAX) {
            return self.store(key);
        }
        let value = self.bytes();
        let head = format!("append key{key} 0 0 {}\r\n", value.len());
        let request = [head.as_bytes(), &value, b"\r\n"].concat();
        match self.items.get_mut(&key) {
            Some(item) => {
                item.extend_from_slice(&value);
                self.ask(&request, b"STORED\r\n")
            }
            None => self.ask(&request, b"NOT_STORED\r\n"),
        }
    }

    fn look(&mut self, key: u64) -> Result<(), String> {
        let expected = match self.items.get(&key) {
            None => b"END\r\n".to_vec(),
            Some(item) => {
                let head = format!("VALUE key{key} 0 {}\r\n", item.len());
                [head.as_bytes(), item, b"\r\nEND\r\n"].concat()
            }
        };
        self.ask(format!("get key{key}\r\n").as_bytes(), &expected)
    }

    /// Sends a request, and compares its answer.
    fn ask(&mut self, request: &[u8], expected: &[u8]) -> Result<(), String> {
        let what =
            || String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap()).into_owned();
        self.stream.get_mut().write_all(request).map_err(|error| format!("{}: {error}", what()))?;
        let mut answer = vec![0; expected.len()];
        self.stream.read_exact(&mut answer).map_err(|error| format!("{}: {error}", what()))?;
        if answer != expected {
            let at = (0..answer.len()).find(|at| answer[*at] != expected[*at]).unwrap();
            let mut rest = String::new();
            // For the message: the rest of the answer's first line.
            let _ = self.stream.read_line(&mut rest);
            let said = String::from_utf8_lossy(&answer[..answer.len().min(80)]).into_owned();
            return Err(format!("{}: byte {at} of {} is wrong: {said:?}", what(), expected.len()));
        }
        Ok(())
    }
}
