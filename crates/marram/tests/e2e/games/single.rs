//! The games among the cells, with real processes: their edge is killed during a game, and every line that a player receives is
//! the same as without the kill.

mod terminal;
mod words;

use crate::support;
use marram_cluster::TestCluster;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// The word list for `scrabble`.
const WORDS: &str = "ab ad ae ag ah ai al am an ar as at aw ax ay ba be bi bo by de do ed ef eh el em en er es ex fa go \
    ha he hi ho id if in is it jo ka la li lo ma me mi mu my na no nu od oe of oh om on or os ow ox oy \
    pa pe pi qi re sh si so ta ti to uh um un up us ut we wo xi xu ya ye yo za sea sand sands grass dune \
    dunes shore shores tide tides reef wave waves gull gulls crab crabs root roots quiz vex zone line \
    tone rein stone stored";

/// A client of a game, with the lines that it has received. It also kills its edge.
struct Player {
    cluster: TestCluster,
    stream: BufReader<TcpStream>,
    told: Vec<String>,
}

/// Edges that have a game, not started yet.
fn cluster(purpose: &'static str, game: &str) -> TestCluster {
    let layout = support::layout(purpose, |layout| layout.edges = 2);
    let manifest = if game == "scrabble" {
        "protect = \"endpoints\"\n[[files]]\npath = \"/etc/words\"\nsource = \"words\"\n"
    } else {
        "protect = \"endpoints\"\n"
    };
    TestCluster::new(layout, |place| {
        place.write(&format!("apps/{game}/words"), WORDS.replace(' ', "\n"))?;
        Ok(vec![support::cells().manifest(place, game, game, manifest)?])
    })
    .unwrap()
}

impl Player {
    /// Starts edges and a client of this game.
    fn new(purpose: &'static str, game: &str) -> Self {
        Self::at(cluster(purpose, game), game)
    }

    /// Starts these edges and a client.
    fn at(mut cluster: TestCluster, game: &str) -> Self {
        cluster.start_edges("").unwrap();
        let edges = cluster.edge_addresses();
        let address = cluster.start_client_agent(&edges, &[game]).unwrap()[0].address;
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { cluster, stream: BufReader::new(stream), told: Vec::new() }
    }

    fn say(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Receives the next line.
    fn hear(&mut self) -> &str {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the connection ended after {:?}", self.told.last());
        line.pop();
        self.told.push(line);
        self.told.last().unwrap()
    }

    fn hear_until(&mut self, mut wanted: impl FnMut(&str) -> bool) {
        while !wanted(self.hear()) {}
    }

    /// Sends a line, and receives its answer.
    fn ask(&mut self, line: &str, is_last: impl Fn(&str) -> bool) {
        self.say(&format!("{line}\n"));
        self.hear_until(is_last);
    }

    /// Kills the edge that runs the game. Returns the end of the collected logs before the kill.
    fn kill(&mut self) -> usize {
        let (owner, start) = (self.cluster.owner().unwrap(), self.cluster.logs.end());
        self.cluster.edges[owner].kill();
        start
    }
}

/// A real-time game: the lines that are sent at the beginning, and those that are sent from `tick` on, while the edge is killed.
/// The latter arrive long before the ticks that they name, since the clock does not wait for the player.
struct Timed {
    game: &'static str,
    first: String,
    tick: u64,
    later: String,
}

impl Timed {
    /// Lines with keys and their ticks.
    fn keys(keys: &[(u64, &str)]) -> String {
        keys.iter().map(|(tick, key)| format!("at {tick} {key}\n")).collect()
    }

    /// Plays the game; returns the lines that the player received.
    fn play(&self, purpose: &'static str, is_killed: bool) -> Vec<String> {
        let mut player = Player::new(purpose, self.game);
        player.say(&self.first);
        player.hear_until(|line| {
            let tick = line.split(' ').next().unwrap().parse();
            tick.is_ok_and(|tick: u64| tick >= self.tick)
        });
        let killed = is_killed.then(|| player.kill());
        player.say(&self.later);
        player.hear_until(|line| line.starts_with("over "));
        if let Some(start) = killed {
            player.cluster.wait_for_owner(start).unwrap();
        }
        player.told
    }

