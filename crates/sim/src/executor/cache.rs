//! An edge's cache as a simulated cell sees it: an object almost always differs from the last read, on this edge or another. So
//! a replay that asked the cache again would diverge, and be detected.
//!
//! The cache's objects change with nearly every read and are the same on all edges, so the only way
//! to answer a replay correctly is to take the read from the log. What a cell reads is mixed into
//! its random bytes, and from there into its hash and its outputs.

use bytes::Bytes;
use marram_session::cell::{Ran, Run};
use marram_wire::log::{Found, Read};
use std::collections::VecDeque;

/// The objects, the same on all edges.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedCache {
    /// Reads so far, on all edges. The contents, the size and the kind of the next answer follow
    /// from it.
    served: u64,
    /// `None` at first, and while the last answer is taken.
    last: Option<Read>,
}

impl SimulatedCache {
    /// Reads the object of one of a few keys.
    ///
    /// Every 96th object is large, so that the reads of some entries exceed what a log entry can
    /// hold beside its message, and the rest have fewer bytes than 96. Three of eight answers
    /// repeat the last one: the log stores a repeated object once.
    fn read(&mut self, key: u8) -> Read {
        self.served += 1;
        let size = match self.served % 96 {
            0 => 150_000,
            few => few,
        };
        let found = match (self.served % 8, self.last.take()) {
            // This time nothing has changed.
            (0..3, Some(last)) => {
                self.last = Some(last.clone());
                return last;
            }
            (3, _) => Found::Nothing,
            (4, _) => Found::Away,
            _ => {
                let mut bytes = vec![0; usize::try_from(size).expect("a small number")];
                bytes.iter_mut().zip(self.served.to_le_bytes()).for_each(|(to, from)| *to = from);
                Found::Object(Bytes::from(bytes))
            }
        };
        let read = Read { key: [key; 8], found };
        self.last = Some(read.clone());
        read
    }
}

/// The source of one handler's reads.
#[derive(Debug)]
pub(super) enum Reader<'a> {
    /// Cells of this seed do not read.
    Off,
    /// A first run.
    Live(&'a mut SimulatedCache),
    /// A replay: what the log says.
    Logged(VecDeque<Read>),
}

impl<'a> Reader<'a> {
    pub(super) fn new(reads: bool, run: &Run, cache: &'a mut SimulatedCache) -> Self {
        match &run.logged {
            _ if !reads => Self::Off,
            Some(logged) => Self::Logged(logged.iter().cloned().collect()),
            None => Self::Live(cache),
        }
    }

    /// Reads an object, and mixes its contents into random bytes.
    ///
    /// Called by a stage that draws random bytes: `key` is one of the bytes drawn, so first run and
    /// replay ask for the same object.
    pub(super) fn mix(&mut self, key: u8, ran: &mut Ran, buffer: &mut [u8]) {
        let key = key % 4;
        let read = match self {
            Self::Off => return,
            Self::Live(cache) => cache.read(key),
            // A missing read is detected where the reads are compared with the log.
            Self::Logged(logged) => {
                logged.pop_front().unwrap_or(Read { key: [u8::MAX; 8], found: Found::Nothing })
            }
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&read.key);
        match &read.found {
            Found::Nothing => hasher.update(b"nothing"),
            Found::Away => hasher.update(b"away"),
            Found::Refused => hasher.update(b"refused"),
            Found::Object(bytes) => hasher.update(b"object").update(bytes),
        };
        buffer.iter_mut().zip(hasher.finalize().as_bytes()).for_each(|(byte, other)| *byte ^= other);
        ran.reads.push(read);
    }
}
