//! Very many clients of the hall, which one thread serves. A record is kept once, however many hear it: each of them compares what it hears
//! with what another one has heard. At the end the whole is judged as in [`super::guests`].
//!
//! A guest speaks again when all that it said has come back and its turn has come: only so many speak at a time.

use super::guests::{Words, check, words};
use marram_hall_algo::{Deed, HallRecord, STOP};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    io::Errno,
    net::sockopt,
};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Nothing comes back for so long only if something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the thread waits for a connection before it looks whether guests have come, in nanoseconds.
const TURN_NS: i64 = 20_000_000;
/// Bytes that are read at once.
const READ: usize = 64 << 10;

type Bytes = [u8; HallRecord::SIZE];

/// What all have heard, by index. One may be ahead of those that the thread has read of.
#[derive(Default)]
struct History(Vec<Option<(Bytes, HallRecord)>>);

impl History {
    fn at(&self, index: usize) -> Option<&(Bytes, HallRecord)> {
        self.0.get(index)?.as_ref()
    }

    /// A guest hears this record.
    fn hear(&mut self, index: usize, bytes: &Bytes) -> Result<HallRecord, String> {
        if let Some((known, record)) = self.at(index) {
            return if known == bytes { Ok(*record) } else { Err(format!("it is not {record:?}")) };
        }
        let record = HallRecord::from_bytes(bytes).ok_or("no record")?;
        let before = index.checked_sub(1).and_then(|before| self.at(before));
        let follows = before.is_none_or(|(_, before)| record.previous == before.digest());
        let leads = self.at(index + 1).is_none_or(|(_, next)| next.previous == record.digest());
        if record.index != index as u64 || !follows || !leads {
            return Err(format!("{record:?} is not that at {index}"));
        }
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some((*bytes, record));
        Ok(record)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Speaker,
    /// It says one piece, and reads nothing.
    Silent,
    /// When its turn comes, it has its handler stopped.
    Stopper,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    Here,
    /// It says nothing more, and hears that it leaves.
    Leaves,
    Left,
    /// Its connection is over, for this reason if not in order.
    Over(Option<String>),
}

struct Member {
    seed: u64,
    stream: TcpStream,
    kind: Kind,
    stage: Stage,
    greeting: Vec<u8>,
    words: Words,
    said: u64,
    /// Its port, and the index of the record with which it joined.
    joined: Option<(u32, u64)>,
    /// The index of the record that it hears next.
    next: usize,
    /// The beginning of that.
    part: Vec<u8>,
    /// Pieces of its own that have come back.
    pieces: u64,
    /// Whether one is under way.
    speaks: bool,
}

impl Member {
    fn new(agent: SocketAddr, seed: u64, kind: Kind, greeting: &[u8]) -> Self {
        let stream = TcpStream::connect(agent).unwrap();
        stream.set_nodelay(true).unwrap();
        if kind == Kind::Silent {
            sockopt::set_socket_recv_buffer_size(&stream, 1).unwrap();
        }
        stream.set_nonblocking(true).unwrap();
        Self {
            seed,
            stream,
            kind,
            stage: Stage::Here,
            greeting: greeting.to_vec(),
            words: words(seed, greeting),
            said: 0,
            joined: None,
            next: 0,
            part: Vec::new(),
            pieces: 0,
            speaks: false,
        }
    }

    fn is_here(&self) -> bool {
        (self.kind, &self.stage) == (Kind::Speaker, &Stage::Here)
    }

    /// Reads what is there. True if it may speak. An error if its connection is over, or it hears what it must not.
    fn read(&mut self, buffer: &mut [u8], history: &mut History) -> Result<bool, String> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err("it was closed".into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        self.part.extend_from_slice(&buffer[..count]);
        let part = std::mem::take(&mut self.part);
        let (records, rest) = part.as_chunks();
        let mut may_speak = false;
        for bytes in records {
            may_speak |= self.hear(bytes, history)?;
        }
        self.part.extend_from_slice(rest);
        Ok(may_speak)
    }

    /// Hears a record. True if it may speak.
    fn hear(&mut self, bytes: &Bytes, history: &mut History) -> Result<bool, String> {
        let Some((port, _)) = self.joined else {
            let record = HallRecord::from_bytes(bytes).ok_or("no record")?;
            self.next = usize::try_from(record.index).map_err(|_| "too many records")?;
            history.hear(self.next, bytes)?;
            (self.joined, self.next) = (Some((record.port, record.index)), self.next + 1);
            return if record.deed == Deed::Joined { Ok(true) } else { Err(format!("{record:?} is first")) };
        };
        let record = history.hear(self.next, bytes)?;
        self.next += 1;
        if record.port != port || self.stage == Stage::Left {
            return Ok(false);
        }
        if record.deed == Deed::Left {
            self.stage = Stage::Left;
        }
        let is_back = record.deed == Deed::Spoke && record.speaker.bytes == self.said;
        self.pieces += u64::from(is_back);
        Ok(is_back)
    }

