//! The admin API over real HTTP: access control, answers, and edges that fetch apps from one another.

use crate::support;
use marram_admin::client::{ApiClient, ClientError};
use marram_cluster::{Layout, TestCluster};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

/// Sends a request as written; returns the whole answer, with status line and headers.
fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The answer to a request with these headers and the edge's own address as `Host`.
fn ask(address: SocketAddr, request: &str, headers: &[&str]) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    raw(address, &format!("{request} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n"))
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path}"), &[])
}

/// The header with the token that the first edge generated.
fn own_token(cluster: &TestCluster) -> String {
    let path = cluster.directory.path().join(cluster.edges[0].directory()).join("state/admin-token");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    format!("Authorization: Bearer {}", std::fs::read_to_string(path).unwrap().trim())
}

fn assert_status(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status} is expected: {answer}");
    let says_what_to_do = answer.contains("\"error\":") && answer.contains("\"fix\":");
    assert!(status < 400 || says_what_to_do, "{answer}");
}

#[test]
fn answers_are_prometheus_text_or_json_with_a_fix() {
    let mut cluster = support::cluster("admin", 1, 1);
    cluster.start_edges("").unwrap();
    let (admin, token) = (cluster.edges[0].admin(), own_token(&cluster));
    let json = "Content-Type: application/json";
    let shown = |request: &str| ask(admin, request, &[&token, json]);
    let metrics = shown("GET /metrics");
    assert!(
        metrics.starts_with("HTTP/1.1 200") && metrics.contains("text/plain; version=0.0.4"),
        "{metrics}"
    );
    assert!(metrics.contains("# TYPE marram_shards gauge\nmarram_shards{edge="), "{metrics}");
    assert!(get(admin, "/healthz").starts_with("HTTP/1.1 200"));
    for (request, status) in [
        ("GET /v2/apps", 404),
        ("GET /v1/sessions/xyz", 400),
        (&*format!("GET /v1/images/{}", "0".repeat(64)), 404),
        ("POST /v1/apps", 400),
        ("DELETE /v1/apps/nonsuch", 404),
    ] {
        assert_status(&shown(request), status);
    }
}

/// What a browser sends on behalf of a web page that an operator has open: from another origin, under a name that resolves to
/// this machine (DNS rebinding), with a body that needs no preflight; also with the token, in case the page obtained it.
#[test]
fn a_web_page_controls_nothing() {
    let mut cluster = support::cluster("admin-page", 1, 1);
    cluster.start_edges("").unwrap();
    let (admin, token) = (cluster.edges[0].admin(), own_token(&cluster));
    let start = cluster.logs.end();
    let (plain, json) = ("Content-Type: text/plain", "Content-Type: application/json");
    let session = format!("/v1/sessions/{}/record", "0".repeat(32));
    let changes = ["POST /v1/drain", "POST /v1/apps", "PUT /v1/routes", &format!("POST {session}")];
    for shown in [&*token, "X-None: 1"] {
        for request in changes {
            for kind in [plain, json] {
                assert_status(&ask(admin, request, &[shown, kind, "Origin: http://evil.example"]), 403);
                let rebound =
                    format!("{request} HTTP/1.1\r\nHost: evil.example:7401\r\n{shown}\r\n{kind}\r\n");
                assert_status(&raw(admin, &format!("{rebound}Connection: close\r\n\r\n")), 403);
            }
        }
        for path in [&*session, "/v1/sessions", "/metrics", "/healthz"] {
            let rebound = format!("GET {path} HTTP/1.1\r\nHost: evil.example:7401\r\n{shown}\r\n");
            assert_status(&raw(admin, &format!("{rebound}Connection: close\r\n\r\n")), 403);
        }
    }
    for request in changes {
        assert_status(&ask(admin, request, &[&token, plain]), 415);
        assert_status(&ask(admin, request, &[&token]), 415);
        assert_status(&ask(admin, request, &[json]), 401);
    }
    // None of the requests had an effect, and an operator's requests still have one.
    let stops = |event: &marram_cluster::LogEvent| event.text("message").starts_with("stopping");
    assert_eq!(cluster.logs.count(start, stops), 0, "{}", cluster.logs.tail(20));
    assert_status(&ask(admin, "POST /v1/drain", &[&token, json]), 200);
    assert!(
        cluster.logs.wait(start, Duration::from_secs(60), |event| event.name() == "process_ended").is_some()
    );
}

