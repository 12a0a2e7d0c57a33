//! The server of tables for two: keeps the bag, both racks, the turn and the scores, and hands moves across. Each player's cell is a
//! connection to it. Threads and blocking sockets: a few lines a minute come from each.

mod hall;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

pub use hall::{Hall, Player, Said};
use marram_play::Lines;

/// Connections at a time; others are closed.
const PLAYERS_MAX: usize = 2_048;
/// Who does not take a line for so long is gone.
const STUCK: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Server {
    hall: Hall,
    players: BTreeMap<Player, TcpStream>,
    count: Player,
}

impl Server {
    /// Says what there is to say. Whoever cannot be told finds out by its own connection.
    fn say(&mut self, said: Vec<Said>) {
        for (player, line) in said {
            if let Some(stream) = self.players.get_mut(&player)
                && stream.write_all(format!("{line}\n").as_bytes()).is_err()
            {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

type Shared = Arc<Mutex<Server>>;

fn lock(server: &Shared) -> MutexGuard<'_, Server> {
    // Whoever panicked with it has left one game in doubt, and not the others.
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves whoever connects, until the listener fails.
pub fn serve(listener: &TcpListener) {
    let server = Shared::default();
    for stream in listener.incoming().map_while(Result::ok) {
        let Ok(player) = enter(&server, &stream) else { continue };
        let server = server.clone();
        thread::spawn(move || {
            // A connection that breaks is one that has ended.
            let _ = listen(&server, player, stream);
            let mut server = lock(&server);
            server.players.remove(&player);
            let said = server.hall.leave(player);
            server.say(said);
        });
    }
}

fn enter(server: &Shared, stream: &TcpStream) -> std::io::Result<Player> {
    stream.set_write_timeout(Some(STUCK))?;
    stream.set_nodelay(true)?;
    let mut server = lock(server);
    if server.players.len() >= PLAYERS_MAX {
        return Err(std::io::Error::other("too many"));
    }
    server.count += 1;
    let player = server.count;
    server.players.insert(player, stream.try_clone()?);
    Ok(player)
}

fn listen(server: &Shared, player: Player, mut stream: TcpStream) -> std::io::Result<()> {
    let (mut lines, mut buffer) = (Lines::default(), [0; 1_024]);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
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
