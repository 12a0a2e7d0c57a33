//! The admin API, peers, recorders, the coordinator's store and etcd over TLS: each side trusts only peers with a certificate of
//! a signer that it was given.

use crate::support;
use marram_cluster::{LogEvent, TempDir, TestCluster, TestProcess, free_address};
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_marram");

/// Writes a signer's certificate, `NAME.ca`, and a certificate with its key that it signed for loopback, `NAME.pem` and
/// `NAME.key`.
fn certificates(place: &TempDir, name: &str) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = rcgen::KeyPair::generate().unwrap();
    place.write(&format!("{name}.ca"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
    place.write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    place.write_private(&format!("{name}.key"), key.serialize_pem()).unwrap();
}

/// Fields of a table: certificate, key, and the signer's certificate where the table needs one to check its peers.
fn fields(cluster: &TestCluster, name: &str, believes: bool) -> String {
    let path = |kind: &str| {
        format!("{:?}", cluster.directory.path().join(format!("{name}.{kind}")).display().to_string())
    };
    let ca = if believes { format!(", ca = {}", path("ca")) } else { String::new() };
    format!("certificate = {}, key = {}{ca}", path("pem"), path("key"))
}

fn marram(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

/// Waits until a process logs all of these words in one line.
fn said(cluster: &TestCluster, start: usize, words: &[&str]) -> LogEvent {
    let says = |event: &LogEvent| words.iter().all(|word| event.fields.to_string().contains(word));
    let found = cluster.logs.wait(start, PATIENCE, says);
    found.unwrap_or_else(|| panic!("no process says {words:?}:\n{}", cluster.logs.tail(30))).1
}

/// Edges without apps and with an encrypted admin API.
fn edges(purpose: &'static str, count: usize) -> TestCluster {
    let layout = support::layout(purpose, |layout| {
        layout.edges = count;
        layout.admin = "certificate = \"../a.pem\"\nkey = \"../a.key\"\nca = \"../a.ca\"\n".into();
    });
    let cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    ["a", "b"].into_iter().for_each(|name| certificates(&cluster.directory, name));
    cluster
}

fn url(address: SocketAddr) -> String {
    format!("--edge=https://{address}")
}

#[test]
fn commands_trust_an_edge_by_its_signer_or_by_its_own_certificate() {
    let mut cluster = edges("tls-admin", 1);
    cluster.start_edges("").unwrap();
    let (admin, place) = (cluster.edges[0].admin(), cluster.directory.path().display().to_string());
    let ca = |file: &str| format!("--ca={place}/{file}");
    for believed in ["a.ca", "a.pem"] {
        let output = marram(&["apps", &url(admin), &ca(believed)]);
        assert_eq!(output.status.code(), Some(0), "{believed}: {output:?}");
    }
    let localhost = format!("--edge=https://localhost:{}", admin.port());
    assert_eq!(marram(&["apps", &localhost, &ca("a.ca")]).status.code(), Some(0));
    for (arguments, code, words) in [
        (vec!["apps", &url(admin), &ca("b.ca")], 4, "is not trusted"),
        (vec!["apps", &url(admin), &ca("b.pem")], 4, "is not trusted"),
        (vec!["apps", &format!("--edge={admin}")], 4, "https://"),
        (vec!["apps", &url(admin), &ca("a.key")], 2, "no certificate"),
        (vec!["apps", &url(admin), &ca("none")], 2, "none"),
    ] {
        let output = marram(&arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn edges_find_one_another_and_fetch_images_over_tls_alone() {
    let mut cluster = edges("tls-domain", 3);
    let store = free_address().unwrap();
    let token = cluster.directory.path().join("token").display().to_string();
    let table = |rest: &str, fields: &str| {
        format!("coordinator = {{ {rest}, token_file = {token:?}, lease = \"5s\", {fields} }}")
    };
    let (own, others) = (fields(&cluster, "a", false), fields(&cluster, "a", true));
    cluster.start_edge(0, &table(&format!("serve = \"{store}\""), &own)).unwrap();
    cluster.start_edge(1, &table(&format!("urls = [\"https://{store}\"]"), &others)).unwrap();
    said(&cluster, 0, &["registered at the coordinator", "B-1"]);
    // An edge that trusts another signer cannot use the store, and logs why.
    let start = cluster.logs.end();
    cluster
        .start_edge(2, &table(&format!("urls = [\"https://{store}\"]"), &fields(&cluster, "b", true)))
        .unwrap();
    said(&cluster, start, &["the coordinator is unreachable", "is not trusted"]);
    cluster.edges[2].kill();
    let rest = "[quotas]\nscratch = \"1MiB\"\n";
    let manifest = support::cells().manifest(&cluster.directory, "count", "counter", rest).unwrap();
    let ca = format!("--ca={}", cluster.directory.path().join("a.ca").display());
    let deploy = |edge: usize| {
        let output = marram(&["deploy", manifest.to_str().unwrap(), &url(cluster.edges[edge].admin()), &ca]);
        assert!(output.status.success(), "{output:?}");
    };
    deploy(0);
    let image = {
        let output = marram(&["apps", &url(cluster.edges[0].admin()), &ca, "--json"]);
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        listed[0]["apps"][0]["image"].as_str().unwrap().to_owned()
    };
    // The other edge fetches the image from the edge that the coordinator names.
    let client =
        marram_admin::client::ApiClient::new(&format!("https://{}", cluster.edges[0].admin()), None).unwrap();
    let client = client.believing(&std::fs::read(cluster.directory.path().join("a.ca")).unwrap()).unwrap();
    let known = client.json(hyper::Method::GET, "/v1/coordinator").unwrap();
    assert!(
        known["edges"]
            .as_array()
            .unwrap()
            .iter()
            .all(|edge| { edge["admin"].as_str().is_some_and(|admin| admin.starts_with("https://")) })
    );
    let edges = cluster.edge_addresses();
    let agents = [edges[0], edges[1]];
    let address = cluster.start_client_agent(&agents, &["count"]).unwrap()[0].address;
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut count = |expected: &str| {
        use std::io::{BufRead, BufReader, Write};
        client.write_all(b"f").unwrap();
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).unwrap();
        assert_eq!(line.split(' ').next(), Some(expected));
    };
    count("count=1");
    let start = cluster.logs.end();
    let drained = marram(&["drain", &url(cluster.edges[0].admin()), &ca]);
    assert!(drained.status.success(), "{drained:?}");
    said(&cluster, start, &["is fetched", &image]);
    count("count=2");
}

#[test]
fn a_recorder_answers_its_operators_over_tls() {
    let mut cluster = edges("tls-recorder", 1);
    cluster.start_edges("").unwrap();
    let admin = free_address().unwrap();
    let text = format!(
        "edges = [\"{}\"]\nsecret_file = \"secret\"\n[security]\ntoken_file = \"token\"\n[log]\nformat = \"json\"\n\
         [admin]\nlisten = \"{admin}\"\ncertificate = \"b.pem\"\nkey = \"b.key\"\n",
        cluster.edges[0].address()
    );
    let config = cluster.directory.write("recorder.toml", text).unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("recorder").arg("--config").arg(config);
    let errors = cluster.directory.path().join("recorder.stderr");
    let start = cluster.logs.end();
    let recorder = TestProcess::start("recorder", &mut command, &cluster.logs, &errors).unwrap();
    let listens = |event: &LogEvent| event.text("message") == "listening for operators";
    recorder.wait_ready(&cluster.logs, start, PATIENCE, listens).unwrap();
    let ca = format!("--ca={}", cluster.directory.path().join("b.ca").display());
    let output = marram(&["ps", &url(admin), &ca]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// The server requires a certificate of the edge, as members of an etcd cluster do.
#[test]
fn etcd_is_asked_over_tls_with_a_certificate() {
    let mut cluster = edges("tls-etcd", 1);
    let program = ["/usr/bin/etcd", "/usr/local/bin/etcd"]
        .into_iter()
        .find(|path| std::path::Path::new(path).is_file());
    let program = program.expect("`cargo xtask setup` installs etcd");
    let (client, peer, place) =
        (free_address().unwrap(), free_address().unwrap(), cluster.directory.path().to_owned());
    let file = |name: &str| place.join(name).display().to_string();
    let mut command = Command::new(program);
    command
        .args(["--name", "m", "--data-dir", &file("etcd")])
        .args(["--listen-client-urls", &format!("https://{client}")])
        .args(["--advertise-client-urls", &format!("https://{client}")])
        .args(["--listen-peer-urls", &format!("http://{peer}")])
        .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
        .args(["--initial-cluster", &format!("m=http://{peer}")])
        .args(["--cert-file", &file("a.pem"), "--key-file", &file("a.key")])
        .args(["--client-cert-auth", "--trusted-ca-file", &file("a.ca")])
        .args(["--logger", "zap", "--log-outputs", "stdout"]);
    let start = cluster.logs.end();
    let etcd = TestProcess::start("etcd", &mut command, &cluster.logs, &place.join("etcd.stderr")).unwrap();
    etcd.wait_ready(&cluster.logs, start, PATIENCE, |event| {
        event.text("msg").contains("serving client traffic")
    })
    .unwrap();
    let url = format!("coordinator = {{ urls = [\"https://{client}\"], lease = \"5s\"");
    cluster.start_edge(0, &format!("{url}, {} }}", fields(&cluster, "a", true))).unwrap();
    said(&cluster, 0, &["registered at the coordinator", "A-1"]);
    // Without a certificate the edge cannot connect, and logs that.
    let ca = cluster.directory.path().join("a.ca").display().to_string();
    let start = cluster.logs.end();
    cluster.start_edge(0, &format!("{url}, ca = {ca:?} }}")).unwrap();
    said(&cluster, start, &["the coordinator is unreachable"]);
}
