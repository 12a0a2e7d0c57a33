//! The client's identity, with real processes: PROXY protocol into an agent's listener and out to a server, by hand, from haproxy
//! and to nginx. What the cell sees of its client does not change while edges die.

use crate::support::{self, site};
use marram_cluster::{AgentSide, LogCollector, TestCluster, TestProcess, free_address};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The client's address in a header, as bytes and as text.
const CLIENT: [u8; 4] = [192, 0, 2, 77];
const CLIENT_SAID: &str = "192.0.2.77:40000";
/// The address to which the client connected.
const TO: [u8; 4] = [198, 51, 100, 9];

/// A header of version 2, as in the specification, with a TLV after the addresses.
fn header() -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x10".to_vec();
    header.extend(CLIENT.into_iter().chain(TO));
    header.extend(40_000_u16.to_be_bytes().into_iter().chain(443_u16.to_be_bytes()));
    header.extend([0x04, 0, 1, 0]);
    header
}

/// A server that expects a header without TLVs; it sends the header of each connection to the receiver.
fn server() -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (say, heard) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, say) = (stream.unwrap(), say.clone());
            thread::spawn(move || {
                let mut header = [0; 28];
                stream.read_exact(&mut header).unwrap();
                say.send(header.to_vec()).unwrap();
                // The connection stays open until the session is over.
                let _ = stream.read(&mut [0]);
            });
        }
    });
    (address, heard)
}

