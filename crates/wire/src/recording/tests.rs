//! Unchanged record files decode, and no others.

use super::*;
use crate::{
    header::{ClientState, ConnectedServer, Lock, Paused, PortState, Task, Timer, Unacknowledged},
    id::HostId,
    log::{Client, Cursor, Entry, Event, Joined, Peers, Reads},
};
use alloc::{string::ToString, vec};

const SESSION: SessionId = SessionId([7; 16]);
const IMAGE: ImageHash = ImageHash([8; 32]);

fn entries(cursor: &mut Cursor, entries: &[(Event, Option<i64>)]) -> Bytes {
    let mut out = BytesMut::new();
    entries
        .iter()
        .map(|(event, now_ns)| Entry { event: event.clone(), now_ns: *now_ns, reads: Reads::default() })
        .for_each(|entry| cursor.put(&entry, &mut out));
    out.freeze()
}

fn payload(text: &'static str) -> RecordedMessage {
    RecordedMessage::Payload(Bytes::from_static(text.as_bytes()))
}

fn inputs(port: Port, first: u64, messages: &[RecordedMessage]) -> Inputs {
    Inputs { port, first, messages: Many(messages.to_vec()) }
}

fn about() -> About {
    About {
        session: SESSION,
        image: IMAGE,
        app: "counter".to_string(),
        edge: "edge-a".to_string(),
        generation: Generation { count: 3, opener: 40 },
        unix_ns: 1_800_000_000_000_000_000,
        log_offset: 0,
        state: Some([5; 32]),
        redacted: false,
        shared: false,
    }
}

const START: Event = Event::Start {
    seed: [9; 32],
    peers: Peers { server: true, client_datagrams: false, server_datagrams: false, client: None },
};

/// A session from its beginning.
fn whole() -> Recording {
    let (client, server) = (Event::Message(Port::CLIENT), Event::Message(Port::SERVER));
    let log = [
        (START, Some(1_000)),
        (client.clone(), None),
        (server, Some(1_500)),
        (Event::Timer, None),
        (Event::Task, None),
        (client, None),
    ];
    Recording {
        about: about(),
        header: None,
        checkpoints: Vec::new(),
        log: entries(&mut Cursor::default(), &log),
        inputs: vec![
            inputs(Port::CLIENT, 0, &[payload("hello"), RecordedMessage::Close]),
            inputs(Port::SERVER, 0, &[payload("")]),
        ],
        stop: None,
        apps: vec![(IMAGE, Bytes::from_static(b"MRAP and so on"))],
    }
}

/// A session from a checkpoint and a delta to where a handler trapped.
fn stopped() -> Recording {
    let mut cursor = Cursor { last_ns: 2_000 };
    let log = entries(&mut cursor, &[(Event::Message(Port::CLIENT), None), (Event::Timer, Some(2_100))]);
    let outbox = Many(vec![Unacknowledged { close: false, payload: Bytes::from_static(b"out") }]);
    let header = Header {
        session: SESSION,
        image: IMAGE,
        generation: Generation { count: 2, opener: 1 },
        number: 4,
        base_generation: Generation { count: 2, opener: 1 },
        base_number: 3,
        log_offset: 70,
        head: [6; 32],
        last_ns: 2_000,
        timers_set: 9,
        timers: Many(vec![Timer { stage: 0, token: 5, due_ns: 2_100, order: 8 }]),
        ports: vec![PortState {
            port: Port::CLIENT,
            took: 11,
            input_closed: false,
            produced: 12,
            output_closed: false,
            outbox,
        }],
        tasks: Many(vec![Task { stage: 0, token: 6 }]),
        locks: Many(vec![Lock { stage: 0, id: 1, holder: 6, waiting: Many(vec![7]) }]),
        paused: Many(vec![Paused { stage: 0, port: Port::CLIENT }]),
        clients: Many::default(),
        servers: Many::default(),
    };
    Recording {
        about: About { log_offset: 70, state: None, ..about() },
        header: Some(Box::new(header)),
        checkpoints: vec![Bytes::from_static(b"full"), Bytes::from_static(b"delta")],
        log,
        inputs: vec![inputs(Port::CLIENT, 11, &[payload("one"), payload("two")])],
        stop: Some(RecordedStop {
            entry: entries(&mut cursor, &[(Event::Message(Port::CLIENT), Some(2_200))]),
            killed: false,
            reason: "unreachable".to_string(),
        }),
        apps: Vec::new(),
    }
}

