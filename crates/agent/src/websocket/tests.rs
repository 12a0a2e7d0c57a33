//! Connections over sockets within this process, with a clock that the test controls: timeouts, waiting, and the ways in which a
//! connection ends.

use super::*;
use mio::{Events, Poll, net::UnixStream as Polled};
use std::{
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
};

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: gate\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const ASKING: Duration = Duration::from_secs(3);
const VANISHED: Duration = Duration::from_secs(120);

/// Connections, and a manual clock.
struct Bench {
    poll: Poll,
    all: WebSockets,
    now: Instant,
    inputs: VecDeque<AgentInput>,
    /// Whether clients connect through a proxy that sends a header first.
    proxied: bool,
    /// The clients with a request, by address; and why others were closed before it.
    asked: Vec<Result<SocketAddr, ProxyError>>,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let all = WebSockets::new(ASKING, VANISHED, now);
        Self {
            poll: Poll::new().unwrap(),
            all,
            now,
            inputs: VecDeque::new(),
            proxied: false,
            asked: Vec::new(),
        }
    }

    /// A client that has connected and sent nothing; its end does not block.
    fn connect(&mut self) -> UnixStream {
        let (client, ours) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        ours.set_nonblocking(true).unwrap();
        let socket = Socket::Unix(Polled::from_std(ours));
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        let arrived = Arrived { listener: 0, client: from, local: from };
        self.all.accept(self.poll.registry(), socket, (arrived, self.proxied), self.now).unwrap();
        client
    }

    /// Handles ready sockets, without waiting for more.
    fn look(&mut self) {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        for event in &events {
            self.all.on_event(token::split(event.token()).1, event);
        }
    }

    /// The clients' inputs up to now; requests are granted.
    fn hear(&mut self) -> Vec<AgentInput> {
        self.look();
        let mut heard: Vec<AgentInput> = self.inputs.drain(..).collect();
        while let Some(came) = self.all.next(self.now, |_| &[]) {
            match came {
                WebSocketInput::Input(input) => heard.push(input),
                WebSocketInput::Asked { connection, arrived, .. } => {
                    self.asked.push(Ok(arrived.client));
                    self.all.grant(connection);
                }
                WebSocketInput::Unproxied { error, .. } => self.asked.push(Err(error)),
            }
        }
        self.all.flush(self.now, &mut self.inputs);
        heard.extend(self.inputs.drain(..));
        heard
    }

    /// A client that was admitted, and its connection.
    fn upgrade(&mut self) -> (UnixStream, ConnectionId) {
        let mut client = self.connect();
        let connection = ConnectionId(OURS | (self.all.accepted - 1));
        client.write_all(ASK).unwrap();
        assert_eq!(self.hear(), []);
        assert!(read(&mut client).starts_with(b"HTTP/1.1 101 "));
        (client, connection)
    }

    /// Advances the clock.
    fn wait(&mut self, time: Duration) -> Vec<AgentInput> {
        self.now += time;
        self.all.expire(self.now, &mut self.inputs);
        self.hear()
    }
}

/// The bytes that a client has received.
fn read(client: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Ends with the available bytes: the socket does not block.
    let _ = client.read_to_end(&mut bytes);
    bytes
}

/// Whether a client's connection has ended and nothing is left to read.
fn is_closed(client: &mut UnixStream) -> bool {
    matches!(client.read(&mut [0]), Ok(0))
        || client.read(&mut [0]).is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock)
}

/// A short frame of a client, with a mask of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, 0x80 | u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    bytes
}

fn received(connection: ConnectionId, text: &'static str) -> AgentInput {
    AgentInput::Received { connection, bytes: Bytes::from_static(text.as_bytes()) }
}

