//! All wires of one loop: which may have something to read, which have something to write, which take too long to stand.
//!
//! Both sides use it; what differs is what a wire is called besides its number (`M`), and whether reading stops while much
//! waits to be written.

use super::{
    error::WireError,
    wire::{ReadProgress, Wire},
};
use marram_wire::{frame::Frame, rights::Verified};
use mio::{Interest, Registry, Token};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    time::{Duration, Instant},
};

/// Reads of one wire before the others have their turn.
const READS: usize = 4;
/// Frames of one wire before the others have their turn: a wire that carries thousands is not in the way of one that
/// carries one.
const FRAMES: usize = 16;
/// While more than this waits to be written to a peer, an edge reads nothing from it. (An agent always reads: if both
/// sides waited for the other to read first, both would wait for ever.)
pub(crate) const PAUSE: usize = 8 << 20;

/// What happened on a wire.
pub enum WireEvent<M> {
    /// It stands. An edge's: with what was verified of the agent.
    Up(M, Option<Box<Verified>>),
    /// A frame arrived.
    Frame(Frame),
    /// It is gone, and forgotten.
    Down {
        /// Why.
        error: WireError,
        /// Whether it had stood.
        stood: bool,
        /// What it was called besides.
        meta: M,
    },
}

struct Entry<M> {
    wire: Wire,
    meta: M,
    stands: bool,
    /// The socket may have something.
    readable: bool,
    /// A short read is not the last.
    peer_closed: bool,
    /// What was read may hold frames that were not taken.
    has_frames: bool,
    /// Why it ends once those are taken.
    end: Option<WireError>,
    /// It is in `ready`.
    is_ready: bool,
    /// It is in `dirty`.
    is_dirty: bool,
}

/// All wires of one loop.
pub struct WireTable<M> {
    wires: BTreeMap<u64, Entry<M>>,
    ready: VecDeque<u64>,
    dirty: Vec<u64>,
    /// In order of their deadlines, which all lie equally far ahead.
    deadlines: VecDeque<(Instant, u64)>,
    handshake: Duration,
    pauses: bool,
    handshakes: usize,
    next: u64,
    events: VecDeque<(u64, WireEvent<M>)>,
}

impl<M: Clone> WireTable<M> {
    /// No wires. Those to come may take `handshake` until they stand; `pauses` says whether `PAUSE` applies.
    pub fn new(handshake: Duration, pauses: bool) -> Self {
        Self {
            wires: BTreeMap::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            deadlines: VecDeque::new(),
            handshake,
            pauses,
            handshakes: 0,
            next: 0,
            events: VecDeque::new(),
        }
    }

    /// Takes a wire in. `token` gives the poll's name for it.
    pub fn insert(
        &mut self,
        registry: &Registry,
        token: impl Fn(u64) -> Token,
        mut wire: Wire,
        meta: M,
        now: Instant,
    ) -> io::Result<u64> {
        let id = self.next;
        registry.register(wire.socket(), token(id), Interest::READABLE | Interest::WRITABLE)?;
        self.next += 1;
        let stands = wire.is_up();
        if stands {
            self.events.push_back((id, WireEvent::Up(meta.clone(), wire.take_verified())));
        } else {
            self.deadlines.push_back((now + self.handshake, id));
            self.handshakes += 1;
        }
        let entry = Entry {
            wire,
            meta,
            stands,
            readable: false,
            peer_closed: false,
            has_frames: false,
            end: None,
            is_ready: false,
            is_dirty: false,
        };
        self.wires.insert(id, entry);
        Ok(id)
    }

    /// How many do not stand yet.
    pub fn handshakes(&self) -> usize {
        self.handshakes
    }

