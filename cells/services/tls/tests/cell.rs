//! The cell between a real TLS client, with another provider, and a server without TLS; natively, in memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use marram_sdk::double::{Output, Random, Session};
use marram_sdk::{Port, PortKind};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite};
use std::io::{Read, Write};
use std::sync::Arc;
use tls::Tls;

const ED25519: (&[u8], &[u8]) = (include_bytes!("data/ed25519.pem"), include_bytes!("data/ed25519.key"));
const P256: (&[u8], &[u8]) = (include_bytes!("data/p256.pem"), include_bytes!("data/p256.key"));

/// A cell whose host signs with the key, before and after a move to another machine.
fn cell((certificate, key): (&[u8], &[u8])) -> Session<Tls> {
    let mut session = Session::of(Tls::with(certificate, "http/1.1\n").unwrap());
    let key =
        rustls::crypto::ring::sign::any_supported_type(&PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap();
    session.key(Box::new(move |message| {
        let scheme = [rustls::SignatureScheme::ED25519, rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
        key.choose_scheme(&scheme).unwrap().sign(message).unwrap()
    }));
    assert_eq!(session.open_client(), []);
    assert_eq!(session.open_server(), []);
    session
}

fn client_config(certificate: &[u8], suite: Option<CipherSuite>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate).unwrap()).unwrap();
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .retain(|ours: &SupportedCipherSuite| suite.is_none_or(|suite| ours.suite() == suite));
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn client(config: ClientConfig) -> ClientConnection {
    ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
}

/// The cell's output: to the client, to the server, and which ports it closed.
#[derive(Default)]
struct Sent {
    client: Vec<u8>,
    server: Vec<u8>,
    closed: Vec<Port>,
}

impl Sent {
    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Message { port: Port::CLIENT, payload } => {
                    assert!(!self.closed.contains(&Port::CLIENT), "nothing is said behind the last word");
                    self.client.extend(payload);
                }
                Output::Message { payload, .. } => self.server.extend(payload),
                Output::Close { port } => self.closed.push(port),
                Output::Connect { server, .. } => panic!("it connects to {server}"),
            }
        }
    }
}

/// Carries bytes between client and cell, split anywhere, until neither has more to send.
fn converse(
    client: &mut ClientConnection,
    cell: &mut Session<Tls>,
    sent: &mut Sent,
    random: &mut Random,
) -> Vec<u8> {
    support::converse(client, |wire| {
        let mut rest = wire;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + random.below(300)).min(rest.len()));
            sent.take(cell.message(Port::CLIENT, piece));
            rest = behind;
        }
        std::mem::take(&mut sent.client)
    })
}

#[test]
fn a_client_and_a_server_understand_each_other_however_the_stream_is_cut() {
    let suites = [None, Some(CipherSuite::TLS13_AES_128_GCM_SHA256)];
    for (seed, (keys, suite)) in
        (1..).zip([ED25519, P256].into_iter().flat_map(|keys| suites.map(|suite| (keys, suite))))
    {
        for seed in (seed * 100)..(seed * 100 + 20) {
            let mut random = Random::new(seed);
            let (mut cell, mut sent) = (cell(keys), Sent::default());
            let mut config = client_config(keys.0, suite);
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let mut client = client(config);
            converse(&mut client, &mut cell, &mut sent, &mut random);
            assert!(!client.is_handshaking());
            assert_eq!(client.alpn_protocol(), Some(&b"http/1.1"[..]));
            let used = client.negotiated_cipher_suite().unwrap().suite();
            assert_eq!(used, suite.unwrap_or(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256));

            let question: Vec<u8> = (0..random.below(100_000)).map(|n| n.to_le_bytes()[0]).collect();
            client.set_buffer_limit(None);
            client.writer().write_all(&question).unwrap();
            converse(&mut client, &mut cell, &mut sent, &mut random);
            assert_eq!(sent.server, question);

            let answer: Vec<u8> = (0..random.below(100_000)).map(|n| n.to_le_bytes()[1]).collect();
            let mut heard = Vec::new();
            for piece in answer.chunks(1 + random.below(40_000)) {
                sent.take(cell.message(Port::SERVER, piece));
                heard.extend(converse(&mut client, &mut cell, &mut sent, &mut random));
            }
            assert_eq!(heard, answer);
            assert_eq!(sent.closed, []);
        }
    }
}

