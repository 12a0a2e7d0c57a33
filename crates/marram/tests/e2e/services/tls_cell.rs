//! The cell `tls` as a module, between a real TLS client and a plain server: if it is restored in a new instance of the runtime
//! with the same keys before every message, in the handshake and between and within records, its output does not change.

// Shared with the cell's own tests, which are in another workspace.
#[path = "../../../../../cells/services/tls/tests/support/mod.rs"]
mod tls_support;

use crate::support::{
    self,
    machine::{CELL, run},
};
use marram_node::keys;
use marram_sandbox::{Cells, CellsConfig, Decoded, Image, ImageFile, Images, Keyring, Quotas};
use marram_session::cell::{CellInput, CellOutput, CheckpointBase, PortKind, Seed};
use marram_wire::id::Port;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// An app's image, its certificate and its key.
struct App {
    image: Arc<Image>,
    certificate: String,
    key: String,
}

impl App {
    fn new(algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        support::begin();
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap().pem();
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells/tls.wasm");
        let module = std::fs::read(module).expect("`cargo xtask cells` has built the cells");
        let place = marram_cluster::TempDir::new("tls-cell").unwrap();
        let images = Images::open(place.path()).unwrap();
        let file =
            ImageFile { path: "etc/tls/certificate.pem".into(), contents: certificate.clone().into_bytes() };
        let id = keys::of_certificate(certificate.as_bytes()).unwrap();
        let quotas = Quotas { memory_max: 8 << 20, ..Quotas::default() };
        let info = images.deploy_with_keys(&module, &[file], &[id], &quotas).unwrap();
        Self { image: images.load(info.hash).unwrap(), certificate, key: key.serialize_pem() }
    }

    /// A new instance of the runtime, with the key.
    fn machine(&self) -> Cells {
        let (id, signer) = keys::read(self.key.as_bytes()).unwrap();
        let mut keyring = Keyring::default();
        keyring.add(id, signer);
        Cells::new(CellsConfig { slots: 2, ..CellsConfig::default() }).unwrap().with_keys(keyring)
    }

    fn client(&self) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
    }
}

/// A cell that stays in one instance, and the same cell moved to a new instance before every input.
struct Pair<'a> {
    app: &'a App,
    stays: Cells,
    carried: Cells,
    inputs: usize,
    /// CPU time of the cell that stays.
    spent_ns: u64,
    client: Vec<u8>,
    server: Vec<u8>,
    closed: Vec<Port>,
}

impl<'a> Pair<'a> {
    fn new(app: &'a App) -> Self {
        let (mut stays, mut carried) = (app.machine(), app.machine());
        for cells in [&mut stays, &mut carried] {
            cells.start(CELL, &app.image, Seed([7; 32])).unwrap();
        }
        let (client, server, closed) = (Vec::new(), Vec::new(), Vec::new());
        let mut pair = Self { app, stays, carried, inputs: 0, spent_ns: 0, client, server, closed };
        pair.give(&CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None });
        pair.give(&CellInput::Open { port: Port::SERVER, kind: PortKind::Server, peer: None });
        pair
    }

    fn give(&mut self, input: &CellInput) {
        let checkpoint = self.carried.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
        self.carried = self.app.machine();
        self.carried.restore(CELL, &self.app.image, &Decoded::decode(&[checkpoint]).unwrap()).unwrap();
        let (outputs, spent_ns) = run(&mut self.stays, input.clone());
        self.spent_ns += spent_ns;
        assert_eq!(run(&mut self.carried, input.clone()).0, outputs, "input {}", self.inputs);
        assert_eq!(self.carried.state_hash(CELL), self.stays.state_hash(CELL), "input {}", self.inputs);
        self.inputs += 1;
        for output in outputs {
            match output {
                CellOutput::Message { port: Port::CLIENT, payload } => {
                    self.client.extend_from_slice(&payload)
                }
                CellOutput::Message { payload, .. } => self.server.extend_from_slice(&payload),
                CellOutput::Close { port } => self.closed.push(port),
                CellOutput::Pause { .. } | CellOutput::Resume { .. } | CellOutput::Connect { .. } => {}
            }
        }
    }

    fn message(&mut self, port: Port, bytes: &[u8]) {
        self.give(&CellInput::Message { port, payload: bytes.to_vec().into() });
    }

    /// Moves bytes between the client and the cells until both are idle; returns what the client received.
    fn converse(&mut self, client: &mut ClientConnection, piece: usize) -> Vec<u8> {
        tls_support::converse(client, |wire| {
            wire.chunks(piece).for_each(|piece| self.message(Port::CLIENT, piece));
            std::mem::take(&mut self.client)
        })
    }
}

#[test]
fn a_cell_that_is_restored_before_every_input_says_what_one_that_stayed_says() {
    for (algorithm, piece) in [(&rcgen::PKCS_ED25519, 50), (&rcgen::PKCS_ECDSA_P256_SHA256, 37)] {
        let app = App::new(algorithm);
        let (mut pair, mut client) = (Pair::new(&app), app.client());
        pair.converse(&mut client, piece);
        assert!(!client.is_handshaking());
        println!("a handshake: {} us in the cell and the signer", pair.spent_ns / 1000);
        for round in 1..4_u8 {
            let question = vec![round; 300 * usize::from(round)];
            client.writer().write_all(&question).unwrap();
            pair.converse(&mut client, piece);
            assert_eq!(std::mem::take(&mut pair.server), question);
            let answer = vec![!round; 30_000 * usize::from(round)];
            pair.message(Port::SERVER, &answer);
            assert_eq!(pair.converse(&mut client, piece), answer);
        }
        client.send_close_notify();
        pair.converse(&mut client, piece);
        pair.give(&CellInput::Close { port: Port::SERVER });
        assert_eq!(pair.closed, [Port::SERVER, Port::CLIENT]);
        assert!(pair.inputs > 30, "{} inputs, each on another machine", pair.inputs);
    }
}

#[test]
fn no_private_key_is_in_a_cells_state() {
    let app = App::new(&rcgen::PKCS_ED25519);
    let (mut pair, mut client) = (Pair::new(&app), app.client());
    pair.converse(&mut client, 1000);
    // The seed follows its DER header: an octet string of 32 bytes.
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(app.key.as_bytes()).unwrap();
    let seed =
        key.secret_der().windows(34).find(|window| window.starts_with(&[4, 32])).unwrap()[2..].to_vec();
    let checkpoint = pair.stays.snapshot(CELL, CheckpointBase::Image).unwrap();
    let plain = checkpoint.encode();
    assert!(plain.len() > 1000 && !plain.windows(32).any(|window| window == seed));
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_deployment_in_words() {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cells/tls.wasm");
    let module = std::fs::read(module).unwrap();
    let place = marram_cluster::TempDir::new("tls-cell-refused").unwrap();
    let images = Images::open(place.path()).unwrap();
    let file = |contents: &[u8]| {
        vec![ImageFile { path: "etc/tls/certificate.pem".into(), contents: contents.to_vec() }]
    };
    for (files, words) in
        [(Vec::new(), "name it in the manifest"), (file(b"nothing"), "holds no certificate")]
    {
        let id = marram_sandbox::KeyId([1; 32]);
        let error = images.deploy_with_keys(&module, &files, &[id], &Quotas::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{error} does not say {words}");
    }
}
