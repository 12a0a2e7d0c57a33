//! Wires over loopback: every way to connect one, and every way in which it is refused.

use super::{wire::ReadProgress, *};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointPart, Frame, Input, Ping},
    rights::{Rights, Verified},
};
use mio::{Events, Interest, Poll, Token};
use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const DEADLINE: Duration = Duration::from_secs(20);

fn security(token: Option<&str>) -> Security {
    Security { token: token.map(str::to_string), ..Security::default() }
}

/// A certificate authority and its certificates.
struct Authority {
    pem: Vec<u8>,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("random");
        let pem = params.self_signed(&key).expect("signed").pem().into_bytes();
        Self { pem, issuer: rcgen::Issuer::new(params, key) }
    }

    fn sign(&self, name: &str) -> Identity {
        let key = rcgen::KeyPair::generate().expect("random");
        let params = rcgen::CertificateParams::new(vec![name.to_string()]).expect("a name");
        let chain = params.signed_by(&key, &self.issuer).expect("signed");
        Identity { chain_pem: chain.pem().into_bytes(), key_pem: key.serialize_pem().into_bytes() }
    }
}

/// Both ends of a connection, stepped until something is decided.
struct Pair {
    poll: Poll,
    agent: Wire,
    edge: Option<Wire>,
    accepted: TcpStream,
    acceptor: WireAcceptor,
}

/// The result of each side: up, or the error.
type Outcome = (Result<(), String>, Result<(), String>);

impl Pair {
    fn new(agent: &Security, edge: &Security) -> Result<Self, Box<dyn std::error::Error>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut wire = WireConnector::new(agent)?.dial(listener.local_addr()?, "localhost", 3)?;
        let (accepted, _) = listener.accept()?;
        let poll = Poll::new()?;
        poll.registry().register(wire.socket(), Token(0), Interest::READABLE | Interest::WRITABLE)?;
        let acceptor = WireAcceptor::new(&WireAcceptor::complete(edge)?)?;
        Ok(Self { poll, agent: wire, edge: None, accepted, acceptor })
    }

    /// What the supervisor does before a shard sees the connection.
    fn lobby(&mut self) -> PreambleVerdict {
        self.agent.flush().expect("connected");
        let mut bytes = [0; PREAMBLE_SIZE];
        self.accepted.read_exact(&mut bytes).expect("a preamble");
        let preamble = Preamble::decode(bytes).expect("our own");
        assert_eq!(preamble.shard, 3);
        let verdict = self.acceptor.judge(preamble, true);
        self.accepted.write_all(&PreambleAnswer::new(verdict).encode()).expect("open");
        if verdict == PreambleVerdict::Welcome {
            let stream = self.accepted.try_clone().expect("a descriptor");
            stream.set_nonblocking(true).expect("a socket");
            let socket = Socket::tcp(mio::net::TcpStream::from_std(stream)).expect("a socket");
            let mut edge = self.acceptor.accept(socket, preamble.tls).expect("a session");
            let interests = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(edge.socket(), Token(1), interests).expect("a socket");
            edge.flush().expect("open");
            self.edge = Some(edge);
        }
        verdict
    }

    fn run(&mut self) -> Outcome {
        self.lobby();
        let mut ends = [None, None];
        let started = Instant::now();
        while ends.iter().any(Option::is_none) {
            assert!(started.elapsed() < DEADLINE, "nothing was decided");
            let sides = [Some(&mut self.agent), self.edge.as_mut()];
            for (wire, end) in sides.into_iter().zip(&mut ends) {
                let Some(wire) = wire else {
                    *end = Some(Err("not passed on".into()));
                    continue;
                };
                if end.is_none() {
                    *end = step(wire).transpose();
                    if end.as_ref().is_some_and(Result::is_err) {
                        wire.close();
                        wire.socket().shutdown_write().ok();
                    }
                }
            }
            self.poll.poll(&mut Events::with_capacity(8), Some(Duration::from_millis(5))).expect("a poll");
        }
        let [agent, edge] = ends;
        (agent.expect("decided"), edge.expect("decided"))
    }
}

/// Reads available bytes; whether the wire is up now, or why it failed.
fn step(wire: &mut Wire) -> Result<Option<()>, String> {
    loop {
        match wire.read() {
            Ok(ReadProgress::Nothing) => break,
            Ok(_) => {}
            Err(error) => {
                let _ = wire.flush();
                return Err(error.to_string());
            }
        }
    }
    wire.flush().map_err(|error| error.to_string())?;
    Ok(wire.is_up().then_some(()))
}

