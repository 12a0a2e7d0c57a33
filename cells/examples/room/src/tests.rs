//! The room against the scripted host, with virtual time.

use crate::{
    HISTORY_MAX, Room,
    lines::LINE_BYTES_MAX,
    member::{AWAY_AFTER, GREETED_AFTER, LEAVES_AFTER, LINE_EVERY, NAMED_WITHIN},
};
use core::time::Duration;
use marram_sdk::{
    Port, PortKind,
    double::{Output, Random, Session},
};

/// The room, and what each client has received.
struct Hall {
    session: Session<Room>,
    got: Vec<(Port, String)>,
    closed: Vec<Port>,
}

impl Hall {
    /// Clients who have joined, on the ports 0, 2, 3, ...
    fn with(names: &[&str]) -> (Self, Vec<Port>) {
        let mut hall = Self { session: Session::new(), got: Vec::new(), closed: Vec::new() };
        let ports: Vec<Port> = [0].into_iter().chain(2..).map(Port).take(names.len()).collect();
        for (port, name) in ports.iter().zip(names) {
            hall.open(*port);
            hall.say(*port, &format!("/name {name}"));
        }
        hall.got.clear();
        (hall, ports)
    }

    fn note(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Message { port, payload } => {
                    assert!(!self.closed.contains(&port), "the edge would end the room");
                    self.got.push((port, String::from_utf8(payload).unwrap()));
                }
                Output::Close { port } => self.closed.push(port),
                Output::Connect { server, .. } => panic!("it connects to {server}"),
            }
        }
    }

    fn open(&mut self, port: Port) {
        self.closed.retain(|closed| *closed != port);
        let outputs = self.session.open(port, PortKind::Client);
        self.note(outputs);
    }

    fn send(&mut self, port: Port, bytes: &[u8]) {
        let outputs = self.session.message(port, bytes);
        self.note(outputs);
    }

    fn say(&mut self, port: Port, line: &str) {
        self.send(port, format!("{line}\n").as_bytes());
    }

    fn close(&mut self, port: Port) {
        let outputs = self.session.close(port);
        self.note(outputs);
    }

    fn wait(&mut self, by: Duration) {
        let outputs = self.session.advance(by);
        self.note(outputs);
    }

    /// What a client has received since it was asked last.
    fn got(&mut self, port: Port) -> String {
        let (its, others) = self.got.drain(..).partition(|(to, _)| *to == port);
        self.got = others;
        let its: Vec<(Port, String)> = its;
        its.into_iter().map(|(_, text)| text).collect()
    }
}

#[test]
fn what_is_said_is_heard_by_all_in_one_order() {
    let (mut hall, ports) = Hall::with(&["ann", "bob", "cy"]);
    hall.send(ports[0], b"hel");
    hall.say(ports[1], "first");
    hall.send(ports[0], b"lo\nsecond\r\nthi");
    let heard = "bob: first\nann: hello\nann: second\n";
    for port in &ports {
        assert_eq!(hall.got(*port), heard);
    }
    // Who comes later gets the same.
    hall.open(Port(9));
    hall.say(Port(9), "/name dee");
    assert_eq!(hall.got(Port(9)), format!("{heard}* you are dee; here: ann, bob, cy, dee\n"));
    assert_eq!(hall.got(ports[0]), "* dee has joined\n");
}

#[test]
fn a_name_belongs_to_one_client_until_it_leaves() {
    let (mut hall, ports) = Hall::with(&["ann", "bob"]);
    let [ann, bob] = ports[..] else { panic!("two") };
    hall.say(bob, "/name ANN");
    hall.say(bob, "/name a b");
    hall.say(bob, "/who");
    let name = "error a name is 1 to 16 of a-z, A-Z, 0-9, - and _\n";
    assert_eq!(hall.got(bob), format!("error the name ANN is taken\n{name}* here: ann, bob\n"));
    hall.say(ann, "/name Ann");
    assert_eq!([ann, bob].map(|port| hall.got(port)), ["* ann is now Ann\n"; 2]);
    hall.close(ann);
    assert_eq!((hall.got(bob), &hall.closed[..]), ("* Ann has left\n".into(), &[ann][..]));
    hall.say(bob, "/name ann");
    assert_eq!(hall.got(bob), "* bob is now ann\n");
    // The number of the client that left is another client's now.
    hall.open(ann);
    hall.say(ann, "hi");
    hall.say(ann, "/nme bob");
    let told = "error say who you are first: /name NAME\nerror there is no /nme; /help tells what there is\n";
    assert_eq!((hall.got(ann), hall.got(bob)), (told.into(), String::new()));
    hall.say(ann, "/quit");
    assert_eq!((hall.got(ann), hall.got(bob), hall.closed), ("* goodbye\n".into(), String::new(), vec![ann]));
}

#[test]
fn history_is_bounded() {
    let (mut hall, ports) = Hall::with(&["ann"]);
    for n in 0..HISTORY_MAX + 7 {
        hall.say(ports[0], &format!("line {n}"));
        hall.wait(LINE_EVERY);
    }
    hall.open(Port(2));
    hall.say(Port(2), "/name bob");
    let got = hall.got(Port(2));
    assert_eq!(got.lines().count(), HISTORY_MAX + 1);
    assert!(got.starts_with("ann: line 7\n"), "{got}");
}

