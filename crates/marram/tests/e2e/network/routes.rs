//! Routes with real processes: a client's first bytes, its address and the operators' changes decide which app it gets; existing
//! sessions are not affected.

use crate::support;
use hyper::Method;
use marram_cluster::{AgentSide, TestCluster, free_address};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that sends its name to each client, and then echoes.
fn server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                let _ = stream.write_all(name.as_bytes());
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(&buffer[..count]);
                }
            });
        }
    });
    address
}

/// An edge with a gate that leads to `plain`, and with `extra` in its configuration; and the gate's address.
fn edge(purpose: &'static str, extra: &str) -> (TestCluster, SocketAddr) {
    let gate = free_address().unwrap();
    let (plain, other) = (server("plain:"), server("other:"));
    let tables = format!(
        "[servers]\nplain = \"{plain}\"\nother = \"{other}\"\n\
         [[gate]]\nname = \"door\"\nlisten = \"{gate}\"\napp = \"plain\"\n{extra}\n"
    );
    let mut layout = support::layout(purpose, |layout| layout.edge_tables = tables);
    layout.encrypted = false;
    let mut cluster = TestCluster::new(layout, |place| {
        let manifest = |name: &str, protect: &str| {
            let text = format!("server = \"{name}\"\nprotect = \"{protect}\"\n");
            support::cells().manifest(place, name, "forward", &text)
        };
        Ok(vec![manifest("plain", "none")?, manifest("other", "none")?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    (cluster, gate)
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read(stream: &mut TcpStream, count: usize) -> String {
    let mut bytes = vec![0; count];
    match stream.read_exact(&mut bytes) {
        Ok(()) => String::from_utf8(bytes).unwrap(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// Sends `what`, and returns the server's name and answer.
fn says(to: SocketAddr, what: &str) -> String {
    let mut stream = connect(to);
    stream.write_all(what.as_bytes()).unwrap();
    read(&mut stream, 6 + what.len())
}

fn put(cluster: &TestCluster, routes: &Value) -> Result<Value, String> {
    let body = serde_json::to_vec(routes).unwrap();
    let client = cluster.edges[0].client().unwrap();
    let answer = client.call(Method::PUT, "/v1/routes", body.into()).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

#[test]
fn operators_change_routes_and_sessions_under_way_stay() {
    let (cluster, gate) = edge("routes", "");
    let mut before = connect(gate);
    assert_eq!(read(&mut before, 6), "plain:");
    let new = json!({ "routes": [
        { "name": "ssh", "first_bytes": "SSH-", "app": "other" },
        { "name": "wall", "priority": 5, "listener": "door", "first_bytes": "EVIL", "refuse": "no" },
    ]});
    assert_eq!(put(&cluster, &new).unwrap()["revision"], 1);
    assert_eq!(says(gate, "SSH-2.0"), "other:SSH-2.0");
    assert_eq!(says(gate, "GET /"), "plain:GET /");
    assert_eq!(says(gate, "EVIL"), "ConnectionReset");
    // A client that sends too few bytes for a rule is held, and then gets the app that it would get without the rule.
    let mut slow = connect(gate);
    slow.write_all(b"SS").unwrap();
    assert_eq!(read(&mut slow, 8), "plain:SS");
    // Existing sessions, opened under older rules, are not affected.
    before.write_all(b"still there").unwrap();
    assert_eq!(read(&mut before, 11), "still there");
    let listed = cluster.edges[0].client().unwrap().json(Method::GET, "/v1/routes").unwrap();
    assert_eq!(listed["hits"], json!({ "ssh": 1, "wall": 1 }));
    assert_eq!((&listed["routes"], &listed["default_hits"]), (&new["routes"], &json!(3)));
    let metrics =
        cluster.edges[0].client().unwrap().call(Method::GET, "/metrics", Default::default()).unwrap();
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    assert!(metrics.contains(",route=\"ssh\"} 1") && metrics.contains("gate_refused{"), "{metrics}");
}

#[test]
fn routes_that_are_wrong_are_refused_whole() {
    let (cluster, gate) =
        edge("routes-wrong", "[[route]]\nname = \"all\"\nclient = \"127.0.0.0/8\"\napp = \"other\"\n");
    let route = |fields: Value| {
        let mut route = json!({ "name": "x", "app": "other" });
        route.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "routes": [route] })
    };
    for (routes, says) in [
        (
            route(json!({ "listener": "nowhere" })),
            "`listener` is not a listener of this configuration; there are: door",
        ),
        (route(json!({ "client": "10.0.0.1/8" })), "`client` is not an address prefix"),
        (route(json!({ "refuse": "both" })), "`refuse` conflicts with `app`"),
        (route(json!({ "colour": "blue" })), "unknown field `colour`"),
        (json!({ "routes": [], "revision": 7 }), "revision 0 now"),
    ] {
        let said = put(&cluster, &routes).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
    let mut stream = connect(gate);
    assert_eq!(read(&mut stream, 6), "other:", "the old ones hold");
}

#[test]
fn an_agent_reads_its_routes_again_at_a_signal() {
    let (listen, server) = (free_address().unwrap(), server("plain:"));
    let mut cluster = support::cluster("routes-agent", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("peer", server)]).unwrap();
    let rules = |route: &str| format!("[[listen]]\naddress = \"{listen}\"\napp = \"forward\"\n{route}\n");
    let wall = "[[route]]\nname = \"wall\"\nclient = \"127.0.0.1\"\nrefuse = \"closed today\"\n";
    cluster.start_agent_with(AgentSide::Client, &edges, &rules(wall)).unwrap();
    let refused = |stream: &mut TcpStream| !read(stream, 6).starts_with("plain");
    assert!(refused(&mut connect(listen)));
    let file = cluster.directory.path().join("agent-client.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    for (text, event) in
        [(text.replace("closed", "\nclosed"), "routes_kept"), (text.replace(wall, ""), "routes")]
    {
        let start = cluster.logs.end();
        std::fs::write(&file, text).unwrap();
        let client = cluster.agents().next().unwrap();
        client.signal(rustix::process::Signal::HUP);
        cluster.logs.wait(start, PATIENCE, |it| it.name() == event).expect(event);
        assert_eq!(refused(&mut connect(listen)), event == "routes_kept");
    }
}