fn outcome(agent: &Security, edge: &Security) -> Outcome {
    Pair::new(agent, edge).expect("both are configured well").run()
}

#[test]
fn wires_stand_in_every_mode() {
    let authority = Authority::new();
    let edge_signed = Security { identity: Some(authority.sign("localhost")), ..Security::default() };
    let trusting = Security { ca_pem: Some(authority.pem.clone()), ..Security::default() };
    let mutual = Security { ca_pem: Some(authority.pem.clone()), ..edge_signed.clone() };
    let known = Security { identity: Some(authority.sign("agent")), ..trusting.clone() };
    let plain_token = Security { insecure_plain: true, ..security(Some("t")) };
    let all = Security { token: Some("t".into()), ..known.clone() };
    let edge_all = Security { token: Some("t".into()), ..mutual.clone() };
    for (name, agent, edge) in [
        ("plain", &security(None), &security(None)),
        ("plain with a token", &plain_token, &security(Some("t"))),
        ("a token alone", &security(Some("t")), &security(Some("t"))),
        ("a ca", &trusting, &edge_signed),
        ("certificates both ways", &known, &mutual),
        ("certificates and a token", &all, &edge_all),
    ] {
        assert_eq!(outcome(agent, edge), (Ok(()), Ok(())), "{name}");
    }
}

#[test]
fn each_refusal_says_what_to_do() {
    let (authority, other) = (Authority::new(), Authority::new());
    let edge_signed = Security { identity: Some(authority.sign("localhost")), ..Security::default() };
    let elsewhere = Security { identity: Some(authority.sign("other.example")), ..Security::default() };
    let mutual = Security { ca_pem: Some(authority.pem.clone()), ..edge_signed.clone() };
    let trusting = Security { ca_pem: Some(authority.pem.clone()), ..Security::default() };
    let misled = Security { ca_pem: Some(other.pem.clone()), ..Security::default() };
    let plain_token = Security { insecure_plain: true, ..security(Some("x")) };
    for (agent, edge, agent_says, edge_says) in [
        (&security(Some("a")), &security(Some("b")), "different tokens", "different tokens"),
        (&plain_token, &security(Some("y")), "different tokens", "different tokens"),
        (&security(None), &security(Some("b")), "requires a token", "not passed on"),
        (&plain_token, &security(None), "the edge has none", "not passed on"),
        (&security(Some("a")), &security(None), "cannot encrypt", "not passed on"),
        (&misled, &edge_signed, "compare the ca", "does not trust this side"),
        (&trusting, &elsewhere, "does not contain the name", "certificate"),
        (&trusting, &mutual, "give this agent certificate and key", "presented no certificate"),
    ] {
        let (at_agent, at_edge) = outcome(agent, edge);
        let (at_agent, at_edge) = (at_agent.expect_err(agent_says), at_edge.expect_err(edge_says));
        assert!(at_agent.contains(agent_says), "the agent says: {at_agent}");
        assert!(at_edge.contains(edge_says), "the edge says: {at_edge}");
    }
}

#[test]
fn plain_needs_loopback_or_the_word() {
    let plain = Preamble { shard: 0, tls: false, token: false };
    let closed = WireAcceptor::new(&security(None)).expect("nothing to read");
    let open = Security { insecure_plain: true, ..security(None) };
    let open = WireAcceptor::new(&open).expect("nothing to read");
    assert_eq!(closed.judge(plain, true), PreambleVerdict::Welcome);
    assert_eq!(closed.judge(plain, false), PreambleVerdict::PlainRefused);
    assert_eq!(open.judge(plain, false), PreambleVerdict::Welcome);
    let remote = "192.0.2.1:1".parse().expect("an address");
    let agent = WireConnector::new(&security(None)).expect("nothing to read");
    let error = agent.dial(remote, "192.0.2.1", 0).err().expect("refused").to_string();
    assert!(error.contains("insecure_plain"), "{error}");
    let own = Security { identity: Some(Authority::new().sign("x")), ..Security::default() };
    let error = WireConnector::new(&own).err().expect("no one to trust").to_string();
    assert!(error.contains("give it a ca or a token"), "{error}");
}