    fn speak(&mut self) -> Result<(), String> {
        let piece = match self.kind {
            Kind::Stopper => STOP.to_vec(),
            Kind::Speaker | Kind::Silent => self.words.next().expect("it has more to say"),
        };
        // What was said before has come back, so there is room for it.
        self.stream.write_all(&piece).map_err(|error| error.to_string())?;
        self.said += piece.len() as u64;
        self.speaks = true;
        Ok(())
    }
}

/// All of them.
struct Room {
    members: Vec<Member>,
    history: History,
    /// Those that speak next, in this order.
    ready: VecDeque<usize>,
    /// How many speak, and may speak, at a time.
    speaking: usize,
    voices: usize,
    /// Pieces that have come back.
    pieces: u64,
    /// What is wrong.
    error: Option<String>,
    is_over: bool,
}

impl Room {
    /// Something has come over the connection of this guest, or it is over.
    fn look(&mut self, id: usize, buffer: &mut [u8], epoll: &OwnedFd) {
        let member = &mut self.members[id];
        let found = match member.kind {
            Kind::Silent => Err(match member.stream.take_error().unwrap() {
                Some(error) => error.to_string(),
                None => "it was closed".into(),
            }),
            Kind::Speaker | Kind::Stopper => member.read(buffer, &mut self.history),
        };
        match found {
            Ok(false) => {}
            Ok(true) => self.may_speak(id),
            Err(why) => {
                epoll::delete(epoll, &self.members[id].stream).unwrap();
                self.ended(id, why);
            }
        }
    }

    /// This guest has joined, or heard of what it said.
    fn may_speak(&mut self, id: usize) {
        let member = &mut self.members[id];
        if std::mem::take(&mut member.speaks) {
            (self.speaking, self.pieces) = (self.speaking - 1, self.pieces + 1);
        }
        if member.stage == Stage::Leaves {
            // Where its connection is over already, that is found when it is read.
            let _ = member.stream.shutdown(Shutdown::Write);
        } else {
            self.ready.push_back(id);
        }
    }

    fn ended(&mut self, id: usize, why: String) {
        let member = &mut self.members[id];
        self.speaking -= usize::from(std::mem::take(&mut member.speaks));
        let is_in_order = member.stage == Stage::Left;
        if member.kind == Kind::Speaker && !is_in_order {
            self.error.get_or_insert(format!("guest {}, {:?}: {why}", member.seed, member.stage));
        }
        self.members[id].stage = Stage::Over(Some(why).filter(|_| !is_in_order));
        self.ready.retain(|other| *other != id);
    }

    /// This guest speaks no more, and leaves when all that it said has come back.
    fn leave(&mut self, id: usize) {
        self.members[id].stage = Stage::Leaves;
        if self.ready.contains(&id) {
            self.ready.retain(|other| *other != id);
            self.may_speak(id);
        }
    }

    fn speak(&mut self) {
        while self.speaking < self.voices
            && let Some(id) = self.ready.pop_front()
        {
            match self.members[id].speak() {
                Ok(()) => self.speaking += 1,
                Err(why) => self.ended(id, why),
            }
        }
    }

    /// How many of these guests have heard of fewer pieces.
    fn behind(&self, targets: &[(usize, u64)]) -> usize {
        let is_behind = |(id, target): &&(usize, u64)| {
            let member = &self.members[*id];
            member.is_here() && member.pieces < *target
        };
        targets.iter().filter(is_behind).count()
    }
}

struct Shared {
    room: Mutex<Room>,
    changed: Condvar,
    epoll: OwnedFd,
}

impl Shared {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap()
    }

    /// Serves all connections until the crowd is over.
    fn serve(&self) {
        let (mut events, mut buffer) = (Vec::with_capacity(256), vec![0; READ]);
        let turn = Timespec { tv_sec: 0, tv_nsec: TURN_NS };
        while !self.room().is_over {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&turn)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("{error}"),
            }
            let mut room = self.room();
            for event in events.drain(..) {
                room.look(usize::try_from(event.data.u64()).unwrap(), &mut buffer, &self.epoll);
            }
            room.speak();
            drop(room);
            self.changed.notify_all();
        }
    }
}

/// The clients of a hall at two agents.
pub(super) struct Crowd {
    shared: Arc<Shared>,
    agents: [SocketAddr; 2],
    thread: Option<JoinHandle<()>>,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // The thread may have panicked with it.
        if let Ok(mut room) = self.shared.room.lock() {
            room.is_over = true;
        }
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the thread of the crowd has panicked");
        }
    }
}

