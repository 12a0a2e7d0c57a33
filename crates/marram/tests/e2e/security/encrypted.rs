//! Sessions over encrypted wires outlive their edges as others do, and their contents cannot be read on the wires.

use crate::support::{self, stream::echo};
use marram_cluster::{LogEvent, TempDir, TestCluster, TestProcess};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Data that passes through the cell, and must not appear on a wire.
const SECRET: &[u8] = b"the tide turns at a quarter past four";
/// The first bytes of a TLS record with a handshake.
const HANDSHAKE: [u8; 2] = [0x16, 0x03];
/// Bytes of the preamble that an agent sends unencrypted.
const PREAMBLE: usize = 8;

/// A relay that records what it forwards: one byte string for each direction of each connection.
#[derive(Clone, Default)]
struct Tap {
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    /// Starts a relay to `target`.
    fn before(&self, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tap = self.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // If the edge is down, the connection fails; dropping `near` closes the agent's connection.
                let Ok(far) = TcpStream::connect(target) else { continue };
                tap.copy(near.try_clone().unwrap(), far.try_clone().unwrap());
                tap.copy(far, near);
            }
        });
        address
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream) {
        let seen = Arc::clone(&self.seen);
        let index = {
            let mut seen = seen.lock().unwrap();
            seen.push(Vec::new());
            seen.len() - 1
        };
        thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while let Ok(len @ 1..) = from.read(&mut buffer) {
                seen.lock().unwrap()[index].extend_from_slice(&buffer[..len]);
                if to.write_all(&buffer[..len]).is_err() {
                    break;
                }
            }
            // Either end may be closed already.
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }

    /// Whether the bytes appear in any direction.
    fn saw(&self, bytes: &[u8]) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.iter().any(|stream| stream.windows(bytes.len()).any(|window| window == bytes))
    }

    /// The number of directions that began with a preamble and a TLS handshake.
    fn handshakes(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|stream| stream.get(PREAMBLE..PREAMBLE + 2) == Some(&HANDSHAKE)).count()
    }
}

fn talk(client: &mut TcpStream) {
    client.write_all(SECRET).unwrap();
    let mut heard = vec![0; SECRET.len()];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(heard, SECRET);
}

/// One session through taps; its edge is killed repeatedly. Returns the taps' recordings.
fn survive(mut cluster: TestCluster) -> Tap {
    let tap = Tap::default();
    cluster.start_edges("").unwrap();
    let taps: Vec<_> = cluster.edge_addresses().into_iter().map(|edge| tap.before(edge)).collect();
    cluster.start_server_agent(&taps, &[("peer", echo())]).unwrap();
    let address = cluster.start_client_agent(&taps, &["forward"]).unwrap()[0].address;
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    talk(&mut client);
    for _ in 0..4 {
        let owner = cluster.owner().unwrap();
        let start = cluster.logs.end();
        cluster.edges[owner].kill();
        talk(&mut client);
        assert_ne!(cluster.wait_for_owner(start).unwrap().text("edge"), taps[owner].to_string());
        cluster.respawn(owner).unwrap();
    }
    tap
}

#[test]
fn a_session_over_wires_with_a_token_survives_its_edges_unread() {
    let tap = survive(support::cluster("encrypted-token", 2, 1));
    assert!(tap.handshakes() >= 8, "both agents dial both edges, and each that comes back");
    assert!(!tap.saw(SECRET));
    let tap = survive(support::cluster_with("encrypted-not", |layout| {
        (layout.edges, layout.encrypted) = (2, false);
    }));
    assert_eq!(tap.handshakes(), 0);
    assert!(tap.saw(SECRET), "a tap sees what is not encrypted");
}

/// Makes an authority. The result makes a certificate for a name, and is the `[security]` of its holder.
fn authority(place: &TempDir) -> impl Fn(&str) -> String + '_ {
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let ca = place.write("ca.pem", authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    // An edge is authenticated by its address.
    move |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &issuer).unwrap();
        let certificate = place.write(&format!("{name}.pem"), signed.pem()).unwrap();
        let key = place.write(&format!("{name}.key"), key.serialize_pem()).unwrap();
        format!("[security]\nca = {ca:?}\ncertificate = {certificate:?}\nkey = {key:?}\n")
    }
}

#[test]
fn a_session_over_wires_with_certificates_survives_its_edges_unread() {
    let place = TempDir::new("encrypted-certificates").unwrap();
    let security = authority(&place);
    let tap = survive(support::cluster_with("encrypted-ca", |layout| {
        (layout.edges, layout.encrypted) = (2, false);
        let credential = "[[credential]]\nname = \"all\"\ncertificate = \"agent\"\nroles = [\"client\"]\nservers = [\"peer\"]\n";
        layout.edge_tables = security("127.0.0.1") + credential;
        layout.agent_tables += &security("agent");
    }));
    assert!(tap.handshakes() >= 8);
    assert!(!tap.saw(SECRET));
}

/// An authority says who an agent is: without a credential that is enough for a client alone.
#[test]
fn a_certificate_without_a_credential_makes_a_client_and_no_server() {
    let place = TempDir::new("encrypted-client").unwrap();
    let security = authority(&place);
    let mut cluster = support::cluster_with("encrypted-client", |layout| {
        layout.encrypted = false;
        layout.edge_tables = security("127.0.0.1");
        layout.agent_tables += &security("agent");
    });
    cluster.start_edges("").unwrap();
    let said = |words: &[&str]| {
        let says = |event: &LogEvent| words.iter().all(|word| event.text("message").contains(word));
        let found = cluster.logs.wait(0, PATIENCE, says);
        assert!(found.is_some(), "nothing with {words:?}; the last lines:\n{}", cluster.logs.tail(30));
    };
    said(&["any certificate", "`security.ca`", "[[credential]]"]);
    let edge = cluster.edge_addresses()[0];
    let text =
        format!("edges = [\"{edge}\"]\nservers = {{ peer = \"127.0.0.1:1\" }}\n{}", security("server"));
    let config = place.write("server.toml", text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
    command.args(["agent", "server", "--config"]).arg(config);
    let errors = place.path().join("server.stderr");
    let _server = TestProcess::start("refused", &mut command, &cluster.logs, &errors).unwrap();
    said(&["refused", "`security.ca`", "peer", "[[credential]]"]);
}

/// The name is in the log of the session: it stays when the edge that verified it is gone.
#[test]
fn a_cell_learns_the_name_in_its_clients_certificate_and_keeps_it_when_edges_die() {
    let place = TempDir::new("encrypted-names").unwrap();
    let security = authority(&place);
    let layout = support::layout("encrypted-names", |layout| {
        (layout.edges, layout.encrypted) = (2, false);
        layout.edge_tables = security("127.0.0.1");
        layout.agent_tables += &security("till-7.example");
    });
    let mut cluster = TestCluster::new(layout, |place| {
        let manifest = "protect = \"endpoints\"\n";
        Ok(vec![support::cells().manifest(place, "counter", "counter", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let listens = cluster.start_client_agent(&edges, &["counter"]).unwrap();
    let mut stream = BufReader::new(TcpStream::connect(listens[0].address).unwrap());
    stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    for count in 1..4 {
        stream.get_mut().write_all(b"A").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("count={count} ")), "{line}");
        assert!(line.ends_with(" identity=till-7.example\n"), "{line}");
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        cluster.wait_for_owner(start).unwrap();
        cluster.start_edge(owner, "").unwrap();
    }
}
