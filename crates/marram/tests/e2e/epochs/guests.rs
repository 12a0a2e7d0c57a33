//! Clients of the hall: each one speaks again once all that it said has come back, and checks every record. At the end the records of
//! all of them must be one history that contains what each one said, once and in order.

use marram_hall_algo::{Deed, HallRecord};
use marram_wire::seeded::Seeded;
use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that a guest says at once.
const PIECE: usize = 100;

/// What a guest has heard.
#[derive(Default)]
struct Heard {
    records: Vec<HallRecord>,
    /// Pieces of its own that have come back.
    pieces: u64,
    /// Whether it speaks no more.
    stops: bool,
    /// How its connection ended, if not in order.
    error: Option<String>,
}

type Shared = Arc<(Mutex<Heard>, Condvar)>;

/// One client of the hall.
pub(super) struct Guest {
    seed: u64,
    /// What it says first, before it has heard anything.
    greeting: Vec<u8>,
    shared: Shared,
    thread: JoinHandle<()>,
}

/// What a guest says, piece by piece.
pub(super) type Words = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// What the guest with this seed and greeting says.
pub(super) fn words(seed: u64, greeting: &[u8]) -> Words {
    let mut random = Seeded::new(seed);
    let greeting = Some(greeting.to_vec()).filter(|greeting| !greeting.is_empty());
    let random =
        std::iter::repeat_with(move || (0..PIECE).map(|_| random.below(256).to_le_bytes()[0]).collect());
    Box::new(greeting.into_iter().chain(random))
}

fn lock(shared: &Shared) -> MutexGuard<'_, Heard> {
    shared.0.lock().unwrap()
}

impl Guest {
    /// Connects. It speaks from its first record on.
    pub(super) fn start(address: SocketAddr, seed: u64) -> Self {
        Self::start_with(address, seed, b"")
    }

    /// As [`Self::start`], and says this first, by which its cell is chosen.
    pub(super) fn start_with(address: SocketAddr, seed: u64, greeting: &[u8]) -> Self {
        let (shared, greeting) = (Shared::default(), greeting.to_vec());
        let (heard, says) = (Arc::clone(&shared), greeting.clone());
        let thread = thread::spawn(move || {
            if let Err(error) = talk(address, (seed, &says), &heard) {
                lock(&heard).error = Some(error);
            }
            heard.1.notify_all();
        });
        Self { seed, greeting, shared, thread }
    }

    /// Waits until `more` further pieces have come back.
    pub(super) fn hear(&self, more: u64, why: impl Fn() -> String) {
        let mut heard = lock(&self.shared);
        let target = heard.pieces + more;
        while heard.pieces < target {
            assert_eq!(heard.error, None, "guest {}\n{}", self.seed, why());
            let (next, waited) = self.shared.1.wait_timeout(heard, PATIENCE).unwrap();
            heard = next;
            let (pieces, records) = (heard.pieces, heard.records.len());
            assert!(
                !waited.timed_out(),
                "guest {} hears nothing for {PATIENCE:?}: {pieces} pieces, {records} records\n{}",
                self.seed,
                why()
            );
        }
    }

    /// Why its connection is over, if it is and not in order.
    pub(super) fn error(&self) -> Option<String> {
        lock(&self.shared).error.clone()
    }
}

/// Says a piece, hears of it, and so on until it is told to stop.
fn talk(address: SocketAddr, (seed, greeting): (u64, &[u8]), shared: &Shared) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut words, mut said, mut port) = (words(seed, greeting), 0, None);
    if !greeting.is_empty() {
        let piece = words.next().expect("it is the greeting");
        stream.write_all(&piece).map_err(|error| error.to_string())?;
        said += piece.len() as u64;
    }
    let mut bytes = [0; HallRecord::SIZE];
    loop {
        match stream.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        let record = HallRecord::from_bytes(&bytes).ok_or("no record")?;
        let mut heard = lock(shared);
        if let Some(last) = heard.records.last() {
            let follows = record.index == last.index + 1 && record.previous == last.digest();
            if !follows {
                return Err(format!("{record:?} follows {last:?}"));
            }
        }
        heard.records.push(record);
        if record.port == *port.get_or_insert(record.port) && record.speaker.bytes == said {
            heard.pieces += u64::from(record.deed == Deed::Spoke);
            shared.1.notify_all();
            if heard.stops {
                drop(heard);
                // Its last own record may come twice: as what it said, and as that it left.
                let _ = stream.shutdown(Shutdown::Write);
                said = u64::MAX;
            } else {
                drop(heard);
                let piece = words.next().expect("it has more to say");
                stream.write_all(&piece).map_err(|error| error.to_string())?;
                said += piece.len() as u64;
            }
        }
    }
}

/// Ends all guests in order, and checks what they heard: one history, in which each said each of its bytes once and in order.
pub(super) fn finish(guests: Vec<Guest>) {
    guests.iter().for_each(|guest| lock(&guest.shared).stops = true);
    let (mut history, mut joined) = (BTreeMap::new(), BTreeMap::new());
    for guest in guests {
        guest.thread.join().unwrap();
        let heard = lock(&guest.shared);
        assert_eq!(heard.error, None, "guest {}", guest.seed);
        let (first, last) = (heard.records.first().unwrap(), heard.records.last().unwrap());
        assert_eq!((first.deed, last.deed, last.port), (Deed::Joined, Deed::Left, first.port));
        joined.insert(first.index, words(guest.seed, &guest.greeting));
        for record in &heard.records {
            assert_eq!(history.entry(record.index).or_insert(*record), record, "guest {}", guest.seed);
        }
    }
    check(&history, joined);
}

/// Checks a history of which each record was heard by some guest: what each guest said is in it once and in order. `joined` are the words
/// of each one by the index of the record with which it joined.
pub(super) fn check(history: &BTreeMap<u64, HallRecord>, mut joined: BTreeMap<u64, Words>) {
    let (first, last) = (history.keys().next().unwrap(), history.keys().last().unwrap());
    assert_eq!(history.len() as u64, last - first + 1, "some record was heard by none");
    let mut here = BTreeMap::new();
    for record in history.values() {
        match record.deed {
            Deed::Joined => {
                let words = joined.remove(&record.index).expect("a guest has joined then");
                let before = here.insert(record.port, (record.speaker, Vec::new(), words));
                assert!(before.is_none(), "{record:?}: another guest is at that port");
            }
            Deed::Spoke | Deed::Left => {
                let (stream, rest, words) = here.get_mut(&record.port).expect("it has joined");
                let more = usize::try_from(record.speaker.bytes - stream.bytes).unwrap();
                while rest.len() < more {
                    rest.extend(words.next().unwrap());
                }
                stream.consume(&rest.drain(..more).collect::<Vec<u8>>());
                assert_eq!(*stream, record.speaker, "{record:?}");
                assert!(record.deed == Deed::Left || more > 0, "{record:?} says nothing");
                if record.deed == Deed::Left {
                    here.remove(&record.port);
                }
            }
            Deed::Waited => {}
        }
    }
}
