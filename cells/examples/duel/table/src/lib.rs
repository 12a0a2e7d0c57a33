//! The server of tables for two: keeps the bag, both racks, the turn and the scores, and passes moves on. Each player's cell is a
//! connection to it. Threads and blocking sockets: each connection sends a few lines a minute.

mod hall;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

pub use hall::{Hall, Player, Said};
use marram_play::Lines;

/// Connections at a time; further ones are closed.
const PLAYERS_MAX: usize = 2_048;
/// A player that does not accept a line within this time is removed: the others wait for it.
const STUCK: Duration = Duration::from_millis(10);
/// A player that sends nothing for this long, twice, while it has to send something, is removed: it occupies a seat or a table.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// Delay after a failed accept, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Server {
    hall: Hall,
    players: BTreeMap<Player, Arc<TcpStream>>,
    count: Player,
}

impl Server {
    /// Sends the lines. If that fails, the player's own connection detects it.
    fn say(&mut self, said: Vec<Said>) {
        for (player, line) in said {
            if let Some(stream) = self.players.get(&player)
                && (&**stream).write_all(format!("{line}\n").as_bytes()).is_err()
            {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

type Shared = Arc<Mutex<Server>>;

fn lock(server: &Shared) -> MutexGuard<'_, Server> {
    // A panic with the lock held leaves one game in doubt, but not the others.
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves all connections, forever.
pub fn serve(listener: &TcpListener) -> ! {
    admit(listener.incoming(), SILENCE);
    unreachable!("a listener never says that no other code will come")
}

fn admit(incoming: impl Iterator<Item = io::Result<TcpStream>>, silence: Duration) {
    let server = Shared::default();
    let mut was_taken = true;
    for stream in incoming {
        let taken = stream.and_then(|stream| take(&server, Arc::new(stream), silence));
        if let Err(error) = &taken {
            // One log line for all failures in a row.
            if was_taken {
                eprintln!("cannot take a connection, and goes on: {error}");
            }
            thread::sleep(PAUSE);
        }
        was_taken = taken.is_ok();
    }
}

/// Accepts a player, unless there are too many.
fn take(server: &Shared, stream: Arc<TcpStream>, silence: Duration) -> io::Result<()> {
    // A player that has already disconnected need not be served.
    let Ok(Some(player)) = enter(server, &stream, silence) else { return Ok(()) };
    let shared = server.clone();
    let serve = move || {
        // A broken connection counts as an ended one.
        let _ = listen(&shared, player, &stream);
        let mut server = lock(&shared);
        server.players.remove(&player);
        let said = server.hall.leave(player);
        server.say(said);
    };
    let thread = thread::Builder::new().spawn(serve);
    thread.map(drop).inspect_err(|_| _ = lock(server).players.remove(&player))
}

fn enter(server: &Shared, stream: &Arc<TcpStream>, silence: Duration) -> io::Result<Option<Player>> {
    stream.set_write_timeout(Some(STUCK))?;
    stream.set_read_timeout(Some(silence))?;
    stream.set_nodelay(true)?;
    let mut server = lock(server);
    if server.players.len() >= PLAYERS_MAX {
        return Ok(None);
    }
    server.count += 1;
    let player = server.count;
    server.players.insert(player, stream.clone());
    Ok(Some(player))
}

fn listen(server: &Shared, player: Player, mut stream: &TcpStream) -> io::Result<()> {
    let (mut lines, mut buffer, mut was_due) = (Lines::default(), [0; 1_024], false);
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // Its turn may have just begun.
                if std::mem::replace(&mut was_due, lock(server).hall.is_due(player)) && was_due {
                    return Err(error);
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        was_due = false;
        for byte in &buffer[..count] {
            let Some(line) = lines.take(*byte) else { continue };
            let chance = RandomState::new().build_hasher().finish();
            let mut server = lock(server);
            let said = match line {
                Ok(line) => server.hall.hear(player, &line, chance),
                Err(()) => vec![(player, "refused that line is too long".to_owned())],
            };
            server.say(said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A connection, and its end at the server.
    fn pair(listener: &TcpListener) -> (BufReader<TcpStream>, TcpStream) {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (BufReader::new(near), listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_that_cannot_be_taken_does_not_end_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut near, far) = pair(&listener);
        admit([Err(io::Error::other("no descriptors")), Ok(far)].into_iter(), SILENCE);
        near.get_mut().write_all(b"sit t\n").unwrap();
        let mut line = String::new();
        near.read_line(&mut line).unwrap();
        assert_eq!(line, "wait t\n");
    }

    #[test]
    fn a_player_that_waits_alone_and_is_silent_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut near, far) = pair(&listener);
        let (mut idle, idle_far) = pair(&listener);
        near.get_mut().write_all(b"sit t\n").unwrap();
        admit([Ok(far), Ok(idle_far)].into_iter(), Duration::from_millis(20));
        for (stream, said) in [(&mut near, "wait t\n"), (&mut idle, "")] {
            let mut heard = String::new();
            stream.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, said, "and then the end");
        }
    }
}
