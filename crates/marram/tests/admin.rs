//! The admin API over real HTTP: who may ask, what is answered, and edges that fetch apps from one another.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use marram::admin::client::{Client, ClientError};
use marram::harness::{Lab, Layout};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The status line and everything behind it, for a request as written.
fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    raw(address, &format!("GET {path} HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n"))
}

#[test]
fn answers_are_prometheus_text_or_json_with_a_fix() {
    let mut lab = support::lab("admin", 1, 1);
    lab.start_edges("").unwrap();
    let admin = lab.edges[0].admin();
    let metrics = get(admin, "/metrics");
    assert!(
        metrics.starts_with("HTTP/1.1 200") && metrics.contains("text/plain; version=0.0.4"),
        "{metrics}"
    );
    assert!(metrics.contains("# TYPE marram_shards gauge\nmarram_shards{edge="), "{metrics}");
    assert!(get(admin, "/healthz").starts_with("HTTP/1.1 200"));
    for (answer, status) in [
        (get(admin, "/v2/apps"), "404"),
        (get(admin, "/v1/sessions/xyz"), "400"),
        (get(admin, &format!("/v1/images/{}", "0".repeat(64))), "404"),
        (raw(admin, "POST /v1/apps HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"), "400"),
        (raw(admin, "DELETE /v1/apps/nonsuch HTTP/1.1\r\nConnection: close\r\n\r\n"), "404"),
    ] {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("\"error\":") && answer.contains("\"fix\":"), "{answer}");
    }
}

/// A run whose admin API asks for a token, which is `admin-token` in its directory.
fn guarded(purpose: &'static str, change: impl FnOnce(&mut Layout)) -> Lab {
    let lab = support::lab_with(purpose, change);
    lab.place.write("admin-token", "an admin token of some length").unwrap();
    lab
}

#[test]
fn a_token_that_is_configured_must_be_shown() {
    let mut lab = guarded("admin-token", |layout| layout.admin = "token_file = \"../admin-token\"\n".into());
    lab.start_edges("").unwrap();
    let admin = lab.edges[0].admin();
    assert!(get(admin, "/healthz").starts_with("HTTP/1.1 200"), "load balancers have no token");
    for path in ["/metrics", "/v1/apps", "/v1/sessions"] {
        assert!(get(admin, path).starts_with("HTTP/1.1 401"), "{path}");
    }
    let ask = |token: &str| {
        let client = Client::new(&admin.to_string(), Some(token.into())).unwrap();
        client.json(hyper::Method::GET, "/v1/apps")
    };
    assert!(matches!(ask("an admin token of some lengtt"), Err(ClientError::Refused { status: 401, .. })));
    assert_eq!(ask("an admin token of some length").unwrap()["apps"][0]["name"], "forward");
}

#[test]
fn an_edge_fetches_what_its_peers_have() {
    let mut first = support::lab("admin-peer", 1, 1);
    first.start_edges("").unwrap();
    let peer = first.edges[0].admin();
    let layout =
        support::layout("admin-new", |layout| layout.admin = format!("peers = [\"http://{peer}\"]\n"));
    let mut second = Lab::new(layout, |_| Ok(Vec::new())).unwrap();
    let start = second.journal.end();
    second.start_edges("").unwrap();
    let deployed =
        |event: &marram::harness::Event| event.name() == "deployed" && event.text("app") == "forward";
    second.journal.wait(start, Duration::from_secs(60), deployed).expect("it is fetched");
    let image = |lab: &Lab| {
        let list = lab.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/apps").unwrap();
        list["apps"][0]["image"].as_str().unwrap().to_owned()
    };
    assert_eq!(image(&first), image(&second));
}