impl Crowd {
    /// One without guests, of which at most `voices` speak at a time.
    pub(super) fn new(agents: [SocketAddr; 2], voices: usize) -> Self {
        let room = Room {
            members: Vec::new(),
            history: History::default(),
            ready: VecDeque::new(),
            speaking: 0,
            voices,
            pieces: 0,
            error: None,
            is_over: false,
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let shared = Arc::new(Shared { room: Mutex::new(room), changed: Condvar::new(), epoll });
        let served = Arc::clone(&shared);
        let thread = Some(thread::spawn(move || served.serve()));
        Self { shared, agents, thread }
    }

    fn add(&self, kind: Kind, greeting: &[u8]) -> usize {
        let id = self.shared.room().members.len();
        let mut member = Member::new(self.agents[id % 2], id as u64, kind, greeting);
        let flags = match kind {
            // Only the end of its connection is of interest.
            Kind::Silent => epoll::EventFlags::empty(),
            Kind::Speaker | Kind::Stopper => epoll::EventFlags::IN,
        };
        if kind == Kind::Silent {
            member.speak().unwrap();
            member.speaks = false;
        }
        let mut room = self.shared.room();
        epoll::add(&self.shared.epoll, &member.stream, epoll::EventData::new_u64(id as u64), flags).unwrap();
        room.members.push(member);
        id
    }

    /// So many guests more, which speak from their first record on.
    pub(super) fn join(&self, count: usize) {
        (0..count).for_each(|_| _ = self.add(Kind::Speaker, b""));
    }

    /// A guest that says this, and never reads.
    pub(super) fn join_silent(&self, says: &[u8]) -> usize {
        self.add(Kind::Silent, says)
    }

    /// A guest that has its handler stopped.
    pub(super) fn join_stopper(&self) -> usize {
        self.add(Kind::Stopper, b"")
    }

    /// The guest that has been here for longest leaves, in order.
    pub(super) fn leave_one(&self) {
        let mut room = self.shared.room();
        if let Some(id) = room.members.iter().position(Member::is_here) {
            room.leave(id);
        }
    }

    /// Waits for something of the room, as long as pieces come back.
    fn wait<T>(&self, is_so: impl Fn(&Room) -> Option<T>, why: impl Fn() -> String) -> T {
        let mut room = self.shared.room();
        let (mut pieces, mut deadline) = (room.pieces, Instant::now() + PATIENCE);
        loop {
            if let Some(error) = room.error.take() {
                drop(room);
                panic!("{error}\n{}", why());
            }
            if let Some(found) = is_so(&room) {
                return found;
            }
            if room.pieces > pieces {
                (pieces, deadline) = (room.pieces, Instant::now() + PATIENCE);
            }
            if Instant::now() > deadline {
                let (speaking, ready, records) = (room.speaking, room.ready.len(), room.history.0.len());
                drop(room);
                panic!(
                    "nothing comes back for {PATIENCE:?}: {pieces} pieces, {records} records, {speaking} speak, \
                     {ready} may\n{}",
                    why()
                );
            }
            room = self.shared.changed.wait_timeout(room, PATIENCE).unwrap().0;
        }
    }

    /// Waits until `more` further pieces of each guest have come back.
    pub(super) fn hear(&self, more: u64, why: impl Fn() -> String) {
        let targets: Vec<(usize, u64)> = {
            let room = self.shared.room();
            let here = room.members.iter().enumerate().filter(|(_, member)| member.is_here());
            here.map(|(id, member)| (id, member.pieces + more)).collect()
        };
        self.wait(|room| (room.behind(&targets) == 0).then_some(()), why);
    }

    /// Waits until the connection of this guest is over, and returns why.
    pub(super) fn over(&self, id: usize, why: impl Fn() -> String) -> String {
        let over = |room: &Room| match &room.members[id].stage {
            Stage::Over(why) => Some(why.clone().unwrap_or_default()),
            _ => None,
        };
        self.wait(over, why)
    }

    /// How many records there are.
    pub(super) fn records(&self) -> usize {
        self.shared.room().history.0.len()
    }

    /// Ends all in order, and checks what they heard: one history, in which each said each of its bytes once and in order. Returns how often
    /// a record was heard.
    pub(super) fn finish(self, why: impl Fn() -> String) -> u64 {
        {
            let mut room = self.shared.room();
            let here: Vec<usize> = (0..room.members.len()).filter(|id| room.members[*id].is_here()).collect();
            here.into_iter().for_each(|id| room.leave(id));
        }
        let are_over = |room: &Room| {
            let is_over = |member: &Member| matches!(member.stage, Stage::Over(_));
            room.members.iter().all(is_over).then_some(())
        };
        self.wait(are_over, why);
        let room = self.shared.room();
        let records = room.history.0.iter().enumerate();
        let known = records.map(|(index, record)| (index as u64, record.expect("some guest has heard it").1));
        let history: BTreeMap<u64, HallRecord> = known.collect();
        let (mut joined, mut silent) = (BTreeMap::new(), VecDeque::new());
        for member in &room.members {
            let words = words(member.seed, &member.greeting);
            match member.joined {
                Some((_, index)) => _ = joined.insert(index, words),
                None => silent.push_back(words),
            }
        }
        // Of a guest that reads nothing, the others hear that it joined. Those join in the order in which they came.
        for record in history.values().filter(|record| record.deed == Deed::Joined) {
            joined.entry(record.index).or_insert_with(|| silent.pop_front().expect("it is a guest"));
        }
        assert!(silent.is_empty(), "a guest has not joined");
        check(&history, joined);
        let heard = |member: &Member| Some(member.next as u64 - member.joined?.1);
        room.members.iter().filter_map(heard).sum()
    }
}