#[test]
fn frames_flow_both_ways_and_a_slow_reader_holds_them_up() {
    for agent in [security(None), security(Some("t"))] {
        let mut pair = Pair::new(&agent, &agent).expect("configured well");
        assert_eq!(pair.run(), (Ok(()), Ok(())));
        let edge = pair.edge.as_mut().expect("up");
        let large: Frame =
            Input { channel: 2, ack: 0, close: false, payload: Bytes::from(vec![7; 1 << 20]) }.into();
        let count = 40;
        for stamp in 0..count {
            edge.send(Ping { stamp }.into());
            edge.send(large.clone());
        }
        // The peer does not read: the kernel takes some, the rest waits here by reference.
        assert!(!edge.flush().expect("open"));
        let waiting = edge.unwritten();
        assert!(!edge.flush().expect("open"));
        assert_eq!(edge.unwritten(), waiting);
        let (mut got, started) = (0, Instant::now());
        while got < 2 * count {
            assert!(started.elapsed() < DEADLINE, "{got} frames");
            edge.flush().expect("open");
            pair.agent.read().expect("open");
            while let Some(frame) = pair.agent.next_frame().expect("well-formed") {
                let expected = if got % 2 == 0 { Ping { stamp: got / 2 }.into() } else { large.clone() };
                assert_eq!(frame, expected);
                got += 1;
            }
        }
        assert_eq!(edge.unwritten(), 0);
    }
}

#[test]
fn checkpoints_may_wait_in_any_amount_and_other_unread_frames_may_not() {
    let mut pair = Pair::new(&security(None), &security(None)).expect("configured well");
    assert_eq!(pair.run(), (Ok(()), Ok(())));
    let payload = Bytes::from(vec![7; 1 << 20]);
    let over_the_limit = wire::UNREAD_MAX / payload.len() + 10;
    for _ in 0..over_the_limit {
        pair.agent.send(CheckpointPart { channel: 2, bytes: payload.clone() }.into());
    }
    assert!(!pair.agent.flush().expect("its end keeps the checkpoint anyway"));
    assert!(pair.agent.unwritten() > wire::UNREAD_MAX);
    let input = Input { channel: 2, ack: 0, close: false, payload };
    for _ in 0..over_the_limit {
        pair.agent.send(input.clone().into());
    }
    assert!(matches!(pair.agent.flush(), Err(WireError::NotRead)));
}

#[test]
fn checkpoints_that_wait_for_their_turn_are_written_without_another_event() {
    const PARTS: usize = 2_000;
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let theirs = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (ours, _) = listener.accept().expect("it connected");
    ours.set_nonblocking(true).expect("a socket");
    let payload = Bytes::from(vec![7; 8 << 10]);
    let total = PARTS * payload.len();
    // A peer that reads as fast as it can, and closes when it has everything.
    let reader = thread::spawn(move || {
        let (mut theirs, mut buffer, mut got) = (theirs, vec![0; 1 << 20], 0);
        while got < total {
            got += theirs.read(&mut buffer).expect("open");
        }
        got
    });
    let mut poll = Poll::new().expect("a poll");
    let mut table = WireTable::new(DEADLINE, false);
    let socket = Socket::tcp(mio::net::TcpStream::from_std(ours)).expect("a socket");
    let wire = Wire::trusted(socket, None);
    let id =
        table.insert(poll.registry(), |_| Token(0), wire, (), Instant::now()).expect("the poll watches it");
    for _ in 0..PARTS {
        table.send(id, CheckpointPart { channel: 2, bytes: payload.clone() }.into());
    }
    let mut events = Events::with_capacity(8);
    loop {
        table.flush();
        let wait = if table.is_busy() { Duration::ZERO } else { DEADLINE };
        poll.poll(&mut events, Some(wait)).expect("a poll");
        assert!(wait.is_zero() || !events.is_empty(), "what is left waits for an event that does not come");
        events.iter().for_each(|event| table.on_event(id, event));
        let mut happened = std::iter::from_fn(|| table.next_happened());
        if happened.any(|(_, event)| matches!(event, WireEvent::Down { .. })) {
            break;
        }
    }
    assert!(reader.join().expect("it only reads") >= total);
}

