//! Tests of the arcade with a minimal game.

use core::time::Duration;

use super::*;
use marram_sdk::double::{Output, Session};

/// A number that keys change, each seat in its own direction; over at 5 or after 600 ticks. The seed is its first value.
struct Count {
    value: i64,
    ticks: u32,
    players: Vec<bool>,
}

impl Game for Count {
    const NAME: &'static str = "count";
    const SEATS: usize = 2;

    fn new(seed: u64, players: &[bool]) -> Self {
        Self { value: i64::try_from(seed % 4).unwrap(), ticks: 0, players: players.to_vec() }
    }

    fn press(&mut self, seat: usize, _: Key) {
        self.value += if seat == 0 { 1 } else { -1 };
    }

    fn step(&mut self) {
        self.ticks += 1;
    }

    fn line(&self) -> String {
        format!("is {}", self.value)
    }

    fn rows(&self) -> Vec<String> {
        vec![format!("[{}]", self.value), format!("{:?}", self.players)]
    }

    fn result(&self) -> Option<String> {
        (self.value >= 5 || self.ticks == 600).then(|| format!("at {}", self.value))
    }
}

type Cabinet = Session<Arcade<Count>>;

const OTHER: Port = Port(2);

fn open() -> Cabinet {
    let mut session = Session::new();
    let hello = "count: start [SEED], up, down, left, right, at TICK KEY, ansi, quit\n";
    assert_eq!(session.open_client(), [Output::message(Port::CLIENT, hello.as_bytes())]);
    session
}

fn text(outputs: &[Output]) -> String {
    let text = |output: &Output| match output {
        Output::Message { port, payload } => format!("{}:{}", port.0, String::from_utf8_lossy(payload)),
        Output::Close { port } => format!("{}:closed", port.0),
        Output::Connect { server, .. } => panic!("it connects to {server}"),
    };
    outputs.iter().map(text).collect()
}

fn say(session: &mut Cabinet, line: &str) -> String {
    text(&session.message(Port::CLIENT, format!("{line}\n").as_bytes()))
}

fn ticks(session: &mut Cabinet, count: u32) -> String {
    // Rounded up, so that the last tick is due.
    text(&session.advance(Duration::from_nanos(u64::from(count) * 16_666_667)))
}

#[test]
fn a_game_is_sent_as_its_changes_and_its_end() {
    let mut session = open();
    assert_eq!(say(&mut session, "start 2"), "0:0 is 2\n");
    assert_eq!(ticks(&mut session, 10), "");
    assert_eq!(say(&mut session, "up"), "");
    assert_eq!(ticks(&mut session, 10), "0:11 is 3\n");
    assert_eq!(say(&mut session, "start"), "0:error a game is on\n");
    assert_eq!(say(&mut session, "w\nleft"), "");
    assert_eq!(ticks(&mut session, 1), "0:21 is 5\nover at 5\n");
    assert_eq!(session.timers().count(), 0);
    assert_eq!(say(&mut session, "up"), "");
    assert_eq!(say(&mut session, "start 0"), "0:0 is 0\n");
    assert_eq!(ticks(&mut session, 600), "0:600 is 0\nover at 0\n");
}

#[test]
fn keys_wait_for_their_ticks_whenever_they_came() {
    let mut session = open();
    assert_eq!(say(&mut session, "at 5 up"), "0:error no game is on\n");
    assert_eq!(say(&mut session, "start 0\nat 30 up\nat 20 up"), "0:0 is 0\n");
    assert_eq!(ticks(&mut session, 25), "0:20 is 1\n");
    assert_eq!(say(&mut session, "at 25 up"), "0:error that tick is past\n");
    assert_eq!(say(&mut session, "at 26 up"), "");
    assert_eq!(ticks(&mut session, 575), "0:26 is 2\n0:30 is 3\n0:600 is 3\nover at 3\n");
}