#[test]
fn a_proxys_header_names_the_client_before_its_request() {
    use marram_session::agent::proxy::{ProxyAddresses, write};
    let mut bench = Bench { proxied: true, ..Bench::new() };
    let source = SocketAddr::from(([192, 0, 2, 1], 40_000));
    let header = write(Some(ProxyAddresses { source, destination: ([192, 0, 2, 2], 80).into() }));
    let asked = [&header[..], ASK].concat();
    // The request is cut at any position. All clients stay, so that none is seen to leave.
    let mut clients = Vec::new();
    for cut in [1, header.len() - 1, header.len(), header.len() + 3, asked.len() - 1, asked.len()] {
        let mut client = bench.connect();
        client.write_all(&asked[..cut]).unwrap();
        assert_eq!(bench.hear(), []);
        client.write_all(&asked[cut..]).unwrap();
        assert_eq!(bench.hear(), []);
        assert!(read(&mut client).starts_with(b"HTTP/1.1 101 "), "{cut}");
        assert_eq!(bench.asked.pop(), Some(Ok(source)));
        clients.push(client);
    }
    let mut client = bench.connect();
    client.write_all(ASK).unwrap();
    assert_eq!(bench.hear(), []);
    assert!(is_closed(&mut client));
    assert_eq!(bench.asked.pop(), Some(Err(ProxyError::Absent)));
}

#[test]
fn a_client_without_a_request_times_out() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.write_all(&ASK[..50]).unwrap();
    assert_eq!(bench.wait(ASKING - Duration::from_millis(1)), []);
    assert_eq!(
        (read(&mut client), bench.all.deadline()),
        (vec![], Some(bench.now + Duration::from_millis(1)))
    );
    assert_eq!(bench.wait(Duration::from_millis(1)), [], "no session knew of it");
    assert!(read(&mut client).starts_with(b"HTTP/1.1 408 ") && bench.all.is_empty());
    // A client that sent its request in time has no deadline, except for the check for unreachable peers.
    let (_client, connection) = bench.upgrade();
    assert_eq!(bench.wait(Duration::from_secs(3_600)), []);
    assert!(bench.all.has(connection));
}

#[test]
fn of_too_many_clients_without_a_request_the_oldest_is_closed() {
    let mut bench = Bench::new();
    bench.all.asking_max = 2;
    let (_talks, connection) = bench.upgrade();
    let mut clients = [(); 3].map(|()| bench.connect());
    assert_eq!(clients.each_mut().map(is_closed), [true, false, false]);
    assert!(bench.all.has(connection), "who has asked does not count");
}

#[test]
fn refused_clients_that_stay_count_and_are_closed_first() {
    let mut bench = Bench::new();
    bench.all.asking_max = 2;
    let asks = bench.connect();
    let mut refused = bench.connect();
    refused.write_all(b"\x16\x03\x01").unwrap();
    assert_eq!(bench.hear(), []);
    assert!(read(&mut refused).starts_with(b"HTTP/1.1 400 "));
    let other = bench.connect();
    assert_eq!([asks, refused, other].each_mut().map(is_closed), [false, true, false]);
    assert_eq!(bench.all.all.len(), 2);
}

#[test]
fn a_request_in_time_is_accepted_even_if_it_is_read_late() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.write_all(ASK).unwrap();
    bench.look();
    assert_eq!(bench.wait(ASKING), []);
    assert!(read(&mut client).starts_with(b"HTTP/1.1 101 "));
}

#[test]
fn a_head_that_is_too_long_is_refused_however_it_comes() {
    let head = |more: usize| {
        let line = format!("X: {}\r\n\r\n", "x".repeat(more));
        [&ASK[..ASK.len() - 2], line.as_bytes()].concat()
    };
    let fits = HEAD_MAX - head(0).len();
    for (more, expected) in [(fits, "HTTP/1.1 101 "), (fits + 1, "HTTP/1.1 431 ")] {
        for cut in [1, 5_000, head(more).len() - 2, head(more).len()] {
            let mut bench = Bench::new();
            let mut client = bench.connect();
            for piece in [&head(more)[..cut], &head(more)[cut..]] {
                client.write_all(piece).unwrap();
                assert_eq!(bench.hear(), []);
            }
            let answer = read(&mut client);
            assert!(answer.starts_with(expected.as_bytes()), "{more} {cut}");
        }
    }
}