#[test]
fn each_side_may_be_done_before_the_other() {
    for client_first in [true, false] {
        let (mut cell, mut sent, mut random) = (cell(ED25519), Sent::default(), Random::new(7));
        let mut client = client(client_config(ED25519.0, None));
        converse(&mut client, &mut cell, &mut sent, &mut random);
        for of_client in [client_first, !client_first] {
            if of_client {
                client.writer().write_all(b"my last word").unwrap();
                client.send_close_notify();
                converse(&mut client, &mut cell, &mut sent, &mut random);
                assert_eq!(std::mem::take(&mut sent.server), b"my last word");
                assert_eq!(std::mem::take(&mut sent.closed), [Port::SERVER]);
                // The end of the stream follows; it has no effect.
                sent.take(cell.close(Port::CLIENT));
                assert_eq!(sent.closed, []);
            } else {
                sent.take(cell.message(Port::SERVER, b"and mine"));
                sent.take(cell.close(Port::SERVER));
                assert_eq!(converse(&mut client, &mut cell, &mut sent, &mut random), b"and mine");
                assert_eq!(client.reader().read(&mut [0]).unwrap(), 0, "an end that was said");
                assert_eq!(std::mem::take(&mut sent.closed), [Port::CLIENT]);
            }
        }
    }
}

#[test]
fn a_client_that_sends_after_the_servers_close_is_read_and_not_answered() {
    for garbage in [false, true] {
        let (mut cell, mut sent, mut random) = (cell(ED25519), Sent::default(), Random::new(10));
        let mut client = client(client_config(ED25519.0, None));
        converse(&mut client, &mut cell, &mut sent, &mut random);
        sent.take(cell.close(Port::SERVER));
        assert_eq!(sent.closed, [Port::CLIENT]);
        // The client updates its keys, and the cell answers with new keys.
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(b"one more thing").unwrap();
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        if garbage {
            wire.extend_from_slice(&[0; 30]);
        }
        sent.client.clear();
        sent.take(cell.message(Port::CLIENT, &wire));
        assert_eq!(sent.server, b"one more thing");
        assert_eq!(sent.closed.contains(&Port::SERVER), garbage);
    }
}

#[test]
fn a_further_client_of_a_shared_cell_receives_and_sends_nothing() {
    let (mut cell, mut sent, mut random) = (cell(ED25519), Sent::default(), Random::new(11));
    let mut client = client(client_config(ED25519.0, None));
    converse(&mut client, &mut cell, &mut sent, &mut random);
    let further = Port(2);
    assert_eq!(cell.open(further, PortKind::Client), [Output::close(further)]);
    assert_eq!(cell.message(further, b"let me in"), []);
    assert_eq!(cell.close(further), []);
}

#[test]
fn data_of_a_server_that_sends_first_is_delivered_after_the_handshake() {
    let (mut cell, mut sent, mut random) = (cell(ED25519), Sent::default(), Random::new(8));
    sent.take(cell.message(Port::SERVER, b"220 ready"));
    sent.take(cell.close(Port::SERVER));
    assert!(sent.client.is_empty() && sent.closed.is_empty());
    let mut client = client(client_config(ED25519.0, None));
    assert_eq!(converse(&mut client, &mut cell, &mut sent, &mut random), b"220 ready");
    assert_eq!(sent.closed, [Port::CLIENT]);
}

#[test]
fn a_server_that_never_stops_before_the_handshake_is_cut_off() {
    let (mut cell, mut sent) = (cell(ED25519), Sent::default());
    for _ in 0..17 {
        assert_eq!(sent.closed, []);
        sent.take(cell.message(Port::SERVER, &[0; 1 << 16]));
    }
    assert_eq!(sent.closed, [Port::SERVER, Port::CLIENT]);
    assert!(cell.lines()[0].1.contains("before the handshake"), "{:?}", cell.lines());
}