    /// Notes what the poll said.
    pub fn on_event(&mut self, id: u64, event: &mio::event::Event) {
        let Some(entry) = self.wires.get_mut(&id) else { return };
        entry.peer_closed |= event.is_read_closed() || event.is_error();
        entry.readable |= event.is_readable() || entry.peer_closed;
        if entry.readable && !entry.is_ready {
            entry.is_ready = true;
            self.ready.push_back(id);
        }
        if event.is_writable() && !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Adds a frame to what will be written at the next flush. A wire that is gone takes nothing.
    pub fn send(&mut self, id: u64, frame: Frame) {
        let Some(entry) = self.wires.get_mut(&id) else { return };
        entry.wire.send(frame);
        if !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// What happened next, and on which wire; reads from one that may have something if nothing is known yet.
    pub fn next_happened(&mut self) -> Option<(u64, WireEvent<M>)> {
        while self.events.is_empty() {
            let id = self.ready.pop_front()?;
            self.read(id);
        }
        self.events.pop_front()
    }

    /// Whether [`Self::next_happened`] may have something without another poll.
    pub fn is_busy(&self) -> bool {
        !self.events.is_empty() || !self.ready.is_empty()
    }

    /// Takes some frames from one wire, reading more if there are none, and lets the others have their turn.
    fn read(&mut self, id: u64) {
        let Some(entry) = self.wires.get_mut(&id) else { return };
        entry.is_ready = false;
        if self.pauses && entry.wire.unwritten() > PAUSE {
            return; // A flush makes it ready again.
        }
        let (mut frames, mut reads) = (0, 0);
        while frames < FRAMES && reads <= READS {
            match entry.wire.next_frame() {
                Ok(Some(frame)) => {
                    self.events.push_back((id, WireEvent::Frame(frame)));
                    frames += 1;
                    continue;
                }
                Ok(None) => entry.has_frames = false,
                Err(error) => return self.down(id, error),
            }
            if let Some(error) = entry.end.take() {
                return self.down(id, error);
            }
            if !entry.readable {
                return;
            }
            reads += 1;
            match entry.wire.read() {
                Ok(ReadProgress::More) => {}
                Ok(ReadProgress::Drained) if entry.peer_closed => {}
                Ok(ReadProgress::Drained | ReadProgress::Nothing) => entry.readable = false,
                Err(error) => entry.end = Some(error),
            }
            entry.has_frames = true;
            if !entry.stands && entry.wire.is_up() {
                entry.stands = true;
                self.handshakes -= 1;
                let verified = entry.wire.take_verified();
                self.events.push_back((id, WireEvent::Up(entry.meta.clone(), verified)));
            }
        }
        entry.is_ready = true;
        self.ready.push_back(id);
    }

    fn down(&mut self, id: u64, error: WireError) {
        let Some(mut entry) = self.wires.remove(&id) else { return };
        entry.wire.close();
        self.handshakes -= usize::from(!entry.stands);
        self.events.push_back((id, WireEvent::Down { error, stood: entry.stands, meta: entry.meta }));
    }

    /// Writes what waits on all wires, as far as their sockets take it.
    pub fn flush(&mut self) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.wires.get_mut(&id) else { continue };
            entry.is_dirty = false;
            if let Err(error) = entry.wire.flush() {
                self.down(id, error);
            } else if (entry.readable || entry.has_frames)
                && !entry.is_ready
                && entry.wire.unwritten() <= PAUSE / 2
            {
                entry.is_ready = true;
                self.ready.push_back(id);
            }
        }
    }

    /// Closes a wire after what was sent, as far as that is possible without waiting. Not reported.
    pub fn close(&mut self, id: u64) -> Option<M> {
        let mut entry = self.wires.remove(&id)?;
        entry.wire.close();
        self.handshakes -= usize::from(!entry.stands);
        Some(entry.meta)
    }

    /// When the next handshake is overdue.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Gives up handshakes that take too long.
    pub fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.wires.get(&id).is_some_and(|entry| !entry.stands) {
                self.down(id, WireError::Overdue);
            }
        }
    }
}