#[test]
fn commands_find_the_token_of_an_edge_and_each_edge_has_its_own() {
    let mut cluster = support::cluster("admin-found", 2, 1);
    cluster.start_edges("").unwrap();
    let urls: Vec<String> =
        cluster.edges.iter().map(|edge| format!("--edge=http://{}", edge.admin())).collect();
    let localhost = format!("--edge=localhost:{}", cluster.edges[0].admin().port());
    let ps = |arguments: &[&String], home: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.arg("ps").args(arguments);
        if let Some(home) = home {
            // As another user, to whom no token is published.
            command.env("HOME", home);
            for name in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "RUNTIME_DIRECTORY"] {
                command.env_remove(name);
            }
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(ps(&[&urls[0], &urls[1], &localhost], None).0, Some(0));
    let tokens = [0, 1].map(|edge| {
        cluster
            .directory
            .path()
            .join(cluster.edges[edge].directory())
            .join("state/admin-token")
            .display()
            .to_string()
    });
    let show = |edge: usize| format!("--token-file={}", tokens[edge]);
    assert_eq!(ps(&[&urls[0], &show(0)], Some("/nonexistent")).0, Some(0));
    let (code, said) = ps(&[&urls[0], &show(1)], None);
    assert!(code == Some(3) && said.contains("the admin token is wrong"), "{code:?} {said}");
    // When an edge is killed, its published token is not used any more: the process that listens there now must not receive it.
    let admin = cluster.edges[0].admin();
    cluster.edges[0].kill();
    let impostor = std::net::TcpListener::bind(admin).unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = impostor.accept().unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            heard.push(byte[0]);
        }
        String::from_utf8(heard).unwrap().to_lowercase()
    });
    ps(&[&urls[0]], None);
    let heard = heard.join().unwrap();
    assert!(heard.contains("host: ") && !heard.contains("authorization"), "{heard}");
}

#[test]
fn prometheus_has_a_token_of_its_own_or_needs_none() {
    let mut cluster = guarded("admin-metrics", |layout| {
        layout.admin = "token_file = \"../admin-token\"\nmetrics_token_file = \"../metrics-token\"\n".into();
    });
    cluster.directory.write("metrics-token", "a token for figures only").unwrap();
    cluster.start_edges("").unwrap();
    let admin = cluster.edges[0].admin();
    let token = "Authorization: Bearer a token for figures only";
    assert_status(&ask(admin, "GET /metrics", &[token]), 200);
    assert_status(&ask(admin, "GET /v1/apps", &[token]), 403);
    assert_status(&get(admin, "/metrics"), 401);
    let mut open = support::cluster_with("admin-open", |layout| layout.admin = "metrics = \"open\"\n".into());
    open.start_edges("").unwrap();
    let admin = open.edges[0].admin();
    assert_status(&get(admin, "/metrics"), 200);
    assert_status(&get(admin, "/v1/apps"), 401);
}