#[test]
fn what_is_no_tls_gets_an_alert_and_is_closed() {
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0],
        &[0x16, 3, 1, 0xff, 0xff],
        &[0; 64],
    ] {
        let (mut cell, mut sent) = (cell(ED25519), Sent::default());
        sent.take(cell.message(Port::CLIENT, garbage));
        // | alert | version 3.3 or 3.1 | length 2 | fatal | why |
        assert_eq!(
            (sent.client.len(), &sent.client[..1], sent.client[5]),
            (7, &[0x15][..], 2),
            "{garbage:?}"
        );
        assert_eq!(sent.closed, [Port::SERVER, Port::CLIENT]);
        assert!(sent.server.is_empty());
        assert_eq!(cell.message(Port::CLIENT, b"more"), []);
        assert_eq!(cell.message(Port::SERVER, b"more"), []);
        assert_eq!(cell.close(Port::CLIENT), []);
    }
}

#[test]
fn every_flipped_bit_of_a_conversation_is_noticed_and_never_a_panic() {
    const SECRET: &[u8] = b"a secret word";
    let mut random = Random::new(9);
    for round in 0..300 {
        let (mut cell, mut sent) = (cell(ED25519), Sent::default());
        let mut client = client(client_config(ED25519.0, None));
        if round % 2 == 1 {
            converse(&mut client, &mut cell, &mut sent, &mut random);
            client.writer().write_all(SECRET).unwrap();
        }
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        let at = random.below(wire.len());
        wire[at] ^= 1 << random.below(8);
        sent.take(cell.message(Port::CLIENT, &wire));
        // For a record's type and version, rustls authenticates the values that TLS 1.3 prescribes, whatever was received: a
        // flipped bit there may pass, but cannot change the text.
        let is_unchanged = at < 3 && sent.server == SECRET;
        if round % 2 == 1 {
            assert!(
                sent.server.is_empty() || is_unchanged,
                "a record with a flipped bit at {at} was believed"
            );
        }
    }
}

#[test]
fn a_client_that_leaves_in_the_handshake_ends_the_session() {
    let (mut cell, mut sent) = (cell(ED25519), Sent::default());
    sent.take(cell.message(Port::CLIENT, &[0x16, 3, 1]));
    sent.take(cell.close(Port::CLIENT));
    assert_eq!(sent.closed, [Port::SERVER, Port::CLIENT]);
}

#[test]
fn a_client_with_other_protocols_or_older_tls_gets_an_alert() {
    for (offer, older) in [(&b"h2"[..], false), (b"", true)] {
        let (mut cell, mut sent) = (cell(ED25519), Sent::default());
        let mut config = client_config(ED25519.0, None);
        if older {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let versions = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&rustls::version::TLS12]);
            config = versions.unwrap().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        } else {
            config.alpn_protocols = vec![offer.to_vec()];
        }
        let mut client = client(config);
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        sent.take(cell.message(Port::CLIENT, &wire));
        assert_eq!(sent.closed, [Port::SERVER, Port::CLIENT]);
        client.read_tls(&mut &sent.client[..]).unwrap();
        let told = client.process_new_packets().unwrap_err().to_string();
        assert!(told.contains(if older { "ProtocolVersion" } else { "NoApplicationProtocol" }), "{told}");
    }
}

#[test]
fn wrong_files_are_refused_in_words() {
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (file, words) in [
        (&b""[..], "holds no certificate"),
        (ED25519.1, "holds no certificate"),
        (garbage.as_bytes(), "makes no sense"),
        (b"-----BEGIN CERTIFICATE-----\n", "no PEM"),
        (include_bytes!("data/rsa.pem"), "neither Ed25519 nor on P-256"),
    ] {
        let error = Tls::with(file, "").err().unwrap();
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    }
}
