//! Scrabble for two with real processes: each player has its own session and edge, and a small server holds the game's state.
//! Both edges die during the game, and every line that the two players receive is the same as without the kills.

use crate::support;
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use marram_scrabble::{
    board::{Board, Play, Square},
    player,
    tiles::Rack,
    words::Words,
};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

const WORDS: &str = "ab ad ae ag ah ai al am an ar as at aw ax ay ba be bi bo by de do ed ef eh el em en er es ex fa go \
    ha he hi ho id if in is it jo ka la li lo ma me mi mu my na no nu od oe of oh om on or os ow ox oy \
    pa pe pi qi re sh si so ta ti to uh um un up us ut we wo xi xu ya ye yo za sea sand sands grass dune \
    dunes shore shores tide tides reef wave waves gull gulls crab crabs root roots quiz vex zone line \
    tone rein stone stored";

fn words() -> String {
    WORDS.split_ascii_whitespace().collect::<Vec<_>>().join("\n")
}

/// A player that always lays the best word, with the lines that it has received.
struct Player {
    stream: BufReader<TcpStream>,
    words: Words,
    board: Board,
    told: Vec<String>,
}

impl Player {
    fn new(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut player = Self {
            stream: BufReader::new(stream),
            words: Words::new(&words()),
            board: Board::default(),
            told: Vec::new(),
        };
        player.hear();
        player
    }

    fn say(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Receives the next line, and applies it to the board.
    fn hear(&mut self) -> &str {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the connection ended after {:?}", self.told.last());
        line.pop();
        if let [_, "play", word, at, way, _] = line.split(' ').collect::<Vec<_>>()[..] {
            let letters = word.as_bytes().to_vec();
            let play = Play { letters, at: Square::from_name(at).unwrap(), is_down: way == "down" };
            let tile = |byte: u8| if byte.is_ascii_uppercase() { b'?' } else { byte };
            let rack = Rack::new(&word.bytes().map(tile).collect::<Vec<_>>());
            self.board.lay(&self.board.check(&self.words, &rack, &play).unwrap());
        }
        self.told.push(line);
        self.told.last().unwrap()
    }

    /// Receives until a line begins with `first`, or the game is over; returns whether it is over.
    fn hear_until(&mut self, first: &str) -> bool {
        loop {
            let line = self.hear();
            if line.starts_with("over ") || line.starts_with(first) {
                return line.starts_with("over ");
            }
        }
    }

    /// The best play; without one it exchanges its tiles, and with too few tiles in the bag it passes.
    fn choose(&self) -> String {
        let score = self.told.iter().rev().find(|line| line.starts_with("score ")).unwrap();
        let words: Vec<&str> = score.split(' ').collect();
        let (bag, rack): (usize, _) = (words[4].parse().unwrap(), words[6]);
        match player::best(&self.board, &self.words, &Rack::new(rack.as_bytes())) {
            Some((play, _)) => format!("play {}", play.said()),
            None if bag >= 7 => format!("exchange {rack}"),
            None => "pass".to_owned(),
        }
    }
}

/// Plays one game, which must have all turns of `kills`. In each of these it kills the edge of the player that has the turn,
/// after the move is sent and before it is answered.
fn play(purpose: &'static str, kills: &[usize]) -> [Vec<String>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    thread::spawn(move || scrabble_table::serve(&listener));
    let layout = support::layout(purpose, |layout| layout.edges = 3);
    let manifest = "protect = \"endpoints\"\nserver = \"scrabble-table\"\n[[files]]\npath = \"/etc/words\"\nsource = \"words\"\n";
    let mut cluster = TestCluster::new(layout, |place| {
        place.write("apps/duel/words", words())?;
        Ok(vec![support::cells().manifest(place, "duel", "duel", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("scrabble-table", server)]).unwrap();
    let address = cluster.start_client_agent(&edges, &["duel"]).unwrap()[0].address;
    let is_owned = |event: &LogEvent| TestCluster::is_report(AgentSide::Client, "owned", event);

    // Each session's identifier, to find its edge.
    let mut sessions = Vec::new();
    let mut players = [0, 1].map(|_| {
        let start = cluster.logs.end();
        let player = Player::new(address);
        let (_, owned) = cluster.logs.wait(start, PATIENCE, is_owned).unwrap();
        sessions.push(owned.text("session").to_owned());
        player
    });
    players[0].say("sit dune 180");
    players[0].hear_until("wait ");
    players[1].say("sit dune");
    players.iter_mut().for_each(|player| _ = player.hear_until("score "));
    let mut killed_count = 0;
    for turn in 0.. {
        let (who, other) = (turn % 2, 1 - turn % 2);
        let line = players[who].choose();
        players[who].say(&line);
        let killed = kills.contains(&turn).then(|| {
            let session = &sessions[who];
            let owned =
                cluster.logs.last(|event| is_owned(event) && event.text("session") == session).unwrap();
            let owner = cluster.edge_at(AgentSide::Client, owned.text("edge")).unwrap();
            let start = cluster.logs.end();
            cluster.edges[owner].kill();
            (start, owner)
        });
        let over = players[who].hear_until("score ");
        assert_eq!(players[other].hear_until("score "), over);
        if let Some((start, owner)) = killed {
            let recovered = |event: &LogEvent| is_owned(event) && event.text("session") == sessions[who];
            assert!(cluster.logs.wait(start, PATIENCE, recovered).is_some(), "{}", cluster.logs.tail(30));
            cluster.respawn(owner).unwrap();
            killed_count += 1;
        }
        if over {
            break;
        }
        assert!(turn < 100, "{:?}", players[who].told);
    }
    assert_eq!(killed_count, kills.len(), "the game was over before an edge was to die");
    players.map(|player| player.told)
}

#[test]
fn both_players_receive_the_same_lines_whichever_edges_die() {
    let calm = play("duel", &[]);
    assert_eq!(play("duel-killed", &[3, 8, 13]), calm);
    for told in &calm {
        assert!(!told.iter().any(|line| line.starts_with("error")), "{told:?}");
        assert!(told.len() > 30 && told.last().unwrap().starts_with("over "), "{told:?}");
    }
}