/// What the edge logs about an image of its cache that was changed, or that another edge compiled.
#[test]
fn native_code_that_does_not_authenticate_is_compiled_again_and_said() {
    // Each edge has a key of its own, as on a machine of its own.
    let mut cluster =
        support::cluster_with("admin-image", |layout| (layout.edges, layout.images) = (2, None));
    cluster.start_edges("").unwrap();
    let images = [0, 1].map(|edge| {
        let images = cluster.directory.path().join(cluster.edges[edge].directory()).join("state/images");
        assert_eq!(std::fs::metadata(&images).unwrap().permissions().mode() & 0o777, 0o700);
        let is_image = |path: &std::path::PathBuf| path.extension().is_some_and(|kind| kind == "image");
        let mut files = std::fs::read_dir(images).unwrap().map(|entry| entry.unwrap().path());
        files.find(is_image).unwrap()
    });
    let mut flipped = std::fs::read(&images[0]).unwrap();
    *flipped.last_mut().unwrap() ^= 1;
    let planted = std::fs::read(&images[1]).unwrap();
    let manifest = cluster.directory.path().join("apps/forward/marram.toml");
    assert!(manifest.is_file(), "{}", manifest.display());
    for bytes in [flipped, planted] {
        std::fs::write(&images[0], &bytes).unwrap();
        let start = cluster.logs.end();
        let output = Command::new(env!("CARGO_BIN_EXE_marram"))
            .arg("deploy")
            .arg(&manifest)
            .arg(format!("--edge=http://{}", cluster.edges[0].admin()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let says = |event: &marram_cluster::LogEvent| {
            event.text("level") == "WARN" && event.text("message").contains("fails authentication")
        };
        assert!(
            cluster.logs.wait(start, Duration::from_secs(60), says).is_some(),
            "{}",
            cluster.logs.tail(20)
        );
        assert_ne!(std::fs::read(&images[0]).unwrap(), bytes);
    }
}

/// A production edge has no setting that injects faults.
#[test]
fn no_configuration_and_no_environment_sabotages_an_edge() {
    let mut cluster = support::cluster("admin-sabotage", 1, 1);
    assert!(cluster.start_edges("sabotage = 1").is_err());
    let errors = cluster.directory.path().join(format!("{}.stderr", cluster.edges[0].directory()));
    let error = std::fs::read_to_string(errors).unwrap();
    assert!(error.contains("unknown field `sabotage`"), "{error}");
    let place = cluster.directory.path().join(cluster.edges[0].directory());
    std::fs::write(
        place.join("plain.toml"),
        format!(
            "state = \"s\"\nlisten = [\"127.0.0.1:1\"]\nsecret_file = {:?}\n",
            cluster.directory.path().join("secret")
        ),
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["edge", "--config"])
        .arg(place.join("plain.toml"))
        .env("MARRAM_EDGE__SABOTAGE", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A run with an admin API that requires a token, which is `admin-token` in the run's directory.
fn guarded(purpose: &'static str, change: impl FnOnce(&mut Layout)) -> TestCluster {
    let cluster = support::cluster_with(purpose, change);
    cluster.directory.write("admin-token", "an admin token of some length").unwrap();
    cluster
}

#[test]
fn a_token_that_is_configured_must_be_shown() {
    let mut cluster =
        guarded("admin-token", |layout| layout.admin = "token_file = \"../admin-token\"\n".into());
    cluster.start_edges("").unwrap();
    let admin = cluster.edges[0].admin();
    assert!(get(admin, "/healthz").starts_with("HTTP/1.1 200"), "load balancers have no token");
    let unnamed = raw(admin, "GET /healthz HTTP/1.0\r\n\r\n");
    assert!(unnamed.starts_with("HTTP/1.0 200"), "some name no host: {unnamed}");
    for path in ["/metrics", "/v1/apps", "/v1/sessions"] {
        assert!(get(admin, path).starts_with("HTTP/1.1 401"), "{path}");
    }
    let ask = |token: &str| {
        let client = ApiClient::new(&admin.to_string(), Some(token.into())).unwrap();
        client.json(hyper::Method::GET, "/v1/apps")
    };
    assert!(matches!(ask("an admin token of some lengtt"), Err(ClientError::Refused { status: 401, .. })));
    assert_eq!(ask("an admin token of some length").unwrap()["apps"][0]["name"], "forward");
}

#[test]
fn an_edge_fetches_what_its_peers_have() {
    let mut first = support::cluster("admin-peer", 1, 1);
    first.start_edges("").unwrap();
    let peer = first.edges[0].admin();
    let layout =
        support::layout("admin-new", |layout| layout.admin = format!("peers = [\"http://{peer}\"]\n"));
    let mut second = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    support::same_domain(&second, &first);
    let start = second.logs.end();
    second.start_edges("").unwrap();
    let deployed =
        |event: &marram_cluster::LogEvent| event.name() == "deployed" && event.text("app") == "forward";
    second.logs.wait(start, Duration::from_secs(60), deployed).expect("it is fetched");
    let image = |cluster: &TestCluster| {
        let list = cluster.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/apps").unwrap();
        list["apps"][0]["image"].as_str().unwrap().to_owned()
    };
    assert_eq!(image(&first), image(&second));
}

/// An edge gives its apps to edges of its own domain, whichever token their operators have, and to no other edge.
#[test]
fn an_edge_of_another_domain_is_given_no_app() {
    let mut first = support::cluster("admin-own", 1, 1);
    first.start_edges("").unwrap();
    let peer = first.edges[0].admin();
    let layout =
        support::layout("admin-other", |layout| layout.admin = format!("peers = [\"http://{peer}\"]\n"));
    let mut second = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    second.start_edges("").unwrap();
    let refused =
        |event: &marram_cluster::LogEvent| event.text("message").contains("apps could not be fetched");
    let refused = second.logs.wait(0, Duration::from_secs(60), refused).expect("it says so").1;
    assert!(refused.text("message").contains("`secret_file`"), "{}", refused.fields);
}