#[test]
fn garbage_and_truncated_streams_are_distinguished() {
    for (bytes, says) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], "does not use Marram"),
        (&b""[..], "does not use Marram"),
        (&b"MARM"[..], "does not use Marram"),
        (&b"MARM\x01\x07\x09\x00"[..], "upgrade the older"),
        (&b"MARM\x06\x01\x01\x00"[..], "retrying"),
        (&b"MARM\x00\x01\x01\x00x"[..], "closed the connection"),
        (&b"MARM\x00\x01\x01\x00a nonce of thirty-two bytes here\xff\xff\xff\xff"[..], "claims to be larger"),
        (&b"MARM\x00\x01\x01\x00a nonce of thirty-two bytes here\x03\xee\x01\x02"[..], "cannot be decoded"),
        (&b"MARM\x00\x01\x01\x00a nonce of thirty-two bytes here"[..], "closed the connection"),
    ] {
        let mut pair = Pair::new(&security(None), &security(None)).expect("configured well");
        pair.accepted.write_all(bytes).expect("open");
        pair.accepted.shutdown(std::net::Shutdown::Write).expect("open");
        let started = Instant::now();
        let error = loop {
            assert!(started.elapsed() < DEADLINE, "{bytes:?}");
            let read = pair.agent.flush().and_then(|_| pair.agent.read());
            match read.and_then(|_| pair.agent.next_frame()) {
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains(says), "{bytes:?}: {error}");
    }
}

#[test]
fn an_edge_learns_which_agent_it_is_and_what_its_credential_allows() {
    let authority = Authority::new();
    let rights = |servers: &[&str]| Rights {
        client: servers.is_empty(),
        servers: servers.iter().map(|server| server.to_string()).collect(),
        ..Rights::default()
    };
    let credential =
        |name: &str, token: Option<&str>, certificate: Option<&str>, servers: &[&str]| Credential {
            name: name.into(),
            token: token.map(str::to_string),
            certificate: certificate.map(str::to_string),
            rights: rights(servers),
        };
    let edge = Security {
        credentials: vec![
            credential("web", Some("the clients' one"), None, &[]),
            credential("origin", Some("the server's one"), None, &["origin"]),
        ],
        ..Security::default()
    };
    for (token, says) in [("the clients' one", "web"), ("the server's one", "origin")] {
        let verified = verified(&security(Some(token)), &edge).expect(says);
        assert_eq!((verified.credential.as_str(), verified.rights.client), (says, says == "web"));
        assert_eq!(verified.rights.serves("origin"), says == "origin");
        assert_eq!(verified.certificate, None);
    }
    let (at_agent, at_edge) = outcome(&security(Some("another one")), &edge);
    assert!(at_agent.expect_err("unknown").contains("different tokens"));
    assert!(at_edge.expect_err("unknown").contains("different tokens"));

    let site = credential("site", None, Some("site.example"), &["origin"]);
    let signing = Security {
        ca_pem: Some(authority.pem.clone()),
        identity: Some(authority.sign("localhost")),
        credentials: vec![site],
        ..Security::default()
    };
    let with = |name: &str| Security {
        ca_pem: Some(authority.pem.clone()),
        identity: Some(authority.sign(name)),
        ..Security::default()
    };
    let known = verified(&with("site.example"), &signing).expect("a credential names it");
    assert_eq!((known.credential.as_str(), known.certificate.as_deref()), ("site", Some("site.example")));
    assert!(known.rights.serves("origin") && !known.rights.client);
    let error = verified(&with("other.example"), &signing).expect_err("no credential names it");
    assert!(error.contains("other.example") && error.contains("[[credential]]"), "{error}");
}

/// What an edge has verified of an agent, or why it refused it.
fn verified(agent: &Security, edge: &Security) -> Result<Box<Verified>, String> {
    let mut pair = Pair::new(agent, edge).expect("both are configured well");
    let (_, at_edge) = pair.run();
    at_edge.map(|()| pair.edge.as_mut().and_then(Wire::take_verified).expect("it stands"))
}

