//! The part of docs/exec.md about a whole host: the kernel redirects, by the rules in that document, in a network of this test.

use super::web;
use crate::support::{self, is_here, skip::skip};
use marram_cluster::{AgentSide, Namespace};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, Stdio},
    thread,
};

/// A user other than the agent's.
const NOBODY: u32 = 65_534;
const DOCUMENT: &str = include_str!("../../../../../../docs/exec.md");

/// The rules as in the document, except for the agent's user: here it is root.
fn rules() -> String {
    let begin = DOCUMENT.find("    table inet marram {").expect("docs/exec.md has the rules");
    let text: String =
        DOCUMENT[begin..].lines().take_while(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect();
    assert!(text.contains("skuid \"marram\""), "{text}");
    text.replace("skuid \"marram\"", "skuid \"root\"")
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// A network namespace in which the hosts of the document are routed to its loopback device. Dropping it removes it.
struct Network(String);

impl Network {
    fn new() -> Self {
        let network = Self(format!("marram-{}-nft", std::process::id()));
        run("ip", &["netns", "add", &network.0]);
        network
    }

    /// Moves this thread, and all that it starts from now on, into the namespace.
    fn enter(&self) {
        let file = File::open(format!("/var/run/netns/{}", self.0)).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        run("ip", &["link", "set", "lo", "up"]);
        run("ip", &["addr", "add", "10.9.9.9/32", "dev", "lo"]);
        run("ip", &["route", "add", "10.0.0.0/8", "dev", "lo", "src", "10.9.9.9"]);
        run("ip", &["-6", "route", "add", "2001:db8::/32", "dev", "lo"]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A namespace that cannot be removed has the name of this process.
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// The remote address that curl, as this user, reports, and the number of bytes. Without a redirection the address belongs to the
/// machine itself, where no process answers.
fn fetch(url: &str, user: u32) -> Option<String> {
    let mut command = Command::new("curl");
    command.args(["-sgo", "/dev/null", "--connect-timeout", "1", "--max-time", "120"]);
    command.args(["-w", "%{remote_ip} %{remote_port} %{size_download}", url]).uid(user);
    let output = command.stdin(Stdio::null()).output().unwrap();
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_kernels_rules_of_the_document_lead_to_the_agent() {
    support::begin();
    let nft = "/usr/sbin/nft";
    if !is_here(nft) || !is_here("curl") {
        return;
    }
    if !Namespace::possible() {
        return skip("it takes the right to make network namespaces");
    }
    let network = Network::new();
    // On a separate thread, since it stays in the namespace that it enters.
    thread::scope(|scope| {
        let tested = scope.spawn(|| {
            network.enter();
            redirects(nft);
        });
        tested.join().unwrap();
    });
}

fn redirects(nft: &str) {
    let mut cluster = support::cluster("exec-nft", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("peer", web())]).unwrap();
    let listen = "[[listen]]\naddress = \"[::]:7000\"\napp = \"forward\"\n";
    cluster.start_agent_with(AgentSide::Client, &edges, listen).unwrap();
    let (v4, v6) = ("http://10.0.0.7:5432/70000", "http://[2001:db8::7]:5432/70000");
    assert_eq!(fetch(v4, NOBODY), None, "without the rules this leads nowhere");
    let file = cluster.directory.write("rules.nft", rules()).unwrap();
    run(nft, &["-f", file.to_str().unwrap()]);
    for (url, address) in [(v4, "10.0.0.7"), (v6, "2001:db8::7")] {
        let told = fetch(url, NOBODY).expect("it is redirected");
        assert_eq!(told, format!("{address} 5432 70000"));
    }
    assert_eq!(fetch(v4, 0), None, "the agent's own user is left alone");
    run(nft, &["delete", "table", "inet", "marram"]);
    assert_eq!(fetch(v4, NOBODY), None, "without the rules all is as before");
}