    /// Compares a game with a kill and one without, played in parallel. Returns the last line.
    fn compare(&self, purposes: [&'static str; 2]) -> String {
        let [calm, killed] = thread::scope(|scope| {
            let games = [0, 1].map(|n| scope.spawn(move || self.play(purposes[n], n == 1)));
            games.map(|game| game.join().unwrap())
        });
        assert!(!calm.iter().any(|line| line.starts_with("error")), "{calm:?}");
        for (at, (calm, killed)) in calm.iter().zip(&killed).enumerate() {
            assert_eq!(calm, killed, "line {at}");
        }
        assert_eq!(calm.len(), killed.len());
        calm.last().unwrap().clone()
    }
}

#[test]
fn snake_goes_on_when_its_edge_dies() {
    let snake = Timed {
        game: "snake",
        first: format!("start 8641\n{}", Timed::keys(&[(87, "down"), (93, "left")])),
        tick: 12,
        later: Timed::keys(&[(255, "down")]),
    };
    assert_eq!(snake.compare(["snake", "snake-killed"]), "over length 7, hit the wall");
}

#[test]
fn pong_goes_on_when_its_edge_dies() {
    // The keys of a player that looks at the ball five times a second: `u` up, `d` down, `s` stop.
    const KEYS: &str = "72d 84u 96s 144d 180u 216d 252u 276d 288u 300d 312u 324d 336s 408d 420u 468s 480d 504u 516d 528u \
        540d 576s 588u 624s 636u 648d 696u 744d 768u 780d 792s 804d 816s 840d 864s 888u 900d 924u 936s 948u 984d 1008u \
        1020d 1032s 1044d 1056u 1068d 1080s 1104d 1116s 1128d 1152u 1200d 1212s";
    let keys: Vec<(u64, &str)> = KEYS
        .split_ascii_whitespace()
        .map(|key| {
            let (tick, key) = key.split_at(key.len() - 1);
            let word = match key {
                "u" => "up",
                "d" => "down",
                _ => "left",
            };
            (tick.parse().unwrap(), word)
        })
        .collect();
    let (first, later) = keys.split_at(keys.partition_point(|(tick, _)| *tick < 700));
    let pong = Timed {
        game: "pong",
        first: format!("start 966\n{}", Timed::keys(first)),
        tick: 120,
        later: Timed::keys(later),
    };
    assert_eq!(pong.compare(["pong", "pong-killed"]), "over left wins 5 : 1");
}

/// Plays a turn-based game. At line `kill_at` it sends the line and kills the edge before it reads the answer. Returns the lines
/// that the player received.
fn take_turns(
    mut player: Player,
    lines: &[String],
    is_last: fn(&str) -> bool,
    kill_at: Option<usize>,
) -> Vec<String> {
    player.hear();
    for (at, line) in lines.iter().enumerate() {
        let killed = (kill_at == Some(at)).then(|| {
            player.say(&format!("{line}\n"));
            player.kill()
        });
        match killed {
            Some(start) => {
                player.hear_until(is_last);
                player.cluster.wait_for_owner(start).unwrap();
            }
            None => player.ask(line, is_last),
        }
        if player.told.last().unwrap().starts_with("over ") {
            break;
        }
    }
    player.told
}

#[test]
fn battleship_goes_on_when_its_edge_dies() {
    let mut lines = ["start 5", "place all"].map(str::to_owned).to_vec();
    // Every square, in an order that leaves gaps.
    let squares = (0..100).map(|n| n * 7 % 100).map(|n| (char::from(b"abcdefghij"[n % 10]), n / 10 + 1));
    lines.extend(squares.map(|(column, row)| format!("fire {column}{row}")));
    let is_last =
        |line: &str| ["place ", "ready", "edge ", "over "].iter().any(|first| line.starts_with(first));
    let play = |purpose, kill_at| take_turns(Player::new(purpose, "battleship"), &lines, is_last, kill_at);
    let calm = play("battleship", None);
    assert_eq!(play("battleship-killed", Some(20)), calm);
    assert!(calm.len() > 60 && calm.last().unwrap().starts_with("over the edge wins"), "{calm:?}");
}

#[test]
fn scrabble_goes_on_when_its_edge_dies() {
    // The turns of a player that always lays the best word, with this seed and these words.
    const TURNS: &str = "
        play pa g8 across, play na e10 across, play zone a12 across, play ha a14 down, play ae d8 down, play
        yo j11 across, play ef l12 down, play qi e7 down, play a?i f6 down, play be g5 down, play do i3
        down, play re k1 down, play re k1 across, play ut n2 across, play id n4 across, exchange cillrtu,
        play eh n6 down, play it l8 down, exchange ciikrrw, exchange befjlrt, exchange cgkortt
    ";
    let mut lines = vec!["start 180".to_owned()];
    lines.extend(TURNS.split(',').map(|turn| turn.split_ascii_whitespace().collect::<Vec<_>>().join(" ")));
    lines.push("board".to_owned());
    let is_last = |line: &str| line.starts_with("score ") || line.starts_with("error ");
    let play = |purpose, kill_at| take_turns(Player::new(purpose, "scrabble"), &lines, is_last, kill_at);
    let calm = play("scrabble", None);
    assert_eq!(play("scrabble-killed", Some(9)), calm);
    assert!(!calm.iter().any(|line| line.starts_with("error")), "{calm:?}");
    assert_eq!(calm.last().unwrap(), "score 180 152 bag 18 rack bflltuv");
}
