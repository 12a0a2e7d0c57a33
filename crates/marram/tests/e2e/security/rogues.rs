//! Hostile agents and a real edge: an agent with the clients' token that announces the server is refused, and gets no session.

use crate::support;
use marram_cluster::{AgentSide, TempDir, TestCluster, TestProcess, free_address};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// One edge with a token for clients and one for servers, and the files of both.
fn cluster(place: &TempDir) -> (TestCluster, [String; 2]) {
    let token = |name: &str| {
        let path = place.write_private(name, name.repeat(8)).unwrap();
        path.display().to_string()
    };
    let tokens = [token("client"), token("server")];
    let mut cluster = support::cluster_with("rogues", |layout| {
        layout.encrypted = false;
        layout.edge_tables = format!(
            "[[credential]]\nname = \"clients\"\ntoken_file = {:?}\nroles = [\"client\"]\n\
             [[credential]]\nname = \"servers\"\ntoken_file = {:?}\nservers = [\"peer\"]\n",
            tokens[0], tokens[1]
        );
    });
    cluster.start_edges("").unwrap();
    (cluster, tokens)
}

/// A server's agent with this token.
fn serve(cluster: &mut TestCluster, server: &TcpListener, token: &str) {
    let tables = format!(
        "servers = {{ peer = \"{}\" }}\n[security]\ntoken_file = {token:?}\n",
        server.local_addr().unwrap()
    );
    let edges = cluster.edge_addresses();
    cluster.start_agent_with(AgentSide::Server, &edges, &tables).unwrap();
}

/// Waits for a log line that has all of these words.
fn refused(cluster: &TestCluster, words: &[&str]) {
    let wanted =
        |event: &marram_cluster::LogEvent| words.iter().all(|word| event.text("message").contains(word));
    let found = cluster.logs.wait(0, PATIENCE, wanted);
    assert!(found.is_some(), "nothing with {words:?}; the last lines:\n{}", cluster.logs.tail(30));
}

#[test]
fn an_agent_with_the_clients_token_gets_no_session_of_a_server() {
    let place = TempDir::new("rogues-tokens").unwrap();
    let (mut cluster, [client, server]) = cluster(&place);
    let [honest, rogue] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    // The real server's agent is not running, so the rogue's would be the only one.
    let flags = |side: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        let edge = cluster.edge_addresses()[0].to_string();
        command.args(["agent", side, "--edge", &edge, "--token-file", &client]);
        command
    };
    let mut command = flags("server");
    command.args(["--server", &format!("peer={}", rogue.local_addr().unwrap())]);
    let errors = place.path().join("rogue.stderr");
    let mut process = TestProcess::start("rogue", &mut command, &cluster.logs, &errors).unwrap();
    refused(&cluster, &["refused", "127.0.0.1:", "`clients`", "peer", "[[credential]]"]);
    let address = free_address().unwrap();
    let tables = format!(
        "[[listen]]\naddress = \"{address}\"\napp = \"forward\"\n[security]\ntoken_file = {client:?}\n"
    );
    let edges = cluster.edge_addresses();
    cluster.start_agent_with(AgentSide::Client, &edges, &tables).unwrap();
    let mut program = TcpStream::connect(address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"ahoy").unwrap();
    refused(&cluster, &["no agent", "`peer`"]);
    // The real agent starts, and the waiting client reaches its server.
    serve(&mut cluster, &honest, &server);
    let (mut accepted, _) = honest.accept().unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut heard = [0; 4];
    accepted.read_exact(&mut heard).unwrap();
    accepted.write_all(b"ohoy").unwrap();
    program.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"ohoy");
    rogue.set_nonblocking(true).unwrap();
    let error = rogue.accept().map(drop).expect_err("no session reached the rogue");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    process.kill();
}

#[test]
fn an_edge_says_at_start_what_one_token_or_none_opens() {
    let mut cluster = support::cluster_with("rogues-open", |layout| layout.encrypted = false);
    cluster.start_edges("").unwrap();
    refused(&cluster, &["there is no credential", "every program on this machine"]);
    let mut cluster = support::cluster_with("rogues-shared", |_| {});
    cluster.start_edges("").unwrap();
    refused(&cluster, &["`security.token_file` grants every role", "[[credential]]"]);
}