/// A shared cell from a checkpoint, in which one client leaves and another one gets its port.
fn shared() -> Recording {
    let mut it = stopped();
    let session = Header { ports: Vec::new(), ..*with_client(it.header.take()).expect("it has one") };
    it.header = Some(Box::new(with_server(session)));
    it.about.shared = true;
    let (port, third) = (Port::CLIENT, Port(3));
    let joins = |port| {
        let joined = Joined { port, client: client(), datagrams: false, peer: None };
        Event::Port(PortEvent::Joined(Box::new(joined)))
    };
    let log = [
        (Event::Message(port), None),
        (joins(third), None),
        (Event::Port(PortEvent::Left { port, quietly: false }), None),
        (joins(port), None),
        (Event::Message(third), Some(2_150)),
        (Event::Message(port), None),
    ];
    let mut cursor = Cursor { last_ns: 2_000 };
    it.log = entries(&mut cursor, &log);
    let leaves = Event::Port(PortEvent::Left { port: third, quietly: false });
    it.stop.as_mut().expect("it has one").entry = entries(&mut cursor, &[(leaves, Some(2_200))]);
    it.inputs = vec![
        inputs(port, 11, &[RecordedMessage::Close, payload("one")]),
        inputs(third, 0, &[payload("two")]),
    ];
    it
}

fn samples() -> [Recording; 4] {
    [whole(), stopped(), whole().redacted(&[1; 32]), stopped().redacted(&[1; 32])]
}

/// The error of a recording that was encoded with correct checksums.
fn refusal(recording: &Recording) -> &'static str {
    Recording::decode(&recording.encode()).expect_err("it does not make sense").what
}

#[test]
fn files_survive() {
    for recording in samples().into_iter().chain([shared(), shared().redacted(&[1; 32])]) {
        assert_eq!(Recording::decode(&recording.encode()), Ok(recording));
    }
}

#[test]
fn the_layout_stays_as_it_was_written_down() {
    for (recording, golden) in samples().into_iter().chain([shared()]).zip([
        &include_bytes!("golden/6-whole.marram")[..],
        include_bytes!("golden/6-stopped.marram"),
        include_bytes!("golden/6-whole-redacted.marram"),
        include_bytes!("golden/6-stopped-redacted.marram"),
        include_bytes!("golden/6-shared.marram"),
    ]) {
        assert_eq!(recording.encode(), golden);
    }
}