#[test]
fn an_id_is_the_digest_of_a_key_that_signed_this_connection() {
    let open = security(None);
    let (first, second) = (verified(&open, &open).expect("open"), verified(&open, &open).expect("open"));
    assert_ne!(first.host, second.host, "every start has a key of its own");
    assert_eq!((first.rights, first.credential), (Rights::all(), String::new()));
    let name = format!("marram-net-tests-key-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let keeps = Security { identity_file: Some(path.clone()), ..open.clone() };
    let kept = verified(&keeps, &open).expect("open").host;
    assert_eq!(verified(&keeps, &open).expect("open").host, kept);
    std::fs::remove_file(path).expect("it was made");
}

/// The edge's side of a wire without TLS; the test writes the other side byte by byte. `answer` gets the edge's nonce and returns
/// the bytes to send. Returns the wire's result.
fn answered(edge: &Security, answer: impl FnOnce([u8; 32]) -> Vec<u8>) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut agent = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (accepted, _) = listener.accept().expect("connected");
    accepted.set_nonblocking(true).expect("a socket");
    let socket = Socket::tcp(mio::net::TcpStream::from_std(accepted)).expect("a socket");
    let door = WireAcceptor::new(&WireAcceptor::complete(edge).expect("good")).expect("good");
    let mut wire = door.accept(socket, false).expect("a wire");
    wire.flush().expect("open");
    let mut nonce = [0; 32];
    agent.read_exact(&mut nonce).expect("the edge speaks first");
    agent.write_all(&answer(nonce)).expect("open");
    agent.shutdown(std::net::Shutdown::Write).expect("open");
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < DEADLINE, "nothing was decided");
        match wire.read() {
            Ok(_) if wire.is_up() => return Ok(()),
            Ok(_) => std::thread::yield_now(),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// An honest agent's answer.
fn answer(key: &AgentKey, edge_nonce: [u8; 32], token: Option<&str>) -> Vec<u8> {
    plain_answer(key, token, edge_nonce)
}

#[test]
fn a_signature_that_is_replayed_forged_or_another_keys_is_refused() {
    let open = security(None);
    let (mine, victims) = (AgentKey::generate().expect("random"), AgentKey::generate().expect("random"));
    assert_eq!(answered(&open, |nonce| answer(&mine, nonce, None)), Ok(()));
    let claims = "another agent's id";
    let refused = |edge: &Security, bytes: &dyn Fn([u8; 32]) -> Vec<u8>| {
        answered(edge, bytes).expect_err("it is refused")
    };
    // Recorded on another connection, where the edge had another nonce.
    let mut recorded = Vec::new();
    answered(&open, |nonce| {
        recorded = answer(&victims, nonce, None);
        recorded.clone()
    })
    .expect("the victim's own");
    assert!(refused(&open, &|_| recorded.clone()).contains(claims), "replayed");
    // The victim's public key with the attacker's signature.
    let swapped = |nonce| {
        let mut bytes = answer(&mine, nonce, None);
        bytes[1..33].copy_from_slice(&victims.public());
        bytes
    };
    assert!(refused(&open, &swapped).contains(claims), "another's key");
    for at in [1, 32, 33, 64, 65, 128] {
        let forged = |nonce| {
            let mut bytes = answer(&mine, nonce, None);
            bytes[at] ^= 1;
            bytes
        };
        assert!(refused(&open, &forged).contains(claims), "byte {at} altered");
    }
    assert!(refused(&open, &|_| [&[0][..], &[0xff; 128]].concat()).contains(claims), "a key of no use");
    // A valid signature with another connection's proof of the token.
    let edge = Security { insecure_plain: true, ..security(Some("t")) };
    assert_eq!(answered(&edge, |nonce| answer(&mine, nonce, Some("t"))), Ok(()));
    let mut proof = Vec::new();
    answered(&edge, |nonce| {
        let bytes = answer(&victims, nonce, Some("t"));
        proof = bytes[129..].to_vec();
        bytes
    })
    .expect("the victim's own");
    let stolen = |nonce| [&[1][..], &answer(&mine, nonce, None)[1..], &proof].concat();
    assert!(refused(&edge, &stolen).contains("different tokens"));
    // Truncated, and with wrong flags.
    for length in 0..129 {
        let error = refused(&open, &|nonce| answer(&mine, nonce, None)[..length].to_vec());
        assert!(error.contains("closed the connection"), "{length} bytes: {error}");
    }
    for first in [2, 0x80, 0xff] {
        let error = refused(&open, &|nonce| [&[first][..], &answer(&mine, nonce, None)[1..]].concat());
        assert!(error.contains("something other than an agent's answer"), "{error}");
    }
}

#[test]
fn a_certificate_that_is_demanded_is_demanded_on_loopback() {
    let authority = Authority::new();
    let mutual = Security {
        ca_pem: Some(authority.pem.clone()),
        identity: Some(authority.sign("localhost")),
        ..Security::default()
    };
    for insecure_plain in [false, true] {
        let door = WireAcceptor::new(&Security { insecure_plain, ..mutual.clone() }).expect("good");
        let plain = Preamble { shard: 0, tls: false, token: false };
        assert_eq!(door.judge(plain, true), PreambleVerdict::CertificateMissing);
        assert_eq!(door.judge(Preamble { tls: true, ..plain }, true), PreambleVerdict::Welcome);
    }
    let (at_agent, _) = outcome(&security(None), &mutual);
    let says = at_agent.expect_err("it has none");
    assert!(says.contains("also on loopback"), "{says}");
}