#[test]
fn clients_that_say_nothing_of_use_do_not_hold_up_others() {
    let mut bench = Bench::new();
    let mut clients: Vec<_> = (0..=FRUITLESS_MAX).map(|_| bench.upgrade().0).collect();
    for client in &mut clients {
        client.write_all(&frame(0x8a, b"?")).unwrap();
    }
    for _ in 0..3 {
        bench.look();
    }
    assert!(bench.all.next(bench.now, |_| &[]).is_none());
    assert_eq!(bench.all.ready.len(), 1, "the rest is for later");
    assert!(bench.all.next(bench.now, |_| &[]).is_none() && bench.all.is_busy());
    assert_eq!(bench.hear(), []);
    assert_eq!(bench.hear(), []);
    assert!(!bench.all.is_busy());
}

#[test]
fn each_has_one_turn_at_a_time() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    for n in 0..3 {
        client.write_all(&frame(0x81, b"hi")).unwrap();
        bench.look();
        bench.all.set_reading(connection, true);
        assert_eq!(bench.all.ready, [connection], "{n}");
    }
    assert_eq!(bench.hear(), vec![received(connection, "hi"); 3]);
}

#[test]
fn of_too_much_that_is_not_whole_the_oldest_goes() {
    let mut bench = Bench::new();
    bench.all.unfinished.max = 250;
    let mut talks = [(); 3].map(|()| bench.upgrade());
    let part = [0x7_u8; 100];
    // The first message of all completes in time, although its client also sends pings.
    talks[0].0.write_all(&frame(0x02, &part)).unwrap();
    talks[0].0.write_all(&frame(0x89, &part)).unwrap();
    assert_eq!(bench.hear(), []);
    talks[0].0.write_all(&frame(0x80, b"")).unwrap();
    assert!(matches!(&bench.hear()[..], [AgentInput::Received { bytes, .. }] if bytes == &part[..]));
    let [_, second, third] = &mut talks;
    second.0.write_all(&frame(0x02, &part)).unwrap();
    assert_eq!(bench.hear(), []);
    third.0.write_all(&frame(0x02, &part)).unwrap();
    assert_eq!(bench.hear(), []);
    third.0.write_all(&frame(0x00, &part)).unwrap();
    assert_eq!(bench.hear(), [AgentInput::Broken { connection: second.1 }]);
    assert_eq!(read(&mut second.0)[2..4], 1013_u16.to_be_bytes());
    third.0.write_all(&frame(0x80, b"")).unwrap();
    assert!(matches!(&bench.hear()[..], [AgentInput::Received { bytes, .. }] if bytes.len() == 200));
}

#[test]
fn data_right_after_the_request_is_read() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.write_all(&[ASK, &frame(0x81, b"hi")].concat()).unwrap();
    assert_eq!(bench.hear(), [received(ConnectionId(OURS), "hi")]);
}

#[test]
fn nothing_is_read_while_the_reader_is_paused() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    bench.all.set_reading(connection, false);
    client.write_all(&[frame(0x81, b"one"), frame(0x81, b"two")].concat()).unwrap();
    assert_eq!(bench.hear(), []);
    assert!(!bench.all.is_busy(), "it does not turn in circles meanwhile");
    bench.all.set_reading(connection, true);
    assert_eq!(bench.hear(), [received(connection, "one"), received(connection, "two")]);
}

#[test]
fn many_pings_have_few_answers() {
    let mut bench = Bench::new();
    let (mut client, _) = bench.upgrade();
    let pings: Vec<u8> = (0..1_000_u32).flat_map(|n| frame(0x89, &n.to_le_bytes())).collect();
    client.write_all(&pings).unwrap();
    assert_eq!(bench.hear(), []);
    let answers = read(&mut client);
    assert_eq!(answers[..6], [0x8a, 4, 0, 0, 0, 0]);
    assert!(
        answers.len() <= 3 * 6 && answers.ends_with(&999_u32.to_le_bytes()),
        "the last is answered: {answers:?}"
    );
}