#[test]
fn silence_is_noticed() {
    let (mut hall, ports) = Hall::with(&["ann", "bob"]);
    let [ann, bob] = ports[..] else { panic!("two") };
    hall.wait(AWAY_AFTER - Duration::from_secs(1));
    hall.say(bob, "");
    hall.wait(Duration::from_secs(1));
    assert_eq!([ann, bob].map(|port| hall.got(port)), ["* ann is away\n"; 2]);
    hall.say(bob, "/who");
    assert_eq!(hall.got(bob), "* here: ann (away), bob\n");
    hall.say(ann, "sorry");
    assert_eq!(hall.got(bob), "* ann is back\nann: sorry\n");
    hall.wait(LEAVES_AFTER);
    assert!(hall.got(ann).ends_with("error you were silent for too long; goodbye\n"));
    assert_eq!(hall.closed, [ann, bob]);
    assert_eq!(hall.session.timers().count(), 0, "an empty room waits for nothing");
}

#[test]
fn a_client_that_does_not_say_who_it_is_is_told_and_then_disconnected() {
    let (mut hall, _) = Hall::with(&[]);
    hall.open(Port(0));
    hall.wait(GREETED_AFTER);
    assert!(hall.got(Port(0)).starts_with("* welcome: say who you are\n* /name NAME joins"));
    hall.wait(NAMED_WITHIN);
    assert_eq!(hall.got(Port(0)), "error you did not say who you are; goodbye\n");
    assert_eq!(hall.closed, [Port(0)]);
}

#[test]
fn a_browser_gets_the_page_and_nothing_else() {
    let (mut hall, ports) = Hall::with(&["ann"]);
    hall.open(Port(2));
    hall.send(Port(2), b"GET / HT");
    hall.wait(GREETED_AFTER);
    hall.send(Port(2), b"TP/1.1\r\nHost: a\r\n\r\nhi\n");
    assert!(hall.got(Port(2)).starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!((hall.got(ports[0]), &hall.closed[..]), (String::new(), &[Port(2)][..]));
    hall.send(Port(2), b"GET / HTTP/1.1\n");
    hall.close(Port(2));
    assert_eq!((hall.got(Port(2)), hall.closed.len()), (String::new(), 1));
    // Someone who is here just says it.
    hall.say(ports[0], "GET / HTTP/1.1");
    assert_eq!(hall.got(ports[0]), "ann: GET / HTTP/1.1\n");
}

#[test]
fn a_client_pays_for_what_it_does_itself() {
    let (mut hall, ports) = Hall::with(&["ann", "flood", "endless"]);
    let [ann, flood, endless] = ports[..] else { panic!("three") };
    hall.send(flood, &b"x\n".repeat(500_000));
    let told = hall.got(flood);
    assert!(
        told.ends_with("error too fast: that line is dropped\nerror too many lines; goodbye\n"),
        "{told}"
    );
    assert!(told.len() < 4_096);
    hall.send(endless, &vec![b'x'; 1 << 20]);
    let told = hall.got(endless);
    assert!(told.ends_with("bytes\nerror that line does not end; goodbye\n"), "{told}");
    let heard = hall.got(ann);
    assert_eq!(heard, ["flood: x\n"; 9].concat() + "* flood has left\n* endless has left\n");
    assert_eq!(hall.closed, [flood, endless]);
}

#[test]
fn no_input_ends_the_room_and_what_leaves_is_whole_lines() {
    let pieces: [&[u8]; 18] = [
        b"/name a\n",
        b"/name b\n",
        b"/name ",
        b"/who\n",
        b"/quit\n",
        b"/help\r\n",
        b"/",
        b"\n",
        b"hi\n",
        b"\xff",
        b"\x1b[2J",
        b"GET / HTTP/1.1\n",
        b"\0",
        b"a: b\n",
        b"\r\n",
        "\u{2603}".as_bytes(),
        &[b'y'; LINE_BYTES_MAX],
        &[b'z'; 20_000],
    ];
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (mut hall, _) = Hall::with(&[]);
        let mut open = [false; 5];
        for _ in 0..200 {
            let at = random.below(open.len());
            let port = Port(u32::try_from(at).unwrap());
            match random.below(12) {
                _ if !open[at] => {
                    open[at] = true;
                    hall.open(port);
                }
                0 => {
                    open[at] = false;
                    hall.close(port);
                }
                1 => hall.wait(random.pick(&[
                    LINE_EVERY,
                    GREETED_AFTER,
                    NAMED_WITHIN,
                    AWAY_AFTER,
                    LEAVES_AFTER,
                ])),
                _ => {
                    let bytes = [random.pick(&pieces), random.pick(&pieces)].concat();
                    let cut = random.below(bytes.len());
                    hall.send(port, &bytes[..cut]);
                    hall.send(port, &bytes[cut..]);
                }
            }
            let room = hall.session.cell();
            assert!(room.members.len() <= open.len() && room.out.texts.is_empty());
            assert_eq!(hall.session.timers().count(), usize::from(!room.members.is_empty()));
        }
        let is_fine = |text: &String| {
            let is_line = |line: &str| !line.contains(|c: char| c.is_control());
            text.starts_with("HTTP/1.1") || text.ends_with('\n') && text.lines().all(is_line)
        };
        assert!(hall.got.iter().all(|(_, text)| is_fine(text)));
    }
}
