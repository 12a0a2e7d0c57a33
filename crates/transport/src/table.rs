//! All wires of one loop: which may be readable, which may be writable, which are in their handshake.
//!
//! Both sides use it. They differ in the data that they attach to a wire (`M`), and in whether reading pauses while much waits to
//! be written.
//!
//! ```text
//! poll ─on_event─▶ ready ─next_happened─▶ frames, ups, downs ─▶ the state machine
//!          └─────▶ dirty ◀─send───────────────────────────────────────┘
//!                    └─flush (once a turn, before the next poll)
//! ```
//!
//! Registration is edge-triggered: the kernel reports a change once. So `readable` remembers what
//! was reported and not yet read up to the end, and a wire whose turn ended early stays in `ready`.

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
/// Frames of one wire before the others have their turn: a wire with thousands of frames does not delay a wire with one.
const FRAMES: usize = 16;
/// While more than this waits to be written to a peer, an edge reads nothing from it. (An agent always reads: if both sides
/// paused, neither would ever continue.)
pub(crate) const PAUSE: usize = 8 << 20;

/// An event on a wire.
pub enum WireEvent<M> {
    /// The handshake is complete. At an edge: with the verified facts about the agent.
    Up(M, Option<Box<Verified>>),
    /// A frame arrived.
    Frame(Frame),
    /// The wire has ended, and is removed.
    Down {
        /// Why.
        error: WireError,
        /// Whether its handshake had completed.
        stood: bool,
        /// The data that was attached to it.
        meta: M,
    },
}

struct Entry<M> {
    wire: Wire,
    meta: M,
    stands: bool,
    /// The socket may be readable.
    readable: bool,
    /// The peer has closed: a short read does not mean that the socket is empty.
    peer_closed: bool,
    /// The read bytes may contain frames.
    has_frames: bool,
    /// Why the wire ends after these frames.
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
    /// What a flush leaves here, a socket may take at once.
    dirty: Vec<u64>,
    /// In order of their deadlines: all have the same timeout.
    /// Entries of wires that are up or gone stay until they expire: ids are never reused, so they
    /// are recognised.
    deadlines: VecDeque<(Instant, u64)>,
    handshake: Duration,
    pauses: bool,
    handshakes: usize,
    next: u64,
    events: VecDeque<(u64, WireEvent<M>)>,
}

impl<M: Clone> WireTable<M> {
    /// No wires. A wire's handshake may take `handshake`; `pauses` says whether `PAUSE` applies.
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

    /// Adds a wire. `token` gives its poll token.
    ///
    /// # Errors
    /// If the poll cannot watch the socket. The wire is then dropped.
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

    /// The number of wires in their handshake.
    pub fn handshakes(&self) -> usize {
        self.handshakes
    }

    /// Records a poll event.
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

    /// Queues a frame for the next flush. Frames for a wire that is gone are dropped.
    pub fn send(&mut self, id: u64, frame: Frame) {
        let Some(entry) = self.wires.get_mut(&id) else { return };
        entry.wire.send(frame);
        if !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// The next event, and its wire; reads from a wire that may be readable if no event is known yet.
    pub fn next_happened(&mut self) -> Option<(u64, WireEvent<M>)> {
        while self.events.is_empty() {
            let id = self.ready.pop_front()?;
            self.read(id);
        }
        self.events.pop_front()
    }

    /// Whether [`Self::next_happened`] may return something without another poll, or [`Self::flush`] may write more.
    pub fn is_busy(&self) -> bool {
        !self.events.is_empty() || !self.ready.is_empty() || !self.dirty.is_empty()
    }

    /// Takes some frames from one wire, after a read if there are none, then lets the others have their turn.
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

    /// Writes waiting bytes on all wires, as far as their sockets take them.
    ///
    /// A wire that paused (`PAUSE`) reads again only below half of it, so that it does not
    /// alternate with each write.
    pub fn flush(&mut self) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.wires.get_mut(&id) else { continue };
            entry.is_dirty = false;
            if let Err(error) = entry.wire.flush() {
                self.down(id, error);
                continue;
            }
            if entry.wire.is_turn_over() {
                entry.is_dirty = true;
                self.dirty.push(id);
            }
            if (entry.readable || entry.has_frames) && !entry.is_ready && entry.wire.unwritten() <= PAUSE / 2
            {
                entry.is_ready = true;
                self.ready.push_back(id);
            }
        }
    }

    /// Closes a wire after its queued frames, as far as that is possible without blocking. Not reported.
    pub fn close(&mut self, id: u64) -> Option<M> {
        let mut entry = self.wires.remove(&id)?;
        entry.wire.close();
        self.handshakes -= usize::from(!entry.stands);
        Some(entry.meta)
    }

    /// When the next handshake times out.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Ends handshakes that have timed out.
    pub fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.wires.get(&id).is_some_and(|entry| !entry.stands) {
                self.down(id, WireError::Overdue);
            }
        }
    }
}