#[test]
fn what_is_written_is_counted_by_messages() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    for message in ["", "abc"] {
        bench.all.push(connection, Bytes::from_static(message.as_bytes()));
    }
    assert_eq!(bench.hear(), [AgentInput::Written { connection, bytes: 3 }]);
    assert_eq!(read(&mut client), [0x81, 0, 0x81, 3, b'a', b'b', b'c']);
    bench.all.push(connection, Bytes::new());
    assert_eq!(bench.hear(), [AgentInput::Written { connection, bytes: 0 }]);
    // More than the socket takes: the rest is counted when it is written.
    let long = Bytes::from(vec![0xff; 1 << 20]);
    bench.all.push(connection, long.clone());
    assert_eq!(bench.hear(), []);
    let (mut got, mut counted) = (0, Vec::new());
    while counted.is_empty() {
        let came = read(&mut client).len();
        assert_ne!(came, 0, "it stopped at {got}");
        got += came;
        counted = bench.hear();
    }
    got += read(&mut client).len();
    assert_eq!(
        (got, counted),
        (2 + 10 + long.len(), vec![AgentInput::Written { connection, bytes: 1 << 20 }])
    );
}

#[test]
fn a_client_that_closes_is_answered_when_the_cell_is_done() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    client.write_all(&frame(0x88, &[3, 233])).unwrap();
    assert_eq!(bench.hear(), [AgentInput::EndOfInput { connection }]);
    assert_eq!(read(&mut client), []);
    bench.all.push(connection, Bytes::from_static(b"last"));
    bench.all.shutdown(connection);
    bench.all.close(connection);
    bench.hear();
    assert_eq!(read(&mut client), b"\x81\x04last\x88\x02\x03\xe8");
    assert!(is_closed(&mut client) && bench.all.is_empty());
}

#[test]
fn a_cell_that_never_closes_is_not_waited_for_by_its_client() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    client.write_all(&frame(0x88, &[])).unwrap();
    assert_eq!(bench.hear(), [AgentInput::EndOfInput { connection }]);
    assert_eq!(bench.wait(CLOSING), [AgentInput::Broken { connection }]);
    assert_eq!(read(&mut client), [0x88, 2, 3, 232]);
    assert!(bench.all.is_empty());
}

#[test]
fn a_client_that_closes_and_goes_lets_its_session_end_in_order() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    client.write_all(&frame(0x88, &[])).unwrap();
    drop(client);
    assert_eq!(bench.hear(), [AgentInput::EndOfInput { connection }]);
    assert!(bench.all.has(connection) && !bench.all.is_busy());
    bench.all.close(connection);
    bench.hear();
    assert!(bench.all.is_empty());
    // A client that leaves without a close has broken its session.
    let (client, connection) = bench.upgrade();
    drop(client);
    assert_eq!(bench.hear(), [AgentInput::Broken { connection }]);
}

#[test]
fn a_session_that_ends_sends_its_client_the_reason() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    bench.all.fail(bench.now, connection, Code::NoEdge, "no edge took it");
    assert_eq!(bench.hear(), []);
    assert_eq!(read(&mut client), b"\x88\x11\x03\xf5no edge took it");
    // Its input is ignored from now on, and it is closed by timeout if it does not close.
    client.write_all(&frame(0x81, b"but")).unwrap();
    assert_eq!(bench.hear(), []);
    assert!(bench.all.has(connection));
    assert_eq!(bench.wait(CLOSING), []);
    assert!(is_closed(&mut client) && bench.all.is_empty());
}

#[test]
fn a_client_that_does_not_close_after_the_cell_did_is_given_up() {
    let mut bench = Bench::new();
    let (mut client, connection) = bench.upgrade();
    bench.all.shutdown(connection);
    assert_eq!(bench.hear(), []);
    client.write_all(&frame(0x81, b"late")).unwrap();
    assert_eq!(bench.hear(), [received(connection, "late")], "it may speak until it closes");
    assert_eq!(bench.wait(CLOSING), [AgentInput::Broken { connection }]);
    assert!(bench.all.is_empty());
}
