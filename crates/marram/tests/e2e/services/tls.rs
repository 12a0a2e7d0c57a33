//! TLS that ends in a cell, with unmodified clients: `curl` and `openssl s_client` talk to a server without TLS, and their
//! connections outlive the edges on which they run. Private keys stay with the edges, which refuse them to other apps.

use crate::support;
use marram_cluster::{Layout, TempDir, TestCluster};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A certificate for this machine, and its private key in a file that only this user can read.
struct Site {
    directory: TempDir,
    certificate: PathBuf,
    key: PathBuf,
    /// Part of the app's manifest.
    keep: &'static str,
}

impl Site {
    fn new(algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        let directory = TempDir::new("tls-site").unwrap();
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let certificate = directory.write("certificate.pem", certificate.pem()).unwrap();
        let key = directory.write("site.key", key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        Self { directory, certificate, key, keep: "" }
    }

    /// Part of an edge's configuration: the key, for these apps.
    fn table(&self, apps: &[&str]) -> String {
        format!("[[key]]\nname = \"site\"\nfile = {:?}\napps = {apps:?}\n", self.key)
    }

    /// A manifest with the stage `tls` first, and these stages between it and the server.
    fn manifest(&self, place: &TempDir, behind: &[&str]) -> anyhow::Result<PathBuf> {
        let stage = |name: &str| {
            let module = support::cells().module(name);
            format!("[[stage]]\nname = {name:?}\nmodule = {module:?}\nquotas = {{ memory = \"8MiB\" }}\n")
        };
        let tls = stage("tls")
            + "keys = [\"/etc/tls/certificate.pem\"]\n[[stage.files]]\npath = \"/etc/tls/certificate.pem\"\n"
            + &format!("source = {:?}\nabsolute = true\n", self.certificate);
        let behind: String = behind.iter().map(|name| stage(name)).collect();
        let keep = self.keep;
        place
            .write("apps/site/marram.toml", format!("name = \"site\"\nserver = \"web\"\n{tls}{behind}{keep}"))
    }

    /// Running edges with the app; no agents yet.
    fn cluster(
        &self,
        purpose: &'static str,
        behind: &[&str],
        change: impl FnOnce(&mut Layout),
    ) -> TestCluster {
        let layout = support::layout(purpose, |layout| {
            layout.edge_tables = self.table(&["site"]);
            change(layout);
        });
        let mut cluster = TestCluster::new(layout, |place| Ok(vec![self.manifest(place, behind)?])).unwrap();
        cluster.start_edges("").unwrap();
        cluster
    }
}

/// A plain HTTP server that answers each connection's only request with as many bytes as the path says.
struct Web {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

/// The byte that it sends at this position.
fn byte(at: usize) -> u8 {
    let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ at as u64;
    mixed.to_le_bytes()[3]
}

impl Web {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counter.fetch_add(1, Ordering::Relaxed);
                // The thread ends when its client disconnects.
                thread::spawn(move || _ = Self::serve(stream));
            }
        });
        Self { address, connections }
    }

    fn serve(mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let line = lines.next().transpose()?.unwrap_or_default();
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let size = line.split(['/', ' ']).nth(2).and_then(|size| size.parse().ok()).unwrap_or(0_usize);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n")?;
        let mut at = 0;
        while at < size {
            let end = size.min(at + (64 << 10));
            stream.write_all(&(at..end).map(byte).collect::<Vec<u8>>())?;
            at = end;
        }
        Ok(())
    }
}

fn curl(site: &Site, address: SocketAddr, size: usize, more: &[&str]) -> Child {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "240", "--cacert"]).arg(&site.certificate);
    command.args(["--write-out", "%{stderr}connections=%{num_connects} %{http_version}\n"]).args(more);
    command.arg(format!("https://{address}/{size}")).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("`cargo xtask setup` installs curl")
}

