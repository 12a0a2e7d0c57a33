//! Random requests, and a cache that is simple enough to be obviously correct: a sorted map, and an independent version of the
//! protocol's rules. Does not use the crate under test.
#![allow(unreachable_pub, reason = "each test uses some of it, and no other code")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use marram_sdk::double::Random;

/// One request. Values of `cas` are those that a client has seen last.
#[derive(Clone, Debug)]
pub enum Request {
    Get {
        name: &'static str,
        keys: Vec<String>,
    },
    Touching {
        name: &'static str,
        exptime: i64,
        keys: Vec<String>,
    },
    Store {
        name: &'static str,
        key: String,
        flags: u32,
        exptime: i64,
        value: Vec<u8>,
        noreply: bool,
    },
    Delete {
        key: String,
        noreply: bool,
    },
    Count {
        name: &'static str,
        key: String,
        delta: u64,
        noreply: bool,
    },
    Touch {
        key: String,
        exptime: i64,
        noreply: bool,
    },
    FlushAll {
        noreply: bool,
    },
    /// Bytes that are not a valid request, and the reply.
    Wrong(&'static [u8], &'static str),
}

/// Replies that do not depend on the cache's contents.
const WRONG: [(&[u8], &str); 16] = [
    (b"\r\n", "ERROR\r\n"),
    (b"\n", "ERROR\r\n"),
    (b"nonsense\r\n", "ERROR\r\n"),
    (b"get\r\n", "ERROR\r\n"),
    (b"set k 0 0\r\n", "ERROR\r\n"),
    (b"set k 0 0 x\r\n", "CLIENT_ERROR bad command line format\r\n"),
    (b"set bad 0 0 1\r\nxyz\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    (b"add bad 0 0 3 noreply\r\nxyz12\nversio\r\n", "ERROR\r\nERROR\r\n"),
    (b"incr k x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
    (b"touch k x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    (b"gat x k\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    (b"flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    (b"delete k 1\r\n", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"),
    (b"verbosity 1\r\n", "OK\r\n"),
    (b"verbosity 1 noreply\r\n", ""),
    (b"stats nothing\r\n", "ERROR\r\n"),
];

/// Draws a request. There are few keys, so that requests meet; some values are numbers.
pub fn request(random: &mut Random) -> Request {
    let noreply = random.below(6) == 0;
    let key = key(random);
    match random.below(20) {
        0..=4 => {
            let keys = (0..=random.below(4)).map(|_| self::key(random)).collect();
            Request::Get { name: random.pick(&["get", "gets"]), keys }
        }
        5 => {
            let keys = (0..=random.below(2)).map(|_| self::key(random)).collect();
            Request::Touching { name: random.pick(&["gat", "gats"]), exptime: exptime(random), keys }
        }
        6..=12 => Request::Store {
            name: random.pick(&["set", "set", "set", "add", "replace", "append", "prepend", "cas"]),
            key,
            flags: random.pick(&[0, 1, 17, u32::MAX]),
            exptime: exptime(random),
            value: value(random),
            noreply,
        },
        13 => Request::Delete { key, noreply },
        14..=16 => {
            let delta = random.pick(&[0, 1, 5, 999, u64::MAX]);
            Request::Count { name: random.pick(&["incr", "decr"]), key, delta, noreply }
        }
        17 => Request::Touch { key, exptime: exptime(random), noreply },
        18 if random.below(10) == 0 => Request::FlushAll { noreply },
        _ => {
            let (bytes, answer) = random.pick(&WRONG);
            Request::Wrong(bytes, answer)
        }
    }
}

fn key(random: &mut Random) -> String {
    match random.below(12) {
        0 => "k".repeat(250),
        n => format!("key{n}"),
    }
}

/// Never, past, or too far in the future for any test; numbers beyond 30 days are dates.
fn exptime(random: &mut Random) -> i64 {
    random.pick(&[0, 0, 0, -1, 100_000, 2_592_001, 2_100_000_000])
}

fn value(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => Vec::new(),
        1..=3 => random.pick(&["0", "9", "10", "99", "18446744073709551615", "7 apples", " 8"]).into(),
        4 => b"line\r\nset x 0 0 1\r\n\n\r".to_vec(),
        5 => vec![b'v'; random.below(5000)],
        _ => (0..random.below(300)).map(|_| u8::try_from(random.below(256)).unwrap()).collect(),
    }
}

#[derive(Clone)]
struct Item {
    flags: u32,
    value: Vec<u8>,
    cas: u64,
    is_past: bool,
}

/// The naive cache, and the versions that its client has seen.
#[derive(Default)]
pub struct Naive {
    items: BTreeMap<String, Item>,
    cas_last: u64,
    seen: BTreeMap<String, u64>,
}

impl Naive {
    /// The bytes of a request, and the expected reply.
    pub fn exchange(&mut self, request: &Request) -> (Vec<u8>, Vec<u8>) {
        let (sent, answer, noreply) = match request {
            Request::Get { name, keys } => {
                let answer = self.values(keys, *name == "gets", None);
                (format!("{name} {}\r\n", keys.join(" ")).into_bytes(), answer, false)
            }
            Request::Touching { name, exptime, keys } => {
                let answer = self.values(keys, *name == "gats", Some(*exptime));
                (format!("{name} {exptime} {}\r\n", keys.join("  ")).into_bytes(), answer, false)
            }
            Request::Store { name, key, flags, exptime, value, noreply } => {
                let cas = self.seen.get(key).copied().unwrap_or(1 << 60);
                let item = Item { flags: *flags, value: value.clone(), cas, is_past: is_past(*exptime) };
                let answer = self.store(name, key, item);
                (store_bytes(request, cas), answer.into(), *noreply)
            }
            Request::Delete { key, noreply } => {
                let there = self.live(key).is_some();
                self.items.remove(key);
                let sent = format!("delete {key}{}\r\n", tail(*noreply));
                (
                    sent.into(),
                    if there { b"DELETED\r\n".to_vec() } else { b"NOT_FOUND\r\n".to_vec() },
                    *noreply,
                )
            }
            Request::Count { name, key, delta, noreply } => {
                let answer = self.count(*name == "incr", key, *delta);
                (format!("{name} {key} {delta}{}\r\n", tail(*noreply)).into(), answer.into(), *noreply)
            }
            Request::Touch { key, exptime, noreply } => {
                let there = self.live(key).map(|item| item.is_past = is_past(*exptime)).is_some();
                let sent = format!("touch {key} {exptime}{}\r\n", tail(*noreply));
                (
                    sent.into(),
                    if there { b"TOUCHED\r\n".to_vec() } else { b"NOT_FOUND\r\n".to_vec() },
                    *noreply,
                )
            }
            Request::FlushAll { noreply } => {
                self.items.clear();
                (format!("flush_all{}\r\n", tail(*noreply)).into(), b"OK\r\n".to_vec(), *noreply)
            }
            Request::Wrong(bytes, answer) => (bytes.to_vec(), answer.as_bytes().to_vec(), false),
        };
        (sent, if noreply { Vec::new() } else { answer })
    }

    fn live(&mut self, key: &str) -> Option<&mut Item> {
        self.items.get_mut(key).filter(|item| !item.is_past)
    }

    fn values(&mut self, keys: &[String], with_cas: bool, touch: Option<i64>) -> Vec<u8> {
        let mut answer = Vec::new();
        for key in keys {
            let Some(item) = self.live(key) else { continue };
            if let Some(exptime) = touch {
                item.is_past = is_past(exptime);
            }
            let cas = if with_cas { format!(" {}", item.cas) } else { String::new() };
            answer.extend(format!("VALUE {key} {} {}{cas}\r\n", item.flags, item.value.len()).bytes());
            answer.extend(item.value.iter().chain(b"\r\n"));
            let seen = item.cas;
            if with_cas {
                self.seen.insert(key.clone(), seen);
            }
        }
        answer.extend(b"END\r\n");
        answer
    }

    fn store(&mut self, name: &str, key: &str, mut item: Item) -> &'static str {
        let old = self.live(key).cloned();
        match (name, old) {
            ("add", Some(_)) | ("replace" | "append" | "prepend", None) => return "NOT_STORED\r\n",
            ("cas", None) => return "NOT_FOUND\r\n",
            ("cas", Some(old)) if old.cas != item.cas => return "EXISTS\r\n",
            ("append", Some(old)) => item = Item { value: [old.value.clone(), item.value].concat(), ..old },
            ("prepend", Some(old)) => item = Item { value: [item.value, old.value.clone()].concat(), ..old },
            _ => {}
        }
        self.put(key, item);
        "STORED\r\n"
    }

    fn count(&mut self, up: bool, key: &str, delta: u64) -> String {
        let Some(item) = self.live(key).cloned() else { return "NOT_FOUND\r\n".into() };
        let text = String::from_utf8_lossy(&item.value).into_owned();
        // The numbers among the values have no other white space after them.
        let digits = text.trim_start().split(' ').next().unwrap();
        let Ok(old) = digits.parse::<u64>() else {
            return "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".into();
        };
        let new = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
        let value = format!("{new:<width$}", width = item.value.len()).into_bytes();
        self.put(key, Item { value, ..item });
        format!("{new}\r\n")
    }

    fn put(&mut self, key: &str, item: Item) {
        self.cas_last += 1;
        self.items.insert(key.to_owned(), Item { cas: self.cas_last, ..item });
    }
}

/// The bytes of a store request, with the version that its sender has seen.
pub fn store_bytes(request: &Request, cas: u64) -> Vec<u8> {
    let Request::Store { name, key, flags, exptime, value, noreply } = request else { panic!("{request:?}") };
    let cas = if *name == "cas" { format!(" {cas}") } else { String::new() };
    let line = format!("{name} {key} {flags} {exptime} {}{cas}{}\r\n", value.len(), tail(*noreply));
    [line.as_bytes(), value, b"\r\n"].concat()
}

fn is_past(exptime: i64) -> bool {
    exptime == -1 || exptime == 2_592_001
}

fn tail(noreply: bool) -> &'static str {
    if noreply { " noreply" } else { "" }
}