/// The app `counter` on `edges` edges, behind a listener called `door` and before a server; both use the PROXY protocol.
fn cluster(purpose: &'static str, edges: usize, server: SocketAddr) -> (TestCluster, SocketAddr) {
    let layout = support::layout(purpose, |layout| layout.edges = edges);
    let mut cluster = TestCluster::new(layout, |place| {
        let manifest = "server = \"peer\"\nprotect = \"endpoints\"\n";
        Ok(vec![support::cells().manifest(place, "counter", "counter", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let (edges, listen) = (cluster.edge_addresses(), free_address().unwrap());
    let servers = format!("servers.peer = {{ address = \"{server}\", proxy_protocol = true }}\n");
    cluster.start_agent_with(AgentSide::Server, &edges, &servers).unwrap();
    let listener = format!(
        "[[listen]]\nname = \"door\"\naddress = \"{listen}\"\napp = \"counter\"\nproxy_protocol = true\n\
         [[route]]\nname = \"wall\"\nclient = \"203.0.113.0/24\"\nrefuse = \"not from there\"\n"
    );
    cluster.start_agent_with(AgentSide::Client, &edges, &listener).unwrap();
    (cluster, listen)
}

fn connect(to: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// Sends a request to the cell, and reads its answer.
fn ask(stream: &mut BufReader<TcpStream>) -> String {
    stream.get_mut().write_all(b"A").unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn cell_and_server_see_the_client_that_a_proxy_names_whichever_edge_dies() {
    let (server, heard) = server();
    let (mut cluster, listen) = cluster("peer", 2, server);
    let mut stream = connect(listen);
    // The client's first byte directly follows the header.
    stream.get_mut().write_all(&[&header()[..], b"A"].concat()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let known = format!("client={CLIENT_SAID} listener=door identity=-");
    assert_eq!(line, format!("count=1 {known}\n"));
    let told = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(told[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c");
    assert_eq!(told[16..], header()[16..28]);
    for count in 2..6 {
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        assert_eq!(ask(&mut stream), format!("count={count} {known}"));
        cluster.wait_for_owner(start).unwrap();
        cluster.respawn(owner).unwrap();
    }
    assert!(heard.try_recv().is_err(), "a recovery makes no connection to the server");
}

#[test]
fn a_connection_without_a_proxy_header_is_refused_and_logged() {
    let (server, _heard) = server();
    let (cluster, listen) = cluster("peer-refused", 1, server);
    let mut refused = header();
    refused[16..20].copy_from_slice(&[203, 0, 113, 5]);
    let short = header().len() - 5;
    for (said, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "does not begin with a PROXY protocol header"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(), "version 1"),
        (header()[..short].to_vec(), "did not arrive"),
        // Routes match the client's address, and not the proxy's.
        (refused, "not from there"),
    ] {
        let start = cluster.logs.end();
        let mut stream = connect(listen);
        stream.get_mut().write_all(&said).unwrap();
        // The connection may have been refused already.
        let _ = stream.get_mut().shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        // The connection is closed or reset.
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
        // Only a few of these lines are logged each second, so this one may come later.
        let logged = cluster.logs.wait(start, PATIENCE, |event| event.text("reason").contains(reason));
        assert!(logged.is_some(), "{reason:?}: {}", cluster.logs.tail(20));
    }
    // A header about the proxy's own connection has no client address.
    let mut stream = connect(listen);
    let own = stream.get_ref().local_addr().unwrap();
    stream.get_mut().write_all(b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00").unwrap();
    assert_eq!(ask(&mut stream), format!("count=1 client={own} listener=door identity=-"));
}

/// An edge that clients connect to without an agent, and which connects to the server itself.
#[test]
fn a_gate_and_an_edges_servers_use_the_protocol_as_agents_do() {
    let ((server, heard), gate) = (server(), free_address().unwrap());
    let layout = support::layout("peer-gate", |layout| {
        layout.edge_tables = format!(
            "[[gate]]\nname = \"door\"\nlisten = \"{gate}\"\napp = \"counter\"\nproxy_protocol = true\n\
             [servers]\npeer = {{ address = \"{server}\", proxy_protocol = true }}\n"
        );
    });
    let mut cluster = TestCluster::new(layout, |place| {
        let manifest = "server = \"peer\"\nprotect = \"none\"\n";
        Ok(vec![support::cells().manifest(place, "counter", "counter", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let mut stream = connect(gate);
    stream.get_mut().write_all(&header()).unwrap();
    assert_eq!(ask(&mut stream), format!("count=1 client={CLIENT_SAID} listener=door identity=-"));
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap()[16..], header()[16..28]);
    // A connection without a header is closed.
    let mut stream = connect(gate);
    stream.get_mut().write_all(b"AAAAAAAAAAAAAAAAAAAA").unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

/// The path of an installed server; without it, the test is skipped.
fn program(name: &str) -> Option<String> {
    let paths = ["/usr/sbin", "/usr/bin", "/usr/local/sbin"].map(|path| format!("{path}/{name}"));
    let found = paths.into_iter().find(|path| std::path::Path::new(path).is_file());
    if found.is_none() {
        support::skip::skip(format_args!("there is no {name} on this machine"));
    }
    found
}

/// An nginx that answers with the addresses in the PROXY header and in the headers of the request.
fn nginx_conf(root: &str, web: SocketAddr) -> String {
    format!(
        "daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/nginx.error;\nevents {{ }}\nhttp {{\n\
         access_log off;\nclient_body_temp_path {root}/n1; proxy_temp_path {root}/n2; fastcgi_temp_path {root}/n3;\n\
         uwsgi_temp_path {root}/n4; scgi_temp_path {root}/n5;\n\
         server {{ listen {web} proxy_protocol; return 200 \
         \"$proxy_protocol_addr:$proxy_protocol_port to $proxy_protocol_server_port, $http_x_forwarded_for, $http_forwarded\"; }}\n}}\n"
    )
}

/// An haproxy that passes connections on to an agent, with a header of version 2.
fn haproxy_conf(front: SocketAddr, listen: SocketAddr) -> String {
    format!(
        "defaults\n mode tcp\n retries 0\n timeout connect 30s\n timeout client 60s\n timeout server 60s\n\
         frontend in\n bind {front}\n default_backend agent\n\
         backend agent\n server one {listen} send-proxy-v2\n"
    )
}

/// The body of nginx's answer to one request.
fn get(stream: &mut BufReader<TcpStream>) -> String {
    let get = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\n\r\n";
    stream.get_mut().write_all(get.as_bytes()).unwrap();
    let mut length = None;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = Some(value.trim().parse::<usize>().unwrap());
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length.expect("nginx says how long its answer is")];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
fn haproxy_and_nginx_speak_as_we_do() {
    let (Some(haproxy), Some(nginx)) = (program("haproxy"), program("nginx")) else { return };
    // The chain: client, haproxy, agent, edge with `compress`, agent, nginx.
    let layout = support::layout("peer-programs", |layout| layout.edges = 2);
    let mut cluster = TestCluster::new(layout, |place| {
        let manifest = "server = \"web\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"16MiB\"\n";
        Ok(vec![support::cells().manifest(place, "compress", "compress", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let [front, listen, web] = [(); 3].map(|()| free_address().unwrap());
    let root = cluster.directory.path().display().to_string();
    let nginx_conf = cluster.directory.write("nginx.conf", nginx_conf(&root, web)).unwrap();
    let haproxy_conf = cluster.directory.write("haproxy.cfg", haproxy_conf(front, listen)).unwrap();
    let errors =
        [cluster.directory.path().join("nginx.stderr"), cluster.directory.path().join("haproxy.stderr")];
    let mut command = Command::new(nginx);
    command.arg("-e").arg(format!("{root}/nginx.early")).arg("-c").arg(&nginx_conf);
    let _nginx = TestProcess::start("nginx", &mut command, &LogCollector::default(), &errors[0]).unwrap();
    let mut command = Command::new(haproxy);
    command.arg("-db").arg("-f").arg(&haproxy_conf);
    let _haproxy = TestProcess::start("haproxy", &mut command, &LogCollector::default(), &errors[1]).unwrap();
    // Before there is an agent: to ask haproxy whether it is ready would begin a session, whose owner may be another edge.
    for (address, errors) in [web, front].into_iter().zip(&errors) {
        site::wait_for(address, errors);
    }
    let servers = format!("servers.web = {{ address = \"{web}\", proxy_protocol = true }}\n");
    cluster.start_agent_with(AgentSide::Server, &edges, &servers).unwrap();
    let listener = format!("[[listen]]\naddress = \"{listen}\"\napp = \"compress\"\nproxy_protocol = true\n");
    cluster.start_agent_with(AgentSide::Client, &edges, &listener).unwrap();
    let mut stream = connect(front);
    let own = stream.get_ref().local_addr().unwrap();
    let ip = own.ip();
    for _ in 0..3 {
        let expected = format!("{own} to {}, {ip}, for={ip}", front.port());
        assert_eq!(get(&mut stream), expected);
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        cluster.wait_for_owner(start).unwrap();
        cluster.respawn(owner).unwrap();
    }
}