/// Starts `openssl s_client`.
fn s_client(site: &Site, address: SocketAddr, more: &[&str]) -> Child {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-servername", "localhost", "-CAfile"]);
    command.arg(&site.certificate).args(["-verify_return_error", "-ign_eof"]).args(more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("`cargo xtask setup` installs openssl")
}

/// Runs `openssl s_client`, and sends it a request.
fn openssl(site: &Site, address: SocketAddr, more: &[&str], say: &str) -> Output {
    let mut child = s_client(site, address, more);
    // It may have ended already, with an error in its output.
    let _ = child.stdin.as_mut().unwrap().write_all(say.as_bytes());
    child.wait_with_output().unwrap()
}

fn starts(cluster: &mut TestCluster, web: &Web) -> SocketAddr {
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("web", web.address)]).unwrap();
    cluster.start_client_agent(&edges, &["site"]).unwrap()[0].address
}

#[test]
fn curl_and_openssl_connect_with_either_kind_of_key() {
    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256] {
        let (site, web) = (Site::new(algorithm), Web::start());
        let mut cluster = site.cluster("tls-clients", &[], |_| {});
        let address = starts(&mut cluster, &web);

        let output = curl(&site, address, 300_000, &[]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "connections=1 1.1\n", "{}", cluster.logs.tail(40));
        assert_eq!(output.stdout, (0..300_000).map(byte).collect::<Vec<u8>>());

        let ask = "GET /5 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for ciphersuite in ["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"] {
            let output = openssl(&site, address, &["-ciphersuites", ciphersuite, "-alpn", "http/1.1"], ask);
            let said = String::from_utf8_lossy(&output.stdout);
            for words in [
                "Verify return code: 0 (ok)",
                "TLSv1.3",
                ciphersuite,
                "ALPN protocol: http/1.1",
                "Content-Length: 5",
            ] {
                assert!(
                    said.contains(words),
                    "{said} does not say {words}; {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
        let output = openssl(&site, address, &["-tls1_2"], ask);
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!output.status.success() && said.contains("protocol version"), "{said}");

        // A client without TLS gets an alert, and the end of the connection.
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!((answer.len(), answer[0], answer[5]), (7, 0x15, 2), "{answer:?}");
        drop(site.directory);
    }
}

/// The exit status and the output of a command.
fn marram(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_recording_of_a_handshake_signs_the_same_where_the_key_is_and_is_refused_where_it_is_not() {
    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256] {
        // No checkpoint covers the handshake, even if the machine is so busy that it takes long.
        let keep = "[keep]\nrecovery_target = \"1h\"\n";
        let (site, web) = (Site { keep, ..Site::new(algorithm) }, Web::start());
        let mut cluster =
            site.cluster("tls-record", &[], |layout| layout.edge_tables += "[limits]\nreplay = \"1h\"\n");
        let address = starts(&mut cluster, &web);
        // The handshake is complete, and no data was sent yet.
        let mut child = s_client(&site, address, &[]);
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("Verify return code: 0 (ok)")));

        let edge = cluster.edges[0].client().unwrap();
        let list = edge.json(hyper::Method::GET, "/v1/sessions").unwrap();
        let session = list["sessions"][0]["session"].as_str().unwrap();
        let file = cluster.directory.path().join("handshake.marram").to_str().unwrap().to_owned();
        let url = format!("http://{}", cluster.edges[0].admin());
        let (status, said) = marram(&["record", session, "--edge", &url, "--output", &file, "--json"]);
        assert_eq!(status, Some(0), "{said}");
        let recorded: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(recorded[0]["checkpoints"], 0, "the handshake is in it");

        let (status, said) = marram(&["replay", &file, "--json", "--key", site.key.to_str().unwrap()]);
        let replayed: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        assert_eq!((status, &replayed["same"]), (Some(0), &true.into()), "{said}");
        let (status, said) = marram(&["replay", &file]);
        assert!(status != Some(0) && said.contains("key"), "{said}");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(site.directory);
    }
}

/// Reads from curl until `until` bytes have arrived, and checks each.
fn read(pipe: &mut impl Read, at: &mut usize, until: usize) {
    let mut buffer = vec![0; 64 << 10];
    while *at < until {
        let len = pipe.read(&mut buffer).unwrap();
        assert!(len > 0, "curl ended after {at} bytes");
        for (n, got) in buffer[..len].iter().enumerate() {
            assert_eq!(*got, byte(*at + n), "byte {}", *at + n);
        }
        *at += len;
    }
}