/// Files of an older version decode as today's samples, without the lists that came later in the header.
fn reads_as_samples(golden: [&'static [u8]; 4], forget: fn(&mut Header)) {
    for (mut recording, golden) in samples().into_iter().zip(golden) {
        if let Some(header) = &mut recording.header {
            forget(header);
        }
        let mut old = Recording::decode(&Bytes::from_static(golden)).expect("it is read");
        // The sample of version 1 has no task in its log.
        (recording.log, old.log) = (Bytes::new(), Bytes::new());
        assert_eq!(old, recording);
    }
}

#[test]
fn files_from_before_there_were_tasks_are_read() {
    let golden = [
        &include_bytes!("golden/1-whole.marram")[..],
        include_bytes!("golden/1-stopped.marram"),
        include_bytes!("golden/1-whole-redacted.marram"),
        include_bytes!("golden/1-stopped-redacted.marram"),
    ];
    reads_as_samples(golden, |header| {
        header.tasks.0.clear();
        header.locks.0.clear();
        header.paused.0.clear();
    });
}

#[test]
fn files_from_before_ports_were_paused_are_read() {
    let golden = [
        &include_bytes!("golden/2-whole.marram")[..],
        include_bytes!("golden/2-stopped.marram"),
        include_bytes!("golden/2-whole-redacted.marram"),
        include_bytes!("golden/2-stopped-redacted.marram"),
    ];
    reads_as_samples(golden, |header| header.paused.0.clear());
}

#[test]
fn files_from_before_cells_had_clients_are_read() {
    let golden = [
        &include_bytes!("golden/3-whole.marram")[..],
        include_bytes!("golden/3-stopped.marram"),
        include_bytes!("golden/3-whole-redacted.marram"),
        include_bytes!("golden/3-stopped-redacted.marram"),
    ];
    reads_as_samples(golden, |_| {});
}

#[test]
fn files_from_before_cells_were_shared_are_read() {
    let golden = [
        &include_bytes!("golden/4-whole.marram")[..],
        include_bytes!("golden/4-stopped.marram"),
        include_bytes!("golden/4-whole-redacted.marram"),
        include_bytes!("golden/4-stopped-redacted.marram"),
    ];
    reads_as_samples(golden, |_| {});
}

#[test]
fn files_from_before_cells_connected_to_servers_are_read() {
    let golden = [
        &include_bytes!("golden/5-whole.marram")[..],
        include_bytes!("golden/5-stopped.marram"),
        include_bytes!("golden/5-whole-redacted.marram"),
        include_bytes!("golden/5-stopped-redacted.marram"),
    ];
    reads_as_samples(golden, |_| {});
    let mut shared = shared();
    let header = shared.header.as_mut().expect("it has one");
    header.servers.0.clear();
    header.clients.0.pop();
    let old = Bytes::from_static(include_bytes!("golden/5-shared.marram"));
    assert_eq!(Recording::decode(&old), Ok(shared));
}

#[test]
fn a_file_that_was_cut_short_or_changed_anywhere_is_refused_with_the_place() {
    for recording in samples() {
        let file = recording.encode();
        let mut starts = vec![0, 4, 8];
        let mut at = HEAD;
        while at < file.len() {
            starts.push(at);
            let length: [u8; 8] = file[at + 1..at + 9].try_into().expect("8 bytes");
            at += SECTION_HEAD + usize::try_from(u64::from_le_bytes(length)).expect("small");
        }
        for position in 0..file.len() {
            let mut changed = file.to_vec();
            changed[position] ^= 0x41;
            let broken = Recording::decode(&changed.into()).expect_err("one byte is another");
            let section = starts.iter().rfind(|start| **start <= position).expect("the first is 0");
            assert_eq!(broken.offset, *section as u64, "byte {position}: {broken}");
            let cut = Recording::decode(&file.slice(..position)).expect_err("it is cut short");
            assert!(cut.offset <= position as u64, "{cut}");
        }
        let longer = [&file[..], &[0]].concat();
        assert_eq!(Recording::decode(&longer.into()).expect_err("one byte more").offset, 8);
    }
}

/// The same header, of a cell that has connected to a server.
fn with_server(mut header: Header) -> Header {
    let port = Port::FIRST_CONNECTED;
    let mut server = header.clients.0[0].clone();
    server.state.port = port;
    header.clients.0.push(server);
    header.servers = Many(vec![ConnectedServer { port, name: "store".into() }]);
    header
}

fn leaves() -> Event {
    Event::Port(PortEvent::Left { port: Port(2), quietly: false })
}

fn log_of(event: Event) -> Bytes {
    entries(&mut Cursor { last_ns: 2_000 }, &[(event, None)])
}

fn client() -> Client {
    let generation = Generation { count: 1, opener: 9 };
    Client { session: SessionId([1; 16]), host: HostId([2; 16]), generation }
}

/// The header of a shared cell with one client.
fn with_client(header: Option<Box<Header>>) -> Option<Box<Header>> {
    let mut header = header?;
    let state = header.ports[0].clone();
    header.clients = Many(vec![ClientState { state, client: client(), expelled: false }]);
    Some(header)
}

#[test]
fn what_does_not_make_sense_is_refused_although_its_checksums_hold() {
    type Change = fn(&mut Recording);
    let changes: [(Recording, Change, &str); 24] = [
        (stopped(), |it| it.about.session = SessionId([1; 16]), "another session"),
        (stopped(), |it| it.about.log_offset = 71, "another session or position"),
        (stopped(), |it| it.checkpoints.clear(), "the log continues is missing"),
        (stopped(), |it| it.header = None, "too many checkpoints"),
        (stopped(), |it| it.inputs[0].first = 12, "do not continue at the checkpoint"),
        (stopped(), |it| it.inputs[0].messages.0.truncate(1), "a message that does not exist"),
        (stopped(), |it| it.log = Bytes::from_static(&[7]), "cannot be decoded"),
        (stopped(), |it| it.log = log_of(Event::Message(Port(2))), "a port that does not exist"),
        (stopped(), |it| it.log = log_of(Event::Message(Port::SERVER)), "a port that does not exist"),
        (stopped(), |it| it.header = with_client(it.header.take()), "of a shared cell"),
        (stopped(), |it| it.log = log_of(leaves()), "the cell is not shared"),
        (stopped(), |it| it.about.shared = true, "of a shared cell and the file is not"),
        (shared(), |it| it.about.shared = false, "of a shared cell and the file is not"),
        (shared(), |it| it.inputs[0].first = 12, "do not continue at the checkpoint"),
        (shared(), |it| it.inputs[1].first = 1, "do not continue at the checkpoint"),
        (shared(), |it| it.inputs.reverse(), "an unknown port"),
        (shared(), |it| it.inputs[1].port = Port::SERVER, "an unknown port"),
        (shared(), |it| it.inputs.clear(), "a port that does not exist"),
        (stopped(), |it| it.about.redacted = true, "another session or position"),
        (whole(), |it| it.about.redacted = true, "redacted and the file is not"),
        (whole(), |it| it.inputs[0].messages.0.swap(0, 1), "after its close"),
        (whole(), |it| it.inputs.reverse(), "an unknown port"),
        (whole(), |it| it.log = it.log.slice(42..), "a start entry is missing"),
        (whole(), |it| it.apps = vec![(IMAGE, Bytes::new()); APPS_MAX + 1], "more apps"),
    ];
    for (mut recording, change, says) in changes {
        change(&mut recording);
        let what = refusal(&recording);
        assert!(what.contains(says), "{what}, not {says}");
    }
}

#[test]
fn nothing_that_was_said_is_in_a_redacted_file() {
    let secrets: [&[u8]; 6] = [b"hello", b"one", b"out", b"full", &[9; 32], &[6; 32]];
    for recording in [whole(), stopped()] {
        let file = recording.clone().redacted(&[1; 32]).encode();
        for secret in secrets {
            assert!(!file.windows(secret.len()).any(|window| window == secret), "{secret:?}");
        }
        // Equal messages have equal digests, and guesses cannot be verified without the key.
        let digests = |key: u8| recording.clone().redacted(&[key; 32]).inputs;
        assert_eq!(digests(1), digests(1));
        assert_ne!(digests(1), digests(2));
    }
}

#[test]
fn nothing_that_was_read_from_a_cache_is_in_a_redacted_file() {
    use crate::log::{Found, Known, Read};
    let (mut cursor, mut known, mut log) = (Cursor::default(), Known::default(), BytesMut::new());
    let object = Read { key: [0xab; 8], found: Found::Object(Bytes::from_static(b"what the origin said")) };
    let start = Event::Start { seed: [9; 32], peers: Peers::default() };
    let reads = [vec![], vec![object.clone()], vec![object.clone(), object]];
    for (event, reads) in [start, Event::Timer, Event::Timer].into_iter().zip(reads) {
        let entry = Entry { event, now_ns: Some(5), reads: known.write(reads) };
        cursor.put(&entry, &mut log);
    }
    let log = log.freeze();
    let recording = Recording { log: log.clone(), inputs: vec![inputs(Port::CLIENT, 0, &[])], ..whole() };
    let redacted = recording.clone().redacted(&[1; 32]);
    let holds = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    for text in [&b"the origin"[..], &[0xab; 8], &[9; 32]] {
        assert!(holds(&recording.encode(), text) && !holds(&redacted.encode(), text));
    }
    assert_eq!(redacted.log.len(), log.len());
    assert_eq!(Recording::decode(&redacted.encode()), Ok(redacted));
}

#[test]
fn nothing_that_is_known_of_a_client_is_in_a_redacted_file() {
    use crate::peer::{Origin, Peer};
    let address = ([192, 0, 2, 33], 51_713).into();
    let origin = Origin { client: Some(address), local: None, listener: "front-door".into() };
    let client = Peer::new(Some(&origin), Some("agent-of-anna")).map(Into::into);
    let start = |client| Event::Start { seed: [9; 32], peers: Peers { client, ..Peers::default() } };
    let joined = |peer| Joined { port: Port(3), client: self::client(), datagrams: true, peer };
    let joins = |peer| Event::Port(PortEvent::Joined(Box::new(joined(peer))));
    for (log, shared) in
        [(vec![start(client.clone())], false), (vec![start(None), joins(client.clone())], true)]
    {
        let log: Vec<_> = log.into_iter().map(|event| (event, Some(5))).collect();
        let log = entries(&mut Cursor::default(), &log);
        let inputs = vec![inputs(Port::CLIENT, 0, &[])];
        nothing_of_the_client_is_shown(&Recording {
            about: About { shared, ..about() },
            log,
            inputs,
            ..whole()
        });
    }
}

fn nothing_of_the_client_is_shown(recording: &Recording) {
    let redacted = recording.clone().redacted(&[1; 32]);
    let holds = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    for text in [&b"front-door"[..], b"agent-of-anna", &[192, 0, 2, 33]] {
        assert!(holds(&recording.encode(), text) && !holds(&redacted.encode(), text));
    }
    assert_eq!(Recording::decode(&redacted.encode()), Ok(redacted));
}
