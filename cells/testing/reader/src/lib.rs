//! A test cell that reads from the edge's cache: each line of the client contains one or more keys, and is answered by a line
//! with what was found, the number of reads so far, and a hash over all of it. So if any read differs between two histories,
//! every later line differs.
//!
//! ```text
//! > key1 key2
//! < key1: 5 hello; key2: nothing; 2 reads, 0123456789abcdef
//! ```
//!
//! `away` stands for an origin that cannot be reached in time, `refused` for a key or an object that no
//! read can return.

use std::fmt::Write;

use marram_sdk::{Cell, Context, Port, Unread, cell};

/// Bytes of an object that an answer shows.
const SHOWN: usize = 32;

/// The reads so far.
pub struct Reader {
    /// Of keys, including those that were not found.
    reads: u64,
    /// FNV-1a over all that was found, or a word for why not.
    hash: u64,
    /// An incomplete line of the client.
    line: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { reads: 0, hash: 0xcbf2_9ce4_8422_2325, line: Vec::new() }
    }
}

impl Reader {
    /// The next bytes of the hash.
    fn absorb(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Reads one key; the answer shows the beginning of the object, the hash has all of it.
    fn read(&mut self, context: &mut Context, key: &str, answer: &mut String) {
        let found = context.cache(key);
        self.reads += 1;
        match &found {
            Ok(Some(object)) => self.absorb(object),
            Ok(None) => self.absorb(b"nothing"),
            Err(Unread::Away) => self.absorb(b"away"),
            Err(Unread::Refused) => self.absorb(b"refused"),
        }
        let what = match &found {
            Ok(Some(object)) => {
                let shown = &object[..object.len().min(SHOWN)];
                format!("{} {}", object.len(), String::from_utf8_lossy(shown))
            }
            Ok(None) => "nothing".into(),
            Err(Unread::Away) => "away".into(),
            Err(Unread::Refused) => "refused".into(),
        };
        write!(answer, "{key}: {what}; ").expect("a string takes it");
    }
}

impl Cell for Reader {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        for byte in payload {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            let mut answer = String::new();
            for key in line.split(' ') {
                self.read(context, key, &mut answer);
            }
            writeln!(answer, "{} reads, {:016x}", self.reads, self.hash).expect("a string takes it");
            context.send(port, answer.as_bytes());
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port);
    }
}

cell!(Reader);