#[test]
fn a_tls_connection_outlives_the_edges_that_hold_it() {
    const SIZE: usize = 60_000_000;
    const KILLS: usize = 5;
    for (algorithm, behind) in
        [(&rcgen::PKCS_ED25519, &["forward"][..]), (&rcgen::PKCS_ECDSA_P256_SHA256, &[])]
    {
        let (site, web) = (Site::new(algorithm), Web::start());
        let mut cluster = site.cluster("tls-kill", behind, |layout| layout.edges = 2);
        let address = starts(&mut cluster, &web);
        // Data that curl has not read stays in pipes and sockets, so the transfer is never complete at a kill.
        let mut child = curl(&site, address, SIZE, &["--limit-rate", "20M"]);
        let (mut pipe, mut at) = (child.stdout.take().unwrap(), 0);
        for kill in 0..KILLS {
            read(&mut pipe, &mut at, SIZE / (KILLS + 1) * (kill + 1));
            let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
            cluster.edges[owner].kill();
            cluster.wait_for_owner(start).unwrap();
            cluster.respawn(owner).unwrap();
        }
        read(&mut pipe, &mut at, SIZE);
        assert_eq!(pipe.read(&mut [0]).unwrap(), 0, "nothing comes behind the last byte");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "connections=1 1.1\n", "{}", cluster.logs.tail(40));
        assert_eq!(web.connections.load(Ordering::Relaxed), 1);
        // Only edges' processes had the key, and no cell's state contained it: agents hold these states, encrypted.
    }
}

/// The error of `marram deploy` for an app that is refused.
fn refused(cluster: &TestCluster, manifest: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
    command.arg("deploy").arg(manifest).arg(format!("--edge=http://{}", cluster.edges[0].admin()));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn an_edge_that_does_not_hold_the_key_or_does_not_grant_it_refuses_the_app() {
    let (site, other) = (Site::new(&rcgen::PKCS_ED25519), Site::new(&rcgen::PKCS_ED25519));
    let apps = ["elsewhere"];
    for (tables, words) in [
        (String::new(), "does not have it"),
        (other.table(&["site"]), "does not have it"),
        (site.table(&apps), "does not grant it"),
    ] {
        let layout = support::layout("tls-refused", |layout| layout.edge_tables = tables);
        let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
        cluster.start_edges("").unwrap();
        let manifest = site.manifest(&cluster.directory, &[]).unwrap();
        let said = refused(&cluster, &manifest);
        assert!(said.contains(words) && said.contains("configuration"), "{said:?} does not say {words:?}");
    }
}

#[test]
fn keys_that_are_readable_for_all_or_used_with_plain_wires_are_refused() {
    let site = Site::new(&rcgen::PKCS_ED25519);
    site.directory.write_private("secret", "0123456789abcdef").unwrap();
    let check = |tables: &str| {
        let text =
            format!("state = \"state\"\nlisten = [\"127.0.0.1:7400\"]\nsecret_file = \"secret\"\n{tables}");
        let config = site.directory.write("edge.toml", text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        let output = command.args(["config", "check", "edge"]).arg(config).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (key, plain) = (site.table(&["site"]), "[security]\ninsecure_plain = true\n");
    assert_eq!(check(&key), (Some(0), String::new()));
    assert_eq!(check(&format!("{key}insecure_plain = true\n{plain}")), (Some(0), String::new()));
    let no_key = key.replace("site.key", "certificate.pem");
    std::fs::set_permissions(&site.certificate, PermissionsExt::from_mode(0o600)).unwrap();
    for (tables, words) in [
        (format!("{key}{plain}"), &["edge.toml:4", "`key", "insecure_plain", "nonce"][..]),
        (format!("{key}{key}"), &[":8", "remove one of the two"]),
        (no_key, &["`key", "no private key in PEM"]),
        (site.table(&[]), &["`key", "names no app"]),
    ] {
        let (status, said) = check(&tables);
        assert_eq!(status, Some(2), "{said}");
        for word in words {
            assert!(said.contains(word), "{said:?} does not say {word:?}");
        }
    }
    std::fs::set_permissions(&site.key, PermissionsExt::from_mode(0o604)).unwrap();
    let (status, said) = check(&key);
    assert!(status == Some(2) && said.contains("chmod o="), "{said}");
}