#[test]
fn cuts_mean_nothing() {
    let script = b"start 1\nat 3 up\r\nansi\nw\x1b[Bq";
    let whole = text(&open().message(Port::CLIENT, script));
    assert!(whole.ends_with("\x1b[?25h\r\n0:closed"), "{whole:?}");
    let mut session = open();
    let pieces: Vec<_> = script.iter().flat_map(|byte| session.message(Port::CLIENT, &[*byte])).collect();
    assert_eq!(
        text(&pieces).replace("0:closed", "").replace("0:", ""),
        whole.replace("0:closed", "").replace("0:", "")
    );
}

#[test]
fn wrong_lines_are_answered_up_to_a_point() {
    let mut session = open();
    for (line, why) in [
        ("jump", "say start, up, down, left, right, at, ansi or quit"),
        ("start now", "a seed is a number"),
        ("at noon up", "a tick is a number"),
        ("at 7 jump", "a key is up, down, left or right"),
        (&"x".repeat(200), "that line is too long"),
    ] {
        assert_eq!(say(&mut session, line), format!("0:error {why}\n"));
    }
    let outputs = session.message(Port::CLIENT, "no\n".repeat(300_000).as_bytes());
    assert_eq!(text(&outputs).matches("error").count(), 95);
    assert_eq!(outputs.last(), Some(&Output::close(Port::CLIENT)));
    assert_eq!(session.message(Port::CLIENT, b"start\n"), []);
    let mut greedy = open();
    say(&mut greedy, "start 0");
    assert_eq!(say(&mut greedy, &"at 500 up\n".repeat(WAITING_MAX)), "");
    assert_eq!(say(&mut greedy, "at 500 up"), "0:error too many keys wait already\n");
}

#[test]
fn a_terminal_is_drawn_and_given_back() {
    let mut session = open();
    let drawn = say(&mut session, "ansi");
    assert!(drawn.starts_with("0:\x1b[2J\x1b[?25l\x1b[1;1H["), "{drawn:?}");
    assert!(drawn.contains("\x1b[3;1HKeys: arrows"));
    session.message(Port::CLIENT, b"w");
    let changed = ticks(&mut session, 1);
    assert!(changed.starts_with("0:\x1b[1;1H[") && changed.ends_with("]\x1b[K"), "{changed:?}");
    assert_eq!(ticks(&mut session, 1), "");
    assert!(ticks(&mut session, 600).contains("Space plays again"));
    assert!(text(&session.message(Port::CLIENT, b" ")).contains("Keys: arrows"));
    assert!(text(&session.message(Port::CLIENT, b"q")).ends_with("\x1b[?25h\r\n0:closed"));
    assert_eq!(session.timers().count(), 0);
}

#[test]
fn two_play_in_one_world_and_a_third_is_turned_away() {
    let mut session = open();
    session.open(OTHER, PortKind::Client);
    let third = text(&session.open(Port(3), PortKind::Client));
    assert_eq!(third, "3:error all seats are taken\n3:closed");
    assert_eq!(say(&mut session, "start 2"), "0:0 is 2\n2:0 is 2\n");
    session.message(OTHER, b"up\n");
    assert_eq!(ticks(&mut session, 1), "0:1 is 1\n2:1 is 1\n");
    // One leaves during the game: the other plays on. Then another client can take its seat.
    assert_eq!(text(&session.message(OTHER, b"quit\n")), "2:closed");
    say(&mut session, "up");
    assert_eq!(ticks(&mut session, 1), "0:2 is 2\n");
    assert!(text(&session.open(OTHER, PortKind::Client)).starts_with("2:count"));
    assert_eq!(session.cell().game().unwrap().players, [true, true]);
}

#[test]
fn a_client_that_says_no_more_sees_the_end() {
    let mut session = open();
    say(&mut session, "start 3\nat 9 up\nat 10 up");
    assert_eq!(session.close(Port::CLIENT), []);
    assert_eq!(ticks(&mut session, 600), "0:9 is 4\n0:10 is 5\nover at 5\n0:closed");
    assert_eq!(text(&open().close(Port::CLIENT)), "0:closed");
}
